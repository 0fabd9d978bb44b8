// The doctor's findings as warnings, JSON and text. See doctor_report.h.
#include "apps/doctor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace deepinfer {
namespace {

// Flags worth showing: those that decide which vector code can run.
const char* const kShownFlags[] = {
    "avx2",        "fma",      "f16c",     "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_bf16", "amx_int8", "asimd",    "asimddp", "bf16",     "i8mm",        "sve"};

std::vector<std::string> shown_flags(const CpuInfo& cpu) {
  std::vector<std::string> out;
  for (const char* flag : kShownFlags) {
    if (cpu.has(flag)) out.push_back(flag);
  }
  return out;
}

std::string gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

std::vector<std::string> scalar_kernels(const DoctorFacts& f) {
  std::vector<std::string> out;
  for (const KernelChoice& k : f.native_kernels) {
    if (k.instructions == "scalar") out.push_back(k.kernel);
  }
  return out;
}

void warn_kernels(const DoctorFacts& f, std::vector<std::string>* out) {
  if (!f.instruction_levels.empty() && f.instruction_level != f.instruction_levels.front()) {
    out->push_back(fmt::format("instruction level {} is in use although this CPU has {}", f.instruction_level,
                               f.instruction_levels.front()));
  }
  std::vector<std::string> scalar = scalar_kernels(f);
  if (!scalar.empty()) {
    out->push_back(
        fmt::format("no vector version on this CPU, running scalar code: {}", fmt::join(scalar, ", ")));
  }
  bool x86 = f.cpu.has("sse2");
  if (x86 && !f.cpu.has("avx2")) {
    out->push_back(
        "this CPU has no AVX2: vector code runs at a quarter of the width of AVX-512; use a newer CPU");
  } else if (x86 && !f.cpu.has("avx512f")) {
    out->push_back("this CPU has AVX2 only: vector code runs at half the width of AVX-512");
  }
}

void warn_cpus(const DoctorFacts& f, std::vector<std::string>* out) {
  if (f.cgroup.cpu_quota > 0 && f.cgroup.cpu_quota < f.allowed_cpus) {
    out->push_back(
        fmt::format("the cgroup's CPU quota of {:.2f} is below the {} CPUs of the affinity mask: {} threads "
                    "are used; raise the "
                    "quota (cpu.max, or the container's CPU limit)",
                    f.cgroup.cpu_quota, f.allowed_cpus, f.threads));
  }
  if (f.allowed_cpus < f.topology.cpus) {
    out->push_back(fmt::format(
        "the affinity mask allows {} of the machine's {} CPUs (taskset, cpuset or container limit)",
        f.allowed_cpus, f.topology.cpus));
  }
  if (f.topology.nodes.size() > 1) {
    out->push_back(fmt::format(
        "{} NUMA nodes: weights are copied, every node its rows, where memory has room for the copy "
        "(--weights copy insists); mapped ones are read across nodes",
        f.topology.nodes.size()));
  }
}

void warn_memory(const DoctorFacts& f, std::vector<std::string>* out) {
  if (f.memory.transparent_huge_pages.empty()) {
    out->push_back(
        "this kernel offers no transparent huge pages: large weights cost more address translation");
  } else if (f.memory.transparent_huge_pages == "never") {
    out->push_back(
        "transparent huge pages are off: large weights cost more address translation; as root: "
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  }
  if (f.cgroup.memory_limit_bytes > 0 && f.cgroup.memory_limit_bytes < f.memory.total_bytes) {
    out->push_back(fmt::format(
        "the cgroup limits memory to {} of the machine's {}; mapped weights beyond it are read from disk "
        "again and again",
        gib(f.cgroup.memory_limit_bytes), gib(f.memory.total_bytes)));
  }
}

std::string limit_text(int64_t limit) {
  return limit < 0 ? "unlimited" : std::to_string(limit);
}

}  // namespace

std::vector<std::string> doctor_warnings(const DoctorFacts& f) {
  std::vector<std::string> out;
  if (f.build != "release")
    out.push_back(fmt::format("this is a {} build: use ./run build for speed", f.build));
  warn_kernels(f, &out);
  warn_cpus(f, &out);
  warn_memory(f, &out);
  return out;
}

nlohmann::ordered_json doctor_json(const DoctorFacts& f) {
  using Json = nlohmann::ordered_json;
  Json j;
  j["build"] = f.build;
  j["cpu"] = {{"model", f.cpu.model},
              {"flags", shown_flags(f.cpu)},
              {"instruction_levels", f.instruction_levels},
              {"instruction_level", f.instruction_level},
              {"numeric_profile", f.numeric_profile}};
  Json native = Json::object();
  for (const KernelChoice& k : f.native_kernels) native[k.kernel] = k.instructions;
  j["kernels"] = {{"native", native}, {"math", f.math_kernels}};
  j["threads"] = {{"packages", f.topology.packages},
                  {"cores", f.topology.cores},
                  {"cpus", f.topology.cpus},
                  {"allowed_cpus", f.allowed_cpus},
                  {"cgroup_version", f.cgroup.version},
                  {"cpu_quota", f.cgroup.cpu_quota > 0 ? Json(f.cgroup.cpu_quota) : Json(nullptr)},
                  {"used", f.threads},
                  {"l2_bytes", f.topology.l2_bytes},
                  {"l3_bytes", f.topology.l3_bytes}};
  j["numa_nodes"] = Json::array();
  for (const NumaNode& n : f.topology.nodes) {
    j["numa_nodes"].push_back(
        {{"id", n.os_index}, {"cores", n.cores}, {"cpus", n.cpus}, {"memory_bytes", n.memory_bytes}});
  }
  const MemoryInfo& m = f.memory;
  bool limited = f.cgroup.memory_limit_bytes > 0;
  j["memory"] = {
      {"total_bytes", m.total_bytes},
      {"available_bytes", m.available_bytes},
      {"cgroup_limit_bytes", limited ? Json(f.cgroup.memory_limit_bytes) : Json(nullptr)},
      {"usable_bytes", usable_memory_bytes(m, f.cgroup)},
      {"transparent_huge_pages", m.transparent_huge_pages},
      {"huge_page_bytes", m.huge_page_bytes},
      {"huge_pages_total", m.huge_pages_total},
      {"huge_pages_free", m.huge_pages_free},
      {"locked_limit_bytes", m.locked_limit_bytes < 0 ? Json(nullptr) : Json(m.locked_limit_bytes)},
      {"open_files_limit", m.open_files_limit < 0 ? Json(nullptr) : Json(m.open_files_limit)}};
  j["warnings"] = doctor_warnings(f);
  return j;
}

std::string doctor_text(const DoctorFacts& f) {
  std::string out;
  auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<13}{}\n", name, value);
  };
  line("build", f.build);
  line("cpu", f.cpu.model.empty() ? "unknown" : f.cpu.model);
  line("flags", fmt::format("{}", fmt::join(shown_flags(f.cpu), " ")));
  line("instructions",
       fmt::format("{} (this CPU has: {})", f.instruction_level, fmt::join(f.instruction_levels, " ")));
  for (size_t i = 0; i < f.native_kernels.size(); ++i) {
    const KernelChoice& k = f.native_kernels[i];
    line(i == 0 ? "kernels" : "", fmt::format("{:<18}{}", k.kernel, k.instructions));
  }
  line("", fmt::format("{:<18}{}", "(math mode)", f.math_kernels));
  line("cores", fmt::format("{} packages, {} cores, {} hardware threads; L2 {} KiB, L3 {} KiB",
                            f.topology.packages, f.topology.cores, f.topology.cpus,
                            f.topology.l2_bytes / 1024, f.topology.l3_bytes / 1024));
  std::string quota = f.cgroup.cpu_quota > 0 ? fmt::format("{:.2f} CPUs", f.cgroup.cpu_quota) : "none";
  line("limits", fmt::format("affinity mask {} CPUs, cgroup{} quota {}", f.allowed_cpus,
                             f.cgroup.version > 0 ? fmt::format(" v{}", f.cgroup.version) : "", quota));
  line("threads", fmt::format("{} used unless told otherwise", f.threads));
  for (const NumaNode& n : f.topology.nodes) {
    line("numa",
         fmt::format("node {}: {} cores, {} CPUs, {}", n.os_index, n.cores, n.cpus, gib(n.memory_bytes)));
  }
  const MemoryInfo& m = f.memory;
  std::string limit = f.cgroup.memory_limit_bytes > 0 ? gib(f.cgroup.memory_limit_bytes) : "none";
  line("memory", fmt::format("{} total, {} available, cgroup limit {}; usable {}", gib(m.total_bytes),
                             gib(m.available_bytes), limit, gib(usable_memory_bytes(m, f.cgroup))));
  line("huge pages",
       fmt::format("transparent: {}; reserved: {} of {} KiB, {} free",
                   m.transparent_huge_pages.empty() ? "not in this kernel" : m.transparent_huge_pages,
                   m.huge_pages_total, m.huge_page_bytes / 1024, m.huge_pages_free));
  line("files", fmt::format("open files {}, locked memory {} bytes", limit_text(m.open_files_limit),
                            limit_text(m.locked_limit_bytes)));
  std::vector<std::string> warnings = doctor_warnings(f);
  for (const std::string& w : warnings) line("WARNING", w);
  if (warnings.empty()) line("verdict", "nothing slow was chosen");
  return out;
}

}  // namespace deepinfer
