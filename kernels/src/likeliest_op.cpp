// The operator Likeliest: the best tokens of each row of logits, and the logarithms of their probabilities.
//
// Inputs: logits [batch, rows, vocabulary] of float32, and how many are wanted, int64 [1]. Gives the logarithms,
// float32, and the tokens, int64, both [batch * rows, wanted]: the best first, and the first of equals first. Among
// them what is no number counts as -infinity; all logarithms of a row that has one, or infinity, are no numbers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "operators.h"

namespace edge {
namespace {

// Logits that may be among the best: where they are in the row, and what they are.
struct Found {
  std::vector<int> places;
  std::vector<float> values;

  void clear() {
    places.clear();
    values.clear();
  }
  void add(int place, float value) {
    places.push_back(place);
    values.push_back(value == value ? value : kNone);
  }
};

// Which of those found are the best, in order; at most `count`.
const std::vector<int>& Best(const Found& found, int count) {
  thread_local std::vector<int> order;
  order.resize(found.places.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int>(i);
  auto before = [&](int a, int b) {
    return found.values[a] > found.values[b] ||
           (found.values[a] == found.values[b] && found.places[a] < found.places[b]);
  };
  if (static_cast<int>(order.size()) > count) {
    std::nth_element(order.begin(), order.begin() + count, order.end(), before);
    order.resize(count);
  }
  std::sort(order.begin(), order.end(), before);
  return order;
}

class Likeliest : public Kernel {
 public:
  Likeliest(const Node&, const Form& form) : form_(form.rows) {}

  void Compute(Call& call) const override {
    const ort::Tensor logits = call.input(0), wanted = call.input(1);
    Expect(call, "logits", logits, ort::kFloat, {kAnySize, kAnySize, kAnySize});
    ExpectNumbers(call, "count", wanted, ort::kInt64, 1);
    const int size = Within(call, "the number of logits of a row", logits.shape[2], 0, kLongestRow);
    const int most = std::numeric_limits<int>::max() / std::max(1, (size + kPart - 1) / kPart);
    const int rows = Within(call, "the number of rows", Times(logits.shape[0], logits.shape[1]), 0, most);
    const int64_t count = *wanted.as<int64_t>(), made[] = {rows, count};
    if (count < 0 || count > size) Refuse(call, "more tokens than there are, ", int64_t{size}, ", are wanted: ", count);
    float* values = call.floats(0, made, 2);
    auto* tokens = static_cast<int64_t*>(call.made(1, ort::kInt64, made, 2));
    if (count && rows) Find(call, logits.as<float>(), rows, size, static_cast<int>(count), values, tokens);
  }

 private:
  // Of each part of a row first: its best and where they are, and the sum of exp(x - its largest).
  void Find(Call& call, const float* logits, int rows, int size, int count, float* values, int64_t* tokens) const {
    const int parts = (size + kPart - 1) / kPart;
    const size_t pieces = static_cast<size_t>(parts) * rows;
    float* best = ort::Reserve(call.room.floats, pieces * count);
    float* sums = ort::Reserve(call.room.scales, pieces);
    int32_t* places = ort::Reserve(call.room.sums, pieces * count);
    call.team.Share(pieces, [&](size_t piece) {
      const int row = static_cast<int>(piece) % rows, part = static_cast<int>(piece) / rows;
      const size_t at = static_cast<size_t>(row) * parts + part;
      sums[at] = OfPart(logits + static_cast<size_t>(row) * size, part * kPart, std::min(size, (part + 1) * kPart),
                        count, best + at * count, places + at * count);
    });
    call.team.Share(rows, [&](size_t row) {
      const size_t at = row * parts;
      OfRow(parts, count, best + at * count, sums + at, places + at * count, values + row * count,
            tokens + row * count);
    });
  }

  // None of the best is in a group whose largest is below as many others' as are wanted: few groups are read twice.
  float OfPart(const float* row, int first, int last, int count, float* best, int32_t* places) const {
    thread_local Found found;
    float maxima[kPart / kGroup], sorted[kPart / kGroup];
    const int groups = (last - first) / kGroup;
    form_.maxima(row + first, groups, maxima);
    float least = kNone;
    if (groups >= count) {
      std::copy_n(maxima, groups, sorted);
      std::nth_element(sorted, sorted + count - 1, sorted + groups, std::greater<float>());
      least = sorted[count - 1];
    }
    found.clear();
    auto look = [&](int from, int to) {
      for (int i = from; i < to; i++)
        if (row[i] >= least) found.add(i, row[i]);
    };
    for (int g = 0; g < groups; g++)
      if (maxima[g] >= least) look(first + g * kGroup, first + (g + 1) * kGroup);
    look(first + groups * kGroup, last);
    if (static_cast<int>(found.places.size()) < std::min(count, last - first)) {  // some are no numbers
      found.clear();
      for (int i = first; i < last; i++) found.add(i, row[i]);
    }
    int filled = 0;
    for (int i : Best(found, count)) {
      best[filled] = found.values[i];
      places[filled++] = found.places[i];
    }
    for (; filled < count; filled++) places[filled] = -1;  // a row's last part may be short
    return form_.exp_sum(row + first, last - first, best[0] == kNone ? 0.0f : best[0]);
  }

  void OfRow(int parts, int count, const float* best, const float* sums, const int32_t* places, float* values,
             int64_t* tokens) const {
    thread_local Found found;
    found.clear();
    for (size_t i = 0; i < static_cast<size_t>(parts) * count; i++)
      if (places[i] >= 0) found.add(places[i], best[i]);
    const std::vector<int>& order = Best(found, count);
    const float best_of_all = found.values[order[0]], largest = best_of_all == kNone ? 0.0f : best_of_all;
    float sum = 0;
    for (int part = 0; part < parts; part++)
      sum += sums[part] * form_.exp_sum(best + static_cast<size_t>(part) * count, 1, largest);  // exp of the difference
    const auto logarithm = static_cast<float>(std::log(static_cast<double>(sum)));
    for (int k = 0; k < count; k++) {
      const float value = found.values[order[k]];
      values[k] = value == kNone && sum == sum ? kNone : value - largest - logarithm;
      tokens[k] = found.places[order[k]];
    }
  }

  const RowsForm& form_;
};

const Operator kLikeliest{"Likeliest",
                          Make<Likeliest>,
                          {{ort::kFloat, ort::kRequired}, {ort::kInt64, ort::kRequired}},
                          {{ort::kFloat, ort::kRequired}, {ort::kInt64, ort::kRequired}}};

}  // namespace

const Operator* const kLikeliestOperator = &kLikeliest;

}  // namespace edge
