// What this machine can do at most: loops that only multiply and add in registers, and a loop that only
// reads. The yardsticks of every bench; no part of the engine. Source: public roofline practice (Williams et
// al. 2009). Threads: pure functions; the caller brings threads, memory and the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

struct PeakLoop {
  const char* op;           // "fp32", "bf16", "int8"
  const char* instruction;  // what is issued
  double operations;        // multiplies and adds per iteration
  // Runs so many iterations; returns a value that depends on all of them.
  float (*run)(int64_t iterations);
};
// The widest loop of each kind that this CPU can run; kinds it has no instruction for are left out. fp32 is
// always there.
std::vector<PeakLoop> peak_loops();

// Reads every byte once, with the widest loads there are; returns a value that depends on all of them.
// REQUIRES bytes to be a multiple of 1,024.
uint64_t read_bytes(const uint8_t* data, size_t bytes);

}  // namespace deepinfer
