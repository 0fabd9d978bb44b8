// How often whole numbers of very different sizes occurred: four steps between two powers of two, so that a
// quantile is known to a quarter. Threads: plain value.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace deepinfer::store {

struct Tally {
  std::array<int64_t, 252> count{};
  int64_t all = 0;

  static size_t step(int64_t value) {
    uint64_t v = value < 0 ? 0 : static_cast<uint64_t>(value);
    if (v < 4) return static_cast<size_t>(v);
    size_t octave = static_cast<size_t>(std::bit_width(v)) - 1;
    return 4 * (octave - 1) + static_cast<size_t>((v >> (octave - 2)) & 3);
  }
  // The largest value that is counted in a step.
  static int64_t most(size_t step) {
    if (step < 4) return static_cast<int64_t>(step);
    size_t octave = step / 4 + 1;
    uint64_t width = uint64_t{1} << (octave - 2);
    return static_cast<int64_t>((4 + step % 4 + 1) * width - 1);
  }
  void add(int64_t value) {
    ++count[step(value)];
    ++all;
  }
  // No smaller than the quantile, and larger by a quarter at most. 0 when nothing was counted.
  int64_t quantile(double share) const {
    int64_t left = static_cast<int64_t>(share * static_cast<double>(all));
    for (size_t i = 0; i < count.size() && all > 0; ++i) {
      left -= count[i];
      if (left < 0) return most(i);
    }
    return 0;
  }
  int64_t up_to(int64_t value) const {
    int64_t n = 0;
    for (size_t i = 0; i < count.size() && most(i) <= value; ++i) n += count[i];
    return n;
  }
};

}  // namespace deepinfer::store
