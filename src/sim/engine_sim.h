// One engine under the virtual clock, driven by the very step scheduler that serves (policy/scheduler.h): its
// plans, its blocks, its windows, its preemptions. A step takes what the cost model predicts. The sequence of
// events can be replayed on a fresh scheduler and must give the same plans. Source: serving
// specification 14.2 to 14.4. Threads: one run, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "policy/scheduler.h"
#include "sim/histogram.h"
#include "sim/trace.h"

namespace deepinfer::sim {

struct EngineSimConfig {
  policy::SchedulerConfig scheduler;
  double tokens_per_step = 1;  // decided per decode step; whole ones and a share of the next
  double trace_speed = 1;
  double host_ns = 0;         // per step, not hidden behind the device
  bool record_plans = false;  // keep every plan's text
};
struct EngineSimResult {
  Histogram ttft_ns, tpot_ns, e2e_ns, step_ns;
  int64_t requests = 0, completed = 0, ended = 0, steps = 0, plans = 0;
  int64_t input_tokens = 0, output_tokens = 0, hit_tokens = 0;
  int64_t preemptions = 0;
  double busy_ns = 0;
  int64_t end_ns = 0;
  uint64_t plan_hash = 0;          // of every plan's text, in order
  std::vector<std::string> texts;  // with record_plans
  std::string broken;              // an invariant of the scheduler, or a replay that differs; empty: all held
};
// kInvalidConfig: what the scheduler's configuration breaks. A request that can never run ends at once.
Result<EngineSimResult> run_engine(const EngineSimConfig& config, const Trace& trace);

}  // namespace deepinfer::sim
