// A tile of rows and panels, whatever the vectors are. V gives a form its vectors: see avx512_vnni.cpp.
#pragma once

#include <algorithm>
#include <utility>

#include "lanes.h"

namespace edge {

// kRows rows of kVectors vectors of columns, which begin at `column` of their panels' halves or wholes.
template <class V, int kBlock, bool kZeroPoints, int kRows, int kVectors>
inline void Tile(const Weights& w, const Rows& rows, float* out, int vector, int row) {
  constexpr int groups = kBlock / kGroup;
  const int blocks = w.inputs / kBlock;
  typename V::Floats acc[kRows][kVectors];
  for (auto& of_row : acc)
    for (auto& each : of_row) each = V::Zero();
  const uint8_t* packed[kVectors];
  size_t first[kVectors];
  for (int v = 0; v < kVectors; v++) {
    const int panel = (vector + v) / V::kPerPanel, part = (vector + v) % V::kPerPanel;
    packed[v] = w.weights + static_cast<size_t>(panel) * (w.inputs / kGroup) * 64 + part * V::kBytes;
    first[v] = static_cast<size_t>(panel) * blocks * kPanel + part * V::kColumns;
  }
  const int8_t* values = rows.values + static_cast<size_t>(row) * w.inputs;
  for (int b = 0; b < blocks; b++) {
    typename V::Dots dots[kRows][kVectors];
    for (auto& of_row : dots)
      for (auto& each : of_row) each = V::All(0);
#pragma GCC unroll 4
    for (int g = 0; g < groups; g += V::kGroups) {
      V::template Multiply<kRows, kVectors>(packed, (b * groups + g) * size_t{64}, values + (b * groups + g) * kGroup,
                                            w.inputs, dots);
    }
    for (int v = 0; v < kVectors; v++) {
      const auto scales = V::Load(w.scales + first[v] + b * kPanel);
      for (int m = 0; m < kRows; m++) {
        const int at = (row + m) * blocks + b, sum = rows.sums[at];
        const auto zeros = kZeroPoints ? V::Times(w.zero_points + first[v] + b * kPanel, -sum) : V::All(-8 * sum);
        acc[m][v] = V::Add(V::Scaled(scales, rows.scales[at]), V::Plus(dots[m][v], zeros), acc[m][v]);
      }
    }
  }
  for (int m = 0; m < kRows; m++)
    for (int v = 0; v < kVectors; v++)
      V::Store(out + static_cast<size_t>(row + m) * w.columns + (vector + v) * V::kColumns, acc[m][v]);
}

// All rows of kVectors vectors, in tiles of kRows and a last one of what is left.
template <class V, int kBlock, bool kZeroPoints, int kRows, int kVectors, int... kLeft>
inline void Column(const Weights& w, const Rows& rows, float* out, int vector, std::integer_sequence<int, kLeft...>) {
  int m = 0;
  for (; m + kRows <= rows.count; m += kRows) Tile<V, kBlock, kZeroPoints, kRows, kVectors>(w, rows, out, vector, m);
  const int left = rows.count - m;
  ((left == kLeft + 1 ? Tile<V, kBlock, kZeroPoints, kLeft + 1, kVectors>(w, rows, out, vector, m) : void()), ...);
}

template <class V, int kBlock, bool kZeroPoints, int kRows, int kVectors>
inline void Columns(const Weights& w, const Rows& rows, float* out, int& vector, int end) {
  for (; vector + kVectors <= end; vector += kVectors)
    Column<V, kBlock, kZeroPoints, kRows, kVectors>(w, rows, out, vector, std::make_integer_sequence<int, kRows - 1>());
}

template <class V, int kBlock>
inline void Blocks(const Weights& w, const Rows& rows, float* out, int first, int last) {
  const int begin = first * V::kPerPanel, end = last * V::kPerPanel;
  if (w.zero_points)
    V::template Walk<kBlock, true>(w, rows, out, begin, end);
  else
    V::template Walk<kBlock, false>(w, rows, out, begin, end);
}

template <class V>
inline void Multiply(const Weights& w, const Rows& rows, float* out, int first, int last) {
  if (w.block == 32) Blocks<V, 32>(w, rows, out, first, last);
  if (w.block == 64) Blocks<V, 64>(w, rows, out, first, last);
  if (w.block == 128) Blocks<V, 128>(w, rows, out, first, last);
}

}  // namespace edge
