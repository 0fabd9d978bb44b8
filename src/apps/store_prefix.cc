// Offers, loads with deadlines, puts.
#include "apps/store_prefix.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "host/clock.h"

namespace deepinfer {

// What the restore policy promised for one offer travels with it.
struct StorePrefix::Offer : StoreOffer {
  int64_t deadline_ns = 0;
};

static policy::TtlWish ttl_wish(const StoreWish& w) {
  return {w.ttl_s, w.window_ttl_s};
}

StorePrefix::StorePrefix(store::KvStore* store, policy::RestoreRules rules) : store_(store), rules_(rules) {}

StorePrefix::~StorePrefix() {
  std::vector<store::FetchId> open;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, l] : loading_) open.push_back(l.fetch);
    open.push_back(probe_fetch_);
  }
  for (store::FetchId id : open) store_->cancel(id);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return loading_.empty() && probe_bytes_ == nullptr; });
}

std::shared_ptr<const StoreOffer> StorePrefix::match(std::span<const policy::BlockKey> keys,
                                                     const StoreWish& wish) {
  store::Match m = store_->match(keys);
  if (m.blocks == 0) return nullptr;
  store_->touch(keys.first(static_cast<size_t>(m.blocks)), wish.agent, ttl_wish(wish));
  auto offer = std::make_shared<Offer>();
  offer->blocks = m.blocks;
  offer->windows = std::move(m.windows);
  offer->hold = std::shared_ptr<void>(nullptr, [s = store_, lease = m.lease](void*) { s->release(lease); });
  int64_t now = now_ns(), block_bytes = m.bytes / m.blocks;
  bool probe_now = false;
  {
    std::lock_guard lock(mutex_);
    policy::RestoreQuote q = policy::quote(restore_, rules_, m.blocks, m.bytes + window_bytes_);
    offer->ns_per_block = static_cast<int64_t>(q.ns_per_block);
    // A window is read along with its blocks: what it adds is its bytes.
    double window = restore_.ns_per_byte * static_cast<double>(window_bytes_);
    offer->ns_per_window = static_cast<int64_t>(std::max(window, q.ns_per_block / 8));
    offer->deadline_ns = q.deadline_ns;
    probe_now = policy::should_probe(restore_, rules_, now) && probe_bytes_ == nullptr;
  }
  if (probe_now) probe(keys[0], block_bytes);
  return offer;
}

// One block is read for nothing but its time.
void StorePrefix::probe(const policy::BlockKey& key, int64_t bytes) {
  auto to = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(bytes));
  {
    std::lock_guard lock(mutex_);
    if (probe_bytes_ != nullptr) return;
    probe_bytes_ = to;
    ++probes_;
  }
  store::Fetch f;
  f.parts.push_back({store::Kind::kBlock, key, *to});
  f.done = [this, to](const store::FetchOutcome& out) {
    if (out.whole == 1) measured(out.bytes, out.ns);
    std::lock_guard lock(mutex_);
    probe_bytes_ = nullptr;
    ended_.notify_all();
  };
  store::FetchId id = store_->fetch(std::move(f));
  std::lock_guard lock(mutex_);
  probe_fetch_ = id;
}

void StorePrefix::measured(int64_t bytes, int64_t ns) {
  std::lock_guard lock(mutex_);
  policy::apply(&restore_, rules_, policy::FetchMeasured{bytes, ns, now_ns()});
}

policy::RestoreState StorePrefix::restore() const {
  std::lock_guard lock(mutex_);
  return restore_;
}

void StorePrefix::declined(const StoreOffer&) {
  std::lock_guard lock(mutex_);
  policy::apply(&restore_, policy::RestoreAdopted{false});
}

uint64_t StorePrefix::load(StoreLoad l) {
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++last_;
    policy::apply(&restore_, policy::RestoreAdopted{true});
    int64_t limit = static_cast<const Offer*>(l.offer.get())->deadline_ns;
    loading_[number] = {{}, now_ns() + limit};
    if (!l.blocks.empty()) block_bytes_ = static_cast<int64_t>(l.blocks.front().size());
    if (l.window) window_bytes_ = static_cast<int64_t>(l.window_bytes.size());
  }
  store::Fetch f;
  for (size_t i = 0; i < l.blocks.size(); ++i)
    f.parts.push_back({store::Kind::kBlock, l.keys[i], l.blocks[i]});
  if (l.window) f.parts.push_back({store::Kind::kWindow, l.window_key, l.window_bytes});
  if (l.split > 0 && l.first) {
    int64_t blocks = static_cast<int64_t>(l.blocks.size()),
            window = static_cast<int64_t>(l.window_bytes.size());
    int64_t first_bytes = blocks * l.split + window, rest_bytes = 0;
    for (std::span<uint8_t> b : l.blocks) rest_bytes += static_cast<int64_t>(b.size()) - l.split;
    f.split = l.split;
    f.first = [this, first_bytes, rest_bytes, first = std::move(l.first)](int64_t ns) {
      // As quick as this fetch has been so far, or as fetches are: whichever is slower.
      double so_far = static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, first_bytes));
      double per_byte = std::max(so_far, restore().ns_per_byte);
      first(static_cast<int64_t>(per_byte * static_cast<double>(rest_bytes)));
    };
  }
  f.done = [this, number, blocks = l.blocks.size(), window = l.window, done = std::move(l.done),
            hold = l.offer](const store::FetchOutcome& out) {
    bool late = out.why.code() == Code::kCancelled;
    if (!late && out.bytes > 0) measured(out.bytes, out.ns);
    done(static_cast<int64_t>(std::min(out.whole, blocks)), window && out.whole == blocks + 1);
    // The last touch of this object: its destructor waits for it.
    std::lock_guard lock(mutex_);
    auto it = loading_.find(number);
    // Given up because its request is gone says nothing of the store.
    if (late && it->second.deadline_ns <= now_ns()) {
      ++late_loads_;
      policy::apply(&restore_, policy::FetchLate{now_ns()});
    }
    loading_.erase(it);
    ended_.notify_all();
  };
  store::FetchId id = store_->fetch(std::move(f));
  std::lock_guard lock(mutex_);
  if (auto it = loading_.find(number); it != loading_.end()) it->second.fetch = id;
  return number;
}

void StorePrefix::give_up(uint64_t number) {
  store::FetchId id{};
  {
    std::lock_guard lock(mutex_);
    auto it = loading_.find(number);
    if (it == loading_.end()) return;
    id = it->second.fetch;
  }
  store_->cancel(id);
}

int64_t StorePrefix::check_deadlines(int64_t engine_now_ns) {
  int64_t now = now_ns(), next = INT64_MAX;
  std::vector<uint64_t> late;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, l] : loading_) {
      if (l.deadline_ns <= now) {
        late.push_back(number);
      } else {
        next = std::min(next, engine_now_ns + (l.deadline_ns - now));
      }
    }
  }
  for (uint64_t number : late) give_up(number);
  return next;
}

bool StorePrefix::wants(const StoreWrite& w) {
  return !store_->contains(w.window ? store::Kind::kWindow : store::Kind::kBlock, w.key);
}

bool StorePrefix::put(const StoreWrite& w, std::span<const uint8_t> bytes) {
  store::ObjectMeta m;
  m.kind = w.window ? store::Kind::kWindow : store::Kind::kBlock;
  m.key = w.key;
  m.parent = w.parent;
  m.first = w.first;
  m.depth = static_cast<uint32_t>(w.index);
  m.payload_bytes = static_cast<int64_t>(bytes.size());
  m.split = w.split;
  m.agent = w.wish.agent;
  m.ttl = ttl_wish(w.wish);
  Result<store::Ticket> t = store_->begin({m});
  std::lock_guard lock(mutex_);
  if (!t.ok()) {
    ++refused_;
    return false;
  }
  if (!t->wanted[0]) {
    store_->abort(*t);
    return true;
  }
  store_->write(*t, 0, bytes);
  store_->commit(*t, nullptr);
  (w.window ? window_bytes_ : block_bytes_) = m.payload_bytes;
  ++puts_;
  put_bytes_ += m.payload_bytes;
  return true;
}

std::vector<StoreItem> StorePrefix::recent(bool windows, int64_t bytes, int64_t most) {
  std::vector<StoreItem> out;
  store::Kind kind = windows ? store::Kind::kWindow : store::Kind::kBlock;
  for (const store::StoredName& n : store_->recent(kind, bytes, static_cast<size_t>(most)))
    out.push_back({n.key, n.depth});
  return out;
}

std::vector<bool> StorePrefix::read_now(bool windows, std::span<const StoreItem> items,
                                        std::span<const std::span<uint8_t>> to, int64_t limit_ns) {
  std::vector<bool> out(items.size());
  // A fetch ends at the first object that is not there, so they are many.
  constexpr size_t kAtOnce = 64;
  int64_t end_ns = now_ns() + limit_ns;
  for (size_t from = 0; from < items.size() && now_ns() < end_ns; from += kAtOnce) {
    size_t n = std::min(kAtOnce, items.size() - from);
    store::Fetch f;
    for (size_t i = from; i < from + n; ++i)
      f.parts.push_back({windows ? store::Kind::kWindow : store::Kind::kBlock, items[i].key, to[i]});
    auto ended = std::make_shared<std::promise<store::FetchOutcome>>();
    f.done = [ended](const store::FetchOutcome& o) { ended->set_value(o); };
    std::future<store::FetchOutcome> end = ended->get_future();
    store::FetchId id = store_->fetch(std::move(f));
    std::chrono::nanoseconds left(std::max<int64_t>(0, end_ns - now_ns()));
    if (end.wait_for(left) != std::future_status::ready) store_->cancel(id);
    store::FetchOutcome o = end.get();
    if (o.whole == n) measured(o.bytes, o.ns);
    std::fill_n(out.begin() + static_cast<int64_t>(from), o.whole, true);
  }
  return out;
}

Result<OpenedStore> open_prefix_store(const StoreOptions& options) {
  OpenedStore out;
  int64_t begun = now_ns();
  if (options.paths.size() == 1) {
    store::DirectoryOptions d = options.each;
    d.path = options.paths[0];
    DI_ASSIGN(out.kept, store::DirectoryStore::open(d));
  } else {
    DI_ASSIGN(out.kept, store::CodedStore::open(options));
  }
  int64_t opened = now_ns();
  DI_TRY(store::check_by_use(out.kept.get(), static_cast<uint64_t>(opened)));
  out.prefix = std::make_unique<StorePrefix>(out.kept.get());
  store::Counters c = out.kept->counters();
  out.prefix->measured(c.fetched_bytes, std::max<int64_t>(1, c.fetch_ns));
  store::Gauges g = out.kept->gauges();
  out.notice = fmt::format("store in {} director{}: {} blocks and {} windows found in {:.2f} s, {}",
                           options.paths.size(), options.paths.size() == 1 ? "y" : "ies", g.blocks, g.windows,
                           static_cast<double>(opened - begun) / 1e9,
                           g.uring ? "io_uring" : "plain reads (io_uring is not allowed here)");
  return out;
}

void StorePrefix::report(StoreFigures* out) const {
  store::Counters c = store_->counters();
  store::Gauges g = store_->gauges();
  std::lock_guard lock(mutex_);
  out->counters = {{"store_matches", c.matches},
                   {"store_match_ns", c.match_ns},
                   {"store_matched_blocks", c.matched_blocks},
                   {"store_missed_matches", c.missed_matches},
                   {"store_fetches", c.fetches},
                   {"store_fetched_objects", c.fetched_objects},
                   {"store_fetched_bytes", c.fetched_bytes},
                   {"store_fetch_ns", c.fetch_ns},
                   {"store_first_part_ns", c.first_part_ns},
                   {"store_split_fetches", c.split_fetches},
                   {"store_first_layers_ns", c.first_layers_ns},
                   {"store_split_fetch_ns", c.split_fetch_ns},
                   {"store_cancelled_fetches", c.cancelled_fetches},
                   {"store_short_fetches", c.short_fetches},
                   {"store_late_loads", late_loads_},
                   {"store_integrity_failures", c.integrity_failures},
                   {"store_lease_expiries", c.lease_expiries},
                   {"store_commits", c.commits},
                   {"store_committed_objects", c.committed_objects},
                   {"store_committed_bytes", c.committed_bytes},
                   {"store_aborts", c.aborts},
                   {"store_write_errors", c.write_errors},
                   {"store_refused_memory", c.refused_memory},
                   {"store_refused_parent", c.refused_parent},
                   {"store_evicted_objects", c.evicted_objects},
                   {"store_expired_objects", c.expired_objects},
                   {"store_recovered_objects", c.recovered_objects},
                   {"store_adopted_generations", c.adopted_generations},
                   {"store_clock_jumps", c.clock_jumps},
                   {"store_fenced", c.fenced},
                   {"store_damaged_entries", c.damaged_entries},
                   {"store_kept_megabyte_s", c.kept_megabyte_s},
                   {"store_degraded_reads", c.degraded_reads},
                   {"store_hedged_reads", c.hedged_reads},
                   {"store_probes", probes_},
                   {"store_restore_switches", restore_.switches}};
  // How far prompts were known: matches of at most so many blocks.
  for (int64_t blocks : {0, 1, 3, 15, 63, 255, 1023, 4095})
    out->counters.push_back(
        {fmt::format("store_matches_le_{}_blocks", blocks), c.match_length.up_to(blocks)});
  out->trouble = g.trouble;
  out->gauges = {{"store_match_p50_ns", c.match_time.quantile(0.5)},
                 {"store_match_p99_ns", c.match_time.quantile(0.99)},
                 {"store_generations", g.generations},
                 {"store_read_queue", g.read_queue},
                 {"store_gc_age_s", g.gc_age_s},
                 {"store_objects", g.objects},
                 {"store_blocks", g.blocks},
                 {"store_windows", g.windows},
                 {"store_held_bytes", g.held_bytes},
                 {"store_own_bytes", g.own_bytes},
                 {"store_quota_bytes", g.quota_bytes},
                 {"store_index_bytes", g.index_bytes},
                 {"store_leases", g.leases},
                 {"store_write_memory", g.write_memory},
                 {"store_uring", g.uring ? 1 : 0},
                 {"store_writable", g.writable ? 1 : 0},
                 {"store_pays", restore_.pays ? 1 : 0}};
}

}  // namespace deepinfer
