// What all other forms are compared with.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "attention_loops.h"
#include "gguf.h"
#include "lanes.h"
#include "rows_loops.h"
#include "states_loops.h"

namespace edge {
namespace {

void Quantize(const Rounding& r, int first, int last) {
  const int blocks = r.padded / r.block;
  for (int m = first; m < last; m++) {
    const float* row = r.rows + static_cast<size_t>(m) * r.inputs;
    int8_t* values = r.values + static_cast<size_t>(m) * r.padded;
    for (int b = 0; b < blocks; b++) {
      const int start = b * r.block, end = std::min(r.inputs, start + r.block);
      const size_t at = static_cast<size_t>(m) * blocks + b;
      float largest = 0, inverse;
      for (int i = start; i < end; i++) largest = std::max(largest, std::fabs(row[i]));
      if (!std::all_of(row + start, row + end, [](float x) { return std::isfinite(x); })) largest = NAN;
      if (RoundsToZeros(largest, r.block, values + start, inverse, r.scales[at], r.sums[at])) continue;
      int sum = 0;
      for (int i = start; i < start + r.block; i++) {
        // halves go to even numbers
        values[i] = i < end ? static_cast<int8_t>(std::nearbyint(row[i] * inverse)) : int8_t{0};
        sum += values[i];
      }
      r.sums[at] = sum;
    }
  }
}

void Multiply(const Weights& w, const Rows& rows, float* out, int first, int last) {
  const int blocks = w.blocks(), inputs = 32 / w.bits;  // of a group
  for (int panel = first; panel < last; panel++) {
    const uint8_t* packed = w.weights + panel * w.panel_bytes();
    for (int m = 0; m < rows.count; m++) {
      const int8_t* values = rows.values + static_cast<size_t>(m) * w.inputs;
      for (int c = 0; c < std::min(kPanel, w.columns - panel * kPanel); c++) {
        float acc = 0;
        for (int b = 0; b < blocks; b++) {
          int dot = 0;
          for (int k = b * w.block; k < (b + 1) * w.block; k++) {
            const int j = k % inputs;
            const uint8_t byte = packed[static_cast<size_t>(k / inputs) * 64 + 4 * c + j % 4];
            dot += (byte >> (w.bits * (j / 4)) & ((1 << w.bits) - 1)) * values[k];
          }
          const size_t at = (static_cast<size_t>(panel) * blocks + b) * kPanel + c;
          const size_t row = static_cast<size_t>(m) * blocks + b;
          const int zero_point = w.zero_points ? w.zero_points[at] : 1 << (w.bits - 1);
          const float of_weights =
              w.half ? FromHalf(static_cast<const uint16_t*>(w.scales)[at]) : static_cast<const float*>(w.scales)[at];
          const float scale = of_weights * rows.scales[row];
          acc = std::fma(scale, static_cast<float>(dot - zero_point * rows.sums[row]), acc);
        }
        if (w.bias) acc += w.bias[panel * kPanel + c];
        out[static_cast<size_t>(m) * w.row() + panel * kPanel + c] = acc;
      }
    }
  }
}

struct Vectors : QueryInBytes {
  static constexpr int kColumns = kLanes;
  struct Floats {
    float lanes[kColumns];
  };
  template <class Make>
  static Floats Made(const Make& make) {
    Floats made;
    for (int i = 0; i < kColumns; i++) made.lanes[i] = make(i);
    return made;
  }
  static Floats Zero() { return Every(0); }
  static Floats Every(float x) {
    return Made([&](int) { return x; });
  }
  static Floats Load(const float* from) {
    return Made([&](int i) { return from[i]; });
  }
  static void Store(float* to, const Floats& x) { std::memcpy(to, x.lanes, sizeof(x.lanes)); }
  static Floats Mul(const Floats& a, const Floats& b) {
    return Made([&](int i) { return a.lanes[i] * b.lanes[i]; });
  }
  static Floats Div(const Floats& a, const Floats& b) {
    return Made([&](int i) { return a.lanes[i] / b.lanes[i]; });
  }
  static Floats Sum(const Floats& a, const Floats& b) {
    return Made([&](int i) { return a.lanes[i] + b.lanes[i]; });
  }
  static Floats Sub(const Floats& a, const Floats& b) {
    return Made([&](int i) { return a.lanes[i] - b.lanes[i]; });
  }
  static Floats Max(const Floats& a, const Floats& b) {
    return Made([&](int i) { return a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i]; });
  }
  static Floats Fma(const Floats& a, const Floats& b, const Floats& c) {
    return Made([&](int i) { return std::fma(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
  static Floats Round(const Floats& x) {
    return Made([&](int i) { return std::nearbyint(x.lanes[i]); });
  }
  static float Largest(const Floats& x) { return *std::max_element(x.lanes, x.lanes + kColumns); }
  static float Total(const Floats& x) { return std::accumulate(x.lanes, x.lanes + kColumns, 0.0f); }
  // y, but 0 where x is at most the limit.
  static Floats ZeroUpTo(float limit, const Floats& x, const Floats& y) {
    return Made([&](int i) { return x.lanes[i] <= limit ? 0.0f : y.lanes[i]; });
  }
  static Floats PowerOfTwo(const Floats& n) {
    return Made([&](int i) { return std::ldexp(1.0f, Whole(n.lanes[i])); });
  }
  static int Whole(float x) { return x == x ? static_cast<int>(x) : 0; }
  static void Turn(const float* keys, const float*, int count, int dim, float* out) {
    for (int d = 0; d < dim; d++)
      for (int t = 0; t < kKeys; t++) out[d * kKeys + t] = t < count ? keys[static_cast<size_t>(t) * dim + d] : 0.0f;
  }

  struct Dots {
    int32_t lanes[kColumns];
  };
  using Keys = const int8_t*;    // of kColumns keys, four each
  using Pairs = const int16_t*;  // of kColumns dimensions, two keys each
  static constexpr int kKeyVectors = 1;
  static Dots All(int value) {
    Dots made;
    for (int32_t& each : made.lanes) each = value;
    return made;
  }
  static Floats FromInts(const Dots& a) {
    return Made([&](int i) { return static_cast<float>(a.lanes[i]); });
  }
  using Scores = Dots;
  static Scores Start(const int32_t*) { return All(0); }
  static Dots Whole(const Scores& made) { return made; }
  static TwoDots<const int8_t*> LoadQuery(const int8_t* query, int dim, int d) { return {query + d, query + dim + d}; }
  static Keys LoadKeys(const int32_t* keys) { return reinterpret_cast<Keys>(keys); }
  static void Dot(Scores& made, Keys keys, const TwoDots<const int8_t*>& four) {
    for (int i = 0; i < 4 * kColumns; i++)
      made.lanes[i / 4] += keys[i] * (128 * four.first[i % 4] + four.second[i % 4]);
  }
  static Pairs LoadPairs(const int16_t* values) { return values; }
  static const int16_t* Two(const int16_t* weights) { return weights; }
  static Dots DotPairs(Dots dots, Pairs values, const int16_t* two) {
    for (int i = 0; i < 2 * kColumns; i++) dots.lanes[i / 2] += values[i] * two[i % 2];
    return dots;
  }
  static void StoreShorts(int16_t* to, const Floats& whole) {
    for (int i = 0; i < kColumns; i++) to[i] = static_cast<int16_t>(Whole(whole.lanes[i]));
  }
  static void TurnKeys(const int8_t* keys, int count, int dim, int32_t* out) {
    auto* to = reinterpret_cast<int8_t*>(out);
    for (int d = 0; d < dim; d++)
      for (int t = 0; t < kKeys; t++)
        to[(d / 4 * kKeys + t) * 4 + d % 4] = t < count ? keys[static_cast<size_t>(t) * dim + d] : int8_t{0};
  }
  static void TurnValues(const int8_t* values, int count, int dim, int16_t* out) {
    for (int t = 0; t < (count + 1) / 2 * 2; t++)
      for (int d = 0; d < dim; d++)
        out[(t / 2 * dim + d) * 2 + t % 2] = t < count ? values[static_cast<size_t>(t) * dim + d] : int16_t{0};
  }
};

// See gguf_tiles.h.
void MultiplyFloats(const GgufWeights& w, const GgufRows& rows, float* out, int first, int last) {
  for (int panel = first; panel < last; panel++) {
    const auto* weights = reinterpret_cast<const uint16_t*>(w.weights + panel * w.panel_bytes());
    for (int m = 0; m < rows.count; m++)
      for (int c = 0; c < std::min(kPanel, w.columns - panel * kPanel); c++) {
        float acc = 0;
        for (int k = 0; k < w.inputs; k++)
          acc = std::fma(w.type->number(weights[static_cast<size_t>(k) * kPanel + c]),
                         rows.floats[static_cast<size_t>(m) * w.inputs + k], acc);
        if (w.bias) acc += w.bias[panel * kPanel + c];
        out[static_cast<size_t>(m) * w.row() + panel * kPanel + c] = acc;
      }
  }
}

void MultiplyGguf(const GgufWeights& w, const GgufRows& rows, float* out, int first, int last) {
  if (w.type->floats()) return MultiplyFloats(w, rows, out, first, last);
  const GgufType& t = *w.type;
  const int steps = w.inputs / 32, lower = t.lower();
  auto plane = [](const uint8_t* from, int width, int c, int k) {
    const int inputs = 32 / width, within = k % inputs;
    return from[k / inputs * 64 + 4 * c + within % 4] >> (within / 4 * width) & ((1 << width) - 1);
  };
  for (int panel = first; panel < last; panel++) {
    const uint8_t *weights = w.weights + panel * w.panel_bytes(), *heads = w.heads + panel * w.head_bytes();
    for (int m = 0; m < rows.count; m++)
      for (int c = 0; c < std::min(kPanel, w.columns - panel * kPanel); c++) {
        float acc = 0;
        for (int g = 0; g < w.inputs / t.group; g++) {
          const int step = g * t.group / 32, in_block = g % t.groups();
          const uint8_t* head = heads + static_cast<size_t>(g / t.groups()) * t.head();
          const uint8_t* from = weights + static_cast<size_t>(step) * 64 * t.bits;
          const size_t row = static_cast<size_t>(m) * steps + step;
          int dot = 0, sum = 0;
          for (int i = 0; i < t.group; i++) {
            const int k = g * t.group % 32 + i;
            int q = plane(from, lower, c, k);
            if (lower < t.bits) q |= plane(from + 64 * lower, t.bits - lower, c, k) << lower;
            if (t.table) q = t.table[q];
            const int value = rows.values[static_cast<size_t>(m) * w.inputs + step * 32 + k];
            dot += q * value;
            sum += value;
          }
          uint16_t half;
          std::memcpy(&half, head + 2 * c, sizeof(half));
          const uint8_t* integers = head + (t.minimum ? 4 : 2) * kPanel + c;
          float scale = t.number(half);
          if (t.scaled) scale *= static_cast<float>(static_cast<int8_t>(integers[in_block * kPanel]));
          acc = std::fma(scale * rows.scales[row], static_cast<float>(dot - t.zero * sum), acc);
          if (t.minimum) {
            std::memcpy(&half, head + 2 * kPanel + 2 * c, sizeof(half));
            float least = t.number(half);
            if (t.scaled) least *= static_cast<float>(integers[(t.groups() + in_block) * kPanel]);
            acc = std::fma(least, -(rows.scales[row] * static_cast<float>(sum)), acc);
          }
        }
        if (w.bias) acc += w.bias[panel * kPanel + c];
        out[static_cast<size_t>(m) * w.row() + panel * kPanel + c] = acc;
      }
  }
}

}  // namespace

const Form kPortable{"portable",   [] { return true; }, Quantize,           Multiply,
                     MultiplyGguf, RowsOf<Vectors>(),   AttentionOf<Vectors>(), StatesOf<Vectors>()};

}  // namespace edge
