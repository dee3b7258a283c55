#include "pack.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

namespace edge {

float FromHalf(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float size = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                     : exponent == 31 ? (fraction ? NAN : INFINITY)
                                      : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return half >> 15 ? -size : size;
}

namespace {

// Of numbers that float16 can hold.
uint16_t ToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000, fraction = bits & 0x7fffff;
  const int exponent = static_cast<int>(bits >> 23 & 255) - 112;
  if (exponent > 0) return static_cast<uint16_t>(sign | exponent << 10 | fraction >> 13);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::ldexp(std::fabs(value), 24)));
}

int Value(const uint8_t* from, int bits, size_t at) {
  return from[at * bits / 8] >> (at * bits % 8) & ((1 << bits) - 1);
}

void PackColumn(const Shape& s, const uint8_t* from, uint8_t* to) {
  const int group = 32 / s.bits;
  for (int g = 0; g < s.padded() / group; g++, to += 64)
    for (int j = 0; j < 4; j++) {
      int byte = 0;
      for (int i = 0; i < group / 4; i++) byte |= Value(from, s.bits, size_t{4} * i + static_cast<size_t>(g) * group + j) << (s.bits * i);
      to[j] = static_cast<uint8_t>(byte);
    }
}

}  // namespace

size_t PackedBytes(const Shape& s) {
  return s.panels() * s.padded() * kPanel * s.bits / 8 + s.scales() * ((s.half ? 2 : 4) + (s.zero_points ? 1 : 0));
}

Weights Unpacked(const Shape& s, const uint8_t* packed, const float* bias) {
  Weights w{packed, nullptr, nullptr, bias, s.padded(), s.columns, s.block, s.bits, s.half};
  const uint8_t* scales = packed + w.panels() * w.panel_bytes();
  w.scales = scales;
  if (s.zero_points) w.zero_points = scales + s.scales() * (s.half ? 2 : 4);
  return w;
}

void Pack(const Shape& s, const uint8_t* weights, const float* scales, const uint8_t* zero_points, uint8_t* out) {
  std::memset(out, 0, PackedBytes(s));
  const Weights to = Unpacked(s, out, nullptr);
  const int blocks = s.padded() / s.block;
  const size_t column_bytes = static_cast<size_t>(s.padded()) * s.bits / 8, zero_bytes = (static_cast<size_t>(blocks) * s.bits + 7) / 8;
  auto* to_scales = out + (static_cast<const uint8_t*>(to.scales) - out);
  auto* to_zeros = s.zero_points ? out + (to.zero_points - out) : nullptr;
  for (int column = 0; column < s.columns; column++) {
    const size_t panel = column / kPanel, c = column % kPanel;
    PackColumn(s, weights + column * column_bytes, out + panel * to.panel_bytes() + 4 * c);
    for (int b = 0; b < blocks; b++) {
      const size_t at = (panel * blocks + b) * kPanel + c;
      const float scale = scales[static_cast<size_t>(column) * blocks + b];
      const uint16_t half = s.half ? ToHalf(scale) : uint16_t{0};
      if (s.half)
        std::memcpy(to_scales + 2 * at, &half, sizeof(half));
      else
        std::memcpy(to_scales + 4 * at, &scale, sizeof(scale));
      if (to_zeros) to_zeros[at] = static_cast<uint8_t>(Value(zero_points + column * zero_bytes, s.bits, b));
    }
  }
}

namespace {

struct Loan {
  const uint8_t* packed;
  size_t bytes;
};
std::mutex mutex;
std::map<int64_t, Loan> loans;
int64_t last = 0;

}  // namespace

int64_t Lend(const uint8_t* packed, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  loans[++last] = {packed, bytes};
  return last;
}

void TakeBack(int64_t lent) {
  const std::lock_guard<std::mutex> lock(mutex);
  loans.erase(lent);
}

const uint8_t* Lent(int64_t lent, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = loans.find(lent);
  return found != loans.end() && found->second.bytes == bytes ? found->second.packed : nullptr;
}

}  // namespace edge
