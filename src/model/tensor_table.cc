// The table itself: one function per group of model specification 9, in file order.
#include "model/tensor_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr int64_t kTile = 32;  // one E8M0 scale per 32 columns (and 32 rows for dense tiles)

int64_t tiles(int64_t n) {
  return (n + kTile - 1) / kTile;
}

bool contains(const std::vector<int>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Builds names and hands specs to the visitor; one spec object is reused for all tensors.
class Emitter {
 public:
  Emitter(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit)
      : c_(config), visit_(visit) {}

  void globals();
  void vision();
  void block(const std::string& prefix, int layer, bool draft);
  void layer_extras(int layer);
  void draft_extras();
  void engram_tables();

 private:
  void emit(const std::string& name, DType dtype, std::vector<int64_t> shape, Role role) {
    spec_.name = name;
    spec_.dtype = dtype;
    spec_.shape = std::move(shape);
    spec_.role = role;
    spec_.cls = cls_;
    spec_.layer = layer_;
    visit_(spec_);
  }
  void bf16(const std::string& name, std::vector<int64_t> shape, Role role) {
    emit(name, DType::kBF16, std::move(shape), role);
  }
  void f32(const std::string& name, std::vector<int64_t> shape, Role role) {
    emit(name, DType::kF32, std::move(shape), role);
  }
  // Linear layers `stem`.weight [rows, cols] followed by their scale; validate() admits these two storage
  // types only.
  void dense(const std::string& stem, int64_t rows, int64_t cols) {
    emit(stem + ".weight", DType::kF8E4M3, {rows, cols}, Role::kProjection);
    emit(stem + ".scale", DType::kF8E8M0, {tiles(rows), tiles(cols)}, Role::kScale);
  }
  void expert(const std::string& stem, int64_t rows, int64_t cols) {
    emit(stem + ".weight", DType::kI8, {rows, cols / 2}, Role::kProjection);
    emit(stem + ".scale", DType::kF8E8M0, {rows, cols / kTile}, Role::kScale);
  }

  void attention(const std::string& p, int layer);
  void feed_forward(const std::string& p, bool draft);
  void hyper_connections(const std::string& p);

  const ModelConfig& c_;
  const std::function<void(const TensorSpec&)>& visit_;
  TensorSpec spec_{};
  TensorClass cls_ = TensorClass::kBackbone;
  int layer_ = -1;
};

void Emitter::globals() {
  cls_ = TensorClass::kBackbone;
  layer_ = -1;
  bf16("embed.weight", {c_.vocab_size, c_.hidden_size}, Role::kEmbedding);
  bf16("head.weight", {c_.vocab_size, c_.hidden_size}, Role::kProjection);
  bf16("norm.weight", {c_.hidden_size}, Role::kNormWeight);
}

void Emitter::vision() {
  const VisionConfig& v = c_.vision;
  if (v.num_hidden_layers <= 0) return;
  cls_ = TensorClass::kVision;
  layer_ = -1;
  const int64_t h = c_.hidden_size, w = v.hidden_size, ff = v.intermediate_size;
  const int64_t patch = int64_t{3} * v.patch_size * v.patch_size;
  const int64_t window = int64_t{v.downsample_ratio} * v.downsample_ratio * w;
  for (const char* name : {"image_start", "image_end", "image_newline"}) bf16(name, {h}, Role::kEmbedding);
  bf16("vision.patch_embed.proj.weight", {w, patch}, Role::kProjection);
  bf16("vision.patch_embed.proj.bias", {w}, Role::kBias);
  for (int i = 0; i < v.num_hidden_layers; ++i) {
    const std::string p = "vision.blocks." + std::to_string(i) + ".";
    bf16(p + "norm1.weight", {w}, Role::kNormWeight);
    bf16(p + "attn.wqkv.weight", {3 * w, w}, Role::kProjection);
    bf16(p + "attn.wqkv.bias", {3 * w}, Role::kBias);
    bf16(p + "attn.wo.weight", {w, w}, Role::kProjection);
    bf16(p + "attn.wo.bias", {w}, Role::kBias);
    bf16(p + "norm2.weight", {w}, Role::kNormWeight);
    bf16(p + "mlp.w1.weight", {2 * ff, w}, Role::kProjection);
    bf16(p + "mlp.w2.weight", {w, ff}, Role::kProjection);
  }
  bf16("vision.norm.weight", {w}, Role::kNormWeight);
  bf16("aligner.w1.weight", {h, window}, Role::kProjection);
  bf16("aligner.w1.bias", {h}, Role::kBias);
  bf16("aligner.w2.weight", {h, h}, Role::kProjection);
  bf16("aligner.w2.bias", {h}, Role::kBias);
}

void Emitter::hyper_connections(const std::string& p) {
  for (const char* site : {"hc_attn_", "hc_ffn_"}) {
    f32(p + site + "fn", {c_.hc_mix_width(), c_.hc_input_width()}, Role::kProjection);
    f32(p + site + "base", {c_.hc_mix_width()}, Role::kHcBase);
    f32(p + site + "scale", {3}, Role::kHcScale);
  }
}

void Emitter::attention(const std::string& p, int layer) {
  const int64_t h = c_.hidden_size, d = c_.head_dim, q = c_.q_lora_rank;
  const int64_t low_rank = int64_t{c_.o_groups} * c_.o_lora_rank;
  dense(p + "wq_a", q, h);
  bf16(p + "q_norm.weight", {q}, Role::kNormWeight);
  dense(p + "wq_b", c_.num_attention_heads * d, q);
  dense(p + "wkv", d, h);
  bf16(p + "kv_norm.weight", {d}, Role::kNormWeight);
  dense(p + "wo_a", low_rank, c_.wo_a_in());
  dense(p + "wo_b", h, low_rank);
  f32(p + "attn_sink", {c_.num_attention_heads}, Role::kSink);
  if (contains(c_.kv_source_layer_ids, layer)) {
    bf16(p + "compressor.wkv.weight", {d, h}, Role::kProjection);
    if (c_.ratio(layer) > 1) bf16(p + "compressor.wgate.weight", {d, h}, Role::kProjection);
    bf16(p + "compressor.norm.weight", {d}, Role::kNormWeight);
    bf16(p + "indexer.wk.weight", {c_.index_head_dim, d}, Role::kProjection);
    bf16(p + "indexer.k_norm.weight", {c_.index_head_dim}, Role::kNormWeight);
  }
  if (contains(c_.index_source_layer_ids, layer)) {
    dense(p + "indexer.wq_b", int64_t{c_.index_n_heads} * c_.index_head_dim, q);
    bf16(p + "indexer.weights_proj.weight", {c_.index_n_heads, h}, Role::kProjection);
  }
}

void Emitter::feed_forward(const std::string& p, bool draft) {
  const int64_t h = c_.hidden_size, w = c_.moe_intermediate_size;
  const int experts = draft ? c_.dspark_n_routed_experts : c_.n_routed_experts;
  bf16(p + "gate.weight", {experts, h}, Role::kProjection);
  f32(p + "gate.bias", {experts}, Role::kGateBias);
  f32(p + "gate.bias_vl", {experts}, Role::kGateBias);
  const TensorClass rest = cls_;
  cls_ = draft ? TensorClass::kDraftExpert : TensorClass::kRoutedExpert;
  for (int e = 0; e < experts; ++e) {
    const std::string stem = p + "experts." + std::to_string(e) + ".";
    expert(stem + "w1", w, h);
    expert(stem + "w3", w, h);
    expert(stem + "w2", h, w);
  }
  cls_ = rest;
  dense(p + "shared_experts.w1", w, h);
  dense(p + "shared_experts.w3", w, h);
  dense(p + "shared_experts.w2", h, w);
}

void Emitter::block(const std::string& prefix, int layer, bool draft) {
  cls_ = draft ? TensorClass::kDraft : TensorClass::kBackbone;
  layer_ = layer;
  hyper_connections(prefix);
  bf16(prefix + "attn_norm.weight", {c_.hidden_size}, Role::kNormWeight);
  attention(prefix + "attn.", draft ? -1 : layer);
  bf16(prefix + "ffn_norm.weight", {c_.hidden_size}, Role::kNormWeight);
  feed_forward(prefix + "ffn.", draft);
}

void Emitter::layer_extras(int layer) {
  if (!contains(c_.engram_layer_ids, layer)) return;
  const std::string p = "layers." + std::to_string(layer) + ".engram.";
  dense(p + "wkv", c_.engram_wkv_out(), c_.engram_lookup_width());
  bf16(p + "q_weight", {c_.hc_mult, c_.hidden_size}, Role::kNormWeight);
  bf16(p + "k_weight", {c_.hc_mult, c_.hidden_size}, Role::kNormWeight);
}

void Emitter::draft_extras() {
  if (c_.num_nextn_predict_layers <= 0) return;
  cls_ = TensorClass::kDraft;
  const int64_t h = c_.hidden_size, rank = c_.dspark_markov_rank;
  layer_ = c_.num_hidden_layers;
  dense("mtp.0.main_proj", h, h * static_cast<int64_t>(c_.dspark_target_layer_ids.size()));
  bf16("mtp.0.main_norm.weight", {h}, Role::kNormWeight);
  const int last = c_.num_nextn_predict_layers - 1;
  const std::string p = "mtp." + std::to_string(last) + ".";
  layer_ = c_.num_hidden_layers + last;
  bf16(p + "norm.weight", {h}, Role::kNormWeight);
  bf16(p + "markov_head.embed.weight", {c_.vocab_size, rank}, Role::kEmbedding);
  bf16(p + "markov_head.head.weight", {c_.vocab_size, rank}, Role::kProjection);
  bf16(p + "confidence_head.proj.weight", {1, h + rank}, Role::kProjection);
}

void Emitter::engram_tables() {
  cls_ = TensorClass::kEngramTable;
  for (size_t i = 0; i < c_.engram_layer_ids.size(); ++i) {
    layer_ = c_.engram_layer_ids[i];
    const std::string p = "layers." + std::to_string(layer_) + ".engram.embed.";
    const int64_t rows = c_.engram_num_embeddings[i];
    emit(p + "weight", DType::kF8E4M3, {rows, c_.engram_head_dim}, Role::kEngramTable);
    emit(p + "scale", DType::kF8E8M0, {rows, c_.engram_head_dim / kTile}, Role::kScale);
  }
}

}  // namespace

const char* dtype_tag(DType t) {
  switch (t) {
    case DType::kBF16:
      return "BF16";
    case DType::kF32:
      return "F32";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
      return 1;
  }
  return 0;
}

const char* tensor_class_name(TensorClass c) {
  switch (c) {
    case TensorClass::kBackbone:
      return "backbone";
    case TensorClass::kRoutedExpert:
      return "routed_experts";
    case TensorClass::kEngramTable:
      return "engram_tables";
    case TensorClass::kDraftExpert:
      return "draft_experts";
    case TensorClass::kDraft:
      return "draft";
    case TensorClass::kVision:
      return "vision";
  }
  return "?";
}

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t TensorSpec::bytes() const {
  return elements() * dtype_bytes(dtype);
}

void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit) {
  DI_CHECK(config.engram_layer_ids.size() == config.engram_num_embeddings.size(),
           "a validated configuration has one table size per Engram layer");
  Emitter emitter(config, visit);
  emitter.globals();
  emitter.vision();
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    emitter.block("layers." + std::to_string(l) + ".", l, false);
    emitter.layer_extras(l);
  }
  for (int i = 0; i < config.num_nextn_predict_layers; ++i) {
    emitter.block("mtp." + std::to_string(i) + ".", config.num_hidden_layers + i, true);
  }
  emitter.draft_extras();
  emitter.engram_tables();
}

std::vector<TensorSpec> tensor_table(const ModelConfig& config) {
  std::vector<TensorSpec> table;
  for_each_tensor(config, [&](const TensorSpec& t) { table.push_back(t); });
  return table;
}

TensorTotals tensor_totals(const ModelConfig& config) {
  TensorTotals totals;
  for_each_tensor(config, [&](const TensorSpec& t) {
    const int64_t bytes = t.bytes();
    totals.count += 1;
    totals.bytes += bytes;
    totals.class_count[static_cast<size_t>(t.cls)] += 1;
    totals.class_bytes[static_cast<size_t>(t.cls)] += bytes;
    totals.dtype_bytes_[static_cast<size_t>(t.dtype)] += bytes;
  });
  return totals;
}

}  // namespace deepinfer
