// How a subcommand joins the `deepinfer` program: one function per file that adds its options to the command
// line and stores what to run. Exit codes: 0 done, 1 the work failed or the data is bad, 2 the command line
// is wrong.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace deepinfer {

// The chosen subcommand sets `run`; main calls it after parsing.
struct Program {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

void add_inspect(Program& program);
void add_synth(Program& program);
void add_generate(Program& program);
void add_selfcheck(Program& program);
void add_replaycheck(Program& program);
void add_doctor(Program& program);
void add_render(Program& program);
void add_parse(Program& program);
void add_grammar(Program& program);
void add_eval(Program& program);
void add_economics(Program& program);
void add_cachesim(Program& program);
void add_simulate(Program& program);
void add_plan(Program& program);
void add_serve(Program& program);
void add_chat(Program& program);
void add_usage(Program& program);
void add_bench_edge(Program& program);
void add_bench(Program& program);
void add_bench_spec(Program& program);
void add_bench_structured(Program& program);
void add_bench_kernels(Program& program);
void add_batch(Program& program);
void add_store(Program& program);

// The parent of all benches, made when first asked for: `deepinfer bench NAME`.
CLI::App* bench_command(Program& program);
void add_bench_steps(CLI::App* bench, Program& program);
void add_bench_load(CLI::App* bench, Program& program);

}  // namespace deepinfer
