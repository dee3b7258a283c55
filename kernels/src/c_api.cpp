// What tests and benchmarks call: one product, or one after another over several weights, in one or more threads.
#include <omp.h>

#include <algorithm>

#include "lanes.h"

using namespace edge;

namespace {

using Form = void (*)(const Weights&, const Rows&, float*, int, int);
constexpr Form kForms[] = {MultiplyPortable, MultiplyAvx2, MultiplyAvxVnni, MultiplyAvx512Vnni};

struct Room {  // for rows in 8 bits
  int8_t* values;
  float* scales;
  int32_t* sums;
};

void Product(int form, const Weights& w, const float* rows, int count, const Room& room, float* out, int threads) {
  (form ? QuantizeAvx2 : Quantize)(rows, count, w.inputs, w.block, room.values, room.scales, room.sums);
  const Rows rounded{room.values, room.scales, room.sums, count};
  const int panels = w.columns / kPanel;
  if (threads == 1) return kForms[form](w, rounded, out, 0, panels);
#pragma omp parallel num_threads(threads)
  {
    const int each = ((panels + threads - 1) / threads + 1) / 2 * 2;  // vectors are taken by twos
    const int first = std::min(panels, omp_get_thread_num() * each);
    kForms[form](w, rounded, out, first, std::min(panels, first + each));
  }
}

}  // namespace

extern "C" {

// values [columns, inputs], each below 16, to `Weights::weights`.
void edge_pack(const uint8_t* values, int inputs, int columns, uint8_t* out) {
  for (int column = 0; column < columns; column++) {
    uint8_t* panel = out + static_cast<size_t>(column / kPanel) * (inputs / kGroup) * 64 + 4 * (column % kPanel);
    const uint8_t* from = values + static_cast<size_t>(column) * inputs;
    for (int group = 0; group < inputs / kGroup; group++)
      for (int j = 0; j < 4; j++)
        panel[group * 64 + j] = static_cast<uint8_t>(from[group * 8 + j] | from[group * 8 + 4 + j] << 4);
  }
}

// The products of rows [count, inputs] with `number` weights, one after the other, each to out [count, columns].
void edge_products(int form, int number, const Weights* weights, const float* rows, int count, int8_t* values,
                   float* scales, int32_t* sums, float* out, int threads) {
  for (int i = 0; i < number; i++) Product(form, weights[i], rows, count, {values, scales, sums}, out, threads);
}

}
