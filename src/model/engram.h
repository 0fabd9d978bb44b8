// Engram n-gram hashing: primes, multipliers, and the table rows a position looks up. No tables, no weights.
// Source: model specification 5.2, 5.3 and appendix A. Threads: pure functions, immutable values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace deepinfer {

struct EngramLayerHash {
  int layer = 0;
  std::vector<uint64_t> primes;       // [columns], n-gram size major, head minor
  std::vector<uint64_t> offsets;      // [columns], first table row of the column
  std::vector<uint64_t> multipliers;  // [max_ngram], look-back 0 first
  int64_t rows = 0;                   // sum of the primes
};

struct EngramHash {
  int max_ngram = 0;
  int heads = 0;
  std::vector<EngramLayerHash> layers;  // in engram_layer_ids order

  // Table rows of one position. `history` holds the COMPRESSED ids of positions p, p-1, ..., (look-back 0
  // first, exactly max_ngram entries) with the compressed pad already put where blocked. Writes columns ids
  // to `out`.
  void rows(size_t layer_index, std::span<const int32_t> history, int64_t* out) const;
};

// Table rows per Engram layer: the sum of its primes, which engram_num_embeddings must equal (model
// specification 5.2). Reads only the engram_* fields; needs them within the bounds of the field list, nothing
// else.
std::vector<int64_t> engram_table_rows(const ModelConfig& config);

// The primes and multipliers of a configuration. Cost: a prime search of columns*layers primes from
// engram_vocab_size.
EngramHash make_engram_hash(const ModelConfig& config);

// NumPy's default_rng(seed).integers(0, bound, size=n, dtype=int64), bit for bit, for bound > 2^32 (appendix
// A). REQUIRES bound > 2^32: NumPy draws smaller ranges in another way.
std::vector<uint64_t> numpy_integers(uint64_t seed, uint64_t bound, int n);

// The two stages underneath, for checks: the seed's eight words and the generator's plain 64-bit draws.
std::array<uint32_t, 8> numpy_seed_words(uint64_t seed);
std::vector<uint64_t> numpy_raw_draws(uint64_t seed, int n);

// The token map of the tiny configurations: t if t < 4, else 4 + (t-4) mod (compressed-4)  (model
// specification 11.2).
std::vector<int32_t> tiny_token_map(int vocab_size, int compressed_vocab_size);

// Fills history[0..max_ngram) for position p of a sequence: compressed ids, blocked by the sequence start and
// by dead positions (image spans). `token_at(q)` gives the raw id and `dead_at(q)` whether q is inside an
// image span.
template <typename TokenAt, typename DeadAt>
void engram_history(int64_t p, int max_ngram, std::span<const int32_t> token_map, int pad_token_id,
                    TokenAt token_at, DeadAt dead_at, int32_t* history) {
  bool blocked = false;
  for (int s = 0; s < max_ngram; ++s) {
    int64_t q = p - s;
    if (!blocked && (q < 0 || dead_at(q))) blocked = true;
    history[s] = token_map[static_cast<size_t>(blocked ? pad_token_id : token_at(q))];
  }
}

}  // namespace deepinfer
