// What `deepinfer doctor` says: facts of the machine in, warnings, JSON and text out. Pure: the facts are
// gathered by cmd_doctor.cc, so that every warning can be tested on a machine nobody owns.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "host/limits.h"
#include "host/topology.h"

namespace deepinfer {

struct KernelChoice {
  std::string kernel;        // "linear", "attend", ...
  std::string instructions;  // "AVX3_ZEN4", "scalar" where the plain definition runs, "scalar by design"
                             // where it always does
};

struct DoctorFacts {
  std::string build;  // "release", "debug", "address sanitizer", ...
  CpuInfo cpu;
  std::vector<std::string> instruction_levels;  // that this CPU has, best first
  std::string instruction_level;                // in use
  std::string numeric_profile;                  // names the arithmetic of native mode (kernels.h)
  std::vector<KernelChoice> native_kernels;
  std::string math_kernels;  // name of the back end of math mode
  Topology topology;
  int allowed_cpus = 0;
  int threads = 0;  // what the program starts by default
  CgroupLimits cgroup;
  MemoryInfo memory;
};

// One sentence for each thing that makes the program slower than the machine could be, most costly first:
// what, and what to do.
std::vector<std::string> doctor_warnings(const DoctorFacts& facts);

// Stable keys: build, cpu, kernels, threads, numa_nodes, memory, warnings.
nlohmann::ordered_json doctor_json(const DoctorFacts& facts);

std::string doctor_text(const DoctorFacts& facts);

}  // namespace deepinfer
