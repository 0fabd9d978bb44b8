// `deepinfer replaycheck`: bounded replay carried out in full layout with a mask and with compact rows, on
// random schedules; both must agree on keys, slots and logits.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "engine/replay_check.h"

namespace deepinfer {
namespace {

struct Options {
  std::string model;
  int64_t schedules = 40, tokens = 0;
  uint64_t seed = 1;
  int threads = 0;
  bool json = false;
};

Result<ReplayReport> check_one(const std::string& model, const Options& o, ThreadPool* pool) {
  auto builtin = builtin_config(model);
  if (builtin.ok()) {
    DI_ASSIGN(ModelWeights w, exact_synthetic_weights(*builtin));
    return check_replay(w, pool, o.schedules, o.seed, o.tokens > 0 ? o.tokens : 10 * w.config.sliding_window);
  }
  DI_ASSIGN(LoadedModel loaded, load_model(model));
  return check_replay(*loaded.weights, pool, o.schedules, o.seed,
                      o.tokens > 0 ? o.tokens : 6 * loaded.weights->config.sliding_window);
}

int run_replaycheck(const Options& o) {
  ThreadPool pool(o.threads > 0 ? o.threads : ThreadPool::usable_cpus());
  std::vector<std::string> models = {"t0", "t1"};
  if (!o.model.empty()) models = {o.model};
  auto results = nlohmann::ordered_json::array();
  bool ok = true;
  for (const std::string& model : models) {
    auto r = check_one(model, o, &pool);
    if (!r.ok()) {
      fmt::print(stderr, "deepinfer replaycheck: {}\n", r.status().to_string());
      return 1;
    }
    ok = ok && r->mismatches == 0;
    results.push_back({{"model", model},
                       {"schedules", r->schedules},
                       {"replayed", r->replayed},
                       {"from_snapshot", r->from_snapshot},
                       {"rows", r->rows},
                       {"keys", r->keys},
                       {"logit_rows", r->logit_rows},
                       {"reused_blocks", r->block_digests},
                       {"mismatches", r->mismatches},
                       {"first", r->first}});
    if (o.json) continue;
    fmt::print(
        "{}: {} schedules ({} replayed, {} from a stored window): {} rows with {} keys, {} rows of logits, "
        "{} reused blocks compared; {} differ\n",
        model, r->schedules, r->replayed, r->from_snapshot, r->rows, r->keys, r->logit_rows, r->block_digests,
        r->mismatches);
    if (!r->first.empty()) fmt::print("  first: {}\n", r->first);
  }
  if (o.json) fmt::print("{}\n", nlohmann::ordered_json{{"ok", ok}, {"models", results}}.dump());
  if (!o.json && ok) fmt::print("ok: the mask and the compact rows agree\n");
  return ok ? 0 : 1;
}

}  // namespace

void add_replaycheck(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "replaycheck", "Compare bounded replay in full layout with compact rows on random schedules");
  cmd->add_option("model", o->model, "Checkpoint directory or built-in configuration (default: t0 and t1)");
  cmd->add_option("--schedules", o->schedules, "Random schedules per model")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  cmd->add_option("--tokens", o->tokens, "Longest prompt (default: 10 windows, 6 for a checkpoint)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--seed", o->seed, "Of the first schedule");
  cmd->add_option("--threads", o->threads, "Threads")->check(CLI::Range(1, 4096));
  cmd->add_flag("--json", o->json, "Print one JSON object");
  cmd->callback([&program, o] { program.run = [o] { return run_replaycheck(*o); }; });
}

}  // namespace deepinfer
