// Holds the engine to the scores that the PyTorch reference reached with the shipped weights: within one
// point per skill on the same items. Skipped until a checkpoint with reference scores ships.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/eval_measures.h"
#include "host/files.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

// Rows the reference replays at the end of a prompt (tools/train/evaluate.py).
constexpr int64_t kReferenceKeep = 140;

TEST(EvalReference, EngineScoresWithinOnePoint) {
  const fs::path model = fs::path(DEEPINFER_SOURCE_DIR) / "models" / "deepinfer-tiny";
  fs::path scores = model / "suites" / "reference.json";
  if (!fs::exists(scores)) scores = model / "suites" / "reference_scores.json";
  if (!fs::exists(model / "config.json")) GTEST_SKIP() << "no trained checkpoint in " << model;
  if (!fs::exists(scores))
    GTEST_SKIP() << "no reference scores in " << scores << "; tools/train/evaluate.py --out writes them";
  const auto reference =
      nlohmann::ordered_json::parse(read_file(scores.string(), 1 << 20).value(), nullptr, false);
  ASSERT_TRUE(reference.is_object()) << scores;
  const auto weights = load_checkpoint(model.string());
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  ThreadPool pool(ThreadPool::usable_cpus());
  EvalRunner runner(&*weights, &pool);
  const auto index = read_suite_index((model / "suites").string(), weights->config.vocab_size);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  for (const auto& [name, expected] : reference.items()) {
    const auto suite = read_suite(*index, name, weights->config, expected.at("items").get<int64_t>());
    ASSERT_TRUE(suite.ok()) << suite.status().to_string();
    ASSERT_EQ(static_cast<int64_t>(suite->items.size()), expected.at("items").get<int64_t>()) << name;
    const auto result = run_suite(&runner, *suite, kReferenceKeep, 0, nullptr);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    // In whole items: the last bit of a difference of shares would decide about exactly one point.
    const auto items = static_cast<int64_t>(suite->items.size());
    const auto right =
        static_cast<int64_t>(std::lround(expected.at("score").get<double>() * static_cast<double>(items)));
    EXPECT_LE(100 * std::abs(result->right - right), items) << name << ": engine " << result->score();
    fmt::print("{}: engine {:.4f}, reference {:.4f}, {} items\n", name, result->score(),
               expected.at("score").get<double>(), suite->items.size());
  }
}

}  // namespace
}  // namespace deepinfer
