// Small helpers over the contract.
#include "store/kv_store.h"

#include <algorithm>
#include <future>

namespace deepinfer::store {

void keep_most_recent(std::vector<StoredName>* names, size_t most) {
  auto before = [](const StoredName& a, const StoredName& b) {
    if (a.used_s != b.used_s) return a.used_s > b.used_s;
    // The upper byte of a coded part's depth is its number.
    uint32_t depth_a = a.depth & 0xffffff, depth_b = b.depth & 0xffffff;
    return depth_a != depth_b ? depth_a < depth_b : a.key < b.key;
  };
  size_t n = std::min(most, names->size());
  std::partial_sort(names->begin(), names->begin() + static_cast<int64_t>(n), names->end(), before);
  names->resize(n);
}

Status put_one(KvStore* store, const ObjectMeta& meta, std::span<const uint8_t> payload) {
  DI_ASSIGN(Ticket t, store->begin({meta}));
  if (!t.wanted[0]) {
    store->abort(t);
    return {};
  }
  store->write(t, 0, payload);
  std::promise<Status> promise;
  store->commit(t, [&](Status s, size_t n) {
    promise.set_value(s.ok() && n == 0 ? error(Code::kUnavailable, "the object was not written") : s);
  });
  return promise.get_future().get();
}

Result<std::vector<uint8_t>> get_one(KvStore* store, Kind kind, const Key& key, int64_t payload_bytes) {
  std::vector<uint8_t> out(static_cast<size_t>(payload_bytes));
  std::promise<FetchOutcome> promise;
  Fetch f;
  f.parts.push_back({kind, key, out});
  f.done = [&](const FetchOutcome& o) { promise.set_value(o); };
  store->fetch(std::move(f));
  FetchOutcome o = promise.get_future().get();
  if (o.whole == 1) return out;
  return o.why;
}

Status check_by_use(KvStore* store, uint64_t unique) {
  constexpr size_t kBytes = 65536;
  ObjectMeta m;
  // No digest: four words that say what it is.
  m.key.words = {0x5e1fc4ec00000000u ^ unique, 0x5e1fc4ec, unique, ~unique};
  m.first = true;
  m.payload_bytes = static_cast<int64_t>(kBytes);
  m.ttl.block_s = 60;
  std::vector<uint8_t> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<uint8_t>(i * 31 + unique);
  DI_TRY(put_one(store, m, bytes).with_context("store self-check: writing"));
  Result<std::vector<uint8_t>> back = get_one(store, m.kind, m.key, m.payload_bytes);
  if (!back.ok()) return back.status().with_context("store self-check: reading back");
  if (*back != bytes) return error(Code::kInvalidData, "store self-check: other bytes came back");
  store->invalidate(m.kind, m.key, "self-check");
  store->flush();
  return {};
}

}  // namespace deepinfer::store
