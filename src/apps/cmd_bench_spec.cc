// `deepinfer bench spec`: the command line, the skills workload and the report of bench_spec.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/bench_spec.h"
#include "apps/command.h"
#include "apps/eval_suites.h"
#include "apps/model_source.h"
#include "engine/serving_engine.h"
#include "host/clock.h"
#include "host/stop_flag.h"
#include "host/thread_pool.h"

namespace deepinfer {
namespace {

struct SpecCommand {
  std::string model, suites = "copy_edit,json_extraction,tool_call,recall,counting";
  std::vector<int64_t> concurrency = SpecOptions{}.concurrency;
  int rounds = 9, duels = 0, threads = 0;
  int64_t requests = 24;  // per concurrency, at least twice as many as run at a time
  double temperature = 0;
  bool json = false, quiet = false, table = false;
};

// Prompts of the shipped skills, whose answers end by themselves.
Result<Workload> skills_workload(const SpecCommand& c, const LoadedModel& m, int64_t requests) {
  DI_ASSIGN(SuiteIndex index, read_suite_index(m.dir + "/suites", m.weights->config.vocab_size));
  std::vector<EvalItem> items;
  std::stringstream names(c.suites);
  for (std::string name; std::getline(names, name, ',');) {
    DI_ASSIGN(EvalSuite suite, read_suite(index, name, m.weights->config, 100));
    items.insert(items.end(), suite.items.begin(), suite.items.end());
  }
  if (items.empty()) return error(Code::kInvalidArgument, "no suites named: there is nothing to send");
  Workload w{"skills", {}};
  for (int64_t i = 0; i < requests; ++i) {
    // Neighbours are of different suites.
    const EvalItem& item = items[static_cast<size_t>(i * 101) % items.size()];
    w.sessions.push_back({0, {{item.prompt, static_cast<int64_t>(item.expect.size()) + 32}}, 0});
  }
  return w;
}

int fail_spec(const Status& s) {
  if (s.code() == Code::kCancelled) return 130;
  fmt::print(stderr, "deepinfer bench spec: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

void print_spec(const std::vector<SpecPoint>& points) {
  fmt::print("{:>12}{:>10}{:>12}{:>8}{:>10}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}{:>12}\n", "concurrency",
             "mode", "tokens/s", "x off", "decode/s", "x off", "verified", "accepted", "rows ms", "draft ms",
             "draw ms", "x best", "loss bound");
  for (const SpecPoint& p : points) {
    bool dynamic = !p.best.empty();
    fmt::print(
        "{:>12}{:>10}{:>12.1f}{:>8.3f}{:>10.1f}{:>8.3f}{:>10.2f}{:>10.2f}{:>10.3f}{:>10.3f}{:>10.3f}{:>8}{:>"
        "12}\n",
        p.concurrency, p.mode, p.median.tokens_per_s, p.against_off, p.median.decode_per_s,
        p.decode_against_off, p.median.verified_per_step, p.median.accepted_per_step, p.median.forward_ms,
        p.median.draft_ms, p.median.sample_ms, dynamic ? fmt::format("{:.3f}", p.against_best) : "",
        dynamic ? fmt::format("{:+.1f} %", 100 * p.loss_bound) : "");
  }
}

nlohmann::ordered_json spec_json(const std::vector<SpecPoint>& points) {
  auto list = nlohmann::ordered_json::array();
  for (const SpecPoint& p : points) {
    nlohmann::ordered_json j{{"concurrency", p.concurrency},
                             {"mode", p.mode},
                             {"tokens_per_s", p.median.tokens_per_s},
                             {"decode_tokens_per_s", p.median.decode_per_s},
                             {"verified_per_step", p.median.verified_per_step},
                             {"accepted_per_step", p.median.accepted_per_step},
                             {"forward_ms", p.median.forward_ms},
                             {"draft_ms", p.median.draft_ms},
                             {"sample_ms", p.median.sample_ms},
                             {"against_off", p.against_off},
                             {"decode_against_off", p.decode_against_off},
                             {"rates", p.rates}};
    if (!p.best.empty()) {
      j["best_other"] = p.best;
      j["against_best"] = p.against_best;
      j["loss_upper_95"] = p.loss_bound;
      if (!p.duel_rates.empty()) {
        j["duel_rates"] = p.duel_rates;
        j["best_duel_rates"] = p.best_duel_rates;
      }
    }
    list.push_back(std::move(j));
  }
  return list;
}

int run_spec_command(const SpecCommand& c) {
  if (c.table) {
    fmt::print("{}", published_points_table());
    return 0;
  }
  auto model = load_model(c.model);
  if (!model.ok()) return fail_spec(model.status());
  if (!model->notice.empty() && !c.quiet) fmt::print(stderr, "{}\n", model->notice);
  ThreadPool pool(c.threads > 0 ? c.threads : ThreadPool::usable_cpus());
  SpecOptions o;
  o.rounds = c.rounds;
  o.duels = c.duels;
  o.concurrency = c.concurrency;
  int64_t most = *std::max_element(c.concurrency.begin(), c.concurrency.end());
  auto probe = skills_workload(c, *model, 1);
  if (!probe.ok()) return fail_spec(probe.status());
  DriveOptions drive;
  // The same prompts come again in every round, and from the second on they are in the cache: what is
  // compared is decoding.
  drive.use_cache = true;
  drive.sampling.temperature = c.temperature;
  drive.stop_ids = {model->weights->config.eos_token_id};
  StopFlag stop;
  drive.progress = [&](int64_t, int64_t) { return !stop.stop_requested(); };
  auto make = [&](const SpecMode& mode) {
    EngineConfig e;
    e.max_running = most;
    e.speculation.mode = mode.mode;
    if (mode.mode == policy::SpeculationMode::kFixed) e.speculation.fixed = mode.fixed;
    return make_engine(model->weights.get(), &pool, e, now_ns);
  };
  auto work = [&](int64_t at_a_time) {
    return *skills_workload(c, *model, std::max(c.requests, 2 * at_a_time));
  };
  auto points = run_spec(spec_modes(model->weights->config.drafts()), o, make, work, drive,
                         [&](const std::string& line) {
                           if (!c.quiet && isatty(2) != 0) fmt::print(stderr, "\r{:<60}", line);
                         });
  if (!c.quiet && isatty(2) != 0) fmt::print(stderr, "\r{:60}\r", "");
  if (!points.ok()) return fail_spec(points.status());
  if (c.json) {
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{{"model", model->dir}, {"rounds", c.rounds}, {"points", spec_json(*points)}}
            .dump());
  } else {
    print_spec(*points);
    fmt::print("\n{}", published_points_table());
  }
  return 0;
}

}  // namespace

void add_bench_spec(Program& program) {
  auto c = std::make_shared<SpecCommand>();
  CLI::App* cmd = bench_command(program)->add_subcommand(
      "spec", "Speculation: off, fixed depths and the dynamic budget, alternating");
  cmd->add_option("--model", c->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--concurrency", c->concurrency, "Requests at a time, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  cmd->add_option("--rounds", c->rounds, "Alternating runs of every mode; medians count")
      ->check(CLI::Range(1, 1000));
  cmd->add_option("--duels", c->duels,
                  "Runs of dynamic and the best other mode alone after that, in turn; the loss is theirs")
      ->check(CLI::Range(0, 100000));
  cmd->add_option("--requests", c->requests, "Requests of a run, at least twice the concurrency")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--suites", c->suites, "Suites whose prompts are sent");
  cmd->add_option("--temperature", c->temperature, "Of the answers; 0 = greedy (default)");
  cmd->add_option("--threads", c->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 4096));
  cmd->add_flag("--published", c->table,
                "Only the table of the published operating points, from their model");
  cmd->add_flag("--json", c->json, "One JSON object with points[]");
  cmd->add_flag("--quiet", c->quiet, "No progress and no notices");
  cmd->callback([&program, c] { program.run = [c] { return run_spec_command(*c); }; });
}

}  // namespace deepinfer
