// The published table of serving specification 2.7, reproduced by running the hit policy over generated
// sessions.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "policy/hit.h"
#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

constexpr ReplayRules kRules{128, 6, 134};
constexpr WorkRules kVendor{20, 2560, 140};  // the table counts 140 kept rows

struct Totals {
  int64_t prompt = 0, perfect = 0, start = 0, exact_part = 0, keep_part = 0;
  PrefillWork work;
  void add(int64_t length, int64_t perfect_hit, int64_t start_tokens) {
    prompt += length;
    perfect += perfect_hit;
    start += start_tokens;
    exact_part += std::min<int64_t>(2560, length);
    keep_part += std::min<int64_t>(140, length);
    work += prefill_work(length, perfect_hit, start_tokens, kVendor);
  }
  double percent(int64_t part) const {
    return 100.0 * static_cast<double>(part) / static_cast<double>(work.none);
  }
  double hp() const { return 100.0 * static_cast<double>(perfect) / static_cast<double>(prompt); }
  double hd() const { return 100.0 * static_cast<double>(start) / static_cast<double>(prompt); }
};

// One session's stored chain: how far it reaches and where its windows were kept.
struct Chain {
  int64_t stored = 0;
  std::vector<int64_t> snapshots;
  void turn(Totals* t, int64_t length, int64_t generated) {
    const int64_t states[] = {stored / 128 * 128};
    HitDecision h = decide_hit({length, states, snapshots}, kRules);
    t->add(length, stored, h.start_tokens);
    snapshots.push_back(length / 128 * 128);
    snapshots.push_back((length + generated) / 128 * 128);
    stored = length + generated;
  }
};

struct Sessions {
  int64_t system, first_low, first_high, next_low, next_high, out_low, out_high;
  int turns;
  int64_t compact_above;  // 0: never
};

Totals run_sessions(const Sessions& g, int count, uint64_t seed) {
  TestRandom random(seed);
  Totals t;
  for (int s = 0; s < count; ++s) {
    Chain chain;
    chain.stored = s == 0 ? 0 : g.system;  // blocks of the shared prompt, but no window of it
    int64_t context = g.system;
    for (int turn = 0; turn < g.turns; ++turn) {
      int64_t input = turn == 0 ? random.in(g.first_low, g.first_high) : random.in(g.next_low, g.next_high);
      if (g.compact_above > 0 && context > g.compact_above) {
        context = g.system + 2000;
        chain = Chain{};
        chain.stored = g.system;
      }
      int64_t length = context + input, generated = random.in(g.out_low, g.out_high);
      chain.turn(&t, length, generated);
      context = length + generated;
    }
  }
  return t;
}

void expect_identities(const Totals& t) {
  double none = static_cast<double>(t.work.none), prompt = static_cast<double>(t.prompt);
  EXPECT_NEAR(static_cast<double>(t.work.ordinary) / none, 1 - t.hp() / 100, 1e-9);
  EXPECT_NEAR(static_cast<double>(t.work.exact) / none,
              (1 - t.hp() / 100) / 2 + static_cast<double>(t.exact_part) / (2 * prompt), 1e-9);
  EXPECT_NEAR(static_cast<double>(t.work.deepinfer) / none,
              (1 - t.hd() / 100) / 2 + static_cast<double>(t.keep_part) / (2 * prompt), 1e-9);
}

TEST(WorkloadGolden, AgentSessions) {
  Totals t = run_sessions({4000, 200, 2000, 200, 4000, 100, 500, 40, 100000}, 400, 1);
  expect_identities(t);
  EXPECT_NEAR(t.hp(), 95.8, 0.15);
  EXPECT_NEAR(t.hd(), 95.7, 0.15);
  EXPECT_NEAR(t.percent(t.work.ordinary), 4.2, 0.15);
  EXPECT_NEAR(t.percent(t.work.exact), 4.7, 0.15);
  EXPECT_NEAR(t.percent(t.work.deepinfer), 2.3, 0.1);
  EXPECT_LT(static_cast<double>(t.work.deepinfer), 0.55 * static_cast<double>(t.work.exact));
}

TEST(WorkloadGolden, ChatSessions) {
  Totals t = run_sessions({800, 20, 200, 20, 200, 200, 600, 8, 0}, 2000, 2);
  expect_identities(t);
  EXPECT_NEAR(t.hp(), 95.9, 0.4);
  EXPECT_NEAR(t.hd(), 90.8, 0.4);
  EXPECT_NEAR(t.percent(t.work.ordinary), 4.1, 0.25);
  EXPECT_NEAR(t.percent(t.work.exact), 41.1, 0.25);
  EXPECT_NEAR(t.percent(t.work.deepinfer), 7.4, 0.25);
  double ratio = static_cast<double>(t.work.deepinfer) / static_cast<double>(t.work.ordinary);
  EXPECT_GT(ratio, 1.6);
  EXPECT_LT(ratio, 2.0);
  EXPECT_LT(static_cast<double>(t.work.deepinfer), 0.2 * static_cast<double>(t.work.exact));
}

TEST(WorkloadGolden, FreshDocuments) {
  TestRandom random(3);
  Totals t;
  std::vector<int64_t> seen;
  for (int i = 0; i < 2000; ++i) {
    // Stratified repeats: 22 of every 100, so that the hit rate does not wander with the draw.
    bool again = !seen.empty() && (i * 22) % 100 < 22;
    int64_t length = again ? seen[static_cast<size_t>(random.in(0, static_cast<int64_t>(seen.size()) - 1))]
                           : random.in(20000, 200000);
    Chain chain;
    if (again) {
      chain.stored = length;
      chain.snapshots = {length / 128 * 128};
    } else {
      seen.push_back(length);
    }
    chain.turn(&t, length, 300);
  }
  expect_identities(t);
  EXPECT_NEAR(t.hp(), 22.0, 1.0);
  EXPECT_NEAR(t.hd(), 21.9, 1.0);
  EXPECT_NEAR(t.percent(t.work.ordinary), 78.0, 1.0);
  EXPECT_NEAR(t.percent(t.work.exact), 40.3, 0.6);
  EXPECT_NEAR(t.percent(t.work.deepinfer), 39.1, 0.6);
  EXPECT_NEAR(t.percent(t.work.deepinfer), (100 - t.hd()) / 2, 0.5);
}

}  // namespace
}  // namespace deepinfer::policy
