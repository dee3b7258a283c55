// Functions of vectors: the same bits, however long these are. V gives a form its vectors of kColumns floats.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "attention.h"

namespace edge {
namespace {

constexpr float kSmallest = -87.0f;  // of what exp gives a number for that is not 0

// exp of what is not positive; of no number, no number. Source: the usual reduction to 2 ** n * exp(r) with |r| <=
// ln(2) / 2, and exp(r) by its series: Cody and Waite, Software Manual for the Elementary Functions, 1980.
template <class V>
inline typename V::Floats Exp(typename V::Floats x) {
  const auto within = V::Max(V::Every(kSmallest), x);  // of no number: the second
  const auto n = V::Round(V::Mul(within, V::Every(1.44269504f)));
  auto r = V::Fma(n, V::Every(-0.693145752f), within);
  r = V::Fma(n, V::Every(-1.42860677e-6f), r);
  auto y = V::Every(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) y = V::Fma(y, r, V::Every(c));
  return V::ZeroUpTo(kSmallest, x, V::Mul(y, V::PowerOfTwo(n)));
}

// One number at a time; the same bits.
template <class V>
inline float Exp1(float x) {
  float lanes[V::kColumns];
  V::Store(lanes, Exp<V>(V::Every(x)));
  return lanes[0];
}

// Calls work with the constant that `count` is, where that is one of those from 1 to kMost.
template <int kMost, class Work>
inline void AsConstant(int count, const Work& work) {
  if constexpr (kMost > 0) {
    if (count == kMost)
      work(std::integral_constant<int, kMost>());
    else
      AsConstant<kMost - 1>(count, work);
  }
}

// Scores of one token [kKeys], each as cap * tanh(score / cap), of which tanh is (1 - e) / (1 + e) with e = exp(-2 |x|).
template <class V>
inline void Bound(float* scores, float cap) {
  const auto one = V::Every(1), less = V::Every(-1);
  for (int t = 0; t < kKeys; t += V::kColumns) {
    const auto x = V::Div(V::Load(scores + t), V::Every(cap)), minus = V::Mul(x, less);
    const auto e = Exp<V>(V::Mul(V::Max(x, minus), V::Every(-2)));
    const auto size = V::Div(V::Sub(one, e), V::Sum(one, e));
    const auto tanh = V::Sub(V::ZeroUpTo(0, x, size), V::ZeroUpTo(0, minus, size));
    V::Store(scores + t, V::Mul(tanh, V::Every(cap)));
  }
}

// The largest of the scores of one token [kKeys], which has the keys from `begin` to `end` of the block: others count
// as -infinity from here on. bias: added to the scores, or null. It is -infinity where no key has a weight, and never
// no number: the weights of such scores are none, whatever they are relative to.
template <class V>
inline float LargestScore(float* scores, const float* bias, int begin, int end) {
  if (begin > 0 || end < kKeys)
    for (int t = 0; t < kKeys; t++)
      if (t < begin || t >= end) scores[t] = kNone;
  if (bias)
    for (int t = begin; t < end; t++) scores[t] += bias[t];
  auto most = V::Every(kNone);
  for (int t = 0; t < kKeys; t += V::kColumns) most = V::Max(V::Load(scores + t), most);  // of no number: the second
  const float largest = V::Largest(most);
  if (largest == kNone && std::any_of(scores, scores + kKeys, [](float score) { return score != score; })) return 0;
  return largest;
}

// The sum of lanes, as a tree.
inline float SumOfLanes(float* lanes) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

}  // namespace
}  // namespace edge
