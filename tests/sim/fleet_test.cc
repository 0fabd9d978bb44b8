// The simulated fleet: invariants in every run, the same bytes for the same seed, and the figures it is
// calibrated against (serving specification 14.4, 14.5).
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fleet_fixture.h"
#include "sim/expert_load.h"
#include "sim/fleet_checkpoint.h"
#include "sim/fleet_report.h"

namespace deepinfer::sim {
namespace {

TEST(Fleet, SameSeedSameBytes) {
  auto bytes = [](uint64_t seed) {
    FleetReport r{"t", small_fleet(seed), 150, run(small_fleet(seed), work(150)), {}};
    return report_json(r).dump() + report_text(r) + report_html(r);
  };
  const std::string once = bytes(1);
  EXPECT_EQ(once, bytes(1));
  EXPECT_NE(once, bytes(2));
  EXPECT_EQ(once.find("src="), std::string::npos);
  EXPECT_EQ(once.find("href="), std::string::npos);
}

TEST(Fleet, InvariantsHoldUnderEveryRuleAndFailure) {
  Random random(11);
  int64_t moved = 0, refused = 0, unreadable = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    FleetConfig c = small_fleet(i + 1);
    c.measure_s = 3;
    c.warmup_s = 1;
    c.prefill_engines = static_cast<int>(random.in(1, 5));
    c.prefill_ranks = static_cast<int>(random.in(1, 4));
    c.decode_groups = static_cast<int>(random.in(1, 3));
    c.decode_ranks = static_cast<int>(random.in(1, 8));
    c.decode_tokens_per_rank = random.in(200'000, 4'000'000);
    c.prefill_balancer.rule = static_cast<policy::PrefillRule>(i % 4);
    c.decode_balancer.rule = static_cast<policy::DecodeRule>(i / 4 % 4);
    c.shared_store = i % 4 == 0 || random.unit() < 0.5;
    c.deadline_s = random.unit() < 0.3 ? 0.4 : 0;
    c.store.nodes = 12;
    if (random.unit() < 0.6) {
      // Everything comes back, so that everything has to end.
      c.failures.push_back({FailureEvent::What::kPrefillEngine, 0, 1.5, 0.7});
      c.failures.push_back({FailureEvent::What::kDecodeGroup, 0, 2.0, 0.5});
      for (int node = 0; node < 3; ++node)
        c.failures.push_back({FailureEvent::What::kStoreNode, node, 2.5, 0.5});
    }
    ASSERT_TRUE(validate(c).ok());
    const FleetResult r = run(c, work(static_cast<double>(random.in(5, 120))));
    ASSERT_EQ(r.broken, "") << "run " << i;
    EXPECT_GE(r.perfect_tokens, r.hit_tokens);
    moved += r.failed_over;
    refused += r.refused;
    unreadable += r.unreadable_hits;
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(unreadable, 0);  // three of twelve nodes down: a prefix that cannot be read is an absent one
}

TEST(Fleet, AgreesWithLittleAndWithItsCosts) {
  FleetConfig c = small_fleet(3);
  c.warmup_s = 5;
  c.measure_s = 25;
  const FleetResult r = run(c, work(120));
  ASSERT_EQ(r.broken, "");
  EXPECT_EQ(r.refused, 0);
  const double rate = static_cast<double>(r.completed) / r.measured_s;
  EXPECT_NEAR(rate, 120, 6);
  const double active = r.mean_requests * c.decode_groups * c.decode_ranks;
  const double decode_s = r.e2e_ns.mean() * 1e-9 - r.ttft_ns.mean() * 1e-9;
  EXPECT_NEAR(active, rate * decode_s, 0.05 * active);
  // A token costs a step over what a step commits.
  const double rows = r.mean_requests * (1 + r.drafts_per_step);
  const double step_ms =
      1.02 * c.decode.step_ns(rows, r.mean_tokens) * 1e-6 * r.moe_lb / r.step_balance / r.tokens_per_step;
  EXPECT_NEAR(r.tpot_ns.mean() * 1e-6, step_ms, 0.15 * step_ms);
  EXPECT_NEAR(r.eta, r.eta_time * r.eta_step * r.eta_mix, 1e-9);
}

TEST(Fleet, DecodeCostPassesThroughThePublishedPoints) {
  const DecodeCost c;
  EXPECT_NEAR(c.step_ns(16 * 6, 16 * 131072) * 1e-6, 10.763, 0.005);
  EXPECT_NEAR(c.step_ns(60 * 6, 60 * 131072) * 1e-6, 14.377, 0.005);
  EXPECT_NEAR(c.step_ns(96 * 6, 96 * 131072) * 1e-6, 18.781, 0.005);
}

// Published: -1.5, +5.4 and +11.0 % over five drafts; 13,730 tokens a second at 60 requests per rank.
TEST(Fleet, TheBudgetGainsWhatWasPublished) {
  VerifyConfig fixed, budget;
  fixed.mode = policy::SpeculationMode::kFixed;
  const VerifyModel five(fixed, {}), best(budget, {});
  EXPECT_NEAR(five.balanced_per_s(60, 60 * 131072.0), 13'730, 150);
  for (const auto& [requests, gain] : {std::pair{16, -0.015}, {60, 0.054}, {96, 0.110}}) {
    const double tokens = requests * 131072.0;
    EXPECT_NEAR(best.balanced_per_s(requests, tokens) / five.balanced_per_s(requests, tokens) - 1, gain, 0.03)
        << requests;
  }
}

TEST(Fleet, HandOffOf131072Tokens) {
  const FleetConfig c;
  const double bytes = 131072.0 * static_cast<double>(c.kv_bytes_per_token);
  EXPECT_DOUBLE_EQ(bytes, 116'654'080);
  EXPECT_NEAR(bytes / 50e9 * 1e3, 2.333, 0.0005);
  EXPECT_NEAR((bytes + static_cast<double>(c.state_bytes)) / 50e9 * 1e3, 2.39, 0.005);
}

TEST(Fleet, LongerTimeToLiveNeverHitsLess) {
  double last = 0;
  for (double ttl : {60.0, 3600.0, 259200.0}) {
    WorkloadConfig w = work(60);
    w.ttl_s = ttl;
    const FleetResult r = run(small_fleet(5), w);
    const double hit = static_cast<double>(r.hit_tokens) / static_cast<double>(r.input_tokens);
    EXPECT_GT(hit, last);
    last = hit;
  }
}

TEST(Fleet, ShortPromptsPassBehindALongOne) {
  // One engine of one rank: a long document, then short questions, with and without the short rule.
  const char* head = "timestamp,input_length,output_length\n0,400000,2\n";
  std::string csv = head;
  for (int i = 0; i < 30; ++i) csv += fmt::format("{},200,2\n", 200 + 80 * i);
  const Trace trace = parse_trace(csv, "t").value();
  auto p50 = [&](double short_fraction) {
    FleetConfig c = small_fleet(1);
    c.prefill_engines = c.prefill_ranks = c.decode_groups = c.decode_ranks = 1;
    c.warmup_s = 0;
    c.measure_s = 60;
    c.short_fraction = short_fraction;
    c.prefill_noise = 0;
    const FleetResult r = run(c, trace);
    EXPECT_EQ(r.broken, "");
    EXPECT_EQ(r.completed, 31);
    return std::pair{r.ttft_ns.quantile(0.5), r.ttft_ns.quantile(1)};
  };
  const auto with = p50(0.25), without = p50(0);
  EXPECT_LT(2 * with.first, without.first);       // short ones: at least twice as soon
  EXPECT_LT(with.second, 1.11 * without.second);  // the long one: at most 11 % later
}

TEST(Fleet, TraceRunsAreSharedPrefixes) {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": 5120, \"output_length\": 20, \"hash_ids\": "
        "[1,2,3,4,5,6,7,8,9,{}]}}\n",
        100 * i, i < 25 ? 10 : 100 + i);
  }
  const Trace trace = parse_trace(lines, "t").value();
  FleetConfig c = small_fleet(1);
  c.warmup_s = 0;
  const FleetResult r = run(c, trace);
  EXPECT_EQ(r.broken, "");
  EXPECT_EQ(r.arrived, 50);
  EXPECT_EQ(r.perfect_tokens, 24 * 5120 + 25 * 4608);
  EXPECT_GT(r.hit_tokens, 49 * 4000);
}

TEST(Fleet, ADayGoesOnFromItsCheckpoint) {
  DayConfig day;
  day.fleet = small_fleet(4);
  day.fleet.measure_s = 2;
  day.workload = work(80);
  day.windows = 4;
  std::vector<std::string> kept;
  auto keep = [&](const std::vector<FleetResult>& windows) {
    kept.push_back(write_checkpoint(day, windows));
  };
  auto bytes = [&](const DayResult& d) { return report_json({"t", day.fleet, 80, d.total, d}).dump(); };
  const std::string whole = bytes(run_day(day, {}, keep));
  ASSERT_EQ(kept.size(), 4u);
  for (const std::string& at : kept) {
    auto done = read_checkpoint(at, "c", day);
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_EQ(bytes(run_day(day, *done)), whole);
  }
  DayConfig other = day;
  other.fleet.seed = 5;
  EXPECT_NE(read_checkpoint(kept[0], "c", other).status().message().find("another run"), std::string::npos);
  EXPECT_FALSE(read_checkpoint("{}", "c", day).ok());
  EXPECT_FALSE(read_checkpoint(kept[1].substr(0, 300), "c", day).ok());
  std::string damaged = kept[0];
  damaged.replace(damaged.find("\"arrived\":"), 10, "\"arrivee\":");
  EXPECT_FALSE(read_checkpoint(damaged, "c", day).ok());
}

TEST(Fleet, RefusesNonsense) {
  FleetConfig c;
  c.store.nodes = 11;
  EXPECT_NE(validate(c).message().find("store nodes"), std::string::npos);
  c = {};
  c.prefill_engines = 0;
  EXPECT_FALSE(validate(c).ok());
  c = {};
  c.failures.push_back({FailureEvent::What::kDecodeGroup, 1, 1, 0});
  EXPECT_FALSE(validate(c).ok());
}

TEST(StoreModelTest, FirstTenOfElevenAndFailedNodes) {
  StoreConfig c;
  c.nodes = 12;
  StoreModel s(c, 1);
  const int64_t alone = s.read(0, 10 * 40e6, 0);  // 40 MB a shard at 40 GB/s: 1 ms and the latency
  EXPECT_GE(alone, 1'400'000);
  EXPECT_LE(alone, 1'800'000);
  s.set_down(0, true);
  s.set_down(5, true);
  EXPECT_GT(s.read(0, 1e6, 0), 0);
  s.set_down(7, true);
  EXPECT_EQ(s.read(0, 1e6, 0), -1);
  s.set_down(7, false);
  EXPECT_GT(s.read(0, 1e6, 0), 0);
}

TEST(ExpertLoad, PlacementReachesThePublishedBalance) {
  for (const PublishedPlacement& p : published_placements()) {
    const PlacementStudy s = study_placement(p.eplb(), p.load, 100, 1);
    EXPECT_NEAR(s.placed, p.published, 0.012) << p.name;
    EXPECT_GT(s.plain, s.placed) << p.name;
    const PlacementStudy again = study_placement(p.eplb(), p.load, 100, 1);
    EXPECT_EQ(s.per_step, again.per_step);
  }
}

}  // namespace
}  // namespace deepinfer::sim
