// The operator Chain: several operators of ours, one after another, as one. Threads come once for all of them, and
// onnxruntime is not asked for what they hand on to each other.
//
// Its attribute `nodes` is their number, `taken` and `given` those of its inputs and outputs. A node's attributes begin
// with its number and a dot; among them are `op` (see kOps), `inputs`, `outputs` and, for each of them, `input.<i>` and
// `output.<i>`: which value it is, or -1. Values are the chain's inputs, then its outputs, then what its nodes alone
// read, in the order in which they are made. Each is made once, before it is read.
//
// A chain may be in `units`, of which a step leaves some out: `route` is the input, a truth value for each of them,
// that says which ones run, and `<i>.unit` the unit of a node, if it is in one. What such a node makes is read by nodes
// of its unit, but for what others go on with: `passes` is the number of those, and `pass.<j>.unit`, `pass.<j>.made`
// and `pass.<j>.read` say that where the unit does not run, what it would have made is what it would have read, which
// nobody reads any more then. Keys and values stay as they were. `parts` is the number of values, after the outputs,
// that are parts of inputs: of number `part.<j>.of` that at `part.<j>.at` along the first axis, which stays, as one of
// 1, where `part.<j>.keep` is 1.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "operators.h"
#include "pace.h"

namespace edge {
namespace {

constexpr int kMostNodes = 1 << 16;
constexpr int kMostValues = 1 << 20;
constexpr int kNoValue = -1, kNoUnit = -1;

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

class Chain : public Kernel {
 public:
  Chain(const Node& node, const Form& form) {
    const Operator* const kOps[] = {kProductOperator,   kAttentionOperator,    kNormOperator,      &kGather,
                                    kMultiHeadOperator, kPositionBiasOperator, kLikeliestOperator, kLargestOperator};
    inputs_ = node.number("taken", 0, 0, kMostValues);
    outputs_ = node.number("given", 0, 0, kMostValues);
    if (inputs_ != node.inputs() || outputs_ != node.outputs())
      Refuse(node, "it has ", Count(node.inputs()), " inputs and ", Count(node.outputs()), " outputs, not ",
             Count(inputs_), " and ", Count(outputs_));
    for (size_t i = 0; i < outputs_; i++) types_.push_back(node.output_type(i));
    route_ = node.number("route", kNoValue, kNoValue, static_cast<int>(inputs_) - 1);
    units_ = node.number("units", 0, 0, kMostNodes);
    const int nodes = node.number("nodes", 0, 1, kMostNodes);
    made_.resize(inputs_ + outputs_);
    std::fill_n(made_.begin(), inputs_, true);
    ReadParts(node);
    for (int i = 0; i < nodes; i++) {
      const std::string prefix = std::to_string(i) + ".";
      const int op = node.number((prefix + "op").c_str(), kNoValue, 0, static_cast<int>(std::size(kOps)) - 1);
      const Operator& of = *kOps[op];
      Link link{of.called, nullptr, Values(node, prefix + "input", of.takes),
                Values(node, prefix + "output", of.gives)};
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
    Place();
  }

  void Compute(Call& call) const override {
    thread_local Handed kept;  // of the thread that runs the graph, whoever leads
    Handed& handed = kept;
    handed.values.assign(made_.size(), {});
    if (handed.memory.size() < memory_) handed.memory.resize(memory_);
    const bool* route = Route(call);
    const int run = route ? static_cast<int>(std::count(route, route + units_, true)) : 0;
    const Pace::Steps steps{Rows(call), run};
    const bool alone = pace_.alone(steps);
    const Pace::Time began = pace_.now();
    call.team.Lead(alone, [&](Team& team) {
      if (run == units_)
        for (const Link& link : links_) Run(link, true, call, team, handed);
      else
        RunSome(route, call, team, handed);
    });
    pace_.Note(steps, alone, began, pace_.now());
    for (size_t i = 0; route && i < outputs_; i++)
      if (!handed.values[inputs_ + i].there) Refuse(call, "output ", Count(i), " is made by no unit that runs");
  }

 private:
  struct Link {
    const char* called;
    std::unique_ptr<Kernel> kernel;
    std::vector<int> inputs, outputs;
    int unit = kNoUnit;
  };

  // What a unit makes and reads that others go on with, and its node that makes it.
  struct Pass {
    int unit, made, read;
    size_t link;
  };

  // What an input has for one unit.
  struct Part {
    int of, at, keep;
  };

  // What a run hands on. memory: for values that nodes alone read, which take turns in it.
  struct Handed {
    std::vector<ort::Tensor> values;
    std::vector<std::vector<std::max_align_t>> memory;
  };

  // A run of one of the chain's nodes.
  class Inner : public Call {
   public:
    Inner(const Chain& chain, const Link& link, Call& outer, Team& team, Handed& handed)
        : Call({outer.api, link.called}, team, outer.room),
          chain_(chain),
          link_(link),
          outer_(outer),
          handed_(handed) {}

    ort::Tensor input(size_t index) override {
      if (!has_input(index)) return {};
      const auto value = static_cast<size_t>(link_.inputs[index]);
      ort::Tensor& found = handed_.values[value];
      if (found.there) return found;
      if (value < chain_.inputs_) found = outer_.input(value);
      const size_t part = value - chain_.inputs_ - chain_.outputs_;
      if (part < chain_.parts_.size()) found = chain_.Read(chain_.parts_[part], outer_, handed_);
      return found;
    }
    bool has_input(size_t index) override { return index < link_.inputs.size() && link_.inputs[index] != kNoValue; }
    bool output(size_t index, ort::Type type, const int64_t* shape, size_t rank, void** data) override {
      if (index >= link_.outputs.size() || link_.outputs[index] == kNoValue) return false;
      const auto value = static_cast<size_t>(link_.outputs[index]);
      ort::Tensor& made = handed_.values[value];
      made.there = true;
      made.rank = rank;
      made.type = type;
      std::copy_n(shape, rank, made.shape.begin());
      made.data = chain_.Memory(outer_, handed_, value, made);
      *data = made.data;
      return true;
    }

   private:
    const Chain& chain_;
    const Link& link_;
    Call& outer_;
    Handed& handed_;
  };

  void Run(const Link& link, bool runs, Call& call, Team& team, Handed& handed) const {
    Inner inner(*this, link, call, team, handed);
    if (runs)
      link.kernel->Compute(inner);
    else
      link.kernel->Leave(inner);
  }

  void RunSome(const bool* route, Call& call, Team& team, Handed& handed) const {
    auto pass = passes_.begin();
    for (size_t at = 0; at < links_.size(); at++) {
      const Link& link = links_[at];
      Run(link, link.unit == kNoUnit || route[link.unit], call, team, handed);
      for (; pass != passes_.end() && pass->link == at; ++pass)
        if (!route[pass->unit]) Hand(*pass, call, handed);
    }
  }

  // Lets what a unit would have made be what it would have read: memory changes places, and nothing is copied.
  void Hand(const Pass& pass, Call& call, Handed& handed) const {
    const auto made = static_cast<size_t>(pass.made), read = static_cast<size_t>(pass.read);
    const size_t inside = inputs_ + outputs_;
    ort::Tensor& from = handed.values[read];
    if (!from.there && read < inputs_) from = call.input(read);
    if (!from.there) Refuse(call, "what unit ", int64_t{pass.unit}, " reads was not made");
    ort::Tensor to = from;
    if (made >= inside && read >= inside)
      handed.memory[places_[made]].swap(handed.memory[places_[read]]);
    else
      from.CopyTo(to.data = Memory(call, handed, made, to));
    handed.values[made] = to;
  }

  // Where a value that is made lies.
  void* Memory(Call& call, Handed& handed, size_t value, const ort::Tensor& made) const {
    if (value < inputs_ + outputs_) {
      const size_t given = value - inputs_;
      if (types_[given] != made.type) Refuse(call, "output ", Count(given), " of its chain is of another type");
      return call.made(given, made.type, made.shape.data(), made.rank);
    }
    const auto size = static_cast<size_t>(Times(made.elements(), static_cast<int64_t>(ort::Size(made.type))));
    return ort::Reserve(handed.memory[places_[value]], size / sizeof(std::max_align_t) + 1);
  }

  static ort::Tensor Read(const Part& part, Call& call, Handed& handed) {
    ort::Tensor& whole = handed.values[part.of];
    if (!whole.there) whole = call.input(static_cast<size_t>(part.of));
    const int64_t there = whole.there && whole.rank ? whole.shape[0] : 0;
    if (part.at >= there) Refuse(call, "part ", int64_t{part.at}, " is asked for, of ", there);
    ort::Tensor found = whole;
    found.shape[0] = 1;
    if (!part.keep) std::copy_n(whole.shape.begin() + 1, --found.rank, found.shape.begin());
    const auto size = static_cast<size_t>(found.elements()) * ort::Size(whole.type);
    if (size) found.data = whole.as<uint8_t>() + static_cast<size_t>(part.at) * size;
    return found;
  }

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
      passes_.push_back({unit, made, read, link});
    }
  }

  // Which units run; null where there are none.
  const bool* Route(Call& call) const {
    if (route_ == kNoValue) return nullptr;
    const ort::Tensor route = call.input(static_cast<size_t>(route_));
    Expect(call, "route", route, ort::kBool, {units_});
    return route.as<bool>();
  }

  // Of the first that it reads of [batch, rows, width]; 0 where that is not among what it reads first.
  int64_t Rows(Call& call) const {
    for (size_t i = 0; i < std::min<size_t>(inputs_, 8); i++) {
      const ort::Tensor read = call.input(i);
      if (read.there && read.type == ort::kFloat && read.rank == 3) return Times(read.shape[0], read.shape[1]);
    }
    return 0;
  }

  static int64_t Count(size_t number) { return static_cast<int64_t>(number); }

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

  std::vector<Link> links_;
  std::vector<ort::Type> types_;  // of the outputs
  std::vector<bool> made_;        // of all values
  std::vector<size_t> places_;
  std::vector<Part> parts_;
  std::vector<Pass> passes_;  // in the order of their nodes
  size_t inputs_ = 0, outputs_ = 0, memory_ = 0;
  int route_ = kNoValue, units_ = 0;
  mutable Pace pace_;
};

const Operator kChain{"Chain", Make<Chain>, {{ort::kAny, ort::kVariadic}}, {{ort::kAny, ort::kVariadic}}};

}  // namespace

const Operator* const kChainOperator = &kChain;

}  // namespace edge
