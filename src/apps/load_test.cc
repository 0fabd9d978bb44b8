// Workloads, driver and report against the engine without a model.
#include <gtest/gtest.h>

#include <set>

#include "apps/load_report.h"
#include "engine/synthetic_engine.h"

namespace deepinfer {
namespace {

LoadSpec spec(LoadKind kind) {
  LoadSpec s;
  s.kind = kind;
  s.shrink = 50;
  s.context_tokens = 3000;
  for (int32_t i = 10; i < 200; ++i) s.ids.push_back(i);
  return s;
}

TEST(LoadWorkload, ShapesShareWhatTheyShouldAndFitTheContext) {
  Workload chat = *make_workload(spec(LoadKind::kChat)), agent = *make_workload(spec(LoadKind::kAgent));
  ASSERT_EQ(chat.sessions.size(), 32u);
  for (const Workload* w : {&chat, &agent}) {
    for (const LoadSession& s : w->sessions) {
      EXPECT_EQ(s.start_ns, 0);
      EXPECT_EQ(s.turns[0].input[0], w->sessions[0].turns[0].input[0]);  // the shared system prompt
      int64_t total = 0;
      for (const LoadTurn& t : s.turns) {
        EXPECT_GE(t.output_tokens, 1);
        total += static_cast<int64_t>(t.input.size()) + t.output_tokens;
      }
      if (s.compact_above_tokens == 0) {
        EXPECT_LE(total, 3000);
      }
    }
  }
  EXPECT_EQ(chat.sessions[0].turns.size(), 8u);
  EXPECT_EQ(agent.sessions[0].compact_above_tokens, 2000);
  LoadSpec many = spec(LoadKind::kDocuments);
  many.sessions = 400;
  many.shrink = 100;
  many.sessions_per_s = 10;
  Workload docs = *make_workload(many);
  std::set<std::vector<int32_t>> distinct;
  for (const LoadSession& s : docs.sessions) distinct.insert(s.turns[0].input);
  EXPECT_NEAR(1 - static_cast<double>(distinct.size()) / 400, 0.22, 0.07);
  EXPECT_NEAR(static_cast<double>(docs.sessions.back().start_ns) / 1e9, 40, 8);
}

TEST(LoadWorkload, ShortChatsStandBehindLongPrompts) {
  LoadSpec o = spec(LoadKind::kBehind);
  o.shrink = 1;
  o.context_tokens = 4000;
  Workload w = *make_workload(o);
  for (size_t i = 0; i < w.sessions.size(); ++i)
    EXPECT_EQ(w.sessions[i].turns[0].input.size(), i % 8 == 0 ? 3000u : 64u) << i;
  EXPECT_EQ(w.name, "behind");
}

TEST(LoadReport, ShortPromptsAreToldApart) {
  LoadResult result;
  for (int i = 0; i < 4; ++i) {
    RequestRecord r;
    r.prompt_tokens = i == 0 ? 3200 : 200;
    r.output_tokens = 2;
    r.times.first_token_ns = (i == 0 ? 90 : i) * 1'000'000;
    r.times.finished_ns = r.times.first_token_ns + 1'000'000;
    result.requests.push_back(r);
  }
  LoadReport r = make_report({}, {}, {}, result);
  EXPECT_EQ(r.short_ttft_ms.count, 3);
  EXPECT_DOUBLE_EQ(r.short_ttft_ms.p50, 2);
  EXPECT_DOUBLE_EQ(r.ttft_ms.most, 90);
}

TEST(LoadWorkload, BadSpecsAreErrors) {
  LoadSpec s = spec(LoadKind::kChat);
  s.shrink = 0.5;
  EXPECT_FALSE(make_workload(s).ok());
  s = spec(LoadKind::kChat);
  s.ids.clear();
  EXPECT_FALSE(make_workload(s).ok());
  s = spec(LoadKind::kUniform);
  s.output_tokens = 0;
  EXPECT_FALSE(make_workload(s).ok());
  auto kind = load_kind("chatt");
  ASSERT_FALSE(kind.ok());
  EXPECT_NE(kind.status().message().find("documents"), std::string::npos);
}

TEST(LoadWorkload, TraceBlocksWithEqualIdsHaveEqualTokens) {
  auto trace = sim::parse_trace(
      "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [1, 2]}\n"
      "{\"timestamp\": 500, \"input_length\": 1200, \"output_length\": 5, \"hash_ids\": [1, 3, 4]}\n"
      "{\"timestamp\": 900, \"input_length\": 90000, \"output_length\": 5, \"hash_ids\": []}\n",
      "test");
  ASSERT_TRUE(trace.ok()) << trace.status().to_string();
  LoadSpec s = spec(LoadKind::kUniform);
  s.shrink = 1;
  int64_t cut = 0;
  Workload w = trace_workload(*trace, s, &cut);
  ASSERT_EQ(w.sessions.size(), 3u);
  EXPECT_EQ(cut, 1);
  const auto &a = w.sessions[0].turns[0].input, &b = w.sessions[1].turns[0].input;
  EXPECT_EQ(a.size(), 1000u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 512, a.end(), b.begin() + 512));
  EXPECT_EQ(w.sessions[1].start_ns, 500'000'000);
  EXPECT_EQ(w.sessions[2].turns[0].input.size() + 5, 3000u);
}

SyntheticOptions fast() {
  SyntheticOptions o;
  o.script = {11, 12, 13};
  o.tokens_per_s = 2000;
  o.context_tokens = 3000;
  o.vocab_size = 200;
  return o;
}

TEST(LoadRun, ClosedLoopRunsEveryTurnWithItsAnswerInTheNextPrompt) {
  SyntheticEngine engine(fast());
  LoadSpec s = spec(LoadKind::kChat);
  s.sessions = 6;
  Workload w = *make_workload(s);
  DriveOptions o;
  o.concurrency = 2;
  int64_t told = 0;
  o.progress = [&](int64_t done, int64_t of) {
    told = done;
    return of == 48;
  };
  auto r = run_load(&engine, w, o);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(told, 48);
  ASSERT_EQ(r->requests.size(), 48u);
  std::vector<int64_t> grown(6, 0);
  for (const RequestRecord& q : r->requests) {
    EXPECT_TRUE(q.well()) << q.message;
    const LoadTurn& turn = w.sessions[static_cast<size_t>(q.session)].turns[static_cast<size_t>(q.turn)];
    int64_t& have = grown[static_cast<size_t>(q.session)];
    EXPECT_EQ(q.prompt_tokens, have + static_cast<int64_t>(turn.input.size()));
    EXPECT_EQ(q.output_tokens, turn.output_tokens);
    have = q.prompt_tokens + q.output_tokens;
  }
  LoadReport report = make_report(w, o, {}, *r);
  EXPECT_EQ(report.requests, 48);
  EXPECT_EQ(report.failed, 0);
  EXPECT_GT(report.tokens_per_s, 0);
  EXPECT_GT(report.e2e_ms.p99, report.e2e_ms.p50 * 0.999);
  auto j = to_json(report);
  for (const char* key : {"ttft_ms", "tpot_ms", "e2e_ms"}) {
    for (const char* q : {"p50", "p95", "p99"}) EXPECT_TRUE(j[key].contains(q)) << key;
  }
  for (const char* key :
       {"tokens_per_s", "goodput_rps", "hit_tokens", "prompt_tokens", "scheduler_share", "overlap_share"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_NE(to_table(report).find("closed loop of 2"), std::string::npos);
  std::string head = csv_head(), line = csv_line(report, "p");
  EXPECT_EQ(std::count(head.begin(), head.end(), ','), std::count(line.begin(), line.end(), ','));
}

TEST(LoadRun, OpenLoopCountsWaitingFromTheWantedArrival) {
  SyntheticOptions slow = fast();
  slow.max_running = 1;
  slow.tokens_per_s = 500;
  SyntheticEngine engine(slow);
  LoadSpec s = spec(LoadKind::kUniform);
  s.sessions = 10;
  s.shrink = 1;
  s.input_tokens = 20;
  s.output_tokens = 10;
  s.sessions_per_s = 1000;
  DriveOptions o;
  auto r = run_load(&engine, *make_workload(s), o);
  ASSERT_TRUE(r.ok());
  LoadReport report = make_report(*make_workload(s), o, {}, *r);
  EXPECT_TRUE(report.open_loop);
  // One at a time, twenty milliseconds each: the last one waited for the nine before it.
  EXPECT_GT(report.e2e_ms.most, 150);
  EXPECT_GT(report.ttft_ms.most, 130);
}

TEST(LoadRun, StopsWhenAskedAndReportsRefusals) {
  SyntheticEngine engine(fast());
  LoadSpec s = spec(LoadKind::kChat);
  DriveOptions o;
  o.concurrency = 4;
  o.progress = [](int64_t done, int64_t) { return done < 5; };
  auto r = run_load(&engine, *make_workload(s), o);
  ASSERT_TRUE(r.ok());
  EXPECT_TRUE(r->stopped);
  EXPECT_LT(r->requests.size(), 20u);
  LoadSpec big = spec(LoadKind::kUniform);
  big.shrink = 1;
  big.context_tokens = 100000;
  big.input_tokens = 5000;
  o.progress = nullptr;
  auto refused = run_load(&engine, *make_workload(big), o);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
}

TEST(LoadReport, QuantilesInterpolate) {
  Quantiles q = quantiles({4, 1, 3, 2, 5});
  EXPECT_EQ(q.p50, 3);
  EXPECT_NEAR(q.p95, 4.8, 1e-12);
  EXPECT_EQ(q.most, 5);
  EXPECT_EQ(quantiles({}).count, 0);
}

TEST(LoadReport, TauNeedsAFixedNumberOfDrafts) {
  LoadReport r;
  r.output_tokens = 300;
  r.accepted = 200;  // a step of a request said three tokens
  r.tpot_ms.p50 = 10;
  r.tokens_per_s = 600;
  EXPECT_EQ(tau_rates(r, -1, 0.75).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(tau_rates(r, 3, 1.5).status().code(), Code::kInvalidArgument);
  auto t = tau_rates(r, 3, 0.75);
  ASSERT_TRUE(t.ok());
  EXPECT_DOUBLE_EQ(t->tau, 3.25);  // the published example: 1 + 3 * 0.75
  EXPECT_DOUBLE_EQ(t->measured_tau, 3);
  EXPECT_DOUBLE_EQ(t->user_steps_per_s, 100.0 / 3);
  EXPECT_DOUBLE_EQ(t->user_tokens_per_s, 100.0 / 3 * 3.25);
  EXPECT_DOUBLE_EQ(t->tokens_per_s, 650);
}

}  // namespace
}  // namespace deepinfer
