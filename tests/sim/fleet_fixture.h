// What tests of the fleet share: a small fleet, agents and chats, one run.
#pragma once

#include "sim/fleet.h"

namespace deepinfer::sim {

inline FleetConfig small_fleet(uint64_t seed = 1) {
  FleetConfig c;
  c.seed = seed;
  c.warmup_s = 2;
  c.measure_s = 6;
  c.prefill_engines = 4;
  c.decode_groups = 2;
  c.decode_ranks = 8;
  c.moe_lb = 1.08;
  c.decode_tokens_per_rank = 8'000'000;
  return c;
}

inline WorkloadConfig work(double rate) {
  WorkloadConfig w;
  w.mix = {agent_mix(), chat_mix()};
  w.requests_per_s = rate;
  w.sessions = 60;
  return w;
}

inline FleetResult run(const FleetConfig& c, const WorkloadConfig& w) {
  Workload workload(w, c.seed, 0);
  return run_fleet(c, &workload);
}

inline FleetResult run(const FleetConfig& c, const Trace& trace, int64_t capacity_blocks = 0) {
  Workload workload(&trace, 3600, 3600, 1, capacity_blocks);
  return run_fleet(c, &workload);
}

}  // namespace deepinfer::sim
