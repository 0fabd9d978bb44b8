// Measures what the machine can do: read bandwidth of memory and caches, arithmetic in registers, per thread
// count. Every other bench states its figures as shares of these. Source: docs/performance.md. Threads: one
// caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/topology.h"

namespace deepinfer {

// One measured figure. `limit` is what it is held against (itself for a limit), `share` achieved / limit.
struct BenchLine {
  std::string op, format;
  int64_t rows = 0;
  int threads = 1;
  double achieved = 0;
  std::string unit;
  double limit = 0, share = 0;
  std::string note;
};
nlohmann::ordered_json to_json(const std::vector<BenchLine>& lines);
std::string to_table(const std::vector<BenchLine>& lines);

struct UnmapBench {
  size_t bytes = 0;
  void operator()(uint8_t* p) const;
};
using BenchBuffer = std::unique_ptr<uint8_t[], UnmapBench>;
// Fresh pages, large ones where the system gives them; null when there is no memory.
BenchBuffer bench_buffer(size_t bytes);

struct LimitOptions {
  double seconds = 0.25;     // per figure; the median of five parts counts
  int threads = 0;           // most; 0: all usable CPUs
  int64_t buffer_bytes = 0;  // of the memory read; 0: four times the last cache, at least 512 MiB, at most a
                             // quarter of what is free
};
// The machine's limits. `lines` of the thread count in use come last of their kind.
std::vector<BenchLine> measure_limits(const Topology& topology, const LimitOptions& options);

// The figure of an op at a number of threads; 0 if it was not measured.
double limit_of(const std::vector<BenchLine>& lines, const std::string& op, const std::string& format,
                int threads);

}  // namespace deepinfer
