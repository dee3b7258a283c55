#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace edge {

#if defined(__x86_64__)

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool HasAvxVnni() {
  unsigned a = 0, b, c, d;
  return HasAvx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool HasAvx512Vnni() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

const Form* const kForms[] = {&kPortable, &kAvx2, &kAvxVnni, &kAvx512Vnni, nullptr};

#else

#if defined(__APPLE__)

bool HasNeonDotprod() { return true; }  // all of Apple's that run macOS

bool HasNeonI8mm() {
  int has = 0;
  size_t size = sizeof(has);
  return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) && has;
}

#else

bool HasNeonDotprod() {
  constexpr unsigned long kDotprod = 1 << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotprod;
}

bool HasNeonI8mm() {
  constexpr unsigned long kI8mm = 1 << 13;  // HWCAP2_I8MM
  return HasNeonDotprod() && getauxval(AT_HWCAP2) & kI8mm;
}

#endif

const Form* const kForms[] = {&kPortable, &kNeonDotprod, &kNeonI8mm, nullptr};

#endif

std::atomic<int> panels_asked{0};

bool Quicker(void (*first)(), void (*second)()) {
  double best[2] = {1, 1};
  for (int turn = 0; turn < 12; turn++) {
    const auto start = std::chrono::steady_clock::now();
    (turn % 2 ? second : first)();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best[turn % 2] = std::min(best[turn % 2], took.count());
  }
  return best[1] < best[0];
}

const Form* Fastest() {
  const char* named = std::getenv("EDGE_KERNELS");
  const Form* found = nullptr;
  for (const Form* const* form = kForms; *form; form++) {
    const bool wanted = named && *named ? !std::strcmp(named, (*form)->name) : *form != &kPortable;
    if (wanted && (*form)->runs()) found = *form;
  }
  return found;
}

}  // namespace edge
