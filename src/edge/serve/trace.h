// Spans of a request for distributed tracing: what W3C's traceparent header names, and what an exporter is
// given. Knows no exporter. Source: W3C Trace Context; OpenTelemetry's span model. Threads: SpanSink from
// any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16; empty: this request begins the trace
  bool sampled = true;
};
// The context of a traceparent header; nothing if it is not one.
std::optional<TraceContext> parse_traceparent(const std::string& header);

struct TraceSpan {
  std::string trace_id, span_id, parent_id, name;
  int64_t begin_ns = 0, end_ns = 0;  // since 1970
  std::vector<std::pair<std::string, int64_t>> numbers;
  std::vector<std::pair<std::string, std::string>> texts;
};

class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Never waits: spans are dropped when too many are on their way.
  virtual void add(std::vector<TraceSpan> spans) = 0;
};

}  // namespace deepinfer
