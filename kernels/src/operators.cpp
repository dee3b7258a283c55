#include "operators.h"

namespace edge {
namespace {

const Operator& Self(const ort::Operator* op) { return *static_cast<const Operator*>(op); }

// What failed, as onnxruntime has it; null where nothing did.
template <class Work>
ort::Status* Caught(const ort::Api& api, const Work& work) {
  try {
    work();
    return nullptr;
  } catch (const ort::Failure& failure) {
    return failure.status;
  } catch (const std::bad_alloc&) {
    return api.Fail("there is not enough memory");
  }
}

struct Held {
  ort::Api api;
  std::unique_ptr<Kernel> kernel;
};

// A run of a node of the graph.
class Direct : public Call {
 public:
  Direct(const ort::Api& api, ort::Context* context, Team& team, Room& room)
      : Call(api, team, room), context_(context) {
    ort::Check(api.Outputs(context, &outputs_));
  }

  ort::Tensor input(size_t index) override { return ort::Input(api, context_, index); }
  bool has_output(size_t index) override { return index < outputs_; }
  void* output(size_t index, const int64_t* shape, size_t rank) override {
    return ort::Output(api, context_, index, shape, rank);
  }

 private:
  ort::Context* context_;
  size_t outputs_ = 0;
};

}  // namespace

Operator::Operator(const char* called, Made made, std::vector<Given> takes, std::vector<Given> gives)
    : ort::Operator{}, called(called), made(made), takes(std::move(takes)), gives(std::move(gives)) {
  version = ort::kVersion;
  name = [](const ort::Operator* op) { return Self(op).called; };
  provider = [](const ort::Operator*) -> const char* { return nullptr; };  // the CPU
  inputs = [](const ort::Operator* op) { return Self(op).takes.size(); };
  outputs = [](const ort::Operator* op) { return Self(op).gives.size(); };
  input_type = [](const ort::Operator* op, size_t i) { return Self(op).takes[i].type; };
  output_type = [](const ort::Operator* op, size_t i) { return Self(op).gives[i].type; };
  input_characteristic = [](const ort::Operator* op, size_t i) { return Self(op).takes[i].characteristic; };
  output_characteristic = [](const ort::Operator* op, size_t i) { return Self(op).gives[i].characteristic; };
  input_memory = [](const ort::Operator*, size_t) { return 0; };
  variadic_input_minimum = variadic_output_minimum = [](const ort::Operator*) { return 1; };
  variadic_input_homogeneous = variadic_output_homogeneous = [](const ort::Operator*) { return 0; };
  create_v2 = [](const ort::Operator* op, const void* const* table, const ort::Info* info, void** out) {
    const ort::Api api(table);
    return Caught(api, [&] {
      const Form* form = Fastest();
      if (!form) throw ort::Failure{api.Fail("this processor has none of the instructions that are needed")};
      *out = new Held{api, Self(op).made(Node(api, info), *form)};
    });
  };
  compute_v2 = [](void* kernel, ort::Context* context) {
    const auto& held = *static_cast<const Held*>(kernel);
    return Caught(held.api, [&] {
      thread_local Room room;
      Team team(held.api, context);
      Direct call(held.api, context, team, room);
      held.kernel->Compute(call);
    });
  };
  destroy = [](void* kernel) { delete static_cast<Held*>(kernel); };
}

}  // namespace edge
