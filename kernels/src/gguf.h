// The types that weights have in a GGUF file, and a matrix of one in the layout of its products here.
//
// A row of a matrix is blocks of 32 or 256 weights. A block has two floats, and each group of its weights an integer
// scale and an integer minimum:
//
//     weight = d * scale[group] * (q - zero) - dmin * minimum[group]
//
// Types of 32 weights, and ternary ones, have no integers of groups: there it is d * (q - zero) - dmin. Of types with a
// table q is what stands there in the integer's place. Weights of F16 and BF16 are floats, without blocks.
#pragma once

#include "lanes.h"

namespace edge {

constexpr int kSuper = 256;     // weights of the largest block
constexpr int kGgufTypes = 64;  // all types have smaller numbers
// The values of IQ4_NL and IQ4_XS, each 128 more.
constexpr uint8_t kIq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// Those of MXFP4, doubled, each 12 more.
constexpr uint8_t kMxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct GgufType {
  int id;          // as files number them
  int block;       // weights: 32 or 256
  int bytes;       // of a block in a file
  int bits;        // of a weight here
  int group;       // weights that share a scale: 16 or 32
  bool scaled;     // whether groups have scales
  bool minimum;    // whether something is taken off
  int zero;        // what is taken off each integer
  const uint8_t* table = nullptr;  // where an integer is a place in it
  bool bfloat = false;             // whether its floats are the upper halves of float32; else they are float16

  bool floats() const { return bits == 16; }  // whether weights are floats themselves
  int lower() const { return bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits; }  // bits of the first plane

  bool supports(int inputs, int columns) const {
    return inputs > 0 && inputs <= kLongestRow && inputs % block == 0 && columns > 0 && columns <= kLongestRow;
  }
  int groups() const { return block / group; }
  // Bytes of a panel's scales for one block.
  int head() const {
    return floats() ? 0 : kPanel * ((minimum ? 4 : 2) + (scaled ? (minimum ? 2 : 1) * groups() : 0));
  }
  float number(uint16_t stored) const { return bfloat ? FromUpper(stored) : FromHalf(stored); }
};

// The type with this number; null where these kernels do not compute it.
const GgufType* FindGgufType(int id);

// A block, read.
struct GgufBlock {
  uint8_t q[kSuper];
  int8_t scales[kSuper / 16];
  uint8_t minima[kSuper / 16];
  uint16_t d, dmin;  // as the type has its floats
};
void ReadBlock(const GgufType& type, const uint8_t* from, GgufBlock& block);

// Floats [inputs] of a row of a file.
void Dequantize(const GgufType& type, const uint8_t* from, int inputs, float* out);

// A matrix [columns, inputs] in panels of kPanel columns.
//
// weights: for each panel, for each 32 inputs, 64 * bits bytes: the lower bits (4, of 5 and 6; 2, of 3) as Weights has
//     them, then the upper ones in the same way. Of floats: for each input, those of kPanel columns.
// heads: for each panel, for each block, what the type has of: d [kPanel] and dmin [kPanel], both in 16 bits, scales
//     [groups, kPanel] in int8, minima [groups, kPanel] in uint8. Floats have none.
struct GgufWeights {
  const GgufType* type;
  const uint8_t *weights, *heads;
  const float* bias;
  int inputs, columns;
  int stride = 0;  // floats between rows of a result; 0: as many as there are columns

  int row() const { return stride ? stride : columns; }  // floats from a row of a result to the next
  // Without the panels before this one.
  GgufWeights from(int panel) const {
    GgufWeights part = *this;
    part.weights += panel * panel_bytes();
    part.heads += panel * head_bytes();
    if (bias) part.bias += panel * kPanel;
    part.columns -= panel * kPanel;
    return part;
  }
  size_t panels() const { return (static_cast<size_t>(columns) + kPanel - 1) / kPanel; }
  size_t panel_bytes() const { return static_cast<size_t>(inputs) * kPanel * type->bits / 8; }
  size_t head_bytes() const { return static_cast<size_t>(inputs / type->block) * type->head(); }  // of a panel
};

// Bytes of it.
size_t PackedBytes(const GgufType& type, int inputs, int columns);

// What lies in such bytes.
GgufWeights Unpacked(const GgufType& type, int inputs, int columns, const uint8_t* packed, const float* bias);

// Packs rows of a file [columns, inputs], of which the first begins a panel, to where the weights and the heads of that
// panel lie; several threads may pack different rows. False where a scale, or a weight that is a float, is no finite
// number.
bool PackGguf(const GgufType& type, int inputs, int columns, const uint8_t* from, uint8_t* weights, uint8_t* heads);

// Floats [inputs] of a column of a packed matrix: the bits that `Dequantize` gives of its row in the file.
void ReadColumn(const GgufWeights& w, int column, float* out);

// Rows in 8 bits, of every 32 numbers with a scale of their own.
//
// values: [count, inputs]. scales: [count, inputs / 32]. sums, of 16 values each: [count, inputs / 16]. floats: [count,
// inputs], the rows before they were rounded, which weights that are floats are multiplied with; these need nothing
// else.
struct GgufRows {
  const int8_t* values;
  const float* scales;
  const int32_t* sums;
  const float* floats;
  int count;
};

// The sums of every 16 values.
void SumSixteens(const int8_t* values, size_t sixteens, int32_t* sums);

}  // namespace edge
