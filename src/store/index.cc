// Linear probing with a byte of the hash beside each slot; deletion moves later entries back.
#include "store/index.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::store {

using policy::ObjectEvent;
using policy::ObjectPhase;

namespace {
constexpr size_t kFirstSlots = 1024;
uint8_t tag_of(uint64_t h) {
  return static_cast<uint8_t>(h >> 56 | 1);
}
}  // namespace

Index::Index() : tags_(kFirstSlots), slots_(kFirstSlots, kNoEntry) {}

uint64_t Index::hash(const Key& key, Kind kind) const {
  // Keys are digests: any word of them is as good as a hash.
  return key.words[0] + static_cast<uint64_t>(kind) * 0x9E3779B97F4A7C15u;
}

size_t Index::probe(const Key& key, Kind kind, uint64_t h) const {
  size_t mask = slots_.size() - 1, slot = h & mask;
  uint8_t tag = tag_of(h);
  for (;; slot = (slot + 1) & mask) {
    if (tags_[slot] == 0) return slot;
    if (tags_[slot] != tag) continue;
    const IndexEntry& e = at(slots_[slot]);
    if (e.key == key && e.kind == kind) return slot;
  }
}

EntryId Index::find(const Key& key, Kind kind) const {
  size_t slot = probe(key, kind, hash(key, kind));
  return tags_[slot] == 0 ? kNoEntry : slots_[slot];
}

size_t Index::match(std::span<const Key> chain, uint32_t now_s, EntryId* out) const {
  // Three stages run ahead of each other: the slot's line is asked for, then the entry's, then it is read.
  constexpr size_t kSlotAhead = 24, kEntryAhead = 12;
  size_t mask = slots_.size() - 1, n = chain.size();
  auto ask_slot = [&](size_t i) {
    if (i >= n) return;
    size_t slot = hash(chain[i], Kind::kBlock) & mask;
    __builtin_prefetch(&tags_[slot]);
    __builtin_prefetch(&slots_[slot]);
  };
  auto ask_entry = [&](size_t i) {
    if (i >= n) return;
    uint64_t h = hash(chain[i], Kind::kBlock);
    uint8_t tag = tag_of(h);
    for (size_t slot = h & mask; tags_[slot] != 0; slot = (slot + 1) & mask) {
      if (tags_[slot] != tag) continue;
      __builtin_prefetch(&at(slots_[slot]), 1);
      return;
    }
  };
  for (size_t i = 0; i < kSlotAhead; ++i) ask_slot(i);
  for (size_t i = 0; i < kEntryAhead; ++i) ask_entry(i);
  for (size_t i = 0; i < n; ++i) {
    ask_slot(i + kSlotAhead);
    ask_entry(i + kEntryAhead);
    EntryId id = find(chain[i], Kind::kBlock);
    if (id == kNoEntry || at(id).expires_s <= now_s) return i;
    out[i] = id;
  }
  return n;
}

void Index::grow() {
  std::vector<uint8_t> tags(tags_.size() * 2);
  std::vector<EntryId> slots(slots_.size() * 2, kNoEntry);
  size_t mask = slots.size() - 1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (tags_[i] == 0) continue;
    const IndexEntry& e = at(slots_[i]);
    size_t to = hash(e.key, e.kind) & mask;
    while (tags[to] != 0) to = (to + 1) & mask;
    tags[to] = tags_[i];
    slots[to] = slots_[i];
  }
  tags_.swap(tags);
  slots_.swap(slots);
}

EntryId Index::insert(const IndexEntry& entry) {
  uint64_t h = hash(entry.key, entry.kind);
  size_t slot = probe(entry.key, entry.kind, h);
  if (tags_[slot] != 0) {
    IndexEntry& old = at(slots_[slot]);
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
    if (used_ % kChunk == 0) chunks_.push_back(std::make_unique<IndexEntry[]>(kChunk));
    ++used_;
  }
  at(id) = entry;
  at(id).object = {ObjectPhase::kComplete, 0};
  at(id).window = 0;
  tags_[slot] = tag_of(h);
  slots_[slot] = id;
  ++objects_;
  EntryId other = find(entry.key, entry.kind == Kind::kBlock ? Kind::kWindow : Kind::kBlock);
  if (other != kNoEntry) at(entry.kind == Kind::kBlock ? id : other).window = 1;
  if (static_cast<size_t>(objects_) * 4 > slots_.size() * 3) grow();
  return id;
}

void Index::erase_slot(size_t hole) {
  size_t mask = slots_.size() - 1;
  for (size_t next = (hole + 1) & mask; tags_[next] != 0; next = (next + 1) & mask) {
    const IndexEntry& e = at(slots_[next]);
    size_t home = hash(e.key, e.kind) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;  // it may not move before its home
    tags_[hole] = tags_[next];
    slots_[hole] = slots_[next];
    hole = next;
  }
  tags_[hole] = 0;
  slots_[hole] = kNoEntry;
}

void Index::drop(EntryId id, ObjectEvent why) {
  IndexEntry& e = at(id);
  apply(&e.object, why);
  size_t slot = probe(e.key, e.kind, hash(e.key, e.kind));
  DI_CHECK(tags_[slot] != 0 && slots_[slot] == id, "an entry that is dropped was there");
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
  return static_cast<int64_t>(chunks_.size() * kChunk * sizeof(IndexEntry) + tags_.capacity() +
                              slots_.capacity() * sizeof(EntryId) + free_.capacity() * sizeof(EntryId));
}

}  // namespace deepinfer::store
