// `deepinfer synth`: writes a synthetic checkpoint in the released formats.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "apps/command.h"
#include "apps/config_source.h"
#include "checkpoint/synth.h"
#include "host/stop_flag.h"

namespace deepinfer {
namespace {

struct Options {
  std::string config, out;
  SliceOptions slice;
  SynthOptions synth;
  bool quiet = false;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer synth: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run_synth(Options o) {
  auto config = sliced_config(o.config, o.slice);
  if (!config.ok()) return fail(config.status());
  const auto start = std::chrono::steady_clock::now();
  StopFlag stop;
  o.synth.stop = [&] { return stop.stop_requested(); };
  // A line that is rewritten in place makes sense on a terminal only.
  const bool progress = !o.quiet && isatty(STDERR_FILENO) != 0;
  if (progress) {
    o.synth.progress = [&](int64_t done, int64_t total) {
      const double gb = static_cast<double>(done) / 1e9, seconds = seconds_since(start);
      fmt::print(stderr, "\r{:.2f} of {:.2f} GB, {:.2f} GB/s ", gb, static_cast<double>(total) / 1e9,
                 seconds > 0 ? gb / seconds : 0.0);
      std::fflush(stderr);
    };
  }
  SynthReport report;
  const Status status = synthesise(*config, o.out, o.synth, &report);
  if (progress) fmt::print(stderr, "\n");
  if (!status.ok()) {
    (void)fail(status);
    return status.code() == Code::kCancelled ? 130 : status.code() == Code::kInvalidArgument ? 2 : 1;
  }
  if (!o.quiet) {
    fmt::print("{}: {} tensors, {} bytes in {} file{}, {:.1f} s\n", o.out, report.tensors,
               report.payload_bytes, report.files, report.files == 1 ? "" : "s", seconds_since(start));
  }
  return 0;
}

}  // namespace

void add_synth(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      program.app->add_subcommand("synth", "Write a checkpoint with random weights in the released formats");
  cmd->add_option("--config", o->config,
                  "Built-in name (v41-flash, t0, t1, t2), config file or checkpoint directory")
      ->required();
  add_slice_options(cmd, &o->slice);
  cmd->add_option("--seed", o->synth.seed,
                  "Other weights for another seed; 0 (default) gives the specification's values");
  cmd->add_option("--out", o->out, "Directory to make")->required();
  cmd->add_flag("--force", o->synth.force, "Replace the checkpoint that is there");
  cmd->add_option("--threads", o->synth.threads,
                  "Threads (default: all usable CPUs); never changes the bytes")
      ->check(CLI::Range(1, 4096));
  cmd->add_flag("--quiet", o->quiet, "No progress and no summary");
  cmd->callback([&program, o] { program.run = [o] { return run_synth(*o); }; });
}

}  // namespace deepinfer
