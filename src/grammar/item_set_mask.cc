// Which tokens a set allows. Each item of a set is asked alone, since a token is allowed if any of them reads
// it. Items in wide byte automata (strings, text) take their answer from the lexical entry of their state and
// walk the trie only behind the places where the automaton can be left; the others walk the trie together,
// which is short because they allow few bytes.
#include <algorithm>
#include <bit>

#include "grammar/item_sets.h"

namespace deepinfer::grammar {
namespace {

// A state is worth an entry if the tokens that begin with a byte it allows are more than this: a small share
// of the vocabulary, at most a thousand.
uint32_t wide_from(size_t tokens) {
  return static_cast<uint32_t>(std::clamp<size_t>(tokens / 64, 8, 1024));
}

// Up to this many narrow items are walked one by one; more share the walk of their set.
constexpr size_t kFewItems = 12;

}  // namespace

const ItemSets::Lexical* ItemSets::lexical(uint32_t state) {
  int32_t& index = lexical_of_[state];
  if (index == -1) {
    const TokenTrie& trie = v_.trie();
    uint32_t wide = 0;
    for (const ByteEdge& e : a_.bytes_of(state)) {
      for (int b = e.lo; b <= e.hi; ++b) {
        uint32_t n = trie.root_child[b];
        if (n != 0) wide += trie.token_at[trie.end[n]] - trie.token_at[n];
      }
    }
    index = -2;
    // Counted automata always: white space is one, and its entry is shared by every grammar.
    bool counted = a_.rules[a_.states[state].rule].kind == Rule::Kind::kCounted;
    if (counted || wide > wide_from(trie.tokens.size())) {
      SubAutomaton sub = sub_automaton(a_, state);
      auto l = std::make_unique<Lexical>();
      l->entry = v_.store().find(sub, trie, v_.mask_words());
      l->original = std::move(sub.original);
      if (l->entry->usable) {
        index = static_cast<int32_t>(lexicals_.size());
        // Shared entries are charged in full: an overstatement on the safe side.
        lexical_bytes_ += l->original.size() * 4 + 64 + l->entry->words.size() * 4;
        lexicals_.push_back(std::move(l));
      }
    }
  }
  return index >= 0 ? lexicals_[static_cast<size_t>(index)].get() : nullptr;
}

// The set behind an exit: what follows when the automaton is left in `state`, with the item's stack.
SetId ItemSets::exit_set(uint32_t state, const Item& item) {
  uint64_t key = uint64_t{state} << 32 | item.frame;
  auto it = exit_sets_.find(key);
  if (it != exit_sets_.end()) return it->second;
  begin_closure();
  const Automaton::State& s = a_.states[state];
  if (s.accept) {  // a counted head accepts as far as this is concerned; the caller checks the count
    List returns = frames_[item.frame];
    for (uint32_t i = 0; i < returns.n; ++i) todo_.push_back(pool_[returns.at + i]);
  }
  for (const CallEdge& c : a_.calls_of(state)) call(c.rule, {c.to, item.frame, 0});
  drain();
  SetId set = finish_closure();
  exit_sets_.emplace(key, set);
  return set;
}

// Tokens of the subtree below `node` that the grammar reads to their end, starting in `set` at the node.
void ItemSets::walk(SetId set, uint32_t node, std::vector<int32_t>* out) {
  const TokenTrie& trie = v_.trie();
  uint32_t base = trie.depth[node], end = trie.end[node];
  at_depth_[base] = set;
  if (node == 0) {
    // The root has a table; looking at its children one by one would cost more than most masks.
    std::array<uint64_t, 4> first = first_bytes(set);
    for (size_t w = 0; w < 4; ++w) {
      for (uint64_t bits = first[w]; bits != 0; bits &= bits - 1) {
        auto b = static_cast<uint8_t>(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
        uint32_t c = trie.root_child[b];
        if (c == 0) continue;
        SetId to = step(set, b);
        if (to == kDeadSet) continue;
        for (uint32_t t = trie.token_at[c]; t < trie.token_at[c + 1]; ++t) out->push_back(trie.tokens[t]);
        if (trie.end[c] > c + 1) walk(to, c, out);
        at_depth_[0] = set;
      }
    }
    return;
  }
  for (uint32_t i = node + 1; i < end;) {
    SetId from = at_depth_[trie.depth[i] - 1u];
    uint8_t b = trie.byte[i];
    if ((first_bytes(from)[b >> 6] >> (b & 63) & 1) == 0) {
      i = trie.end[i];
      continue;
    }
    SetId to = step(from, b);
    if (to == kDeadSet) {
      i = trie.end[i];
      continue;
    }
    at_depth_[trie.depth[i]] = to;
    for (uint32_t t = trie.token_at[i]; t < trie.token_at[i + 1]; ++t) out->push_back(trie.tokens[t]);
    ++i;
  }
}

// The same for one item inside a narrow byte automaton: its states are followed in the table itself, and item
// sets are needed only behind the places where the automaton can be left.
void ItemSets::walk_automaton(const Item& item, std::vector<int32_t>* out) {
  const TokenTrie& trie = v_.trie();
  auto visit = [&](uint32_t node, uint32_t state) {
    state_at_[trie.depth[node]] = state;
    for (uint32_t t = trie.token_at[node]; t < trie.token_at[node + 1]; ++t) out->push_back(trie.tokens[t]);
    const Automaton::State& s = a_.states[state];
    if (trie.end[node] == node + 1 || (!s.accept && s.calls_n == 0)) return;
    SetId behind = exit_set(state, item);
    if (behind != kDeadSet) walk(behind, node, out);
  };
  for (const ByteEdge& e : a_.bytes_of(item.state)) {
    for (int b = e.lo; b <= e.hi; ++b) {
      uint32_t c = trie.root_child[b];
      if (c == 0) continue;
      visit(c, e.to);
      for (uint32_t i = c + 1; i < trie.end[c];) {
        uint32_t to = target(state_at_[trie.depth[i] - 1u], trie.byte[i]);
        if (to == kDone) {
          i = trie.end[i];
          continue;
        }
        visit(i, to);
        ++i;
      }
    }
  }
}

void ItemSets::add_heavy(const Item& item, const Lexical& lex, Mask* out) {
  const Automaton::RuleInfo& rule = a_.rules[a_.states[item.state].rule];
  bool counted = rule.kind == Rule::Kind::kCounted;
  uint32_t room = kUnbounded;
  if (counted && rule.max != kUnbounded) room = rule.max - static_cast<uint32_t>(item.data);
  out->sets.emplace_back(lex.entry, room);
  const TokenTrie& trie = v_.trie();
  for (const LexicalEntry::Exit& exit : lex.entry->exits) {
    SetId set = exit_set(lex.original[exit.state], item);
    if (set == kDeadSet) continue;
    std::array<uint64_t, 4> first = first_bytes(set);
    for (size_t w = 0; w < 4; ++w) {
      for (uint64_t bits = first[w]; bits != 0; bits &= bits - 1) {
        auto b = static_cast<uint8_t>(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
        auto it = std::lower_bound(exit.edges.begin(), exit.edges.end(), b,
                                   [](const LexicalEntry::ExitEdge& e, uint8_t v) { return e.byte < v; });
        if (it == exit.edges.end() || it->byte != b) continue;
        SetId to = step(set, b);
        if (to == kDeadSet) continue;
        for (; it != exit.edges.end() && it->byte == b; ++it) {
          if (counted) {
            uint64_t done = item.data + it->need;
            if (done < std::max<uint64_t>(rule.min, 1) || (rule.max != kUnbounded && done > rule.max))
              continue;
          }
          for (uint32_t t = trie.token_at[it->node]; t < trie.token_at[it->node + 1]; ++t)
            out->tokens.push_back(trie.tokens[t]);
          if (trie.end[it->node] > it->node + 1) walk(to, it->node, &out->tokens);
        }
      }
    }
  }
}

void ItemSets::build_mask(SetId set, Mask* out) {
  std::vector<Item> all(items(sets_[set].items).begin(), items(sets_[set].items).end());
  std::vector<Item> light;
  for (const Item& item : all) {
    for (const TokenEdge& t : a_.tokens_of(item.state)) out->tokens.push_back(t.token);
    const Lexical* lex = lexical(item.state);
    if (lex == nullptr) {
      light.push_back(item);
    } else {
      add_heavy(item, *lex, out);
    }
  }
  if (light.size() <= kFewItems) {
    for (const Item& item : light) {
      // Counting rules that are not worth an entry, and nothing else, still walk as item sets.
      if (a_.rules[a_.states[item.state].rule].kind == Rule::Kind::kBody) {
        walk_automaton(item, &out->tokens);
      } else {
        std::vector<Item> one = {item};
        walk(intern_set(&one, false), 0, &out->tokens);
      }
    }
  } else if (light.size() == all.size()) {
    walk(set, 0, &out->tokens);
  } else if (!light.empty()) {
    walk(intern_set(&light, false), 0, &out->tokens);
  }
  if (out->tokens.size() > v_.mask_words()) {
    out->words.assign(v_.mask_words(), 0);
    for (int32_t id : out->tokens)
      out->words[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
    out->tokens = {};
  }
  out->tokens.shrink_to_fit();
}

void ItemSets::fill(SetId set, std::span<uint32_t> mask) {
  if (set == kDeadSet) return;
  if (sets_[set].mask < 0) {
    auto m = std::make_unique<Mask>();
    build_mask(set, m.get());
    sets_[set].mask = static_cast<int32_t>(masks_.size());
    mask_bytes_ += sizeof(Mask) + m->tokens.size() * 4 + m->words.size() * 4 + m->sets.size() * 24;
    masks_.push_back(std::move(m));
  }
  const Mask& m = *masks_[static_cast<size_t>(sets_[set].mask)];
  for (const auto& [entry, room] : m.sets) add_entry(*entry, room, mask);
  for (size_t w = 0; w < m.words.size(); ++w) mask[w] |= m.words[w];
  for (int32_t id : m.tokens) mask[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
}

int32_t ItemSets::only_token(SetId set) {
  if (set == kDeadSet || accepting(set)) return -1;
  std::vector<uint32_t> mask(v_.mask_words(), 0);
  fill(set, mask);
  int32_t found = -1;
  for (size_t w = 0; w < mask.size(); ++w) {
    if (mask[w] == 0) continue;
    if (found >= 0 || std::popcount(mask[w]) != 1) return -1;
    found = static_cast<int32_t>(w * 32) + std::countr_zero(mask[w]);
  }
  return found;
}

}  // namespace deepinfer::grammar
