// What this processor can do.
#pragma once

#include <atomic>

#include "lanes.h"

namespace edge {

// Panels of a tile of many rows, where a form has two kinds: 1 or 2, as tests ask; 0: what is faster here.
extern std::atomic<int> panels_asked;

// Whether the second takes less time than the first, each at its best of a few turns.
bool Quicker(void (*first)(), void (*second)());

#if defined(__x86_64__)
bool HasAvx2();  // with FMA and F16C, as every processor with AVX2 has
bool HasAvxVnni();
bool HasAvx512Vnni();

void QuantizeAvx2(const Rounding& rounding, int first, int last);  // which all forms for x86 have
#else
bool HasNeonDotprod();
bool HasNeonI8mm();

void QuantizeNeon(const Rounding& rounding, int first, int last);  // which both forms have
#endif

}  // namespace edge
