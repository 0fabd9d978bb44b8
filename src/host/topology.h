// The shape of the machine: packages, cores, hardware threads, caches, NUMA nodes. Read through hwloc, from
// this machine or from one described in words, so that placement is testable without owning the machine. Does
// not know limits (host/limits.h) beyond the affinity mask, which hides CPUs from `cpu_order`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct NumaNode {
  int os_index = 0;
  int cores = 0;
  int cpus = 0;              // hardware threads
  int64_t memory_bytes = 0;  // 0: unknown
};

struct Topology {
  int packages = 0;
  int cores = 0;
  int cpus = 0;          // hardware threads
  int64_t l2_bytes = 0;  // of the first core; 0: unknown
  int64_t l3_bytes = 0;
  std::vector<NumaNode> nodes;
  // Operating system numbers of the CPUs in the affinity mask, one thread of every core first, then the
  // second threads: the first n are where n threads disturb each other least.
  std::vector<int> cpu_order;
  std::vector<int> cpu_node;  // of each CPU of cpu_order, where its memory is: a place in `nodes`
};

// CPUs for `threads` threads, taking turns between the memory nodes that have any allowed CPU, each node's in
// `cpu_order`; and the node of each, counted from 0 over the nodes used. Empty where fewer CPUs are allowed
// than threads asked for.
struct ThreadPlan {
  std::vector<int> cpu, group;
  int groups = 1;
};
ThreadPlan plan_threads(const Topology& topology, int threads);

// This machine. Never fails: where hwloc sees nothing, one node with the allowed CPUs. Costs milliseconds.
Topology read_topology();

// A machine from hwloc's synthetic description ("numa:2 core:4 pu:2"). kInvalidArgument when hwloc refuses
// it. Its cpu_order has all CPUs.
Result<Topology> synthetic_topology(const std::string& description);

}  // namespace deepinfer
