// The operator SkipSimplifiedLayerNormalization: the root mean square norm of a sum, or of its first input alone.
#include <vector>

#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr int kAtATime = 8;  // rows of a thread

class Norm : public Kernel {
 public:
  Norm(const Node& node, const Form& form)
      : norm_(form.rows.norm), epsilon_(node.real("epsilon", 1e-12f)) {  // onnxruntime's
    if (epsilon_ < 0) Refuse(node, "epsilon is ", epsilon_, ", which is negative");
  }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), more = call.input(1), weight = call.input(2);
    Expect(call, "gamma", weight, ort::kFloat, {kAnySize});
    const int size = Within(call, "the number of gamma's weights", weight.shape[0], kLanes, kLongestRow);
    if (size % kLanes) Refuse(call, "gamma has ", int64_t{size}, " weights, which is no multiple of ", int64_t{kLanes});
    ExpectRows(call, "input", rows, size);
    if (more.there) ExpectSame(call, "skip", more, "input", rows);
    const int count = Within(call, "the number of rows", rows.elements() / size);
    float* out = call.floats(0, rows.shape.data(), rows.rank);
    for (size_t i : {1, 2}) ExpectNone(call, "the mean, or its inverse", HasOutput(call, i, rows));
    float* sum = call.floats_if_there(3, rows.shape.data(), rows.rank);
    call.team.ShareBy(count, kAtATime, [&](int first, int last) {
      thread_local std::vector<float> nothing, unread;
      const float* zeros = ort::Reserve(nothing, size);
      float* dropped = ort::Reserve(unread, size);
      for (int m = first; m < last; m++) {
        const size_t at = static_cast<size_t>(m) * size;
        norm_(rows.as<float>() + at, more.there ? more.as<float>() + at : zeros, weight.as<float>(), epsilon_, size,
              sum ? sum + at : dropped, out + at);
      }
    });
  }

 private:
  static bool HasOutput(Call& call, size_t index, const ort::Tensor& rows) {
    void* data;
    return call.output(index, ort::kFloat, rows.shape.data(), rows.rank, &data);
  }

  decltype(RowsForm::norm) norm_;
  float epsilon_;
};

const Operator kNorm{
    "SkipSimplifiedLayerNormalization",
    Make<Norm>,
    {{ort::kFloat, ort::kRequired, By::kRow},
     {ort::kFloat, ort::kOptional, By::kRow},
     {ort::kFloat, ort::kRequired}},
    {{ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
};

}  // namespace

const Operator* const kNormOperator = &kNorm;

}  // namespace edge
