// Which layer does what: where its main KV, index keys and selection come from, which half it belongs to.
// Source: model specification 1.6. Threads: pure function of the configuration.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace deepinfer {

struct LayerRole {
  int layer = 0;
  bool decoder = false;           // second half
  int ratio = 0;                  // 0: window only
  int kv_source = -1;             // layer whose main KV and index keys it reads; -1 if ratio is 0
  int index_source = -1;          // layer whose selection it uses; -1 if ratio is 0
  bool owns_kv = false;           // has a compressor
  bool owns_index = false;        // runs an indexer
  bool candidate_source = false;  // publishes the candidate pool
  bool uses_pool = false;         // its own scores are restricted to the pool
  int engram = -1;                // index in engram_layer_ids, or -1
  int tap = -1;                   // index in dspark_target_layer_ids, or -1
  int kv_slot = -1;               // index of kv_source in kv_source_layer_ids
  // "window", "full", "reuse" or "reindex" (model specification 1.6): for people.
  std::string role_name() const;
};

// Backbone layers only; REQUIRES a validated configuration.
std::vector<LayerRole> layer_map(const ModelConfig& config);

}  // namespace deepinfer
