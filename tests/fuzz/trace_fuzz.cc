// Fuzzes the trace reader: any bytes as a trace. What is accepted keeps every promise of the reader and runs
// through the cache study; what is refused names its line.
#include <cstdint>
#include <string_view>

#include "sim/cachesim.h"
#include "sim/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deepinfer;
  sim::TraceLimits limits;
  limits.max_requests = 2000;
  Result<sim::Trace> trace = sim::parse_trace({reinterpret_cast<const char*>(data), size}, "fuzz", limits);
  if (!trace.ok()) {
    DI_CHECK(trace.status().message().starts_with("fuzz:"), "an error names its file");
    return 0;
  }
  int64_t last = 0;
  for (const sim::TraceRequest& r : trace->requests) {
    DI_CHECK(r.arrival_ns >= last, "sorted by arrival");
    last = r.arrival_ns;
    DI_CHECK(r.input_tokens >= 1 && r.input_tokens <= limits.max_tokens, "input in range");
    DI_CHECK(r.output_tokens >= 1 && r.output_tokens <= limits.max_tokens, "output in range");
    DI_CHECK(r.first_id + r.id_count <= trace->ids.size(), "ids inside the list");
    DI_CHECK(r.id_count <= (r.input_tokens + trace->block_tokens - 1) / trace->block_tokens,
             "ids fit the input");
  }
  sim::TraceCacheOptions options;
  options.ttl_ns = 1'000'000'000;
  options.capacity_bytes = 1 << 22;
  const sim::CacheStudy s = sim::study_trace(*trace, "fuzz", options, {});
  DI_CHECK(s.start_tokens <= s.perfect_tokens && s.perfect_tokens <= s.prompt_tokens,
           "hits are stored prompts");
  return 0;
}
