// What is done to a row before it is rounded, whatever the vectors are. Rows are multiples of kLanes long.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "functions.h"
#include "lanes.h"

namespace edge {
namespace {

// Rounds the rows from `first` to `last`, block after block.
using RoundBlock = void (*)(const float* from, int block, int8_t* values, float& scale, int32_t& sum);
inline void QuantizeBy(RoundBlock round, const Rounding& r, int first, int last) {
  const int blocks = r.padded / r.block;
  for (int m = first; m < last; m++) {
    const float* row = r.rows + static_cast<size_t>(m) * r.inputs;
    for (int b = 0; b < blocks; b++) {
      const int start = b * r.block, left = r.inputs - start;
      const size_t at = static_cast<size_t>(m) * blocks + b;
      int8_t* values = r.values + static_cast<size_t>(m) * r.padded + start;
      if (left >= r.block) {
        round(row + start, r.block, values, r.scales[at], r.sums[at]);
      } else {
        float filled[kLargest] = {};
        std::memcpy(filled, row + start, left * sizeof(float));
        round(filled, r.block, values, r.scales[at], r.sums[at]);
      }
    }
  }
}

template <class V>
inline typename V::Floats Sigmoid(typename V::Floats x) {
  const auto one = V::Every(1), less = V::Every(-1);
  const auto e = Exp<V>(V::Mul(V::Max(x, V::Mul(x, less)), less));  // exp(-|x|), which cannot overflow
  return V::Div(V::Max(V::ZeroUpTo(0, x, one), e), V::Sum(one, e));
}

// Source: Shazeer, GLU Variants Improve Transformer, 2020 (SwiGLU and GEGLU). Gelu by tanh is x * sigmoid(2 * u), where
// u = sqrt(2 / pi) * (x + 0.044715 * x ** 3).
template <class V, bool kGelu>
void Gate(const float* gate_up, int size, float* out) {
  for (int i = 0; i < size; i += V::kColumns) {
    const auto gate = V::Load(gate_up + i), up = V::Load(gate_up + size + i);
    auto argument = gate;
    if (kGelu) {
      const auto square = V::Mul(gate, gate);
      argument = V::Mul(gate, V::Fma(square, V::Every(0.0713548163f), V::Every(1.59576912f)));
    }
    V::Store(out + i, V::Mul(V::Mul(gate, Sigmoid<V>(argument)), up));
  }
}

// Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
template <class V>
void Norm(const float* x, const float* more, const float* weight, float epsilon, int size, float* sum, float* out) {
  typename V::Floats squares[kLanes / V::kColumns];
  for (auto& each : squares) each = V::Zero();
  for (int i = 0; i < size; i += V::kColumns) {
    const auto both = V::Sum(V::Load(x + i), V::Load(more + i));
    V::Store(sum + i, both);
    auto& to = squares[i / V::kColumns % (kLanes / V::kColumns)];
    to = V::Fma(both, both, to);
  }
  float lanes[kLanes];
  for (int i = 0; i < kLanes / V::kColumns; i++) V::Store(lanes + i * V::kColumns, squares[i]);
  const auto factor = V::Every(1 / std::sqrt(SumOfLanes(lanes) / static_cast<float>(size) + epsilon));
  for (int i = 0; i < size; i += V::kColumns)
    V::Store(out + i, V::Mul(V::Mul(V::Load(sum + i), factor), V::Load(weight + i)));
}

template <class V>
void Maxima(const float* x, int groups, float* out) {
  for (int g = 0; g < groups; g++, x += kGroup) {
    auto most = V::Every(kNone);
    for (int i = 0; i < kGroup; i += V::kColumns) most = V::Max(V::Load(x + i), most);  // of no number: the second
    out[g] = V::Largest(most);
  }
}

template <class V>
float ExpSum(const float* x, int size, float largest) {
  typename V::Floats sums[kLanes / V::kColumns];
  for (auto& each : sums) each = V::Zero();
  auto add = [&](const float* from) {
    for (int i = 0; i < kLanes / V::kColumns; i++)
      sums[i] = V::Sum(sums[i], Exp<V>(V::Sub(V::Load(from + i * V::kColumns), V::Every(largest))));
  };
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) add(x + i);
  float lanes[kLanes];
  if (i < size) {
    std::fill(lanes, lanes + kLanes, kNone);
    std::memcpy(lanes, x + i, (size - i) * sizeof(float));
    add(lanes);
  }
  for (int j = 0; j < kLanes / V::kColumns; j++) V::Store(lanes + j * V::kColumns, sums[j]);
  return SumOfLanes(lanes);
}

template <class V>
constexpr RowsForm RowsOf() {
  return {Gate<V, false>, Gate<V, true>, Norm<V>, Maxima<V>, ExpSum<V>};
}

}  // namespace
}  // namespace edge
