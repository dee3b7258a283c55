// Arm's vectors of 128 bits: a panel is four of them.
#pragma once

#include <arm_neon.h>

#include "attention_loops.h"
#include "gguf_tiles.h"
#include "rows_loops.h"
#include "states_loops.h"
#include "tiles.h"

namespace edge {
namespace {

inline uint32_t FourBytes(const void* from) {
  uint32_t four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// Products of 8 bits are those of dotprod, which phones have since 2018.
struct Neon : Plain, QueryInBytes {
  using Floats = float32x4_t;
  using Dots = int32x4_t;
  static constexpr int kColumns = 4, kPerPanel = 4, kBytes = 16;
  // Weights of 8 bits are taken less 128: products are of signed bytes.
  template <int kBits>
  static constexpr int kOffset = kBits == 8 ? 128 : 0;

  static Floats Zero() { return vdupq_n_f32(0); }
  static Dots All(int value) { return vdupq_n_s32(value); }
  static Dots Less(Dots zeros, int offset) { return vsubq_s32(All(offset), zeros); }
  static Dots TimesLess(Dots less, int sum) { return vmulq_n_s32(less, sum); }
  static Dots LoadBytes(const uint8_t* from) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(FourBytes(from))))));
  }
  static Floats Load(const float* from) { return vld1q_f32(from); }
  static Floats LoadHalf(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
  static Floats LoadUpper(const uint16_t* from) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(from)), 16));
  }
  static Floats Scaled(Floats scales, float scale) { return vmulq_n_f32(scales, scale); }
  static Floats Add(Floats scales, Dots dots, Floats acc) { return vfmaq_f32(acc, scales, vcvtq_f32_s32(dots)); }
  static Floats Sum(Floats a, Floats b) { return vaddq_f32(a, b); }
  static void Store(float* out, Floats acc) { vst1q_f32(out, acc); }

  static Floats Every(float x) { return vdupq_n_f32(x); }
  static Floats Mul(Floats a, Floats b) { return vmulq_f32(a, b); }
  static Floats Div(Floats a, Floats b) { return vdivq_f32(a, b); }
  static Floats Sub(Floats a, Floats b) { return vsubq_f32(a, b); }
  static Floats Max(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Floats Fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static Floats Round(Floats x) { return vrndnq_f32(x); }
  static float Largest(Floats x) { return vmaxvq_f32(x); }
  static float Total(Floats x) { return vaddvq_f32(x); }
  static Floats ZeroUpTo(float limit, Floats x, Floats y) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcleq_f32(x, Every(limit))));
  }
  static Floats PowerOfTwo(Floats n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), All(127)), 23));
  }

  // keys [count, dim] to [dim, kKeys], with zeros for keys that are not there.
  static void Turn(const float* keys, const float*, int count, int dim, float* out) {
    for (int t = 0; t < kKeys; t += 4)
      for (int d = 0; d < dim; d += 4) {
        Floats a[4];
        for (int i = 0; i < 4; i++) a[i] = t + i < count ? Load(keys + static_cast<size_t>(t + i) * dim + d) : Zero();
        const Floats even[2] = {vtrn1q_f32(a[0], a[1]), vtrn1q_f32(a[2], a[3])};
        const Floats odd[2] = {vtrn2q_f32(a[0], a[1]), vtrn2q_f32(a[2], a[3])};
        float* to = out + d * kKeys + t;
        Store(to, vcombine_f32(vget_low_f32(even[0]), vget_low_f32(even[1])));
        Store(to + kKeys, vcombine_f32(vget_low_f32(odd[0]), vget_low_f32(odd[1])));
        Store(to + 2 * kKeys, vcombine_f32(vget_high_f32(even[0]), vget_high_f32(even[1])));
        Store(to + 3 * kKeys, vcombine_f32(vget_high_f32(odd[0]), vget_high_f32(odd[1])));
      }
  }

  using Keys = int8x16_t;
  struct Pairs {
    int16x4_t first, second;  // of two keys
  };
  static constexpr int kKeyVectors = 2;
  using Scores = TwoDots<Dots>;
  static Scores Start(const int32_t*) { return {All(0), All(0)}; }
  static Dots Whole(const Scores& made) { return vaddq_s32(vshlq_n_s32(made.first, 7), made.second); }
  static TwoDots<int8x16_t> LoadQuery(const int8_t* query, int dim, int d) {
    return {Four(query + d), Four(query + dim + d)};
  }
  static Floats FromInts(Dots a) { return vcvtq_f32_s32(a); }
  static Keys LoadKeys(const int32_t* keys) { return vreinterpretq_s8_s32(vld1q_s32(keys)); }
  static int8x16_t Four(const int8_t* values) { return vreinterpretq_s8_u32(vdupq_n_u32(FourBytes(values))); }
  static void Dot(Scores& made, Keys keys, const TwoDots<int8x16_t>& four) {
    made = {vdotq_s32(made.first, keys, four.first), vdotq_s32(made.second, keys, four.second)};
  }
  static Pairs LoadPairs(const int16_t* values) { return {vld1_s16(values), vld1_s16(values + 4)}; }
  static Pairs Two(const int16_t* weights) { return {vdup_n_s16(weights[0]), vdup_n_s16(weights[1])}; }
  static Dots DotPairs(Dots dots, Pairs values, Pairs two) {
    return vmlal_s16(vmlal_s16(dots, values.first, two.first), values.second, two.second);
  }
  static void StoreShorts(int16_t* to, Floats whole) { vst1_s16(to, vmovn_s32(vcvtnq_s32_f32(whole))); }

  // keys [count, dim] in 8 bits to [dim / 4, kKeys, 4], with zeros for keys that are not there.
  static void TurnKeys(const int8_t* keys, int count, int dim, int32_t* out) {
    Turn(reinterpret_cast<const float*>(keys), nullptr, count, dim / 4, reinterpret_cast<float*>(out));
  }

  // values [count, dim] in 8 bits to [pairs of keys, dim / 4, 2, 4] in 16 bits.
  static void TurnValues(const int8_t* values, int count, int dim, int16_t* out) {
    for (int t = 0; t < count; t++)
      for (int d = 0; d < dim; d += 8) {
        const int16x8_t eight = vmovl_s8(vld1_s8(values + static_cast<size_t>(t) * dim + d));
        int16_t* to = out + static_cast<size_t>(t / 2) * 2 * dim + 2 * d + t % 2 * 4;
        vst1_s16(to, vget_low_s16(eight));
        vst1_s16(to + 8, vget_high_s16(eight));
        if (t + 1 == count && t % 2 == 0) {
          vst1_s16(to + 4, vdup_n_s16(0));
          vst1_s16(to + 12, vdup_n_s16(0));
        }
      }
  }

  using Chunk = uint8x16_t;
  static Chunk LoadChunk(const uint8_t* from) { return vld1q_u8(from); }
  template <int kBits, int kTo>
  static Chunk Take(Chunk bytes, int from) {
    if (kBits == 8) return bytes;
    return vandq_u8(vshlq_u8(bytes, vdupq_n_s8(static_cast<int8_t>(kTo - from))),
                    vdupq_n_u8(static_cast<uint8_t>(((1 << kBits) - 1) << kTo)));
  }
  static Chunk Either(Chunk a, Chunk b) { return vorrq_u8(a, b); }
  static Chunk Lookup(const uint8_t* table, Chunk places) { return vqtbl1q_u8(vld1q_u8(table), places); }
  static Dots LoadSigned(const uint8_t* from) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(vcreate_u8(FourBytes(from))))));
  }

  template <class T, int kRows, int kVectors>
  static void Gguf(const uint8_t* const* packed, size_t at, const int8_t* values, int stride,
                   Dots (*dots)[kVectors][T::kHalves]) {
    for (int i = 0; i < 8; i++) {
      int8x16_t part[kVectors];
      for (int v = 0; v < kVectors; v++) {
        const Chunk quad = T::template Quad<Neon>(packed[v] + at, i);
        part[v] = vreinterpretq_s8_u8(T::kRange == 8 ? veorq_u8(quad, vdupq_n_u8(128)) : quad);
      }
      for (int m = 0; m < kRows; m++) {
        const int8x16_t four = Four(values + static_cast<size_t>(m) * stride + 4 * i);
        for (int v = 0; v < kVectors; v++) {
          auto& to = dots[m][v][i * T::kHalves / 8];
          to = vdotq_s32(to, part[v], four);
        }
      }
    }
  }

  // The weights of 4 columns for the 4 inputs from `4 * part` on of those in a step.
  template <int kBits>
  static int8x16_t Part(const uint8_t* packed, int part) {
    constexpr int parts = 8 / kBits;  // of a group
    const uint8x16_t bytes = vld1q_u8(packed + part / parts * 64);
    if constexpr (kBits == 8) return vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
    return vreinterpretq_s8_u8(vandq_u8(vshlq_u8(bytes, vdupq_n_s8(static_cast<int8_t>(-kBits * (part % parts)))),
                                        vdupq_n_u8((1 << kBits) - 1)));
  }
};

}  // namespace
}  // namespace edge
