// Runs operators at random, under sanitizers: see run.py.
//
// Each case is of a seed of its own. What must be accepted runs with all instructions that this processor has, one case
// in eight with the plain form, too, and must give the same bits; in several threads, which is for the thread
// sanitizer, the same as in one.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cases.h"

#if SANITIZED  // see run.py
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" const char* edge_form();  // null where this processor does not run the one that EDGE_KERNELS names

namespace fuzz {
namespace {

constexpr const char* kForms[] = {"portable", "avx2", "avx_vnni", "avx512_vnni", "neon_dotprod", "neon_i8mm"};
constexpr uint64_t kPlainEvery = 8;
constexpr int kSessions = 3;       // at once, where there are several threads
constexpr unsigned kSeconds = 60;  // that a case may take

std::atomic<uint64_t> running[kSessions];  // the cases' seeds; 0 for none

// Of what died, which case it was.
void SayWhich() {
  for (const auto& seed : running)
    if (seed)
      std::fprintf(stderr, "\nFound by the case of seed %llu: run it alone with --only %llu\n",
                   static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
}

#if !SANITIZED
void Died(int signal) {
  std::fprintf(stderr, "\nIt died of signal %d.", signal);
  SayWhich();
  std::_Exit(1);
}
#endif

void TookTooLong(int) {
  std::fprintf(stderr, "\nA case has not ended within %u seconds.", kSeconds);
  SayWhich();
  std::_Exit(1);
}

[[noreturn]] void Found(const Case& of, const std::string& what) {
  std::fprintf(stderr, "%s (%s): %s\n", of.node.op.c_str(), of.fault.empty() ? "valid" : of.fault.c_str(),
               what.c_str());
  SayWhich();
  std::_Exit(1);
}

bool IsFinite(float x) { return x - x == 0; }

// Where two results differ, in numbers of which one is a number.
std::string Difference(const Result& one, const Result& other) {
  if (one.refused.empty() != other.refused.empty()) return "one is refused: " + one.refused + other.refused;
  for (size_t i = 0; i < one.outputs.size(); i++) {
    const Tensor &a = one.outputs[i], &b = other.outputs[i];
    if (a.dims != b.dims || a.type != b.type) return "output " + std::to_string(i) + " has other sizes";
    if (!a.bytes() || !std::memcmp(a.data.get(), b.data.get(), a.bytes())) continue;
    for (size_t k = 0; k < a.bytes(); k++) {
      if (a.as<uint8_t>()[k] == b.as<uint8_t>()[k]) continue;
      const size_t at = k / SizeOf(a.type);
      if (a.type == edge::ort::kFloat) {
        const float x = a.as<float>()[at], y = b.as<float>()[at];
        if (x != x && y != y) continue;
        return "output " + std::to_string(i) + ": number " + std::to_string(at) + " is " + std::to_string(x) + " and " +
               std::to_string(y);
      }
      return "output " + std::to_string(i) + ": number " + std::to_string(at) + " differs";
    }
  }
  return "";
}

// Where a row that has a number which is not finite gives finite ones alone.
std::string Swallowed(const Node& node, const Result& result) {
  if (node.op != "MatMulNBits" && node.op != "SkipSimplifiedLayerNormalization" && node.op != "Likeliest") return "";
  const Tensor &rows = *node.inputs[0], &out = result.outputs[0];
  if (!rows.count() || !out.count()) return "";
  const size_t width = rows.dims.back(), made = out.dims.back();
  for (size_t m = 0; m < rows.count() / width; m++) {
    bool given = true, gives = true;
    for (size_t i = 0; i < width; i++) {
      const float x = rows.as<float>()[m * width + i];
      given &= IsFinite(x) || (node.op == "Likeliest" && x < 0);
    }
    for (size_t i = 0; i < made; i++) gives &= IsFinite(out.as<float>()[m * made + i]);
    if (!given && gives) return "row " + std::to_string(m) + " is not finite, and all that is made of it is";
  }
  return "";
}

struct Counts {
  std::atomic<size_t> cases{0}, valid{0}, refused{0};
};

// One case with all forms in one thread; or, where `pool` is given, in one thread and in several.
void Try(uint64_t seed, int session, Pool& alone, Pool* pool, Counts& counts) {
  running[session] = seed;
  const Case each = MakeCase(seed);
  Result first;
  bool ran = false;
  auto compare = [&](const Result& result, const char* what) {
    if (ran) {
      const std::string difference = Difference(first, result);
      if (!difference.empty()) Found(each, std::string(what) + ": " + difference);
    } else {
      first = result;
    }
    ran = true;
  };
  if (pool) {
    compare(Run(each.node, alone), "one thread");
    compare(Run(each.node, *pool), "several threads");
  } else {
    alarm(kSeconds);
    for (const char* form : kForms) {
      if (form == kForms[0] && seed / 2 % kPlainEvery) continue;  // it is slow, above all with sanitizers
      setenv("EDGE_KERNELS", form, 1);
      if (edge_form()) compare(Run(each.node, alone), form);
    }
  }
  const bool may_be = each.wild && first.refused.find("cannot hold") != std::string::npos;  // in 8 bits
  if (each.fault.empty() && !first.refused.empty() && !may_be) Found(each, "it is refused: " + first.refused);
  if (first.refused.empty()) {
    const std::string swallowed = Swallowed(each.node, first);
    if (!swallowed.empty()) Found(each, swallowed);
  }
  counts.cases++;
  counts.valid += each.fault.empty();
  counts.refused += !first.refused.empty();
  running[session] = 0;
}

int Main(int count, char** given) {
  uint64_t cases = 1000, seed = 1, only = 0, threads = 1;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    uint64_t* to = name == "--cases"     ? &cases
                   : name == "--seed"    ? &seed
                   : name == "--only"    ? &only
                   : name == "--threads" ? &threads
                                         : nullptr;
    if (!to) return std::fprintf(stderr, "unknown: %s\n", given[i]), 2;
    *to = std::strtoull(given[i + 1], nullptr, 10);
  }
#if SANITIZED
  __sanitizer_set_death_callback(SayWhich);
#else
  for (int died : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(died, Died);
#endif
  std::signal(SIGALRM, TookTooLong);
  AllOperators();
  Counts counts;
  Pool alone(1);
  std::unique_ptr<Pool> pool;
  if (threads > 1) pool = std::make_unique<Pool>(static_cast<int>(threads));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  if (only) {
    const Case each = MakeCase(only);
    std::printf("%s: %s\n", each.node.op.c_str(), each.fault.empty() ? "valid" : each.fault.c_str());
    Try(only, 0, alone, pool.get(), counts);
  } else {
    Random seeds(seed);
    std::mutex mutex;
    auto take = [&](int session) {
      for (;;) {
        uint64_t next;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!cases) return;
          cases--;
          next = seeds.next() >> 1 | 1;
        }
        Try(next, session, alone, pool.get(), counts);
      }
    };
    std::vector<std::thread> sessions;
    for (int i = 1; pool && i < kSessions; i++) sessions.emplace_back(take, i);
    take(0);
    for (auto& session : sessions) session.join();
  }
  std::printf("%zu cases, %zu of them valid; %zu were refused, and nothing was found.\n", counts.cases.load(),
              counts.valid.load(), counts.refused.load());
  return 0;
}

}  // namespace
}  // namespace fuzz

int main(int count, char** given) { return fuzz::Main(count, given); }
