// Worked results of serving specification 2.4, the back-off rules, and bounded replay's row counts.
#include "policy/hit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

using ::testing::HasSubstr;

constexpr ReplayRules kRules{128, 6, 134};

HitDecision hit(int64_t prompt, int64_t blocks, std::vector<int64_t> snapshots,
                HitMode mode = HitMode::kReplay) {
  const int64_t states[] = {blocks};
  return decide_hit({prompt, states, snapshots, mode}, kRules);
}

TEST(HitGolden, WorkedResults) {
  struct Row {
    int64_t prompt, blocks;
    std::vector<int64_t> snapshots;
    int64_t start, rows;
  };
  const Row rows[] = {{1100, 0, {}, 0, 1100},
                      {1760, 1408, {1024, 1408}, 1408, 352},
                      {1500, 1408, {1024, 1408}, 1152, 348},
                      {1541, 1408, {1408}, 1152, 389},
                      {1542, 1408, {1408}, 1408, 134},
                      {50000, 49920, {49792}, 49792, 208},
                      {50000, 49920, {}, 49664, 336},
                      {261, 256, {128}, 0, 261},
                      {262, 256, {128}, 128, 134},
                      {262, 256, {}, 0, 262},
                      {134, 128, {128}, 0, 134},
                      {390, 384, {256}, 256, 134},
                      {131372, 131072, {131072}, 131072, 300},
                      {131372, 131072, {}, 130944, 428},
                      {131172, 131072, {131072}, 130816, 356}};
  for (const Row& r : rows) {
    HitDecision h = hit(r.prompt, r.blocks, r.snapshots);
    EXPECT_EQ(h.start_tokens, r.start) << r.prompt << " " << r.blocks;
    EXPECT_EQ(r.prompt - h.start_tokens, r.rows);
  }
}

TEST(HitGolden, DeterministicTrace) {
  // The conversation of serving specification 2.7: prompts, answers of 360 tokens, two snapshots per request.
  struct Turn {
    int64_t input, length, stored, blocks, start, rows;
  };
  const Turn turns[] = {{1100, 1100, 0, 0, 0, 1100},        {300, 1760, 1460, 1408, 1408, 352},
                        {40, 2160, 2120, 2048, 1792, 368},  {40, 2560, 2520, 2432, 2176, 384},
                        {200, 3120, 2920, 2816, 2816, 304}, {134, 3614, 3480, 3456, 3456, 158},
                        {133, 4107, 3974, 3968, 3968, 139}, {1000, 5467, 4467, 4352, 4352, 1115}};
  int64_t length = 0, stored = 0, lengths = 0, perfect = 0, starts = 0;
  std::vector<int64_t> snapshots;
  PrefillWork work;
  for (const Turn& t : turns) {
    length = stored + t.input;
    EXPECT_TRUE(stored == 0 || length == t.length);
    int64_t blocks = stored / 128 * 128;
    EXPECT_EQ(blocks, t.blocks);
    EXPECT_EQ(t.stored, stored);
    HitDecision h = hit(t.length, blocks, snapshots);
    EXPECT_EQ(h.start_tokens, t.start) << t.length;
    EXPECT_EQ(t.length - h.start_tokens, t.rows);
    work += prefill_work(t.length, stored, h.start_tokens, {20, 2560, 140});
    lengths += t.length;
    perfect += stored;
    starts += h.start_tokens;
    snapshots.push_back(t.length / 128 * 128);
    snapshots.push_back((t.length + 360) / 128 * 128);
    stored = t.length + 360;
  }
  EXPECT_EQ(lengths, 23888);
  EXPECT_EQ(perfect, 20941);
  EXPECT_EQ(starts, 19968);
  EXPECT_EQ(work.none, 955520);
  EXPECT_EQ(work.ordinary, 117880);
  EXPECT_EQ(work.exact, 415340);
  EXPECT_EQ(work.deepinfer, 100800);
}

TEST(Hit, TheLeastStateCounts) {
  const int64_t states[] = {2048, 1408, 2048};
  const int64_t snapshots[] = {1408, 2048};
  HitDecision h = decide_hit({2560, states, snapshots}, kRules);
  EXPECT_EQ(h.start_tokens, 1408);
  EXPECT_EQ(h.lost_to_missing_blocks, 640);
  const int64_t none[] = {2048, 0};
  EXPECT_EQ(decide_hit({2560, none, snapshots}, kRules).start_tokens, 0);
  EXPECT_EQ(decide_hit({2560, {}, snapshots}, kRules).reason, HitReason::kCold);
}

TEST(Hit, ReasonsAndLosses) {
  EXPECT_EQ(hit(1000, 0, {}).reason, HitReason::kCold);
  EXPECT_EQ(hit(200, 128, {128}).reason, HitReason::kTooShort);
  EXPECT_EQ(hit(262, 256, {}).reason, HitReason::kSnapshotLost);
  HitDecision h = hit(1500, 1450, {1408});
  EXPECT_EQ(h.reason, HitReason::kReplayed);
  EXPECT_EQ(h.kv_hit_tokens, 1280);
  EXPECT_EQ(h.lost_to_rounding, 42);
  EXPECT_EQ(h.lost_to_cap, 128);
  EXPECT_EQ(h.lost_to_snapshot, 128);
  EXPECT_EQ(hit(1760, 1408, {1408}).reason, HitReason::kSnapshot);
  // A window stored where the replay would begin: as many rows, and exact.
  h = hit(1500, 1408, {1152});
  EXPECT_EQ(h.reason, HitReason::kSnapshot);
  EXPECT_TRUE(h.from_snapshot);
  EXPECT_EQ(h.kv_hit_tokens, 1152);
  EXPECT_EQ(h.start_tokens, 1152);
}

TEST(Hit, ExactModeBacksOffToTheLastStoredBoundary) {
  HitDecision h = hit(4990, 4864, {1024, 2048, 4864}, HitMode::kExact);
  EXPECT_EQ(h.reason, HitReason::kExactBackOff);
  EXPECT_EQ(h.start_tokens, 2048);
  EXPECT_EQ(h.kv_hit_tokens, 2048);
  EXPECT_TRUE(h.from_snapshot);
  EXPECT_EQ(h.lost_to_snapshot, 4736 - 2048);
  EXPECT_EQ(hit(4990, 4864, {4864}, HitMode::kExact).reason, HitReason::kSnapshotLost);
  EXPECT_EQ(hit(4990, 4864, {4736}, HitMode::kExact).reason, HitReason::kSnapshot);
}

TEST(Hit, InvariantsHoldForAnyStore) {
  TestRandom random(7);
  for (int round = 0; round < 20000; ++round) {
    int64_t prompt = random.in(0, 6000);
    std::vector<int64_t> snapshots;
    for (int64_t b = 128; b < 6000; b += 128) {
      if (random.one_in(4)) snapshots.push_back(b);
    }
    const int64_t states[] = {random.in(0, 7000), random.in(0, 7000)};
    HitMode mode = random.one_in(2) ? HitMode::kExact : HitMode::kReplay;
    int64_t limit = random.one_in(2) ? random.in(0, 6000) : INT64_MAX;
    HitDecision h = decide_hit({prompt, states, snapshots, mode, limit}, kRules);
    EXPECT_EQ(h.start_tokens % 128, 0);
    EXPECT_EQ(h.kv_hit_tokens % 128, 0);
    EXPECT_LE(h.start_tokens, h.kv_hit_tokens);
    EXPECT_LE(h.kv_hit_tokens, std::max<int64_t>(0, prompt - 134));
    EXPECT_LE(h.kv_hit_tokens, std::min(states[0], states[1]));
    EXPECT_LE(h.start_tokens, limit);
    bool stored = std::find(snapshots.begin(), snapshots.end(), h.start_tokens) != snapshots.end();
    EXPECT_TRUE(!h.from_snapshot || stored);
    EXPECT_TRUE(mode == HitMode::kReplay || h.start_tokens == 0 || h.from_snapshot);
    EXPECT_TRUE(h.start_tokens == h.kv_hit_tokens || h.kv_hit_tokens - h.start_tokens == 128);
    EXPECT_TRUE(h.from_snapshot || h.start_tokens > 0 || h.kv_hit_tokens == 0);
  }
}

TEST(Replay, StartUpRefusesTooFewRows) {
  EXPECT_TRUE(validate(kRules).ok());
  EXPECT_TRUE(validate({128, 6, 140}).ok());
  Status s = validate({128, 6, 133});
  EXPECT_EQ(s.code(), Code::kInvalidConfig);
  EXPECT_THAT(s.message(), HasSubstr("at least 134"));
}

TEST(Replay, WithKeepEqualToTheCapTheDecoderSegmentDoesNotDependOnTheHit) {
  for (int64_t prompt = 1; prompt < 2000; ++prompt) {
    int64_t cold = decoder_floor(prompt, 0, kRules);
    for (int64_t blocks : {128, 256, 1024, 1920}) {
      for (bool stored : {false, true}) {
        HitDecision h =
            hit(prompt, blocks, stored ? std::vector<int64_t>{128, 256, 1024, 1920} : std::vector<int64_t>{});
        EXPECT_EQ(decoder_floor(prompt, h.start_tokens, kRules), cold) << prompt;
      }
    }
    EXPECT_EQ(decoder_rows(0, prompt, cold), std::min<int64_t>(134, prompt));
  }
  // The vendor's 140 makes it depend: a hit that starts exactly 134 rows before the end keeps 134.
  EXPECT_NE(decoder_floor(262, 128, {128, 6, 140}), decoder_floor(262, 0, {128, 6, 140}));
}

TEST(Replay, DecoderRowsAreTheSameForEveryPartition) {
  TestRandom random(8);
  for (int round = 0; round < 5000; ++round) {
    int64_t prompt = random.in(1, 3000), start = random.in(0, prompt - 1) / 128 * 128;
    if (prompt - start < 134) start = 0;
    ReplayRules rules{128, 6, random.one_in(2) ? 134 : 140};
    int64_t floor = decoder_floor(prompt, start, rules), rows = 0;
    for (int64_t x = start; x < prompt;) {
      int64_t y = std::min(prompt, x + random.in(1, 400));
      rows += decoder_rows(x, y, floor);
      x = y;
    }
    EXPECT_EQ(rows, std::min(rules.keep_tokens, prompt - start));
  }
}

}  // namespace
}  // namespace deepinfer::policy
