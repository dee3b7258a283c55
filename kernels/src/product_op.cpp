// The operator MatMulNBits over packed weights, which the host has lent (see `Lend`); scales and zero points are in
// them.
//
// It may begin with what comes before a product in a decoder: with the attribute `gate` its rows are [gate, up], of
// which it takes silu(gate) * up, or gelu(gate) * up where it is 2; with `norm` it takes the norm of its rows and of
// input 6 together, by the weights that are input 7, and writes their sum to its second output.
#include <cstring>
#include <vector>

#include "operators.h"
#include "pack.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr size_t kPiece = 1 << 17;                // bytes of weights that a thread takes at a time, at most
constexpr size_t kShares = 4;                     // of which the pieces are a multiple: threads share them evenly
constexpr size_t kNormMore = 6, kNormWeight = 7;  // inputs
constexpr int kManyRows = 16;                     // from which on threads share the rounding of rows
constexpr int kAtATime = 8;                       // rows that a thread rounds

class Product {
 public:
  Product(const ort::Api& api, const ort::Info* info, const Form& form) : api_(api), form_(form) {
    auto number = [&](const char* name) { return static_cast<int>(ort::Attribute(api, info, name, int64_t{0})); };
    shape_ = {number("bits"), number("K"), number("N"), number("block_size"), number("half"), number("zero_points")};
    const ort::Tensor bias = ort::Constant(api, info, 5);
    const uint8_t* packed =
        shape_.supported() ? Lent(ort::Attribute(api, info, "lent", int64_t{0}), PackedBytes(shape_)) : nullptr;
    if (!packed) ort::Refuse(api, "no packed weights of this operator's size");
    if (bias.data) {
      bias_.resize(shape_.panels() * kPanel);
      std::memcpy(bias_.data(), bias.data, shape_.columns * sizeof(float));
    }
    weights_ = Unpacked(shape_, packed, bias.data ? bias_.data() : nullptr);
    gate_ = number("gate") == 1 ? form_.rows.silu_gate : number("gate") == 2 ? form_.rows.gelu_gate : nullptr;
    if (number("norm")) {
      norm_ = ort::Constant(api, info, kNormWeight).as<float>();
      if (!norm_) ort::Refuse(api, "a norm without weights");
      epsilon_ = ort::Attribute(api, info, "epsilon", 0.0f);
    }
    if ((gate_ || norm_) && shape_.inputs % kLanes) ort::Refuse(api, "rows of another length than expected");
  }

  void Compute(ort::Context* context) const {
    const ort::Tensor rows = ort::Input(api_, context, 0);
    const int inputs = shape_.inputs, width = gate_ ? 2 * inputs : inputs;
    if (rows.rank < 1 || rows.shape[rows.rank - 1] != width) ort::Refuse(api_, "rows of another width than the matrix");
    auto made = rows.shape;
    made[rows.rank - 1] = shape_.columns;
    auto* out = static_cast<float*>(ort::Output(api_, context, 0, made.data(), rows.rank));
    const int count = static_cast<int>(rows.elements() / width);
    const float *from = rows.as<float>(), *more = nullptr;
    float* sum = nullptr;
    if (norm_) {
      const ort::Tensor other = ort::Input(api_, context, kNormMore);
      if (other.elements() != rows.elements()) ort::Refuse(api_, "rows that do not go together");
      more = other.as<float>();
      size_t outputs = 0;
      ort::Check(api_.Outputs(context, &outputs));
      if (outputs > 1) sum = static_cast<float*>(ort::Output(api_, context, 1, rows.shape.data(), rows.rank));
    }
    if (!count) return;

    const int padded = shape_.padded(), blocks = padded / shape_.block;
    thread_local std::vector<int8_t> values;  // of the thread that runs the graph; others read them
    thread_local std::vector<float> scales;
    thread_local std::vector<int32_t> sums;
    const Rounding all{from,
                       inputs,
                       padded,
                       shape_.block,
                       ort::Reserve(values, static_cast<size_t>(count) * padded),
                       ort::Reserve(scales, static_cast<size_t>(count) * blocks),
                       ort::Reserve(sums, static_cast<size_t>(count) * blocks)};
    auto round = [&](int first, int last) {
      if (!gate_ && !norm_) return form_.quantize(all, first, last);
      thread_local std::vector<float> room, unread;
      float *row = ort::Reserve(room, inputs), *dropped = norm_ && !sum ? ort::Reserve(unread, inputs) : nullptr;
      for (int m = first; m < last; m++) {
        const size_t at = static_cast<size_t>(m) * inputs, block = static_cast<size_t>(m) * blocks;
        if (gate_)
          gate_(from + static_cast<size_t>(m) * width, inputs, row);
        else
          form_.rows.norm(from + at, more + at, norm_, epsilon_, inputs, sum ? sum + at : dropped, row);
        form_.quantize({row, inputs, padded, shape_.block, all.values + static_cast<size_t>(m) * padded,
                        all.scales + block, all.sums + block},
                       0, 1);
      }
    };
    if (count < kManyRows) {
      round(0, count);
    } else {
      ort::ParallelBy(api_, context, count, kAtATime, round);
    }
    const Rows rounded{all.values, all.scales, all.sums, count};
    const int panels = weights_.panels();
    const size_t bytes = panels * weights_.panel_bytes(), least = (bytes + kPiece - 1) / kPiece;
    const bool alone = bytes * ((count + 3) / 4) < ort::kAlone;
    const size_t pieces = alone ? 1 : (least + kShares - 1) / kShares * kShares;
    const int each = std::max(1, static_cast<int>((panels + pieces - 1) / pieces));
    ort::ParallelBy(api_, context, panels, each,
                    [&](int first, int last) { form_.multiply(weights_, rounded, out, first, last); });
  }

 private:
  const ort::Api api_;
  const Form& form_;
  Shape shape_;
  Weights weights_;
  std::vector<float> bias_;
  void (*gate_)(const float* gate_up, int size, float* out) = nullptr;
  const float* norm_ = nullptr;  // weights of one
  float epsilon_ = 0;
};

}  // namespace

const Operator<Product> kProduct{
    "MatMulNBits",
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
const ort::Operator* const kProductOperator = &kProduct;

}  // namespace edge
