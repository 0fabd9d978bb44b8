// A chained hash table whose entries also stand in a list by last use.
#include "sim/block_store.h"

namespace deepinfer::sim {

BlockStore::BlockStore(int64_t ttl_ns) : ttl_ns_(ttl_ns), heads_(1024, -1) {}

size_t BlockStore::bucket(uint64_t key) const {
  uint64_t z = key * 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(z >> 20) & (heads_.size() - 1);
}

int32_t BlockStore::find(uint64_t key) const {
  int32_t i = heads_[bucket(key)];
  while (i >= 0 && entries_[static_cast<size_t>(i)].key != key) i = entries_[static_cast<size_t>(i)].chain;
  return i;
}

bool BlockStore::contains(uint64_t key, int64_t now_ns) const {
  const int32_t i = find(key);
  return i >= 0 && (ttl_ns_ == 0 || entries_[static_cast<size_t>(i)].used_ns + ttl_ns_ > now_ns);
}

void BlockStore::link_newest(int32_t i) {
  Entry& e = entries_[static_cast<size_t>(i)];
  e.prev = newest_;
  e.next = -1;
  if (newest_ >= 0) entries_[static_cast<size_t>(newest_)].next = i;
  newest_ = i;
  if (oldest_ < 0) oldest_ = i;
}

void BlockStore::unlink(int32_t i) {
  Entry& e = entries_[static_cast<size_t>(i)];
  (e.prev >= 0 ? entries_[static_cast<size_t>(e.prev)].next : oldest_) = e.next;
  (e.next >= 0 ? entries_[static_cast<size_t>(e.next)].prev : newest_) = e.prev;
}

void BlockStore::put(uint64_t key, int64_t now_ns) {
  int32_t i = find(key);
  if (i >= 0) {
    unlink(i);
  } else {
    if (static_cast<size_t>(size_) >= heads_.size()) grow();
    if (free_ >= 0) {
      i = free_;
      free_ = entries_[static_cast<size_t>(i)].chain;
    } else {
      i = static_cast<int32_t>(entries_.size());
      entries_.emplace_back();
    }
    Entry& e = entries_[static_cast<size_t>(i)];
    e.key = key;
    e.chain = heads_[bucket(key)];
    heads_[bucket(key)] = i;
    ++size_;
  }
  entries_[static_cast<size_t>(i)].used_ns = now_ns;
  link_newest(i);
}

void BlockStore::erase(int32_t i) {
  Entry& e = entries_[static_cast<size_t>(i)];
  int32_t* at = &heads_[bucket(e.key)];
  while (*at != i) at = &entries_[static_cast<size_t>(*at)].chain;
  *at = e.chain;
  unlink(i);
  e.chain = free_;
  free_ = i;
  --size_;
}

int64_t BlockStore::expire(int64_t now_ns) {
  int64_t dropped = 0;
  while (ttl_ns_ > 0 && oldest_ >= 0 && entries_[static_cast<size_t>(oldest_)].used_ns + ttl_ns_ <= now_ns) {
    erase(oldest_);
    ++dropped;
  }
  return dropped;
}

int64_t BlockStore::evict_oldest() {
  if (oldest_ < 0) return 0;
  erase(oldest_);
  return 1;
}

void BlockStore::grow() {
  heads_.assign(heads_.size() * 2, -1);
  for (int32_t i = oldest_; i >= 0; i = entries_[static_cast<size_t>(i)].next) {
    Entry& e = entries_[static_cast<size_t>(i)];
    e.chain = heads_[bucket(e.key)];
    heads_[bucket(e.key)] = i;
  }
}

}  // namespace deepinfer::sim
