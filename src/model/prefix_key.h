// Content addresses of cached prefixes: a chain of SHA-256 digests, one per full block, that binds everything
// a block's bytes depend on. The same on every machine and after every restart: no seed, no truncation.
// Source: serving specification 7.2. Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"

namespace deepinfer {

// What all blocks of one chain share. Every field is bound by its length and bytes; change one and nothing is
// shared.
struct PrefixIdentity {
  std::string name_space;  // tenant, or "public" for content that policy marks public
  std::string weights;     // digest of the weights' revision
  std::string tokenizer;   // digest of tokenizer and template
  std::string layout;      // block size, layer map, ratios, record formats, keep, replay mode
  std::string precision;   // record precision and numeric profile (instruction level, kernel version)
  std::string attention_mode;
  std::string salt;  // the caller's own separation; empty: none
};

// A multimodal item that overlaps a block: where it starts relative to the block's first token (negative if
// earlier) and how long it is.
struct PrefixItem {
  Digest digest{};
  int32_t offset = 0;
  uint32_t length = 0;
};

Digest prefix_root(const PrefixIdentity& identity);
// Key of the block after `parent` (the root for the first): its tokens, in order, and the items that overlap
// it.
Digest prefix_block(const Digest& parent, std::span<const int32_t> tokens,
                    std::span<const PrefixItem> items = {});
// Keys of all full blocks of a token sequence without items.
std::vector<Digest> prefix_chain(const Digest& root, std::span<const int32_t> tokens, int block_tokens);

}  // namespace deepinfer
