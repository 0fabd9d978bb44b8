// What binds a cached block to this engine, and the keys of a request's blocks. Two engines whose identity is
// the same compute the same bytes for the same tokens. Source: serving specification 7.2. Threads: pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/weights.h"
#include "engine/cache_layout.h"
#include "engine/engine.h"
#include "model/prefix_key.h"
#include "policy/ids.h"

namespace deepinfer {

// Identity of the weights' revision: the configuration, every small tensor, and the ends and the middle of
// the matrices (of experts the first and the last of every layer). A retrained, converted or otherwise
// different checkpoint differs there; it is no defence against somebody who changes single bytes elsewhere on
// purpose. Reads a few hundred pages, whatever the size of the model.
std::string weights_identity(const ModelWeights& weights);

// Everything but the request's own scope.
PrefixIdentity engine_identity(const ModelWeights& weights, const CacheLayout& layout, int64_t keep_tokens,
                               const std::string& weights_digest, const std::string& tokenizer_digest);

policy::BlockKey to_block_key(const Digest& digest);

// Key of block `index`, which begins at token index * block_tokens and is complete in `tokens`.
Digest request_block(const Digest& parent, const EngineRequest& request, const std::vector<int32_t>& tokens,
                     int64_t index, int block_tokens);

struct PromptKeys {
  std::vector<policy::BlockKey> keys;  // of the prompt's full blocks
  Digest last{};                       // parent of the next block
};
PromptKeys prompt_keys(const PrefixIdentity& engine, const EngineRequest& request, int block_tokens);

}  // namespace deepinfer
