// What the server adds to the engine: the same requests to two engines of the same model, one called
// directly, one behind HTTP with streams, in alternating rounds. Errors: those of loading a model; kIo.
// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "text/json.h"

namespace deepinfer {

struct OverheadOptions {
  std::string model;  // empty: the small one that ships
  int64_t streams = 16, tokens = 128, rounds = 9, threads = 0;
};
struct OverheadReport {
  std::vector<double> direct_s, http_s;  // of each round: from the first request to the last token
  // Processor time of all rounds, which other programs hardly disturb: of the engine called directly, of
  // engine and server, of the server's own threads, and of the client that reads the streams.
  double direct_cpu_s = 0, http_cpu_s = 0, edge_cpu_s = 0, client_cpu_s = 0;
  int64_t tokens = 0;  // of a round
  // Shares of time added. Of the pairs: median, the interval around it that holds the true one in 95 of 100
  // runs, least and most. And of the quickest quarters of both sides: what disturbs only ever adds time.
  double median_added = 0, median_low = 0, median_high = 0, least_added = 0, most_added = 0;
  double quartile_added = 0;
};
// The answers must have the same number of tokens both ways; kInvalidData if not.
Result<OverheadReport> bench_overhead(const OverheadOptions& options);
Json to_json(const OverheadReport& report, const OverheadOptions& options);

}  // namespace deepinfer
