// What all other forms are compared with.
#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace edge {

void Quantize(const float* rows, int count, int inputs, int block, int8_t* values, float* scales, int32_t* sums) {
  for (int at = 0; at < count * (inputs / block); at++, rows += block, values += block) {
    float largest = 0;
    for (int i = 0; i < block; i++) largest = std::max(largest, std::fabs(rows[i]));
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    int sum = 0;
    for (int i = 0; i < block; i++) {
      values[i] = static_cast<int8_t>(std::nearbyint(rows[i] * inverse));  // halves go to even numbers
      sum += values[i];
    }
    scales[at] = largest / 127.0f;
    sums[at] = sum;
  }
}

void MultiplyPortable(const Weights& w, const Rows& rows, float* out, int first, int last) {
  const int blocks = w.inputs / w.block;
  for (int panel = first; panel < last; panel++) {
    const uint8_t* packed = w.weights + static_cast<size_t>(panel) * (w.inputs / kGroup) * 64;
    for (int m = 0; m < rows.count; m++) {
      const int8_t* values = rows.values + static_cast<size_t>(m) * w.inputs;
      for (int c = 0; c < kPanel; c++) {
        float acc = 0;
        for (int b = 0; b < blocks; b++) {
          int dot = 0;
          for (int k = b * w.block; k < (b + 1) * w.block; k++) {
            const int j = k % kGroup;
            const uint8_t pair = packed[static_cast<size_t>(k / kGroup) * 64 + 4 * c + j % 4];
            dot += (j < 4 ? pair & 15 : pair >> 4) * values[k];
          }
          const size_t at = (static_cast<size_t>(panel) * blocks + b) * kPanel + c, row = m * blocks + b;
          const int zero_point = w.zero_points ? w.zero_points[at] : 8;
          const float scale = w.scales[at] * rows.scales[row];
          acc = std::fma(scale, static_cast<float>(dot - zero_point * rows.sums[row]), acc);
        }
        out[static_cast<size_t>(m) * w.columns + panel * kPanel + c] = acc;
      }
    }
  }
}

}  // namespace edge
