// Engram's integer side: the prime walk, NumPy's seeded generator and the n-gram hash.
// Source: model specification 5.2, 5.3 and appendix A.
#include "model/engram.h"

#include <array>
#include <bit>
#include <limits>

#include "base/check.h"

namespace deepinfer {
namespace {

__extension__ using Uint128 = unsigned __int128;

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t m) {
  uint64_t result = 1;
  for (base %= m; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = static_cast<uint64_t>(Uint128{result} * base % m);
    base = static_cast<uint64_t>(Uint128{base} * base % m);
  }
  return result;
}

// Strong probable-prime tests to the first twelve primes decide every n below 2^64 (Sorenson and Webster
// 2015).
bool is_prime(uint64_t n) {
  static constexpr std::array<uint64_t, 12> kBases = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (n < 2) return false;
  for (uint64_t p : kBases) {
    if (n % p == 0) return n == p;
  }
  int twos = std::countr_zero(n - 1);
  uint64_t odd = (n - 1) >> twos;
  for (uint64_t a : kBases) {
    uint64_t x = power_mod(a, odd, n);
    if (x == 1 || x == n - 1) continue;
    bool composite = true;
    for (int i = 1; i < twos && composite; ++i) {
      x = static_cast<uint64_t>(Uint128{x} * x % n);
      composite = x != n - 1;
    }
    if (composite) return false;
  }
  return true;
}

// Primes of every layer, n-gram size major, head minor. Each column of the walk takes the next unused prime,
// and every (layer, size) starts again at engram_vocab_size - 1 where all earlier primes are used: so it is
// one walk upwards.
std::vector<std::vector<uint64_t>> prime_walk(const ModelConfig& c) {
  std::vector<std::vector<uint64_t>> layers(c.engram_layer_ids.size());
  uint64_t last = static_cast<uint64_t>(c.engram_vocab_size) - 1;
  for (auto& primes : layers) {
    for (int i = 0; i < c.engram_columns(); ++i) {
      do ++last;
      while (!is_prime(last));
      primes.push_back(last);
    }
  }
  return layers;
}

// NumPy's SeedSequence for one 64-bit seed: eight 32-bit output words.
std::array<uint32_t, 8> seed_words(uint64_t seed) {
  uint32_t running = 0x43b0d7e5u;
  auto mix_in = [&running](uint32_t v) {
    v ^= running;
    running *= 0x931e8875u;
    v *= running;
    return v ^ (v >> 16);
  };
  auto join = [](uint32_t x, uint32_t y) {
    uint32_t z = x * 0xca01f9ddu - y * 0x4973f715u;
    return z ^ (z >> 16);
  };
  std::array<uint32_t, 4> pool{};
  std::array<uint32_t, 4> words = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  for (size_t i = 0; i < 4; ++i) pool[i] = mix_in(words[i]);
  for (size_t s = 0; s < 4; ++s) {
    for (size_t d = 0; d < 4; ++d) {
      if (d != s) pool[d] = join(pool[d], mix_in(pool[s]));
    }
  }
  std::array<uint32_t, 8> out{};
  uint32_t c = 0x8b51f9ddu;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t v = pool[i % 4] ^ c;
    c *= 0x58f38dedu;
    v *= c;
    out[i] = v ^ (v >> 16);
  }
  return out;
}

// PCG64 XSL-RR, seeded as NumPy's default_rng.
class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    std::array<uint32_t, 8> w = seed_words(seed);
    auto pair = [&w](size_t i) { return uint64_t{w[2 * i]} | uint64_t{w[2 * i + 1]} << 32; };
    inc_ = (join(pair(2), pair(3)) << 1) | 1;
    step();
    state_ += join(pair(0), pair(1));
    step();
  }
  uint64_t next() {
    step();
    auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }

 private:
  static Uint128 join(uint64_t high, uint64_t low) { return Uint128{high} << 64 | low; }
  void step() { state_ = state_ * join(0x2360ed051fc65da4u, 0x4385df649fccf645u) + inc_; }
  Uint128 state_ = 0;
  Uint128 inc_ = 0;
};

}  // namespace

std::vector<uint64_t> numpy_raw_draws(uint64_t seed, int n) {
  Pcg64 generator(seed);
  std::vector<uint64_t> out;
  for (int i = 0; i < n; ++i) out.push_back(generator.next());
  return out;
}

std::array<uint32_t, 8> numpy_seed_words(uint64_t seed) {
  return seed_words(seed);
}

std::vector<uint64_t> numpy_integers(uint64_t seed, uint64_t bound, int n) {
  DI_CHECK(bound > (uint64_t{1} << 32),
           "NumPy draws ranges up to 2^32 from 32-bit halves, which is not done here");
  Pcg64 generator(seed);
  std::vector<uint64_t> out;
  for (int i = 0; i < n; ++i) {
    Uint128 m = Uint128{generator.next()} * bound;
    if (static_cast<uint64_t>(m) < bound) {
      uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound: draws below it would favour small results
      while (static_cast<uint64_t>(m) < threshold) m = Uint128{generator.next()} * bound;
    }
    out.push_back(static_cast<uint64_t>(m >> 64));
  }
  return out;
}

std::vector<int64_t> engram_table_rows(const ModelConfig& config) {
  std::vector<int64_t> rows;
  for (const auto& primes : prime_walk(config)) {
    int64_t sum = 0;
    for (uint64_t p : primes) sum += static_cast<int64_t>(p);
    rows.push_back(sum);
  }
  return rows;
}

EngramHash make_engram_hash(const ModelConfig& config) {
  EngramHash hash;
  if (config.engram_layer_ids.empty()) return hash;
  hash.max_ngram = config.engram_max_ngram_size;
  hash.heads = config.engram_n_heads;
  auto vocab = static_cast<uint64_t>(config.engram_compressed_vocab_size);
  uint64_t bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / vocab / 2;
  std::vector<std::vector<uint64_t>> primes = prime_walk(config);
  for (size_t i = 0; i < primes.size(); ++i) {
    EngramLayerHash layer;
    layer.layer = config.engram_layer_ids[i];
    layer.primes = std::move(primes[i]);
    uint64_t rows = 0;
    for (uint64_t p : layer.primes) {
      layer.offsets.push_back(rows);
      rows += p;
    }
    layer.rows = static_cast<int64_t>(rows);
    // The seed is made from the layer's number, not from its place in the list.
    layer.multipliers = numpy_integers(10007u * static_cast<uint64_t>(layer.layer), bound, hash.max_ngram);
    for (uint64_t& m : layer.multipliers) m = 2 * m + 1;
    hash.layers.push_back(std::move(layer));
  }
  return hash;
}

void EngramHash::rows(size_t layer_index, std::span<const int32_t> history, int64_t* out) const {
  DI_CHECK(layer_index < layers.size() && history.size() == static_cast<size_t>(max_ngram),
           "Engram history length");
  const EngramLayerHash& layer = layers[layer_index];
  // Products stay below 2^63, as the multipliers are bounded by 2^63 / compressed_vocab.
  uint64_t mixed = static_cast<uint64_t>(history[0]) * layer.multipliers[0];
  size_t column = 0;
  for (size_t i = 1; i < history.size(); ++i) {
    mixed ^= static_cast<uint64_t>(history[i]) * layer.multipliers[i];
    for (int head = 0; head < heads; ++head, ++column) {
      out[column] = static_cast<int64_t>(mixed % layer.primes[column] + layer.offsets[column]);
    }
  }
}

std::vector<int32_t> tiny_token_map(int vocab_size, int compressed_vocab_size) {
  DI_CHECK(compressed_vocab_size > 4, "the map keeps four ids and needs one more to fold the others into");
  std::vector<int32_t> map(static_cast<size_t>(vocab_size));
  for (int t = 0; t < vocab_size; ++t) {
    map[static_cast<size_t>(t)] = t < 4 ? t : 4 + (t - 4) % (compressed_vocab_size - 4);
  }
  return map;
}

}  // namespace deepinfer
