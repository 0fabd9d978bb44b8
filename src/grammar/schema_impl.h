// Inside of the schema compiler, shared by its files: schema_expand.cc (keywords to alternatives),
// schema_negate.cc (not, oneOf), schema_check.cc (validator and emptiness), schema_emit.cc (rules). Private
// to the room.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/char_dfa.h"
#include "grammar/schema.h"
#include "grammar/schema_number.h"

namespace deepinfer::grammar {

enum TypeBit : unsigned {
  kNullBit = 1,
  kBoolBit = 2,
  kNumberBit = 4,
  kStringBit = 8,
  kArrayBit = 16,
  kObjectBit = 32,
  kAllBits = 63
};

// Schemas that must hold together.
using SchemaSet = std::vector<const JsonValue*>;

// One alternative of a schema: only keywords that look at the value itself, all of which must hold.
struct Flat {
  unsigned types = kAllBits;
  bool has_values = false;               // enum or const
  std::vector<const JsonValue*> values;  // REQUIRES has_values
  std::vector<const JsonValue*> excluded;
  NumberBounds number;
  uint32_t min_length = 0, max_length = kUnbounded;
  struct Pattern {
    const JsonValue* source = nullptr;
    bool negated = false;
  };
  std::vector<Pattern> patterns;
  std::vector<const JsonValue*> formats;
  SchemaSet arrays, objects;  // nodes with keywords of these types

  bool plain_string() const {
    return min_length == 0 && max_length == kUnbounded && patterns.empty() && formats.empty() &&
           excluded.empty();
  }
};

// Names of keywords only this program makes.
inline constexpr char kNotEnum[] = "\x01notEnum";
inline constexpr char kNotPattern[] = "\x01notPattern";
inline constexpr char kNotInteger[] = "\x01notInteger";

struct SchemaCompiler::Impl {
  Impl(const JsonValue& d, const SchemaOptions& o, Grammar* g, Budget* b)
      : document(d), options(o), grammar(g), budget(b) {}

  const JsonValue& document;
  SchemaOptions options;
  Grammar* grammar;
  Budget* budget;
  std::vector<std::string> left_out;
  std::deque<JsonValue> made;  // schemas this program wrote (negations and the like)
  std::map<const JsonValue*, const JsonValue*> made_from;  // for pointers in messages
  std::map<SchemaSet, std::vector<Flat>> flats_of;
  std::map<SchemaSet, RuleId> rule_of;
  std::map<const JsonValue*, std::vector<const JsonValue*>> one_of;  // oneOf rewritten
  std::set<const JsonValue*> one_of_open;
  std::map<const JsonValue*, const JsonValue*> negated, conditionals;  // nullptr: cannot be written
  std::map<std::pair<const JsonValue*, std::string>, std::vector<std::vector<const JsonValue*>>> dependents;
  std::map<std::string, CharDfaPtr> pattern_dfas;
  std::map<std::string, CharDfaPtr> format_dfas;
  std::map<std::string, RuleId> shared_rules;
  int depth = 0;
  std::optional<bool> nested_ids;  // whether a part of the document has an $id of its own

  // schema_expand.cc
  void fail(const JsonValue* at, std::string_view keyword, Code code, std::string_view why);
  // An unsupported keyword: false if it is fatal, true if best effort leaves it out.
  bool unsupported(const JsonValue* at, std::string_view keyword, std::string_view why);
  std::string pointer(const JsonValue* at, std::string_view keyword) const;
  const JsonValue* resolve(const JsonValue* at, const std::string& ref);
  const std::vector<Flat>& expand(const SchemaSet& set);
  struct Walk {
    std::vector<const JsonValue*> todo;
    std::set<const JsonValue*> seen;
    std::vector<std::vector<const JsonValue*>> choices;
    Flat flat;
  };
  void expand_walk(Walk walk, std::vector<Flat>* out, int level);
  bool read_node(const JsonValue* node, Walk* walk);
  bool read_keyword(const JsonValue* node, const std::string& name, const JsonValue& value, Walk* walk);
  bool read_number(const JsonValue* node, const std::string& name, const JsonValue& value, Flat* flat);
  bool read_combinator(const JsonValue* node, const std::string& name, const JsonValue& value, Walk* walk);
  bool read_dependent(const JsonValue* node, const std::string& name, const JsonValue& value, Walk* walk);
  bool read_type(const JsonValue& value, Flat* flat);
  bool read_values(const std::string& name, const JsonValue& value, Flat* flat);
  bool read_size(const JsonValue* node, std::string_view name, uint32_t* out);
  bool check_value_keyword(const JsonValue* node, const std::string& name, const JsonValue& value,
                           Flat* flat);

  // schema_negate.cc
  const JsonValue* make(JsonValue value, const JsonValue* from);
  const JsonValue* negate(const JsonValue* node, int level);
  std::optional<bool> negate_values(const std::string& name, const JsonValue& value,
                                    std::vector<JsonValue>* ways);
  std::optional<bool> negate_bounds(const JsonValue* node, const std::string& name, const JsonValue& value,
                                    std::vector<JsonValue>* ways);
  std::optional<bool> negate_parts(const JsonValue* node, const std::string& name, const JsonValue& value,
                                   int level, std::vector<JsonValue>* ways);
  std::optional<bool> negate_logic(const JsonValue* node, const std::string& name, const JsonValue& value,
                                   int level, std::vector<JsonValue>* ways);
  const std::vector<const JsonValue*>* one_of_choices(const JsonValue* node, const JsonValue& list);
  const JsonValue* conditional(const JsonValue* node);

  // schema_check.cc
  bool valid(const SchemaSet& set, const JsonValue& value);
  bool valid_flat(const Flat& flat, const JsonValue& value);
  bool valid_array(const SchemaSet& nodes, const JsonValue& value);
  bool valid_object(const SchemaSet& nodes, const JsonValue& value);
  bool empty(const SchemaSet& set, int level);
  bool empty_type(const Flat& flat, unsigned type, int level);
  SchemaSet item_set(const SchemaSet& nodes, size_t i) const;
  size_t prefix_length(const SchemaSet& nodes) const;
  SchemaSet member_set(const SchemaSet& nodes, const std::string& name);
  bool name_allowed(const SchemaSet& nodes, const std::string& name);
  CharDfaPtr pattern_dfa(const JsonValue* at, const std::string& text);
  CharDfaPtr string_dfa(const Flat& flat);
  CharDfaPtr string_dfa(const SchemaSet& set);
  // Keyword bounds over several nodes: the largest minimum, the smallest maximum.
  uint32_t largest(const SchemaSet& nodes, std::string_view name);
  uint32_t smallest(const SchemaSet& nodes, std::string_view name);

  // schema_emit.cc
  RuleId rule_for(const SchemaSet& set);
  ExprPtr emit(const Flat& flat);
  ExprPtr emit_values(const Flat& flat);
  ExprPtr literal(const JsonValue& value);
  ExprPtr literal_any_order(const JsonValue& value);
  ExprPtr emit_number(const Flat& flat);
  ExprPtr emit_string(const Flat& flat, Spelling spelling);
  ExprPtr emit_array(const Flat& flat);
  ExprPtr emit_unique(const Flat& flat, uint32_t min, uint32_t max);
  ExprPtr emit_object(const Flat& flat);
  void other_members(const SchemaSet& nodes, const std::vector<std::string>& names, MembersRule* members);
  void member_pair(ExprPtr key, RuleId value, RuleId* first, RuleId* next);
  RuleId after_comma(RuleId first);
  ExprPtr space();
  RuleId shared(const std::string& name, ExprPtr body);
};

// Values this program writes.
JsonValue object_of(std::vector<JsonMember> members);
JsonValue array_of(std::vector<JsonValue> items);
JsonValue text_of(std::string_view text);
JsonValue number_of(uint64_t n);
JsonValue bool_of(bool b);

const JsonValue& true_schema();
bool is_false(const JsonValue* node);
SchemaSet normalised(SchemaSet set);

}  // namespace deepinfer::grammar
