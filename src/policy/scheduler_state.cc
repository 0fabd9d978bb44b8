// Building a scheduler, judging a request before it is queued, and the words for people.
#include <algorithm>

#include "policy/scheduler.h"

namespace deepinfer::policy {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Status check_ranges(const SchedulerConfig& c) {
  struct Field {
    const char* name;
    int64_t value, least;
  };
  for (const Field& f : {Field{"context_tokens", c.context_tokens, 1}, Field{"pool_blocks", c.pool_blocks, 1},
                         Field{"snapshot_slots", c.snapshot_slots, 0}, Field{"max_running", c.max_running, 1},
                         Field{"chunk_max_tokens", c.chunk_max_tokens, c.replay.window_tokens},
                         Field{"batch_budget_ns", c.batch_budget_ns, 1},
                         Field{"interactive_budget_ns", c.interactive_budget_ns, 1},
                         Field{"min_budget_ns", c.min_budget_ns, 1}, Field{"starve_steps", c.starve_steps, 1},
                         Field{"max_bypass", c.max_bypass, 0}, Field{"scan_window", c.scan_window, 1},
                         Field{"max_preemptions", c.max_preemptions, 1},
                         Field{"max_in_flight", c.max_in_flight, 1}, Field{"drafts", c.drafts, 0}}) {
    if (f.value < f.least) {
      return error(Code::kInvalidConfig, "scheduler: {} is {}, must be at least {}", f.name, f.value,
                   f.least);
    }
  }
  return Status();
}

}  // namespace

SchedulerConfig scheduler_config(const ModelConfig& model, int64_t pool_blocks, int64_t snapshot_slots) {
  SchedulerConfig c;
  c.replay.window_tokens = model.sliding_window;
  c.replay.backtrack_tokens = model.drafts() + 1;
  c.replay.keep_tokens = c.replay.cap_tokens();
  c.context_tokens = model.max_position_embeddings;
  c.drafts = model.drafts();
  c.pool_blocks = pool_blocks;
  c.snapshot_slots = snapshot_slots;
  return c;
}

Result<SchedulerState> make_scheduler(const SchedulerConfig& config) {
  Status s = validate(config.replay);
  if (s.ok()) s = check_ranges(config);
  if (!s.ok()) return s;
  if (config.drafts + 1 > config.replay.backtrack_tokens) {
    return error(Code::kInvalidConfig, "scheduler: {} drafts need a backtracking of {} rows, there are {}",
                 config.drafts, config.drafts + 1, config.replay.backtrack_tokens);
  }
  SchedulerState state;
  state.config = config;
  state.cache = make_cache(config.pool_blocks, config.snapshot_slots);
  state.fit.model = config.cost;
  return state;
}

AdmissionVerdict decide_admission(const SchedulerConfig& c, int64_t prompt_tokens, int64_t max_new_tokens) {
  AdmissionVerdict v;
  if (prompt_tokens < 1) {
    v.reason = EndReason::kEmptyPrompt;
    return v;
  }
  int64_t window = c.replay.window_tokens;
  int64_t holds = std::min(c.context_tokens, c.pool_blocks * window);
  v.most_new_tokens = std::max<int64_t>(0, holds - prompt_tokens);
  if (prompt_tokens >= c.context_tokens) {
    v.reason = EndReason::kTooLongForContext;
    v.need = prompt_tokens + 1;
    v.limit = c.context_tokens;
    return v;
  }
  int64_t total = std::min(c.context_tokens, prompt_tokens + std::max<int64_t>(1, max_new_tokens));
  v.need = ceil_div(total, window);
  v.limit = c.pool_blocks;
  if (v.need > v.limit) v.reason = EndReason::kTooLongForPool;
  return v;
}

std::string AdmissionVerdict::message() const {
  switch (reason) {
    case EndReason::kTooLongForContext:
      return fmt::format("the prompt with one new token has {} tokens, the context is {}", need, limit);
    case EndReason::kTooLongForPool:
      return fmt::format(
          "the request needs {} cache blocks, the whole pool has {}; ask for at most {} new tokens", need,
          limit, most_new_tokens);
    default:
      return name(reason);
  }
}

bool lease_allowed(const SchedulerState& state, const std::vector<BlockId>& blocks) {
  int64_t taken = 0;
  for (BlockId id : blocks) {
    BlockPlace p = place_of(at(state.cache, id));
    if (p == BlockPlace::kFree) return false;
    taken += p == BlockPlace::kIdle || p == BlockPlace::kLeased ? 1 : 0;
  }
  return available_blocks(state) >= taken;
}

const char* name(EndReason reason) {
  switch (reason) {
    case EndReason::kAccepted:
      return "accepted";
    case EndReason::kEmptyPrompt:
      return "empty_prompt";
    case EndReason::kTooLongForContext:
      return "too_long_for_context";
    case EndReason::kTooLongForPool:
      return "too_long_for_pool";
    case EndReason::kDeadlineExpired:
      return "deadline_expired";
    case EndReason::kDeadlineImpossible:
      return "deadline_impossible";
  }
  return "?";
}

const char* name(PlanReason reason) {
  switch (reason) {
    case PlanReason::kRuns:
      return "runs";
    case PlanReason::kIdle:
      return "idle";
    case PlanReason::kInFlight:
      return "in_flight";
    case PlanReason::kNoCapacity:
      return "no_capacity";
  }
  return "?";
}

const char* name(Phase phase) {
  switch (phase) {
    case Phase::kNone:
      return "none";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kLoading:
      return "loading";
    case Phase::kRunning:
      return "running";
    case Phase::kPreempting:
      return "preempting";
    case Phase::kEnding:
      return "ending";
  }
  return "?";
}

namespace {

template <typename Ids>
std::string id_list(const Ids& ids) {
  std::string out;
  for (auto id : ids) out += (out.empty() ? "" : ",") + std::to_string(raw(id));
  return out;
}

std::string run_text(const RowRun& r, const std::string& seq) {
  std::string out = fmt::format("run {} {}+{} {}", seq, r.begin, r.rows, r.prefill ? "prefill" : "decode");
  if (r.begin_max != r.begin) out += fmt::format(" latest={}", r.begin_max);
  if (r.prefill && r.decoder_rows > 0) out += fmt::format(" decoder={}", r.decoder_rows);
  if (r.publish_from > r.begin) out += fmt::format(" publish_from={}", r.publish_from);
  if (r.yields && r.prefill) out += " yields";
  if (r.block_count > 0) out += fmt::format(" blocks+{}", r.block_count);
  if (r.restore != kNoSnapshot) out += fmt::format(" restore={}", raw(r.restore));
  if (r.loading) out += " loading";
  if (r.snapshot != kNoSnapshot) out += fmt::format(" snapshot@{}={}", r.snapshot_boundary, raw(r.snapshot));
  if (r.cap_snapshot != kNoSnapshot)
    out += fmt::format(" snapshot@{}={}", r.cap_boundary, raw(r.cap_snapshot));
  return out;
}

std::string admit_text(const Admission& a, const std::string& seq) {
  std::string out = fmt::format("{} {} hit={} start={} {} floor={}", a.resumed ? "resume" : "admit", seq,
                                a.hit.kv_hit_tokens, a.hit.start_tokens, name(a.hit.reason), a.decoder_floor);
  if (!a.load.empty()) out += fmt::format(" load={}", a.load.size());
  if (a.load_window != kNoSnapshot) out += fmt::format(" load_window={}", raw(a.load_window));
  if (a.floor_lost) out += " floor_lost";
  return out;
}

}  // namespace

std::string to_text(const StepPlan& p, const SeqNames& names) {
  auto seq = [&](SeqId id) { return names ? names(id) : std::to_string(raw(id)); };
  std::string out;
  auto line = [&](const std::string& text) { out += text + "\n"; };
  for (const Ending& e : p.end) {
    std::string text = fmt::format("end {} {}", seq(e.seq), name(e.reason));
    if (e.limit > 0) text += fmt::format(" need={} limit={}", e.need, e.limit);
    line(text);
  }
  for (SeqId id : p.revoke) line("revoke " + seq(id));
  for (const Preemption& v : p.preempt) {
    line(fmt::format("preempt {} for={} gains={}{}", seq(v.seq), seq(v.for_seq), v.gained_blocks,
                     v.now ? "" : " later"));
  }
  if (!p.evict.empty()) line("evict " + id_list(p.evict));
  if (!p.evict_snapshots.empty()) line("evict_snapshots " + id_list(p.evict_snapshots));
  for (const Admission& a : p.admit) line(admit_text(a, seq(a.seq)));
  for (const RowRun& r : p.runs) line(run_text(r, seq(r.seq)));
  for (SeqId id : p.stalled) line("stall " + seq(id));
  if (p.snapshots_skipped > 0) line(fmt::format("snapshots_skipped {}", p.snapshots_skipped));
  if (p.runs.empty()) line(name(p.reason));
  return out;
}

}  // namespace deepinfer::policy
