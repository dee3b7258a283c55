// Products of two rows and two columns at a time (i8mm, which phones have since 2021, and Apple's since the M2).
#include "neon.h"
#include "processor.h"

namespace edge {
namespace {

struct I8mm : Neon {
  // Sums of two rows and four columns become those of two rows and the first two columns, and of both and the others.
  // And back, for it is the same.
  template <int kRows, int kVectors>
  static void ByTwos(Dots (*dots)[kVectors]) {
    for (int m = 0; m + 2 <= kRows; m += 2)
      for (int v = 0; v < kVectors; v++) {
        const int64x2_t a = vreinterpretq_s64_s32(dots[m][v]), b = vreinterpretq_s64_s32(dots[m + 1][v]);
        dots[m][v] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
        dots[m + 1][v] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
      }
  }

  template <int kBits, int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride, const Dots*,
                       Dots (*dots)[kVectors]) {
    for (int i = 0; i < kStep / 4; i += 2) {
      int32x4_t first[kVectors], second[kVectors];  // two columns of 8 inputs
      int8x16_t part[kVectors][2];
      for (int v = 0; v < kVectors; v++) {
        for (int j = 0; j < 2; j++) part[v][j] = Part<kBits>(packed[v] + at, i + j);
        const int32x4_t a = vreinterpretq_s32_s8(part[v][0]), b = vreinterpretq_s32_s8(part[v][1]);
        first[v] = vzip1q_s32(a, b);
        second[v] = vzip2q_s32(a, b);
      }
      const int8_t* eight = values + 4 * i;
      for (int m = 0; m + 2 <= kRows; m += 2, eight += 2 * static_cast<size_t>(stride)) {
        const int8x16_t two = vcombine_s8(vld1_s8(eight), vld1_s8(eight + stride));
        for (int v = 0; v < kVectors; v++) {
          dots[m][v] = vmmlaq_s32(dots[m][v], two, vreinterpretq_s8_s32(first[v]));
          dots[m + 1][v] = vmmlaq_s32(dots[m + 1][v], two, vreinterpretq_s8_s32(second[v]));
        }
      }
      if constexpr (kRows % 2)
        for (int v = 0; v < kVectors; v++)
          for (int j = 0; j < 2; j++)
            dots[kRows - 1][v] = vdotq_s32(dots[kRows - 1][v], part[v][j], Four(eight + 4 * j));
    }
  }

  template <class T>
  static void WalkFloats(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<I8mm, T, 2, 8>(w, rows, out, vector, end);
    GgufColumns<I8mm, T, 4, 4>(w, rows, out, vector, end);
  }

  template <class T>
  static void WalkGguf(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<I8mm, T, 2, 4>(w, rows, out, vector, end);
    GgufColumns<I8mm, T, 4, 2>(w, rows, out, vector, end);
  }

  template <int kBits>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) Columns<I8mm, kBits, 2, 4>(w, rows, out, vector, end);
    Columns<I8mm, kBits, 6, 2>(w, rows, out, vector, end);
  }
};

}  // namespace

const Form kNeonI8mm{"neon_i8mm",         HasNeonI8mm,    QuantizeNeon,        Multiply<I8mm>,
                     MultiplyGguf<I8mm>, RowsOf<I8mm>(), AttentionOf<I8mm>(), StatesOf<I8mm>()};

}  // namespace edge
