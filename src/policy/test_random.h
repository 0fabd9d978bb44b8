// A small counter-based generator for tests of policies: the same seed gives the same draws everywhere.
#pragma once

#include <cstdint>

namespace deepinfer::policy {

class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  int64_t in(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return in(1, n) == 1; }

 private:
  uint64_t state_;
};

}  // namespace deepinfer::policy
