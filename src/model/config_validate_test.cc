// Every rule of model specification 11.1 is broken alone, on a configuration that is valid otherwise; the
// message must name the field and say the rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "model/config.h"
#include "model/engram.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* what;
  std::function<void(ModelConfig&)> breaks;
  const char* field;
  const char* rule;
};

// t0 moved to a layout with two ratio-2 sources, so that each rule about sources can be broken without
// breaking another.
ModelConfig base() {
  ModelConfig c = builtin_config("t0").value();
  c.num_hidden_layers = 12;
  c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0};
  c.kv_source_layer_ids = {2, 4, 6};
  c.index_source_layer_ids = {2, 4, 6, 9};
  c.candidate_source_layer_id = 6;
  c.dspark_target_layer_ids = {9, 10, 11};
  return c;
}

std::vector<Case> cases() {
  return {
      // 1
      {"too few ratios", [](ModelConfig& c) { c.compress_ratios.resize(11); }, "compress_ratios",
       "num_hidden_layers = 12"},
      {"too many ratios", [](ModelConfig& c) { c.compress_ratios.resize(16); }, "compress_ratios",
       "up to 3 more"},
      {"ratio 4", [](ModelConfig& c) { c.compress_ratios[3] = 4; }, "compress_ratios[3]", "between 0 and 2"},
      {"negative ratio", [](ModelConfig& c) { c.compress_ratios[0] = -1; }, "compress_ratios[0]",
       "between 0 and 2"},
      {"draft ratio", [](ModelConfig& c) { c.compress_ratios[13] = 1; }, "compress_ratios[13]",
       "draft layers have ratio 0"},
      // 2
      {"kv source of ratio 0", [](ModelConfig& c) { c.kv_source_layer_ids = {1, 2, 4, 6}; },
       "kv_source_layer_ids", "ratio above 0"},
      {"kv sources out of order", [](ModelConfig& c) { c.kv_source_layer_ids = {4, 2, 6}; },
       "kv_source_layer_ids", "strictly increasing"},
      {"kv source twice", [](ModelConfig& c) { c.kv_source_layer_ids = {2, 2, 6}; }, "kv_source_layer_ids",
       "strictly increasing"},
      {"kv source beyond the model", [](ModelConfig& c) { c.kv_source_layer_ids = {2, 6, 12}; },
       "kv_source_layer_ids", "num_hidden_layers is 12"},
      {"no kv source below", [](ModelConfig& c) { c.kv_source_layer_ids = {4, 6}; }, "kv_source_layer_ids",
       "no layer at or below layer 2"},
      {"source of another ratio", [](ModelConfig& c) { c.kv_source_layer_ids = {2, 4}; },
       "compress_ratios[6]", "the ratio of its source"},
      {"kv source without indexer", [](ModelConfig& c) { c.index_source_layer_ids = {2, 6, 9}; },
       "index_source_layer_ids", "lacks layer 4"},
      {"index source of ratio 0", [](ModelConfig& c) { c.index_source_layer_ids = {0, 2, 4, 6}; },
       "index_source_layer_ids", "ratio above 0"},
      {"index sources out of order", [](ModelConfig& c) { c.index_source_layer_ids = {2, 4, 9, 6}; },
       "index_source_layer_ids", "strictly increasing"},
      {"index source beyond the model", [](ModelConfig& c) { c.index_source_layer_ids.push_back(12); },
       "index_source_layer_ids", "num_hidden_layers is 12"},
      // 3
      {"odd layers",
       [](ModelConfig& c) {
         c.num_hidden_layers = 11;
         c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1};
         c.dspark_target_layer_ids = {8, 9, 10};
       },
       "num_hidden_layers", "must be even"},
      {"ratio 1 in the encoder", [](ModelConfig& c) { c.compress_ratios[4] = c.compress_ratios[5] = 1; },
       "compress_ratios[4]", "ratios 0 and 2 only"},
      {"ratio 2 in the decoder",
       [](ModelConfig& c) {
         c.compress_ratios[6] = 2;
         c.kv_source_layer_ids = {2, 4, 7};
         c.index_source_layer_ids = {2, 4, 7, 9};
         c.candidate_source_layer_id = 7;
       },
       "compress_ratios[6]", "ratio 1 only"},
      {"window layer in the decoder", [](ModelConfig& c) { c.compress_ratios[11] = 0; },
       "compress_ratios[11]", "ratio 1 only"},
      {"kv source after the middle",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {2, 4, 6, 9};
         c.candidate_source_layer_id = 9;
       },
       "kv_source_layer_ids", "must end with layer 6"},
      {"Engram in the decoder", [](ModelConfig& c) { c.engram_layer_ids = {1, 6}; }, "engram_layer_ids",
       "in the first half"},
      // 4
      {"candidate source without indexer", [](ModelConfig& c) { c.candidate_source_layer_id = 7; },
       "candidate_source_layer_id", "not in index_source_layer_ids"},
      {"candidate source without cache", [](ModelConfig& c) { c.candidate_source_layer_id = 9; },
       "candidate_source_layer_id", "not in kv_source_layer_ids"},
      {"candidate source of an older cache", [](ModelConfig& c) { c.candidate_source_layer_id = 4; },
       "candidate_source_layer_id", "starts another cache"},
      {"small pool", [](ModelConfig& c) { c.index_topk = 10; }, "index_topk",
       "(blocks - 1) * size + 1 must reach index_topk"},
      // 5
      {"head_dim", [](ModelConfig& c) { c.head_dim = 48; }, "head_dim", "multiple of 32"},
      {"index_head_dim", [](ModelConfig& c) { c.index_head_dim = 40; }, "index_head_dim", "multiple of 32"},
      {"odd rope", [](ModelConfig& c) { c.qk_rope_head_dim = 15; }, "qk_rope_head_dim", "even"},
      {"rope above head", [](ModelConfig& c) { c.qk_rope_head_dim = 66; }, "qk_rope_head_dim",
       "more than head_dim"},
      {"rope above index head", [](ModelConfig& c) { c.qk_rope_head_dim = 34; }, "qk_rope_head_dim",
       "more than index_head_dim"},
      {"hidden_size", [](ModelConfig& c) { c.hidden_size = 100; }, "hidden_size", "multiple of 32"},
      {"q_lora_rank", [](ModelConfig& c) { c.q_lora_rank = 33; }, "q_lora_rank", "multiple of 32"},
      {"moe_intermediate_size", [](ModelConfig& c) { c.moe_intermediate_size = 16; }, "moe_intermediate_size",
       "multiple of 32"},
      {"output rank", [](ModelConfig& c) { c.o_lora_rank = 24; }, "o_groups * o_lora_rank", "multiple of 32"},
      {"engram_head_dim", [](ModelConfig& c) { c.engram_head_dim = 16; }, "engram_head_dim",
       "multiple of 32"},
      // 6
      {"uneven groups",
       [](ModelConfig& c) {
         c.o_groups = 3;
         c.o_lora_rank = 32;
       },
       "num_attention_heads", "multiple of o_groups"},
      // 7
      {"table rows", [](ModelConfig& c) { c.engram_num_embeddings[1] = 607; }, "engram_num_embeddings[1]",
       "add up to 606"},
      {"table count", [](ModelConfig& c) { c.engram_num_embeddings = {434}; }, "engram_num_embeddings",
       "has 1 entries, but engram_layer_ids has 2"},
      {"compressed vocabulary", [](ModelConfig& c) { c.engram_compressed_vocab_size = 257; },
       "engram_compressed_vocab_size", "more than vocab_size"},
      {"Engram order", [](ModelConfig& c) { c.engram_layer_ids = {3, 1}; }, "engram_layer_ids",
       "strictly increasing"},
      {"Engram pad", [](ModelConfig& c) { c.engram_pad_token_id = 256; }, "engram_pad_token_id",
       "below vocab_size"},
      // 8
      {"tap beyond the model", [](ModelConfig& c) { c.dspark_target_layer_ids = {9, 10, 12}; },
       "dspark_target_layer_ids", "6 to 11"},
      {"tap in the encoder", [](ModelConfig& c) { c.dspark_target_layer_ids = {5, 10, 11}; },
       "dspark_target_layer_ids", "second half"},
      {"no tap", [](ModelConfig& c) { c.dspark_target_layer_ids.clear(); }, "dspark_target_layer_ids",
       "at least one"},
      {"tap order", [](ModelConfig& c) { c.dspark_target_layer_ids = {11, 10, 9}; },
       "dspark_target_layer_ids", "strictly increasing"},
      {"noise token", [](ModelConfig& c) { c.dspark_noise_token_id = 256; }, "dspark_noise_token_id",
       "below vocab_size"},
      {"image token", [](ModelConfig& c) { c.image_token_id = 256; }, "image_token_id", "below vocab_size"},
      {"bos token", [](ModelConfig& c) { c.bos_token_id = 256; }, "bos_token_id", "below vocab_size"},
      {"eos token", [](ModelConfig& c) { c.eos_token_id = 256; }, "eos_token_id", "below vocab_size"},
      {"pad token", [](ModelConfig& c) { c.pad_token_id = 256; }, "pad_token_id", "below vocab_size"},
      // 9
      {"top-k of experts", [](ModelConfig& c) { c.num_experts_per_tok = 9; }, "num_experts_per_tok",
       "more than n_routed_experts 8"},
      {"top-k of draft experts", [](ModelConfig& c) { c.dspark_num_experts_per_tok = 5; },
       "dspark_num_experts_per_tok", "more than dspark_n_routed_experts 4"},
      // 10
      {"no window", [](ModelConfig& c) { c.sliding_window = 0; }, "sliding_window", "between 1 and"},
      {"odd window", [](ModelConfig& c) { c.sliding_window = 15; }, "sliding_window", "must be even"},
      // Formats and bounds.
      {"dense format", [](ModelConfig& c) { c.dense_dtype = "int8"; }, "quant_method", "fp8 or bf16"},
      {"expert format", [](ModelConfig& c) { c.expert_dtype = "nf4"; }, "expert_dtype", "fp4, fp8 or bf16"},
      {"shared experts", [](ModelConfig& c) { c.n_shared_experts = 2; }, "n_shared_experts",
       "between 1 and 1"},
      {"nan", [](ModelConfig& c) { c.hc_eps = std::numeric_limits<double>::quiet_NaN(); }, "hc_eps",
       "between 0 and 1"},
      {"rope factor", [](ModelConfig& c) { c.rope_scaling.factor = 0; }, "rope_scaling.factor", "between 1"},
      {"wide heads", [](ModelConfig& c) { c.num_attention_heads = 4096, c.head_dim = 8192; },
       "num_attention_heads * head_dim", "at most"},
      {"wide index heads", [](ModelConfig& c) { c.index_n_heads = 4096, c.index_head_dim = 8192; },
       "index_n_heads * index_head_dim", "at most"},
      {"wide output", [](ModelConfig& c) { c.o_groups = 4, c.o_lora_rank = 131072, c.o_groups = 4096; },
       "o_groups * o_lora_rank", "at most"},
      {"many columns", [](ModelConfig& c) { c.engram_layer_ids.assign(300, 1), c.engram_n_heads = 64; },
       "engram_n_heads", "at most"},
      {"many experts", [](ModelConfig& c) { c.num_hidden_layers = 1024, c.n_routed_experts = 4096; },
       "num_hidden_layers * n_routed_experts", "at most"},
  };
}

TEST(Validate, BaseOfTheCasesIsValid) {
  EXPECT_TRUE(validate(base()).ok()) << validate(base()).to_string();
}

TEST(Validate, EachRuleBrokenAlone) {
  for (const Case& test : cases()) {
    ModelConfig c = base();
    test.breaks(c);
    Status s = validate(c);
    EXPECT_EQ(s.code(), Code::kInvalidConfig) << test.what;
    EXPECT_THAT(s.message(), HasSubstr(test.field)) << test.what;
    EXPECT_THAT(s.message(), HasSubstr(test.rule)) << test.what;
  }
}

TEST(Validate, VisionRules) {
  ModelConfig c = builtin_config("v41-flash").value();
  c.image_token_id = -1;
  EXPECT_THAT(validate(c).message(), HasSubstr("image_token_id"));
  c = builtin_config("v41-flash").value();
  c.vision.num_attention_heads = 24;
  EXPECT_THAT(validate(c).message(), HasSubstr("vision_config.hidden_size is 1024; it must be a multiple"));
  c.vision.num_attention_heads = 512;
  EXPECT_THAT(validate(c).message(), HasSubstr("multiple of 4"));
  c = builtin_config("v41-flash").value();
  c.vision.max_wh_ratio = 0.5;
  EXPECT_THAT(validate(c).message(), HasSubstr("vision_config.max_wh_ratio"));
  c = builtin_config("v41-flash").value();
  c.vision.max_image_tokens = 3;
  EXPECT_THAT(validate(c).message(), HasSubstr("vision_config.max_image_tokens is 3"));
  c = builtin_config("v41-flash").value();
  c.vision.downsample_ratio = 16, c.vision.hidden_size = 131072;
  EXPECT_THAT(validate(c).message(), HasSubstr("downsample_ratio^2"));
}

TEST(Validate, UnquantisedWeightsAreAllowed) {
  ModelConfig c = builtin_config("t0").value();
  c.dense_dtype = c.expert_dtype = "bf16";
  EXPECT_TRUE(validate(c).ok());
  EXPECT_TRUE(parse_config(config_to_json(c), c.name).value() == c);
}

// ---- slices

TEST(Slice, EightLayersOfTheReleasedModel) {
  ModelConfig original = builtin_config("v41-flash").value();
  Result<ModelConfig> r = slice_config(original, 8, 0, 0);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_THAT(r->compress_ratios, testing::ElementsAre(0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0));
  EXPECT_THAT(r->kv_source_layer_ids, testing::ElementsAre(2, 4));
  EXPECT_THAT(r->index_source_layer_ids, testing::ElementsAre(2, 4, 6));
  EXPECT_EQ(r->candidate_source_layer_id, 4);
  EXPECT_THAT(r->engram_layer_ids, testing::ElementsAre(1, 3));
  EXPECT_THAT(r->dspark_target_layer_ids, testing::ElementsAre(5, 6, 7));
  EXPECT_EQ(r->hidden_size, original.hidden_size);
  EXPECT_EQ(r->n_routed_experts, original.n_routed_experts);
  EXPECT_EQ(r->engram_num_embeddings, original.engram_num_embeddings);
}

TEST(Slice, EveryEvenLengthIsValidAndKeepsEveryRole) {
  ModelConfig original = builtin_config("v41-flash").value();
  for (int layers = 8; layers <= 40; layers += 2) {
    Result<ModelConfig> r = slice_config(original, layers, 64, 1009);
    ASSERT_TRUE(r.ok()) << layers << ": " << r.status().to_string();
    EXPECT_TRUE(validate(*r).ok());
    EXPECT_TRUE(parse_config(config_to_json(*r), r->name).value() == *r);
    const int half = layers / 2;
    bool reuse[2] = {}, reindex = false;
    for (int l = 0; l < layers; ++l) {
      bool indexes = std::count(r->index_source_layer_ids.begin(), r->index_source_layer_ids.end(), l) > 0;
      if (r->ratio(l) > 0 && !indexes) reuse[l >= half] = true;
      if (indexes && l > half) reindex = true;
    }
    EXPECT_TRUE(reuse[0] && reuse[1] && reindex) << layers;
    EXPECT_EQ(r->ratio(0), 0);
    EXPECT_EQ(r->kv_source_layer_ids.front(), 2);
    EXPECT_EQ(r->candidate_source_layer_id, half);
    EXPECT_EQ(r->engram_layer_ids.size(), 2u);
    EXPECT_EQ(r->dspark_target_layer_ids.back(), layers - 1);
    // Ratio-2 sources of the original that lie in the encoder stay where they were.
    EXPECT_EQ(r->kv_source_layer_ids.size(), 2u + (half > 8) + (half > 14)) << layers;
  }
}

TEST(Slice, FullLengthChangesNothing) {
  for (const std::string& name : builtin_config_names()) {
    ModelConfig c = builtin_config(name).value();
    EXPECT_TRUE(slice_config(c, c.num_hidden_layers, 0, 0).value() == c) << name;
    EXPECT_TRUE(slice_config(c, c.num_hidden_layers, c.n_routed_experts, c.engram_vocab_size).value() == c)
        << name;
  }
}

TEST(Slice, TinyModelsSliceToo) {
  ModelConfig c = builtin_config("t2").value();
  for (int layers : {8, 10, 12}) EXPECT_TRUE(slice_config(c, layers, 0, 0).ok()) << layers;
  EXPECT_THAT(slice_config(c, 8, 0, 0)->engram_layer_ids, testing::ElementsAre(1, 3));
}

TEST(Slice, ExpertsAndTablesShrink) {
  ModelConfig c = builtin_config("v41-flash").value();
  Result<ModelConfig> r = slice_config(c, 8, 64, 61);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->n_routed_experts, 64);
  EXPECT_EQ(r->dspark_n_routed_experts, 22);  // 128 * 64 / 384, rounded up
  EXPECT_EQ(r->engram_vocab_size, 61);
  EXPECT_EQ(r->engram_num_embeddings, engram_table_rows(*r));
  EXPECT_EQ(slice_config(c, 8, 6, 0)->dspark_n_routed_experts, 3);  // never below what a row selects
  // t0's own start gives t0's own tables, whatever the model around them.
  ModelConfig t0 = builtin_config("t0").value();
  t0.engram_vocab_size = 1009;
  t0.engram_num_embeddings = engram_table_rows(t0);
  EXPECT_THAT(slice_config(t0, 8, 0, 61)->engram_num_embeddings, testing::ElementsAre(434, 606));
}

TEST(Slice, BadArgumentsSayWhy) {
  ModelConfig c = builtin_config("v41-flash").value();
  auto message = [&](int layers, int experts, int64_t start) {
    Result<ModelConfig> r = slice_config(c, layers, experts, start);
    return r.ok() ? std::string("accepted") : r.status().to_string();
  };
  for (int layers : {-8, 0, 6, 9, 42, 1 << 30}) {
    EXPECT_THAT(message(layers, 0, 0),
                HasSubstr("invalid argument: a slice of v41-flash has an even number"));
  }
  for (int experts : {-1, 5, 385})
    EXPECT_THAT(message(8, experts, 0), HasSubstr("from 6 (num_experts_per_tok) to 384"));
  for (int64_t start : {int64_t{-5}, int64_t{1}, INT64_MAX})
    EXPECT_THAT(message(8, 0, start), HasSubstr("prime search"));
  c.engram_layer_ids = {1, 2, 3, 4, 5};
  c.engram_vocab_size = 61;
  c.engram_num_embeddings = engram_table_rows(c);
  EXPECT_THAT(message(8, 0, 0), HasSubstr("do not fit in the 4 encoder layers"));
  c = builtin_config("v41-flash").value();
  c.dspark_target_layer_ids = {31, 32, 33, 34, 35};
  EXPECT_THAT(message(8, 0, 0), HasSubstr("do not fit in the 4 decoder layers"));
}

}  // namespace
}  // namespace deepinfer
