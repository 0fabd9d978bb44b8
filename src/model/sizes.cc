// Bytes and lengths, from the record formats of model specification 8.3 and the replay rules of section 10.
#include "model/sizes.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {
namespace {

// Bytes of one entry of a kv source: main entry and index key.
int64_t entry_bytes(const ModelConfig& c) {
  RecordSizes r = record_sizes(c);
  return r.main_entry + r.index_key;
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

RecordSizes record_sizes(const ModelConfig& c) {
  RecordSizes r;
  r.main_entry = c.head_dim / 2 + c.head_dim / 16;             // E2M1 codes, one E4M3 scale per 16
  r.index_key = c.index_head_dim / 2 + c.index_head_dim / 32;  // E2M1 codes, one E8M0 scale per 32
  r.window_latent = c.head_dim + c.head_dim / 32;              // E4M3 codes, one E8M0 scale per 32
  return r;
}

int64_t kv_bytes_per_token(const ModelConfig& c) {
  // Ratios are 1 and 2, so two tokens hold a whole number of entries of every source.
  return ceil_div(kv_block_bytes(c, 2), 2);
}

int64_t kv_block_bytes(const ModelConfig& c, int block_tokens) {
  int64_t bytes = 0;
  for (int slot = 0; slot < static_cast<int>(c.kv_source_layer_ids.size()); ++slot) {
    bytes += kv_block_bytes_of_source(c, slot, block_tokens);
  }
  return bytes;
}

int64_t kv_block_bytes_of_source(const ModelConfig& c, int kv_slot, int block_tokens) {
  DI_CHECK(kv_slot >= 0 && kv_slot < static_cast<int>(c.kv_source_layer_ids.size()), "no such kv source");
  int ratio = c.ratio(c.kv_source_layer_ids[static_cast<size_t>(kv_slot)]);
  return ceil_div(block_tokens, ratio) * entry_bytes(c);
}

int ring_slots(const ModelConfig& c) {
  return c.sliding_window + c.drafts() + 1;
}

int64_t window_bytes_per_layer(const ModelConfig& c) {
  return ring_slots(c) * record_sizes(c).window_latent;
}

int64_t snapshot_bytes(const ModelConfig& c) {
  return c.first_decoder_layer() * window_bytes_per_layer(c);
}

int64_t window_state_bytes(const ModelConfig& c) {
  return c.num_hidden_layers * window_bytes_per_layer(c);
}

int64_t draft_ring_bytes(const ModelConfig& c) {
  return c.num_nextn_predict_layers * window_bytes_per_layer(c);
}

int64_t draft_input_bytes(const ModelConfig& c) {
  if (c.num_nextn_predict_layers == 0) return 0;
  return ring_slots(c) * c.hidden_size *
         static_cast<int64_t>(c.dspark_target_layer_ids.size() * sizeof(float));
}

int64_t compressor_tail_bytes(const ModelConfig& c) {
  int64_t bytes = 0;
  for (int id : c.kv_source_layer_ids) {
    int64_t pending = c.ratio(id) - 1;
    bytes += pending * 2 * c.head_dim * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

int64_t engram_bytes_per_token(const ModelConfig& c) {
  int64_t row = c.engram_head_dim + c.engram_head_dim / 32;
  return static_cast<int64_t>(c.engram_layer_ids.size()) * c.engram_columns() * row;
}

int64_t exact_rebuild_tokens(const ModelConfig& c) {
  return int64_t{c.first_decoder_layer()} * c.sliding_window;
}

int64_t exact_rebuild_tokens_tight(const ModelConfig& c) {
  return c.sliding_window + int64_t{c.first_decoder_layer() - 1} * (c.sliding_window - 1);
}

HitPlan plan_hit(int64_t prompt_tokens, int64_t block_hit_tokens, const std::vector<int64_t>& snapshots,
                 int window, int backtracking) {
  DI_CHECK(window >= 1 && backtracking >= 0 && prompt_tokens >= 0, "lengths are not negative");
  auto whole_blocks = [window](int64_t tokens) { return std::max<int64_t>(tokens, 0) / window * window; };
  HitPlan plan;
  plan.cap = whole_blocks(prompt_tokens - window - backtracking);
  plan.hit = std::min(whole_blocks(block_hit_tokens), plan.cap);
  plan.from_snapshot =
      plan.hit > 0 && std::find(snapshots.begin(), snapshots.end(), plan.hit) != snapshots.end();
  plan.reused = plan.from_snapshot ? plan.hit : std::max<int64_t>(plan.hit - window, 0);
  plan.encoder_rows = prompt_tokens - plan.reused;
  return plan;
}

}  // namespace deepinfer
