// The invariants of the scheduler's state, each said once, in words a failing test can print.
#include <fmt/format.h>

#include <set>

#include "policy/scheduler.h"

namespace deepinfer::policy {
namespace {

struct Held {
  int32_t refs = 0, pins = 0, leases = 0;
};

std::string check_lists(const CacheState& c) {
  int64_t count[kBlockPlaces] = {};
  for (const BlockEntry& b : c.blocks) ++count[static_cast<int>(place_of(b))];
  for (int p = 0; p < kBlockPlaces; ++p) {
    if (count[p] != c.count[p])
      return fmt::format("blocks in place {}: {} counted, {} kept", p, count[p], c.count[p]);
  }
  struct Walk {
    const IdList& list;
    BlockPlace place;
  };
  for (const Walk& w : {Walk{c.free_blocks, BlockPlace::kFree}, Walk{c.idle_blocks, BlockPlace::kIdle}}) {
    int64_t n = 0;
    for (int32_t i = w.list.head; i >= 0; i = c.blocks[static_cast<size_t>(i)].next, ++n) {
      if (place_of(c.blocks[static_cast<size_t>(i)]) != w.place)
        return fmt::format("block {} is in a wrong list", i);
      if (n > static_cast<int64_t>(c.blocks.size())) return "a block list has a circle";
    }
    if (n != count[static_cast<int>(w.place)]) return "a block list is not complete";
  }
  int64_t cached = 0;
  for (size_t i = 0; i < c.blocks.size(); ++i) {
    if (!c.blocks[i].cached) continue;
    ++cached;
    if (raw(find(c, c.blocks[i].key)) != static_cast<int32_t>(i))
      return fmt::format("block {} is not found by its key", i);
  }
  if (cached != static_cast<int64_t>(c.index.size())) return "the index names blocks that are not cached";
  return "";
}

std::string check_snapshots(const SchedulerState& s) {
  std::set<int32_t> writing;
  for (const InFlight& f : s.in_flight) {
    for (const RowRun& r : f.runs) {
      for (SnapshotId id : {r.snapshot, r.cap_snapshot}) {
        if (id != kNoSnapshot && !writing.insert(raw(id)).second) return "a snapshot slot has two writers";
      }
    }
  }
  for (const Request& r : s.slots) {
    if (r.loading != kNoSnapshot && !writing.insert(raw(r.loading)).second)
      return "a snapshot slot has two writers";
  }
  std::vector<int32_t> pins(s.cache.snapshots.size());
  for (const Request& r : s.slots) {
    if (r.restoring != kNoSnapshot) ++pins[static_cast<size_t>(raw(r.restoring))];
  }
  for (const auto& [id, lease] : s.leases) {
    for (SnapshotId x : lease.snapshots) ++pins[static_cast<size_t>(raw(x))];
  }
  size_t ready = 0;
  for (size_t i = 0; i < s.cache.snapshots.size(); ++i) {
    const SnapshotEntry& e = s.cache.snapshots[i];
    bool written = writing.contains(static_cast<int32_t>(i));
    if (written != (e.place == SnapshotPlace::kWriting))
      return fmt::format("snapshot {} and its writer disagree", i);
    if (e.pins != pins[i])
      return fmt::format("snapshot {} has {} pins, {} are accounted for", i, e.pins, pins[i]);
    ready += e.place == SnapshotPlace::kReady ? 1 : 0;
  }
  return ready == s.cache.snapshot_index.size() ? "" : "ready snapshots and their index disagree";
}

std::string check_request(const SchedulerState& s, uint32_t slot) {
  const Request& r = at(s, slot);
  std::string who = fmt::format("request {} ({})", raw(r.seq), name(r.phase));
  bool waits = r.phase == Phase::kWaiting;
  if (waits != s.waiting_by_age.contains({r.arrival, slot}))
    return who + ": its phase and the queue of all disagree";
  bool queued = s.queues[r.tier].waiting.contains(r.queued) && r.queued.arrival != 0;
  bool back = s.preempted.contains(seniority(r, slot));
  if (waits ? queued == back : queued || back) return who + ": must wait in exactly one line, or in none";
  if (waits && (!r.blocks.empty() || r.promised_blocks != 0)) return who + ": waits and holds blocks";
  if (!waits && !r.leased.empty()) return who + ": does not wait and holds leases";
  if (r.phase != Phase::kEnding && (!s.by_seq.contains(r.seq) || s.by_seq.at(r.seq) != slot))
    return who + ": cannot be found";
  if (r.promised_blocks < 0) return who + ": negative promise";
  if (r.computed_tokens > r.known_tokens) return who + ": computed tokens it does not have";
  if (r.known_tokens > r.limit_tokens && r.doomed == EndReason::kAccepted && r.phase != Phase::kEnding)
    return who + ": over its limit";
  int64_t reach = r.computed_tokens + r.rows_most;
  bool holds = r.phase == Phase::kRunning || r.phase == Phase::kPreempting;
  if (holds && blocks_for(s, reach) > static_cast<int64_t>(r.blocks.size()))
    return who + ": rows without blocks";
  if (r.phase == Phase::kRunning && r.computed_tokens < r.prefill_end &&
      static_cast<int64_t>(r.blocks.size()) + r.promised_blocks < blocks_for(s, r.prefill_end)) {
    return who + ": its prompt is not promised its blocks";
  }
  if (r.decoder_floor > r.prompt_tokens) return who + ": decoder floor past its prompt";
  if (r.preemptions > s.config.max_preemptions) return who + ": preempted too often";
  if (r.idle_steps >= s.config.starve_steps && r.phase == Phase::kRunning && r.steps_in_flight == 0 &&
      in_prefill(r)) {
    return who + ": starved";
  }
  return "";
}

std::string check_holders(const SchedulerState& s) {
  std::vector<Held> held(s.cache.blocks.size());
  int64_t promised = 0;
  for (const Request& r : s.slots) {
    for (BlockId id : r.blocks) ++held[static_cast<size_t>(raw(id))].refs;
    for (BlockId id : r.leased) ++held[static_cast<size_t>(raw(id))].leases;
    promised += r.promised_blocks;
  }
  for (const auto& [id, lease] : s.leases) {
    for (BlockId b : lease.blocks) ++held[static_cast<size_t>(raw(b))].pins;
  }
  for (size_t i = 0; i < held.size(); ++i) {
    const BlockEntry& b = s.cache.blocks[i];
    if (b.refs != held[i].refs || b.pins != held[i].pins || b.leases != held[i].leases) {
      return fmt::format("block {}: refs {} pins {} leases {}, its holders make {} {} {}", i, b.refs, b.pins,
                         b.leases, held[i].refs, held[i].pins, held[i].leases);
    }
  }
  if (promised != s.promised_blocks)
    return fmt::format("{} blocks promised, {} kept", promised, s.promised_blocks);
  if (available_blocks(s) < 0) return "more blocks promised than there are";
  return "";
}

}  // namespace

std::string broken_invariant(const SchedulerState& s) {
  if (std::string e = check_lists(s.cache); !e.empty()) return e;
  if (std::string e = check_holders(s); !e.empty()) return e;
  if (std::string e = check_snapshots(s); !e.empty()) return e;
  int64_t lingering = 0, running = 0, waiting = 0, in_use = 0;
  for (uint32_t slot = 0; slot < s.slots.size(); ++slot) {
    Phase p = at(s, slot).phase;
    if (p == Phase::kNone) continue;
    ++in_use;
    lingering += p == Phase::kPreempting || p == Phase::kEnding ? 1 : 0;
    running += p == Phase::kRunning || p == Phase::kLoading ? 1 : 0;
    waiting += p == Phase::kWaiting ? 1 : 0;
    if (std::string e = check_request(s, slot); !e.empty()) return e;
  }
  if (lingering != s.lingering) return "lingering requests are miscounted";
  if (running != static_cast<int64_t>(s.running.size())) return "the running list is not complete";
  if (waiting != static_cast<int64_t>(s.waiting_by_age.size())) return "the waiting list is not complete";
  if (running + lingering > s.config.max_running) return "more requests than seats";
  if (in_use + static_cast<int64_t>(s.free_slots.size()) != static_cast<int64_t>(s.slots.size()))
    return "slots are lost";
  for (size_t i = 1; i < s.running.size(); ++i) {
    uint32_t a = s.running[i - 1], b = s.running[i];
    if (!(seniority(at(s, a), a) < seniority(at(s, b), b))) return "the running list is out of order";
  }
  return "";
}

}  // namespace deepinfer::policy
