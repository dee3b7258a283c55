// The operator FusedMatMul of rows and a float matrix [columns, inputs], transposed: what a router scores experts with. A
// row's result is made of that row alone, whatever rows are next to it, in an order that does not depend on vectors.
#include "functions.h"
#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr int kAtATime = 16;  // numbers of the result that a thread makes

class Scores : public Kernel {
 public:
  Scores(const Node& node, const Form&) {
    if (!node.number("transB", 0, 0, 1)) Refuse(node, "its matrix is not transposed");
  }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), matrix = call.input(1);
    Expect(call, "B", matrix, ort::kFloat, {kAnySize, kAnySize});
    const int inputs = Within(call, "the number of inputs", matrix.shape[1], kLanes, kLongestRow);
    const int columns = Within(call, "the number of columns", matrix.shape[0], 1, kLongestRow);
    if (inputs % kLanes) Refuse(call, "B has ", int64_t{inputs}, " inputs, no multiple of ", int64_t{kLanes});
    ExpectRows(call, "A", rows, inputs);
    auto made = rows.shape;
    made[rows.rank - 1] = columns;
    float* out = call.floats(0, made.data(), rows.rank);
    const int count = Within(call, "the number of results", Times(rows.elements() / inputs, columns));
    call.team.ShareBy(count, kAtATime, [&](int first, int last) {
      for (int i = first; i < last; i++)
        out[i] = Dot(rows.as<float>() + static_cast<size_t>(i / columns) * inputs,
                     matrix.as<float>() + static_cast<size_t>(i % columns) * inputs, inputs);
    });
  }

 private:
  static float Dot(const float* a, const float* b, int size) {
    float lanes[kLanes] = {};
    for (int i = 0; i < size; i += kLanes)
      for (int j = 0; j < kLanes; j++) lanes[j] += a[i + j] * b[i + j];
    return SumOfLanes(lanes);
  }
};

const Operator kScores{"FusedMatMul",
                       Make<Scores>,
                       {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kRequired}},
                       {{ort::kFloat, ort::kRequired}}};

}  // namespace

const Operator* const kScoresOperator = &kScores;

}  // namespace edge
