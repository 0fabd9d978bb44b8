// Parsing and the built-in configurations; the rules have their own file (config_validate_test.cc).
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace deepinfer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json nested(const char* name) {
  return json::parse(config_to_json(builtin_config(name).value()));
}

std::string error_of_text(const std::string& text) {
  Result<ModelConfig> r = parse_config(text, "config.json");
  return r.ok() ? "accepted" : r.status().to_string();
}
std::string error_of(const json& j) {
  return error_of_text(j.dump());
}

// The flat form with every name of the reference, values of t0 except where a default is to be told from a
// read value.
json flat_t0() {
  return json::parse(R"({
    "vocab_size": 256, "dim": 128, "n_layers": 8, "n_heads": 4, "head_dim": 64, "rope_head_dim": 16, "q_lora_rank": 64,
    "o_groups": 2, "o_lora_rank": 32, "window_size": 16, "compress_ratios": [0,0,2,2,1,1,1,1,0,0,0],
    "kv_source_layers": [2,4], "index_source_layers": [2,4,6], "index_n_heads": 8, "index_head_dim": 32, "index_topk": 8,
    "candidate_source_layer": 4, "candidate_topk_blocks": 3, "candidate_block_size": 4, "rope_theta": 20000,
    "compress_rope_theta": 150000.5, "rope_factor": 8, "beta_fast": 31, "beta_slow": 2, "original_seq_len": 64,
    "n_routed_experts": 8, "n_shared_experts": 1, "n_activated_experts": 2, "moe_inter_dim": 64, "score_func": "sigmoid",
    "norm_topk_prob": false, "route_scale": 2.25, "gate_temp": 0.5, "swiglu_limit": 7, "norm_eps": 1e-6, "hc_mult": 2,
    "hc_sinkhorn_iters": 10, "hc_eps": 1e-5, "engram_layer_ids": [1,3], "engram_num_embeddings": [434,606],
    "engram_vocab_size": 61, "engram_max_ngram_size": 4, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_id": 3,
    "engram_compressed_vocab_size": 200, "n_mtp_layers": 3, "dspark_block_size": 4, "dspark_noise_token_id": 250,
    "dspark_target_layer_ids": [5,7], "dspark_markov_rank": 16, "dspark_n_routed_experts": 4,
    "dspark_n_activated_experts": 1, "dtype": "fp8", "expert_dtype": "fp4", "scale_fmt": "ue8m0"})");
}

TEST(Builtin, AllAreValidAndNamed) {
  EXPECT_THAT(builtin_config_names(), testing::ElementsAre("v41-flash", "t0", "t1", "t2"));
  for (const std::string& name : builtin_config_names()) {
    Result<ModelConfig> c = builtin_config(name);
    ASSERT_TRUE(c.ok()) << name;
    EXPECT_EQ(c->name, name);
    EXPECT_TRUE(validate(*c).ok()) << validate(*c).to_string();
  }
}

TEST(Builtin, UnknownNameListsTheNames) {
  Status s = builtin_config("t9").status();
  EXPECT_EQ(s.code(), Code::kNotFound);
  for (const std::string& name : builtin_config_names()) EXPECT_THAT(s.message(), HasSubstr(name));
}

TEST(Parse, WrittenConfigurationReadsBackEqual) {
  for (const std::string& name : builtin_config_names()) {
    ModelConfig c = builtin_config(name).value();
    Result<ModelConfig> back = parse_config(config_to_json(c), name);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_TRUE(*back == c) << name;
  }
}

TEST(Parse, OptionalGroupsLeftOutReadBackEqual) {
  ModelConfig c = builtin_config("t0").value();
  c.candidate_source_layer_id = -1;
  c.candidate_topk_blocks = c.candidate_block_size = 0;
  c.rope_scaling = RopeScaling{};
  c.engram_layer_ids.clear();
  c.engram_num_embeddings.clear();
  c.engram_vocab_size = 0;
  c.engram_max_ngram_size = c.engram_n_heads = c.engram_head_dim = c.engram_compressed_vocab_size = 0;
  c.num_nextn_predict_layers = c.dspark_block_size = c.dspark_noise_token_id = c.dspark_markov_rank = 0;
  c.dspark_n_routed_experts = c.dspark_num_experts_per_tok = 0;
  c.dspark_target_layer_ids.clear();
  c.compress_ratios.resize(8);
  c.image_token_id = -1;
  Result<ModelConfig> back = parse_config(config_to_json(c), c.name);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(*back == c);
  EXPECT_EQ(back->drafts(), 0);
}

TEST(Parse, FlatFormReadsEveryName) {
  Result<ModelConfig> r = parse_config(flat_t0().dump(), "flat");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ModelConfig want = builtin_config("t0").value();
  want.name = "flat";
  want.rope_theta = 20000;
  want.compress_rope_theta = 150000.5;
  want.rope_scaling = {8, 31, 2, 64};
  want.max_position_embeddings = 8 * 64;
  want.scoring_func = ScoringFunc::kSigmoid;
  want.norm_topk_prob = false;
  want.routed_scaling_factor = 2.25;
  want.gate_temp = 0.5;
  want.swiglu_limit = 7;
  want.rms_norm_eps = 1e-6;
  want.hc_mult = 2;
  want.hc_sinkhorn_iters = 10;
  want.hc_eps = 1e-5;
  want.engram_pad_token_id = 3;
  want.dspark_block_size = 4;
  want.dspark_noise_token_id = 250;
  want.dspark_target_layer_ids = {5, 7};
  want.dspark_markov_rank = 16;
  want.dspark_num_experts_per_tok = 1;
  want.image_token_id = -1;
  EXPECT_TRUE(*r == want) << config_to_json(*r) << config_to_json(want);
}

TEST(Parse, NestedFormReadsTheReleasedNames) {
  json j = nested("v41-flash");
  // A literal of the released file's numbers that no default has, against a slip in the shared field list.
  EXPECT_EQ(j["text_config"]["hidden_size"], 5120);
  EXPECT_EQ(j["text_config"]["qk_rope_head_dim"], 64);
  EXPECT_EQ(j["text_config"]["rope_scaling"]["original_max_position_embeddings"], 65536);
  EXPECT_EQ(j["text_config"]["num_nextn_predict_layers"], 3);
  EXPECT_EQ(j["text_config"]["dspark_num_experts_per_tok"], 3);
  EXPECT_EQ(j["vision_config"]["intermediate_size"], 2816);
  EXPECT_EQ(j["quantization_config"]["expert_dtype"], "fp4");
  EXPECT_EQ(j["image_token_id"], 129264);
}

TEST(Parse, MissingOptionalFieldsTakeTheDefaults) {
  json j = nested("t0");
  json& t = j["text_config"];
  for (const char* name :
       {"rope_theta", "compress_rope_theta", "scoring_func", "norm_topk_prob", "routed_scaling_factor",
        "gate_temp", "swiglu_limit", "rms_norm_eps", "hc_mult", "hc_sinkhorn_iters", "hc_eps",
        "engram_pad_token_id", "n_shared_experts", "max_position_embeddings"}) {
    ASSERT_EQ(t.erase(name), 1u) << name;
  }
  for (const char* name :
       {"bos_token_id", "eos_token_id", "pad_token_id", "quantization_config", "model_type"}) {
    ASSERT_EQ(j.erase(name), 1u) << name;
  }
  t["rope_scaling"].erase("beta_fast");
  t["rope_scaling"].erase("beta_slow");
  Result<ModelConfig> r = parse_config(j.dump(), "t0");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ModelConfig want = builtin_config("t0").value();
  want.max_position_embeddings = 16 * 64;  // what YaRN reaches
  EXPECT_TRUE(*r == want);
}

TEST(Parse, NullMeansAbsent) {
  json j = nested("t0");
  j["text_config"]["hc_mult"] = nullptr;
  j["vision_config"] = nullptr;
  EXPECT_EQ(error_of(j), "accepted");
  j["text_config"]["hidden_size"] = nullptr;
  EXPECT_THAT(error_of(j), HasSubstr("text_config.hidden_size is missing"));
}

TEST(Parse, EveryRequiredFieldIsNamedWhenMissing) {
  const std::vector<std::string> required = {"vocab_size",
                                             "hidden_size",
                                             "num_hidden_layers",
                                             "num_attention_heads",
                                             "head_dim",
                                             "qk_rope_head_dim",
                                             "q_lora_rank",
                                             "o_groups",
                                             "o_lora_rank",
                                             "sliding_window",
                                             "compress_ratios",
                                             "kv_source_layer_ids",
                                             "index_source_layer_ids",
                                             "index_n_heads",
                                             "index_head_dim",
                                             "index_topk",
                                             "candidate_topk_blocks",
                                             "candidate_block_size",
                                             "n_routed_experts",
                                             "num_experts_per_tok",
                                             "moe_intermediate_size",
                                             "engram_num_embeddings",
                                             "engram_vocab_size",
                                             "engram_max_ngram_size",
                                             "engram_n_heads",
                                             "engram_head_dim",
                                             "engram_compressed_vocab_size",
                                             "dspark_block_size",
                                             "dspark_noise_token_id",
                                             "dspark_target_layer_ids",
                                             "dspark_markov_rank",
                                             "dspark_n_routed_experts",
                                             "dspark_num_experts_per_tok"};
  for (const std::string& name : required) {
    json j = nested("t0");
    ASSERT_EQ(j["text_config"].erase(name), 1u) << name;
    EXPECT_THAT(error_of(j), HasSubstr("invalid config")) << name;
    EXPECT_THAT(error_of(j), HasSubstr("text_config." + name + " is missing"));
  }
  for (const char* name : {"hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers"}) {
    json j = nested("v41-flash");
    j["vision_config"].erase(name);
    EXPECT_THAT(error_of(j), HasSubstr(std::string("vision_config.") + name + " is missing"));
  }
  json j = nested("t0");
  j["text_config"]["rope_scaling"].erase("factor");
  EXPECT_THAT(error_of(j), HasSubstr("text_config.rope_scaling.factor is missing"));
  j = flat_t0();
  j.erase("dim");
  EXPECT_THAT(error_of(j), HasSubstr("hidden_size is missing (flat name dim)"));
}

// Puts a wrong value into every field of every object in turn: each must be refused or ignored, never crash,
// and a wrong type must be named together with what was found.
TEST(Parse, WrongTypesAreNamedInEveryField) {
  const std::vector<json> wrong = {json::object(),
                                   json("abc"),
                                   json(1.5e300),
                                   json(-7000000000000),
                                   json(true),
                                   json::array({"x"}),
                                   json(18446744073709551615ull)};
  for (const char* section : {"text_config", "vision_config", ""}) {
    json original = nested("v41-flash");
    const json& fields = *section ? original[section] : original;
    for (const auto& [name, value] : fields.items()) {
      for (const json& bad : wrong) {
        json j = original;
        (*section ? j[section] : j)[name] = bad;
        Result<ModelConfig> r = parse_config(j.dump(), "c");
        // Accepted: fields nobody reads, another truth value, and a quantization_config that leaves out its
        // fields.
        bool informative = name == "architectures" || name == "dtype" || (name == "model_type" && *section) ||
                           (name == "norm_topk_prob" && bad.is_boolean()) ||
                           (name == "quantization_config" && bad.is_object());
        EXPECT_EQ(r.ok(), informative) << section << "." << name << " = " << bad.dump();
        if (!r.ok()) {
          EXPECT_THAT(r.status().message(), HasSubstr(name)) << bad.dump();
        }
      }
    }
  }
  json j = nested("t0");
  j["text_config"]["index_topk"] = "8";
  EXPECT_THAT(error_of(j), HasSubstr("text_config.index_topk must be an integer, found the string \"8\""));
  j["text_config"]["index_topk"] = 8.5;
  EXPECT_THAT(error_of(j), HasSubstr("must be an integer, found the number 8.5"));
}

TEST(Parse, RatiosMayStopAtTheBackbone) {
  json j = nested("t0");
  auto ratios = j["text_config"]["compress_ratios"].get<std::vector<int>>();
  for (size_t n : {8u, 9u, 10u, 11u}) {
    j["text_config"]["compress_ratios"] =
        std::vector<int>(ratios.begin(), ratios.begin() + static_cast<long>(n));
    Result<ModelConfig> r = parse_config(j.dump(), "t0");
    ASSERT_TRUE(r.ok()) << n;
    EXPECT_EQ(r->ratio(10), 0);
  }
}

TEST(Parse, TwoNamesForOneFieldMustAgree) {
  json j = flat_t0();
  j["hidden_size"] = 128;
  EXPECT_EQ(error_of(j), "accepted");
  j["hidden_size"] = 256;
  EXPECT_THAT(error_of(j),
              HasSubstr("hidden_size is the number 256 but its other name dim is the number 128"));
}

TEST(Parse, OtherArchitecturesAreRefused) {
  json j = nested("t0");
  j["model_type"] = "llama";
  EXPECT_THAT(error_of(j), HasSubstr("model_type is the string \"llama\""));
  j = nested("t0");
  j["text_config"]["num_key_value_heads"] = 8;
  EXPECT_THAT(error_of(j), HasSubstr("num_key_value_heads"));
  j = nested("t0");
  j["quantization_config"]["weight_block_size"] = {128, 128};
  EXPECT_THAT(error_of(j), HasSubstr("quantization_config.weight_block_size"));
  j = nested("t0");
  j["text_config"]["rope_scaling"]["rope_type"] = "linear";
  EXPECT_THAT(error_of(j), HasSubstr("rope_type is the string \"linear\""));
  j = nested("t0");
  j["text_config"]["scoring_func"] = "argmax";
  EXPECT_THAT(error_of(j), HasSubstr("text_config.scoring_func"));
}

TEST(Parse, SyntaxErrorsSayWhere) {
  Status s = parse_config("{\n  \"vocab_size\": 3,\n  oops\n}", "dir/config.json").status();
  EXPECT_EQ(s.code(), Code::kInvalidData);
  EXPECT_THAT(s.message(), HasSubstr("dir/config.json: not valid JSON at line 3, column 3"));
  EXPECT_THAT(error_of_text(std::string("")), HasSubstr("not valid JSON at line 1"));
  EXPECT_THAT(error_of_text(std::string("[1, 2]")), HasSubstr("found a list of 2"));
  EXPECT_THAT(error_of_text(std::string("{} x")), HasSubstr("not valid JSON"));
}

TEST(Parse, HostileTextIsRefused) {
  EXPECT_THAT(error_of_text("{\"rope_theta\": 1e999}"), HasSubstr("a number is out of range at line 1"));
  EXPECT_THAT(error_of_text("{\"a\": 1, \"a\": 2}"), HasSubstr("the name \"a\" is given twice"));
  EXPECT_THAT(error_of_text("{\"a\": " + std::string(33, '[') + std::string(33, ']') + "}"),
              HasSubstr("levels deep"));
  EXPECT_THAT(error_of_text(std::string(2'000'000, '[')), HasSubstr("levels deep"));
  EXPECT_THAT(error_of_text(std::string((size_t{4} << 20) + 1, ' ')), HasSubstr("bytes long"));
  EXPECT_THAT(error_of_text("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of_text("{\"a\": NaN}"), HasSubstr("not valid JSON"));
  // A hostile value is not repeated at length.
  EXPECT_LT(error_of_text("{\"vocab_size\": \"" + std::string(100'000, 'z') + "\"}").size(), 200u);
}

TEST(Parse, HugeAndNegativeSizesAreRefusedByName) {
  json original = nested("t0");
  for (const auto& [name, value] : original["text_config"].items()) {
    if (!value.is_number_integer() || name == "num_key_value_heads") continue;
    for (int64_t bad : {int64_t{-2000}, int64_t{1} << 31, int64_t{1} << 47, INT64_MAX, INT64_MIN}) {
      if (name == "engram_vocab_size" && bad == int64_t{1} << 31) continue;  // legal, but another prime sum
      if (name == "max_position_embeddings" && bad == int64_t{1} << 31) continue;
      json j = original;
      j["text_config"][name] = bad;
      EXPECT_THAT(error_of(j), HasSubstr("text_config." + name + " is")) << bad;
    }
  }
  json j = original;
  j["text_config"]["compress_ratios"] = std::vector<int>(100'000, 0);
  EXPECT_THAT(error_of(j), HasSubstr("compress_ratios has 100000 entries"));
}

TEST(Derived, ReleasedValues) {
  ModelConfig c = builtin_config("v41-flash").value();
  EXPECT_EQ(c.rotary_pairs(), 32);
  EXPECT_EQ(c.heads_per_group(), 8);
  EXPECT_EQ(c.wo_a_in(), 4096);
  EXPECT_EQ(c.hc_mix_width(), 24);
  EXPECT_EQ(c.hc_input_width(), 20480);
  EXPECT_EQ(c.engram_columns(), 24);
  EXPECT_EQ(c.engram_lookup_width(), 6144);
  EXPECT_EQ(c.engram_wkv_out(), 25600);
  EXPECT_EQ(c.first_decoder_layer(), 20);
  EXPECT_EQ(c.drafts(), 5);
}

}  // namespace
}  // namespace deepinfer
