// Byte and length arithmetic that cache, scheduler and planner share: record sizes, bytes per token, hit caps, plan of memory.
// Source: model specification 8.3, 8.4, 10.3. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace deepinfer {

struct RecordSizes {
  int64_t main_entry = 0;   // codes + scales of one main-KV entry (288 in the release)
  int64_t index_key = 0;    // 68
  int64_t window_latent = 0;  // 528
};
RecordSizes record_sizes(const ModelConfig& config);

// KV cache bytes per token over all sources (890 in the release), of one block of `block_tokens`, and of one source in it.
int64_t kv_bytes_per_token(const ModelConfig& config);
int64_t kv_block_bytes(const ModelConfig& config, int block_tokens);
int64_t kv_block_bytes_of_source(const ModelConfig& config, int kv_slot, int block_tokens);

// Ring slots: window + drafts + 1 (134): rejected rows never destroy a slot that is still inside a window.
int ring_slots(const ModelConfig& config);
int64_t window_bytes_per_layer(const ModelConfig& config);    // ring_slots * window_latent
int64_t snapshot_bytes(const ModelConfig& config);            // all encoder layers
int64_t window_state_bytes(const ModelConfig& config);        // all backbone layers
int64_t draft_ring_bytes(const ModelConfig& config);          // all draft stages
int64_t compressor_tail_bytes(const ModelConfig& config);     // one pending (a, g) row per ratio-2 source
// Tokens that rebuild the encoder's (or decoder's) exact window state: half*W as the deployment document rounds it, and the tight bound.
int64_t exact_rebuild_tokens(const ModelConfig& config);
int64_t exact_rebuild_tokens_tight(const ModelConfig& config);

// Hit rules of model specification 10.3.
struct HitPlan {
  int64_t cap = 0;             // longest legal hit for this prompt length
  int64_t hit = 0;             // min(block hit, cap)
  int64_t reused = 0;          // where the encoder starts: hit with a snapshot there, else hit - window (never negative)
  bool from_snapshot = false;
  int64_t encoder_rows = 0;    // prompt - reused
};
// `snapshots` are the boundaries at which a window snapshot exists. backtracking = drafts + 1.
HitPlan plan_hit(int64_t prompt_tokens, int64_t block_hit_tokens, const std::vector<int64_t>& snapshots, int window, int backtracking);

// Where the bytes of a deployment go; every line has a name, a size and how it was computed.
struct MemoryLine {
  std::string name;
  int64_t bytes = 0;
  std::string note;
};
struct MemoryPlan {
  std::vector<MemoryLine> lines;
  int64_t resident_bytes = 0;   // must be in RAM to decode at full speed
  int64_t mapped_bytes = 0;     // may stay on disk (Engram tables)
  int64_t max_context_tokens = 0;  // with the RAM given, for max_sequences sequences
  std::string to_text() const;
};
// ram_bytes 0: no limit given. Sequences share KV memory; each has its own rings, tails and draft rings.
MemoryPlan plan_memory(const ModelConfig& config, int64_t ram_bytes, int max_sequences, int64_t context_tokens);

}  // namespace deepinfer
