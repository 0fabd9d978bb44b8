// Byte-pair merging: a linear search for short pieces, a heap for long ones, and a table of whole pieces for
// most.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace deepinfer {
namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return x;
}

uint64_t hash_text(std::string_view s) {
  uint64_t h = s.size() * 0x9e3779b97f4a7c15ull;
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t w;
    std::memcpy(&w, s.data() + i, 8);
    h = mix(h ^ w);
  }
  uint64_t w = 0;
  std::memcpy(&w, s.data() + i, s.size() - i);
  return mix(h ^ w);
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges,
         std::vector<std::string> tokens, bool ignore_merges)
    : bytes_(bytes), tokens_(std::move(tokens)) {
  pairs_.resize(std::bit_ceil(std::max<size_t>(16, merges.size() * 2)));
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    uint64_t key = pair_key(m.left, m.right);
    size_t i = mix(key) & (pairs_.size() - 1);
    while (pairs_[i].key != kEmpty && pairs_[i].key != key) i = (i + 1) & (pairs_.size() - 1);
    // A repeated pair keeps its last rank, as in the reference, which fills a map in order.
    pairs_[i] = {key, static_cast<uint32_t>(rank), m.result};
  }
  by_text_.assign(std::bit_ceil(std::max<size_t>(16, tokens_.size() * 2)), -1);
  std::vector<int32_t> spelt;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    spelt.clear();
    if (!ignore_merges) merge_short(tokens_[id].substr(0, kShort), &spelt);
    bool reproduced =
        tokens_[id].size() <= kShort && spelt.size() == 1 && spelt[0] == static_cast<int32_t>(id);
    if (ignore_merges || reproduced) add_token(static_cast<int32_t>(id));
  }
}

void Bpe::add_token(int32_t id) {
  size_t i = hash_text(tokens_[static_cast<size_t>(id)]) & (by_text_.size() - 1);
  while (by_text_[i] >= 0) i = (i + 1) & (by_text_.size() - 1);
  by_text_[i] = id;
}

int32_t Bpe::find_token(std::string_view piece) const {
  size_t i = hash_text(piece) & (by_text_.size() - 1);
  for (; by_text_[i] >= 0; i = (i + 1) & (by_text_.size() - 1)) {
    if (tokens_[static_cast<size_t>(by_text_[i])] == piece) return by_text_[i];
  }
  return -1;
}

const Bpe::PairSlot* Bpe::find_pair(int32_t left, int32_t right) const {
  uint64_t key = pair_key(left, right);
  for (size_t i = mix(key) & (pairs_.size() - 1); pairs_[i].key != kEmpty;
       i = (i + 1) & (pairs_.size() - 1)) {
    if (pairs_[i].key == key) return &pairs_[i];
  }
  return nullptr;
}

void Bpe::encode_piece(std::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.size() == 1) {
    ids->push_back(bytes_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  int32_t whole = find_token(piece);
  if (whole >= 0) {
    ids->push_back(whole);
  } else if (piece.size() <= kShort) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>* ids) const {
  std::array<int32_t, kShort> id;
  std::array<const PairSlot*, kShort> pair;  // pair[i] joins id[i] and id[i + 1]
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) id[i] = bytes_[static_cast<uint8_t>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) pair[i] = find_pair(id[i], id[i + 1]);
  while (n > 1) {
    uint32_t best_rank = kNoRank;
    size_t best = 0;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (pair[i] != nullptr && pair[i]->rank < best_rank) best_rank = pair[i]->rank, best = i;
    }
    if (best_rank == kNoRank) break;
    id[best] = pair[best]->result;
    --n;
    for (size_t i = best + 1; i < n; ++i) id[i] = id[i + 1];
    for (size_t i = best; i + 1 < n; ++i) pair[i] = pair[i + 1];
    if (best + 1 < n) pair[best] = find_pair(id[best], id[best + 1]);
    if (best > 0) pair[best - 1] = find_pair(id[best - 1], id[best]);
  }
  ids->insert(ids->end(), id.begin(), id.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::merge_long(std::string_view piece, std::vector<int32_t>* ids) const {
  DI_CHECK(piece.size() < (1ull << 31), "a piece of 2 GiB or more");
  struct Symbol {
    int32_t id, prev, next;  // id -1: merged away
  };
  struct Candidate {
    uint32_t rank;
    int32_t pos, left, right, result;
    // A heap of the standard library yields its largest element: order so that this is the lowest rank, then
    // the leftmost.
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : pos > o.pos; }
  };
  auto n = static_cast<int32_t>(piece.size());
  std::vector<Symbol> s(piece.size());
  std::vector<Candidate> heap;
  for (int32_t i = 0; i < n; ++i) {
    s[static_cast<size_t>(i)] = {bytes_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1,
                                 i + 1 < n ? i + 1 : -1};
  }
  auto candidate = [&](int32_t pos) -> Candidate {
    const Symbol& a = s[static_cast<size_t>(pos)];
    if (a.next < 0) return {kNoRank, pos, 0, 0, 0};
    const Symbol& b = s[static_cast<size_t>(a.next)];
    const PairSlot* p = find_pair(a.id, b.id);
    return p == nullptr ? Candidate{kNoRank, pos, 0, 0, 0} : Candidate{p->rank, pos, a.id, b.id, p->result};
  };
  for (int32_t i = 0; i < n; ++i) {
    if (Candidate c = candidate(i); c.rank != kNoRank) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end());
  auto push = [&](int32_t pos) {
    if (Candidate c = candidate(pos); c.rank != kNoRank) {
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end());
    }
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    Candidate c = heap.back();
    heap.pop_back();
    Symbol& a = s[static_cast<size_t>(c.pos)];
    // Stale entries: one of the two symbols has been merged since.
    if (a.id != c.left || a.next < 0 || s[static_cast<size_t>(a.next)].id != c.right) continue;
    Symbol& b = s[static_cast<size_t>(a.next)];
    a.id = c.result;
    b.id = -1;
    a.next = b.next;
    if (a.next >= 0) s[static_cast<size_t>(a.next)].prev = c.pos;
    push(c.pos);
    if (a.prev >= 0) push(a.prev);
  }
  for (int32_t i = 0; i >= 0; i = s[static_cast<size_t>(i)].next)
    ids->push_back(s[static_cast<size_t>(i)].id);
}

}  // namespace deepinfer
