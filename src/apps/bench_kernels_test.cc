// Every op of the kernel bench appears once per row count, with a positive share of a limit of the same run.
#include "apps/bench_kernels.h"

#include <gtest/gtest.h>

#include <set>

namespace deepinfer {
namespace {

KernelBenchOptions toy() {
  KernelBenchOptions o;
  o.threads = 2;
  o.seconds = 0.001;
  o.limit_seconds = 0.02;
  o.cache_bytes = 1 << 16;
  o.small = true;
  return o;
}

TEST(BenchKernels, EveryOpIsHeldAgainstALimitOfTheRun) {
  auto lines = measure_kernels(read_topology(), toy());
  ASSERT_TRUE(lines.ok()) << lines.status().to_string();
  std::set<std::string> ops;
  for (const BenchLine& l : *lines) {
    EXPECT_GT(l.achieved, 0) << l.op;
    EXPECT_GT(l.limit, 0) << l.op;
    EXPECT_NEAR(l.share, l.achieved / l.limit, 1e-9) << l.op;
    ops.insert(l.op);
  }
  for (const char* op : {"multiply_add", "read", "expert_gate_up", "expert_down", "dense_q_a", "dense_q_b",
                         "dense_bf16", "head", "grouped_gate_up", "grouped_down", "index_scan"})
    EXPECT_TRUE(ops.count(op)) << op;
}

TEST(BenchKernels, OnlyChoosesByName) {
  auto o = toy();
  o.only = "index";
  auto lines = measure_kernels(read_topology(), o);
  ASSERT_TRUE(lines.ok());
  for (const BenchLine& l : *lines)
    EXPECT_TRUE(l.op == "index_scan" || l.op == "read" || l.op == "multiply_add") << l.op;
  EXPECT_EQ(lines->back().op, "index_scan");
}

}  // namespace
}  // namespace deepinfer
