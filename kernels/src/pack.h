// From a matrix as onnxruntime's MatMulNBits has it to a block of bytes that its operator here reads.
#pragma once

#include "lanes.h"

namespace edge {

struct Shape {
  int bits, inputs, columns, block, half, zero_points;  // inputs: without those that fill up the last block

  int padded() const { return (inputs + block - 1) / block * block; }  // of one that is supported
  size_t panels() const { return (static_cast<size_t>(columns) + kPanel - 1) / kPanel; }
  size_t scales() const { return panels() * (padded() / block) * kPanel; }  // number of them
  bool supported() const {
    return (bits == 2 || bits == 4 || bits == 8) && inputs > 0 && inputs <= kLongestRow && columns > 0 &&
           columns <= kLongestRow && block > 0 && block % kStep == 0 &&
           (block <= kLargest || (block == inputs && !zero_points && inputs <= kLongest));
  }
};

// Bytes of it: weights, scales and zero points, one after the other.
size_t PackedBytes(const Shape& shape);

// weights: [columns, blocks, block * bits / 8]. scales: [columns, blocks], which float16 can hold where `half`.
// zero_points: [columns, blocks] in as many bits as weights, each column from a byte of its own on; or null.
void Pack(const Shape& shape, const uint8_t* weights, const float* scales, const uint8_t* zero_points, uint8_t* out);

// What lies in such a block.
Weights Unpacked(const Shape& shape, const uint8_t* packed, const float* bias);

// Lend such a block to operators that are made from now on, until it is taken back: onnxruntime would copy it. It must
// stay as long as they do. Returns what they find it by, which is not 0.
int64_t Lend(const uint8_t* packed, size_t bytes);
void TakeBack(int64_t lent);

// The block, where it was lent and has this size; else null.
const uint8_t* Lent(int64_t lent, size_t bytes);

}  // namespace edge
