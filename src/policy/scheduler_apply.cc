// What events do to the state. Every way of leaving goes through end_request, every way of giving blocks back
// through release_blocks, so that nothing is released twice or forgotten.
#include <algorithm>

#include "base/check.h"
#include "policy/scheduler.h"

namespace deepinfer::policy {
namespace {

using State = SchedulerState;

Request& req(State* s, uint32_t slot) {
  return s->slots[slot];
}

void drop_leases(State* s, Request* r) {
  // The deepest block first: it will be the first to be evicted.
  for (auto it = r->leased.rbegin(); it != r->leased.rend(); ++it) unlease(&s->cache, *it);
  r->leased.clear();
}

void drop_restore(State* s, Request* r) {
  if (r->restoring == kNoSnapshot) return;
  --s->cache.snapshots[static_cast<size_t>(raw(r->restoring))].pins;
  r->restoring = kNoSnapshot;
  r->restore_due = false;
}

void drop_loading(State* s, Request* r) {
  if (r->loading == kNoSnapshot) return;
  drop_snapshot(&s->cache, r->loading);
  r->loading = kNoSnapshot;
}

void release_blocks(State* s, Request* r) {
  for (auto it = r->blocks.rbegin(); it != r->blocks.rend(); ++it) unref(&s->cache, *it);
  r->blocks.clear();
  s->promised_blocks -= r->promised_blocks;
  r->promised_blocks = 0;
  drop_restore(s, r);
}

void take_work(State* s, Request* r, double ns) {
  double part = std::min(ns, r->outstanding_ns);
  r->outstanding_ns -= part;
  double& used = s->used_ns[r->tier];
  // Sums of doubles: what is left when nobody has work must be exactly nothing.
  used = std::max(0.0, used - part);
}

void free_slot(State* s, uint32_t slot) {
  s->slots[slot] = Request{};
  s->free_slots.push_back(slot);
}

void leave_running(State* s, uint32_t slot) {
  s->running.erase(std::find(s->running.begin(), s->running.end(), slot));
}

void enter_running(State* s, uint32_t slot) {
  auto before = [s](uint32_t a, uint32_t b) { return seniority(at(*s, a), a) < seniority(at(*s, b), b); };
  s->running.insert(std::upper_bound(s->running.begin(), s->running.end(), slot, before), slot);
}

void leave_waiting(State* s, uint32_t slot, bool served) {
  Request& r = req(s, slot);
  if (r.queued.arrival != 0) {
    take_out(&s->queues[r.tier], r.queued, served);
    r.queued = QueueKey{};
  } else {
    s->preempted.erase(seniority(r, slot));
  }
  s->waiting_by_age.erase({r.arrival, slot});
}

// The request is over. What a step or a load in flight still touches is kept until that has finished.
void end_request(State* s, uint32_t slot) {
  Request& r = req(s, slot);
  s->by_seq.erase(r.seq);
  s->doomed.erase(slot);
  if (r.deadline_ns > 0) s->deadlines.erase({r.deadline_ns, slot});
  take_work(s, &r, r.outstanding_ns);
  bool loading = r.phase == Phase::kLoading;
  if (r.phase == Phase::kWaiting) {
    leave_waiting(s, slot, false);
    drop_leases(s, &r);
  } else if (r.phase == Phase::kPreempting) {
    --s->lingering;
  } else {
    leave_running(s, slot);
  }
  if (loading) s->ended_loads.emplace(r.seq, slot);
  r.early = false;
  if (loading || r.steps_in_flight > 0) {
    r.phase = Phase::kEnding;
    s->promised_blocks -= r.promised_blocks;
    r.promised_blocks = 0;
    ++s->lingering;
    return;
  }
  release_blocks(s, &r);
  free_slot(s, slot);
}

// Everything is given back; the request keeps its age, its floor and its output.
void go_back_to_waiting(State* s, uint32_t slot) {
  Request& r = req(s, slot);
  if (r.replayed) {
    // Its prefix carries an approximation that no recomputation would reproduce, so it stays held.
    int64_t n = std::min<int64_t>(r.hit.kv_hit_tokens / window(*s), static_cast<int64_t>(r.blocks.size()));
    for (int64_t i = 0; i < n && at(s->cache, r.blocks[static_cast<size_t>(i)]).cached; ++i) {
      lease(&s->cache, r.blocks[static_cast<size_t>(i)]);
      r.leased.push_back(r.blocks[static_cast<size_t>(i)]);
    }
  }
  release_blocks(s, &r);
  take_work(s, &r, r.outstanding_ns);
  r.phase = Phase::kWaiting;
  r.computed_tokens = r.rows_least = r.rows_most = 0;
  r.idle_steps = 0;
  s->preempted.insert(seniority(r, slot));
  s->waiting_by_age.insert({r.arrival, slot});
}

uint32_t new_slot(State* s) {
  if (s->free_slots.empty()) {
    s->slots.emplace_back();
    return static_cast<uint32_t>(s->slots.size() - 1);
  }
  uint32_t slot = s->free_slots.back();
  s->free_slots.pop_back();
  return slot;
}

void on(State* s, const Arrived& e) {
  if (s->by_seq.contains(e.seq) || s->ended_loads.contains(e.seq)) {
    ++s->counters.ignored_events;
    return;
  }
  ++s->counters.arrived;
  uint32_t slot = new_slot(s);
  Request& r = req(s, slot);
  r.phase = Phase::kWaiting;
  r.seq = e.seq;
  r.tenant = e.tenant;
  r.weight = e.weight;
  r.priority = e.priority;
  r.exact = e.exact || s->config.exact_hits;
  r.whole_decoder = e.whole_decoder;
  r.arrival = ++s->arrivals;
  r.arrived_ns = e.now_ns;
  r.deadline_ns = std::max<int64_t>(0, e.deadline_ns);
  r.prompt_tokens = r.known_tokens = std::max<int64_t>(0, e.prompt_tokens);
  r.limit_tokens =
      std::min(s->config.context_tokens, r.prompt_tokens + std::max<int64_t>(1, e.max_new_tokens));
  r.store_blocks = e.store_blocks;
  r.store_ns_per_block = e.store_ns_per_block;
  r.store_windows = e.store_windows;
  r.store_ns_per_window = e.store_ns_per_window;
  r.keys = e.keys;
  r.keys.resize(std::min(r.keys.size(), static_cast<size_t>(r.prompt_tokens / window(*s))));
  r.tier = tier_of(s->config.tiers, r.prompt_tokens);
  AdmissionVerdict v = decide_admission(s->config, e.prompt_tokens, e.max_new_tokens);
  if (v.reason != EndReason::kAccepted) {
    r.doomed = v.reason;
    r.need = v.need;
    r.limit = v.limit;
    s->doomed.insert(slot);
  } else {
    int64_t cap = std::max<int64_t>(0, r.prompt_tokens - s->config.replay.cap_tokens()) / window(*s);
    if (r.whole_decoder) cap = 0;
    for (const BlockKey& k : r.keys) {
      BlockId id = find(s->cache, k);
      if (id == kNoBlock || static_cast<int64_t>(r.leased.size()) >= cap) break;
      if (r.exact && at(s->cache, id).replayed) break;
      lease(&s->cache, id);
      r.leased.push_back(id);
    }
  }
  int64_t held = static_cast<int64_t>(r.leased.size()) * window(*s);
  double work = rows_cost_ns(s->fit.model, r.prompt_tokens - held, held);
  double weight = r.weight > 0 ? r.weight : 1;
  r.queued = push(&s->queues[r.tier], r.tenant, weight, work, {-int64_t{r.priority}, 0, r.arrival, slot});
  s->waiting_by_age.insert({r.arrival, slot});
  if (r.deadline_ns > 0) s->deadlines.insert({r.deadline_ns, slot});
  s->by_seq.emplace(r.seq, slot);
}

void adopt_admission(State* s, const Admission& a) {
  Request& r = req(s, a.slot);
  DI_CHECK(r.seq == a.seq && r.phase == Phase::kWaiting, "the plan is not of this state");
  s->bypasses = s->waiting_by_age.begin()->second == a.slot ? 0 : s->bypasses + 1;
  for (BlockId id : a.shared) ref(&s->cache, id);
  drop_leases(s, &r);
  leave_waiting(s, a.slot, true);
  r.blocks = a.shared;
  for (BlockId id : a.load) {
    take(&s->cache, id);
    r.blocks.push_back(id);
  }
  r.loading_blocks = static_cast<int64_t>(a.load.size());
  r.promised_blocks = a.promised_blocks;
  s->promised_blocks += a.promised_blocks;
  if (!r.admitted_before) r.decoder_floor = a.decoder_floor;
  DI_CHECK(r.decoder_floor == a.decoder_floor, "a request keeps its floor");
  r.encoder_floor = a.encoder_floor;
  if (!r.admitted_before || a.floor_lost) {
    r.hit = a.hit;
    r.replayed = a.hit.reason == HitReason::kReplayed;
  }
  for (BlockId id : a.shared) r.replayed = r.replayed || at(s->cache, id).replayed;
  if (a.restore != kNoSnapshot) {
    r.replayed = r.replayed || at(s->cache, a.restore).replayed;
    touch_snapshot(&s->cache, a.restore);
    ++s->cache.snapshots[static_cast<size_t>(raw(a.restore))].pins;
    r.restoring = a.restore;
    r.restore_due = true;
  }
  if (a.load_window != kNoSnapshot) {
    begin_snapshot(&s->cache, a.load_window, a.hit.start_tokens);
    r.loading = a.load_window;
  }
  r.publish_from = a.hit.kv_hit_tokens;
  r.published_blocks = static_cast<int64_t>(a.shared.size());
  r.computed_tokens = a.hit.start_tokens;
  r.prefill_end = r.known_tokens;
  r.idle_steps = -1;  // the step that lets it in does not count
  r.phase = a.loads() ? Phase::kLoading : Phase::kRunning;
  r.outstanding_ns = rows_cost_ns(s->fit.model, r.known_tokens - r.computed_tokens, r.computed_tokens);
  s->used_ns[r.tier] += r.outstanding_ns;
  enter_running(s, a.slot);
  Counters& c = s->counters;
  ++(r.admitted_before ? c.resumed : c.admitted);
  c.floors_lost += a.floor_lost ? 1 : 0;
  if (!r.admitted_before) {
    c.prompt_tokens += r.prompt_tokens;
    c.hit_tokens += a.hit.start_tokens;
    c.replayed_hits += a.hit.reason == HitReason::kReplayed ? 1 : 0;
    c.lost_to_cap += a.hit.lost_to_cap;
    c.lost_to_rounding += a.hit.lost_to_rounding;
    c.lost_to_snapshot += a.hit.lost_to_snapshot;
    c.lost_to_missing_blocks += a.hit.lost_to_missing_blocks;
  }
  r.admitted_before = true;
}

void adopt_run(State* s, const StepPlan& p, const RowRun& run) {
  Request& r = req(s, run.slot);
  bool early = r.phase == Phase::kLoading && r.early && run.loading;
  DI_CHECK(r.seq == run.seq && (early || (r.phase == Phase::kRunning && !run.loading)),
           "the plan is not of this state");
  // Until the load has ended there is no second one.
  r.early = false;
  s->counters.early_runs += early ? 1 : 0;
  for (int32_t i = 0; i < run.block_count; ++i) {
    BlockId id = p.new_blocks[static_cast<size_t>(run.first_block + i)];
    take(&s->cache, id);
    r.blocks.push_back(id);
  }
  int64_t kept = std::min<int64_t>(run.block_count, r.promised_blocks);
  r.promised_blocks -= kept;
  s->promised_blocks -= kept;
  if (run.snapshot != kNoSnapshot) begin_snapshot(&s->cache, run.snapshot, run.snapshot_boundary);
  if (run.cap_snapshot != kNoSnapshot) begin_snapshot(&s->cache, run.cap_snapshot, run.cap_boundary);
  if (run.restore != kNoSnapshot) r.restore_due = false;
  ++r.steps_in_flight;
  r.rows_least += run.prefill ? run.rows : 1;
  r.rows_most += run.rows;
  r.idle_steps = -1;  // the common increment makes it 0
  if (run.prefill) {
    take_work(s, &r, rows_cost_ns(s->fit.model, run.rows, run.begin));
    if (!in_prefill(r)) take_work(s, &r, r.outstanding_ns);
  }
}

void on(State* s, const PlanAdopted& e) {
  const StepPlan& p = e.plan;
  DI_CHECK(raw(p.step) == s->next_step, "plans are adopted once and in order");
  ++s->next_step;
  for (const Ending& x : p.end) {
    ++s->counters.ended;
    end_request(s, x.slot);
  }
  for (SeqId seq : p.revoke) {
    drop_leases(s, &req(s, s->by_seq.at(seq)));
    ++s->counters.revocations;
  }
  for (const Preemption& v : p.preempt) {
    Request& r = req(s, v.slot);
    ++s->counters.preemptions;
    ++r.preemptions;
    leave_running(s, v.slot);
    if (r.steps_in_flight == 0) {
      go_back_to_waiting(s, v.slot);
    } else {
      r.phase = Phase::kPreempting;
      s->promised_blocks -= r.promised_blocks;
      r.promised_blocks = 0;
      ++s->lingering;
    }
  }
  for (BlockId id : p.evict) uncache(&s->cache, id);
  s->counters.evicted_blocks += static_cast<int64_t>(p.evict.size());
  for (SnapshotId id : p.evict_snapshots) drop_snapshot(&s->cache, id);
  s->counters.evicted_snapshots += static_cast<int64_t>(p.evict_snapshots.size());
  s->counters.skipped_snapshots += p.snapshots_skipped;
  for (const Admission& a : p.admit) adopt_admission(s, a);
  for (const RowRun& run : p.runs) adopt_run(s, p, run);
  s->counters.stalls += static_cast<int64_t>(p.stalled.size());
  if (!p.launches()) return;
  for (uint32_t slot : s->running) ++req(s, slot).idle_steps;
  s->in_flight.push_back({p.step, p.runs, p.sample});
}

void publish_completed(State* s, Request* r) {
  int64_t full = std::min<int64_t>(static_cast<int64_t>(r->keys.size()), r->computed_tokens / window(*s));
  for (; r->published_blocks < full; ++r->published_blocks) {
    size_t i = static_cast<size_t>(r->published_blocks);
    publish(&s->cache, r->blocks[i], r->keys[i], static_cast<int32_t>(i), r->replayed);
  }
}

// Publishes the copied window, or gives the slot back. An output's snapshot replaces the one before it.
void settle_snapshot(State* s, Request* r, const RowRun& run, bool good) {
  if (run.cap_snapshot != kNoSnapshot) {
    size_t cap_block = static_cast<size_t>(run.cap_boundary / window(*s));
    if (good && r->keys.size() >= cap_block) {
      finish_snapshot(&s->cache, run.cap_snapshot, r->keys[cap_block - 1], r->replayed);
    } else {
      drop_snapshot(&s->cache, run.cap_snapshot);
    }
  }
  if (run.snapshot == kNoSnapshot) return;
  size_t block = static_cast<size_t>(run.snapshot_boundary / window(*s));
  if (!good || r->keys.size() < block) {
    drop_snapshot(&s->cache, run.snapshot);
    return;
  }
  const BlockKey& key = r->keys[block - 1];
  bool fresh = finish_snapshot(&s->cache, run.snapshot, key, r->replayed);
  if (!fresh || run.snapshot_boundary <= r->prompt_tokens) return;
  if (r->last_snapshot != kNoSnapshot) {
    const SnapshotEntry& old = at(s->cache, r->last_snapshot);
    bool mine = old.place == SnapshotPlace::kReady && old.key == r->last_snapshot_key && old.pins == 0;
    if (mine) drop_snapshot(&s->cache, r->last_snapshot);
  }
  r->last_snapshot = run.snapshot;
  r->last_snapshot_key = key;
}

void finish_run(State* s, const RowRun& run, const RowResult& x) {
  Request& r = req(s, run.slot);
  DI_CHECK(r.seq == run.seq && x.seq == run.seq, "results come in the order of the plan's runs");
  DI_CHECK(x.new_tokens >= 0 && x.new_tokens <= (run.yields ? 1 + run.drafts : 0),
           "more tokens than rows decided");
  --r.steps_in_flight;
  r.rows_least -= run.prefill ? run.rows : 1;
  r.rows_most -= run.rows;
  drop_restore(s, &r);
  if (r.phase == Phase::kEnding) {
    s->counters.wasted_tokens += x.new_tokens;
    settle_snapshot(s, &r, run, false);
    if (r.steps_in_flight == 0 && !s->ended_loads.contains(r.seq)) {
      --s->lingering;
      release_blocks(s, &r);
      free_slot(s, run.slot);
    }
    return;
  }
  DI_CHECK(r.phase != Phase::kLoading, "a load's end is told before that of the step that waited for it");
  DI_CHECK(!x.lost || (run.loading && r.phase == Phase::kPreempting && x.new_tokens == 0 && !x.finished),
           "only the run of a load that ended short is lost");
  DI_CHECK(x.finished || x.lost || !run.yields || x.new_tokens > 0,
           "a row that decides gives a token or ends its request");
  bool good = !x.failed && !x.lost;
  if (good) {
    r.computed_tokens += run.prefill ? run.rows : x.new_tokens;
    r.known_tokens += x.new_tokens;
    r.keys.insert(r.keys.end(), x.new_keys.begin(), x.new_keys.end());
    publish_completed(s, &r);
  }
  settle_snapshot(s, &r, run, good && x.snapshot_taken && run.snapshot_boundary <= r.computed_tokens);
  if (x.finished || r.known_tokens >= r.limit_tokens) {
    ++s->counters.finished;
    end_request(s, run.slot);
  } else if (r.phase == Phase::kPreempting && r.steps_in_flight == 0) {
    --s->lingering;
    go_back_to_waiting(s, run.slot);
  }
}

void on(State* s, const StepFinished& e) {
  DI_CHECK(!s->in_flight.empty() && s->in_flight.front().step == e.step, "steps finish in order");
  InFlight f = std::move(s->in_flight.front());
  s->in_flight.pop_front();
  DI_CHECK(e.results.size() == f.runs.size(), "one result per run");
  for (size_t i = 0; i < f.runs.size(); ++i) finish_run(s, f.runs[i], e.results[i]);
  f.sample.measured_ns = e.measured_ns;
  apply(&s->fit, StepMeasured{f.sample, e.exclude_from_fit});
}

void on(State* s, const Cancelled& e) {
  auto it = s->by_seq.find(e.seq);
  if (it == s->by_seq.end()) {
    ++s->counters.ignored_events;
    return;
  }
  ++s->counters.cancelled;
  end_request(s, it->second);
}

// A load ended short: what arrived is a hit like any other, decided again with what there is now.
void shorten_hit(State* s, Request* r, int64_t blocks) {
  drop_restore(s, r);
  const int64_t states[] = {blocks * window(*s)};
  std::vector<int64_t> boundaries;
  for (int64_t b = 1; b <= blocks; ++b) {
    SnapshotId id = find_snapshot(s->cache, r->keys[static_cast<size_t>(b - 1)]);
    if (id != kNoSnapshot && !(r->exact && at(s->cache, id).replayed)) boundaries.push_back(b * window(*s));
  }
  HitMode mode = r->exact ? HitMode::kExact : HitMode::kReplay;
  r->hit = decide_hit({r->known_tokens, states, boundaries, mode, r->decoder_floor}, s->config.replay);
  r->replayed = r->replayed || r->hit.reason == HitReason::kReplayed;
  r->encoder_floor = r->hit.reason == HitReason::kReplayed ? r->hit.start_tokens : 0;
  if (r->hit.from_snapshot) {
    r->restoring =
        find_snapshot(s->cache, r->keys[static_cast<size_t>(r->hit.start_tokens / window(*s) - 1)]);
    ++s->cache.snapshots[static_cast<size_t>(raw(r->restoring))].pins;
    r->restore_due = true;
  }
  r->computed_tokens = r->hit.start_tokens;
}

// The window its rows continue from came from the store. False: what is found at its key now will not do.
bool adopt_window(State* s, Request* r) {
  const BlockKey& key = r->keys[static_cast<size_t>(r->hit.start_tokens / window(*s) - 1)];
  finish_snapshot(&s->cache, r->loading, key, false);
  r->loading = kNoSnapshot;
  SnapshotId id = find_snapshot(s->cache, key);
  // An approximation that somebody continues from just now stays where it is.
  if (r->exact && at(s->cache, id).replayed) return false;
  r->replayed = r->replayed || at(s->cache, id).replayed;
  touch_snapshot(&s->cache, id);
  ++s->cache.snapshots[static_cast<size_t>(raw(id))].pins;
  r->restoring = id;
  r->restore_due = true;
  ++s->counters.loaded_windows;
  return true;
}

void on(State* s, const StoreReady& e) {
  auto it = s->by_seq.find(e.seq);
  bool loads = it != s->by_seq.end() && req(s, it->second).phase == Phase::kLoading;
  Request* r = loads ? &req(s, it->second) : nullptr;
  bool can = loads && !r->early && r->steps_in_flight == 0 && (r->loading == kNoSnapshot || e.window);
  if (can && r->loading != kNoSnapshot) {
    // A window that it may not continue from lies at the key: the end of the load sees to that.
    const BlockKey& key = r->keys[static_cast<size_t>(r->hit.start_tokens / window(*s) - 1)];
    SnapshotId old = find_snapshot(s->cache, key);
    can = !(r->exact && old != kNoSnapshot && at(s->cache, old).replayed) && adopt_window(s, r);
  }
  if (!can) {
    ++s->counters.ignored_events;
    return;
  }
  r->early = true;
  r->early_due_ns = e.due_ns;
  r->early_share = e.share;
}

void on(State* s, const StoreResult& e) {
  if (auto ended = s->ended_loads.find(e.seq); ended != s->ended_loads.end()) {
    uint32_t slot = ended->second;
    s->ended_loads.erase(ended);
    drop_loading(s, &req(s, slot));
    if (req(s, slot).steps_in_flight > 0) return;  // a step that began early still reads its blocks
    --s->lingering;
    release_blocks(s, &req(s, slot));
    free_slot(s, slot);
    return;
  }
  auto it = s->by_seq.find(e.seq);
  if (it == s->by_seq.end() || req(s, it->second).phase != Phase::kLoading) {
    ++s->counters.ignored_events;
    return;
  }
  Request& r = req(s, it->second);
  int64_t asked = r.loading_blocks;
  int64_t good = std::clamp<int64_t>(e.loaded_blocks, 0, asked);
  int64_t have = r.published_blocks + good;
  for (int64_t i = r.published_blocks; i < have; ++i) {
    size_t k = static_cast<size_t>(i);
    publish(&s->cache, r.blocks[k], r.keys[k], static_cast<int32_t>(i), false);
  }
  r.published_blocks = have;
  s->counters.loaded_blocks += good;
  r.publish_from = have * window(*s);
  bool whole = good == asked, began = r.steps_in_flight > 0;
  r.early = false;
  if (whole && r.loading != kNoSnapshot) whole = e.window && adopt_window(s, &r);
  drop_loading(s, &r);
  if (!whole && began) {
    // Its run is in vain; when that has finished the request comes back, with what did arrive.
    ++s->counters.lost_runs;
    leave_running(s, it->second);
    r.phase = Phase::kPreempting;
    s->promised_blocks -= r.promised_blocks;
    r.promised_blocks = 0;
    ++s->lingering;
    return;
  }
  if (!whole) shorten_hit(s, &r, have);
  r.idle_steps = 0;
  r.phase = Phase::kRunning;
}

void end_lease(State* s, std::map<LeaseId, OutsideLease>::iterator it) {
  for (auto b = it->second.blocks.rbegin(); b != it->second.blocks.rend(); ++b) unpin(&s->cache, *b);
  for (SnapshotId id : it->second.snapshots) --s->cache.snapshots[static_cast<size_t>(raw(id))].pins;
  s->leases.erase(it);
}

void on(State* s, const LeaseTaken& e) {
  bool fresh = !s->leases.contains(e.lease) && lease_allowed(*s, e.blocks);
  for (SnapshotId id : e.snapshots) fresh = fresh && at(s->cache, id).place == SnapshotPlace::kReady;
  if (!fresh) {
    ++s->counters.ignored_events;
    return;
  }
  for (BlockId id : e.blocks) pin(&s->cache, id);
  for (SnapshotId id : e.snapshots) ++s->cache.snapshots[static_cast<size_t>(raw(id))].pins;
  s->leases.emplace(e.lease, OutsideLease{e.blocks, e.snapshots, e.expires_ns});
}

void on(State* s, const BlocksFreed& e) {
  auto it = s->leases.find(e.lease);
  if (it == s->leases.end()) {
    ++s->counters.ignored_events;
    return;
  }
  end_lease(s, it);
}

void on(State* s, const BlocksLost& e) {
  for (BlockId id : e.blocks) {
    if (!at(s->cache, id).cached) continue;
    ++s->counters.lost_blocks;
    uncache(&s->cache, id);
    // A request that waits for it keeps only what comes before it.
    for (auto [arrival, slot] : s->waiting_by_age) {
      std::vector<BlockId>& held = req(s, slot).leased;
      size_t keep = static_cast<size_t>(std::find(held.begin(), held.end(), id) - held.begin());
      for (; held.size() > keep; held.pop_back()) unlease(&s->cache, held.back());
    }
  }
}

void on(State* s, const SnapshotsLost& e) {
  for (SnapshotId id : e.snapshots) {
    const SnapshotEntry& x = at(s->cache, id);
    bool can = x.place == SnapshotPlace::kReady && x.pins == 0;
    if (can) {
      drop_snapshot(&s->cache, id);
    } else {
      ++s->counters.ignored_events;
    }
  }
}

void on(State* s, const Tick& e) {
  for (auto it = s->leases.begin(); it != s->leases.end();) {
    auto next = std::next(it);
    bool over =
        it->second.expires_ns != INT64_MAX && it->second.expires_ns + s->config.lease_grace_ns <= e.now_ns;
    if (over) end_lease(s, it);
    it = next;
  }
}

void on(State* s, const Warmed& e) {
  for (const Warmed::Block& b : e.blocks) {
    take(&s->cache, b.id);
    publish(&s->cache, b.id, b.key, b.index, false);
    unref(&s->cache, b.id);
  }
  for (const Warmed::Window& w : e.windows) {
    begin_snapshot(&s->cache, w.id, w.boundary_tokens);
    finish_snapshot(&s->cache, w.id, w.key, false);
  }
  s->counters.loaded_blocks += static_cast<int64_t>(e.blocks.size());
  s->counters.loaded_windows += static_cast<int64_t>(e.windows.size());
}

void on(State* s, const CostAdopted& e) {
  apply(&s->fit, e);
}

}  // namespace

void apply(SchedulerState* state, const Event& event) {
  std::visit([state](const auto& e) { on(state, e); }, event);
#ifdef DEEPINFER_DEBUG_CHECKS
  std::string broken = broken_invariant(*state);
  DI_CHECK(broken.empty(), broken);
#endif
}

}  // namespace deepinfer::policy
