// A custom operator of onnxruntime, made of a class of kernels, by itself or as one of a chain.
#pragma once

#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "lanes.h"
#include "ort_api.h"
#include "team.h"
#include "tensors.h"

namespace edge {

// What an operator is made of: the attributes and the constant inputs of a node, or of one of a chain's.
class Node : public Named {
 public:
  Node(const Named& who, const ort::Info* info) : Named(who), info_(info) {}
  // One of this chain's: its attributes begin with `prefix`; inputs: which of the chain's each of its own is, or -1.
  Node of(const char* name, std::string prefix, const std::vector<int>& inputs) const {
    Node part({api, name}, info_);
    part.prefix_ = std::move(prefix);
    part.inputs_ = &inputs;
    return part;
  }

  // An attribute, which must be within bounds; `otherwise` where the node has none of that name.
  int number(const char* name, int otherwise, int least, int most) const {
    return Within(*this, name, Attribute(name, int64_t{otherwise}), least, most);
  }
  int64_t large(const char* name) const { return Attribute(name, int64_t{0}); }
  float real(const char* name, float otherwise) const {
    const float found = Attribute(name, otherwise);
    if (!std::isfinite(found)) Refuse(*this, name, " is ", found, ", not a finite number");
    return found;
  }
  // One of those of onnxruntime's operator that these kernels do without.
  void without(const char* name) const {
    if (Attribute(name, int64_t{0})) Refuse(*this, name, " is set, which these kernels do not compute");
  }

  // An input that is part of the graph; not there where it is missing, or not constant.
  ort::Tensor constant(size_t index) const {
    if (inputs_) {
      if (index >= inputs_->size() || (*inputs_)[index] < 0) return {};
      index = static_cast<size_t>((*inputs_)[index]);
    }
    int is_constant = 0;
    const ort::Value* value = nullptr;
    ort::Check(api.Constant(info_, index, &is_constant, &value));
    return ort::Read(api, is_constant ? value : nullptr);
  }

  // How many inputs and outputs the node of the graph has, and of which type an output is.
  size_t inputs() const {
    size_t count = 0;
    ort::Check(api.Inputs(info_, &count));
    return count;
  }
  size_t outputs() const {
    size_t count = 0;
    ort::Check(api.Outputs(info_, &count));
    return count;
  }
  ort::Type output_type(size_t index) const {
    ort::TypeInfo* info = nullptr;
    const ort::ShapeInfo* of_tensor = nullptr;
    ort::Type type = ort::kAny;
    ort::Check(api.OutputType(info_, index, &info));
    ort::Status* failed = api.ShapeOf(info, &of_tensor);
    if (!failed && of_tensor) failed = api.ElementType(of_tensor, &type);
    api.Release(info);
    ort::Check(failed);
    return type;
  }

 private:
  template <class T>
  T Attribute(const char* name, T otherwise) const {
    const std::string full = prefix_ + name;
    T value = otherwise;
    if (Found(full, &value)) return value;
    std::conditional_t<std::is_same_v<T, float>, int64_t, float> other;
    if (Found(full, &other)) Refuse(*this, name, " is of another type than it must be");
    return otherwise;
  }
  template <class T>
  bool Found(const std::string& name, T* value) const {
    ort::Status* failed = api.Attribute(info_, name.c_str(), value);
    if (failed) api.Release(failed);
    return !failed;
  }

  const ort::Info* info_;
  std::string prefix_;
  const std::vector<int>* inputs_ = nullptr;
};

// Memory that a thread keeps from one step to the next, for whatever operator it runs: one at a time.
struct Room {
  std::vector<int8_t> bytes;
  std::vector<float> scales, floats, states, heads;
  std::vector<int32_t> sums;
};

// The rows of a step that a run of an operator is for, in order, where it is not for all `of` of them. What it reads
// and makes by rows has these alone. sequences: each row is a sequence of one token; else all are tokens of one.
struct Some {
  std::vector<int> rows;
  int of = 0;
  bool sequences = false;
};

// A run of an operator: what it reads, where it writes, and the threads and the memory for it.
class Call : public Named {
 public:
  Call(const Named& who, Team& team, Room& room) : Named(who), team(team), room(room) {}
  virtual ~Call() = default;
  virtual ort::Tensor input(size_t index) = 0;
  virtual bool has_input(size_t index) = 0;
  // Makes an output, and says whether it is there: whether somebody may read it.
  virtual bool output(size_t index, ort::Type type, const int64_t* shape, size_t rank, void** data) = 0;

  // An output that must be there.
  void* made(size_t index, ort::Type type, const int64_t* shape, size_t rank) {
    void* data = nullptr;
    if (!output(index, type, shape, rank, &data)) Refuse(*this, "output ", static_cast<int64_t>(index), " is missing");
    return data;
  }
  float* floats(size_t index, const int64_t* shape, size_t rank) {
    return static_cast<float*>(made(index, ort::kFloat, shape, rank));
  }
  // One that may be there: null where it is not, or has no elements.
  float* floats_if_there(size_t index, const int64_t* shape, size_t rank) {
    void* data = nullptr;
    return output(index, ort::kFloat, shape, rank, &data) ? static_cast<float*>(data) : nullptr;
  }

  Team& team;
  Room& room;
  const Some* some = nullptr;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Compute(Call& call) const = 0;
  // What a run makes that leaves this out: nothing, mostly.
  virtual void Leave(Call&) const {}
};

using Made = std::unique_ptr<Kernel> (*)(const Node&, const Form&);
template <class Of>
std::unique_ptr<Kernel> Make(const Node& node, const Form& form) {
  return std::make_unique<Of>(node, form);
}

// What an input has of its own: nothing, something for each row of a step, or for each sequence.
enum class By { kNothing, kRow, kSequence };

struct Given {
  ort::Type type;
  ort::Characteristic characteristic;
  By by = By::kNothing;
};

struct Operator : ort::Operator {
  Operator(const char* called, Made made, std::vector<Given> takes, std::vector<Given> gives);

  const char* called;
  Made made;
  std::vector<Given> takes, gives;
};

extern const Operator* const kProductOperator;
extern const Operator* const kNormOperator;
extern const Operator* const kAttentionOperator;
extern const Operator* const kBytesAttentionOperator;  // over a cache in int8
extern const Operator* const kMultiHeadOperator;
extern const Operator* const kPositionBiasOperator;
extern const Operator* const kLikeliestOperator;
extern const Operator* const kLargestOperator;
extern const Operator* const kGatherOperator;
extern const Operator* const kChainOperator;
extern const Operator* const kGgufRowsOperator;
extern const Operator* const kLinearAttentionOperator;
extern const Operator* const kConvolutionOperator;
extern const Operator* const kExpertsOperator;
extern const Operator* const kScoresOperator;

}  // namespace edge
