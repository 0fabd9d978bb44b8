// Reads the log twice: once for costs, once for the work.
#include "apps/bench_simulated.h"

#include <algorithm>
#include <map>
#include <memory>

namespace deepinfer {

using policy::BlockKey;
using policy::SeqId;

namespace {

double median(std::vector<double> v) {
  return quantiles(std::move(v)).p50;
}

// Requests the engine took and finished well, in the order they were sent; and the ids the scheduler knew
// them by.
struct Sent {
  std::vector<const RequestRecord*> records;
  std::vector<const policy::Arrived*> arrived;
};

Sent sent_of(const RecordedRun& run) {
  Sent s;
  std::vector<const RequestRecord*> all;
  for (const RequestRecord& r : run.result.requests) {
    if (r.times.submitted_ns > 0) all.push_back(&r);
  }
  std::sort(all.begin(), all.end(),
            [](const auto* a, const auto* b) { return a->times.submitted_ns < b->times.submitted_ns; });
  std::vector<const policy::Arrived*> arrived;
  for (const policy::Event& e : run.log) {
    if (const auto* a = std::get_if<policy::Arrived>(&e)) arrived.push_back(a);
  }
  // The log begins with the engine, the workload with its warm-up done: the last arrivals are its.
  const size_t skip = arrived.size() - std::min(arrived.size(), all.size());
  for (size_t i = 0; i < all.size() && skip + i < arrived.size(); ++i) {
    if (!all[i]->well()) continue;
    s.records.push_back(all[i]);
    s.arrived.push_back(arrived[skip + i]);
  }
  return s;
}

std::string pair_text(const char* what, const Latency& l, const Latency& measured) {
  auto ratio = [](double a, double b) { return b > 0 ? a / b : 0; };
  return fmt::format("{:<38}{:>12.3f}{:>8.3f}{:>12.4f}{:>8.3f}{:>10}\n", what, l.ttft_p50_ms,
                     ratio(l.ttft_p50_ms, measured.ttft_p50_ms), l.tpot_p50_ms,
                     ratio(l.tpot_p50_ms, measured.tpot_p50_ms), l.steps);
}

Latency median_of(const std::vector<SimulatedRound>& rounds, Latency SimulatedRound::* which) {
  std::vector<double> ttft, tpot, requests, steps;
  for (const SimulatedRound& r : rounds) {
    ttft.push_back((r.*which).ttft_p50_ms);
    tpot.push_back((r.*which).tpot_p50_ms);
    requests.push_back(static_cast<double>((r.*which).requests));
    steps.push_back(static_cast<double>((r.*which).steps));
  }
  return {median(ttft), median(tpot), static_cast<int64_t>(median(requests)),
          static_cast<int64_t>(median(steps))};
}

// The fit weighs errors by what was measured, so that slow steps count little and a noisy machine is
// predicted too fast. Latency is a sum of steps: here errors are weighed by what is predicted, which gives
// means.
policy::FitDecision fit_means(const std::vector<policy::CostSample>& samples,
                              const policy::CostModel& previous) {
  // However noisy: what a step costs in the mean is wanted, not a model to plan by.
  constexpr double kAny = 1e9;
  policy::FitDecision fit = policy::fit_cost(samples, {}, previous, kAny);
  constexpr double kStalled = 3;  // times the prediction: not what a step costs
  for (int i = 0; i < 4 && fit.adopt; ++i) {
    std::vector<double> weights;
    for (const policy::CostSample& s : samples) {
      const double ratio = s.measured_ns / std::max(1.0, policy::predict_ns(fit.model, s));
      weights.push_back(ratio > kStalled ? 1 : ratio * ratio);
    }
    const policy::FitDecision again = policy::fit_cost(samples, weights, previous, kAny);
    if (!again.adopt) break;
    fit = again;
  }
  return fit;
}

// What the scheduler planned by when the workload began: the start-up costs as the warm-up has corrected
// them.
policy::CostModel planning_costs(const RecordedRun& run) {
  policy::CostModel out = run.scheduler.cost;
  int64_t now_ns = 0;
  for (const policy::Event& e : run.log) {
    if (const auto* f = std::get_if<policy::StepFinished>(&e)) now_ns = f->now_ns;
    if (now_ns >= run.result.begin_ns) break;
    if (const auto* c = std::get_if<policy::CostAdopted>(&e)) out = c->model;
  }
  return out;
}

// Calls f(plan, end) for every step that was launched and finished, in the order of their ends.
template <typename F>
void for_finished_steps(const RecordedRun& run, const F& f) {
  std::map<policy::StepId, const policy::PlanAdopted*> adopted;
  for (const policy::Event& e : run.log) {
    if (const auto* plan = std::get_if<policy::PlanAdopted>(&e)) {
      if (plan->plan.launches()) adopted[plan->plan.step] = plan;
    } else if (const auto* end = std::get_if<policy::StepFinished>(&e)) {
      const auto it = adopted.find(end->step);
      if (it == adopted.end()) continue;
      f(*it->second, *end);
      adopted.erase(it);
    }
  }
}

// Tokens that each decode step of each request decided, in order: the drafts that were accepted, and one.
std::vector<std::vector<int64_t>> decode_rounds(const RecordedRun& run,
                                                const std::map<SeqId, size_t>& index) {
  std::vector<std::vector<int64_t>> out(index.size());
  for_finished_steps(run, [&](const policy::PlanAdopted& plan, const policy::StepFinished& end) {
    for (size_t i = 0; i < end.results.size(); ++i) {
      const auto known = index.find(end.results[i].seq);
      if (plan.plan.runs[i].prefill || end.results[i].new_tokens == 0 || known == index.end()) continue;
      out[known->second].push_back(end.results[i].new_tokens);
    }
  });
  return out;
}

// What the scheduler came to plan by while the workload ran, by steps since it began.
std::vector<std::pair<int64_t, policy::CostModel>> believed_costs(const RecordedRun& run) {
  std::vector<std::pair<int64_t, policy::CostModel>> out;
  int64_t steps = 0;
  for (const policy::Event& e : run.log) {
    if (const auto* f = std::get_if<policy::StepFinished>(&e)) steps += f->now_ns >= run.result.begin_ns;
    if (const auto* c = std::get_if<policy::CostAdopted>(&e); c != nullptr && steps > 0)
      out.emplace_back(steps, c->model);
  }
  return out;
}

}  // namespace

FittedCosts fit_costs(const RecordedRun& run) {
  FittedCosts out;
  out.model = run.scheduler.cost;
  std::vector<policy::CostSample> samples;
  std::vector<double> gaps, lags;
  int64_t before_ns = 0, decided = 0, decode_runs = 0;
  for_finished_steps(run, [&](const policy::PlanAdopted& plan, const policy::StepFinished& end) {
    const int64_t from_ns = std::max(before_ns, plan.now_ns);
    before_ns = end.now_ns;
    if (end.now_ns < run.result.begin_ns || end.exclude_from_fit) return;
    policy::CostSample sample = plan.plan.sample;
    sample.measured_ns = end.measured_ns;
    samples.push_back(sample);
    gaps.push_back(std::max(0.0, static_cast<double>(end.now_ns - from_ns) - end.measured_ns));
    for (size_t i = 0; i < end.results.size(); ++i) {
      if (plan.plan.runs[i].prefill || end.results[i].new_tokens == 0) continue;
      decided += end.results[i].new_tokens;
      ++decode_runs;
    }
  });
  const Sent sent = sent_of(run);
  for (size_t i = 0; i < sent.records.size(); ++i)
    lags.push_back(static_cast<double>(sent.arrived[i]->now_ns - sent.records[i]->arrival_ns));
  const policy::FitDecision fit = fit_means(samples, run.scheduler.cost);
  out.fitted = fit.adopt;
  if (fit.adopt) {
    out.model = fit.model;
  } else {  // steps too unlike each other, or too few: the start-up model at the pace of this run
    std::vector<double> pace;
    for (const policy::CostSample& s : samples) {
      const double predicted = policy::predict_ns(run.scheduler.cost, s);
      if (predicted > 0) pace.push_back(s.measured_ns / predicted);
    }
    const double times = pace.empty() ? 1 : median(std::move(pace));
    for (double* c : {&out.model.a, &out.model.b, &out.model.d, &out.model.e, &out.model.e_decoder,
                      &out.model.d_decoder, &out.model.g_decoder})
      *c *= times;
  }
  out.median_error = fit.median_relative_error;
  out.steps = static_cast<int64_t>(samples.size());
  out.host_ns = median(gaps);
  out.submit_ns = std::max(0.0, median(lags));
  if (decode_runs > 0) out.tokens_per_step = static_cast<double>(decided) / static_cast<double>(decode_runs);
  return out;
}

sim::EngineWork work_of(const RecordedRun& run) {
  const Sent sent = sent_of(run);
  sim::EngineWork work;
  std::map<std::pair<int64_t, int64_t>, size_t> turns;  // (session, turn) -> index
  std::map<int64_t, size_t> last;                       // of a session
  for (size_t i = 0; i < sent.records.size(); ++i) {
    turns[{sent.records[i]->session, sent.records[i]->turn}] = i;
    last[sent.records[i]->session] = i;
  }
  // In a closed loop the n-th session to end lets the next one in.
  std::vector<size_t> ends;
  for (const auto& [session, i] : last) ends.push_back(i);
  std::sort(ends.begin(), ends.end(), [&](size_t a, size_t b) {
    return sent.records[a]->times.finished_ns < sent.records[b]->times.finished_ns;
  });
  int64_t begun = 0;
  for (size_t i = 0; i < sent.records.size(); ++i) {
    const RequestRecord& r = *sent.records[i];
    sim::EngineArrival a{r.arrival_ns - run.result.begin_ns, -1, r.prompt_tokens, r.output_tokens,
                         sent.arrived[i]->now_ns - r.arrival_ns};
    if (r.turn > 0) {
      if (auto it = turns.find({r.session, r.turn - 1}); it != turns.end())
        a.after = static_cast<int64_t>(it->second);
    } else if (run.concurrency > 0 && ++begun > run.concurrency) {
      a.after = static_cast<int64_t>(ends[static_cast<size_t>(begun - run.concurrency - 1)]);
    }
    if (a.after >= static_cast<int64_t>(i)) a.after = -1;
    if (a.after >= 0) {
      const int64_t since = sent.records[static_cast<size_t>(a.after)]->times.finished_ns;
      a.at_ns = std::max<int64_t>(0, r.arrival_ns - since);
    }
    work.arrivals.push_back(a);
  }
  auto keys = std::make_shared<std::vector<std::vector<BlockKey>>>(sent.records.size());
  std::map<SeqId, size_t> index;
  for (size_t i = 0; i < sent.arrived.size(); ++i) index[sent.arrived[i]->seq] = i;
  for (const policy::Event& e : run.log) {
    const auto* f = std::get_if<policy::StepFinished>(&e);
    if (f == nullptr) continue;
    for (const policy::RowResult& r : f->results) {
      auto it = index.find(r.seq);
      if (it == index.end()) continue;
      std::vector<BlockKey>& k = (*keys)[it->second];
      k.insert(k.end(), r.new_keys.begin(), r.new_keys.end());
    }
  }
  auto rounds = std::make_shared<std::vector<std::vector<int64_t>>>(decode_rounds(run, index));
  work.step_tokens = [rounds](size_t i, int64_t n) {
    // A request that is stopped and goes on may take more steps than it did: it begins again.
    const std::vector<int64_t>& r = (*rounds)[i];
    return r.empty() ? int64_t{1} : r[static_cast<size_t>(n) % r.size()];
  };
  work.prompt_keys = [arrived = sent.arrived](size_t i) { return arrived[i]->keys; };
  work.output_key = [keys](size_t i, int64_t n) {
    const std::vector<BlockKey>& k = (*keys)[i];
    return static_cast<size_t>(n) < k.size() ? k[static_cast<size_t>(n)] : BlockKey{};
  };
  return work;
}

Latency measured_latency(const RecordedRun& run) {
  std::vector<double> ttft, tpot;
  for (const RequestRecord* r : sent_of(run).records) {
    ttft.push_back(static_cast<double>(r->times.first_token_ns - r->arrival_ns) * 1e-6);
    if (r->output_tokens > 1)
      tpot.push_back(static_cast<double>(r->times.finished_ns - r->times.first_token_ns) * 1e-6 /
                     static_cast<double>(r->output_tokens - 1));
  }
  const int64_t n = static_cast<int64_t>(ttft.size());
  return {median(ttft), median(tpot), n, run.result.after.steps - run.result.before.steps};
}

Result<Latency> simulated_latency(const RecordedRun& run, const FittedCosts& costs, bool own_beliefs) {
  sim::EngineSimConfig c;
  c.scheduler = run.scheduler;
  c.scheduler.cost = planning_costs(run);
  c.cost = costs.model;
  c.tokens_per_step = costs.tokens_per_step;
  c.host_ns = costs.host_ns;
  c.record_requests = true;
  sim::EngineWork work = work_of(run);
  if (own_beliefs) work.believed = believed_costs(run);
  DI_ASSIGN(const sim::EngineSimResult r, sim::run_engine(c, work));
  if (!r.broken.empty()) return error(Code::kInvalidData, "the simulated run: {}", r.broken);
  std::vector<double> ttft, tpot;
  for (const sim::EngineRequestTimes& t : r.times) {
    ttft.push_back(static_cast<double>(t.first_token_ns - t.arrived_ns) * 1e-6);
    if (t.output_tokens > 1)
      tpot.push_back(static_cast<double>(t.end_ns - t.first_token_ns) * 1e-6 /
                     static_cast<double>(t.output_tokens - 1));
  }
  return Latency{median(ttft), median(tpot), r.completed, r.steps};
}

Result<std::vector<SimulatedRound>> compare_rounds(const std::vector<RecordedRun>& runs) {
  std::vector<SimulatedRound> out(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) out[i].costs = fit_costs(runs[i]);
  for (size_t i = 0; i < runs.size(); ++i) {
    SimulatedRound& r = out[i];
    DI_ASSIGN(r.plans, sim::replay_log(runs[i].scheduler, runs[i].log));
    r.measured = measured_latency(runs[i]);
    DI_ASSIGN(r.own, simulated_latency(runs[i], r.costs, true));
    DI_ASSIGN(r.other, simulated_latency(runs[i], out[(i + runs.size() - 1) % runs.size()].costs, false));
    FittedCosts start = r.costs;
    start.model = runs[i].scheduler.cost;
    start.host_ns = 0;
    DI_ASSIGN(r.calibrated, simulated_latency(runs[i], start, false));
  }
  return out;
}

nlohmann::ordered_json costs_json(const FittedCosts& costs) {
  const policy::CostModel& m = costs.model;
  // A decode step of n requests is n sequences of one row that runs both halves.
  return {{"prefill",
           {{"a", m.a},
            {"b", m.b},
            {"d", m.d},
            {"e", m.e},
            {"e_decoder", m.e_decoder},
            {"d_decoder", m.d_decoder},
            {"g_decoder", m.g_decoder}}},
          {"decode",
           {{"fixed_ns", m.e + costs.host_ns},
            {"per_row_ns", m.a + m.d + m.e_decoder + m.d_decoder},
            {"per_token_ns", m.b + m.g_decoder}}}};
}

nlohmann::ordered_json to_json(const std::vector<SimulatedRound>& rounds) {
  const Latency measured = median_of(rounds, &SimulatedRound::measured);
  auto line = [&](Latency SimulatedRound::* which) {
    const Latency l = median_of(rounds, which);
    return nlohmann::ordered_json{
        {"ttft_p50_ms", l.ttft_p50_ms},
        {"tpot_p50_ms", l.tpot_p50_ms},
        {"ttft_ratio", measured.ttft_p50_ms > 0 ? l.ttft_p50_ms / measured.ttft_p50_ms : 0},
        {"tpot_ratio", measured.tpot_p50_ms > 0 ? l.tpot_p50_ms / measured.tpot_p50_ms : 0},
        {"requests", l.requests},
        {"steps", l.steps}};
  };
  auto list = nlohmann::ordered_json::array();
  int64_t plans = 0;
  for (const SimulatedRound& r : rounds) {
    plans += r.plans;
    list.push_back({{"measured_ttft_ms", r.measured.ttft_p50_ms},
                    {"measured_tpot_ms", r.measured.tpot_p50_ms},
                    {"ttft_ms", r.own.ttft_p50_ms},
                    {"tpot_ms", r.own.tpot_p50_ms},
                    {"fitted", r.costs.fitted},
                    {"fit_median_error", r.costs.median_error},
                    {"fit_steps", r.costs.steps},
                    {"host_us", r.costs.host_ns * 1e-3},
                    {"submit_us", r.costs.submit_ns * 1e-3},
                    {"tokens_per_step", r.costs.tokens_per_step},
                    {"costs", costs_json(r.costs)}});
  }
  return {{"measured", line(&SimulatedRound::measured)},
          {"simulated", line(&SimulatedRound::own)},
          {"simulated_other_round", line(&SimulatedRound::other)},
          {"simulated_start_up", line(&SimulatedRound::calibrated)},
          {"plans_replayed", plans},
          {"rounds", list}};
}

std::string to_table(const std::vector<SimulatedRound>& rounds) {
  const Latency measured = median_of(rounds, &SimulatedRound::measured);
  std::string out = fmt::format("{:<38}{:>12}{:>8}{:>12}{:>8}{:>10}\n", "medians of rounds", "TTFT p50 ms",
                                "ratio", "TPOT p50 ms", "ratio", "steps");
  out += pair_text("measured", measured, measured);
  out += pair_text("simulated, costs of the same run", median_of(rounds, &SimulatedRound::own), measured);
  out += pair_text("simulated, costs of another round", median_of(rounds, &SimulatedRound::other), measured);
  out += pair_text("simulated, costs measured at start-up", median_of(rounds, &SimulatedRound::calibrated),
                   measured);
  int64_t plans = 0;
  for (const SimulatedRound& r : rounds) plans += r.plans;
  const FittedCosts& c = rounds.back().costs;
  out += fmt::format(
      "{} rounds of {} requests; {} plans of the engine's logs planned again, identically\n"
      "costs of the last round: {}, median error {:.1f} % over {} steps; {:.1f} us between steps, {:.1f} us "
      "until a request is known, {:.2f} tokens per step\n",
      rounds.size(), measured.requests, plans,
      c.fitted ? "fitted" : "not fitted, those of start-up at the run's pace", 100 * c.median_error, c.steps,
      c.host_ns * 1e-3, c.submit_ns * 1e-3, c.tokens_per_step);
  return out;
}

}  // namespace deepinfer
