// A custom operator of onnxruntime, made of a class of kernels, by itself or as one of a chain.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "lanes.h"
#include "ort_api.h"
#include "team.h"
#include "tensors.h"

namespace edge {

// What an operator is made of: the attributes and the constant inputs of a node, or of one of a chain's.
class Node {
 public:
  Node(const ort::Api& api, const ort::Info* info) : api(api), info_(info) {}
  // One of this chain's: its attributes begin with `prefix`; inputs: which of the chain's each of its own is, or -1.
  Node of(std::string prefix, const std::vector<int>& inputs) const {
    Node part(api, info_);
    part.prefix_ = std::move(prefix);
    part.inputs_ = &inputs;
    return part;
  }

  // An attribute; `otherwise` where the node has none of that name.
  int number(const char* name, int otherwise = 0) const {
    return static_cast<int>(Attribute(name, int64_t{otherwise}));
  }
  int64_t large(const char* name) const { return Attribute(name, int64_t{0}); }
  float real(const char* name, float otherwise) const { return Attribute(name, otherwise); }

  // An input that is part of the graph; data is null where it is not there, or not constant.
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

  const ort::Api& api;

 private:
  template <class T>
  T Attribute(const char* name, T otherwise) const {
    T value = otherwise;
    if (ort::Status* failed = api.Attribute(info_, (prefix_ + name).c_str(), &value)) {
      api.Release(failed);
      return otherwise;
    }
    return value;
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

// A run of an operator: what it reads, where it writes, and the threads and the memory for it.
class Call {
 public:
  Call(const ort::Api& api, Team& team, Room& room) : api(api), team(team), room(room) {}
  virtual ~Call() = default;
  virtual ort::Tensor input(size_t index) = 0;  // data is null where it is not there
  virtual bool has_output(size_t index) = 0;    // whether somebody reads it
  virtual void* output(size_t index, const int64_t* shape, size_t rank) = 0;

  const ort::Api& api;
  Team& team;
  Room& room;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Compute(Call& call) const = 0;
};

using Made = std::unique_ptr<Kernel> (*)(const Node&, const Form&);
template <class Of>
std::unique_ptr<Kernel> Make(const Node& node, const Form& form) {
  return std::make_unique<Of>(node, form);
}

struct Given {
  ort::Type type;
  ort::Characteristic characteristic;
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
extern const Operator* const kChainOperator;

}  // namespace edge
