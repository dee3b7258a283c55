#include "avx256.h"
#include "processor.h"

namespace edge {
namespace {

struct Avx2 : Avx256 {
  // Weights of 8 bits are taken less 128, so that no sum of a pair is more than 2 * 128 * 127, which 16 bits hold.
  template <int kBits>
  static constexpr int kOffset = kBits == 8 ? 128 : 0;

  // Without products of bytes keys and queries are widened to 16 bits: of every four the first and third, and the
  // others.
  struct Keys {
    __m256i even, odd;
  };
  using Scores = Dots;
  static Scores Start(const int32_t*) { return All(0); }
  static Dots Whole(Scores made) { return made; }
  static void StoreQuery(const int16_t* firsts, const int16_t* seconds, int dim, int8_t* to) {
    int16_t whole[kLargestHead];
    for (int d = 0; d < dim; d++)
      whole[d / 4 * 4 + d % 2 * 2 + d % 4 / 2] = static_cast<int16_t>(128 * firsts[d] + seconds[d]);
    std::memcpy(to, whole, dim * sizeof(int16_t));
  }
  static Keys LoadQuery(const int8_t* query, int, int d) { return {Four(query + 2 * d), Four(query + 2 * d + 4)}; }
  static Keys LoadKeys(const int32_t* keys) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys));
    return {_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8)};
  }
  static void Dot(Scores& made, const Keys& keys, const Keys& four) {
    made = DotPairs(DotPairs(made, keys.even, four.even), keys.odd, four.odd);
  }
  static Dots DotPairs(Dots dots, Pairs values, Dots two) {
    return _mm256_add_epi32(dots, _mm256_madd_epi16(values, two));
  }

  template <int kBits, int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride, const Dots*,
                       Dots (*dots)[kVectors]) {
    if constexpr (kBits == 8) {
      Bytewise<kRows, kVectors>(packed, at, values, stride, dots);
    } else {
      // 8 sums of pairs, each at most 2 * 15 * 127, stay within 16 bits.
      constexpr int inputs = 32 / kBits;  // of a group
      __m256i sums[kRows][kVectors];
#pragma GCC unroll 4
      for (int g = 0; g < kStep / inputs; g++) {
        for (int v = 0; v < kVectors; v++) {
          const __m256i bytes = Bytes(packed[v] + at + g * 64);
          __m256i parts[8 / kBits];
          for (int i = 0; i < 8 / kBits; i++) parts[i] = Part<kBits>(bytes, i);
          for (int m = 0; m < kRows; m++) {
            const int8_t* group = values + static_cast<size_t>(m) * stride + g * inputs;
            __m256i sum = _mm256_maddubs_epi16(parts[0], Four(group));
            for (int i = 1; i < 8 / kBits; i++)
              sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(parts[i], Four(group + 4 * i)));
            sums[m][v] = g == 0 ? sum : _mm256_add_epi16(sums[m][v], sum);
          }
        }
      }
      for (int m = 0; m < kRows; m++)
        for (int v = 0; v < kVectors; v++) dots[m][v] = Widened(dots[m][v], sums[m][v]);
    }
  }

  template <int kRows, int kVectors>
  static void Bytewise(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                       Dots (*dots)[kVectors]) {
#pragma GCC unroll 8
    for (int g = 0; g < kStep / 4; g++) {
      for (int v = 0; v < kVectors; v++) {
        const __m256i less = _mm256_xor_si256(Bytes(packed[v] + at + g * 64), _mm256_set1_epi8(-128));
        const __m256i size = _mm256_abs_epi8(less);
        for (int m = 0; m < kRows; m++) {
          const __m256i four = Four(values + static_cast<size_t>(m) * stride + g * 4);
          dots[m][v] = Widened(dots[m][v], _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, less)));
        }
      }
    }
  }

  template <class T, int kRows, int kVectors>
  static void Gguf(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                   Dots (*dots)[kVectors][T::kHalves]) {
    // Of so many quads the sums of pairs stay within 16 bits: each is at most 2 * (2 ** bits - 1) * 127.
    constexpr int together = T::kRange == 8 ? 1 : T::kRange == 6 ? 2 : T::kRange == 5 ? 4 : 8 / T::kHalves;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      FetchStep<T::kBits>(packed[v] + at);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i += together) {
        __m256i sums[kRows];
#pragma GCC unroll 8
        for (int j = i; j < i + together; j++) {
          __m256i part = T::template Quad<Avx256>(packed[v] + at, j), size = part;
          if (T::kRange == 8) {
            part = _mm256_xor_si256(part, _mm256_set1_epi8(-128));
            size = _mm256_abs_epi8(part);
          }
#pragma GCC unroll 4
          for (int m = 0; m < kRows; m++) {
            __m256i four = Four(values + static_cast<size_t>(m) * stride + 4 * j);
            if (T::kRange == 8) four = _mm256_sign_epi8(four, part);
            const __m256i made = _mm256_maddubs_epi16(size, four);
            sums[m] = j == i ? made : _mm256_add_epi16(sums[m], made);
          }
        }
#pragma GCC unroll 4
        for (int m = 0; m < kRows; m++) {
          auto& to = dots[m][v][i * T::kHalves / 8];
          to = Widened(to, sums[m]);
        }
      }
    }
  }

  template <class T>
  static void WalkFloats(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    WalkFloatsOf256<Avx2, T>(w, rows, out, vector, end);
  }

  template <class T>
  static void WalkGguf(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2 || rows.count == 4) GgufColumns<Avx2, T, 2, 2>(w, rows, out, vector, end);
    GgufColumns<Avx2, T, 3, 2>(w, rows, out, vector, end);
  }

  static Dots Widened(Dots dots, __m256i sums) {
    return _mm256_add_epi32(dots, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
  }

  template <int kBits>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2 || rows.count == 4) Columns<Avx2, kBits, 2, 2>(w, rows, out, vector, end);
    Columns<Avx2, kBits, 3, 2>(w, rows, out, vector, end);
  }
};

void Block(const float* from, int block, int8_t* values, float& scale, int32_t& sum) {
  // Without their signs numbers are in the order of their bits, in which what is no number comes last.
  const __m256i size = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < block; i += 8)
    most = _mm256_max_epi32(most, _mm256_and_si256(size, _mm256_castps_si256(_mm256_loadu_ps(from + i))));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  float inverse;
  if (RoundsToZeros(_mm_cvtss_f32(_mm_castsi128_ps(four)), block, values, inverse, scale, sum)) return;
  __m256i total = _mm256_setzero_si256();
  for (int i = 0; i < block; i += 32) {
    __m256i whole[4];
    for (int j = 0; j < 4; j++) {
      whole[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + 8 * j), _mm256_set1_ps(inverse)));
      total = _mm256_add_epi32(total, whole[j]);
    }
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
  sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
  sum = _mm_cvtsi128_si32(sums);
}

}  // namespace

void QuantizeAvx2(const Rounding& r, int first, int last) { QuantizeBy(Block, r, first, last); }

const Form kAvx2{"avx2",         HasAvx2,           QuantizeAvx2,       Multiply<Avx2>,
                 MultiplyGguf<Avx2>, RowsOf<Avx2>(), AttentionOf<Avx2>(), StatesOf<Avx2>()};

}  // namespace edge
