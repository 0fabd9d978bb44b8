// The state of one request's constraint: a stack of item sets, and the phase before and after the grammar.
#include "grammar/matcher.h"

#include <algorithm>
#include <bit>

#include "grammar/item_sets.h"

namespace deepinfer::grammar {
namespace {

// Idle item sets kept warm per grammar, and the size above which they are let go: a cached grammar never
// holds more than 8 MiB besides its tables.
constexpr size_t kIdleMachines = 2;
constexpr size_t kIdleBytes = 4u << 20;

}  // namespace

CompiledGrammar::CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {}
CompiledGrammar::~CompiledGrammar() = default;

Result<std::shared_ptr<const CompiledGrammar>> CompiledGrammar::create(
    const Grammar& grammar, std::shared_ptr<const Vocabulary> vocabulary, Budget* budget) {
  for (const Rule& r : grammar.rules) {
    DI_CHECK(!(r.members.any_order && r.members.properties.size() > kMaxAnyOrder),
             "too many properties for any order");
  }
  DI_ASSIGN(Automaton a, build_automaton(grammar, budget));
  return std::shared_ptr<const CompiledGrammar>(new CompiledGrammar(std::move(a), std::move(vocabulary)));
}

std::unique_ptr<ItemSets> CompiledGrammar::take() const {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ItemSets> m = std::move(idle_.back());
      idle_.pop_back();
      return m;
    }
  }
  return std::make_unique<ItemSets>(automaton_, *vocabulary_);
}

void CompiledGrammar::give_back(std::unique_ptr<ItemSets> machine) const {
  if (machine == nullptr || machine->memory_bytes() > kIdleBytes) return;
  std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleMachines) idle_.push_back(std::move(machine));
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar, const MatcherOptions& options)
    : grammar_(std::move(grammar)),
      options_(options),
      machine_(grammar_->take()),
      tidy_above_(options.machine_bytes) {
  places_.push_back({machine_->start(), options_.reasoning_end >= 0 ? Phase::kReasoning : Phase::kGrammar});
}

Matcher::~Matcher() {
  if (grammar_ != nullptr) grammar_->give_back(std::move(machine_));
}

Matcher::Matcher(Matcher&&) noexcept = default;

Matcher Matcher::clone() const {
  Matcher copy(grammar_, options_);
  // Another machine numbers its sets otherwise: a copy has the same numbers.
  copy.machine_ = std::make_unique<ItemSets>(*machine_, ItemSets::Copy{});
  copy.places_ = places_;
  copy.accepted_ = accepted_;
  return copy;
}

bool Matcher::fill_mask(std::span<uint32_t> mask) {
  const Vocabulary& v = vocabulary();
  DI_CHECK(mask.size() == v.mask_words(), "the mask has another size than the vocabulary");
  Place now = places_.back();
  auto set = [&](int32_t id) {
    mask[static_cast<size_t>(id) / 32] |= 1u << (static_cast<uint32_t>(id) % 32);
  };
  if (now.phase == Phase::kReasoning) {
    std::copy(v.text_mask().begin(), v.text_mask().end(), mask.begin());
    set(options_.reasoning_end);
    return true;
  }
  std::fill(mask.begin(), mask.end(), 0u);
  if (now.phase == Phase::kDone) return false;
  machine_->fill(now.set, mask);
  if (machine_->accepting(now.set)) {
    for (int32_t id : v.stop_tokens()) set(id);
  }
  return std::any_of(mask.begin(), mask.end(), [](uint32_t w) { return w != 0; });
}

bool Matcher::next(Place from, int32_t token, Place* to) {
  const Vocabulary& v = vocabulary();
  if (token < 0 || token >= v.size() || from.phase == Phase::kDone) return false;
  if (from.phase == Phase::kReasoning) {
    if (token == options_.reasoning_end) {
      *to = {machine_->start(), Phase::kGrammar};
      return true;
    }
    *to = from;
    return v.is_text(token);
  }
  if (v.is_stop(token)) {
    *to = {kDeadSet, Phase::kDone};
    return machine_->accepting(from.set);
  }
  SetId set = v.is_text(token) ? machine_->step_bytes(from.set, v.bytes(token))
                               : machine_->step_token(from.set, token);
  *to = {set, Phase::kGrammar};
  return set != kDeadSet;
}

bool Matcher::accept(int32_t token) {
  Place to;
  if (!next(places_.back(), token, &to)) return false;
  places_.push_back(to);
  ++accepted_;
  auto keep = static_cast<size_t>(options_.history) + 1;
  if (places_.size() > 2 * keep) places_.erase(places_.begin(), places_.end() - static_cast<ptrdiff_t>(keep));
  if (machine_->memory_bytes() > tidy_above_) tidy();
  return true;
}

void Matcher::tidy() {
  std::vector<SetId> sets;
  for (const Place& p : places_) sets.push_back(p.set);
  machine_->compact(sets);
  size_t alive = machine_->memory_bytes();
  tidy_above_ = std::max(options_.machine_bytes, alive + alive / 4);
  for (size_t i = 0; i < sets.size(); ++i) places_[i].set = sets[i];
}

void Matcher::rollback(int32_t n) {
  DI_CHECK(n >= 0 && n <= accepted_ && static_cast<size_t>(n) < places_.size(),
           "rollback beyond the history");
  places_.resize(places_.size() - static_cast<size_t>(n));
  accepted_ -= n;
}

bool Matcher::terminated() const {
  return places_.back().phase == Phase::kDone;
}
bool Matcher::can_stop() const {
  return places_.back().phase == Phase::kGrammar && machine_->accepting(places_.back().set);
}
bool Matcher::in_reasoning() const {
  return places_.back().phase == Phase::kReasoning;
}
size_t Matcher::memory_bytes() const {
  return machine_->memory_bytes() + places_.capacity() * sizeof(Place);
}

std::string Matcher::forced_bytes(size_t limit) {
  std::string out;
  Place p = places_.back();
  if (p.phase != Phase::kGrammar) return out;
  while (out.size() < limit) {
    int b = machine_->forced_byte(p.set);
    if (b < 0) break;
    out += static_cast<char>(b);
    p.set = machine_->step(p.set, static_cast<uint8_t>(b));
    if (p.set == kDeadSet) break;
  }
  return out;
}

void Matcher::forced_tokens(size_t limit, std::vector<int32_t>* out) {
  const Vocabulary& v = vocabulary();
  const TokenTrie& trie = v.trie();
  Place p = places_.back();
  while (p.phase == Phase::kGrammar && out->size() < limit && p.set != kDeadSet) {
    // Down the trie along forced bytes; the last token passed is the longest.
    int32_t best = -1;
    uint32_t node = 0;
    SetId set = p.set, best_set = p.set;
    bool open = false;  // a longer token could go on where the bytes are no longer forced
    for (;;) {
      int b = machine_->forced_byte(set);
      if (b < 0) {
        open = node != 0 && trie.end[node] > node + 1 && !machine_->accepting(set);
        break;
      }
      uint32_t child = 0;
      if (node == 0) {
        child = trie.root_child[b];
      } else {
        for (uint32_t c = node + 1; c < trie.end[node]; c = trie.end[c]) {
          if (trie.byte[c] == b) child = c;
        }
      }
      if (child == 0) break;
      set = machine_->step(set, static_cast<uint8_t>(b));
      if (set == kDeadSet) break;
      node = child;
      if (trie.token_at[node] < trie.token_at[node + 1])
        best = trie.tokens[trie.token_at[node]], best_set = set;
    }
    if (best < 0 || (open && best_set == set)) best = machine_->only_token(p.set);
    if (best < 0) return;
    Place to;
    if (!next(p, best, &to)) return;
    out->push_back(best);
    p = to;
  }
}

}  // namespace deepinfer::grammar
