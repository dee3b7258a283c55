#include "cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

extern "C" {
size_t edge_packed_bytes(int bits, int inputs, int columns, int block, int half, int zero_points);
void edge_pack(int bits, int inputs, int columns, int block, int half, const uint8_t* weights, const float* scales,
               const uint8_t* zero_points, uint8_t* out);
size_t edge_gguf_bytes(int type, int inputs, int columns);
int edge_gguf_panel(int type, int inputs, size_t* row, size_t* weights, size_t* heads);
int edge_gguf_pack(int type, int inputs, int columns, const uint8_t* from, uint8_t* weights, uint8_t* heads);
int64_t edge_lend(const uint8_t* packed, size_t bytes);
void edge_take_back(int64_t lent);
}

namespace fuzz {
namespace {

using namespace edge::ort;
using Shared = std::shared_ptr<Tensor>;

// A node, and what it makes: tensors of those sizes, which the next node of a chain reads.
struct Made {
  Node node;
  std::vector<Shared> outputs;  // null for one that is missing
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : r(seed) {
    special_ = r.once_in(8) ? r.from(1, 4) : 0;
    scale_ =
        special_ == 4 ? r.of({1e-43f, 1e-38f, 3e-37f, 1e-30f, 1e18f, 1e30f}) : r.of({0.01f, 1.0f, 1.0f, 1.0f, 30.0f});
  }

  Random r;
  bool wild() const { return special_; }

  Made Any() {
    const bool states = AllOperators().count({"edge", "LinearAttention"});  // an older library has none over states
    const bool experts = AllOperators().count({"edge", "QMoE"});  // nor experts
    if (experts && r.once_in(12)) return Experts();
    switch (r.from(0, states ? 10 : 8)) {
      case 0:
        return Product(nullptr, 0);
      case 1:
        return Norm(nullptr);
      case 2:
      case 3:
        return GroupQuery(nullptr, 0, 0, 0);
      case 4:
        return MultiHead(nullptr, 0, nullptr);
      case 5:
        return PositionBias(r.from(1, 4), r.from(0, 6), r.from(0, 9));
      case 6:
        return Likeliest(nullptr);
      case 7:
        return GgufRows();
      case 8:
        return Chain();
      case 9:
        return Linear();
      default:
        return Convolution();
    }
  }

 private:
  int special_;
  float scale_;

  Shared Numbers(Type type, Dims dims) { return std::make_shared<Tensor>(type, std::move(dims)); }
  float Number() {
    if (special_ && special_ < 4 && r.once_in(60)) {
      constexpr float kInf = std::numeric_limits<float>::infinity();
      return r.of({std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, 0.0f, -0.0f});
    }
    return r.once_in(20) ? 0.0f : r.real() * scale_;
  }
  Shared Floats(Dims dims) {
    Shared made = Numbers(kFloat, std::move(dims));
    for (size_t i = 0; i < made->count(); i++) made->as<float>()[i] = Number();
    return made;
  }
  Shared Ones(Dims dims) {  // about 1, whatever the other numbers are
    Shared made = Numbers(kFloat, std::move(dims));
    for (size_t i = 0; i < made->count(); i++) made->as<float>()[i] = 1 + r.real() / 2;
    return made;
  }
  Shared Integer(int32_t value) {
    Shared made = Numbers(kInt32, r.once_in(2) ? Dims{1} : Dims{});
    *made->as<int32_t>() = value;
    return made;
  }
  static Shared Constant(Shared tensor) {
    tensor->constant = true;
    return tensor;
  }
  Dims RowsOf(int64_t width) {
    switch (r.from(0, 2)) {
      case 0:
        return {r.from(0, 20), width};
      case 1:
        return {1, r.from(0, 20), width};
      default:
        return {r.from(1, 3), r.from(1, 5), width};
    }
  }

  Made Product(Shared rows, int64_t columns) {
    const int64_t inputs = rows ? rows->dims.back() : r.once_in(3) ? r.from(1, 300) : 16 * r.from(1, 20);
    if (!rows) rows = Floats(RowsOf(inputs));
    const bool gate = !columns && r.once_in(3);
    if (!columns) columns = gate ? 32 * r.from(1, 4) : r.from(1, 100);
    const bool norm = inputs % 16 == 0 && r.once_in(3);
    Made made;
    made.node.op = "MatMulNBits";
    made.node.attributes = {{"K", inputs}, {"N", columns}};
    if (r.once_in(3))
      Parts(made.node, inputs, columns);
    else
      Blocks(made.node, inputs, columns);
    made.node.inputs = {rows};
    if (r.once_in(3) || norm) made.node.inputs.resize(6);
    if (made.node.inputs.size() == 6 && r.once_in(2)) made.node.inputs[5] = Constant(Floats({columns}));
    if (norm) {
      made.node.inputs.push_back(Floats(rows->dims));
      made.node.inputs.push_back(Constant(Ones({inputs})));
      made.node.attributes["norm"] = int64_t{1};
      made.node.attributes["epsilon"] = 1e-6f;
    }
    if (gate) made.node.attributes["gate"] = r.from(1, 2);
    Dims dims = rows->dims;
    dims.back() = gate ? columns / 2 : columns;
    made.outputs = {Numbers(kFloat, dims)};
    if (norm && r.once_in(2)) made.outputs.push_back(Numbers(kFloat, rows->dims));
    return made;
  }

  // The node reads this memory, which is lent as long as it is there. Returns what it finds it by.
  static int64_t Lend(Node& node, uint8_t* packed, size_t size) {
    const int64_t lent = edge_lend(packed, size);
    node.weights.emplace_back(packed, [lent](uint8_t* memory) {
      edge_take_back(lent);
      std::free(memory);
    });
    return lent;
  }

  // Gives a product a matrix of onnxruntime's blocks. prefix: before the names of its attributes.
  void Blocks(Node& node, int64_t inputs, int64_t columns, const std::string& prefix = "") {
    const bool by_row = inputs % 32 == 0 && r.once_in(4);
    const int bits = r.of({2, 4, 8}), block = static_cast<int>(by_row ? inputs : 32 << r.from(0, 3)),
              half = r.once_in(2);
    const int64_t blocks = (inputs + block - 1) / block;
    const bool zeros = (block <= 256) && r.once_in(2);
    std::vector<uint8_t> weights(columns * blocks * block * bits / 8), points(columns * ((blocks * bits + 7) / 8));
    for (auto* bytes : {&weights, &points})
      for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(r.next());
    std::vector<float> scales(columns * blocks);
    for (float& scale : scales) scale = static_cast<float>(r.from(0, 1023)) / 65536;  // which float16 holds
    const int k = static_cast<int>(inputs), n = static_cast<int>(columns);
    const size_t size = edge_packed_bytes(bits, k, n, block, half, zeros);
    auto* packed = static_cast<uint8_t*>(std::malloc(size));
    edge_pack(bits, k, n, block, half, weights.data(), scales.data(), zeros ? points.data() : nullptr, packed);
    auto& attributes = node.attributes;
    attributes[prefix + "bits"] = int64_t{bits}, attributes[prefix + "block_size"] = int64_t{block};
    attributes[prefix + "half"] = int64_t{half}, attributes[prefix + "zero_points"] = int64_t{zeros};
    attributes[prefix + "lent"] = Lend(node, packed, size);
  }

  // Gives a node matrices of a GGUF file side by side, of any types: all but the last fill their panels.
  void Parts(Node& node, int64_t inputs, int64_t columns) {
    int64_t count = 0;
    for (int64_t before = 0; before < columns; count++) {
      const int64_t full = 16 * r.from(1, 3);
      const int64_t own = count == 15 || full >= columns - before || r.once_in(3) ? columns - before : full;
      Part(node, "part." + std::to_string(count) + ".", static_cast<int>(inputs), static_cast<int>(own));
      before += own;
    }
    node.attributes["parts"] = count;
  }
  void Part(Node& node, const std::string& prefix, int inputs, int columns) {
    int type;
    do type = r.of({1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 30, 34, 35, 39});
    while (!edge_gguf_bytes(type, inputs, columns));
    size_t row, weights, heads;
    edge_gguf_panel(type, inputs, &row, &weights, &heads);
    // Where floats have the upper parts of their exponents bytes are such that these are finite: see edge_gguf_check.
    std::vector<uint8_t> raw(row * columns);
    for (size_t i = 0; i < raw.size(); i++) raw[i] = static_cast<uint8_t>(r.next() & (i % 2 ? 0xbb : 0xff));
    for (size_t i = 0; type == 39 && i < raw.size(); i += 17) raw[i] = static_cast<uint8_t>(r.from(0, 130));
    const size_t size = edge_gguf_bytes(type, inputs, columns);
    auto* packed = static_cast<uint8_t*>(std::malloc(size));
    edge_gguf_pack(type, inputs, columns, raw.data(), packed, packed + (columns + 15) / 16 * weights);
    node.attributes[prefix + "type"] = int64_t{type};
    node.attributes[prefix + "N"] = int64_t{columns};
    node.attributes[prefix + "lent"] = Lend(node, packed, size);
  }

  Made Experts() {
    const int64_t count = r.from(1, 6), width = 16 * r.from(1, 6), wide = 16 * r.from(1, 4);
    const bool gguf = r.once_in(2);
    Made made;
    made.node.op = "QMoE";
    auto& attributes = made.node.attributes;
    attributes = {{"experts", count}, {"k", r.from(1, count)}, {"normalize_routing_weights", r.from(0, 1)}};
    auto matrix = [&](const std::string& prefix, int64_t inputs, int64_t columns) {
      attributes[prefix + "K"] = inputs, attributes[prefix + "N"] = columns;
      if (!gguf) return Blocks(made.node, inputs, columns, prefix);
      attributes[prefix + "parts"] = int64_t{1};
      Part(made.node, prefix + "part.0.", static_cast<int>(inputs), static_cast<int>(columns));
    };
    matrix("gate.", width, count * wide * (gguf ? 1 : 2));
    if (gguf) matrix("up.", width, count * wide);
    matrix("down.", wide, count * width);
    if (r.once_in(3)) attributes["alpha"] = 1.702f, attributes["beta"] = 1.0f, attributes["limit"] = 7.0f;
    const Shared rows = Floats(RowsOf(width));
    const int64_t tokens = static_cast<int64_t>(rows->count()) / width;
    made.node.inputs = {rows, Floats({tokens, count})};
    if (r.once_in(2)) made.node.inputs.push_back(Floats({tokens, count}));
    if (r.once_in(3)) {
      made.node.inputs.resize(5);
      made.node.inputs[3] = Floats({count, 2 * wide});
      made.node.inputs[4] = Floats({count, width});
    }
    made.outputs = {Numbers(kFloat, rows->dims)};
    return made;
  }

  Made GgufRows() {
    const int64_t inputs = r.once_in(3) ? r.from(1, 300) : 32 * r.from(1, 20), columns = r.from(1, 100);
    Made made;
    made.node.op = "GgufRows";
    made.node.attributes = {{"K", inputs}, {"N", columns}, {"parts", int64_t{1}}};
    Part(made.node, "part.0.", static_cast<int>(inputs), static_cast<int>(columns));
    Shared ids = Numbers(kInt64, r.once_in(2) ? Dims{r.from(0, 9)} : Dims{r.from(1, 3), r.from(0, 5)});
    for (size_t i = 0; i < ids->count(); i++) ids->as<int64_t>()[i] = r.from(0, columns - 1);
    made.node.inputs = {ids};
    Dims dims = ids->dims;
    dims.push_back(inputs);
    made.outputs = {Numbers(kFloat, dims)};
    return made;
  }

  Made Norm(Shared rows) {
    const int64_t width = rows ? rows->dims.back() : 16 * r.from(1, 12);
    if (!rows) rows = Floats(RowsOf(width));
    Made made;
    made.node.op = "SkipSimplifiedLayerNormalization";
    made.node.attributes = {{"epsilon", 1e-5f}};
    made.node.inputs = {rows, r.once_in(2) ? Floats(rows->dims) : nullptr, Ones({width})};
    made.outputs = {Numbers(kFloat, rows->dims)};
    if (r.once_in(2)) {
      made.outputs.resize(4);
      if (r.once_in(2)) made.outputs[3] = Numbers(kFloat, rows->dims);
    }
    return made;
  }

  // packed: queries, keys and values of those heads in one, or null.
  Made GroupQuery(Shared packed, int64_t heads, int64_t kv_heads, int64_t dim) {
    if (!packed) {
      kv_heads = r.from(1, 3), heads = kv_heads * r.from(1, 3),
      dim = 16 * (r.once_in(10) ? r.from(1, 32) : r.from(1, 4));
    }
    const bool bytes = r.once_in(2), rotary = !r.once_in(3), biased = r.once_in(3);
    const int64_t batch = packed ? packed->dims[0] : r.once_in(3) ? r.from(1, 3) : 1;
    int64_t tokens = packed ? packed->dims[1] : r.once_in(4) ? r.from(17, 40) : r.from(1, 6);
    // In a row, a token of each text, and all others of the last one.
    const bool mixed = batch == 1 && !biased && (!packed || tokens > 1) && r.once_in(3);
    const int64_t texts = !mixed ? batch : packed ? r.from(2, std::min<int64_t>(tokens, 4)) : r.from(2, 4);
    if (mixed && !packed) tokens += texts - 1;
    const int64_t of_last = mixed ? tokens - texts + 1 : tokens;
    const int64_t most = r.once_in(6) ? 330 : 70, past = r.once_in(3) ? 0 : r.from(0, most);
    const bool apart = !packed && r.once_in(2), shared = apart && r.once_in(3);  // another layer has written the step's
    const int64_t all = past + of_last, rows = !shared && !mixed && r.once_in(5) ? past : all + r.from(0, 9);
    Made made;
    made.node.domain = bytes ? "edge.int8" : "edge";
    made.node.op = "GroupQueryAttention";
    made.node.attributes = {{"num_heads", heads}, {"kv_num_heads", kv_heads}, {"do_rotary", int64_t{rotary}}};
    if (r.once_in(3)) made.node.attributes["local_window_size"] = r.of<int64_t>({-1, 1, 7, 64, 100});
    if (r.once_in(3)) made.node.attributes["scale"] = 0.25f;
    if (r.once_in(4)) made.node.attributes["softcap"] = r.of({0.5f, 30.0f, 0.0f});
    auto& inputs = made.node.inputs;
    const bool sinks = r.once_in(4);
    inputs.resize(bytes ? 14 : sinks ? 12 : biased ? 11 : rotary ? 10 : 7);
    if (sinks) inputs[11] = Floats({heads});
    inputs[0] = packed ? packed : Floats({batch, tokens, (heads + (apart ? 0 : 2 * kv_heads)) * dim});
    if (apart)
      for (int i : {1, 2}) inputs[i] = Floats({batch, shared ? 0 : tokens, kv_heads * dim});
    for (int i : {3, 4}) {
      inputs[i] = bytes ? Numbers(kInt8, {texts, kv_heads, rows, dim}) : Floats({texts, kv_heads, rows, dim});
      for (size_t k = 0; bytes && k < inputs[i]->count(); k++)
        inputs[i]->as<int8_t>()[k] = static_cast<int8_t>(r.next());
    }
    inputs[5] = Numbers(kInt32, {texts});
    for (int64_t b = 0; b < texts; b++) {
      const bool last = b == texts - 1, longest = mixed ? last : !b;
      const int64_t own = !mixed || last ? of_last : 1;
      inputs[5]->as<int32_t>()[b] = static_cast<int32_t>(own - 1 + (longest ? past : r.from(0, past)));
    }
    inputs[6] = Integer(static_cast<int32_t>(all));
    if (rotary) {
      const Dims table{all + r.from(0, 5), 8 * r.from(1, dim / 16)};
      inputs[7] = Ones(table);
      inputs[8] = Ones(table);
      if (r.once_in(2)) {
        inputs[9] = Numbers(kInt64, {batch, tokens});
        for (size_t i = 0; i < inputs[9]->count(); i++) inputs[9]->as<int64_t>()[i] = r.from(0, table[0] - 1);
      }
    }
    if (biased) {
      inputs[10] = Floats({r.once_in(2) ? batch : 1, r.once_in(2) ? heads : 1, tokens, all});
      for (size_t i = 0; i < inputs[10]->count(); i++)
        if (r.once_in(5)) inputs[10]->as<float>()[i] = -std::numeric_limits<float>::infinity();
    }
    if (bytes)
      for (int i : {12, 13}) inputs[i] = Ones(r.once_in(2) ? Dims{kv_heads * dim} : Dims{1, kv_heads, 1, dim});
    const Dims cache{texts, kv_heads, std::max(rows, all), dim};
    const Type type = bytes ? kInt8 : kFloat;
    made.outputs = {Numbers(kFloat, {batch, tokens, heads * dim}), Numbers(type, cache), Numbers(type, cache)};
    if (shared && !r.once_in(3)) made.outputs.resize(1);
    if (!shared && !r.once_in(3)) made.node.in_place = {{1, 3}, {2, 4}};
    return made;
  }

  // packed: queries, keys and values of those heads in one, or null; and what is added to their scores, or null.
  Made MultiHead(Shared packed, int64_t heads, Shared bias) {
    Made made;
    made.node.op = "MultiHeadAttention";
    if (packed) {
      made.node.inputs = {packed};
    } else {
      heads = r.from(1, 4);
      const int64_t dim = 16 * r.from(1, 4), batch = r.from(1, 2), tokens = r.from(0, 20), keys = r.from(1, 100);
      if (r.once_in(3)) {
        made.node.inputs = {Floats({batch, tokens, 3 * heads * dim})};
        if (r.once_in(2)) bias = Floats({1, r.once_in(2) ? heads : 1, tokens, tokens});
      } else {
        made.node.inputs = {Floats({batch, tokens, heads * dim}), Floats({batch, heads, keys, dim}),
                            Floats({batch, heads, keys, dim})};
        if (r.once_in(2)) bias = Floats({1, r.once_in(2) ? heads : 1, tokens, keys});
      }
    }
    if (bias) {
      made.node.inputs.resize(6);
      made.node.inputs[5] = bias;
    }
    made.node.attributes = {{"num_heads", heads}};
    if (r.once_in(2)) made.node.attributes["scale"] = 1.0f;
    Dims dims = made.node.inputs[0]->dims;
    if (made.node.inputs.size() < 2 || !made.node.inputs[1]) dims[2] /= 3;
    made.outputs = {Numbers(kFloat, dims)};
    return made;
  }

  Made PositionBias(int64_t heads, int64_t tokens, int64_t keys) {
    const int64_t capacity = keys + r.from(0, 4), distances = 2 * (capacity + tokens) + 2;
    Made made;
    made.node.op = "PositionBias";
    Shared positions = Numbers(kInt64, r.once_in(2) ? Dims{tokens} : Dims{1, tokens});
    Shared of_keys = Numbers(kInt64, {capacity});
    for (int64_t t = 0; t < tokens; t++) positions->as<int64_t>()[t] = r.from(0, distances / 2 - 1);
    for (int64_t k = 0; k < capacity; k++) of_keys->as<int64_t>()[k] = k;
    made.node.inputs = {Floats({heads, distances}), positions, of_keys, Floats({1, 1, tokens, capacity}),
                        Integer(static_cast<int32_t>(keys))};
    made.outputs = {Numbers(kFloat, {1, heads, tokens, keys})};
    return made;
  }

  Made Linear() {
    const int64_t queries = r.from(1, 3), each = r.from(1, 3), heads = queries * each;
    const int64_t rows = 2 * (r.once_in(8) ? r.from(1, 256) : r.from(1, 20)), columns = 16 * r.from(1, 6);
    const int64_t batch = r.once_in(3) ? r.from(0, 3) : 1, tokens = r.once_in(4) ? 1 : r.from(0, 9);
    const bool delta = r.once_in(2);
    Made made;
    made.node.op = "LinearAttention";
    made.node.attributes = {{"q_num_heads", queries}, {"kv_num_heads", heads}, {"delta", int64_t{delta}}};
    if (r.once_in(2)) made.node.attributes["scale"] = 0.5f;
    const int64_t keys = r.once_in(2) ? heads : queries;
    made.node.inputs = {Floats({batch, tokens, queries * rows}), Floats({batch, tokens, keys * rows}),
                        Floats({batch, tokens, heads * columns}), Floats({batch, heads, rows, columns}),
                        Floats({batch, tokens, heads})};
    if (delta || r.once_in(4)) made.node.inputs.push_back(Ones({batch, tokens, heads}));
    made.outputs = {Numbers(kFloat, {batch, tokens, heads * columns}), Numbers(kFloat, {batch, heads, rows, columns})};
    if (r.once_in(2)) made.node.in_place = {{1, 3}};
    return made;
  }

  Made Convolution() {
    const int64_t channels = 16 * r.from(1, 40), taps = r.once_in(3) ? r.from(2, 16) : 4;
    const int64_t batch = r.once_in(3) ? r.from(0, 3) : 1, tokens = r.once_in(4) ? 1 : r.from(0, 20);
    Made made;
    made.node.op = "CausalConvWithState";
    made.node.attributes = {{"silu", r.from(0, 1)}};
    made.node.inputs = {Floats({batch, tokens, channels}), Constant(Floats({channels, 1, taps})),
                        r.once_in(2) ? Constant(Floats({channels})) : nullptr, Floats({batch, taps - 1, channels})};
    made.outputs = {Numbers(kFloat, {batch, tokens, channels}), Numbers(kFloat, {batch, taps - 1, channels})};
    if (r.once_in(2)) made.node.in_place = {{1, 3}};
    return made;
  }

  Made Likeliest(Shared logits) {
    const int64_t size = r.once_in(6) ? r.from(2000, 5000) : r.from(1, 300);
    if (!logits) logits = Floats({r.from(1, 2), r.from(0, 4), size});
    const int64_t most = logits->dims[2], count = r.once_in(5) ? most : r.from(0, std::min<int64_t>(most, 9));
    Made made;
    made.node.op = "Likeliest";
    Shared wanted = Numbers(kInt64, {1});
    *wanted->as<int64_t>() = count;
    made.node.inputs = {logits, wanted};
    const Dims dims{logits->dims[0] * logits->dims[1], count};
    made.outputs = {Numbers(kFloat, dims), Numbers(kInt64, dims)};
    return made;
  }

  Made Gather(Shared rows) {
    const int64_t there = rows->dims[1], count = r.from(0, 4);
    Made made;
    made.node.op = "Gather";
    made.node.attributes = {{"axis", int64_t{1}}};
    Shared which = Numbers(kInt64, {count});
    for (int64_t i = 0; i < count; i++) which->as<int64_t>()[i] = r.from(-there, there - 1);
    made.node.inputs = {rows, which};
    made.outputs = {Numbers(kFloat, {rows->dims[0], count, rows->dims[2]})};
    return made;
  }

  Made Chain() {
    const bool in_units = r.once_in(3), by_row = in_units && r.once_in(2), sequences = by_row && r.once_in(2);
    const int64_t count = r.from(1, 20);
    Shared rows = Floats({sequences ? count : 1, sequences ? 1 : count, 16 * r.from(1, 8)});
    std::vector<Made> links;
    auto add = [&](Made made) { links.push_back(std::move(made)), rows = links.back().outputs[0]; };
    int64_t units = 0;
    std::vector<Pass> passes;
    for (int64_t steps = r.from(1, 6); steps > 0; steps--) {
      const int64_t heads = r.from(1, 3), dim = 16 * r.from(1, 3), group = r.from(1, 2), tokens = rows->dims[1];
      if (in_units && tokens && r.once_in(2)) {
        const Shared before = rows;
        const size_t first = links.size();
        if (r.once_in(2) && sequences == by_row) {  // some tokens of one sequence are another number of its rows
          add(Product(rows, (group + 2) * heads * dim));
          add(GroupQuery(rows, group * heads, heads, dim));
          auto& inputs = links.back().node.inputs;
          if (by_row && inputs.size() > 10) inputs[10] = nullptr;  // no bias of some rows
        }
        add(Product(rows, before->dims[2]));
        for (size_t i = first; i < links.size(); i++) links[i].node.attributes["unit"] = units;
        passes.push_back({units++, rows, before});
        continue;
      }
      switch (r.from(0, 5)) {
        case 0:
          if (rows->dims[2] % 16 == 0) add(Norm(rows));
          break;
        case 1:
          add(Product(rows, r.once_in(2) ? 16 * r.from(1, 6) : 0));
          break;
        case 2:
          if (tokens && !by_row) add(Gather(rows));
          break;
        case 3:
          if (!tokens) break;
          add(Product(rows, (group + 2) * heads * dim));
          add(GroupQuery(rows, group * heads, heads, dim));
          break;
        case 4: {
          add(Product(rows, 3 * heads * dim));
          const Shared packed = rows;
          Shared bias;
          if (r.once_in(2)) add(PositionBias(heads, tokens, tokens)), bias = rows;
          add(MultiHead(packed, heads, bias));
          break;
        }
        default:
          add(Product(rows, 0));
      }
    }
    if (links.empty()) add(Product(rows, 0));
    if (r.once_in(4)) links.push_back(Likeliest(rows));
    return AsOne(links, passes, by_row ? count : 1);
  }

  // What a unit makes, and what others go on with where it is left out.
  struct Pass {
    int64_t unit;
    Shared made, read;
  };

  Made AsOne(const std::vector<Made>& links, const std::vector<Pass>& passes, int64_t rows) {
    Made chain;
    chain.node.op = "Chain";
    std::vector<const Tensor*> made, given, inside;
    const Tensor* last = nullptr;  // that is made whatever is left out
    for (const Made& link : links)
      for (const Shared& output : link.outputs) {
        if (!output) continue;
        // What is left out is not made, but for what others go on with.
        const bool passed =
            std::any_of(passes.begin(), passes.end(), [&](auto& pass) { return pass.made == output; });
        const bool left_out = link.node.attributes.count("unit") && !passed;
        made.push_back(output.get()), (!left_out && r.once_in(3) ? given : inside).push_back(output.get());
        if (!left_out) last = output.get();
      }
    if (given.empty()) given = {last}, inside.erase(std::find(inside.begin(), inside.end(), last));
    const auto units = static_cast<int64_t>(passes.size());
    auto& taken = chain.node.inputs;
    if (units) {
      taken.push_back(Numbers(kBool, {units, rows}));
      for (int64_t i = 0; i < units * rows; i++) taken[0]->as<bool>()[i] = r.once_in(2);
    }
    for (const Made& link : links)
      for (const Shared& input : link.node.inputs)
        if (input && std::find(made.begin(), made.end(), input.get()) == made.end() &&
            std::find(taken.begin(), taken.end(), input) == taken.end())
          taken.push_back(input);
    std::map<const Tensor*, int64_t> values;
    for (const auto& input : taken) values.emplace(input.get(), values.size());
    for (const auto* some : {&given, &inside})
      for (const Tensor* each : *some) values.emplace(each, values.size());
    auto& attributes = chain.node.attributes;
    attributes = {{"taken", Count(taken)}, {"given", Count(given)}, {"nodes", Count(links)}};
    if (units) attributes["route"] = 0, attributes["units"] = attributes["passes"] = units;
    for (const auto& pass : passes) {
      const std::string name = "pass." + std::to_string(pass.unit) + ".";
      attributes[name + "unit"] = pass.unit;
      attributes[name + "made"] = values.at(pass.made.get());
      attributes[name + "read"] = values.at(pass.read.get());
    }
    static const std::map<std::string, int64_t> kOps = {
        {"MatMulNBits", 0}, {"GroupQueryAttention", 1}, {"SkipSimplifiedLayerNormalization", 2},
        {"Gather", 3},      {"MultiHeadAttention", 4},  {"PositionBias", 5},
        {"Likeliest", 6}};
    for (size_t i = 0; i < links.size(); i++) {
      const Made& link = links[i];
      const std::string prefix = std::to_string(i) + ".";
      attributes[prefix + "op"] = kOps.at(link.node.op);
      auto note = [&](const std::string& name, const std::vector<Shared>& some) {
        attributes[prefix + name + "s"] = Count(some);
        for (size_t k = 0; k < some.size(); k++)
          attributes[prefix + name + "." + std::to_string(k)] = some[k] ? values.at(some[k].get()) : -1;
      };
      note("input", link.node.inputs);
      note("output", link.outputs);
      for (const auto& [name, value] : link.node.attributes) attributes[prefix + name] = value;
      for (const auto& weights : link.node.weights) chain.node.weights.push_back(weights);
      for (const auto& [output, input] : link.node.in_place) {
        const int64_t to = values.at(link.outputs[output].get()) - Count(taken);
        if (to < Count(given)) chain.node.in_place[to] = values.at(link.node.inputs[input].get());
      }
    }
    for (const Tensor* each : given)
      for (const Made& link : links)
        for (const Shared& output : link.outputs)
          if (output.get() == each) chain.outputs.push_back(output);
    return chain;
  }

  template <class T>
  static int64_t Count(const std::vector<T>& some) {
    return static_cast<int64_t>(some.size());
  }
};

}  // namespace

Case MakeCase(uint64_t seed) {
  Maker maker(seed);
  Case made;
  Made valid = maker.Any();
  made.node = std::move(valid.node);
  for (const auto& output : valid.outputs) made.node.outputs.push_back(output ? output->type : kAny);
  made.wild = maker.wild();
  if (!maker.r.once_in(3)) made.fault = Harm(maker.r, made.node);
  return made;
}

}  // namespace fuzz
