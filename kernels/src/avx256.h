// What AVX2 and AVX-VNNI share: a panel is two vectors of 8 columns.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace edge {
namespace {  // each file compiles its own, for its own processors

struct Avx256 {
  using Floats = __m256;
  using Dots = __m256i;
  static constexpr int kColumns = 8, kPerPanel = 2, kBytes = 32, kGroups = 4, kAhead = 1024;

  static Floats Zero() { return _mm256_setzero_ps(); }
  static Dots All(int value) { return _mm256_set1_epi32(value); }
  static Dots Times(const int32_t* zeros, int sum) {
    return _mm256_mullo_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(zeros)), _mm256_set1_epi32(sum));
  }
  static Dots Plus(Dots a, Dots b) { return _mm256_add_epi32(a, b); }
  static Floats Load(const float* scales) { return _mm256_loadu_ps(scales); }
  static Floats Scaled(Floats scales, float scale) { return _mm256_mul_ps(scales, _mm256_set1_ps(scale)); }
  static Floats Add(Floats scales, Dots dots, Floats acc) {
    return _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(dots), acc);
  }
  static void Store(float* out, Floats acc) { _mm256_storeu_ps(out, acc); }

  static __m256i Pairs(const uint8_t* packed) {
    _mm_prefetch(reinterpret_cast<const char*>(packed + kAhead), _MM_HINT_T0);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
  }
  static __m256i Low(__m256i pairs) { return _mm256_and_si256(pairs, _mm256_set1_epi8(15)); }
  static __m256i High(__m256i pairs) { return Low(_mm256_srli_epi16(pairs, 4)); }
};

}  // namespace
}  // namespace edge
