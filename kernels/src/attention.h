// Grouped-query attention over a KV cache, by blocks of keys, so that a token's result depends on no other token's.
//
// A score is a chain of multiply-adds over a head's dimensions, one lane for each key. Keys are taken by chunks of
// kChunk, which begin at multiples of it, each by blocks of kBlock with a running maximum; chunks are put together in
// order. So how many tokens a step has, which of them a thread takes, and how long vectors are makes no difference to
// any bit of it. What a token must not attend to counts as exp(-infinity): 0, which changes no sum of finite numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace edge {

constexpr float kNone = -std::numeric_limits<float>::infinity();  // the score of what may not be chosen
constexpr int kKeys = 64;          // of a block
constexpr int kChunk = 256;        // keys
constexpr int kLargestHead = 512;  // dimensions, which are a multiple of kLanes
constexpr int kLanes = 16;   // sums that the sum of a block's weights is made of: lane i has the keys i, i + 16 ...

// One sequence's step of one layer.
//
// queries: [tokens, heads, dim], rotated and scaled. keys, values: [kv_heads, capacity, dim], of float32, or of int8
// where `bytes`; the step's own are in them already. past: rows before the step's. window: rows that a token attends
// to, itself included; 0 for all. bias: added to scores, [.., heads or 1, tokens, keys], or null; its strides are in
// floats. rounded: the queries as `AttentionForm.round` makes them, [tokens, heads, 2, dim], where `bytes`; their
// scales [tokens, heads] and sums [tokens, heads, 2].
struct Attention {
  int heads, kv_heads, dim, tokens, past, capacity, window;
  bool bytes;
  const float* queries;
  const void *keys, *values;
  const int8_t* rounded;
  const float* rounded_scales;
  const int32_t* rounded_sums;
  const float* bias;
  size_t bias_head, bias_token;
  int all = 0;    // keys that every token attends to, where they are not of the text itself
  float cap = 0;  // what bounds scores, as cap * tanh(score / cap), before a bias is added; 0 for none
  const float* sinks = nullptr;  // of each head, a score that takes its share of the weights and has no value; or null

  int group() const { return heads / kv_heads; }
  // The rows that a token attends to, from the first to one after the last.
  int end(int token) const { return all ? all : past + token + 1; }
  int begin(int token) const { return window && end(token) > window ? end(token) - window : 0; }
};

// What a chunk, or several, add to a token of a head: the largest score, the sum of weights, and [dim] weighted values,
// both relative to that score.
constexpr int kHead = 2;                                                        // floats before the values
inline size_t StateSize(int dim) { return static_cast<size_t>(dim) + kLanes; }  // floats

struct AttentionForm {
  // x [dim], of which 2 * half dimensions turn, to out; times `factor`, and each times its own of `factors`, or null.
  void (*rotate)(const float* x, const float* cos, const float* sin, int half, int dim, float factor,
                 const float* factors, float* out);
  // A query [dim] to integers of 15 bits, each 128 times a byte plus a second byte, in a form's own order. sums: of the
  // first bytes, and of the second. The scale is no number where one of the query's is not finite.
  void (*round)(const float* x, int dim, int8_t* to, float& scale, int32_t* sums);
  // Keys or values [dim] to bytes: each divided by its own of `scales`. Returns whether all are finite.
  bool (*to_bytes)(const float* x, const float* scales, int dim, int8_t* to);
  // The states of the tokens from `first` to `last` for the heads of a group: [token, head of the group].
  void (*chunk)(const Attention&, int kv_head, int chunk, int first, int last, float* states);
  // Put `more` to `state`, which has what comes before.
  void (*merge)(int dim, float* state, const float* more);
  // The attention of a state [dim]; each value times its own of `factors`, or null.
  void (*finish)(int dim, const float* state, const float* factors, float* out);
};

}  // namespace edge
