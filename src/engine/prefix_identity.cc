// Sampled digests of the weights, and chains of block keys.
#include "engine/prefix_identity.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace deepinfer {
namespace {

class WeightsHash {
 public:
  void add(const SmallTensor& t) { hash_.update(t.f64.data(), t.f64.size() * sizeof(double)); }
  void add(const MatrixView& m) {
    hash_.update(fmt::format("{} {}x{};", static_cast<int>(m.format), m.rows, m.cols));
    if (m.empty()) return;
    constexpr int64_t kPiece = 4096;
    int64_t bytes = code_bytes(m, m.rows), piece = std::min(bytes, kPiece);
    for (int64_t at : {int64_t{0}, (bytes - piece) / 2, bytes - piece})
      hash_.update(static_cast<const uint8_t*>(m.data) + at, static_cast<size_t>(piece));
  }
  void add(const HcSite& s) {
    add(s.fn);
    add(s.base);
    add(s.scale);
  }
  void add(const ExpertWeights& e) {
    add(e.w1);
    add(e.w3);
    add(e.w2);
  }
  void add(const BlockWeights& b) {
    for (const SmallTensor* t :
         {&b.attn_norm, &b.ffn_norm, &b.q_norm, &b.kv_norm, &b.attn_sink, &b.gate_bias, &b.gate_bias_vl})
      add(*t);
    add(b.hc_attn);
    add(b.hc_ffn);
    for (const MatrixView* m : {&b.wq_a, &b.wq_b, &b.wkv, &b.wo_a, &b.wo_b, &b.gate}) add(*m);
    if (!b.experts.empty()) {
      add(b.experts.front());
      add(b.experts.back());
    }
    add(b.shared);
    if (b.compressor != nullptr) {
      for (const MatrixView* m : {&b.compressor->wkv, &b.compressor->wgate, &b.compressor->wk}) add(*m);
      add(b.compressor->norm);
      add(b.compressor->k_norm);
    }
    if (b.indexer != nullptr) {
      add(b.indexer->wq_b);
      add(b.indexer->weights_proj);
    }
    if (b.engram != nullptr) {
      add(b.engram->table);
      add(b.engram->wkv);
      add(b.engram->q_weight);
      add(b.engram->k_weight);
    }
  }
  void add(const std::string& text) { hash_.update(text); }
  void add(const std::vector<int32_t>& ids) { hash_.update(ids.data(), ids.size() * sizeof(int32_t)); }
  std::string hex() { return to_hex(hash_.finish()); }

 private:
  Sha256 hash_;
};

}  // namespace

std::string weights_identity(const ModelWeights& w) {
  WeightsHash h;
  ModelConfig config = w.config;
  config.name.clear();  // where it lies is no part of what it is
  h.add(config_to_json(config));
  h.add(w.token_map);
  for (const MatrixView* m : {&w.embed, &w.head, &w.image_start, &w.image_end, &w.image_newline}) h.add(*m);
  h.add(w.norm);
  for (const BlockWeights& b : w.layers) h.add(b);
  return h.hex();
}

PrefixIdentity engine_identity(const ModelWeights& w, const CacheLayout& layout, int64_t keep_tokens,
                               const std::string& weights_digest, const std::string& tokenizer_digest) {
  PrefixIdentity id;
  id.weights = weights_digest.empty() ? weights_identity(w) : weights_digest;
  id.tokenizer = tokenizer_digest;
  id.layout = fmt::format("block {} bytes {} ring {} keep {} replay encoder+decoder", layout.block_tokens,
                          layout.block_bytes, layout.ring_slots, keep_tokens);
  for (const CacheLayout::Source& s : layout.sources)
    id.layout += fmt::format(" source {} ratio {} at {}", s.layer, s.ratio, s.main_codes);
  id.precision = fmt::format("main {} index {} window {} native {}", static_cast<int>(layout.main.format),
                             static_cast<int>(layout.index.format), static_cast<int>(layout.window.format),
                             numeric_profile());
  id.attention_mode = "csa2";
  return id;
}

policy::BlockKey to_block_key(const Digest& digest) {
  policy::BlockKey key;
  static_assert(sizeof(key.words) == sizeof(Digest));
  std::memcpy(key.words.data(), digest.data(), digest.size());
  return key;
}

Digest request_block(const Digest& parent, const EngineRequest& request, const std::vector<int32_t>& tokens,
                     int64_t index, int block_tokens) {
  int64_t begin = index * block_tokens, end = begin + block_tokens;
  std::vector<PrefixItem> items;
  for (size_t i = 0; i < request.images.size(); ++i) {
    const ImageSpan& image = request.images[i];
    if (image.begin >= end || image.begin + image.count <= begin) continue;
    items.push_back({sha256(request.image_digests[i]), static_cast<int32_t>(image.begin - begin),
                     static_cast<uint32_t>(image.count)});
  }
  std::span<const int32_t> all(tokens);
  return prefix_block(parent, all.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_tokens)),
                      items);
}

PromptKeys prompt_keys(const PrefixIdentity& engine, const EngineRequest& request, int block_tokens) {
  PrefixIdentity id = engine;
  id.name_space = request.cache_scope;
  PromptKeys out;
  out.last = prefix_root(id);
  int64_t blocks = static_cast<int64_t>(request.prompt.size()) / block_tokens;
  for (int64_t i = 0; i < blocks; ++i) {
    out.last = request_block(out.last, request, request.prompt, i, block_tokens);
    out.keys.push_back(to_block_key(out.last));
  }
  return out;
}

}  // namespace deepinfer
