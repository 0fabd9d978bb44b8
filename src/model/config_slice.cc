// Slices: a shorter model of the same widths in which every layer role is still played.
// Source: the roles of model specification 1.6 under the rules of 11.1.
#include <algorithm>

#include "model/config.h"
#include "model/engram.h"

namespace deepinfer {
namespace {

// Decoder index sources of the slice: the first decoder layer, then Reindex layers at the original distance.
// Half of a short decoder is the largest distance that leaves a Reindex layer with a Reuse layer behind it.
std::vector<int> decoder_index_sources(const ModelConfig& original, int half, int layers) {
  std::vector<int> sources = {half};
  const std::vector<int>& ids = original.index_source_layer_ids;
  auto first = std::find(ids.begin(), ids.end(), original.first_decoder_layer());
  if (first == ids.end() || first + 1 == ids.end()) return sources;
  int distance = std::min(*(first + 1) - *first, std::max(half / 2, 1));
  for (int l = half + distance; l < layers; l += distance) sources.push_back(l);
  return sources;
}

// Keeps what fits below `limit` and moves the rest down to the free layers just below it. False if they run
// out.
bool pack_below(std::vector<int>& layer_ids, int limit) {
  for (size_t i = layer_ids.size(); i-- > 0;) {
    layer_ids[i] = std::min(layer_ids[i], limit - 1);
    limit = layer_ids[i];
    if (limit < 0) return false;
  }
  return true;
}

void keep_below(std::vector<int>& layer_ids, int limit) {
  std::erase_if(layer_ids, [limit](int id) { return id >= limit; });
}

Status slice_layers(const ModelConfig& original, int layers, ModelConfig& c) {
  if (layers < 8 || layers % 2 != 0 || layers > original.num_hidden_layers) {
    return error(Code::kInvalidArgument, "a slice of {} has an even number of layers from 8 to {}, not {}",
                 original.name, original.num_hidden_layers, layers);
  }
  if (layers == original.num_hidden_layers) return {};
  int half = layers / 2;
  c.num_hidden_layers = layers;
  size_t draft_entries = original.compress_ratios.size() - static_cast<size_t>(original.num_hidden_layers);
  c.compress_ratios.resize(static_cast<size_t>(half));
  c.compress_ratios.resize(static_cast<size_t>(layers), 1);
  c.compress_ratios.resize(static_cast<size_t>(layers) + draft_entries, 0);
  keep_below(c.kv_source_layer_ids, half);
  c.kv_source_layer_ids.push_back(half);
  keep_below(c.index_source_layer_ids, half);
  for (int id : decoder_index_sources(original, half, layers)) c.index_source_layer_ids.push_back(id);
  if (original.candidate_source_layer_id >= 0) c.candidate_source_layer_id = half;
  if (!pack_below(c.engram_layer_ids, half)) {
    return error(Code::kInvalidArgument,
                 "the {} Engram layers of {} do not fit in the {} encoder layers of the slice",
                 original.engram_layer_ids.size(), original.name, half);
  }
  auto taps = static_cast<int>(c.dspark_target_layer_ids.size());
  if (taps > half) {
    return error(Code::kInvalidArgument,
                 "the {} taps of dspark_target_layer_ids do not fit in the {} decoder layers of the "
                 "slice",
                 taps, half);
  }
  for (int i = 0; i < taps; ++i) c.dspark_target_layer_ids[static_cast<size_t>(i)] = layers - taps + i;
  return {};
}

Status slice_experts(const ModelConfig& original, int experts, ModelConfig& c) {
  if (experts == 0) return {};
  if (experts < original.num_experts_per_tok || experts > original.n_routed_experts) {
    return error(Code::kInvalidArgument,
                 "a slice of {} has from {} (num_experts_per_tok) to {} experts, not {}", original.name,
                 original.num_experts_per_tok, original.n_routed_experts, experts);
  }
  c.n_routed_experts = experts;
  // The draft experts shrink alike, rounded up, and never below what a row selects.
  int64_t draft = (int64_t{original.dspark_n_routed_experts} * experts + original.n_routed_experts - 1) /
                  original.n_routed_experts;
  c.dspark_n_routed_experts = std::max(static_cast<int>(draft), original.dspark_num_experts_per_tok);
  return {};
}

}  // namespace

Result<ModelConfig> slice_config(const ModelConfig& config, int layers, int experts, int64_t engram_start) {
  ModelConfig c = config;
  DI_TRY(slice_layers(config, layers, c));
  DI_TRY(slice_experts(config, experts, c));
  if (engram_start != 0) {
    if (engram_start < 2 || engram_start > int64_t{1} << 32) {
      return error(Code::kInvalidArgument,
                   "the prime search of the Engram tables starts between 2 and 2^32, not at {}",
                   engram_start);
    }
    c.engram_vocab_size = engram_start;
    c.engram_num_embeddings = engram_table_rows(c);
  }
  if (c != config) {
    c.name = config.name + " cut to " + std::to_string(layers) + " layers, " +
             std::to_string(c.n_routed_experts) + " experts";
  }
  Status valid = validate(c);
  if (!valid.ok()) return Status(Code::kInvalidArgument, "the slice would not be valid: " + valid.message());
  return c;
}

}  // namespace deepinfer
