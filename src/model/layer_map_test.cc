// The layer map of the released model against the table of model specification 1.6.
#include "model/layer_map.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

struct Want {
  int first, last, ratio, kv, index;
  const char* role;
};

// Table 1.6, one line per group of layers; `index` -2: the layer itself.
const std::vector<Want> kTable = {
    {0, 1, 0, -1, -1, "window"},    {2, 2, 2, 2, 2, "full"},        {3, 7, 2, 2, 2, "reuse"},
    {8, 8, 2, 8, 8, "full"},        {9, 13, 2, 8, 8, "reuse"},      {14, 14, 2, 14, 14, "full"},
    {15, 19, 2, 14, 14, "reuse"},   {20, 20, 1, 20, 20, "full"},    {21, 23, 1, 20, 20, "reuse"},
    {24, 24, 1, 20, 24, "reindex"}, {25, 27, 1, 20, 24, "reuse"},   {28, 28, 1, 20, 28, "reindex"},
    {29, 31, 1, 20, 28, "reuse"},   {32, 32, 1, 20, 32, "reindex"}, {33, 35, 1, 20, 32, "reuse"},
    {36, 36, 1, 20, 36, "reindex"}, {37, 39, 1, 20, 36, "reuse"}};

TEST(LayerMapGolden, ReleasedModel) {
  ModelConfig c = builtin_config("v41-flash").value();
  std::vector<LayerRole> map = layer_map(c);
  ASSERT_EQ(map.size(), 40u);
  int next = 0;
  for (const Want& w : kTable) {
    EXPECT_EQ(w.first, next);
    for (int l = w.first; l <= w.last; ++l) {
      const LayerRole& r = map[static_cast<size_t>(l)];
      EXPECT_EQ(r.layer, l);
      EXPECT_EQ(r.decoder, l >= 20) << l;
      EXPECT_EQ(r.ratio, w.ratio) << l;
      EXPECT_EQ(r.kv_source, w.kv) << l;
      EXPECT_EQ(r.index_source, w.index) << l;
      EXPECT_EQ(r.role_name(), w.role) << l;
      EXPECT_EQ(r.owns_kv, l == 2 || l == 8 || l == 14 || l == 20) << l;
      EXPECT_EQ(r.owns_index, r.owns_kv || r.role_name() == "reindex") << l;
      EXPECT_EQ(r.candidate_source, l == 20) << l;
      EXPECT_EQ(r.uses_pool, l == 24 || l == 28 || l == 32 || l == 36) << l;
      EXPECT_EQ(r.engram, l == 1 ? 0 : l == 14 ? 1 : -1) << l;
      EXPECT_EQ(r.tap, l >= 37 ? l - 37 : -1) << l;
      EXPECT_EQ(r.kv_slot, w.kv < 0 ? -1 : w.kv / 6) << l;  // 2, 8, 14, 20
    }
    next = w.last + 1;
  }
  EXPECT_EQ(next, 40);
}

TEST(LayerMap, WithoutACandidateSourceNothingUsesAPool) {
  ModelConfig c = builtin_config("t0").value();
  c.candidate_source_layer_id = -1;
  for (const LayerRole& r : layer_map(c)) {
    EXPECT_FALSE(r.candidate_source);
    EXPECT_FALSE(r.uses_pool);
  }
}

}  // namespace
}  // namespace deepinfer
