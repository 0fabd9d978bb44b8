// Where blocks come from, in this order: free ones, idle ones by last use, what waiting requests hold, and at
// last a running request that is junior to the one in need and whose blocks really come back.
#include <algorithm>
#include <tuple>

#include "policy/planner.h"

namespace deepinfer::policy {

// Makes `blocks` available to a request of which `promised` are kept back already. False: it has to wait.
bool Planner::make_room(uint32_t slot, int64_t blocks, int64_t promised) {
  int64_t beyond = blocks - std::min(blocks, promised);
  while (available_ < beyond) {
    // Blocks that are on their way are waited for: one victim too many would lose its work for nothing.
    if (available_ + incoming_ >= beyond) return false;
    if (!preempt_for(slot)) return false;
  }
  available_ -= beyond;
  return true;
}

int64_t Planner::gain_of(const Request& r) const {
  int64_t gain = r.promised_blocks;
  int64_t held = r.replayed ? r.hit.kv_hit_tokens / window(s_) : 0;
  for (size_t i = static_cast<size_t>(held); i < r.blocks.size(); ++i) {
    const BlockEntry& b = at(s_.cache, r.blocks[i]);
    gain += b.refs == 1 && b.pins == 0 ? 1 : 0;
  }
  return gain;
}

// Preempts the request that is junior to `slot`, may be preempted, and loses least: lowest priority, then the
// longest tier, then the newest. The most senior request is junior to none, so it is never preempted and
// always gets through.
bool Planner::preempt_for(uint32_t slot) {
  const Request& me = req(slot);
  int64_t best = -1, best_gain = 0;
  for (auto it = s_.running.rbegin(); it != s_.running.rend(); ++it) {
    const Request& r = req(*it);
    if (*it == slot) break;  // from here on all are senior
    if (r.phase != Phase::kRunning || marked(*it, kEnded | kPreempted | kPlanned)) continue;
    if (r.preemptions >= s_.config.max_preemptions) continue;  // all its blocks were promised
    auto key = [](const Request& x) { return std::make_tuple(-x.priority, x.tier, x.arrival); };
    if (best >= 0 && key(r) < key(req(static_cast<uint32_t>(best)))) continue;
    int64_t gain = gain_of(r);
    if (gain < 1) continue;
    best = *it;
    best_gain = gain;
  }
  if (best < 0) return false;
  uint32_t victim = static_cast<uint32_t>(best);
  const Request& v = req(victim);
  marks_[victim] |= kPreempted;
  bool now = v.steps_in_flight == 0;
  plan_.preempt.push_back({v.seq, victim, me.seq, best_gain, now});
  if (!now) {
    available_ += v.promised_blocks;
    incoming_ += best_gain - v.promised_blocks;
    return true;
  }
  available_ += best_gain;
  ++seats_;
  size_t held = v.replayed ? static_cast<size_t>(v.hit.kv_hit_tokens / window(s_)) : 0;
  for (size_t i = v.blocks.size(); i-- > held;) {
    ++dropped_refs_[v.blocks[i]];
    offer(v.blocks[i]);
  }
  return true;
}

// Adds a block to what can be taken, if nobody holds it once this plan is adopted.
void Planner::offer(BlockId id) {
  const BlockEntry& b = at(s_.cache, id);
  auto dropped = [id](const std::map<BlockId, int32_t>& m) {
    auto it = m.find(id);
    return it == m.end() ? 0 : it->second;
  };
  if (b.pins > 0 || b.refs > dropped(dropped_refs_) || b.leases > dropped(dropped_leases_)) return;
  if (!kept_.contains(id)) offered_.insert(offered_.begin(), id);
}

// Ends the hold of the most junior waiting request that has one.
bool Planner::revoke_one() {
  for (auto it = s_.waiting_by_age.rbegin(); it != s_.waiting_by_age.rend(); ++it) {
    uint32_t slot = it->second;
    const Request& r = req(slot);
    if (r.leased.empty() || marked(slot, kEnded | kAdmitted | kRevoked)) continue;
    marks_[slot] |= kRevoked;
    plan_.revoke.push_back(r.seq);
    for (size_t i = r.leased.size(); i-- > 0;) {
      ++dropped_leases_[r.leased[i]];
      offer(r.leased[i]);
    }
    return true;
  }
  return false;
}

BlockId Planner::take_one() {
  const std::vector<BlockEntry>& blocks = s_.cache.blocks;
  if (free_cursor_ >= 0) {
    BlockId id{free_cursor_};
    free_cursor_ = blocks[static_cast<size_t>(free_cursor_)].next;
    return id;
  }
  while (idle_cursor_ >= 0) {
    BlockId id{idle_cursor_};
    idle_cursor_ = blocks[static_cast<size_t>(idle_cursor_)].next;
    if (kept_.contains(id)) continue;
    plan_.evict.push_back(id);
    evicted_.insert(id);
    return id;
  }
  do {
    while (!offered_.empty()) {
      BlockId id = offered_.back();
      offered_.pop_back();
      if (kept_.contains(id) || evicted_.contains(id)) continue;
      if (at(s_.cache, id).cached) plan_.evict.push_back(id);
      evicted_.insert(id);
      return id;
    }
  } while (revoke_one());
  return kNoBlock;
}

// Appends `count` blocks to the plan. False, with nothing appended, when there are not so many.
bool Planner::take_blocks(int64_t count) {
  size_t before = plan_.new_blocks.size();
  for (int64_t i = 0; i < count; ++i) {
    BlockId id = take_one();
    if (id == kNoBlock) {
      plan_.new_blocks.resize(before);
      return false;
    }
    plan_.new_blocks.push_back(id);
  }
  return true;
}

// Whether the next function would find one.
bool Planner::has_snapshot_slot() const {
  if (free_snapshot_cursor_ >= 0) return true;
  const std::vector<SnapshotEntry>& all = s_.cache.snapshots;
  for (int32_t i = ready_snapshot_cursor_; i >= 0; i = all[static_cast<size_t>(i)].next) {
    if (at(s_.cache, SnapshotId(i)).pins == 0 && !kept_snapshots_.contains(SnapshotId(i))) return true;
  }
  return false;
}

SnapshotId Planner::take_snapshot_slot() {
  const std::vector<SnapshotEntry>& all = s_.cache.snapshots;
  if (free_snapshot_cursor_ >= 0) {
    SnapshotId id{free_snapshot_cursor_};
    free_snapshot_cursor_ = all[static_cast<size_t>(free_snapshot_cursor_)].next;
    return id;
  }
  while (ready_snapshot_cursor_ >= 0) {
    SnapshotId id{ready_snapshot_cursor_};
    ready_snapshot_cursor_ = all[static_cast<size_t>(ready_snapshot_cursor_)].next;
    if (at(s_.cache, id).pins > 0 || kept_snapshots_.contains(id)) continue;
    plan_.evict_snapshots.push_back(id);
    return id;
  }
  return kNoSnapshot;
}

}  // namespace deepinfer::policy
