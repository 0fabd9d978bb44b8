// The catalogue and the text format of edge/serve/metrics.h.
#include "edge/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace deepinfer {
namespace {

const std::vector<double> kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                      0.5,   0.75,   1,     2.5,  5,     10,   30,    60,  300,  1200};
const std::vector<double> kCounts = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const std::vector<double> kFew = {1, 2, 4, 8, 16, 32};

std::string escape(const std::string& value) {
  std::string out;
  for (char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void Histogram::observe(double value, int64_t times) {
  size_t i = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  buckets_[i].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

int64_t Histogram::count() const {
  int64_t n = 0;
  for (const auto& b : buckets_) n += b.load(std::memory_order_relaxed);
  return n;
}

double Histogram::quantile(double share) const {
  const double wanted = share * static_cast<double>(count());
  double below = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    double here = static_cast<double>(buckets_[i].load(std::memory_order_relaxed));
    if (here > 0 && below + here >= wanted) {
      double low = i == 0 ? 0 : bounds_[i - 1];
      double high = i < bounds_.size() ? bounds_[i] : bounds_.back();
      return low + (high - low) * std::clamp((wanted - below) / here, 0.0, 1.0);
    }
    below += here;
  }
  return 0;
}

void Histogram::append(std::string_view name, std::string_view labels, std::string* out) const {
  int64_t total = 0;
  auto it = std::back_inserter(*out);
  for (size_t i = 0; i < bounds_.size(); ++i) {
    total += buckets_[i].load(std::memory_order_relaxed);
    fmt::format_to(it, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], total);
  }
  total += buckets_.back().load(std::memory_order_relaxed);
  fmt::format_to(it, "{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total);
  fmt::format_to(it, "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_.load(), name, labels, total);
}

void LabelledCounter::add(const std::string& value, int64_t n) {
  std::lock_guard lock(mutex_);
  values_[value] += n;
}

std::map<std::string, int64_t> LabelledCounter::values() const {
  std::lock_guard lock(mutex_);
  return values_;
}

ServeMetrics::ServeMetrics()
    : ttft(kSeconds),
      inter_token(kSeconds),
      per_token(kSeconds),
      e2e(kSeconds),
      queue(kSeconds),
      prefill(kSeconds),
      decode(kSeconds),
      inference(kSeconds),
      prompt_size(kCounts),
      output_size(kCounts),
      choices(kFew),
      max_tokens(kCounts) {}

const std::vector<MetricInfo>& metric_catalogue() {
  static const std::vector<MetricInfo> all = {
      {"deepinfer_requests_running", "gauge", "choices", "", "choices being computed",
       "num_requests_running"},
      {"deepinfer_requests_waiting", "gauge", "choices", "", "choices in line", "num_requests_waiting"},
      {"deepinfer_requests_waiting_by_reason", "gauge", "choices", "reason",
       "choices in line, by what they wait for", "num_requests_waiting_by_reason"},
      {"deepinfer_requests_in_flight", "gauge", "requests", "", "generation requests not yet answered", ""},
      {"deepinfer_kv_cache_usage_ratio", "gauge", "share", "", "blocks in use of all blocks",
       "kv_cache_usage_perc"},
      {"deepinfer_cache_config_info", "gauge", "1", "block_size, num_gpu_blocks",
       "tokens of a block and blocks of the cache", "cache_config_info"},
      {"deepinfer_draining", "gauge", "0 or 1", "", "no new work is taken", ""},
      {"deepinfer_last_step_age_seconds", "gauge", "seconds", "",
       "since the last step ended; -1 before the first", ""},
      {"deepinfer_prefix_cache_queries_tokens_total", "counter", "tokens", "",
       "prompt tokens looked up in the prefix cache", "prefix_cache_queries"},
      {"deepinfer_prefix_cache_hits_tokens_total", "counter", "tokens", "", "prompt tokens found there",
       "prefix_cache_hits"},
      {"deepinfer_prefix_cache_requests_total", "counter", "requests", "result",
       "requests by what was cached of the prompt: hit (all that can be), partial, miss, too_short (no "
       "prompt "
       "of this length can hit), off",
       ""},
      {"deepinfer_store_queries_tokens_total", "counter", "tokens", "",
       "prompt tokens looked up in the persistent store", "external_prefix_cache_queries"},
      {"deepinfer_store_hits_tokens_total", "counter", "tokens", "", "prompt tokens brought in from there",
       "external_prefix_cache_hits"},
      {"deepinfer_preemptions_total", "counter", "choices", "", "choices put back to make room",
       "num_preemptions"},
      {"deepinfer_prompt_tokens_total", "counter", "tokens", "", "prompt tokens of finished requests",
       "prompt_tokens"},
      {"deepinfer_cached_tokens_total", "counter", "tokens", "", "of them, from the prefix cache", ""},
      {"deepinfer_output_tokens_total", "counter", "tokens", "", "tokens delivered", "generation_tokens"},
      {"deepinfer_reasoning_tokens_total", "counter", "tokens", "", "of them, reasoning", ""},
      {"deepinfer_banned_tokens_total", "counter", "tokens", "",
       "tokens of the output mask that arrived all the same", ""},
      {"deepinfer_draft_tokens_total", "counter", "tokens", "", "drafts verified",
       "spec_decode_num_draft_tokens"},
      {"deepinfer_accepted_draft_tokens_total", "counter", "tokens", "", "of them, right",
       "spec_decode_num_accepted_tokens"},
      {"deepinfer_speculation_on", "gauge", "0 or 1", "", "drafts are made; 0: they do not pay now", ""},
      {"deepinfer_speculation_drifting", "gauge", "0 or 1", "",
       "confidences promise more than comes true: the alarm is on", ""},
      {"deepinfer_speculation_draft_passes_total", "counter", "passes", "", "passes of the draft stages",
       "spec_decode_num_drafts"},
      {"deepinfer_speculation_switches_total", "counter", "switches", "to",
       "times drafting switched itself off, and on again", ""},
      {"deepinfer_speculation_trials_total", "counter", "steps", "", "steps that tried drafts while off", ""},
      {"deepinfer_speculation_alarms_total", "counter", "alarms", "kind",
       "drift: calibration left its bounds; origin: one kind of draft is accepted unlike the others", ""},
      {"deepinfer_speculation_budgets_total", "counter", "decisions", "",
       "decisions how many drafts a step verifies", ""},
      {"deepinfer_speculation_budget_drafts_total", "counter", "tokens", "", "drafts they granted", ""},
      {"deepinfer_speculation_last_budget", "gauge", "tokens", "", "drafts the last decision granted", ""},
      {"deepinfer_speculation_verified_total", "counter", "tokens", "position",
       "drafts verified, by place in the block", ""},
      {"deepinfer_speculation_accepted_total", "counter", "tokens", "position", "of them, right",
       "spec_decode_num_accepted_tokens_per_pos"},
      {"deepinfer_speculation_predicted_total", "counter", "tokens", "position",
       "of them, expected to be right: the sum of the predicted survivals", ""},
      {"deepinfer_requests_total", "counter", "requests", "endpoint", "requests by endpoint", ""},
      {"deepinfer_finished_total", "counter", "requests", "finished_reason",
       "generation requests by how they ended", "request_success"},
      {"deepinfer_rejected_total", "counter", "requests", "reason", "requests refused before any work",
       "admission_rejections"},
      {"deepinfer_failed_choices_total", "counter", "choices", "",
       "choices given up for a fault of their own, as logits that are no numbers", "corrupted_requests"},
      {"deepinfer_grammar_events_total", "counter", "see label", "event",
       "grammars of requests: asked for, known already, compiled, refused, by name", ""},
      {"deepinfer_turn_memory_events_total", "counter", "turns", "event",
       "assistant turns generated here: remembered, given back as sampled (hit), looked for and not known "
       "(miss)",
       ""},
      {"deepinfer_http_responses_total", "counter", "responses", "status", "answers by HTTP status", ""},
      {"deepinfer_http_connections_total", "counter", "connections", "", "connections accepted", ""},
      {"deepinfer_http_connections_open", "gauge", "connections", "", "connections open now", ""},
      {"deepinfer_http_connections_refused_total", "counter", "connections", "",
       "connections closed because there were too many", ""},
      {"deepinfer_http_timeouts_total", "counter", "connections", "",
       "headers or bodies that came too slowly", ""},
      {"deepinfer_http_slow_readers_total", "counter", "connections", "",
       "streams cut because nobody read them", ""},
      {"deepinfer_degraded", "gauge", "0 or 1", "what",
       "database, log or store cannot be written now; answers go on", ""},
      {"deepinfer_lost_records_total", "counter", "records", "what",
       "rows of the database and lines of the log that could not be kept", ""},
      {"deepinfer_http2_connections_total", "counter", "connections", "", "of them, of HTTP/2", ""},
      {"deepinfer_http2_streams_total", "counter", "streams", "", "requests begun on them", ""},
      {"deepinfer_http2_resets_total", "counter", "streams", "", "of them, reset by the client", ""},
      {"deepinfer_http2_floods_total", "counter", "connections", "",
       "connections of HTTP/2 closed for too many resets, pings, settings or empty frames", ""},
      {"deepinfer_time_to_first_token_seconds", "histogram", "seconds", "",
       "from the request's last byte to its first token", "time_to_first_token_seconds"},
      {"deepinfer_inter_token_latency_seconds", "histogram", "seconds", "",
       "between two deliveries of a choice, per token", "inter_token_latency_seconds"},
      {"deepinfer_request_time_per_output_token_seconds", "histogram", "seconds", "",
       "decode time per token, per request", "request_time_per_output_token_seconds"},
      {"deepinfer_e2e_request_latency_seconds", "histogram", "seconds", "",
       "from the request's last byte to its end", "e2e_request_latency_seconds"},
      {"deepinfer_request_queue_time_seconds", "histogram", "seconds", "", "in line",
       "request_queue_time_seconds"},
      {"deepinfer_request_prefill_time_seconds", "histogram", "seconds", "",
       "from admission to the first token", "request_prefill_time_seconds"},
      {"deepinfer_request_decode_time_seconds", "histogram", "seconds", "", "from the first token to the end",
       "request_decode_time_seconds"},
      {"deepinfer_request_inference_time_seconds", "histogram", "seconds", "", "from admission to the end",
       "request_inference_time_seconds"},
      {"deepinfer_step_rows", "summary", "rows", "", "rows of a step: their sum and the number of steps",
       "iteration_tokens_total"},
      {"deepinfer_request_prompt_tokens", "histogram", "tokens", "", "prompt length",
       "request_prompt_tokens"},
      {"deepinfer_request_output_tokens", "histogram", "tokens", "", "answer length",
       "request_generation_tokens"},
      {"deepinfer_request_choices", "histogram", "choices", "", "n of the request", "request_params_n"},
      {"deepinfer_request_max_tokens", "histogram", "tokens", "", "token limit of the request",
       "request_params_max_tokens"},
      {"deepinfer_engine_events_total", "counter", "see label", "event", "counters of the engine, by name",
       ""},
      {"deepinfer_engine_state", "gauge", "see label", "name", "gauges of the engine, by name", ""},
  };
  return all;
}

std::string metrics_page() {
  std::string out =
      "# Metrics\n\nWritten by `deepinfer serve --print-docs metrics`; a test compares. `GET /metrics` gives "
      "them in the Prometheus text\n"
      "format. Every series has the label `model_name`. Counters start at 0 with the process and only grow; "
      "gauges are of the moment.\n"
      "With `--metrics-names vllm` (or `both`) those with a name in the last column appear as `vllm:<name>` "
      "with the label `engine`;\n"
      "their counters end in `_total` there too.\n\n| name | type | unit | labels | meaning | at vLLM "
      "|\n|---|---|---|---|---|---|\n";
  for (const MetricInfo& m : metric_catalogue()) {
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", m.name, m.type, m.unit,
                       *m.labels == '\0' ? std::string() : fmt::format("`{}`", m.labels), m.help,
                       *m.vllm == '\0' ? std::string() : fmt::format("`{}`", m.vllm));
  }
  return out;
}

namespace {

// Writes one metric under its names.
class TextWriter {
 public:
  TextWriter(const std::string& model, MetricNames names, std::string* out) : names_(names), out_(out) {
    own_ = fmt::format("model_name=\"{}\"", escape(model));
    vllm_ = own_ + ",engine=\"0\"";
    for (const MetricInfo& m : metric_catalogue()) info_[m.name] = &m;
  }

  void value(const char* name, double v) {
    each(name, [&](const std::string& shown, const std::string& labels) { line(shown, labels, v); });
  }
  // The labels' values in their order.
  void info(const char* name, const std::string& labels) {
    each(name, [&](const std::string& shown, const std::string& own) { line(shown, own + "," + labels, 1); });
  }
  void summary(const char* name, double sum, double count) {
    each(name, [&](const std::string& shown, const std::string& labels) {
      line(shown + "_sum", labels, sum);
      line(shown + "_count", labels, count);
    });
  }
  template <typename Number>
  void by_label(const char* name, const std::map<std::string, Number>& values) {
    each(name, [&](const std::string& shown, const std::string& labels) {
      for (const auto& [value, n] : values) {
        line(shown, fmt::format("{},{}=\"{}\"", labels, info_.at(name)->labels, escape(value)),
             static_cast<double>(n));
      }
    });
  }
  void histogram(const char* name, const Histogram& h) {
    each(name, [&](const std::string& shown, const std::string& labels) { h.append(shown, labels, out_); });
  }

 private:
  template <typename F>
  void each(const char* name, F write) {
    const MetricInfo& m = *info_.at(name);
    if (names_ != MetricNames::kVllm) {
      head(m.name, m);
      write(m.name, own_);
    }
    if (names_ != MetricNames::kOwn && *m.vllm != '\0') {
      std::string shown = std::string("vllm:") + m.vllm;
      if (std::string_view(m.type) == "counter") shown += "_total";
      head(shown, m);
      write(shown, vllm_);
    }
  }
  void head(const std::string& shown, const MetricInfo& m) {
    *out_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", shown, m.help, shown, m.type);
  }
  void line(const std::string& shown, const std::string& labels, double v) {
    if (v == std::floor(v) && std::abs(v) < 1e15) {
      *out_ += fmt::format("{}{{{}}} {}\n", shown, labels, static_cast<int64_t>(v));
    } else {
      *out_ += fmt::format("{}{{{}}} {}\n", shown, labels, v);
    }
  }

  MetricNames names_;
  std::string* out_;
  std::string own_, vllm_;
  std::map<std::string, const MetricInfo*> info_;
};

void speculation_text(const SpeculationView& s, TextWriter* w) {
  auto n = [](int64_t v) { return static_cast<double>(v); };
  w->value("deepinfer_speculation_on", s.on ? 1 : 0);
  w->value("deepinfer_speculation_drifting", s.drifting ? 1 : 0);
  w->value("deepinfer_speculation_draft_passes_total", n(s.draft_passes));
  using Counts = std::map<std::string, int64_t>;
  w->by_label("deepinfer_speculation_switches_total", Counts{{"off", s.switched_off}, {"on", s.switched_on}});
  w->value("deepinfer_speculation_trials_total", n(s.trials));
  w->by_label("deepinfer_speculation_alarms_total",
              Counts{{"drift", s.drift_alarms}, {"origin", s.origin_alarms}});
  w->value("deepinfer_speculation_budgets_total", n(s.budgets));
  w->value("deepinfer_speculation_budget_drafts_total", n(s.budget_drafts));
  w->value("deepinfer_speculation_last_budget", n(s.last_budget));
  Counts verified, accepted;
  std::map<std::string, double> predicted;
  for (size_t i = 0; i < s.position.size(); ++i) {
    const std::string place = std::to_string(i);
    verified[place] = s.position[i].verified;
    accepted[place] = s.position[i].accepted;
    predicted[place] = s.position[i].predicted;
  }
  w->by_label("deepinfer_speculation_verified_total", verified);
  w->by_label("deepinfer_speculation_accepted_total", accepted);
  w->by_label("deepinfer_speculation_predicted_total", predicted);
}

using Events = std::map<std::string, int64_t>;

std::map<std::string, int64_t> as_map(const std::vector<std::pair<std::string, int64_t>>& list) {
  return {list.begin(), list.end()};
}

}  // namespace

std::string metrics_text(const ServeMetrics& m, const EngineView& e, const HttpGauges& http,
                         const RecordGauges& records, const std::string& model, MetricNames names) {
  std::string out;
  TextWriter w(model, names, &out);
  auto n = [](int64_t v) { return static_cast<double>(v); };
  const Events counters = as_map(e.counters);
  auto counter = [&](const char* name) {
    const auto it = counters.find(name);
    return it == counters.end() ? 0.0 : n(it->second);
  };
  w.value("deepinfer_requests_running", n(e.running));
  w.value("deepinfer_requests_waiting", n(e.waiting));
  w.by_label("deepinfer_requests_waiting_by_reason", Events{{"capacity", e.waiting}});
  w.value("deepinfer_requests_in_flight", n(m.in_flight));
  w.value("deepinfer_kv_cache_usage_ratio", e.blocks_total > 0 ? n(e.blocks_used) / n(e.blocks_total) : 0.0);
  w.info("deepinfer_cache_config_info",
         fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\"", e.block_tokens, e.blocks_total));
  w.value("deepinfer_draining", e.draining ? 1 : 0);
  w.value("deepinfer_last_step_age_seconds", e.last_step_age_ns < 0 ? -1 : n(e.last_step_age_ns) / 1e9);
  w.value("deepinfer_prefix_cache_queries_tokens_total", n(e.prompt_tokens));
  w.value("deepinfer_prefix_cache_hits_tokens_total", n(e.cached_tokens));
  w.by_label("deepinfer_prefix_cache_requests_total", m.cache_results.values());
  w.value("deepinfer_store_queries_tokens_total", counters.contains("store_tokens") ? n(e.prompt_tokens) : 0);
  w.value("deepinfer_store_hits_tokens_total", counter("store_tokens"));
  w.value("deepinfer_preemptions_total", n(e.preemptions));
  w.value("deepinfer_prompt_tokens_total", n(m.prompt_tokens));
  w.value("deepinfer_cached_tokens_total", n(m.cached_tokens));
  w.value("deepinfer_output_tokens_total", n(m.output_tokens));
  w.value("deepinfer_reasoning_tokens_total", n(m.reasoning_tokens));
  w.value("deepinfer_banned_tokens_total", n(m.banned_tokens));
  w.value("deepinfer_draft_tokens_total", n(e.drafted_tokens));
  w.value("deepinfer_accepted_draft_tokens_total", n(e.accepted_tokens));
  speculation_text(e.speculation, &w);
  w.by_label("deepinfer_requests_total", m.requests.values());
  w.by_label("deepinfer_finished_total", m.finished.values());
  w.by_label("deepinfer_rejected_total", m.rejected.values());
  w.value("deepinfer_failed_choices_total", counter("failed"));
  w.by_label("deepinfer_grammar_events_total", m.grammar_events ? m.grammar_events() : Events());
  w.by_label("deepinfer_turn_memory_events_total", m.turn_events ? m.turn_events() : Events());
  w.by_label("deepinfer_http_responses_total", m.http_responses.values());
  w.value("deepinfer_http_connections_total", n(http.accepted));
  w.value("deepinfer_http_connections_open", n(http.open));
  w.value("deepinfer_http_connections_refused_total", n(http.refused));
  w.value("deepinfer_http_timeouts_total", n(http.timeouts));
  w.value("deepinfer_http_slow_readers_total", n(http.slow_readers));
  using Counts = std::map<std::string, int64_t>;
  w.by_label("deepinfer_degraded", Counts{{"database", records.database_failing ? 1 : 0},
                                          {"log", records.log_failing ? 1 : 0},
                                          {"store", e.store_trouble.empty() ? 0 : 1}});
  w.by_label("deepinfer_lost_records_total",
             Counts{{"database", records.lost_rows}, {"log", records.lost_lines}});
  w.value("deepinfer_http2_connections_total", n(http.h2_connections));
  w.value("deepinfer_http2_streams_total", n(http.h2_streams));
  w.value("deepinfer_http2_resets_total", n(http.h2_resets));
  w.value("deepinfer_http2_floods_total", n(http.h2_floods));
  w.histogram("deepinfer_time_to_first_token_seconds", m.ttft);
  w.histogram("deepinfer_inter_token_latency_seconds", m.inter_token);
  w.histogram("deepinfer_request_time_per_output_token_seconds", m.per_token);
  w.histogram("deepinfer_e2e_request_latency_seconds", m.e2e);
  w.histogram("deepinfer_request_queue_time_seconds", m.queue);
  w.histogram("deepinfer_request_prefill_time_seconds", m.prefill);
  w.histogram("deepinfer_request_decode_time_seconds", m.decode);
  w.histogram("deepinfer_request_inference_time_seconds", m.inference);
  w.summary("deepinfer_step_rows", counter("prefill_rows") + counter("decode_rows"), n(e.steps));
  w.histogram("deepinfer_request_prompt_tokens", m.prompt_size);
  w.histogram("deepinfer_request_output_tokens", m.output_size);
  w.histogram("deepinfer_request_choices", m.choices);
  w.histogram("deepinfer_request_max_tokens", m.max_tokens);
  w.by_label("deepinfer_engine_events_total", counters);
  w.by_label("deepinfer_engine_state", as_map(e.gauges));
  return out;
}

}  // namespace deepinfer
