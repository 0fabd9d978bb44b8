// What the engine asks of a persistent store of prefixes; a store implements it, the engine owns the words.
// Nothing here waits, but for read_now() at start-up: a match is metadata, loads and writes go on beside the
// steps. What a store hands out has been checked against its key; what it cannot hand out is computed.
// Source: serving specification 2.5, 7.3, 7.7. Threads: match() from the caller of submit(), give_up() from
// any, the rest from the loop thread; `first` and `done` from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policy/ids.h"

namespace deepinfer {

// How long what a request leaves behind should be kept.
struct StoreWish {
  bool agent = false;        // traffic of an agent: shorter than a chat's
  int64_t ttl_s = 0;         // > 0: the request's own, of its windows too unless the next one says otherwise
  int64_t window_ttl_s = 0;  // > 0: of its windows
  bool no_write = false;     // nothing of it is kept
  bool no_windows = false;   // of it no windows
};

// What is there of a prompt, as an offer: prices are predictions. Letting go of it ends the store's hold on
// it.
struct StoreOffer {
  int64_t blocks = 0;            // leading blocks
  std::vector<int64_t> windows;  // numbers of blocks at whose end a window is there, ascending
  int64_t ns_per_block = 0, ns_per_window = 0;
  std::shared_ptr<void> hold;
};

struct StoreLoad {
  std::shared_ptr<const StoreOffer> offer;
  std::vector<policy::BlockKey> keys;      // of the blocks wanted, in order
  std::vector<std::span<uint8_t>> blocks;  // where they go
  bool window = false;
  policy::BlockKey window_key;
  std::span<uint8_t> window_bytes;
  // The first `split` bytes of every block are what the first layers read, and are wanted, with the window,
  // before the rest of any; 0: they are not wanted apart. `first`: at most once, before `done`: they are in
  // place, and the rest is predicted to take so long. A store may leave it out.
  int64_t split = 0;
  std::function<void(int64_t rest_ns)> first;
  // Once: how many leading blocks are in place, and whether the window is. Nothing is written afterwards.
  std::function<void(int64_t blocks, bool window)> done;
};

struct StoreWrite {
  policy::BlockKey key, parent;  // of a window: its block's key twice
  bool first = false;            // no block before it
  bool window = false;
  int64_t index = 0;  // of the block in its prefix
  int64_t split = 0;  // as a load will want it; 0: in one part
  StoreWish wish;
};

// What a store holds, by name.
struct StoreItem {
  policy::BlockKey key;
  int64_t index = 0;  // of the block in its prefix; of a window: of the block it ends with
};

// For metrics: names and values, counters grow only.
struct StoreFigures {
  std::vector<std::pair<std::string, int64_t>> counters, gauges;
  std::string trouble;  // why nothing can be written now; empty: all is well
};

class PrefixStore {
 public:
  virtual ~PrefixStore() = default;
  // Null: nothing is there.
  virtual std::shared_ptr<const StoreOffer> match(std::span<const policy::BlockKey> keys,
                                                  const StoreWish& wish) = 0;
  // An offer was not taken although it reached further than what was here: its price was too high.
  virtual void declined(const StoreOffer& offer) = 0;
  // Begins it; what has not come by the store's own deadline counts as not there.
  virtual uint64_t load(StoreLoad load) = 0;
  virtual void give_up(uint64_t load) = 0;  // `done` comes before this returns, unless it came already
  // Ends loads whose deadline has passed. When it should be asked next; INT64_MAX: never.
  virtual int64_t check_deadlines(int64_t now_ns) = 0;
  // Whether the object should be offered at all: it is not there and would not leave a hole.
  virtual bool wants(const StoreWrite& write) = 0;
  // Copies the bytes. False: not now (memory, disk); what follows in its prefix must not be offered either.
  virtual bool put(const StoreWrite& write, std::span<const uint8_t> bytes) = 0;
  // What was used last and has this size: most recent first, beginnings of prefixes before their ends.
  virtual std::vector<StoreItem> recent(bool windows, int64_t bytes, int64_t most) = 0;
  // Reads them, for at most so long, and waits for it. True where the bytes are in place.
  virtual std::vector<bool> read_now(bool windows, std::span<const StoreItem> items,
                                     std::span<const std::span<uint8_t>> to, int64_t limit_ns) = 0;
  virtual void report(StoreFigures* figures) const = 0;
};

}  // namespace deepinfer
