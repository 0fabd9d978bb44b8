// The rules a configuration must keep. One function per rule of model specification 11.1, in its order, after
// the bounds of single fields; every message names the field, its value and the rule.
#include <algorithm>
#include <numeric>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/config_json.h"
#include "model/engram.h"

namespace deepinfer {
namespace {

using config_fields::Need;

template <typename... A>
Status broken(fmt::format_string<A...> f, A&&... args) {
  return error(Code::kInvalidConfig, f, std::forward<A>(args)...);
}

// Checks every visited number against the bounds of the field list; keeps the first error.
struct BoundsChecker {
  std::string prefix;
  Status status;
  void check(const std::string& name, int64_t value, int64_t min, int64_t max) {
    if (!status.ok() || (value >= min && value <= max)) return;
    status = broken("{}{} is {}; it must be between {} and {}", prefix, name, value, min, max);
  }
  template <typename Int>
  void integer(const char* name, const char*, const Int& value, Need, int64_t min, int64_t max) {
    check(name, value, min, max);
  }
  void real(const char* name, const char*, const double& value, double min, double max) {
    if (!status.ok() || (value >= min && value <= max)) return;  // NaN fails both comparisons
    status = broken("{}{} is {}; it must be between {} and {}", prefix, name, value, min, max);
  }
  template <typename Int>
  void list(const char* name, const char*, const std::vector<Int>& values, Need, int64_t min, int64_t max) {
    for (size_t i = 0; i < values.size(); ++i) check(fmt::format("{}[{}]", name, i), values[i], min, max);
  }
  void flag(const char*, const char*, const bool&) {}
  void scoring(const char*, const char*, const ScoringFunc&) {}
};

Status check_bounds(const ModelConfig& c) {
  BoundsChecker checker;
  config_fields::visit_backbone(c, checker);
  if (c.candidate_source_layer_id >= 0) config_fields::visit_candidates(c, checker);
  if (!c.engram_layer_ids.empty()) config_fields::visit_engram(c, checker);
  if (c.num_nextn_predict_layers > 0) config_fields::visit_draft(c, checker);
  config_fields::visit_positions(c, checker);
  config_fields::visit_tokens(c, checker);
  DI_TRY(checker.status);
  BoundsChecker scaling{"rope_scaling.", {}};
  config_fields::visit_yarn(c.rope_scaling, scaling);
  DI_TRY(scaling.status);
  BoundsChecker vision{"vision_config.", {}};
  config_fields::visit_vision_layers(c.vision, vision);
  if (c.vision.num_hidden_layers > 0) config_fields::visit_vision(c.vision, vision);
  return vision.status;
}

Status at_most(const char* what, int64_t value, int64_t max) {
  if (value <= max) return {};
  return broken("{} is {}; this program handles at most {}", what, value, max);
}

// Products of two fields that are widths or counts themselves.
Status check_products(const ModelConfig& c) {
  using namespace config_fields;
  DI_TRY(at_most("num_attention_heads * head_dim", int64_t{c.num_attention_heads} * c.head_dim, kMaxProduct));
  DI_TRY(at_most("o_groups * o_lora_rank", int64_t{c.o_groups} * c.o_lora_rank, kMaxProduct));
  DI_TRY(at_most("index_n_heads * index_head_dim", int64_t{c.index_n_heads} * c.index_head_dim, kMaxProduct));
  DI_TRY(at_most("num_hidden_layers * n_routed_experts", int64_t{c.num_hidden_layers} * c.n_routed_experts,
                 kMaxExpertBlocks));
  if (c.num_nextn_predict_layers > 0) {
    DI_TRY(at_most("num_nextn_predict_layers * dspark_n_routed_experts",
                   int64_t{c.num_nextn_predict_layers} * c.dspark_n_routed_experts, kMaxExpertBlocks));
    DI_TRY(at_most("len(dspark_target_layer_ids) * hidden_size",
                   static_cast<int64_t>(c.dspark_target_layer_ids.size()) * c.hidden_size, kMaxProduct));
  }
  if (c.candidate_source_layer_id >= 0) {
    DI_TRY(at_most("candidate_topk_blocks * candidate_block_size",
                   int64_t{c.candidate_topk_blocks} * c.candidate_block_size, int64_t{1} << 30));
  }
  if (!c.engram_layer_ids.empty()) {
    DI_TRY(at_most("(engram_max_ngram_size - 1) * engram_n_heads * len(engram_layer_ids)",
                   int64_t{c.engram_columns()} * static_cast<int64_t>(c.engram_layer_ids.size()),
                   kMaxEngramColumns));
  }
  return {};
}

Status check_increasing(const char* name, const std::vector<int>& ids) {
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] <= ids[i - 1]) {
      return broken("{} must be strictly increasing, but entry {} is {} after {}", name, i, ids[i],
                    ids[i - 1]);
    }
  }
  return {};
}

// Rule 1.
Status check_ratios(const ModelConfig& c) {
  auto count = static_cast<int>(c.compress_ratios.size());
  int layers = c.num_hidden_layers;
  if (count < layers || count > layers + c.num_nextn_predict_layers) {
    return broken(
        "compress_ratios has {} entries; it must have num_hidden_layers = {} of them, or up to {} more for "
        "the "
        "draft layers (num_nextn_predict_layers)",
        count, layers, c.num_nextn_predict_layers);
  }
  for (int l = layers; l < count; ++l) {
    if (c.ratio(l) != 0) return broken("compress_ratios[{}] is {}; draft layers have ratio 0", l, c.ratio(l));
  }
  return {};
}

bool contains(const std::vector<int>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The last id that is not above `layer`, or -1.
int last_at_or_below(const std::vector<int>& ids, int layer) {
  int found = -1;
  for (int id : ids) {
    if (id <= layer) found = std::max(found, id);
  }
  return found;
}

Status check_source_list(const ModelConfig& c, const char* name, const std::vector<int>& ids) {
  DI_TRY(check_increasing(name, ids));
  for (int id : ids) {
    if (id >= c.num_hidden_layers) {
      return broken("{} names layer {}, but num_hidden_layers is {}", name, id, c.num_hidden_layers);
    }
    if (c.ratio(id) == 0) {
      return broken("{} names layer {}, whose compress_ratios entry is 0: a source needs a ratio above 0",
                    name, id);
    }
  }
  return {};
}

// Rule 2.
Status check_sources(const ModelConfig& c) {
  DI_TRY(check_source_list(c, "kv_source_layer_ids", c.kv_source_layer_ids));
  DI_TRY(check_source_list(c, "index_source_layer_ids", c.index_source_layer_ids));
  for (int id : c.kv_source_layer_ids) {
    if (!contains(c.index_source_layer_ids, id)) {
      return broken(
          "index_source_layer_ids lacks layer {}: every layer of kv_source_layer_ids is an index source", id);
    }
  }
  for (int l = 0; l < c.num_hidden_layers; ++l) {
    if (c.ratio(l) == 0) continue;
    int kv = last_at_or_below(c.kv_source_layer_ids, l);
    if (kv < 0) {
      return broken(
          "kv_source_layer_ids has no layer at or below layer {}, whose compress_ratios entry is {}", l,
          c.ratio(l));
    }
    if (c.ratio(kv) != c.ratio(l)) {
      return broken(
          "compress_ratios[{}] is {} but its source in kv_source_layer_ids, layer {}, has {}: a layer has "
          "the "
          "ratio of its source",
          l, c.ratio(l), kv, c.ratio(kv));
    }
    // An index source between kv and l exists: kv itself is one, as checked above.
  }
  return {};
}

// Rule 3.
Status check_halves(const ModelConfig& c) {
  if (c.num_hidden_layers % 2 != 0) {
    return broken("num_hidden_layers is {}; it must be even: the halves are encoder and decoder",
                  c.num_hidden_layers);
  }
  int half = c.first_decoder_layer();
  for (int l = 0; l < c.num_hidden_layers; ++l) {
    if (l < half && c.ratio(l) == 1) {
      return broken("compress_ratios[{}] is 1; the first half (encoder) has ratios 0 and 2 only", l);
    }
    if (l >= half && c.ratio(l) != 1) {
      return broken("compress_ratios[{}] is {}; the second half (decoder) has ratio 1 only", l, c.ratio(l));
    }
  }
  if (c.kv_source_layer_ids.empty() || c.kv_source_layer_ids.back() != half) {
    return broken("kv_source_layer_ids must end with layer {}, the first of the second half", half);
  }
  for (int id : c.engram_layer_ids) {
    if (id >= half) {
      return broken("engram_layer_ids names layer {}; Engram layers are in the first half, below {}", id,
                    half);
    }
  }
  return {};
}

// Rule 4.
Status check_candidates(const ModelConfig& c) {
  int source = c.candidate_source_layer_id;
  if (source < 0) return {};
  if (!contains(c.index_source_layer_ids, source)) {
    return broken("candidate_source_layer_id is {}, which is not in index_source_layer_ids", source);
  }
  if (!contains(c.kv_source_layer_ids, source)) {
    return broken("candidate_source_layer_id is {}, which is not in kv_source_layer_ids", source);
  }
  int last = c.kv_source_layer_ids.back();
  if (last != source) {
    return broken(
        "candidate_source_layer_id is {}, but layer {} starts another cache: all later index sources must "
        "use "
        "the cache of the candidate source",
        source, last);
  }
  int64_t sure = int64_t{c.candidate_topk_blocks - 1} * c.candidate_block_size + 1;
  if (sure < c.index_topk) {
    return broken(
        "candidate_topk_blocks {} and candidate_block_size {} guarantee {} entries of a long context, fewer "
        "than "
        "index_topk {}: (blocks - 1) * size + 1 must reach index_topk",
        c.candidate_topk_blocks, c.candidate_block_size, sure, c.index_topk);
  }
  return {};
}

Status multiple_of_32(const char* what, int64_t value) {
  if (value % 32 == 0) return {};
  return broken("{} is {}; it must be a multiple of 32, the length of a quantiser block", what, value);
}

// Rules 5 and 6.
Status check_multiples(const ModelConfig& c) {
  DI_TRY(multiple_of_32("head_dim", c.head_dim));
  DI_TRY(multiple_of_32("index_head_dim", c.index_head_dim));
  DI_TRY(multiple_of_32("hidden_size", c.hidden_size));
  DI_TRY(multiple_of_32("q_lora_rank", c.q_lora_rank));
  DI_TRY(multiple_of_32("moe_intermediate_size", c.moe_intermediate_size));
  DI_TRY(multiple_of_32("o_groups * o_lora_rank", int64_t{c.o_groups} * c.o_lora_rank));
  if (!c.engram_layer_ids.empty()) DI_TRY(multiple_of_32("engram_head_dim", c.engram_head_dim));
  if (c.qk_rope_head_dim % 2 != 0) {
    return broken("qk_rope_head_dim is {}; it must be even, as dimensions rotate in pairs",
                  c.qk_rope_head_dim);
  }
  if (c.qk_rope_head_dim > c.head_dim) {
    return broken("qk_rope_head_dim is {}, more than head_dim {}", c.qk_rope_head_dim, c.head_dim);
  }
  if (c.qk_rope_head_dim > c.index_head_dim) {
    return broken("qk_rope_head_dim is {}, more than index_head_dim {}", c.qk_rope_head_dim,
                  c.index_head_dim);
  }
  if (c.num_attention_heads % c.o_groups != 0) {
    return broken("num_attention_heads is {}; it must be a multiple of o_groups {}", c.num_attention_heads,
                  c.o_groups);
  }
  return {};
}

Status below_vocab(const char* name, int64_t id, const ModelConfig& c) {
  if (id < c.vocab_size) return {};
  return broken("{} is {}; token ids must be below vocab_size {}", name, id, c.vocab_size);
}

// Rule 7; that the token map has this many ids is checked where the map is loaded.
Status check_engram(const ModelConfig& c) {
  if (c.engram_layer_ids.empty()) return {};
  DI_TRY(check_increasing("engram_layer_ids", c.engram_layer_ids));
  DI_TRY(below_vocab("engram_pad_token_id", c.engram_pad_token_id, c));
  if (c.engram_compressed_vocab_size > c.vocab_size) {
    return broken("engram_compressed_vocab_size is {}, more than vocab_size {}",
                  c.engram_compressed_vocab_size, c.vocab_size);
  }
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    return broken("engram_num_embeddings has {} entries, but engram_layer_ids has {}",
                  c.engram_num_embeddings.size(), c.engram_layer_ids.size());
  }
  std::vector<int64_t> rows = engram_table_rows(c);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != c.engram_num_embeddings[i]) {
      return broken(
          "engram_num_embeddings[{}] is {}; the primes of layer {} from engram_vocab_size {} add up to {}", i,
          c.engram_num_embeddings[i], c.engram_layer_ids[i], c.engram_vocab_size, rows[i]);
    }
  }
  return {};
}

// Rule 8.
Status check_tokens_and_taps(const ModelConfig& c) {
  DI_TRY(below_vocab("bos_token_id", c.bos_token_id, c));
  DI_TRY(below_vocab("eos_token_id", c.eos_token_id, c));
  DI_TRY(below_vocab("pad_token_id", c.pad_token_id, c));
  DI_TRY(below_vocab("image_token_id", c.image_token_id, c));
  if (c.num_nextn_predict_layers == 0) return {};
  DI_TRY(below_vocab("dspark_noise_token_id", c.dspark_noise_token_id, c));
  if (c.dspark_target_layer_ids.empty()) {
    return broken("dspark_target_layer_ids is empty; the draft module reads at least one layer");
  }
  DI_TRY(check_increasing("dspark_target_layer_ids", c.dspark_target_layer_ids));
  for (int id : c.dspark_target_layer_ids) {
    if (id < c.first_decoder_layer() || id >= c.num_hidden_layers) {
      return broken("dspark_target_layer_ids names layer {}; taps are in the second half, {} to {}", id,
                    c.first_decoder_layer(), c.num_hidden_layers - 1);
    }
  }
  return {};
}

// Rule 9.
Status check_experts(const ModelConfig& c) {
  if (c.num_experts_per_tok > c.n_routed_experts) {
    return broken("num_experts_per_tok is {}, more than n_routed_experts {}", c.num_experts_per_tok,
                  c.n_routed_experts);
  }
  if (c.num_nextn_predict_layers > 0 && c.dspark_num_experts_per_tok > c.dspark_n_routed_experts) {
    return broken("dspark_num_experts_per_tok is {}, more than dspark_n_routed_experts {}",
                  c.dspark_num_experts_per_tok, c.dspark_n_routed_experts);
  }
  return {};
}

// Rule 10, made strict: this program's cache block is one window.
Status check_window(const ModelConfig& c) {
  bool pairs = std::find(c.compress_ratios.begin(), c.compress_ratios.end(), 2) != c.compress_ratios.end();
  if (pairs && c.sliding_window % 2 != 0) {
    return broken(
        "sliding_window is {}; it must be even when a layer has ratio 2, because a cache block is one window "
        "and "
        "holds whole pairs",
        c.sliding_window);
  }
  return {};
}

Status check_formats(const ModelConfig& c) {
  if (c.dense_dtype != "fp8" && c.dense_dtype != "bf16") {
    return broken("quant_method (flat: dtype) is {}; dense weights are fp8 or bf16",
                  shown_text(c.dense_dtype));
  }
  if (c.expert_dtype != "fp4" && c.expert_dtype != "fp8" && c.expert_dtype != "bf16") {
    return broken("expert_dtype is {}; expert weights are fp4, fp8 or bf16", shown_text(c.expert_dtype));
  }
  return {};
}

Status check_vision(const ModelConfig& c) {
  const VisionConfig& v = c.vision;
  if (v.num_hidden_layers == 0) return {};
  if (c.image_token_id < 0) return broken("image_token_id is missing, but vision_config has layers");
  if (v.hidden_size % v.num_attention_heads != 0) {
    return broken("vision_config.hidden_size is {}; it must be a multiple of num_attention_heads {}",
                  v.hidden_size, v.num_attention_heads);
  }
  if (v.hidden_size / v.num_attention_heads % 4 != 0) {
    return broken(
        "vision_config.hidden_size / num_attention_heads is {}; it must be a multiple of 4, as two axes "
        "rotate "
        "pairs",
        v.hidden_size / v.num_attention_heads);
  }
  if (v.max_wh_ratio > 0.0 && v.max_wh_ratio < 1.0) {
    return broken("vision_config.max_wh_ratio is {}; a limit must be at least 1", v.max_wh_ratio);
  }
  return at_most("vision_config.hidden_size * downsample_ratio^2",
                 int64_t{v.hidden_size} * v.downsample_ratio * v.downsample_ratio,
                 config_fields::kMaxProduct);
}

}  // namespace

Status validate(const ModelConfig& c) {
  DI_TRY(check_bounds(c));
  DI_TRY(check_products(c));
  DI_TRY(check_ratios(c));
  DI_TRY(check_sources(c));
  DI_TRY(check_halves(c));
  DI_TRY(check_candidates(c));
  DI_TRY(check_multiples(c));
  DI_TRY(check_engram(c));
  DI_TRY(check_tokens_and_taps(c));
  DI_TRY(check_experts(c));
  DI_TRY(check_window(c));
  DI_TRY(check_formats(c));
  return check_vision(c);
}

}  // namespace deepinfer
