// Which rows of a step each unit of a chain runs for.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "operators.h"

namespace edge {

class Route {
 public:
  // route: [units, 1], for all rows, or [units, rows]. limits: the same, or null; see `Leave`. stream: [batch, tokens,
  // width], what is not there where the chain reads none.
  void Read(const Named& who, int units, const ort::Tensor& route, const ort::Tensor& limits,
            const ort::Tensor& stream) {
    Expect(who, "route", route, ort::kBool, {units, kAnySize});
    const int64_t named = route.shape[1];
    if (limits.there) Expect(who, "limits", limits, ort::kFloat, {units, named});
    const float* const limit = limits.as<float>();
    const bool limited = limit && std::any_of(limit, limit + units * named, [](float each) { return each <= 1; });
    const int64_t there = stream.there ? Times(stream.shape[0], stream.shape[1]) : 0;
    const int rows = Within(who, "the number of the step's rows", limited ? there : named, 1, kMostOfStep);
    if (named != 1 && named != rows) Refuse(who, "route is of ", named, " rows, and the step has ", int64_t{rows});
    if (rows > 1 && (there != rows || (stream.shape[0] != 1 && stream.shape[1] != 1)))
      Refuse(who, "route is of ", int64_t{rows}, " rows, and not of so many sequences of a token, nor tokens of one");
    limits_ = limited ? limit : nullptr;
    limit_stride_ = named == 1 ? 0 : 1;
    named_ = named;
    units_.resize(units);
    whole_ = true;
    for (int u = 0; u < units; u++) {
      const bool* of_unit = route.as<bool>() + u * named;
      Some& unit = units_[u];
      unit.of = rows;
      unit.sequences = rows > 1 && stream.shape[0] == rows;
      unit.rows.clear();
      for (int row = 0; row < rows; row++)
        if (of_unit[named == 1 ? 0 : row]) unit.rows.push_back(row);
      whole_ &= !some(u);
    }
  }

  bool whole() const { return whole_ && !limits_; }
  // Of the step, where units run for some of them; else 1.
  int rows() const { return units_.empty() ? 1 : units_[0].of; }
  // How many units run for any row.
  int running() const {
    return static_cast<int>(std::count_if(units_.begin(), units_.end(), [](const Some& u) { return !u.rows.empty(); }));
  }
  bool runs(int unit) const { return !units_[unit].rows.empty(); }
  // The rows that a unit runs for, where they are not all; else null.
  const Some* some(int unit) const {
    const Some& found = units_[unit];
    return static_cast<int>(found.rows.size()) < found.of ? &found : nullptr;
  }

  // Whether what a unit does to rows may make others be left out.
  bool limited(int unit) const {
    const auto& rows = units_[unit].rows;
    return limits_ && std::any_of(rows.begin(), rows.end(), [&](int row) { return limit(unit, row) <= 1; });
  }

  // Source: Jaiswal et al. 2024, FFN-SkipLLM: once what a block reads and what stands behind it have a cosine of at
  // least the unit's limit, all units behind it that have one are left out for this row.
  void Leave(int unit, const float* read, const float* added, int width) {
    for (const int row : units_[unit].rows) {
      const size_t at = static_cast<size_t>(row) * width;
      if (limit(unit, row) > 1 || !(Cosine(read + at, added + at, width) >= limit(unit, row))) continue;
      for (size_t later = unit + 1; later < units_.size(); later++) {
        auto& rows = units_[later].rows;
        if (limit(later, row) <= 1) rows.erase(std::remove(rows.begin(), rows.end(), row), rows.end());
      }
    }
  }

  // Which units run, for each of `rows`.
  void Write(bool* ran, int64_t rows) const {
    for (const Some& unit : units_) {
      std::fill_n(ran, rows, unit.of == 1 && !unit.rows.empty());
      if (unit.of > 1)
        for (const int row : unit.rows) ran[row] = true;
      ran += rows;
    }
  }

  static constexpr int kMostOfStep = 1 << 20;

 private:
  // Of a row and of it with what is added. Sums have an order of their own: the same bits on every processor.
  static float Cosine(const float* read, const float* added, int width) {
    constexpr int kSums = 16;
    std::array<float, kSums> both{}, before{}, behind{};
    for (int i = 0; i < width; i++) {
      const float x = read[i], y = read[i] + added[i];
      both[i % kSums] += x * y;
      before[i % kSums] += x * x;
      behind[i % kSums] += y * y;
    }
    auto sum = [](const std::array<float, kSums>& of) {
      float all = 0;
      for (const float each : of) all += each;
      return all;
    };
    return sum(both) / std::sqrt(std::max(sum(before) * sum(behind), std::numeric_limits<float>::min()));
  }

  float limit(size_t unit, int row) const { return limits_[unit * named_ + row * limit_stride_]; }

  std::vector<Some> units_;
  const float* limits_ = nullptr;
  size_t named_ = 1, limit_stride_ = 0;  // numbers of a unit in limits_, and of a row
  bool whole_ = true;
};

}  // namespace edge
