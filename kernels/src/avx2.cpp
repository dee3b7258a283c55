#include "avx256.h"

namespace edge {
namespace {

struct Avx2 : Avx256 {
  // 8 sums of pairs, each at most 2 * 15 * 127, stay within 16 bits.
  template <int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                       Dots (*dots)[kVectors]) {
    __m256i sums[kRows][kVectors];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; g++) {
      for (int v = 0; v < kVectors; v++) {
        const __m256i pairs = Pairs(packed[v] + at + g * 64), low = Low(pairs), high = High(pairs);
        for (int m = 0; m < kRows; m++) {
          const int* four = reinterpret_cast<const int*>(values + static_cast<size_t>(m) * stride + g * kGroup);
          const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low, _mm256_set1_epi32(four[0])),
                                               _mm256_maddubs_epi16(high, _mm256_set1_epi32(four[1])));
          sums[m][v] = g == 0 ? sum : _mm256_add_epi16(sums[m][v], sum);
        }
      }
    }
    const __m256i ones = _mm256_set1_epi16(1);
    for (int m = 0; m < kRows; m++)
      for (int v = 0; v < kVectors; v++)
        dots[m][v] = _mm256_add_epi32(dots[m][v], _mm256_madd_epi16(sums[m][v], ones));
  }

  template <int kBlock, bool kZeroPoints>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) Columns<Avx2, kBlock, kZeroPoints, 2, 2>(w, rows, out, vector, end);
    Columns<Avx2, kBlock, kZeroPoints, 4, 1>(w, rows, out, vector, end);
  }
};

}  // namespace

void MultiplyAvx2(const Weights& w, const Rows& rows, float* out, int first, int last) {
  Multiply<Avx2>(w, rows, out, first, last);
}

void QuantizeAvx2(const float* rows, int count, int inputs, int block, int8_t* values, float* scales, int32_t* sums) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int at = 0; at < count * (inputs / block); at++, rows += block, values += block) {
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < block; i += 8) most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_loadu_ps(rows + i)));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    four = _mm_max_ss(four, _mm_shuffle_ps(four, four, 1));
    const float largest = _mm_cvtss_f32(four), inverse = largest > 0 ? 127.0f / largest : 0.0f;
    __m256i total = _mm256_setzero_si256();
    for (int i = 0; i < block; i += 32) {
      __m256i whole[4];
      for (int j = 0; j < 4; j++) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(rows + i + 8 * j), _mm256_set1_ps(inverse));
        whole[j] = _mm256_cvtps_epi32(scaled);
        total = _mm256_add_epi32(total, whole[j]);
      }
      const __m256i bytes =
          _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_permutevar8x32_epi32(bytes, order));
    }
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    scales[at] = largest / 127.0f;
    sums[at] = _mm_cvtsi128_si32(sum);
  }
}

}  // namespace edge
