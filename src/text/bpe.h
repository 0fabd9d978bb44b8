// Byte-pair merging of one piece, and the vocabulary tables it needs. Internal to the text room: tokenizer.h
// is the public face. Source: request edge specification 2.2. Threads: immutable once filled.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

class Bpe {
 public:
  struct Merge {
    int32_t left = 0, right = 0, result = 0;
  };

  // `bytes` maps a byte to its id; `merges` come in rank order; `tokens[id]` are the bytes of ids (empty
  // where an id is not a BPE token). With `ignore_merges` a piece that is a token is that token even if the
  // merges would spell it otherwise.
  Bpe(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges,
      std::vector<std::string> tokens, bool ignore_merges);

  // Appends the ids of one piece: lowest rank first, ties to the left. O(n log n) for any bytes. REQUIRES
  // size < 2^31.
  void encode_piece(std::string_view piece, std::vector<int32_t>* ids) const;
  std::string_view token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  size_t token_count() const { return tokens_.size(); }

 private:
  struct PairSlot {
    uint64_t key = kEmpty;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kEmpty = ~0ull;
  static constexpr uint32_t kNoRank = ~0u;
  // Up to this many bytes a linear search for the best pair beats a heap.
  static constexpr size_t kShort = 40;

  const PairSlot* find_pair(int32_t left, int32_t right) const;
  int32_t find_token(std::string_view piece) const;  // -1 if the piece is no token that merges reproduce
  void add_token(int32_t id);
  void merge_short(std::string_view piece, std::vector<int32_t>* ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>* ids) const;

  std::array<int32_t, 256> bytes_;
  std::vector<std::string> tokens_;
  std::vector<PairSlot> pairs_;   // open addressing, power-of-two size
  std::vector<int32_t> by_text_;  // open addressing: ids, -1 empty
};

}  // namespace deepinfer
