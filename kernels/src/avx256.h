// What AVX2 and AVX-VNNI share: a panel is two vectors of 8 columns.
#pragma once

#include <immintrin.h>

#include "attention_loops.h"
#include "gguf_tiles.h"
#include "rows_loops.h"
#include "states_loops.h"
#include "tiles.h"

namespace edge {
namespace {

constexpr int kKeysAhead = 16;  // that are fetched ahead

struct Avx256 : Plain {
  using Floats = __m256;
  using Dots = __m256i;
  static constexpr int kColumns = 8, kPerPanel = 2, kBytes = 32, kAhead = 1024;

  static Floats Zero() { return _mm256_setzero_ps(); }
  static Dots All(int value) { return _mm256_set1_epi32(value); }
  // `offset` less zeros, in the lower halves alone: TimesLess multiplies those, where the sum is within 16 bits, too,
  // as that of a block of 256 values is.
  static Dots Less(Dots zeros, int offset) {
    return _mm256_and_si256(_mm256_sub_epi32(All(offset), zeros), All(0xffff));
  }
  static Dots TimesLess(Dots less, int sum) { return _mm256_madd_epi16(less, All(sum)); }
  static Dots LoadBytes(const uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats Load(const float* from) { return _mm256_loadu_ps(from); }
  static Floats LoadHalf(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats LoadUpper(const uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static Floats Scaled(Floats scales, float scale) { return _mm256_mul_ps(scales, _mm256_set1_ps(scale)); }
  static Floats Add(Floats scales, Dots dots, Floats acc) {
    return _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(dots), acc);
  }
  static Floats Sum(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static void Store(float* out, Floats acc) { _mm256_storeu_ps(out, acc); }

  static Floats Every(float x) { return _mm256_set1_ps(x); }
  static Floats Mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats Sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
  static Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static Floats Round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float Largest(Floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  static float Total(Floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  static Floats ZeroUpTo(float limit, Floats x, Floats y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, Every(limit), _CMP_NLE_UQ), y);
  }
  static Floats PowerOfTwo(Floats n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), All(127)), 23));
  }

  // keys [count, dim] to [dim, kKeys], with zeros for keys that are not there. Their values, which are read next, and
  // the keys behind them are fetched.
  static void Turn(const float* keys, const float* values, int count, int dim, float* out) {
    for (int t = 0; t < kKeys; t += 8) {
      const int here = std::min(8, count - t);
      for (int d = 0; d < dim; d += 8) {
        const size_t next = static_cast<size_t>(t) * dim + 8 * d;  // an eighth of the 8 keys
        for (size_t i = next; i < next + 64; i += 64 / sizeof(float)) {
          _mm_prefetch(reinterpret_cast<const char*>(keys + kKeysAhead * dim + i), _MM_HINT_T0);
          _mm_prefetch(reinterpret_cast<const char*>(values + i), _MM_HINT_T0);
        }
        __m256 a[8];
        for (int i = 0; i < 8; i++) a[i] = i < here ? Load(keys + static_cast<size_t>(t + i) * dim + d) : Zero();
        Store8(a, out + d * kKeys + t);
      }
    }
  }

  // keys [count, dim] in 8 bits to [dim / 4, kKeys, 4], with zeros for keys that are not there.
  static void TurnKeys(const int8_t* keys, int count, int dim, int32_t* out) {
    const int fours = dim / 4;
    for (int t = 0; t < kKeys; t += 8) {
      const int here = std::min(8, count - t);
      const int8_t* of_eight = keys + static_cast<ptrdiff_t>(t) * dim;
      int d = 0;
      for (; d + 8 <= fours; d += 8) {
        __m256 a[8];
        for (int i = 0; i < 8; i++)
          a[i] = i < here ? _mm256_loadu_ps(reinterpret_cast<const float*>(of_eight + i * dim + 4 * d)) : Zero();
        Store8(a, reinterpret_cast<float*>(out + d * kKeys + t));
      }
      for (; d < fours; d++)
        for (int i = 0; i < 8; i++) {
          int four = 0;
          if (i < here) std::memcpy(&four, of_eight + i * dim + 4 * d, sizeof(four));
          out[d * kKeys + t + i] = four;
        }
    }
  }

  // 8 rows of 8 floats, turned, to rows of kKeys.
  static void Store8(__m256* a, float* out) {
    __m256 b[8];
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; j++) {
        a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0x44);
        a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0xee);
      }
    for (int i = 0; i < 4; i++) {
      _mm256_storeu_ps(out + i * kKeys, _mm256_permute2f128_ps(a[i], a[4 + i], 0x20));
      _mm256_storeu_ps(out + (4 + i) * kKeys, _mm256_permute2f128_ps(a[i], a[4 + i], 0x31));
    }
  }

  // values [count, dim] in 8 bits to [pairs of keys, dim, 2] in 16 bits.
  static void TurnValues(const int8_t* values, int count, int dim, int16_t* out) {
    for (int t = 0; t < count; t += 2) {
      const int8_t* from = values + static_cast<size_t>(t) * dim;
      for (int d = 0; d < dim; d += 16) {
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + d));
        const __m128i b =
            t + 1 < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + dim + d)) : _mm_setzero_si128();
        auto* to = reinterpret_cast<__m256i*>(out + static_cast<size_t>(t) * dim + 2 * d);
        _mm256_storeu_si256(to, _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
        _mm256_storeu_si256(to + 1, _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)));
      }
    }
  }

  using Pairs = Dots;
  static constexpr int kKeyVectors = 1;
  static Floats FromInts(Dots a) { return _mm256_cvtepi32_ps(a); }
  static Pairs LoadPairs(const int16_t* values) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)); }
  static Dots Two(const int16_t* weights) { return Four(reinterpret_cast<const int8_t*>(weights)); }
  static void StoreShorts(int16_t* to, Floats whole) {
    const __m256i ints = _mm256_cvtps_epi32(whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1)));
  }

  static __m256i Bytes(const uint8_t* packed) {
    _mm_prefetch(reinterpret_cast<const char*>(packed + kAhead), _MM_HINT_T0);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
  }
  // The weights of the inputs 4 * i to 4 * i + 3 of each group.
  template <int kBits>
  static __m256i Part(__m256i bytes, int i) {
    if (kBits == 8) return bytes;
    return _mm256_and_si256(_mm256_srli_epi16(bytes, kBits * i), _mm256_set1_epi8((1 << kBits) - 1));
  }
  using Chunk = __m256i;
  static Chunk LoadChunk(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  template <int kBits, int kTo>
  static Chunk Take(Chunk bytes, int from) {
    if (kBits == 8) return bytes;
    const __m256i there = from >= kTo ? _mm256_srli_epi16(bytes, from - kTo) : _mm256_slli_epi16(bytes, kTo - from);
    return _mm256_and_si256(there, _mm256_set1_epi8(static_cast<char>(((1 << kBits) - 1) << kTo)));
  }
  static Chunk Either(Chunk a, Chunk b) { return _mm256_or_si256(a, b); }
  static Chunk Lookup(const uint8_t* of, Chunk places) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
  }
  static Dots LoadSigned(const uint8_t* from) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  template <int kBits>
  static void FetchStep(const uint8_t* step) {
#pragma GCC unroll 8
    for (int g = 0; g < kBits; g++) _mm_prefetch(reinterpret_cast<const char*>(step + g * 64 + kAhead), _MM_HINT_T0);
  }
  static __m256i Four(const int8_t* values) {
    int four;
    std::memcpy(&four, values, sizeof(four));
    return _mm256_set1_epi32(four);
  }
};

// Weights that are floats, in tiles whose sums take 12 of 16 registers; one or two rows in tiles of twice the columns.
template <class V, class T>
inline void WalkFloatsOf256(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
  if (rows.count <= 2) GgufColumns<V, T, 2, 4>(w, rows, out, vector, end);
  GgufColumns<V, T, 6, 2>(w, rows, out, vector, end);
}

}  // namespace
}  // namespace edge
