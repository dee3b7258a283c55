// The operator SkipSimplifiedLayerNormalization: the root mean square norm of a sum, or of its first input alone.
#include <vector>

#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr int kAtATime = 8;  // rows of a thread

class Norm {
 public:
  Norm(const ort::Api& api, const ort::Info* info, const Form& form) : api_(api), norm_(form.rows.norm) {
    if (ort::Status* failed = api.Attribute(info, "epsilon", &epsilon_)) api.Release(failed);
  }

  void Compute(ort::Context* context) const {
    const ort::Tensor rows = ort::Input(api_, context, 0), more = ort::Input(api_, context, 1),
                      weight = ort::Input(api_, context, 2);
    const int size = static_cast<int>(weight.elements());
    if (!size || size % kLanes || rows.rank < 1 || rows.shape[rows.rank - 1] != size ||
        (more.data && more.elements() != rows.elements()))
      throw ort::Failure{api_.Fail("rows of another length than expected", ort::kInvalidArgument)};
    auto* out = static_cast<float*>(ort::Output(api_, context, 0, rows.shape.data(), rows.rank));
    size_t outputs = 0;
    ort::Check(api_.Outputs(context, &outputs));
    auto* sum =
        static_cast<float*>(outputs > 3 ? ort::Output(api_, context, 3, rows.shape.data(), rows.rank) : nullptr);
    const int count = static_cast<int>(rows.elements() / size);
    ort::Parallel(api_, context, (count + kAtATime - 1) / kAtATime, [&](size_t piece) {
      thread_local std::vector<float> zeros, unread;
      if (zeros.size() < static_cast<size_t>(size)) zeros.resize(size), unread.resize(size);
      for (int m = static_cast<int>(piece) * kAtATime; m < count && m < (static_cast<int>(piece) + 1) * kAtATime; m++) {
        const size_t at = static_cast<size_t>(m) * size;
        norm_(rows.as<float>() + at, more.data ? more.as<float>() + at : zeros.data(), weight.as<float>(), epsilon_,
              size, sum ? sum + at : unread.data(), out + at);
      }
    });
  }

 private:
  const ort::Api api_;
  decltype(RowsForm::norm) norm_;
  float epsilon_ = 1e-12f;  // onnxruntime's
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
