// The tokens a matcher chooses from: bytes of the ordinary ones in a trie, ids of control and stop tokens.
// Also where facts about byte automata that do not depend on a grammar are kept once they were computed
// (lexical.h), so that the second grammar with a JSON string in it finds them. Knows no tokenizer file.
// Source: structured output specification 12.3. Threads: immutable but for the internally locked store; share
// one per model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::grammar {

class LexicalStore;

struct VocabularySpec {
  std::vector<std::string> bytes;  // by id; empty for ids that are no text
  std::vector<int32_t> control;  // never text, whatever their bytes: only a grammar's token edges allow them
  std::vector<int32_t> stop;     // allowed exactly where the grammar may end
};

// Nodes in depth-first order, children by byte. Node 0 is the root.
struct TokenTrie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;
  std::vector<uint32_t> end;       // one past the last node of the subtree
  std::vector<uint32_t> token_at;  // first token of the node in `tokens`; size + 1 entries
  std::vector<uint32_t> groups;    // which kinds of bytes stand below (lexical.h)
  std::vector<int32_t> tokens;     // ids in order of their bytes
  uint32_t root_child[256] = {};   // 0: none
  uint32_t size() const { return static_cast<uint32_t>(byte.size()); }
  // Tokens that end at the node are [token_at[n], token_at[n + 1]); of its subtree [token_at[n],
  // token_at[end[n]]).
};

class Vocabulary {
 public:
  // kInvalidArgument for ids out of range, no tokens at all, or a token longer than 4096 bytes.
  static Result<std::shared_ptr<const Vocabulary>> create(VocabularySpec spec);
  ~Vocabulary();

  int32_t size() const { return static_cast<int32_t>(spec_.bytes.size()); }
  size_t mask_words() const { return (spec_.bytes.size() + 31) / 32; }
  std::string_view bytes(int32_t id) const { return spec_.bytes[static_cast<size_t>(id)]; }
  bool is_text(int32_t id) const { return is_text_[static_cast<size_t>(id)]; }
  bool is_stop(int32_t id) const { return is_stop_[static_cast<size_t>(id)]; }
  const std::vector<int32_t>& stop_tokens() const { return spec_.stop; }
  const std::vector<uint32_t>& text_mask() const { return text_mask_; }  // every ordinary token
  const TokenTrie& trie() const { return trie_; }
  LexicalStore& store() const { return *store_; }

 private:
  Vocabulary();
  void build_trie();

  VocabularySpec spec_;
  std::vector<bool> is_text_, is_stop_;
  std::vector<uint32_t> text_mask_;
  TokenTrie trie_;
  std::unique_ptr<LexicalStore> store_;
};

}  // namespace deepinfer::grammar
