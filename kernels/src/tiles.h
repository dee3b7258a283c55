// A tile of rows and panels, whatever the vectors are. V gives a form its vectors: see avx512_vnni.cpp.
#pragma once

#include <algorithm>
#include <cstring>

#include "functions.h"
#include "lanes.h"

namespace edge {
namespace {  // each file compiles its own, for its own processors

// What most forms do without in a tile. kMore: what is taken off weights themselves, see Avx512Vnni. ByTwos: turns sums
// around, see I8mm.
struct Plain {
  template <int kBits, int kRows>
  static constexpr int kMore = 0;
  template <int kRows, int kVectors, class Dots>
  static void ByTwos(Dots (*)[kVectors]) {}
};

// Writes the sums of a tile, with the bias. W: Weights, or whatever has columns.
template <class V, class W, int kRows, int kVectors>
inline void PutTile(const W& w, typename V::Floats (&acc)[kRows][kVectors], float* out, int vector, int row) {
  const int stride = w.row();
  for (int v = 0; v < kVectors; v++) {
    const int column = (vector + v) * V::kColumns, left = w.columns - column;
    for (int m = 0; m < kRows; m++) {
      auto made = acc[m][v];
      if (w.bias) made = V::Sum(made, V::Load(w.bias + column));
      float* to = out + static_cast<size_t>(row + m) * stride + column;
      if (left >= V::kColumns) {
        V::Store(to, made);
      } else if (left > 0) {
        float whole[V::kColumns];
        V::Store(whole, made);
        std::memcpy(to, whole, left * sizeof(float));
      }
    }
  }
}

// kRows rows of kVectors vectors of columns, from a vector on.
template <class V, int kBits, int kRows, int kVectors>
inline void Tile(const Weights& w, const Rows& rows, float* out, int vector, int row) {
  constexpr size_t bytes = kStep * kPanel * kBits / 8;  // of a panel, for the inputs of a step
  const int blocks = w.blocks(), steps = w.block / kStep;
  typename V::Floats acc[kRows][kVectors];
  for (auto& of_row : acc)
    for (auto& each : of_row) each = V::Zero();
  const uint8_t* packed[kVectors];
  size_t first[kVectors];  // of the scales
  for (int v = 0; v < kVectors; v++) {
    const int panel = (vector + v) / V::kPerPanel, part = (vector + v) % V::kPerPanel;
    packed[v] = w.weights + panel * w.panel_bytes() + part * V::kBytes;
    first[v] = static_cast<size_t>(panel) * blocks * kPanel + part * V::kColumns;
  }
  const int8_t* values = rows.values + static_cast<size_t>(row) * w.inputs;
  size_t at = 0;
  for (int b = 0; b < blocks; b++) {
    typename V::Dots dots[kRows][kVectors];  // from what zero points take off on
    typename V::Dots less[kVectors];         // what is taken off weights themselves, where `more` is not 0
    for (int v = 0; v < kVectors; v++) {
      constexpr int offset = V::template kOffset<kBits>, more = V::template kMore<kBits, kRows>;
      const auto zeros = w.zero_points ? V::LoadBytes(w.zero_points + first[v] + static_cast<size_t>(b) * kPanel)
                                       : V::All(1 << (kBits - 1));
      if constexpr (more != 0) {
        less[v] = V::InEveryByte(zeros, more);
        for (int m = 0; m < kRows; m++) dots[m][v] = V::All(-more * rows.sums[(row + m) * blocks + b]);
      } else if (w.zero_points) {
        const auto factor = V::Less(zeros, offset);
        for (int m = 0; m < kRows; m++) dots[m][v] = V::TimesLess(factor, rows.sums[(row + m) * blocks + b]);
      } else {
        for (int m = 0; m < kRows; m++)
          dots[m][v] = V::All((offset - (1 << (kBits - 1))) * rows.sums[(row + m) * blocks + b]);
      }
    }
    V::template ByTwos<kRows, kVectors>(dots);
    for (int s = 0; s < steps; s++, at += bytes, values += kStep)
      V::template Multiply<kBits, kRows, kVectors>(packed, at, values, w.inputs, less, dots);
    V::template ByTwos<kRows, kVectors>(dots);
    for (int v = 0; v < kVectors; v++) {
      const size_t place = first[v] + static_cast<size_t>(b) * kPanel;
      const auto scales = w.half ? V::LoadHalf(static_cast<const uint16_t*>(w.scales) + place)
                                 : V::Load(static_cast<const float*>(w.scales) + place);
      for (int m = 0; m < kRows; m++)
        acc[m][v] = V::Add(V::Scaled(scales, rows.scales[(row + m) * blocks + b]), dots[m][v], acc[m][v]);
    }
  }
  PutTile<V>(w, acc, out, vector, row);
}

// All rows, in tiles of kRows and kVectors vectors and a last one of what is left.
template <class V, int kBits, int kRows, int kVectors>
inline void Columns(const Weights& w, const Rows& rows, float* out, int& vector, int end) {
  for (; vector + kVectors <= end; vector += kVectors) {
    int m = 0;
    for (; m + kRows <= rows.count; m += kRows) Tile<V, kBits, kRows, kVectors>(w, rows, out, vector, m);
    AsConstant<kRows - 1>(rows.count - m,
                          [&](auto left) { Tile<V, kBits, left.value, kVectors>(w, rows, out, vector, m); });
  }
}

template <class V>
inline void Multiply(const Weights& w, const Rows& rows, float* out, int first, int last) {
  const int begin = first * V::kPerPanel, end = last * V::kPerPanel;
  if (w.bits == 2) V::template Walk<2>(w, rows, out, begin, end);
  if (w.bits == 4) V::template Walk<4>(w, rows, out, begin, end);
  if (w.bits == 8) V::template Walk<8>(w, rows, out, begin, end);
}

}  // namespace
}  // namespace edge
