#include "operators.h"

#include <stdexcept>

namespace edge {

namespace {

std::string TypeName(ort::Type type) {
  switch (type) {
    case ort::kFloat:
      return "float32";
    case ort::kUint8:
      return "uint8";
    case ort::kInt8:
      return "int8";
    case ort::kInt32:
      return "int32";
    case ort::kInt64:
      return "int64";
    case ort::kBool:
      return "bool";
    default:
      return "type " + std::to_string(type);
  }
}

std::string Sizes(const int64_t* sizes, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; i++)
    text += (i ? ", " : "") + (sizes[i] == kAnySize ? std::string("any") : std::to_string(sizes[i]));
  return text + "]";
}

}  // namespace

void RefuseInput(const Named& who, const char* name, const ort::Tensor& input, ort::Type type,
                 std::initializer_list<int64_t> sizes) {
  const std::string must = TypeName(type) + " " + Sizes(sizes.begin(), sizes.size());
  if (!input.there) Refuse(who, name, " is missing, which must be ", must);
  Refuse(who, name, " is ", TypeName(input.type), " ", Sizes(input.shape.data(), input.rank), " and must be ", must);
}

void RefuseOther(const Named& who, const char* name, const ort::Tensor& one, const char* as, const ort::Tensor& other) {
  if (!one.there) Refuse(who, name, " is missing");
  Refuse(who, name, " is ", TypeName(one.type), " ", Sizes(one.shape.data(), one.rank), ", and ", as, " is ",
         TypeName(other.type), " ", Sizes(other.shape.data(), other.rank));
}

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
  } catch (const Refused& refused) {
    return api.Fail(refused.what(), ort::kInvalidArgument);
  } catch (const std::bad_alloc&) {
    return api.Fail("there is not enough memory");
  } catch (const std::length_error&) {
    return api.Fail("there is not so much memory");
  } catch (const std::exception& e) {
    return api.Fail(e.what());
  }
}

struct Held {
  ort::Api api;
  const char* called;
  std::unique_ptr<Kernel> kernel;
};

// A run of a node of the graph.
class Direct : public Call {
 public:
  Direct(const Named& who, ort::Context* context, Team& team, Room& room) : Call(who, team, room), context_(context) {
    ort::Check(api.Outputs(context, &outputs_));
  }

  ort::Tensor input(size_t index) override { return ort::Input(api, context_, index); }
  bool has_input(size_t index) override {
    const ort::Value* value = nullptr;
    ort::Check(api.Input(context_, index, &value));
    return value;
  }
  // Of the type that the operator gives: onnxruntime allows no other.
  bool output(size_t index, ort::Type, const int64_t* shape, size_t rank, void** data) override {
    return index < outputs_ && ort::Output(api, context_, index, shape, rank, data);
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
      const char* name = Self(op).called;
      *out = new Held{api, name, Self(op).made(Node({api, name}, info), *form)};
    });
  };
  compute_v2 = [](void* kernel, ort::Context* context) {
    const auto& held = *static_cast<const Held*>(kernel);
    return Caught(held.api, [&] {
      thread_local Room room;
      Team team(held.api, context);
      Direct call({held.api, held.called}, context, team, room);
      held.kernel->Compute(call);
    });
  };
  destroy = [](void* kernel) { delete static_cast<Held*>(kernel); };
}

}  // namespace edge
