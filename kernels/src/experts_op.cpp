// The operator QMoE over packed weights, which the host has lent (see `Lend`): the gated feed-forward blocks of each
// token's experts, those with the highest scores, added up with their weights.
//
// A matrix of all experts is one here, whose columns are those of expert after expert: of a step, the panels of the
// experts that its tokens have chosen are read, each once, and no others. What a matrix is made of stands in attributes
// that begin with its name, as those of MatMulNBits: `gate.`, `up.` and `down.`; without `up.N` gate has the columns of
// both in turns. Inputs 3 and 4 are biases: of gate and up in turns, and of down, for each expert. The activation is
// gate * sigmoid(alpha * gate) * (up + beta), of a gate up to `limit` and an up within it, 0 for none.
//
// A row's result is made of that row alone: what its experts give is added up in the order of their scores. An expert
// whose weight is 0 is not computed: graphs have several such operators over one choice, each with some of the experts.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "matrices.h"
#include "operators.h"
#include "tensors.h"

namespace edge {
namespace {

constexpr size_t kPiece = 1 << 16;  // bytes of weights that a thread takes at a time, at most
constexpr int kMostExperts = 1 << 14;
constexpr int kMostBlocks = 1 << 30;  // of all rows
constexpr int kAtATime = 8;           // rows that a thread rounds, or adds up

const std::vector<int> kNoInputs;

// The places that have chosen an expert. A place is a row's n-th expert, whose weight is not 0; here they are in the
// order of experts.
struct Group {
  int expert, first, count;
};

// Panels of a group's expert, from `first` to `last`.
struct Piece {
  Group group;
  int first, last;
};

class Experts : public Kernel {
 public:
  Experts(const Node& node, const Form& form)
      : form_(form),
        count_(node.number("experts", 0, 1, kMostExperts)),
        chosen_(node.number("k", 0, 1, count_)),
        normalized_(node.number("normalize_routing_weights", 0, 0, 1)),
        alpha_(node.real("alpha", 1)),
        beta_(node.real("beta", 0)),
        limit_(node.real("limit", 0)),
        gate_(Read(node, "gate.")),
        down_(Read(node, "down.")),
        up_(node.number("up.N", 0, 0, kLongestRow) ? Read(node, "up.") : nullptr) {
    width_ = gate_->inputs;
    wide_ = Columns(node, "gate", *gate_) / (up_ ? 1 : 2);
    if (up_ && (Columns(node, "up", *up_) != wide_ || up_->inputs != width_))
      Refuse(node, "up is not of gate's size");
    if (Columns(node, "down", *down_) != width_ || down_->inputs != wide_)
      Refuse(node, "down does not read what gate and up give, or does not give what they read");
    if (alpha_ <= 0 || limit_ < 0) Refuse(node, "alpha is ", alpha_, " and limit ", limit_, "; no activation has those");
    if (wide_ % kPanel) Refuse(node, "an expert has ", int64_t{wide_}, " channels, which do not fill panels");
  }

  void Compute(Call& call) const override {
    const ort::Tensor rows = call.input(0), scores = call.input(1), weights = call.input(2);
    ExpectRows(call, "input", rows, width_);
    const int64_t tokens = rows.elements() / width_;
    Expect(call, "router_probs", scores, ort::kFloat, {tokens, count_});
    if (weights.there) Expect(call, "router_weights", weights, ort::kFloat, {tokens, count_});
    const ort::Tensor gate_bias = call.input(3), down_bias = call.input(4);
    if (gate_bias.there) Expect(call, "fc1_experts_bias", gate_bias, ort::kFloat, {count_, 2 * int64_t{wide_}});
    if (down_bias.there) Expect(call, "fc2_experts_bias", down_bias, ort::kFloat, {count_, width_});
    const int blocks = std::max(gate_->padded, down_->padded) / 16;
    const int places = Within(call, "the number of rows", Times(tokens, chosen_), 0, kMostBlocks / (2 * blocks));
    float* out = call.floats(0, rows.shape.data(), rows.rank);
    if (!places) return;

    std::vector<int> experts(places), order, place_of(places);
    std::vector<float> shares(places);
    for (int m = 0; m < tokens; m++)
      Route(scores.as<float>() + static_cast<size_t>(m) * count_,
            weights.there ? weights.as<float>() + static_cast<size_t>(m) * count_ : nullptr,
            experts.data() + static_cast<size_t>(m) * chosen_, shares.data() + static_cast<size_t>(m) * chosen_);
    for (int i = 0; i < places; i++)
      if (shares[i] != 0) order.push_back(i);
    const int computed = static_cast<int>(order.size());
    if (!computed) {
      std::memset(out, 0, rows.elements() * sizeof(float));
      return;
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return experts[a] < experts[b]; });
    std::vector<Group> groups;
    for (int i = 0; i < computed; i++) {
      place_of[order[i]] = i;
      const int expert = experts[order[i]];
      if (groups.empty() || groups.back().expert != expert) groups.push_back({expert, i, 0});
      groups.back().count++;
    }

    float* floats = ort::Reserve(call.room.floats, static_cast<size_t>(computed) * (width_ + wide_));
    float *wide = floats, *inner = floats + static_cast<size_t>(computed) * width_;
    call.team.ShareBy(computed, kAtATime, [&](int first, int last) {
      for (int i = first; i < last; i++)
        std::memcpy(wide + static_cast<size_t>(i) * width_,
                    rows.as<float>() + static_cast<size_t>(order[i] / chosen_) * width_, width_ * sizeof(float));
    });
    const Rounded read = Round(call, {gate_.get(), up_.get()}, wide, computed);
    const auto gates = Pieces(groups, wide_ / kPanel, 2 * gate_->panel_bytes());
    const float* of_gate = gate_bias.there ? gate_bias.as<float>() : nullptr;
    call.team.Share(gates.size(), [&](size_t i) { Gate(read, gates[i], of_gate, inner); });
    const Rounded made = Round(call, {down_.get()}, inner, computed);
    const auto downs = Pieces(groups, width_ / kPanel, down_->panel_bytes());
    call.team.Share(downs.size(), [&](size_t i) {
      const Piece& piece = downs[i];
      const int before = piece.group.expert * (width_ / kPanel);
      down_->Multiply(form_, Of(made, *down_, piece.group),
                      wide + static_cast<size_t>(piece.group.first) * width_ + piece.first * kPanel, width_,
                      before + piece.first, before + piece.last);
    });
    call.team.ShareBy(static_cast<int>(tokens), kAtATime, [&](int first, int last) {
      for (int m = first; m < last; m++) {
        float* sum = out + static_cast<size_t>(m) * width_;
        std::fill(sum, sum + width_, 0.0f);
        for (int n = m * chosen_; n < (m + 1) * chosen_; n++) {
          if (shares[n] == 0) continue;
          const float *from = wide + static_cast<size_t>(place_of[n]) * width_, share = shares[n];
          if (!down_bias.there) {
            for (int i = 0; i < width_; i++) sum[i] += share * from[i];
            continue;
          }
          const float* more = down_bias.as<float>() + static_cast<size_t>(experts[n]) * width_;
          for (int i = 0; i < width_; i++) sum[i] += share * (from[i] + more[i]);
        }
      }
    });
  }

 private:
  static std::unique_ptr<Matrix> Read(const Node& node, const char* prefix) {
    const Node part = node.of(node.called, prefix, kNoInputs);
    if (part.number("parts", 0, 0, 1)) return std::make_unique<OfGguf>(part, 1, nullptr);
    return std::make_unique<OfBlocks>(part, nullptr);
  }

  // Columns of one expert, which fill panels.
  int Columns(const Node& node, const char* name, const Matrix& matrix) const {
    if (matrix.columns % count_ || matrix.columns / count_ % kPanel)
      Refuse(node, name, " has ", int64_t{matrix.columns}, " columns, which are not whole panels of ", int64_t{count_},
             " experts");
    return matrix.columns / count_;
  }

  // The experts of a row, the one with the highest score first, of equals the first; and their weights.
  void Route(const float* scores, const float* weights, int* experts, float* shares) const {
    thread_local std::vector<int> room;
    room.resize(count_);
    std::iota(room.begin(), room.end(), 0);
    auto before = [&](int a, int b) {
      const bool no_number = scores[a] != scores[a], neither = no_number && scores[b] != scores[b];
      if (neither || scores[a] == scores[b]) return a < b;
      return no_number || scores[a] > scores[b];  // what is no number comes first, and makes the row none
    };
    std::partial_sort(room.begin(), room.begin() + chosen_, room.end(), before);
    float sum = 0;
    for (int n = 0; n < chosen_; n++) {
      experts[n] = room[n];
      shares[n] = weights ? weights[room[n]] : form_.rows.exp_sum(scores + room[n], 1, scores[room[0]]);
      sum += shares[n];
    }
    if (normalized_ || !weights)
      for (int n = 0; n < chosen_; n++) shares[n] /= sum;
  }

  // Rows as these matrices read them, in the memory that threads keep.
  Rounded Round(Call& call, std::initializer_list<const Matrix*> matrices, const float* rows, int count) const {
    const Matrix& one = **matrices.begin();
    bool rounds = false, sixteens = false;
    for (const Matrix* matrix : matrices) {
      if (!matrix) continue;
      rounds |= matrix->rounds;
      sixteens |= matrix->sixteens;
    }
    const int blocks = rounds ? one.padded / one.block : 0, sums = sixteens ? one.padded / 16 : 0;
    const Rounding all{rows,
                       one.inputs,
                       one.padded,
                       one.block,
                       ort::Reserve(call.room.bytes, rounds ? static_cast<size_t>(count) * one.padded : 0),
                       ort::Reserve(call.room.scales, static_cast<size_t>(count) * blocks),
                       ort::Reserve(call.room.sums, static_cast<size_t>(count) * (blocks + sums))};
    int32_t* of_sixteens = all.sums + static_cast<size_t>(count) * blocks;
    if (rounds)
      call.team.ShareBy(count, kAtATime, [&](int first, int last) {
        form_.quantize(all, first, last);
        if (sums)
          SumSixteens(all.values + static_cast<size_t>(first) * one.padded, static_cast<size_t>(last - first) * sums,
                      of_sixteens + static_cast<size_t>(first) * sums);
      });
    return {{all.values, all.scales, all.sums, count}, of_sixteens, rows};
  }

  // The rows of one group.
  static Rounded Of(const Rounded& rounded, const Matrix& matrix, const Group& group) {
    const size_t at = static_cast<size_t>(group.first), blocks = matrix.padded / matrix.block;
    return {{rounded.rows.values + at * matrix.padded, rounded.rows.scales + at * blocks,
             rounded.rows.sums + at * blocks, group.count},
            rounded.sixteens + at * (matrix.padded / 16),
            rounded.floats + at * matrix.inputs};
  }

  // What gate and up make of a piece: panels of what down reads. bias: of all experts, or null.
  void Gate(const Rounded& read, const Piece& piece, const float* bias, float* inner) const {
    thread_local std::vector<float> room, apart;
    const Group& group = piece.group;
    const int width = (piece.last - piece.first) * kPanel, panels = wide_ / kPanel;
    float* both = ort::Reserve(room, static_cast<size_t>(group.count) * 2 * width);
    if (up_) {
      const int before = group.expert * panels;
      gate_->Multiply(form_, Of(read, *gate_, group), both, 2 * width, before + piece.first, before + piece.last);
      up_->Multiply(form_, Of(read, *up_, group), both + width, 2 * width, before + piece.first, before + piece.last);
    } else {
      const int before = 2 * (group.expert * panels + piece.first);
      gate_->Multiply(form_, Of(read, *gate_, group), both, 2 * width, before, before + 2 * (piece.last - piece.first));
    }
    if (bias) bias += 2 * (static_cast<size_t>(group.expert) * wide_ + piece.first * kPanel);
    for (int m = 0; m < group.count; m++) {
      float* from = both + static_cast<size_t>(m) * 2 * width;
      if (!up_) {
        float* parted = ort::Reserve(apart, 2 * width);
        for (int i = 0; i < width; i++) {
          parted[i] = from[2 * i];
          parted[width + i] = from[2 * i + 1];
        }
        from = parted;
      }
      for (int i = 0; bias && i < width; i++) {
        from[i] += bias[2 * i];
        from[width + i] += bias[2 * i + 1];
      }
      Prepare(from, width);
      form_.rows.silu_gate(from, width,
                           inner + static_cast<size_t>(group.first + m) * wide_ + piece.first * kPanel);
    }
  }

  // Gates and ups, each `width`, of which silu(gate) * up then is the activation.
  void Prepare(float* from, int width) const {
    float* up = from + width;
    for (int i = 0; limit_ != 0 && i < width; i++) {  // what is no number stays so
      from[i] = std::min(from[i], limit_);
      up[i] = std::min(std::max(up[i], -limit_), limit_);
    }
    if (alpha_ == 1 && beta_ == 0) return;
    for (int i = 0; i < width; i++) {
      from[i] *= alpha_;
      up[i] = (up[i] + beta_) / alpha_;
    }
  }

  // Pieces of all groups' experts, each of which has so many panels of so many bytes.
  static std::vector<Piece> Pieces(const std::vector<Group>& groups, int panels, size_t bytes) {
    const int each = static_cast<int>(std::max<size_t>(1, kPiece / bytes));
    std::vector<Piece> pieces;
    for (const Group& group : groups)
      for (int first = 0; first < panels; first += each)
        pieces.push_back({group, first, std::min(panels, first + each)});
    return pieces;
  }

  const Form& form_;
  int count_, chosen_;
  bool normalized_;
  float alpha_, beta_, limit_;
  std::unique_ptr<Matrix> gate_, down_, up_;
  int width_ = 0, wide_ = 0;  // of a row, and within an expert
};

const Operator kExperts{
    "QMoE",
    Make<Experts>,
    {{ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kRequired},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional},
     {ort::kFloat, ort::kOptional}},
    {{ort::kFloat, ort::kRequired}},
};

}  // namespace

const Operator* const kExpertsOperator = &kExperts;

}  // namespace edge
