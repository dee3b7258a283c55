// Matrices that rows are multiplied with, whatever they are stored in. Their packed bytes are lent: see `Lend`.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gguf.h"
#include "operators.h"
#include "pack.h"

namespace edge {

// Rows in 8 bits. sixteens: the sums of every 16 values, where the matrix asks for these. floats: the rows before they
// were rounded.
struct Rounded {
  Rows rows;
  const int32_t* sixteens;
  const float* floats;
};

class Matrix {
 public:
  virtual ~Matrix() = default;
  // The panels from `first` to `last` of the result, to rows of `stride` floats that begin with the first panel's.
  virtual void Multiply(const Form& form, const Rounded& rounded, float* out, int stride, int first,
                        int last) const = 0;

  int inputs = 0, columns = 0;
  int padded = 0;         // inputs, with those that fill up a row's last block
  int block = 0;          // inputs of a row that are rounded with one scale
  bool rounds = true;     // whether it asks for rounded rows
  bool floats = false;    // whether it asks for rows that are not
  bool sixteens = false;  // whether it asks for sums of every 16
  size_t bytes = 0;       // of its integers
  size_t panel_bytes() const { return bytes / ((columns + kPanel - 1) / kPanel); }
};

// One of onnxruntime's MatMulNBits. bias: [panels, kPanel], or null.
class OfBlocks : public Matrix {
 public:
  OfBlocks(const Node& node, const float* bias) {
    const Shape shape{node.number("bits", 4, 2, 8),        node.number("K", 0, 1, kLongestRow),
                      node.number("N", 0, 1, kLongestRow), node.number("block_size", 0, kStep, std::max(kLargest, kLongest)),
                      node.number("half", 0, 0, 1),        node.number("zero_points", 0, 0, 1)};
    if (!shape.supported())
      Refuse(node, "weights of ", int64_t{shape.bits}, " bits in blocks of ", int64_t{shape.block},
             " are not what these kernels compute");
    const uint8_t* packed = Lent(node.large("lent"), PackedBytes(shape));
    if (!packed)
      Refuse(node, "no packed weights of ", int64_t{shape.inputs}, " inputs and ", int64_t{shape.columns},
             " columns were lent");
    weights_ = Unpacked(shape, packed, bias);
    inputs = shape.inputs;
    columns = shape.columns;
    padded = shape.padded();
    block = shape.block;
    bytes = weights_.panels() * weights_.panel_bytes();
  }

  void Multiply(const Form& form, const Rounded& rounded, float* out, int stride, int first, int last) const override {
    Weights part = weights_.from(first);
    part.stride = stride;
    form.multiply(part, rounded.rows, out, 0, last - first);
  }

 private:
  Weights weights_;
};

// Those of a GGUF file side by side, each of a type of its own; all but the last fill their panels.
class OfGguf : public Matrix {
 public:
  OfGguf(const Node& node, int parts, const float* bias) {
    inputs = padded = node.number("K", 0, 1, kLongestRow);
    columns = node.number("N", 0, 1, kLongestRow);
    block = 32;
    rounds = false;
    int before = 0;
    for (int i = 0; i < parts; i++) {
      const Part part = Read(node, "part." + std::to_string(i) + ".", inputs);
      GgufWeights weights = part.weights;
      if (before % kPanel || weights.columns > columns - before)
        Refuse(node, "part ", int64_t{i}, " does not begin with a panel, or is not within N");
      if (bias) weights.bias = bias + before;
      parts_.push_back({weights, before / kPanel});
      before += weights.columns;
      bytes += weights.panels() * weights.panel_bytes();
      (weights.type->floats() ? floats : rounds) = true;
    }
    sixteens = rounds;
    if (before != columns) Refuse(node, "its parts have ", int64_t{before}, " columns, and N is ", int64_t{columns});
  }

  void Multiply(const Form& form, const Rounded& rounded, float* out, int stride, int first, int last) const override {
    const GgufRows rows{rounded.rows.values, rounded.rows.scales, rounded.sixteens, rounded.floats, rounded.rows.count};
    for (const Part& part : parts_) {
      const int begin = std::max(first, part.panel);
      const int end = std::min(last, part.panel + static_cast<int>(part.weights.panels()));
      if (begin >= end) continue;
      GgufWeights some = part.weights.from(begin - part.panel);
      some.stride = stride;
      form.multiply_gguf(some, rows, out + static_cast<size_t>(begin - first) * kPanel, 0, end - begin);
    }
  }

  struct Part {
    GgufWeights weights;
    int panel;  // its first
  };
  // The part whose attributes begin with `prefix`.
  static Part Read(const Node& node, const std::string& prefix, int inputs) {
    auto number = [&](const char* name, int most) { return node.number((prefix + name).c_str(), 0, 0, most); };
    const int id = number("type", kGgufTypes), columns = number("N", kLongestRow);
    const GgufType* type = FindGgufType(id);
    if (!type || !type->supports(inputs, columns))
      Refuse(node, "weights of type ", int64_t{id}, ", ", int64_t{inputs}, " by ", int64_t{columns},
             ", are not what these kernels compute");
    const uint8_t* packed = Lent(node.large((prefix + "lent").c_str()), PackedBytes(*type, inputs, columns));
    if (!packed)
      Refuse(node, "no packed weights of ", int64_t{inputs}, " inputs and ", int64_t{columns}, " columns were lent");
    return {Unpacked(*type, inputs, columns, packed, nullptr), 0};
  }

 private:
  std::vector<Part> parts_;
};

}  // namespace edge
