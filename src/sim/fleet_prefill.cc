// Prefill engines: pulling within quotas, planning a step of every rank by the chunk solver, chunks that end.
#include <algorithm>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

using policy::PullReason;

namespace {

constexpr size_t kReach = 64;  // requests of a rank looked at per step

size_t at(int i) {
  return static_cast<size_t>(i);
}

}  // namespace

// Something waits: an engine that had nothing to pull may pull it. The one that has waited longest goes
// first.
void Fleet::offer_work() {
  while (!hungry_.empty()) {
    const int engine = hungry_.front();
    hungry_.pop_front();
    engines_[at(engine)].hungry = false;
    if (!engines_[at(engine)].up) continue;
    pull_all(engine);
    if (!engines_[at(engine)].stepping) start_prefill(engine);
    if (policy::queued_ns(prefill_) <= 0) return;
  }
}

void Fleet::pull_all(int engine) {
  if (prefill_.config.rule != policy::PrefillRule::kPull) return;
  Engine& e = engines_[at(engine)];
  for (;;) {
    const policy::PullDecision d = policy::decide_pull(prefill_, engine, now_);
    if (d.reason != PullReason::kPulled) {
      if (d.reason == PullReason::kNothingWaits && !e.hungry) {
        e.hungry = true;
        hungry_.push_back(engine);
      }
      return;
    }
    assign(engine, handle_slot_[d.handle]);
  }
}

// Takes a waiting request to the engine's rank with the least to do.
void Fleet::assign(int engine, uint32_t slot) {
  Engine& e = engines_[at(engine)];
  Live& l = live_[slot];
  l.tier = static_cast<int8_t>(prefill_.waiting[l.handle].tier);
  policy::apply(&prefill_, policy::PrefillPulled{engine, l.handle});
  leave_line(slot);
  size_t best = 0;
  for (size_t r = 1; r < e.ranks.size(); ++r) {
    if (e.ranks[r].outstanding_ns < e.ranks[best].outstanding_ns) best = r;
  }
  l.stage = Stage::kPrefill;
  l.engine = engine;
  l.rank = static_cast<int16_t>(best);
  l.unbooked_ns = l.work_ns;
  e.ranks[best].queue.push_back(slot);
  e.ranks[best].outstanding_ns += l.work_ns;
  ++prefilling_;
  if (l.counted) out_.queue_ns.add(now_ - l.arrived_ns);
  reserve(slot);
}

// One chunk of the request at a place of the rank's queue, if it fits the time; `whole`: all of it or
// nothing.
bool Fleet::plan_chunk(int engine, EngineRank* rank, size_t i, double left_ns, bool whole, bool progress,
                       double* used) {
  const uint32_t slot = rank->queue[i];
  Live& l = live_[slot];
  const int64_t remaining = l.input - l.position;
  policy::ChunkQuery q;
  q.time_ns = left_ns;
  q.context = l.position;
  q.remaining = remaining;
  q.chunk_max = config_.chunk_max_tokens;
  q.block_tokens = config_.cache.replay.window_tokens;
  q.must_progress = progress;
  const int64_t rows = policy::solve_chunk(config_.prefill, q);
  if (rows <= 0 || (whole && rows < remaining)) return false;
  const double cost = policy::rows_cost_ns(config_.prefill, rows, l.position);
  engines_[at(engine)].running.push_back({slot, l.generation, rows, cost});
  if (!l.begun) {
    l.begun = true;
    if (engines_[at(engine)].draining)
      policy::apply(&engines_[at(engine)].drain, policy::DrainRequestStarted{});
  }
  *used += cost;
  return true;
}

// Short prompts first, but they leave half of the step to a long one if there is one; then the long ones in
// order; then what still fits. Returns the rank's step time, 0 if nothing is ready.
double Fleet::plan_rank(int engine, int rank_index) {
  EngineRank& rank = engines_[at(engine)].ranks[at(rank_index)];
  const double budget = static_cast<double>(config_.batch_budget_ns) - config_.prefill.e;
  double used = 0;
  bool long_ready = false;
  const size_t n = std::min(kReach, rank.queue.size());
  for (size_t i = 0; i < n; ++i) prefetch(live_[rank.queue[i]], kPromptBytes);
  uint64_t taken = 0;
  auto is_short = [&](const Live& l) {
    return l.tier <= 1 && policy::rows_cost_ns(config_.prefill, l.input - l.position, l.position) <=
                              config_.short_fraction * budget;
  };
  for (size_t i = 0; i < n; ++i) {
    const Live& l = live_[rank.queue[i]];
    long_ready |= l.ready_ns <= now_ && !is_short(l);
  }
  const double short_budget = long_ready ? (1 - config_.long_fraction) * budget : budget;
  for (size_t i = 0; i < n; ++i) {
    const Live& l = live_[rank.queue[i]];
    if (l.ready_ns > now_ || !is_short(l) || used >= short_budget) continue;
    if (plan_chunk(engine, &rank, i, short_budget - used, true, false, &used)) taken |= uint64_t{1} << i;
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < n && used < budget; ++i) {
      const Live& l = live_[rank.queue[i]];
      if (l.ready_ns > now_ || (taken >> i & 1) || (pass == 0) == is_short(l)) continue;
      if (plan_chunk(engine, &rank, i, budget - used, false, used <= 0, &used)) taken |= uint64_t{1} << i;
    }
  }
  return used > 0 ? used + config_.prefill.e : 0;
}

void Fleet::start_prefill(int engine) {
  Engine& e = engines_[at(engine)];
  if (e.stepping || !e.up) return;
  e.running.clear();
  double slowest = 0;
  for (int r = 0; r < config_.prefill_ranks; ++r) slowest = std::max(slowest, plan_rank(engine, r));
  if (slowest <= 0) {
    // Nothing is ready. Prefixes may be on their way: come back with the first.
    int64_t ready = INT64_MAX;
    for (const EngineRank& r : e.ranks) {
      for (size_t i = 0; i < std::min(kReach, r.queue.size()); ++i)
        ready = std::min(ready, live_[r.queue[i]].ready_ns);
    }
    if (ready != INT64_MAX && (e.wake_ns <= now_ || ready < e.wake_ns)) {
      e.wake_ns = ready;
      events_.push(ready, kPrefillWake, static_cast<uint32_t>(engine), e.generation);
    }
    return;
  }
  e.stepping = true;
  e.wake_ns = 0;
  e.step_began_ns = now_;
  const double noise = 1 + config_.prefill_noise * random_.unit();
  events_.push(now_ + std::max<int64_t>(1, static_cast<int64_t>(slowest * noise)), kPrefillStep,
               static_cast<uint32_t>(engine), e.generation);
}

void Fleet::end_prefill(int engine) {
  Engine& e = engines_[at(engine)];
  e.stepping = false;
  ++out_.prefill_steps;
  if (measuring()) {
    busy_prefill_ns_ +=
        static_cast<double>(std::min(now_, end_ns_) - std::min(end_ns_, std::max(warm_ns_, e.step_began_ns)));
  }
  constexpr size_t kAhead = 3;
  for (size_t i = 0; i < e.running.size(); ++i) {
    if (i + kAhead < e.running.size()) prefetch(live_[e.running[i + kAhead].slot], kPromptBytes);
    const Chunk& c = e.running[i];
    Live& l = live_[c.slot];
    if (l.generation != c.generation) continue;  // cancelled meanwhile
    check(l.engine == engine, "a chunk belongs to its engine's request");
    l.position += static_cast<int32_t>(c.rows);
    if (measuring() && !ended_) {
      out_.computed_tokens += c.rows;
      prefill_work_ns_ += c.cost_ns;
    }
    EngineRank& rank = e.ranks[at(l.rank)];
    const bool done = l.position >= l.input;
    const double booked = done ? l.unbooked_ns : std::min(l.unbooked_ns, c.cost_ns);
    l.unbooked_ns -= booked;
    rank.outstanding_ns = std::max(0.0, rank.outstanding_ns - booked);
    policy::apply(&prefill_, policy::PrefillRan{engine, l.tier, booked, done});
    if (!done) continue;
    check(l.position == l.input, "rows run once");
    rank.queue.erase(std::find(rank.queue.begin(), rank.queue.end(), c.slot));
    prompt_done(engine, c.slot);
  }
  e.running.clear();
  if (e.draining) advance_drain(false, engine);
  pull_all(engine);
  start_prefill(engine);
}

// Layers went while later ones were computed; what is left to send is the state of the windows and the last
// quarter (one of four KV sources) of the last chunk, over the engine's link.
void Fleet::prompt_done(int engine, uint32_t slot) {
  Engine& e = engines_[at(engine)];
  Live& l = live_[slot];
  l.stage = Stage::kHandOff;
  l.prefilled = true;
  if (e.draining) {
    policy::apply(&e.drain, policy::DrainTransferBegan{});
    policy::apply(&e.drain, policy::DrainRequestEnded{});
  }
  --prefilling_;
  const double last_rows = static_cast<double>(std::min<int64_t>(l.input, 16384));
  const double bytes = static_cast<double>(config_.state_bytes) +
                       last_rows * static_cast<double>(config_.kv_bytes_per_token) / 4;
  const int64_t took = static_cast<int64_t>(bytes / config_.link_bytes_per_s * 1e9);
  e.link_free_ns = std::max(e.link_free_ns, now_) + took;
  l.ready_ns = e.link_free_ns;
  events_.push(l.ready_ns, kHandOff, slot, l.generation);
}

// Where a pushed request goes. With caches of the engines' own, the prefix is where the turn before ran.
int Fleet::push_engine(const SimRequest& r, double work_ns, int64_t start, double cold_ns, int* previous) {
  *previous = static_cast<int>(r.home % engines_.size());
  const bool cached = static_cast<double>(r.gap_ns) < config_.local_cache_s * 1e9;
  if (!config_.shared_store && !cached) *previous = -1;
  std::vector<policy::PushOffer> offers(engines_.size());
  for (size_t i = 0; i < offers.size(); ++i) {
    const bool here = config_.shared_store || static_cast<int>(i) == *previous;
    offers[i] = {here ? work_ns : cold_ns, here ? start : 0};
  }
  return policy::decide_push(prefill_, offers);
}

// The tokens a request has had are part of its prompt elsewhere.
void Fleet::take_with(Live* l) {
  const int64_t had = tokens_had(*l);
  l->delivered += static_cast<int32_t>(had);
  l->input += static_cast<int32_t>(had);
  l->output -= static_cast<int32_t>(had);
  l->position = l->input;
  l->moved_ns = now_;
}

// Back to the lines with what is stored of it: whole blocks of what was computed.
void Fleet::requeue(uint32_t slot) {
  Live& l = live_[slot];
  check(l.stage != Stage::kWaiting && l.stage != Stage::kNone, "only a request that is somewhere comes back");
  const bool decoded = l.stage == Stage::kDecode;
  const int was_engine = l.engine;
  if (decoded) take_with(&l);
  if (l.group >= 0) {
    const int group = l.group;
    const bool waited = l.decode_rank >= 0 && !decoded;
    release(slot);
    if (groups_[at(group)].draining && waited)
      policy::apply(&groups_[at(group)].drain, policy::DrainRequestForwarded{true});
    place(group);  // there may be room now, and no step of the group to find it
  }
  if (l.stage == Stage::kHandOff) drained(was_engine, policy::DrainTransferEnded{});
  if (l.stage == Stage::kPrefill) {
    policy::apply(&prefill_, policy::PrefillRan{l.engine, l.tier, l.unbooked_ns, true});
    --prefilling_;
  }
  ++l.generation;
  const int64_t kept =
      std::max<int64_t>(0, std::min<int64_t>(l.position, l.input - config_.cache.replay.cap_tokens()));
  l.position =
      static_cast<int32_t>(kept / config_.cache.replay.window_tokens * config_.cache.replay.window_tokens);
  l.rank = -1;
  l.engine = -1;
  l.ready_ns = now_;
  l.prefilled = l.begun = false;
  if (config_.shared_store && l.position > 0) {
    const int64_t ready =
        store_.read(l.home, static_cast<double>(l.position * config_.kv_bytes_per_token), now_);
    if (ready >= 0) l.ready_ns = ready;
    if (ready < 0) l.position = 0;  // too few nodes: all of it again
  }
  if (decoded) out_.most_moved_rows = std::max<int64_t>(out_.most_moved_rows, l.input - l.position);
  l.work_ns = l.unbooked_ns = policy::rows_cost_ns(config_.prefill, l.input - l.position, l.position);
  line_up(slot, -1, 1);
}

// In the line of its length, to be pulled, or to `chosen`, or to whoever has least to do if that is not open.
// Who pulls is asked by the caller.
void Fleet::line_up(uint32_t slot, int chosen, int priority) {
  Live& l = live_[slot];
  l.stage = Stage::kWaiting;
  l.handle = take_handle(slot);
  ++waiting_;
  policy::apply(&prefill_,
                policy::PrefillArrived{policy::SeqId{(uint64_t{l.generation} << 32) | slot}, l.handle,
                                       policy::TenantId{l.tenant}, 1, priority, now_, l.input, l.work_ns});
  if (prefill_.config.rule == policy::PrefillRule::kPull) return;
  if (chosen < 0 || !engines_[at(chosen)].up || engines_[at(chosen)].draining) {
    const std::vector<policy::PushOffer> offers(engines_.size(), policy::PushOffer{l.work_ns, 0});
    chosen = policy::decide_push(prefill_, offers);
  }
  if (chosen < 0) {
    stranded_.emplace_back(slot, l.generation);
    return;
  }
  assign(chosen, slot);
  if (!engines_[at(chosen)].stepping) start_prefill(chosen);
}

}  // namespace deepinfer::sim
