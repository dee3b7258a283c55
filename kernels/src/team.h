// The threads of a session that share a piece of work after another.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>

#include "tensors.h"

namespace edge {

// A thread leads: it hands out work, takes part in it, and goes on when all of it is done. Of one operator, the others
// come for every work anew (see `Team`); of a chain of operators they stay until its end (see `Lead`), and have the
// next work within a fraction of a microsecond. Who leads waits only for what another has begun: where no other thread
// comes, it does everything by itself.
class Team {
 public:
  Team(const ort::Api& api, const ort::Context* context) : api_(api), context_(context) {}

  // lead(team) in one of the threads, with which the others stay.
  template <class Work>
  void Lead(const Work& lead) const {
    struct Shared {
      Team team;
      const Work& lead;
      std::atomic<bool> led;
      std::exception_ptr failure;
    } shared{{api_, context_}, lead, {false}, nullptr};
    shared.team.stays_ = true;
    auto come = [](void* with, size_t) {
      auto& with_all = *static_cast<Shared*>(with);
      if (with_all.led.exchange(true)) return with_all.team.Help();
      try {
        with_all.lead(with_all.team);
      } catch (...) {
        with_all.failure = std::current_exception();
      }
      with_all.team.left_.store(kOver, std::memory_order_release);
    };
    ort::Check(api_.ParallelFor(context_, come, kThreads, &shared));
    if (shared.failure) std::rethrow_exception(shared.failure);
  }

  // Bytes of weights or keys that one thread reads, and numbers that it rounds, sooner than another takes part.
  size_t least() const { return stays_ ? 1 << 12 : 1 << 16; }

  // The pieces of work from 0 to `pieces`: each thread takes the next that is left.
  template <class Work>
  void Share(size_t pieces, const Work& work) {
    if (pieces < 2) {
      if (pieces) work(0);
      return;
    }
    if (!stays_) return Call(pieces, work);
    work_ = [](const void* with, size_t piece) { (*static_cast<const Work*>(with))(piece); };
    with_ = &work;
    pieces_ = static_cast<int64_t>(pieces);
    done_.store(0, std::memory_order_relaxed);
    left_.store(pieces_, std::memory_order_release);
    Take();
    for (int waited = 0; done_.load(std::memory_order_acquire) < pieces_;) Wait(waited);
  }

  // The same of `count` things, so many at a time: work(first, last).
  template <class Work>
  void ShareBy(int count, int each, const Work& work) {
    Share((count + each - 1) / each, [&](size_t i) {
      const int first = static_cast<int>(i) * each;
      work(first, std::min(count, first + each));
    });
  }

 private:
  static constexpr int64_t kOver = -1;
  static constexpr size_t kThreads = 64;  // as many as there are take part

  // Let the session's threads come for this work alone.
  template <class Work>
  void Call(size_t pieces, const Work& work) const {
    struct Shared {
      const Work& work;
      std::atomic<size_t> next;
      size_t pieces;
    } shared{work, {0}, pieces};
    auto take = [](void* with, size_t) {
      auto& from = *static_cast<Shared*>(with);
      for (size_t i; (i = from.next.fetch_add(1, std::memory_order_relaxed)) < from.pieces;) from.work(i);
    };
    ort::Check(api_.ParallelFor(context_, take, std::min(pieces, kThreads), &shared));
  }

  // Returns what is left: 0, or kOver.
  int64_t Take() {
    int64_t left = left_.load(std::memory_order_acquire);
    while (left > 0) {
      // Whoever takes a piece holds up the next work, so `work_` and what it needs are those of this piece.
      if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) continue;
      work_(with_, static_cast<size_t>(pieces_ - left));
      done_.fetch_add(1, std::memory_order_release);
      left = left_.load(std::memory_order_acquire);
    }
    return left;
  }

  void Help() {
    for (int waited = 0; Take() != kOver;) Wait(waited);
  }

  static void Wait(int& waited) {
    if (++waited % 4096 == 0) return std::this_thread::yield();
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#else
    __asm__ __volatile__("yield");
#endif
  }

  const ort::Api& api_;
  const ort::Context* context_;
  bool stays_ = false;
  void (*work_)(const void* with, size_t piece) = nullptr;
  const void* with_ = nullptr;
  int64_t pieces_ = 0;
  alignas(64) std::atomic<int64_t> left_{0};  // pieces that nobody has taken
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace edge
