// `deepinfer simulate`: a fleet of engines under a virtual clock, with the decisions of the live one.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "apps/fleet_options.h"
#include "apps/trace_source.h"
#include "host/files.h"
#include "sim/engine_sim.h"
#include "sim/fleet_checkpoint.h"
#include "sim/fleet_report.h"

namespace deepinfer {
namespace {

using nlohmann::json;

struct Options {
  FleetOptions fleet;
  bool json = false, bench = false, cluster = false;
  int windows = 0;
  double window_s = 10;
  std::string html, svg_dir, checkpoint;
  bool engine = false;  // one engine, by the serving step scheduler
  int64_t pool_blocks = 20000, snapshots = 256, seats = 256;
  double interactive_ms = 100;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer simulate: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

// A day, going on from a checkpoint if one is named and there.
Result<sim::DayResult> run_windows(const Options& o, const sim::DayConfig& day) {
  std::vector<sim::FleetResult> done;
  sim::WindowsDone finished;
  Status written;
  if (!o.checkpoint.empty()) {
    auto text = read_file(o.checkpoint, int64_t{1} << 30);
    if (text.ok()) {
      DI_ASSIGN(done, sim::read_checkpoint(*text, o.checkpoint, day));
    } else if (text.status().code() != Code::kNotFound) {
      return text.status();
    }
    finished = [&](const std::vector<sim::FleetResult>& windows) {
      if (written.ok()) written = write_file_atomically(o.checkpoint, sim::write_checkpoint(day, windows));
    };
  }
  sim::DayResult result = sim::run_day(day, std::move(done), finished);
  DI_TRY(written);
  return result;
}

Result<sim::FleetReport> run(Options* o) {
  sim::FleetReport report;
  sim::DayConfig day;
  const bool in_windows = o->cluster || o->windows > 0;
  if (o->cluster) {
    if (!o->fleet.trace.empty())
      return error(Code::kInvalidArgument, "--cluster has its own workload; leave out --trace");
    day = sim::cluster_day(o->fleet.fleet.seed, o->windows > 0 ? o->windows : 24, o->window_s);
    day.fleet.decode_balancer = o->fleet.fleet.decode_balancer;
    day.fleet.verify = o->fleet.fleet.verify;
    report.title = "The cluster of reading A: 155e12 tokens a day";
  } else if (in_windows) {
    if (!o->fleet.trace.empty())
      return error(Code::kInvalidArgument, "--windows samples a generated day; leave out --trace");
    day.fleet = o->fleet.fleet;
    day.fleet.measure_s = o->window_s;
    day.workload = o->fleet.workload;
    day.windows = o->windows;
    report.title = "A day in windows";
  }
  if (in_windows) {
    DI_TRY(sim::validate(day.fleet));
    report.config = day.fleet;
    report.requests_per_s = day.workload.requests_per_s;
    DI_ASSIGN(report.day, run_windows(*o, day));
    report.result = report.day.total;
    return report;
  }
  report.config = o->fleet.fleet;
  if (!o->fleet.trace.empty()) {
    DI_ASSIGN(const sim::Trace trace, read_trace(o->fleet.trace, o->fleet.trace_block));
    sim::Workload w(&trace, o->fleet.workload.ttl_s, o->fleet.workload.window_ttl_s, o->fleet.trace_speed,
                    o->fleet.capacity_blocks());
    report.title = "Trace " + o->fleet.trace;
    report.result = sim::run_fleet(report.config, &w);
    report.result.evicted_blocks = w.evicted_blocks();
    return report;
  }
  sim::Workload w(o->fleet.workload, report.config.seed, 0);
  report.title = "Generated sessions";
  report.requests_per_s = o->fleet.workload.requests_per_s;
  report.result = sim::run_fleet(report.config, &w);
  return report;
}

Status write_files(const Options& o, const sim::FleetReport& report) {
  if (!o.html.empty()) DI_TRY(write_file_atomically(o.html, sim::report_html(report)));
  if (o.svg_dir.empty()) return {};
  std::error_code ec;
  std::filesystem::create_directories(o.svg_dir, ec);
  for (const auto& [name, svg] : sim::report_charts(report)) {
    DI_TRY(write_file_atomically((std::filesystem::path(o.svg_dir) / name).string(), svg));
  }
  return {};
}

// The simulator's own speed. These figures are of this machine and never part of a report.
// The processor time of this thread, which is the simulator's only one: on a shared machine a second of the
// clock is less than a second of a core.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// `cpu`: seconds of this thread. `seconds`: of the clock.
int print_bench(const Options& o, const sim::FleetResult& r, double cpu, double seconds) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double events = static_cast<double>(r.events), steps = static_cast<double>(r.request_steps) / cpu;
  const json j = {{"events", r.events},
                  {"cpu_seconds", cpu},
                  {"events_per_second", events / cpu},
                  {"request_steps_per_second", steps},
                  {"clock_seconds", seconds},
                  {"events_per_clock_second", events / seconds},
                  {"simulated_requests", r.arrived},
                  {"bytes_peak", int64_t{usage.ru_maxrss} * 1024},
                  {"invariants", r.broken.empty() ? "held" : r.broken}};
  const std::string text =
      o.json ? j.dump(2) + "\n"
             : fmt::format(
                   "{} events in {:.2f} s of a core: {:.0f} events and {:.0f} request-steps per second of "
                   "it; {:.2f} s of the clock; {:.1f} MB at most\n",
                   r.events, cpu, events / cpu, steps, seconds, static_cast<double>(usage.ru_maxrss) / 1024);
  return std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0 || !r.broken.empty() ? 1 : 0;
}

sim::EngineSimConfig engine_config(const Options& o) {
  sim::EngineSimConfig c;
  const sim::FleetConfig& f = o.fleet.fleet;
  policy::SchedulerConfig& s = c.scheduler;
  s.replay = f.cache.replay;
  s.context_tokens = 1 << 20;
  s.pool_blocks = o.pool_blocks;
  s.snapshot_slots = o.snapshots;
  s.max_running = o.seats;
  s.chunk_max_tokens = f.chunk_max_tokens;
  s.batch_budget_ns = f.batch_budget_ns;
  s.interactive_budget_ns = static_cast<int64_t>(o.interactive_ms * 1e6);
  s.tiers.quota_ns = 4.0 * static_cast<double>(f.batch_budget_ns);
  s.cost = f.prefill;
  c.trace_speed = o.fleet.trace_speed;
  return c;
}

// One engine: the serving scheduler's own plans on a trace.
int run_one_engine(const Options& o) {
  if (o.fleet.trace.empty()) return fail(Status(Code::kInvalidArgument, "--engine needs --trace FILE"));
  auto trace = read_trace(o.fleet.trace, o.fleet.trace_block);
  if (!trace.ok()) return fail(trace.status());
  auto r = sim::run_engine(engine_config(o), *trace);
  if (!r.ok()) return fail(r.status());
  const json j = {
      {"requests", r->requests},
      {"completed", r->completed},
      {"ended", r->ended},
      {"steps", r->steps},
      {"preemptions", r->preemptions},
      {"hit_tokens", r->hit_tokens},
      {"output_tokens", r->output_tokens},
      {"ttft_ms", {{"p50", r->ttft_ns.quantile(0.5) * 1e-6}, {"p99", r->ttft_ns.quantile(0.99) * 1e-6}}},
      {"tpot_ms", {{"p50", r->tpot_ns.quantile(0.5) * 1e-6}, {"p99", r->tpot_ns.quantile(0.99) * 1e-6}}},
      {"seconds", static_cast<double>(r->end_ns) * 1e-9},
      {"busy", r->end_ns > 0 ? r->busy_ns / static_cast<double>(r->end_ns) : 0},
      {"plan_hash", fmt::format("{:016x}", r->plan_hash)},
      {"invariants", r->broken.empty() ? "held" : r->broken}};
  std::string text;
  for (const auto& [key, value] : j.items()) text += fmt::format("  {:<16}{}\n", key, value.dump());
  const std::string out = o.json ? j.dump(2) + "\n" : text;
  return std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0 || !r->broken.empty() ? 1 : 0;
}

int run_simulate(Options* o) {
  if (Status s = resolve(&o->fleet); !s.ok()) return fail(s);
  if (o->engine) return run_one_engine(*o);
  if (o->bench && !o->cluster && o->windows == 0 && o->fleet.trace.empty()) {
    o->cluster = true;  // all policies, a full cluster, one window
    o->windows = 1;
    o->window_s *= 4;  // the start, where experts are placed, is no event
  }
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = thread_seconds();
  auto report = run(o);
  const double cpu = thread_seconds() - cpu_start;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!report.ok()) return fail(report.status());
  if (Status s = write_files(*o, *report); !s.ok()) return fail(s);
  if (o->bench) return print_bench(*o, report->result, cpu, seconds);
  const std::string out =
      o->json ? sim::report_json(*report).dump(2, ' ', false, json::error_handler_t::replace) + "\n"
              : sim::report_text(*report);
  if (std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 1;
  return report->result.broken.empty() ? 0 : 1;
}

}  // namespace

void add_simulate(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand("simulate", "Run a fleet of engines under a virtual clock");
  cmd->add_flag("--json", o->json, "Print one JSON object instead of a table");
  cmd->add_option("--html", o->html, "Also write a page with charts to this file");
  cmd->add_option("--svg", o->svg_dir, "Also write the charts into this folder");
  cmd->add_flag("--cluster", o->cluster, "The 1,721-GPU cluster of reading A, a day in windows");
  cmd->add_option("--windows", o->windows,
                  "Sample a day in so many windows (default: one run; --cluster: 24)")
      ->check(CLI::Range(1, 100'000));
  cmd->add_option("--window-seconds", o->window_s, "Measured time of a window")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  cmd->add_option("--checkpoint", o->checkpoint, "Keep finished windows in this file, and go on from it");
  cmd->add_flag("--bench", o->bench, "Print the simulator's own speed instead of the report");
  cmd->add_flag("--engine", o->engine, "One engine under the serving step scheduler; needs --trace");
  cmd->add_option("--pool-blocks", o->pool_blocks, "Cache blocks of that engine")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  cmd->add_option("--seats", o->seats, "Most running requests of that engine")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  cmd->add_option("--interactive-ms", o->interactive_ms, "Its step budget while somebody decodes")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  add_fleet_options(cmd, &o->fleet);
  cmd->callback([&program, o] { program.run = [o] { return run_simulate(o.get()); }; });
}

}  // namespace deepinfer
