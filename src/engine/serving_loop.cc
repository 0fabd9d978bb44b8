// Requests in, orders and events out.
#include <algorithm>

#include "base/check.h"
#include "engine/serving_choice.h"

namespace deepinfer {

using policy::SeqId;

ServingLoop::ServingLoop(policy::SchedulerState state, bool plan_late,
                         std::function<void(const policy::Event&)> on_event)
    : state_(std::move(state)), on_event_(std::move(on_event)), plan_late_(plan_late) {}

void ServingLoop::hold_planning(int64_t now_ns, double predicted_ns) {
  // Shorter steps are not worth a timer.
  constexpr double kShortNs = 4e6, kPart = 0.75;
  plan_from_ns_ =
      plan_late_ && predicted_ns > kShortNs ? now_ns + static_cast<int64_t>(kPart * predicted_ns) : 0;
}

ServingLoop::~ServingLoop() = default;

void ServingLoop::happen(const policy::Event& event) {
  if (on_event_) on_event_(event);
  policy::apply(&state_, event);
}

void ServingLoop::submit(const Submission& submission, int64_t now_ns) {
  auto owned = std::make_unique<Live>();
  Live* live = owned.get();
  live->id = submission.id;
  live->submission = submission;
  const EngineRequest& r = *submission.request;
  size_t n = static_cast<size_t>(r.choices);
  live->running.resize(n);
  live->held.resize(n);
  live->open = r.choices;
  live_.emplace(static_cast<uint64_t>(submission.id), std::move(owned));
  ++totals_.submitted;
  // Further answers start from the first one's stored prompt, exactly; a prompt too short for a hit is
  // computed by each.
  int64_t cap = static_cast<int64_t>(r.prompt.size()) - state_.config.replay.cap_tokens();
  bool shares = !submission.keys.empty() && cap >= policy::window(state_) && !r.prompt_logprobs;
  for (int i = 0; i < r.choices; ++i) {
    bool hold = shares && i > 0;
    live->held[static_cast<size_t>(i)] = hold;
    held_ += hold ? 1 : 0;
    if (!hold) arrive(live, i, now_ns);
  }
}

void ServingLoop::arrive(Live* live, int index, int64_t now_ns) {
  const EngineRequest& r = *live->submission.request;
  auto choice = std::make_unique<Choice>();
  choice->seq = SeqId(++last_seq_);
  choice->live = live;
  choice->index = index;
  choice->usage.prompt_tokens = static_cast<int64_t>(r.prompt.size());
  choice->times.submitted_ns = live->submission.submitted_ns;
  policy::Arrived a;
  a.seq = choice->seq;
  a.now_ns = now_ns;
  a.prompt_tokens = static_cast<int64_t>(r.prompt.size());
  a.max_new_tokens = r.max_tokens;
  a.keys = live->submission.keys;
  a.tenant = policy::TenantId(r.tenant);
  a.weight = r.tenant_weight;
  a.priority = r.priority;
  a.deadline_ns = r.deadline_ns;
  // Further answers start from the first one's prompt: exactly, unless that was an approximation itself.
  a.exact = r.exact_hits || (index > 0 && !live->approximate);
  a.whole_decoder = r.prompt_logprobs;
  if (const StoreOffer* o = live->submission.offer.get(); o != nullptr && index == 0) {
    a.store_blocks = o->blocks;
    a.store_ns_per_block = o->ns_per_block;
    a.store_ns_per_window = o->ns_per_window;
    for (int64_t b : o->windows) a.store_windows.push_back(b * policy::window(state_));
    ++totals_.store_offers;
  }
  if (bridge_ != nullptr && !r.store.no_write) choice->keys = live->submission.keys;
  live->running[static_cast<size_t>(index)] = choice.get();
  choices_.emplace(choice->seq, std::move(choice));
  happen(a);
}

void ServingLoop::release_held(Live* live, int64_t now_ns) {
  for (size_t i = 0; i < live->held.size(); ++i) {
    if (!live->held[i]) continue;
    live->held[i] = false;
    --held_;
    arrive(live, static_cast<int>(i), now_ns);
  }
}

void ServingLoop::start(Choice* c) {
  if (c->started) return;
  c->started = true;
  EngineEvent e;
  e.kind = EngineEvent::Kind::kStarted;
  e.request = c->live->id;
  e.choice = c->index;
  e.usage = c->usage;
  events_.push_back(std::move(e));
}

void ServingLoop::count_finish(Finish finish) {
  ++totals_.finished;
  switch (finish) {
    case Finish::kCancelled:
      ++totals_.cancelled;
      break;
    case Finish::kDeadline:
      ++totals_.expired;
      break;
    case Finish::kRefused:
      ++totals_.refused;
      break;
    case Finish::kError:
      ++totals_.failed;
      break;
    default:
      break;
  }
}

// The one way out of a choice that the policy knows.
void ServingLoop::end(SeqId seq, Finish finish, Status status, int64_t now_ns, bool tell_policy) {
  auto it = choices_.find(seq);
  if (it == choices_.end()) return;
  std::unique_ptr<Choice> c = std::move(it->second);
  choices_.erase(it);
  if (tell_policy) happen(policy::Cancelled{seq});
  if (bridge_ != nullptr) {
    bridge_->give_up(seq);
    if (finish != Finish::kError) {
      offer_blocks(c.get());
      offer_windows(c.get());
    }
  }
  c->cancelled->store(true, std::memory_order_relaxed);
  forget_.push_back(seq);
  c->times.finished_ns = now_ns;
  EngineEvent e;
  e.kind = EngineEvent::Kind::kFinished;
  e.request = c->live->id;
  e.choice = c->index;
  e.finish = finish;
  e.status = std::move(status);
  e.usage = c->usage;
  e.times = c->times;
  events_.push_back(std::move(e));
  count_finish(finish);
  Live* live = c->live;
  live->running[static_cast<size_t>(c->index)] = nullptr;
  // Whatever ended the first answer, the others do not wait for it any longer.
  if (c->index == 0) release_held(live, now_ns);
  if (--live->open == 0) live_.erase(static_cast<uint64_t>(live->id));
}

void ServingLoop::end_held(Live* live, int index, Finish finish, const Status& status, int64_t now_ns) {
  live->held[static_cast<size_t>(index)] = false;
  --held_;
  EngineEvent e;
  e.kind = EngineEvent::Kind::kFinished;
  e.request = live->id;
  e.choice = index;
  e.finish = finish;
  e.status = status;
  e.usage.prompt_tokens = static_cast<int64_t>(live->submission.request->prompt.size());
  e.times.submitted_ns = live->submission.submitted_ns;
  e.times.finished_ns = now_ns;
  events_.push_back(std::move(e));
  count_finish(finish);
  if (--live->open == 0) live_.erase(static_cast<uint64_t>(live->id));
}

void ServingLoop::cancel(RequestId request, int64_t now_ns) {
  auto it = live_.find(static_cast<uint64_t>(request));
  if (it == live_.end()) return;
  // From the last to the first: the end of the first would let the held ones in.
  for (int i = it->second->submission.request->choices; i-- > 0;) cancel_choice(request, i, now_ns);
}

void ServingLoop::cancel_choice(RequestId request, int index, int64_t now_ns) {
  auto it = live_.find(static_cast<uint64_t>(request));
  if (it == live_.end() || index < 0 || index >= it->second->submission.request->choices) return;
  Live* live = it->second.get();
  size_t i = static_cast<size_t>(index);
  if (live->held[i]) {
    end_held(live, index, Finish::kCancelled, {}, now_ns);
  } else if (live->running[i] != nullptr) {
    end(live->running[i]->seq, Finish::kCancelled, {}, now_ns, true);
  }
}

void ServingLoop::drain(int64_t deadline_ns) {
  draining_ = true;
  drain_deadline_ns_ = std::min(drain_deadline_ns_, deadline_ns);
}

void ServingLoop::take_outcome(const policy::RowRun& run, RunOutcome* out, int64_t now_ns) {
  auto it = choices_.find(run.seq);
  if (it == choices_.end()) return;  // over meanwhile: nothing is delivered after the end
  Choice* c = it->second.get();
  Live* live = c->live;
  c->usage.drafted_tokens += out->verified;
  c->usage.accepted_tokens += out->accepted;
  if (!out->prompt_logprobs.empty() || out->yielded) {
    bool first = !c->started;
    start(c);
    if (first) events_.back().prompt_logprobs = std::move(out->prompt_logprobs);
  }
  if (!out->tokens.empty()) {
    if (c->times.first_token_ns == 0) c->times.first_token_ns = now_ns;
    int64_t n = static_cast<int64_t>(out->tokens.size());
    c->usage.output_tokens += n;
    totals_.output_tokens += n;
    EngineEvent e;
    e.kind = EngineEvent::Kind::kTokens;
    e.first = c->usage.output_tokens == n;
    e.request = live->id;
    e.choice = c->index;
    e.tokens = std::move(out->tokens);
    events_.push_back(std::move(e));
  }
  totals_.drafted_tokens += out->drafted;
  totals_.verified_tokens += out->verified;
  totals_.accepted_tokens += out->accepted;
}

void ServingLoop::finish(StepOutcome outcome, int64_t now_ns) {
  DI_CHECK(!state_.in_flight.empty() && state_.in_flight.front().step == outcome.step,
           "outcomes come in the order of their steps");
  std::vector<policy::RowRun> runs = state_.in_flight.front().runs;
  policy::StepFinished f;
  f.step = outcome.step;
  f.now_ns = now_ns;
  f.measured_ns = static_cast<double>(outcome.end_ns - outcome.begin_ns);
  f.exclude_from_fit = outcome.irregular;
  for (size_t i = 0; i < runs.size(); ++i) {
    take_outcome(runs[i], &outcome.runs[i], now_ns);
    f.results.push_back(outcome.runs[i].result);
  }
  if (bridge_ != nullptr) take_keys(f);
  happen(f);
  if (bridge_ != nullptr) {
    for (const policy::RowRun& run : runs) {
      auto it = choices_.find(run.seq);
      if (it == choices_.end()) continue;
      note_windows(it->second.get(), run);
      if (write_late_) continue;
      offer_blocks(it->second.get());
      // The window of the prompt; those of the output replace each other until its end.
      if (it->second->usage.output_tokens <= 1 + run.drafts) offer_windows(it->second.get());
    }
  }
  flying_ns_.pop_front();
  if (!flying_ns_.empty()) hold_planning(now_ns, flying_ns_.front());
  for (size_t i = 0; i < runs.size(); ++i) {
    RunOutcome& out = outcome.runs[i];
    auto it = choices_.find(runs[i].seq);
    if (it == choices_.end()) continue;
    Live* live = it->second->live;
    if (out.yielded && it->second->index == 0) release_held(live, now_ns);
    if (out.result.finished) end(runs[i].seq, out.finish, std::move(out.status), now_ns, false);
  }
  policy::FitDecision fit = policy::decide_fit(state_.fit);
  if (fit.adopt) happen(policy::CostAdopted{fit.model, fit.scale});
  ++totals_.steps;
  totals_.prefill_rows += outcome.prefill_rows;
  totals_.decode_rows += outcome.decode_rows;
  totals_.decoder_rows += outcome.decoder_rows;
  totals_.wasted_tokens += outcome.dropped_rows;
  totals_.store_step_wait_ns += outcome.load_wait_ns;
  totals_.forward_ns += outcome.forward_ns;
  if (outcome.prefill_rows == 0) {
    ++totals_.plain_steps;
    totals_.plain_forward_ns += outcome.forward_ns;
  }
  totals_.draft_ns += outcome.draft_ns;
  totals_.sample_ns += outcome.sample_ns;
  totals_.last_step_ns = outcome.end_ns;
  totals_.speculation = std::move(outcome.speculation);
}

namespace {

// A plan that would change nothing need not be adopted.
bool does_something(const policy::StepPlan& p) {
  return p.launches() || !p.end.empty() || !p.revoke.empty() || !p.preempt.empty() || !p.evict.empty() ||
         !p.evict_snapshots.empty() || !p.admit.empty();
}

Finish finish_of(policy::EndReason reason) {
  bool late =
      reason == policy::EndReason::kDeadlineExpired || reason == policy::EndReason::kDeadlineImpossible;
  return late ? Finish::kDeadline : Finish::kRefused;
}

Status status_of(const policy::Ending& e) {
  switch (e.reason) {
    case policy::EndReason::kDeadlineExpired:
      return error(Code::kDeadlineExceeded, "the deadline has passed");
    case policy::EndReason::kDeadlineImpossible:
      return error(Code::kDeadlineExceeded, "the prompt could not be computed before the deadline");
    default:
      return error(Code::kInvalidArgument, "the request can never run here ({}): it needs {}, there are {}",
                   policy::name(e.reason), e.need, e.limit);
  }
}

}  // namespace

void ServingLoop::adopt(const policy::StepPlan& plan, int64_t now_ns, StepOrder* order) {
  happen(policy::PlanAdopted{plan, now_ns});
  for (const policy::Ending& e : plan.end) end(e.seq, finish_of(e.reason), status_of(e), now_ns, false);
  for (const policy::Preemption& p : plan.preempt) {
    order->suspend.push_back(p.seq);
    if (auto it = choices_.find(p.seq); it != choices_.end()) ++it->second->usage.preemptions;
  }
  for (const policy::Admission& a : plan.admit) {
    AdmitOrder admit{a.seq, a.shared, nullptr, nullptr};
    admit.blocks.insert(admit.blocks.end(), a.load.begin(), a.load.end());
    Choice* c = choices_.at(a.seq).get();
    if (!c->admitted) {
      c->admitted = true;
      c->usage.cached_tokens = a.hit.start_tokens;
      // Also when what was stored followed from somebody else's replay.
      c->usage.replayed_window = policy::at(state_, a.slot).replayed;
      totals_.replayed_hits += c->usage.replayed_window ? 1 : 0;
      if (c->index == 0) c->live->approximate = c->usage.replayed_window;
      c->times.admitted_ns = now_ns;
      const Submission& s = c->live->submission;
      auto fresh = std::make_shared<NewSequence>();
      fresh->request = s.request;
      fresh->choice = c->index;
      fresh->publishes = s.request->use_cache;
      fresh->prompt_blocks = static_cast<int64_t>(s.keys.size());
      fresh->last_key = s.last_key;
      fresh->cancelled = c->cancelled;
      admit.fresh = std::move(fresh);
      // Who waits for the store learns there what its hit really was.
      if (a.loads()) {
        begin_load(c, a);
        admit.gate = c->gate;
      }
      if (!a.loads() && s.offer != nullptr && c->index == 0) {
        int64_t cap =
            policy::boundary_below(state_, c->usage.prompt_tokens - state_.config.replay.cap_tokens());
        bool further = std::min(s.offer->blocks * policy::window(state_), cap) > a.hit.kv_hit_tokens;
        if (further && bridge_ != nullptr) {
          bridge_->declined(*s.offer);
          ++totals_.store_declined;
        }
        c->live->submission.offer.reset();
      }
      if (!s.request->prompt_logprobs && !a.loads()) start(c);
    }
    if (c->comes_back) {
      c->comes_back = false;
      count_store_hit(c, a.hit.start_tokens, policy::at(state_, a.slot).replayed);
      start(c);
    }
    order->admit.push_back(std::move(admit));
  }
  if (!plan.launches()) return;
  flying_ns_.push_back(plan.predicted_ns);
  if (flying_ns_.size() == 1) hold_planning(now_ns, plan.predicted_ns);
  order->step = plan.step;
  order->new_blocks = plan.new_blocks;
  order->runs = plan.runs;
}

std::optional<StepOrder> ServingLoop::next_order(int64_t now_ns) {
  if (now_ns >= drain_deadline_ns_) {
    while (!live_.empty()) cancel(live_.begin()->second->id, now_ns);
  }
  StepOrder order;
  if (state_.in_flight.empty() || now_ns >= plan_from_ns_) {
    policy::StepPlan plan = policy::decide(state_, {now_ns, 0});
    if (does_something(plan)) adopt(plan, now_ns, &order);
  }
  count_stall(now_ns);
  order.forget = std::move(forget_);
  forget_.clear();
  order.windows = std::move(windows_);
  windows_.clear();
  bool empty = raw(order.step) == 0 && order.windows.empty() && order.forget.empty() &&
               order.suspend.empty() && order.admit.empty();
  if (empty) return std::nullopt;
  return order;
}

int64_t ServingLoop::next_wake_ns(int64_t now_ns) const {
  int64_t wake = live_.empty() ? INT64_MAX : drain_deadline_ns_;
  bool holding = in_flight() > 0 && now_ns < plan_from_ns_;
  if (!state_.deadlines.empty()) {
    // Nothing is decided before plan_from, so waking for it earlier would only spin.
    int64_t deadline = state_.deadlines.begin()->first;
    wake = std::min(wake, holding ? std::max(deadline, plan_from_ns_) : deadline);
  }
  if (holding && in_flight() < state_.config.max_in_flight) wake = std::min(wake, plan_from_ns_);
  // Work that neither runs nor could be planned depends on something outside: look again now and then.
  constexpr int64_t kRetryNs = 10'000'000, kLoadNs = 1'000'000;
  bool loads = bridge_ != nullptr && bridge_->loading();
  if (state_.in_flight.empty() && !choices_.empty())
    wake = std::min(wake, now_ns + (loads ? kLoadNs : kRetryNs));
  return wake;
}

EngineStats ServingLoop::stats() const {
  EngineStats s = totals_;
  const policy::Counters& c = state_.counters;
  s.prompt_tokens = c.prompt_tokens;
  s.cached_tokens = c.hit_tokens;
  s.preemptions = c.preemptions;
  s.wasted_tokens += c.wasted_tokens;
  s.skipped_snapshots = c.skipped_snapshots;
  s.evicted_blocks = c.evicted_blocks;
  s.evicted_snapshots = c.evicted_snapshots;
  s.stalls = c.stalls;
  s.floors_lost = c.floors_lost;
  s.store_early_steps = c.early_runs;
  s.store_lost_steps = c.lost_runs;
  s.running = static_cast<int64_t>(state_.running.size());
  s.waiting = static_cast<int64_t>(state_.waiting_by_age.size()) + held_;
  const policy::CacheState& cache = state_.cache;
  auto count = [&](policy::BlockPlace p) { return cache.count[static_cast<int>(p)]; };
  s.blocks_total = static_cast<int64_t>(cache.blocks.size());
  s.blocks_used = count(policy::BlockPlace::kUsed) + count(policy::BlockPlace::kPinned);
  s.blocks_cached = count(policy::BlockPlace::kLeased) + count(policy::BlockPlace::kIdle);
  s.snapshots_total = static_cast<int64_t>(cache.snapshots.size());
  s.snapshots_used = static_cast<int64_t>(cache.snapshot_index.size());
  s.draining = draining_;
  return s;
}

}  // namespace deepinfer
