// Speed of the matrix products and of the index scan at the shapes of the released model, with all threads,
// as shares of what the machine can do (bench_limits.h) measured in the same run. Weights are larger than the
// last cache and used in turn, so a product of few rows really reads memory. Knows kernels and threads, no
// engine. Source: docs/performance.md. Threads: one caller.
#pragma once

#include <string>
#include <vector>

#include "apps/bench_limits.h"
#include "base/status.h"
#include "host/topology.h"

namespace deepinfer {

struct KernelBenchOptions {
  int threads = 0;       // 0: all usable CPUs
  double seconds = 0.6;  // per figure; the median of its repetitions counts
  double limit_seconds = 0.25;
  std::string only;          // part of an op's name; empty: all
  int64_t cache_bytes = 0;   // weights hold at least three times this; 0: the last cache of the machine
  int64_t head_rows = 8192;  // of the 129,280 of the head
  bool small = false;        // toy shapes, for tests of the command itself
};

// Lines of the limits first, then of the ops: achieved and limit in GB/s of weights where reading them bounds
// the op, in Gop/s of the instruction used where arithmetic does. kResourceExhausted when memory is short.
Result<std::vector<BenchLine>> measure_kernels(const Topology& topology, const KernelBenchOptions& options);

}  // namespace deepinfer
