// The simulator's own random numbers: a fixed algorithm (SplitMix64), so that the same seed gives the same
// run on every machine and library. Nothing here reads a device or a clock. Source: serving specification
// 14.2. Threads: one owner.
#pragma once

#include <cmath>
#include <cstdint>

namespace deepinfer::sim {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x632BE59BD9B4E019ull) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  // Inclusive on both ends. REQUIRES low <= high.
  int64_t in(int64_t low, int64_t high) {
    uint64_t span = static_cast<uint64_t>(high - low) + 1;
    uint64_t draw = bits();
    if (span == 0) return static_cast<int64_t>(draw);
    // The high half of draw * span, from 32-bit parts: no division, and the same on every compiler.
    if (span >> 32 == 0) return low + static_cast<int64_t>(((draw >> 32) * span) >> 32);
    return low + static_cast<int64_t>(draw % span);
  }
  double exponential(double mean) { return -mean * std::log1p(-unit()); }
  double normal() {  // Box and Muller; one of the pair is enough
    double radius = std::sqrt(-2 * std::log1p(-unit()));
    return radius * std::cos(6.283185307179586 * unit());
  }
  // Mean 0, deviation 1, never beyond 3: three even draws from one word, without a logarithm.
  double roughly_normal() {
    const uint64_t draw = bits();
    constexpr uint64_t kMask = (1 << 21) - 1;
    const uint64_t sum = (draw & kMask) + (draw >> 21 & kMask) + (draw >> 42 & kMask);
    return (static_cast<double>(sum) / static_cast<double>(kMask) - 1.5) * 2;
  }
  double log_normal(double mu, double sigma) { return std::exp(mu + sigma * normal()); }

 private:
  uint64_t state_;
};

}  // namespace deepinfer::sim
