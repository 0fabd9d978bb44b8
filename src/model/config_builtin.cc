// Built-in configurations: the released model and the three tiny members of the family.
// Source: model specification 1.2 to 1.4 (v41-flash) and 11.2 (t0, t1, t2).
#include "model/config.h"

namespace deepinfer {
namespace {

std::vector<int> ratios(int layers, int draft_layers) {
  std::vector<int> r(static_cast<size_t>(layers + draft_layers), 0);
  for (int l = 2; l < layers; ++l) r[static_cast<size_t>(l)] = l < layers / 2 ? 2 : 1;
  return r;
}

// What every built-in shares: thetas, YaRN, streams, router and numeric constants as released.
ModelConfig family() {
  ModelConfig c;
  c.rope_scaling = {
      .factor = 16.0, .beta_fast = 32.0, .beta_slow = 1.0, .original_max_position_embeddings = 65536};
  c.max_position_embeddings = 1048576;
  c.num_nextn_predict_layers = 3;
  c.dspark_block_size = 5;
  c.engram_max_ngram_size = 4;
  return c;
}

ModelConfig v41_flash() {
  ModelConfig c = family();
  c.name = "v41-flash";
  c.vocab_size = 129280;
  c.hidden_size = 5120;
  c.num_hidden_layers = 40;
  c.num_attention_heads = 64;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.sliding_window = 128;
  c.compress_ratios = ratios(40, 3);
  c.kv_source_layer_ids = {2, 8, 14, 20};
  c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_source_layer_id = 20;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;
  c.n_routed_experts = 384;
  c.num_experts_per_tok = 6;
  c.moe_intermediate_size = 2304;
  c.engram_layer_ids = {1, 14};
  c.engram_num_embeddings = {384006168, 384016682};
  c.engram_vocab_size = 16000000;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.engram_compressed_vocab_size = 99092;
  c.dspark_noise_token_id = 128799;
  c.dspark_target_layer_ids = {37, 38, 39};
  c.dspark_markov_rank = 256;
  c.dspark_n_routed_experts = 128;
  c.dspark_num_experts_per_tok = 3;
  c.image_token_id = 129264;
  c.vision.num_hidden_layers = 32;
  c.vision.hidden_size = 1024;
  c.vision.num_attention_heads = 16;
  c.vision.intermediate_size = 2816;
  return c;
}

// The tiny members have no vision tower; their image token is the id after the noise token, so that given
// image rows (bias_vl, dead n-grams) can be tested on them.
ModelConfig t0() {
  ModelConfig c = family();
  c.name = "t0";
  c.vocab_size = 256;
  c.hidden_size = 128;
  c.num_hidden_layers = 8;
  c.num_attention_heads = 4;
  c.head_dim = 64;
  c.qk_rope_head_dim = 16;
  c.q_lora_rank = 64;
  c.o_groups = 2;
  c.o_lora_rank = 32;
  c.sliding_window = 16;
  c.compress_ratios = ratios(8, 3);
  c.kv_source_layer_ids = {2, 4};
  c.index_source_layer_ids = {2, 4, 6};
  c.index_n_heads = 8;
  c.index_head_dim = 32;
  c.index_topk = 8;
  c.candidate_source_layer_id = 4;
  c.candidate_topk_blocks = 3;
  c.candidate_block_size = 4;
  c.rope_scaling.original_max_position_embeddings = 64;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 64;
  c.engram_layer_ids = {1, 3};
  c.engram_num_embeddings = {434, 606};
  c.engram_vocab_size = 61;
  c.engram_n_heads = 2;
  c.engram_head_dim = 32;
  c.engram_compressed_vocab_size = 200;
  c.dspark_noise_token_id = 251;
  c.image_token_id = 252;
  c.dspark_target_layer_ids = {5, 6, 7};
  c.dspark_markov_rank = 32;
  c.dspark_n_routed_experts = 4;
  c.dspark_num_experts_per_tok = 2;
  return c;
}

ModelConfig t1() {
  ModelConfig c = t0();
  c.name = "t1";
  c.vocab_size = 512;
  c.hidden_size = 256;
  c.num_attention_heads = 8;
  c.qk_rope_head_dim = 32;
  c.q_lora_rank = 128;
  c.o_lora_rank = 64;
  c.sliding_window = 32;
  c.index_topk = 16;
  c.candidate_topk_blocks = 4;
  c.candidate_block_size = 8;
  c.rope_scaling.original_max_position_embeddings = 128;
  c.n_routed_experts = 16;
  c.num_experts_per_tok = 4;
  c.moe_intermediate_size = 128;
  c.engram_num_embeddings = {3376, 4284};
  c.engram_vocab_size = 251;
  c.engram_n_heads = 4;
  c.engram_head_dim = 64;
  c.engram_compressed_vocab_size = 400;
  c.dspark_noise_token_id = 500;
  c.image_token_id = 501;
  c.dspark_n_routed_experts = 8;
  c.dspark_num_experts_per_tok = 3;
  return c;
}

ModelConfig t2() {
  ModelConfig c = t1();
  c.name = "t2";
  c.vocab_size = 1024;
  c.hidden_size = 512;
  c.num_hidden_layers = 12;
  c.num_attention_heads = 16;
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.q_lora_rank = 256;
  c.o_lora_rank = 128;
  c.sliding_window = 128;
  c.compress_ratios = ratios(12, 3);
  c.kv_source_layer_ids = {2, 4, 6};
  c.index_source_layer_ids = {2, 4, 6, 8, 10};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 64;
  c.candidate_source_layer_id = 6;
  c.candidate_topk_blocks = 16;
  c.rope_scaling.original_max_position_embeddings = 256;
  c.num_experts_per_tok = 6;
  c.moe_intermediate_size = 256;
  c.engram_layer_ids = {1, 4};
  c.engram_num_embeddings = {25874, 30058};
  c.engram_vocab_size = 1009;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.engram_compressed_vocab_size = 800;
  c.dspark_noise_token_id = 1000;
  c.image_token_id = 1001;
  c.dspark_target_layer_ids = {9, 10, 11};
  c.dspark_markov_rank = 64;
  return c;
}

}  // namespace

std::vector<std::string> builtin_config_names() {
  return {"v41-flash", "t0", "t1", "t2"};
}

Result<ModelConfig> builtin_config(std::string_view name) {
  if (name == "v41-flash") return v41_flash();
  if (name == "t0") return t0();
  if (name == "t1") return t1();
  if (name == "t2") return t2();
  return error(Code::kNotFound,
               "no built-in configuration is called '{}'; there are v41-flash, t0, t1 and t2", name);
}

}  // namespace deepinfer
