// Between the loop and a persistent store: begins the loads the scheduler decided on, turns what came into
// events, and offers what was computed, in the order of its prefix. Knows block memory and window slots, not
// where a store keeps anything. Private to the engine. Source: serving specification 2.5, 7.7. Threads: the
// loop thread; `arrived` is called from the store's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "engine/block_pool.h"
#include "engine/cache_layout.h"
#include "engine/load_gate.h"
#include "engine/prefix_store.h"
#include "engine/sequence.h"
#include "engine/step_order.h"

namespace deepinfer {

// What one admission takes from the store.
struct LoadWanted {
  policy::SeqId seq{};
  std::shared_ptr<const StoreOffer> offer;
  std::vector<policy::BlockKey> keys;
  std::vector<policy::BlockId> blocks;
  policy::SnapshotId window = policy::kNoSnapshot;
  policy::BlockKey window_key;
  int64_t boundary = 0;
  bool split = false;  // what the first layers read before the rest
};
// What the first layers read is there, and the window it was asked for.
struct FirstLoaded {
  policy::SeqId seq{};
  policy::SnapshotId slot = policy::kNoSnapshot;
  std::shared_ptr<WindowSnapshot> window;
  int64_t rest_ns = 0;  // until the rest is predicted to be there
};
struct Loaded {
  policy::SeqId seq{};
  int64_t blocks = 0;
  policy::SnapshotId slot = policy::kNoSnapshot;
  std::shared_ptr<WindowSnapshot> window;  // null: it did not come
};

// What a warm-up brought in: the event that makes it known, and the windows for the executor.
struct WarmStart {
  policy::Warmed event;
  std::vector<WindowOrder> windows;
};

struct StoreBridgeParts {
  PrefixStore* store = nullptr;
  BlockArena* arena = nullptr;
  int64_t block_bytes = 0;  // of a block's content
  int64_t block_tokens = 0;
  BlockSplit split;
  std::function<WindowSnapshot()> make_window;
  std::function<const WindowSnapshot&(policy::SnapshotId)> window;  // one that a finished step has captured
  std::function<void(FirstLoaded)> first_arrived;
  std::function<void(Loaded)> arrived;
};

class StoreBridge {
 public:
  explicit StoreBridge(StoreBridgeParts parts) : p_(std::move(parts)) {}
  // Of a block's bytes, what later layers read than those of the first part; 0: it has one part.
  double rest_part() const {
    if (p_.split.bytes == 0) return 0;
    return 1 - static_cast<double>(p_.split.bytes) / static_cast<double>(p_.block_bytes);
  }
  // The gate of the load; null where it comes in one part.
  std::shared_ptr<LoadGate> load(LoadWanted wanted);
  void arrived(policy::SeqId seq) { loads_.erase(raw(seq)); }
  bool loading() const { return !loads_.empty(); }
  void give_up(policy::SeqId seq);
  void give_up_all() {
    while (!loads_.empty()) give_up(policy::SeqId(loads_.begin()->first));
  }
  int64_t check_deadlines(int64_t now_ns) { return p_.store->check_deadlines(now_ns); }
  void declined(const StoreOffer& offer) { p_.store->declined(offer); }
  // True: it is in the store, or on its way.
  bool put_block(const StoreWrite& write, policy::BlockId id);
  bool put_window(const StoreWrite& write, policy::SnapshotId id);
  // Fills free places with what was used last, for at most limit_ns. Waits; before the first request only.
  WarmStart warm_up(const policy::CacheState& cache, int64_t limit_ns);

 private:
  StoreBridgeParts p_;
  std::map<uint64_t, uint64_t> loads_;  // by SeqId: the store's number
};

}  // namespace deepinfer
