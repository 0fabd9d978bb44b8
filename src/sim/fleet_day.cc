// Windows of a day, and the cluster of reading A.
#include <algorithm>
#include <cmath>

#include "sim/economics.h"
#include "sim/fleet.h"

namespace deepinfer::sim {
namespace {

WindowFigure figure(const std::vector<double>& values) {
  WindowFigure f;
  const double n = static_cast<double>(values.size());
  if (values.empty()) return f;
  for (double v : values) f.mean += v / n;
  double squares = 0;
  for (double v : values) squares += (v - f.mean) * (v - f.mean);
  if (values.size() > 1) f.error = 1.96 * std::sqrt(squares / (n - 1) / n);
  return f;
}

void add(FleetResult* t, const FleetResult& r) {
  t->arrived += r.arrived;
  t->completed += r.completed;
  t->refused += r.refused;
  t->within_slo += r.within_slo;
  t->failed_over += r.failed_over;
  t->input_tokens += r.input_tokens;
  t->output_tokens += r.output_tokens;
  t->perfect_tokens += r.perfect_tokens;
  t->hit_tokens += r.hit_tokens;
  t->computed_tokens += r.computed_tokens;
  t->good_output_tokens += r.good_output_tokens;
  t->cancelled += r.cancelled;
  t->evicted_blocks += r.evicted_blocks;
  t->drained += r.drained;
  t->forwarded += r.forwarded;
  t->scaled_up += r.scaled_up;
  t->scaled_down += r.scaled_down;
  t->started += r.started;
  t->longest_gap_s = std::max(t->longest_gap_s, r.longest_gap_s);
  t->most_moved_rows = std::max(t->most_moved_rows, r.most_moved_rows);
  t->unreadable_hits += r.unreadable_hits;
  t->replayed_hits += r.replayed_hits;
  for (size_t i = 0; i < std::size(t->refusals); ++i) t->refusals[i] += r.refusals[i];
  t->ttft_ns.merge(r.ttft_ns);
  t->tpot_ns.merge(r.tpot_ns);
  t->e2e_ns.merge(r.e2e_ns);
  t->queue_ns.merge(r.queue_ns);
  t->fetch_ns.merge(r.fetch_ns);
  t->vision_ns.merge(r.vision_ns);
  t->images += r.images;
  t->patches += r.patches;
  t->budgets += r.budgets;
  t->measured_s += r.measured_s;
  t->events += r.events;
  t->request_steps += r.request_steps;
  t->decode_steps += r.decode_steps;
  t->prefill_steps += r.prefill_steps;
  t->log_hash = (t->log_hash ^ r.log_hash) * 0x100000001b3ull;
  if (t->broken.empty()) t->broken = r.broken;
  t->gpus = r.gpus;
}

// Averages of what is not a sum.
void average(FleetResult* t, const std::vector<FleetResult>& windows) {
  const double n = static_cast<double>(windows.size());
  double FleetResult::* const fields[] = {&FleetResult::prefill_busy,
                                          &FleetResult::prefill_load,
                                          &FleetResult::output_per_s,
                                          &FleetResult::decode_busy,
                                          &FleetResult::step_balance,
                                          &FleetResult::moe_lb,
                                          &FleetResult::tokens_per_step,
                                          &FleetResult::drafts_per_step,
                                          &FleetResult::vision_busy,
                                          &FleetResult::mean_requests,
                                          &FleetResult::mean_tokens,
                                          &FleetResult::requests_spread,
                                          &FleetResult::tokens_spread,
                                          &FleetResult::eta,
                                          &FleetResult::eta_time,
                                          &FleetResult::eta_step,
                                          &FleetResult::eta_mix,
                                          &FleetResult::store_busy,
                                          &FleetResult::usd_per_million_output,
                                          &FleetResult::usd_per_request};
  for (auto field : fields) {
    t->*field = 0;
    for (const FleetResult& r : windows) t->*field += r.*field / n;
  }
}

}  // namespace

DayResult run_day(const DayConfig& config, std::vector<FleetResult> done, const WindowsDone& finished) {
  DayResult out;
  out.windows = std::move(done);
  for (int w = static_cast<int>(out.windows.size()); w < config.windows; ++w) {
    FleetConfig fleet = config.fleet;
    fleet.seed = config.fleet.seed * 1000003 + static_cast<uint64_t>(w);
    Workload workload(config.workload, fleet.seed, config.workload.day_s * (w + 0.5) / config.windows);
    out.windows.push_back(run_fleet(fleet, &workload));
    if (w != config.windows / 2) out.windows.back().series.clear();  // one window is drawn: the peak's
    if (finished) finished(out.windows);
  }
  std::vector<double> p50, p99, tpot, rate, hit, eta, busy;
  for (const FleetResult& r : out.windows) {
    add(&out.total, r);
    if (!r.series.empty()) out.total.series = r.series;
    p50.push_back(r.ttft_ns.quantile(0.5) * 1e-9);
    p99.push_back(r.ttft_ns.quantile(0.99) * 1e-9);
    tpot.push_back(r.tpot_ns.quantile(0.5) * 1e-6);
    rate.push_back(r.output_per_s);
    hit.push_back(static_cast<double>(r.hit_tokens) /
                  static_cast<double>(std::max<int64_t>(1, r.input_tokens)));
    eta.push_back(r.eta);
    busy.push_back(r.prefill_busy);
  }
  average(&out.total, out.windows);
  out.ttft_p50_s = figure(p50);
  out.ttft_p99_s = figure(p99);
  out.tpot_p50_ms = figure(tpot);
  out.output_per_s = figure(rate);
  out.hit_rate = figure(hit);
  out.eta = figure(eta);
  out.prefill_busy = figure(busy);
  return out;
}

DayConfig cluster_day(uint64_t seed, int windows, double window_s) {
  DayConfig c;
  const FactoryInput in = reading_a();
  c.windows = windows;
  c.fleet.seed = seed;
  c.fleet.warmup_s = 8;  // it begins empty: after 4 s, 0.7 % fewer still leave than come
  c.fleet.measure_s = window_s;
  // 13 groups of 64 ranks decode; the rest, in fours, computes prompts; one GPU is left over.
  c.fleet.decode_groups = 13;
  c.fleet.decode_ranks = 64;
  c.fleet.spare_decode_groups = 1;  // N + 1: one group may fail, drain or load
  c.fleet.prefill_ranks = 4;
  c.fleet.prefill_engines = static_cast<int>((std::lround(factory(in).gpus) - 13 * 64) / 4);
  // A chunk of 16,384 rows at 81,500 rows per second, the published operating point.
  c.fleet.prefill = {0, 0, 1e9 / in.prefill_rate, 0, 0, 0, 0};
  c.fleet.store.nodes = 49;  // by capacity, 48.4
  c.workload.mix = {reading_a_mix()};
  c.workload.diurnal = 0.05;
  const Workload probe(c.workload, seed, 0);
  c.workload.requests_per_s = in.tokens_per_day / 86400 / (probe.mean_input() + probe.mean_output());
  return c;
}

}  // namespace deepinfer::sim
