// Worked numbers and properties of the fleet policies: balancers, admission, drain, failover, autoscaler
// (serving specification 9 and 10; field reports 37 and 38).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "policy/admission.h"
#include "policy/autoscaler.h"
#include "policy/decode_balancer.h"
#include "policy/drain.h"
#include "policy/failover.h"
#include "policy/prefill_balancer.h"
#include "policy/test_random.h"
#include "policy/vision_balancer.h"

namespace deepinfer::policy {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// ---- vision

TEST(VisionGolden, FewestPatchesInFlight) {
  VisionState s;
  s.machines = {{{900, 400}, true}, {{500, 450}, true}};
  const int64_t images[] = {200, 300};
  VisionDecision d = decide_vision(s, images);
  EXPECT_EQ(d.machine, 0);
  ASSERT_EQ(d.places.size(), 2u);
  EXPECT_EQ(d.places[0].image, 1);
  EXPECT_EQ(d.places[0].gpu, 1);
  EXPECT_EQ(d.places[1].gpu, 1);
  apply(&s, VisionAssigned{d});
  EXPECT_EQ(s.machines[0].patches_in_flight, (std::vector<int64_t>{900, 900}));
  for (const VisionPlace& p : d.places) apply(&s, VisionDone{d.machine, p.gpu, p.patches});
  EXPECT_EQ(s.machines[0].patches_in_flight, (std::vector<int64_t>{900, 400}));
  apply(&s, VisionOpened{0, false});
  EXPECT_EQ(decide_vision(s, images).machine, 1);
  apply(&s, VisionOpened{1, false});
  EXPECT_EQ(decide_vision(s, images).machine, -1);
}

// ---- decode

DecodeBalancerState three_ranks() {
  DecodeBalancerState s = make_decode_balancer({}, 1, 3, 0);
  const RankLoad loads[] = {{10, 100'000, 100'000}, {30, 60'000, 140'000}, {12, 80'000, 120'000}};
  for (int r = 0; r < 3; ++r) apply(&s, DecodeReported{0, r, loads[r]});
  return s;
}

TEST(DecodeGolden, WorkedAssignments) {
  struct Case {
    std::vector<int64_t> queue;
    double limit;
    std::vector<int> ranks;
  };
  for (const Case& c : {Case{{20'000}, 91'000, {1}}, Case{{5'000}, 85'750, {2}},
                        Case{{20'000, 5'000, 5'000}, 94'500, {1, 2, 2}}, Case{{60'000}, 105'000, {1}},
                        Case{{200'000}, 154'000, {}}}) {
    DecodeBalancerState s = three_ranks();
    uint64_t id = 0;
    for (int64_t tokens : c.queue) apply(&s, DecodeQueued{0, SeqId{++id}, tokens});
    DecodeDecision d = decide_decode(s, 0);
    EXPECT_DOUBLE_EQ(d.limit_tokens, c.limit);
    std::vector<int> ranks;
    for (const DecodeAssignment& a : d.assigned) ranks.push_back(a.rank);
    EXPECT_EQ(ranks, c.ranks);
    EXPECT_EQ(d.reason, c.ranks.empty() ? DecodeReason::kNoRoom : DecodeReason::kPlaced);
    apply(&s, DecodePlaced{0, d.assigned});
    EXPECT_EQ(broken_invariant(s), "");
  }
}

// 16 ranks, log-normal lengths, lives of 200 to 800 arrivals: mean over time of max/mean.
std::pair<double, double> spread(DecodeRule rule) {
  TestRandom random(9);
  DecodeConfig config;
  config.rule = rule;
  DecodeBalancerState s = make_decode_balancer(config, 1, 16, int64_t{1} << 40);
  struct Live {
    int rank;
    int64_t tokens;
  };
  std::multimap<int64_t, Live> ends;
  double token_sum = 0, count_sum = 0;
  int64_t samples = 0;
  for (int64_t i = 0; i < 40'000; ++i) {
    while (!ends.empty() && ends.begin()->first <= i) {
      apply(&s, DecodeReleased{0, ends.begin()->second.rank, ends.begin()->second.tokens});
      ends.erase(ends.begin());
    }
    const double normal =
        std::sqrt(-2 * std::log(1 - random.unit())) * std::cos(6.283185307179586 * random.unit());
    const int64_t tokens =
        std::clamp<int64_t>(static_cast<int64_t>(std::exp(9.5 + 1.3 * normal)), 200, 400'000);
    apply(&s, DecodeQueued{0, SeqId{static_cast<uint64_t>(i)}, tokens});
    DecodeDecision d = decide_decode(s, 0);
    apply(&s, DecodePlaced{0, d.assigned});
    ends.emplace(i + random.in(200, 800), Live{d.assigned[0].rank, tokens});
    if (i < 2000) continue;
    double most_tokens = 0, most_count = 0, count = 0;
    for (const RankLoad& r : s.groups[0].ranks) {
      most_tokens = std::max(most_tokens, static_cast<double>(r.tokens));
      most_count = std::max(most_count, static_cast<double>(r.requests));
      count += static_cast<double>(r.requests);
    }
    token_sum += most_tokens * 16 / static_cast<double>(s.groups[0].tokens);
    count_sum += most_count * 16 / count;
    ++samples;
  }
  EXPECT_EQ(broken_invariant(s), "");
  return {token_sum / static_cast<double>(samples), count_sum / static_cast<double>(samples)};
}

TEST(DecodeGolden, JointRuleBalancesBoth) {
  auto [tokens_t, tokens_c] = spread(DecodeRule::kTokensOnly);
  EXPECT_NEAR(tokens_t, 1.21, 0.03);
  EXPECT_NEAR(tokens_c, 1.53, 0.05);  // wanders by 0.03 with the draw: nothing holds the counts
  auto [count_t, count_c] = spread(DecodeRule::kCountOnly);
  EXPECT_NEAR(count_t, 1.61, 0.03);
  EXPECT_NEAR(count_c, 1.02, 0.03);
  auto [joint_t, joint_c] = spread(DecodeRule::kJoint);
  EXPECT_NEAR(joint_t, 1.18, 0.03);
  EXPECT_NEAR(joint_c, 1.06, 0.03);
}

TEST(Decode, GroupsQueueAndClose) {
  DecodeBalancerState s = make_decode_balancer({}, 2, 2, 1000);
  EXPECT_EQ(decide_group(s), 0);
  apply(&s, DecodeQueued{0, SeqId{1}, 800});
  EXPECT_EQ(decide_group(s), 1);  // queued tokens count at once
  apply(&s, DecodePlaced{0, decide_decode(s, 0).assigned});
  apply(&s, DecodeGrew{0, 0, 5});
  EXPECT_EQ(s.groups[0].tokens, 805);
  apply(&s, DecodeQueued{0, SeqId{2}, 900});  // 900 + 134 fits no rank
  apply(&s, DecodeQueued{0, SeqId{3}, 10});
  EXPECT_EQ(decide_decode(s, 0).reason, DecodeReason::kNoRoom);
  EXPECT_TRUE(decide_decode(s, 0).assigned.empty());  // first come first served: 3 does not overtake
  apply(&s, DecodeDropped{0, SeqId{2}});
  EXPECT_EQ(decide_decode(s, 0).assigned.size(), 1u);
  apply(&s, DecodeGroupOpened{0, false});
  EXPECT_EQ(decide_decode(s, 0).reason, DecodeReason::kClosed);
  apply(&s, DecodeGroupOpened{1, false});
  EXPECT_EQ(decide_group(s), -1);
  apply(&s, DecodeReleased{0, 0, 805});
  EXPECT_EQ(broken_invariant(s), "");
}

// ---- prefill

TEST(Prefill, PullsWithinQuotaAndOverdrawsByOne) {
  PrefillConfig config;
  config.tiers.quota_ns = 1000;
  PrefillBalancerState s = make_prefill_balancer(config, 2);
  EXPECT_EQ(decide_pull(s, 0, 0).reason, PullReason::kNothingWaits);
  for (uint32_t h = 0; h < 3; ++h) apply(&s, PrefillArrived{SeqId{h}, h, TenantId{1}, 1, 0, 0, 100, 600});
  EXPECT_DOUBLE_EQ(queued_ns(s), 1800);
  for (uint32_t h : {0u, 1u}) {  // only tier 0 waits: it has the whole quota, and may go over it once
    PullDecision d = decide_pull(s, 0, 10);
    ASSERT_EQ(d.reason, PullReason::kPulled);
    EXPECT_EQ(d.handle, h);
    apply(&s, PrefillPulled{0, d.handle});
  }
  EXPECT_EQ(decide_pull(s, 0, 10).reason, PullReason::kQuota);
  EXPECT_EQ(decide_pull(s, 1, 10).reason, PullReason::kPulled);  // no affinity: the other engine takes it
  apply(&s, PrefillEngineReport{1, 3 * kSecond, true});
  EXPECT_EQ(decide_pull(s, 1, 10).reason,
            PullReason::kReadsBusy);  // second choice while engine 0 reads freely
  apply(&s, PrefillEngineReport{0, 3 * kSecond, true});
  EXPECT_EQ(decide_pull(s, 1, 10).reason, PullReason::kPulled);
  apply(&s, PrefillRan{0, 0, 600, true});
  apply(&s, PrefillEngineReport{0, 0, true});
  EXPECT_EQ(decide_pull(s, 0, 10).handle, 2u);
  apply(&s, PrefillCancelled{2});
  EXPECT_EQ(decide_pull(s, 0, 10).reason, PullReason::kNothingWaits);
  EXPECT_DOUBLE_EQ(queued_ns(s), 0);
  apply(&s, PrefillEngineReport{0, 0, false});
  EXPECT_EQ(decide_pull(s, 0, 10).reason, PullReason::kClosed);
}

// Ten hot prefixes on four engines: a queue model with real decisions.
struct PushOutcome {
  double p99 = 0, hit_rate = 0;
};
PushOutcome run_push(PrefillRule rule) {
  TestRandom random(4);
  PrefillConfig config;
  config.rule = rule;
  PrefillBalancerState s = make_prefill_balancer(config, 4);
  std::vector<std::vector<bool>> cached(4, std::vector<bool>(10, false));
  std::vector<double> free_at(4, 0);
  struct Running {
    int engine, tier;
    double work;
  };
  std::multimap<double, Running> ends;
  std::vector<double> waits;
  double now = 0;
  int64_t hits = 0;
  constexpr int kRequests = 20'000;
  for (uint32_t i = 0; i < kRequests; ++i) {
    now += -0.6e6 * std::log(1 - random.unit());
    while (!ends.empty() && ends.begin()->first <= now) {
      const Running r = ends.begin()->second;
      apply(&s, PrefillRan{r.engine, r.tier, r.work, true});
      ends.erase(ends.begin());
    }
    const size_t prefix = random.unit() < 0.5 ? 0 : static_cast<size_t>(random.in(0, 9));  // one is very hot
    std::vector<PushOffer> offers;
    for (size_t e = 0; e < 4; ++e)
      offers.push_back({cached[e][prefix] ? 2e6 : 10e6, cached[e][prefix] ? 8000 : 0});
    const int engine = decide_push(s, offers);
    const PushOffer& offer = offers[static_cast<size_t>(engine)];
    hits += offer.hit_tokens > 0;
    cached[static_cast<size_t>(engine)][prefix] = true;
    apply(&s, PrefillArrived{SeqId{i}, 0, TenantId{1}, 1, 0, static_cast<int64_t>(now), 9000, offer.work_ns});
    apply(&s, PrefillPulled{engine, 0});
    double& free = free_at[static_cast<size_t>(engine)];
    free = std::max(free, now) + offer.work_ns;
    ends.emplace(free, Running{engine, 0, offer.work_ns});
    waits.push_back(free - now);
  }
  std::sort(waits.begin(), waits.end());
  return {waits[kRequests * 99 / 100], static_cast<double>(hits) / kRequests};
}

TEST(Prefill, AffinityIsTradedAgainstLoad) {
  const PushOutcome least = run_push(PrefillRule::kLeastLoad), joint = run_push(PrefillRule::kAffinity);
  const PushOutcome only = run_push(PrefillRule::kAffinityOnly);
  EXPECT_LE(joint.p99, least.p99 * 1.01);
  EXPECT_GT(joint.hit_rate, only.hit_rate - 0.02);
  EXPECT_GT(only.p99, 3 * joint.p99);  // the popular prefix queues on one engine while others idle
}

// ---- admission

TEST(Admission, ChecksInOrderWithReasons) {
  AdmissionState s;
  s.config.context_tokens = 1000;
  s.config.default_limits[static_cast<size_t>(Quota::kRequests)] = {2, 2};
  AdmissionQuery q;
  q.tenant = TenantId{7};
  q.prompt_tokens = 900;
  q.max_new_tokens = 101;
  AdmitDecision d = decide_admit(s, q);
  EXPECT_EQ(d.reason, AdmitReason::kTooLong);
  EXPECT_EQ(d.need, 1001);
  EXPECT_EQ(d.limit, 1000);
  q.max_new_tokens = 100;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kAdmitted);
    apply(&s, Admitted{q});
  }
  d = decide_admit(s, q);
  EXPECT_EQ(d.reason, AdmitReason::kQuota);
  EXPECT_EQ(d.quota, Quota::kRequests);
  EXPECT_EQ(d.retry_after_ns, kSecond / 2);
  q.now_ns = d.retry_after_ns;  // what it promised holds
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kAdmitted);
  q.tenant = TenantId{8};
  q.queued_ns = 62e9;
  q.engines = 2;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kQueueFull);
  q.queued_ns = 2e9;
  q.work_ns = 1e9;
  q.fetch_ns = 0.5e9;
  q.deadline_ns = q.now_ns + 2 * kSecond;
  d = decide_admit(s, q);
  EXPECT_EQ(d.reason, AdmitReason::kDeadline);
  EXPECT_DOUBLE_EQ(d.predicted_ttft_ns, 2.5e9);
  q.deadline_ns += kSecond;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kAdmitted);
  q.decode_wait_ns = 2.1e9;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kNoDecodeRoom);
  q.engines = 0;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kNoEngines);
}

TEST(Admission, LevelsAreGivenBackAndFullBucketsAdmitAnySize) {
  AdmissionState s;
  s.config.default_limits[static_cast<size_t>(Quota::kKvTokens)] = {0, 1000};
  AdmissionQuery q;
  q.prompt_tokens = 5000;  // larger than the limit itself: let in while nothing else is there
  q.max_new_tokens = 1;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kAdmitted);
  apply(&s, Admitted{q});
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kQuota);
  apply(&s, AdmissionReleased{q.tenant, 5, 5001, 0});
  q.now_ns = 5;
  EXPECT_EQ(decide_admit(s, q).reason, AdmitReason::kAdmitted);
  apply(&s, Refused{q.tenant});
  EXPECT_EQ(s.tenants.at(q.tenant).refused, 1);
}

TEST(Admission, ShedsInOrderAndNeverAStreamingRequest) {
  const ShedCandidate c[] = {{SeqId{1}, 0, false, 5, false},
                             {SeqId{2}, 0, true, 1, false},
                             {SeqId{3}, -1, false, 1, false},
                             {SeqId{4}, -1, false, 9, true},
                             {SeqId{5}, 0, false, 8, false}};
  EXPECT_EQ(decide_shed(c, 100), (std::vector<SeqId>{SeqId{3}, SeqId{2}, SeqId{5}, SeqId{1}}));
  EXPECT_EQ(decide_shed(c, 2), (std::vector<SeqId>{SeqId{3}, SeqId{2}}));
  EXPECT_TRUE(decide_shed(c, 0).empty());
}

// Two tenants with weights 3 and 1, both always waiting: served work follows the weights within 10 % and one
// request; a giant prompt of one does not move the other's short line (10.4).
TEST(Admission, WhoGivesWayInAFullLine) {
  auto entry = [](uint64_t seq, uint32_t tenant, int priority, double work, double weight = 1) {
    return LineEntry{SeqId{seq}, TenantId{tenant}, weight, priority, work, 10};
  };
  using Gone = std::vector<SeqId>;
  const std::vector<LineEntry> line = {entry(1, 1, 0, 5), entry(2, 1, 0, 9), entry(3, 1, 0, 7),
                                       entry(4, 2, 0, 50)};
  // A third tenant takes from the one that holds too much, its longest work first; not from the modest one.
  EXPECT_EQ(decide_displaced(line, entry(9, 3, 0, 1), 1, 0), (Gone{SeqId{2}}));
  EXPECT_TRUE(decide_displaced(line, entry(9, 1, 0, 1), 1, 0).empty());   // his own crowd
  EXPECT_TRUE(decide_displaced(line, entry(9, 3, -1, 1), 1, 0).empty());  // less important than all
  EXPECT_EQ(decide_displaced(line, entry(9, 1, 1, 1), 1, 0), (Gone{SeqId{2}}));
  EXPECT_EQ(decide_displaced(line, entry(9, 3, 0, 1), 0, 20), (Gone{SeqId{2}, SeqId{3}}));
  EXPECT_TRUE(decide_displaced(line, entry(9, 3, 0, 1), 0, 35).empty());  // not enough: nobody goes
  // With three times the weight the first tenant's three places are its share.
  std::vector<LineEntry> heavy = line;
  for (LineEntry& e : heavy) e.weight = e.tenant == TenantId{1} ? 3 : 1;
  EXPECT_TRUE(decide_displaced(heavy, entry(9, 3, 0, 1), 1, 0).empty());
  EXPECT_TRUE(decide_displaced({}, entry(9, 3, 0, 1), 1, 0).empty());
}

TEST(Admission, FairnessFollowsWeights) {
  PrefillConfig config;
  config.tiers.quota_ns = 400e6;
  PrefillBalancerState s = make_prefill_balancer(config, 1);
  TestRandom random(3);
  std::array<double, 2> served{};
  std::vector<uint32_t> free_handles;
  std::vector<int> tenant_of(100, 0);
  uint32_t next = 0;
  double largest = 0;
  auto add = [&](int tenant) {
    uint32_t h = free_handles.empty() ? next++ : free_handles.back();
    if (!free_handles.empty()) free_handles.pop_back();
    const double work = static_cast<double>(random.in(1'000'000, 50'000'000));
    largest = std::max(largest, work);
    tenant_of[h] = tenant;
    apply(&s, PrefillArrived{SeqId{h}, h, TenantId{static_cast<uint32_t>(tenant)}, tenant == 0 ? 3.0 : 1.0, 0,
                             0, 1000, work});
  };
  for (int i = 0; i < 20; ++i) add(i % 2);
  double time = 0;
  while (time < 10e9) {
    PullDecision d = decide_pull(s, 0, static_cast<int64_t>(time));
    ASSERT_EQ(d.reason, PullReason::kPulled);
    const double work = s.waiting[d.handle].work_ns;
    const int tenant = tenant_of[d.handle];
    apply(&s, PrefillPulled{0, d.handle});
    apply(&s, PrefillRan{0, d.tier, work, true});
    free_handles.push_back(d.handle);
    served[static_cast<size_t>(tenant)] += work;
    time += work;
    add(tenant);
  }
  EXPECT_NEAR(served[0], 0.75 * time, 0.1 * 0.75 * time + largest);
  EXPECT_NEAR(served[1], 0.25 * time, 0.1 * 0.25 * time + largest);
}

// ---- drain

TEST(Drain, GraceThenForwardThenQuiesce) {
  DrainState s;
  EXPECT_TRUE(decide_drain(s).registered);
  for (int i = 0; i < 3; ++i) {
    apply(&s, DrainRequestRouted{});
    apply(&s, DrainRequestStarted{});
  }
  apply(&s, DrainTransferBegan{});
  apply(&s, DrainAsked{10 * kSecond});
  EXPECT_FALSE(decide_drain(s).registered);
  EXPECT_TRUE(decide_drain(s).start_queued);
  apply(&s, DrainRequestRouted{});  // raced in: served
  apply(&s, DrainRequestStarted{});
  apply(&s, DrainRequestEnded{});
  apply(&s, DrainTick{69 * kSecond});
  EXPECT_EQ(decide_drain(s).forward_running, 0);
  apply(&s, DrainTick{70 * kSecond});
  EXPECT_EQ(decide_drain(s).forward_running, 3);
  apply(&s, DrainRequestRouted{});  // raced in now: handed on
  EXPECT_EQ(decide_drain(s).forward_queued, 1);
  apply(&s, DrainRequestForwarded{true});
  for (int i = 0; i < 3; ++i) apply(&s, DrainRequestForwarded{false});
  EXPECT_EQ(s.phase, DrainPhase::kQuiescing);
  EXPECT_FALSE(decide_drain(s).exit);  // a peer still reads from here
  apply(&s, DrainRequestRouted{});
  EXPECT_EQ(decide_drain(s).forward_queued, 1);
  apply(&s, DrainRequestForwarded{true});
  apply(&s, DrainTransferEnded{});
  EXPECT_TRUE(decide_drain(s).exit);
  EXPECT_FALSE(decide_drain(s).abort);
  EXPECT_EQ(s.forwarded, 5);
}

TEST(Drain, PrefillHandsItsQueueBackAtOnceAndASecondSignalAborts) {
  DrainState s;
  s.role = EngineRole::kPrefill;
  apply(&s, DrainRequestRouted{});
  apply(&s, DrainRequestRouted{});
  apply(&s, DrainRequestStarted{});
  apply(&s, DrainAsked{0});
  EXPECT_EQ(decide_drain(s).forward_queued, 1);
  EXPECT_EQ(decide_drain(s).forward_running, 0);
  EXPECT_FALSE(decide_drain(s).start_queued);
  apply(&s, DrainAsked{kSecond});
  EXPECT_TRUE(decide_drain(s).abort);
  EXPECT_EQ(s.aborted, 2);
}

// ---- failover

TEST(FailoverGolden, Sizes) {
  struct Case {
    int64_t healthy, slots, redundant;
    bool feasible;
  };
  for (Case c : {Case{64, 448, 64, true}, Case{63, 441, 57, true}, Case{60, 420, 36, true},
                 Case{56, 392, 8, true}, Case{55, 385, 1, true}, Case{54, 378, 0, false}}) {
    Resize r = decide_resize({}, c.healthy);
    EXPECT_EQ(r.feasible, c.feasible) << c.healthy;
    EXPECT_EQ(r.slots_per_gpu * r.gpus, c.slots);
    EXPECT_EQ(r.redundant, c.redundant);
    EXPECT_EQ(r.missing_slots, c.feasible ? 0 : 6);
  }
  ResizeRules eight;
  eight.most_slots = 8;
  EXPECT_TRUE(decide_resize(eight, 54).feasible);
  ResizeRules across;
  across.domain_gpus = 8;
  EXPECT_EQ(decide_resize(across, 63).gpus, 56);
  EXPECT_FALSE(decide_resize({}, 0).feasible);
}

TEST(Failover, FenceReturnLoadWarmServe) {
  InstanceState s = make_instance({}, 64);
  for (int i = 0; i < 2; ++i) apply(&s, RequestTaken{});
  apply(&s, GpuFailed{});
  EXPECT_EQ(s.epoch, 2);
  EXPECT_FALSE(decide_instance(s).registered);
  EXPECT_EQ(decide_instance(s).return_requests, 2);
  EXPECT_FALSE(decide_instance(s).load_weights);
  apply(&s, RequestsReturned{2});
  EXPECT_TRUE(decide_instance(s).load_weights);
  EXPECT_EQ(s.gpus, 63);
  EXPECT_EQ(s.redundant, 57);
  apply(&s, WeightsLoaded{});
  EXPECT_TRUE(decide_instance(s).warm_up);
  for (int i = 0; i < 9; ++i) apply(&s, GpuFailed{});  // more fail while it warms: 54 cannot hold it
  EXPECT_EQ(s.phase, InstancePhase::kDown);
  apply(&s, WeightsLoaded{});  // late news of the void start
  EXPECT_EQ(s.phase, InstancePhase::kDown);
  apply(&s, GpuRepaired{});
  EXPECT_TRUE(decide_instance(s).load_weights);
  apply(&s, WeightsLoaded{});
  apply(&s, GraphsWarm{});
  EXPECT_TRUE(decide_instance(s).registered);
  EXPECT_EQ(s.gpus, 55);
}

// ---- autoscaler

ScalerState pool(int64_t ready) {
  ScalerState s;
  s.config.target = 0.5;
  s.config.advisory = false;
  apply(&s, ScalerMembers{0, ready, 0});
  return s;
}

TEST(Autoscaler, UpAfterHalfAMinuteInStages) {
  ScalerState s = pool(10);
  apply(&s, ScalerSample{0, 2.0, true});
  EXPECT_EQ(decide_scale(s, 0).reason, ScaleReason::kWaitUp);
  apply(&s, ScalerSample{30 * kSecond, 2.0, true});
  ScaleDecision d = decide_scale(s, 30 * kSecond);
  EXPECT_EQ(d.reason, ScaleReason::kUp);
  EXPECT_EQ(d.desired, 15);  // 40 by the ratio; at most half as many again at once
  EXPECT_TRUE(d.carry_out);
  apply(&s, ScalerChanged{30 * kSecond, d.desired});
  apply(&s, ScalerSample{31 * kSecond, 2.0, true});
  apply(&s, ScalerSample{62 * kSecond, 2.0, true});
  EXPECT_EQ(decide_scale(s, 62 * kSecond).reason, ScaleReason::kStarting);
  apply(&s, ScalerMembers{70 * kSecond, 15, 0});
  apply(&s, ScalerSample{70 * kSecond, 2.0, true});
  EXPECT_EQ(decide_scale(s, 70 * kSecond).reason, ScaleReason::kUp);
  s.config.advisory = true;
  EXPECT_FALSE(decide_scale(s, 70 * kSecond).carry_out);
  EXPECT_EQ(decide_scale(s, 70 * kSecond).desired, 22);
}

TEST(Autoscaler, BurstThenSilenceReachesTheFloorSlowly) {
  ScalerState s = pool(20);
  int64_t now = 0, last = 20;
  for (int i = 0; i < 40'000 && s.ready > 2; ++i) {
    now += kSecond;
    apply(&s, ScalerSample{now, 0.0, true});  // zero is a valid observation
    ScaleDecision d = decide_scale(s, now);
    if (d.reason != ScaleReason::kDown) continue;
    EXPECT_GE(now, 600 * kSecond);
    EXPECT_GE(d.desired, last - std::max<int64_t>(1, last / 10));
    apply(&s, ScalerChanged{now, d.desired});
    last = d.desired;
  }
  EXPECT_EQ(s.ready, 2);  // the least and one spare
  apply(&s, ScalerSample{now + kSecond, 0.0, true});
  apply(&s, ScalerSample{now + 700 * kSecond, 0.0, true});
  EXPECT_EQ(decide_scale(s, now + 700 * kSecond).reason, ScaleReason::kAtLeast);
}

TEST(Autoscaler, MissingColdAndStaleSamplesHold) {
  ScalerState s = pool(5);
  EXPECT_EQ(decide_scale(s, 0).reason, ScaleReason::kNoSample);
  apply(&s, ScalerSample{0, std::numeric_limits<double>::quiet_NaN(), true});
  EXPECT_EQ(decide_scale(s, 0).reason, ScaleReason::kNoSample);
  apply(&s, ScalerSample{0, 100.0, false});  // cold
  EXPECT_EQ(decide_scale(s, 0).reason, ScaleReason::kNoSample);
  EXPECT_EQ(s.samples_ignored, 2);
  apply(&s, ScalerSample{kSecond, 0.5, true});
  EXPECT_EQ(decide_scale(s, kSecond).reason, ScaleReason::kSteady);
  EXPECT_EQ(decide_scale(s, 100 * kSecond).reason, ScaleReason::kStaleSample);
}

TEST(Autoscaler, InstancesThatNeverStartAndChangesByHand) {
  ScalerState s = pool(10);
  apply(&s, ScalerMembers{0, 10, 4});
  for (int64_t t = 0; t <= 700; t += 50) apply(&s, ScalerSample{t * kSecond, 0.1, true});
  ScaleDecision d = decide_scale(s, 700 * kSecond);
  EXPECT_EQ(d.reason, ScaleReason::kDown);  // the four that never came do not block it
  EXPECT_EQ(d.desired, 9);
  apply(&s, ScalerMembers{701 * kSecond, 30, 0});  // somebody set it to 30: a new base, timers restart
  apply(&s, ScalerSample{701 * kSecond, 0.1, true});
  EXPECT_EQ(decide_scale(s, 701 * kSecond).reason, ScaleReason::kWaitDown);
  EXPECT_EQ(decide_scale(s, 701 * kSecond).desired, 30);
  apply(&s, ScalerMembers{702 * kSecond, 1, 0});
  EXPECT_EQ(decide_scale(s, 702 * kSecond).reason, ScaleReason::kBelowFloor);
}

}  // namespace
}  // namespace deepinfer::policy
