// Byte and length arithmetic that cache, scheduler and planner share: record sizes, bytes per token, hit
// caps, plan of memory. Knows no allocations, only how large they must be.
// Source: model specification 8.3, 8.4, 10.3. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace deepinfer {

struct RecordSizes {
  int64_t main_entry = 0;     // codes + scales of one main-KV entry (288 in the release)
  int64_t index_key = 0;      // 68
  int64_t window_latent = 0;  // 528
};
RecordSizes record_sizes(const ModelConfig& config);

// KV cache bytes per token over all sources (890 in the release; a half byte, which odd records at ratio 2
// can give, is rounded up), of one block of `block_tokens`, and of one source (kv_slot: index in
// kv_source_layer_ids) in it. A block holds ceil(block_tokens / ratio) entries of a source. REQUIRES
// block_tokens >= 1.
int64_t kv_bytes_per_token(const ModelConfig& config);
int64_t kv_block_bytes(const ModelConfig& config, int block_tokens);
int64_t kv_block_bytes_of_source(const ModelConfig& config, int kv_slot, int block_tokens);

// Ring slots: window + drafts + 1 (134): rejected rows never destroy a slot that is still inside a window.
int ring_slots(const ModelConfig& config);
int64_t window_bytes_per_layer(const ModelConfig& config);  // ring_slots * window_latent
int64_t snapshot_bytes(const ModelConfig& config);          // all encoder layers
int64_t window_state_bytes(const ModelConfig& config);      // all backbone layers
int64_t draft_ring_bytes(const ModelConfig& config);        // all draft stages
int64_t draft_input_bytes(const ModelConfig& config);       // features of a ring's positions, fp32
// One pending fp32 (a, g) row per ratio-2 source, all sources together.
int64_t compressor_tail_bytes(const ModelConfig& config);
int64_t engram_bytes_per_token(const ModelConfig& config);  // table bytes gathered for one token (12,672)
// Tokens that rebuild the encoder's (or decoder's) exact window state: half*W as the deployment document
// rounds it, and the tight bound.
int64_t exact_rebuild_tokens(const ModelConfig& config);
int64_t exact_rebuild_tokens_tight(const ModelConfig& config);

// Hit rules of model specification 10.3.
struct HitPlan {
  int64_t cap = 0;     // longest legal hit for this prompt length
  int64_t hit = 0;     // min(block hit, cap)
  int64_t reused = 0;  // where the encoder starts: hit with a snapshot there, else hit - window, at least 0
  bool from_snapshot = false;
  int64_t encoder_rows = 0;  // prompt - reused
};
// `snapshots` are the boundaries at which a window snapshot exists, in any order. backtracking = drafts + 1.
// Blocks have `window` tokens; a block hit that is no multiple of it counts up to the last full block.
HitPlan plan_hit(int64_t prompt_tokens, int64_t block_hit_tokens, const std::vector<int64_t>& snapshots,
                 int window, int backtracking);

// Where the bytes of a deployment go; every line has a name, a size and how it was computed.
struct MemoryLine {
  std::string name;
  int64_t bytes = 0;
  std::string note;
  bool mapped = false;  // may stay on disk: read through the page cache, a row at a time
};
struct MemoryPlan {
  std::vector<MemoryLine> lines;
  int64_t resident_bytes = 0;  // in RAM to decode at full speed: the sum of the lines that are not mapped
  int64_t mapped_bytes = 0;    // may stay on disk (Engram tables): the sum of the mapped lines
  int64_t ram_bytes = 0;       // as given; 0: no limit given
  bool fits = true;            // resident_bytes <= ram_bytes, or no limit given
  // Longest context that every one of max_sequences sequences can have at once in the RAM given; 0 if not
  // even the weights and rings fit; max_position_embeddings at most, and exactly that without a limit.
  int64_t max_context_tokens = 0;
  std::string to_text() const;  // a table for people, one line each, bytes with separators
};
// A plan from the tensor table and the record sizes alone: weights, caches and request state. Activations,
// the tokenizer and the program itself are not in it, as they are small and depend on the batch. ram_bytes 0:
// no limit given. Sequences share KV blocks (of sliding_window tokens), each has its own rings, tails and
// draft rings; the snapshot line budgets two window snapshots per sequence (model specification 10.3: one in
// prefill, one at the end of decode). REQUIRES a validated configuration, max_sequences >= 1, context_tokens
// >= 0.
MemoryPlan plan_memory(const ModelConfig& config, int64_t ram_bytes, int max_sequences,
                       int64_t context_tokens);

}  // namespace deepinfer
