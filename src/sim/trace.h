// Reads request traces: the open JSON Lines format (timestamp in ms, input_length, output_length, hash_ids)
// and a simple CSV with the same columns. The bytes come from outside, so every line is checked and an error
// names the line, what is wrong and what to do. Does not open files and does not simulate.
// Source: serving specification 14.2. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::sim {

struct TraceRequest {
  int64_t arrival_ns = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  uint32_t first_id = 0, id_count = 0;  // ids[first_id, first_id + id_count) of the trace
};
// Equal ids at equal places are equal prefixes of `block_tokens` tokens each; the last id may stand for a
// part of a block. A request without ids shares nothing.
struct Trace {
  std::vector<TraceRequest> requests;  // by arrival
  std::vector<uint64_t> ids;
  int64_t block_tokens = 512;
  int64_t reordered = 0;  // lines that were earlier than the one before; they have been sorted
};

struct TraceLimits {
  int64_t max_requests = 20'000'000;
  int64_t max_tokens = 1 << 24;  // input or output of one request
  int64_t max_line_bytes = 4 << 20;
  int64_t block_tokens = 512;
};
// JSON Lines if the first character that is not white space is '{', else CSV whose first line names the
// columns. `name` stands in messages. Errors: kInvalidData "NAME:LINE: ...", kResourceExhausted beyond the
// limits.
Result<Trace> parse_trace(std::string_view text, const std::string& name, const TraceLimits& limits = {});

}  // namespace deepinfer::sim
