// `deepinfer bench kernels`: the kernels at the shapes of the released model, as shares of this machine's
// limits.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "apps/bench_kernels.h"
#include "apps/command.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

struct KernelsCommand {
  KernelBenchOptions options;
  std::string level;
  bool json = false, quick = false;
};

int run(KernelsCommand c) {
  if (c.quick) {
    c.options.seconds = 0.1;
    c.options.limit_seconds = 0.15;
  }
  if (!c.level.empty() && !set_instruction_level(c.level)) {
    fmt::print(stderr, "deepinfer bench kernels: no instruction level {}; this CPU has: {}\n", c.level,
               fmt::join(instruction_levels(), " "));
    return 2;
  }
  auto lines = measure_kernels(read_topology(), c.options);
  if (!lines.ok()) {
    fmt::print(stderr, "deepinfer bench kernels: {}\n", lines.status().message());
    return 1;
  }
  if (c.json)
    fmt::print("{}\n",
               nlohmann::ordered_json{{"profile", numeric_profile()}, {"results", to_json(*lines)}}.dump());
  else
    fmt::print("{}\n{}", numeric_profile(), to_table(*lines));
  return 0;
}

}  // namespace

void add_bench_kernels(Program& program) {
  auto c = std::make_shared<KernelsCommand>();
  CLI::App* cmd = bench_command(program)->add_subcommand(
      "kernels", "Matrix products and index scan at the real shapes, as shares of this machine's limits");
  cmd->add_option("--threads", c->options.threads, "Threads (default: all usable CPUs)")
      ->check(CLI::Range(1, 4096));
  cmd->add_option("--seconds", c->options.seconds, "Per figure")->check(CLI::Range(0.01, 60.0));
  cmd->add_option("--only", c->options.only, "Only ops whose name contains this");
  cmd->add_option("--level", c->level, "Instruction level (see `deepinfer doctor`; default: the best)");
  cmd->add_flag("--quick", c->quick, "Less time per figure");
  cmd->add_flag("--json", c->json, "One JSON object with results[]");
  cmd->callback([&program, c] { program.run = [c] { return run(*c); }; });
}

}  // namespace deepinfer
