#include "gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edge {
namespace {

constexpr GgufType kTypes[] = {
    // id, block, bytes, bits, group, scaled, minimum, zero
    {1, 1, 2, 16, 1, false, false, 0},       {30, 1, 2, 16, 1, false, false, 0, nullptr, true},  // F16, BF16
    {2, 32, 18, 4, 32, false, false, 8},     {3, 32, 20, 4, 32, false, true, 0},
    {6, 32, 22, 5, 32, false, false, 16},    {7, 32, 24, 5, 32, false, true, 0},
    {8, 32, 34, 8, 32, false, false, 128},   {10, 256, 84, 2, 16, true, true, 0},
    {11, 256, 110, 3, 16, true, false, 4},   {12, 256, 144, 4, 32, true, true, 0},
    {13, 256, 176, 5, 32, true, true, 0},    {14, 256, 210, 6, 16, true, false, 32},
    {20, 32, 18, 4, 32, false, false, 128, kIq4},  // IQ4_NL
    {23, 256, 136, 4, 32, true, false, 128, kIq4},  // IQ4_XS
    {34, 256, 54, 2, 32, false, false, 1},   {35, 256, 66, 2, 32, false, false, 1},  // TQ1_0, TQ2_0
    {39, 32, 17, 4, 32, false, false, 12, kMxfp4, true},
};

uint16_t Half(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// Of 32 bytes the bits in `mask` from the bit `by` on; and the same, put in from the bit `at` on.
void Shifted(const uint8_t* from, int by, int mask, uint8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = static_cast<uint8_t>(from[i] >> by & mask);
}
void AddShifted(const uint8_t* from, int by, int mask, int at, uint8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = static_cast<uint8_t>(q[i] | (from[i] >> by & mask) << at);
}

// The lower bits of 32 weights: of the first 16 they are the lower halves of 16 bytes, of the others the upper ones.
void ReadHalves(const uint8_t* from, uint8_t* q) {
  for (int i = 0; i < 16; i++) {
    q[i] = from[i] & 15;
    q[16 + i] = from[i] >> 4;
  }
}

// The fifth bits of 32 weights.
void AddFifth(const uint8_t* from, uint8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = static_cast<uint8_t>(q[i] | (from[i / 8] >> (i % 8) & 1) << 4);
}

// Six bits each of 8 scales and 8 minima in 12 bytes.
void ReadSixBits(const uint8_t* from, GgufBlock& b) {
  for (int i = 0; i < 4; i++) {
    b.scales[i] = static_cast<int8_t>(from[i] & 63);
    b.minima[i] = from[4 + i] & 63;
    b.scales[4 + i] = static_cast<int8_t>((from[8 + i] & 15) | from[i] >> 6 << 4);
    b.minima[4 + i] = static_cast<uint8_t>(from[8 + i] >> 4 | from[4 + i] >> 6 << 4);
  }
}

void ReadQ2K(const uint8_t* from, GgufBlock& b) {
  for (int i = 0; i < 16; i++) {
    b.scales[i] = from[i] & 15;
    b.minima[i] = from[i] >> 4;
  }
  for (int i = 0; i < kSuper; i += 32) Shifted(from + 16 + i / 128 * 32, i % 128 / 32 * 2, 3, b.q + i);
  b.d = Half(from + 80);
  b.dmin = Half(from + 82);
}

void ReadQ3K(const uint8_t* from, GgufBlock& b) {
  const uint8_t *upper = from, *lower = from + 32, *scales = from + 96;
  for (int i = 0; i < kSuper; i += 32) {
    Shifted(lower + i / 128 * 32, i % 128 / 32 * 2, 3, b.q + i);
    AddShifted(upper, i / 32, 1, 2, b.q + i);
  }
  for (int i = 0; i < 16; i++) {
    const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    b.scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  b.d = Half(from + 108);
}

void ReadQ4K(const uint8_t* from, GgufBlock& b) {
  b.d = Half(from);
  b.dmin = Half(from + 2);
  ReadSixBits(from + 4, b);
  for (int i = 0; i < kSuper; i += 32) Shifted(from + 16 + i / 64 * 32, i % 64 / 32 * 4, 15, b.q + i);
}

void ReadQ5K(const uint8_t* from, GgufBlock& b) {
  b.d = Half(from);
  b.dmin = Half(from + 2);
  ReadSixBits(from + 4, b);
  for (int i = 0; i < kSuper; i += 32) {
    Shifted(from + 48 + i / 64 * 32, i % 64 / 32 * 4, 15, b.q + i);
    AddShifted(from + 16, i / 32, 1, 4, b.q + i);
  }
}

void ReadQ6K(const uint8_t* from, GgufBlock& b) {
  for (int i = 0; i < kSuper; i += 32) {
    const int half = i / 128, quarter = i % 128 / 32;
    Shifted(from + half * 64 + quarter % 2 * 32, quarter / 2 * 4, 15, b.q + i);
    AddShifted(from + 128 + half * 32, quarter * 2, 3, 4, b.q + i);
  }
  std::memcpy(b.scales, from + 192, 16);
  b.d = Half(from + 208);
}

void ReadIq4Xs(const uint8_t* from, GgufBlock& b) {
  const int upper = Half(from + 2);
  b.d = Half(from);
  for (int i = 0; i < 8; i++) {
    b.scales[i] = static_cast<int8_t>(((from[4 + i / 2] >> (i % 2 * 4) & 15) | (upper >> (2 * i) & 3) << 4) - 32);
    ReadHalves(from + 8 + 16 * i, b.q + 32 * i);
  }
}

// Of each of some bytes the integers from 0 to 2 that its digits to the base of 3 are, in turns.
void ReadTernary(const uint8_t* from, int count, int digits, uint8_t* q) {
  constexpr int kPowers[] = {1, 3, 9, 27, 81};
  for (int n = 0; n < digits; n++)
    for (int i = 0; i < count; i++) *q++ = static_cast<uint8_t>((from[i] * kPowers[n] & 255) * 3 >> 8);
}

void ReadTq1(const uint8_t* from, GgufBlock& b) {
  ReadTernary(from, 32, 5, b.q);
  ReadTernary(from + 32, 16, 5, b.q + 160);
  ReadTernary(from + 48, 4, 4, b.q + 240);
  b.d = Half(from + 52);
}

void ReadTq2(const uint8_t* from, GgufBlock& b) {
  for (int i = 0; i < kSuper; i += 32) Shifted(from + i / 128 * 32, i % 128 / 32 * 2, 3, b.q + i);
  b.d = Half(from + 64);
}

// The scale of an MXFP4 block as the upper half of a float32: half of the power of two whose exponent its byte is, as
// the values in the table are doubled. Source: Open Compute Project, Microscaling Formats Specification 1.0, E8M0.
uint16_t HalvedPower(uint8_t exponent) {
  return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

bool IsFinite(const GgufType& type, uint16_t number) {
  const int exponents = type.bfloat ? 0x7f80 : 0x7c00;
  return (number & exponents) != exponents;
}
// Whether all weights of a block are finite, whatever its integers are. Of MXFP4, 12 times a larger scale is infinite.
bool HasFiniteScales(const GgufType& type, const GgufBlock& b) {
  return type.bfloat ? b.d <= HalvedPower(252) : IsFinite(type, b.d) && IsFinite(type, b.dmin);
}

// Of floats, a panel of `there` columns; the others are zeros. False where one is no finite number.
bool PackFloats(const GgufType& type, int inputs, int there, const uint8_t* from, uint8_t* to) {
  bool finite = true;
  for (int k = 0; k < inputs; k++, to += 2 * kPanel)
    for (int c = 0; c < kPanel; c++) {
      const uint16_t number = c < there ? Half(from + 2 * (static_cast<size_t>(c) * inputs + k)) : uint16_t{0};
      finite &= IsFinite(type, number);
      std::memcpy(to + 2 * c, &number, sizeof(number));
    }
  return finite;
}

// `width` bits of each of a column's 32 inputs, those from `bit` on. An integer has four of them, and shifts these at
// once: none has more bits than there is room for.
template <int kBit, int kWidth>
void PutPlane(const uint8_t* q, uint8_t* to) {
  constexpr int parts = 8 / kWidth;  // fours that share four bytes
  constexpr uint32_t mask = ((1u << kWidth) - 1) * 0x01010101u;
  for (int g = 0; g < kWidth; g++, to += 64) {
    uint32_t made = 0;
    for (int i = 0; i < parts; i++) {
      uint32_t four;
      std::memcpy(&four, q + 4 * (g * parts + i), sizeof(four));
      made |= (four >> kBit & mask) << (kWidth * i);
    }
    std::memcpy(to, &made, sizeof(made));
  }
}

// Both planes of the weights of a block.
template <int kLower, int kUpper>
void PutPlanes(const uint8_t* q, int count, uint8_t* step) {
  for (int i = 0; i < count; i += 32, step += 64 * (kLower + kUpper)) {
    PutPlane<0, kLower>(q + i, step);
    if constexpr (kUpper > 0) PutPlane<kLower, kUpper>(q + i, step + 64 * kLower);
  }
}

// The same back: the bits of 32 weights of a column that a plane has, at `bit`.
void AddPlane(const uint8_t* from, int bit, int width, uint8_t* q) {
  const int parts = 8 / width;
  const uint32_t mask = ((1u << width) - 1) * 0x01010101u;
  for (int g = 0; g < width; g++, from += 64) {
    uint32_t made, four;
    std::memcpy(&made, from, sizeof(made));
    for (int i = 0; i < parts; i++) {
      uint8_t* to = q + 4 * (g * parts + i);
      std::memcpy(&four, to, sizeof(four));
      four |= (made >> (width * i) & mask) << bit;
      std::memcpy(to, &four, sizeof(four));
    }
  }
}

// Floats of a block.
void Dequantize(const GgufType& type, const GgufBlock& b, float* out) {
  const float d = type.number(b.d), dmin = type.minimum ? type.number(b.dmin) : 0.0f;
  for (int g = 0; g < type.groups(); g++) {
    const float scale = type.scaled ? d * b.scales[g] : d;
    const float least = type.minimum && type.scaled ? dmin * b.minima[g] : dmin;
    for (int i = g * type.group; i < (g + 1) * type.group; i++)
      out[i] = scale * static_cast<float>((type.table ? type.table[b.q[i] & 15] : b.q[i]) - type.zero) - least;
  }
}

}  // namespace

const GgufType* FindGgufType(int id) {
  for (const GgufType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

void ReadBlock(const GgufType& type, const uint8_t* from, GgufBlock& b) {
  b.dmin = 0;
  switch (type.id) {
    case 2:
    case 3:
    case 6:
    case 7: {
      const int head = type.minimum ? 4 : 2, upper = type.bits == 5 ? 4 : 0;
      b.d = Half(from);
      if (type.minimum) b.dmin = Half(from + 2) ^ 0x8000;  // what is added
      ReadHalves(from + head + upper, b.q);
      if (upper) AddFifth(from + head, b.q);
      break;
    }
    case 20:
      b.d = Half(from);
      ReadHalves(from + 2, b.q);
      break;
    case 23:
      return ReadIq4Xs(from, b);
    case 39:
      b.d = HalvedPower(from[0]);
      ReadHalves(from + 1, b.q);
      break;
    case 34:
      return ReadTq1(from, b);
    case 35:
      return ReadTq2(from, b);
    case 8:
      b.d = Half(from);
      for (int i = 0; i < 32; i++) b.q[i] = from[2 + i] ^ 128;
      break;
    case 10:
      return ReadQ2K(from, b);
    case 11:
      return ReadQ3K(from, b);
    case 12:
      return ReadQ4K(from, b);
    case 13:
      return ReadQ5K(from, b);
    default:
      return ReadQ6K(from, b);
  }
}

void Dequantize(const GgufType& type, const uint8_t* from, int inputs, float* out) {
  if (type.floats()) {
    for (int i = 0; i < inputs; i++) out[i] = type.number(Half(from + 2 * i));
    return;
  }
  GgufBlock b;
  for (int start = 0; start < inputs; start += type.block, from += type.bytes) {
    ReadBlock(type, from, b);
    Dequantize(type, b, out + start);
  }
}

size_t PackedBytes(const GgufType& type, int inputs, int columns) {
  const GgufWeights w{&type, nullptr, nullptr, nullptr, inputs, columns};
  return w.panels() * (w.panel_bytes() + w.head_bytes());
}

GgufWeights Unpacked(const GgufType& type, int inputs, int columns, const uint8_t* packed, const float* bias) {
  GgufWeights w{&type, packed, nullptr, bias, inputs, columns};
  w.heads = packed + w.panels() * w.panel_bytes();
  return w;
}

void SumSixteens(const int8_t* values, size_t sixteens, int32_t* sums) {
  for (size_t i = 0; i < sixteens; i++, values += 16) {
    int sum = 0;
    for (int j = 0; j < 16; j++) sum += values[j];
    sums[i] = sum;
  }
}

bool PackGguf(const GgufType& type, int inputs, int columns, const uint8_t* from, uint8_t* weights, uint8_t* heads) {
  const GgufWeights to{&type, nullptr, nullptr, nullptr, inputs, columns};
  const int blocks = inputs / type.block;
  constexpr decltype(&PutPlanes<8, 0>) puts[] = {nullptr,          nullptr,          PutPlanes<2, 0>, PutPlanes<2, 1>,
                                                 PutPlanes<4, 0>, PutPlanes<4, 1>, PutPlanes<4, 2>, nullptr,
                                                 PutPlanes<8, 0>};
  GgufBlock b;
  for (int first = 0; first < columns; first += kPanel, weights += to.panel_bytes(), heads += to.head_bytes()) {
    const int there = std::min(kPanel, columns - first);
    if (type.floats()) {
      if (!PackFloats(type, inputs, there, from, weights)) return false;
      from += static_cast<size_t>(there) * inputs * type.bytes;
      continue;
    }
    const auto put = puts[type.bits];
    if (there < kPanel) {
      std::memset(weights, 0, to.panel_bytes());
      std::memset(heads, 0, to.head_bytes());
    }
    for (int c = 0; c < there; c++) {
      for (int i = 0; i < blocks; i++, from += type.bytes) {
        ReadBlock(type, from, b);
        if (!HasFiniteScales(type, b)) return false;
        uint8_t* head = heads + static_cast<size_t>(i) * type.head();
        std::memcpy(head + 2 * c, &b.d, 2);
        head += 2 * kPanel;
        if (type.minimum) {
          std::memcpy(head + 2 * c, &b.dmin, 2);
          head += 2 * kPanel;
        }
        if (type.scaled)
          for (int g = 0; g < type.groups(); g++) {
            head[g * kPanel + c] = static_cast<uint8_t>(b.scales[g]);
            if (type.minimum) head[(type.groups() + g) * kPanel + c] = b.minima[g];
          }
        put(b.q, type.block, weights + static_cast<size_t>(i) * (type.block / 32) * 64 * type.bits + 4 * c);
      }
    }
  }
  return true;
}

void ReadColumn(const GgufWeights& w, int column, float* out) {
  const GgufType& type = *w.type;
  const int c = column % kPanel, lower = type.lower();
  const uint8_t* panel = w.weights + column / kPanel * w.panel_bytes();
  if (type.floats()) {
    for (int i = 0; i < w.inputs; i++) out[i] = type.number(Half(panel + 2 * (static_cast<size_t>(i) * kPanel + c)));
    return;
  }
  const uint8_t* step = panel + 4 * c;
  const uint8_t* head = w.heads + column / kPanel * w.head_bytes();
  GgufBlock b;
  for (int start = 0; start < w.inputs; start += type.block, head += type.head(), out += type.block) {
    std::memset(b.q, 0, type.block);
    for (int s = 0; s < type.block; s += 32, step += 64 * type.bits) {
      AddPlane(step, 0, lower, b.q + s);
      if (lower < type.bits) AddPlane(step + 64 * lower, lower, type.bits - lower, b.q + s);
    }
    const uint8_t* integers = head + (type.minimum ? 4 : 2) * kPanel + c;
    std::memcpy(&b.d, head + 2 * c, 2);
    if (type.minimum) std::memcpy(&b.dmin, head + 2 * (kPanel + c), 2);
    for (int g = 0; type.scaled && g < type.groups(); g++) {
      b.scales[g] = static_cast<int8_t>(integers[g * kPanel]);
      if (type.minimum) b.minima[g] = integers[(type.groups() + g) * kPanel];
    }
    Dequantize(type, b, out);
  }
}

}  // namespace edge
