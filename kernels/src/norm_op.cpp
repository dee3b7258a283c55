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
      : norm_(form.rows.norm), epsilon_(node.real("epsilon", 1e-12f)) {}  // onnxruntime's

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), more = call.input(1), weight = call.input(2);
    const int size = static_cast<int>(weight.elements());
    if (!size || size % kLanes || rows.rank < 1 || rows.shape[rows.rank - 1] != size ||
        (more.data && more.elements() != rows.elements()))
      ort::Refuse(call.api, "rows of another length than expected");
    auto* out = static_cast<float*>(call.output(0, rows.shape.data(), rows.rank));
    auto* sum = static_cast<float*>(call.has_output(3) ? call.output(3, rows.shape.data(), rows.rank) : nullptr);
    const int count = static_cast<int>(rows.elements() / size);
    call.team.ShareBy(count, kAtATime, [&](int first, int last) {
      thread_local std::vector<float> nothing, unread;
      const float* zeros = ort::Reserve(nothing, size);
      float* dropped = ort::Reserve(unread, size);
      for (int m = first; m < last; m++) {
        const size_t at = static_cast<size_t>(m) * size;
        norm_(rows.as<float>() + at, more.data ? more.as<float>() + at : zeros, weight.as<float>(), epsilon_, size,
              sum ? sum + at : dropped, out + at);
      }
    });
  }

 private:
  decltype(RowsForm::norm) norm_;
  float epsilon_;
};

const Operator kNorm{
    "SkipSimplifiedLayerNormalization",
    Make<Norm>,
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kOptional}, {ort::kFloat, ort::kRequired}},
    {{ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
};

}  // namespace

const Operator* const kNormOperator = &kNorm;

}  // namespace edge
