// Topology through hwloc. See topology.h.
#include "host/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include "host/limits.h"

namespace deepinfer {
namespace {

struct Destroy {
  void operator()(hwloc_topology* t) const { hwloc_topology_destroy(t); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

int count(hwloc_topology_t t, hwloc_obj_type_t type) {
  return std::max(0, hwloc_get_nbobjs_by_type(t, type));
}

int count_inside(hwloc_topology_t t, hwloc_const_cpuset_t set, hwloc_obj_type_t type) {
  return std::max(0, hwloc_get_nbobjs_inside_cpuset_by_type(t, set, type));
}

int64_t cache_bytes(hwloc_topology_t t, hwloc_obj_type_t type) {
  hwloc_obj_t cache = hwloc_get_obj_by_type(t, type, 0);
  return cache == nullptr ? 0 : static_cast<int64_t>(cache->attr->cache.size);
}

// One PU of each core in turn: all first threads, then all second ones.
std::vector<int> order_cpus(hwloc_topology_t t) {
  std::vector<int> order;
  int cores = count(t, HWLOC_OBJ_CORE);
  for (int round = 0; order.size() < static_cast<size_t>(count(t, HWLOC_OBJ_PU)); ++round) {
    size_t before = order.size();
    for (int c = 0; c < cores; ++c) {
      hwloc_obj_t core = hwloc_get_obj_by_type(t, HWLOC_OBJ_CORE, static_cast<unsigned>(c));
      hwloc_obj_t pu =
          hwloc_get_obj_inside_cpuset_by_type(t, core->cpuset, HWLOC_OBJ_PU, static_cast<unsigned>(round));
      if (pu != nullptr) order.push_back(static_cast<int>(pu->os_index));
    }
    if (order.size() == before) break;  // PUs outside any core, or no cores reported
  }
  for (int p = 0; p < count(t, HWLOC_OBJ_PU); ++p) {
    int os = static_cast<int>(hwloc_get_obj_by_type(t, HWLOC_OBJ_PU, static_cast<unsigned>(p))->os_index);
    if (std::find(order.begin(), order.end(), os) == order.end()) order.push_back(os);
  }
  return order;
}

// The first node that is nearest to the CPU; 0 where none says so.
int node_of(hwloc_topology_t t, int cpu) {
  for (int i = 0; i < count(t, HWLOC_OBJ_NUMANODE); ++i) {
    hwloc_obj_t node = hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu))) return i;
  }
  return 0;
}

Topology describe(hwloc_topology_t t) {
  Topology out;
  out.packages = count(t, HWLOC_OBJ_PACKAGE);
  out.cores = count(t, HWLOC_OBJ_CORE);
  out.cpus = count(t, HWLOC_OBJ_PU);
  out.l2_bytes = cache_bytes(t, HWLOC_OBJ_L2CACHE);
  out.l3_bytes = cache_bytes(t, HWLOC_OBJ_L3CACHE);
  for (int i = 0; i < count(t, HWLOC_OBJ_NUMANODE); ++i) {
    hwloc_obj_t node = hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    out.nodes.push_back({static_cast<int>(node->os_index), count_inside(t, node->cpuset, HWLOC_OBJ_CORE),
                         count_inside(t, node->cpuset, HWLOC_OBJ_PU),
                         static_cast<int64_t>(node->attr->numanode.local_memory)});
  }
  out.cpu_order = order_cpus(t);
  for (int cpu : out.cpu_order) out.cpu_node.push_back(node_of(t, cpu));
  return out;
}

}  // namespace

Topology read_topology() {
  std::vector<int> allowed = allowed_cpus();
  Topology out;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) == 0) {
    Handle handle(raw);
    if (hwloc_topology_load(raw) == 0) out = describe(raw);
  }
  std::vector<int> order, nodes;
  for (size_t i = 0; i < out.cpu_order.size(); ++i) {
    if (!std::binary_search(allowed.begin(), allowed.end(), out.cpu_order[i])) continue;
    order.push_back(out.cpu_order[i]);
    nodes.push_back(out.cpu_node[i]);
  }
  if (order.empty()) {
    order = allowed;
    nodes.assign(allowed.size(), 0);
  }
  out.cpu_order = std::move(order);
  out.cpu_node = std::move(nodes);
  int seen = static_cast<int>(out.cpu_order.size());
  out.cpus = std::max(out.cpus, seen);
  if (out.cores == 0) out.cores = out.cpus;
  if (out.packages == 0) out.packages = 1;
  if (out.nodes.empty()) out.nodes.push_back({0, out.cores, out.cpus, 0});
  return out;
}

ThreadPlan plan_threads(const Topology& topology, int threads) {
  ThreadPlan plan;
  if (threads < 1 || topology.cpu_order.size() < static_cast<size_t>(threads)) return plan;
  std::vector<std::vector<int>> cpus(std::max<size_t>(1, topology.nodes.size()));
  for (size_t i = 0; i < topology.cpu_order.size(); ++i)
    cpus[static_cast<size_t>(topology.cpu_node[i])].push_back(topology.cpu_order[i]);
  std::erase_if(cpus, [](const std::vector<int>& c) { return c.empty(); });
  if (static_cast<size_t>(threads) < cpus.size()) {
    // Not a thread per node: memory is everybody's.
    plan.cpu.assign(topology.cpu_order.begin(), topology.cpu_order.begin() + threads);
    plan.group.assign(static_cast<size_t>(threads), 0);
    return plan;
  }
  plan.groups = static_cast<int>(cpus.size());
  for (size_t turn = 0; plan.cpu.size() < static_cast<size_t>(threads); ++turn) {
    for (size_t g = 0; g < cpus.size() && plan.cpu.size() < static_cast<size_t>(threads); ++g) {
      if (turn >= cpus[g].size()) continue;
      plan.cpu.push_back(cpus[g][turn]);
      plan.group.push_back(static_cast<int>(g));
    }
  }
  return plan;
}

Result<Topology> synthetic_topology(const std::string& description) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return error(Code::kResourceExhausted, "hwloc cannot allocate a topology");
  Handle handle(raw);
  if (hwloc_topology_set_synthetic(raw, description.c_str()) != 0 || hwloc_topology_load(raw) != 0) {
    return error(Code::kInvalidArgument,
                 "'{}' is not a machine hwloc understands; write for example 'numa:2 core:4 pu:2'",
                 description);
  }
  return describe(raw);
}

}  // namespace deepinfer
