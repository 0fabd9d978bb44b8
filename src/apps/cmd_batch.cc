// `deepinfer batch IN.jsonl OUT.jsonl`: continuous batching over a file of requests.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "apps/batch_run.h"
#include "apps/command.h"
#include "apps/serve_run.h"
#include "host/clock.h"
#include "host/stop_flag.h"

namespace deepinfer {
namespace {

struct Options {
  std::string in, out;
  ServeConfig serve;
  BatchOptions batch;
  bool quiet = false, json = false;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer batch: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument || s.code() == Code::kInvalidConfig ? 2 : 1;
}

int64_t count_lines(const std::string& path) {
  int64_t n = 0;
  if (FILE* f = std::fopen(path.c_str(), "rb")) {
    char buffer[65536];
    for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, f)) > 0;)
      n += std::count(buffer, buffer + got, '\n');
    std::fclose(f);
  }
  return n;
}

int run_batch_command(Options o) {
  o.serve.log_level = "error";
  o.serve.max_running = std::max<int64_t>(1, std::min<int64_t>(o.serve.max_running, o.batch.concurrency));
  o.serve.max_queued_requests = o.batch.concurrency * 2;
  auto model = open_engine(o.serve, [&](const std::string& line) {
    if (!o.quiet) fmt::print(stderr, "{}\n", line);
  });
  if (!model.ok()) return fail(model.status());
  if (!model->notice.empty() && !o.quiet) fmt::print(stderr, "{}\n", model->notice);
  auto server = RunningServer::start(o.serve, std::move(*model), false);
  if (!server.ok()) return fail(server.status());
  o.batch.model = (*server)->info()["model"].get<std::string>();
  int64_t lines = count_lines(o.in), begin = now_ns();
  bool bar = !o.quiet && isatty(2) != 0;
  StopFlag stop;
  o.batch.progress = [&](const BatchCounts& c) {
    if (bar) {
      int64_t done = c.kept + c.answered + c.failed;
      int width = lines > 0 ? static_cast<int>(std::min<int64_t>(30, 30 * done / lines)) : 0;
      double s = static_cast<double>(now_ns() - begin) / 1e9;
      fmt::print(stderr, "\r[{:<30}] {} of {}, {} failed, {:.1f} tokens/s ",
                 std::string(static_cast<size_t>(width), '#'), done, lines, c.failed,
                 s > 0 ? static_cast<double>(c.output_tokens) / s : 0.0);
    }
    return !stop.stop_requested();
  };
  auto c =
      run_batch([&](std::shared_ptr<Exchange> e) { (*server)->handle(std::move(e)); }, o.in, o.out, o.batch);
  if (bar) fmt::print(stderr, "\n");
  if (!c.ok()) return fail(c.status());
  double s = static_cast<double>(now_ns() - begin) / 1e9;
  if (o.json) {
    fmt::print("{}\n", Json{{"lines", c->lines},
                            {"kept", c->kept},
                            {"answered", c->answered},
                            {"failed", c->failed},
                            {"output_tokens", c->output_tokens},
                            {"seconds", s},
                            {"stopped", c->stopped}}
                           .dump());
  } else if (!o.quiet) {
    fmt::print(stderr, "{} requests: {} answered, {} failed, {} kept from before; {} tokens in {:.1f} s{}\n",
               c->lines, c->answered, c->failed, c->kept, c->output_tokens, s,
               c->stopped ? "; stopped, run again to go on" : "");
  }
  if (c->stopped) return 130;
  return c->failed == 0 ? 0 : 1;
}

}  // namespace

void add_batch(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "batch", "Answer a file of requests, many at a time; continues where it stopped");
  cmd->add_option("IN", o->in, "Requests, one JSON object per line")->required()->check(CLI::ExistingFile);
  cmd->add_option("OUT", o->out, "Answers; what it already holds is not computed again")->required();
  cmd->add_option("--model", o->serve.model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--engine", o->serve.engine, "serving or synthetic")
      ->check(CLI::IsMember({"serving", "synthetic"}));
  cmd->add_option("--concurrency", o->batch.concurrency, "Requests at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  cmd->add_option("--store", o->serve.store, "Directory of a persistent prefix store (docs/store.md)")
      ->expected(1);
  cmd->add_option("--threads", o->serve.threads, "Threads (default: all usable CPUs)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  cmd->add_flag_callback(
      "--no-speculate", [o] { o->serve.speculate = false; }, "No drafts; the answers are the same");
  cmd->add_flag("--quiet", o->quiet, "No progress and no summary");
  cmd->add_flag("--json", o->json, "The summary as one JSON object");
  cmd->callback([&program, o] { program.run = [o] { return run_batch_command(*o); }; });
}

}  // namespace deepinfer
