// What a loaded tokenizer holds. Internal to the text room.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer {

// A byte trie over the spellings of added tokens, for leftmost-longest search.
class AddedTrie {
 public:
  void add(std::string_view text, int32_t id);
  // Longest added token that starts `text`; size 0 if none. Cost: the length of the longest added token at
  // most.
  struct Match {
    int32_t id = -1;
    size_t size = 0;
  };
  Match longest(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> next;  // few children each, searched in order
    int32_t id = -1;
  };
  std::vector<Node> nodes_{1};
};

struct Tokenizer::Impl {
  DigitRule digits = DigitRule::kUpToThree;
  std::optional<Bpe> bpe;
  std::vector<AddedToken> added;                    // ascending by id
  std::unordered_map<int32_t, size_t> added_by_id;  // index into added
  std::unordered_map<std::string, int32_t> added_by_text;
  AddedTrie trie;
  int32_t vocab_size = 0;
};

}  // namespace deepinfer
