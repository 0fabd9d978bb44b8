// `deepinfer bench edge`: the server's edge with the synthetic engine.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "apps/bench_edge.h"
#include "apps/command.h"

namespace deepinfer {
namespace {

std::string shipped_tokenizer() {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (const char* env = std::getenv("DEEPINFER_MODEL"); env != nullptr && *env != '\0')
    return (fs::path(env) / "tokenizer.json").string();
  fs::path exe = fs::read_symlink("/proc/self/exe", ec);
  for (fs::path dir = exe.parent_path(); dir.has_relative_path(); dir = dir.parent_path()) {
    fs::path file = dir / "models/deepinfer-tiny/tokenizer.json";
    if (fs::exists(file, ec)) return file.string();
  }
  return "models/deepinfer-tiny/tokenizer.json";
}

int run(EdgeBenchOptions o, bool json) {
  if (o.tokenizer.empty()) o.tokenizer = shipped_tokenizer();
  auto r = bench_edge(o);
  if (!r.ok()) {
    fmt::print(stderr, "deepinfer bench edge: {}\n", r.status().message());
    return 1;
  }
  if (json) {
    fmt::print("{}\n", to_json(*r, o).dump(2));
  } else {
    fmt::print(
        "{} streams, {:.0f} tokens/s each, {}: {} tokens, {} lost, {} out of order, {} streams without an "
        "end\n"
        "added latency: p50 {:.2f} ms, p99 {:.2f} ms, most {:.2f} ms\n"
        "server: {:.0f} bytes per stream, {:.2f} of one CPU; client: {:.2f} of one CPU; {:.1f} s\n",
        r->streams, o.tokens_per_s, o.aligned ? "all in one step" : "staggered", r->tokens, r->lost,
        r->reordered, r->failed, r->p50_added_ms, r->p99_added_ms, r->max_added_ms, r->bytes_per_stream,
        r->cpu_share, r->client_cpu_share, r->seconds);
  }
  return r->lost == 0 && r->reordered == 0 && r->failed == 0 ? 0 : 1;
}

}  // namespace

void add_bench_edge(Program& program) {
  auto o = std::make_shared<EdgeBenchOptions>();
  auto json = std::make_shared<bool>(false);
  CLI::App* cmd = bench_command(program)->add_subcommand("edge", "The server's edge: many streams, no model");
  cmd->add_option("--streams", o->streams, "Streams at a time (default 2000)")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}));
  cmd->add_option("--rate", o->tokens_per_s, "Tokens per second and stream (default 20)")
      ->check(CLI::Range(0.1, 10000.0));
  cmd->add_option("--tokens", o->tokens, "Tokens per stream (default 200)")
      ->check(CLI::Range(int64_t{1}, int64_t{100000}));
  cmd->add_flag("--aligned", o->aligned, "All streams get their token in the same step");
  cmd->add_option("--tokenizer", o->tokenizer, "A tokenizer.json (default: the small model's)");
  cmd->add_flag("--json", *json, "Print JSON");
  cmd->callback([&program, o, json] { program.run = [o, json] { return run(*o, *json); }; });
}

}  // namespace deepinfer
