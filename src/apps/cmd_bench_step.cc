// `deepinfer bench decode`, `bench prefill` and `bench project`: the forward pass against the limits of the
// machine, and what its shares mean for a whole model on another machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/bench_step.h"
#include "apps/command.h"
#include "apps/config_source.h"
#include "apps/model_source.h"

namespace deepinfer {
namespace {

struct Options {
  const char* command = "";
  std::string model, config = "v41-flash";
  StepBenchOptions bench;
  int threads = 0, steps = 0;
  int64_t expert_memory_mib = 0;
  WeightsPlace place = WeightsPlace::kAuto;
  bool json = false, quick = false, quiet = false;
  double bandwidth = 0, tera_ops = 0;  // project
};

int fail(const Options& o, const Status& s) {
  fmt::print(stderr, "deepinfer bench {}: {}\n", o.command, s.to_string());
  return s.code() == Code::kInvalidArgument || s.code() == Code::kNotFound ? 2 : 1;
}

// Limits right before and right after the measurement: the machine's speed drifts, the mean is nearer to what
// the work met.
std::vector<BenchLine> limits_now(const Options& o, int threads) {
  LimitOptions limits;
  limits.threads = threads;
  limits.seconds = o.quick ? 0.1 : 0.25;
  return measure_limits(read_topology(), limits);
}
std::vector<BenchLine> mean(std::vector<BenchLine> a, const std::vector<BenchLine>& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    a[i].achieved = a[i].limit = (a[i].achieved + b[i].achieved) / 2;
  return a;
}

struct Measured {
  std::vector<StepPoint> points;
  std::vector<BenchLine> limits;
  int threads = 1;
};

template <typename F>
Result<Measured> measure(const Options& o, const LoadedModel& model, const F& run) {
  Measured m;
  std::unique_ptr<ThreadPool> pool = make_pool(o.threads);
  m.threads = pool->threads();
  DI_ASSIGN(const std::string placed, place_weights(o.place, model.weights.get(), pool.get()));
  if (!placed.empty() && !o.quiet) fmt::print(stderr, "{}\n", placed);
  auto before = limits_now(o, m.threads);
  auto points = run(*model.weights, pool.get(), o.bench);
  if (!points.ok()) return points.status();
  m.points = std::move(*points);
  m.limits = mean(std::move(before), limits_now(o, m.threads));
  return m;
}

Result<LoadedModel> load(const Options& o) {
  auto model = load_model(o.model, {.expert_memory_bytes = o.expert_memory_mib << 20});
  if (model.ok() && !model->notice.empty() && !o.quiet) fmt::print(stderr, "{}\n", model->notice);
  return model;
}

int print(const Options& o, const std::vector<BenchLine>& lines) {
  if (o.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"results", to_json(lines)}}.dump());
  else
    fmt::print("{}", to_table(lines));
  return 0;
}

int run_decode(Options o) {
  if (o.bench.rows.empty())
    o.bench.rows = o.quick ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{1, 2, 4, 8, 16};
  if (o.bench.contexts.empty()) o.bench.contexts = {1024};
  o.bench.steps = o.steps > 0 ? o.steps : o.quick ? 8 : 24;
  auto model = load(o);
  if (!model.ok()) return fail(o, model.status());
  auto m = measure(o, *model, measure_decode);
  if (!m.ok()) return fail(o, m.status());
  return print(o, decode_lines(m->points, m->limits, m->threads, o.bench.profile));
}

int run_prefill(Options o) {
  if (o.bench.rows.empty())
    o.bench.rows = o.quick ? std::vector<int64_t>{128} : std::vector<int64_t>{64, 128, 512};
  if (o.bench.contexts.empty()) o.bench.contexts = {0};
  o.bench.steps = o.steps > 0 ? o.steps : o.quick ? 2 : 5;
  auto model = load(o);
  if (!model.ok()) return fail(o, model.status());
  auto m = measure(o, *model, measure_prefill);
  if (!m.ok()) return fail(o, m.status());
  return print(o, prefill_lines(m->points, m->limits, m->threads, o.bench.profile));
}

// Shares measured here times limits given: an extrapolation, and it says so.
int run_project(Options o) {
  auto config = named_config(o.config);
  if (!config.ok()) return fail(o, config.status());
  auto model = load(o);
  if (!model.ok()) return fail(o, model.status());
  o.bench.contexts = {1024};
  o.bench.rows = {1};
  o.bench.steps = 8;
  auto decode = measure(o, *model, measure_decode);
  if (!decode.ok()) return fail(o, decode.status());
  o.bench.contexts = {0};
  o.bench.rows = {std::min<int64_t>(512, model->weights->config.max_position_embeddings / 2)};
  o.bench.steps = 2;
  auto prefill = measure(o, *model, measure_prefill);
  if (!prefill.ok()) return fail(o, prefill.status());
  double decode_share = decode_lines(decode->points, decode->limits, decode->threads, false).front().share;
  double prefill_share =
      prefill_lines(prefill->points, prefill->limits, prefill->threads, false).front().share;
  TokenCost cost = token_cost(*config);
  double decode_most = o.bandwidth * 1e9 / cost.bytes;
  // The decoder half runs the last window of a long prompt only: its share vanishes with the length.
  double prefill_most = o.tera_ops * 1e12 / (2 * cost.encoder_macs);
  nlohmann::ordered_json j{
      {"config", o.config},
      {"extrapolated", true},
      {"measured_on", model->dir},
      {"bandwidth_gb_s", o.bandwidth},
      {"int8_tera_ops", o.tera_ops},
      {"bytes_per_token", cost.bytes},
      {"encoder_macs_per_token", cost.encoder_macs},
      {"decode",
       {{"share", decode_share}, {"tokens_per_s", decode_share * decode_most}, {"at_limit", decode_most}}},
      {"prefill",
       {{"share", prefill_share},
        {"tokens_per_s", prefill_share * prefill_most},
        {"at_limit", prefill_most}}}};
  if (o.json) {
    fmt::print("{}\n", j.dump());
    return 0;
  }
  fmt::print("{} on a machine that reads {:.0f} GB/s and does {:.1f} Tera int8 operations per second\n",
             o.config, o.bandwidth, o.tera_ops);
  fmt::print("EXTRAPOLATED from shares measured here on {}, not measured on that machine:\n", model->dir);
  fmt::print(
      "  decode, one request: {:.2f} GB per token, {:.0f} % of the read limit -> {:.2f} tok/s (at the limit "
      "{:.2f})\n",
      cost.bytes * 1e-9, 100 * decode_share, decode_share * decode_most, decode_most);
  fmt::print(
      "  prefill, long prompts: {:.1f} Gmac per token, {:.0f} % of the int8 limit -> {:.1f} tok/s (at the "
      "limit {:.1f})\n",
      cost.encoder_macs * 1e-9, 100 * prefill_share, prefill_share * prefill_most, prefill_most);
  return 0;
}

std::shared_ptr<Options> shared_options(CLI::App* cmd, const char* name) {
  auto o = std::make_shared<Options>();
  o->command = name;
  cmd->add_option("--model", o->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 4096));
  cmd->add_flag("--json", o->json, "One JSON object with results[]");
  cmd->add_flag("--quick", o->quick, "Fewer points and calls");
  cmd->add_flag("--quiet", o->quiet, "No notices");
  return o;
}

void add_points(CLI::App* cmd, Options* o) {
  cmd->add_option("--rows", o->bench.rows, "Rows, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  cmd->add_option("--context", o->bench.contexts, "Positions before them, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 21));
  cmd->add_option("--steps", o->steps, "Timed calls of a point; the median counts")
      ->check(CLI::Range(1, 100000));
  cmd->add_flag("--profile", o->bench.profile, "Where the time goes, a line per part");
  add_routing(cmd, &o->bench.routing);
  add_expert_memory(cmd, &o->expert_memory_mib);
  add_weights_place(cmd, &o->place);
}

}  // namespace

void add_bench_steps(CLI::App* bench, Program& program) {
  CLI::App* cmd =
      bench->add_subcommand("decode", "Decode steps of the bare forward pass against the read limit");
  auto decode = shared_options(cmd, "decode");
  add_points(cmd, decode.get());
  cmd->callback([&program, decode] { program.run = [decode] { return run_decode(*decode); }; });

  cmd = bench->add_subcommand("prefill",
                              "Prefill chunks of the bare forward pass against the arithmetic limit");
  auto prefill = shared_options(cmd, "prefill");
  add_points(cmd, prefill.get());
  cmd->callback([&program, prefill] { program.run = [prefill] { return run_prefill(*prefill); }; });

  cmd =
      bench->add_subcommand("project", "What the measured shares mean for a whole model on another machine");
  auto project = shared_options(cmd, "project");
  cmd->add_option("--config", project->config, "The whole model: a built-in name or a config.json");
  cmd->add_option("--bandwidth", project->bandwidth, "Its read bandwidth in GB/s")
      ->required()
      ->check(CLI::PositiveNumber);
  cmd->add_option("--flops", project->tera_ops, "Its int8 rate in Tera operations per second")
      ->required()
      ->check(CLI::PositiveNumber);
  cmd->callback([&program, project] { program.run = [project] { return run_project(*project); }; });
}

}  // namespace deepinfer
