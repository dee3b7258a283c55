#include "neon.h"

#include "processor.h"

namespace edge {
namespace {

struct Dotprod : Neon {
  template <int kBits, int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride, const Dots*,
                       Dots (*dots)[kVectors]) {
    for (int i = 0; i < kStep / 4; i++) {
      int8x16_t part[kVectors];
      for (int v = 0; v < kVectors; v++) part[v] = Part<kBits>(packed[v] + at, i);
      for (int m = 0; m < kRows; m++) {
        const int8x16_t four = Four(values + static_cast<size_t>(m) * stride + 4 * i);
        for (int v = 0; v < kVectors; v++) dots[m][v] = vdotq_s32(dots[m][v], part[v], four);
      }
    }
  }

  template <class T>
  static void WalkFloats(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<Dotprod, T, 2, 8>(w, rows, out, vector, end);
    GgufColumns<Dotprod, T, 4, 4>(w, rows, out, vector, end);
  }

  template <class T>
  static void WalkGguf(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<Dotprod, T, 2, 4>(w, rows, out, vector, end);
    GgufColumns<Dotprod, T, 4, 2>(w, rows, out, vector, end);
  }

  template <int kBits>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) Columns<Dotprod, kBits, 2, 4>(w, rows, out, vector, end);
    Columns<Dotprod, kBits, 4, 2>(w, rows, out, vector, end);
  }
};

void Block(const float* from, int block, int8_t* values, float& scale, int32_t& sum) {
  float32x4_t most = vdupq_n_f32(0);
  for (int i = 0; i < block; i += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(from + i)));
  float inverse;  // the largest of some and no number is no number
  if (RoundsToZeros(vmaxvq_f32(most), block, values, inverse, scale, sum)) return;
  int32x4_t total = vdupq_n_s32(0);
  for (int i = 0; i < block; i += 8) {
    const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from + i), inverse));
    const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(from + i + 4), inverse));
    total = vaddq_s32(total, vaddq_s32(a, b));
    vst1_s8(values + i, vqmovn_s16(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))));
  }
  sum = vaddvq_s32(total);
}

}  // namespace

void QuantizeNeon(const Rounding& r, int first, int last) { QuantizeBy(Block, r, first, last); }

const Form kNeonDotprod{"neon_dotprod",    HasNeonDotprod,    QuantizeNeon,
                        Multiply<Dotprod>, MultiplyGguf<Dotprod>, RowsOf<Dotprod>(), AttentionOf<Dotprod>(), StatesOf<Dotprod>()};

}  // namespace edge
