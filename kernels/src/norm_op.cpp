// The operator SkipSimplifiedLayerNormalization: the root mean square norm of a sum, or of its first input alone.
#include <vector>

#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr int kAtATime = 8;  // rows of a thread

class Norm {
 public:
  Norm(const ort::Api& api, const ort::Info* info, const Form& form)
      : api_(api), norm_(form.rows.norm), epsilon_(ort::Attribute(api, info, "epsilon", 1e-12f)) {}  // onnxruntime's

  void Compute(ort::Context* context) const {
    const ort::Tensor rows = ort::Input(api_, context, 0), more = ort::Input(api_, context, 1),
                      weight = ort::Input(api_, context, 2);
    const int size = static_cast<int>(weight.elements());
    if (!size || size % kLanes || rows.rank < 1 || rows.shape[rows.rank - 1] != size ||
        (more.data && more.elements() != rows.elements()))
      ort::Refuse(api_, "rows of another length than expected");
    auto* out = static_cast<float*>(ort::Output(api_, context, 0, rows.shape.data(), rows.rank));
    size_t outputs = 0;
    ort::Check(api_.Outputs(context, &outputs));
    auto* sum =
        static_cast<float*>(outputs > 3 ? ort::Output(api_, context, 3, rows.shape.data(), rows.rank) : nullptr);
    const int count = static_cast<int>(rows.elements() / size);
    ort::ParallelBy(api_, context, count, kAtATime, [&](int first, int last) {
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
  const ort::Api api_;
  decltype(RowsForm::norm) norm_;
  float epsilon_;
};

const Operator<Norm> kNorm{
    "SkipSimplifiedLayerNormalization",
    {{ort::kFloat, ort::kRequired}, {ort::kFloat, ort::kOptional}, {ort::kFloat, ort::kRequired}},
    {{ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
};

}  // namespace

const ort::Operator* const kNormOperator = &kNorm;

}  // namespace edge
