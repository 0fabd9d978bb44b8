// One engine under the virtual clock, driven by the very step scheduler that serves (policy/scheduler.h): its
// plans, its blocks, its windows, its preemptions, and steps planned ahead as the serving loop plans them. A
// step takes what the cost model predicts. The sequence of events can be replayed on a fresh scheduler and
// must give the same plans; so can the event log of a serving engine. Source: serving specification 14.2 to
// 14.4. Threads: one run, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "policy/scheduler.h"
#include "sim/histogram.h"
#include "sim/trace.h"

namespace deepinfer::sim {

struct EngineSimConfig {
  policy::SchedulerConfig scheduler;  // its max_in_flight steps are planned ahead
  // What steps take, while the scheduler plans by its own costs and corrects them as it learns; without it,
  // they take what it predicts.
  std::optional<policy::CostModel> cost;
  double tokens_per_step = 1;  // decided per decode step; whole ones and a share of the next
  double trace_speed = 1;
  double host_ns = 0;  // between steps, not hidden behind the device
  // While a step of at least hold_above_ns is executed, the next is planned when hold_part of it is over.
  double hold_above_ns = 4e6, hold_part = 0.75;
  bool record_plans = false;     // keep every plan's text
  bool record_requests = false;  // keep every request's times
};

// A request. One that waits for another (the next turn of a session, a closed loop) arrives at_ns after that
// one's end.
struct EngineArrival {
  int64_t at_ns = 0;
  int64_t after = -1;  // index of the one it waits for, before it in the list; -1: none
  int64_t input_tokens = 0, output_tokens = 1;
  int64_t known_after_ns = 0;  // until the scheduler knows of it
};
struct EngineWork {
  std::vector<EngineArrival> arrivals;
  // Keys of the prompt's full blocks; of the n-th full block that is not one of the prompt's. By index; empty
  // functions: every request is its own.
  std::function<std::vector<policy::BlockKey>(size_t)> prompt_keys;
  std::function<policy::BlockKey(size_t, int64_t)> output_key;
  // Tokens that the n-th decode step of a request decides: what a recording says of its drafts. Empty: the
  // configuration's tokens_per_step.
  std::function<int64_t(size_t, int64_t)> step_tokens;
  // Costs that the scheduler is told to plan by after so many steps, in order, instead of learning its own.
  std::optional<std::vector<std::pair<int64_t, policy::CostModel>>> believed;
};

struct EngineRequestTimes {
  size_t index = 0;  // of its arrival
  int64_t arrived_ns = 0, first_token_ns = 0, end_ns = 0, output_tokens = 0;
};
struct EngineSimResult {
  Histogram ttft_ns, tpot_ns, e2e_ns, step_ns;
  int64_t requests = 0, completed = 0, ended = 0, steps = 0, plans = 0;
  int64_t input_tokens = 0, output_tokens = 0, hit_tokens = 0;
  int64_t preemptions = 0;
  double busy_ns = 0;
  int64_t end_ns = 0;
  uint64_t plan_hash = 0;                 // of every plan's text, in order
  std::vector<std::string> texts;         // with record_plans
  std::vector<EngineRequestTimes> times;  // with record_requests: of the completed ones, by end
  std::string broken;  // an invariant of the scheduler, or a replay that differs; empty: all held
};
// kInvalidConfig: what the scheduler's configuration breaks; kInvalidArgument: a request that waits for one
// that is not before it. A request that can never run ends at once.
Result<EngineSimResult> run_engine(const EngineSimConfig& config, const EngineWork& work);
// The trace must live as long as the call.
Result<EngineSimResult> run_engine(const EngineSimConfig& config, const Trace& trace);

// Gives the events a scheduler was told to a fresh one of the same configuration: every plan that was adopted
// must be planned again. Returns how many; kInvalidData names the first step that is planned differently.
Result<int64_t> replay_log(const policy::SchedulerConfig& config, std::span<const policy::Event> log);

}  // namespace deepinfer::sim
