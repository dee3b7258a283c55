// The operator GgufRows: rows of a matrix of a GGUF file, as an embedding is read, of its packed bytes.
//
// Input: numbers of rows, int64 of any shape. Gives float32 of that shape and K more. The matrix is described as a part
// of a product's is (product_op.cpp).
#include "matrices.h"
#include "operators.h"

namespace edge {
namespace {

class GgufRowsKernel : public Kernel {
 public:
  GgufRowsKernel(const Node& node, const Form&)
      : weights_(OfGguf::Read(node, "part.0.", node.number("K", 0, 1, kLongestRow)).weights) {}

  void Compute(Call& call) const override {
    const ort::Tensor ids = call.input(0);
    if (!ids.there || ids.type != ort::kInt64) Refuse(call, "the numbers of rows are missing, or no int64");
    if (ids.rank + 1 > ids.shape.size()) Refuse(call, "the numbers of rows have too many sizes");
    auto made = ids.shape;
    made[ids.rank] = weights_.inputs;
    float* out = call.floats(0, made.data(), ids.rank + 1);
    for (int64_t i = 0; i < ids.elements(); i++, out += weights_.inputs) {
      const int64_t asked = ids.as<int64_t>()[i];
      if (asked < 0 || asked >= weights_.columns)
        Refuse(call, "row ", asked, " is asked for, of ", int64_t{weights_.columns});
      ReadColumn(weights_, static_cast<int>(asked), out);
    }
  }

 private:
  GgufWeights weights_;
};

const Operator kGgufRows{
    "GgufRows", Make<GgufRowsKernel>, {{ort::kInt64, ort::kRequired}}, {{ort::kFloat, ort::kRequired}}};

}  // namespace

const Operator* const kGgufRowsOperator = &kGgufRows;

}  // namespace edge
