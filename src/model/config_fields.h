// The list of a configuration's fields, once: name, the reference's flat spelling, whether it must be given,
// its bounds. Parser, writer and bounds check are visitors over this list, so none of them can forget a
// field. Internal to the room. The bounds are ours: wide enough for any member of the family one could build,
// narrow enough that every product of them (tensor bytes, table rows, ring sizes) stays within 64-bit
// integers and every width within 31 bits.
// Source: model specification 1.2 to 1.4.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace deepinfer::config_fields {

// kRequired: a configuration without it is refused. kOptional: the default is the member initialiser in
// config.h.
enum class Need { kRequired, kOptional };

inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxWidth = int64_t{1}
                                     << 17;  // one residual stream, an expert's inner width, a bottleneck
inline constexpr int64_t kMaxHeads = int64_t{1} << 12;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 13;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxProduct = int64_t{1} << 24;       // widths that are products of two fields
inline constexpr int64_t kMaxExpertBlocks = int64_t{1} << 18;  // layers * experts: six tensors each
inline constexpr int64_t kMaxEngramColumns = 4096;  // columns * Engram layers: one prime search each
inline constexpr int64_t kMaxEngramStart = int64_t{1} << 32;
inline constexpr int64_t kMaxDrafts = 64;

// A visitor has integer(name, flat, value, need, min, max), real(name, flat, value, min, max),
// list(name, flat, values, need, min, max) with bounds of the elements, flag(name, flat, value) and
// scoring(name, flat, value). `flat` is nullptr where both forms use one name. REQUIRES nothing about the
// order of calls, except that a group's selector is visited before the group.
template <typename Config, typename Visitor>
void visit_backbone(Config& c, Visitor& v) {
  using enum Need;
  v.integer("vocab_size", nullptr, c.vocab_size, kRequired, 1, kMaxVocab);
  v.integer("hidden_size", "dim", c.hidden_size, kRequired, 1, kMaxWidth);
  v.integer("num_hidden_layers", "n_layers", c.num_hidden_layers, kRequired, 2, kMaxLayers);
  v.integer("num_attention_heads", "n_heads", c.num_attention_heads, kRequired, 1, kMaxHeads);
  v.integer("head_dim", nullptr, c.head_dim, kRequired, 1, kMaxHeadDim);
  v.integer("qk_rope_head_dim", "rope_head_dim", c.qk_rope_head_dim, kRequired, 2, kMaxHeadDim);
  v.integer("q_lora_rank", nullptr, c.q_lora_rank, kRequired, 1, kMaxWidth);
  v.integer("o_groups", nullptr, c.o_groups, kRequired, 1, kMaxHeads);
  v.integer("o_lora_rank", nullptr, c.o_lora_rank, kRequired, 1, kMaxWidth);
  v.integer("sliding_window", "window_size", c.sliding_window, kRequired, 1, int64_t{1} << 20);
  v.list("compress_ratios", nullptr, c.compress_ratios, kRequired, 0, 2);
  v.list("kv_source_layer_ids", "kv_source_layers", c.kv_source_layer_ids, kRequired, 0, kMaxLayers - 1);
  v.list("index_source_layer_ids", "index_source_layers", c.index_source_layer_ids, kRequired, 0,
         kMaxLayers - 1);
  v.integer("index_n_heads", nullptr, c.index_n_heads, kRequired, 1, kMaxHeads);
  v.integer("index_head_dim", nullptr, c.index_head_dim, kRequired, 1, kMaxHeadDim);
  v.integer("index_topk", nullptr, c.index_topk, kRequired, 1, int64_t{1} << 20);
  v.integer("candidate_source_layer_id", "candidate_source_layer", c.candidate_source_layer_id, kOptional,
            -kMaxLayers, kMaxLayers - 1);
  v.real("rope_theta", nullptr, c.rope_theta, 2.0, 1e12);
  v.real("compress_rope_theta", nullptr, c.compress_rope_theta, 2.0, 1e12);
  v.integer("n_routed_experts", nullptr, c.n_routed_experts, kRequired, 1, kMaxExperts);
  v.integer("n_shared_experts", nullptr, c.n_shared_experts, kOptional, 1, 1);
  v.integer("num_experts_per_tok", "n_activated_experts", c.num_experts_per_tok, kRequired, 1, kMaxExperts);
  v.integer("moe_intermediate_size", "moe_inter_dim", c.moe_intermediate_size, kRequired, 1, kMaxWidth);
  v.scoring("scoring_func", "score_func", c.scoring_func);
  v.flag("norm_topk_prob", nullptr, c.norm_topk_prob);
  v.real("routed_scaling_factor", "route_scale", c.routed_scaling_factor, 1e-6, 1e6);
  v.real("gate_temp", nullptr, c.gate_temp, 1e-6, 1e6);
  v.real("swiglu_limit", nullptr, c.swiglu_limit, 0.0, 1e6);
  v.real("rms_norm_eps", "norm_eps", c.rms_norm_eps, 0.0, 1.0);
  v.integer("hc_mult", nullptr, c.hc_mult, kOptional, 1, 16);
  v.integer("hc_sinkhorn_iters", nullptr, c.hc_sinkhorn_iters, kOptional, 1, 1000);
  v.real("hc_eps", nullptr, c.hc_eps, 0.0, 1.0);
  v.list("engram_layer_ids", nullptr, c.engram_layer_ids, kOptional, 0, kMaxLayers - 1);
  v.integer("num_nextn_predict_layers", "n_mtp_layers", c.num_nextn_predict_layers, kOptional, 0, kMaxDrafts);
}

// Present when candidate_source_layer_id is not negative.
template <typename Config, typename Visitor>
void visit_candidates(Config& c, Visitor& v) {
  v.integer("candidate_topk_blocks", nullptr, c.candidate_topk_blocks, Need::kRequired, 1, kMaxProduct);
  v.integer("candidate_block_size", nullptr, c.candidate_block_size, Need::kRequired, 1, 1 << 16);
}

// Present when engram_layer_ids is not empty.
template <typename Config, typename Visitor>
void visit_engram(Config& c, Visitor& v) {
  using enum Need;
  v.list("engram_num_embeddings", nullptr, c.engram_num_embeddings, kRequired, 1, int64_t{1} << 46);
  v.integer("engram_vocab_size", nullptr, c.engram_vocab_size, kRequired, 2, kMaxEngramStart);
  v.integer("engram_max_ngram_size", nullptr, c.engram_max_ngram_size, kRequired, 2, 16);
  v.integer("engram_n_heads", nullptr, c.engram_n_heads, kRequired, 1, 64);
  v.integer("engram_head_dim", nullptr, c.engram_head_dim, kRequired, 1, kMaxHeadDim / 2);
  v.integer("engram_pad_token_id", "engram_pad_id", c.engram_pad_token_id, kOptional, 0, kMaxVocab - 1);
  // Five at least: the tiny token map keeps ids 0..3 and folds the others (model specification 11.2).
  v.integer("engram_compressed_vocab_size", nullptr, c.engram_compressed_vocab_size, kRequired, 5, kMaxVocab);
}

// Present when num_nextn_predict_layers is not 0.
template <typename Config, typename Visitor>
void visit_draft(Config& c, Visitor& v) {
  using enum Need;
  v.integer("dspark_block_size", nullptr, c.dspark_block_size, kRequired, 1, kMaxDrafts);
  v.integer("dspark_noise_token_id", nullptr, c.dspark_noise_token_id, kRequired, 0, kMaxVocab - 1);
  v.list("dspark_target_layer_ids", nullptr, c.dspark_target_layer_ids, kRequired, 0, kMaxLayers - 1);
  v.integer("dspark_markov_rank", nullptr, c.dspark_markov_rank, kRequired, 1, kMaxWidth);
  v.integer("dspark_n_routed_experts", nullptr, c.dspark_n_routed_experts, kRequired, 1, kMaxExperts);
  v.integer("dspark_num_experts_per_tok", "dspark_n_activated_experts", c.dspark_num_experts_per_tok,
            kRequired, 1, kMaxExperts);
}

// Ids at the root of the nested form.
template <typename Config, typename Visitor>
void visit_tokens(Config& c, Visitor& v) {
  v.integer("bos_token_id", nullptr, c.bos_token_id, Need::kOptional, 0, kMaxVocab - 1);
  v.integer("eos_token_id", nullptr, c.eos_token_id, Need::kOptional, 0, kMaxVocab - 1);
  v.integer("pad_token_id", nullptr, c.pad_token_id, Need::kOptional, 0, kMaxVocab - 1);
  v.integer("image_token_id", nullptr, c.image_token_id, Need::kOptional, -1, kMaxVocab - 1);
}

// rope_scaling of type yarn, or the same names in the flat form. Scaling is RopeScaling.
template <typename Scaling, typename Visitor>
void visit_yarn(Scaling& s, Visitor& v) {
  v.integer("original_max_position_embeddings", "original_seq_len", s.original_max_position_embeddings,
            Need::kRequired, 0, int64_t{1} << 31);
  v.real("factor", "rope_factor", s.factor, 1.0, 1e6);
  v.real("beta_fast", nullptr, s.beta_fast, 1e-3, 1e6);
  v.real("beta_slow", nullptr, s.beta_slow, 1e-3, 1e6);
}

template <typename Config, typename Visitor>
void visit_positions(Config& c, Visitor& v) {
  v.integer("max_position_embeddings", nullptr, c.max_position_embeddings, Need::kOptional, 1,
            int64_t{1} << 31);
}

// vision_config. Vision is VisionConfig; its selector num_hidden_layers is visited by visit_vision_layers.
template <typename Vision, typename Visitor>
void visit_vision_layers(Vision& vision, Visitor& v) {
  v.integer("num_hidden_layers", nullptr, vision.num_hidden_layers, Need::kRequired, 0, kMaxLayers);
}
template <typename Vision, typename Visitor>
void visit_vision(Vision& vision, Visitor& v) {
  using enum Need;
  v.integer("hidden_size", nullptr, vision.hidden_size, kRequired, 1, kMaxWidth);
  v.integer("num_attention_heads", nullptr, vision.num_attention_heads, kRequired, 1, kMaxHeads);
  v.integer("intermediate_size", nullptr, vision.intermediate_size, kRequired, 1, kMaxWidth);
  v.integer("patch_size", nullptr, vision.patch_size, kOptional, 1, 256);
  v.integer("downsample_ratio", nullptr, vision.downsample_ratio, kOptional, 1, 16);
  // Four tokens hold the smallest span: start, one image token, newline, end (model specification 7.4).
  v.integer("max_image_tokens", nullptr, vision.max_image_tokens, kOptional, 4, 1 << 20);
  v.integer("min_pixels", nullptr, vision.min_pixels, kOptional, 0, int64_t{1} << 40);
  v.real("max_wh_ratio", nullptr, vision.max_wh_ratio, 0.0, 1e6);
  v.real("rope_theta", nullptr, vision.rope_theta, 2.0, 1e12);
}

}  // namespace deepinfer::config_fields
