// The operator MatMulNBits over packed weights, which the host has lent (see `Lend`); scales and zero points are in
// them.
//
// It takes along what stands next to a product in a decoder: with the attribute `norm` it begins with the norm of its
// rows and of input 6 together, by the weights that are input 7, and writes their sum to its second output; with `gate`
// its columns are [gate, up], and it gives silu(gate) * up, or gelu(gate) * up where it is 2.
#include <cstring>
#include <vector>

#include "operators.h"
#include "pack.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr size_t kPiece = 1 << 16;                // bytes of weights that a thread takes at a time, at most
constexpr size_t kNormMore = 6, kNormWeight = 7;  // inputs
constexpr int kManyRows = 16;                     // from which on threads share the rounding of rows
constexpr int kFewRows = 8;                       // up to which a gate's pieces are larger: each reads two streams
constexpr int kAtATime = 8;                       // rows that a thread rounds

class Product : public Kernel {
 public:
  Product(const Node& node, const Form& form) : form_(form) {
    shape_ = {node.number("bits"),       node.number("K"),    node.number("N"),
              node.number("block_size"), node.number("half"), node.number("zero_points")};
    const ort::Tensor bias = node.constant(5);
    const uint8_t* packed = shape_.supported() ? Lent(node.large("lent"), PackedBytes(shape_)) : nullptr;
    if (!packed) ort::Refuse(node.api, "no packed weights of this operator's size");
    if (bias.data) {
      bias_.resize(shape_.panels() * kPanel);
      std::memcpy(bias_.data(), bias.data, shape_.columns * sizeof(float));
    }
    weights_ = Unpacked(shape_, packed, bias.data ? bias_.data() : nullptr);
    const int gate = node.number("gate");
    gate_ = gate == 1 ? form_.rows.silu_gate : gate == 2 ? form_.rows.gelu_gate : nullptr;
    if (node.number("norm")) {
      norm_ = node.constant(kNormWeight).as<float>();
      if (!norm_) ort::Refuse(node.api, "a norm without weights");
      epsilon_ = node.real("epsilon", 0);
    }
    if (norm_ && shape_.inputs % kLanes) ort::Refuse(node.api, "rows of another length than expected");
    if (gate_ && shape_.columns % (2 * kPanel)) ort::Refuse(node.api, "a gate of another width than expected");
  }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0);
    const int inputs = shape_.inputs, columns = gate_ ? shape_.columns / 2 : shape_.columns;
    if (rows.rank < 1 || rows.shape[rows.rank - 1] != inputs)
      ort::Refuse(call.api, "rows of another width than the matrix");
    auto made = rows.shape;
    made[rows.rank - 1] = columns;
    auto* out = static_cast<float*>(call.output(0, made.data(), rows.rank));
    const int count = static_cast<int>(rows.elements() / inputs);
    const float *from = rows.as<float>(), *more = nullptr;
    float* sum = nullptr;
    if (norm_) {
      const ort::Tensor other = call.input(kNormMore);
      if (other.elements() != rows.elements()) ort::Refuse(call.api, "rows that do not go together");
      more = other.as<float>();
      if (call.has_output(1)) sum = static_cast<float*>(call.output(1, rows.shape.data(), rows.rank));
    }
    if (!count) return;

    const int padded = shape_.padded(), blocks = padded / shape_.block;
    const Rounding all{from,
                       inputs,
                       padded,
                       shape_.block,
                       ort::Reserve(call.room.bytes, static_cast<size_t>(count) * padded),
                       ort::Reserve(call.room.scales, static_cast<size_t>(count) * blocks),
                       ort::Reserve(call.room.sums, static_cast<size_t>(count) * blocks)};
    auto round = [&](int first, int last) {
      if (!norm_) return form_.quantize(all, first, last);
      thread_local std::vector<float> room, unread;
      float *row = ort::Reserve(room, inputs), *dropped = sum ? nullptr : ort::Reserve(unread, inputs);
      for (int m = first; m < last; m++) {
        const size_t at = static_cast<size_t>(m) * inputs, block = static_cast<size_t>(m) * blocks;
        form_.rows.norm(from + at, more + at, norm_, epsilon_, inputs, sum ? sum + at : dropped, row);
        form_.quantize({row, inputs, padded, shape_.block, all.values + static_cast<size_t>(m) * padded,
                        all.scales + block, all.sums + block},
                       0, 1);
      }
    };
    const bool few = static_cast<size_t>(count) * inputs < call.team.least();
    call.team.ShareBy(count, few ? count : count < kManyRows ? 1 : kAtATime, round);
    const Rows rounded{all.values, all.scales, all.sums, count};
    const size_t bytes = weights_.panels() * weights_.panel_bytes(),
                 most = gate_ && count <= kFewRows ? 4 * kPiece : kPiece, least = (bytes + most - 1) / most;
    const bool alone = bytes * ((count + 3) / 4) < call.team.least();
    const size_t shares = call.team.threads(), pieces = alone ? 1 : (least + shares - 1) / shares * shares;
    const int panels = (columns + kPanel - 1) / kPanel;
    const int each = std::max(1, static_cast<int>((panels + pieces - 1) / pieces));
    call.team.ShareBy(panels, each, [&](int first, int last) {
      if (gate_)
        Gated(rounded, first, last, out);
      else
        form_.multiply(weights_, rounded, out, first, last);
    });
  }

 private:
  // The panels from `first` to `last` of the gate, and of what it lets through.
  void Gated(const Rows& rows, int first, int last, float* out) const {
    thread_local std::vector<float> room;
    const int columns = shape_.columns / 2, width = (last - first) * kPanel;
    float* both = ort::Reserve(room, static_cast<size_t>(rows.count) * 2 * width);
    for (int up : {0, 1}) {
      Weights part = weights_.from(first + up * columns / kPanel);
      part.columns = 2 * width;
      form_.multiply(part, rows, both + up * width, 0, last - first);
    }
    for (int m = 0; m < rows.count; m++)
      gate_(both + static_cast<size_t>(m) * 2 * width, width, out + static_cast<size_t>(m) * columns + first * kPanel);
  }

  const Form& form_;
  Shape shape_;
  Weights weights_;
  std::vector<float> bias_;
  void (*gate_)(const float* gate_up, int size, float* out) = nullptr;
  const float* norm_ = nullptr;  // weights of one
  float epsilon_ = 0;
};

}  // namespace

const Operator kProduct{
    "MatMulNBits",
    Make<Product>,
    {{ort::kFloat, ort::kRequired},
     {ort::kUint8, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kUint8, ort::kOptional},
     {ort::kInt32, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kOptional}},
};
const Operator* const kProductOperator = &kProduct;

}  // namespace edge
