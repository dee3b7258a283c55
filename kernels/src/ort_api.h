// The part of onnxruntime's C interface that a custom operator needs: a table of functions, whose places never change,
// and the structure that describes an operator.
//
// Source: onnxruntime_c_api.h of onnxruntime 1.31: OrtApiBase, OrtApi, OrtCustomOp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge::ort {

struct Status;
struct Value;
struct ShapeInfo;
struct Info;  // of a kernel that is being made
struct TypeInfo;
struct Context;  // of a kernel that runs
struct Domain;
struct Options;

struct Base {
  const void* const* (*api)(uint32_t version);
  const char* (*version)();
};

constexpr uint32_t kVersion = 17;  // of the interface: custom operators have been what is declared here since it
enum Type { kAny = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9 };
enum Characteristic { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum Code { kFail = 1, kInvalidArgument = 2 };

struct Operator {
  uint32_t version;
  void* (*create)(const Operator*, const void* const* api, const Info*);  // before there was create_v2
  const char* (*name)(const Operator*);
  const char* (*provider)(const Operator*);
  Type (*input_type)(const Operator*, size_t);
  size_t (*inputs)(const Operator*);
  Type (*output_type)(const Operator*, size_t);
  size_t (*outputs)(const Operator*);
  void (*compute)(void*, Context*);
  void (*destroy)(void*);
  Characteristic (*input_characteristic)(const Operator*, size_t);
  Characteristic (*output_characteristic)(const Operator*, size_t);
  int (*input_memory)(const Operator*, size_t);
  int (*variadic_input_minimum)(const Operator*);
  int (*variadic_input_homogeneous)(const Operator*);
  int (*variadic_output_minimum)(const Operator*);
  int (*variadic_output_homogeneous)(const Operator*);
  Status* (*create_v2)(const Operator*, const void* const* api, const Info*, void**);
  Status* (*compute_v2)(void*, Context*);
  Status* (*infer_shape)(const Operator*, void*);
  int (*first_version)(const Operator*);
  int (*last_version)(const Operator*);
  size_t (*may_be_in_place)(int**, int**);
  void (*release_in_place)(int*, int*);
  size_t (*aliases)(int**, int**);
  void (*release_aliases)(int*, int*);
};

// The functions that are called, by their place in the table.
class Api {
 public:
  explicit Api(const void* const* table) : table_(table) {}

  Status* Fail(const char* message, Code code = kFail) const {
    return Call<Status*(Code, const char*)>(0)(code, message);
  }
  Status* NewDomain(const char* name, Domain** out) const {
    return Call<Status*(const char*, Domain**)>(26)(name, out);
  }
  Status* Add(Domain* domain, const Operator* op) const {
    return Call<Status*(Domain*, const Operator*)>(27)(domain, op);
  }
  Status* Add(Options* options, Domain* domain) const { return Call<Status*(Options*, Domain*)>(28)(options, domain); }
  Status* Memory(Value* value, void** out) const { return Call<Status*(Value*, void**)>(51)(value, out); }
  Status* ShapeOf(const TypeInfo* info, const ShapeInfo** out) const {
    return Call<Status*(const TypeInfo*, const ShapeInfo**)>(55)(info, out);
  }
  Status* Dimensions(const ShapeInfo* info, size_t* out) const {
    return Call<Status*(const ShapeInfo*, size_t*)>(61)(info, out);
  }
  Status* Dimensions(const ShapeInfo* info, int64_t* out, size_t count) const {
    return Call<Status*(const ShapeInfo*, int64_t*, size_t)>(62)(info, out, count);
  }
  Status* ElementType(const ShapeInfo* info, Type* out) const {
    return Call<Status*(const ShapeInfo*, Type*)>(60)(info, out);
  }
  Status* Shape(const Value* value, ShapeInfo** out) const {
    return Call<Status*(const Value*, ShapeInfo**)>(65)(value, out);
  }
  Status* Attribute(const Info* info, const char* name, float* out) const {
    return Call<Status*(const Info*, const char*, float*)>(85)(info, name, out);
  }
  Status* Attribute(const Info* info, const char* name, int64_t* out) const {
    return Call<Status*(const Info*, const char*, int64_t*)>(86)(info, name, out);
  }
  Status* Outputs(const Context* context, size_t* out) const {
    return Call<Status*(const Context*, size_t*)>(89)(context, out);
  }
  Status* Input(const Context* context, size_t index, const Value** out) const {
    return Call<Status*(const Context*, size_t, const Value**)>(90)(context, index, out);
  }
  Status* Output(Context* context, size_t index, const int64_t* shape, size_t rank, Value** out) const {
    return Call<Status*(Context*, size_t, const int64_t*, size_t, Value**)>(91)(context, index, shape, rank, out);
  }
  void Release(Status* status) const { Call<void(Status*)>(93)(status); }
  void Release(TypeInfo* info) const { Call<void(TypeInfo*)>(98)(info); }
  void Release(ShapeInfo* info) const { Call<void(ShapeInfo*)>(99)(info); }
  Status* Inputs(const Info* info, size_t* out) const { return Call<Status*(const Info*, size_t*)>(230)(info, out); }
  Status* Outputs(const Info* info, size_t* out) const { return Call<Status*(const Info*, size_t*)>(231)(info, out); }
  Status* OutputType(const Info* info, size_t index, TypeInfo** out) const {
    return Call<Status*(const Info*, size_t, TypeInfo**)>(235)(info, index, out);
  }
  Status* Constant(const Info* info, size_t index, int* is_constant, const Value** out) const {
    return Call<Status*(const Info*, size_t, int*, const Value**)>(249)(info, index, is_constant, out);
  }
  Status* ParallelFor(const Context* context, void (*work)(void*, size_t), size_t total, void* with) const {
    return Call<Status*(const Context*, void (*)(void*, size_t), size_t, size_t, void*)>(274)(context, work, total, 0,
                                                                                              with);
  }

 private:
  template <class F>
  F* Call(int place) const {
    return reinterpret_cast<F*>(const_cast<void*>(table_[place]));
  }
  const void* const* table_;
};

}  // namespace edge::ort
