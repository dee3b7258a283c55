// The operator MatMulNBits over packed weights, which the host has lent (see `Lend`); scales and zero points are in them.
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "operators.h"
#include "pack.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr size_t kPiece = 1 << 15;  // bytes of weights that a thread takes at a time
constexpr int kManyRows = 16;       // from which on threads share the rounding of rows

struct Aligned {
  void* operator()(size_t bytes) const { return ::operator new(bytes, std::align_val_t{kAlignment}); }
};

class Product {
 public:
  Product(const ort::Api& api, const ort::Info* info, const Form& form) : api_(api), form_(form) {
    auto number = [&](const char* name) { return static_cast<int>(ort::Attribute(api, info, name, 0)); };
    shape_ = {number("bits"), number("K"), number("N"), number("block_size"), number("half"), number("zero_points")};
    const ort::Tensor bias = ort::Constant(api, info, 5);
    const uint8_t* packed = shape_.supported() ? Lent(ort::Attribute(api, info, "lent", 0), PackedBytes(shape_)) : nullptr;
    if (!packed) throw ort::Failure{api.Fail("no packed weights of this operator's size", ort::kInvalidArgument)};
    if (bias.data) {
      bias_.resize((shape_.columns + kPanel - 1) / kPanel * kPanel);
      std::memcpy(bias_.data(), bias.data, shape_.columns * sizeof(float));
    }
    weights_ = Unpacked(shape_, packed, bias.data ? bias_.data() : nullptr);
  }

  void Compute(ort::Context* context) const {
    const ort::Tensor rows = ort::Input(api_, context, 0);
    if (rows.rank < 1 || rows.shape[rows.rank - 1] != shape_.inputs)
      throw ort::Failure{api_.Fail("rows of another width than the matrix", ort::kInvalidArgument)};
    auto made = rows.shape;
    made[rows.rank - 1] = shape_.columns;
    auto* out = static_cast<float*>(ort::Output(api_, context, 0, made.data(), rows.rank));
    const int count = static_cast<int>(rows.elements() / shape_.inputs);
    if (!count) return;

    const int padded = shape_.padded(), blocks = padded / shape_.block;
    thread_local std::vector<int8_t> values;  // of the thread that runs the graph; others read them
    thread_local std::vector<float> scales;
    thread_local std::vector<int32_t> sums;
    Reserve(values, static_cast<size_t>(count) * padded);
    Reserve(scales, static_cast<size_t>(count) * blocks);
    Reserve(sums, static_cast<size_t>(count) * blocks);
    const Rounding rounding{rows.as<float>(), shape_.inputs, padded,       shape_.block,
                            values.data(),    scales.data(), sums.data()};
    if (count < kManyRows) {
      form_.quantize(rounding, 0, count);
    } else {
      const int each = 8;
      ort::Parallel(api_, context, (count + each - 1) / each, [&](size_t i) {
        const int first = static_cast<int>(i) * each;
        form_.quantize(rounding, first, std::min(count, first + each));
      });
    }
    const Rows rounded{values.data(), scales.data(), sums.data(), count};
    const int panels = weights_.panels();
    int each = static_cast<int>(kPiece / weights_.panel_bytes());
    each = std::max(2, each / 2 * 2);  // vectors are taken by twos
    ort::Parallel(api_, context, (panels + each - 1) / each, [&](size_t i) {
      const int first = static_cast<int>(i) * each;
      form_.multiply(weights_, rounded, out, first, std::min(panels, first + each));
    });
  }

 private:
  template <class T>
  static void Reserve(std::vector<T>& room, size_t size) {
    if (room.size() < size) room.resize(size);
  }

  const ort::Api api_;
  const Form& form_;
  Shape shape_;
  Weights weights_;
  std::vector<float> bias_;
};

}  // namespace

const Operator<Product> kProduct{
    "MatMulNBits",
    {{ort::kFloat, ort::kRequired},
     {ort::kUint8, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kUint8, ort::kOptional},
     {ort::kInt32, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
    {ort::kFloat},
};
const ort::Operator* const kProductOperator = &kProduct;

}  // namespace edge
