// Numbers of model specification 8.3, 8.4, 9.4 and 12.1.
#include "model/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

ModelConfig released() {
  return builtin_config("v41-flash").value();
}

TEST(SizesGolden, Records) {
  RecordSizes r = record_sizes(released());
  EXPECT_EQ(r.main_entry, 288);
  EXPECT_EQ(r.index_key, 68);
  EXPECT_EQ(r.window_latent, 528);
}

TEST(SizesGolden, GlobalCache) {
  ModelConfig c = released();
  EXPECT_EQ(kv_bytes_per_token(c), 890);
  EXPECT_EQ(kv_block_bytes(c, 128), 113920);
  for (int slot : {0, 1, 2}) EXPECT_EQ(kv_block_bytes_of_source(c, slot, 128), 22784);
  EXPECT_EQ(kv_block_bytes_of_source(c, 3, 128), 45568);
  EXPECT_EQ(1048576 / 128 * kv_block_bytes(c, 128), 933232640);
}

TEST(SizesGolden, WindowsTailsAndRebuild) {
  ModelConfig c = released();
  EXPECT_EQ(ring_slots(c), 134);
  EXPECT_EQ(window_bytes_per_layer(c), 70752);
  EXPECT_EQ(snapshot_bytes(c), 1415040);
  EXPECT_EQ(window_state_bytes(c), 2830080);
  EXPECT_EQ(draft_ring_bytes(c), 212256);
  EXPECT_EQ(draft_input_bytes(c), 134 * 5120 * 3 * 4);
  EXPECT_EQ(compressor_tail_bytes(c), 3 * 4096);
  EXPECT_EQ(exact_rebuild_tokens(c), 2560);
  EXPECT_EQ(exact_rebuild_tokens_tight(c), 2541);
  EXPECT_EQ(engram_bytes_per_token(c), 12672);
}

TEST(SizesGolden, HitRule) {
  struct Row {
    int64_t prompt, cap, block_hit;
    std::vector<int64_t> snapshots;
    int64_t reused, rows;
  };
  for (const Row& r :
       {Row{1760, 1536, 1408, {1024, 1408}, 1408, 352}, Row{1500, 1280, 1408, {1024, 1408}, 1152, 348},
        Row{50000, 49792, 49920, {49792}, 49792, 208}, Row{50000, 49792, 49920, {}, 49664, 336},
        Row{262, 128, 256, {128}, 128, 134}, Row{261, 0, 256, {128, 256}, 0, 261}}) {
    HitPlan p = plan_hit(r.prompt, r.block_hit, r.snapshots, 128, 6);
    EXPECT_EQ(p.cap, r.cap) << r.prompt;
    EXPECT_EQ(p.reused, r.reused) << r.prompt;
    EXPECT_EQ(p.encoder_rows, r.rows) << r.prompt;
    EXPECT_GE(p.encoder_rows, std::min<int64_t>(r.prompt, 134));
  }
}

TEST(Sizes, HitRuleKeepsItsPromises) {
  for (int64_t prompt = 0; prompt <= 700; ++prompt) {
    for (int64_t block_hit : {0, 1, 127, 128, 200, 256, 384, 512, 1000}) {
      for (int64_t snapshot : {0, 128, 256, 384}) {
        HitPlan p = plan_hit(prompt, block_hit, {snapshot}, 128, 6);
        EXPECT_EQ(p.cap % 128, 0);
        EXPECT_LE(p.hit, block_hit);
        EXPECT_LE(p.hit, p.cap);
        EXPECT_EQ(p.hit % 128, 0);
        EXPECT_GE(p.reused, 0);
        EXPECT_EQ(p.from_snapshot, p.hit > 0 && p.hit == snapshot);
        EXPECT_EQ(p.reused, p.from_snapshot ? p.hit : std::max<int64_t>(p.hit - 128, 0));
        EXPECT_GE(p.encoder_rows, std::min<int64_t>(prompt, 134));
      }
    }
  }
}

TEST(Sizes, OddRecordsRoundUpToWholeBytesPerToken) {
  ModelConfig c = builtin_config("t0").value();
  EXPECT_EQ(record_sizes(c).main_entry + record_sizes(c).index_key, 53);
  EXPECT_EQ(kv_bytes_per_token(c), 80);  // 53 / 2 + 53 = 79.5
  EXPECT_EQ(kv_block_bytes(c, 16), 8 * 53 + 16 * 53);
}

TEST(Sizes, WithoutDraftsTheRingHoldsWindowPlusOne) {
  ModelConfig c = released();
  c.num_nextn_predict_layers = 0;
  EXPECT_EQ(ring_slots(c), 129);
  EXPECT_EQ(draft_ring_bytes(c), 0);
  EXPECT_EQ(draft_input_bytes(c), 0);
}

// The weights of the plan are the totals of model specification 9.4.
TEST(MemoryPlanGolden, ReleasedWeights) {
  MemoryPlan plan = plan_memory(released(), 0, 1, 0);
  int64_t weights = 0, resident = 0, mapped = 0;
  for (const MemoryLine& line : plan.lines) {
    if (line.name.starts_with("weights: ")) weights += line.bytes;
    (line.mapped ? mapped : resident) += line.bytes;
  }
  EXPECT_EQ(weights, 510286023000);
  EXPECT_EQ(plan.mapped_bytes, 202758032400);
  EXPECT_EQ(plan.mapped_bytes, mapped);
  EXPECT_EQ(plan.resident_bytes, resident);
  EXPECT_EQ(plan.resident_bytes,
            510286023000 - 202758032400 + 2830080 + 212256 + 8232960 + 3 * 4096 + 2 * 1415040);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.max_context_tokens, 1048576);
}

TEST(MemoryPlan, CacheGrowsWithContextAndSequences) {
  ModelConfig c = released();
  int64_t base = plan_memory(c, 0, 4, 0).resident_bytes;
  EXPECT_EQ(plan_memory(c, 0, 4, 1).resident_bytes - base, 4 * 113920);
  EXPECT_EQ(plan_memory(c, 0, 4, 129).resident_bytes - base, 4 * 2 * 113920);
  EXPECT_EQ(plan_memory(c, 0, 4, 1048576).resident_bytes - base, int64_t{4} * 933232640);
  EXPECT_EQ(plan_memory(c, 0, 5, 0).resident_bytes - base,
            2830080 + 212256 + 8232960 + 3 * 4096 + 2 * 1415040);
}

TEST(MemoryPlan, LongestContextIsTheLastThatFits) {
  ModelConfig c = released();
  const int64_t ram = int64_t{320} << 30;
  MemoryPlan plan = plan_memory(c, ram, 64, 4096);
  ASSERT_GT(plan.max_context_tokens, 0);
  ASSERT_LT(plan.max_context_tokens, c.max_position_embeddings);
  EXPECT_TRUE(plan_memory(c, ram, 64, plan.max_context_tokens).fits);
  EXPECT_FALSE(plan_memory(c, ram, 64, plan.max_context_tokens + 1).fits);
  MemoryPlan small = plan_memory(c, int64_t{64} << 30, 1, 4096);
  EXPECT_FALSE(small.fits);
  EXPECT_EQ(small.max_context_tokens, 0);
}

TEST(MemoryPlan, HugeArgumentsSaturate) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  MemoryPlan plan = plan_memory(released(), most, std::numeric_limits<int>::max(), most);
  EXPECT_GT(plan.resident_bytes, 0);
  EXPECT_GT(plan.max_context_tokens, 0);
}

TEST(MemoryPlan, TextHasEveryLine) {
  MemoryPlan plan = plan_memory(released(), int64_t{1} << 40, 2, 4096);
  std::string text = plan.to_text();
  for (const MemoryLine& line : plan.lines) EXPECT_THAT(text, HasSubstr(line.name));
  EXPECT_THAT(text, HasSubstr("288,777,830,400"));
  EXPECT_THAT(text, HasSubstr("enough"));
}

}  // namespace
}  // namespace deepinfer
