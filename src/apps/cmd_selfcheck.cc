// `deepinfer selfcheck`: is the arithmetic of this machine good enough on this checkpoint? Native mode
// against exact arithmetic, beside what the vendor's own rounding points cost.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "engine/selfcheck.h"
#include "host/thread_pool.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

struct Options {
  std::string model;
  int64_t tokens = 256;
  int threads = 0;
  bool json = false;
};

nlohmann::ordered_json to_json(const Divergence& d) {
  return {{"positions", d.positions},
          {"top1_agreement", d.top1_agreement},
          {"kl_mean", d.kl_mean},
          {"kl_p99", d.kl_p99},
          {"kl_max", d.kl_max}};
}

void print_row(const char* name, const Divergence& d) {
  fmt::print("{:<28} {:>9} {:>8.2f} % {:>12.3e} {:>12.3e} {:>12.3e}\n", name, d.positions,
             100 * d.top1_agreement, d.kl_mean, d.kl_p99, d.kl_max);
}

int run_selfcheck(const Options& o) {
  auto loaded = load_model(o.model);
  if (!loaded.ok()) {
    fmt::print(stderr, "deepinfer selfcheck: {}\n", loaded.status().to_string());
    return 1;
  }
  const ModelConfig& c = loaded->weights->config;
  // A fixed pseudo-random text of ordinary ids: the comparison is of arithmetic, not of language.
  int64_t n = std::min(o.tokens, c.max_position_embeddings);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<int32_t>((7 + 37 * i + i * i) % std::max<int64_t>(1, c.vocab_size - 6)));
  ThreadPool pool(o.threads > 0 ? o.threads : ThreadPool::usable_cpus());
  auto r = selfcheck(*loaded->weights, tokens, &pool);
  if (!r.ok()) {
    fmt::print(stderr, "deepinfer selfcheck: {}\n", r.status().to_string());
    return 1;
  }
  bool ok = r->native.kl_mean <= r->ref_mode.kl_mean;
  if (o.json) {
    nlohmann::ordered_json j;
    j["model"] = loaded->dir;
    j["instruction_level"] = instruction_level();
    j["native"] = to_json(r->native);
    j["rounding_points"] = to_json(r->ref_mode);
    j["within_bound"] = ok;
    fmt::print("{}\n", j.dump());
    return ok ? 0 : 1;
  }
  fmt::print("{} ({} positions, kernels: {})\n\n", loaded->dir, n, instruction_level());
  fmt::print("{:<28} {:>9} {:>10} {:>12} {:>12} {:>12}\n", "against exact arithmetic", "positions",
             "same top", "KL mean", "KL p99", "KL max");
  print_row("native (what is served)", r->native);
  print_row("the format's rounding points", r->ref_mode);
  fmt::print(
      "\n{}\n",
      ok ? "ok: native mode is no further from exact arithmetic than the format's own rounding points"
         : "NOT OK: native mode is further from exact arithmetic than the format's own rounding points");
  return ok ? 0 : 1;
}

}  // namespace

void add_selfcheck(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "selfcheck", "Compare native arithmetic with exact arithmetic on a checkpoint");
  cmd->add_option("model", o->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--tokens", o->tokens, "Positions to compare")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--threads", o->threads, "Threads")->check(CLI::Range(1, 4096));
  cmd->add_flag("--json", o->json, "Print one JSON object");
  cmd->callback([&program, o] { program.run = [o] { return run_selfcheck(*o); }; });
}

}  // namespace deepinfer
