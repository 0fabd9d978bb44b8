// Worked numbers of serving specification 1.2, 1.4 and 1.5, and the solver against a binary search.
#include "policy/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "policy/test_random.h"

namespace deepinfer::policy {
namespace {

constexpr int64_t kChunkMax = 32768, kBlock = 128;

int64_t raw_rows(double budget_ns, int64_t context) {
  return std::min(kChunkMax, rows_within(CostModel{}, budget_ns, context));
}

int64_t aligned_rows(double budget_ns, int64_t context) {
  ChunkQuery q{budget_ns, context, int64_t{1} << 40, kChunkMax, kBlock, false};
  return solve_chunk(CostModel{}, q);
}

TEST(CostGolden, WorkedChunksAt400Milliseconds) {
  struct Row {
    int64_t context, rows;
    double ms;
  };
  for (const Row& r : {Row{0, 32768, 297.1}, Row{64000, 32768, 339.0}, Row{256000, 28215, 400.0},
                       Row{900000, 14798, 400.0}}) {
    EXPECT_EQ(raw_rows(400e6, r.context), r.rows) << r.context;
    EXPECT_NEAR(step_cost_ns(CostModel{}, r.rows, r.context) / 1e6, r.ms, 0.05) << r.context;
  }
}

TEST(CostGolden, ChunkTable) {
  struct Row {
    double budget_ms;
    int64_t context, raw, aligned;
  };
  const Row rows[] = {{100, 0, 11083, 11008},      {100, 16384, 10696, 10624},  {100, 65536, 9680, 9600},
                      {100, 262144, 7014, 6912},   {100, 524288, 5129, 5120},   {100, 1048576, 3335, 3328},
                      {200, 0, 22113, 22016},      {200, 16384, 21343, 21248},  {200, 65536, 19324, 19200},
                      {200, 262144, 14014, 13952}, {200, 524288, 10253, 10240}, {200, 1048576, 6670, 6656},
                      {400, 0, 32768, 32768},      {400, 16384, 32768, 32768},  {400, 65536, 32768, 32768},
                      {400, 262144, 27974, 27904}, {400, 524288, 20484, 20480}, {400, 1048576, 13334, 13312}};
  for (const Row& r : rows) {
    EXPECT_EQ(raw_rows(r.budget_ms * 1e6, r.context), r.raw) << r.budget_ms << " " << r.context;
    EXPECT_EQ(aligned_rows(r.budget_ms * 1e6, r.context), r.aligned) << r.budget_ms << " " << r.context;
  }
}

TEST(CostGolden, SharedStep) {
  CostModel m;
  double placed = rows_cost_ns(m, 2000, 10000);
  EXPECT_NEAR(placed / 1e6, 18.408, 0.0005);
  EXPECT_EQ(rows_within(m, 400e6 - placed, 256000), 26922);
}

TEST(CostGolden, PartitionOfTheIllustrativeModel) {
  // b = 10 a is not invariant under splitting: 900,000 tokens in one shot and in chunks of 400 ms.
  CostModel m;
  EXPECT_NEAR(step_cost_ns(m, 900000, 0) / 1e9, 9.72, 0.005);
  double total = 0;
  int chunks = 0;
  for (int64_t c = 0; c < 900000; ++chunks) {
    int64_t q = std::min<int64_t>(raw_rows(400e6, c), 900000 - c);
    total += step_cost_ns(m, q, c);
    c += q;
  }
  EXPECT_NEAR(total / 1e9, 16.03, 0.02);
  EXPECT_EQ(chunks, 41);
}

TEST(CostProperty, EqualTotalsForEveryPartitionWhenBIsTwiceA) {
  TestRandom random(1);
  CostModel m{3e-3, 6e-3, 5e3, 0, 0, 0, 0};
  for (int round = 0; round < 1000; ++round) {
    int64_t length = random.in(1, 1000000), done = 0;
    double total = 0;
    while (done < length) {
      int64_t q = std::min(length - done, random.in(1, 40000));
      total += step_cost_ns(m, q, done);
      done += q;
    }
    EXPECT_NEAR(total / step_cost_ns(m, length, 0), 1.0, 1e-12);
  }
}

TEST(CostProperty, SolverIsTheBinarySearchAndMonotone) {
  TestRandom random(2);
  for (int round = 0; round < 20000; ++round) {
    CostModel m{random.unit() * 1e-2, random.unit() * 1e-1, random.unit() * 1e5, 0, 0, 0, 0};
    if (round % 7 == 0) m.a = 0;
    if (round % 11 == 0) m.b = 0;
    double budget = random.unit() * 1e9;
    int64_t c = random.in(0, 1 << 20);
    int64_t q = rows_within(m, budget, c);
    if (q > (1 << 26)) continue;
    EXPECT_LE(rows_cost_ns(m, q, c), budget);
    EXPECT_GT(rows_cost_ns(m, q + 1, c), budget);
    int64_t low = 0, high = 1 << 27;  // the cut that packing until the quota overflows would find
    while (low < high) {
      int64_t mid = (low + high + 1) / 2;
      (rows_cost_ns(m, mid, c) <= budget ? low : high) = rows_cost_ns(m, mid, c) <= budget ? mid : mid - 1;
    }
    EXPECT_EQ(q, low);
    EXPECT_GE(q, rows_within(m, budget, c + 1000));
    EXPECT_LE(q, rows_within(m, budget * 1.01, c));
  }
}

TEST(CostSolver, NothingLeftAndProgress) {
  CostModel m;
  EXPECT_EQ(solve_chunk(m, {0, 0, 1000, kChunkMax, kBlock, false}), 0);
  EXPECT_EQ(solve_chunk(m, {-5, 0, 1000, kChunkMax, kBlock, true}), 128);
  EXPECT_EQ(solve_chunk(m, {-5, 0, 60, kChunkMax, kBlock, true}), 60);
  // From an unaligned context the chunk ends on the next boundary.
  EXPECT_EQ(solve_chunk(m, {-5, 100, 1000, kChunkMax, kBlock, true}), 28);
  EXPECT_EQ(solve_chunk(m, {300 * 9000.0, 100, 1000, kChunkMax, kBlock, false}), 284);
  // All that remains is never cut to a boundary.
  EXPECT_EQ(solve_chunk(m, {1e9, 0, 1000, kChunkMax, kBlock, false}), 1000);
  EXPECT_EQ(solve_chunk(CostModel{0, 0, 0, 0, 0, 0, 0}, {1, 0, 1 << 20, kChunkMax, kBlock, false}),
            kChunkMax);
}

TEST(Budget, TheGroupUsesTheLeastAndIdleRanksDoNotShortenIt) {
  EXPECT_EQ(propose_budget({false, 400, 10, 0}), kNoWork);
  EXPECT_EQ(propose_budget({true, 400, 10, 1000}), 400);
  EXPECT_EQ(propose_budget({true, 400, 10, 250}), 250);
  EXPECT_EQ(propose_budget({true, 400, 10, 3}), 10);
  EXPECT_EQ(propose_budget({true, 5, 10, 1000}), 10);
  const int64_t some[] = {400, kNoWork, 250, 300};
  EXPECT_EQ(agree_budget(some, 4), 250);
  const int64_t idle[] = {kNoWork, kNoWork};
  EXPECT_EQ(agree_budget(idle, 2), kNoWork);
}

}  // namespace
}  // namespace deepinfer::policy
