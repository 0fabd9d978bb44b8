// Closures, steps and sharing of sets. Masks are in item_set_mask.cc.
#include "grammar/item_sets.h"

#include <algorithm>
#include <bit>

namespace deepinfer::grammar {
namespace {

constexpr uint64_t kFree = ~uint64_t{0};

uint64_t mix(uint64_t h) {
  h ^= h >> 32;
  h *= 0xD6E8FEB86659FD93ull;
  h ^= h >> 32;
  return h;
}

template <typename T>
uint64_t hash_items(std::span<const T> list, uint64_t seed) {
  uint64_t h = seed;
  for (const T& i : list) h = mix(h ^ (uint64_t{i.state} << 32 | i.frame)) + i.data * 0x9E3779B97F4A7C15ull;
  return mix(h);
}

}  // namespace

ItemSets::ItemSets(const Automaton& automaton, const Vocabulary& vocabulary)
    : a_(automaton),
      v_(vocabulary),
      lexical_of_(automaton.states.size(), -1),
      at_depth_(4098, 0),
      state_at_(4098, 0) {
  std::vector<Item> none;
  intern_set(&none, false);  // set 0: dead
  std::vector<Item> done = {{kDone, 0, 0}};
  intern_frame(&done);
  begin_closure();
  const Automaton::RuleInfo& root = a_.rules[a_.root];
  if (root.productive) call(a_.root, {kDone, 0, 0});
  drain();
  if (root.nullable) accepting_ = true;
  start_ = finish_closure();
}

ItemSets::ItemSets(const ItemSets& other, Copy)
    : a_(other.a_),
      v_(other.v_),
      pool_(other.pool_),
      frames_(other.frames_),
      sets_(other.sets_),
      frame_index_(other.frame_index_),
      set_index_(other.set_index_),
      lexical_of_(other.lexical_of_.size(), -1),
      start_(other.start_),
      overflowed_(other.overflowed_),
      at_depth_(other.at_depth_.size(), 0),
      state_at_(other.state_at_.size(), 0) {
  for (Set& r : sets_) r.mask = -1;
}

void ItemSets::begin_closure() {
  todo_.clear();
  out_.clear();
  pending_.clear();
  seen_items_.clear();
  seen_slots_.clear();
  accepting_ = too_many_ = false;
}

bool ItemSets::seen(const Item& item) {
  if (seen_items_.size() < 12) {
    if (std::find(seen_items_.begin(), seen_items_.end(), item) != seen_items_.end()) return true;
    seen_items_.push_back(item);
    return false;
  }
  if (seen_slots_.size() < seen_items_.size() * 2 + 2) {
    seen_slots_.assign(std::bit_ceil(seen_items_.size() * 4 + 4), 0);
    for (size_t i = 0; i < seen_items_.size(); ++i) {
      size_t k = hash_items(std::span<const Item>(&seen_items_[i], 1), 1) & (seen_slots_.size() - 1);
      while (seen_slots_[k] != 0) k = (k + 1) & (seen_slots_.size() - 1);
      seen_slots_[k] = static_cast<uint32_t>(i + 1);
    }
  }
  size_t k = hash_items(std::span<const Item>(&item, 1), 1) & (seen_slots_.size() - 1);
  for (; seen_slots_[k] != 0; k = (k + 1) & (seen_slots_.size() - 1)) {
    if (seen_items_[seen_slots_[k] - 1] == item) return true;
  }
  seen_items_.push_back(item);
  seen_slots_[k] = static_cast<uint32_t>(seen_items_.size());
  return false;
}

// Queues a call. A return address that would only return again is replaced by where that leads: stacks do not
// grow on calls in last place.
void ItemSets::call(RuleId rule, const Item& back) {
  const Automaton::RuleInfo& r = a_.rules[rule];
  if (!r.productive) return;
  auto push = [&](const Item& to) {
    pending_.push_back({r.rank, rule, to});
    std::push_heap(pending_.begin(), pending_.end(),
                   [](const Pending& x, const Pending& y) { return x.rank > y.rank; });
  };
  if (back.state != kDone) {
    const Automaton::State& s = a_.states[back.state];
    if (s.accept && s.bytes_n == 0 && s.calls_n == 0 && s.tokens_n == 0 &&
        a_.rules[s.rule].kind == Rule::Kind::kBody) {
      List returns = frames_[back.frame];
      for (uint32_t i = 0; i < returns.n; ++i) push(pool_[returns.at + i]);
      return;
    }
  }
  push(back);
}

// One item of a closure: what it returns to, what it calls, and whether it reads anything itself.
void ItemSets::follow(const Item& item) {
  if (item.state == kDone) {
    accepting_ = true;
    return;
  }
  if (seen(item)) return;
  if (seen_items_.size() > kMaxItems) {
    too_many_ = true;
    return;
  }
  const Automaton::State& s = a_.states[item.state];
  const Automaton::RuleInfo& rule = a_.rules[s.rule];
  bool ends = false;
  switch (rule.kind) {
    case Rule::Kind::kBody:
      ends = s.accept;
      for (const CallEdge& c : a_.calls_of(item.state)) call(c.rule, {c.to, item.frame, 0});
      if (s.bytes_n > 0 || s.tokens_n > 0) out_.push_back(item);
      break;
    case Rule::Kind::kCounted: {
      bool head = item.state == rule.start;
      ends = head && item.data >= std::max<uint64_t>(rule.min, 1);
      if (!head || rule.max == kUnbounded || item.data < rule.max) out_.push_back(item);
      break;
    }
    case Rule::Kind::kLoop:
      ends = expand_loop(rule.loop, item.data,
                         [&](RuleId r, uint64_t d) { call(r, {item.state, item.frame, d}); });
      ends = ends && item.data != 0;
      break;
    case Rule::Kind::kMembers:
      ends = expand_members(rule.members, item.data,
                            [&](RuleId r, uint64_t d) { call(r, {item.state, item.frame, d}); });
      ends = ends && item.data != 0;
      break;
  }
  if (ends) {
    List returns = frames_[item.frame];
    for (uint32_t i = 0; i < returns.n; ++i) todo_.push_back(pool_[returns.at + i]);
  }
}

void ItemSets::drain() {
  auto later = [](const Pending& x, const Pending& y) { return x.rank > y.rank; };
  std::vector<Item> backs;
  while (!too_many_) {
    while (!todo_.empty() && !too_many_) {
      Item item = todo_.back();
      todo_.pop_back();
      follow(item);
    }
    if (pending_.empty() || too_many_) break;
    // All callers of the rule that may begin others come first, so that each rule is entered once.
    RuleId rule = pending_.front().rule;
    backs.clear();
    while (!pending_.empty() && pending_.front().rule == rule) {
      backs.push_back(pending_.front().back);
      std::pop_heap(pending_.begin(), pending_.end(), later);
      pending_.pop_back();
    }
    if (backs.size() > 1) {
      std::sort(backs.begin(), backs.end());
      backs.erase(std::unique(backs.begin(), backs.end()), backs.end());
    }
    uint32_t frame = intern_frame(&backs);
    todo_.push_back({a_.rules[rule].start, frame, 0});
  }
}

SetId ItemSets::finish_closure() {
  if (too_many_) {
    overflowed_ = true;
    return kDeadSet;
  }
  std::sort(out_.begin(), out_.end());
  return intern_set(&out_, accepting_);
}

uint32_t ItemSets::intern_frame(std::vector<Item>* list) {
  Index& index = frame_index_;
  if (index.slots.size() < (index.used + 1) * 2) {
    index.slots.assign(std::max<size_t>(64, index.slots.size() * 2), 0);
    for (size_t f = 0; f < frames_.size(); ++f) {
      size_t k = hash_items(items(frames_[f]), 11) & (index.slots.size() - 1);
      while (index.slots[k] != 0) k = (k + 1) & (index.slots.size() - 1);
      index.slots[k] = static_cast<uint32_t>(f + 1);
    }
  }
  std::span<const Item> wanted(*list);
  size_t k = hash_items(wanted, 11) & (index.slots.size() - 1);
  for (; index.slots[k] != 0; k = (k + 1) & (index.slots.size() - 1)) {
    std::span<const Item> have = items(frames_[index.slots[k] - 1]);
    if (std::equal(have.begin(), have.end(), wanted.begin(), wanted.end())) return index.slots[k] - 1;
  }
  frames_.push_back({static_cast<uint32_t>(pool_.size()), static_cast<uint32_t>(list->size())});
  pool_.insert(pool_.end(), list->begin(), list->end());
  ++index.used;
  index.slots[k] = static_cast<uint32_t>(frames_.size());
  return static_cast<uint32_t>(frames_.size() - 1);
}

SetId ItemSets::intern_set(std::vector<Item>* list, bool accepting) {
  Index& index = set_index_;
  auto hash = [&](std::span<const Item> l, bool acc) { return hash_items(l, acc ? 5 : 9); };
  if (index.slots.size() < (index.used + 1) * 2) {
    index.slots.assign(std::max<size_t>(64, index.slots.size() * 2), 0);
    for (size_t r = 0; r < sets_.size(); ++r) {
      size_t k = hash(items(sets_[r].items), sets_[r].accepting) & (index.slots.size() - 1);
      while (index.slots[k] != 0) k = (k + 1) & (index.slots.size() - 1);
      index.slots[k] = static_cast<uint32_t>(r + 1);
    }
  }
  std::span<const Item> wanted(*list);
  size_t k = hash(wanted, accepting) & (index.slots.size() - 1);
  for (; index.slots[k] != 0; k = (k + 1) & (index.slots.size() - 1)) {
    const Set& r = sets_[index.slots[k] - 1];
    std::span<const Item> have = items(r.items);
    if (r.accepting == accepting && std::equal(have.begin(), have.end(), wanted.begin(), wanted.end()))
      return index.slots[k] - 1;
  }
  Set set;
  set.items = {static_cast<uint32_t>(pool_.size()), static_cast<uint32_t>(list->size())};
  set.accepting = accepting;
  pool_.insert(pool_.end(), list->begin(), list->end());
  sets_.push_back(set);
  ++index.used;
  index.slots[k] = static_cast<uint32_t>(sets_.size());
  return static_cast<SetId>(sets_.size() - 1);
}

uint32_t ItemSets::target(uint32_t state, uint8_t byte) const {
  for (const ByteEdge& e : a_.bytes_of(state)) {
    if (byte < e.lo) break;
    if (byte <= e.hi) return e.to;
  }
  return kDone;
}

SetId ItemSets::step_items(List list, uint8_t byte) {
  begin_closure();
  for (uint32_t i = 0; i < list.n; ++i) {
    Item item = pool_[list.at + i];
    const Automaton::RuleInfo& rule = a_.rules[a_.states[item.state].rule];
    uint32_t to = target(item.state, byte);
    if (to == kDone) continue;
    if (rule.kind == Rule::Kind::kCounted && to == rule.start) {
      uint64_t cap = rule.max == kUnbounded ? std::max<uint64_t>(rule.min, 1) : rule.max;
      item.data = std::min<uint64_t>(item.data + 1, cap);
    }
    todo_.push_back({to, item.frame, item.data});
  }
  if (todo_.empty()) return kDeadSet;
  drain();
  return finish_closure();
}

SetId ItemSets::step(SetId set, uint8_t byte) {
  uint64_t key = uint64_t{set} << 8 | byte;
  if (step_keys_.size() < (steps_ + 1) * 2) {
    size_t n = std::max<size_t>(256, step_keys_.size() * 2);
    std::vector<uint64_t> keys(n, kFree);
    std::vector<SetId> values(n, 0);
    for (size_t i = 0; i < step_keys_.size(); ++i) {
      if (step_keys_[i] == kFree) continue;
      size_t k = mix(step_keys_[i]) & (n - 1);
      while (keys[k] != kFree) k = (k + 1) & (n - 1);
      keys[k] = step_keys_[i];
      values[k] = step_values_[i];
    }
    step_keys_ = std::move(keys);
    step_values_ = std::move(values);
  }
  size_t k = mix(key) & (step_keys_.size() - 1);
  for (; step_keys_[k] != kFree; k = (k + 1) & (step_keys_.size() - 1)) {
    if (step_keys_[k] == key) return step_values_[k];
  }
  SetId to = step_items(sets_[set].items, byte);
  step_keys_[k] = key;
  step_values_[k] = to;
  ++steps_;
  return to;
}

SetId ItemSets::step_token(SetId set, int32_t token) {
  begin_closure();
  List list = sets_[set].items;
  for (uint32_t i = 0; i < list.n; ++i) {
    Item item = pool_[list.at + i];
    for (const TokenEdge& t : a_.tokens_of(item.state)) {
      if (t.token == token) todo_.push_back({t.to, item.frame, item.data});
    }
  }
  if (todo_.empty()) return kDeadSet;
  drain();
  return finish_closure();
}

SetId ItemSets::step_bytes(SetId set, std::string_view bytes) {
  for (char c : bytes) {
    set = step(set, static_cast<uint8_t>(c));
    if (set == kDeadSet) break;
  }
  return set;
}

const std::array<uint64_t, 4>& ItemSets::first_bytes(SetId set) {
  Set& r = sets_[set];
  if (!r.first_known) {
    r.first_known = true;
    for (const Item& item : items(r.items)) {
      for (const ByteEdge& e : a_.bytes_of(item.state)) {
        for (int b = e.lo; b <= e.hi; ++b) r.first[static_cast<size_t>(b) >> 6] |= uint64_t{1} << (b & 63);
      }
    }
  }
  return r.first;
}

int ItemSets::forced_byte(SetId set) {
  if (accepting(set)) return -1;
  for (const Item& item : items(sets_[set].items)) {
    if (a_.states[item.state].tokens_n > 0) return -1;
  }
  const std::array<uint64_t, 4>& f = first_bytes(set);
  int found = -1;
  for (int w = 0; w < 4; ++w) {
    if (f[static_cast<size_t>(w)] == 0) continue;
    if (found >= 0 || std::popcount(f[static_cast<size_t>(w)]) != 1) return -1;
    found = w * 64 + std::countr_zero(f[static_cast<size_t>(w)]);
  }
  return found;
}

size_t ItemSets::memory_bytes() const {
  return pool_.capacity() * sizeof(Item) + frames_.capacity() * sizeof(List) +
         sets_.capacity() * sizeof(Set) + (frame_index_.slots.size() + set_index_.slots.size()) * 4 +
         step_keys_.size() * 12 + exit_sets_.size() * 40 + lexical_of_.size() * 4 + mask_bytes_ +
         lexical_bytes_;
}

uint32_t ItemSets::copy_frame(const ItemSets& old, uint32_t frame,
                              std::unordered_map<uint32_t, uint32_t>* done) {
  // Iterative: stacks may be as deep as the text is long. Frames point to older frames only.
  std::vector<uint32_t> stack = {frame};
  while (!stack.empty()) {
    uint32_t f = stack.back();
    if (done->count(f) != 0) {
      stack.pop_back();
      continue;
    }
    std::vector<Item> list;
    bool ready = true;
    for (const Item& i : old.items(old.frames_[f])) {
      if (i.state != kDone && done->count(i.frame) == 0) ready = false, stack.push_back(i.frame);
      if (ready) list.push_back({i.state, i.state == kDone ? 0 : done->at(i.frame), i.data});
    }
    if (!ready) continue;
    std::sort(list.begin(), list.end());
    (*done)[f] = intern_frame(&list);
    stack.pop_back();
  }
  return done->at(frame);
}

void ItemSets::compact(std::span<SetId> sets) {
  ItemSets fresh(a_, v_);
  std::unordered_map<uint32_t, uint32_t> frames;
  for (SetId& set : sets) {
    std::vector<Item> list;
    for (const Item& i : items(sets_[set].items))
      list.push_back({i.state, fresh.copy_frame(*this, i.frame, &frames), i.data});
    std::sort(list.begin(), list.end());
    set = fresh.intern_set(&list, sets_[set].accepting);
  }
  bool overflowed = overflowed_;
  std::swap(pool_, fresh.pool_);
  std::swap(frames_, fresh.frames_);
  std::swap(sets_, fresh.sets_);
  std::swap(frame_index_, fresh.frame_index_);
  std::swap(set_index_, fresh.set_index_);
  step_keys_.clear();
  step_values_.clear();
  steps_ = 0;
  exit_sets_.clear();
  masks_.clear();
  mask_bytes_ = 0;
  lexicals_.clear();
  lexical_bytes_ = 0;
  lexical_of_.assign(a_.states.size(), -1);
  start_ = fresh.start_;
  overflowed_ = overflowed;
}

}  // namespace deepinfer::grammar
