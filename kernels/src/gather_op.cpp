// The operator Gather, of rows, as a part of chains.
#include <cstring>

#include "operators.h"

namespace edge {
namespace {

// onnxruntime's Gather of rows: [batch, rows, width] and the numbers of rows.
class Gather : public Kernel {
 public:
  Gather(const Node& node, const Form&) { node.number("axis", 0, 1, 1); }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), which = call.input(1);
    Expect(call, "data", rows, ort::kFloat, {kAnySize, kAnySize, kAnySize});
    Expect(call, "indices", which, ort::kInt64, {kAnySize});
    const int64_t batch = rows.shape[0], there = rows.shape[1], width = rows.shape[2], count = which.shape[0];
    const int64_t made[] = {batch, count, width};
    auto row = [&](int64_t i) {
      const int64_t asked = which.as<int64_t>()[i];
      return asked < 0 ? asked + there : asked;
    };
    for (int64_t i = 0; i < count; i++)
      if (row(i) < 0 || row(i) >= there) Refuse(call, "row ", which.as<int64_t>()[i], " is asked for, of ", there);
    float* out = call.floats(0, made, 3);
    for (int64_t i = 0; width && i < batch * count; i++)
      std::memcpy(out + i * width, rows.as<float>() + (i / count * there + row(i % count)) * width,
                  width * sizeof(float));
  }
};

const Operator kGather{"Gather",
                       Make<Gather>,
                       {{ort::kFloat, ort::kRequired}, {ort::kInt64, ort::kRequired}},
                       {{ort::kFloat, ort::kRequired}}};

}  // namespace

const Operator* const kGatherOperator = &kGather;

}  // namespace edge
