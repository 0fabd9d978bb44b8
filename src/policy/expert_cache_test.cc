// Who stays and who goes, by hand, and what must hold whatever is asked.
#include "policy/expert_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

ExpertCache cache(int slots, int64_t capacity, int64_t half_life = 100) {
  ExpertCache c;
  c.slots.resize(static_cast<size_t>(slots));
  c.capacity = capacity;
  c.half_life = half_life;
  return c;
}
using Ids = std::vector<int32_t>;

TEST(ExpertCache, KeepsWhatIsUsedOften) {
  ExpertCache c = cache(8, 3);
  for (int i = 0; i < 5; ++i) use_experts(&c, Ids{0, 1});
  EXPECT_EQ(use_experts(&c, Ids{2}).read, Ids{2});
  // Three are in; a fourth takes the place of the one used once.
  ExpertCacheChange change = use_experts(&c, Ids{3});
  EXPECT_EQ(change.read, Ids{3});
  EXPECT_EQ(change.forget, Ids{2});
  change = use_experts(&c, Ids{2});
  EXPECT_EQ(change.forget, Ids{3});
  EXPECT_EQ(c.uses, 13);
  EXPECT_EQ(c.misses, 5);
  EXPECT_EQ(c.evictions, 2);
}

TEST(ExpertCache, OldFrequenciesFade) {
  ExpertCache c = cache(4, 2, 4);
  for (int i = 0; i < 50; ++i) use_experts(&c, Ids{0});
  for (int i = 0; i < 40; ++i) use_experts(&c, Ids{1});
  EXPECT_EQ(use_experts(&c, Ids{2}).forget, Ids{0});
}

TEST(ExpertCache, ACallMayNeedMoreThanTheCapacity) {
  ExpertCache c = cache(8, 2);
  ExpertCacheChange change = use_experts(&c, Ids{1, 3, 5, 7});
  EXPECT_EQ(change.read, (Ids{1, 3, 5, 7}));
  EXPECT_TRUE(change.forget.empty());
  EXPECT_EQ(c.resident, 4);
  change = use_experts(&c, Ids{1});
  EXPECT_EQ(change.forget.size(), 2u);
  EXPECT_EQ(c.resident, 2);
}

// Whatever is asked: what a call uses is in, the count is kept, what is read was out and what is forgotten
// was in and is not needed.
TEST(ExpertCache, InvariantsUnderRandomCalls) {
  TestRandom random(5);
  for (int run = 0; run < 50; ++run) {
    const auto slots = static_cast<int>(random.in(1, 40));
    ExpertCache c = cache(slots, random.in(0, 12), random.in(1, 9));
    std::set<int32_t> in;
    for (int i = 0; i < 200; ++i) {
      std::set<int32_t> touched;
      for (int64_t k = random.in(0, 6); k > 0; --k)
        touched.insert(static_cast<int32_t>(random.in(0, slots - 1)));
      const Ids list(touched.begin(), touched.end());
      const ExpertCacheChange change = use_experts(&c, list);
      for (int32_t e : change.read) EXPECT_TRUE(touched.count(e) == 1 && in.insert(e).second);
      for (int32_t e : change.forget) EXPECT_TRUE(touched.count(e) == 0 && in.erase(e) == 1);
      for (int32_t e : touched) EXPECT_EQ(in.count(e), 1u);
      EXPECT_EQ(static_cast<int64_t>(in.size()), c.resident);
      EXPECT_LE(c.resident, std::max<int64_t>(c.capacity, static_cast<int64_t>(touched.size())));
      EXPECT_EQ(c.misses - c.evictions, c.resident);
    }
  }
}

}  // namespace
}  // namespace deepinfer::policy
