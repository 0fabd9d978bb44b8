// What the engine's parity tests share: a synthetic checkpoint per configuration, prompts, digests of
// everything a run leaves behind.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "checkpoint/synth.h"
#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "engine/generator.h"
#include "model/sizes.h"

namespace deepinfer::parity {

// A checkpoint in the released formats, written once per process and configuration.
inline ModelWeights load_synthetic(const std::string& name) {
  namespace fs = std::filesystem;
  fs::path dir = fs::temp_directory_path() / ("deepinfer-parity-" + name + "-" + std::to_string(getpid()));
  ModelConfig config = builtin_config(name).value();
  Status s = synthesise(config, dir.string(), {});
  DI_CHECK(s.ok(), s.to_string());
  ModelWeights w = load_checkpoint(dir.string()).value();
  fs::remove_all(dir);  // the mappings stay
  return w;
}

inline const ModelWeights& weights(const std::string& name) {
  static std::map<std::string, ModelWeights> cache;
  auto it = cache.find(name);
  if (it == cache.end()) it = cache.emplace(name, load_synthetic(name)).first;
  return it->second;
}

// Long enough that top-k and the candidate pool both leave entries out and YaRN is active.
inline int prompt_length(const std::string& name) {
  return name == "t0" ? 150 : name == "t1" ? 300 : 600;
}

inline std::vector<int32_t> prompt(int n, int vocab, int variant = 0) {
  std::vector<int32_t> t;
  for (int i = 0; i < n; ++i) t.push_back((7 + 37 * i + i * i + 11 * variant) % (vocab - 6));
  return t;
}

inline uint64_t digest(const void* p, size_t n, uint64_t h = 0xcbf29ce484222325ull) {
  const auto* b = static_cast<const uint8_t*>(p);
  for (size_t i = 0; i < n; ++i) h = (h ^ b[i]) * 0x100000001b3ull;
  return h;
}

// Every cached bit that later rows can read: complete entries of all kv sources, windows, draft rings, open
// groups.
inline uint64_t digest(const SequenceState& s, const CacheLayout& lay, const ModelConfig& c) {
  uint64_t h = 1;
  for (size_t slot = 0; slot < lay.sources.size(); ++slot) {
    const auto& src = lay.sources[slot];
    for (int64_t j = 0; j < s.length / src.ratio; ++j) {
      const uint8_t* b = s.block_data(j / src.entries);
      int64_t e = j % src.entries;
      h = digest(b + src.main_codes + e * lay.main.code_bytes, static_cast<size_t>(lay.main.code_bytes), h);
      h = digest(b + src.main_scales + e * lay.main.scale_bytes, static_cast<size_t>(lay.main.scale_bytes),
                 h);
      h = digest(b + src.index_codes + e * lay.index.code_bytes, static_cast<size_t>(lay.index.code_bytes),
                 h);
      h = digest(b + src.index_scales + e * lay.index.scale_bytes, static_cast<size_t>(lay.index.scale_bytes),
                 h);
    }
    if (src.ratio > 1 && s.length % src.ratio != 0) {
      h = digest(s.tails[slot].codes(s.length / src.ratio), static_cast<size_t>(lay.tail_row_bytes), h);
    }
  }
  auto ring = [&](const RecordRing& r, int64_t floor) {
    for (int64_t p = std::max(floor, s.length - c.sliding_window); p < s.length; ++p) {
      h = digest(r.codes(p), static_cast<size_t>(r.code_bytes()), h);
      h = digest(r.scales(p), static_cast<size_t>(r.scale_bytes()), h);
    }
  };
  for (size_t l = 0; l < s.window.size(); ++l)
    ring(s.window[l], static_cast<int>(l) < c.first_decoder_layer() ? s.encoder_floor : s.decoder_floor);
  if (s.draft_input.slots() > 0) ring(s.draft_input, s.decoder_floor);
  return h;
}

// One numeric mode over one checkpoint.
template <typename A>
struct Bench {
  explicit Bench(const std::string& name, int threads = 2)
      : w(weights(name)), pool(threads), model(&w, &pool, {}), blocks(model.layout().block_bytes, 100000) {}
  std::unique_ptr<SequenceState> start(const std::vector<int32_t>& tokens, int64_t keep) {
    auto s = std::make_unique<SequenceState>(w.config, model.layout(), &blocks);
    s->tokens = tokens;
    s->decoder_floor = keep < 0 ? 0 : std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - keep);
    EXPECT_TRUE(s->reserve(static_cast<int64_t>(tokens.size())).ok());
    return s;
  }
  uint64_t state_digest(const SequenceState& s) const { return digest(s, model.layout(), w.config); }
  const ModelWeights& w;
  ThreadPool pool;
  Forward<A> model;
  BlockPool blocks;
};

}  // namespace deepinfer::parity
