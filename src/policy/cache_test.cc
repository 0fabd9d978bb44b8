// Block and snapshot bookkeeping: places, order of eviction, leases, replacement of replayed entries.
#include "policy/cache.h"

#include <gtest/gtest.h>

namespace deepinfer::policy {
namespace {

BlockKey key(uint64_t n) {
  return BlockKey{{n, 0, 0, 0}};
}
int64_t count(const CacheState& c, BlockPlace p) {
  return c.count[static_cast<int>(p)];
}

BlockId take_and_publish(CacheState* c, uint64_t n, bool replayed = false) {
  BlockId id{c->free_blocks.head};
  take(c, id);
  publish(c, id, key(n), 0, replayed);
  return id;
}

TEST(Cache, ABlockMovesThroughItsPlaces) {
  CacheState c = make_cache(3, 0);
  EXPECT_EQ(count(c, BlockPlace::kFree), 3);
  BlockId a = take_and_publish(&c, 1);
  EXPECT_EQ(count(c, BlockPlace::kUsed), 1);
  lease(&c, a);
  unref(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kLeased);
  pin(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kPinned);
  EXPECT_EQ(obtainable(c), 2);
  unlease(&c, a);
  unpin(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kIdle);
  EXPECT_EQ(find(c, key(1)), a);
  uncache(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kFree);
  EXPECT_EQ(find(c, key(1)), kNoBlock);
}

TEST(Cache, AnInvalidatedBlockStaysWithItsHolders) {
  CacheState c = make_cache(1, 0);
  BlockId a = take_and_publish(&c, 1);
  uncache(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kUsed);
  unref(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kFree);
}

TEST(Cache, IdleOrderIsLastUseAndAUseMovesABlockBack) {
  CacheState c = make_cache(3, 0);
  BlockId a = take_and_publish(&c, 1), b = take_and_publish(&c, 2), d = take_and_publish(&c, 3);
  for (BlockId id : {a, b, d}) unref(&c, id);
  EXPECT_EQ(c.idle_blocks.head, raw(a));
  ref(&c, a);
  unref(&c, a);
  EXPECT_EQ(c.idle_blocks.head, raw(b));
  EXPECT_EQ(c.idle_blocks.tail, raw(a));
}

TEST(Cache, DuplicatesStayPrivateAndExactReplacesReplayed) {
  CacheState c = make_cache(3, 0);
  BlockId a = take_and_publish(&c, 1, true);
  BlockId b{c.free_blocks.head};
  take(&c, b);
  EXPECT_FALSE(publish(&c, b, key(1), 0, true));
  EXPECT_EQ(find(c, key(1)), a);
  EXPECT_TRUE(publish(&c, b, key(1), 0, false));
  EXPECT_EQ(find(c, key(1)), b);
  unref(&c, a);
  EXPECT_EQ(place_of(at(c, a)), BlockPlace::kFree);
  BlockId d{c.free_blocks.head};
  take(&c, d);
  EXPECT_FALSE(publish(&c, d, key(1), 0, false));
}

TEST(Cache, SnapshotsHaveTheirOwnBudgetAndOrder) {
  CacheState c = make_cache(0, 2);
  SnapshotId a{0}, b{1};
  begin_snapshot(&c, a, 128);
  EXPECT_EQ(find_snapshot(c, key(1)), kNoSnapshot);
  EXPECT_TRUE(finish_snapshot(&c, a, key(1), false));
  begin_snapshot(&c, b, 256);
  EXPECT_TRUE(finish_snapshot(&c, b, key(2), false));
  EXPECT_EQ(c.ready_snapshots.head, raw(a));
  touch_snapshot(&c, a);
  EXPECT_EQ(c.ready_snapshots.head, raw(b));
  drop_snapshot(&c, b);
  EXPECT_EQ(find_snapshot(c, key(2)), kNoSnapshot);
  EXPECT_EQ(find_snapshot(c, key(1)), a);
  // The same boundary again: the one that is there stays, and counts as used.
  begin_snapshot(&c, b, 128);
  EXPECT_FALSE(finish_snapshot(&c, b, key(1), false));
  EXPECT_EQ(at(c, b).place, SnapshotPlace::kFree);
}

TEST(Cache, ADroppedCopyIsNeverFound) {
  CacheState c = make_cache(0, 1);
  begin_snapshot(&c, SnapshotId(0), 128);
  drop_snapshot(&c, SnapshotId(0));
  EXPECT_EQ(at(c, SnapshotId(0)).place, SnapshotPlace::kFree);
  EXPECT_TRUE(c.snapshot_index.empty());
}

TEST(CacheDeathTest, ReleasingTwiceAborts) {
  CacheState c = make_cache(1, 0);
  take(&c, BlockId(0));
  unref(&c, BlockId(0));
  EXPECT_DEATH(unref(&c, BlockId(0)), "released more often than held");
  EXPECT_DEATH(unpin(&c, BlockId(0)), "released more often than held");
}

}  // namespace
}  // namespace deepinfer::policy
