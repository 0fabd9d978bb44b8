// The `deepinfer` program: collects the subcommands, parses the command line, runs the chosen one.
#include <cstdio>
#include <string>

#include "apps/command.h"

int main(int argc, char** argv) {
  CLI::App app{"DeepInfer: an open token factory for DeepSeek-V4.1-Flash on CPUs", "deepinfer"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("deepinfer ") + DEEPINFER_VERSION);
  deepinfer::Program program{&app, {}};
  deepinfer::add_generate(program);
  deepinfer::add_inspect(program);
  deepinfer::add_synth(program);
  deepinfer::add_selfcheck(program);
  deepinfer::add_replaycheck(program);
  deepinfer::add_render(program);
  deepinfer::add_parse(program);
  deepinfer::add_grammar(program);
  deepinfer::add_doctor(program);
  deepinfer::add_eval(program);
  deepinfer::add_economics(program);
  deepinfer::add_cachesim(program);
  deepinfer::add_simulate(program);
  deepinfer::add_plan(program);
  deepinfer::add_serve(program);
  deepinfer::add_chat(program);
  deepinfer::add_usage(program);
  deepinfer::add_bench_edge(program);
  deepinfer::add_bench(program);
  deepinfer::add_bench_spec(program);
  deepinfer::add_bench_structured(program);
  deepinfer::add_bench_kernels(program);
  deepinfer::add_batch(program);
  deepinfer::add_store(program);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  return program.run();
}
