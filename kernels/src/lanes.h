// Products of weights in 2, 4 or 8 bits and activations rounded to 8 bits, one vector lane for each output column.
//
// Unpacking and scales are shared by all rows of a tile, and nothing is ever added across lanes. An element of the
// result is, with the blocks b of its inputs in order,
//
//     acc = fma(scale_of_weights[b] * scale_of_row[b], float(dot[b] - zero_point[b] * sum[b]), acc)
//
// where dot and sum are exact integers. So how many rows, threads or panels there are, and which instruction set
// computes them, makes no difference to any bit of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention.h"
#include "states.h"

namespace edge {

constexpr int kPanel = 16;            // columns that lie together
constexpr int kStep = 32;             // inputs that one call of a form's Multiply takes; blocks are multiples of it
constexpr int kLargest = 256;         // inputs of the largest block, but for one that is a whole row
constexpr int kLongest = 1 << 15;     // inputs of such a row: its products are within 32 bits
constexpr int kLongestRow = 1 << 24;  // inputs, or columns, of any matrix
constexpr int kAlignment = 64;        // bytes

// A weight [columns, inputs] in panels of kPanel columns; the last panel may have columns that are not there.
//
// weights: for each panel, for each group of 32 / bits inputs, 64 bytes: byte 4 * c + j has the weights of column c for
//     the inputs j, j + 4, j + 8 ... of the group, the first in its lowest bits.
// scales: [panels, blocks, kPanel], of float32, or of float16 where `half`.
// zero_points: as scales; null where all of them are 2 ** (bits - 1).
// bias: [panels, kPanel], or null.
struct Weights {
  const uint8_t* weights;
  const void* scales;
  const uint8_t* zero_points;
  const float* bias;
  int inputs, columns, block, bits, half;  // inputs: with those that fill up the last block; block: that share a scale
  int stride = 0;                          // floats between rows of a result; 0: as many as there are columns

  int panels() const { return (columns + kPanel - 1) / kPanel; }
  int blocks() const { return inputs / block; }
  size_t panel_bytes() const { return static_cast<size_t>(inputs) * kPanel * bits / 8; }
  int row() const { return stride ? stride : columns; }  // floats from a row of a result to the next
  // Without the panels before this one.
  Weights from(int panel) const {
    Weights part = *this;
    const size_t scales_before = static_cast<size_t>(panel) * blocks() * kPanel;
    part.weights += panel * panel_bytes();
    part.scales = static_cast<const uint8_t*>(scales) + scales_before * (half ? 2 : 4);
    if (zero_points) part.zero_points += scales_before;
    if (bias) part.bias += panel * kPanel;
    part.columns -= panel * kPanel;
    return part;
  }
};

// Rows in 8 bits, each block with a scale of its own.
//
// values: [count, inputs]. scales, sums of a block's values: [count, blocks].
struct Rows {
  const int8_t* values;
  const float* scales;
  const int32_t* sums;
  int count;
};

// Where rows [count, inputs] become Rows. padded: inputs with those that fill up the last block, which are zeros.
struct Rounding {
  const float* rows;
  int inputs, padded, block;
  int8_t* values;
  float* scales;
  int32_t* sums;
};

// Whether a block of a row, whose largest number is given, is rounded to zeros: where that is so small (below 3.8e-37)
// that it has no inverse, and where it is not finite, which the scale then says: all that is made of it is no number.
// Else each is to be multiplied by `inverse`.
inline bool RoundsToZeros(float largest, int block, int8_t* values, float& inverse, float& scale, int32_t& sum) {
  inverse = 127.0f / largest;
  scale = largest / 127.0f;
  constexpr float most = std::numeric_limits<float>::max();
  if (inverse > 0 && inverse <= most) return false;
  if (!(largest <= most)) scale = std::numeric_limits<float>::quiet_NaN();
  std::memset(values, 0, block);
  sum = 0;
  return true;
}

// A float16.
float FromHalf(uint16_t half);
// A float32 of its upper half: a bfloat16.
inline float FromUpper(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float made;
  std::memcpy(&made, &bits, sizeof(made));
  return made;
}

constexpr int kGroup = 64;   // numbers of a row of which the largest is looked for first
constexpr int kPart = 2048;  // logits of a row that one thread looks at, which is likely the one that has made them

// What is done to a row before it is rounded, and to a row of scores.
struct RowsForm {
  // silu(gate) * up of [gate, up], each of `size`; and the same with gelu, by tanh.
  void (*silu_gate)(const float* gate_up, int size, float* out);
  void (*gelu_gate)(const float* gate_up, int size, float* out);
  // The root mean square norm of x + more, which is written to `sum`.
  void (*norm)(const float* x, const float* more, const float* weight, float epsilon, int size, float* sum, float* out);
  // The largest of every kGroup numbers [groups]; what is no number counts as -infinity.
  void (*maxima)(const float* x, int groups, float* out);
  // The sum of exp(x - largest).
  float (*exp_sum)(const float* x, int size, float largest);
};

struct GgufWeights;
struct GgufRows;

// What computes: each form does the same in another set of instructions.
struct Form {
  const char* name;
  bool (*runs)();                                                                  // on this processor
  void (*quantize)(const Rounding&, int first, int last);                          // the rows from `first` to `last`
  void (*multiply)(const Weights&, const Rows&, float* out, int first, int last);  // those panels, to [count, columns]
  void (*multiply_gguf)(const GgufWeights&, const GgufRows&, float* out, int first, int last);
  RowsForm rows;
  AttentionForm attention;
  StatesForm states;
  bool (*two_panels)() = nullptr;  // whether many rows are multiplied with two panels at a time; null: never
};

extern const Form kPortable, kAvx2, kAvxVnni, kAvx512Vnni, kNeonDotprod,
    kNeonI8mm;  // those of this family of processors

// All forms, the portable one first and the fastest last; null ends them.
extern const Form* const kForms[];

// The fastest that this processor runs, or the one that EDGE_KERNELS names; null where there is none but the portable.
const Form* Fastest();

}  // namespace edge
