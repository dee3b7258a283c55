// What GroupQueryAttention reads: all of it is checked before any of it is used.
#pragma once

#include <algorithm>

#include "lanes.h"
#include "operators.h"

namespace edge {

constexpr int kMostHeads = 1 << 16;  // of queries, and of keys
constexpr int kMostRows = 1 << 30;   // of all heads: of queries, of keys, or of a table

inline int HeadSize(const Named& who, const char* what, int64_t size) {
  if (size < kLanes || size > kLargestHead || size % kLanes)
    Refuse(who, what, " has heads of ", size, ", not of a multiple of ", int64_t{kLanes}, " up to ",
           int64_t{kLargestHead});
  return static_cast<int>(size);
}

// What is added to scores: of each sequence or of all, of each head or of all.
inline void ExpectBias(const Named& who, const ort::Tensor& bias, int64_t batch, int64_t heads, int64_t tokens,
                       int64_t keys) {
  Expect(who, "attention_bias", bias, ort::kFloat, {kAnySize, kAnySize, tokens, keys});
  if ((bias.shape[0] != 1 && bias.shape[0] != batch) || (bias.shape[1] != 1 && bias.shape[1] != heads))
    Refuse(who, "attention_bias has the sizes ", bias.shape[0], " and ", bias.shape[1], " first; they must be 1 or ",
           batch, ", of sequences, and 1 or ", heads, ", of heads");
}

struct GroupQueryInputs {
  ort::Tensor query, key, value, past_key, past_value, last, total, cos, sin, positions, bias, sink, key_scale,
      value_scale;
  int batch, tokens, dim, rows, capacity;  // rows: of the cache before the step; capacity: and after it
  int sequences;                           // of the cache: more than the batch's where the step is for some of them
  int texts;                               // that the step's tokens are of, of each in a row
  bool mixed;  // one row of tokens for all of the cache's sequences: one of each, and all others of the last one
  const Some* some;
  int half = 0;                            // columns of the rotary tables, where there are some
  bool packed, bytes;
  bool shared;  // keys and values are another layer's, which has put the step's own into the cache: none are given

  // What onnxruntime's operator refuses is refused, too, but for several tokens of several sequences at a time, and for
  // steps that are `mixed`.
  GroupQueryInputs(Call& call, int heads, int kv_heads, bool rotary)
      : query(call.input(0)),
        key(call.input(1)),
        value(call.input(2)),
        past_key(call.input(3)),
        past_value(call.input(4)),
        last(call.input(5)),
        total(call.input(6)),
        cos(call.input(7)),
        sin(call.input(8)),
        positions(call.input(9)),
        bias(call.input(10)),
        sink(call.input(11)),
        key_scale(call.input(12)),
        value_scale(call.input(13)) {
    Expect(call, "query", query, ort::kFloat, {kAnySize, kAnySize, kAnySize});
    batch = Within(call, "the number of sequences", query.shape[0]);
    tokens = Within(call, "the number of tokens", query.shape[1], 1, kMostRows / heads);
    packed = !key.there;
    shared = key.there && key.rank == 3 && !key.shape[1];
    bytes = past_key.type == ort::kInt8;
    const ort::Type type = bytes ? ort::kInt8 : ort::kFloat;
    some = call.some && call.some->sequences ? call.some : nullptr;
    mixed = !some && batch == 1 && past_key.rank == 4 && past_key.shape[0] > 1;
    texts = mixed ? Within(call, "the number of sequences of past_key", past_key.shape[0], 2, tokens) : batch;
    sequences = some ? some->of : texts;
    if (mixed) ExpectNone(call, "attention_bias of tokens of several sequences in a row", bias.there);
    if (call.some) ExpectNone(call, "attention_bias of some rows", bias.there);
    Expect(call, "past_key", past_key, type, {sequences, kv_heads, kAnySize, kAnySize});
    rows = Within(call, "the number of rows of past_key", past_key.shape[2], 0, kMostRows / kv_heads);
    dim = HeadSize(call, "past_key", past_key.shape[3]);
    Expect(call, "past_value", past_value, type, {sequences, kv_heads, rows, dim});
    Expect(call, "query", query, ort::kFloat, {batch, tokens, (heads + (packed ? 2 * kv_heads : 0)) * int64_t{dim}});
    if (packed) ExpectNone(call, "value without key", value.there);
    const int64_t of = shared ? kAnySize : batch, given = shared ? 0 : tokens, width = kv_heads * int64_t{dim};
    if (!packed) Expect(call, "key", key, ort::kFloat, {of, given, width});
    if (!packed) Expect(call, "value", value, ort::kFloat, {of, given, width});
    CheckScales(call, kv_heads);
    CheckLengths(call, kv_heads);
    CheckRotary(call, rotary);
    if (bias.there) ExpectBias(call, bias, batch, heads, tokens, all());
    if (sink.there) Expect(call, "head_sink", sink, ort::kFloat, {heads});
  }

  int all() const { return *total.as<int32_t>(); }
  int sequence(int of_batch) const { return some ? some->rows[of_batch] : of_batch; }
  // The tokens of a text: how many, and the first of them among all.
  int count(int text) const { return !mixed ? tokens : text < texts - 1 ? 1 : tokens - text; }
  size_t first(int text) const { return static_cast<size_t>(text) * (mixed ? 1 : tokens); }
  // Rows that the step adds to a text's.
  int added(int text) const { return shared ? 0 : count(text); }
  int past(int text) const { return last.as<int32_t>()[text] + 1 - count(text); }

 private:
  void CheckScales(const Named& who, int kv_heads) const {
    for (const auto& [name, scale] : {std::pair{"k_scale", &key_scale}, std::pair{"v_scale", &value_scale}}) {
      if (bytes)
        ExpectNumbers(who, name, *scale, ort::kFloat, kv_heads * int64_t{dim});
      else
        ExpectNone(who, std::string(name).append(" of a cache that is not in 8 bits").c_str(), scale->there);
    }
  }

  void CheckLengths(const Named& who, int kv_heads) {
    ExpectNumbers(who, "total_sequence_length", total, ort::kInt32, 1);
    const int most_of_one = count(texts - 1);
    // Of a mixed step the cache has room for what it adds.
    const int64_t room = mixed ? int64_t{rows} : int64_t{rows} + added(0);
    const int64_t most = std::min<int64_t>(room, kMostRows / kv_heads);
    capacity = std::max(rows, Within(who, "total_sequence_length", all(), most_of_one, most));
    if (capacity > rows && capacity != rows + tokens)
      Refuse(who, "total_sequence_length is ", int64_t{capacity}, "; the cache has ", int64_t{rows},
             " rows, and without room for the step it must be ", int64_t{tokens}, " more");
    ExpectNumbers(who, "seqlens_k", last, ort::kInt32, texts);
    if (!last.rank) RefuseInput(who, "seqlens_k", last, ort::kInt32, {texts});
    for (int text = 0; text < texts; text++) {
      const int64_t end = bias.there ? all() : capacity;
      Within(who, "seqlens_k", last.as<int32_t>()[text], count(text) - 1, std::min(end, room) - 1);
    }
  }

  void CheckRotary(const Named& who, bool rotary) {
    const bool tables = cos.there || sin.there;
    if (rotary || tables) Expect(who, "cos_cache", cos, ort::kFloat, {kAnySize, kAnySize});
    if (rotary || tables) Expect(who, "sin_cache", sin, ort::kFloat, {cos.shape[0], cos.shape[1]});
    if (tables) {
      const int64_t columns = cos.shape[1];
      if (columns > dim / 2)
        Refuse(who, "cos_cache has ", columns, " columns, more than half of a head of ", int64_t{dim});
      if (columns < 8 || columns % 8) Refuse(who, "cos_cache has ", columns, " columns, not a multiple of 8");
      half = static_cast<int>(columns);
      if (cos.shape[0] < all())
        Refuse(who, "cos_cache has ", cos.shape[0], " rows, fewer than the ", int64_t{all()}, " of the sequence");
    }
    if (positions.there) Expect(who, "position_ids", positions, ort::kInt64, {batch, tokens});
    if (!rotary) return;
    const int64_t there = cos.shape[0];
    for (int text = 0; text < texts; text++)
      if (last.as<int32_t>()[text] >= there)
        Refuse(who, "seqlens_k is ", int64_t{last.as<int32_t>()[text]}, ", and cos_cache has ", there, " rows");
    for (int64_t i = 0; i < positions.there * int64_t{batch} * tokens; i++)
      if (const int64_t at = positions.as<int64_t>()[i]; at < 0 || at >= there)
        Refuse(who, "position_ids has ", at, ", and cos_cache ", there, " rows");
  }
};

}  // namespace edge
