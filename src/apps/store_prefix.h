// The engine's PrefixStore over a KvStore: prices and deadlines from the restore policy, objects from blocks
// and windows. Joins two rooms that do not know each other. Source: serving specification 7; docs/store.md.
// Threads: as PrefixStore.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "engine/prefix_store.h"
#include "policy/store_restore.h"
#include "store/coded_store.h"

namespace deepinfer {

class StorePrefix : public PrefixStore {
 public:
  // The store outlives this object.
  explicit StorePrefix(store::KvStore* store, policy::RestoreRules rules = {});
  ~StorePrefix() override;  // waits for its own reads

  std::shared_ptr<const StoreOffer> match(std::span<const policy::BlockKey> keys,
                                          const StoreWish& wish) override;
  void declined(const StoreOffer& offer) override;
  uint64_t load(StoreLoad load) override;
  void give_up(uint64_t load) override;
  int64_t check_deadlines(int64_t now_ns) override;
  bool wants(const StoreWrite& write) override;
  bool put(const StoreWrite& write, std::span<const uint8_t> bytes) override;
  std::vector<StoreItem> recent(bool windows, int64_t bytes, int64_t most) override;
  std::vector<bool> read_now(bool windows, std::span<const StoreItem> items,
                             std::span<const std::span<uint8_t>> to, int64_t limit_ns) override;
  void report(StoreFigures* figures) const override;

  // A read of so many bytes took so long: what is quoted from now on follows.
  void measured(int64_t bytes, int64_t ns);
  policy::RestoreState restore() const;

 private:
  struct Offer;
  struct Loading {
    store::FetchId fetch{};
    int64_t deadline_ns = 0;
  };
  void probe(const policy::BlockKey& key, int64_t bytes);

  store::KvStore* store_;
  const policy::RestoreRules rules_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  policy::RestoreState restore_;
  std::map<uint64_t, Loading> loading_;
  uint64_t last_ = 0;
  int64_t block_bytes_ = 0, window_bytes_ = 0;  // as last seen
  int64_t late_loads_ = 0, puts_ = 0, put_bytes_ = 0, refused_ = 0, probes_ = 0;
  std::shared_ptr<std::vector<uint8_t>> probe_bytes_;  // of the probe under way
  store::FetchId probe_fetch_{};
};

// One directory, or several with a code over them.
using StoreOptions = store::CodedOptions;
struct OpenedStore {
  std::unique_ptr<store::KvStore> kept;
  std::unique_ptr<StorePrefix> prefix;  // goes first
  std::string notice;                   // for a person
};
// Opens or makes the store, writes and reads one block, and takes the first price from that.
Result<OpenedStore> open_prefix_store(const StoreOptions& options);

}  // namespace deepinfer
