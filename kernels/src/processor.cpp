#include "processor.h"

#include <cpuid.h>

#include <cstdlib>
#include <cstring>

namespace edge {

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
