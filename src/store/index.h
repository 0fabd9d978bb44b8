// Where every visible object lies: a hash table of fixed entries of 64 bytes, found by key and kind. Metadata
// only; a match of a thousand keys is tens of microseconds, since the table's lines are asked for ahead of
// being read, and lie in huge pages where the system has them. Knows no files and takes no lock: its owner
// does. Memory: 64 bytes per entry (taken 2 MB at a time) and 8 bytes per slot of a table that is between 3/8
// and 3/4 full, so at most 86 bytes per object and 2 MB. Source: serving specification 7.3, 7.4. Threads: one
// at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "policy/store_object.h"
#include "store/record.h"

namespace deepinfer::store {

using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = UINT32_MAX;

struct IndexEntry {
  Key key;
  uint32_t segment = 0, page = 0;
  uint32_t payload_bytes = 0;
  uint32_t used_s = 0, expires_s = 0;
  uint32_t depth = 0;
  policy::StoreObject object;
  uint16_t writer = 0;  // which generation, by the owner's list
  Kind kind = Kind::kBlock;
  uint8_t window = 0;  // kBlock: a window at this block's end is there too
};
static_assert(sizeof(IndexEntry) == 64);

class Index {
 public:
  Index();
  // kNoEntry: not there. Found entries are kComplete.
  EntryId find(const Key& key, Kind kind) const;
  // Finds the leading keys that are there, as blocks: out[i] for i < result. Stops at the first that is
  // missing, or expired at `now_s`. `out` has a place for every key of the chain. Entries of a chain of
  // kPiece are in the first-level cache afterwards.
  static constexpr size_t kPiece = 128;
  size_t match(std::span<const Key> chain, uint32_t now_s, EntryId* out) const;
  // A new complete object; kNoEntry if the key is there already (its life is raised instead).
  EntryId insert(const IndexEntry& entry);
  // No longer found. Its entry stays while it is leased, then `collect` gives it away.
  void drop(EntryId id, policy::ObjectEvent why);
  void lease(EntryId id) { apply(&at(id).object, policy::ObjectEvent::kLease); }
  void release(EntryId id);

  IndexEntry& at(EntryId id) { return chunks_[id / kChunk][id % kChunk]; }
  const IndexEntry& at(EntryId id) const { return chunks_[id / kChunk][id % kChunk]; }
  EntryId end() const { return used_; }  // entries are [0, end); some of them are absent
  int64_t objects() const { return objects_; }
  int64_t memory_bytes() const;

 private:
  static constexpr uint32_t kChunk = 32768;  // 2 MB of entries: one huge page
  struct Slot {
    uint32_t tag = 0;  // bits of the hash, never 0; 0: empty
    EntryId id = 0;
  };
  struct FreeMemory {
    void operator()(void* p) const;
  };
  template <typename T>
  using Table = std::unique_ptr<T[], FreeMemory>;
  template <typename T>
  static Table<T> make_table(size_t n);

  size_t probe(const Key& key, Kind kind, uint64_t h) const;  // slot of the key, or of the gap where it goes
  void grow();
  void erase_slot(size_t slot);
  void free_entry(EntryId id);

  std::vector<Table<IndexEntry>> chunks_;
  std::vector<EntryId> free_;
  uint32_t used_ = 0;
  size_t slot_count_ = 0;  // a power of two
  Table<Slot> slots_;
  int64_t objects_ = 0;
};

}  // namespace deepinfer::store
