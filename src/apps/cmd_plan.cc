// `deepinfer plan`: how many engines a workload needs for its objectives, and what a longer store or another
// budget would change.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "apps/fleet_options.h"
#include "apps/trace_source.h"
#include "host/files.h"
#include "sim/plan.h"

namespace deepinfer {
namespace {

using nlohmann::json;

struct Options {
  FleetOptions fleet;
  sim::PlanConfig plan;
  std::vector<double> ttls_hours;
  bool json = false;
  std::string html;
  // Hardware instead of costs: what a row and a token of cache cost follows from it.
  double flops = 0, memory_bytes_per_s = 0, active_parameters = 13e9;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer plan: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

// A row costs two operations per active parameter, half of them in the encoder half that every prompt row
// runs; a token of cache costs the reading of its bytes.
void apply_hardware(const Options& o, sim::FleetConfig* fleet) {
  if (o.flops > 0) fleet->prefill.d = o.active_parameters / o.flops * 1e9;
  if (o.memory_bytes_per_s > 0) {
    fleet->decode.per_token_ns = static_cast<double>(fleet->kv_bytes_per_token) / o.memory_bytes_per_s * 1e9;
  }
}

int run_plan(Options* o) {
  if (Status s = resolve(&o->fleet); !s.ok()) return fail(s);
  apply_hardware(*o, &o->fleet.fleet);
  if (Status s = sim::validate(o->fleet.fleet); !s.ok()) return fail(s);
  const sim::FleetConfig& asked = o->fleet.fleet;
  if (!asked.failures.empty() || !asked.drains.empty() || asked.autoscale.on) {
    return fail(error(Code::kInvalidArgument,
                      "a plan looks at fleets of many sizes; try --fail, --drain and --autoscale with "
                      "`deepinfer simulate` on the one it finds"));
  }
  sim::PlanConfig& p = o->plan;
  p.fleet = o->fleet.fleet;
  p.workload = o->fleet.workload;
  for (double hours : o->ttls_hours) p.ttls_s.push_back(hours * 3600);
  sim::Trace trace;
  if (!o->fleet.trace.empty()) {
    auto read = read_trace(o->fleet.trace, o->fleet.trace_block);
    if (!read.ok()) return fail(read.status());
    trace = std::move(*read);
    p.trace = &trace;
    p.trace_speed = o->fleet.trace_speed;
    p.trace_capacity_blocks = o->fleet.capacity_blocks();
  }
  const sim::Plan plan = sim::make_plan(p);
  if (!o->html.empty()) {
    if (Status s = write_file_atomically(o->html, sim::plan_html(plan)); !s.ok()) return fail(s);
  }
  const std::string out = o->json ? sim::plan_json(plan).dump(2) + "\n" : sim::plan_text(plan);
  if (std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 1;
  return plan.choices.empty() ? 1 : 0;
}

}  // namespace

void add_plan(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand("plan", "Find the cheapest fleet that meets the objectives");
  cmd->add_flag("--json", o->json, "Print one JSON object instead of tables");
  cmd->add_option("--html", o->html, "Also write the trade-off as a page to this file");
  cmd->add_option("--quantile", o->plan.quantile, "Of the first token that must be within --ttft-slo")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  cmd->add_option("--goodput", o->plan.goodput, "Share of requests that must be within both objectives")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  cmd->add_option("--most-prefill", o->plan.most_prefill, "Engines to look at, at most")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  cmd->add_option("--most-decode", o->plan.most_decode, "Groups to look at, at most")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  cmd->add_option("--compare-ttl-hours", o->ttls_hours, "Times to live to compare")
      ->check(CLI::Range(0.0, 1e6));
  cmd->add_option("--compare-budget-ms", o->plan.budgets_ms, "Budgets of a prefill step to compare")
      ->check(CLI::Range(1.0, 1e6));
  cmd->add_option("--usd-per-pib-month", o->plan.usd_per_pib_month, "Price of the store")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  cmd->add_option("--flops", o->flops, "Useful operations/s of a GPU: sets the cost of a prompt row")
      ->check(CLI::Range(1.0, 1e19));
  cmd->add_option("--memory-bandwidth", o->memory_bytes_per_s,
                  "Bytes/s of a GPU: sets the cost of a token of cache")
      ->check(CLI::Range(1.0, 1e16));
  cmd->add_option("--active-parameters", o->active_parameters, "Of the model, per token")
      ->check(CLI::Range(1.0, 1e15))
      ->capture_default_str();
  add_fleet_options(cmd, &o->fleet);
  cmd->callback([&program, o] { program.run = [o] { return run_plan(o.get()); }; });
}

}  // namespace deepinfer
