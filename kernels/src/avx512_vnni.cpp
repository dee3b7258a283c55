#include <immintrin.h>

#include "avx256.h"
#include "processor.h"

namespace edge {
namespace {

struct Avx512Vnni : Plain, QueryInBytes {
  using Floats = __m512;
  using Dots = __m512i;
  static constexpr int kColumns = 16, kPerPanel = 1, kBytes = 64;
  static constexpr int kAhead = 2048;  // bytes that are fetched ahead: 8 rows cost 1.3 instead of 1.9 of one
  template <int kBits>
  static constexpr int kOffset = 0;
  template <int kBits, int kRows>
  static constexpr int kMore = kBits < 8 && kRows > 2 ? 16 : 0;
  static Dots InEveryByte(Dots zeros, int more) {  // zeros less `more`
    const __m512i of_four = _mm512_set1_epi32(0x00000000);
    return _mm512_shuffle_epi8(_mm512_sub_epi32(zeros, All(more)),
                               _mm512_add_epi32(of_four, _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0)));
  }

  static Floats Zero() { return _mm512_setzero_ps(); }
  static Dots All(int value) { return _mm512_set1_epi32(value); }
  static Dots Less(Dots zeros, int) {  // see Avx256
    return _mm512_and_si512(_mm512_sub_epi32(All(0), zeros), All(0xffff));
  }
  static Dots TimesLess(Dots less, int sum) { return _mm512_madd_epi16(less, All(sum)); }
  static Dots LoadBytes(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  static Floats LoadHalf(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Floats LoadUpper(const uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Floats Scaled(Floats scales, float scale) { return _mm512_mul_ps(scales, _mm512_set1_ps(scale)); }
  static Floats Add(Floats scales, Dots dots, Floats acc) {
    return _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(dots), acc);
  }
  static Floats Sum(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static void Store(float* out, Floats acc) { _mm512_storeu_ps(out, acc); }

  static Floats Every(float x) { return _mm512_set1_ps(x); }
  static Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats Sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats Round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float Largest(Floats x) { return _mm512_reduce_max_ps(x); }
  static float Total(Floats x) { return _mm512_reduce_add_ps(x); }
  static Floats ZeroUpTo(float limit, Floats x, Floats y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, Every(limit), _CMP_NLE_UQ), y);
  }
  static Floats PowerOfTwo(Floats n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), All(127)), 23));
  }
  static void Turn(const float* keys, const float* values, int count, int dim, float* out) {
    Avx256::Turn(keys, values, count, dim, out);
  }

  using Keys = Dots;
  using Pairs = Dots;
  static constexpr int kKeyVectors = 1;
  static Floats FromInts(Dots a) { return _mm512_cvtepi32_ps(a); }
  static Keys LoadKeys(const int32_t* keys) {  // with 128 more: dpbusd takes them without a sign
    return _mm512_xor_si512(_mm512_loadu_si512(keys), _mm512_set1_epi8(-128));
  }
  static Dots Four(const int8_t* values) {
    int four;
    std::memcpy(&four, values, sizeof(four));
    return All(four);
  }
  using Scores = TwoDots<Dots>;
  static Scores Start(const int32_t* sums) { return {All(-128 * sums[0]), All(-128 * sums[1])}; }
  static Dots Whole(const Scores& made) { return _mm512_add_epi32(_mm512_slli_epi32(made.first, 7), made.second); }
  static Scores LoadQuery(const int8_t* query, int dim, int d) { return {Four(query + d), Four(query + dim + d)}; }
  static void Dot(Scores& made, Keys keys, const Scores& four) {
    made = {_mm512_dpbusd_epi32(made.first, keys, four.first), _mm512_dpbusd_epi32(made.second, keys, four.second)};
  }
  static Pairs LoadPairs(const int16_t* values) { return _mm512_loadu_si512(values); }
  static Dots Two(const int16_t* weights) { return Four(reinterpret_cast<const int8_t*>(weights)); }
  static Dots DotPairs(Dots dots, Pairs values, Dots two) { return _mm512_dpwssd_epi32(dots, values, two); }
  static void StoreShorts(int16_t* to, Floats whole) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(whole)));
  }
  static void TurnKeys(const int8_t* keys, int count, int dim, int32_t* out) {
    Avx256::TurnKeys(keys, count, dim, out);
  }
  static void TurnValues(const int8_t* values, int count, int dim, int16_t* out) {
    Avx256::TurnValues(values, count, dim, out);
  }

  template <int kBits, int kRows, int kVectors>
  static void Multiply(const uint8_t* const* packed, size_t at, const int8_t* values, int stride, const Dots* less,
                       Dots (*dots)[kVectors]) {
    constexpr int inputs = 32 / kBits;  // of a group
    const __m512i mask = _mm512_set1_epi8(static_cast<char>((1 << kBits) - 1));
#pragma GCC unroll 4
    for (int g = 0; g < kStep / inputs; g++) {
      __m512i parts[8 / kBits][kVectors];
      for (int v = 0; v < kVectors; v++) {
        const uint8_t* from = packed[v] + at + g * 64;
        const __m512i bytes = _mm512_loadu_si512(from);
        _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T0);
        for (int i = 0; i < 8 / kBits; i++)
          parts[i][v] = kBits == 8 ? bytes : _mm512_and_si512(_mm512_srli_epi16(bytes, kBits * i), mask);
        if (kMore<kBits, kRows>)
          for (auto& part : parts) part[v] = _mm512_sub_epi8(part[v], less[v]);
      }
      for (int m = 0; m < kRows; m++) {
        const int8_t* group = values + static_cast<size_t>(m) * stride + g * inputs;
        for (int i = 0; i < 8 / kBits; i++) {
          int four;
          std::memcpy(&four, group + 4 * i, sizeof(four));
          for (int v = 0; v < kVectors; v++)
            dots[m][v] = _mm512_dpbusd_epi32(dots[m][v], parts[i][v], _mm512_set1_epi32(four));
        }
      }
    }
  }

  using Chunk = __m512i;
  static Chunk LoadChunk(const uint8_t* from) { return _mm512_loadu_si512(from); }
  template <int kBits, int kTo>
  static Chunk Take(Chunk bytes, int from) {
    if (kBits == 8) return bytes;
    const __m512i there = from >= kTo ? _mm512_srli_epi16(bytes, from - kTo) : _mm512_slli_epi16(bytes, kTo - from);
    return _mm512_and_si512(there, _mm512_set1_epi8(static_cast<char>(((1 << kBits) - 1) << kTo)));
  }
  static Chunk Either(Chunk a, Chunk b) { return _mm512_or_si512(a, b); }
  static Chunk Lookup(const uint8_t* of, Chunk places) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places);
  }
  static Dots LoadSigned(const uint8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  template <class T, int kRows, int kVectors>
  static void Gguf(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                   Dots (*dots)[kVectors][T::kHalves]) {
    for (int v = 0; v < kVectors; v++) {
#pragma GCC unroll 8
      for (int g = 0; g < T::kBits; g++)
        _mm_prefetch(reinterpret_cast<const char*>(packed[v] + at + g * 64 + kAhead), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      __m512i parts[kVectors];
      for (int v = 0; v < kVectors; v++) parts[v] = T::template Quad<Avx512Vnni>(packed[v] + at, i);
      for (int m = 0; m < kRows; m++) {
        const __m512i four = Four(values + static_cast<size_t>(m) * stride + 4 * i);
        for (int v = 0; v < kVectors; v++) {
          auto& to = dots[m][v][i * T::kHalves / 8];
          to = _mm512_dpbusd_epi32(to, parts[v], four);
        }
      }
    }
  }

  template <class T>
  static void WalkGguf(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count > 8 && TwoPanels()) GgufColumns<Avx512Vnni, T, 6, 2>(w, rows, out, vector, end);
    GgufColumns<Avx512Vnni, T, 8, 1>(w, rows, out, vector, end);
  }

  template <class T>
  static void WalkFloats(const GgufWeights& w, const GgufRows& rows, float* out, int vector, int end) {
    if (rows.count <= 2) GgufColumns<Avx512Vnni, T, 2, 4>(w, rows, out, vector, end);
    GgufColumns<Avx512Vnni, T, 8, 2>(w, rows, out, vector, end);
    GgufColumns<Avx512Vnni, T, 8, 1>(w, rows, out, vector, end);
  }

  template <int kBits>
  static void Walk(const Weights& w, const Rows& rows, float* out, int vector, int end) {
    if (rows.count > 16 && TwoPanels()) Columns<Avx512Vnni, kBits, 6, 2>(w, rows, out, vector, end);
    if (rows.count > 8) Columns<Avx512Vnni, kBits, 12, 1>(w, rows, out, vector, end);
    Columns<Avx512Vnni, kBits, 8, 1>(w, rows, out, vector, end);
  }

  // Whether many rows are multiplied faster with two panels at a time, which share what they load of a row, than with
  // one. Some processors wait for these loads (Zen 5), others for registers: both are tried once, for 0.06 ms. With few
  // rows weights wait for memory, and one stream of them is faster everywhere.
  static bool TwoPanels() {
    static constexpr int kInputs = 512, kBoth = 2 * kPanel, kBlock = 32, kCount = 48;
    static uint8_t weights[kInputs * kBoth / 2];
    static int8_t values[kCount * kInputs];
    static float scales[kInputs / kBlock * kBoth], of_rows[kCount * kInputs / kBlock], out[kCount * kBoth];
    static int32_t sums[kCount * kInputs / kBlock];
    static const Weights w{weights, scales, nullptr, nullptr, kInputs, kBoth, kBlock, 4, 0};
    static const Rows rows{values, of_rows, sums, kCount};
    static const bool quicker = Quicker(
        [] {
          int vector = 0;
          Columns<Avx512Vnni, 4, 12, 1>(w, rows, out, vector, 2);
        },
        [] {
          int vector = 0;
          Columns<Avx512Vnni, 4, 6, 2>(w, rows, out, vector, 2);
        });
    const int asked = panels_asked.load(std::memory_order_relaxed);
    return asked ? asked == 2 : quicker;
  }
};

}  // namespace

const Form kAvx512Vnni{"avx512_vnni",        HasAvx512Vnni,        QuantizeAvx2,
                       Multiply<Avx512Vnni>, MultiplyGguf<Avx512Vnni>, RowsOf<Avx512Vnni>(), AttentionOf<Avx512Vnni>(), StatesOf<Avx512Vnni>(),
                       Avx512Vnni::TwoPanels};

}  // namespace edge
