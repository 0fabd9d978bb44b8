// What the server counts, and its text in the Prometheus format. One table names every metric with type,
// unit, meaning and the name it has at vLLM, if any; docs/metrics.md is written from it. Threads: everything
// may be called from any thread; counting is a few atomic additions.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "edge/serve/generation.h"

namespace deepinfer {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), buckets_(bounds_.size() + 1) {}
  void observe(double value, int64_t times = 1);
  void append(std::string_view name, std::string_view labels, std::string* out) const;
  int64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  // The value below which `share` of the observations lie, interpolated inside its bucket.
  double quantile(double share) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> buckets_;
  std::atomic<double> sum_{0};
};

// A counter for each value of one label.
class LabelledCounter {
 public:
  void add(const std::string& value, int64_t n = 1);
  std::map<std::string, int64_t> values() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> values_;
};

struct ServeMetrics {
  LabelledCounter http_responses;  // by status
  LabelledCounter requests;        // by endpoint
  LabelledCounter finished;        // by reason
  LabelledCounter rejected;        // by reason
  LabelledCounter cache_results;   // of computed requests, by what the prefix cache had of the prompt
  std::atomic<int64_t> prompt_tokens{0}, cached_tokens{0}, output_tokens{0}, reasoning_tokens{0};
  std::atomic<int64_t> banned_tokens{0}, in_flight{0};
  // Whoever compiles grammars and remembers turns counts; empty: nobody does.
  std::function<std::map<std::string, int64_t>()> grammar_events, turn_events;
  Histogram ttft, inter_token, per_token, e2e, queue, prefill, decode, inference, prompt_size, output_size,
      choices, max_tokens;
  ServeMetrics();
};

struct HttpGauges {
  int64_t accepted = 0, refused = 0, open = 0, timeouts = 0, slow_readers = 0;
  int64_t h2_connections = 0, h2_streams = 0, h2_resets = 0, h2_floods = 0;
};

// What cannot be kept at the moment, and what was lost so far.
struct RecordGauges {
  bool database_failing = false, log_failing = false;
  int64_t lost_rows = 0, lost_lines = 0;
};

struct MetricInfo {
  const char* name;
  const char* type;  // counter, gauge, histogram
  const char* unit;
  const char* labels;
  const char* help;
  const char* vllm;  // its name there, or ""
};
const std::vector<MetricInfo>& metric_catalogue();
// docs/metrics.md.
std::string metrics_page();

enum class MetricNames { kOwn, kVllm, kBoth };
std::string metrics_text(const ServeMetrics& metrics, const EngineView& engine, const HttpGauges& http,
                         const RecordGauges& records, const std::string& model, MetricNames names);

}  // namespace deepinfer
