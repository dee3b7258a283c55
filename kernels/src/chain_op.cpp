// The operator Chain: several operators of ours, one after another, as one. Threads come once for all of them, and
// onnxruntime is not asked for what they hand on to each other.
//
// Its attribute `nodes` is their number. A node's attributes begin with its number and a dot; among them are `op` (see
// kOps), `inputs`, `outputs` and, for each of them, `input.<i>` and `output.<i>`: which value it is, or -1. Values are
// the chain's inputs, then its outputs, then what its nodes alone read, which is float32.
#include <algorithm>
#include <cstring>
#include <string>

#include "operators.h"

namespace edge {
namespace {

// onnxruntime's Gather of rows: [batch, rows, width] and the numbers of rows.
class Gather : public Kernel {
 public:
  Gather(const Node&, const Form&) {}

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), which = call.input(1);
    if (rows.rank != 3 || which.rank != 1 || which.type != ort::kInt64 || rows.type != ort::kFloat)
      ort::Refuse(call.api, "rows of another kind than expected");
    const int64_t count = which.shape[0], there = rows.shape[1], width = rows.shape[2];
    const int64_t made[] = {rows.shape[0], count, width};
    auto* out = static_cast<float*>(call.output(0, made, 3));
    for (int64_t i = 0; i < rows.shape[0] * count; i++) {
      const int64_t asked = which.as<int64_t>()[i % count], row = asked < 0 ? asked + there : asked;
      if (row < 0 || row >= there) ort::Refuse(call.api, "a row that is not there");
      std::memcpy(out + i * width, rows.as<float>() + (i / count * there + row) * width, width * sizeof(float));
    }
  }
};

class Chain : public Kernel {
 public:
  Chain(const Node& node, const Form& form) {
    const Made kOps[] = {kProductOperator->made,   kAttentionOperator->made,    kNormOperator->made,     Make<Gather>,
                         kMultiHeadOperator->made, kPositionBiasOperator->made, kLikeliestOperator->made};
    inputs_ = node.number("taken");
    outputs_ = node.number("given");
    const int nodes = node.number("nodes");
    for (int i = 0; i < nodes; i++) {
      const std::string prefix = std::to_string(i) + ".";
      auto number = [&](const std::string& name, int otherwise) {
        return node.number((prefix + name).c_str(), otherwise);
      };
      auto values = [&](const std::string& name) {
        std::vector<int> found(number(name + "s", 0));
        for (size_t k = 0; k < found.size(); k++) found[k] = number(name + "." + std::to_string(k), -1);
        return found;
      };
      const int op = number("op", -1);
      if (op < 0 || op >= static_cast<int>(std::size(kOps))) ort::Refuse(node.api, "an operator that there is not");
      Link link{nullptr, values("input"), values("output")};
      link.kernel = kOps[op](node.of(prefix, link.inputs), form);
      links_.push_back(std::move(link));
    }
    Place();
  }

  void Compute(Call& call) const override {
    thread_local Handed kept;  // of the thread that runs the graph, whoever leads
    Handed& handed = kept;
    handed.values.assign(places_.size(), {});
    if (handed.memory.size() < memory_) handed.memory.resize(memory_);
    call.team.Lead([&](Team& team) {
      for (const Link& link : links_) {
        Inner inner(*this, link, call, team, handed);
        link.kernel->Compute(inner);
      }
    });
  }

 private:
  struct Link {
    std::unique_ptr<Kernel> kernel;
    std::vector<int> inputs, outputs;
  };

  // What a run hands on. memory: for values that nodes alone read, which take turns in it.
  struct Handed {
    std::vector<ort::Tensor> values;
    std::vector<std::vector<float>> memory;
  };

  // A run of one of the chain's nodes.
  class Inner : public Call {
   public:
    Inner(const Chain& chain, const Link& link, Call& outer, Team& team, Handed& handed)
        : Call(outer.api, team, outer.room), chain_(chain), link_(link), outer_(outer), handed_(handed) {}

    ort::Tensor input(size_t index) override {
      if (index >= link_.inputs.size() || link_.inputs[index] < 0) return {};
      const auto value = static_cast<size_t>(link_.inputs[index]);
      ort::Tensor& found = handed_.values[value];
      if (!found.data && value < chain_.inputs_) found = outer_.input(value);
      return found;
    }
    bool has_output(size_t index) override { return index < link_.outputs.size() && link_.outputs[index] >= 0; }
    void* output(size_t index, const int64_t* shape, size_t rank) override {
      const auto value = static_cast<size_t>(link_.outputs[index]);
      ort::Tensor& made = handed_.values[value];
      made.rank = rank;
      made.type = ort::kFloat;
      std::copy_n(shape, rank, made.shape.begin());
      if (value < chain_.inputs_ + chain_.outputs_)
        made.data = outer_.output(value - chain_.inputs_, shape, rank);
      else
        made.data = ort::Reserve(handed_.memory[chain_.places_[value]], static_cast<size_t>(made.elements()));
      return made.data;
    }

   private:
    const Chain& chain_;
    const Link& link_;
    Call& outer_;
    Handed& handed_;
  };

  // Gives each value that nodes alone read a place in memory, from the node that makes it to the last that reads it.
  void Place() {
    std::vector<size_t> last;
    auto note = [&](int value, size_t at) {
      if (value >= static_cast<int>(last.size())) last.resize(value + 1);
      if (value >= 0) last[value] = at;
    };
    for (size_t at = 0; at < links_.size(); at++)
      for (const auto* values : {&links_[at].inputs, &links_[at].outputs})
        for (int value : *values) note(value, at);
    places_.resize(last.size());
    std::vector<size_t> free;
    for (size_t at = 0; at < links_.size(); at++) {
      auto inside = [&](int value) { return value >= static_cast<int>(inputs_ + outputs_); };
      for (int value : links_[at].outputs) {
        if (!inside(value)) continue;
        if (free.empty()) free.push_back(memory_++);
        places_[value] = free.back();
        free.pop_back();
      }
      for (size_t value = inputs_ + outputs_; value < last.size(); value++)
        if (last[value] == at) free.push_back(places_[value]);
    }
  }

  std::vector<Link> links_;
  std::vector<size_t> places_;
  size_t inputs_ = 0, outputs_ = 0, memory_ = 0;
};

const Operator kChain{"Chain", Make<Chain>, {{ort::kAny, ort::kVariadic}}, {{ort::kAny, ort::kVariadic}}};

}  // namespace

const Operator* const kChainOperator = &kChain;

}  // namespace edge
