// What stands in for onnxruntime, so that operators run under sanitizers: tensors in blocks of exactly their size,
// nodes with attributes, and threads. Its table has the functions of onnxruntime's that `ort_api.h` calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "../src/ort_api.h"

namespace fuzz {

using edge::ort::Type;
using Dims = std::vector<int64_t>;

constexpr size_t kMostBytes = size_t{1} << 22;  // of a tensor: larger ones are refused, as where there is no memory

inline size_t SizeOf(Type type) {
  return type == edge::ort::kInt64 ? 8 : type == edge::ort::kFloat || type == edge::ort::kInt32 ? 4 : 1;
}

// Bytes of a tensor; more than kMostBytes where it cannot be.
inline size_t BytesOf(Type type, const Dims& dims) {
  size_t bytes = SizeOf(type);
  for (int64_t size : dims)
    if (size <= 0) return size < 0 ? kMostBytes + 1 : 0;
  for (int64_t size : dims)
    if (static_cast<size_t>(size) > kMostBytes || (bytes *= static_cast<size_t>(size)) > kMostBytes)
      return kMostBytes + 1;
  return bytes;
}

struct Tensor {
  Type type = edge::ort::kAny;
  Dims dims;
  std::shared_ptr<uint8_t> data;  // null where there are no elements
  bool constant = false;

  Tensor() = default;
  Tensor(Type type, Dims dims) : type(type), dims(std::move(dims)) {
    if (const size_t bytes = BytesOf(type, this->dims))
      data = std::shared_ptr<uint8_t>(static_cast<uint8_t*>(std::malloc(bytes)), std::free);
  }
  size_t bytes() const { return data ? BytesOf(type, dims) : 0; }
  size_t count() const { return bytes() / SizeOf(type); }
  Tensor copy() const {
    Tensor made(type, dims);
    made.constant = constant;
    if (data) std::memcpy(made.data.get(), data.get(), bytes());
    return made;
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data.get());
  }
};

using Attribute = std::variant<int64_t, float>;

// A node. An input or output that is null, or has no type, is missing.
struct Node {
  std::string domain = "edge", op;
  std::map<std::string, Attribute> attributes;
  std::vector<std::shared_ptr<Tensor>> inputs;
  std::vector<Type> outputs;
  std::map<size_t, size_t> in_place;              // outputs that lie where inputs do, where their sizes are the same
  std::vector<std::shared_ptr<uint8_t>> weights;  // that were lent
};

// onnxruntime's threads, which sessions share. Work is whatever is left of the pieces of a call.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; i++) threads_.emplace_back([this] { Run(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void ParallelFor(void (*work)(void*, size_t), size_t total, void* with) {
    auto call = std::make_shared<Pieces>();
    call->work = [work, with](size_t i) { work(with, i); };
    call->total = total;
    if (!threads_.empty()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < threads_.size(); i++) waiting_.push_back(call);
    }
    wake_.notify_all();
    call->Take();
    std::unique_lock<std::mutex> lock(call->mutex);
    call->done.wait(lock, [&] { return call->ready == total; });
  }

 private:
  struct Pieces {
    std::function<void(size_t)> work;
    size_t total, ready = 0;
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::condition_variable done;

    void Take() {
      for (size_t i; (i = next.fetch_add(1)) < total;) {
        work(i);
        const std::lock_guard<std::mutex> lock(mutex);
        if (++ready == total) done.notify_all();
      }
    }
  };

  void Run() {
    for (;;) {
      std::shared_ptr<Pieces> call;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return over_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        call = waiting_.front();
        waiting_.pop_front();
      }
      call->Take();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Pieces>> waiting_;
  bool over_ = false;
};

// What a run of a node came to: its outputs, or why it was refused.
struct Result {
  std::string refused;
  std::vector<Tensor> outputs;
};

// Runs a node in the pool's threads.
Result Run(const Node& node, Pool& pool);

// The operators of the library, by domain and name.
using Operators = std::map<std::pair<std::string, std::string>, const edge::ort::Operator*>;
const Operators& AllOperators();

}  // namespace fuzz
