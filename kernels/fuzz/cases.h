// Nodes of every operator, at random: such that they must be accepted, and such that have one fault.
#pragma once

#include <cstdint>
#include <string>

#include "host.h"

namespace fuzz {

// The same numbers from the same seed, everywhere. Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number
// Generators, 2014 (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  int64_t from(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  bool once_in(int times) { return next() % times == 0; }
  float real() { return static_cast<float>(next() >> 40) / static_cast<float>(1 << 23) - 1; }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[next() % choices.size()];
  }

 private:
  uint64_t state_;
};

struct Case {
  Node node;
  std::string fault;  // what was changed; empty where the node must be accepted
  bool wild = false;  // some numbers are not finite, or so large that what is made of them is not
};

Case MakeCase(uint64_t seed);

// Changes one thing of a node; says what, or nothing where there is no such thing.
std::string Harm(Random& random, Node& node);

}  // namespace fuzz
