// Attention, whatever the vectors are. V gives a form its vectors of kColumns floats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"
#include "attention_bytes.h"
#include "functions.h"

namespace edge {
namespace {

// scores [kRows, kKeys] = queries [kRows, dim] times keys [dim, kKeys], of which the first `count` are there.
template <class V, int kRows, int kVectors>
inline void Scores(const float* const* queries, const float* keys, int count, int dim, float* scores) {
  for (int from = 0; from < count; from += kVectors * V::kColumns) {
    typename V::Floats acc[kRows][kVectors];
    for (auto& of_row : acc)
      for (auto& each : of_row) each = V::Zero();
    for (int d = 0; d < dim; d++) {
      typename V::Floats key[kVectors];
      for (int v = 0; v < kVectors; v++) key[v] = V::Load(keys + d * kKeys + from + v * V::kColumns);
      for (int m = 0; m < kRows; m++) {
        const auto query = V::Every(queries[m][d]);
        for (int v = 0; v < kVectors; v++) acc[m][v] = V::Fma(query, key[v], acc[m][v]);
      }
    }
    for (int m = 0; m < kRows; m++)
      for (int v = 0; v < kVectors; v++) V::Store(scores + m * kKeys + from + v * V::kColumns, acc[m][v]);
  }
}

// states [kRows] += weights [kRows, kKeys] times values [count, dim], each state times its `kept` before.
template <class V, int kRows, int kVectors>
inline void Values(const float* weights, const float* values, int count, int dim, int from, const float* kept,
                   float* const* states) {
  typename V::Floats acc[kRows][kVectors];
  for (int m = 0; m < kRows; m++)
    for (int v = 0; v < kVectors; v++)
      acc[m][v] = V::Mul(V::Load(states[m] + kHead + from + v * V::kColumns), V::Every(kept[m]));
  for (int t = 0; t < count; t++) {
    typename V::Floats value[kVectors];
    for (int v = 0; v < kVectors; v++)
      value[v] = V::Load(values + static_cast<size_t>(t) * dim + from + v * V::kColumns);
    for (int m = 0; m < kRows; m++) {
      const auto weight = V::Every(weights[m * kKeys + t]);
      for (int v = 0; v < kVectors; v++) acc[m][v] = V::Fma(weight, value[v], acc[m][v]);
    }
  }
  for (int m = 0; m < kRows; m++)
    for (int v = 0; v < kVectors; v++) V::Store(states[m] + kHead + from + v * V::kColumns, acc[m][v]);
}

// Scores of one token [kKeys], which has the keys from `begin` to `end` of the block, become weights; the state's
// maximum and sum are brought forward. Returns what the state's values are to be multiplied by.
template <class V>
inline float Weigh(float* scores, const float* bias, int begin, int end, float* state) {
  const float largest = std::max(state[0], LargestScore<V>(scores, bias, begin, end));
  if (largest == kNone) {
    std::memset(scores, 0, kKeys * sizeof(float));
    return 1;
  }
  typename V::Floats sums[kLanes / V::kColumns];
  for (auto& each : sums) each = V::Zero();
  for (int t = 0; t < kKeys; t += V::kColumns) {
    const auto weight = Exp<V>(V::Sub(V::Load(scores + t), V::Every(largest)));
    V::Store(scores + t, weight);
    auto& sum = sums[t / V::kColumns % (kLanes / V::kColumns)];
    sum = V::Sum(sum, weight);
  }
  float lanes[kLanes];
  for (int i = 0; i < kLanes / V::kColumns; i++) V::Store(lanes + i * V::kColumns, sums[i]);
  const float kept = state[0] == largest ? 1.0f : Exp1<V>(state[0] - largest);  // exp(0) is 1
  state[0] = largest;
  state[1] = state[1] * kept + SumOfLanes(lanes);
  return kept;
}

constexpr int kTile = 6;  // rows

// One block of keys for `kRows` rows; a row is a token and a head of the group.
template <class V, int kRows>
inline void OfRows(const Attention& a, int kv_head, int row, int first_token, int block, int count, const float* keys,
                   const float* values, float* states) {
  const int group = a.group();
  const float* queries[kRows];
  float* of_row[kRows];
  float scores[kRows * kKeys], kept[kRows];
  for (int m = 0; m < kRows; m++) {
    const int token = first_token + (row + m) / group, head = kv_head * group + (row + m) % group;
    queries[m] = a.queries + (static_cast<size_t>(token) * a.heads + head) * a.dim;
    of_row[m] = states + (row + m) * StateSize(a.dim);
  }
  Scores<V, kRows, 2>(queries, keys, count, a.dim, scores);
  for (int m = 0; m < kRows; m++) {
    const int token = first_token + (row + m) / group, head = kv_head * group + (row + m) % group;
    const float* bias = a.bias ? a.bias + head * a.bias_head + token * a.bias_token + block : nullptr;
    const int begin = std::max(0, a.begin(token) - block), end = std::min(count, a.end(token) - block);
    if (a.cap != 0) Bound<V>(scores + m * kKeys, a.cap);
    kept[m] = Weigh<V>(scores + m * kKeys, bias, begin, end, of_row[m]);
  }
  int from = 0;
  for (; from + 2 * V::kColumns <= a.dim; from += 2 * V::kColumns)
    Values<V, kRows, 2>(scores, values, count, a.dim, from, kept, of_row);
  for (; from < a.dim; from += V::kColumns) Values<V, kRows, 1>(scores, values, count, a.dim, from, kept, of_row);
}

// The blocks of a chunk, each by `of_block(block, count)` and then, tile after tile of rows, `of_rows(kRows, row,
// block, count)`.
template <class OfBlock, class Rows>
inline void Blocks(const Attention& a, int chunk, int first, int last, float* states, const OfBlock& of_block,
                   const Rows& of_rows) {
  const int rows = (last - first) * a.group();
  for (int row = 0; row < rows; row++) {
    float* state = states + row * StateSize(a.dim);
    std::fill(state, state + StateSize(a.dim), 0.0f);
    state[0] = kNone;
  }
  for (int block = chunk * kChunk; block < std::min((chunk + 1) * kChunk, a.end(last - 1)); block += kKeys) {
    if (block + kKeys <= a.begin(first)) continue;  // before all windows
    const int count = std::min(kKeys, a.end(last - 1) - block);
    of_block(block, count);
    int row = std::max(0, (block - a.past - first)) * a.group();  // earlier tokens have none of these keys
    for (; row + kTile <= rows; row += kTile) of_rows(std::integral_constant<int, kTile>(), row, block, count);
    AsConstant<kTile - 1>(rows - row, [&](auto left) { of_rows(left, row, block, count); });
  }
}

template <class V>
void Chunk(const Attention& a, int kv_head, int chunk, int first, int last, float* states) {
  const size_t head = static_cast<size_t>(kv_head) * a.capacity * a.dim;
  if (a.bytes) {
    const int8_t *keys = static_cast<const int8_t*>(a.keys) + head,
                 *values = static_cast<const int8_t*>(a.values) + head;
    alignas(64) int32_t turned_keys[kKeys * kLargestHead / 4];
    alignas(64) int16_t turned_values[kKeys * kLargestHead];
    auto turn = [&](int block, int count) {
      V::TurnKeys(keys + static_cast<size_t>(block) * a.dim, count, a.dim, turned_keys);
      V::TurnValues(values + static_cast<size_t>(block) * a.dim, count, a.dim, turned_values);
    };
    Blocks(a, chunk, first, last, states, turn, [&](auto tile, int row, int block, int count) {
      BytesRows<V, tile.value>(a, kv_head, row, first, block, count, turned_keys, turned_values, states);
    });
    return;
  }
  const float *keys = static_cast<const float*>(a.keys) + head, *values = static_cast<const float*>(a.values) + head;
  alignas(64) float turned[kKeys * kLargestHead];
  auto of_block = [&](int block) { return values + static_cast<size_t>(block) * a.dim; };
  auto turn = [&](int block, int count) {
    V::Turn(keys + static_cast<size_t>(block) * a.dim, of_block(block), count, a.dim, turned);
  };
  Blocks(a, chunk, first, last, states, turn, [&](auto tile, int row, int block, int count) {
    OfRows<V, tile.value>(a, kv_head, row, first, block, count, turned, of_block(block), states);
  });
}

template <class V>
void Merge(int dim, float* state, const float* more) {
  const float largest = std::max(state[0], more[0]);
  if (more[0] == kNone) return;
  const float ours = Exp1<V>(state[0] - largest), theirs = Exp1<V>(more[0] - largest);
  state[0] = largest;
  state[1] = state[1] * ours + more[1] * theirs;
  for (int d = 0; d < dim; d += V::kColumns) {
    float* to = state + kHead + d;
    V::Store(to, V::Fma(V::Load(more + kHead + d), V::Every(theirs), V::Mul(V::Load(to), V::Every(ours))));
  }
}

template <class V>
void Finish(int dim, const float* state, const float* factors, float* out) {
  const auto part = V::Every(state[1] == 0 ? 0.0f : 1.0f / state[1]);  // of no number: none
  for (int d = 0; d < dim; d += V::kColumns) {
    auto made = V::Mul(V::Load(state + kHead + d), part);
    if (factors) made = V::Mul(made, V::Load(factors + d));
    V::Store(out + d, made);
  }
}

template <class V>
void Rotate(const float* x, const float* cos, const float* sin, int half, int dim, float factor, const float* factors,
            float* out) {
  const auto all = V::Every(factor);
  auto put = [&](int d, typename V::Floats made) {
    made = V::Mul(made, all);
    V::Store(out + d, factors ? V::Mul(made, V::Load(factors + d)) : made);
  };
  auto put1 = [&](int d, float made) { out[d] = factors ? made * factor * factors[d] : made * factor; };
  int d = 0;
  for (; d + V::kColumns <= half; d += V::kColumns) {
    const auto a = V::Load(x + d), b = V::Load(x + half + d), c = V::Load(cos + d), s = V::Load(sin + d);
    put(d, V::Fma(V::Mul(b, V::Every(-1)), s, V::Mul(a, c)));
    put(half + d, V::Fma(b, c, V::Mul(a, s)));
  }
  for (; d < half; d++) {
    const float a = x[d], b = x[half + d];
    put1(d, std::fma(-b, sin[d], a * cos[d]));
    put1(half + d, std::fma(b, cos[d], a * sin[d]));
  }
  for (d = 2 * half; d + V::kColumns <= dim; d += V::kColumns) put(d, V::Load(x + d));
  for (; d < dim; d++) put1(d, x[d]);
}

template <class V>
constexpr AttentionForm AttentionOf() {
  return {Rotate<V>, Round<V>, ToBytes<V>, Chunk<V>, Merge<V>, Finish<V>};
}

}  // namespace
}  // namespace edge
