// What a byte automaton alone says about every token, without knowing where it stands in a grammar: from one
// state, which tokens stay inside (allowed in any context), and at which places of the trie the automaton can
// be left (only there the context matters). Computed once per state and shared by everything that reads the
// same automaton. This is what makes masks inside strings cheap. Source: context-independent tokens per
// state, structured output issue; the split is exact because acceptance is existential. Threads: LexicalStore
// is internally locked; entries are immutable.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

namespace deepinfer::grammar {

// Kinds of bytes that a subtree of the trie is made of; a state that maps all of them to itself takes the
// whole subtree at once.
constexpr uint32_t kGroupNonAscii = 1u << 30, kGroupIllFormed = 1u << 31;
uint32_t byte_group(uint8_t b);

// The part of an automaton that byte edges reach from one state, numbered in the order of that walk: equal
// languages of the usual kind get equal numbers, which is what makes sharing possible.
struct SubAutomaton {
  std::vector<std::vector<ByteEdge>> edges;
  std::vector<bool> exit;          // may be left here: the rule may end, or a call begins
  std::vector<uint32_t> original;  // state of the grammar's automaton
  bool counted = false;            // state `head` starts a new element
  uint32_t head = 0xFFFFFFFFu;
  std::string key() const;  // equal keys, equal entries
};
SubAutomaton sub_automaton(const Automaton& a, uint32_t state);
// The same from a state of a sub-automaton; `original` then holds numbers of `sub`.
SubAutomaton sub_automaton(const SubAutomaton& sub, uint32_t state);

struct LexicalEntry {
  struct ExitEdge {
    uint8_t byte = 0;
    uint16_t need = 0;  // elements finished at the exit (counted automata)
    uint32_t node = 0;  // the child behind the exit, reached by `byte`
  };
  struct Exit {
    uint32_t state = 0;           // number in the sub-automaton
    std::vector<ExitEdge> edges;  // by byte
  };
  bool usable = true;              // false: too many exits; walk the grammar instead
  std::vector<uint32_t> words;     // dense set, or empty
  std::vector<int32_t> tokens;     // sparse set; counted: all tokens, by need
  std::vector<uint32_t> need_end;  // counted: tokens with need <= k are tokens[0, need_end[k])
  std::vector<Exit> exits;
  size_t memory_bytes() const;
};

std::shared_ptr<const LexicalEntry> compute_entry(const SubAutomaton& sub, const TokenTrie& trie,
                                                  size_t mask_words);
// Sets the entry's bits; counted: of tokens that begin at most `room` elements (the current one included).
void add_entry(const LexicalEntry& entry, uint32_t room, std::span<uint32_t> mask);

class LexicalStore {
 public:
  // Called once, with the vocabulary's trie: fills in the automata every grammar meets (JSON strings and
  // text).
  void prepare(const TokenTrie& trie, size_t mask_words);
  // The entry of `sub`, computed now if it is new. Keeps at most kMaxBytes; what was given out stays valid.
  std::shared_ptr<const LexicalEntry> find(const SubAutomaton& sub, const TokenTrie& trie, size_t mask_words);
  size_t bytes() const;

 private:
  static constexpr size_t kMaxBytes = 64u << 20;
  // One state further: a state that reads most bytes as `next` does takes that entry and changes the rest
  // (the first characters of a name that must not be one of a few). 0xFFFFFFFF: there is no such state.
  static uint32_t neighbour(const SubAutomaton& sub, const TokenTrie& trie);
  std::shared_ptr<const LexicalEntry> find(const SubAutomaton& sub, const TokenTrie& trie, size_t mask_words,
                                           int depth);

  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const LexicalEntry>> entries_;
  size_t bytes_ = 0;
};

}  // namespace deepinfer::grammar
