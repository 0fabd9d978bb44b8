// What happens to requests while the fleet changes under them: drains with forwarding, failed GPUs and links,
// the autoscaler carried out, clients that leave, a store that is full (serving specification 10.5 to 10.7,
// 14.2, 14.5).
#include <gtest/gtest.h>

#include "fleet_fixture.h"

namespace deepinfer::sim {
namespace {

// Long enough for what changes, with instances that come and go within seconds.
FleetConfig fleet_of(uint64_t seed = 1) {
  FleetConfig c = small_fleet(seed);
  c.warmup_s = 1;
  c.measure_s = 12;
  c.decode_groups = 3;
  c.start_s = c.drain_grace_s = 2;
  return c;
}

constexpr auto kDecode = policy::EngineRole::kDecode;
constexpr auto kPrefill = policy::EngineRole::kPrefill;

TEST(Drain, ADecodeGroupLeavesWithoutAnErrorALossOrADouble) {
  FleetConfig c = fleet_of();
  c.drains = {{kDecode, 0, 4, -1}};
  const FleetResult r = run(c, work(120));
  ASSERT_EQ(r.broken, "");  // every token delivered once is one of the invariants
  EXPECT_EQ(r.drained, 1);
  EXPECT_GT(r.forwarded, 0);
  EXPECT_EQ(r.refused, 0);
  EXPECT_EQ(r.failed_over, 0);
  // 127 rows of an open block and what a hit leaves out are run again, and nothing else.
  EXPECT_LE(r.most_moved_rows, 127 + c.cache.replay.cap_tokens());
  EXPECT_GT(r.longest_gap_s, 0);
  EXPECT_LT(r.longest_gap_s, c.drain_grace_s);
  // A group less at about 6 of 12 seconds: it is not paid for after it has gone.
  EXPECT_LT(r.gpus, 3 * 8 + 4 * 4 - 2);
  // With a grace longer than any answer nothing is handed on.
  c.drain_grace_s = 60;
  const FleetResult patient = run(c, work(120));
  ASSERT_EQ(patient.broken, "");
  EXPECT_EQ(patient.drained, 1);
  EXPECT_EQ(patient.forwarded, 0);
}

TEST(Drain, RollingThroughEveryInstance) {
  FleetConfig c = fleet_of(2);
  c.measure_s = 40;
  for (int g = 0; g < c.decode_groups; ++g) c.drains.push_back({kDecode, g, 2.0 + 10 * g, 2});
  for (int e = 0; e < c.prefill_engines; ++e) c.drains.push_back({kPrefill, e, 4.0 + 6 * e, 1});
  const FleetResult r = run(c, work(100)), again = run(c, work(100));
  ASSERT_EQ(r.broken, "");
  EXPECT_EQ(r.drained, 7);
  EXPECT_EQ(r.started, 7);
  EXPECT_EQ(r.refused, 0);
  EXPECT_NEAR(static_cast<double>(r.completed), 4000, 300);
  EXPECT_EQ(r.gpus, 3 * 8 + 4 * 4);  // they were there all the time
  EXPECT_EQ(r.log_hash, again.log_hash);
}

TEST(Failure, AGroupGoesOnWithTheGpusThatAreLeft) {
  FleetConfig c = fleet_of(3);
  c.decode_groups = 1;
  c.measure_s = 20;
  // 56 places for 384 experts on each of 8 ranks: seven are enough, six are not.
  c.failures = {{FailureEvent::What::kDecodeGpu, 0, 3, 0}};
  const FleetResult one = run(c, work(60));
  ASSERT_EQ(one.broken, "");
  EXPECT_EQ(one.started, 1);
  EXPECT_GT(one.failed_over, 0);
  EXPECT_GT(one.completed, 1000);
  EXPECT_GT(one.longest_gap_s, c.start_s);
  c.failures.push_back({FailureEvent::What::kDecodeGpu, 0, 4, 6});
  const FleetResult two = run(c, work(60));
  ASSERT_EQ(two.broken, "");
  // Down from 3 s, infeasible from 4 s to 10 s, loaded at 12 s.
  EXPECT_EQ(two.started, 1);
  EXPECT_GT(two.longest_gap_s, 8.9);
  EXPECT_LT(two.longest_gap_s, 12);
}

TEST(Failure, ALinkThatIsDownDelaysAndLosesNothing) {
  FleetConfig c = fleet_of(4);
  const FleetResult without = run(c, work(60));
  for (int e = 0; e < c.prefill_engines; ++e) c.failures.push_back({FailureEvent::What::kLink, e, 5, 2.5});
  const FleetResult r = run(c, work(60));
  ASSERT_EQ(r.broken, "");
  EXPECT_EQ(r.arrived, without.arrived);
  EXPECT_EQ(r.failed_over, 0);
  EXPECT_LT(without.ttft_ns.quantile(0.99), 1e9);
  EXPECT_GT(r.ttft_ns.quantile(0.99), 2e9);
  EXPECT_LT(r.ttft_ns.quantile(1), 4.5e9);
}

TEST(Autoscale, ThePoolsFollowTheLoadAndComeBack) {
  FleetConfig c = fleet_of(5);
  c.prefill_engines = 8;
  c.decode_groups = 2;
  c.warmup_s = 0;
  c.measure_s = 120;
  c.autoscale = {true, 2, 2, 3, 10};
  c.start_s = 3;
  c.ttft_slo_s = 1;
  // A trace: a quiet minute, twenty busy seconds, quiet again.
  std::string csv = "timestamp,input_length,output_length\n";
  for (int ms = 0; ms < 115'000; ms += ms > 20'000 && ms < 45'000 ? 25 : 400)
    csv += fmt::format("{},24000,20\n", ms);
  const Trace trace = parse_trace(csv, "t").value();
  auto go = [&] { return run(c, trace); };
  const FleetResult scaled = go();
  ASSERT_EQ(scaled.broken, "");
  EXPECT_GT(scaled.scaled_up, 1);
  EXPECT_GT(scaled.scaled_down, 1);
  EXPECT_EQ(scaled.started, scaled.scaled_up);
  EXPECT_EQ(scaled.refused, 0);
  c.autoscale.on = false;
  const FleetResult whole = go();
  ASSERT_EQ(whole.broken, "");
  EXPECT_EQ(whole.gpus, 8 * 4 + 2 * 8);
  EXPECT_LT(scaled.gpus, 0.8 * whole.gpus);
  c.autoscale.on = true;
  EXPECT_EQ(go().log_hash, scaled.log_hash);
}

TEST(Cancel, ClientsThatLeaveLeaveNothingBehind) {
  FleetConfig c = fleet_of(6);
  c.cancel_share = 0.4;
  c.cancel_after_s = 0.5;
  const FleetResult r = run(c, work(120));
  ASSERT_EQ(r.broken, "");
  EXPECT_GT(r.cancelled, 0.15 * static_cast<double>(r.arrived));
  EXPECT_LT(r.cancelled, 0.4 * static_cast<double>(r.arrived) + 1);
  EXPECT_NEAR(static_cast<double>(r.completed + r.cancelled), static_cast<double>(r.arrived),
              0.1 * static_cast<double>(r.arrived));
}

TEST(Changes, InvariantsHoldWhateverComesTogether) {
  Random random(7);
  int64_t drained = 0, forwarded = 0, cancelled = 0, moved = 0, started = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    FleetConfig c = fleet_of(i + 1);
    c.measure_s = 6;
    c.prefill_engines = static_cast<int>(random.in(1, 4));
    c.prefill_ranks = static_cast<int>(random.in(1, 3));
    c.decode_groups = static_cast<int>(random.in(1, 3));
    c.decode_ranks = static_cast<int>(random.in(2, 8));
    c.decode_tokens_per_rank = random.in(200'000, 4'000'000);
    c.prefill_balancer.rule = static_cast<policy::PrefillRule>(i % 4);
    c.decode_balancer.rule = static_cast<policy::DecodeRule>(i / 4 % 4);
    c.drain_grace_s = 0.25 * static_cast<double>(random.in(0, 8));
    c.start_s = 0.25 * static_cast<double>(random.in(0, 6));
    c.cancel_share = random.unit() < 0.5 ? 0.3 : 0;
    c.cancel_after_s = 0.4;
    if (random.unit() < 0.3) c.autoscale = {true, 1, 1, 0.5, 1};
    const int n = static_cast<int>(random.in(0, 8));
    for (int k = 0; k < n; ++k) {
      const double at = 0.25 * static_cast<double>(random.in(0, 28));
      const double back = 0.25 * static_cast<double>(random.in(1, 8));
      const int engine = static_cast<int>(random.in(0, c.prefill_engines - 1)),
                group = static_cast<int>(random.in(0, c.decode_groups - 1));
      switch (random.in(0, 5)) {
        case 0:
          c.drains.push_back({kDecode, group, at, back});
          break;
        case 1:
          c.drains.push_back({kPrefill, engine, at, back});
          break;
        case 2:
          c.failures.push_back({FailureEvent::What::kDecodeGpu, group, at, back});
          break;
        case 3:
          c.failures.push_back({FailureEvent::What::kLink, engine, at, back});
          break;
        case 4:
          c.failures.push_back({FailureEvent::What::kPrefillEngine, engine, at, back});
          break;
        default:
          c.failures.push_back({FailureEvent::What::kDecodeGroup, group, at, back});
      }
    }
    ASSERT_TRUE(validate(c).ok()) << validate(c).to_string();
    const FleetResult r = run(c, work(static_cast<double>(random.in(5, 80))));
    ASSERT_EQ(r.broken, "") << "run " << i;
    drained += r.drained;
    forwarded += r.forwarded;
    cancelled += r.cancelled;
    moved += r.failed_over;
    started += r.started;
  }
  EXPECT_GT(drained, 20);
  EXPECT_GT(forwarded, 20);
  EXPECT_GT(cancelled, 20);
  EXPECT_GT(moved, 20);
  EXPECT_GT(started, 20);
}

TEST(StoreCapacity, LessRoomHitsLessAndEnoughHitsAll) {
  WorkloadConfig w = work(60);
  const FleetResult all = run(fleet_of(8), w);
  double last = 0;
  for (double bytes : {2e9, 2e10, 2e11, 1e18}) {
    w.capacity_bytes = bytes;
    const FleetResult r = run(fleet_of(8), w);
    ASSERT_EQ(r.broken, "");
    const double hit = static_cast<double>(r.hit_tokens) / static_cast<double>(r.input_tokens);
    EXPECT_GT(hit, last) << bytes;
    last = hit;
    if (bytes == 1e18) {
      EXPECT_EQ(r.hit_tokens, all.hit_tokens);
    }
  }
}

// What is kept under a capacity is what a store of whole contexts that gives up the oldest would keep.
TEST(StoreCapacity, TheTimeKeptIsThatOfALeastRecentlyUsedStore) {
  WorkloadConfig w;
  w.mix = {chat_mix()};
  w.requests_per_s = 50;
  w.sessions = 400;
  w.capacity_bytes = 50e9;
  const Workload generated(w, 1, 0);
  ASSERT_LT(generated.kept_s(), w.ttl_s);
  // Sessions as they come: each holds its last context until its next turn; the sum of what was used within
  // kept_s is measured at many moments.
  Random random(3);
  const SessionShape g = w.mix[0].shape;
  const double session_rate = w.requests_per_s / g.turns;
  struct Held {
    double from, upto, bytes;
  };
  std::vector<Held> held;
  for (double at = 0; at < 40000;) {
    at += random.exponential(1 / session_rate);
    double now = at;
    int64_t context = g.system_tokens;
    for (int turn = 0; turn < g.turns; ++turn) {
      context += (turn == 0 ? random.in(g.first_low, g.first_high) : random.in(g.input_low, g.input_high)) +
                 random.in(g.answer_low, g.answer_high);
      const double gap =
          turn + 1 < g.turns ? random.log_normal(std::log(w.mix[0].gap_median_s), w.mix[0].gap_sigma) : 1e18;
      held.push_back({now, now + std::min(gap, generated.kept_s()),
                      static_cast<double>(context - g.system_tokens) * w.kv_bytes_per_token});
      now += gap;
      if (now > 1e17) break;
    }
  }
  double sum = 0;
  constexpr int kMoments = 200;
  for (int i = 0; i < kMoments; ++i) {
    const double at = 30000 + 50.0 * i;
    for (const Held& h : held) sum += h.from <= at && at < h.upto ? h.bytes : 0;
  }
  EXPECT_NEAR(sum / kMoments, w.capacity_bytes, 0.1 * w.capacity_bytes);
}

TEST(StoreCapacity, ATraceEvictsWhatWasUsedLongestAgo) {
  // Prompts of two blocks: 1 2, 3 4, 1 2, 5 6, 1 2, 3 4 in a store of four blocks: the last is a miss.
  std::string csv = "timestamp,input_length,output_length,hash_ids\n";
  const char* ids[] = {"1 2", "3 4", "1 2", "5 6", "1 2", "3 4"};
  for (int i = 0; i < 6; ++i) csv += fmt::format("{},1024,2,{}\n", 100 * i, ids[i]);
  const Trace trace = parse_trace(csv, "t").value();
  for (int64_t blocks : {int64_t{0}, int64_t{4}}) {
    FleetConfig c = fleet_of(9);
    c.warmup_s = 0;
    Workload w(&trace, 3600, 3600, 1, blocks);
    const FleetResult r = run_fleet(c, &w);
    ASSERT_EQ(r.broken, "");
    EXPECT_EQ(r.perfect_tokens, blocks == 0 ? 3 * 1024 : 2 * 1024);
    EXPECT_EQ(w.evicted_blocks(), blocks == 0 ? 0 : 4);
  }
}

}  // namespace
}  // namespace deepinfer::sim
