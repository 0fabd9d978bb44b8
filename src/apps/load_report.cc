// Rates over a clean window leave out how a closed loop starts and ends; both windows are reported.
#include "apps/load_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {

Quantiles quantiles(std::vector<double> v) {
  Quantiles q;
  q.count = static_cast<int64_t>(v.size());
  if (v.empty()) return q;
  std::sort(v.begin(), v.end());
  auto at = [&](double p) {
    double x = p * static_cast<double>(v.size() - 1);
    auto i = static_cast<size_t>(x);
    double f = x - static_cast<double>(i);
    return i + 1 < v.size() ? v[i] * (1 - f) + v[i + 1] * f : v[i];
  };
  q.p50 = at(0.50);
  q.p95 = at(0.95);
  q.p99 = at(0.99);
  for (double x : v) q.mean += x;
  q.mean /= static_cast<double>(v.size());
  q.most = v.back();
  return q;
}

namespace {

double ms(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}
double per(double a, double b) {
  return b > 0 ? a / b : 0;
}

// Output tokens per second while at least half of the busiest moment's requests were decoding.
double clean_rate(const LoadResult& result) {
  std::vector<std::pair<int64_t, int>> edges;
  for (const RequestRecord& r : result.requests) {
    if (!r.well() || r.times.first_token_ns == 0 || r.times.finished_ns <= r.times.first_token_ns) continue;
    edges.push_back({r.times.first_token_ns, 1});
    edges.push_back({r.times.finished_ns, -1});
  }
  std::sort(edges.begin(), edges.end());
  int busy = 0, most = 0;
  for (const auto& [t, d] : edges) most = std::max(most, busy += d);
  int64_t begin = 0, end = 0;
  busy = 0;
  for (const auto& [t, d] : edges) {
    bool was = 2 * busy >= most;
    busy += d;
    bool is = 2 * busy >= most && busy > 0;
    if (is && begin == 0) begin = t;
    if (was && !is) end = t;
  }
  if (most < 2 || end <= begin) return 0;
  double tokens = 0;
  for (const RequestRecord& r : result.requests) {
    if (!r.well() || r.times.finished_ns <= r.times.first_token_ns) continue;
    double span = static_cast<double>(r.times.finished_ns - r.times.first_token_ns);
    double inside =
        static_cast<double>(std::min(end, r.times.finished_ns) - std::max(begin, r.times.first_token_ns));
    if (inside > 0) tokens += static_cast<double>(r.output_tokens) * inside / span;
  }
  return tokens * 1e9 / static_cast<double>(end - begin);
}

void add_requests(const LoadGoals& goals, const LoadResult& result, LoadReport* out) {
  std::vector<double> ttft, tpot, itl, e2e, short_ttft;
  int64_t longest = 0;
  for (const RequestRecord& r : result.requests) longest = std::max(longest, r.prompt_tokens);
  for (const RequestRecord& r : result.requests) {
    if (!r.well()) {
      ++out->failed;
      continue;
    }
    double first = ms(r.times.first_token_ns - r.arrival_ns), all = ms(r.times.finished_ns - r.arrival_ns);
    double each = r.output_tokens > 1 ? ms(r.times.finished_ns - r.times.first_token_ns) /
                                            static_cast<double>(r.output_tokens - 1)
                                      : 0;
    ttft.push_back(first);
    if (16 * r.prompt_tokens <= longest) short_ttft.push_back(first);
    e2e.push_back(all);
    if (r.output_tokens > 1) tpot.push_back(each);
    for (int64_t g : r.gaps_ns) itl.push_back(ms(g));
    out->good += first <= goals.ttft_ms && each <= goals.tpot_ms ? 1 : 0;
    out->prompt_tokens += r.prompt_tokens;
    out->hit_tokens += r.cached_tokens;
    out->output_tokens += r.output_tokens;
    out->replayed_hits += r.replayed_window ? 1 : 0;
    out->preemptions += r.preemptions;
    out->drafted += r.drafted;
    out->accepted += r.accepted;
  }
  out->ttft_ms = quantiles(std::move(ttft));
  out->short_ttft_ms = quantiles(std::move(short_ttft));
  out->tpot_ms = quantiles(std::move(tpot));
  out->itl_ms = quantiles(std::move(itl));
  out->e2e_ms = quantiles(std::move(e2e));
}

}  // namespace

Result<TauRates> tau_rates(const LoadReport& r, int fixed_drafts, double accepted_share) {
  if (fixed_drafts < 1)
    return error(
        Code::kInvalidArgument,
        "tau = 1 + n a holds for a fixed number n of verified drafts, and here it varies from step to step; "
        "name one with --fixed-drafts");
  if (!(accepted_share >= 0 && accepted_share <= 1))
    return error(Code::kInvalidArgument, "the accepted share of drafts is {}, must be in [0, 1]",
                 accepted_share);
  TauRates t;
  t.tau = 1 + fixed_drafts * accepted_share;
  int64_t steps = r.output_tokens - r.accepted;  // a step of a request says one token and those accepted
  t.measured_tau = steps > 0 ? static_cast<double>(r.output_tokens) / static_cast<double>(steps) : 0;
  if (t.measured_tau == 0 || r.tpot_ms.p50 <= 0) return t;
  t.user_steps_per_s = 1e3 / r.tpot_ms.p50 / t.measured_tau;
  t.user_tokens_per_s = t.user_steps_per_s * t.tau;
  double rate = r.tokens_per_s_clean > 0 ? r.tokens_per_s_clean : r.tokens_per_s;
  t.tokens_per_s = rate / t.measured_tau * t.tau;
  return t;
}

LoadReport make_report(const Workload& workload, const DriveOptions& options, const LoadGoals& goals,
                       const LoadResult& result) {
  LoadReport r;
  r.workload = workload.name;
  r.open_loop = options.concurrency == 0;
  r.concurrency = options.concurrency;
  r.sessions = static_cast<int64_t>(workload.sessions.size());
  r.requests = static_cast<int64_t>(result.requests.size());
  r.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
  add_requests(goals, result, &r);
  r.tokens_per_s = per(static_cast<double>(r.output_tokens), r.seconds);
  r.tokens_per_s_clean = clean_rate(result);
  r.prompt_tokens_per_s = per(static_cast<double>(r.prompt_tokens), r.seconds);
  r.uncached_tokens_per_s = per(static_cast<double>(r.prompt_tokens - r.hit_tokens), r.seconds);
  r.goodput_rps = per(static_cast<double>(r.good), r.seconds);
  const EngineStats &a = result.before, &b = result.after;
  auto d = [](int64_t before, int64_t after) { return static_cast<double>(after - before); };
  double schedule = d(a.schedule_ns, b.schedule_ns);
  double step = d(a.forward_ns, b.forward_ns) + d(a.draft_ns, b.draft_ns) + d(a.sample_ns, b.sample_ns);
  r.steps = b.steps - a.steps;
  r.scheduler_share = per(schedule, step);
  r.scheduler_us_per_step = per(schedule / 1e3, static_cast<double>(r.steps));
  r.overlap_share = per(d(a.overlapped_ns, b.overlapped_ns), schedule);
  r.rows_per_step =
      per(d(a.prefill_rows, b.prefill_rows) + d(a.decode_rows, b.decode_rows), static_cast<double>(r.steps));
  return r;
}

nlohmann::ordered_json to_json(const LoadReport& r) {
  auto q = [](const Quantiles& v) {
    return nlohmann::ordered_json{{"p50", v.p50},   {"p95", v.p95},  {"p99", v.p99},
                                  {"mean", v.mean}, {"max", v.most}, {"count", v.count}};
  };
  nlohmann::ordered_json j;
  j["workload"] = r.workload;
  j["loop"] = r.open_loop ? "open" : "closed";
  j["concurrency"] = r.concurrency;
  if (r.max_running > 0) j["max_running"] = r.max_running;
  j["sessions"] = r.sessions;
  j["requests"] = r.requests;
  j["failed"] = r.failed;
  j["window_s"] = r.seconds;
  j["ttft_ms"] = q(r.ttft_ms);
  if (r.short_ttft_ms.count > 0) j["short_prompt_ttft_ms"] = q(r.short_ttft_ms);
  j["tpot_ms"] = q(r.tpot_ms);
  j["itl_ms"] = q(r.itl_ms);
  j["e2e_ms"] = q(r.e2e_ms);
  j["tokens_per_s"] = r.tokens_per_s;
  j["tokens_per_s_clean_window"] = r.tokens_per_s_clean;
  j["prompt_tokens_per_s"] = r.prompt_tokens_per_s;
  j["uncached_prompt_tokens_per_s"] = r.uncached_tokens_per_s;
  j["goodput_rps"] = r.goodput_rps;
  j["prompt_tokens"] = r.prompt_tokens;
  j["hit_tokens"] = r.hit_tokens;
  j["output_tokens"] = r.output_tokens;
  j["replayed_hits"] = r.replayed_hits;
  j["preemptions"] = r.preemptions;
  j["drafted"] = r.drafted;
  j["accepted"] = r.accepted;
  j["steps"] = r.steps;
  j["rows_per_step"] = r.rows_per_step;
  j["scheduler_share"] = r.scheduler_share;
  j["scheduler_us_per_step"] = r.scheduler_us_per_step;
  j["overlap_share"] = r.overlap_share;
  return j;
}

std::string to_table(const LoadReport& r) {
  std::string s = fmt::format(
      "workload {}, {} loop{}, {} sessions, {} requests ({} failed, left out below), {:.2f} s\n", r.workload,
      r.open_loop ? "open" : "closed", r.open_loop ? "" : fmt::format(" of {}", r.concurrency), r.sessions,
      r.requests, r.failed, r.seconds);
  s += fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "p50", "p95", "p99", "max");
  auto line = [&](const char* what, const Quantiles& q) {
    s += fmt::format("{:<22}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", what, q.p50, q.p95, q.p99, q.most);
  };
  line("time to first token", r.ttft_ms);
  if (r.short_ttft_ms.count > 0) line("  of short prompts", r.short_ttft_ms);
  line("time per output token", r.tpot_ms);
  line("between events", r.itl_ms);
  line("end to end", r.e2e_ms);
  s += fmt::format("output tokens/s        {:.1f} (full window), {:.1f} (clean window)\n", r.tokens_per_s,
                   r.tokens_per_s_clean);
  s += fmt::format("prompt tokens/s        {:.1f} logical, {:.1f} uncached\n", r.prompt_tokens_per_s,
                   r.uncached_tokens_per_s);
  s += fmt::format("good requests/s        {:.3f} ({} of {})\n", r.goodput_rps, r.good, r.requests);
  s += fmt::format("prompt tokens          {}, from the cache {} ({:.1f} %), replayed windows {}\n",
                   r.prompt_tokens, r.hit_tokens,
                   100 * per(static_cast<double>(r.hit_tokens), static_cast<double>(r.prompt_tokens)),
                   r.replayed_hits);
  s += fmt::format("steps                  {}, {:.1f} rows each; drafts {} of {} accepted; preemptions {}\n",
                   r.steps, r.rows_per_step, r.accepted, r.drafted, r.preemptions);
  s += fmt::format(
      "scheduler              {:.2f} % of step time, {:.1f} us per step, {:.0f} % of it overlapped\n",
      100 * r.scheduler_share, r.scheduler_us_per_step, 100 * r.overlap_share);
  return s;
}

std::string csv_head() {
  return "point,workload,loop,concurrency,max_running,requests,failed,window_s,ttft_p50_ms,ttft_p95_ms,ttft_"
         "p99_ms,"
         "tpot_p50_ms,tpot_p95_ms,tpot_p99_ms,e2e_p50_ms,e2e_p99_ms,tokens_per_s,tokens_per_s_clean,per_user_"
         "tokens_per_s,"
         "uncached_prompt_tokens_per_s,goodput_rps,hit_tokens,prompt_tokens,accepted,drafted,scheduler_share,"
         "overlap_share,short_ttft_p50_ms,short_ttft_p99_ms\n";
}

std::string csv_line(const LoadReport& r, const std::string& point) {
  return fmt::format(
      "{},{},{},{},{},{},{},{:.4f},{:.3f},{:.3f},{:.3f},{:.4f},{:.4f},{:.4f},{:.3f},{:.3f},{:.2f},{:.2f},{:."
      "2f},{:.2f},"
      "{:.4f},{},{},{},{},{:.5f},{:.4f},{:.3f},{:.3f}\n",
      point, r.workload, r.open_loop ? "open" : "closed", r.concurrency, r.max_running, r.requests, r.failed,
      r.seconds, r.ttft_ms.p50, r.ttft_ms.p95, r.ttft_ms.p99, r.tpot_ms.p50, r.tpot_ms.p95, r.tpot_ms.p99,
      r.e2e_ms.p50, r.e2e_ms.p99, r.tokens_per_s, r.tokens_per_s_clean, per(1e3, r.tpot_ms.p50),
      r.uncached_tokens_per_s, r.goodput_rps, r.hit_tokens, r.prompt_tokens, r.accepted, r.drafted,
      r.scheduler_share, r.overlap_share, r.short_ttft_ms.p50, r.short_ttft_ms.p99);
}

}  // namespace deepinfer
