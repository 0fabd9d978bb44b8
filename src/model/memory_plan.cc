// The plan of memory that `deepinfer inspect` prints: the tensor table by class, then caches and request
// state. Source: model specification 8.3, 8.4, 9.4 and 10.3.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "model/sizes.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

constexpr int64_t kSnapshotsPerSequence =
    2;  // model specification 10.3: one in prefill, one at the end of decode

// Sums and products that stop at the largest integer: counts come from the command line, sizes from any
// configuration.
int64_t times(int64_t a, int64_t b) {
  int64_t r = 0;
  return __builtin_mul_overflow(a, b, &r) ? std::numeric_limits<int64_t>::max() : r;
}
int64_t plus(int64_t a, int64_t b) {
  int64_t r = 0;
  return __builtin_add_overflow(a, b, &r) ? std::numeric_limits<int64_t>::max() : r;
}

std::string with_separators(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

void add_weights(const ModelConfig& c, MemoryPlan& plan) {
  TensorTotals totals = tensor_totals(c);
  for (TensorClass cls : {TensorClass::kBackbone, TensorClass::kRoutedExpert, TensorClass::kEngramTable,
                          TensorClass::kDraft, TensorClass::kDraftExpert, TensorClass::kVision}) {
    auto i = static_cast<size_t>(cls);
    if (totals.class_count[i] == 0) continue;
    bool mapped = cls == TensorClass::kEngramTable;
    std::string note = fmt::format("{} tensors", with_separators(totals.class_count[i]));
    if (mapped)
      note += fmt::format(", {} bytes gathered per token", with_separators(engram_bytes_per_token(c)));
    plan.lines.push_back(
        {fmt::format("weights: {}", tensor_class_name(cls)), totals.class_bytes[i], note, mapped});
  }
}

// Bytes that a sequence has whatever its length.
void add_sequence_state(const ModelConfig& c, int sequences, MemoryPlan& plan) {
  auto per_sequence = [&](const char* name, int64_t bytes, std::string how) {
    if (bytes == 0) return;
    plan.lines.push_back(
        {name, times(bytes, sequences),
         fmt::format("{} sequences of {}: {}", with_separators(sequences), with_separators(bytes), how)});
  };
  int64_t latent = record_sizes(c).window_latent;
  per_sequence("window rings", window_state_bytes(c),
               fmt::format("{} layers of {} slots of {}", c.num_hidden_layers, ring_slots(c), latent));
  per_sequence("draft rings", draft_ring_bytes(c),
               fmt::format("{} stages of {} slots of {}", c.num_nextn_predict_layers, ring_slots(c), latent));
  per_sequence(
      "draft inputs", draft_input_bytes(c),
      fmt::format("{} slots of the features of {} layers", ring_slots(c), c.dspark_target_layer_ids.size()));
  per_sequence("compressor tails", compressor_tail_bytes(c), "one pending row per ratio-2 source");
  per_sequence("window snapshots", kSnapshotsPerSequence * snapshot_bytes(c),
               fmt::format("{} of {} encoder layers", kSnapshotsPerSequence, c.first_decoder_layer()));
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& c, int64_t ram_bytes, int max_sequences, int64_t context_tokens) {
  DI_CHECK(ram_bytes >= 0 && max_sequences >= 1 && context_tokens >= 0,
           "lengths and counts are not negative");
  MemoryPlan plan;
  plan.ram_bytes = ram_bytes;
  add_weights(c, plan);
  add_sequence_state(c, max_sequences, plan);
  int64_t fixed = 0;
  for (const MemoryLine& line : plan.lines) {
    int64_t& sum = line.mapped ? plan.mapped_bytes : fixed;
    sum = plus(sum, line.bytes);
  }

  const int block_tokens = c.sliding_window;
  const int64_t block = kv_block_bytes(c, block_tokens);
  // Clamped, so that no product leaves 64 bits; nobody has a longer context than the positions allow.
  const int64_t context = std::min(context_tokens, c.max_position_embeddings);
  const int64_t blocks = (context + block_tokens - 1) / block_tokens;
  plan.lines.push_back({"KV blocks", times(times(blocks, block), max_sequences),
                        fmt::format("{} sequences of {} blocks of {} tokens, {} each ({} per token)",
                                    with_separators(max_sequences), with_separators(blocks), block_tokens,
                                    with_separators(block), with_separators(kv_bytes_per_token(c)))});
  plan.resident_bytes = plus(fixed, plan.lines.back().bytes);
  plan.max_context_tokens = c.max_position_embeddings;
  if (ram_bytes > 0) {
    plan.fits = plan.resident_bytes <= ram_bytes;
    int64_t room = std::max<int64_t>(ram_bytes - fixed, 0) / times(block, max_sequences);
    plan.max_context_tokens = std::min(plan.max_context_tokens, room * block_tokens);
  }
  return plan;
}

std::string MemoryPlan::to_text() const {
  std::string text;
  auto row = [&text](const std::string& name, int64_t bytes, const std::string& note) {
    text += fmt::format("{:<28} {:>19}  {}\n", name, with_separators(bytes), note);
  };
  for (const MemoryLine& line : lines)
    row(line.name, line.bytes, line.note + (line.mapped ? " (mapped)" : ""));
  row("resident", resident_bytes, "in RAM to decode at full speed");
  row("mapped", mapped_bytes, "may stay on disk");
  if (ram_bytes > 0) row("RAM given", ram_bytes, fits ? "enough" : "NOT enough for this plan");
  text += fmt::format("longest context for every sequence: {} tokens\n", with_separators(max_context_tokens));
  return text;
}

}  // namespace deepinfer
