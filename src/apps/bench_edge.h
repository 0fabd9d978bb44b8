// The edge alone under load: a server process with the synthetic engine, and a client in C++ that reads
// thousands of SSE streams, checks every token's text and place, and measures how long after its making each
// arrived. Source: issue "the server", done when. Errors: kIo, kResourceExhausted (descriptors). Threads:
// one.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "text/json.h"

namespace deepinfer {

struct EdgeBenchOptions {
  int64_t streams = 2000;
  double tokens_per_s = 20;
  int64_t tokens = 200;   // per stream
  bool aligned = false;   // every stream's token in the same step
  std::string tokenizer;  // a tokenizer.json
};

struct EdgeBenchReport {
  int64_t streams = 0, tokens = 0, lost = 0, reordered = 0, failed = 0;
  double p50_added_ms = 0, p99_added_ms = 0, max_added_ms = 0;
  double bytes_per_stream = 0;  // resident memory of the server, all streams open, over none
  double cpu_share = 0;         // of one CPU, the server process, engine's timer thread included
  double client_cpu_share = 0;
  double seconds = 0;
};
// Forks the server before any thread of this process may hold a lock: call it while there is one thread.
Result<EdgeBenchReport> bench_edge(const EdgeBenchOptions& options);
Json to_json(const EdgeBenchReport& report, const EdgeBenchOptions& options);

}  // namespace deepinfer
