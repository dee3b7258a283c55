// What operators ask of onnxruntime, with its errors as exceptions, and how they refuse what they are given.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_api.h"

namespace edge::ort {

struct Failure {
  Status* status;
};

inline void Check(Status* status) {
  if (status) throw Failure{status};
}

// Bytes of a number of one of the types that are read.
inline size_t Size(Type type) { return type == kInt64 ? 8 : type == kFloat || type == kInt32 ? 4 : 1; }

struct Tensor {
  void* data = nullptr;  // may be null where there are no elements
  bool there = false;    // false for an optional input that is missing
  std::array<int64_t, 4> shape{};
  size_t rank = 0;
  Type type = kAny;

  int64_t elements() const {  // the largest number where no memory holds so many
    int64_t count = 1;
    bool many = false;
    for (size_t i = 0; i < rank; i++) {
      if (!shape[i]) return 0;
      many |= __builtin_mul_overflow(count, shape[i], &count);
    }
    return many ? std::numeric_limits<int64_t>::max() : count;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Copies it to where it does not lie yet.
  void CopyTo(void* to) const {
    const auto bytes = static_cast<size_t>(elements()) * Size(type);
    if (bytes && to != data) std::memcpy(to, data, bytes);
  }
};

inline Tensor Read(const Api& api, const Value* value) {
  Tensor found;
  if (!value) return found;
  ShapeInfo* info = nullptr;
  Check(api.Shape(value, &info));
  Status* failed = api.Dimensions(info, &found.rank);
  if (!failed && found.rank > found.shape.size())
    failed = api.Fail(("an input has " + std::to_string(found.rank) + " dimensions; at most 4 are read").c_str());
  if (!failed) failed = api.Dimensions(info, found.shape.data(), found.rank);
  if (!failed) failed = api.ElementType(info, &found.type);
  api.Release(info);
  Check(failed);
  Check(api.Memory(const_cast<Value*>(value), &found.data));
  found.there = true;
  return found;
}

inline Tensor Input(const Api& api, const Context* context, size_t index) {
  const Value* value = nullptr;
  Check(api.Input(context, index, &value));
  return Read(api, value);
}

// Whether the output is there; then where it lies.
inline bool Output(const Api& api, Context* context, size_t index, const int64_t* shape, size_t rank, void** data) {
  Value* value = nullptr;
  Check(api.Output(context, index, shape, rank, &value));
  if (!value) return false;
  Check(api.Memory(value, data));
  return true;
}

// Memory that is kept for the next step, of at least this size.
template <class T>
T* Reserve(std::vector<T>& room, size_t size) {
  if (room.size() < size) room.resize(size);
  return room.data();
}

}  // namespace edge::ort

namespace edge {

// Why something was refused.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Who refuses something: an operator, by its name.
struct Named {
  const ort::Api& api;
  const char* called;
};

inline const char* Text(const char* text) { return text; }
inline const std::string& Text(const std::string& text) { return text; }
inline std::string Text(int64_t number) { return std::to_string(number); }
inline std::string Text(float number) { return std::to_string(number); }

// Fails with a sentence that these parts make.
template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void Refuse(const Named& who, const Parts&... parts) {
  std::string why = std::string(who.called) + ": ";
  ((why += Text(parts)), ...);
  throw Refused(why);
}

constexpr int64_t kAnySize = -1;

// Refuses an input that is missing, or has another type, rank or size than these.
[[noreturn]] void RefuseInput(const Named& who, const char* name, const ort::Tensor& input, ort::Type type,
                              std::initializer_list<int64_t> sizes);
[[noreturn]] void RefuseOther(const Named& who, const char* name, const ort::Tensor& one, const char* as,
                              const ort::Tensor& other);
inline void Expect(const Named& who, const char* name, const ort::Tensor& input, ort::Type type,
                   std::initializer_list<int64_t> sizes) {
  bool fits = input.there && input.type == type && input.rank == sizes.size();
  for (size_t i = 0; fits && i < sizes.size(); i++) {
    const int64_t size = sizes.begin()[i];
    fits = size == kAnySize || size == input.shape[i];
  }
  if (!fits) RefuseInput(who, name, input, type, sizes);
}
// The same of an input of any rank that has so many numbers.
inline void ExpectNumbers(const Named& who, const char* name, const ort::Tensor& input, ort::Type type, int64_t count) {
  if (!input.there || input.type != type) RefuseInput(who, name, input, type, {count});
  if (input.elements() != count) Refuse(who, name, " has ", input.elements(), " numbers and must have ", count);
}
inline void ExpectNone(const Named& who, const char* name, bool there) {
  if (there) Refuse(who, name, " is given, which these kernels do not compute");
}

// A number of something, which must be within bounds: those of the integers that kernels count in, by default.
inline int Within(const Named& who, const char* what, int64_t number, int64_t least = 0,
                  int64_t most = std::numeric_limits<int>::max()) {
  if (number < least || number > most) Refuse(who, what, " is ", number, ", not from ", least, " to ", most);
  return static_cast<int>(number);
}
// Rows of so many float32 numbers.
inline void ExpectRows(const Named& who, const char* name, const ort::Tensor& rows, int64_t width) {
  if (!rows.there || rows.type != ort::kFloat || rows.rank < 1)
    RefuseInput(who, name, rows, ort::kFloat, {kAnySize, width});
  if (rows.shape[rows.rank - 1] != width)
    Refuse(who, name, " has rows of ", rows.shape[rows.rank - 1], " numbers, not of ", width);
}
// One that goes with another of the same type: of the same sizes, but for those of 1 before the others.
inline void ExpectSame(const Named& who, const char* name, const ort::Tensor& one, const char* as,
                       const ort::Tensor& other) {
  size_t i = one.rank, j = other.rank;
  bool same = one.there && one.type == other.type;
  for (; same && i && j; i--, j--) same = one.shape[i - 1] == other.shape[j - 1];
  for (; same && i; i--) same = one.shape[i - 1] == 1;
  for (; same && j; j--) same = other.shape[j - 1] == 1;
  if (!same) RefuseOther(who, name, one, as, other);
}

// The product of numbers that are not negative; the largest number where 64 bits do not hold it.
inline int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace edge
