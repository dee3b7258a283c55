// What a chain is made of, read from a node and checked.
//
// Its attribute `nodes` is their number, `taken` and `given` those of its inputs and outputs. A node's attributes begin
// with its number and a dot; among them are `op` (see kOps), `inputs`, `outputs` and, for each of them, `input.<i>` and
// `output.<i>`: which value it is, or -1. Values are the chain's inputs, then its outputs, then what its nodes alone
// read, in the order in which they are made. Each is made once, before it is read.
//
// A chain may be in `units`, of which a step leaves some out: `route` is the input that says which ones run, a truth
// value for each of them, for all rows of the step or for each, and `<i>.unit` the unit of a node, if it is in one.
// What such a node makes is read by nodes of its unit, but for what others go on with: `passes` is the number of those,
// and `pass.<j>.unit`, `pass.<j>.made` and `pass.<j>.read` say that where the unit does not run, what it would have
// made is what it would have read, which nobody reads any more then. Keys and values stay as they were. Where a unit
// runs for some rows its nodes read and make those alone, and passes put them back among the others. `limits` is the
// input that says, for each unit, from which cosine on others are left out (see `Route::Leave`), of what its two passes
// make, and `ran` the output that then says which ones ran, for each row of the step. `parts` is the number of values,
// after the outputs, that are parts of inputs: of number `part.<j>.of` that at `part.<j>.at` along the first axis,
// which stays, as one of 1, where `part.<j>.keep` is 1.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "operators.h"

namespace edge {

class ChainParts {
 protected:
  static constexpr int kMostNodes = 1 << 16;
  static constexpr int kMostValues = 1 << 20;
  static constexpr int kNoValue = -1, kNoUnit = -1;
  static constexpr size_t kMostOfNode = 16;  // inputs, or outputs

  struct Link {
    const char* called;
    std::unique_ptr<Kernel> kernel;
    std::vector<int> inputs, outputs;
    const Operator* of = nullptr;
    int unit = kNoUnit;
    std::vector<By> outside{};    // what inputs that are made outside of its unit have of their own
    const char* never = nullptr;  // why it cannot run for some rows alone
  };

  // What a unit makes and reads that others go on with, and its node that makes it.
  struct Pass {
    int unit, made, read;
    size_t link;
    bool second;        // of a unit that has one already
    bool last = false;  // nobody reads behind it what the unit reads
  };

  // What an input has for one unit.
  struct Part {
    int of, at, keep;
  };

  ChainParts(const Node& node, const Form& form) {
    const Operator* const kOps[] = {kProductOperator,   kAttentionOperator,    kNormOperator,      kGatherOperator,
                                    kMultiHeadOperator, kPositionBiasOperator, kLikeliestOperator, kLargestOperator};
    inputs_ = node.number("taken", 0, 0, kMostValues);
    outputs_ = node.number("given", 0, 0, kMostValues);
    if (inputs_ != node.inputs() || outputs_ != node.outputs())
      Refuse(node, "it has ", Count(node.inputs()), " inputs and ", Count(node.outputs()), " outputs, not ",
             Count(inputs_), " and ", Count(outputs_));
    for (size_t i = 0; i < outputs_; i++) types_.push_back(node.output_type(i));
    route_ = node.number("route", kNoValue, kNoValue, static_cast<int>(inputs_) - 1);
    limits_ = node.number("limits", kNoValue, kNoValue, static_cast<int>(inputs_) - 1);
    ran_ = node.number("ran", kNoValue, kNoValue, static_cast<int>(outputs_) - 1);
    units_ = node.number("units", 0, 0, kMostNodes);
    const int nodes = node.number("nodes", 0, 1, kMostNodes);
    made_.resize(inputs_ + outputs_);
    std::fill_n(made_.begin(), inputs_, true);
    if (ran_ != kNoValue && route_ == kNoValue) Refuse(node, "it says what ran, and there is no route");
    if (ran_ != kNoValue) made_[inputs_ + ran_] = true;
    ReadParts(node);
    for (int i = 0; i < nodes; i++) {
      const std::string prefix = std::to_string(i) + ".";
      const int op = node.number((prefix + "op").c_str(), kNoValue, 0, static_cast<int>(std::size(kOps)) - 1);
      const Operator& of = *kOps[op];
      Link link{of.called, nullptr, Values(node, prefix + "input", of.takes),
                Values(node, prefix + "output", of.gives)};
      link.of = &of;
      link.unit = node.number((prefix + "unit").c_str(), kNoUnit, kNoUnit, units_ - 1);
      if (link.unit != kNoUnit && route_ == kNoValue)
        Refuse(node, "node ", int64_t{i}, " is in a unit, and there is no route");
      for (int value : link.inputs)
        if (value != kNoValue && (value >= static_cast<int>(made_.size()) || !made_[value]))
          Refuse(node, "value ", int64_t{value}, " is read before it is made");
      for (int value : link.outputs) {
        if (value == kNoValue) continue;
        if (value == static_cast<int>(made_.size())) made_.push_back(false);
        if (value > static_cast<int>(made_.size()) || made_[value])
          Refuse(node, "value ", int64_t{value}, " is made a second time, or not in turn");
        made_[value] = true;
      }
      link.kernel = of.made(node.of(of.called, prefix, link.inputs), form);
      links_.push_back(std::move(link));
    }
    for (size_t i = 0; i < outputs_; i++)
      if (!made_[inputs_ + i]) Refuse(node, "output ", Count(i), " is never made");
    ReadPasses(node);
    FindRows();
    Place();
  }

  bool inside(int value) const { return value >= static_cast<int>(inputs_ + outputs_); }
  static int64_t Count(size_t number) { return static_cast<int64_t>(number); }

  std::vector<Link> links_;
  std::vector<ort::Type> types_;  // of the outputs
  std::vector<bool> made_;        // of all values
  std::vector<size_t> places_;
  std::vector<Part> parts_;
  std::vector<Pass> passes_;  // in the order of their nodes
  std::vector<bool> passed_;  // of all values: whether they are what a unit makes that others go on with
  size_t inputs_ = 0, outputs_ = 0, memory_ = 0;
  int route_ = kNoValue, limits_ = kNoValue, ran_ = kNoValue, units_ = 0;

 private:
  void ReadParts(const Node& node) {
    const int parts = node.number("parts", 0, 0, kMostNodes);
    for (int j = 0; j < parts; j++) {
      const std::string name = "part." + std::to_string(j);
      auto number = [&](const char* what, int most) { return node.number((name + what).c_str(), -1, 0, most); };
      parts_.push_back({number(".of", static_cast<int>(inputs_) - 1), number(".at", kMostNodes), number(".keep", 1)});
      made_.push_back(true);
    }
  }

  void ReadPasses(const Node& node) {
    std::vector<size_t> makers(made_.size(), links_.size());
    for (size_t at = 0; at < links_.size(); at++)
      for (int value : links_[at].outputs)
        if (value != kNoValue) makers[value] = at;
    const int passes = node.number("passes", 0, 0, kMostNodes);
    for (int j = 0; j < passes; j++) {
      const std::string name = "pass." + std::to_string(j);
      auto number = [&](const char* what, int most) { return node.number((name + what).c_str(), -1, 0, most); };
      const int unit = number(".unit", units_ - 1), last = static_cast<int>(made_.size()) - 1;
      const int made = number(".made", last), read = number(".read", last);
      const size_t link = makers[made], before = makers[read];
      const bool read_before = before < link || (before == links_.size() && read < static_cast<int>(inputs_));
      if (link == links_.size() || links_[link].unit != unit || !read_before ||
          (!passes_.empty() && passes_.back().link > link))
        Refuse(node, name, " is of values that are made by other units, or not in turn");
      const bool second = !passes_.empty() && passes_.back().unit == unit;
      passes_.push_back({unit, made, read, link, second});
    }
  }

  // What a node of a unit reads by rows that others have made for all, and which nodes cannot run for some.
  void FindRows() {
    std::vector<int> of(made_.size(), kNoUnit);
    for (const Link& link : links_)
      for (int value : link.outputs)
        if (value != kNoValue) of[value] = link.unit;
    for (Link& link : links_) {
      bool by_rows = false;
      for (size_t i = 0; i < link.inputs.size(); i++) {
        const By by = link.of->takes[i].by;
        by_rows |= by == By::kRow;
        link.outside.push_back(link.inputs[i] == kNoValue || of[link.inputs[i]] != link.unit ? by : By::kNothing);
      }
      if (!by_rows) link.never = "it is computed for all rows of a step, or for none";
    }
    std::vector<std::vector<size_t>> readers(made_.size());
    for (size_t at = 0; at < links_.size(); at++)
      for (int value : links_[at].inputs)
        if (value != kNoValue) readers[value].push_back(at);
    std::vector<int> handed(made_.size());
    for (const Pass& pass : passes_) handed[pass.read]++;
    passed_.resize(made_.size());
    for (Pass& pass : passes_) {
      passed_[pass.made] = true;
      const auto& of_read = readers[pass.read];
      pass.last = handed[pass.read] == 1 && (of_read.empty() || of_read.back() <= pass.link);
      for (const size_t at : readers[pass.made])
        if (links_[at].unit == pass.unit) links_[at].never = "it reads some rows that were put among all";
    }
  }

  // The values that an operator reads, or makes: those that must be there are, and there are no others.
  static std::vector<int> Values(const Node& node, const std::string& name, const std::vector<Given>& of) {
    std::vector<int> found(node.number((name + "s").c_str(), 0, 0, static_cast<int>(of.size())));
    for (size_t k = 0; k < of.size(); k++) {
      const std::string each = name + "." + std::to_string(k);
      const int value = k < found.size() ? node.number(each.c_str(), kNoValue, kNoValue, 2 * kMostValues) : kNoValue;
      if (value == kNoValue && of[k].characteristic == ort::kRequired) Refuse(node, each, " is missing");
      if (k < found.size()) found[k] = value;
    }
    return found;
  }

  // Gives each value that nodes alone read a place in memory, from the node that makes it to the last that reads it.
  void Place() {
    std::vector<std::vector<int>> ends(links_.size());  // the values that a node is the last to read, or to make
    std::vector<bool> later(made_.size());
    const size_t first = inputs_ + outputs_ + parts_.size();
    auto inside = [&](int value) { return value >= static_cast<int>(first); };
    auto ended = [&](int value, size_t at) {
      if (!inside(value) || later[value]) return;
      later[value] = true;
      ends[at].push_back(value);
    };
    auto pass = passes_.rbegin();
    for (size_t at = links_.size(); at-- > 0;) {
      for (; pass != passes_.rend() && pass->link == at; ++pass) ended(pass->read, at);
      for (const auto* values : {&links_[at].inputs, &links_[at].outputs})
        for (int value : *values) ended(value, at);
    }
    places_.resize(made_.size());
    std::vector<size_t> free;
    for (size_t at = 0; at < links_.size(); at++) {
      for (int value : links_[at].outputs) {
        if (!inside(value)) continue;
        if (free.empty()) free.push_back(memory_++);
        places_[value] = free.back();
        free.pop_back();
      }
      for (int value : ends[at]) free.push_back(places_[value]);
    }
  }
};

}  // namespace edge
