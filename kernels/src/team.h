// The threads of a session that share a piece of work after another.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>

#include "tensors.h"

namespace edge {

// What failed first in whichever thread: nothing may be thrown through onnxruntime, nor past what others still work on.
class Thrown {
 public:
  template <class Work>
  void Try(const Work& work) {
    try {
      work();
    } catch (...) {
      if (!taken_.exchange(true)) what_ = std::current_exception();
    }
  }
  // In one thread, when the others are done.
  void Raise() {
    if (taken_.load()) std::rethrow_exception(what_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::exception_ptr what_;
};

// A thread leads: it hands out work, takes part in it, and goes on when all of it is done. Of one operator, the others
// come for every work anew; of a chain of operators they stay until its end (see `Lead`), and have the next work within
// a fraction of a microsecond. Who leads waits only for what another has begun: where no other thread comes, it does
// everything by itself.
//
// Of a team that stays each thread has a share of every work, which it takes piece after piece from the front, so that
// it reads one stream of weights; who has none left takes from the back of another's.
class Team {
 public:
  Team(const ort::Api& api, const ort::Context* context) : api_(api), context_(context) {}

  // lead(team) in one of the threads, with which the others stay; or in this thread alone, without them.
  template <class Work>
  void Lead(bool alone, const Work& lead) const {
    struct Shared {
      Team team;
      const Work& lead;
      Thrown failure;
    } shared{{api_, context_}, lead};
    shared.team.stays_ = true;
    if (alone) {
      shared.team.here_.store(1, std::memory_order_relaxed);
      return lead(shared.team);
    }
    auto come = [](void* with, size_t) {
      auto& with_all = *static_cast<Shared*>(with);
      const int place = with_all.team.here_.fetch_add(1, std::memory_order_relaxed);
      if (place > 0) return with_all.team.Help(place);
      with_all.failure.Try([&] { with_all.lead(with_all.team); });
      with_all.team.round_.store(kOver, std::memory_order_release);
    };
    ort::Check(api_.ParallelFor(context_, come, kThreads, &shared));
    shared.failure.Raise();
  }

  // Bytes of weights or keys that one thread reads, and numbers that it rounds, sooner than another takes part.
  size_t least() const { return stays_ ? 1 << 12 : 1 << 16; }
  // Of which the pieces of a work are best a multiple: threads that are there, or may come.
  int threads() const { return stays_ ? std::min(kThreads, here_.load(std::memory_order_relaxed)) : 4; }

  // The pieces of work from 0 to `pieces`.
  template <class Work>
  void Share(size_t pieces, const Work& work) {
    if (pieces < 2) {
      if (pieces) work(0);
      return;
    }
    if (!stays_) return Call(pieces, work);
    work_ = [](const void* with, size_t piece) { (*static_cast<const Work*>(with))(piece); };
    with_ = &work;
    done_.store(0, std::memory_order_relaxed);
    const size_t shares = std::min(static_cast<size_t>(threads()), pieces);
    shares_.store(static_cast<int>(shares), std::memory_order_relaxed);
    for (size_t i = 0; i < shares; i++)
      left_[i].pieces.store(Pieces(pieces * i / shares, pieces * (i + 1) / shares), std::memory_order_release);
    round_.store(round_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    Take(0);
    for (int waited = 0; done_.load(std::memory_order_acquire) < pieces;) Wait(waited);
    failure_.Raise();
  }

  // The same of `count` things, so many at a time: work(first, last).
  template <class Work>
  void ShareBy(int count, int each, const Work& work) {
    Share((static_cast<size_t>(count) + each - 1) / each, [&](size_t i) {
      const int first = static_cast<int>(i * each);
      work(first, first + std::min(each, count - first));
    });
  }

 private:
  static constexpr int kThreads = 64;  // as many as there are, up to these, take part
  static constexpr int64_t kOver = -1;

  struct alignas(64) Left {
    std::atomic<uint64_t> pieces{0};  // that nobody has taken: the first, and one after the last
  };
  static uint64_t Pieces(uint64_t first, uint64_t last) { return first << 32 | last; }

  // Let the session's threads come for this work alone.
  template <class Work>
  void Call(size_t pieces, const Work& work) const {
    struct Shared {
      const Work& work;
      size_t pieces;
      std::atomic<size_t> next{0};
      Thrown failure;
    } shared{work, pieces};
    auto take = [](void* with, size_t) {
      auto& from = *static_cast<Shared*>(with);
      for (size_t i; (i = from.next.fetch_add(1, std::memory_order_relaxed)) < from.pieces;)
        from.failure.Try([&] { from.work(i); });
    };
    ort::Check(api_.ParallelFor(context_, take, std::min<size_t>(pieces, kThreads), &shared));
    shared.failure.Raise();
  }

  // What is left of a thread's own share, and then of the others'.
  void Take(int place) {
    const int shares = shares_.load(std::memory_order_relaxed);  // an older work's: then others do without this thread
    for (int i = 0; i < shares; i++) {
      const bool own = i == 0 && place < shares;
      auto& pieces = left_[(place + i) % shares].pieces;
      uint64_t left = pieces.load(std::memory_order_acquire);
      for (uint64_t first; (first = left >> 32) < (left & 0xffffffff);) {
        const uint64_t last = left & 0xffffffff;
        // Whoever takes a piece holds up the next work: `work_` is of the work that it is a piece of.
        if (!pieces.compare_exchange_weak(left, own ? Pieces(first + 1, last) : Pieces(first, last - 1),
                                          std::memory_order_acq_rel))
          continue;
        failure_.Try([&] { work_(with_, own ? first : last - 1); });
        done_.fetch_add(1, std::memory_order_release);
        left = pieces.load(std::memory_order_acquire);
      }
    }
  }

  void Help(int place) {
    int64_t seen = 0;
    for (int waited = 0;;) {
      const int64_t round = round_.load(std::memory_order_acquire);
      if (round == kOver) return;
      if (round == seen) {
        Wait(waited);
        continue;
      }
      seen = round;
      Take(place);
    }
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
  std::atomic<int> here_{0}, shares_{0};  // threads that came; of a work
  alignas(64) std::atomic<int64_t> round_{0};
  alignas(64) std::atomic<size_t> done_{0};
  Left left_[kThreads];
  Thrown failure_;
};

}  // namespace edge
