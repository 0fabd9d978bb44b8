// What every front end (regular expressions, EBNF, JSON schema, tool calls) produces: rules whose bodies are
// expressions over bytes, code point classes, control tokens and other rules, and three kinds of rules that
// count or remember instead of being written out. Knows no source syntax and no automaton. Threads: immutable
// after building; nodes may be shared between rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/char_set.h"

namespace deepinfer::grammar {

class CharDfa;
using RuleId = uint32_t;
constexpr uint32_t kUnbounded = 0xFFFFFFFFu;

// How characters become bytes: as they are, or as the inside of a JSON string (char_set.h json_paths).
enum class Spelling : uint8_t { kRaw, kJson };

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  enum class Kind {
    kEmpty,        // the empty word
    kNever,        // no word at all
    kBytes,        // these bytes
    kClass,        // one character of `set`
    kSeq,          // kids one after another
    kAlt,          // one of kids
    kRepeat,       // kids[0], min to max times
    kRule,         // a word of another rule
    kToken,        // one control token by id
    kDfa,          // a word of a character automaton
    kAnchorStart,  // only inside regular expressions; regex.h removes them
    kAnchorEnd,
  };
  Kind kind = Kind::kEmpty;
  Spelling spelling = Spelling::kRaw;  // kClass, kDfa
  std::string bytes;
  CharSet set;
  std::vector<ExprPtr> kids;
  uint32_t min = 0, max = 0;
  RuleId rule = 0;
  int32_t token = -1;
  std::shared_ptr<const CharDfa> dfa;
};

ExprPtr make_empty();
ExprPtr make_never();
ExprPtr make_bytes(std::string bytes);
ExprPtr make_class(CharSet set, Spelling spelling);
ExprPtr make_seq(std::vector<ExprPtr> kids);  // flattens; kNever if a kid is
ExprPtr make_alt(std::vector<ExprPtr> kids);  // flattens; drops kNever
ExprPtr make_repeat(ExprPtr kid, uint32_t min, uint32_t max);
ExprPtr make_rule(RuleId rule);
ExprPtr make_token(int32_t id);
ExprPtr make_dfa(std::shared_ptr<const CharDfa> dfa, Spelling spelling);
ExprPtr make_anchor(bool start);
// The characters of `text`, spelt. Raw text is its bytes.
ExprPtr make_text(std::string_view text, Spelling spelling);
// text as the inside of a JSON string, one spelling per character (RFC 8785).
std::string json_spelling(std::string_view text);

// A sequence of elements of which each position offers some rules. `bump` marks the elements that count
// towards `need`. The array: positions are prefixItems, the last position repeats.
struct LoopRule {
  struct Edge {
    RuleId rule = 0;
    bool bump = false;
  };
  std::vector<std::vector<Edge>> positions;  // position i uses min(i, size - 1)
  uint32_t min = 0, max = kUnbounded;        // elements
  uint32_t need = 0;                         // elements with bump
};

// The members of an object: each property at most once, in order or in any order, then (or between) others.
struct MembersRule {
  struct Property {
    RuleId first = 0, next = 0;  // without and with a comma in front
    bool required = false;
  };
  std::vector<Property> properties;
  std::vector<std::pair<RuleId, RuleId>> others;  // (first, next) of members with other names
  bool any_order = false;                         // REQUIRES at most kMaxAnyOrder properties
  uint32_t min = 0, max = kUnbounded;             // members
};
constexpr size_t kMaxAnyOrder = 40;

struct Rule {
  enum class Kind { kBody, kCounted, kLoop, kMembers };
  std::string name;  // for messages and the printed grammar
  Kind kind = Kind::kBody;
  ExprPtr body;  // kBody; kCounted: the element, a prefix code over bytes (no word begins another)
  uint32_t min = 0, max = kUnbounded;  // kCounted
  LoopRule loop;
  MembersRule members;
};

struct Grammar {
  std::vector<Rule> rules;
  RuleId root = 0;
  // Small rules that call no recursive rule are written into their callers (EBNF); schemas keep them apart,
  // because equal rules share what is computed about them.
  bool inline_regular = false;

  RuleId add(std::string name) {
    rules.push_back({});
    rules.back().name = std::move(name);
    return static_cast<RuleId>(rules.size() - 1);
  }
  RuleId add(std::string name, ExprPtr body) {
    RuleId id = add(std::move(name));
    rules[id].body = std::move(body);
    return id;
  }
  RuleId add_counted(std::string name, ExprPtr element, uint32_t min, uint32_t max) {
    RuleId id = add(std::move(name), std::move(element));
    rules[id].kind = Rule::Kind::kCounted;
    rules[id].min = min;
    rules[id].max = max;
    return id;
  }
};

// The grammar as text, one rule a line, for people.
std::string to_text(const Grammar& grammar);

}  // namespace deepinfer::grammar
