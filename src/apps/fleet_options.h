// The options that `deepinfer simulate` and `deepinfer plan` share: a fleet, its costs, a workload or a
// trace.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "base/status.h"
#include "sim/fleet.h"

namespace deepinfer {

struct FleetOptions {
  sim::FleetConfig fleet;
  sim::WorkloadConfig workload;
  std::vector<std::string> mix = {"agent"};
  std::string trace, costs;
  int64_t trace_block = 512;
  double trace_speed = 1;
  double ttl_hours = 72, window_ttl_minutes = 10;
  double budget_ms = 200;
  std::string prefill_rule = "pull", decode_rule = "joint", verify = "budget";
  bool local_caches = false;
  std::vector<std::string> failures, drains;
  double store_tb = 0;
  // Blocks of the trace that the store holds; 0: no limit.
  int64_t capacity_blocks() const;
};
void add_fleet_options(CLI::App* cmd, FleetOptions* o);
// Turns words into configurations; reads the file of measured costs if one is named. kInvalidArgument says
// which option is wrong.
Status resolve(FleetOptions* o);

}  // namespace deepinfer
