// `deepinfer bench edge`: the server's edge with the synthetic engine.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "apps/bench_edge.h"
#include "apps/bench_overhead.h"
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

int run_overhead(const OverheadOptions& o, bool json) {
  auto r = bench_overhead(o);
  if (!r.ok()) {
    fmt::print(stderr, "deepinfer bench edge: {}\n", r.status().message());
    return 1;
  }
  if (json) {
    fmt::print("{}\n", to_json(*r, o).dump(2));
    return 0;
  }
  for (size_t i = 0; i < r->http_s.size(); ++i)
    fmt::print("round {}: engine {:.3f} s, through HTTP {:.3f} s\n", i + 1, r->direct_s[i], r->http_s[i]);
  fmt::print(
      "{} streams, {} tokens: the server adds {:+.2f} % (median of {} alternating pairs, surely between "
      "{:+.2f} "
      "and {:+.2f} %; pairs {:+.2f} to {:+.2f} %), {:+.2f} % of the quickest quarters\n"
      "processor time: engine alone {:.2f} s, with the server {:.2f} s ({:+.2f} %), of that the server's own "
      "threads {:.3f} s ({:.2f} %); its client {:.3f} s ({:.2f} %)\n",
      o.streams, r->tokens, r->median_added * 100, o.rounds, r->median_low * 100, r->median_high * 100,
      r->least_added * 100, r->most_added * 100, r->quartile_added * 100, r->direct_cpu_s, r->http_cpu_s,
      (r->http_cpu_s / r->direct_cpu_s - 1) * 100, r->edge_cpu_s, r->edge_cpu_s / r->direct_cpu_s * 100,
      r->client_cpu_s, r->client_cpu_s / r->direct_cpu_s * 100);
  return 0;
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
  auto overhead = std::make_shared<bool>(false);
  auto v = std::make_shared<OverheadOptions>();
  cmd->add_flag("--overhead", *overhead,
                "Instead: what the server adds to a model's time, the engine alone against through HTTP");
  cmd->add_option("--model", v->model, "Of --overhead: the checkpoint (default: the small model)");
  cmd->add_option("--rounds", v->rounds, "Of --overhead: pairs (default 9)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  cmd->add_option("--threads", v->threads, "Of --overhead: threads of the forward pass (default: all CPUs)");
  cmd->callback([&program, cmd, o, v, json, overhead] {
    if (cmd->count("--streams") > 0) v->streams = o->streams;
    if (cmd->count("--tokens") > 0) v->tokens = o->tokens;
    program.run = [o, v, json, overhead] { return *overhead ? run_overhead(*v, *json) : run(*o, *json); };
  });
}

}  // namespace deepinfer
