// Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood, 2014).
//
//   SplitMix64 random(seed);
//   double u = random.uniform();        // in [0, 1)
//   uint64_t i = random.below(10);      // 0 .. 9, all alike
//
// Not for secrets. Thread rule: one owner.
#pragma once

#include <cstdint>

namespace k3 {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  uint64_t below(uint64_t bound) {  // what would favour the low values is drawn again
    const uint64_t least = -bound % bound;
    for (;;)
      if (const uint64_t draw = bits(); draw >= least) return draw % bound;
  }

 private:
  uint64_t state_;
};

}  // namespace k3
