// What this processor can do.
#pragma once

#include "lanes.h"

namespace edge {

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
