// The step bench measures the engine's own forward pass: its parts add up to the whole, its bytes and
// operations are those of the matrices, and points that cannot be are refused.
#include "apps/bench_step.h"

#include "engine_fixture.h"
#include "model/tensor_table.h"

namespace deepinfer::parity {
namespace {

StepBenchOptions points(std::vector<int64_t> rows, std::vector<int64_t> contexts) {
  StepBenchOptions o;
  o.rows = std::move(rows);
  o.contexts = std::move(contexts);
  o.steps = 3;
  return o;
}

int64_t sum_of_parts(const StepProfile& p) {
  int64_t sum = 0;
  for (const StepProfile::Line& l : p.lines) sum += l.ns;
  return sum;
}

TEST(BenchStep, PartsOfADecodeStepAddUpToTheWhole) {
  ThreadPool pool(2);
  auto p = measure_decode(weights("t0"), &pool, points({1, 3}, {0, 64}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  ASSERT_EQ(p->size(), 8u);  // two contexts, two row counts, with and without the head
  for (const StepPoint& x : *p) {
    EXPECT_EQ(x.profile.calls, 3);
    EXPECT_GT(x.seconds, 0);
    double whole = static_cast<double>(x.profile.total_ns),
           parts = static_cast<double>(sum_of_parts(x.profile));
    EXPECT_LE(parts, whole);
    EXPECT_GE(parts, 0.95 * whole) << x.rows << " rows, context " << x.context;
    EXPECT_EQ(x.head, x.profile[StepPart::kHead].work.macs > 0);
  }
}

TEST(BenchStep, CountsWeightBytesOnceAndOperationsPerRow) {
  const ModelWeights& w = weights("t0");
  ThreadPool pool(1);
  auto p = measure_decode(w, &pool, points({1, 4}, {64}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  const StepPoint &one = (*p)[0], &four = (*p)[2];
  int64_t head = matrix_bytes(w.head, w.head.rows);
  EXPECT_EQ(one.profile[StepPart::kHead].work.bytes, 3 * head);
  EXPECT_EQ(four.profile[StepPart::kHead].work.bytes, 3 * head);
  EXPECT_EQ(four.profile[StepPart::kHead].work.macs, 4 * one.profile[StepPart::kHead].work.macs);
  EXPECT_EQ(one.profile[StepPart::kHead].work.macs, 3 * w.head.rows * w.head.cols);
  EXPECT_EQ(four.profile[StepPart::kQueries].work.bytes, one.profile[StepPart::kQueries].work.bytes);
  EXPECT_EQ(four.profile[StepPart::kQueries].work.macs, 4 * one.profile[StepPart::kQueries].work.macs);
}

TEST(BenchStep, PrefillRunsTheDecoderOnItsLastWindowOnly) {
  const ModelWeights& w = weights("t0");
  ThreadPool pool(2);
  auto p = measure_prefill(w, &pool, points({16, 128}, {0}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  ASSERT_EQ(p->size(), 2u);
  EXPECT_GT((*p)[1].macs, (*p)[0].macs);
  EXPECT_LT((*p)[1].macs, 8 * (*p)[0].macs);  // eight times the rows, but not in the decoder half
}

TEST(BenchStep, PointsBeyondTheContextAreRefused) {
  const ModelWeights& w = weights("t0");
  ThreadPool pool(1);
  auto p = measure_decode(w, &pool, points({1}, {w.config.max_position_embeddings}));
  EXPECT_EQ(p.status().code(), Code::kInvalidArgument);
  EXPECT_NE(p.status().to_string().find("context"), std::string::npos);
}

TEST(BenchStep, LinesStateTheLimitAndTheSum) {
  ThreadPool pool(1);
  auto p = measure_decode(weights("t0"), &pool, points({1}, {16}));
  ASSERT_TRUE(p.ok());
  std::vector<BenchLine> limits{{"read", "memory", 0, 1, 10, "GB/s", 10, 1, ""},
                                {"multiply_add", "int8", 0, 1, 100, "Gop/s", 100, 1, ""}};
  auto lines = decode_lines(*p, limits, 1, true);
  EXPECT_EQ(lines[0].op, "decode_step");
  EXPECT_EQ(lines[0].limit, 10);
  EXPECT_NEAR(lines[0].share, lines[0].achieved / 10, 1e-12);
  bool sum = false;
  for (const BenchLine& l : lines) sum = sum || l.op == "decode_step.sum_of_parts";
  EXPECT_TRUE(sum);
}

TEST(BenchStep, TokenCostOfTheReleaseIsTheOneOfItsTensorTable) {
  ModelConfig c = builtin_config("v41-flash").value();
  TokenCost cost = token_cost(c);
  TensorTotals totals = tensor_totals(c);
  double embedding = 2.0 * static_cast<double>(c.vocab_size) * static_cast<double>(c.hidden_size);
  double routed = static_cast<double>(totals.class_bytes[static_cast<int>(TensorClass::kRoutedExpert)]) *
                  c.num_experts_per_tok / c.n_routed_experts;
  EXPECT_NEAR(cost.bytes,
              static_cast<double>(totals.class_bytes[static_cast<int>(TensorClass::kBackbone)]) - embedding +
                  routed + static_cast<double>(engram_bytes_per_token(c)),
              1.0);
  EXPECT_GT(cost.encoder_macs, 0);
  EXPECT_GT(cost.decoder_macs, 0);
  EXPECT_EQ(cost.head_macs, 129280.0 * 5120.0);
}

}  // namespace
}  // namespace deepinfer::parity
