// Running an automaton: a set is everything the grammar may be doing after some bytes, a set of (state,
// position data, stack). Stacks are shared lists of where to return to; equal lists and equal sets are the
// same number, so that steps and masks are remembered and a nested document costs what a flat one does.
// Returns of equal calls are joined, which keeps ambiguous grammars polynomial. Source: Earley's algorithm
// over recursive transition networks; lazily built automata. Threads: one machine per thread of use; a
// compiled grammar keeps idle ones warm.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/lexical.h"

namespace deepinfer::grammar {

using SetId = uint32_t;
constexpr SetId kDeadSet = 0;

class ItemSets {
 public:
  ItemSets(const Automaton& automaton, const Vocabulary& vocabulary);
  struct Copy {};
  // The same sets under the same numbers, without remembered masks.
  ItemSets(const ItemSets& other, Copy);

  SetId start() const { return start_; }
  // The set after one more byte, or control token; kDeadSet if the grammar does not allow it.
  SetId step(SetId set, uint8_t byte);
  SetId step_token(SetId set, int32_t token);
  SetId step_bytes(SetId set, std::string_view bytes);
  bool accepting(SetId set) const { return sets_[set].accepting; }
  // The byte that must come next: 0-255, or -1 if there is a choice or the text may end.
  int forced_byte(SetId set);
  // Bytes that may come next, as 256 bits.
  const std::array<uint64_t, 4>& first_bytes(SetId set);
  // Sets the bits of all text and control tokens allowed next, into a zeroed mask. Stop tokens are the
  // matcher's business.
  void fill(SetId set, std::span<uint32_t> mask);
  // The only token allowed next (stop tokens aside), or -1.
  int32_t only_token(SetId set);
  // Forgets everything but what `sets` need; they are renumbered in place. For use when memory_bytes() is
  // large.
  void compact(std::span<SetId> sets);
  size_t memory_bytes() const;
  // True once a set had more parallel readings than kMaxItems; such a set is dead.
  bool overflowed() const { return overflowed_; }

  static constexpr size_t kMaxItems = 16'384;

 private:
  struct Item {
    uint32_t state = 0;
    uint32_t frame = 0;
    uint64_t data = 0;
    bool operator==(const Item&) const = default;
    auto operator<=>(const Item&) const = default;
  };
  static constexpr uint32_t kDone = 0xFFFFFFFFu;  // the return address of the root
  struct List {
    uint32_t at = 0, n = 0;
  };
  struct Set {
    List items;
    bool accepting = false, first_known = false;
    int32_t mask = -1;  // index in masks_
    std::array<uint64_t, 4> first{};
  };
  struct Pending {
    uint32_t rank = 0;
    RuleId rule = 0;
    Item back;
  };
  struct Lexical {
    std::shared_ptr<const LexicalEntry> entry;
    std::vector<uint32_t> original;
  };
  // A mask as it is kept: sets shared with other sets, and what is this set's own.
  struct Mask {
    std::vector<std::pair<std::shared_ptr<const LexicalEntry>, uint32_t>> sets;  // entry, room for elements
    std::vector<int32_t> tokens;
    std::vector<uint32_t> words;  // instead of tokens where that is smaller
  };
  // Open addressing over numbers of lists or sets.
  struct Index {
    std::vector<uint32_t> slots;
    size_t used = 0;
  };

  std::span<const Item> items(List l) const { return {pool_.data() + l.at, l.n}; }
  void begin_closure();
  bool seen(const Item& item);
  void follow(const Item& item);
  void call(RuleId rule, const Item& back);
  void drain();
  SetId finish_closure();
  uint32_t intern_frame(std::vector<Item>* list);
  SetId intern_set(std::vector<Item>* list, bool accepting);
  SetId step_items(List list, uint8_t byte);
  uint32_t target(uint32_t state, uint8_t byte) const;
  const Lexical* lexical(uint32_t state);
  SetId exit_set(uint32_t state, const Item& item);
  void build_mask(SetId set, Mask* out);
  void walk(SetId set, uint32_t node, std::vector<int32_t>* out);
  void walk_automaton(const Item& item, std::vector<int32_t>* out);
  void add_heavy(const Item& item, const Lexical& lex, Mask* out);
  uint32_t copy_frame(const ItemSets& old, uint32_t frame, std::unordered_map<uint32_t, uint32_t>* done);

  const Automaton& a_;
  const Vocabulary& v_;
  std::vector<Item> pool_;
  std::vector<List> frames_;
  std::vector<Set> sets_;
  Index frame_index_, set_index_;
  std::vector<uint64_t> step_keys_;  // set << 8 | byte, all ones if free
  std::vector<SetId> step_values_;
  size_t steps_ = 0;
  std::unordered_map<uint64_t, SetId> exit_sets_;
  std::vector<std::unique_ptr<Mask>> masks_;
  std::vector<int32_t> lexical_of_;  // by state: -1 unknown, -2 not worth it, else index
  std::vector<std::unique_ptr<Lexical>> lexicals_;
  size_t mask_bytes_ = 0, lexical_bytes_ = 0;
  SetId start_ = kDeadSet;
  bool overflowed_ = false;

  // Work space of one closure.
  std::vector<Item> todo_, out_;
  std::vector<Pending> pending_;
  std::vector<Item> seen_items_;
  std::vector<uint32_t> seen_slots_;
  bool accepting_ = false, too_many_ = false;
  std::vector<SetId> at_depth_;
  std::vector<uint32_t> state_at_;
};

}  // namespace deepinfer::grammar
