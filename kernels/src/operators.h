// A custom operator of onnxruntime, made of a class of kernels.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "lanes.h"
#include "ort_api.h"
#include "tensors.h"

namespace edge {

struct Given {
  ort::Type type;
  ort::Characteristic characteristic;
};

// Kernel: made from (api, info, form), with Compute(context).
template <class Kernel>
struct Operator : ort::Operator {
  Operator(const char* name, std::vector<Given> inputs, std::vector<Given> outputs)
      : ort::Operator{}, name_(name), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    version = ort::kVersion;
    this->name = [](const ort::Operator* op) { return Self(op).name_; };
    provider = [](const ort::Operator*) -> const char* { return nullptr; };  // the CPU
    this->inputs = [](const ort::Operator* op) { return Self(op).inputs_.size(); };
    this->outputs = [](const ort::Operator* op) { return Self(op).outputs_.size(); };
    input_type = [](const ort::Operator* op, size_t i) { return Self(op).inputs_[i].type; };
    output_type = [](const ort::Operator* op, size_t i) { return Self(op).outputs_[i].type; };
    input_characteristic = [](const ort::Operator* op, size_t i) { return Self(op).inputs_[i].characteristic; };
    output_characteristic = [](const ort::Operator* op, size_t i) { return Self(op).outputs_[i].characteristic; };
    input_memory = [](const ort::Operator*, size_t) { return 0; };
    create_v2 = [](const ort::Operator*, const void* const* table, const ort::Info* info, void** made) {
      const ort::Api api(table);
      return Caught(api, [&] {
        const Form* form = Fastest();
        if (!form) throw ort::Failure{api.Fail("this processor has none of the instructions that are needed")};
        *made = new Made{api, Kernel(api, info, *form)};
      });
    };
    compute_v2 = [](void* kernel, ort::Context* context) {
      const auto& of = *static_cast<const Made*>(kernel);
      return Caught(of.api, [&] { of.kernel.Compute(context); });
    };
    destroy = [](void* kernel) { delete static_cast<Made*>(kernel); };
  }

 private:
  struct Made {
    ort::Api api;
    Kernel kernel;
  };
  static const Operator& Self(const ort::Operator* op) { return *static_cast<const Operator*>(op); }

  template <class Work>
  static ort::Status* Caught(const ort::Api& api, const Work& work) {
    try {
      work();
      return nullptr;
    } catch (const ort::Failure& failure) {
      return failure.status;
    } catch (const std::bad_alloc&) {
      return api.Fail("there is not enough memory");
    }
  }

  const char* name_;
  std::vector<Given> inputs_, outputs_;
};

extern const ort::Operator *const kProductOperator, *const kNormOperator, *const kAttentionOperator,
                                                                              *const kBytesAttentionOperator;

}  // namespace edge
