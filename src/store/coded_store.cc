// Parts are objects of the directories' stores under keys of their own; nothing else knows of the code.
#include "store/coded_store.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/check.h"
#include "host/clock.h"
#include "policy/store_reads.h"
#include "store/coded_fetch.h"

namespace deepinfer::store {
namespace {

struct CodedTicket {
  std::vector<ObjectMeta> metas;
  std::vector<std::vector<uint8_t>> payloads;  // of the wanted ones
  std::vector<bool> wanted;
  std::function<void(Status, size_t)> done;
  int64_t bytes = 0;
};

class CodedStoreImpl final : public CodedStore {
 public:
  CodedStoreImpl(const CodedOptions& o, Erasure code) : options_(o), shared_{std::move(code)} {
    shared_.hedge_ns = o.hedge_ns;
  }
  ~CodedStoreImpl() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    jobs_changed_.notify_all();
    if (timer_.joinable()) timer_.join();
    if (writer_.joinable()) writer_.join();
    std::vector<std::shared_ptr<CodedFetch>> open;
    {
      std::lock_guard lock(mutex_);
      for (auto& [id, f] : fetches_) open.push_back(f);
    }
    for (auto& f : open) f->cancel();
    shared_.places.clear();  // the directories' threads end before what their call-backs use
  }

  Status start() {
    int n = static_cast<int>(options_.paths.size()), up = 0;
    if (policy::place_parts(options_.k, options_.m, n, 0).empty())
      return error(Code::kInvalidConfig, "{} + {} parts over {} directories: one would hold more than {}",
                   options_.k, options_.m, n, options_.m);
    for (const std::string& path : options_.paths) {
      DirectoryOptions d = options_.each;
      d.path = path;
      Result<std::unique_ptr<DirectoryStore>> s = DirectoryStore::open(d);
      if (!s.ok() && s.status().code() == Code::kInvalidConfig) return s.status();
      up += s.ok() ? 1 : 0;
      if (!s.ok()) down_.push_back(s.status().to_string());
      shared_.places.push_back(s.ok() ? std::shared_ptr<DirectoryStore>(std::move(s).value()) : nullptr);
    }
    int per_place = (options_.k + options_.m + n - 1) / n;
    if ((n - up) * per_place > options_.m)
      return error(Code::kUnavailable, "{} of {} directories cannot be opened: more than the code bears; {}",
                   n - up, n, down_.front());
    timer_ = std::thread([this] { run_timer(); });
    writer_ = std::thread([this] { run_writer(); });
    return {};
  }

  Match match(std::span<const Key> chain) override;
  bool contains(Kind kind, const Key& key) override {
    return shared_.parts_there(kind, key, shared_.code.k());
  }
  bool renew(LeaseId) override { return true; }
  void release(LeaseId) override {}
  FetchId fetch(Fetch fetch) override;
  void cancel(FetchId id) override;
  Result<Ticket> begin(std::vector<ObjectMeta> objects) override;
  void write(const Ticket& ticket, size_t i, std::span<const uint8_t> payload) override;
  void commit(const Ticket& ticket, std::function<void(Status, size_t)> done) override;
  void abort(const Ticket& ticket) override;
  void touch(std::span<const Key> chain, bool agent, const policy::TtlWish& wish) override;
  void invalidate(Kind kind, const Key& key, const std::string& reason) override;
  std::vector<StoredName> recent(Kind kind, int64_t payload_bytes, size_t most) override;
  void flush() override {
    {
      std::unique_lock lock(mutex_);
      jobs_done_.wait(lock, [this] { return jobs_.empty() && !writing_; });
    }
    for (auto& p : shared_.places) {
      if (p != nullptr) p->flush();
    }
  }
  Counters counters() const override;
  Gauges gauges() const override;
  CodedRepair repair() override;
  void keep_house() override {
    for (auto& p : shared_.places) {
      if (p != nullptr) p->keep_house();
    }
  }
  std::vector<std::string> down() const override { return down_; }
  int places_up() const override {
    return static_cast<int>(std::count_if(shared_.places.begin(), shared_.places.end(),
                                          [](const auto& p) { return p != nullptr; }));
  }

 private:
  policy::WriteVerdict put_parts(const ObjectMeta& meta, std::span<const uint8_t> payload);
  void repair_object(Kind kind, const Key& key, const ListedObject& sample, CodedRepair* r);
  void run_timer();
  void run_writer();
  void carry_out(CodedTicket* t);

  const CodedOptions options_;
  std::vector<std::string> down_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  CodedShared shared_;
  std::unordered_map<uint64_t, std::shared_ptr<CodedFetch>> fetches_;
  std::unordered_map<uint64_t, CodedTicket> tickets_;
  uint64_t last_id_ = 0;
  int64_t staged_ = 0;
  Counters counters_;
  std::deque<CodedTicket> jobs_;
  std::set<std::pair<Key, Kind>> pending_;  // reserved or queued, not visible yet
  std::condition_variable jobs_changed_, jobs_done_;
  bool writing_ = false, stop_ = false;
  std::thread timer_, writer_;
};

Match CodedStoreImpl::match(std::span<const Key> chain) {
  Match m;
  int64_t begun = now_ns();
  for (const Key& key : chain) {
    int64_t part = 0;
    if (!shared_.parts_there(Kind::kBlock, key, shared_.code.k(), &part)) break;
    ++m.blocks;
    m.bytes += part * shared_.code.k();
    // A window that is there has all but m of its parts: m + 1 places are enough to know of one.
    if (shared_.parts_there(Kind::kWindow, key, 1, nullptr, shared_.code.m() + 1) &&
        shared_.parts_there(Kind::kWindow, key, shared_.code.k()))
      m.windows.push_back(m.blocks);
  }
  std::lock_guard lock(mutex_);
  ++counters_.matches;
  counters_.matched_blocks += m.blocks;
  counters_.missed_matches += m.blocks == 0 ? 1 : 0;
  counters_.match_length.add(m.blocks);
  int64_t took = now_ns() - begun;
  counters_.match_ns += took;
  counters_.match_time.add(took);
  return m;
}

FetchId CodedStoreImpl::fetch(Fetch fetch) {
  FetchId id{};
  std::shared_ptr<CodedFetch> f;
  {
    std::lock_guard lock(mutex_);
    id = FetchId(++last_id_);
    ++counters_.fetches;
    auto done = [this, id, parts = fetch.parts.size(), user = std::move(fetch.done)](const FetchOutcome& o) {
      {
        std::lock_guard inner(mutex_);
        counters_.fetched_objects += static_cast<int64_t>(o.whole);
        counters_.fetched_bytes += o.bytes;
        counters_.fetch_ns += o.ns;
        counters_.short_fetches += o.whole < parts ? 1 : 0;
        fetches_.erase(raw(id));
      }
      if (user) user(o);
    };
    f = std::make_shared<CodedFetch>(&shared_, std::move(fetch.parts), std::move(done));
    fetches_[raw(id)] = f;
  }
  changed_.notify_all();
  f->advance();
  return id;
}

void CodedStoreImpl::cancel(FetchId id) {
  std::shared_ptr<CodedFetch> f;
  {
    std::lock_guard lock(mutex_);
    auto it = fetches_.find(raw(id));
    if (it == fetches_.end()) return;
    f = it->second;
    ++counters_.cancelled_fetches;
  }
  f->cancel();
}

// Late answers bring in one more place.
void CodedStoreImpl::run_timer() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (fetches_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(500'000, options_.hedge_ns / 4)));
    std::vector<std::shared_ptr<CodedFetch>> open;
    for (auto& [id, f] : fetches_) open.push_back(f);
    lock.unlock();
    for (auto& f : open) f->hedge_late();
    open.clear();
    lock.lock();
  }
}

Result<Ticket> CodedStoreImpl::begin(std::vector<ObjectMeta> objects) {
  Ticket t;
  CodedTicket open;
  std::set<std::pair<Key, Kind>> chain;
  auto coming = [&](const Key& key, Kind kind) {
    std::lock_guard lock(mutex_);
    return pending_.contains({key, kind});
  };
  for (const ObjectMeta& m : objects) {
    bool there = contains(m.kind, m.key) || coming(m.key, m.kind) || chain.contains({m.key, m.kind});
    bool parent = m.first || chain.contains({m.parent, Kind::kBlock}) || coming(m.parent, Kind::kBlock) ||
                  contains(Kind::kBlock, m.parent);
    if (!there && !parent)
      return error(Code::kNotFound, "the block before is not in the store: its prefix would have a hole");
    if (!there) {
      chain.insert({m.key, m.kind});
      open.bytes += m.payload_bytes;
    }
    t.wanted.push_back(!there);
  }
  std::lock_guard lock(mutex_);
  if (staged_ + open.bytes > options_.each.write_memory_bytes) {
    ++counters_.refused_memory;
    return error(Code::kResourceExhausted, "{} bytes wait to be written", staged_);
  }
  staged_ += open.bytes;
  pending_.insert(chain.begin(), chain.end());
  open.payloads.resize(objects.size());
  open.metas = std::move(objects);
  open.wanted = t.wanted;
  t.id = TicketId(++last_id_);
  tickets_.emplace(raw(t.id), std::move(open));
  return t;
}

void CodedStoreImpl::write(const Ticket& ticket, size_t i, std::span<const uint8_t> payload) {
  std::vector<uint8_t> copy(payload.begin(), payload.end());
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(raw(ticket.id));
  if (it != tickets_.end()) it->second.payloads[i] = std::move(copy);
}

// All parts in their directories, or one missing and to be repaired, or none.
policy::WriteVerdict CodedStoreImpl::put_parts(const ObjectMeta& meta, std::span<const uint8_t> payload) {
  std::vector<std::vector<uint8_t>> parts = shared_.code.split(payload);
  std::vector<std::future<bool>> ends;
  for (size_t i = 0; i < parts.size(); ++i) {
    DirectoryStore* place = shared_.place_of(meta.key, static_cast<int>(i));
    ObjectMeta m = shared_.part_meta(meta, static_cast<int>(i), static_cast<int64_t>(parts[i].size()));
    auto end = std::make_shared<std::promise<bool>>();
    ends.push_back(end->get_future());
    Result<Ticket> t =
        place != nullptr ? place->begin({m}) : Result<Ticket>(error(Code::kUnavailable, "down"));
    if (!t.ok() || !t->wanted[0]) {
      if (t.ok()) place->abort(*t);
      end->set_value(t.ok());  // there already: as good as written
      continue;
    }
    place->write(*t, 0, parts[i]);
    place->commit(*t, [end](Status s, size_t n) { end->set_value(s.ok() && n == 1); });
  }
  int good = 0;
  for (std::future<bool>& e : ends) good += e.get() ? 1 : 0;
  policy::WriteVerdict v = policy::judge_write(static_cast<int>(parts.size()), good);
  if (v == policy::WriteVerdict::kAbort) invalidate(meta.kind, meta.key, "not enough parts were written");
  return v;
}

void CodedStoreImpl::commit(const Ticket& ticket, std::function<void(Status, size_t)> done) {
  {
    std::lock_guard lock(mutex_);
    auto it = tickets_.find(raw(ticket.id));
    if (it != tickets_.end()) {
      it->second.done = std::move(done);
      jobs_.push_back(std::move(it->second));
      tickets_.erase(it);
      ++counters_.commits;
      jobs_changed_.notify_all();
      return;
    }
  }
  if (done) done(error(Code::kDeadlineExceeded, "the ticket is over"), 0);
}

// On the writer's thread; in the order of the commits, so that what follows finds what it follows.
void CodedStoreImpl::carry_out(CodedTicket* t) {
  size_t visible = 0;
  Status status;
  for (size_t i = 0; i < t->metas.size() && status.ok(); ++i) {
    const ObjectMeta& m = t->metas[i];
    if (!t->wanted[i]) continue;
    if (!m.first && !contains(Kind::kBlock, m.parent)) {
      status = error(Code::kNotFound, "the block before was not written");
    } else if (put_parts(m, t->payloads[i]) == policy::WriteVerdict::kAbort) {
      status = error(Code::kUnavailable, "fewer than all but one of the parts could be written");
    } else {
      ++visible;
    }
  }
  {
    std::lock_guard lock(mutex_);
    staged_ -= t->bytes;
    for (const ObjectMeta& m : t->metas) pending_.erase(std::pair(m.key, m.kind));
    counters_.committed_objects += static_cast<int64_t>(visible);
    counters_.write_errors += status.ok() ? 0 : 1;
  }
  if (t->done) t->done(status, visible);
}

void CodedStoreImpl::run_writer() {
  std::unique_lock lock(mutex_);
  for (;;) {
    jobs_changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    CodedTicket t = std::move(jobs_.front());
    jobs_.pop_front();
    writing_ = true;
    lock.unlock();
    carry_out(&t);
    lock.lock();
    writing_ = false;
    jobs_done_.notify_all();
  }
}

void CodedStoreImpl::abort(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(raw(ticket.id));
  if (it == tickets_.end()) return;
  staged_ -= it->second.bytes;
  for (size_t i = 0; i < it->second.metas.size(); ++i) {
    const ObjectMeta& m = it->second.metas[i];
    if (it->second.wanted[i]) pending_.erase(std::pair(m.key, m.kind));
  }
  tickets_.erase(it);
  ++counters_.aborts;
}

void CodedStoreImpl::touch(std::span<const Key> chain, bool agent, const policy::TtlWish& wish) {
  for (const Key& key : chain) {
    for (int i = 0; i < shared_.code.k() + shared_.code.m(); ++i) {
      DirectoryStore* place = shared_.place_of(key, i);
      Key part = part_key(key, i);
      if (place != nullptr) place->touch(std::span(&part, 1), agent, wish);
    }
  }
}

void CodedStoreImpl::invalidate(Kind kind, const Key& key, const std::string& reason) {
  for (int i = 0; i < shared_.code.k() + shared_.code.m(); ++i) {
    DirectoryStore* place = shared_.place_of(key, i);
    if (place != nullptr) place->invalidate(kind, part_key(key, i), reason);
  }
}

std::vector<StoredName> CodedStoreImpl::recent(Kind kind, int64_t payload_bytes, size_t most) {
  std::map<Key, StoredName> all;
  int64_t part_bytes = shared_.code.part_bytes(payload_bytes);
  for (auto& p : shared_.places) {
    if (p == nullptr) continue;
    // All parts of an object may lie in one place, or few of them.
    size_t parts = static_cast<size_t>(shared_.code.k() + shared_.code.m());
    size_t each = (parts + shared_.places.size() - 1) / shared_.places.size();
    for (const StoredName& n : p->recent(kind, part_bytes, most * each)) {
      int part = static_cast<int>(n.depth >> 24) - 1;
      if (part < 0) continue;  // no part of a coded object
      StoredName& name = all[part_key(n.key, part)];
      name = {part_key(n.key, part), n.depth & kDepthMask, std::max(name.used_s, n.used_s)};
    }
  }
  std::vector<StoredName> out;
  for (const auto& [key, name] : all) out.push_back(name);
  keep_most_recent(&out, most);
  return out;
}

void CodedStoreImpl::repair_object(Kind kind, const Key& key, const ListedObject& sample, CodedRepair* r) {
  ++r->objects;
  int n = shared_.code.k() + shared_.code.m();
  int64_t bytes = sample.entry.payload_bytes;
  std::vector<int> have, missing;
  for (int i = 0; i < n; ++i) {
    DirectoryStore* place = shared_.place_of(key, i);
    if (place == nullptr) continue;
    (place->contains(kind, part_key(key, i)) ? have : missing).push_back(i);
  }
  if (missing.empty()) {
    ++r->whole;
    return;
  }
  std::vector<std::vector<uint8_t>> parts;
  std::vector<int> indices;
  for (int i : have) {
    if (static_cast<int>(indices.size()) == shared_.code.k()) break;
    Result<std::vector<uint8_t>> p = get_one(shared_.place_of(key, i), kind, part_key(key, i), bytes);
    if (!p.ok()) continue;
    indices.push_back(i);
    parts.push_back(std::move(p).value());
  }
  if (static_cast<int>(indices.size()) < shared_.code.k()) {
    ++r->lost;
    return;
  }
  std::vector<const uint8_t*> at;
  for (const auto& p : parts) at.push_back(p.data());
  for (int i : missing) {
    ObjectMeta meta;
    meta.kind = kind;
    meta.key = key;
    meta.depth = sample.entry.depth & kDepthMask;
    uint32_t now = shared_.place_of(key, indices[0])->now_s();
    meta.ttl.block_s = std::max<int64_t>(1, int64_t{sample.entry.expires_s} - now);
    ObjectMeta m = shared_.part_meta(meta, i, bytes);
    std::vector<uint8_t> part = shared_.code.rebuild(indices, at, bytes, i);
    Status s = put_one(shared_.place_of(key, i), m, part);
    ++(s.ok() ? r->repaired_parts : r->failed);
  }
}

CodedRepair CodedStoreImpl::repair() {
  CodedRepair r;
  std::set<std::pair<Key, Kind>> seen;
  for (auto& p : shared_.places) {
    if (p == nullptr) continue;
    for (const ListedObject& o : p->list(SIZE_MAX)) {
      int part = static_cast<int>(o.entry.depth >> 24) - 1;
      if (part < 0) continue;  // no part of a coded object
      Key key = part_key(o.entry.key, part);
      if (seen.insert({key, o.entry.kind}).second) repair_object(o.entry.kind, key, o, &r);
    }
  }
  std::lock_guard lock(mutex_);
  counters_.repaired_parts += r.repaired_parts;
  return r;
}

Counters CodedStoreImpl::counters() const {
  std::lock_guard lock(mutex_);
  Counters c = counters_;
  c.degraded_reads = shared_.degraded.load();
  c.hedged_reads = shared_.hedged.load();
  for (const auto& p : shared_.places) {
    if (p == nullptr) continue;
    Counters d = p->counters();
    c.integrity_failures += d.integrity_failures;
    c.recovered_objects += d.recovered_objects;
    c.adopted_generations += d.adopted_generations;
    c.clock_jumps += d.clock_jumps;
    c.kept_megabyte_s += d.kept_megabyte_s;
    c.evicted_objects += d.evicted_objects;
    c.expired_objects += d.expired_objects;
    c.committed_bytes += d.committed_bytes;
  }
  return c;
}

Gauges CodedStoreImpl::gauges() const {
  Gauges g;
  size_t refusing = 0;
  for (const auto& p : shared_.places) {
    if (p == nullptr) {
      ++refusing;
      continue;
    }
    Gauges d = p->gauges();
    refusing += d.writable ? 0 : 1;
    g.gc_age_s = std::max(g.gc_age_s, d.gc_age_s);
    g.write_memory += d.write_memory;
    g.objects += d.objects;
    g.blocks += d.blocks;
    g.windows += d.windows;
    g.held_bytes += d.held_bytes;
    g.own_bytes += d.own_bytes;
    g.quota_bytes += d.quota_bytes;
    g.index_bytes += d.index_bytes;
    g.leases += d.leases;
    g.generations += d.generations;
    g.uring = d.uring;
    g.direct = d.direct;
    if (g.trouble.empty()) g.trouble = d.trouble;
  }
  // All parts must be written but one.
  size_t parts = static_cast<size_t>(shared_.code.k() + shared_.code.m());
  g.writable = refusing * ((parts + shared_.places.size() - 1) / shared_.places.size()) <= 1;
  return g;
}

}  // namespace

Result<std::unique_ptr<CodedStore>> CodedStore::open(const CodedOptions& options) {
  DI_ASSIGN(Erasure code, Erasure::make(options.k, options.m));
  CodedOptions o = options;
  std::sort(o.paths.begin(), o.paths.end());
  if (std::adjacent_find(o.paths.begin(), o.paths.end()) != o.paths.end())
    return error(Code::kInvalidConfig, "a directory is named twice: it would be two failure domains in one");
  auto s = std::make_unique<CodedStoreImpl>(o, std::move(code));
  DI_TRY(s->start());
  return std::unique_ptr<CodedStore>(std::move(s));
}

}  // namespace deepinfer::store
