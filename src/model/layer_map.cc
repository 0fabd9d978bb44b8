// Derives every layer's role from the lists of the configuration. Source: model specification 1.6.
#include "model/layer_map.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {
namespace {

int index_of(const std::vector<int>& ids, int layer) {
  auto it = std::find(ids.begin(), ids.end(), layer);
  return it == ids.end() ? -1 : static_cast<int>(it - ids.begin());
}

// Index of the last entry that is not above `layer`; the lists increase.
int source_index(const std::vector<int>& ids, int layer) {
  auto it = std::upper_bound(ids.begin(), ids.end(), layer);
  return static_cast<int>(it - ids.begin()) - 1;
}

}  // namespace

std::string LayerRole::role_name() const {
  if (ratio == 0) return "window";
  if (owns_kv) return "full";
  return owns_index ? "reindex" : "reuse";
}

std::vector<LayerRole> layer_map(const ModelConfig& config) {
  std::vector<LayerRole> map;
  map.reserve(static_cast<size_t>(config.num_hidden_layers));
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    LayerRole role;
    role.layer = l;
    role.decoder = l >= config.first_decoder_layer();
    role.ratio = config.ratio(l);
    role.engram = index_of(config.engram_layer_ids, l);
    role.tap = index_of(config.dspark_target_layer_ids, l);
    if (role.ratio > 0) {
      role.kv_slot = source_index(config.kv_source_layer_ids, l);
      int index_slot = source_index(config.index_source_layer_ids, l);
      DI_CHECK(role.kv_slot >= 0 && index_slot >= 0, "layer_map needs a validated configuration");
      role.kv_source = config.kv_source_layer_ids[static_cast<size_t>(role.kv_slot)];
      role.index_source = config.index_source_layer_ids[static_cast<size_t>(index_slot)];
      role.owns_kv = role.kv_source == l;
      role.owns_index = role.index_source == l;
      int candidates = config.candidate_source_layer_id;
      role.candidate_source = candidates == l;
      role.uses_pool = role.owns_index && candidates >= 0 && l > candidates;
    }
    map.push_back(role);
  }
  return map;
}

}  // namespace deepinfer
