// What operators ask of onnxruntime, with its errors as exceptions.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ort_api.h"

namespace edge::ort {

struct Failure {
  Status* status;
};

inline void Check(Status* status) {
  if (status) throw Failure{status};
}

[[noreturn]] inline void Refuse(const Api& api, const char* why) { throw Failure{api.Fail(why, kInvalidArgument)}; }

struct Tensor {
  void* data = nullptr;  // null where an optional input is not there
  std::array<int64_t, 4> shape{};
  size_t rank = 0;
  Type type = kAny;

  int64_t elements() const {
    int64_t count = 1;
    for (size_t i = 0; i < rank; i++) count *= shape[i];
    return count;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

inline Tensor Read(const Api& api, const Value* value) {
  Tensor found;
  if (!value) return found;
  ShapeInfo* info = nullptr;
  Check(api.Shape(value, &info));
  Status* failed = api.Dimensions(info, &found.rank);
  if (!failed && found.rank > found.shape.size()) failed = api.Fail("an input has more than four dimensions");
  if (!failed) failed = api.Dimensions(info, found.shape.data(), found.rank);
  if (!failed) failed = api.ElementType(info, &found.type);
  api.Release(info);
  Check(failed);
  Check(api.Memory(const_cast<Value*>(value), &found.data));
  return found;
}

inline Tensor Input(const Api& api, const Context* context, size_t index) {
  const Value* value = nullptr;
  Check(api.Input(context, index, &value));
  return Read(api, value);
}

inline void* Output(const Api& api, Context* context, size_t index, const int64_t* shape, size_t rank) {
  Value* value = nullptr;
  void* data = nullptr;
  Check(api.Output(context, index, shape, rank, &value));
  Check(api.Memory(value, &data));
  return data;
}

// Memory that is kept for the next step, of at least this size.
template <class T>
T* Reserve(std::vector<T>& room, size_t size) {
  if (room.size() < size) room.resize(size);
  return room.data();
}

}  // namespace edge::ort
