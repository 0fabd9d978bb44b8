// The walk of one byte automaton over the whole trie.
#include "grammar/lexical.h"

#include <algorithm>

#include "grammar/common_rules.h"

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kDead = 0xFFFFFFFFu;
constexpr size_t kMaxExitEdges = 1'000'000;

struct Groups {
  std::array<uint32_t, 256> of{};
  std::array<uint32_t, 32> size{};
  Groups() {
    auto put = [&](int bit, int lo, int hi) {
      for (int b = lo; b <= hi; ++b) of[static_cast<size_t>(b)] = 1u << bit;
    };
    put(29, 0, 0x1F);
    put(28, 0x20, 0x7E);  // punctuation that is not named below
    put(29, 0x7F, 0x7F);
    put(0, 'a', 'f'), put(1, 'g', 'z'), put(2, 'A', 'F'), put(3, 'G', 'Z'), put(4, '0', '9');
    int bit = 5;
    for (int c : {' ', '_', '-', '.', ',', ':', ';', '/', '\\', '"',  '\'', '<',
                  '>', '(', ')', '[', ']', '{', '}', '@', '\n', '\t', '\r'})
      put(bit++, c, c);
    put(30, 0x80, 0xFF);
    for (uint32_t g : of) ++size[static_cast<size_t>(std::countr_zero(g))];
  }
};
const Groups& groups() {
  static const Groups g;
  return g;
}

// Rows of 256 targets, written out when a state is first met.
class Dense {
 public:
  explicit Dense(const SubAutomaton& sub) : sub_(sub), rows_(sub.edges.size()), self_(sub.edges.size(), 0) {}

  const uint32_t* row(uint32_t s) {
    if (rows_[s] == nullptr) {
      rows_[s] = std::make_unique<uint32_t[]>(256);
      std::fill_n(rows_[s].get(), 256, kDead);
      for (const ByteEdge& e : sub_.edges[s]) {
        for (int b = e.lo; b <= e.hi; ++b) rows_[s][static_cast<size_t>(b)] = e.to;
      }
    }
    return rows_[s].get();
  }
  // Groups of bytes that lead from s to s and never pass an exit. 0 for exits themselves.
  uint32_t self(uint32_t s) {
    if (self_[s] != 0) return self_[s] & ~kKnown;
    uint32_t out = 0;
    if (!sub_.exit[s]) {
      const uint32_t* r = row(s);
      std::array<uint32_t, 32> count{};
      for (size_t b = 0; b < 0x80; ++b) {
        if (r[b] == s) ++count[static_cast<size_t>(std::countr_zero(groups().of[b]))];
      }
      for (uint32_t g = 0; g < 30; ++g) {
        if (count[g] == groups().size[g] && count[g] > 0) out |= 1u << g;
      }
      if (non_ascii_returns(s)) out |= kGroupNonAscii;
    }
    self_[s] = out | kKnown;
    return out;
  }

 private:
  static constexpr uint32_t kKnown = 1u << 31;  // no state loops on ill-formed bytes as a group

  bool tail(uint32_t from, int lo, int hi, int left, uint32_t home) {
    const uint32_t* r = row(from);
    uint32_t to = kDead;
    for (int b = lo; b <= hi; ++b) {
      uint32_t t = r[b];
      if (t == kDead || sub_.exit[t]) return false;
      if (left == 1) {
        if (t != home) return false;
      } else if (t != to) {
        if (!tail(t, 0x80, 0xBF, left - 1, home)) return false;
        to = t;
      }
    }
    return true;
  }
  bool non_ascii_returns(uint32_t s) {
    for (int b = 0xC2; b <= 0xF4; ++b) {
      uint32_t t = row(s)[b];
      if (t == kDead || sub_.exit[t]) return false;
      int left = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
      int lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80, hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
      if (!tail(t, lo, hi, left, s)) return false;
    }
    return true;
  }

  const SubAutomaton& sub_;
  std::vector<std::unique_ptr<uint32_t[]>> rows_;
  std::vector<uint32_t> self_;
};

struct Collector {
  LexicalEntry entry;
  std::unordered_map<uint32_t, size_t> exit_of;
  size_t exit_edges = 0;
  void add_exit(uint32_t state, uint32_t node, uint32_t need, const TokenTrie& trie) {
    auto [it, fresh] = exit_of.emplace(state, entry.exits.size());
    if (fresh) entry.exits.push_back({state, {}});
    auto& edges = entry.exits[it->second].edges;
    for (uint32_t c = node + 1; c < trie.end[node]; c = trie.end[c]) {
      edges.push_back({trie.byte[c], static_cast<uint16_t>(std::min(need, 0xFFFFu)), c});
      ++exit_edges;
    }
  }
};

// The nodes [begin, end): whole subtrees of the root's children.
void walk_plain(const SubAutomaton& sub, const TokenTrie& trie, Dense* dense_rows, uint32_t begin,
                uint32_t end, Collector* out) {
  Dense& dense = *dense_rows;
  std::vector<uint32_t> at(4098, 0);
  for (uint32_t i = begin; i < end;) {
    uint32_t d = trie.depth[i], from = at[d - 1];
    uint32_t s = dense.row(from)[trie.byte[i]];
    if (s == kDead) {
      i = trie.end[i];
      continue;
    }
    at[d] = s;
    uint32_t below = trie.groups[i];
    bool whole = below != 0 && (below & ~dense.self(s)) == 0;
    uint32_t last = whole ? trie.token_at[trie.end[i]] : trie.token_at[i + 1];
    for (uint32_t t = trie.token_at[i]; t < last; ++t) out->entry.tokens.push_back(trie.tokens[t]);
    if (whole) {
      i = trie.end[i];
      continue;
    }
    if (sub.exit[s] && trie.end[i] > i + 1) {
      out->add_exit(s, i, 0, trie);
      if (out->exit_edges > kMaxExitEdges) {
        out->entry.usable = false;
        return;
      }
    }
    ++i;
  }
}

void walk_counted(const SubAutomaton& sub, const TokenTrie& trie, Collector* out) {
  Dense dense(sub);
  std::vector<uint32_t> at(4098, 0), need_at(4098, 0);
  need_at[0] = sub.head == 0 ? 0 : 1;  // inside an element: it has begun already
  std::vector<std::vector<int32_t>> by_need;
  for (uint32_t i = 1; i < trie.size();) {
    uint32_t d = trie.depth[i], from = at[d - 1];
    uint32_t s = dense.row(from)[trie.byte[i]];
    if (s == kDead) {
      i = trie.end[i];
      continue;
    }
    uint32_t need = need_at[d - 1] + (from == sub.head ? 1 : 0);
    at[d] = s;
    need_at[d] = need;
    if (trie.token_at[i] < trie.token_at[i + 1]) {
      if (by_need.size() <= need) by_need.resize(need + 1);
      for (uint32_t t = trie.token_at[i]; t < trie.token_at[i + 1]; ++t)
        by_need[need].push_back(trie.tokens[t]);
    }
    // Exits of a counted loop are everywhere between elements; whether one counts is known at run time only.
    if (s == sub.head && trie.end[i] > i + 1) out->add_exit(s, i, need, trie);
    ++i;
  }
  for (const auto& list : by_need) {
    out->entry.tokens.insert(out->entry.tokens.end(), list.begin(), list.end());
    out->entry.need_end.push_back(static_cast<uint32_t>(out->entry.tokens.size()));
  }
}

void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
}

}  // namespace

uint32_t byte_group(uint8_t b) {
  return groups().of[b];
}

SubAutomaton sub_automaton(const Automaton& a, uint32_t state) {
  SubAutomaton out;
  const Automaton::RuleInfo& rule = a.rules[a.states[state].rule];
  out.counted = rule.kind == Rule::Kind::kCounted;
  std::unordered_map<uint32_t, uint32_t> number;
  auto number_of = [&](uint32_t s) {
    auto [it, fresh] = number.emplace(s, static_cast<uint32_t>(out.original.size()));
    if (fresh) {
      out.original.push_back(s);
      if (out.counted && s == rule.start) out.head = it->second;
    }
    return it->second;
  };
  number_of(state);
  for (size_t i = 0; i < out.original.size(); ++i) {
    uint32_t s = out.original[i];
    std::vector<ByteEdge> edges;
    for (ByteEdge e : a.bytes_of(s)) {
      e.to = number_of(e.to);
      edges.push_back(e);
    }
    out.edges.push_back(std::move(edges));
    bool exit = out.counted ? s == rule.start : a.states[s].accept || a.states[s].calls_n > 0;
    out.exit.push_back(exit);
  }
  return out;
}

SubAutomaton sub_automaton(const SubAutomaton& sub, uint32_t state) {
  SubAutomaton out;
  std::vector<uint32_t> number(sub.edges.size(), kDead);
  auto number_of = [&](uint32_t s) {
    if (number[s] == kDead) {
      number[s] = static_cast<uint32_t>(out.original.size());
      out.original.push_back(s);
    }
    return number[s];
  };
  number_of(state);
  for (size_t i = 0; i < out.original.size(); ++i) {
    std::vector<ByteEdge> edges = sub.edges[out.original[i]];
    for (ByteEdge& e : edges) e.to = number_of(e.to);
    out.edges.push_back(std::move(edges));
    out.exit.push_back(sub.exit[out.original[i]]);
  }
  return out;
}

uint32_t LexicalStore::neighbour(const SubAutomaton& sub, const TokenTrie& trie) {
  auto targets = [&](uint32_t s, std::array<uint32_t, 256>* out) {
    out->fill(kDead);
    for (const ByteEdge& e : sub.edges[s]) std::fill(out->begin() + e.lo, out->begin() + e.hi + 1, e.to);
  };
  std::array<uint32_t, 256> own{}, other{};
  targets(0, &own);
  std::unordered_map<uint32_t, int> votes;
  for (uint32_t t : own) ++votes[t];
  uint32_t best = kDead;
  for (const auto& [t, n] : votes) {
    if (t != kDead && t != 0 && (best == kDead || n > votes[best] || (n == votes[best] && t < best)))
      best = t;
  }
  if (best == kDead) return kDead;
  targets(best, &other);
  uint64_t same = 0, differ = 0;
  for (size_t b = 0; b < 256; ++b) {
    uint32_t n = trie.root_child[b];
    if (n == 0 || (own[b] == kDead && other[b] == kDead)) continue;
    (own[b] == other[b] ? same : differ) += trie.token_at[trie.end[n]] - trie.token_at[n];
  }
  return same > 2 * differ ? best : kDead;
}

std::string SubAutomaton::key() const {
  std::string k(1, counted ? 'C' : 'P');
  auto put = [&k](uint32_t v) {
    for (int i = 0; i < 3; ++i) k += static_cast<char>(v >> (8 * i));
  };
  for (size_t s = 0; s < edges.size(); ++s) {
    k += exit[s] ? 'x' : '-';
    put(static_cast<uint32_t>(edges[s].size()));
    for (const ByteEdge& e : edges[s]) {
      k += static_cast<char>(e.lo);
      k += static_cast<char>(e.hi);
      put(e.to);
    }
  }
  return k;
}

size_t LexicalEntry::memory_bytes() const {
  size_t n = sizeof(*this) + words.size() * 4 + tokens.size() * 4 + need_end.size() * 4;
  for (const Exit& e : exits) n += sizeof(Exit) + e.edges.size() * sizeof(ExitEdge);
  return n;
}

namespace {

std::shared_ptr<const LexicalEntry> finished(LexicalEntry e, bool counted, size_t mask_words) {
  for (LexicalEntry::Exit& x : e.exits) {
    std::stable_sort(x.edges.begin(), x.edges.end(),
                     [](const auto& a, const auto& b) { return a.byte < b.byte; });
  }
  // Dense where the list would be larger than the set; counted automata keep both, the list by need.
  if (e.words.empty() && e.tokens.size() > mask_words) {
    e.words.assign(mask_words, 0);
    for (int32_t id : e.tokens) set_bit(e.words, id);
    if (!counted) e.tokens = {};
  }
  e.tokens.shrink_to_fit();
  return std::make_shared<const LexicalEntry>(std::move(e));
}

// The entry of `sub` from that of its state `next`: equal but for tokens whose first byte the two read
// differently.
std::shared_ptr<const LexicalEntry> changed_entry(const SubAutomaton& sub, uint32_t next,
                                                  const SubAutomaton& next_sub, const LexicalEntry& base,
                                                  const TokenTrie& trie, size_t mask_words) {
  Dense dense(sub);
  Collector c;
  std::vector<uint32_t> words = base.words;
  std::vector<std::pair<uint32_t, uint32_t>> other;  // ranges of nodes that are walked anew
  for (size_t b = 0; b < 256; ++b) {
    uint32_t n = trie.root_child[b];
    if (n == 0 || dense.row(0)[b] == dense.row(next)[b]) continue;
    other.emplace_back(n, trie.end[n]);
    for (uint32_t t = trie.token_at[n]; t < trie.token_at[trie.end[n]]; ++t)
      words[static_cast<size_t>(trie.tokens[t]) / 32] &=
          ~(1u << (static_cast<uint32_t>(trie.tokens[t]) % 32));
    walk_plain(sub, trie, &dense, n, trie.end[n], &c);
  }
  for (int32_t id : c.entry.tokens) set_bit(words, id);
  c.entry.tokens = {};
  c.entry.words = std::move(words);
  for (const LexicalEntry::Exit& x : base.exits) {
    uint32_t state = next_sub.original[x.state];
    auto [it, fresh] = c.exit_of.emplace(state, c.entry.exits.size());
    if (fresh) c.entry.exits.push_back({state, {}});
    std::vector<LexicalEntry::ExitEdge>& edges = c.entry.exits[it->second].edges;
    for (const LexicalEntry::ExitEdge& e : x.edges) {
      auto above = std::upper_bound(other.begin(), other.end(), e.node,
                                    [](uint32_t node, const auto& range) { return node < range.first; });
      if (above == other.begin() || e.node >= std::prev(above)->second) edges.push_back(e);
    }
  }
  return finished(std::move(c.entry), false, mask_words);
}

}  // namespace

std::shared_ptr<const LexicalEntry> compute_entry(const SubAutomaton& sub, const TokenTrie& trie,
                                                  size_t mask_words) {
  Collector c;
  Dense dense(sub);
  sub.counted ? walk_counted(sub, trie, &c) : walk_plain(sub, trie, &dense, 1, trie.size(), &c);
  return finished(std::move(c.entry), sub.counted, mask_words);
}

void add_entry(const LexicalEntry& entry, uint32_t room, std::span<uint32_t> mask) {
  if (!entry.need_end.empty() && room < entry.need_end.size() - 1) {
    uint32_t end = entry.need_end[room];
    size_t left_out = entry.tokens.size() - end;
    if (entry.words.empty() || end < left_out) {
      for (uint32_t i = 0; i < end; ++i) set_bit(mask, entry.tokens[i]);
      return;
    }
    // Nearly all of them: take the whole set but for the few that are too long. Those may be in the mask for
    // another reason, so the two are joined word by word.
    std::vector<uint32_t> words = entry.words;
    for (size_t i = end; i < entry.tokens.size(); ++i)
      words[static_cast<size_t>(entry.tokens[i]) / 32] &=
          ~(1u << (static_cast<uint32_t>(entry.tokens[i]) % 32));
    for (size_t w = 0; w < words.size(); ++w) mask[w] |= words[w];
    return;
  }
  if (!entry.words.empty()) {
    for (size_t w = 0; w < entry.words.size(); ++w) mask[w] |= entry.words[w];
  } else {
    for (int32_t id : entry.tokens) set_bit(mask, id);
  }
}

void LexicalStore::prepare(const TokenTrie& trie, size_t mask_words) {
  Budget budget{CompileLimits{}};
  Result<Automaton> a = build_automaton(common_grammar(), &budget);
  DI_CHECK(a.ok(), "the built-in grammar");
  for (uint32_t s = 0; s < a->states.size(); ++s) find(sub_automaton(*a, s), trie, mask_words);
}

std::shared_ptr<const LexicalEntry> LexicalStore::find(const SubAutomaton& sub, const TokenTrie& trie,
                                                       size_t mask_words) {
  return find(sub, trie, mask_words, 0);
}

std::shared_ptr<const LexicalEntry> LexicalStore::find(const SubAutomaton& sub, const TokenTrie& trie,
                                                       size_t mask_words, int depth) {
  // Large automata are met by one grammar only; their keys would cost more than they save.
  bool shared = sub.edges.size() <= 512;
  std::string key;
  if (shared) {
    key = sub.key();
    std::lock_guard lock(mutex_);
    auto it = entries_.find(key);
    if (it != entries_.end()) return it->second;
  }
  std::shared_ptr<const LexicalEntry> entry;
  uint32_t next = sub.counted || !shared || depth > 3 ? kDead : neighbour(sub, trie);
  if (next != kDead) {
    SubAutomaton next_sub = sub_automaton(sub, next);
    std::shared_ptr<const LexicalEntry> base = find(next_sub, trie, mask_words, depth + 1);
    if (base->usable && !base->words.empty())
      entry = changed_entry(sub, next, next_sub, *base, trie, mask_words);
  }
  if (entry == nullptr) entry = compute_entry(sub, trie, mask_words);
  if (shared) {
    std::lock_guard lock(mutex_);
    if (bytes_ > kMaxBytes) entries_.clear(), bytes_ = 0;
    if (entries_.emplace(std::move(key), entry).second) bytes_ += entry->memory_bytes() + key.size() + 128;
  }
  return entry;
}

size_t LexicalStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace deepinfer::grammar
