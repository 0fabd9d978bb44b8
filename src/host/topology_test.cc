// Topology of machines described in words, and that this machine's answer hangs together.
#include "host/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "host/limits.h"

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
}

}  // namespace
}  // namespace deepinfer
