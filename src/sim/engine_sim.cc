// Arrivals, ends of steps and decisions in the order of their times; results by a fixed pace of tokens.
#include "sim/engine_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace deepinfer::sim {

using policy::BlockKey;
using policy::SeqId;

namespace {

struct Running {
  size_t index = 0;
  int64_t arrived_ns = 0, first_ns = 0;
  int64_t out = 0, prompt_blocks = 0, known_blocks = 0;
  double part = 0;      // of a token not yet decided
  int64_t decodes = 0;  // steps that have decoded it
};

// A plan that would change nothing need not be adopted: as in the serving loop.
bool does_something(const policy::StepPlan& p) {
  return p.launches() || !p.end.empty() || !p.revoke.empty() || !p.preempt.empty() || !p.evict.empty() ||
         !p.evict_snapshots.empty() || !p.admit.empty();
}

class EngineSim {
 public:
  EngineSim(const EngineSimConfig& config, const EngineWork& work, policy::SchedulerState state)
      : config_(config), work_(work), state_(std::move(state)), waiters_(work.arrivals.size()) {
    for (size_t i = 0; i < work.arrivals.size(); ++i) {
      const EngineArrival& a = work.arrivals[i];
      if (a.after < 0) {
        arrive(i, static_cast<int64_t>(static_cast<double>(a.at_ns) / config_.trace_speed));
      } else {
        waiters_[static_cast<size_t>(a.after)].push_back(i);
      }
    }
  }

  EngineSimResult run() {
    out_.requests = static_cast<int64_t>(work_.arrivals.size());
    for (;;) {
      if (!flying_.empty() && flying_.front().end_ns <= now_) finish();
      arrivals();
      plan();
      if (!out_.broken.empty()) return std::move(out_);
      const int64_t next = next_ns();
      if (next == INT64_MAX) break;
      now_ = std::max(now_, next);
    }
    out_.end_ns = now_;
    out_.preemptions = state_.counters.preemptions;
    out_.hit_tokens = state_.counters.hit_tokens;
    out_.broken = policy::broken_invariant(state_);
    if (out_.broken.empty() && !running_.empty()) out_.broken = "requests are left that make no progress";
    if (out_.broken.empty()) {
      auto again = replay_log(config_.scheduler, log_);
      if (!again.ok()) out_.broken = again.status().message();
    }
    return std::move(out_);
  }

 private:
  struct Flying {
    policy::StepId step{};
    std::vector<policy::RowRun> runs;
    double predicted_ns = 0, takes_ns = 0;
    int64_t begin_ns = 0, end_ns = INT64_MAX;  // of the front: it is being executed
  };

  void give(policy::Event event) {
    policy::apply(&state_, event);
    log_.push_back(std::move(event));
  }
  int64_t window() const { return policy::window(state_); }

  int64_t next_ns() const {
    int64_t next = INT64_MAX;
    if (!due_.empty()) next = due_.begin()->first;
    if (!flying_.empty()) next = std::min(next, flying_.front().end_ns);
    const bool room = static_cast<int64_t>(state_.in_flight.size()) < config_.scheduler.max_in_flight;
    if (!flying_.empty() && room && now_ < plan_from_ns_) next = std::min(next, plan_from_ns_);
    return next;
  }

  void arrive(size_t i, int64_t at_ns) { due_.emplace(at_ns + work_.arrivals[i].known_after_ns, i); }

  void arrivals() {
    while (!due_.empty() && due_.begin()->first <= now_) {
      const auto [at, i] = *due_.begin();
      due_.erase(due_.begin());
      const EngineArrival& r = work_.arrivals[i];
      const SeqId seq{i + 1};
      policy::Arrived a;
      a.seq = seq;
      a.now_ns = at;
      a.prompt_tokens = r.input_tokens;
      a.max_new_tokens = r.output_tokens;
      a.keys = prompt_keys(i);
      const int64_t blocks = r.input_tokens / window();
      running_[seq] = Running{i, at - r.known_after_ns, 0, 0, blocks, blocks, 0};
      out_.input_tokens += r.input_tokens;
      give(std::move(a));
    }
  }

  std::vector<BlockKey> prompt_keys(size_t i) const {
    if (work_.prompt_keys) return work_.prompt_keys(i);
    std::vector<BlockKey> keys;
    for (int64_t b = 0; b < work_.arrivals[i].input_tokens / window(); ++b)
      keys.push_back(BlockKey{{2, i, static_cast<uint64_t>(b), 0}});
    return keys;
  }

  // Everything that can be decided now.
  void plan() {
    while (flying_.empty() || now_ >= plan_from_ns_) {
      policy::StepPlan plan = policy::decide(state_, {now_, 0});
      ++out_.plans;
      if (!does_something(plan)) return;
      const std::string text = policy::to_text(plan);
      for (char c : text)
        out_.plan_hash = (out_.plan_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
      if (config_.record_plans) out_.texts.push_back(text);
      Flying f{plan.step, plan.runs, plan.predicted_ns, plan.predicted_ns, 0, INT64_MAX};
      if (config_.cost.has_value()) f.takes_ns = policy::predict_ns(*config_.cost, plan.sample);
      const bool launches = plan.launches();
      const std::vector<policy::Ending> ended = plan.end;
      give(policy::PlanAdopted{std::move(plan), now_});
      for (const policy::Ending& e : ended) {
        auto it = running_.find(e.seq);
        if (it == running_.end()) continue;
        ++out_.ended;
        over(it);
      }
      if (!launches) continue;
      flying_.push_back(std::move(f));
      if (flying_.size() == 1) begin();
    }
  }

  // The front step begins to be executed.
  void begin() {
    Flying& f = flying_.front();
    f.begin_ns = now_ + static_cast<int64_t>(config_.host_ns);
    f.end_ns = f.begin_ns + std::max<int64_t>(1, static_cast<int64_t>(f.takes_ns));
    plan_from_ns_ = f.predicted_ns > config_.hold_above_ns
                        ? now_ + static_cast<int64_t>(config_.hold_part * f.predicted_ns)
                        : 0;
  }

  void finish() {
    Flying f = std::move(flying_.front());
    flying_.pop_front();
    policy::StepFinished done;
    done.step = f.step;
    done.now_ns = now_;
    done.measured_ns = f.takes_ns;
    ++out_.steps;
    out_.busy_ns += f.takes_ns;
    out_.step_ns.add(static_cast<int64_t>(f.takes_ns));
    for (const policy::RowRun& run : f.runs) done.results.push_back(result_of(run));
    give(std::move(done));
    learn();
    if (!flying_.empty()) begin();
  }

  void learn() {
    if (!work_.believed.has_value()) {
      const policy::FitDecision fit = policy::decide_fit(state_.fit);
      if (fit.adopt) give(policy::CostAdopted{fit.model, fit.scale});
      return;
    }
    for (; told_ < work_.believed->size() && (*work_.believed)[told_].first <= out_.steps; ++told_)
      give(policy::CostAdopted{(*work_.believed)[told_].second});
  }

  policy::RowResult result_of(const policy::RowRun& run) {
    policy::RowResult x;
    x.seq = run.seq;
    x.snapshot_taken = true;
    auto it = running_.find(run.seq);
    if (!run.yields || it == running_.end()) return x;
    Running& r = it->second;
    const EngineArrival& a = work_.arrivals[r.index];
    if (run.prefill) {
      r.part += 1;
    } else {
      const double decided = work_.step_tokens ? static_cast<double>(work_.step_tokens(r.index, r.decodes))
                                               : config_.tokens_per_step;
      r.part += std::min(decided, static_cast<double>(run.drafts) + 1);
      ++r.decodes;
    }
    x.new_tokens = std::min(static_cast<int64_t>(r.part), a.output_tokens - r.out);
    r.part -= static_cast<double>(x.new_tokens);
    if (r.out == 0) r.first_ns = now_;
    r.out += x.new_tokens;
    out_.output_tokens += x.new_tokens;
    for (; r.known_blocks < (a.input_tokens + r.out) / window(); ++r.known_blocks) {
      const int64_t nth = r.known_blocks - r.prompt_blocks;
      const BlockKey k = work_.output_key ? work_.output_key(r.index, nth)
                                          : BlockKey{{3, r.index, static_cast<uint64_t>(nth), 0}};
      if (k != BlockKey{}) x.new_keys.push_back(k);
    }
    if (r.out < a.output_tokens) return x;
    x.finished = true;
    out_.ttft_ns.add(r.first_ns - r.arrived_ns);
    out_.e2e_ns.add(now_ - r.arrived_ns);
    if (r.out > 1) out_.tpot_ns.add((now_ - r.first_ns) / (r.out - 1));
    if (config_.record_requests) out_.times.push_back({r.index, r.arrived_ns, r.first_ns, now_, r.out});
    ++out_.completed;
    over(it);
    return x;
  }

  void over(std::map<SeqId, Running>::iterator it) {
    for (size_t i : waiters_[it->second.index]) arrive(i, now_ + work_.arrivals[i].at_ns);
    running_.erase(it);
  }

  const EngineSimConfig& config_;
  const EngineWork& work_;
  policy::SchedulerState state_;
  size_t told_ = 0;  // of work_.believed
  EngineSimResult out_;
  std::vector<policy::Event> log_;
  std::vector<std::vector<size_t>> waiters_;  // by the one they wait for
  std::set<std::pair<int64_t, size_t>> due_;  // arrivals to come, by when they are known
  std::map<SeqId, Running> running_;
  std::deque<Flying> flying_;
  int64_t now_ = 0, plan_from_ns_ = 0;
};

}  // namespace

Result<EngineSimResult> run_engine(const EngineSimConfig& config, const EngineWork& work) {
  for (size_t i = 0; i < work.arrivals.size(); ++i) {
    if (work.arrivals[i].after >= static_cast<int64_t>(i))
      return error(Code::kInvalidArgument, "request {} waits for request {}, which is not before it", i,
                   work.arrivals[i].after);
  }
  auto state = policy::make_scheduler(config.scheduler);
  if (!state.ok()) return state.status();
  return EngineSim(config, work, std::move(*state)).run();
}

Result<EngineSimResult> run_engine(const EngineSimConfig& config, const Trace& trace) {
  EngineWork work;
  for (const TraceRequest& r : trace.requests)
    work.arrivals.push_back({r.arrival_ns, -1, r.input_tokens, r.output_tokens});
  const int64_t window = config.scheduler.replay.window_tokens;
  // Equal ids of the trace are equal blocks; a block past the last whole id is the request's own.
  work.prompt_keys = [&trace, window](size_t index) {
    const TraceRequest& r = trace.requests[index];
    std::vector<BlockKey> keys;
    for (int64_t i = 0; i < r.input_tokens / window; ++i) {
      const int64_t id = i * window / trace.block_tokens;
      if (id < r.id_count && (i + 1) * window <= (id + 1) * trace.block_tokens) {
        keys.push_back(
            BlockKey{{1, trace.ids[r.first_id + static_cast<size_t>(id)], static_cast<uint64_t>(i), 0}});
      } else {
        keys.push_back(BlockKey{{2, index + 1, static_cast<uint64_t>(i), 0}});
      }
    }
    return keys;
  };
  return run_engine(config, work);
}

Result<int64_t> replay_log(const policy::SchedulerConfig& config, std::span<const policy::Event> log) {
  DI_ASSIGN(policy::SchedulerState fresh, policy::make_scheduler(config));
  int64_t plans = 0;
  for (const policy::Event& e : log) {
    if (const auto* adopted = std::get_if<policy::PlanAdopted>(&e)) {
      const policy::StepPlan again = policy::decide(fresh, {adopted->now_ns, 0});
      if (policy::to_text(again) != policy::to_text(adopted->plan)) {
        return error(Code::kInvalidData, "a replay of the log plans step {} differently",
                     raw(adopted->plan.step));
      }
      ++plans;
    }
    policy::apply(&fresh, e);
  }
  return plans;
}

}  // namespace deepinfer::sim
