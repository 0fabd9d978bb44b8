// Linear probing with a part of the hash in each slot; deletion moves later entries back.
#include "store/index.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "base/check.h"

namespace deepinfer::store {

using policy::ObjectEvent;
using policy::ObjectPhase;

namespace {
constexpr size_t kFirstSlots = 1024;
constexpr size_t kHugePage = size_t{2} << 20;

uint64_t hash(const Key& key, Kind kind) {
  // Keys are digests: any word of them is as good as a hash.
  return key.words[0] + static_cast<uint64_t>(kind) * 0x9E3779B97F4A7C15u;
}
uint32_t tag_of(uint64_t h) {
  return static_cast<uint32_t>(h >> 32 | 1);
}
}  // namespace

void Index::FreeMemory::operator()(void* p) const {
  std::free(p);
}

// A million entries are 16,000 small pages: looking their addresses up would cost more than reading them.
template <typename T>
Index::Table<T> Index::make_table(size_t n) {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
  size_t align = n * sizeof(T) >= kHugePage ? kHugePage : 64;
  size_t bytes = (n * sizeof(T) + align - 1) / align * align;
  void* p = std::aligned_alloc(align, bytes);
  DI_CHECK(p != nullptr, "no memory for the store's index");
  // Where the system has no huge pages, small ones do.
  if (align == kHugePage) (void)::madvise(p, bytes, MADV_HUGEPAGE);
  std::uninitialized_value_construct_n(static_cast<T*>(p), n);
  return Table<T>(static_cast<T*>(p));
}

Index::Index() : slot_count_(kFirstSlots), slots_(make_table<Slot>(kFirstSlots)) {}

size_t Index::probe(const Key& key, Kind kind, uint64_t h) const {
  size_t mask = slot_count_ - 1, slot = h & mask;
  uint32_t tag = tag_of(h);
  for (;; slot = (slot + 1) & mask) {
    if (slots_[slot].tag == 0) return slot;
    if (slots_[slot].tag != tag) continue;
    const IndexEntry& e = at(slots_[slot].id);
    if (e.key == key && e.kind == kind) return slot;
  }
}

EntryId Index::find(const Key& key, Kind kind) const {
  const Slot& slot = slots_[probe(key, kind, hash(key, kind))];
  return slot.tag == 0 ? kNoEntry : slot.id;
}

size_t Index::match(std::span<const Key> chain, uint32_t now_s, EntryId* out) const {
  size_t mask = slot_count_ - 1;
  for (size_t from = 0; from < chain.size(); from += kPiece) {
    std::span<const Key> piece = chain.subspan(from, std::min(kPiece, chain.size() - from));
    // Three passes: lines that are not in the cache are all asked for before the first of them is read.
    for (const Key& key : piece) __builtin_prefetch(&slots_[hash(key, Kind::kBlock) & mask]);
    for (size_t i = 0; i < piece.size(); ++i) {
      // The first slot with the key's tag is nearly always the key's.
      uint64_t h = hash(piece[i], Kind::kBlock);
      size_t slot = h & mask;
      while (slots_[slot].tag != 0 && slots_[slot].tag != tag_of(h)) slot = (slot + 1) & mask;
      EntryId id = slots_[slot].tag == 0 ? kNoEntry : slots_[slot].id;
      out[from + i] = id;
      if (id != kNoEntry) __builtin_prefetch(&at(id), 1);
    }
    for (size_t i = 0; i < piece.size(); ++i) {
      EntryId& id = out[from + i];
      if (id != kNoEntry && (at(id).key != piece[i] || at(id).kind != Kind::kBlock))
        id = find(piece[i], Kind::kBlock);
      if (id == kNoEntry || at(id).expires_s <= now_s) return from + i;
    }
  }
  return chain.size();
}

void Index::grow() {
  size_t count = slot_count_ * 2, mask = count - 1;
  Table<Slot> slots = make_table<Slot>(count);
  for (size_t i = 0; i < slot_count_; ++i) {
    if (slots_[i].tag == 0) continue;
    const IndexEntry& e = at(slots_[i].id);
    size_t to = hash(e.key, e.kind) & mask;
    while (slots[to].tag != 0) to = (to + 1) & mask;
    slots[to] = slots_[i];
  }
  slots_ = std::move(slots);
  slot_count_ = count;
}

EntryId Index::insert(const IndexEntry& entry) {
  uint64_t h = hash(entry.key, entry.kind);
  size_t slot = probe(entry.key, entry.kind, h);
  if (slots_[slot].tag != 0) {
    IndexEntry& old = at(slots_[slot].id);
    old.expires_s = std::max(old.expires_s, entry.expires_s);
    old.used_s = std::max(old.used_s, entry.used_s);
    return kNoEntry;
  }
  EntryId id = used_;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    DI_CHECK(used_ < kNoEntry, "the index has no more numbers");
    if (used_ % kChunk == 0) chunks_.push_back(make_table<IndexEntry>(kChunk));
    ++used_;
  }
  at(id) = entry;
  at(id).object = {ObjectPhase::kComplete, 0};
  at(id).window = 0;
  slots_[slot] = {tag_of(h), id};
  ++objects_;
  EntryId other = find(entry.key, entry.kind == Kind::kBlock ? Kind::kWindow : Kind::kBlock);
  if (other != kNoEntry) at(entry.kind == Kind::kBlock ? id : other).window = 1;
  if (static_cast<size_t>(objects_) * 4 > slot_count_ * 3) grow();
  return id;
}

void Index::erase_slot(size_t hole) {
  size_t mask = slot_count_ - 1;
  for (size_t next = (hole + 1) & mask; slots_[next].tag != 0; next = (next + 1) & mask) {
    const IndexEntry& e = at(slots_[next].id);
    size_t home = hash(e.key, e.kind) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;  // it may not move before its home
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = {};
}

void Index::drop(EntryId id, ObjectEvent why) {
  IndexEntry& e = at(id);
  apply(&e.object, why);
  size_t slot = probe(e.key, e.kind, hash(e.key, e.kind));
  DI_CHECK(slots_[slot].tag != 0 && slots_[slot].id == id, "an entry that is dropped was there");
  erase_slot(slot);
  --objects_;
  if (e.kind == Kind::kWindow) {
    if (EntryId block = find(e.key, Kind::kBlock); block != kNoEntry) at(block).window = 0;
  }
  free_entry(id);
}

void Index::release(EntryId id) {
  apply(&at(id).object, ObjectEvent::kRelease);
  free_entry(id);
}

void Index::free_entry(EntryId id) {
  policy::StoreObject& o = at(id).object;
  if (!allowed(o, ObjectEvent::kReuse)) return;
  apply(&o, ObjectEvent::kReuse);
  free_.push_back(id);
}

int64_t Index::memory_bytes() const {
  return static_cast<int64_t>(chunks_.size() * kChunk * sizeof(IndexEntry) + slot_count_ * sizeof(Slot) +
                              free_.capacity() * sizeof(EntryId));
}

}  // namespace deepinfer::store
