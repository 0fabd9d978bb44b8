// The bench's own arithmetic, its rounds over an engine without a model, and the published table.
#include "apps/bench_spec.h"

#include <gtest/gtest.h>

#include "engine/synthetic_engine.h"

namespace deepinfer {
namespace {

TEST(BenchSpec, ModesAreThoseTheModelCanRun) {
  std::vector<std::string> names;
  for (const SpecMode& m : spec_modes(5)) names.push_back(m.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"off", "fixed1", "fixed2", "fixed3", "fixed4", "fixed5", "dynamic"}));
  EXPECT_EQ(spec_modes(0).size(), 1u);
}

TEST(BenchSpec, PairedLossIsAboutRoundsNotMachines) {
  // The machine gets slower and slower; in every round mine is 1 % behind.
  std::vector<double> other{100, 80, 60, 50, 40, 30, 20, 15, 10}, mine;
  for (double v : other) mine.push_back(v * 0.99);
  PairedLoss loss = paired_loss(mine, other);
  EXPECT_NEAR(loss.median_ratio, 0.99, 1e-12);
  EXPECT_NEAR(loss.loss_bound, 0.01, 1e-12);
  mine[0] *= 0.5;  // one bad round does not decide
  EXPECT_NEAR(paired_loss(mine, other).median_ratio, 0.99, 1e-12);
  EXPECT_EQ(paired_loss({}, other).median_ratio, 0);
}

TEST(BenchSpec, DecodeRateBeginsAtTheFirstToken) {
  auto record = [](int64_t tokens, int64_t first_s, int64_t end_s) {
    RequestRecord r;
    r.output_tokens = tokens;
    r.times.first_token_ns = first_s * 1'000'000'000;
    r.times.finished_ns = end_s * 1'000'000'000;
    return r;
  };
  // One token, and none, say nothing about the time after the first.
  EXPECT_EQ(decode_rate({record(1, 1, 9), record(0, 0, 9)}), 0);
  EXPECT_DOUBLE_EQ(decode_rate({record(5, 10, 12), record(1, 1, 9), record(3, 20, 21)}), 2);
}

TEST(BenchSpec, RunsEveryModeInEveryRound) {
  int made = 0, told = 0;
  auto make = [&](const SpecMode&) -> Result<std::unique_ptr<Engine>> {
    ++made;
    SyntheticOptions o;
    o.script = {5, 6};
    o.tokens_per_s = 0;
    o.vocab_size = 100;
    return std::unique_ptr<Engine>(std::make_unique<SyntheticEngine>(o));
  };
  auto work = [](int64_t c) {
    Workload w{"test", {}};
    for (int64_t i = 0; i < c * 3; ++i) w.sessions.push_back({0, {{{1, 2, 3}, 4}}, 0});
    return w;
  };
  SpecOptions o;
  o.concurrency = {1, 2};
  o.rounds = 3;
  o.duels = 5;
  auto points = run_spec(spec_modes(2), o, make, work, {}, [&](const std::string&) { ++told; });
  ASSERT_TRUE(points.ok()) << points.status().to_string();
  EXPECT_EQ(made, 4);
  EXPECT_EQ(told, 2 * (4 * 4 + 5));
  ASSERT_EQ(points->size(), 8u);
  for (const SpecPoint& p : *points) {
    EXPECT_EQ(p.rates.size(), 3u);
    EXPECT_GT(p.median.tokens_per_s, 0);
    EXPECT_EQ(p.best.empty(), p.mode != "dynamic");
    EXPECT_EQ(p.duel_rates.size(), p.mode == "dynamic" ? 5u : 0u);
    EXPECT_EQ(p.best_duel_rates.size(), p.duel_rates.size());
  }
}

TEST(BenchSpec, PublishedTableHasItsDigits) {
  std::string t = published_points_table();
  for (const char* digits :
       {"4889.8", "4914.7", "13729.7", "14630.1", "16817.0", "19489.1", "72", "213", "287", "-1.5%"})
    EXPECT_NE(t.find(digits), std::string::npos) << digits << "\n" << t;
}

}  // namespace
}  // namespace deepinfer
