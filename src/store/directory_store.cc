// The contract's calls: matches, leases, tickets. Reads, writing and house-keeping are in their own files.
#include "store/directory_store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>

#include "base/check.h"
#include "host/clock.h"
#include "store/directory_impl.h"

namespace deepinfer::store {

using policy::ObjectEvent;

Result<std::unique_ptr<DirectoryStore>> DirectoryStore::open(const DirectoryOptions& options) {
  DI_TRY(policy::validate(options.retention));
  if (options.segment_bytes < kPage || options.write_memory_bytes < kPage || options.read_depth < 1)
    return error(Code::kInvalidConfig, "store: segments of {} bytes, {} bytes of write memory, depth {}",
                 options.segment_bytes, options.write_memory_bytes, options.read_depth);
  auto store = std::make_unique<DirectoryStoreImpl>(options);
  DI_TRY(store->start());
  return std::unique_ptr<DirectoryStore>(std::move(store));
}

int64_t DirectoryStoreImpl::default_monotonic() {
  return deepinfer::now_ns();
}

DirectoryStoreImpl::DirectoryStoreImpl(const DirectoryOptions& options) : options_(options) {
  if (!options_.wall_s) {
    options_.wall_s = [] {
      return std::chrono::duration_cast<std::chrono::seconds>(
                 std::chrono::system_clock::now().time_since_epoch())
          .count();
    };
  }
}

DirectoryStoreImpl::~DirectoryStoreImpl() {
  {
    std::lock_guard lock(mutex_);
    stop_writer_ = true;
  }
  jobs_changed_.notify_all();
  if (writer_thread_.joinable()) writer_thread_.join();
  {
    std::lock_guard lock(keeper_mutex_);
    stop_keeper_ = true;
  }
  keeper_changed_.notify_all();
  if (keeper_thread_.joinable()) keeper_thread_.join();
  // Reads that fly end before what they write to goes.
  std::vector<FetchId> open;
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, f] : fetches_) open.push_back(FetchId(id));
  }
  for (FetchId id : open) cancel(id);
  reader_.reset();
}

Status DirectoryStoreImpl::start() {
  DI_TRY(check_store_directory(options_.path, options_.create && options_.writable));
  ReaderOptions r;
  r.memory_bytes = options_.read_memory_bytes;
  r.depth = options_.read_depth;
  r.uring = options_.uring;
  r.limit_bytes_per_s = options_.limit_bytes_per_s;
  reader_ = options_.reader ? options_.reader(r) : Reader::make(r);
  find_generations();
  int64_t floor_s = 0;
  for (size_t i = 0; i < generations_.size(); ++i) {
    Result<Heartbeat> h = read_heartbeat(generations_[i].path);
    // A beat from far in the future would end every life at once; it is not believed either.
    int64_t wall = options_.wall_s();
    if (h.ok() && h->store_time_s <= wall + policy::kLeapSeconds)
      floor_s = std::max(floor_s, h->store_time_s);
  }
  read_clock(floor_s);
  for (size_t i = 0; i < generations_.size(); ++i) {
    follow(i);
    if (generations_[i].follow.missing || generations_[i].follow.damaged > 0) recover(i);
  }
  if (options_.writable) {
    DI_TRY(new_generation());
    writer_thread_ = std::thread([this] { run_writer(); });
  }
  keeper_thread_ = std::thread([this] { run_keeper(); });
  return {};
}

void DirectoryStoreImpl::read_clock(int64_t floor_s) {
  int64_t wall = options_.wall_s(), mono = monotonic();
  std::lock_guard lock(mutex_);
  policy::apply(&clock_, policy::ClockRead{wall, mono, floor_s});
  counters_.clock_jumps = clock_.jumps;
}

uint32_t DirectoryStoreImpl::now_s() const {
  std::lock_guard lock(mutex_);
  return policy::store_seconds(clock_);
}

// ---- matches and leases

Match DirectoryStoreImpl::match(std::span<const Key> chain) {
  int64_t begun = deepinfer::now_ns();
  Match m;
  std::lock_guard lock(mutex_);
  uint32_t now = policy::store_seconds(clock_);
  std::vector<EntryId> entries;
  entries.reserve(chain.size() + 4);
  auto use = [&](EntryId id) {
    index_.at(id).used_s = now;
    lease_entry(id, &entries);
  };
  size_t n = 0;
  for (bool whole = true; whole && n < chain.size();) {
    std::array<EntryId, Index::kPiece> found;
    std::span<const Key> piece = chain.subspan(n, std::min(found.size(), chain.size() - n));
    size_t there = index_.match(piece, now, found.data());
    whole = there == piece.size();
    for (size_t i = 0; i < there; ++i, ++n) {
      const IndexEntry& e = index_.at(found[i]);
      m.bytes += e.payload_bytes;
      use(found[i]);
      if (!e.window) continue;
      EntryId w = index_.find(chain[n], Kind::kWindow);
      if (w == kNoEntry || index_.at(w).expires_s <= now) continue;
      m.windows.push_back(static_cast<int64_t>(n) + 1);
      use(w);
    }
  }
  m.blocks = static_cast<int64_t>(n);
  if (n > 0) m.lease = new_lease(std::move(entries));
  ++counters_.matches;
  counters_.matched_blocks += m.blocks;
  counters_.missed_matches += n == 0 ? 1 : 0;
  counters_.match_length.add(m.blocks);
  int64_t took = deepinfer::now_ns() - begun;
  counters_.match_ns += took;
  counters_.match_time.add(took);
  return m;
}

void DirectoryStoreImpl::lease_entry(EntryId id, std::vector<EntryId>* leased) {
  // One more reader than the count can hold does without a lease: what it reads is checked anyway.
  if (!allowed(index_.at(id).object, ObjectEvent::kLease)) return;
  index_.lease(id);
  leased->push_back(id);
}

LeaseId DirectoryStoreImpl::new_lease(std::vector<EntryId> leased) {
  LeaseId id{++last_id_};
  leases_[raw(id)] = {std::move(leased), {monotonic() + options_.lease_ns}};
  return id;
}

int64_t DirectoryStoreImpl::payload_of(Kind kind, const Key& key) const {
  std::lock_guard lock(mutex_);
  EntryId id = index_.find(key, kind);
  if (id == kNoEntry || index_.at(id).expires_s <= policy::store_seconds(clock_)) return -1;
  return index_.at(id).payload_bytes;
}

bool DirectoryStoreImpl::contains(Kind kind, const Key& key) {
  return payload_of(kind, key) >= 0;
}

bool DirectoryStoreImpl::holds_lease(LeaseId id) const {
  auto it = leases_.find(raw(id));
  return it != leases_.end() && policy::holds(it->second.time, monotonic());
}

bool DirectoryStoreImpl::renew(LeaseId lease) {
  std::lock_guard lock(mutex_);
  if (!holds_lease(lease)) return false;
  leases_[raw(lease)].time.expires_ns = monotonic() + options_.lease_ns;
  return true;
}

void DirectoryStoreImpl::end_lease(LeaseId id) {
  auto it = leases_.find(raw(id));
  if (it == leases_.end()) return;
  for (EntryId e : it->second.entries) index_.release(e);
  leases_.erase(it);
}

void DirectoryStoreImpl::release(LeaseId lease) {
  std::lock_guard lock(mutex_);
  end_lease(lease);
}

int64_t DirectoryStoreImpl::ttl_of(Kind kind, bool agent, const policy::TtlWish& wish) const {
  return policy::decide_ttl_s(
      options_.retention, agent ? policy::TtlClass::kAgent : policy::TtlClass::kChat,
      kind == Kind::kWindow ? policy::StoredKind::kWindow : policy::StoredKind::kBlock, wish);
}

void DirectoryStoreImpl::touch(std::span<const Key> chain, bool agent, const policy::TtlWish& wish) {
  std::lock_guard lock(mutex_);
  uint32_t now = policy::store_seconds(clock_);
  for (const Key& key : chain) {
    for (Kind kind : {Kind::kBlock, Kind::kWindow}) {
      EntryId id = index_.find(key, kind);
      if (id == kNoEntry) {
        if (kind == Kind::kBlock) return;
        continue;
      }
      IndexEntry& e = index_.at(id);
      if (e.expires_s <= now) {
        if (kind == Kind::kBlock) return;
        continue;
      }
      e.used_s = now;
      int64_t ttl = ttl_of(kind, agent, wish);
      uint32_t longer = policy::raised_expiry_s(e.expires_s, now, ttl);
      if (!policy::worth_recording(e.expires_s, longer, ttl)) continue;
      e.expires_s = longer;
      ManifestEntry note;
      note.type = EntryType::kTouch;
      note.kind = kind;
      note.key = key;
      note.used_s = now;
      note.expires_s = longer;
      note.target = generations_[e.writer].id;
      queue_note(note);
    }
  }
}

void DirectoryStoreImpl::invalidate(Kind kind, const Key& key, const std::string&) {
  std::lock_guard lock(mutex_);
  EntryId id = index_.find(key, kind);
  if (id != kNoEntry) erase(id, ObjectEvent::kInvalidate);
}

// ---- tickets

bool DirectoryStoreImpl::have_parent(const ObjectMeta& m) const {
  return m.first || pending_.contains({m.parent, Kind::kBlock}) ||
         index_.find(m.parent, Kind::kBlock) != kNoEntry;
}

bool DirectoryStoreImpl::has(const ObjectMeta& m) {
  EntryId id = index_.find(m.key, m.kind);
  if (id == kNoEntry) return false;
  const IndexEntry& e = index_.at(id);
  // Who sweeps comes by later; nobody is given it any more.
  bool over = e.expires_s <= policy::store_seconds(clock_) && allowed(e.object, ObjectEvent::kEvict);
  if (!over) return true;
  erase(id, ObjectEvent::kEvict);
  ++counters_.expired_objects;
  return false;
}

Result<Ticket> DirectoryStoreImpl::begin(std::vector<ObjectMeta> objects) {
  Ticket t;
  OpenTicket open;
  std::lock_guard lock(mutex_);
  if (!options_.writable) return error(Code::kUnavailable, "the store was opened for reading only");
  if (!trouble_.empty() && monotonic() < retry_ns_)
    return error(Code::kUnavailable, "nothing can be written now: {}", trouble_);
  std::set<Name> chain;
  for (const ObjectMeta& m : objects) {
    if (m.payload_bytes < 0 || m.payload_bytes > kMaxPayloadBytes ||
        record_bytes(m.payload_bytes) > options_.segment_bytes)
      return error(Code::kInvalidArgument, "an object of {} bytes does not fit a segment of {}",
                   m.payload_bytes, options_.segment_bytes);
    bool there = has(m) || pending_.contains({m.key, m.kind}) || chain.contains({m.key, m.kind});
    if (!there && !have_parent(m) && !chain.contains({m.parent, Kind::kBlock})) {
      ++counters_.refused_parent;
      return error(Code::kNotFound, "the block before is not in the store: its prefix would have a hole");
    }
    if (!there) {
      open.bytes += record_bytes(m.payload_bytes);
      chain.insert({m.key, m.kind});
    }
    counters_.duplicates += there ? 1 : 0;
    t.wanted.push_back(!there);
  }
  if (staged_bytes_ + open.bytes > options_.write_memory_bytes) {
    ++counters_.refused_memory;
    return error(Code::kResourceExhausted,
                 "{} bytes wait to be written, {} more would be over the {} allowed", staged_bytes_,
                 open.bytes, options_.write_memory_bytes);
  }
  staged_bytes_ += open.bytes;
  pending_.insert(chain.begin(), chain.end());
  open.records.resize(objects.size());
  open.metas = std::move(objects);
  open.begun_ns = monotonic();
  t.id = TicketId(++last_id_);
  tickets_.emplace(raw(t.id), std::move(open));
  return t;
}

void DirectoryStoreImpl::write(const Ticket& ticket, size_t i, std::span<const uint8_t> payload) {
  Buffer record = make_buffer(record_bytes(static_cast<int64_t>(payload.size())));
  std::memcpy(record.data.get() + kRecordHeaderBytes, payload.data(), payload.size());
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(raw(ticket.id));
  if (it == tickets_.end()) return;  // reclaimed: its writer took too long
  const ObjectMeta& m = it->second.metas[i];
  DI_CHECK(ticket.wanted[i] && static_cast<int64_t>(payload.size()) == m.payload_bytes,
           "a payload is not what its ticket was begun for");
  NewRecord& r = it->second.records[i];
  int64_t ttl = ttl_of(m.kind, m.agent, m.ttl);
  uint32_t now = policy::store_seconds(clock_);
  r.header.kind = m.kind;
  r.header.key = m.key;
  if (!m.first) r.header.parent = m.parent;
  r.header.depth = m.depth;
  r.header.payload_bytes = static_cast<uint32_t>(payload.size());
  r.header.created_s = now;
  r.header.ttl_s = static_cast<uint32_t>(std::min<int64_t>(ttl, UINT32_MAX));
  r.header.shard = m.shard;
  bool splits = m.shard == ShardTag() && m.split > 0 && m.split < m.payload_bytes;
  r.header.split = splits ? static_cast<uint32_t>(m.split) : 0;
  r.expires_s = policy::raised_expiry_s(0, now, ttl);
  r.record = std::move(record);
}

void DirectoryStoreImpl::commit(const Ticket& ticket, std::function<void(Status, size_t)> done) {
  {
    std::lock_guard lock(mutex_);
    auto it = tickets_.find(raw(ticket.id));
    if (it != tickets_.end()) {
      WriteJob job;
      job.bytes = it->second.bytes;
      for (size_t i = 0; i < it->second.metas.size(); ++i) {
        if (!ticket.wanted[i]) continue;
        DI_CHECK(it->second.records[i].record.bytes > 0, "a ticket is committed before it is written");
        job.metas.push_back(std::move(it->second.metas[i]));
        job.records.push_back(std::move(it->second.records[i]));
      }
      job.done = std::move(done);
      tickets_.erase(it);
      ++counters_.commits;
      jobs_.push_back(std::move(job));
      done = nullptr;
    }
  }
  jobs_changed_.notify_all();
  if (done) done(error(Code::kDeadlineExceeded, "the ticket was reclaimed before its commit"), 0);
}

void DirectoryStoreImpl::abort(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  auto it = tickets_.find(raw(ticket.id));
  if (it == tickets_.end()) return;
  ++counters_.aborts;
  staged_bytes_ -= it->second.bytes;
  for (size_t i = 0; i < it->second.metas.size(); ++i) {
    if (ticket.wanted[i]) pending_.erase(Name(it->second.metas[i].key, it->second.metas[i].kind));
  }
  tickets_.erase(it);
}

Counters DirectoryStoreImpl::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

Gauges DirectoryStoreImpl::gauges() const {
  int64_t queue = reader_ != nullptr ? reader_->queued() : 0;
  std::lock_guard lock(mutex_);
  Gauges g;
  g.objects = index_.objects();
  g.blocks = blocks_;
  g.windows = windows_;
  g.held_bytes = held_bytes_;
  g.own_bytes = kept_bytes_;
  g.quota_bytes = options_.retention.quota_bytes;
  g.index_bytes = index_.memory_bytes();
  g.gc_age_s = gc_age_s_;
  g.leases = static_cast<int64_t>(leases_.size());
  g.write_memory = staged_bytes_;
  g.read_queue = queue;
  for (const SeenGeneration& s : generations_) g.generations += s.gone ? 0 : 1;
  g.uring = reader_ != nullptr && reader_->uses_uring();
  g.direct = options_.direct;
  g.writable = options_.writable && trouble_.empty();
  g.trouble = trouble_;
  return g;
}

std::vector<StoredName> DirectoryStoreImpl::recent(Kind kind, int64_t payload_bytes, size_t most) {
  std::vector<StoredName> all;
  std::lock_guard lock(mutex_);
  uint32_t now = policy::store_seconds(clock_);
  for (EntryId id = 0; id < index_.end(); ++id) {
    const IndexEntry& e = index_.at(id);
    bool wanted = e.object.phase == policy::ObjectPhase::kComplete && e.kind == kind &&
                  e.payload_bytes == payload_bytes && e.expires_s > now;
    if (wanted) all.push_back({e.key, e.depth, e.used_s});
  }
  keep_most_recent(&all, most);
  return all;
}

std::vector<ListedObject> DirectoryStoreImpl::list(size_t most) {
  std::vector<ListedObject> out;
  std::lock_guard lock(mutex_);
  for (EntryId id = 0; id < index_.end() && out.size() < most; ++id) {
    const IndexEntry& e = index_.at(id);
    if (e.object.phase == policy::ObjectPhase::kComplete) out.push_back({e, generations_[e.writer].id});
  }
  return out;
}

}  // namespace deepinfer::store
