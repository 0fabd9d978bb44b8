// `deepinfer bench serve` and `bench sweep`: the serving engine under load, without a server. Other benches
// join the same parent command.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "apps/bench_limits.h"
#include "apps/bench_simulated.h"
#include "apps/chat_prompt.h"
#include "apps/command.h"
#include "apps/load_report.h"
#include "apps/model_source.h"
#include "apps/trace_source.h"
#include "base/check.h"
#include "engine/serving_engine.h"
#include "host/clock.h"
#include "host/files.h"
#include "host/stop_flag.h"
#include "host/thread_pool.h"
#include "sim/chart.h"

namespace deepinfer {

CLI::App* bench_command(Program& program) {
  for (CLI::App* sub : program.app->get_subcommands([](CLI::App* a) { return a->get_name() == "bench"; }))
    return sub;
  CLI::App* bench = program.app->add_subcommand("bench", "Measure: kernels, engine, edge");
  bench->require_subcommand(1);
  return bench;
}

namespace {

struct Options {
  std::string command;  // for messages
  std::string model, workload = "chat", trace_out;
  bool offline = false, json = false, quiet = false, no_speculate = false, no_cache = false;
  int threads = 0;
  WeightsPlace place = WeightsPlace::kAuto;
  double rate = 0, budget_ms = 0;
  LoadSpec spec;
  DriveOptions load;
  LoadGoals goals;
  EngineConfig engine;
  double pool_mb = 0;
  int fixed_drafts = -1;                    // every step verifies so many; -1: the dynamic budget
  double tau_accepted = -1;                 // sweep: assumed share of accepted drafts
  int rounds = 5;                           // simulated
  std::string costs_out, record, recorded;  // simulated
  // sweep
  std::string over = "max-running", values, csv, svg;
};

int fail(const Options& o, const Status& s) {
  fmt::print(stderr, "deepinfer bench {}: {}\n", o.command, s.to_string());
  return s.code() == Code::kInvalidArgument || s.code() == Code::kNotFound ? 2 : 1;
}

// Plain tokens only: control tokens mean something, and the model must not end by itself.
std::vector<int32_t> plain_ids(const Tokenizer& tokenizer, const ModelConfig& config) {
  std::vector<int32_t> special = input_only_ids(tokenizer, config), ids;
  for (int32_t id = 0; id < config.vocab_size; ++id) {
    if (id != config.eos_token_id && !std::binary_search(special.begin(), special.end(), id))
      ids.push_back(id);
  }
  return ids;
}

// What all points of a run share.
struct Bench {
  LoadedModel model;
  std::unique_ptr<ThreadPool> pool;
  Workload workload;
  int64_t cut = 0;
};

Result<Workload> workload_of(Options* o, const LoadedModel& m, int64_t* cut) {
  o->spec.ids = plain_ids(*m.tokenizer, m.weights->config);
  o->spec.context_tokens =
      std::min<int64_t>(o->spec.context_tokens, m.weights->config.max_position_embeddings);
  o->spec.sessions_per_s = o->rate;
  auto kind = load_kind(o->workload);
  if (kind.ok()) {
    o->spec.kind = *kind;
    return make_workload(o->spec);
  }
  if (o->workload.find('.') == std::string::npos && o->workload.find('/') == std::string::npos)
    return kind.status();
  auto trace = read_trace(o->workload, 512);
  if (!trace.ok()) return trace.status();
  return trace_workload(*trace, o->spec, cut);
}

Result<Bench> prepare(Options* o) {
  auto loaded = load_model(o->model);
  if (!loaded.ok()) return loaded.status();
  Bench b;
  b.model = std::move(*loaded);
  if (!b.model.notice.empty() && !o->quiet) fmt::print(stderr, "{}\n", b.model.notice);
  auto w = workload_of(o, b.model, &b.cut);
  if (!w.ok()) return w.status();
  b.workload = std::move(*w);
  if (b.cut > 0 && !o->quiet)
    fmt::print(stderr, "{} requests of the trace were longer than the context and were cut\n", b.cut);
  b.pool = make_pool(o->threads);
  DI_ASSIGN(const std::string placed, place_weights(o->place, b.model.weights.get(), b.pool.get()));
  if (!placed.empty() && !o->quiet) fmt::print(stderr, "{}\n", placed);
  if (o->rate > 0) o->load.concurrency = 0;
  o->load.speculate = !o->no_speculate;
  o->load.use_cache = !o->no_cache;
  if (o->pool_mb > 0) o->engine.pool_bytes = static_cast<int64_t>(o->pool_mb * 1048576);
  if (o->budget_ms > 0)
    o->engine.interactive_budget_ns = o->engine.batch_budget_ns = static_cast<int64_t>(o->budget_ms * 1e6);
  if (o->engine.drafts != 0 && o->no_speculate) o->engine.drafts = 0;
  if (o->fixed_drafts >= 0) {
    o->engine.speculation.mode = policy::SpeculationMode::kFixed;
    o->engine.speculation.fixed = o->fixed_drafts;
  }
  return b;
}

// One engine from start to end: warmed up, then the workload on an empty cache.
Result<LoadReport> run_point(const Options& o, Bench* b, const std::string& label, TraceSink* trace) {
  EngineConfig config = o.engine;
  config.trace = trace;
  auto engine = make_engine(b->model.weights.get(), b->pool.get(), config, now_ns);
  if (!engine.ok()) return engine.status();
  DI_TRY(warm_up(engine->get(), b->workload));
  StopFlag stop;
  DriveOptions load = o.load;
  load.progress = [&](int64_t done, int64_t of) {
    if (!o.quiet && isatty(2) != 0) fmt::print(stderr, "\r{}: {} of {} requests ", label, done, of);
    return !stop.stop_requested();
  };
  auto result = run_load(engine->get(), b->workload, load);
  if (!o.quiet && isatty(2) != 0) fmt::print(stderr, "\r{:60}\r", "");
  if (!result.ok()) return result.status();
  if (result->stopped) return error(Code::kCancelled, "stopped by a signal");
  LoadReport report = make_report(b->workload, load, o.goals, *result);
  report.max_running = config.max_running;
  return report;
}

int run_serve(Options o) {
  if (!o.offline)
    return fail(o, error(Code::kInvalidArgument,
                         "give --offline: the engine inside this process. To load a running server "
                         "use a published load generator, or `deepinfer bench edge`"));
  auto b = prepare(&o);
  if (!b.ok()) return fail(o, b.status());
  ChromeTrace trace;
  auto report = run_point(o, &*b, "bench serve", o.trace_out.empty() ? nullptr : &trace);
  if (!report.ok()) return report.status().code() == Code::kCancelled ? 130 : fail(o, report.status());
  if (!o.trace_out.empty()) {
    if (Status s = write_file_atomically(o.trace_out, trace.to_json()); !s.ok()) return fail(o, s);
  }
  if (o.json) {
    auto j = to_json(*report);
    j["model"] = b->model.dir;
    j["threads"] = b->pool->threads();
    fmt::print("{}\n", j.dump());
  } else {
    fmt::print("model {}, {} threads\n{}", b->model.dir, b->pool->threads(), to_table(*report));
  }
  return report->failed == 0 ? 0 : 1;
}

// ---- simulated

// One engine whose event log is kept.
Result<RecordedRun> record(const Options& o, Bench* b, StopFlag* stop) {
  RecordedRun run;
  EngineConfig config = o.engine;
  config.on_policy_event = [&run](const policy::Event& e) { run.log.push_back(e); };
  auto made = make_engine(b->model.weights.get(), b->pool.get(), config, now_ns);
  if (!made.ok()) return made.status();
  std::unique_ptr<Engine> engine = std::move(*made);
  const auto* serving = dynamic_cast<const ServingEngine*>(engine.get());
  DI_CHECK(serving != nullptr, "make_engine makes serving engines");
  run.scheduler = serving->scheduler();
  run.concurrency = o.load.concurrency;
  DI_TRY(warm_up(engine.get(), b->workload));
  DriveOptions load = o.load;
  load.progress = [stop](int64_t, int64_t) { return !stop->stop_requested(); };
  auto result = run_load(engine.get(), b->workload, load);
  if (!result.ok()) return result.status();
  if (result->stopped) return error(Code::kCancelled, "stopped by a signal");
  run.result = std::move(*result);
  engine.reset();  // nothing is added to the log after this
  return run;
}

// The runs of this machine, or those of a file. `head` describes them.
Result<std::vector<RecordedRun>> recorded_runs(Options* o, nlohmann::ordered_json* head) {
  if (!o->recorded.empty()) {
    DI_ASSIGN(const std::string text, read_file(o->recorded, int64_t{1} << 30));
    *head = {{"recorded", o->recorded}};
    return read_runs(text);
  }
  DI_ASSIGN(Bench b, prepare(o));
  *head = {{"model", b.model.dir}, {"workload", b.workload.name}, {"threads", b.pool->threads()}};
  StopFlag stop;
  std::vector<RecordedRun> runs;
  for (int i = 0; i < o->rounds; ++i) {
    DI_ASSIGN(RecordedRun run, record(*o, &b, &stop));
    runs.push_back(std::move(run));
  }
  if (!o->record.empty()) {
    DI_ASSIGN(const std::string text, write_runs(runs));
    DI_TRY(write_file_atomically(o->record, text));
  }
  return runs;
}

int run_simulated(Options o) {
  nlohmann::ordered_json head;
  auto runs = recorded_runs(&o, &head);
  if (!runs.ok()) return runs.status().code() == Code::kCancelled ? 130 : fail(o, runs.status());
  auto rounds = compare_rounds(*runs);
  if (!rounds.ok()) return fail(o, rounds.status());
  if (!o.costs_out.empty()) {
    Status s = write_file_atomically(o.costs_out, costs_json(rounds->back().costs).dump(2) + "\n");
    if (!s.ok()) return fail(o, s);
  }
  auto j = to_json(*rounds);
  j.update(head);
  fmt::print("{}", o.json ? j.dump() + "\n" : head.dump() + "\n" + to_table(*rounds));
  return 0;
}

// ---- sweep

Result<std::vector<double>> numbers(const std::string& list) {
  std::vector<double> out;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    char* end = nullptr;
    double v = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(v > 0))
      return error(Code::kInvalidArgument, "'{}' in the list of values is not a positive number", part);
    out.push_back(v);
  }
  if (out.empty()) return error(Code::kInvalidArgument, "an empty list of values; give --values 1,2,4");
  return out;
}

Result<std::vector<double>> sweep_values(const Options& o) {
  if (!o.values.empty()) return numbers(o.values);
  if (o.over == "budget-ms") return std::vector<double>{2, 5, 10, 20, 50, 100, 200, 400};
  if (o.over == "rate") return std::vector<double>{0.5, 1, 2, 4, 8};
  return std::vector<double>{1, 2, 4, 8, 16, 32};
}

void set_point(Options* o, double v) {
  if (o->over == "max-running") {
    o->engine.max_running = static_cast<int64_t>(v);
    o->load.concurrency = std::max(o->load.concurrency, static_cast<int64_t>(v));
  } else if (o->over == "concurrency") {
    o->load.concurrency = static_cast<int64_t>(v);
    o->engine.max_running = std::max(o->engine.max_running, o->load.concurrency);
  } else if (o->over == "budget-ms") {
    o->engine.interactive_budget_ns = o->engine.batch_budget_ns = static_cast<int64_t>(v * 1e6);
  } else {
    o->rate = o->spec.sessions_per_s = v;
    o->load.concurrency = 0;
  }
}

// Throughput against what one user sees: the published convention, from measured tokens, so that no
// acceptance formula is needed; latency against throughput for budgets and rates.
std::string pareto(const std::vector<LoadReport>& points) {
  sim::Chart chart{"Throughput and what one user sees",
                   "output tokens/s of one request (1 / median TPOT)",
                   "output tokens/s of the machine, clean window",
                   {},
                   false,
                   false,
                   true};
  sim::Series s{"measured", {}};
  for (const LoadReport& r : points) {
    double rate = r.tokens_per_s_clean > 0 ? r.tokens_per_s_clean : r.tokens_per_s;
    if (r.tpot_ms.p50 > 0) s.points.push_back({1e3 / r.tpot_ms.p50, rate});
  }
  std::sort(s.points.begin(), s.points.end());
  chart.series.push_back(s);
  return sim::chart_svg(chart);
}

std::string latency_chart(const std::vector<LoadReport>& points) {
  sim::Chart chart{"First token and prompt throughput",
                   "uncached prompt tokens/s",
                   "time to first token, ms",
                   {},
                   false,
                   false,
                   true};
  sim::Series p50{"median", {}}, p99{"99 %", {}};
  // Where long prompts are among them, the trade is seen by the short ones.
  for (const LoadReport& r : points) {
    const Quantiles& q = r.short_ttft_ms.count > 0 ? r.short_ttft_ms : r.ttft_ms;
    p50.points.push_back({r.uncached_tokens_per_s, q.p50});
    p99.points.push_back({r.uncached_tokens_per_s, q.p99});
  }
  for (sim::Series* s : {&p50, &p99}) {
    std::sort(s->points.begin(), s->points.end());
    chart.series.push_back(*s);
  }
  return sim::chart_svg(chart);
}

Status write_outputs(const Options& o, const std::vector<LoadReport>& points, const std::string& csv) {
  if (!o.csv.empty()) DI_TRY(write_file_atomically(o.csv, csv));
  if (!o.svg.empty())
    DI_TRY(write_file_atomically(
        o.svg, o.over == "budget-ms" || o.over == "rate" ? latency_chart(points) : pareto(points)));
  return {};
}

int run_sweep(Options o) {
  bool tau = o.tau_accepted >= 0;
  if (tau) {  // refused before anything runs
    auto probe = tau_rates({}, o.no_speculate ? -1 : o.fixed_drafts, o.tau_accepted);
    if (!probe.ok()) return fail(o, probe.status());
  }
  auto values = sweep_values(o);
  if (!values.ok()) return fail(o, values.status());
  if (o.over == "rate") o.rate = values->front();
  auto b = prepare(&o);
  if (!b.ok()) return fail(o, b.status());
  std::vector<LoadReport> points;
  std::string csv = csv_head();
  auto json = nlohmann::ordered_json::array();
  if (!o.json && !o.quiet)
    fmt::print("{:>12}{:>10}{:>12}{:>12}{:>12}{:>14}{:>14}\n", o.over, "requests", "TTFT p50 ms",
               "TTFT p99 ms", "TPOT p50 ms", "out tok/s", "clean tok/s");
  for (double v : *values) {
    Options at = o;
    set_point(&at, v);
    if (o.over == "rate") {
      auto w = workload_of(&at, b->model, &b->cut);
      if (!w.ok()) return fail(o, w.status());
      b->workload = std::move(*w);
    }
    auto r = run_point(at, &*b, fmt::format("{} {}", o.over, v), nullptr);
    if (!r.ok()) return r.status().code() == Code::kCancelled ? 130 : fail(o, r.status());
    csv += csv_line(*r, fmt::format("{}={}", o.over, v));
    auto j = to_json(*r);
    j["point"] = {{o.over, v}};
    TauRates rates;
    if (tau) {
      rates = *tau_rates(*r, o.fixed_drafts, o.tau_accepted);
      j["tau"] = {{"assumed", rates.tau},
                  {"measured", rates.measured_tau},
                  {"user_steps_per_s", rates.user_steps_per_s},
                  {"user_tokens_per_s", rates.user_tokens_per_s},
                  {"tokens_per_s", rates.tokens_per_s}};
    }
    json.push_back(j);
    if (!o.json && !o.quiet)
      fmt::print("{:>12}{:>10}{:>12.2f}{:>12.2f}{:>12.3f}{:>14.1f}{:>14.1f}\n", v, r->requests,
                 r->ttft_ms.p50, r->ttft_ms.p99, r->tpot_ms.p50, r->tokens_per_s, r->tokens_per_s_clean);
    if (r->short_ttft_ms.count > 0 && !o.json && !o.quiet)
      fmt::print("{:>12}short prompts: TTFT p50 {:.2f}, p99 {:.2f} ms; {:.0f} uncached prompt tokens/s\n", "",
                 r->short_ttft_ms.p50, r->short_ttft_ms.p99, r->uncached_tokens_per_s);
    if (tau && !o.json && !o.quiet)
      fmt::print("{:>12}assumed tau {:.3f} (measured {:.3f}): {:.1f} tok/s per user, {:.1f} tok/s in all\n",
                 "", rates.tau, rates.measured_tau, rates.user_tokens_per_s, rates.tokens_per_s);
    points.push_back(*r);
  }
  if (Status s = write_outputs(o, points, csv); !s.ok()) return fail(o, s);
  if (o.json)
    fmt::print("{}\n",
               nlohmann::ordered_json{{"model", b->model.dir}, {"over", o.over}, {"points", json}}.dump());
  return 0;
}

void add_shared(CLI::App* cmd, Options* o) {
  cmd->add_option("--model", o->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--workload", o->workload,
                  "chat, agent, documents, uniform, behind (short chats behind long prompts), or a trace "
                  "file (.jsonl, .csv)");
  cmd->add_option("--sessions", o->spec.sessions, "Sessions of a generated workload");
  cmd->add_option("--shrink", o->spec.shrink, "Divide the lengths of the workload by this (small models)");
  cmd->add_option("--input", o->spec.input_tokens, "uniform: tokens of a turn");
  cmd->add_option("--output", o->spec.output_tokens, "uniform: tokens of an answer");
  cmd->add_option("--turns", o->spec.turns, "uniform: turns of a session");
  cmd->add_option("--seed", o->spec.seed, "Of lengths, tokens and arrivals");
  cmd->add_option("--concurrency", o->load.concurrency, "Closed loop: sessions at a time (default 8)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--rate", o->rate, "Open loop: sessions per second, Poisson")->check(CLI::PositiveNumber);
  cmd->add_option("--temperature", o->load.sampling.temperature, "Of the answers; 0 = greedy (default)");
  cmd->add_option("--max-running", o->engine.max_running, "Seats")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  cmd->add_option("--budget-ms", o->budget_ms, "Step budget, both kinds")->check(CLI::PositiveNumber);
  cmd->add_option("--pool-mb", o->pool_mb, "Cache blocks, in MiB")->check(CLI::PositiveNumber);
  cmd->add_option("--snapshots", o->engine.snapshot_slots, "Stored windows")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  cmd->add_option("--in-flight", o->engine.max_in_flight,
                  "Steps planned ahead: 1 plans when the machine is idle")
      ->check(CLI::Range(1, 2));
  cmd->add_option("--drafts", o->engine.drafts, "Drafts verified per row (-1: the model's)")
      ->check(CLI::Range(-1, 64));
  cmd->add_option("--fixed-drafts", o->fixed_drafts,
                  "Every step verifies so many (default: the dynamic budget)")
      ->check(CLI::Range(0, 64));
  cmd->add_flag("--no-speculate", o->no_speculate, "No drafts");
  cmd->add_flag("--no-cache", o->no_cache, "No prefix reuse");
  cmd->add_flag("--exact-hits", o->load.exact_hits, "Only hits that equal a cold run bit for bit");
  cmd->add_option("--slo-ttft-ms", o->goals.ttft_ms, "Good requests: first token within");
  cmd->add_option("--slo-tpot-ms", o->goals.tpot_ms, "Good requests: time per output token within");
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 4096));
  add_weights_place(cmd, &o->place);
  cmd->add_flag("--json", o->json, "One JSON object");
  cmd->add_flag("--quiet", o->quiet, "No progress and no notices");
}

struct LimitsCommand {
  LimitOptions options;
  bool json = false, quick = false;
};

int run_limits(LimitsCommand c) {
  if (c.quick) c.options.seconds = 0.1;
  auto lines = measure_limits(read_topology(), c.options);
  if (c.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"results", to_json(lines)}}.dump());
  } else {
    fmt::print("{}", to_table(lines));
  }
  return 0;
}

void add_limits(CLI::App* bench, Program& program) {
  auto c = std::make_shared<LimitsCommand>();
  CLI::App* cmd =
      bench->add_subcommand("limits", "What this machine can do: reads, multiplies and adds per second");
  cmd->add_option("--threads", c->options.threads, "Most threads (default: all usable CPUs)")
      ->check(CLI::Range(1, 4096));
  cmd->add_option("--seconds", c->options.seconds, "Per figure")->check(CLI::Range(0.01, 60.0));
  cmd->add_flag("--quick", c->quick, "Less time per figure");
  cmd->add_flag("--json", c->json, "One JSON object with results[]");
  cmd->callback([&program, c] { program.run = [c] { return run_limits(*c); }; });
}

}  // namespace

void add_bench(Program& program) {
  CLI::App* bench = bench_command(program);
  add_limits(bench, program);
  add_bench_steps(bench, program);
  add_bench_load(bench, program);
  auto serve = std::make_shared<Options>(), sweep = std::make_shared<Options>();
  serve->command = "serve";
  sweep->command = "sweep";
  serve->load.concurrency = sweep->load.concurrency = 8;
  CLI::App* cmd = bench->add_subcommand("serve", "The serving engine under a workload, without a server");
  add_shared(cmd, serve.get());
  add_routing(cmd, &serve->engine.routing);
  cmd->add_flag("--offline", serve->offline, "The engine inside this process");
  cmd->add_option("--trace", serve->trace_out, "Write a timeline in the Chrome trace format");
  cmd->callback([&program, serve] { program.run = [serve] { return run_serve(*serve); }; });
  auto simulated = std::make_shared<Options>();
  simulated->command = "simulated";
  simulated->load.concurrency = 8;
  cmd = bench->add_subcommand("simulated",
                              "A workload on the engine and, with the costs it showed, in the simulator");
  add_shared(cmd, simulated.get());
  cmd->add_option("--rounds", simulated->rounds, "Runs, each with a fresh engine; medians count")
      ->check(CLI::Range(1, 1000));
  cmd->add_option("--costs-out", simulated->costs_out,
                  "Write the costs of the last round for `deepinfer simulate --costs`");
  cmd->add_option("--record", simulated->record, "Write the runs' event logs");
  cmd->add_option("--recorded", simulated->recorded, "Compare the runs of such a file; nothing is measured")
      ->excludes("--record");
  cmd->callback([&program, simulated] { program.run = [simulated] { return run_simulated(*simulated); }; });
  cmd =
      bench->add_subcommand("sweep", "The same at several points: seats, concurrency, step budgets or rates");
  add_shared(cmd, sweep.get());
  add_routing(cmd, &sweep->engine.routing);
  cmd->add_option("--over", sweep->over, "max-running, concurrency, budget-ms or rate")
      ->check(CLI::IsMember({"max-running", "concurrency", "budget-ms", "rate"}));
  cmd->add_option("--values", sweep->values, "The points, separated by commas");
  cmd->add_option(
         "--tau-accepted", sweep->tau_accepted,
         "Also print the published convention 1 + n a tokens per step, a being this; needs --fixed-drafts")
      ->check(CLI::Range(0.0, 1.0));
  cmd->add_option("--csv", sweep->csv, "Write all points as CSV");
  cmd->add_option("--svg", sweep->svg, "Write a plot");
  cmd->callback([&program, sweep] { program.run = [sweep] { return run_sweep(*sweep); }; });
}

}  // namespace deepinfer
