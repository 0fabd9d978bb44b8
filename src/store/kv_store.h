// The contract of a store of blocks and windows, whatever keeps them: a directory of this machine, a shared
// file system, several directories with erasure coding, or a pool of objects somewhere else. Names and
// promises are those of serving specification 7.3: match is metadata only and never waits for a device;
// nothing is seen before its commit; a reader's bytes are checked and its lease asked for again after the
// last byte; what cannot be had is absent, never wrong. Source: serving specification 7. Threads: every
// function from any thread; call-backs come on threads of the store and must not call it back, except for
// release().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "policy/store_retention.h"
#include "store/record.h"
#include "store/tally.h"

namespace deepinfer::store {

enum class LeaseId : uint64_t {};   // 0: none
enum class TicketId : uint64_t {};  // of a write
enum class FetchId : uint64_t {};

struct Match {
  int64_t blocks = 0;            // leading blocks of the chain that are there
  std::vector<int64_t> windows;  // numbers of blocks, ascending, at whose end a window is there
  int64_t bytes = 0;             // payload of the blocks
  LeaseId lease{};               // of all of them; 0 when there is nothing
};

// Blocks of one chain and a window at its end are wanted layer by layer: what the first layers read is the
// beginning of every block's payload (Fetch::split bytes), and all of these come before the rest of any.
struct FetchPart {
  Kind kind = Kind::kBlock;
  Key key;
  std::span<uint8_t> to;  // as large as the payload; stays valid until `done`
};
struct FetchOutcome {
  size_t whole = 0;  // leading parts that are in place and checked
  Status why;        // of the first that is not
  int64_t bytes = 0, ns = 0;
};
struct Fetch {
  LeaseId lease{};
  std::vector<FetchPart> parts;  // in the order in which they are needed
  int64_t split = 0;             // 0: every part is read as a whole
  // Called at most once, before `done` and not beside it: windows, and the first `split` bytes of all blocks,
  // are in place and checked. After so many nanoseconds; not by every store.
  std::function<void(int64_t ns)> first;
  // Called once, whatever happens. After it, and after cancel(), nothing is written to any part.
  std::function<void(const FetchOutcome&)> done;
};

struct ObjectMeta {
  Kind kind = Kind::kBlock;
  Key key, parent;     // parent: the block before; must be there or be written before (no holes)
  bool first = false;  // it has no parent
  uint32_t depth = 0;
  int64_t payload_bytes = 0;
  policy::TtlWish ttl;  // without a wish: by `agent` and kind
  bool agent = false;
  ShardTag shard;
  int64_t split = 0;  // a fetch that is split there can have the beginning first; 0: it is read as a whole
};
struct Ticket {
  TicketId id{};
  std::vector<bool> wanted;  // false: it is there already, nothing is to be written
};

struct StoredName {
  Key key;
  uint32_t depth = 0, used_s = 0;
};
// Brings names into the order of KvStore::recent and leaves the first of them.
void keep_most_recent(std::vector<StoredName>* names, size_t most);

struct Counters {
  int64_t matches = 0, match_ns = 0, matched_blocks = 0, missed_matches = 0;
  Tally match_time, match_length;  // nanoseconds; blocks
  int64_t fetches = 0, fetched_objects = 0, fetched_bytes = 0, fetch_ns = 0, cancelled_fetches = 0;
  int64_t first_part_ns = 0;  // until the first part of a fetch was in place
  int64_t split_fetches = 0;  // of which the first layers of every block were in place before the rest,
  int64_t first_layers_ns = 0, split_fetch_ns = 0;  // after so long, and these fetches as a whole
  int64_t short_fetches = 0, integrity_failures = 0, lease_expiries = 0;
  int64_t commits = 0, committed_objects = 0, committed_bytes = 0, aborts = 0, write_errors = 0;
  int64_t refused_memory = 0, refused_parent = 0, duplicates = 0;
  int64_t evicted_objects = 0, expired_objects = 0, erased_by_others = 0;
  int64_t refreshes = 0, damaged_entries = 0, recovered_objects = 0, adopted_generations = 0, fenced = 0;
  int64_t degraded_reads = 0, hedged_reads = 0, repaired_parts = 0;
  int64_t clock_jumps = 0;
  int64_t kept_megabyte_s = 0;  // what was kept, times how long
};
struct Gauges {
  int64_t objects = 0, blocks = 0, windows = 0;
  int64_t held_bytes = 0, own_bytes = 0, quota_bytes = 0;  // own: of this process and what it took over
  int64_t index_bytes = 0, leases = 0, write_memory = 0, read_queue = 0, generations = 0;
  int64_t gc_age_s = 0;  // since the last use of what was evicted last
  bool uring = false, direct = false, writable = true;
  std::string trouble;  // why it is not writable; empty: all is well
};

class KvStore {
 public:
  virtual ~KvStore() = default;

  // The longest contiguous prefix that is there, with a lease of policy::kReadLeaseNs on all of it.
  virtual Match match(std::span<const Key> chain) = 0;
  virtual bool contains(Kind kind, const Key& key) = 0;
  virtual bool renew(LeaseId lease) = 0;  // false: it is over
  virtual void release(LeaseId lease) = 0;

  // Reads and checks. An expired lease, a missing or damaged object ends the whole parts there.
  virtual FetchId fetch(Fetch fetch) = 0;
  // Ends it with what is in place now; `done` is called before this returns, unless it was already.
  virtual void cancel(FetchId fetch) = 0;

  // Reserves memory for objects of one chain, in its order. kResourceExhausted when the writer's memory is
  // taken, kUnavailable when nothing can be written now: the caller drops them, or comes again.
  virtual Result<Ticket> begin(std::vector<ObjectMeta> objects) = 0;
  // Copies the payload of object i. REQUIRES wanted[i], a live ticket, each once.
  virtual void write(const Ticket& ticket, size_t i, std::span<const uint8_t> payload) = 0;
  // Makes them visible, asynchronously and in order; `done` hears how many are (acknowledged), or why not.
  virtual void commit(const Ticket& ticket, std::function<void(Status, size_t)> done) = 0;
  virtual void abort(const Ticket& ticket) = 0;  // nothing of it becomes visible

  // They were used: their lives are longer.
  virtual void touch(std::span<const Key> chain, bool agent, const policy::TtlWish& wish) = 0;
  virtual void invalidate(Kind kind, const Key& key, const std::string& reason) = 0;
  // What was used last and has this size: most recent first, beginnings of prefixes before their ends.
  virtual std::vector<StoredName> recent(Kind kind, int64_t payload_bytes, size_t most) = 0;

  // Waits until everything committed so far is visible or has failed.
  virtual void flush() = 0;
  virtual Counters counters() const = 0;
  virtual Gauges gauges() const = 0;
};

// Writes and reads one block and erases it; `unique` keeps processes apart that do so at the same time.
Status check_by_use(KvStore* store, uint64_t unique);
// Writes one object and waits for it; for tools and tests.
Status put_one(KvStore* store, const ObjectMeta& meta, std::span<const uint8_t> payload);
// Reads one object that is there and waits for it.
Result<std::vector<uint8_t>> get_one(KvStore* store, Kind kind, const Key& key, int64_t payload_bytes);

}  // namespace deepinfer::store
