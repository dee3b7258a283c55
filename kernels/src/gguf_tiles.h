// A tile of rows and panels of a GGUF file's integers, whatever the vectors are. Besides what tiles.h asks of V:
//
//     Chunk, a vector of bytes, and LoadChunk(from): one of them; Take<kBits, kTo>(chunk, from): of each byte the kBits
//     from `from` on, at kTo; Either(a, b); Lookup(table, places), the bytes of a table there; LoadSigned(from): ints of
//     as many signed bytes as there are columns; LoadUpper(from): floats of their upper halves; Gguf<T, kRows, kVectors>
//     (packed, at, values, stride, dots): products of 32 inputs; and WalkGguf<T> and WalkFloats<T>: all rows times some
//     panels, in tiles of the sizes that are fast.
//
// An element of the result is, with the groups g of its inputs in order,
//
//     acc = fma(d * scale[g] * scale_of_row[g], float(dot[g] - zero * sum[g]), acc)
//     acc = fma(-dmin * minimum[g], scale_of_row[g] * float(sum[g]), acc)
//
// and of weights that are floats, with their inputs k in order, acc = fma(weight[k], row[k], acc).
#pragma once

#include "gguf.h"
#include "tiles.h"

namespace edge {
namespace {

// Facts of a type that loops are compiled for.
template <int kTheBits, int kTheBlock, int kTheGroup, bool kIsScaled, bool kHasMinimum, int kTheZero,
          const uint8_t* kTable = nullptr, bool kHasBfloat = false>
struct GgufForm {
  static constexpr int kBits = kTheBits, kBlock = kTheBlock, kGroup = kTheGroup, kZero = kTheZero;
  static constexpr bool kFloats = false, kScaled = kIsScaled, kMinimum = kHasMinimum, kBfloat = kHasBfloat;
  static constexpr int kRange = kTable == kIq4 ? 8 : kTable == kMxfp4 ? 5 : kBits;  // bits of what products see
  static constexpr int kHalves = 32 / kGroup, kGroups = kBlock / kGroup, kSteps = kBlock / 32;
  static constexpr int kLower = kBits == 3 ? 2 : kBits == 5 || kBits == 6 ? 4 : kBits;  // bits of the first plane

  // The weights of the inputs 4 * i to 4 * i + 3 of a step.
  template <class V>
  static typename V::Chunk Quad(const uint8_t* step, int i) {
    constexpr int lower = 8 / kLower, upper_bits = kBits - kLower;
    const auto low = V::template Take<kLower, 0>(V::LoadChunk(step + i / lower * 64), i % lower * kLower);
    if constexpr (kTable != nullptr) {
      return V::Lookup(kTable, low);
    } else if constexpr (upper_bits == 0) {
      return low;
    } else {
      constexpr int upper = 8 / upper_bits;
      const auto chunk = V::LoadChunk(step + 64 * kLower + i / upper * 64);
      return V::Either(low, V::template Take<upper_bits, kLower>(chunk, i % upper * upper_bits));
    }
  }
};

// The same of a type whose weights are floats.
template <bool kHasBfloat>
struct FloatForm {
  static constexpr bool kFloats = true, kBfloat = kHasBfloat;
};

// Floats in 16 bits.
template <class V, class T>
inline typename V::Floats LoadStored(const uint16_t* from) {
  if constexpr (T::kBfloat)
    return V::LoadUpper(from);
  else
    return V::LoadHalf(from);
}

template <class V, class T, int kRows, int kVectors>
inline void FloatTile(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int row) {
  typename V::Floats acc[kRows][kVectors];
  for (auto& of_row : acc)
    for (auto& each : of_row) each = V::Zero();
  const uint16_t* packed[kVectors];
  for (int v = 0; v < kVectors; v++) {
    const int panel = (vector + v) / V::kPerPanel, column = (vector + v) % V::kPerPanel * V::kColumns;
    packed[v] = reinterpret_cast<const uint16_t*>(w.weights + panel * w.panel_bytes()) + column;
  }
  const float* values = rows.floats + static_cast<size_t>(row) * w.inputs;
  for (int k = 0; k < w.inputs; k++) {
    typename V::Floats weights[kVectors];
    for (int v = 0; v < kVectors; v++) weights[v] = LoadStored<V, T>(packed[v] + static_cast<size_t>(k) * kPanel);
    for (int m = 0; m < kRows; m++) {
      const auto value = V::Every(values[static_cast<size_t>(m) * w.inputs + k]);
      for (int v = 0; v < kVectors; v++) acc[m][v] = V::Fma(weights[v], value, acc[m][v]);
    }
  }
  PutTile<V>(w, acc, out, vector, row);
}

template <class V, class T, int kRows, int kVectors>
inline void GgufTile(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int row) {
  constexpr int zero = T::kZero - V::template kOffset<T::kRange>, floats = T::kMinimum ? 2 * kPanel : kPanel;
  constexpr int head_bytes = 2 * floats + (T::kScaled ? T::kGroups * floats : 0);
  const int steps = w.inputs / 32;
  typename V::Floats acc[kRows][kVectors];
  for (auto& of_row : acc)
    for (auto& each : of_row) each = V::Zero();
  const uint8_t *packed[kVectors], *head[kVectors];
  for (int v = 0; v < kVectors; v++) {
    const int panel = (vector + v) / V::kPerPanel, column = (vector + v) % V::kPerPanel * V::kColumns;
    packed[v] = w.weights + panel * w.panel_bytes() + 4 * column;
    head[v] = w.heads + panel * w.head_bytes();
  }
  const int8_t* values = rows.values + static_cast<size_t>(row) * w.inputs;
  const float* scales = rows.scales + static_cast<size_t>(row) * steps;
  const int32_t* sums = rows.sums + static_cast<size_t>(row) * steps * 2;
  // Of a row and half of a step, or all of it.
  auto sum_of = [&](int m, int h) {
    const int32_t* two = sums + static_cast<size_t>(m) * steps * 2;
    return T::kHalves == 2 ? two[h] : two[0] + two[1];
  };
  size_t at = 0;
  for (int block = 0; block < w.inputs / T::kBlock; block++) {
    typename V::Floats d[kVectors], dmin[kVectors];
    const uint8_t* integers[kVectors];  // of groups
    for (int v = 0; v < kVectors; v++) {
      const int column = (vector + v) % V::kPerPanel * V::kColumns;
      const auto* halves = reinterpret_cast<const uint16_t*>(head[v]) + column;
      d[v] = LoadStored<V, T>(halves);
      if constexpr (T::kMinimum) dmin[v] = LoadStored<V, T>(halves + kPanel);
      integers[v] = head[v] + 2 * floats + column;
      head[v] += head_bytes;
    }
    for (int s = 0; s < T::kSteps; s++, at += 64 * T::kBits, values += 32, scales++, sums += 2) {
      typename V::Dots dots[kRows][kVectors][T::kHalves];
      for (int m = 0; m < kRows; m++)
        for (int h = 0; h < T::kHalves; h++)
          for (int v = 0; v < kVectors; v++) dots[m][v][h] = V::All(zero ? -zero * sum_of(m, h) : 0);
      V::template Gguf<T, kRows, kVectors>(packed, at, values, w.inputs, dots);
      for (int h = 0; h < T::kHalves; h++) {
        const int group = s * T::kHalves + h;
        typename V::Floats of[kVectors];  // the group's scales, then its minima
        for (int v = 0; v < kVectors; v++) {
          of[v] = d[v];
          if (T::kScaled) of[v] = V::Mul(of[v], V::FromInts(V::LoadSigned(integers[v] + group * kPanel)));
        }
        for (int m = 0; m < kRows; m++)
          for (int v = 0; v < kVectors; v++)
            acc[m][v] = V::Add(V::Scaled(of[v], scales[static_cast<size_t>(m) * steps]), dots[m][v][h], acc[m][v]);
        if constexpr (T::kMinimum) {
          for (int v = 0; v < kVectors; v++) {
            of[v] = dmin[v];
            if (T::kScaled)
              of[v] = V::Mul(of[v], V::FromInts(V::LoadBytes(integers[v] + (T::kGroups + group) * kPanel)));
          }
          for (int m = 0; m < kRows; m++) {
            const float taken = scales[static_cast<size_t>(m) * steps] * static_cast<float>(sum_of(m, h));
            for (int v = 0; v < kVectors; v++) acc[m][v] = V::Fma(of[v], V::Every(-taken), acc[m][v]);
          }
        }
      }
    }
  }
  PutTile<V>(w, acc, out, vector, row);
}

template <class V, class T, int kRows, int kVectors>
inline void AnyTile(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int row) {
  if constexpr (T::kFloats)
    FloatTile<V, T, kRows, kVectors>(w, rows, out, vector, row);
  else
    GgufTile<V, T, kRows, kVectors>(w, rows, out, vector, row);
}

template <class V, class T, int kRows, int kVectors>
inline void GgufColumns(const GgufWeights& w, const GgufRows& rows, float* out, int& vector, int end) {
  for (; vector + kVectors <= end; vector += kVectors) {
    int m = 0;
    for (; m + kRows <= rows.count; m += kRows) AnyTile<V, T, kRows, kVectors>(w, rows, out, vector, m);
    AsConstant<kRows - 1>(rows.count - m,
                          [&](auto left) { AnyTile<V, T, left.value, kVectors>(w, rows, out, vector, m); });
  }
}

template <class V>
inline void MultiplyGguf(const GgufWeights& w, const GgufRows& rows, float* out, int first, int last) {
  const int begin = first * V::kPerPanel, end = last * V::kPerPanel;
  auto walk = [&](auto type) { V::template WalkGguf<decltype(type)>(w, rows, out, begin, end); };
  switch (w.type->id) {
    case 1: return V::template WalkFloats<FloatForm<false>>(w, rows, out, begin, end);
    case 30: return V::template WalkFloats<FloatForm<true>>(w, rows, out, begin, end);
    case 2: return walk(GgufForm<4, 32, 32, false, false, 8>());
    case 3: return walk(GgufForm<4, 32, 32, false, true, 0>());
    case 6: return walk(GgufForm<5, 32, 32, false, false, 16>());
    case 7: return walk(GgufForm<5, 32, 32, false, true, 0>());
    case 8: return walk(GgufForm<8, 32, 32, false, false, 128>());
    case 10: return walk(GgufForm<2, 256, 16, true, true, 0>());
    case 11: return walk(GgufForm<3, 256, 16, true, false, 4>());
    case 12: return walk(GgufForm<4, 256, 32, true, true, 0>());
    case 13: return walk(GgufForm<5, 256, 32, true, true, 0>());
    case 14: return walk(GgufForm<6, 256, 16, true, false, 32>());
    case 20: return walk(GgufForm<4, 32, 32, false, false, 128, kIq4>());
    case 23: return walk(GgufForm<4, 256, 32, true, false, 128, kIq4>());
    case 34:
    case 35: return walk(GgufForm<2, 256, 32, false, false, 1>());
    case 39: return walk(GgufForm<4, 32, 32, false, false, 12, kMxfp4, true>());
  }
}

}  // namespace
}  // namespace edge
