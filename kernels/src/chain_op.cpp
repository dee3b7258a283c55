// The operator Chain: several operators of ours, one after another, as one. Threads come once for all of them, and
// onnxruntime is not asked for what they hand on to each other. What it is made of: chain_parts.h.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "chain_parts.h"
#include "operators.h"
#include "pace.h"
#include "route.h"

namespace edge {
namespace {

class Chain : public Kernel, private ChainParts {
 public:
  Chain(const Node& node, const Form& form) : ChainParts(node, form) {}

  void Compute(Call& call) const override {
    thread_local Handed kept;  // of the thread that runs the graph, whoever leads
    Handed& handed = kept;
    handed.values.assign(made_.size(), {});
    if (handed.memory.size() < memory_) handed.memory.resize(memory_);
    const ort::Tensor stream = Stream(call);
    const bool routed = route_ != kNoValue;
    if (routed) {
      const ort::Tensor none, limits = limits_ == kNoValue ? none : call.input(static_cast<size_t>(limits_));
      handed.route.Read(call, units_, call.input(static_cast<size_t>(route_)), limits, stream);
    }
    const int64_t rows = stream.there ? Times(stream.shape[0], stream.shape[1]) : 0;
    const Pace::Steps steps{rows, routed ? handed.route.running() : 0};
    const bool alone = pace_.alone(steps);
    const Pace::Time began = pace_.now();
    call.team.Lead(alone, [&](Team& team) {
      if (!routed || handed.route.whole())
        for (const Link& link : links_) Run(link, true, nullptr, call, team, handed);
      else
        RunSome(call, team, handed);
    });
    pace_.Note(steps, alone, began, pace_.now());
    if (ran_ != kNoValue) {
      const int64_t made[] = {units_, std::max<int64_t>(1, rows)};
      if (types_[ran_] != ort::kBool) Refuse(call, "what ran is of another type");
      handed.route.Write(static_cast<bool*>(call.made(static_cast<size_t>(ran_), ort::kBool, made, 2)), made[1]);
    }
    for (size_t i = 0; routed && i < outputs_; i++)
      if (static_cast<int>(i) != ran_ && !handed.values[inputs_ + i].there)
        Refuse(call, "output ", Count(i), " is made by no unit that runs");
  }

 private:
  using Bytes = std::vector<std::max_align_t>;

  // What a run hands on. memory: for values that nodes alone read, which take turns in it. gathered: some rows of what
  // a node reads, by its inputs. apart: some rows of what it makes, where all are asked for, by its outputs. spare: for
  // all rows of a value.
  struct Handed {
    std::vector<ort::Tensor> values;
    std::vector<Bytes> memory;
    std::array<Bytes, kMostOfNode> gathered, apart;
    Bytes spare;
    Route route;
  };

  // A run of one of the chain's nodes.
  class Inner : public Call {
   public:
    Inner(const Chain& chain, const Link& link, const Some* of, Call& outer, Team& team, Handed& handed)
        : Call({outer.api, link.called}, team, outer.room), chain_(chain), link_(link), outer_(outer), handed_(handed) {
      some = of;
    }

    ort::Tensor input(size_t index) override {
      if (!has_input(index)) return {};
      const By by = some ? link_.outside[index] : By::kNothing;
      if (by == By::kRow || (by == By::kSequence && some->sequences)) return Gathered(Whole(index), index);
      return Whole(index);
    }
    ort::Tensor Whole(size_t index) {
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
      const bool apart = some && chain_.passed_[value] && !chain_.inside(link_.outputs[index]);
      made.data = apart ? Reserved(handed_.apart[index], Size(made)) : chain_.Memory(outer_, handed_, value, made);
      *data = made.data;
      return true;
    }

   private:
    // Some rows of what is there for all.
    ort::Tensor Gathered(const ort::Tensor& all, size_t index) {
      if (!all.there || !all.elements()) return all;
      const size_t axis = some->sequences ? 0 : 1, rows = some->rows.size();
      if (all.rank <= axis || all.shape[axis] != some->of || (axis && all.shape[0] != 1))
        Refuse(*this, "input ", Count(index), " is not of ", int64_t{some->of}, " rows, of which it is to have some");
      ort::Tensor found = all;
      found.shape[axis] = Count(rows);
      const size_t size = Size(all) / some->of;
      auto* to = reinterpret_cast<uint8_t*>(Reserved(handed_.gathered[index], size * rows));
      found.data = to;
      for (const int row : some->rows) {
        std::memcpy(to, all.as<uint8_t>() + row * size, size);
        to += size;
      }
      return found;
    }

    const Chain& chain_;
    const Link& link_;
    Call& outer_;
    Handed& handed_;
  };

  void Run(const Link& link, bool runs, const Some* some, Call& call, Team& team, Handed& handed) const {
    Inner inner(*this, link, some, call, team, handed);
    if (!runs) return link.kernel->Leave(inner);
    if (some && link.never) Refuse(inner, link.never);
    link.kernel->Compute(inner);
  }

  void RunSome(Call& call, Team& team, Handed& handed) const {
    Route& route = handed.route;
    auto pass = passes_.begin();
    for (size_t at = 0; at < links_.size(); at++) {
      const int unit = links_[at].unit;
      const bool runs = unit == kNoUnit || route.runs(unit);
      Run(links_[at], runs, unit == kNoUnit || !runs ? nullptr : route.some(unit), call, team, handed);
      for (; pass != passes_.end() && pass->link == at; ++pass) {
        if (!route.runs(pass->unit))
          Hand(*pass, call, handed);
        else if (const Some* some = route.some(pass->unit))
          HandSome(*pass, *some, call, handed);
        if (pass->second && route.limited(pass->unit)) Limit(pass[-1], *pass, call, handed);
      }
    }
  }

  // What stands for a unit where it does not run.
  const ort::Tensor& Before(const Pass& pass, Call& call, Handed& handed) const {
    ort::Tensor& from = handed.values[pass.read];
    if (!from.there && pass.read < static_cast<int>(inputs_)) from = call.input(static_cast<size_t>(pass.read));
    if (!from.there) Refuse(call, "what unit ", int64_t{pass.unit}, " reads was not made");
    return from;
  }

  // Lets what a unit would have made be what it would have read: memory changes places, and nothing is copied.
  void Hand(const Pass& pass, Call& call, Handed& handed) const {
    const ort::Tensor& from = Before(pass, call, handed);
    ort::Tensor to = from;
    if (inside(pass.made) && inside(pass.read))
      handed.memory[places_[pass.made]].swap(handed.memory[places_[pass.read]]);
    else
      from.CopyTo(to.data = Memory(call, handed, static_cast<size_t>(pass.made), to));
    handed.values[pass.made] = to;
  }

  // Puts the rows that a unit has made among those that it would have read.
  void HandSome(const Pass& pass, const Some& some, Call& call, Handed& handed) const {
    const ort::Tensor &before = Before(pass, call, handed), &made = handed.values[pass.made];
    const size_t axis = some.sequences ? 0 : 1, rows = some.rows.size();
    bool fits = before.type == made.type && before.rank == made.rank && before.rank > axis &&
                before.shape[axis] == some.of && made.shape[axis] == Count(rows) && (!axis || made.shape[0] == 1);
    for (size_t i = 0; fits && i < before.rank; i++) fits = i == axis || before.shape[i] == made.shape[i];
    if (!fits) Refuse(call, "what unit ", int64_t{pass.unit}, " makes of some rows does not go with what it reads");
    const size_t size = Size(before) / some.of;
    ort::Tensor all = before;
    const bool swaps = inside(pass.made);
    Bytes& into = inside(pass.read) && pass.last ? handed.memory[places_[pass.read]] : handed.spare;
    if (!swaps) all.data = Memory(call, handed, static_cast<size_t>(pass.made), before);
    if (swaps && &into == &handed.spare) all.data = Reserved(into, Size(before));
    before.CopyTo(all.data);
    const auto* from = made.as<uint8_t>();
    for (const int row : some.rows) {
      std::memcpy(all.as<uint8_t>() + row * size, from, size);
      from += size;
    }
    if (swaps) handed.memory[places_[pass.made]].swap(into);
    handed.values[pass.made] = all;
  }

  // What a unit has added to the stream may make others be left out.
  void Limit(const Pass& first, const Pass& pass, Call& call, Handed& handed) const {
    const ort::Tensor &read = handed.values[first.made], &added = handed.values[pass.made];
    ExpectSame(call, "what a unit adds", added, "what it reads", read);
    if (read.type != ort::kFloat || read.rank != 3 || Times(read.shape[0], read.shape[1]) != handed.route.rows())
      Refuse(call, "limits are of a stream [batch, rows, width]");
    handed.route.Leave(pass.unit, read.as<float>(), added.as<float>(), static_cast<int>(read.shape[2]));
  }

  static size_t Size(const ort::Tensor& of) { return static_cast<size_t>(of.elements()) * ort::Size(of.type); }
  static void* Reserved(Bytes& room, size_t size) { return ort::Reserve(room, size / sizeof(std::max_align_t) + 1); }

  // Where a value that is made lies.
  void* Memory(Call& call, Handed& handed, size_t value, const ort::Tensor& made) const {
    if (value < inputs_ + outputs_) {
      const size_t given = value - inputs_;
      if (types_[given] != made.type) Refuse(call, "output ", Count(given), " of its chain is of another type");
      return call.made(given, made.type, made.shape.data(), made.rank);
    }
    return Reserved(handed.memory[places_[value]],
                    static_cast<size_t>(Times(made.elements(), static_cast<int64_t>(ort::Size(made.type)))));
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

  // The first that it reads of [batch, rows, width]; not there where that is not among what it reads first.
  ort::Tensor Stream(Call& call) const {
    for (size_t i = 0; i < std::min<size_t>(inputs_, 8); i++) {
      const ort::Tensor read = call.input(i);
      if (read.there && read.type == ort::kFloat && read.rank == 3) return read;
    }
    return {};
  }

  mutable Pace pace_;
};

const Operator kChain{"Chain", Make<Chain>, {{ort::kAny, ort::kVariadic}}, {{ort::kAny, ort::kVariadic}}};

}  // namespace

const Operator* const kChainOperator = &kChain;

}  // namespace edge
