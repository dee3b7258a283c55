// The operators GroupQueryAttention, which rotates queries and keys, appends keys and values to the cache, and attends;
// and MultiHeadAttention, which attends to all keys that it is given: a decoder's to what its encoder made.
#include <cmath>
#include <cstring>
#include <vector>

#include "attention.h"
#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

enum Inputs {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLast,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale
};

constexpr int kFewTokens = 16;  // up to which threads share chunks of the cache; of more they share tokens
constexpr int kTokens = 32;     // that a thread takes at a time, of many
constexpr int kAtATime = 8;     // that it rotates
constexpr int kPart = 4;        // that a thread takes at a time, of few
constexpr int kEnough = 8;      // chunks that threads share evenly

class Attends : public Kernel {
 public:
  Attends(const Node& node, const Form& form)
      : form_(form.attention), heads_(node.number("num_heads")), scale_(node.real("scale", 0)) {}

 protected:
  float Scale(int dim) const { return scale_ > 0 ? scale_ : 1 / std::sqrt(static_cast<float>(dim)); }

  void Attend(Call& call, const Attention& a, const float* of_value, float* out) const {
    if (a.tokens <= kFewTokens)
      Few(call, a, of_value, out);
    else
      Many(call, a, of_value, out);
  }

  const AttentionForm form_;
  const int heads_;

 private:
  // Every chunk of every group of heads by itself, of a few tokens at a time where there are too few chunks; then all
  // chunks of a token in order.
  void Few(Call& call, const Attention& a, const float* of_value, float* out) const {
    const int first = a.begin(0) / kChunk, chunks = (a.end(a.tokens - 1) + kChunk - 1) / kChunk - first;
    const int of_heads = chunks * a.kv_heads, parts = of_heads < kEnough ? (a.tokens + kPart - 1) / kPart : 1;
    const int part = (a.tokens + parts - 1) / parts;
    const size_t size = StateSize(a.dim), of_chunk = static_cast<size_t>(a.tokens) * a.group() * size;
    float* all = ort::Reserve(call.room.states, of_chunk * of_heads);
    const size_t each = a.dim * (a.bytes ? 2 : 2 * sizeof(float)) * (a.tokens + 3) / 4;
    const bool alone = a.end(a.tokens - 1) * a.kv_heads * each < call.team.least();
    const int pieces = of_heads * parts;
    call.team.ShareBy(pieces, alone ? pieces : 1, [&](int begin, int end) {
      for (int i = begin; i < end; i++) {
        const int at = i / parts, token = i % parts * part;
        form_.chunk(a, at % a.kv_heads, first + at / a.kv_heads, token, std::min(token + part, a.tokens),
                    all + at * of_chunk + token * a.group() * size);
      }
    });
    const int rows = a.tokens * a.group();
    for (int kv = 0; kv < a.kv_heads; kv++)
      for (int row = 0; row < rows; row++) {
        float* state = all + kv * of_chunk + row * size;
        for (int c = 1; c < chunks; c++) form_.merge(a.dim, state, all + (c * a.kv_heads + kv) * of_chunk + row * size);
        Put(a, kv, row, state, of_value, out);
      }
  }

  // Some tokens of a group of heads at a time, chunk after chunk.
  void Many(Call& call, const Attention& a, const float* of_value, float* out) const {
    const int pieces = (a.tokens + kTokens - 1) / kTokens;
    call.team.Share(static_cast<size_t>(pieces) * a.kv_heads, [&](size_t i) {
      const int kv = static_cast<int>(i) % a.kv_heads, piece = pieces - 1 - static_cast<int>(i) / a.kv_heads;
      const int first = piece * kTokens, last = std::min(a.tokens, first + kTokens);
      const size_t size = StateSize(a.dim), count = static_cast<size_t>(last - first) * a.group();
      thread_local std::vector<float> room;
      float *states = ort::Reserve(room, 2 * count * size), *more = states + count * size;
      const int begin = a.begin(first) / kChunk, end = (a.end(last - 1) + kChunk - 1) / kChunk;
      form_.chunk(a, kv, begin, first, last, states);
      for (int c = begin + 1; c < end; c++) {
        form_.chunk(a, kv, c, first, last, more);
        for (size_t row = 0; row < count; row++) form_.merge(a.dim, states + row * size, more + row * size);
      }
      for (size_t row = 0; row < count; row++)
        Put(a, kv, first * a.group() + static_cast<int>(row), states + row * size, of_value, out);
    });
  }

  void Put(const Attention& a, int kv, int row, const float* state, const float* of_value, float* out) const {
    const int token = row / a.group(), head = kv * a.group() + row % a.group();
    form_.finish(a.dim, state, of_value ? of_value + kv * a.dim : nullptr,
                 out + (static_cast<size_t>(token) * a.heads + head) * a.dim);
  }

  const float scale_;
};

class GroupQuery : public Attends {
 public:
  GroupQuery(const Node& node, const Form& form) : Attends(node, form) {
    kv_heads_ = node.number("kv_num_heads");
    window_ = std::max(0, node.number("local_window_size"));  // -1 for none
    rotary_ = node.number("do_rotary") != 0;
    if (heads_ < 1 || kv_heads_ < 1 || heads_ % kv_heads_)
      ort::Refuse(node.api, "numbers of heads that do not go together");
  }

  void Compute(Call& call) const override {
    auto input = [&](size_t i) { return call.input(i); };
    const ort::Tensor query = input(kQuery), key = input(kKey), value = input(kValue), past_key = input(kPastKey),
                      past_value = input(kPastValue), last = input(kLast), total = input(kTotal), cos = input(kCos),
                      sin = input(kSin), positions = input(kPositions), bias = input(kBias),
                      key_scale = input(kKeyScale), value_scale = input(kValueScale);
    if (query.rank != 3 || past_key.rank != 4 || past_value.rank != 4)
      ort::Refuse(call.api, "inputs of other ranks than expected");
    const int batch = static_cast<int>(query.shape[0]), tokens = static_cast<int>(query.shape[1]);
    const int dim = static_cast<int>(past_key.shape[3]), width = static_cast<int>(query.shape[2]);
    const int rows = static_cast<int>(past_key.shape[2]), capacity = std::max(rows, *total.as<int32_t>());
    const bool packed = !key.data, bytes = past_key.type == ort::kInt8;
    if (width != (packed ? heads_ + 2 * kv_heads_ : heads_) * dim || dim % kLanes || dim > 256)
      ort::Refuse(call.api, "heads of another size than expected");
    if (bytes && !(key_scale.data && value_scale.data)) ort::Refuse(call.api, "a cache in 8 bits without scales");

    const int64_t made[] = {batch, tokens, static_cast<int64_t>(heads_) * dim};
    const int64_t cache[] = {batch, kv_heads_, capacity, dim};
    auto* out = static_cast<float*>(call.output(0, made, 3));
    void* keys = call.output(1, cache, 4);
    void* values = call.output(2, cache, 4);
    const size_t size = bytes ? 1 : sizeof(float), head_bytes = capacity * dim * size;
    const int group = heads_ / kv_heads_;
    if (!tokens) return;

    const size_t all_heads = static_cast<size_t>(tokens) * heads_;
    float* rotated = ort::Reserve(call.room.floats, all_heads * dim);
    int8_t* rounded = bytes ? ort::Reserve(call.room.bytes, all_heads * dim * 2) : nullptr;
    float* rounded_scales = bytes ? ort::Reserve(call.room.scales, all_heads) : nullptr;
    int32_t* rounded_sums = bytes ? ort::Reserve(call.room.sums, all_heads * 2) : nullptr;

    for (int b = 0; b < batch; b++) {
      const int past = last.as<int32_t>()[b] + 1 - tokens;
      if (past < 0 || past + tokens > capacity) ort::Refuse(call.api, "more rows than the cache has room for");
      auto* of_keys = static_cast<uint8_t*>(keys) + b * kv_heads_ * head_bytes;
      auto* of_values = static_cast<uint8_t*>(values) + b * kv_heads_ * head_bytes;
      Copy(past_key, of_keys, b, past, rows, dim * size, head_bytes);
      Copy(past_value, of_values, b, past, rows, dim * size, head_bytes);

      const float* from = query.as<float>() + static_cast<size_t>(b) * tokens * width;
      const float* new_keys =
          packed ? from + heads_ * dim : key.as<float>() + static_cast<size_t>(b) * tokens * kv_heads_ * dim;
      const float* new_values =
          packed ? new_keys + kv_heads_ * dim : value.as<float>() + static_cast<size_t>(b) * tokens * kv_heads_ * dim;
      const size_t stride = packed ? width : kv_heads_ * dim;
      auto prepare = [&](int t) {
        const int64_t position = positions.data ? positions.as<int64_t>()[b * tokens + t] : past + t;
        const int half = rotary_ ? static_cast<int>(cos.shape[1]) : 0;
        const float *c = nullptr, *s = nullptr;
        if (rotary_) {
          const int64_t at = std::clamp<int64_t>(position, 0, cos.shape[0] - 1);
          c = cos.as<float>() + at * half;
          s = sin.as<float>() + at * half;
        }
        for (int h = 0; h < heads_; h++) {
          const float* factors = bytes ? key_scale.as<float>() + h / group * dim : nullptr;
          const size_t at = static_cast<size_t>(t) * heads_ + h;
          float* made = rotated + at * dim;
          form_.rotate(from + static_cast<size_t>(t) * width + h * dim, c, s, half, dim, Scale(dim), factors, made);
          if (bytes) form_.round(made, dim, rounded + at * dim * 2, rounded_scales[at], rounded_sums + 2 * at);
        }
        for (int h = 0; h < kv_heads_; h++) {
          const size_t at = h * head_bytes + (past + t) * dim * size;
          const float* value_from = new_values + t * stride + h * dim;
          if (!bytes) {
            form_.rotate(new_keys + t * stride + h * dim, c, s, half, dim, 1, nullptr,
                         reinterpret_cast<float*>(of_keys + at));
            std::memcpy(of_values + at, value_from, dim * sizeof(float));
            continue;
          }
          float turned[256];
          form_.rotate(new_keys + t * stride + h * dim, c, s, half, dim, 1, nullptr, turned);
          form_.to_bytes(turned, key_scale.as<float>() + h * dim, dim, reinterpret_cast<int8_t*>(of_keys + at));
          form_.to_bytes(value_from, value_scale.as<float>() + h * dim, dim, reinterpret_cast<int8_t*>(of_values + at));
        }
      };
      const bool few = all_heads * dim < call.team.least();
      const int each = few ? tokens : tokens <= kFewTokens ? 1 : kAtATime;
      call.team.ShareBy(tokens, each, [&](int from_token, int to_token) {
        for (int t = from_token; t < to_token; t++) prepare(t);
      });

      Attention a{heads_,  kv_heads_, dim,     tokens,         past,         capacity, window_, bytes, rotated,
                  of_keys, of_values, rounded, rounded_scales, rounded_sums, nullptr,  0,       0,     0};
      if (bias.data) {
        a.bias_token = bias.shape[3];
        a.bias_head = bias.shape[1] > 1 ? bias.shape[2] * bias.shape[3] : 0;
        a.bias = bias.as<float>() + (bias.shape[0] > 1 ? b * bias.shape[1] * bias.shape[2] * bias.shape[3] : 0);
      }
      const float* of_value = bytes ? value_scale.as<float>() : nullptr;
      float* to = out + static_cast<size_t>(b) * tokens * heads_ * dim;
      Attend(call, a, of_value, to);
    }
  }

 private:
  // The rows before the step's, where the cache is not written in place.
  void Copy(const ort::Tensor& past, uint8_t* to, int b, int count, int rows, size_t row_bytes,
            size_t head_bytes) const {
    const auto* from = past.as<uint8_t>() + static_cast<size_t>(b) * kv_heads_ * rows * row_bytes;
    if (from == to) return;
    for (int h = 0; h < kv_heads_; h++)
      std::memcpy(to + h * head_bytes, from + static_cast<size_t>(h) * rows * row_bytes, count * row_bytes);
  }

  int kv_heads_, window_;
  bool rotary_;
};

class MultiHead : public Attends {
 public:
  using Attends::Attends;

  // Inputs: queries [batch, tokens, heads * dim], and keys and values [batch, heads, keys, dim]; or queries, keys and
  // values of the same tokens, [batch, tokens, 3 * heads * dim], alone. Input 5 is added to scores: [1, heads or 1,
  // tokens, keys].
  void Compute(Call& call) const override {
    const ort::Tensor query = call.input(0), keys = call.input(1), values = call.input(2), bias = call.input(5);
    const bool packed = !keys.data;
    if (query.rank != 3 || query.shape[2] % (packed ? 3 * heads_ : heads_))
      ort::Refuse(call.api, "heads of another size than expected");
    const int batch = static_cast<int>(query.shape[0]), tokens = static_cast<int>(query.shape[1]);
    const size_t row = query.shape[2], width = packed ? row / 3 : row;
    const int dim = static_cast<int>(width) / heads_, count = packed ? tokens : static_cast<int>(keys.shape[2]);
    const std::array<int64_t, 4> shape{batch, heads_, count, dim};
    if (!count || dim % kLanes || dim > 256 || (!packed && (keys.shape != shape || values.shape != shape)))
      ort::Refuse(call.api, "keys or values of another size than expected");
    if (bias.data && (bias.rank != 4 || bias.shape[0] != 1 || bias.shape[2] != tokens || bias.shape[3] != count))
      ort::Refuse(call.api, "a bias of another size than expected");
    const int64_t made[] = {batch, tokens, static_cast<int64_t>(width)};
    auto* out = static_cast<float*>(call.output(0, made, 3));
    if (!tokens) return;

    float* scaled = ort::Reserve(call.room.floats, tokens * width);
    float* by_heads = packed ? ort::Reserve(call.room.heads, 2 * count * width) : nullptr;
    Attention a{};
    a.heads = a.kv_heads = heads_;
    a.dim = dim;
    a.tokens = tokens;
    a.past = a.capacity = a.all = count;
    a.queries = scaled;
    a.bias = bias.as<float>();
    if (bias.data) {
      a.bias_token = count;
      a.bias_head = bias.shape[1] > 1 ? static_cast<size_t>(tokens) * count : 0;
    }
    const int each = tokens * width < call.team.least() ? tokens : kAtATime;
    for (int b = 0; b < batch; b++) {
      const float* from = query.as<float>() + b * tokens * row;
      call.team.ShareBy(tokens, each, [&](int first, int last) {
        for (int t = first; t < last; t++) {
          const float* of_token = from + t * row;
          form_.rotate(of_token, nullptr, nullptr, 0, static_cast<int>(width), Scale(dim), nullptr, scaled + t * width);
          for (int i = 0; packed && i < 2 * heads_; i++)
            std::memcpy(by_heads + (static_cast<size_t>(i) * count + t) * dim, of_token + width + i * dim,
                        dim * sizeof(float));
        }
      });
      a.keys = packed ? by_heads : keys.as<float>() + b * count * width;
      a.values = packed ? by_heads + count * width : values.as<float>() + b * count * width;
      Attend(call, a, nullptr, out + b * tokens * width);
    }
  }
};

// `cache`: the type of keys and values, which onnxruntime must know.
Operator Over(ort::Type cache) {
  return {"GroupQueryAttention",
          Make<GroupQuery>,
          {{ort::kFloat, ort::kRequired},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {cache, ort::kRequired},
           {cache, ort::kRequired},
           {ort::kInt32, ort::kRequired},
           {ort::kInt32, ort::kRequired},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kInt64, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional}},
          {{ort::kFloat, ort::kRequired}, {cache, ort::kRequired}, {cache, ort::kRequired}}};
}

const Operator kMultiHead{"MultiHeadAttention",
                          Make<MultiHead>,
                          {{ort::kFloat, ort::kRequired},
                           {ort::kFloat, ort::kOptional},
                           {ort::kFloat, ort::kOptional},
                           {ort::kFloat, ort::kOptional},
                           {ort::kInt32, ort::kOptional},
                           {ort::kFloat, ort::kOptional}},
                          {{ort::kFloat, ort::kRequired}}};
const Operator kOverFloats = Over(ort::kFloat), kOverBytes = Over(ort::kInt8);

}  // namespace

const Operator *const kAttentionOperator = &kOverFloats, *const kBytesAttentionOperator = &kOverBytes,
                      *const kMultiHeadOperator = &kMultiHead;

}  // namespace edge
