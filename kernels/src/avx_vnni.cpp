#include "avx256.h"

namespace edge {
namespace {

struct AvxVnni : Avx256 {
  template <int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                       Dots (*dots)[kVectors]) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; g++) {
      for (int v = 0; v < kVectors; v++) {
        const __m256i pairs = Pairs(packed[v] + at + g * 64), low = Low(pairs), high = High(pairs);
        for (int m = 0; m < kRows; m++) {
          const int* four = reinterpret_cast<const int*>(values + static_cast<size_t>(m) * stride + g * kGroup);
          dots[m][v] = _mm256_dpbusd_avx_epi32(dots[m][v], low, _mm256_set1_epi32(four[0]));
          dots[m][v] = _mm256_dpbusd_avx_epi32(dots[m][v], high, _mm256_set1_epi32(four[1]));
        }
      }
    }
  }

  template <int kBlock, bool kZeroPoints>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) Columns<AvxVnni, kBlock, kZeroPoints, 2, 2>(w, rows, out, vector, end);
    Columns<AvxVnni, kBlock, kZeroPoints, 4, 1>(w, rows, out, vector, end);
  }
};

}  // namespace

void MultiplyAvxVnni(const Weights& w, const Rows& rows, float* out, int first, int last) {
  Multiply<AvxVnni>(w, rows, out, first, last);
}

}  // namespace edge
