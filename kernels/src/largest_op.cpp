// The operator Largest: the token of each row of logits that has the largest, the first of equals.
//
// Input: logits [batch, rows, vocabulary] of float32. Gives tokens, int64 [batch, rows]. What is no number counts as
// -infinity.
#include <algorithm>
#include <limits>

#include "operators.h"

namespace edge {
namespace {

class Largest : public Kernel {
 public:
  Largest(const Node&, const Form& form) : form_(form.rows) {}

  void Compute(Call& call) const override {
    const ort::Tensor logits = call.input(0);
    Expect(call, "logits", logits, ort::kFloat, {kAnySize, kAnySize, kAnySize});
    const int size = Within(call, "the number of logits of a row", logits.shape[2], 1, kLongestRow);
    const int parts = (size + kPart - 1) / kPart;
    const int rows = Within(call, "the number of rows", Times(logits.shape[0], logits.shape[1]), 0,
                            std::numeric_limits<int>::max() / parts);
    const int64_t made[] = {logits.shape[0], logits.shape[1]};
    auto* tokens = static_cast<int64_t*>(call.made(0, ort::kInt64, made, 2));
    const size_t pieces = static_cast<size_t>(parts) * rows;
    float* best = ort::Reserve(call.room.floats, pieces);
    int32_t* places = ort::Reserve(call.room.sums, pieces);
    const float* all = logits.as<float>();
    call.team.Share(pieces, [&](size_t piece) {
      const int row = static_cast<int>(piece) % rows, part = static_cast<int>(piece) / rows;
      const size_t at = static_cast<size_t>(row) * parts + part;
      const int first = part * kPart, last = std::min(size, first + kPart);
      places[at] = first + OfPart(all + static_cast<size_t>(row) * size + first, last - first, best + at);
    });
    for (int row = 0; row < rows; row++) {
      const float* from = best + static_cast<size_t>(row) * parts;
      tokens[row] = places[static_cast<size_t>(row) * parts + (std::max_element(from, from + parts) - from)];
    }
  }

 private:
  // The place of the largest of these, and what it is.
  int OfPart(const float* logits, int size, float* best) const {
    float maxima[kPart / kGroup];
    const int groups = size / kGroup;
    form_.maxima(logits, groups, maxima);
    int found = 0;
    *best = kNone;
    const float* top = std::max_element(maxima, maxima + groups);
    if (groups && *top > kNone) {
      const float* group = logits + (top - maxima) * kGroup;
      *best = *top;
      found = static_cast<int>(std::find(group, group + kGroup - 1, *best) - logits);
    }
    for (int i = groups * kGroup; i < size; i++)
      if (logits[i] > *best) *best = logits[found = i];
    return found;
  }

  const RowsForm& form_;
};

const Operator kLargestLogit{"Largest", Make<Largest>, {{ort::kFloat, ort::kRequired}}, {{ort::kInt64, ort::kRequired}}};

}  // namespace

const Operator* const kLargestOperator = &kLargestLogit;

}  // namespace edge
