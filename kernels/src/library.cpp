// What the library offers: its operators to onnxruntime, and to its host what makes their weights and says how they
// run.
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "gguf.h"
#include "operators.h"
#include "pack.h"
#include "processor.h"

#if defined(_WIN32)
#define EDGE_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

using namespace edge;

// onnxruntime calls it when a session's options are given the library.
EDGE_EXPORT ort::Status* RegisterCustomOps(ort::Options* options, const ort::Base* base) {
  const void* const* table = base->api(ort::kVersion);
  if (!table) return nullptr;  // an onnxruntime older than any that has these operators: graphs with them fail to load
  const ort::Api api(table);
  const ort::Operator* const of_floats[] = {
      kProductOperator,      kNormOperator,      kAttentionOperator, kMultiHeadOperator,
      kPositionBiasOperator, kLikeliestOperator, kLargestOperator,   kChainOperator,     kGgufRowsOperator,
      kLinearAttentionOperator, kConvolutionOperator, kExpertsOperator, kScoresOperator, nullptr};
  const ort::Operator* const of_bytes[] = {kBytesAttentionOperator, nullptr};
  const struct {
    const char* name;
    const ort::Operator* const* operators;
  } domains[] = {{"edge", of_floats}, {"edge.int8", of_bytes}};
  static ort::Domain* made[2] = {};  // for all sessions
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (int i = 0; i < 2; i++) {
    if (!made[i]) {
      ort::Domain* domain = nullptr;
      if (ort::Status* failed = api.NewDomain(domains[i].name, &domain)) return failed;
      for (const ort::Operator* const* op = domains[i].operators; *op; op++)
        if (ort::Status* failed = api.Add(domain, *op)) return failed;
      made[i] = domain;
    }
    if (ort::Status* failed = api.Add(options, made[i])) return failed;
  }
  return nullptr;
}

// What these functions take, and what operators there are: another number, another interface.
EDGE_EXPORT int edge_interface() { return 9; }

// The largest head of attention. A library without this function has heads of 256 at most, and neither bounds scores nor
// attends to the keys of another layer.
EDGE_EXPORT int edge_largest_head() { return kLargestHead; }

// The most rows of a state of linear attention. A library without this function has no operators over states.
EDGE_EXPORT int edge_most_state_rows() { return kMostStateRows; }

// What experts may have, of which each number has all before: 1: the operators QMoE and FusedMatMul are there; 2: biases,
// and gates with a limit. A library without this function has neither operator.
EDGE_EXPORT int edge_experts() { return 2; }

// Whether heads of attention may have sinks. Those of a library without this function have none.
EDGE_EXPORT int edge_head_sinks() { return 1; }

// Whether attention takes a token of each of several texts and several of the last one, in a row. A library without this
// function refuses such steps.
EDGE_EXPORT int edge_mixed_steps() { return 1; }

// The format of packed weights: another number, another format.
EDGE_EXPORT int edge_format() { return 1; }

// What computes here, by its name; null where the library has nothing for this processor.
EDGE_EXPORT const char* edge_form() {
  const Form* form = Fastest();
  return form ? form->name : nullptr;
}

// Bytes of a packed matrix; 0 where it cannot be packed.
EDGE_EXPORT size_t edge_packed_bytes(int bits, int inputs, int columns, int block, int half, int zero_points) {
  const Shape shape{bits, inputs, columns, block, half, zero_points};
  return shape.supported() ? PackedBytes(shape) : 0;
}

// See `Pack`. Nothing is done where the matrix cannot be packed.
EDGE_EXPORT void edge_pack(int bits, int inputs, int columns, int block, int half, const uint8_t* weights,
                           const float* scales, const uint8_t* zero_points, uint8_t* out) {
  const Shape shape{bits, inputs, columns, block, half, zero_points != nullptr};
  if (shape.supported()) Pack(shape, weights, scales, zero_points, out);
}

// See `Lend`; 0 where there is no memory to note it.
EDGE_EXPORT int64_t edge_lend(const uint8_t* packed, size_t bytes) try {
  return Lend(packed, bytes);
} catch (const std::bad_alloc&) {
  return 0;
}
EDGE_EXPORT void edge_take_back(int64_t lent) { TakeBack(lent); }

// Bytes of a matrix of a GGUF file's type, packed; 0 where it cannot be.
EDGE_EXPORT size_t edge_gguf_bytes(int type, int inputs, int columns) {
  const GgufType* found = FindGgufType(type);
  return found && found->supports(inputs, columns) ? PackedBytes(*found, inputs, columns) : 0;
}

// See `PackGguf`: whether it was packed.
EDGE_EXPORT int edge_gguf_pack(int type, int inputs, int columns, const uint8_t* from, uint8_t* weights,
                               uint8_t* heads) {
  if (!edge_gguf_bytes(type, inputs, columns)) return 0;
  return PackGguf(*FindGgufType(type), inputs, columns, from, weights, heads);
}

// Bytes of a row of such a matrix in a file, and of the weights and the heads of a panel: a packed matrix has the weights
// of all panels, then their heads. Returns the columns of a panel; 0 where there is no such matrix.
EDGE_EXPORT int edge_gguf_panel(int type, int inputs, size_t* row, size_t* weights, size_t* heads) {
  if (!edge_gguf_bytes(type, inputs, 1)) return 0;
  const GgufWeights w{FindGgufType(type), nullptr, nullptr, nullptr, inputs, kPanel};
  *row = static_cast<size_t>(inputs / w.type->block) * w.type->bytes;
  *weights = w.panel_bytes();
  *heads = w.head_bytes();
  return kPanel;
}

// Floats of a row of a file [inputs]: whether there is such a type.
EDGE_EXPORT int edge_gguf_read(int type, int inputs, const uint8_t* from, float* out) {
  if (!edge_gguf_bytes(type, inputs, 1)) return 0;
  Dequantize(*FindGgufType(type), from, inputs, out);
  return 1;
}

// Rows of floats times a packed matrix of a GGUF file's type, the panels from `first` to `last`, in one thread.
static void MultiplyGguf(const Form& form, const GgufWeights& w, const float* rows, int count, int first, int last,
                         float* out) {
  if (w.type->floats()) return form.multiply_gguf(w, {nullptr, nullptr, nullptr, rows, count}, out, first, last);
  const size_t numbers = static_cast<size_t>(count) * w.inputs;
  std::vector<int8_t> values(numbers);
  std::vector<float> scales(numbers / 32);
  std::vector<int32_t> sums(numbers / 16);
  form.quantize({rows, w.inputs, w.inputs, 32, values.data(), scales.data(), sums.data()}, 0, count);
  SumSixteens(values.data(), sums.size(), sums.data());
  form.multiply_gguf(w, {values.data(), scales.data(), sums.data(), rows, count}, out, first, last);
}

// Rows times a packed matrix, the panels from `first` to `last`, in one thread.
static void Multiply(const Form& form, const Shape& shape, const uint8_t* packed, const Rounding& rows, int count,
                     int first, int last, float* out) {
  form.quantize(rows, 0, count);
  form.multiply(Unpacked(shape, packed, nullptr), {rows.values, rows.scales, rows.sums, count}, out, first, last);
}

// Whether the form that computes here gives the bits of the portable one for matrices of a GGUF file.
EDGE_EXPORT int edge_gguf_check() try {
  const Form* form = Fastest();
  if (!form) return 0;
  constexpr int inputs = 512, columns = 24, most = 19;
  for (int id = 0; id < kGgufTypes; id++) {
    const GgufType* type = FindGgufType(id);
    if (!type) continue;
    uint32_t state = 1;
    auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 8; };
    std::vector<uint8_t> raw(static_cast<size_t>(inputs) / type->block * type->bytes * columns);
    // A float16 or bfloat16 has the upper part of its exponent in odd bytes: so it is finite. An exponent of MXFP4 may
    // be in any.
    for (size_t i = 0; i < raw.size(); i++) raw[i] = static_cast<uint8_t>(next() & (i % 2 ? 0xbb : 0xff));
    for (size_t i = 0; id == 39 && i < raw.size(); i += type->bytes) raw[i] = static_cast<uint8_t>(raw[i] % 128);
    std::vector<float> rows(most * inputs), made[2];
    for (auto& each : rows) each = static_cast<float>(next() % 2001) / 1000.0f - 1.0f;
    std::vector<uint8_t> packed(PackedBytes(*type, inputs, columns));
    const GgufWeights w = Unpacked(*type, inputs, columns, packed.data(), nullptr);
    const int panels = static_cast<int>(w.panels());
    if (!PackGguf(*type, inputs, columns, raw.data(), packed.data(), packed.data() + (w.heads - w.weights))) return 0;
    for (int count : {1, 2, 5, most}) {
      for (int i = 0; i < 2; i++) {
        made[i].assign(count * columns, 0);
        MultiplyGguf(i ? *form : kPortable, w, rows.data(), count, 0, panels, made[i].data());
      }
      if (std::memcmp(made[0].data(), made[1].data(), made[0].size() * sizeof(float))) return 0;
    }
  }
  return 1;
} catch (const std::bad_alloc&) {
  return 0;
}

// Whether the form that computes here gives the bits of the portable one.
EDGE_EXPORT int edge_check() try {
  const Form* form = Fastest();
  if (!form) return 0;
  for (int bits : {2, 4, 8}) {
    const Shape shape{bits, 72, 24, 32, 0, 1};
    const int blocks = shape.padded() / shape.block, most = 19;
    uint32_t state = 1;
    auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 8; };
    std::vector<uint8_t> weights(static_cast<size_t>(shape.columns) * shape.padded()), zeros(weights.size());
    std::vector<float> scales(static_cast<size_t>(shape.columns) * blocks), rows(most * shape.inputs);
    for (auto& each : weights) each = static_cast<uint8_t>(next());
    for (auto& each : zeros) each = static_cast<uint8_t>(next());
    for (auto& each : scales) each = static_cast<float>(next() % 1000 + 1) / 65536.0f;
    for (auto& each : rows) each = static_cast<float>(next() % 2001) / 1000.0f - 1.0f;
    std::vector<uint8_t> packed(PackedBytes(shape));
    Pack(shape, weights.data(), scales.data(), zeros.data(), packed.data());
    for (int count : {5, most}) {
      std::vector<float> made[2];
      for (int i = 0; i < 2; i++) {
        const Form& of = i ? *form : kPortable;
        std::vector<int8_t> values(count * shape.padded());
        std::vector<float> of_rows(count * blocks);
        std::vector<int32_t> sums(count * blocks);
        made[i].resize(count * shape.columns);
        Multiply(of, shape, packed.data(),
                 {rows.data(), shape.inputs, shape.padded(), shape.block, values.data(), of_rows.data(), sums.data()},
                 count, 0, static_cast<int>(shape.panels()), made[i].data());
      }
      if (std::memcmp(made[0].data(), made[1].data(), made[0].size() * sizeof(float))) return 0;
    }
  }
  return 1;
} catch (const std::bad_alloc&) {
  return 0;
}

// For tests: the panels of tiles of many rows, 1 or 2; 0: as many as are faster here.
EDGE_EXPORT void edge_panels(int panels) { panels_asked = panels; }

// For tests: rows [count, inputs] times a packed matrix, by the form with this number, in one thread, the panels from
// `first` to `last`. Returns 0 where this processor does not run the form, or there is none, or no such matrix or rows
// or panels. values, scales and sums are memory for the rounded rows.
EDGE_EXPORT int edge_product(int form, int bits, int inputs, int columns, int block, int half, int zero_points,
                             const uint8_t* packed, const float* rows, int count, int first, int last, int8_t* values,
                             float* scales, int32_t* sums, float* out) {
  for (int i = 0; i < form; i++)
    if (!kForms[i]) return 0;
  if (form < 0 || !kForms[form] || !kForms[form]->runs()) return 0;
  const Shape shape{bits, inputs, columns, block, half, zero_points};
  if (!shape.supported() || count < 0 || int64_t{count} * (shape.padded() / block) > std::numeric_limits<int>::max())
    return 0;
  if (first < 0 || last < first || static_cast<size_t>(last) > shape.panels()) return 0;
  Multiply(*kForms[form], shape, packed, {rows, inputs, shape.padded(), block, values, scales, sums}, count, first,
           last, out);
  return 1;
}

// For tests: the same of a matrix of a GGUF file's type.
EDGE_EXPORT int edge_gguf_product(int form, int type, int inputs, int columns, const uint8_t* packed, const float* rows,
                                  int count, int first, int last, float* out) try {
  for (int i = 0; i < form; i++)
    if (!kForms[i]) return 0;
  if (form < 0 || !kForms[form] || !kForms[form]->runs() || count < 0) return 0;
  if (!edge_gguf_bytes(type, inputs, columns)) return 0;
  const GgufWeights w = Unpacked(*FindGgufType(type), inputs, columns, packed, nullptr);
  if (first < 0 || last < first || static_cast<size_t>(last) > w.panels()) return 0;
  MultiplyGguf(*kForms[form], w, rows, count, first, last, out);
  return 1;
} catch (const std::bad_alloc&) {
  return 0;
}
