// The operator MatMulNBits over packed weights, which the host has lent (see `Lend`); scales and zero points are in
// them. With the attribute `parts` its matrix is so many of a GGUF file's side by side: of part i, `part.<i>.type` is
// the file's number of its type, `part.<i>.N` its columns, and `part.<i>.lent` what it finds its bytes by.
//
// It takes along what stands next to a product in a decoder: with the attribute `norm` it begins with the norm of its
// rows and of input 6 together, by the weights that are input 7, and writes their sum to its second output; with `gate`
// its columns are [gate, up], and it gives silu(gate) * up, or gelu(gate) * up where it is 2.
#include <cstring>
#include <vector>

#include "matrices.h"
#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr size_t kPiece = 1 << 16;                           // bytes of weights that a thread takes at a time, at most
constexpr size_t kBias = 5, kNormMore = 6, kNormWeight = 7;  // inputs
constexpr const char* kUnread[] = {"A", "B", "scales", "zero_points", "g_idx"};  // but for A: they are packed, or none
constexpr int kMostBlocks = 1 << 30;                                             // of all rows
constexpr int kManyRows = 16;  // from which on threads share the rounding of rows
constexpr int kFewRows = 8;    // up to which a gate's pieces are larger: each reads two streams
constexpr int kPairs = 16;     // panels of a thread, from which on it takes them by twos
constexpr int kAtATime = 8;    // rows that a thread rounds
constexpr int kMostParts = 16;

class Product : public Kernel {
 public:
  Product(const Node& node, const Form& form) : form_(form) {
    const int columns = node.number("N", 0, 1, kLongestRow), parts = node.number("parts", 0, 0, kMostParts);
    const ort::Tensor bias = node.constant(kBias);
    if (bias.there) {
      Expect(node, "bias", bias, ort::kFloat, {columns});
      bias_.resize((static_cast<size_t>(columns) + kPanel - 1) / kPanel * kPanel);
      std::memcpy(bias_.data(), bias.data, columns * sizeof(float));
    }
    const float* added = bias.there ? bias_.data() : nullptr;
    if (parts)
      matrix_ = std::make_unique<OfGguf>(node, parts, added);
    else
      matrix_ = std::make_unique<OfBlocks>(node, added);
    const int gate = node.number("gate", 0, 0, 2), inputs = matrix_->inputs;
    gate_ = gate == 1 ? form_.rows.silu_gate : gate == 2 ? form_.rows.gelu_gate : nullptr;
    if (node.number("norm", 0, 0, 1)) {
      const ort::Tensor weight = node.constant(kNormWeight);
      Expect(node, "the norm's weight", weight, ort::kFloat, {inputs});
      norm_ = weight.as<float>();
      epsilon_ = node.real("epsilon", 0);
      if (epsilon_ < 0) Refuse(node, "epsilon is ", epsilon_, ", which is negative");
    }
    if (norm_ && inputs % kLanes)
      Refuse(node, "K is ", int64_t{inputs}, ", which is no multiple of ", int64_t{kLanes}, ", of a norm");
    if (gate_ && columns % (2 * kPanel))
      Refuse(node, "N is ", int64_t{columns}, ", which is no multiple of ", int64_t{2 * kPanel}, ", of a gate");
  }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0);
    const int inputs = matrix_->inputs, columns = gate_ ? matrix_->columns / 2 : matrix_->columns;
    ExpectRows(call, "A", rows, inputs);
    for (size_t i = 1; i < kBias; i++) ExpectNone(call, kUnread[i], call.has_input(i));
    if (bias_.empty()) ExpectNone(call, "a bias that is not constant", call.has_input(kBias));
    const int padded = matrix_->padded, block = matrix_->block, blocks = matrix_->rounds ? padded / block : 0;
    const int sixteens = matrix_->sixteens ? padded / 16 : 0;
    const int count = Within(call, "the number of rows", rows.elements() / inputs, 0,
                             kMostBlocks / std::max(1, blocks + sixteens));
    const float *from = rows.as<float>(), *more = nullptr;
    if (norm_) {
      const ort::Tensor other = call.input(kNormMore);
      ExpectSame(call, "what is added to A", other, "A", rows);
      more = other.as<float>();
    } else {
      ExpectNone(call, "what is added to A without a norm", call.has_input(kNormMore));
    }
    auto made = rows.shape;
    made[rows.rank - 1] = columns;
    float *out = call.floats(0, made.data(), rows.rank), *sum = nullptr;
    if (norm_)
      sum = call.floats_if_there(1, rows.shape.data(), rows.rank);
    else if (void* data; call.output(1, ort::kFloat, rows.shape.data(), rows.rank, &data))
      Refuse(call, "output 1 is given without a norm");
    if (!count) return;

    const Rounding all{from,
                       inputs,
                       padded,
                       block,
                       ort::Reserve(call.room.bytes, blocks ? static_cast<size_t>(count) * padded : 0),
                       ort::Reserve(call.room.scales, static_cast<size_t>(count) * blocks),
                       ort::Reserve(call.room.sums, static_cast<size_t>(count) * (blocks + sixteens))};
    int32_t* of_sixteens = all.sums + static_cast<size_t>(count) * blocks;
    float* normed =
        norm_ && matrix_->floats ? ort::Reserve(call.room.floats, static_cast<size_t>(count) * inputs) : nullptr;
    auto round = [&](int first, int last) {
      if (!norm_) {
        form_.quantize(all, first, last);
      } else {
        thread_local std::vector<float> room, unread;
        float *one = normed ? nullptr : ort::Reserve(room, inputs);
        float* dropped = sum ? nullptr : ort::Reserve(unread, inputs);
        for (int m = first; m < last; m++) {
          const size_t at = static_cast<size_t>(m) * inputs, begin = static_cast<size_t>(m) * blocks;
          float* row = normed ? normed + at : one;
          form_.rows.norm(from + at, more + at, norm_, epsilon_, inputs, sum ? sum + at : dropped, row);
          if (!blocks) continue;
          form_.quantize({row, inputs, padded, block, all.values + static_cast<size_t>(m) * padded,
                          all.scales + begin, all.sums + begin},
                         0, 1);
        }
      }
      if (sixteens)
        SumSixteens(all.values + static_cast<size_t>(first) * padded, static_cast<size_t>(last - first) * sixteens,
                    of_sixteens + static_cast<size_t>(first) * sixteens);
    };
    const bool few = static_cast<size_t>(count) * inputs < call.team.least();
    if (norm_ || blocks) call.team.ShareBy(count, few ? count : count < kManyRows ? 1 : kAtATime, round);
    const Rounded rounded{{all.values, all.scales, all.sums, count}, of_sixteens, normed ? normed : from};
    const size_t bytes = matrix_->bytes, most = gate_ && count <= kFewRows ? 4 * kPiece : kPiece,
                 least = (bytes + most - 1) / most;
    const bool alone = bytes * ((count + 3) / 4) < call.team.least();
    const size_t shares = call.team.threads(), pieces = alone ? 1 : (least + shares - 1) / shares * shares;
    const int panels = (columns + kPanel - 1) / kPanel;
    int each = std::max(1, static_cast<int>((panels + pieces - 1) / pieces));
    // Two panels of many rows together, where there are enough of them for all threads.
    if (count >= kManyRows && form_.two_panels && form_.two_panels() && panels >= kPairs * static_cast<int>(shares))
      each += each % 2;
    call.team.ShareBy(panels, each, [&](int first, int last) {
      if (gate_)
        Gated(rounded, first, last, out);
      else
        matrix_->Multiply(form_, rounded, out + static_cast<size_t>(first) * kPanel, columns, first, last);
    });
  }

 private:
  // The panels from `first` to `last` of the gate, and of what it lets through.
  void Gated(const Rounded& rounded, int first, int last, float* out) const {
    thread_local std::vector<float> room;
    const int columns = matrix_->columns / 2, width = (last - first) * kPanel, count = rounded.rows.count;
    float* both = ort::Reserve(room, static_cast<size_t>(count) * 2 * width);
    for (int up : {0, 1}) {
      const int before = up * columns / kPanel;
      matrix_->Multiply(form_, rounded, both + up * width, 2 * width, before + first, before + last);
    }
    for (int m = 0; m < count; m++)
      gate_(both + static_cast<size_t>(m) * 2 * width, width, out + static_cast<size_t>(m) * columns + first * kPanel);
  }

  const Form& form_;
  std::unique_ptr<Matrix> matrix_;
  std::vector<float> bias_;
  void (*gate_)(const float* gate_up, int size, float* out) = nullptr;
  const float* norm_ = nullptr;  // weights of one
  float epsilon_ = 0;
};

}  // namespace

const Operator kProduct{
    "MatMulNBits",
    Make<Product>,
    {{ort::kFloat, ort::kRequired, By::kRow},
     {ort::kUint8, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kUint8, ort::kOptional},
     {ort::kInt32, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional, By::kRow},
     {ort::kFloat, ort::kOptional}},
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kOptional}},
};
const Operator* const kProductOperator = &kProduct;

}  // namespace edge
