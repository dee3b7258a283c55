// What operators ask of onnxruntime, with its errors as exceptions.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
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

// An input that is part of the graph; data is null where it is not there, or not constant.
inline Tensor Constant(const Api& api, const Info* info, size_t index) {
  int is_constant = 0;
  const Value* value = nullptr;
  Check(api.Constant(info, index, &is_constant, &value));
  return Read(api, is_constant ? value : nullptr);
}

inline void* Output(const Api& api, Context* context, size_t index, const int64_t* shape, size_t rank) {
  Value* value = nullptr;
  void* data = nullptr;
  Check(api.Output(context, index, shape, rank, &value));
  Check(api.Memory(value, &data));
  return data;
}

// A node's number; `otherwise` where it has none of that name.
template <class T>
T Attribute(const Api& api, const Info* info, const char* name, T otherwise) {
  T value = otherwise;
  if (Status* failed = api.Attribute(info, name, &value)) {
    api.Release(failed);
    return otherwise;
  }
  return value;
}

constexpr size_t kAlone = 1 << 16;  // bytes that a thread reads sooner than another wakes up

// The pieces of work from 0 to `pieces`, in the threads of the session, each of which takes the next that is left.
template <class Work>
void Parallel(const Api& api, const Context* context, size_t pieces, const Work& work) {
  if (pieces < 2) {
    if (pieces) work(0);
    return;
  }
  struct Shared {
    const Work& work;
    std::atomic<size_t> next;
    size_t pieces;
  } shared{work, {0}, pieces};
  auto take = [](void* with, size_t) {
    auto& from = *static_cast<Shared*>(with);
    for (size_t i; (i = from.next.fetch_add(1, std::memory_order_relaxed)) < from.pieces;) from.work(i);
  };
  constexpr size_t threads = 64;  // as many as there are take part
  Check(api.ParallelFor(context, take, pieces < threads ? pieces : threads, &shared));
}

// The same of `count` things, so many at a time: work(first, last).
template <class Work>
void ParallelBy(const Api& api, const Context* context, int count, int each, const Work& work) {
  Parallel(api, context, (count + each - 1) / each, [&](size_t i) {
    const int first = static_cast<int>(i) * each;
    work(first, std::min(count, first + each));
  });
}

// Memory that is kept for the next step, of at least this size.
template <class T>
T* Reserve(std::vector<T>& room, size_t size) {
  if (room.size() < size) room.resize(size);
  return room.data();
}

}  // namespace edge::ort
