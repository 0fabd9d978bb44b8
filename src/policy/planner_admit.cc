// Who is let in, with which hit, and with how many blocks promised.
#include <algorithm>

#include "policy/planner.h"

namespace deepinfer::policy {

uint32_t Planner::oldest_waiting() const {
  for (auto [arrival, slot] : s_.waiting_by_age) {
    if (!marked(slot, kEnded | kAdmitted)) return slot;
  }
  return UINT32_MAX;
}

// The leading blocks of the prompt that are in the pool and survive this plan.
std::vector<BlockId> Planner::match(const Request& r) const {
  std::vector<BlockId> out = r.leased;
  if (r.whole_decoder) return {};
  // Past the cap a block cannot be used, but that it is there is counted (lost_to_cap).
  int64_t most = static_cast<int64_t>(r.keys.size());
  if (r.admitted_before) most = std::min(most, r.decoder_floor / window(s_));
  for (size_t i = out.size(); i < r.keys.size() && static_cast<int64_t>(i) < most; ++i) {
    BlockId id = find(s_.cache, r.keys[i]);
    if (id == kNoBlock || evicted_.contains(id)) break;
    // A resumed exact run must not continue on an approximated prefix either.
    bool exact = r.exact || (r.admitted_before && !r.replayed);
    if (exact && at(s_.cache, id).replayed) break;
    out.push_back(id);
  }
  return out;
}

std::vector<int64_t> Planner::snapshot_boundaries(const Request& r, int64_t blocks) const {
  std::vector<int64_t> out;
  bool exact = r.exact || (r.admitted_before && !r.replayed);
  for (int32_t i = s_.cache.ready_snapshots.head; i >= 0;
       i = s_.cache.snapshots[static_cast<size_t>(i)].next) {
    const SnapshotEntry& e = s_.cache.snapshots[static_cast<size_t>(i)];
    int64_t block = e.boundary_tokens / window(s_);
    if (block < 1 || block > blocks || r.keys[static_cast<size_t>(block - 1)] != e.key) continue;
    bool gone = std::find(plan_.evict_snapshots.begin(), plan_.evict_snapshots.end(), SnapshotId(i)) !=
                plan_.evict_snapshots.end();
    if (!gone && !(exact && e.replayed)) out.push_back(e.boundary_tokens);
  }
  return out;
}

HitDecision Planner::hit_with(const Request& r, HitQuery q, int64_t blocks, bool store_windows) const {
  const int64_t states[] = {blocks * window(s_)};
  int64_t known = std::min<int64_t>(blocks, static_cast<int64_t>(r.keys.size()));
  std::vector<int64_t> boundaries = snapshot_boundaries(r, known);
  if (store_windows) {
    for (int64_t b : r.store_windows) {
      if (b >= window(s_) && b <= known * window(s_) && b % window(s_) == 0) boundaries.push_back(b);
    }
  }
  q.state_tokens = states;
  q.snapshots = boundaries;
  return decide_hit(q, s_.config.replay);
}

// Blocks and a window of the store are brought in only if that is predicted to be quicker than computing.
void Planner::judge_store(const Request& r, int64_t have, const HitQuery& q, Admission* a,
                          StorePart* from_store) const {
  int64_t store = std::min<int64_t>(r.store_blocks, static_cast<int64_t>(r.keys.size()));
  bool windows = !r.store_windows.empty() && has_snapshot_slot();
  if (store <= have && !windows) return;
  HitDecision with = hit_with(r, q, std::max(store, have), windows);
  StorePart part;
  part.blocks = std::max<int64_t>(0, with.kv_hit_tokens / window(s_) - have);
  std::vector<int64_t> here = snapshot_boundaries(r, with.kv_hit_tokens / window(s_));
  part.window = with.from_snapshot && std::find(here.begin(), here.end(), with.start_tokens) == here.end();
  if (part.blocks == 0 && !part.window) return;
  const CostModel& m = s_.fit.model;
  double compute = rows_cost_ns(m, r.prompt_tokens - a->hit.start_tokens, a->hit.start_tokens);
  double rest = rows_cost_ns(m, r.prompt_tokens - with.start_tokens, with.start_tokens);
  double fetch = static_cast<double>(part.blocks * r.store_ns_per_block) +
                 (part.window ? static_cast<double>(r.store_ns_per_window) : 0.0);
  if (fetch + rest >= compute) return;
  a->hit = with;
  *from_store = part;
}

// The hit of a request that would be let in now. A request that comes back runs from its old floor: exactly,
// or, if it began with a replay, with that same replay; if that prefix is gone, exactly from an earlier
// boundary.
Admission Planner::judge_hit(uint32_t slot, const std::vector<BlockId>& matched,
                             StorePart* from_store) const {
  const Request& r = req(slot);
  Admission a;
  a.seq = r.seq;
  a.slot = slot;
  a.resumed = r.admitted_before;
  int64_t have = static_cast<int64_t>(matched.size());
  *from_store = {};
  HitQuery q;
  q.prompt_tokens = r.prompt_tokens;
  q.mode = r.exact || a.resumed ? HitMode::kExact : HitMode::kReplay;
  if (a.resumed) q.start_limit = r.decoder_floor;
  bool began_replayed = a.resumed && r.hit.reason == HitReason::kReplayed;
  if (began_replayed && have * window(s_) >= r.hit.kv_hit_tokens) {
    a.hit = r.hit;
  } else {
    a.hit = hit_with(r, q, have, false);
    a.floor_lost = began_replayed;
  }
  if (!a.resumed && !r.whole_decoder) judge_store(r, have, q, &a, from_store);
  a.decoder_floor =
      a.resumed ? r.decoder_floor : decoder_floor(r.prompt_tokens, a.hit.start_tokens, s_.config.replay);
  if (r.whole_decoder) a.decoder_floor = 0;
  a.encoder_floor = a.hit.reason == HitReason::kReplayed ? a.hit.start_tokens : 0;
  int64_t shared = std::min(have, a.hit.kv_hit_tokens / window(s_));
  a.shared.assign(matched.begin(), matched.begin() + shared);
  if (a.hit.from_snapshot && !from_store->window) {
    a.restore = find_snapshot(s_.cache, r.keys[static_cast<size_t>(a.hit.start_tokens / window(s_) - 1)]);
  }
  return a;
}

// Blocks for the prompt and the first new token are promised at once, so that prompts that run side by side
// cannot starve each other; one more block per running request stays free for what they will decode. A
// request that was preempted too often is promised all it can ever need.
bool Planner::reserve(Admission* a, int64_t load_blocks) {
  const Request& r = req(a->slot);
  bool for_life = r.preemptions >= s_.config.max_preemptions;
  int64_t tokens = for_life ? r.limit_tokens : std::min(r.known_tokens + 1, r.limit_tokens);
  int64_t fresh = blocks_for(s_, tokens) - static_cast<int64_t>(a->shared.size());
  int64_t consumed = fresh;
  for (BlockId id : a->shared) {
    BlockPlace p = place_of(at(s_.cache, id));
    auto dropped = dropped_refs_.find(id);
    bool freed_by_plan = dropped != dropped_refs_.end() && dropped->second == at(s_.cache, id).refs &&
                         at(s_.cache, id).pins == 0;
    bool was_obtainable = p == BlockPlace::kIdle || p == BlockPlace::kLeased || freed_by_plan;
    consumed += was_obtainable && !kept_.contains(id) ? 1 : 0;
  }
  int64_t others = s_.config.max_running - seats_;  // running, and let in by this plan
  if (available_ < consumed + others) return false;
  kept_.insert(a->shared.begin(), a->shared.end());
  size_t before = plan_.new_blocks.size();
  if (!take_blocks(load_blocks)) return false;
  a->load.assign(plan_.new_blocks.begin() + static_cast<int64_t>(before), plan_.new_blocks.end());
  plan_.new_blocks.resize(before);
  a->promised_blocks = fresh - load_blocks;
  available_ -= consumed;
  return true;
}

bool Planner::try_admit(uint32_t slot) {
  const Request& r = req(slot);
  if (seats_ <= 0 || marked(slot, kEnded | kAdmitted | kRevoked | kBlocked)) return false;
  uint32_t oldest = oldest_waiting();
  if (bypasses_ >= s_.config.max_bypass && slot != oldest) return false;
  // Even a full hit needs the blocks past the cap: no need to look up anything when those are not there.
  int64_t least = blocks_for(s_, std::min(s_.config.replay.cap_tokens(), r.prompt_tokens));
  if (available_ < least) return false;
  StorePart from_store;
  Admission a = judge_hit(slot, match(r), &from_store);
  if (!reserve(&a, from_store.blocks)) {
    marks_[slot] |= kBlocked;
    return false;
  }
  if (from_store.window) a.load_window = take_snapshot_slot();
  marks_[slot] |= kAdmitted;
  --seats_;
  bypasses_ = slot == oldest ? 0 : bypasses_ + 1;
  if (a.restore != kNoSnapshot) kept_snapshots_.insert(a.restore);
  used_ns_[r.tier] += rows_cost_ns(s_.fit.model, r.known_tokens - a.hit.start_tokens, a.hit.start_tokens);
  Prompt p;
  p.slot = slot;
  p.begin = a.hit.start_tokens;
  p.end = r.known_tokens;
  p.have_blocks = static_cast<int64_t>(a.shared.size());
  p.decoder_floor = a.decoder_floor;
  p.encoder_floor = a.encoder_floor;
  p.publish_from = a.hit.kv_hit_tokens;
  p.restore = a.restore;
  p.admission = static_cast<int64_t>(plan_.admit.size());
  admitted_.push_back(p);
  plan_.admit.push_back(std::move(a));
  return true;
}

}  // namespace deepinfer::policy
