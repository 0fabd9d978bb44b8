// House-keeping: what other generations did, who of them is gone, what has lived long enough, and whose space
// comes back. Also the index' books, which the other files share.
#include <algorithm>
#include <cmath>

#include "store/directory_impl.h"

namespace deepinfer::store {

using policy::ObjectEvent;
using policy::ObjectPhase;

// ---- the books (mutex_ held)

EntryId DirectoryStoreImpl::add_entry(uint16_t writer, const ManifestEntry& e) {
  IndexEntry x;
  x.key = e.key;
  x.kind = e.kind;
  x.segment = e.segment;
  x.page = e.page;
  x.payload_bytes = e.payload_bytes;
  x.used_s = e.used_s;
  x.expires_s = e.expires_s;
  x.depth = e.depth;
  x.writer = writer;
  EntryId id = index_.insert(x);
  if (id == kNoEntry) return id;
  SeenGeneration& g = generations_[writer];
  int64_t bytes = record_bytes(e.payload_bytes);
  ++g.objects;
  g.bytes += bytes;
  ++g.live[e.segment];
  held_bytes_ += bytes;
  kept_bytes_ += g.kept_here() ? bytes : 0;
  ++(e.kind == Kind::kBlock ? blocks_ : windows_);
  return id;
}

void DirectoryStoreImpl::remove_entry(EntryId id, ObjectEvent why) {
  IndexEntry e = index_.at(id);
  SeenGeneration& g = generations_[e.writer];
  int64_t bytes = record_bytes(e.payload_bytes);
  --g.objects;
  g.bytes -= bytes;
  if (--g.live[e.segment] == 0) g.live.erase(e.segment);
  held_bytes_ -= bytes;
  kept_bytes_ -= g.kept_here() ? bytes : 0;
  --(e.kind == Kind::kBlock ? blocks_ : windows_);
  index_.drop(id, why);
}

void DirectoryStoreImpl::erase(EntryId id, ObjectEvent why) {
  IndexEntry e = index_.at(id);
  SeenGeneration& g = generations_[e.writer];
  remove_entry(id, why);
  if (!options_.writable || g.gone) return;
  // A damaged object of a living owner is hidden for everybody too; its space is the owner's business.
  ManifestEntry note;
  note.type = EntryType::kErase;
  note.kind = e.kind;
  note.key = e.key;
  note.segment = e.segment;
  note.page = e.page;
  note.target = g.id;
  queue_note(note);
  if (g.kept_here())
    punches_.push_back({monotonic() + options_.grace_ns, e.writer, e.segment, e.page, e.payload_bytes});
}

void DirectoryStoreImpl::apply_entry(uint16_t writer, const ManifestEntry& e) {
  if (e.type == EntryType::kCommit) {
    if (add_entry(writer, e) == kNoEntry) ++counters_.duplicates;
    return;
  }
  if (e.type == EntryType::kErase && e.target != generations_[writer].id)
    generations_[writer].hides.insert(e.target);
  EntryId id = index_.find(e.key, e.kind);
  if (id == kNoEntry) return;
  IndexEntry& x = index_.at(id);
  if (generations_[x.writer].id != e.target) return;
  if (e.type == EntryType::kTouch) {
    x.used_s = std::max(x.used_s, e.used_s);
    x.expires_s = std::max(x.expires_s, e.expires_s);
  } else if (x.segment == e.segment && x.page == e.page) {
    ++counters_.erased_by_others;
    bool here = generations_[x.writer].kept_here();
    PunchLater p{monotonic() + options_.grace_ns, x.writer, x.segment, x.page, x.payload_bytes};
    remove_entry(id, ObjectEvent::kInvalidate);
    if (here) punches_.push_back(p);
  }
}

// ---- other generations

void DirectoryStoreImpl::find_generations() {
  Result<std::vector<std::string>> names = names_in(options_.path);
  if (!names.ok()) return;  // reads will tell; what is open stays readable
  std::set<uint64_t> there;
  std::vector<size_t> lost;
  {
    std::lock_guard lock(mutex_);
    for (const std::string& n : *names) {
      std::optional<uint64_t> id = generation_of(n);
      if (!id.has_value()) continue;
      there.insert(*id);
      if (writer_of_.contains(*id) || generations_.size() + 2 >= UINT16_MAX) continue;
      SeenGeneration g;
      g.id = *id;
      g.path = options_.path + "/" + n;
      writer_of_[*id] = static_cast<uint16_t>(generations_.size());
      generations_.push_back(std::move(g));
    }
    for (size_t i = 0; i < generations_.size(); ++i) {
      if (!generations_[i].gone && !there.contains(generations_[i].id)) lost.push_back(i);
    }
  }
  for (size_t i : lost) drop_generation(i);
}

void DirectoryStoreImpl::follow(size_t i) {
  FollowState state;
  std::string path;
  {
    std::lock_guard lock(mutex_);
    if (generations_[i].mine || generations_[i].gone) return;
    state = generations_[i].follow;
    path = generations_[i].path;
  }
  int64_t damaged = state.damaged;
  // Errors of the file system: the same place is tried again in the next round.
  Status s = follow_manifest(path, &state, [&](const ManifestEntry& e) {
    std::lock_guard lock(mutex_);
    apply_entry(static_cast<uint16_t>(i), e);
  });
  std::lock_guard lock(mutex_);
  if (s.ok()) generations_[i].follow = state;
  counters_.damaged_entries += state.damaged - damaged;
}

void DirectoryStoreImpl::follow_all() {
  size_t n = 0;
  {
    std::lock_guard lock(mutex_);
    n = generations_.size();
  }
  for (size_t i = 0; i < n; ++i) follow(i);
}

// Reads the segments of a generation whose manifest cannot be believed. What it finds may include objects
// that were erased and whose space was not given back yet: whole, so right.
void DirectoryStoreImpl::recover(size_t i) {
  std::string path;
  uint64_t generation = 0;
  {
    std::lock_guard lock(mutex_);
    if (generations_[i].scanned || generations_[i].mine) return;
    generations_[i].scanned = true;
    path = generations_[i].path;
    generation = generations_[i].id;
  }
  Result<std::vector<std::string>> names = names_in(path);
  if (!names.ok()) return;
  for (const std::string& n : *names) {
    std::optional<uint32_t> segment = segment_of(n);
    if (!segment.has_value()) continue;
    auto add = [&](const RecordHeader& h, std::span<const uint8_t>) {
      ManifestEntry e;
      e.kind = h.kind;
      e.key = h.key;
      e.segment = h.segment;
      e.page = h.page;
      e.payload_bytes = h.payload_bytes;
      e.depth = h.depth;
      e.used_s = h.created_s;
      e.expires_s = policy::raised_expiry_s(0, h.created_s, h.ttl_s);
      std::lock_guard lock(mutex_);
      if (add_entry(static_cast<uint16_t>(i), e) != kNoEntry) ++counters_.recovered_objects;
    };
    // A segment that cannot be read holds nothing for us.
    if (!scan_segment(path + "/" + n, generation, *segment, false, add).ok()) continue;
  }
}

void DirectoryStoreImpl::drop_generation(size_t i) {
  std::lock_guard lock(mutex_);
  SeenGeneration& g = generations_[i];
  g.gone = true;
  for (EntryId id = 0; g.objects > 0 && id < index_.end(); ++id) {
    const IndexEntry& e = index_.at(id);
    if (e.object.phase == ObjectPhase::kComplete && e.writer == i) remove_entry(id, ObjectEvent::kInvalidate);
  }
  std::lock_guard files(files_mutex_);
  std::erase_if(files_, [i](const auto& f) { return f.first.first == i; });
}

void DirectoryStoreImpl::watch_owners() {
  std::vector<size_t> others;
  uint64_t me = 0;
  {
    std::lock_guard lock(mutex_);
    if (writer_ == nullptr) return;
    me = writer_->generation();
    for (size_t i = 0; i < generations_.size(); ++i) {
      const SeenGeneration& g = generations_[i];
      if (!g.mine && !g.gone && !g.claimed) others.push_back(i);
    }
  }
  for (size_t i : others) {
    SeenGeneration* g = nullptr;
    {
      std::lock_guard lock(mutex_);
      g = &generations_[i];  // a deque's elements stay where they are; only this thread changes the watch
    }
    Claim claim = last_claim(g->path);
    uint64_t owner = claim.number > 0 ? claim.by : g->id;
    std::string owner_path = options_.path + "/" + generation_name(owner);
    Result<Heartbeat> beat = read_heartbeat(owner_path);
    // An owner whose directory is gone beats no more.
    uint64_t value = beat.ok() ? beat->beat + owner * 0x9E3779B97F4A7C15u : 0;
    int64_t now = monotonic();
    policy::observe(&g->watch, value, now);
    if (!policy::owner_dead(g->watch, true, now, options_.silent_ns)) continue;
    Result<File> alive = open_file(owner_path + "/alive", OpenMode::kWrite);
    bool lock_free = !alive.ok() || try_lock(*alive);
    if (!policy::owner_dead(g->watch, lock_free, now, options_.silent_ns)) continue;
    if (!make_claim(g->path, claim.number + 1, me)) continue;
    follow(i);
    bool torn = false;
    {
      std::lock_guard lock(mutex_);
      g->claimed = true;
      kept_bytes_ += g->bytes;
      ++counters_.adopted_generations;
      torn = g->follow.damaged > 0 || g->follow.missing || g->follow.tail > 0;
    }
    if (torn) recover(i);
  }
}

// ---- retention

int64_t DirectoryStoreImpl::evict(int64_t bytes) {
  std::vector<policy::EvictionCandidate> all;
  // In slices: a match must not wait for a million entries to be looked at.
  constexpr EntryId kSlice = 8192;
  for (EntryId from = 0;; from += kSlice) {
    std::lock_guard lock(mutex_);
    if (from >= index_.end()) break;
    for (EntryId id = from; id < std::min<EntryId>(index_.end(), from + kSlice); ++id) {
      const IndexEntry& e = index_.at(id);
      if (!allowed(e.object, ObjectEvent::kEvict) || !generations_[e.writer].kept_here()) continue;
      // The upper byte of a coded part's depth is its number.
      all.push_back({id, e.used_s, e.depth & 0xffffff, static_cast<uint32_t>(record_bytes(e.payload_bytes))});
    }
  }
  int64_t gone = 0;
  for (const policy::EvictionCandidate& c : policy::choose_victims(std::move(all), bytes)) {
    std::lock_guard lock(mutex_);
    const IndexEntry& e = index_.at(c.id);
    // It may have been used or given up since it was looked at.
    if (!allowed(e.object, ObjectEvent::kEvict) || e.used_s != c.used_s || (e.depth & 0xffffff) != c.depth)
      continue;
    erase(c.id, ObjectEvent::kEvict);
    gc_age_s_ = int64_t{policy::store_seconds(clock_)} - c.used_s;
    ++counters_.evicted_objects;
    ++gone;
  }
  return gone;
}

void DirectoryStoreImpl::expire_and_evict(bool sweep) {
  constexpr EntryId kSlice = 8192;
  for (EntryId from = 0; sweep; from += kSlice) {
    std::lock_guard lock(mutex_);
    if (from >= index_.end()) break;
    uint32_t now = policy::store_seconds(clock_);
    for (EntryId id = from; id < std::min<EntryId>(index_.end(), from + kSlice); ++id) {
      const IndexEntry& e = index_.at(id);
      bool over = allowed(e.object, ObjectEvent::kEvict) && e.expires_s <= now;
      if (!over || !generations_[e.writer].kept_here()) continue;
      erase(id, ObjectEvent::kEvict);
      ++counters_.expired_objects;
    }
  }
  int64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    bytes = policy::bytes_to_evict(options_.retention, kept_bytes_);
    // The disk is fuller than the quota thought: a part goes, so that writing can go on.
    if (disk_full_) bytes = std::max(bytes, std::max<int64_t>(kept_bytes_ / 10, 1));
  }
  if (bytes > 0) evict(bytes);
}

void DirectoryStoreImpl::free_space(bool all) {
  std::vector<PunchLater> due;
  std::vector<std::pair<size_t, std::string>> segments, empty;
  int64_t now = monotonic();
  {
    std::lock_guard lock(mutex_);
    // On a full disk the erasure may not even be written: the space goes back at once, and who reads there
    // meanwhile finds out by the checksum.
    bool hurry = all || disk_full_;
    auto later = std::stable_partition(punches_.begin(), punches_.end(),
                                       [&](const PunchLater& p) { return hurry || p.due_ns <= now; });
    due.assign(punches_.begin(), later);
    punches_.erase(punches_.begin(), later);
    // The newest directory stays, empty or not: its number is the next one's floor, and no number comes
    // twice.
    uint64_t newest = 0;
    for (const SeenGeneration& g : generations_) newest = g.gone ? newest : std::max(newest, g.id);
    for (size_t i = 0; i < generations_.size(); ++i) {
      const SeenGeneration& g = generations_[i];
      bool pending =
          std::any_of(punches_.begin(), punches_.end(), [i](const PunchLater& p) { return p.writer == i; });
      if (g.kept_here() && g.id != newest && i != writer_index_ && !pending && !needed(g))
        empty.push_back({i, g.path});
    }
  }
  for (const PunchLater& p : due) {
    std::string path;
    {
      std::lock_guard lock(mutex_);
      path = generations_[p.writer].path + "/" + segment_name(p.segment);
    }
    Result<File> f = open_file(path, OpenMode::kWrite);
    if (f.ok()) punch(*f, int64_t{p.page} * kPage, record_bytes(p.payload_bytes));
  }
  // A generation nobody writes and nothing lives in.
  for (auto& [i, path] : empty) {
    Result<std::vector<std::string>> names = names_in(path);
    if (!names.ok()) continue;
    // The claims last: until then nobody else may think it is free.
    for (const std::string& n : *names) {
      if (n.rfind("claim-", 0) != 0) remove_quietly(path + "/" + n);
    }
    for (const std::string& n : *names) remove_quietly(path + "/" + n);
    remove_quietly(path);
    drop_generation(i);
  }
}

// Whether a generation that nobody writes any more must stay: something lives in it, or its manifest says of
// an object whose record is still there that it is erased.
bool DirectoryStoreImpl::needed(const SeenGeneration& g) const {
  if (g.gone) return true;  // there is nothing to remove
  return g.objects > 0 || std::any_of(g.hides.begin(), g.hides.end(), [this](uint64_t other) {
           auto it = writer_of_.find(other);
           return it != writer_of_.end() && !generations_[it->second].gone;
         });
}

void DirectoryStoreImpl::end_old_leases() {
  int64_t now = monotonic();
  std::lock_guard lock(mutex_);
  std::vector<LeaseId> over;
  for (auto& [id, lease] : leases_) {
    bool fetching = std::any_of(fetches_.begin(), fetches_.end(),
                                [&, number = id](const auto& f) { return raw(f.second->lease) == number; });
    if (!policy::holds(lease.time, now) && !fetching) over.push_back(LeaseId(id));
  }
  counters_.lease_expiries += static_cast<int64_t>(over.size());
  for (LeaseId id : over) end_lease(id);
  std::vector<uint64_t> old;
  for (auto& [id, t] : tickets_) {
    if (now - t.begun_ns >= policy::kTicketReclaimNs) old.push_back(id);
  }
  for (uint64_t id : old) {
    OpenTicket& t = tickets_[id];
    staged_bytes_ -= t.bytes;
    for (const ObjectMeta& m : t.metas) pending_.erase(Name(m.key, m.kind));
    tickets_.erase(id);
    ++counters_.aborts;
  }
}

void DirectoryStoreImpl::keep_house() {
  one_round(true);
}

void DirectoryStoreImpl::one_round(bool sweep) {
  std::lock_guard one(keeper_mutex_);
  read_clock(0);
  find_generations();
  follow_all();
  std::shared_ptr<GenerationWriter> w;
  int64_t store_time = 0;
  {
    std::lock_guard lock(mutex_);
    ++counters_.refreshes;
    int64_t now = monotonic();
    if (kept_since_ns_ > 0)
      kept_rest_ += static_cast<double>(kept_bytes_) / 1e6 * static_cast<double>(now - kept_since_ns_) / 1e9;
    kept_since_ns_ = now;
    counters_.kept_megabyte_s += static_cast<int64_t>(kept_rest_);
    kept_rest_ -= std::floor(kept_rest_);
    w = writer_;
    store_time = clock_.wall_s;
  }
  // A missed beat alone says nothing: what is wrong with the directory, the writer finds out.
  if (w != nullptr) (void)w->beat(store_time);
  watch_owners();
  end_old_leases();
  if (options_.writable) {
    expire_and_evict(sweep);
    free_space(false);
  }
}

void DirectoryStoreImpl::run_keeper() {
  std::unique_lock lock(keeper_mutex_);
  while (!stop_keeper_) {
    keeper_changed_.wait_for(lock, std::chrono::nanoseconds(options_.refresh_ns));
    if (stop_keeper_) return;
    lock.unlock();
    int64_t now = monotonic();
    read_clock(0);
    if (now - beat_ns_ >= options_.heartbeat_ns) {
      beat_ns_ = now;
      // Looking at every object for its age is work; a match does not give out what is too old anyway.
      constexpr int64_t kSweepNs = 30'000'000'000;
      bool sweep = now - swept_ns_ >= kSweepNs;
      if (sweep) swept_ns_ = now;
      one_round(sweep);
    } else {
      std::lock_guard one(keeper_mutex_);
      follow_all();
    }
    lock.lock();
  }
}

int64_t DirectoryStoreImpl::shrink(int64_t bytes) {
  int64_t beyond = 0;
  {
    std::lock_guard lock(mutex_);
    beyond = kept_bytes_ - bytes;
  }
  int64_t gone = beyond > 0 ? evict(beyond) : 0;
  flush();
  free_space(true);
  return gone;
}

}  // namespace deepinfer::store
