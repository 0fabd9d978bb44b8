// Topology of machines described in words, and that this machine's answer hangs together.
#include "host/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "host/limits.h"
#include "host/row_share.h"

namespace deepinfer {
namespace {

TEST(Topology, TwoNodesWithHardwareThreads) {
  Result<Topology> t =
      synthetic_topology("package:2 numa:1(memory=1GB) l3:1(size=32MB) l2:4(size=1MB) core:1 pu:2");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ(t->packages, 2);
  EXPECT_EQ(t->cores, 8);
  EXPECT_EQ(t->cpus, 16);
  ASSERT_EQ(t->nodes.size(), 2u);
  EXPECT_EQ(t->nodes[1].os_index, 1);
  EXPECT_EQ(t->nodes[1].cores, 4);
  EXPECT_EQ(t->nodes[1].cpus, 8);
  EXPECT_EQ(t->nodes[1].memory_bytes, 1000000000);
  EXPECT_EQ(t->l3_bytes, 32000000);
  // One thread per core first: even numbers, then odd ones.
  EXPECT_EQ(t->cpu_order, (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15}));
}

TEST(Topology, LargeMachine) {
  Result<Topology> t = synthetic_topology("numa:8 core:16 pu:2");
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(t->cpus, 256);
  EXPECT_EQ(t->nodes.size(), 8u);
  std::vector<int> sorted = t->cpu_order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  EXPECT_EQ(sorted.size(), 256u);
}

TEST(Topology, ThreadsTakeTurnsBetweenNodes) {
  Topology t = *synthetic_topology("numa:2 core:2 pu:2");
  EXPECT_EQ(t.cpu_order, (std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(t.cpu_node, (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1}));
  ThreadPlan four = plan_threads(t, 4);
  EXPECT_EQ(four.groups, 2);
  EXPECT_EQ(four.cpu, (std::vector<int>{0, 4, 2, 6})) << "one thread of every core first";
  EXPECT_EQ(four.group, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(plan_threads(t, 3).group, (std::vector<int>{0, 1, 0}));
  ThreadPlan one = plan_threads(t, 1);
  EXPECT_EQ(one.groups, 1) << "no thread per node";
  EXPECT_EQ(one.cpu, std::vector<int>{0});
  EXPECT_TRUE(plan_threads(t, 9).cpu.empty());
  EXPECT_TRUE(plan_threads(t, 0).cpu.empty());
  // Only the second node's CPUs are allowed: one node is used, and it is number 0.
  t.cpu_order = {4, 6, 5, 7};
  t.cpu_node = {1, 1, 1, 1};
  EXPECT_EQ(plan_threads(t, 2).groups, 1);
  EXPECT_EQ(plan_threads(t, 2).group, (std::vector<int>{0, 0}));
  // Nodes of unequal size: the larger one takes what is left.
  t.cpu_order = {0, 2, 4, 6, 5};
  t.cpu_node = {0, 1, 1, 1, 1};
  EXPECT_EQ(plan_threads(t, 5).group, (std::vector<int>{0, 1, 1, 1, 1}));
}

TEST(RowShare, PartsCoverAMatrixOnce) {
  for (int64_t rows : {1, 24, 32, 63, 64, 1000, 5120, 129280}) {
    for (int parts : {1, 2, 3, 8}) {
      int64_t at = 0;
      for (int p = 0; p < parts; ++p) {
        RowShare s = row_share(rows, p, parts);
        EXPECT_EQ(s.begin, at);
        EXPECT_LE(s.begin, s.end);
        EXPECT_TRUE(p + 1 == parts || s.end % 32 == 0);
        EXPECT_TRUE(rows < 32 * parts || s.end - s.begin < rows / parts + 33);
        at = s.end;
      }
      EXPECT_EQ(at, rows);
    }
  }
}

TEST(Topology, NonsenseIsRefused) {
  Result<Topology> t = synthetic_topology("two sockets please");
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().code(), Code::kInvalidArgument);
}

TEST(Topology, ThisMachine) {
  Topology t = read_topology();
  EXPECT_GE(t.packages, 1);
  EXPECT_GE(t.cores, 1);
  EXPECT_GE(t.cpus, t.cores);
  EXPECT_FALSE(t.nodes.empty());
  std::vector<int> sorted = t.cpu_order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, allowed_cpus());
  ASSERT_EQ(t.cpu_node.size(), t.cpu_order.size());
  for (int node : t.cpu_node) EXPECT_LT(static_cast<size_t>(node), t.nodes.size());
}

}  // namespace
}  // namespace deepinfer
