// Spans of block memory out, loaded windows in.
#include "engine/store_bridge.h"

#include "engine/window_record.h"

namespace deepinfer {

void StoreBridge::load(LoadWanted w) {
  StoreLoad l;
  l.offer = std::move(w.offer);
  l.keys = std::move(w.keys);
  for (policy::BlockId id : w.blocks)
    l.blocks.emplace_back(p_.arena->data(raw(id)), static_cast<size_t>(p_.block_bytes));
  auto slot = std::make_shared<WindowSnapshot>();
  auto bytes = std::make_shared<std::vector<uint8_t>>();
  l.window = w.window != policy::kNoSnapshot;
  if (l.window) {
    *slot = p_.make_window();
    bytes->resize(static_cast<size_t>(window_record_bytes(*slot)));
    l.window_key = w.window_key;
    l.window_bytes = *bytes;
  }
  l.done = [seq = w.seq, id = w.window, boundary = w.boundary, slot, bytes, arrived = p_.arrived](
               int64_t blocks, bool window) {
    Loaded out{seq, blocks, id, nullptr};
    if (window && decode_window(*bytes, boundary, slot.get()).ok()) out.window = slot;
    arrived(std::move(out));
  };
  uint64_t number = p_.store->load(std::move(l));
  loads_[raw(w.seq)] = number;
}

void StoreBridge::give_up(policy::SeqId seq) {
  auto it = loads_.find(raw(seq));
  if (it == loads_.end()) return;
  uint64_t number = it->second;
  loads_.erase(it);
  p_.store->give_up(number);
}

bool StoreBridge::put_block(const StoreWrite& write, policy::BlockId id) {
  if (!p_.store->wants(write)) return true;
  return p_.store->put(write, {p_.arena->data(raw(id)), static_cast<size_t>(p_.block_bytes)});
}

bool StoreBridge::put_window(const StoreWrite& write, policy::SnapshotId id) {
  if (!p_.store->wants(write)) return true;
  return p_.store->put(write, encode_window(p_.window(id)));
}

}  // namespace deepinfer
