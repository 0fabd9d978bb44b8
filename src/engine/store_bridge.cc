// Spans of block memory out, loaded windows in.
#include "engine/store_bridge.h"

#include "engine/window_record.h"

namespace deepinfer {

namespace {

// A window on its way: its bytes, and the slot they are decoded into once they are there.
struct ComingWindow {
  std::vector<uint8_t> bytes;
  std::shared_ptr<WindowSnapshot> slot;
  bool decoded = false, sound = false;

  std::shared_ptr<WindowSnapshot> take(int64_t boundary) {
    if (!decoded) sound = decode_window(bytes, boundary, slot.get()).ok();
    decoded = true;
    return sound ? slot : nullptr;
  }
};

}  // namespace

std::shared_ptr<LoadGate> StoreBridge::load(LoadWanted w) {
  StoreLoad l;
  l.offer = std::move(w.offer);
  l.keys = std::move(w.keys);
  for (policy::BlockId id : w.blocks)
    l.blocks.emplace_back(p_.arena->data(raw(id)), static_cast<size_t>(p_.block_bytes));
  auto window = std::make_shared<ComingWindow>();
  l.window = w.window != policy::kNoSnapshot;
  if (l.window) {
    window->slot = std::make_shared<WindowSnapshot>(p_.make_window());
    window->bytes.resize(static_cast<size_t>(window_record_bytes(*window->slot)));
    l.window_key = w.window_key;
    l.window_bytes = window->bytes;
  }
  std::shared_ptr<LoadGate> gate;
  if (w.split && p_.split.bytes > 0 && !l.blocks.empty()) {
    gate = std::make_shared<LoadGate>(l.blocks, p_.split.bytes, p_.split.sources);
    l.split = p_.split.bytes;
    l.first = [w = FirstLoaded{w.seq, w.window, nullptr, 0}, boundary = w.boundary, window, gate,
               say = p_.first_arrived](int64_t rest_ns) mutable {
      if (w.slot != policy::kNoSnapshot) w.window = window->take(boundary);
      w.rest_ns = rest_ns;
      gate->first(rest_ns);
      say(std::move(w));
    };
  }
  l.done = [seq = w.seq, id = w.window, boundary = w.boundary, window, gate, asked = l.blocks.size(),
            arrived = p_.arrived](int64_t blocks, bool there) {
    Loaded out{seq, blocks, id, nullptr};
    if (there) out.window = window->take(boundary);
    bool whole =
        blocks == static_cast<int64_t>(asked) && (id == policy::kNoSnapshot || out.window != nullptr);
    arrived(std::move(out));
    // The end of a step that waits here comes after the word of the load's.
    if (gate != nullptr) gate->end(blocks, whole);
  };
  uint64_t number = p_.store->load(std::move(l));
  loads_[raw(w.seq)] = number;
  if (gate != nullptr) gate->set_give_up([store = p_.store, number] { store->give_up(number); });
  return gate;
}

void StoreBridge::give_up(policy::SeqId seq) {
  auto it = loads_.find(raw(seq));
  if (it == loads_.end()) return;
  uint64_t number = it->second;
  loads_.erase(it);
  p_.store->give_up(number);
}

WarmStart StoreBridge::warm_up(const policy::CacheState& cache, int64_t limit_ns) {
  WarmStart out;
  // Half of the places: who comes first and is not known needs some too. Blocks in runs, so that what has
  // come when the time is over counts.
  auto half = [](size_t n) { return static_cast<int64_t>(n / 2); };
  std::vector<StoreItem> items = p_.store->recent(false, p_.block_bytes, half(cache.blocks.size()));
  std::vector<std::span<uint8_t>> to;
  for (size_t i = 0; i < items.size(); ++i)
    to.emplace_back(p_.arena->data(static_cast<int32_t>(i)), static_cast<size_t>(p_.block_bytes));
  std::vector<bool> there = p_.store->read_now(false, items, to, limit_ns * 3 / 4);
  for (size_t i = items.size(); i-- > 0;) {
    if (there[i])
      out.event.blocks.push_back(
          {policy::BlockId(static_cast<int32_t>(i)), items[i].key, static_cast<int32_t>(items[i].index)});
  }
  int64_t window_bytes = window_record_bytes(p_.make_window());
  items = p_.store->recent(true, window_bytes, half(cache.snapshots.size()));
  std::vector<std::vector<uint8_t>> bytes(items.size(),
                                          std::vector<uint8_t>(static_cast<size_t>(window_bytes)));
  to.assign(bytes.begin(), bytes.end());
  there = p_.store->read_now(true, items, to, limit_ns / 4);
  for (size_t i = items.size(); i-- > 0;) {
    int64_t boundary = (items[i].index + 1) * p_.block_tokens;
    auto slot = std::make_shared<WindowSnapshot>(p_.make_window());
    if (!there[i] || !decode_window(bytes[i], boundary, slot.get()).ok()) continue;
    policy::SnapshotId id{static_cast<int32_t>(i)};
    out.event.windows.push_back({id, items[i].key, boundary});
    out.windows.push_back({id, std::move(slot)});
  }
  return out;
}

bool StoreBridge::put_block(const StoreWrite& write, policy::BlockId id) {
  if (!p_.store->wants(write)) return true;
  StoreWrite w = write;
  w.split = p_.split.bytes;
  return p_.store->put(w, {p_.arena->data(raw(id)), static_cast<size_t>(p_.block_bytes)});
}

bool StoreBridge::put_window(const StoreWrite& write, policy::SnapshotId id) {
  if (!p_.store->wants(write)) return true;
  return p_.store->put(write, encode_window(p_.window(id)));
}

}  // namespace deepinfer
