#include "host.h"

#include <algorithm>

namespace edge::ort {

struct Status {
  std::string why;
};
struct Value {
  fuzz::Tensor tensor;
};
struct ShapeInfo {
  Type type;
  fuzz::Dims dims;
};
struct TypeInfo {
  ShapeInfo shape;
};
struct Info {
  const fuzz::Node& node;
  std::vector<std::unique_ptr<Value>> inputs;
};
struct Context {
  const Info& info;
  fuzz::Pool& pool;
  std::vector<std::unique_ptr<Value>> outputs;
};
struct Domain {
  std::string name;
};
struct Options {};

}  // namespace edge::ort

extern "C" edge::ort::Status* RegisterCustomOps(edge::ort::Options* options, const edge::ort::Base* base);

namespace fuzz {
namespace {

using namespace edge::ort;

Operators registered;

Status* Failed(std::string why) { return new Status{std::move(why)}; }

template <class T>
Status* Find(const Info* info, const char* name, T* out) {
  const auto found = info->node.attributes.find(name);
  if (found == info->node.attributes.end()) return Failed("there is no such attribute");
  const T* value = std::get_if<T>(&found->second);
  if (!value) return Failed("the attribute is of another type");
  *out = *value;
  return nullptr;
}

Status* MakeOutput(Context* context, size_t index, const int64_t* shape, size_t rank, Value** out) {
  *out = nullptr;
  const Node& node = context->info.node;
  if (index >= node.outputs.size() || node.outputs[index] == kAny) return nullptr;
  Dims dims(shape, shape + rank);
  if (BytesOf(node.outputs[index], dims) > kMostBytes) return Failed("there is no memory for an output");
  auto& made = context->outputs[index];
  if (made) {
    if (made->tensor.dims != dims) return Failed("an output is made twice");
  } else {
    made = std::make_unique<Value>();
    const auto in_place = node.in_place.find(index);
    const Value* input = in_place == node.in_place.end() ? nullptr : context->info.inputs[in_place->second].get();
    if (input && input->tensor.type == node.outputs[index] && input->tensor.dims == dims) {
      made->tensor = input->tensor;
    } else {
      made->tensor = Tensor(node.outputs[index], dims);
      if (made->tensor.data) std::memset(made->tensor.data.get(), 0xcc, made->tensor.bytes());
    }
  }
  *out = made.get();
  return nullptr;
}

const void* const* Table() {
  static const void* table[300] = {};
  auto set = [](int place, auto function) { table[place] = reinterpret_cast<const void*>(function); };
  static const bool made = [&] {
    set(0, +[](Code, const char* why) { return Failed(why); });
    set(
        26, +[](const char* name, Domain** out) -> Status* {
          static std::deque<Domain> domains;
          return *out = &domains.emplace_back(Domain{name}), nullptr;
        });
    set(
        27, +[](Domain* domain, const Operator* op) -> Status* {
          registered[{domain->name, op->name(op)}] = op;
          return nullptr;
        });
    set(28, +[](Options*, Domain*) -> Status* { return nullptr; });
    set(51, +[](Value* value, void** out) -> Status* { return *out = value->tensor.data.get(), nullptr; });
    set(55, +[](const TypeInfo* info, const ShapeInfo** out) -> Status* { return *out = &info->shape, nullptr; });
    set(60, +[](const ShapeInfo* info, Type* out) -> Status* { return *out = info->type, nullptr; });
    set(61, +[](const ShapeInfo* info, size_t* out) -> Status* { return *out = info->dims.size(), nullptr; });
    set(
        62, +[](const ShapeInfo* info, int64_t* out, size_t count) -> Status* {
          std::copy_n(info->dims.begin(), std::min(count, info->dims.size()), out);
          return nullptr;
        });
    set(
        65, +[](const Value* value, ShapeInfo** out) -> Status* {
          return *out = new ShapeInfo{value->tensor.type, value->tensor.dims}, nullptr;
        });
    set(85, +[](const Info* info, const char* name, float* out) { return Find(info, name, out); });
    set(86, +[](const Info* info, const char* name, int64_t* out) { return Find(info, name, out); });
    set(
        89, +[](const Context* context, size_t* out) -> Status* {
          return *out = context->info.node.outputs.size(), nullptr;
        });
    set(
        90, +[](const Context* context, size_t index, const Value** out) -> Status* {
          return *out = index < context->info.inputs.size() ? context->info.inputs[index].get() : nullptr, nullptr;
        });
    set(91, MakeOutput);
    set(93, +[](Status* status) { delete status; });
    set(98, +[](TypeInfo* info) { delete info; });
    set(99, +[](ShapeInfo* info) { delete info; });
    set(230, +[](const Info* info, size_t* out) -> Status* { return *out = info->node.inputs.size(), nullptr; });
    set(231, +[](const Info* info, size_t* out) -> Status* { return *out = info->node.outputs.size(), nullptr; });
    set(
        235, +[](const Info* info, size_t index, TypeInfo** out) -> Status* {
          if (index >= info->node.outputs.size() || info->node.outputs[index] == kAny) return Failed("it has no type");
          return *out = new TypeInfo{{info->node.outputs[index], {}}}, nullptr;
        });
    set(
        249, +[](const Info* info, size_t index, int* is_constant, const Value** out) -> Status* {
          const Value* value = index < info->inputs.size() ? info->inputs[index].get() : nullptr;
          *is_constant = value && value->tensor.constant;
          *out = *is_constant ? value : nullptr;
          return nullptr;
        });
    set(
        274, +[](const Context* context, void (*work)(void*, size_t), size_t total, size_t, void* with) -> Status* {
          context->pool.ParallelFor(work, total, with);
          return nullptr;
        });
    return true;
  }();
  (void)made;
  return table;
}

std::string Taken(Status* status) {
  std::string why = status->why;
  delete status;
  return why.empty() ? "it was refused without a word" : why;
}

}  // namespace

const Operators& AllOperators() {
  static const bool made = [] {
    static const Base base{[](uint32_t) { return Table(); }, [] { return "fuzz"; }};
    Options options;
    return !RegisterCustomOps(&options, &base);
  }();
  if (!made) std::abort();
  return registered;
}

Result Run(const Node& node, Pool& pool) {
  Result result;
  const auto found = AllOperators().find({node.domain, node.op});
  if (found == AllOperators().end()) std::abort();
  const Operator* op = found->second;
  // onnxruntime has checked a node against these, but where the operator takes whatever is given.
  const size_t takes = op->inputs(op), gives = op->outputs(op);
  const bool variadic = op->input_characteristic(op, 0) == kVariadic;
  if (!variadic) {
    if (node.inputs.size() > takes || node.outputs.size() > gives) return {"there are more inputs or outputs", {}};
    for (size_t i = 0; i < takes; i++) {
      const Tensor* given = i < node.inputs.size() ? node.inputs[i].get() : nullptr;
      if (given ? given->type != op->input_type(op, i) : op->input_characteristic(op, i) == kRequired)
        return {"an input is missing or of another type", {}};
    }
    for (size_t i = 0; i < gives; i++) {
      const Type given = i < node.outputs.size() ? node.outputs[i] : kAny;
      if (given == kAny ? op->output_characteristic(op, i) == kRequired : given != op->output_type(op, i))
        return {"an output is missing or of another type", {}};
    }
  }
  Info info{node, {}};
  for (const auto& input : node.inputs) {
    info.inputs.push_back(input ? std::make_unique<Value>() : nullptr);
    if (input) info.inputs.back()->tensor = *input;
  }
  for (const auto& [output, input] : node.in_place)  // which is written over
    if (input < info.inputs.size() && info.inputs[input]) info.inputs[input]->tensor = node.inputs[input]->copy();
  void* kernel = nullptr;
  if (Status* failed = op->create_v2(op, Table(), &info, &kernel)) return {Taken(failed), {}};
  Context context{info, pool, {}};
  context.outputs.resize(node.outputs.size());
  Status* failed = op->compute_v2(kernel, &context);
  op->destroy(kernel);
  if (failed) return {Taken(failed), {}};
  for (size_t i = 0; i < node.outputs.size(); i++) {
    if (node.outputs[i] != kAny && !context.outputs[i]) return {"output " + std::to_string(i) + " was never made", {}};
    result.outputs.push_back(context.outputs[i] ? context.outputs[i]->tensor : Tensor());
  }
  return result;
}

}  // namespace fuzz
