// The order of a step: what is over, decodes, prompts that would starve, urgent and short ones, new work by
// tier, and long prompts in what is left.
#include "policy/planner.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace deepinfer::policy {

Planner::Planner(const SchedulerState& state, const PlanQuery& query) : s_(state), q_(query) {
  marks_.resize(s_.slots.size());
  available_ = available_blocks(s_);
  for (uint32_t slot = 0; slot < s_.slots.size(); ++slot) {
    if (s_.lingering == 0) break;
    if (req(slot).phase != Phase::kPreempting && req(slot).phase != Phase::kEnding) continue;
    for (BlockId id : req(slot).blocks) {
      const BlockEntry& b = at(s_.cache, id);
      incoming_ += b.refs == 1 && b.pins == 0 ? 1 : 0;
    }
  }
  seats_ = s_.config.max_running - static_cast<int64_t>(s_.running.size()) - s_.lingering;
  bypasses_ = s_.bypasses;
  std::copy(s_.used_ns, s_.used_ns + kTiers, used_ns_);
  free_cursor_ = s_.cache.free_blocks.head;
  idle_cursor_ = s_.cache.idle_blocks.head;
  free_snapshot_cursor_ = s_.cache.free_snapshots.head;
  ready_snapshot_cursor_ = s_.cache.ready_snapshots.head;
}

StepPlan Planner::plan() {
  plan_.step = StepId(s_.next_step);
  end_requests();
  if (static_cast<int64_t>(s_.in_flight.size()) >= s_.config.max_in_flight) {
    plan_.reason = PlanReason::kInFlight;
    return std::move(plan_);
  }
  plan_.budget_ns = q_.budget_ns > 0 ? q_.budget_ns : choose_budget();
  left_ns_ = static_cast<double>(plan_.budget_ns) - s_.fit.model.e;
  plan_decodes();
  plan_prompts();
  plan_.reason = plan_.runs.empty() ? idle_reason() : PlanReason::kRuns;
  plan_.predicted_ns = plan_.runs.empty() ? 0 : predict_ns(s_.fit.model, plan_.sample);
  return std::move(plan_);
}

PlanReason Planner::idle_reason() const {
  size_t left = s_.waiting_by_age.size() + s_.running.size();
  for (const Ending& e : plan_.end) left -= req(e.slot).phase == Phase::kPreempting ? 0 : 1;
  if (left == 0) return PlanReason::kIdle;
  bool comes = !s_.in_flight.empty();
  for (const Admission& a : plan_.admit) comes = comes || a.loads();
  for (uint32_t slot : s_.running) comes = comes || req(slot).phase == Phase::kLoading;
  return comes ? PlanReason::kInFlight : PlanReason::kNoCapacity;
}

void Planner::end_requests() {
  auto end = [this](uint32_t slot, EndReason reason, int64_t need, int64_t limit) {
    if (marked(slot, kEnded)) return;
    plan_.end.push_back({req(slot).seq, slot, reason, need, limit});
    marks_[slot] |= kEnded;
    for (size_t i = req(slot).leased.size(); i-- > 0;) {
      ++dropped_leases_[req(slot).leased[i]];
      offer(req(slot).leased[i]);
    }
  };
  for (uint32_t slot : s_.doomed) end(slot, req(slot).doomed, req(slot).need, req(slot).limit);
  for (auto [deadline, slot] : s_.deadlines) {
    // A prompt that cannot be done in time even alone is dropped before it costs anything. Deadlines are in
    // order, but works are not, so all that wait are looked at.
    const Request& r = req(slot);
    if (q_.now_ns >= deadline) {
      end(slot, EndReason::kDeadlineExpired, 0, 0);
    } else if (r.phase == Phase::kWaiting) {
      int64_t held = static_cast<int64_t>(r.leased.size()) * window(s_);
      double work = rows_cost_ns(s_.fit.model, r.known_tokens - held, held);
      if (static_cast<double>(q_.now_ns) + work > static_cast<double>(deadline)) {
        end(slot, EndReason::kDeadlineImpossible, 0, 0);
      }
    }
  }
}

int64_t Planner::choose_budget() const {
  bool interactive = !s_.queues[0].waiting.empty() || !s_.queues[1].waiting.empty();
  for (uint32_t slot : s_.running) {
    if (interactive) break;
    interactive = req(slot).phase == Phase::kRunning && (!in_prefill(req(slot)) || req(slot).tier == 0);
  }
  return std::max(s_.config.min_budget_ns,
                  interactive ? s_.config.interactive_budget_ns : s_.config.batch_budget_ns);
}

void Planner::plan_decodes() {
  for (uint32_t slot : s_.running) {
    const Request& r = req(slot);
    if (r.phase != Phase::kRunning || marked(slot, kEnded | kPreempted) || in_prefill(r)) continue;
    RowRun run;
    run.seq = r.seq;
    run.slot = slot;
    run.begin = next_row(r);
    run.begin_max = r.computed_tokens + r.rows_most;
    // The last token needs no row; when a step in flight may reach the limit, there may be nothing to run.
    int64_t most = r.limit_tokens - 2 - run.begin_max;
    if (most < 0) continue;
    int64_t have = static_cast<int64_t>(r.blocks.size());
    run.drafts = std::min(s_.config.drafts, most);
    int64_t need = blocks_for(s_, run.begin_max + 1 + run.drafts) - have;
    if (need > 0 && !make_room(slot, need, r.promised_blocks)) {
      run.drafts = 0;
      need = blocks_for(s_, run.begin_max + 1) - have;
      if (need > 0 && !make_room(slot, need, r.promised_blocks)) {
        plan_.stalled.push_back(r.seq);
        continue;
      }
    }
    run.rows = 1 + run.drafts;
    run.yields = true;
    run.decoder_rows = run.rows;
    run.publish_from = r.publish_from;
    run.encoder_floor = r.encoder_floor;
    run.decoder_floor = r.decoder_floor;
    add_run(run, have);
  }
}

// Takes the blocks (room was made), plans the snapshot and the cost, and puts the run into the plan.
void Planner::add_run(RowRun run, int64_t have_blocks) {
  run.first_block = static_cast<int32_t>(plan_.new_blocks.size());
  int64_t need = std::max<int64_t>(0, blocks_for(s_, run.begin_max + run.rows) - have_blocks);
  if (!take_blocks(need)) {
    plan_.stalled.push_back(run.seq);
    return;
  }
  run.block_count = static_cast<int32_t>(need);
  plan_snapshot(&run);
  plan_cap_snapshot(&run);
  const CostModel& m = s_.fit.model;
  left_ns_ -=
      rows_cost_ns(m, run.rows, run.begin) + decoder_cost_ns(m, run.decoder_rows, run.begin + run.rows);
  add_rows(&plan_.sample, run.rows, run.begin, run.decoder_rows);
  marks_[run.slot] |= kPlanned;
  plan_.runs.push_back(run);
}

void Planner::plan_snapshot(RowRun* run) {
  const Request& r = req(run->slot);
  int64_t end = run->begin_max + run->rows;
  int64_t at_prompt = boundary_below(s_, r.prompt_tokens);
  int64_t boundary = boundary_below(s_, end);
  // Inside the prompt only its last boundary is kept; in the output every boundary, the newest replacing the
  // last.
  if (boundary <= r.prompt_tokens) boundary = at_prompt;
  if (boundary == 0 || boundary <= run->begin || boundary > end || s_.cache.snapshots.empty()) return;
  if (boundary <= r.prompt_tokens) {
    run->snapshot = slot_for_prompt(r, boundary);
  } else {
    if (static_cast<int64_t>(r.keys.size()) < at_prompt / window(s_)) return;  // not cacheable
    run->snapshot = take_snapshot_slot();
    plan_.snapshots_skipped += run->snapshot == kNoSnapshot ? 1 : 0;
  }
  if (run->snapshot != kNoSnapshot) run->snapshot_boundary = boundary;
}

// A slot for a window inside the prompt, unless it is stored already or its blocks have no key.
SnapshotId Planner::slot_for_prompt(const Request& r, int64_t boundary) {
  size_t block = static_cast<size_t>(boundary / window(s_));
  if (r.keys.size() < block) return kNoSnapshot;
  SnapshotId old = find_snapshot(s_.cache, r.keys[block - 1]);
  if (old != kNoSnapshot && (r.replayed || !at(s_.cache, old).replayed)) return kNoSnapshot;
  SnapshotId slot = take_snapshot_slot();
  plan_.snapshots_skipped += slot == kNoSnapshot ? 1 : 0;
  return slot;
}

void Planner::plan_cap_snapshot(RowRun* run) {
  const Request& r = req(run->slot);
  int64_t boundary = boundary_below(s_, r.prompt_tokens - s_.config.replay.cap_tokens());
  bool passes = run->prefill && boundary > run->begin && boundary <= run->begin + run->rows;
  if (!s_.config.cap_snapshots || !passes || boundary <= 0 || s_.cache.snapshots.empty()) return;
  run->cap_snapshot = slot_for_prompt(r, boundary);
  if (run->cap_snapshot != kNoSnapshot) run->cap_boundary = boundary;
}

Planner::Prompt Planner::prompt_of(uint32_t slot) const {
  const Request& r = req(slot);
  Prompt p;
  p.slot = slot;
  p.begin = next_row(r);
  p.end = r.prefill_end;
  p.have_blocks = static_cast<int64_t>(r.blocks.size());
  p.decoder_floor = r.decoder_floor;
  p.encoder_floor = r.encoder_floor;
  p.publish_from = r.publish_from;
  p.restore = r.restore_due ? r.restoring : kNoSnapshot;
  return p;
}

std::vector<Planner::Prompt> Planner::running_prompts() const {
  std::vector<Prompt> out;
  for (uint32_t slot : s_.running) {
    bool can = may_run(req(slot)) && in_prefill(req(slot));
    if (can && !marked(slot, kEnded | kPreempted | kPlanned)) out.push_back(prompt_of(slot));
  }
  return out;
}

bool Planner::is_short(const Request& r, double cost_ns) const {
  return r.tier <= 1 && cost_ns <= s_.config.short_fraction * static_cast<double>(plan_.budget_ns);
}

void Planner::plan_prompts() {
  admit_overdue();
  run_starving();
  run_urgent();
  run_short();
  pull();
  fill();
}

// When enough others went before it, the oldest waiting request is let in as soon as it fits, whatever its
// line.
void Planner::admit_overdue() {
  while (seats_ > 0 && bypasses_ >= s_.config.max_bypass) {
    uint32_t slot = oldest_waiting();
    if (slot == UINT32_MAX || !try_admit(slot)) return;
  }
}

// A prompt that has waited its bound goes before everything but decodes, with the part of the step that long
// work may always have.
void Planner::run_starving() {
  for (Prompt& p : running_prompts()) {
    if (req(p.slot).idle_steps + 1 < s_.config.starve_steps) continue;
    run_prompt(&p, left_ns_ * s_.config.long_fraction, true, false);
  }
}

void Planner::run_urgent() {
  int64_t soon = q_.now_ns + 2 * plan_.budget_ns;
  for (auto [deadline, slot] : s_.deadlines) {
    if (deadline > soon || left_ns_ <= 0) break;
    if (marked(slot, kEnded | kPreempted | kPlanned)) continue;
    const Request& r = req(slot);
    if (r.phase == Phase::kWaiting && try_admit(slot)) {
      if (!plan_.admit.back().loads()) run_prompt(&admitted_.back(), left_ns_, false, false);
    } else if (may_run(r) && in_prefill(r)) {
      Prompt p = prompt_of(slot);
      run_prompt(&p, left_ns_, false, false);
    }
  }
}

// Short prompts run whole, running ones first, in the part of the step that long work does not have.
void Planner::run_short() {
  const CostModel& m = s_.fit.model;
  bool has_long = !s_.queues[2].waiting.empty() || !s_.queues[3].waiting.empty() || !s_.preempted.empty();
  std::vector<Prompt> running = running_prompts();
  for (const Prompt& p : running) {
    has_long = has_long || !is_short(req(p.slot), rows_cost_ns(m, p.end - p.begin, p.begin));
  }
  short_left_ns_ = left_ns_;
  if (has_long) {
    short_left_ns_ -= s_.config.long_fraction * static_cast<double>(plan_.budget_ns);
  }
  for (Prompt& p : running) {
    if (is_short(req(p.slot), rows_cost_ns(m, p.end - p.begin, p.begin))) {
      run_prompt(&p, short_left_ns_, false, true);
    }
  }
  for (int tier : {0, 1}) {
    int64_t looked = 0;
    for (const QueueKey& key : s_.queues[tier].waiting) {
      if (short_left_ns_ <= 0 || seats_ <= 0 || ++looked > s_.config.scan_window) break;
      const Request& r = req(key.slot);
      if (marked(key.slot, kEnded | kAdmitted)) continue;
      int64_t held = static_cast<int64_t>(r.leased.size()) * window(s_);
      double cost = rows_cost_ns(m, r.known_tokens - held, held);
      if (!is_short(r, cost) || cost > short_left_ns_ || !try_admit(key.slot)) continue;
      if (!plan_.admit.back().loads()) run_prompt(&admitted_.back(), short_left_ns_, false, true);
    }
  }
}

// New work comes in by predicted work outstanding, not by what is left of this step: a tier's next request is
// let in while its quota lasts, and then shares the steps with what runs. Who was preempted comes first.
void Planner::pull() {
  int64_t looked = 0;
  for (const Seniority& who : s_.preempted) {
    if (seats_ <= 0 || ++looked > s_.config.scan_window) break;
    if (!marked(who.slot, kEnded | kAdmitted)) try_admit(who.slot);
  }
  for (bool more = true; more && seats_ > 0;) {
    more = false;
    admit_overdue();
    std::array<TierLoad, kTiers> loads{};
    for (size_t k = 0; k < kTiers; ++k) {
      loads[k].used_ns = used_ns_[k];
      for (const QueueKey& key : s_.queues[k].waiting) {
        if (marked(key.slot, kEnded | kAdmitted)) continue;
        loads[k] = {used_ns_[k], true, q_.now_ns - req(key.slot).arrived_ns, key.arrival};
        break;
      }
    }
    TierOrder order = decide_tier_order(s_.config.tiers, loads);
    for (int i = 0; i < order.count && !more; ++i) {
      int64_t scanned = 0;
      for (const QueueKey& key : s_.queues[order.tiers[static_cast<size_t>(i)]].waiting) {
        if (marked(key.slot, kEnded | kAdmitted)) continue;
        if (++scanned > s_.config.scan_window) break;
        more = try_admit(key.slot);
        if (more) break;
      }
    }
  }
}

// The rest of the step: lower tiers first, the senior first inside a tier. The starvation bound protects the
// others.
void Planner::fill() {
  std::vector<Prompt> prompts = running_prompts();
  for (const Prompt& p : admitted_) {
    bool can = !marked(p.slot, kPlanned) && !plan_.admit[static_cast<size_t>(p.admission)].loads();
    if (can) prompts.push_back(p);
  }
  // Short ones that found no room in their part of the step do not take the long ones' part.
  const CostModel& m = s_.fit.model;
  auto order = [this, &m](const Prompt& p) {
    const Request& r = req(p.slot);
    bool is_late_short = is_short(r, rows_cost_ns(m, p.end - p.begin, p.begin));
    return std::make_tuple(is_late_short, r.tier, seniority(r, p.slot));
  };
  std::stable_sort(prompts.begin(), prompts.end(),
                   [&](const Prompt& a, const Prompt& b) { return order(a) < order(b); });
  for (Prompt& p : prompts) {
    bool empty = plan_.runs.empty();
    if (left_ns_ <= 0 && !empty) break;
    run_prompt(&p, left_ns_, empty, false);
  }
}

int64_t Planner::chunk_rows(const Prompt& p, double time_ns, bool must_progress) const {
  const CostModel& m = s_.fit.model;
  ChunkQuery q{time_ns, p.begin, p.end - p.begin, s_.config.chunk_max_tokens, window(s_), must_progress};
  int64_t rows = solve_chunk(m, q);
  int64_t decoder = decoder_rows(p.begin, p.begin + rows, p.decoder_floor);
  if (decoder == 0) return rows;
  // The decoder half of the last rows must fit too; otherwise the chunk ends before they begin, if it can.
  double cost = rows_cost_ns(m, rows, p.begin) + decoder_cost_ns(m, decoder, p.begin + rows);
  if (cost <= time_ns) return rows;
  q.time_ns = time_ns - decoder_cost_ns(m, decoder, p.begin + rows);
  q.must_progress = false;
  int64_t fewer = solve_chunk(m, q);
  int64_t before = boundary_below(s_, p.decoder_floor) - p.begin;
  if (fewer <= 0 && before <= 0) return must_progress ? rows : 0;
  return std::max(fewer, std::min(rows, std::max<int64_t>(0, before)));
}

// Whether what is still to come of a load is predicted to be there when a step with these rows needs it. The
// step may take longer than they do, and begin later: then it comes all the more in time.
bool Planner::comes_in_time(const Request& r, int64_t begin, int64_t rows) const {
  double needed = r.early_share * rows_cost_ns(s_.fit.model, rows, begin);
  return static_cast<double>(r.early_due_ns - q_.now_ns) <= needed;
}

bool Planner::run_prompt(Prompt* p, double time_ns, bool must_progress, bool whole) {
  const Request& r = req(p->slot);
  if (marked(p->slot, kPlanned)) return false;
  int64_t rows = chunk_rows(*p, time_ns, must_progress);
  if (rows <= 0 || (whole && p->begin + rows < p->end)) return false;
  if (r.early && !comes_in_time(r, p->begin, rows)) return false;
  // Blocks of a prompt are promised when it is let in; if some were lost all the same, a shorter chunk will
  // do.
  int64_t promised =
      p->admission >= 0 ? plan_.admit[static_cast<size_t>(p->admission)].promised_blocks : r.promised_blocks;
  while (rows > 0) {
    int64_t need = blocks_for(s_, p->begin + rows) - p->have_blocks;
    if (need <= promised || make_room(p->slot, need, promised)) break;
    rows = rows > window(s_) ? boundary_below(s_, p->begin + rows / 2) - p->begin : 0;
  }
  if (rows <= 0) {
    plan_.stalled.push_back(r.seq);
    return false;
  }
  RowRun run;
  run.seq = r.seq;
  run.slot = p->slot;
  run.prefill = true;
  run.begin = run.begin_max = p->begin;
  run.rows = rows;
  run.yields = p->begin + rows == p->end;
  run.decoder_rows = decoder_rows(p->begin, p->begin + rows, p->decoder_floor);
  run.publish_from = p->publish_from;
  run.encoder_floor = p->encoder_floor;
  run.decoder_floor = p->decoder_floor;
  run.restore = p->restore;
  run.loading = r.early;
  double before = left_ns_;
  add_run(run, p->have_blocks);
  short_left_ns_ -= before - left_ns_;
  return marked(p->slot, kPlanned);
}

StepPlan decide(const SchedulerState& state, const PlanQuery& query) {
  return Planner(state, query).plan();
}

int64_t decide_budget(const SchedulerState& s, int64_t now_ns) {
  (void)now_ns;
  BudgetQuery q;
  q.has_work = !s.running.empty() || !s.waiting_by_age.empty();
  q.min_ns = s.config.min_budget_ns;
  bool interactive = !s.queues[0].waiting.empty() || !s.queues[1].waiting.empty();
  double need = s.fit.model.e;
  for (uint32_t slot : s.running) {
    const Request& r = at(s, slot);
    if (r.phase != Phase::kRunning) continue;
    int64_t rows = in_prefill(r) ? r.prefill_end - next_row(r) : 1 + s.config.drafts;
    need += rows_cost_ns(s.fit.model, rows, next_row(r));
    interactive = interactive || !in_prefill(r) || r.tier == 0;
  }
  for (auto [arrival, slot] : s.waiting_by_age) {
    if (need > static_cast<double>(s.config.batch_budget_ns)) break;
    need += rows_cost_ns(s.fit.model, at(s, slot).known_tokens, 0);
  }
  q.need_ns = static_cast<int64_t>(std::min(need, 9e18));
  q.target_ns = interactive ? s.config.interactive_budget_ns : s.config.batch_budget_ns;
  return propose_budget(q);
}

}  // namespace deepinfer::policy
