#include "avx256.h"
#include "processor.h"

namespace edge {
namespace {

struct AvxVnni : Avx256, QueryInBytes {
  template <int kBits>
  static constexpr int kOffset = 0;

  using Keys = Dots;
  using Scores = TwoDots<Dots>;
  static Scores Start(const int32_t* sums) { return {All(-128 * sums[0]), All(-128 * sums[1])}; }
  static Dots Whole(const Scores& made) { return _mm256_add_epi32(_mm256_slli_epi32(made.first, 7), made.second); }
  static Scores LoadQuery(const int8_t* query, int dim, int d) { return {Four(query + d), Four(query + dim + d)}; }
  static Keys LoadKeys(const int32_t* keys) {  // with 128 more: dpbusd takes them without a sign
    return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys)), _mm256_set1_epi8(-128));
  }
  static void Dot(Scores& made, Keys keys, const Scores& four) {
    made.first = _mm256_dpbusd_avx_epi32(made.first, keys, four.first);
    made.second = _mm256_dpbusd_avx_epi32(made.second, keys, four.second);
  }
  static Dots DotPairs(Dots dots, Pairs values, Dots two) { return _mm256_dpwssd_avx_epi32(dots, values, two); }

  template <int kBits, int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride, const Dots*,
                       Dots (*dots)[kVectors]) {
    constexpr int inputs = 32 / kBits;  // of a group
#pragma GCC unroll 4
    for (int g = 0; g < kStep / inputs; g++) {
      for (int v = 0; v < kVectors; v++) {
        const __m256i bytes = Bytes(packed[v] + at + g * 64);
        for (int i = 0; i < 8 / kBits; i++) {
          const __m256i part = Part<kBits>(bytes, i);
          for (int m = 0; m < kRows; m++) {
            const int8_t* group = values + static_cast<size_t>(m) * stride + g * inputs;
            dots[m][v] = _mm256_dpbusd_avx_epi32(dots[m][v], part, Four(group + 4 * i));
          }
        }
      }
    }
  }

  template <class T, int kRows, int kVectors>
  static void Gguf(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                   Dots (*dots)[kVectors][T::kHalves]) {
    for (int v = 0; v < kVectors; v++) {
      FetchStep<T::kBits>(packed[v] + at);
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) {
        const __m256i part = T::template Quad<Avx256>(packed[v] + at, i);
        for (int m = 0; m < kRows; m++) {
          auto& to = dots[m][v][i * T::kHalves / 8];
          to = _mm256_dpbusd_avx_epi32(to, part, Four(values + static_cast<size_t>(m) * stride + 4 * i));
        }
      }
    }
  }

  template <class T>
  static void WalkFloats(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    WalkFloatsOf256<AvxVnni, T>(w, rows, out, vector, end);
  }

  template <class T>
  static void WalkGguf(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<AvxVnni, T, 2, 2>(w, rows, out, vector, end);
    GgufColumns<AvxVnni, T, 4, 1>(w, rows, out, vector, end);
  }

  template <int kBits>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) Columns<AvxVnni, kBits, 2, 2>(w, rows, out, vector, end);
    Columns<AvxVnni, kBits, 4, 1>(w, rows, out, vector, end);
  }
};

}  // namespace

const Form kAvxVnni{"avx_vnni",            HasAvxVnni,        QuantizeAvx2,          Multiply<AvxVnni>,
                    MultiplyGguf<AvxVnni>, RowsOf<AvxVnni>(), AttentionOf<AvxVnni>(), StatesOf<AvxVnni>()};

}  // namespace edge
