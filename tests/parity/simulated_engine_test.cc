// The simulator's engine and the serving engine decide alike: the log of a live run is planned again by a
// fresh scheduler, and the same work, one request at a time, takes the simulator the same steps, hits and
// rows. The figures of `deepinfer bench simulated` follow from such a log.
#include "apps/bench_simulated.h"
#include "apps/load_run.h"
#include "serving_fixture.h"

namespace deepinfer::parity {
namespace {

EngineConfig config_of(std::vector<policy::Event>* log) {
  EngineConfig c = test_config(200);
  c.snapshot_slots = 16;
  c.max_running = 8;
  c.drafts = 0;
  c.interactive_budget_ns = c.batch_budget_ns = 60'000'000'000;  // chunks that no measured cost can move
  c.weights_digest = "t0";
  c.on_policy_event = [log](const policy::Event& e) { log->push_back(e); };
  return c;
}

// Sessions whose turns share a beginning and go on from their answers.
Workload sessions(int64_t count, int64_t turns) {
  LoadSpec s;
  s.kind = LoadKind::kChat;
  s.sessions = count;
  s.shrink = 8;
  s.context_tokens = 1000;
  for (int32_t id = 10; id < 60; ++id) s.ids.push_back(id);
  Workload w = make_workload(s).value();
  for (LoadSession& session : w.sessions)
    session.turns.resize(std::min(session.turns.size(), static_cast<size_t>(turns)));
  return w;
}

// Guesses that come true in part: what the same work was answered before, two of three tokens of it.
struct Guesses {
  std::vector<std::vector<int32_t>> answered;
  bool learn = true;
  void operator()(const std::vector<int32_t>& known, std::vector<int32_t>* guesses) {
    if (learn) return answered.push_back(known);
    for (const std::vector<int32_t>& a : answered) {
      if (a.size() < known.size() + guesses->size() || !std::equal(known.begin(), known.end(), a.begin()))
        continue;
      for (size_t i = 0; i < guesses->size(); ++i)
        (*guesses)[i] = (known.size() + i) % 3 == 0 ? 5 : a[known.size() + i];
      return;
    }
  }
};

RecordedRun record(const Workload& work, int64_t concurrency, int64_t rate_ns = 0,
                   Guesses* guesses = nullptr) {
  RecordedRun run;
  EngineConfig c = config_of(&run.log);
  if (guesses != nullptr) {
    c.drafts = 3;
    c.max_in_flight = 1;  // ahead of a step with drafts, what can be planned depends on when it ends
    c.speculation.mode = policy::SpeculationMode::kFixed;
    c.speculation.fixed = 3;
    c.guesses = [guesses](const std::vector<int32_t>& known, std::vector<int32_t>* g) {
      (*guesses)(known, g);
    };
  }
  Server s("t0", c);
  run.scheduler = s.engine->scheduler();
  run.concurrency = concurrency;
  Workload timed = work;
  for (size_t i = 0; i < timed.sessions.size(); ++i)
    timed.sessions[i].start_ns = rate_ns * static_cast<int64_t>(i);
  DriveOptions drive;
  drive.concurrency = concurrency;
  run.result = run_load(s.engine.get(), timed, drive).value();
  s.engine.reset();
  return run;
}

TEST(SimulatedEngine, AloneItTakesTheSameStepsAndHits) {
  const RecordedRun run = record(sessions(3, 3), 1);
  int64_t cached = 0, rows = 0, launched = 0;
  for (const RequestRecord& r : run.result.requests) {
    ASSERT_TRUE(r.well()) << r.message;
    cached += r.cached_tokens;
  }
  ASSERT_GT(cached, 0);
  for (const policy::Event& e : run.log) {
    const auto* plan = std::get_if<policy::PlanAdopted>(&e);
    if (plan == nullptr || !plan->plan.launches()) continue;
    ++launched;
    for (const policy::RowRun& r : plan->plan.runs) rows += r.rows;
  }
  sim::EngineSimConfig c;
  c.scheduler = run.scheduler;
  c.scheduler.cost = fit_costs(run).model;
  auto r = sim::run_engine(c, work_of(run));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_EQ(r->broken, "");
  EXPECT_EQ(r->completed, static_cast<int64_t>(run.result.requests.size()));
  EXPECT_EQ(r->hit_tokens, cached);
  EXPECT_EQ(r->steps, launched);
  EXPECT_EQ(r->output_tokens, run.result.after.output_tokens);
  EXPECT_EQ(rows, r->input_tokens - r->hit_tokens + r->output_tokens - r->completed);
}

// With drafts, and what was accepted of them as the recording says: the same steps, request by request.
TEST(SimulatedEngine, WithDraftsItTakesTheSameStepsForTheSameTokens) {
  Guesses guesses;
  record(sessions(3, 3), 1, 0, &guesses);
  guesses.learn = false;
  const RecordedRun run = record(sessions(3, 3), 1, 0, &guesses);
  int64_t launched = 0, drafted = 0, several = 0, cached = 0;
  for (const RequestRecord& r : run.result.requests) {
    ASSERT_TRUE(r.well()) << r.message;
    cached += r.cached_tokens;
  }
  for (const policy::Event& e : run.log) {
    if (const auto* f = std::get_if<policy::StepFinished>(&e)) {
      for (const policy::RowResult& r : f->results) several += r.new_tokens > 1;
    }
    const auto* plan = std::get_if<policy::PlanAdopted>(&e);
    if (plan == nullptr || !plan->plan.launches()) continue;
    ++launched;
    for (const policy::RowRun& r : plan->plan.runs) drafted += !r.prefill && r.drafts > 0;
  }
  ASSERT_GT(drafted, 0);
  ASSERT_GT(several, 0);
  const FittedCosts costs = fit_costs(run);
  ASSERT_GT(costs.tokens_per_step, 1);
  sim::EngineSimConfig c;
  c.scheduler = run.scheduler;
  c.cost = costs.model;
  auto r = sim::run_engine(c, work_of(run));
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_EQ(r->broken, "");
  EXPECT_EQ(r->completed, static_cast<int64_t>(run.result.requests.size()));
  EXPECT_EQ(r->hit_tokens, cached);
  EXPECT_EQ(r->steps, launched);
  EXPECT_EQ(r->output_tokens, run.result.after.output_tokens);
}

TEST(SimulatedEngine, LogsOfLiveRunsArePlannedAgain) {
  for (int64_t concurrency : {0, 1, 5}) {
    const RecordedRun run = record(sessions(8, 2), concurrency, 3'000'000);
    auto plans = sim::replay_log(run.scheduler, run.log);
    ASSERT_TRUE(plans.ok()) << plans.status().to_string();
    EXPECT_GE(*plans, run.result.after.steps);
  }
}

// What a log holds, so that a replay of it says something.
struct Seen {
  int64_t plans = 0, hits = 0, restored = 0, preempted = 0, resumed = 0, cancelled = 0, drafted = 0,
          accepted = 0, ended = 0, evicted = 0, costs = 0, ahead = 0;
};
Seen seen_in(const std::vector<policy::Event>& log) {
  Seen n;
  int64_t flying = 0;
  for (const policy::Event& e : log) {
    n.cancelled += std::holds_alternative<policy::Cancelled>(e);
    n.costs += std::holds_alternative<policy::CostAdopted>(e);
    if (const auto* f = std::get_if<policy::StepFinished>(&e)) {
      --flying;
      for (const policy::RowResult& r : f->results) n.accepted += r.new_tokens > 1;
    }
    const auto* adopted = std::get_if<policy::PlanAdopted>(&e);
    if (adopted == nullptr) continue;
    const policy::StepPlan& p = adopted->plan;
    ++n.plans;
    n.ahead += p.launches() && flying > 0;
    flying += p.launches();
    n.preempted += static_cast<int64_t>(p.preempt.size());
    n.ended += static_cast<int64_t>(p.end.size());
    n.evicted += static_cast<int64_t>(p.evict.size());
    for (const policy::Admission& a : p.admit) {
      n.hits += a.hit.start_tokens > 0;
      n.restored += a.restore != policy::kNoSnapshot;
      n.resumed += a.resumed;
    }
    for (const policy::RowRun& r : p.runs) n.drafted += !r.prefill && r.drafts > 0;
  }
  return n;
}

// A pool that is too small, shared beginnings, drafts, clients that leave, deadlines that pass.
RecordedRun busy_run() {
  RecordedRun run;
  EngineConfig c = config_of(&run.log);
  c.pool_blocks = 48;
  c.drafts = 5;
  c.speculation.mode = policy::SpeculationMode::kFixed;
  c.speculation.fixed = 3;
  c.calibrate_ns = 0;
  c.cost = {0, 0, 100'000, 0, 0, 0, 0};
  c.interactive_budget_ns = c.batch_budget_ns = 20'000'000;
  Server s("t0", c);
  run.scheduler = s.engine->scheduler();
  run.result.begin_ns = s.engine->now_ns();
  const int64_t vocab = s.w.config.vocab_size;
  for (int round = 0; round < 2; ++round) {
    std::vector<RequestId> ids;
    for (int i = 0; i < 10; ++i) {
      EngineRequest r = request(prompt(200, static_cast<int>(vocab), 1), 90 + 7 * i, i % 2 == 0 ? 0.0 : 0.9,
                                static_cast<uint64_t>(i));
      for (int32_t& id : std::span(r.prompt).subspan(140)) id = static_cast<int32_t>((id + i) % vocab);
      r.priority = i % 3;
      if (i == 9) r.deadline_ns = s.engine->now_ns() + 1'000'000;
      ids.push_back(s.submit(std::move(r)));
    }
    for (int i = 0; i < 5; ++i) s.poll(20'000'000);
    for (int i : {0, 3, 7}) s.engine->cancel(ids[static_cast<size_t>(i)]);
    EXPECT_TRUE(s.finish_all());
  }
  s.engine.reset();
  return run;
}

TEST(SimulatedEngine, EveryKindOfDecisionIsPlannedAgain) {
  const RecordedRun run = busy_run();
  const Seen n = seen_in(run.log);
  EXPECT_GT(n.hits, 5);
  EXPECT_GT(n.restored, 0);
  EXPECT_GT(n.preempted, 0);
  EXPECT_GT(n.resumed, 0);
  EXPECT_GT(n.cancelled, 3);
  EXPECT_GT(n.drafted, 100);
  EXPECT_GT(n.ended, 0);  // deadlines
  EXPECT_GT(n.evicted, 0);
  EXPECT_GT(n.ahead, 20);
  const auto plans = sim::replay_log(run.scheduler, run.log);
  ASSERT_TRUE(plans.ok()) << plans.status().to_string();
  EXPECT_EQ(*plans, n.plans);
}

TEST(SimulatedEngine, RecordedRunsReadBackAndChangedOnesAreNoticed) {
  const std::string text = write_runs({busy_run(), record(sessions(4, 2), 2)}).value();
  const auto runs = read_runs(text);
  ASSERT_TRUE(runs.ok()) << runs.status().to_string();
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ(write_runs(*runs).value(), text);
  EXPECT_EQ((*runs)[1].result.requests.size(), 8u);
  EXPECT_TRUE(compare_rounds({(*runs)[1]}).ok());
  // A block more or less changes what is planned.
  std::string changed = text;
  const std::string field = "\"pool_blocks\":48,";
  changed.replace(changed.find(field), field.size(), "\"pool_blocks\":52,");
  EXPECT_EQ(read_runs(changed).status().code(), Code::kInvalidData);
  for (const char* bad : {"", "{}\n", "not json\n", "{\"event\":\"tick\"}\n", "{\"run\":{},\"cost\":{}}\n"})
    EXPECT_EQ(read_runs(bad).status().code(), Code::kInvalidData) << bad;
  // Cut anywhere, or a character changed, it is refused or still a log that replays; it never crashes.
  int refused = 0;
  for (size_t at = 1; at < std::min<size_t>(text.size(), 60'000); at += 499) {
    std::string other = text.substr(0, at + 2000);
    other[at] = other[at] == '1' ? '7' : '1';
    refused += !read_runs(other).ok();
    refused += !read_runs(std::string_view(text).substr(0, at)).ok();
  }
  EXPECT_GT(refused, 100);
}

TEST(SimulatedEngine, RoundsAreComparedWithoutLosingRequests) {
  const Workload work = sessions(6, 2);
  const auto rounds = compare_rounds({record(work, 3), record(work, 3)});
  ASSERT_TRUE(rounds.ok()) << rounds.status().to_string();
  for (const SimulatedRound& r : *rounds) {
    EXPECT_EQ(r.measured.requests, 12);
    for (const Latency& l : {r.own, r.other, r.calibrated}) {
      EXPECT_EQ(l.requests, 12);
      EXPECT_GT(l.ttft_p50_ms, 0);
      EXPECT_GT(l.tpot_p50_ms, 0);
    }
    EXPECT_GT(r.costs.steps, 20);
    EXPECT_NEAR(r.costs.tokens_per_step, 1, 1e-9);  // no drafts
    EXPECT_GT(r.plans, 20);
  }
  const auto j = to_json(*rounds);
  EXPECT_GT(j["simulated"]["ttft_ratio"].get<double>(), 0);
  EXPECT_NE(to_table(*rounds).find("2 rounds of 12 requests"), std::string::npos);
}

// Steps that cost exactly what a model says are fitted to that model, and the simulated run with it repeats
// their times.
TEST(SimulatedEngine, CostsAreThoseTheStepsShowed) {
  RecordedRun run = record(sessions(6, 2), 3);
  const policy::CostModel truth{2.0, 3.0, 40'000, 900'000, 0, 0, 0};
  std::map<policy::StepId, double> costs;
  for (policy::Event& e : run.log) {
    if (const auto* a = std::get_if<policy::PlanAdopted>(&e)) {
      costs[a->plan.step] = policy::predict_ns(truth, a->plan.sample);
    } else if (auto* f = std::get_if<policy::StepFinished>(&e)) {
      f->measured_ns = costs.at(f->step);
      f->exclude_from_fit = false;
    }
  }
  const FittedCosts fit = fit_costs(run);
  ASSERT_TRUE(fit.fitted);
  EXPECT_LT(fit.median_error, 1e-6);
  policy::CostSample probe;
  policy::add_rows(&probe, 96, 100, 40);
  policy::add_rows(&probe, 1, 300, 1);
  EXPECT_NEAR(policy::predict_ns(fit.model, probe), policy::predict_ns(truth, probe),
              1e-3 * policy::predict_ns(truth, probe));
  const auto j = costs_json(fit);
  const double one = j["decode"]["fixed_ns"].get<double>() - fit.host_ns +
                     j["decode"]["per_row_ns"].get<double>() +
                     300 * j["decode"]["per_token_ns"].get<double>();
  policy::CostSample row;
  policy::add_rows(&row, 1, 300, 1);
  EXPECT_NEAR(one, policy::predict_ns(fit.model, row), 1e-3 * one + 2 * fit.model.g_decoder);
}

}  // namespace
}  // namespace deepinfer::parity
