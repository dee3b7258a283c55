// The operator PositionBias: what is added to the scores of attention, by how far a key is before a token, and by what
// a token may attend to.
//
// Inputs: a table [heads, distances] of float32; positions of the tokens, as many as there are, and of the keys, both
// int64; a bias [1, 1, tokens, capacity] of float32; and how many of the keys are there, int32. Gives [1, heads,
// tokens, keys]. A negative distance counts from the table's end.
#include <algorithm>

#include "operators.h"

namespace edge {
namespace {

class PositionBias : public Kernel {
 public:
  PositionBias(const Node&, const Form&) {}

  void Compute(Call& call) const override {
    const ort::Tensor table = call.input(0), positions = call.input(1), of_keys = call.input(2), bias = call.input(3),
                      total = call.input(4);
    Expect(call, "table", table, ort::kFloat, {kAnySize, kAnySize});
    ExpectNumbers(call, "positions", positions, ort::kInt64, positions.elements());
    ExpectNumbers(call, "positions of keys", of_keys, ort::kInt64, of_keys.elements());
    ExpectNumbers(call, "number of keys", total, ort::kInt32, 1);
    const int64_t tokens = positions.elements();
    Expect(call, "bias", bias, ort::kFloat, {1, 1, tokens, kAnySize});
    const int64_t keys =
        Within(call, "number of keys", *total.as<int32_t>(), 0, std::min(bias.shape[3], of_keys.elements()));
    const int64_t heads = table.shape[0], distances = table.shape[1], made[] = {1, heads, tokens, keys};
    if (!distances) Refuse(call, "table has no distances");  // nor then numbers, of however many heads
    float* out = call.floats(0, made, 4);
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t k = 0; k < keys; k++) {
        int64_t far;
        if (__builtin_sub_overflow(positions.as<int64_t>()[t], of_keys.as<int64_t>()[k], &far)) far = distances;
        if (far < 0) far += distances;
        if (far < 0 || far >= distances)
          Refuse(call, "a distance that the table has not: of ", positions.as<int64_t>()[t], " from ",
                 of_keys.as<int64_t>()[k], ", where it has ", distances);
        const float more = bias.as<float>()[t * bias.shape[3] + k];
        for (int64_t h = 0; h < heads; h++)
          out[(h * tokens + t) * keys + k] = table.as<float>()[h * distances + far] + more;
      }
  }
};

const Operator kPositionBias{"PositionBias",
                             Make<PositionBias>,
                             {{ort::kFloat, ort::kRequired},
                              {ort::kInt64, ort::kRequired},
                              {ort::kInt64, ort::kRequired},
                              {ort::kFloat, ort::kRequired},
                              {ort::kInt32, ort::kRequired}},
                             {{ort::kFloat, ort::kRequired}}};

}  // namespace

const Operator* const kPositionBiasOperator = &kPositionBias;

}  // namespace edge
