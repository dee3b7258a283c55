// The operators GroupQueryAttention, which rotates queries and keys, appends keys and values to the cache, and attends;
// and MultiHeadAttention, which attends to all keys that it is given: a decoder's to what its encoder made.
#include <cmath>
#include <cstring>
#include <vector>

#include "attention.h"
#include "attention_inputs.h"
#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr int kFewTokens = 16;  // up to which threads share chunks of the cache; of more they share tokens
constexpr int kTokens = 32;     // that a thread takes at a time, of many
constexpr int kAtATime = 8;     // that it rotates
constexpr int kPart = 4;        // that a thread takes at a time, of few
constexpr int kEnough = 8;      // chunks that threads share evenly

class Attends : public Kernel {
 public:
  Attends(const Node& node, const Form& form)
      : form_(form.attention), heads_(node.number("num_heads", 0, 1, kMostHeads)), scale_(node.real("scale", 0)) {}

 protected:
  float Scale(int dim) const { return scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<float>(dim)); }

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
    float* all = ort::Reserve(call.room.states, of_chunk * static_cast<size_t>(of_heads));
    const size_t each = a.dim * (a.bytes ? 2 : 2 * sizeof(float)) * (a.tokens + size_t{3}) / 4;
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

  void Put(const Attention& a, int kv, int row, float* state, const float* of_value, float* out) const {
    const int token = row / a.group(), head = kv * a.group() + row % a.group();
    if (a.sinks) {  // after all keys, as a chunk of one key whose value is zeros
      thread_local std::vector<float> sink(StateSize(kLargestHead));
      sink[0] = a.sinks[head];
      sink[1] = 1;
      form_.merge(a.dim, state, sink.data());
    }
    form_.finish(a.dim, state, of_value ? of_value + kv * a.dim : nullptr,
                 out + (static_cast<size_t>(token) * a.heads + head) * a.dim);
  }

  const float scale_;
};

class GroupQuery : public Attends {
 public:
  GroupQuery(const Node& node, const Form& form) : Attends(node, form) {
    kv_heads_ = node.number("kv_num_heads", 0, 1, kMostHeads);
    window_ = std::max(0, node.number("local_window_size", -1, -1, std::numeric_limits<int>::max()));  // -1 for none
    rotary_ = node.number("do_rotary", 0, 0, 1) != 0;
    if (heads_ % kv_heads_)
      Refuse(node, "num_heads is ", int64_t{heads_}, ", which is no multiple of kv_num_heads, ", int64_t{kv_heads_});
    for (const char* name : {"smooth_softmax", "qk_output", "rotary_interleaved"}) node.without(name);
    cap_ = node.real("softcap", 0);
    if (cap_ < 0) Refuse(node, "softcap is ", cap_, ", below 0");
    const int bits = node.number("kv_cache_bit_width", 0, 0, 8);
    if (bits != 0 && bits != 8) Refuse(node, "kv_cache_bit_width is ", int64_t{bits}, ", not 8");
  }

  void Compute(Call& call) const override {
    const GroupQueryInputs in(call, heads_, kv_heads_, rotary_);
    const int dim = in.dim, capacity = in.capacity;
    const bool packed = in.packed, bytes = in.bytes;
    const int64_t made[] = {in.batch, in.tokens, static_cast<int64_t>(heads_) * dim};
    const int64_t cache[] = {in.sequences, kv_heads_, capacity, dim};
    const ort::Type type = bytes ? ort::kInt8 : ort::kFloat;
    float* out = call.floats(0, made, 3);
    auto* keys = in.shared ? nullptr : static_cast<uint8_t*>(call.made(1, type, cache, 4));
    auto* values = in.shared ? nullptr : static_cast<uint8_t*>(call.made(2, type, cache, 4));
    const size_t size = bytes ? 1 : sizeof(float), row_bytes = dim * size, head_bytes = capacity * row_bytes;
    const size_t width = in.query.shape[2], kv_width = static_cast<size_t>(kv_heads_) * dim;
    const int group = heads_ / kv_heads_, half = rotary_ ? in.half : 0;

    const size_t most_heads = static_cast<size_t>(in.count(in.texts - 1)) * heads_;  // of one text's tokens
    float* rotated = ort::Reserve(call.room.floats, most_heads * dim);
    int8_t* rounded = bytes ? ort::Reserve(call.room.bytes, most_heads * dim * 2) : nullptr;
    float* rounded_scales = bytes ? ort::Reserve(call.room.scales, most_heads) : nullptr;
    int32_t* rounded_sums = bytes ? ort::Reserve(call.room.sums, most_heads * 2) : nullptr;

    for (const size_t output : {1, 2}) {  // whoever asks for another layer's has them as they are
      const ort::Tensor& past = output == 1 ? in.past_key : in.past_value;
      void* same = nullptr;
      if (in.shared && call.output(output, type, cache, 4, &same)) past.CopyTo(same);
    }
    for (int s = 0, text = 0; s < in.sequences && !in.shared; s++) {  // others keep what they have
      if (text < in.texts && in.sequence(text) == s) {
        text++;
        continue;
      }
      Copy(in.past_key, keys + s * kv_heads_ * head_bytes, s, in.rows, in.rows, row_bytes, head_bytes);
      Copy(in.past_value, values + s * kv_heads_ * head_bytes, s, in.rows, in.rows, row_bytes, head_bytes);
    }
    for (int text = 0; text < in.texts; text++) {
      const int past = in.past(text), s = in.sequence(text), tokens = in.count(text);
      const size_t before = s * kv_heads_ * head_bytes;
      uint8_t *of_keys = in.shared ? nullptr : keys + before, *of_values = in.shared ? nullptr : values + before;
      if (!in.shared) {
        Copy(in.past_key, of_keys, s, past, in.rows, row_bytes, head_bytes);
        Copy(in.past_value, of_values, s, past, in.rows, row_bytes, head_bytes);
      }

      const size_t first_token = in.first(text);
      const float* from = in.query.as<float>() + first_token * width;
      const float* new_keys =
          packed ? from + static_cast<size_t>(heads_) * dim : in.key.as<float>() + first_token * kv_width;
      const float* new_values = packed ? new_keys + kv_width : in.value.as<float>() + first_token * kv_width;
      const size_t stride = packed ? width : kv_width;
      auto prepare = [&](int t) {
        const float *c = nullptr, *s = nullptr;
        if (rotary_) {
          const int64_t at = in.positions.there ? in.positions.as<int64_t>()[first_token + t] : past + t;
          c = in.cos.as<float>() + at * half;
          s = in.sin.as<float>() + at * half;
        }
        for (int h = 0; h < heads_; h++) {
          const float* factors = bytes ? in.key_scale.as<float>() + h / group * dim : nullptr;
          const size_t at = static_cast<size_t>(t) * heads_ + h;
          float* made = rotated + at * dim;
          form_.rotate(from + t * width + h * dim, c, s, half, dim, Scale(dim), factors, made);
          if (bytes) form_.round(made, dim, rounded + at * dim * 2, rounded_scales[at], rounded_sums + 2 * at);
        }
        for (int h = 0; h < kv_heads_ && !in.shared; h++) {
          const size_t at = h * head_bytes + (past + t) * row_bytes;
          const float *key_from = new_keys + t * stride + h * dim, *value_from = new_values + t * stride + h * dim;
          if (!bytes) {
            form_.rotate(key_from, c, s, half, dim, 1, nullptr, reinterpret_cast<float*>(of_keys + at));
            std::memcpy(of_values + at, value_from, row_bytes);
            continue;
          }
          float turned[kLargestHead];
          form_.rotate(key_from, c, s, half, dim, 1, nullptr, turned);
          const bool finite = form_.to_bytes(turned, in.key_scale.as<float>() + h * dim, dim,
                                             reinterpret_cast<int8_t*>(of_keys + at)) &&
                              form_.to_bytes(value_from, in.value_scale.as<float>() + h * dim, dim,
                                             reinterpret_cast<int8_t*>(of_values + at));
          if (!finite)
            Refuse(call, "the key or the value of token ", int64_t{t}, " of ", int64_t{tokens},
                   " is not a number or infinite, which a cache in 8 bits cannot hold");
        }
      };
      const bool few = static_cast<size_t>(tokens) * heads_ * dim < call.team.least();
      const int each = few ? tokens : tokens <= kFewTokens ? 1 : kAtATime;
      call.team.ShareBy(tokens, each, [&](int from_token, int to_token) {
        for (int t = from_token; t < to_token; t++) prepare(t);
      });

      const void* all_keys = in.shared ? in.past_key.as<uint8_t>() + before : of_keys;
      const void* all_values = in.shared ? in.past_value.as<uint8_t>() + before : of_values;
      Attention a{heads_,   kv_heads_,  dim,     tokens,         past,         capacity, window_, bytes, rotated,
                  all_keys, all_values, rounded, rounded_scales, rounded_sums, nullptr,  0,       0,     0,
                  cap_};
      a.sinks = in.sink.as<float>();
      if (in.bias.there) {
        const size_t of_head = static_cast<size_t>(tokens) * in.bias.shape[3];
        a.bias_token = in.bias.shape[3];
        a.bias_head = in.bias.shape[1] > 1 ? of_head : 0;
        a.bias = in.bias.as<float>() + (in.bias.shape[0] > 1 ? text * in.bias.shape[1] * of_head : 0);
      }
      Attend(call, a, bytes ? in.value_scale.as<float>() : nullptr, out + first_token * heads_ * dim);
    }
  }

  // Keys and values stay as they were.
  void Leave(Call& call) const override {
    const ort::Tensor key = call.input(1);
    const bool shared = key.there && key.rank == 3 && !key.shape[1];  // another layer's, which few ask for
    for (const size_t output : {1, 2}) {
      const ort::Tensor past = call.input(output + 2);
      if (!past.there || past.rank != 4) Refuse(call, "past_key or past_value is missing");
      void* same = nullptr;
      if (!shared)
        past.CopyTo(call.made(output, past.type, past.shape.data(), past.rank));
      else if (call.output(output, past.type, past.shape.data(), past.rank, &same))
        past.CopyTo(same);
    }
  }

 private:
  // The rows before the step's, where the cache is not written in place.
  void Copy(const ort::Tensor& past, uint8_t* to, int b, int count, int rows, size_t row_bytes,
            size_t head_bytes) const {
    const auto* from = past.as<uint8_t>() + static_cast<size_t>(b) * kv_heads_ * rows * row_bytes;
    if (from == to || !count) return;
    for (int h = 0; h < kv_heads_; h++)
      std::memcpy(to + h * head_bytes, from + static_cast<size_t>(h) * rows * row_bytes, count * row_bytes);
  }

  int kv_heads_, window_;
  float cap_;
  bool rotary_;
};

class MultiHead : public Attends {
 public:
  MultiHead(const Node& node, const Form& form) : Attends(node, form) { node.without("unidirectional"); }

  // Inputs: queries [batch, tokens, heads * dim], and keys and values [batch, heads, keys, dim]; or queries, keys and
  // values of the same tokens, [batch, tokens, 3 * heads * dim], alone. Input 5 is added to scores: [1, heads or 1,
  // tokens, keys].
  void Compute(Call& call) const override {
    const ort::Tensor query = call.input(0), keys = call.input(1), values = call.input(2), bias = call.input(5);
    const bool packed = !keys.there;
    ExpectNone(call, "bias", call.has_input(3));
    ExpectNone(call, "key_padding_mask", call.has_input(4));
    if (packed) ExpectNone(call, "value without key", values.there);
    Expect(call, "query", query, ort::kFloat, {kAnySize, kAnySize, kAnySize});
    const int batch = Within(call, "the number of sequences", query.shape[0]);
    const int tokens = Within(call, "the number of tokens", query.shape[1], 0, kMostRows / heads_);
    const int64_t row = query.shape[2], parts = int64_t{heads_} * (packed ? 3 : 1);
    if (row % parts) Refuse(call, "query has ", row, " columns, which is no multiple of ", parts);
    const int dim = HeadSize(call, "query", row / parts);
    const size_t width = static_cast<size_t>(heads_) * dim;
    int count = tokens;
    if (!packed) {
      Expect(call, "key", keys, ort::kFloat, {batch, heads_, kAnySize, dim});
      count = Within(call, "the number of keys", keys.shape[2], 1, kMostRows / heads_);
      Expect(call, "value", values, ort::kFloat, {batch, heads_, count, dim});
    }
    if (bias.there) ExpectBias(call, bias, 1, heads_, tokens, count);
    const int64_t made[] = {batch, tokens, static_cast<int64_t>(width)};
    float* out = call.floats(0, made, 3);
    if (!tokens || !batch) return;

    float* scaled = ort::Reserve(call.room.floats, tokens * width);
    float* by_heads = packed ? ort::Reserve(call.room.heads, 2 * count * width) : nullptr;
    Attention a{};
    a.heads = a.kv_heads = heads_;
    a.dim = dim;
    a.tokens = tokens;
    a.past = a.capacity = a.all = count;
    a.queries = scaled;
    a.bias = bias.as<float>();
    if (bias.there) {
      a.bias_token = count;
      a.bias_head = bias.shape[1] > 1 ? static_cast<size_t>(tokens) * count : 0;
    }
    const int each = static_cast<size_t>(tokens) * width < call.team.least() ? tokens : kAtATime;
    for (int b = 0; b < batch; b++) {
      const float* from = query.as<float>() + static_cast<size_t>(b) * tokens * row;
      call.team.ShareBy(tokens, each, [&](int first, int last) {
        for (int t = first; t < last; t++) {
          const float* of_token = from + t * row;
          form_.rotate(of_token, nullptr, nullptr, 0, static_cast<int>(width), Scale(dim), nullptr, scaled + t * width);
          for (int i = 0; packed && i < 2 * heads_; i++)
            std::memcpy(by_heads + (static_cast<size_t>(i) * count + t) * dim, of_token + width + i * dim,
                        dim * sizeof(float));
        }
      });
      a.keys = packed ? by_heads : keys.as<float>() + static_cast<size_t>(b) * count * width;
      a.values = packed ? by_heads + count * width : values.as<float>() + static_cast<size_t>(b) * count * width;
      Attend(call, a, nullptr, out + static_cast<size_t>(b) * tokens * width);
    }
  }
};

// `cache`: the type of keys and values, which onnxruntime must know.
Operator Over(ort::Type cache) {
  return {"GroupQueryAttention",
          Make<GroupQuery>,
          {{ort::kFloat, ort::kRequired, By::kRow},
           {ort::kFloat, ort::kOptional, By::kRow},
           {ort::kFloat, ort::kOptional, By::kRow},
           {cache, ort::kRequired},
           {cache, ort::kRequired},
           {ort::kInt32, ort::kRequired, By::kSequence},
           {ort::kInt32, ort::kRequired},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kInt64, ort::kOptional, By::kRow},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional},
           {ort::kFloat, ort::kOptional}},
          {{ort::kFloat, ort::kRequired}, {cache, ort::kOptional}, {cache, ort::kOptional}}};
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
