// What a store holds and for how long: keys with their last use, expiry after a time to live, the oldest
// given up first. An index and a list in one array; no bytes. Source: serving specification 7.5. Threads: one
// owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::sim {

class BlockStore {
 public:
  explicit BlockStore(int64_t ttl_ns);  // since the last use; 0: for ever
  bool contains(uint64_t key, int64_t now_ns) const;
  void put(uint64_t key, int64_t now_ns);  // inserts, or refreshes the last use
  int64_t expire(int64_t now_ns);          // drops what is past its time; returns how many
  int64_t evict_oldest();                  // returns 1, or 0 if there is nothing
  int64_t size() const { return size_; }

 private:
  struct Entry {
    uint64_t key = 0;
    int64_t used_ns = 0;
    int32_t prev = -1, next = -1;  // by last use
    int32_t chain = -1;            // same bucket, or the next free entry
  };
  size_t bucket(uint64_t key) const;
  int32_t find(uint64_t key) const;
  void link_newest(int32_t i);
  void unlink(int32_t i);
  void erase(int32_t i);
  void grow();

  int64_t ttl_ns_;
  int64_t size_ = 0;
  std::vector<int32_t> heads_;
  std::vector<Entry> entries_;
  int32_t free_ = -1, oldest_ = -1, newest_ = -1;
};

}  // namespace deepinfer::sim
