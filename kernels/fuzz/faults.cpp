// What may be wrong with a node.
#include <algorithm>
#include <iterator>
#include <limits>

#include "cases.h"

namespace fuzz {
namespace {

using namespace edge::ort;
using Shared = std::shared_ptr<Tensor>;

constexpr int64_t kExtremes[] = {0,
                                 -1,
                                 1,
                                 2,
                                 3,
                                 15,
                                 16,
                                 17,
                                 64,
                                 255,
                                 256,
                                 257,
                                 1 << 16,
                                 (1 << 16) + 1,
                                 1 << 20,
                                 INT32_MAX,
                                 INT32_MIN,
                                 int64_t{1} << 31,
                                 int64_t{1} << 32,
                                 (int64_t{1} << 32) + 16,
                                 int64_t{1} << 40,
                                 INT64_MAX,
                                 INT64_MIN};

int64_t Extreme(Random& r, int64_t before) {
  if (r.once_in(2)) return before + r.of<int64_t>({-1, 1, 2, 16, -16, int64_t{1} << 32});
  return kExtremes[r.next() % std::size(kExtremes)];
}

// A tensor of other sizes, with the same numbers as far as there are.
Shared Sized(const Tensor& from, Type type, Dims dims) {
  auto made = std::make_shared<Tensor>(type, std::move(dims));
  if (made->bytes() > kMostBytes) made = std::make_shared<Tensor>(type, Dims{0});
  made->constant = from.constant;
  const size_t all = made->bytes(), there = from.bytes();
  if (all && !there) std::memset(made->data.get(), 0, all);
  for (size_t i = 0; there && i < all; i += there)
    std::memcpy(made->data.get() + i, from.data.get(), std::min(there, all - i));
  return made;
}

void ChangeSizes(Random& r, Shared& input) {
  Dims dims = input->dims;
  switch (dims.empty() ? 1 : r.from(0, 4)) {
    case 0:
      dims.erase(dims.begin() + r.from(0, dims.size() - 1));
      break;
    case 1:
      dims.insert(dims.begin() + r.from(0, dims.size()), r.from(0, 2));
      break;
    case 2:
      dims.insert(dims.begin(), r.from(1, 4), 1);
      break;
    case 3:
      dims[r.from(0, dims.size() - 1)] = r.from(0, 40);
      break;
    default: {
      int64_t& size = dims[r.from(0, dims.size() - 1)];
      size = std::max<int64_t>(0, size + r.of<int64_t>({-size, -16, -1, 1, 16, size}));
      if (!size) dims[r.from(0, dims.size() - 1)] = r.of<int64_t>({0, 1, int64_t{1} << 33, int64_t{1} << 62});
    }
  }
  input = Sized(*input, input->type, dims);
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) input->dims = dims;  // of which there are no numbers
}

}  // namespace

std::string Harm(Random& r, Node& node) {
  auto input = [&]() -> std::pair<size_t, Shared*> {
    std::vector<size_t> there;
    for (size_t i = 0; i < node.inputs.size(); i++)
      if (node.inputs[i]) there.push_back(i);
    if (there.empty()) return {0, nullptr};
    const size_t at = there[r.from(0, there.size() - 1)];
    return {at, &node.inputs[at]};
  };
  const auto [at, tensor] = input();
  const std::string name = "input " + std::to_string(at);
  switch (r.from(0, 9)) {
    case 0:
    case 1:
    case 2:
      if (!tensor) break;
      ChangeSizes(r, *tensor);
      return name + " has other sizes";
    case 3: {
      std::vector<Shared*> integers;
      for (Shared& each : node.inputs)
        if (each && (each->type == kInt32 || each->type == kInt64) && each->count()) integers.push_back(&each);
      if (integers.empty()) break;
      Shared& chosen = *integers[r.from(0, integers.size() - 1)];
      chosen = Sized(*chosen, chosen->type, chosen->dims);
      const size_t i = r.from(0, chosen->count() - 1);
      if (chosen->type == kInt32)
        chosen->as<int32_t>()[i] = static_cast<int32_t>(Extreme(r, chosen->as<int32_t>()[i]) & 0xffffffff);
      else
        chosen->as<int64_t>()[i] = Extreme(r, chosen->as<int64_t>()[i] / 2);
      return "an input has the integer of an extreme";
    }
    case 4:
      if (!tensor) break;
      if (r.once_in(3)) return tensor->reset(), name + " is missing";
      *tensor = Sized(**tensor, r.of({kFloat, kInt8, kUint8, kInt32, kInt64}), (*tensor)->dims);
      return name + " is of another type";
    case 5:
      if (!tensor) break;
      *tensor = Sized(**tensor, (*tensor)->type, (*tensor)->dims);
      (*tensor)->constant = !(*tensor)->constant;
      return name + " is constant, or no longer";
    case 6: {
      if (!tensor) break;
      const Shared more = Sized(**tensor, (*tensor)->type, (*tensor)->dims);
      const size_t place = r.from(0, node.inputs.size());
      if (place == node.inputs.size()) node.inputs.push_back(nullptr);
      if (node.inputs[place]) break;
      node.inputs[place] = more;
      return "input " + std::to_string(place) + " is given";
    }
    case 7: {
      const size_t i = r.from(0, node.outputs.size());
      if (i == node.outputs.size()) node.outputs.push_back(kAny);
      node.outputs[i] = r.of({kAny, kFloat, kInt8, kInt64});
      return "output " + std::to_string(i) + " is of another type, or missing";
    }
    default: {
      auto chosen = node.attributes.begin();
      std::advance(chosen, node.attributes.empty() ? 0 : r.from(0, node.attributes.size() - 1));
      if (chosen == node.attributes.end() || r.once_in(6)) {
        const char* names[] = {
            "gate",           "norm",  "softcap",           "smooth_softmax",     "rotary_interleaved",
            "unidirectional", "scale", "local_window_size", "kv_cache_bit_width", "epsilon",
            "qk_output",      "half"};
        const char* added = names[r.from(0, std::size(names) - 1)];
        node.attributes[added] = r.once_in(3) ? Attribute(r.real()) : Attribute(r.from(-1, 9));
        return std::string("attribute ") + added + " is added";
      }
      const std::string changed = chosen->first;
      if (r.once_in(8)) {
        node.attributes.erase(chosen);
      } else if (int64_t* number = std::get_if<int64_t>(&chosen->second); !number || r.once_in(8)) {
        constexpr float kInf = std::numeric_limits<float>::infinity();
        chosen->second = r.of({-1.0f, 0.0f, 1e-45f, 3e38f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN()});
      } else {
        *number = Extreme(r, *number);
      }
      return "attribute " + changed + " is another, or gone";
    }
  }
  return "";
}

}  // namespace fuzz
