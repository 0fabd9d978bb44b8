// Lists are threaded through the entries, so that every operation is constant time and the order is explicit.
#include "policy/cache.h"

#include "base/check.h"

namespace deepinfer::policy {
namespace {

template <typename Entry>
void append(std::vector<Entry>* entries, IdList* list, int32_t i) {
  Entry& e = (*entries)[static_cast<size_t>(i)];
  e.prev = list->tail;
  e.next = -1;
  if (list->tail >= 0) (*entries)[static_cast<size_t>(list->tail)].next = i;
  list->tail = i;
  if (list->head < 0) list->head = i;
}

template <typename Entry>
void unlink(std::vector<Entry>* entries, IdList* list, int32_t i) {
  Entry& e = (*entries)[static_cast<size_t>(i)];
  (e.prev >= 0 ? (*entries)[static_cast<size_t>(e.prev)].next : list->head) = e.next;
  (e.next >= 0 ? (*entries)[static_cast<size_t>(e.next)].prev : list->tail) = e.prev;
  e.prev = e.next = -1;
}

IdList* list_of(CacheState* c, BlockPlace place) {
  if (place == BlockPlace::kFree) return &c->free_blocks;
  return place == BlockPlace::kIdle ? &c->idle_blocks : nullptr;
}

// Runs a change of one block's counts and moves it to the list of its new place.
template <typename Change>
void change(CacheState* c, BlockId id, Change&& edit) {
  BlockEntry& b = c->blocks[static_cast<size_t>(raw(id))];
  BlockPlace before = place_of(b);
  edit(b);
  DI_CHECK(b.refs >= 0 && b.pins >= 0 && b.leases >= 0, "a block was released more often than held");
  BlockPlace after = place_of(b);
  if (before == after) return;
  --c->count[static_cast<int>(before)];
  ++c->count[static_cast<int>(after)];
  if (IdList* from = list_of(c, before)) unlink(&c->blocks, from, raw(id));
  if (IdList* to = list_of(c, after)) append(&c->blocks, to, raw(id));
}

}  // namespace

CacheState make_cache(int64_t pool_blocks, int64_t snapshot_slots) {
  CacheState c;
  c.blocks.resize(static_cast<size_t>(pool_blocks));
  c.snapshots.resize(static_cast<size_t>(snapshot_slots));
  for (int32_t i = 0; i < static_cast<int32_t>(pool_blocks); ++i) append(&c.blocks, &c.free_blocks, i);
  for (int32_t i = 0; i < static_cast<int32_t>(snapshot_slots); ++i)
    append(&c.snapshots, &c.free_snapshots, i);
  c.count[static_cast<int>(BlockPlace::kFree)] = pool_blocks;
  return c;
}

BlockPlace place_of(const BlockEntry& b) {
  if (b.refs > 0) return BlockPlace::kUsed;
  if (b.pins > 0) return BlockPlace::kPinned;
  if (b.leases > 0) return BlockPlace::kLeased;
  return b.cached ? BlockPlace::kIdle : BlockPlace::kFree;
}

BlockId find(const CacheState& c, const BlockKey& key) {
  auto it = c.index.find(key);
  return it == c.index.end() ? kNoBlock : it->second;
}

SnapshotId find_snapshot(const CacheState& c, const BlockKey& key) {
  auto it = c.snapshot_index.find(key);
  return it == c.snapshot_index.end() ? kNoSnapshot : it->second;
}

void take(CacheState* c, BlockId id) {
  DI_CHECK(place_of(at(*c, id)) == BlockPlace::kFree, "only a free block can be taken");
  change(c, id, [](BlockEntry& b) { b.refs = 1; });
}

void ref(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { ++b.refs; });
}
void unref(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { --b.refs; });
}
void lease(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { ++b.leases; });
}
void unlease(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { --b.leases; });
}
void pin(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { ++b.pins; });
}
void unpin(CacheState* c, BlockId id) {
  change(c, id, [](BlockEntry& b) { --b.pins; });
}

bool publish(CacheState* c, BlockId id, const BlockKey& key, int32_t index, bool replayed) {
  DI_CHECK(!at(*c, id).cached, "a block has one key");
  auto [it, fresh] = c->index.try_emplace(key, id);
  if (!fresh) {
    if (replayed || !at(*c, it->second).replayed) return false;
    BlockId old = it->second;
    it->second = id;
    change(c, old, [](BlockEntry& b) { b.cached = b.replayed = false; });
  }
  change(c, id, [&](BlockEntry& b) {
    b.cached = true;
    b.key = key;
    b.index = index;
    b.replayed = replayed;
  });
  return true;
}

void uncache(CacheState* c, BlockId id) {
  if (!at(*c, id).cached) return;
  c->index.erase(at(*c, id).key);
  change(c, id, [](BlockEntry& b) { b.cached = b.replayed = false; });
}

void begin_snapshot(CacheState* c, SnapshotId id, int64_t boundary_tokens) {
  SnapshotEntry& s = c->snapshots[static_cast<size_t>(raw(id))];
  DI_CHECK(s.place == SnapshotPlace::kFree, "only a free slot can be written");
  unlink(&c->snapshots, &c->free_snapshots, raw(id));
  s.place = SnapshotPlace::kWriting;
  s.boundary_tokens = boundary_tokens;
}

bool finish_snapshot(CacheState* c, SnapshotId id, const BlockKey& key, bool replayed) {
  SnapshotEntry& s = c->snapshots[static_cast<size_t>(raw(id))];
  DI_CHECK(s.place == SnapshotPlace::kWriting, "only a slot being written can be finished");
  SnapshotId old = find_snapshot(*c, key);
  if (old != kNoSnapshot) {
    bool better = at(*c, old).replayed && !replayed && at(*c, old).pins == 0;
    if (!better) {
      touch_snapshot(c, old);
      drop_snapshot(c, id);
      return false;
    }
    drop_snapshot(c, old);
  }
  s.place = SnapshotPlace::kReady;
  s.key = key;
  s.replayed = replayed;
  append(&c->snapshots, &c->ready_snapshots, raw(id));
  c->snapshot_index.emplace(key, id);
  return true;
}

void touch_snapshot(CacheState* c, SnapshotId id) {
  DI_CHECK(at(*c, id).place == SnapshotPlace::kReady, "only a ready snapshot is used");
  unlink(&c->snapshots, &c->ready_snapshots, raw(id));
  append(&c->snapshots, &c->ready_snapshots, raw(id));
}

void drop_snapshot(CacheState* c, SnapshotId id) {
  SnapshotEntry& s = c->snapshots[static_cast<size_t>(raw(id))];
  DI_CHECK(s.pins == 0 && s.place != SnapshotPlace::kFree, "a pinned or free snapshot is not dropped");
  if (s.place == SnapshotPlace::kReady) {
    c->snapshot_index.erase(s.key);
    unlink(&c->snapshots, &c->ready_snapshots, raw(id));
  }
  s.place = SnapshotPlace::kFree;
  s.replayed = false;
  append(&c->snapshots, &c->free_snapshots, raw(id));
}

}  // namespace deepinfer::policy
