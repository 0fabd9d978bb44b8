// `deepinfer inspect`: what a configuration or checkpoint is made of, and with --check whether a directory is
// whole and sound.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "apps/command.h"
#include "apps/config_source.h"
#include "apps/inspect_report.h"
#include "checkpoint/check.h"

namespace deepinfer {
namespace {

struct Options {
  std::string source;
  SliceOptions slice;
  bool json = false, check = false;
  double ram_gb = 0;
  int sequences = 1;
  int64_t context = 0;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer inspect: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

Result<CheckOutcome> run_check(const std::string& dir) {
  std::error_code ec;
  if (!std::filesystem::is_directory(dir, ec)) {
    return error(Code::kInvalidArgument, "--check needs a checkpoint directory; '{}' is none", dir);
  }
  const auto start = std::chrono::steady_clock::now();
  ProblemList problems;
  DI_TRY(check_checkpoint(dir, &problems));
  CheckOutcome outcome;
  outcome.problem_count = problems.count();
  const size_t shown = std::min(problems.kept().size(), ProblemList::kShown);
  outcome.problems.assign(problems.kept().begin(),
                          problems.kept().begin() + static_cast<std::ptrdiff_t>(shown));
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

int run_inspect(const Options& o) {
  if (o.check && o.slice.any()) {
    return fail(
        Status(Code::kInvalidArgument,
               "--check reads a directory as it is; leave out --layers, --experts and --engram-start"));
  }
  auto config = sliced_config(o.source, o.slice);
  if (!config.ok()) return fail(config.status());
  InspectFacts facts;
  facts.config = std::move(*config);
  facts.ram_bytes = static_cast<int64_t>(o.ram_gb * 1e9);
  facts.sequences = o.sequences;
  facts.context_tokens = o.context > 0 ? o.context : facts.config.max_position_embeddings;
  if (o.check) {
    auto outcome = run_check(o.source);
    if (!outcome.ok()) return fail(outcome.status());
    facts.check = std::move(*outcome);
  }
  // A path need not be UTF-8; replace rather than throw.
  const std::string out =
      o.json ? inspect_json(facts).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
             : inspect_text(facts);
  if (std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 1;
  return facts.check && facts.check->problem_count > 0 ? 1 : 0;
}

}  // namespace

void add_inspect(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "inspect", "Show what a model is made of, or verify a checkpoint directory");
  cmd->add_option("source", o->source,
                  "Built-in name (v41-flash, t0, t1, t2), checkpoint directory or config file")
      ->required();
  cmd->add_flag("--json", o->json, "Print one JSON object instead of text");
  cmd->add_flag("--check", o->check,
                "Read every byte of the directory and report what is wrong; exit code 1 if anything is");
  add_slice_options(cmd, &o->slice);
  cmd->add_option("--ram-gb", o->ram_gb, "Plan memory for this much RAM, in 10^9 bytes (default: no limit)")
      ->check(CLI::Range(0.0, 1e9));
  cmd->add_option("--sequences", o->sequences, "Plan memory for this many sequences at once")
      ->check(CLI::Range(1, 1 << 20));
  cmd->add_option("--context", o->context,
                  "Plan memory for this many tokens per sequence (default: the model's limit)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  cmd->callback([&program, o] { program.run = [o] { return run_inspect(*o); }; });
}

}  // namespace deepinfer
