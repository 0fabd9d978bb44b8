// One function per struct of weights.h.
#include "checkpoint/bind.h"

#include <algorithm>

namespace deepinfer {
namespace {

bool contains(const std::vector<int>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

HcSite bind_site(const std::string& stem, WeightSource& s) {
  HcSite site;
  site.fn = s.matrix(stem + "_fn");
  site.base = s.small(stem + "_base");
  site.scale = s.small(stem + "_scale");
  return site;
}

ExpertWeights bind_expert(const std::string& stem, WeightSource& s) {
  ExpertWeights e;
  e.w1 = s.matrix(stem + "w1.weight");
  e.w3 = s.matrix(stem + "w3.weight");
  e.w2 = s.matrix(stem + "w2.weight");
  return e;
}

BlockWeights bind_block(const std::string& p, int experts, WeightSource& s) {
  BlockWeights b;
  b.attn_norm = s.small(p + "attn_norm.weight");
  b.ffn_norm = s.small(p + "ffn_norm.weight");
  b.hc_attn = bind_site(p + "hc_attn", s);
  b.hc_ffn = bind_site(p + "hc_ffn", s);
  b.wq_a = s.matrix(p + "attn.wq_a.weight");
  b.wq_b = s.matrix(p + "attn.wq_b.weight");
  b.wkv = s.matrix(p + "attn.wkv.weight");
  b.wo_a = s.matrix(p + "attn.wo_a.weight");
  b.wo_b = s.matrix(p + "attn.wo_b.weight");
  b.q_norm = s.small(p + "attn.q_norm.weight");
  b.kv_norm = s.small(p + "attn.kv_norm.weight");
  b.attn_sink = s.small(p + "attn.attn_sink");
  b.gate = s.matrix(p + "ffn.gate.weight");
  b.gate_bias = s.small(p + "ffn.gate.bias");
  b.gate_bias_vl = s.small(p + "ffn.gate.bias_vl");
  b.experts.reserve(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e)
    b.experts.push_back(bind_expert(p + "ffn.experts." + std::to_string(e) + ".", s));
  b.shared = bind_expert(p + "ffn.shared_experts.", s);
  return b;
}

void bind_layer_extras(const ModelConfig& c, int layer, WeightSource& s, BlockWeights* b) {
  const std::string p = "layers." + std::to_string(layer) + ".";
  if (contains(c.kv_source_layer_ids, layer)) {
    b->compressor = std::make_unique<CompressorWeights>();
    b->compressor->wkv = s.matrix(p + "attn.compressor.wkv.weight");
    if (c.ratio(layer) > 1) b->compressor->wgate = s.matrix(p + "attn.compressor.wgate.weight");
    b->compressor->norm = s.small(p + "attn.compressor.norm.weight");
    b->compressor->wk = s.matrix(p + "attn.indexer.wk.weight");
    b->compressor->k_norm = s.small(p + "attn.indexer.k_norm.weight");
  }
  if (contains(c.index_source_layer_ids, layer)) {
    b->indexer = std::make_unique<IndexerWeights>();
    b->indexer->wq_b = s.matrix(p + "attn.indexer.wq_b.weight");
    b->indexer->weights_proj = s.matrix(p + "attn.indexer.weights_proj.weight");
  }
  if (contains(c.engram_layer_ids, layer)) {
    b->engram = std::make_unique<EngramWeights>();
    b->engram->table = s.matrix(p + "engram.embed.weight");
    b->engram->wkv = s.matrix(p + "engram.wkv.weight");
    b->engram->q_weight = s.small(p + "engram.q_weight");
    b->engram->k_weight = s.small(p + "engram.k_weight");
  }
}

DraftWeights bind_draft(const ModelConfig& c, WeightSource& s) {
  DraftWeights d;
  const std::string last = "mtp." + std::to_string(c.num_nextn_predict_layers - 1) + ".";
  d.main_proj = s.matrix("mtp.0.main_proj.weight");
  d.main_norm = s.small("mtp.0.main_norm.weight");
  d.norm = s.small(last + "norm.weight");
  d.markov_embed = s.matrix(last + "markov_head.embed.weight");
  d.markov_head = s.matrix(last + "markov_head.head.weight");
  d.confidence = s.matrix(last + "confidence_head.proj.weight");
  return d;
}

}  // namespace

ModelWeights bind_weights(const ModelConfig& config, WeightSource& source) {
  ModelWeights w;
  w.config = config;
  w.embed = source.matrix("embed.weight");
  w.head = source.matrix("head.weight");
  w.norm = source.small("norm.weight");
  if (config.vision.num_hidden_layers > 0) {
    w.image_start = source.matrix("image_start");
    w.image_end = source.matrix("image_end");
    w.image_newline = source.matrix("image_newline");
  }
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    w.layers.push_back(bind_block("layers." + std::to_string(l) + ".", config.n_routed_experts, source));
    bind_layer_extras(config, l, source, &w.layers.back());
  }
  for (int i = 0; i < config.num_nextn_predict_layers; ++i) {
    w.mtp.push_back(bind_block("mtp." + std::to_string(i) + ".", config.dspark_n_routed_experts, source));
  }
  if (config.num_nextn_predict_layers > 0) w.draft = bind_draft(config, source);
  return w;
}

}  // namespace deepinfer
