// The inspector's stable JSON keys with the released numbers, the slices of synth, and the text for people.
#include "apps/inspect_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/config_source.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

InspectFacts facts_of(const char* name) {
  InspectFacts f;
  f.config = builtin_config(name).value();
  f.context_tokens = f.config.max_position_embeddings;
  return f;
}

TEST(InspectReport, JsonHasTheReleasedNumbers) {
  const auto j = inspect_json(facts_of("v41-flash"));
  EXPECT_EQ(j["name"], "v41-flash");
  EXPECT_EQ(j["tensors"]["total"]["count"], 96085);
  EXPECT_EQ(j["tensors"]["total"]["bytes"], 510286023000);
  EXPECT_EQ(j["tensors"]["by_class"]["routed_experts"]["count"], 92160);
  EXPECT_EQ(j["tensors"]["by_class"]["engram_tables"]["bytes"], 202758032400);
  EXPECT_EQ(j["tensors"]["by_dtype"]["I8"], 278585671680);
  EXPECT_EQ(j["kv_bytes_per_token"], 890);
  EXPECT_EQ(j["config"]["text_config"]["hidden_size"], 5120);
  EXPECT_EQ(j["memory"]["mapped_bytes"], 202758032400);
  EXPECT_FALSE(j.contains("check"));
}

TEST(InspectReport, JsonLayersAreTheLayerMap) {
  const auto layers = inspect_json(facts_of("v41-flash"))["layers"];
  ASSERT_EQ(layers.size(), 40u);
  EXPECT_TRUE(layers[0]["kv_source"].is_null());
  EXPECT_EQ(layers[1]["engram_table"], 0);
  EXPECT_EQ(layers[13]["kv_source"], 8);
  EXPECT_EQ(layers[20]["role"], "full");
  EXPECT_EQ(layers[20]["candidate_source"], true);
  EXPECT_EQ(layers[36]["role"], "reindex");
  EXPECT_EQ(layers[36]["kv_source"], 20);
  EXPECT_EQ(layers[39]["index_source"], 36);
  EXPECT_EQ(layers[39]["tap"], 2);
}

TEST(InspectReport, TextFoldsEqualLayers) {
  const std::string text = inspect_text(facts_of("v41-flash"));
  EXPECT_THAT(text, HasSubstr("\n3-7 "));
  EXPECT_THAT(text, HasSubstr("\n21-23 "));
  EXPECT_THAT(text, HasSubstr("510,286,023,000"));
  EXPECT_THAT(text, HasSubstr("890 bytes per token"));
  EXPECT_THAT(text, Not(HasSubstr("check:")));
}

TEST(InspectReport, ReportsTheCheck) {
  InspectFacts f = facts_of("t0");
  f.check = CheckOutcome{};
  EXPECT_EQ(inspect_json(f)["check"]["ok"], true);
  EXPECT_THAT(inspect_text(f), HasSubstr("every tensor and value is right"));
  f.check = CheckOutcome{3, {"one", "two"}, 0.5};
  const auto j = inspect_json(f);
  EXPECT_EQ(j["check"]["ok"], false);
  EXPECT_EQ(j["check"]["problem_count"], 3);
  EXPECT_EQ(j["check"]["problems"].size(), 2u);
  EXPECT_THAT(inspect_text(f), HasSubstr("and 1 more"));
}

TEST(ConfigSource, NamesWhatCouldHaveBeenMeant) {
  const auto r = named_config("v42-flash");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kNotFound);
  EXPECT_THAT(r.status().message(), HasSubstr("v41-flash, t0, t1, t2"));
}

TEST(ConfigSource, CutsTheReleasedModel) {
  SliceOptions slice;
  slice.layers = 8;
  slice.experts = 64;
  slice.engram_start = 1000003;
  const auto c = sliced_config("v41-flash", slice);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->num_hidden_layers, 8);
  EXPECT_EQ(c->n_routed_experts, 64);
  EXPECT_EQ(c->kv_source_layer_ids, (std::vector<int>{2, 4}));
  EXPECT_EQ(c->engram_layer_ids, (std::vector<int>{1, 3}));
  slice.layers = 7;
  EXPECT_EQ(sliced_config("v41-flash", slice).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer
