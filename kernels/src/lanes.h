// Products of 4-bit weights and activations rounded to 8 bits, one vector lane for each output column.
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

namespace edge {

constexpr int kPanel = 16;  // columns that lie together
constexpr int kGroup = 8;   // inputs whose weights lie together

// A weight [columns, inputs] in panels of kPanel columns. Both numbers are multiples of what they are cut into.
//
// weights: for each panel, for each group of kGroup inputs, 64 bytes: byte 4 * c + j has the weight of column c for
//     input j of the group in its low half, and for input j + 4 in its high half.
// scales: [panels, blocks, kPanel].
// zero_points: as scales; null where all of them are 8.
struct Weights {
  const uint8_t* weights;
  const float* scales;
  const int32_t* zero_points;
  int inputs, columns, block;  // block: inputs that share a scale: 32, 64 or 128
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

// Round rows [count, inputs] to 8 bits: the largest value of a block becomes 127.
void Quantize(const float* rows, int count, int inputs, int block, int8_t* values, float* scales, int32_t* sums);
void QuantizeAvx2(const float* rows, int count, int inputs, int block, int8_t* values, float* scales, int32_t* sums);

// The columns of the panels [first, last) of the products, to out [count, columns].
void MultiplyPortable(const Weights&, const Rows&, float* out, int first, int last);
void MultiplyAvx2(const Weights&, const Rows&, float* out, int first, int last);
void MultiplyAvxVnni(const Weights&, const Rows&, float* out, int first, int last);
void MultiplyAvx512Vnni(const Weights&, const Rows&, float* out, int first, int last);

}  // namespace edge
