// Attention over a cache in 8 bits, whatever the vectors are: products are of integers, and exact.
//
// A query, which has the keys' scales in it, is rounded to 15 bits of its largest value: 8 bits cost as much perplexity
// as the cache itself (0.3% of SmolLM2-135M's). So are the weights of a block of keys, of the block's largest, so that
// what follows a token that takes most of the attention keeps its precision.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention.h"
#include "functions.h"

namespace edge {
namespace {

constexpr float kWhole = 32767;                           // what the largest weight of a block is rounded to
constexpr int kFirst = 128;                               // what the first byte of an integer counts
constexpr float kLargestInt = kFirst * 127 - kFirst / 2;  // that two bytes hold

// A form's scores of kColumns keys while they are added up, which take 4 dimensions of keys and of a query at a time,
// where products are of bytes: the query's first bytes by themselves, and its second ones.
template <class Dots>
struct TwoDots {
  Dots first, second;
};
// What such forms have in common: a query's first bytes, then its second ones.
struct QueryInBytes {
  static void StoreQuery(const int16_t* firsts, const int16_t* seconds, int dim, int8_t* to) {
    for (int d = 0; d < dim; d++) {
      to[d] = static_cast<int8_t>(firsts[d]);
      to[dim + d] = static_cast<int8_t>(seconds[d]);
    }
  }
};

// 0, or no number where one of x is not finite.
template <class V>
typename V::Floats NotFinite(typename V::Floats before, typename V::Floats x) {
  return V::Sum(before, V::Sub(x, x));
}

template <class V>
void Round(const float* x, int dim, int8_t* to, float& scale, int32_t* sums) {
  auto most = V::Zero(), wrong = V::Zero();
  for (int d = 0; d < dim; d += V::kColumns) {
    const auto each = V::Load(x + d);
    most = V::Max(most, V::Max(each, V::Mul(each, V::Every(-1))));
    wrong = NotFinite<V>(wrong, each);
  }
  const float largest = V::Largest(most), inverse = kLargestInt / largest;
  scale = largest / kLargestInt + V::Total(wrong);
  if (!(scale == scale && inverse <= std::numeric_limits<float>::max())) {  // rounded to zeros: see RoundsToZeros
    std::memset(to, 0, 2 * dim);
    sums[0] = sums[1] = 0;
    return;
  }
  int16_t firsts[kLargestHead], seconds[kLargestHead];
  for (int d = 0; d < dim; d += V::kColumns) {
    const auto whole = V::Round(V::Mul(V::Load(x + d), V::Every(inverse)));
    const auto first = V::Round(V::Mul(whole, V::Every(1.0f / kFirst)));
    V::StoreShorts(firsts + d, first);
    V::StoreShorts(seconds + d, V::Fma(first, V::Every(-kFirst), whole));
  }
  int of_firsts = 0, of_seconds = 0;
  for (int d = 0; d < dim; d++) {
    of_firsts += firsts[d];
    of_seconds += seconds[d];
  }
  sums[0] = of_firsts;
  sums[1] = of_seconds;
  V::StoreQuery(firsts, seconds, dim, to);
}

// Keys or values x [dim] to bytes, each with its own of `scales`.
template <class V>
bool ToBytes(const float* x, const float* scales, int dim, int8_t* to) {
  const auto minus = V::Every(-1), below = V::Every(-128), above = V::Every(-127);
  auto wrong = V::Zero();
  int16_t whole[kLargestHead];
  for (int d = 0; d < dim; d += V::kColumns) {
    const auto from = V::Load(x + d);
    wrong = NotFinite<V>(wrong, from);
    const auto each = V::Max(V::Round(V::Div(from, V::Load(scales + d))), below);
    V::StoreShorts(whole + d, V::Mul(V::Max(V::Mul(each, minus), above), minus));
  }
  for (int d = 0; d < dim; d++) to[d] = static_cast<int8_t>(whole[d]);
  return V::Total(wrong) == 0;
}

// scores [kRows, kKeys] = queries [kRows, dim] times keys [dim / 4, kKeys, 4], of which the first `count` are there.
template <class V, int kRows, int kVectors>
inline void BytesScores(const Attention& a, const int* of_row, int count, const int32_t* keys, float* scores) {
  for (int from = 0; from < count; from += kVectors * V::kColumns) {
    typename V::Scores made[kRows][kVectors];
    const int8_t* queries[kRows];
    for (int m = 0; m < kRows; m++) {
      queries[m] = a.rounded + static_cast<size_t>(of_row[m]) * a.dim * 2;
      for (auto& each : made[m]) each = V::Start(a.rounded_sums + 2 * of_row[m]);
    }
    for (int d = 0; d < a.dim / 4; d++) {
      typename V::Keys key[kVectors];
      for (int v = 0; v < kVectors; v++) key[v] = V::LoadKeys(keys + d * kKeys + from + v * V::kColumns);
      for (int m = 0; m < kRows; m++) {
        const auto four = V::LoadQuery(queries[m], a.dim, 4 * d);
        for (int v = 0; v < kVectors; v++) V::Dot(made[m][v], key[v], four);
      }
    }
    for (int m = 0; m < kRows; m++) {
      const auto scale = V::Every(a.rounded_scales[of_row[m]]);
      for (int v = 0; v < kVectors; v++)
        V::Store(scores + m * kKeys + from + v * V::kColumns, V::Mul(V::FromInts(V::Whole(made[m][v])), scale));
    }
  }
}

// states [kRows] += `part` of weights [kRows, kKeys] times values, each state times its `kept` before. values: of
// `pairs` of keys, as V::TurnValues makes them.
template <class V, int kRows, int kVectors>
inline void BytesValues(const int16_t* weights, const int16_t* values, int pairs, int dim, int from, const float* kept,
                        const float* part, float* const* states) {
  typename V::Dots dots[kRows][kVectors];
  for (auto& of_row : dots)
    for (auto& each : of_row) each = V::All(0);
  for (int t = 0; t < pairs; t++) {
    const int16_t* pair = values + 2 * (static_cast<size_t>(t) * dim + from);
    typename V::Pairs of_dims[kVectors];
    for (int v = 0; v < kVectors; v++) of_dims[v] = V::LoadPairs(pair + 2 * v * V::kColumns);
    for (int m = 0; m < kRows; m++) {
      const auto two = V::Two(weights + m * kKeys + 2 * t);
      for (int v = 0; v < kVectors; v++) dots[m][v] = V::DotPairs(dots[m][v], of_dims[v], two);
    }
  }
  for (int m = 0; m < kRows; m++)
    for (int v = 0; v < kVectors; v++) {
      float* to = states[m] + kHead + from + v * V::kColumns;
      const auto before = V::Mul(V::Load(to), V::Every(kept[m]));
      V::Store(to, V::Fma(V::FromInts(dots[m][v]), V::Every(part[m]), before));
    }
}

// Scores of one token [kKeys], which has the keys from `begin` to `end` of the block, become weights; the state's
// maximum and sum are brought forward. kept: what the state's values are to be multiplied by; part: the block's.
template <class V>
inline void BytesWeigh(float* scores, const float* bias, int begin, int end, float* state, int16_t* weights,
                       float& kept, float& part) {
  const float largest = LargestScore<V>(scores, bias, begin, end);
  if (largest == kNone) {
    std::memset(weights, 0, kKeys * sizeof(int16_t));
    kept = 1;
    part = 0;
    return;
  }
  auto sums = V::Zero();  // of integers that floats hold exactly, in any order
  for (int t = 0; t < kKeys; t += V::kColumns) {
    const auto weight = Exp<V>(V::Sub(V::Load(scores + t), V::Every(largest)));
    const auto whole = V::Round(V::Mul(weight, V::Every(kWhole)));
    sums = V::Sum(sums, whole);
    V::StoreShorts(weights + t, whole);
  }
  const float sum = V::Total(sums);
  const float most = std::max(state[0], largest);
  kept = state[0] == most ? 1.0f : Exp1<V>(state[0] - most);  // exp(0) is 1
  part = (largest == most ? 1.0f : Exp1<V>(largest - most)) * (1 / kWhole);
  state[0] = most;
  state[1] = state[1] * kept + sum * part;
}

// One block of keys for `kRows` rows; a row is a token and a head of the group.
template <class V, int kRows>
inline void BytesRows(const Attention& a, int kv_head, int row, int first_token, int block, int count,
                      const int32_t* keys, const int16_t* values, float* states) {
  const int group = a.group();
  int of_row[kRows], token[kRows];
  float* state[kRows];
  alignas(64) float scores[kRows * kKeys];
  alignas(64) int16_t weights[kRows * kKeys];
  float kept[kRows], part[kRows];
  for (int m = 0; m < kRows; m++) {
    token[m] = first_token + (row + m) / group;
    of_row[m] = token[m] * a.heads + kv_head * group + (row + m) % group;
    state[m] = states + (row + m) * StateSize(a.dim);
  }
  BytesScores<V, kRows, V::kKeyVectors>(a, of_row, count, keys, scores);
  for (int m = 0; m < kRows; m++) {
    const int head = kv_head * group + (row + m) % group;
    const float* bias = a.bias ? a.bias + head * a.bias_head + token[m] * a.bias_token + block : nullptr;
    const int begin = std::max(0, a.begin(token[m]) - block), end = std::min(count, a.end(token[m]) - block);
    if (a.cap != 0) Bound<V>(scores + m * kKeys, a.cap);
    BytesWeigh<V>(scores + m * kKeys, bias, begin, end, state[m], weights + m * kKeys, kept[m], part[m]);
  }
  const int pairs = (count + 1) / 2;
  int from = 0;
  for (; from + 2 * V::kColumns <= a.dim; from += 2 * V::kColumns)
    BytesValues<V, kRows, 2>(weights, values, pairs, a.dim, from, kept, part, state);
  for (; from < a.dim; from += V::kColumns)
    BytesValues<V, kRows, 1>(weights, values, pairs, a.dim, from, kept, part, state);
}

}  // namespace
}  // namespace edge
