// The operators LinearAttention and CausalConvWithState: what onnxruntime's compute of channels that lie next to each
// other, where a state decays by one number for each head. What those say by texts is said by whole numbers here:
// `delta`, and `silu`.
#include <cmath>
#include <vector>

#include "operators.h"

namespace edge {
namespace {

class LinearAttention : public Kernel {
 public:
  LinearAttention(const Node& node, const Form& form)
      : form_(form.states),
        query_heads_(node.number("q_num_heads", 0, 1, 1 << 16)),
        heads_(node.number("kv_num_heads", 0, 1, 1 << 16)),
        delta_(node.number("delta", 0, 0, 1)),
        scale_(node.real("scale", 0)) {
    if (heads_ % query_heads_)
      Refuse(node, "q_num_heads is ", int64_t{query_heads_}, ", which does not divide ", int64_t{heads_}, " heads");
  }

  void Compute(Call& call) const override {
    const ort::Tensor query = call.input(0), key = call.input(1), value = call.input(2), past = call.input(3),
                      decay = call.input(4), rate = call.input(5);
    Expect(call, "past_state", past, ort::kFloat, {kAnySize, heads_, kAnySize, kAnySize});
    const int rows = Within(call, "the number of a state's rows", past.shape[2], 2, kMostStateRows);
    const int columns = Within(call, "the number of a state's columns", past.shape[3], kLanes, kLongestRow);
    if (rows % 2 || columns % kLanes)
      Refuse(call, "a state is ", int64_t{rows}, " times ", int64_t{columns}, ", not a multiple of 2 times one of ",
             int64_t{kLanes});
    Expect(call, "query", query, ort::kFloat, {past.shape[0], kAnySize, Times(query_heads_, rows)});
    const int64_t batch = past.shape[0], count = query.shape[1];
    const int tokens = Within(call, "the number of tokens", count);
    Expect(call, "key", key, ort::kFloat, {batch, count, kAnySize});
    const int64_t key_heads = key.shape[2] / rows;
    if (key.shape[2] % rows || !key_heads || heads_ % key_heads)
      Refuse(call, "key has rows of ", key.shape[2], " numbers, which are no heads of ", int64_t{rows});
    Expect(call, "value", value, ort::kFloat, {batch, count, Times(heads_, columns)});
    Expect(call, "decay", decay, ort::kFloat, {batch, count, heads_});
    if (delta_) Expect(call, "beta", rate, ort::kFloat, {batch, count, heads_});
    float* out = call.floats(0, value.shape.data(), value.rank);
    float* present = call.floats(1, past.shape.data(), past.rank);
    if (!tokens) return past.CopyTo(present);
    const int parts = (columns + kStateColumns - 1) / kStateColumns;
    const int pieces = Within(call, "the number of states", Times(Times(batch, heads_), parts));
    const size_t state = static_cast<size_t>(rows) * columns, bytes = state / parts * sizeof(float) * tokens;
    const auto each = static_cast<int>(std::max<size_t>(1, call.team.least() / std::max<size_t>(1, bytes)));
    call.team.ShareBy(pieces, each, [&](int first, int last) {
      for (int i = first; i < last; i++) {
        const size_t sequence = i / parts / heads_, before = sequence * tokens;
        const int from = i % parts * kStateColumns;
        form_.scan({tokens, heads_, query_heads_, static_cast<int>(key_heads), rows, columns,
                    query.as<float>() + before * query_heads_ * rows, key.as<float>() + before * key_heads * rows,
                    value.as<float>() + before * heads_ * columns, decay.as<float>() + before * heads_,
                    delta_ ? rate.as<float>() + before * heads_ : nullptr,
                    past.as<float>() + sequence * heads_ * state,
                    scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<float>(rows)), present + sequence * heads_ * state,
                    out + before * heads_ * columns},
                   i / parts % heads_, from, std::min(columns, from + kStateColumns));
      }
    });
  }

 private:
  const StatesForm& form_;
  int query_heads_, heads_, delta_;
  float scale_;
};

class CausalConvolution : public Kernel {
 public:
  CausalConvolution(const Node& node, const Form& form) : form_(form.states), silu_(node.number("silu", 0, 0, 1)) {
    const ort::Tensor weight = node.constant(1);
    Expect(node, "weight", weight, ort::kFloat, {kAnySize, 1, kAnySize});
    channels_ = Within(node, "the number of channels", weight.shape[0], kLanes, kLongestRow);
    taps_ = Within(node, "the number of taps", weight.shape[2], 2, kMostTaps);
    if (channels_ % kLanes)
      Refuse(node, "weight has ", int64_t{channels_}, " channels, which is no multiple of ", int64_t{kLanes});
    weights_.resize(static_cast<size_t>(taps_) * channels_);
    for (int c = 0; c < channels_; c++)
      for (int i = 0; i < taps_; i++)
        weights_[static_cast<size_t>(i) * channels_ + c] = weight.as<float>()[static_cast<size_t>(c) * taps_ + i];
  }

  void Compute(Call& call) const override {
    const ort::Tensor x = call.input(0), bias = call.input(2), past = call.input(3);
    Expect(call, "input", x, ort::kFloat, {kAnySize, kAnySize, channels_});
    if (bias.there) Expect(call, "bias", bias, ort::kFloat, {channels_});
    Expect(call, "past_state", past, ort::kFloat, {x.shape[0], taps_ - 1, channels_});
    const int tokens = Within(call, "the number of tokens", x.shape[1]);
    float* out = call.floats(0, x.shape.data(), x.rank);
    float* present = call.floats(1, past.shape.data(), past.rank);
    const size_t bytes = sizeof(float) * kLanes * (static_cast<size_t>(tokens) + 2 * taps_);
    const int some = static_cast<int>(std::max<size_t>(8, call.team.least() / bytes)) * kLanes;  // channels of a piece
    const int parts = (channels_ + some - 1) / some;
    const int pieces = Within(call, "the number of sequences", Times(x.shape[0], parts));
    call.team.Share(pieces, [&](size_t piece) {
      const size_t sequence = piece / parts, row = sequence * tokens * channels_;
      const size_t kept = sequence * (taps_ - 1) * channels_;
      const int first = static_cast<int>(piece % parts) * some;
      form_.convolve({tokens, channels_, taps_, silu_ != 0, x.as<float>() + row, weights_.data(),
                      bias.there ? bias.as<float>() : nullptr, past.as<float>() + kept, present + kept, out + row},
                     first, std::min(channels_, first + some));
    });
  }

 private:
  const StatesForm& form_;
  int silu_, channels_ = 0, taps_ = 0;
  std::vector<float> weights_;  // [taps, channels]
};

const Operator kLinear{
    "LinearAttention",
    Make<LinearAttention>,
    {{ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kRequired, By::kSequence},
     {ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kOptional, By::kRow}},
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kRequired}},
};
const Operator kConvolution{
    "CausalConvWithState",
    Make<CausalConvolution>,
    {{ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kRequired, By::kSequence}},
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kRequired}},
};

}  // namespace

const Operator *const kLinearAttentionOperator = &kLinear, *const kConvolutionOperator = &kConvolution;

}  // namespace edge
