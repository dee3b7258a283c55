// Whether the threads of a session work on a chain together, or who leads works alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>

namespace edge {

// On a busy machine the system puts a thread aside in the middle of a piece, for milliseconds, and who leads waits for
// it: two threads were slower than one. So runs of a chain are timed. Where the machine seems busy, who leads works
// alone for a moment; the quicker of the two ways is taken for a while, and then tried against the other one again. The
// bits of a result do not depend on it.
class Pace {
 public:
  // What runs have in common that take equally long: rows, and units of the chain.
  struct Steps {
    int64_t rows;
    int units;
  };

  // Nanoseconds, of a clock on the wall and of this thread's work; kUnknown: that was not looked at.
  struct Time {
    int64_t wall, work;
  };

  // The clock of a thread's work takes as long as a hundredth of a short run. Of these the quickest were hardly put
  // aside, so that slow ones show that a machine is busy.
  Time now() const {
    Time found{std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1), kUnknown};
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec work{};
    if (long_.load(std::memory_order_relaxed) && !clock_gettime(CLOCK_THREAD_CPUTIME_ID, &work))
      found.work = int64_t{work.tv_sec} * 1'000'000'000 + work.tv_nsec;
#endif
    return found;
  }

  // Whether a run of such steps is to be alone. A prompt's is not, nor the first of its kind: then there is nothing to
  // compare it with.
  bool alone(const Steps& steps) {
    if (!alone_.load(std::memory_order_relaxed) || !Counts(steps)) return false;
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    const auto found = lock ? quickest_.find({steps.rows, steps.units}) : quickest_.end();
    return lock && found != quickest_.end() && found->second > 0;
  }

  // A run of such steps, alone or not. Of runs of several threads at a time some are left out.
  void Note(const Steps& steps, bool alone, const Time& began, const Time& ended) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || !Counts(steps)) return;
    const auto took = static_cast<double>(ended.wall - began.wall);
    if (quickest_.size() > kKinds) quickest_.clear();
    double& quickest = quickest_[{steps.rows, steps.units}];  // 0: there was none
    if (!alone) {
      quickest = quickest == 0 || took < quickest ? took : quickest + (took - quickest) / kForgets;
      long_ = quickest > kLong;
    }
    if (alone != alone_ || began.wall < since_ || quickest == 0) return;
    const bool known = began.work != kUnknown && ended.work != kUnknown;
    runs_++;
    took_ += took;
    worked_ += known ? static_cast<double>(ended.work - began.work) : took;
    usual_ += quickest;
    if (runs_ < kRuns || took_ < kWindow) return;
    const double slowness = took_ / usual_, worked = worked_ / took_;
    took_ = worked_ = usual_ = 0;
    runs_ = 0;
    Decide(slowness, worked < kAside || slowness > kSlow, ended.wall);
  }

 private:
  // slowness: the time of the last runs, by that of the quickest together. busy: whether the machine seems to be.
  void Decide(double slowness, bool busy, int64_t now) {
    switch (state_) {
      case State::kTogether:
        if (!busy || now < until_) return;
        together_slowness_ = slowness;
        return Turn(State::kTryAlone, now, 0);
      case State::kTryAlone:
        if (slowness < together_slowness_) return Turn(State::kAlone, now, stay_ = kShortest);
        return Turn(State::kTogether, now, rest_ = std::min(2 * rest_, kLongest));
      case State::kAlone:
        alone_slowness_ = slowness;
        if (now >= until_) Turn(State::kTryTogether, now, 0);
        return;
      case State::kTryTogether:
        if (slowness < alone_slowness_) return Turn(State::kTogether, now, rest_ = kShortest);
        return Turn(State::kAlone, now, stay_ = std::min(2 * stay_, kLongest));
    }
  }

  static bool Counts(const Steps& steps) { return steps.rows >= 1 && steps.rows <= kRows; }

  enum class State { kTogether, kTryAlone, kAlone, kTryTogether };

  // Work so for `time` at least.
  void Turn(State state, int64_t now, int64_t time) {
    const bool alone = state == State::kTryAlone || state == State::kAlone;
    if (alone && !alone_) since_ = now + kAsleep;
    state_ = state;
    alone_ = alone;
    until_ = now + time;
  }

  static constexpr int64_t kUnknown = -1, kMilli = 1'000'000, kLong = kMilli;
  static constexpr int64_t kRows = 16;  // of a step
  static constexpr size_t kKinds = 512;
  static constexpr int kRuns = 3;       // of a decision, at least, and their time
  static constexpr double kWindow = 250 * kMilli;
  static constexpr double kAside = 0.93, kSlow = 1.4;  // a busy machine's: the part of its time that a thread works
  static constexpr double kForgets = 512;              // runs: a cache grows, a processor becomes slower
  static constexpr int64_t kAsleep = 60 * kMilli;      // onnxruntime's threads spin for some 40 ms before they sleep
  static constexpr int64_t kShortest = 2'000 * kMilli, kLongest = 16'000 * kMilli;

  std::mutex mutex_;
  std::atomic<bool> alone_{false};
  std::atomic<bool> long_{false};  // whether the last run together was of a kind that is
  State state_ = State::kTogether;
  std::map<std::pair<int64_t, int>, double> quickest_;  // nanoseconds of a run together, by its rows and units
  double took_ = 0, worked_ = 0, usual_ = 0;
  int runs_ = 0;
  double together_slowness_ = 0, alone_slowness_ = 0;
  int64_t since_ = 0, until_ = 0;  // from when on runs count; until when nothing else is tried
  int64_t stay_ = kShortest, rest_ = kShortest;
};

}  // namespace edge
