// Linear attention and convolutions, whatever the vectors are. V gives a form its vectors of kColumns floats.
#pragma once

#include <cstring>

#include "rows_loops.h"
#include "states.h"

namespace edge {
namespace {

// One token of some columns of a head's state, which lies at `from`, and goes to `to`; rows are so many floats apart.
template <class V, int kVectors, bool kDelta>
inline void ScanToken(const Scan& s, const float* query, const float* key, const float* value, float kept, float rate,
                      const float* from, size_t from_row, float* to, size_t to_row, float* out) {
  typename V::Floats change[kVectors], even[kVectors], odd[kVectors];
  const auto keep = V::Every(kept);
  for (int v = 0; v < kVectors; v++) {
    change[v] = V::Load(value + v * V::kColumns);
    even[v] = odd[v] = V::Zero();
  }
  if (kDelta) {
    for (int row = 0; row < s.rows; row += 2) {
      const auto of_even = V::Every(key[row]), of_odd = V::Every(key[row + 1]);
      for (int v = 0; v < kVectors; v++) {
        const float* at = from + row * from_row + v * V::kColumns;
        even[v] = V::Fma(of_even, V::Load(at), even[v]);
        odd[v] = V::Fma(of_odd, V::Load(at + from_row), odd[v]);
      }
    }
    for (int v = 0; v < kVectors; v++) {
      const auto there = V::Mul(V::Sum(even[v], odd[v]), keep);
      change[v] = V::Mul(V::Sub(change[v], there), V::Every(rate));
      even[v] = odd[v] = V::Zero();
    }
  }
  auto one_row = [&](int row, typename V::Floats(&sums)[kVectors]) {
    const auto of_key = V::Every(key[row]), of_query = V::Every(query[row]);
    for (int v = 0; v < kVectors; v++) {
      const auto before = V::Load(from + row * from_row + v * V::kColumns);
      const auto after = V::Fma(of_key, change[v], V::Mul(before, keep));
      V::Store(to + row * to_row + v * V::kColumns, after);
      sums[v] = V::Fma(of_query, after, sums[v]);
    }
  };
  for (int row = 0; row < s.rows; row += 2) {
    one_row(row, even);
    one_row(row + 1, odd);
  }
  for (int v = 0; v < kVectors; v++)
    V::Store(out + v * V::kColumns, V::Mul(V::Sum(even[v], odd[v]), V::Every(s.scale)));
}

// All tokens of some columns. Between the first and the last of them the columns lie by themselves, where they fit into
// a cache.
template <class V, int kVectors, bool kDelta>
inline void ScanColumns(const Scan& s, int head, int column) {
  constexpr int kWide = kVectors * V::kColumns;
  alignas(64) float apart[kMostStateRows * kWide];
  const size_t state = static_cast<size_t>(head) * s.rows * s.columns + column;
  for (int t = 0; t < s.tokens; t++) {
    const size_t of_head = static_cast<size_t>(t) * s.heads + head;
    const size_t query = static_cast<size_t>(t) * s.query_heads + head / (s.heads / s.query_heads);
    const size_t key = static_cast<size_t>(t) * s.key_heads + head / (s.heads / s.key_heads);
    const bool first = t == 0, last = t == s.tokens - 1;
    const float decay = s.decays[of_head];
    ScanToken<V, kVectors, kDelta>(
        s, s.queries + query * s.rows, s.keys + key * s.rows, s.values + of_head * s.columns + column,
        Exp1<V>(decay > 0 ? 0.0f : decay), kDelta ? s.rates[of_head] : 0, first ? s.past + state : apart,
        first ? s.columns : kWide, last ? s.present + state : apart, last ? s.columns : kWide,
        s.out + of_head * s.columns + column);
  }
}

template <class V, bool kDelta>
inline void ScanHead(const Scan& s, int head, int first, int last) {
  constexpr int kMost = V::kColumns >= kLanes ? 2 : 4;  // vectors, of whose sums there are so many in registers
  for (; first + kMost * V::kColumns <= last; first += kMost * V::kColumns) ScanColumns<V, kMost, kDelta>(s, head, first);
  for (; first < last; first += V::kColumns) ScanColumns<V, 1, kDelta>(s, head, first);
}

// Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2025; of states without a delta: Dao and Gu, Transformers
// are SSMs, 2024 (Mamba 2).
template <class V>
void ScanStates(const Scan& s, int head, int first, int last) {
  if (s.rates)
    ScanHead<V, true>(s, head, first, last);
  else
    ScanHead<V, false>(s, head, first, last);
}

template <class V>
void Convolve(const Convolution& c, int first, int last) {
  const int before = c.taps - 1;
  auto row = [&](int t) {
    return t < 0 ? c.past + static_cast<size_t>(t + before) * c.channels : c.x + static_cast<size_t>(t) * c.channels;
  };
  for (int t = 0; t < c.tokens; t++) {
    const float* rows[kMostTaps];
    for (int i = 0; i < c.taps; i++) rows[i] = row(t - before + i);
    float* out = c.out + static_cast<size_t>(t) * c.channels;
    for (int i = first; i < last; i += V::kColumns) {
      auto sum = c.bias ? V::Load(c.bias + i) : V::Zero();
      for (int tap = 0; tap < c.taps; tap++)
        sum = V::Fma(V::Load(c.weights + static_cast<size_t>(tap) * c.channels + i), V::Load(rows[tap] + i), sum);
      V::Store(out + i, c.silu ? V::Mul(sum, Sigmoid<V>(sum)) : sum);
    }
  }
  for (int i = 0; i < before; i++)  // of few tokens, rows of the past move to places that were read before
    std::memmove(c.present + static_cast<size_t>(i) * c.channels + first, row(c.tokens - before + i) + first,
                 (last - first) * sizeof(float));
}

template <class V>
constexpr StatesForm StatesOf() {
  return {ScanStates<V>, Convolve<V>};
}

}  // namespace
}  // namespace edge
