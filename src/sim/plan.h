// How large a fleet a workload needs: the cheapest number of prefill engines and decode groups that meets the
// objectives, and what a store and its time to live buy. A search over the simulator; every point it looked
// at is kept for the plot. Threads: one search, one thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/fleet.h"

namespace deepinfer::sim {

struct PlanConfig {
  FleetConfig fleet;  // costs, rates, objectives; the counts are what is searched for
  WorkloadConfig workload;
  const Trace* trace = nullptr;  // instead of the workload
  double trace_speed = 1;
  int64_t trace_capacity_blocks = 0;  // see Workload
  double quantile = 0.99;             // of the first token that must be within fleet.ttft_slo_s
  double goodput = 0.95;              // of the requests within both objectives
  int most_prefill = 4096, most_decode = 256;
  std::vector<double> ttls_s;      // to compare; empty: the workload's
  std::vector<double> budgets_ms;  // of a prefill step, to compare; empty: the fleet's
  double usd_per_pib_month = 20'000;
};
struct PlanPoint {
  int prefill_engines = 0, decode_groups = 0;
  double ttl_s = 0, budget_ms = 0;
  double ttft_s = 0, tpot_ms = 0, goodput = 0, hit_rate = 0;
  double usd_per_hour = 0, store_bytes = 0;  // the store's price is in it
  bool meets = false;
};
struct Plan {
  std::string problem;  // why there is none
  PlanPoint best;
  std::vector<PlanPoint> looked;   // in the order of the search
  std::vector<PlanPoint> choices;  // the best of every time to live and budget
};
Plan make_plan(const PlanConfig& config);

std::string plan_text(const Plan& plan);
nlohmann::json plan_json(const Plan& plan);
std::string plan_html(const Plan& plan);

}  // namespace deepinfer::sim
