// What recurrent and convolutional layers compute over the states that they keep of a text.
//
// A column of a state is one vector lane, and nothing is ever added across lanes. Tokens are taken one after the other, a
// sum over a state's rows is one of the even rows plus one of the odd ones, each a chain of multiply-adds in the rows'
// order, and so is a sum over a convolution's taps, in the tokens' order. So it makes no difference to any bit of it how
// many tokens a step has, which columns a thread takes, and how long vectors are.
#pragma once

#include <cstddef>

namespace edge {

constexpr int kMostStateRows = 512;       // of a state of linear attention
constexpr int kStateColumns = 64;    // of a state that a thread takes at a time
constexpr int kMostTaps = 16;        // of a convolution

// Linear attention: one sequence's step of one layer. Each head has a state [rows, columns]. Of a token it is multiplied
// by exp(decay), then its key times a change of every column is added: the token's value, or, where there are `rates`,
// rate * (value - what the state has for the key). What is read is the state times the query, times `scale`. A decay
// above 0 counts as 0.
//
// queries: [tokens, query_heads, rows]; keys: [tokens, key_heads, rows]: each is for as many heads. values, out:
// [tokens, heads, columns]. decays, rates: [tokens, heads]; rates may be null. past, present: [heads, rows, columns],
// which may be the same memory.
struct Scan {
  int tokens, heads, query_heads, key_heads, rows, columns;
  const float *queries, *keys, *values, *decays, *rates, *past;
  float scale;
  float *present, *out;
};

// The convolution of each channel by itself over the last `taps` tokens, and silu of it where `silu`.
//
// x, out: [tokens, channels]. weights: [taps, channels], the oldest token's first. bias: [channels] or null. past,
// present: the last taps - 1 tokens, [taps - 1, channels], which may be the same memory.
struct Convolution {
  int tokens, channels, taps;
  bool silu;
  const float *x, *weights, *bias, *past;
  float *present, *out;
};

struct StatesForm {
  // A head's columns from `first` to `last`, multiples of kLanes, for all tokens.
  void (*scan)(const Scan&, int head, int first, int last);
  // The channels from `first` to `last`, multiples of kLanes, for all tokens.
  void (*convolve)(const Convolution&, int first, int last);
};

}  // namespace edge
