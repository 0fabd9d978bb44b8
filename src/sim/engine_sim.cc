// Arrivals between steps, one step at a time, results by a fixed pace of tokens.
#include "sim/engine_sim.h"

#include <algorithm>
#include <map>

namespace deepinfer::sim {

using policy::BlockKey;
using policy::SeqId;

namespace {

struct Running {
  const TraceRequest* request = nullptr;
  int64_t out = 0, known_blocks = 0;
  int64_t first_ns = 0;
  double part = 0;  // of a token not yet decided
};

class EngineSim {
 public:
  EngineSim(const EngineSimConfig& config, const Trace& trace, policy::SchedulerState state)
      : config_(config), trace_(trace), start_(state), state_(std::move(state)) {}

  EngineSimResult run() {
    out_.requests = static_cast<int64_t>(trace_.requests.size());
    while (next_ < trace_.requests.size() || !running_.empty()) {
      arrivals();
      if (!step() && !skip()) break;
      if (!out_.broken.empty()) return std::move(out_);
    }
    out_.end_ns = now_;
    out_.preemptions = state_.counters.preemptions;
    out_.hit_tokens = state_.counters.hit_tokens;
    if (out_.broken.empty()) out_.broken = policy::broken_invariant(state_);
    if (out_.broken.empty() && !running_.empty()) out_.broken = "requests are left that make no progress";
    if (out_.broken.empty()) replay();
    return std::move(out_);
  }

 private:
  int64_t arrival_of(const TraceRequest& r) const {
    return static_cast<int64_t>(static_cast<double>(r.arrival_ns) / config_.trace_speed);
  }

  void give(policy::Event event) {
    policy::apply(&state_, event);
    log_.push_back(std::move(event));
  }

  void arrivals() {
    while (next_ < trace_.requests.size() && arrival_of(trace_.requests[next_]) <= now_) {
      const TraceRequest& r = trace_.requests[next_];
      const SeqId seq{++next_};
      policy::Arrived a;
      a.seq = seq;
      a.now_ns = arrival_of(r);
      a.prompt_tokens = r.input_tokens;
      a.max_new_tokens = r.output_tokens;
      a.keys = prompt_keys(r);
      running_[seq] = Running{&r, 0, r.input_tokens / window(), 0, 0};
      out_.input_tokens += r.input_tokens;
      give(std::move(a));
    }
  }

  int64_t window() const { return policy::window(state_); }

  // Equal ids of the trace are equal blocks; a block past the last whole id is the request's own.
  std::vector<BlockKey> prompt_keys(const TraceRequest& r) const {
    std::vector<BlockKey> keys;
    for (int64_t i = 0; i < r.input_tokens / window(); ++i) {
      const int64_t id = i * window() / trace_.block_tokens;
      BlockKey k;
      if (id < r.id_count && (i + 1) * window() <= (id + 1) * trace_.block_tokens) {
        k.words = {1, trace_.ids[r.first_id + static_cast<size_t>(id)], static_cast<uint64_t>(i), 0};
      } else {
        k.words = {2, next_, static_cast<uint64_t>(i), 0};
      }
      keys.push_back(k);
    }
    return keys;
  }

  // One plan, carried out. False: it launches nothing.
  bool step() {
    policy::StepPlan plan = policy::decide(state_, {now_, 0});
    ++out_.plans;
    const std::string text = policy::to_text(plan);
    for (char c : text) out_.plan_hash = (out_.plan_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    if (config_.record_plans) out_.texts.push_back(text);
    for (const policy::Ending& e : plan.end) {
      running_.erase(e.seq);
      ++out_.ended;
    }
    const bool launches = plan.launches(), changes = launches || !plan.end.empty() || !plan.admit.empty();
    if (!changes) return false;
    policy::StepFinished done;
    done.step = plan.step;
    done.measured_ns = plan.predicted_ns + config_.host_ns;
    const std::vector<policy::RowRun> runs = plan.runs;
    give(policy::PlanAdopted{std::move(plan), now_});
    if (!launches) return true;
    ++out_.steps;
    now_ += std::max<int64_t>(1, static_cast<int64_t>(done.measured_ns));
    out_.busy_ns += done.measured_ns;
    out_.step_ns.add(static_cast<int64_t>(done.measured_ns));
    done.now_ns = now_;
    for (const policy::RowRun& run : runs) done.results.push_back(result_of(run));
    give(std::move(done));
    return true;
  }

  policy::RowResult result_of(const policy::RowRun& run) {
    policy::RowResult x;
    x.seq = run.seq;
    x.snapshot_taken = true;
    auto it = running_.find(run.seq);
    if (!run.yields || it == running_.end()) return x;
    Running& r = it->second;
    r.part += run.prefill ? 1 : std::min(config_.tokens_per_step, static_cast<double>(run.drafts) + 1);
    x.new_tokens = std::min(static_cast<int64_t>(r.part), r.request->output_tokens - r.out);
    r.part -= static_cast<double>(x.new_tokens);
    if (r.out == 0) r.first_ns = now_;
    r.out += x.new_tokens;
    out_.output_tokens += x.new_tokens;
    const int64_t blocks = (r.request->input_tokens + r.out) / window();
    for (; r.known_blocks < blocks; ++r.known_blocks) {
      BlockKey k;
      k.words = {3, static_cast<uint64_t>(raw(run.seq)), static_cast<uint64_t>(r.known_blocks), 0};
      x.new_keys.push_back(k);
    }
    if (r.out < r.request->output_tokens) return x;
    x.finished = true;
    const int64_t arrived = arrival_of(*r.request);
    out_.ttft_ns.add(r.first_ns - arrived);
    out_.e2e_ns.add(now_ - arrived);
    if (r.out > 1) out_.tpot_ns.add((now_ - r.first_ns) / (r.out - 1));
    ++out_.completed;
    running_.erase(it);
    return x;
  }

  // Nothing to run: on to the next arrival.
  bool skip() {
    if (next_ >= trace_.requests.size()) return false;
    now_ = std::max(now_, arrival_of(trace_.requests[next_]));
    return true;
  }

  // The log, given to a fresh scheduler, must lead to the same plans.
  void replay() {
    policy::SchedulerState fresh = start_;
    for (const policy::Event& e : log_) {
      if (const auto* adopted = std::get_if<policy::PlanAdopted>(&e)) {
        const policy::StepPlan again = policy::decide(fresh, {adopted->now_ns, 0});
        if (policy::to_text(again) != policy::to_text(adopted->plan)) {
          out_.broken =
              "a replay of the log plans step " + std::to_string(raw(adopted->plan.step)) + " differently";
          return;
        }
      }
      policy::apply(&fresh, e);
    }
  }

  const EngineSimConfig& config_;
  const Trace& trace_;
  const policy::SchedulerState start_;
  policy::SchedulerState state_;
  EngineSimResult out_;
  std::vector<policy::Event> log_;
  std::map<SeqId, Running> running_;
  size_t next_ = 0;
  int64_t now_ = 0;
};

}  // namespace

Result<EngineSimResult> run_engine(const EngineSimConfig& config, const Trace& trace) {
  auto state = policy::make_scheduler(config.scheduler);
  if (!state.ok()) return state.status();
  return EngineSim(config, trace, std::move(*state)).run();
}

}  // namespace deepinfer::sim
