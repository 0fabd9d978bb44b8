// The architecture's configuration: every number that decides shapes, layer roles and arithmetic, for any
// member of the family (the released model, the tiny ones, a user's own). Plain data; parse_config and
// validate make it from bytes and hold it to the rules. Knows no weights and no files.
// Source: model specification 1 and 11.1. Threads: immutable after parsing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

enum class ScoringFunc { kSqrtSoftplus, kSoftmax, kSigmoid };

struct RopeScaling {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_max_position_embeddings = 0;  // 0: no YaRN
  bool operator==(const RopeScaling&) const = default;
};

struct VisionConfig {
  int num_hidden_layers = 0;  // 0: the checkpoint has no vision tower
  int hidden_size = 0;
  int num_attention_heads = 0;
  int intermediate_size = 0;
  int patch_size = 14;
  int downsample_ratio = 3;
  int max_image_tokens = 1024;
  int64_t min_pixels = 295936;
  double max_wh_ratio = 0.0;  // 0: no limit
  double rope_theta = 10000.0;
  bool operator==(const VisionConfig&) const = default;
};

struct ModelConfig {
  std::string name;  // built-in name or the directory it came from; for messages only

  // Widths. hidden_size is the width of ONE residual stream.
  int vocab_size = 0;
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int head_dim = 0;
  int qk_rope_head_dim = 0;  // the LAST dims of a head
  int q_lora_rank = 0;
  int o_groups = 0;
  int o_lora_rank = 0;
  int sliding_window = 0;  // tokens, counts the query itself

  // Layer roles, one ratio per backbone layer then per draft layer (draft entries are 0).
  std::vector<int> compress_ratios;
  std::vector<int> kv_source_layer_ids;
  std::vector<int> index_source_layer_ids;
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;
  int candidate_source_layer_id = -1;  // negative: no candidate pool
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;

  double rope_theta = 10000.0;
  double compress_rope_theta = 160000.0;
  RopeScaling rope_scaling;
  int64_t max_position_embeddings = 0;

  int n_routed_experts = 0;
  int n_shared_experts = 1;
  int num_experts_per_tok = 0;
  int moe_intermediate_size = 0;
  ScoringFunc scoring_func = ScoringFunc::kSqrtSoftplus;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.5;
  double gate_temp = 1.0;
  double swiglu_limit = 10.0;  // 0: no clamp
  double rms_norm_eps = 1e-20;

  int hc_mult = 4;
  int hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;

  std::vector<int> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // table rows, one per Engram layer
  int64_t engram_vocab_size = 0;               // where the prime search starts
  int engram_max_ngram_size = 0;
  int engram_n_heads = 0;
  int engram_head_dim = 0;
  int engram_pad_token_id = 2;
  int engram_compressed_vocab_size = 0;

  int num_nextn_predict_layers = 0;  // draft stages, tensors mtp.0 ..
  int dspark_block_size = 0;
  int dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;
  int dspark_markov_rank = 0;
  int dspark_n_routed_experts = 0;
  int dspark_num_experts_per_tok = 0;

  int bos_token_id = 0;
  int eos_token_id = 1;
  int pad_token_id = 2;
  int image_token_id = -1;  // carried by every position of an image span; negative: the model takes no images

  // Storage of the weights: "fp4" MXFP4 (routed and draft experts as released), "fp8" E4M3 with 32x32 tiles
  // (dense linears as released), "bf16" unquantised. Experts take all three, dense linears the last two.
  std::string expert_dtype = "fp4";
  std::string dense_dtype = "fp8";

  VisionConfig vision;

  // ---- derived (model specification 1.5); pure functions of the fields above
  int rotary_pairs() const { return qk_rope_head_dim / 2; }
  int heads_per_group() const { return num_attention_heads / o_groups; }
  int wo_a_in() const { return num_attention_heads * head_dim / o_groups; }
  int hc_mix_width() const { return (2 + hc_mult) * hc_mult; }
  int hc_input_width() const { return hc_mult * hidden_size; }
  int engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
  int engram_lookup_width() const { return engram_columns() * engram_head_dim; }
  int engram_wkv_out() const { return (hc_mult + 1) * hidden_size; }
  int first_decoder_layer() const { return num_hidden_layers / 2; }
  // Ratio of layer l; l >= num_hidden_layers are draft stages. Missing draft entries are 0.
  int ratio(int layer) const {
    return layer < static_cast<int>(compress_ratios.size()) ? compress_ratios[static_cast<size_t>(layer)] : 0;
  }
  // Draft rows of one pass (model specification 6.3); 0 without a draft module.
  int drafts() const { return num_nextn_predict_layers > 0 ? dspark_block_size : 0; }
  bool operator==(const ModelConfig&) const = default;  // includes the name
};

// Parses the JSON text of a config.json, nested (text_config/vision_config/quantization_config) or flat (the
// names of the reference's inference/config.json), then validates it. `where` names the source in messages.
// Errors: kInvalidData for text that is not such a JSON object (with line and column), kInvalidConfig for a
// broken rule, naming the field and the rule. Unknown fields are ignored, as model files carry many
// informative ones.
Result<ModelConfig> parse_config(std::string_view json, const std::string& where);

// Every rule of model specification 11.1 and the bounds that keep sizes within integers. First broken rule
// wins.
Status validate(const ModelConfig& config);

// Writes the nested form; parse_config of the result gives the same configuration.
std::string config_to_json(const ModelConfig& config);

// Built-in configurations: "v41-flash" (the released one), "t0", "t1", "t2". kNotFound lists the names.
Result<ModelConfig> builtin_config(std::string_view name);
std::vector<std::string> builtin_config_names();

// A valid slice of `config` with `layers` backbone layers (even, from 8 to config.num_hidden_layers) that
// keeps every role. Encoder: the first layers/2 layers of the original with their ratios and sources.
// Decoder: ratio 1, kv source layers/2, Reindex layers at the original distance, closer where a short decoder
// would lose its Reindex layer. Engram layers that lie above the encoder move down to its end (1 and 14
// become 1 and 3 of 8 layers); taps are the last layers, as many as before. layers == num_hidden_layers
// changes no role. `experts` > 0 shrinks the routed experts, and the draft experts in proportion;
// `engram_start` > 0 moves the prime search and so the table sizes; 0 leaves either alone. REQUIRES a
// validated configuration. Errors: kInvalidArgument says which rule a slice would break.
Result<ModelConfig> slice_config(const ModelConfig& config, int layers, int experts, int64_t engram_start);

}  // namespace deepinfer
