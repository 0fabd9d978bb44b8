// `deepinfer doctor`: what the program sees of this machine and what it chose, with a warning where the
// choice is a slow one. Always exits with 0: a slow machine is no failure.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

#include "apps/command.h"
#include "apps/doctor_report.h"
#include "host/limits.h"
#include "host/thread_pool.h"
#include "host/topology.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

std::string build_kind() {
#if defined(__SANITIZE_ADDRESS__)
  return "address sanitizer";
#elif defined(__SANITIZE_THREAD__)
  return "thread sanitizer";
#elif defined(DEEPINFER_DEBUG_CHECKS)
  return "debug";
#elif !defined(__OPTIMIZE__)
  return "unoptimised";
#else
  return "release";
#endif
}

// Which code each entry of native mode's kernel table runs: an entry that is the plain definition's own
// function is scalar.
std::vector<KernelChoice> native_choices() {
  const Kernels<float>& used = kernels<float>();
  const Kernels<float>& plain = reference_kernels<float>();
  std::vector<KernelChoice> out;
  auto add = [&](const char* name, bool scalar) {
    out.push_back({name, scalar ? "scalar" : instruction_level()});
  };
  add("linear", used.linear == plain.linear);
  add("decode_row", used.decode_row == plain.decode_row);
  add("rms_norm", used.rms_norm == plain.rms_norm);
  add("sum_squares", used.sum_squares == plain.sum_squares);
  // A few dozen numbers per row: scalar on every CPU, and not worth a warning.
  if (used.hc_coefficients == plain.hc_coefficients) {
    out.push_back({"hc_coefficients", "scalar by design"});
  } else {
    add("hc_coefficients", false);
  }
  add("hc_collapse", used.hc_collapse == plain.hc_collapse);
  add("hc_expand", used.hc_expand == plain.hc_expand);
  add("hc_mean", used.hc_mean == plain.hc_mean);
  add("rope", used.rope == plain.rope);
  add("encode_record", used.encode_record == plain.encode_record);
  add("decode_record", used.decode_record == plain.decode_record);
  add("index_scores", used.index_scores == plain.index_scores);
  add("attend", used.attend == plain.attend);
  add("swiglu", used.swiglu == plain.swiglu);
  add("add", used.add == plain.add);
  add("round", used.round == plain.round);
  add("engram_stream", used.engram_stream == plain.engram_stream);
  add("compress_pool", used.compress_pool == plain.compress_pool);
  add("softmax", used.softmax == plain.softmax);
  return out;
}

DoctorFacts gather() {
  DoctorFacts f;
  f.build = build_kind();
  f.cpu = read_cpu_info();
  f.instruction_levels = instruction_levels();
  f.instruction_level = instruction_level();
  f.numeric_profile = numeric_profile();
  f.native_kernels = native_choices();
  f.math_kernels = kernels<double>().name;
  f.topology = read_topology();
  f.allowed_cpus = allowed_cpu_count();
  f.threads = ThreadPool::usable_cpus();
  f.cgroup = read_cgroup_limits();
  f.memory = read_memory_info();
  return f;
}

int run_doctor(bool json) {
  DoctorFacts facts = gather();
  // A model name from the kernel need not be UTF-8; replace rather than throw.
  std::string out =
      json ? doctor_json(facts).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
           : doctor_text(facts);
  return std::fputs(out.c_str(), stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0;
}

}  // namespace

void add_doctor(Program& program) {
  auto json = std::make_shared<bool>(false);
  CLI::App* app =
      program.app->add_subcommand("doctor", "Show what the program sees of this machine and what it chose");
  app->add_flag("--json", *json, "Print one JSON object instead of text");
  app->callback([&program, json] { program.run = [json] { return run_doctor(*json); }; });
}

}  // namespace deepinfer
