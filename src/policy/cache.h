// Who holds which cache block and window snapshot, and which may be given up. Blocks are shared by reference
// count, found by content, kept after their last user in least-recently-used order, and never given up while
// anybody holds them. Snapshots have their own budget of slots. Knows no bytes: ids and keys only.
// Source: serving specification 2.2, 2.5, 7.3, 7.5; model specification 10.3. Threads: plain data, one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "policy/ids.h"

namespace deepinfer::policy {

// Every block is in exactly one of these; the first that applies.
enum class BlockPlace : uint8_t {
  kUsed,    // referenced by running (or not yet drained) sequences
  kPinned,  // read by somebody outside: a store write, a transfer
  kLeased,  // cached, and a waiting request will need it
  kIdle,    // cached, nobody needs it: may be evicted
  kFree,
};
inline constexpr int kBlockPlaces = 5;

struct BlockEntry {
  int32_t refs = 0, pins = 0, leases = 0;
  bool cached = false;    // findable by its key
  bool replayed = false;  // computed after an encoder replay: close to, but not bit for bit, a cold run's
  int32_t index = 0;      // its place in the prefix: block i covers positions from i * window
  int32_t prev = -1, next = -1;  // in the free or the idle list
  BlockKey key;
};

enum class SnapshotPlace : uint8_t { kFree, kWriting, kReady };
struct SnapshotEntry {
  SnapshotPlace place = SnapshotPlace::kFree;
  int32_t pins = 0;  // being restored or copied
  bool replayed = false;
  int64_t boundary_tokens = 0;
  int32_t prev = -1, next = -1;  // in the free list, or in the list of ready ones by last use
  BlockKey key;                  // of the block that ends at the boundary
};

struct IdList {
  int32_t head = -1, tail = -1;
};

struct CacheState {
  std::vector<BlockEntry> blocks;
  int64_t count[kBlockPlaces] = {0, 0, 0, 0, 0};
  IdList free_blocks, idle_blocks;  // idle: next to evict at the head
  std::map<BlockKey, BlockId> index;
  std::vector<SnapshotEntry> snapshots;
  IdList free_snapshots, ready_snapshots;  // ready: least recently used at the head
  std::map<BlockKey, SnapshotId> snapshot_index;
};

CacheState make_cache(int64_t pool_blocks, int64_t snapshot_slots);

BlockPlace place_of(const BlockEntry& block);
inline const BlockEntry& at(const CacheState& c, BlockId id) {
  return c.blocks[static_cast<size_t>(raw(id))];
}
inline const SnapshotEntry& at(const CacheState& c, SnapshotId id) {
  return c.snapshots[static_cast<size_t>(raw(id))];
}
// Blocks that could be given to somebody: free, idle, or held only for requests that wait.
inline int64_t obtainable(const CacheState& c) {
  return c.count[static_cast<int>(BlockPlace::kFree)] + c.count[static_cast<int>(BlockPlace::kIdle)] +
         c.count[static_cast<int>(BlockPlace::kLeased)];
}

BlockId find(const CacheState& c, const BlockKey& key);  // kNoBlock if absent
SnapshotId find_snapshot(const CacheState& c, const BlockKey& key);

// Gives a free block its first reference. REQUIRES place kFree.
void take(CacheState* c, BlockId id);
// Each count goes up and down exactly once per holder; below zero is a fault of the caller and aborts.
void ref(CacheState* c, BlockId id);
void unref(CacheState* c, BlockId id);
void lease(CacheState* c, BlockId id);
void unlease(CacheState* c, BlockId id);
void pin(CacheState* c, BlockId id);
void unpin(CacheState* c, BlockId id);
// Makes a block findable. An equal key that is there already stays, and this block stays private, unless the
// old one was replayed and this one is exact. Returns whether this block is the one found from now on.
bool publish(CacheState* c, BlockId id, const BlockKey& key, int32_t index, bool replayed);
// Makes it unfindable (evicted, or its bytes are bad); holders keep it. A block nobody holds becomes free.
void uncache(CacheState* c, BlockId id);

void begin_snapshot(CacheState* c, SnapshotId id, int64_t boundary_tokens);  // REQUIRES kFree
// The copy is there and may be found. A key that is there already wins, unless it was replayed and this is
// not.
bool finish_snapshot(CacheState* c, SnapshotId id, const BlockKey& key, bool replayed);
void touch_snapshot(CacheState* c, SnapshotId id);  // used now. REQUIRES kReady
void drop_snapshot(CacheState* c, SnapshotId id);   // to kFree. REQUIRES no pins

}  // namespace deepinfer::policy
