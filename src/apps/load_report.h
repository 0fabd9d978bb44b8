// What a load run comes to: latency percentiles, throughput, goodput, hits, the engine's own shares; as a
// table, as JSON, as CSV. Every figure says what it counts: logical or uncached tokens, open or closed loop,
// failures left in or out. Source: serving specification 13.5. Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/load_run.h"

namespace deepinfer {

struct Quantiles {
  double p50 = 0, p95 = 0, p99 = 0, mean = 0, most = 0;
  int64_t count = 0;
};
// Linear interpolation between order statistics; empty: zeros.
Quantiles quantiles(std::vector<double> values);

struct LoadGoals {
  double ttft_ms = 1000, tpot_ms = 100;  // a request within both counts as good
};

struct LoadReport {
  std::string workload;
  bool open_loop = false;
  int64_t concurrency = 0, max_running = 0;
  int64_t sessions = 0, requests = 0, good = 0, failed = 0;
  double seconds = 0;  // first submission to last finish: the full window
  Quantiles ttft_ms, tpot_ms, itl_ms,
      e2e_ms;               // of requests that ended well; TTFT and E2E from the wanted arrival
  Quantiles short_ttft_ms;  // of prompts of at most a sixteenth of the longest; empty where all are alike
  double tokens_per_s = 0;  // output tokens of the full window
  double tokens_per_s_clean = 0;  // of the window in which at least half of the concurrency was busy; 0: none
  double prompt_tokens_per_s = 0, uncached_tokens_per_s = 0;
  double goodput_rps = 0;
  int64_t prompt_tokens = 0, hit_tokens = 0, output_tokens = 0, replayed_hits = 0, preemptions = 0;
  int64_t drafted = 0, accepted = 0, steps = 0;
  double scheduler_share = 0;  // of the time steps take
  double scheduler_us_per_step = 0;
  double overlap_share = 0;  // of the scheduler's time, hidden behind a step
  double rows_per_step = 0;
};

// The published convention for a fixed number of verified drafts: every step is taken to give tau = 1 + n a
// tokens, `a` being the share of proposed drafts that are accepted. Steps are those measured.
struct TauRates {
  double tau = 0, measured_tau = 0;                // assumed; tokens a step of a request really gave
  double user_steps_per_s = 0;                     // of one request (median)
  double user_tokens_per_s = 0, tokens_per_s = 0;  // under the assumed tau
};
// kInvalidArgument when the number of verified drafts varies (fixed_drafts < 1): the formula says nothing
// there.
Result<TauRates> tau_rates(const LoadReport& report, int fixed_drafts, double accepted_share);

LoadReport make_report(const Workload& workload, const DriveOptions& options, const LoadGoals& goals,
                       const LoadResult& result);
nlohmann::ordered_json to_json(const LoadReport& report);
std::string to_table(const LoadReport& report);
// One line per point with the column names first.
std::string csv_head();
std::string csv_line(const LoadReport& report, const std::string& point);

}  // namespace deepinfer
