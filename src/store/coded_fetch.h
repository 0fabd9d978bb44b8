// One fetch of a coded store: a bounded number of objects at a time, each from k + 1 places, joined when the
// first k are there. Private to the coded store. Source: serving specification 7.6. Threads: answers come on
// the directories' threads; everything is under the fetch's own lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "store/directory_store.h"
#include "store/erasure.h"

namespace deepinfer::store {

// The upper byte of an index entry's depth says which part of a coded object it is, plus one.
inline constexpr uint32_t kDepthMask = 0xffffff;

// The key of a part; the same function gives the object's key back.
inline Key part_key(Key key, int part) {
  key.words[3] ^= (static_cast<uint64_t>(part) + 1) * 0x9E3779B97F4A7C15u;
  return key;
}

struct CodedShared {
  Erasure code;
  std::vector<std::shared_ptr<DirectoryStore>> places;  // null: down
  int64_t hedge_ns = 0;
  std::atomic<uint64_t> turn{0};
  std::atomic<int64_t> degraded{0}, hedged{0};

  explicit CodedShared(Erasure c) : code(std::move(c)) {}
  DirectoryStore* place_of(const Key& key, int part) const {
    uint64_t n = places.size();
    return places[static_cast<size_t>((static_cast<uint64_t>(part) + key.words[0]) % n)].get();
  }
  // Whether at least `enough` parts are there, of the first `of` (0: all); part_bytes: of one of them.
  bool parts_there(Kind kind, const Key& key, int enough, int64_t* part_bytes = nullptr, int of = 0) const;
  ObjectMeta part_meta(const ObjectMeta& object, int part, int64_t bytes) const;
};

class CodedFetch : public std::enable_shared_from_this<CodedFetch> {
 public:
  CodedFetch(CodedShared* shared, std::vector<FetchPart> parts,
             std::function<void(const FetchOutcome&)> done);
  void advance();     // begins objects while there is room, and ends when there is nothing left
  void hedge_late();  // one more place for what is late
  void cancel();

 private:
  struct Asked {
    int part = 0;
    FetchId id{};
    std::vector<uint8_t> bytes;
    bool over = false, good = false;
  };
  struct Object {
    int64_t part_bytes = 0, begun_ns = 0;
    std::vector<std::shared_ptr<Asked>> asked;
    bool begun = false, over = false, good = false, was_hedged = false;
  };
  struct Order {  // a read to begin when the lock is free
    size_t object = 0;
    std::shared_ptr<Asked> asked;
  };
  void begin_object(size_t i, std::vector<Order>* orders);
  bool ask_more(size_t i, std::vector<Order>* orders);
  void give(std::vector<Order> orders);
  void answer(size_t i, const std::shared_ptr<Asked>& a, bool good);
  void finish();

  CodedShared* shared_;
  std::mutex mutex_;
  std::vector<FetchPart> parts_;
  std::function<void(const FetchOutcome&)> done_;
  std::vector<Object> objects_;
  size_t next_ = 0, open_ = 0;
  bool closed_ = false, broken_ = false;
  int64_t begun_ns_ = 0;
};

}  // namespace deepinfer::store
