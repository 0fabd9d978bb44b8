// Rounds go over all modes before the next round begins, so that whatever else the machine does falls on all
// alike.
#include "apps/bench_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/random.h"

namespace deepinfer {

std::vector<SpecMode> spec_modes(int drafts) {
  std::vector<SpecMode> modes{{"off", policy::SpeculationMode::kOff, 0}};
  for (int k = 1; k <= drafts; ++k)
    modes.push_back({fmt::format("fixed{}", k), policy::SpeculationMode::kFixed, k});
  if (drafts > 0) modes.push_back({"dynamic", policy::SpeculationMode::kDynamic, 0});
  return modes;
}

namespace {

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  size_t n = v.size();
  return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

Result<SpecSample> one_round(Engine* engine, const Workload& work, const DriveOptions& drive) {
  auto r = run_load(engine, work, drive);
  if (!r.ok()) return r.status();
  if (r->stopped) return error(Code::kCancelled, "stopped by a signal");
  SpecSample s;
  double tokens = 0, requests = 0;
  for (const RequestRecord& q : r->requests) {
    if (!q.well()) return error(Code::kUnavailable, "a request of the bench failed: {}", q.message);
    tokens += static_cast<double>(q.output_tokens);
    requests += 1;
  }
  s.tokens_per_s = tokens * 1e9 / static_cast<double>(std::max<int64_t>(1, r->end_ns - r->begin_ns));
  s.decode_per_s = decode_rate(r->requests);
  double verified = static_cast<double>(r->after.verified_tokens - r->before.verified_tokens);
  double accepted = static_cast<double>(r->after.accepted_tokens - r->before.accepted_tokens);
  // Every decode step of a request gives its own token besides what was accepted; the first token is the
  // prompt's.
  double steps = tokens - requests - accepted;
  if (steps > 0) {
    s.verified_per_step = verified / steps;
    s.accepted_per_step = accepted / steps;
  }
  auto each = [&](int64_t EngineStats::* ns, int64_t count) {
    return count > 0 ? static_cast<double>(r->after.*ns - r->before.*ns) / 1e6 / static_cast<double>(count)
                     : 0.0;
  };
  s.forward_ms = each(&EngineStats::plain_forward_ns, r->after.plain_steps - r->before.plain_steps);
  s.draft_ms =
      each(&EngineStats::draft_ns, r->after.speculation.draft_passes - r->before.speculation.draft_passes);
  s.sample_ms = each(&EngineStats::sample_ns, r->after.steps - r->before.steps);
  return s;
}

std::vector<double> decode_rates(const std::vector<SpecSample>& samples) {
  std::vector<double> v;
  for (const SpecSample& s : samples) v.push_back(s.decode_per_s);
  return v;
}

}  // namespace

double decode_rate(const std::vector<RequestRecord>& requests) {
  double tokens = 0, ns = 0;
  for (const RequestRecord& q : requests) {
    if (q.output_tokens < 2) continue;
    tokens += static_cast<double>(q.output_tokens - 1);
    ns += static_cast<double>(q.times.finished_ns - q.times.first_token_ns);
  }
  return ns > 0 ? tokens * 1e9 / ns : 0;
}

PairedLoss paired_loss(const std::vector<double>& mine, const std::vector<double>& other) {
  size_t n = std::min(mine.size(), other.size());
  std::vector<double> ratio;
  for (size_t i = 0; i < n; ++i) {
    if (other[i] > 0) ratio.push_back(mine[i] / other[i]);
  }
  if (ratio.empty()) return {};
  sim::Random random(1);
  std::vector<double> losses;
  for (int k = 0; k < 2000; ++k) {
    std::vector<double> resample;
    for (size_t i = 0; i < ratio.size(); ++i)
      resample.push_back(ratio[static_cast<size_t>(random.in(0, static_cast<int64_t>(ratio.size()) - 1))]);
    losses.push_back(1 - median(std::move(resample)));
  }
  std::sort(losses.begin(), losses.end());
  return {median(ratio), losses[static_cast<size_t>(0.95 * 1999)]};
}

Result<std::vector<SpecPoint>> run_spec(
    const std::vector<SpecMode>& modes, const SpecOptions& options,
    const std::function<Result<std::unique_ptr<Engine>>(const SpecMode&)>& make,
    const std::function<Workload(int64_t)>& workload_of, const DriveOptions& drive,
    const std::function<void(const std::string&)>& progress) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (const SpecMode& m : modes) {
    auto e = make(m);
    if (!e.ok()) return e.status();
    engines.push_back(std::move(*e));
  }
  std::vector<SpecPoint> points;
  for (int64_t c : options.concurrency) {
    Workload work = workload_of(c);
    DriveOptions d = drive;
    d.concurrency = c;
    std::vector<std::vector<SpecSample>> samples(modes.size());
    for (int round = -1; round < options.rounds; ++round) {  // the first is for warming up
      for (size_t turn = 0; turn < modes.size(); ++turn) {
        // Every mode has every neighbour and every place in its turn.
        size_t m = (turn + static_cast<size_t>(round + 1)) % modes.size();
        progress(
            fmt::format("{} at a time, {}, round {} of {}", c, modes[m].name, round + 1, options.rounds));
        auto s = one_round(engines[m].get(), work, d);
        if (!s.ok()) return s.status();
        if (round >= 0) samples[m].push_back(*s);
      }
    }
    size_t begin = points.size();
    for (size_t m = 0; m < modes.size(); ++m) {
      SpecPoint p;
      p.concurrency = c;
      p.mode = modes[m].name;
      auto middle = [&](double SpecSample::* what) {
        std::vector<double> v;
        for (const SpecSample& s : samples[m]) v.push_back(s.*what);
        return median(std::move(v));
      };
      for (const SpecSample& s : samples[m]) p.rates.push_back(s.tokens_per_s);
      for (auto what : {&SpecSample::tokens_per_s, &SpecSample::decode_per_s, &SpecSample::verified_per_step,
                        &SpecSample::accepted_per_step, &SpecSample::forward_ms, &SpecSample::draft_ms,
                        &SpecSample::sample_ms})
        p.median.*what = middle(what);
      points.push_back(std::move(p));
    }
    for (size_t m = 0; m < modes.size(); ++m) {
      SpecPoint& p = points[begin + m];
      p.against_off = paired_loss(p.rates, points[begin].rates).median_ratio;
      p.decode_against_off = paired_loss(decode_rates(samples[m]), decode_rates(samples[0])).median_ratio;
      if (p.mode != "dynamic") continue;
      size_t best = begin;
      for (size_t k = begin; k < begin + modes.size(); ++k) {
        if (k != begin + m && points[k].median.tokens_per_s > points[best].median.tokens_per_s) best = k;
      }
      for (int duel = 0; duel < options.duels; ++duel) {
        progress(fmt::format("{} at a time, dynamic against {}, {} of {}", c, points[best].mode, duel + 1,
                             options.duels));
        for (bool mine : {duel % 2 == 0, duel % 2 != 0}) {
          auto s = one_round(engines[mine ? m : best - begin].get(), work, d);
          if (!s.ok()) return s.status();
          (mine ? p.duel_rates : p.best_duel_rates).push_back(s->tokens_per_s);
        }
      }
      PairedLoss loss = options.duels > 0 ? paired_loss(p.duel_rates, p.best_duel_rates)
                                          : paired_loss(p.rates, points[best].rates);
      p.best = points[best].mode;
      p.against_best = loss.median_ratio;
      p.loss_bound = loss.loss_bound;
    }
  }
  return points;
}

// ---- the published points

namespace {

double normal_quantile(double p) {
  double lo = -10, hi = 10;
  for (int i = 0; i < 200; ++i) {
    double mid = (lo + hi) / 2;
    (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? lo : hi) = mid;
  }
  return lo;
}

// Step time by rows: the quadratic through the three published points, whose times follow from tokens/s
// at 3.29 tokens per step.
policy::RowCurve published_curve() {
  const double x[3] = {96, 360, 576}, y[3] = {16 * 3.29e3 / 4891, 60 * 3.29e3 / 13730, 96 * 3.29e3 / 16817};
  std::vector<policy::CurvePoint> points;
  for (int64_t r = 1; r <= 640; ++r) {
    double ms = 0;
    for (int i = 0; i < 3; ++i) {
      double term = y[i];
      for (int j = 0; j < 3; ++j) {
        if (j != i) term *= (static_cast<double>(r) - x[j]) / (x[i] - x[j]);
      }
      ms += term;
    }
    points.push_back({r, ms * 1e6, 0});
  }
  return *policy::make_curve(std::move(points), 0);
}

}  // namespace

std::string published_points_table() {
  policy::RowCurve curve = published_curve();
  policy::StepCost plain{&curve}, selective{&curve};
  selective.overhead = 0.02;
  std::string s =
      "Published operating points (64-way expert parallel), from the engine's own budget search on modelled "
      "requests:\n";
  s += fmt::format("{:>9}{:>12}{:>8}{:>14}{:>9}{:>22}{:>12}\n", "requests", "fixed tok/s", "drafts",
                   "dynamic tok/s", "gain", "gain at 2 % overhead", "published");
  const char* published[] = {"-1.5 %", "+5.4 %", "+11.0 %"};
  int row = 0;
  for (int requests : {16, 60, 96}) {
    std::vector<double> all;
    for (int i = 0; i < requests; ++i) {
      double z = normal_quantile((i + 0.5) / requests);
      double c[5], a[5];
      for (int k = 0; k < 5; ++k) c[k] = 1 / (1 + std::exp(-(1.226 + 1.2 * z - 0.15 * k)));
      policy::survivals(c, a);
      all.insert(all.end(), a, a + 5);
    }
    policy::BudgetInput in{requests, requests, requests, all};
    policy::BudgetChoice fixed = policy::value_of(in, plain, 5 * requests),
                         best = policy::best_budget(in, plain);
    policy::BudgetChoice paid = policy::best_budget(in, selective);
    s += fmt::format("{:>9}{:>12.1f}{:>8}{:>14.1f}{:>+8.1f}%{:>+21.1f}%{:>12}\n", requests,
                     fixed.tokens_per_ns() * 1e9, best.drafts, best.tokens_per_ns() * 1e9,
                     100 * (best.tokens_per_ns() / fixed.tokens_per_ns() - 1),
                     100 * (paid.tokens_per_ns() / fixed.tokens_per_ns() - 1), published[row++]);
  }
  return s;
}

}  // namespace deepinfer
