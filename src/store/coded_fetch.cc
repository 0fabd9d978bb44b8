// Orders are collected under the lock and given without it: a directory may answer before its call returns.
#include "store/coded_fetch.h"

#include <algorithm>

#include "host/clock.h"
#include "policy/store_reads.h"

namespace deepinfer::store {
namespace {
constexpr size_t kObjectsAtOnce = 32;
}

bool CodedShared::parts_there(Kind kind, const Key& key, int enough, int64_t* part_bytes, int of) const {
  int n = code.k() + code.m(), found = 0;
  for (int i = 0; i < (of > 0 ? std::min(of, n) : n) && found < enough; ++i) {
    DirectoryStore* place = place_of(key, i);
    if (place == nullptr) continue;
    int64_t bytes = place->payload_of(kind, part_key(key, i));
    if (bytes < 0) continue;
    ++found;
    if (part_bytes != nullptr) *part_bytes = bytes;
  }
  return found >= enough;
}

ObjectMeta CodedShared::part_meta(const ObjectMeta& object, int part, int64_t bytes) const {
  ObjectMeta m = object;
  m.key = part_key(object.key, part);
  // That a prefix has no hole was seen to for the object; its parts lie wherever.
  m.first = true;
  m.parent = {};
  m.depth = (object.depth & kDepthMask) | (static_cast<uint32_t>(part) + 1) << 24;
  m.payload_bytes = bytes;
  m.shard.k = static_cast<uint8_t>(code.k());
  m.shard.m = static_cast<uint8_t>(code.m());
  m.shard.index = static_cast<uint8_t>(part);
  m.shard.object_bytes = static_cast<uint32_t>(object.payload_bytes);
  return m;
}

CodedFetch::CodedFetch(CodedShared* shared, std::vector<FetchPart> parts,
                       std::function<void(const FetchOutcome&)> done)
    : shared_(shared),
      parts_(std::move(parts)),
      done_(std::move(done)),
      objects_(parts_.size()),
      begun_ns_(now_ns()) {}

void CodedFetch::begin_object(size_t i, std::vector<Order>* orders) {
  Object& o = objects_[i];
  const FetchPart& want = parts_[i];
  o.begun = true;
  o.begun_ns = now_ns();
  o.part_bytes = shared_->code.part_bytes(static_cast<int64_t>(want.to.size()));
  int n = shared_->code.k() + shared_->code.m();
  std::vector<policy::ReadPlace> places(static_cast<size_t>(n));
  for (int p = 0; p < n; ++p) {
    DirectoryStore* place = shared_->place_of(want.key, p);
    policy::ReadPlace& x = places[static_cast<size_t>(p)];
    x.has_part = place != nullptr && place->payload_of(want.kind, part_key(want.key, p)) == o.part_bytes;
    if (x.has_part) x.queue = place->reads_waiting();
  }
  for (int p : policy::choose_reads(places, shared_->code.k(), shared_->turn++)) {
    auto a = std::make_shared<Asked>();
    a->part = p;
    a->bytes.resize(static_cast<size_t>(o.part_bytes));
    o.asked.push_back(a);
    orders->push_back({i, a});
  }
  if (o.asked.empty()) o.over = true;
}

// One more place for an object that needs it; false: there is none.
bool CodedFetch::ask_more(size_t i, std::vector<Order>* orders) {
  Object& o = objects_[i];
  int n = shared_->code.k() + shared_->code.m();
  std::vector<policy::ReadPlace> places(static_cast<size_t>(n));
  std::vector<bool> asked(static_cast<size_t>(n));
  for (const auto& a : o.asked) asked[static_cast<size_t>(a->part)] = true;
  for (int p = 0; p < n; ++p) {
    DirectoryStore* place = shared_->place_of(parts_[i].key, p);
    policy::ReadPlace& x = places[static_cast<size_t>(p)];
    x.has_part =
        place != nullptr && place->payload_of(parts_[i].kind, part_key(parts_[i].key, p)) == o.part_bytes;
    if (x.has_part) x.queue = place->reads_waiting();
  }
  int p = policy::choose_hedge(places, asked);
  if (p < 0) return false;
  auto a = std::make_shared<Asked>();
  a->part = p;
  a->bytes.resize(static_cast<size_t>(o.part_bytes));
  o.asked.push_back(a);
  orders->push_back({i, a});
  ++shared_->hedged;
  return true;
}

void CodedFetch::give(std::vector<Order> orders) {
  for (Order& order : orders) {
    const FetchPart& want = parts_[order.object];
    Fetch f;
    f.parts.push_back({want.kind, part_key(want.key, order.asked->part), order.asked->bytes});
    // The answer keeps the memory alive, however late it comes.
    f.done = [self = shared_from_this(), i = order.object, a = order.asked](const FetchOutcome& out) {
      self->answer(i, a, out.whole == 1);
    };
    FetchId id = shared_->place_of(want.key, order.asked->part)->fetch(std::move(f));
    std::lock_guard lock(mutex_);
    order.asked->id = id;
  }
}

void CodedFetch::answer(size_t i, const std::shared_ptr<Asked>& a, bool good) {
  std::vector<Order> orders;
  {
    std::lock_guard lock(mutex_);
    a->over = true;
    a->good = good;
    Object& o = objects_[i];
    if (closed_ || o.over) return;
    std::vector<std::shared_ptr<Asked>> have;
    size_t waiting = 0;
    for (const auto& x : o.asked) {
      if (x->good) have.push_back(x);
      waiting += x->over ? 0 : 1;
    }
    size_t k = static_cast<size_t>(shared_->code.k());
    if (have.size() >= k) {
      std::sort(have.begin(), have.end(), [](const auto& x, const auto& y) { return x->part < y->part; });
      have.resize(k);
      std::vector<int> indices;
      std::vector<const uint8_t*> at;
      for (const auto& x : have) {
        indices.push_back(x->part);
        at.push_back(x->bytes.data());
      }
      if (indices.back() >= static_cast<int>(k)) ++shared_->degraded;
      shared_->code.join(indices, at, o.part_bytes, parts_[i].to);
      o.over = o.good = true;
      --open_;
    } else if (!good && have.size() + waiting < k && !ask_more(i, &orders)) {
      o.over = true;
      broken_ = true;
      --open_;
    } else if (!good && have.size() + waiting <= k && orders.empty()) {
      ask_more(i, &orders);  // a second failure must not cost another round
    }
  }
  give(std::move(orders));
  advance();
}

void CodedFetch::advance() {
  std::vector<Order> orders;
  bool end = false;
  {
    std::lock_guard lock(mutex_);
    while (!closed_ && !broken_ && next_ < objects_.size() && open_ < kObjectsAtOnce) {
      begin_object(next_, &orders);
      if (objects_[next_].over) broken_ = true;  // what comes after a hole is of no use
      open_ += objects_[next_].over ? 0 : 1;
      ++next_;
    }
    end = !closed_ && open_ == 0 && orders.empty() && (broken_ || next_ == objects_.size());
  }
  give(std::move(orders));
  if (end) finish();
}

void CodedFetch::hedge_late() {
  std::vector<Order> orders;
  {
    std::lock_guard lock(mutex_);
    int64_t now = now_ns();
    for (size_t i = 0; !closed_ && i < next_; ++i) {
      Object& o = objects_[i];
      if (!o.begun || o.over || o.was_hedged || now - o.begun_ns < shared_->hedge_ns) continue;
      o.was_hedged = true;
      ask_more(i, &orders);
    }
  }
  give(std::move(orders));
}

void CodedFetch::cancel() {
  finish();
}

void CodedFetch::finish() {
  FetchOutcome out;
  std::vector<std::pair<DirectoryStore*, FetchId>> rest;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    while (out.whole < objects_.size() && objects_[out.whole].good)
      out.bytes += static_cast<int64_t>(parts_[out.whole++].to.size());
    for (size_t i = 0; i < next_; ++i) {
      for (const auto& a : objects_[i].asked) {
        if (!a->over && raw(a->id) != 0) rest.push_back({shared_->place_of(parts_[i].key, a->part), a->id});
      }
    }
  }
  out.ns = now_ns() - begun_ns_;
  if (out.whole < objects_.size())
    out.why = broken_ ? error(Code::kNotFound, "fewer than {} parts are there", shared_->code.k())
                      : error(Code::kCancelled, "the fetch was given up");
  for (auto& [place, id] : rest) place->cancel(id);
  if (done_) done_(out);
}

}  // namespace deepinfer::store
