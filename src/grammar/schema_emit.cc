// Alternatives to rules.
#include <algorithm>

#include "grammar/common_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_format.h"
#include "grammar/schema_impl.h"

namespace deepinfer::grammar {

using Type = JsonValue::Type;

ExprPtr bounded_space(Grammar* grammar, uint32_t n, RuleId* shared, bool* have) {
  if (n == 0) return make_empty();
  if (!*have) *shared = grammar->add_counted("space", json_space(), 0, n), *have = true;
  return make_rule(*shared);
}

ExprPtr SchemaCompiler::Impl::space() {
  if (options.max_space == 0) return make_empty();
  auto it = shared_rules.find("space");
  if (it == shared_rules.end())
    it = shared_rules.emplace("space", grammar->add_counted("space", json_space(), 0, options.max_space))
             .first;
  return make_rule(it->second);
}

RuleId SchemaCompiler::Impl::shared(const std::string& name, ExprPtr body) {
  auto it = shared_rules.find(name);
  if (it == shared_rules.end()) it = shared_rules.emplace(name, grammar->add(name, std::move(body))).first;
  return it->second;
}

RuleId SchemaCompiler::Impl::rule_for(const SchemaSet& set) {
  auto it = rule_of.find(set);
  if (it != rule_of.end()) return it->second;
  std::string name = set.empty() ? "value" : pointer(set[0], "");
  RuleId id = grammar->add(name);
  rule_of.emplace(set, id);  // before the body: recursion finds it
  budget->spend_states(1);
  std::vector<ExprPtr> ways;
  if (++depth > budget->limits().schema_depth * 4) {
    budget->fail(error(Code::kResourceExhausted, "{}: schemas nested more than {} deep", name,
                       budget->limits().schema_depth * 4));
  } else if (std::none_of(set.begin(), set.end(), is_false)) {
    std::vector<Flat> flats = expand(set);
    for (const Flat& f : flats) {
      if (!budget->alive()) break;
      ways.push_back(emit(f));
    }
  }
  --depth;
  budget->locate(name);
  grammar->rules[id].body = make_alt(std::move(ways));
  return id;
}

ExprPtr SchemaCompiler::Impl::emit(const Flat& flat) {
  if (flat.has_values) return emit_values(flat);
  std::vector<ExprPtr> ways;
  auto excluded = [&](Type type, bool b) {
    return std::any_of(flat.excluded.begin(), flat.excluded.end(),
                       [&](const JsonValue* v) { return v->is(type) && v->boolean == b; });
  };
  for (const JsonValue* v : flat.excluded) {
    bool reachable = (v->is(Type::kArray) && (flat.types & kArrayBit) != 0) ||
                     (v->is(Type::kObject) && (flat.types & kObjectBit) != 0);
    if (reachable) unsupported(v, "", "an array or object cannot be excluded by value");
  }
  if ((flat.types & kNullBit) != 0 && !excluded(Type::kNull, false)) ways.push_back(make_bytes("null"));
  if ((flat.types & kBoolBit) != 0) {
    if (!excluded(Type::kBool, true)) ways.push_back(make_bytes("true"));
    if (!excluded(Type::kBool, false)) ways.push_back(make_bytes("false"));
  }
  if ((flat.types & kNumberBit) != 0) ways.push_back(emit_number(flat));
  if ((flat.types & kStringBit) != 0) ways.push_back(emit_string(flat, Spelling::kJson));
  if ((flat.types & kArrayBit) != 0) ways.push_back(emit_array(flat));
  if ((flat.types & kObjectBit) != 0) ways.push_back(emit_object(flat));
  return make_alt(std::move(ways));
}

ExprPtr SchemaCompiler::Impl::emit_values(const Flat& flat) {
  std::vector<ExprPtr> ways;
  for (const JsonValue* v : flat.values) {
    if (!budget->alive()) break;
    if (valid_flat(flat, *v)) ways.push_back(literal(*v));
  }
  return make_alt(std::move(ways));
}

// A value as written in the schema, with white space where JSON has it. Numbers also in their shortest
// spelling.
ExprPtr SchemaCompiler::Impl::literal(const JsonValue& value) {
  if (!budget->spend_states(1)) return make_never();
  switch (value.type) {
    case Type::kNull:
      return make_bytes("null");
    case Type::kBool:
      return make_bytes(value.boolean ? "true" : "false");
    case Type::kString:
      return make_bytes('"' + json_spelling(value.text) + '"');
    case Type::kNumber: {
      Result<Decimal> d = parse_decimal(value.text);
      std::string other = d.ok() && std::abs(d->exponent) < 30 ? spell(*d) : value.text;
      if (other == value.text) return make_bytes(value.text);
      return make_alt({make_bytes(value.text), make_bytes(other)});
    }
    case Type::kArray: {
      std::vector<ExprPtr> parts = {make_bytes("["), space()};
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) parts.insert(parts.end(), {space(), make_bytes(","), space()});
        parts.push_back(literal(value.items[i]));
      }
      parts.insert(parts.end(), {value.items.empty() ? make_empty() : space(), make_bytes("]")});
      return make_seq(std::move(parts));
    }
    case Type::kObject: {
      if (options.any_order && value.members.size() > 1 && value.members.size() <= kMaxAnyOrder)
        return literal_any_order(value);
      std::vector<ExprPtr> parts = {make_bytes("{"), space()};
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) parts.insert(parts.end(), {space(), make_bytes(","), space()});
        parts.insert(parts.end(), {make_bytes('"' + json_spelling(value.members[i].first) + '"'), space(),
                                   make_bytes(":"), space(), literal(value.members[i].second)});
      }
      parts.insert(parts.end(), {value.members.empty() ? make_empty() : space(), make_bytes("}")});
      return make_seq(std::move(parts));
    }
  }
  return make_never();
}

ExprPtr SchemaCompiler::Impl::literal_any_order(const JsonValue& value) {
  MembersRule members;
  members.any_order = true;
  members.min = 1;
  for (const auto& [name, member] : value.members) {
    MembersRule::Property p;
    p.required = true;
    p.first = grammar->add("member", make_seq({make_bytes('"' + json_spelling(name) + '"'), space(),
                                               make_bytes(":"), space(), literal(member)}));
    p.next = after_comma(p.first);
    members.properties.push_back(p);
  }
  RuleId id = grammar->add("members");
  grammar->rules[id].kind = Rule::Kind::kMembers;
  grammar->rules[id].members = std::move(members);
  return make_seq({make_bytes("{"), space(), make_rule(id), space(), make_bytes("}")});
}

ExprPtr SchemaCompiler::Impl::emit_number(const Flat& flat) {
  std::vector<std::string> without;  // excluded numbers, in their shortest spelling
  for (const JsonValue* v : flat.excluded) {
    if (!v->is(Type::kNumber)) continue;
    Result<Decimal> d = parse_decimal(v->text);
    if (d.ok() && std::abs(d->exponent) < 64) without.push_back(spell(*d));
  }
  if (!flat.number.any() && without.empty()) {
    if (flat.number.integer) return make_rule(shared("integer", free_json_integer()));
    return make_rule(shared("number", free_json_number()));
  }
  CharDfaPtr d = number_language(flat.number, budget);
  for (const std::string& text : without) {
    // Every spelling of the value: zeros may follow its digits.
    bool point = text.find('.') != std::string::npos;
    ExprPtr zeros = make_repeat(make_bytes("0"), point ? 0 : 1, kUnbounded);
    ExprPtr more = point ? zeros : make_repeat(make_seq({make_bytes("."), zeros}), 0, 1);
    std::vector<ExprPtr> spellings = {make_seq({make_bytes(text), more})};
    if (text == "0") spellings.push_back(make_seq({make_bytes("-0"), more}));
    d = subtract(d, dfa_of(make_alt(std::move(spellings)), budget), budget);
  }
  return d->empty() ? make_never() : make_dfa(d, Spelling::kRaw);
}

// Without quotes if raw.
ExprPtr SchemaCompiler::Impl::emit_string(const Flat& flat, Spelling spelling) {
  bool json = spelling == Spelling::kJson;
  auto quoted = [&](ExprPtr e) {
    return json ? make_seq({make_bytes("\""), std::move(e), make_bytes("\"")}) : std::move(e);
  };
  ExprPtr any = json ? free_json_char() : make_class(CharSet::any(), Spelling::kRaw);
  if (flat.min_length > flat.max_length) return make_never();
  bool excludes = std::any_of(flat.excluded.begin(), flat.excluded.end(),
                              [](const JsonValue* v) { return v->is(Type::kString); });
  bool lengths = flat.min_length > 0 || flat.max_length != kUnbounded;
  size_t shapes = flat.patterns.size() + flat.formats.size();
  if (shapes == 0 && !excludes) {
    if (!lengths) {
      if (json) return make_rule(shared("string", free_json_string()));
      return make_rule(shared("text", make_repeat(any, 0, kUnbounded)));
    }
    if (flat.max_length == 0) return quoted(make_empty());
    std::string name =
        fmt::format("{} {}..{}", json ? "characters" : "text characters", flat.min_length, flat.max_length);
    auto it = shared_rules.find(name);
    if (it == shared_rules.end())
      it =
          shared_rules.emplace(name, grammar->add_counted(name, any, flat.min_length, flat.max_length)).first;
    return quoted(make_rule(it->second));
  }
  if (shapes == 1 && !excludes && !lengths && (flat.patterns.empty() || !flat.patterns[0].negated)) {
    RegexOptions regex;
    regex.spelling = spelling;
    regex.search = true;
    const JsonValue* source = flat.patterns.empty() ? flat.formats[0] : flat.patterns[0].source;
    Result<ExprPtr> e = flat.patterns.empty() ? format_expr(source->text, spelling, budget)
                                              : parse_regex(source->text, regex, budget);
    if (!e.ok()) return fail(source, "", e.status().code(), e.status().message()), make_never();
    std::string name = (flat.patterns.empty() ? "format " : "pattern ") + source->text + (json ? "" : " raw");
    return make_rule(shared(name, quoted(*e)));
  }
  CharDfaPtr d = string_dfa(flat);
  return d->empty() ? make_never() : quoted(make_dfa(d, spelling));
}

RuleId SchemaCompiler::Impl::after_comma(RuleId first) {
  std::string name = fmt::format("next {}", first);
  return shared(name, make_seq({space(), make_bytes(","), space(), make_rule(first)}));
}

ExprPtr SchemaCompiler::Impl::emit_array(const Flat& flat) {
  const SchemaSet& nodes = flat.arrays;
  uint32_t min = largest(nodes, "minItems"), max = smallest(nodes, "maxItems");
  SchemaSet contains;
  uint32_t need = 0;
  for (const JsonValue* node : nodes) {
    const JsonValue* unique = node->find("uniqueItems");
    if (unique != nullptr && unique->boolean && max > 1) return emit_unique(flat, min, max);
    const JsonValue* c = node->find("contains");
    if (c == nullptr) continue;
    uint32_t n = 1;
    read_size(node, "minContains", &n);
    if (node->find("maxContains") != nullptr &&
        !unsupported(node, "maxContains", "this keyword is not supported"))
      return make_never();
    if (n == 0) continue;
    if (need > 0 && !unsupported(node, "contains", "two of them for one array are not supported"))
      return make_never();
    contains = {c};
    need = n;
  }
  LoopRule loop;
  loop.min = min;
  loop.max = max;
  loop.need = need;
  size_t prefix = prefix_length(nodes);
  // One position more than the prefix for the rest; the first element has no comma, so it has a position of
  // its own.
  size_t positions = std::max<size_t>(prefix + 1, 2);
  if (max != kUnbounded) positions = std::min<size_t>(positions, max);
  if (!budget->spend_states(static_cast<int64_t>(positions))) return make_never();
  for (size_t i = 0; i < positions && budget->alive(); ++i) {
    SchemaSet set = item_set(nodes, i);
    auto edge = [&](const SchemaSet& s, bool bump) {
      RuleId r = rule_for(s);
      return LoopRule::Edge{i == 0 ? r : after_comma(r), bump};
    };
    std::vector<LoopRule::Edge> edges;
    if (std::none_of(set.begin(), set.end(), is_false)) {
      edges.push_back(edge(set, false));
      if (need > 0) {
        SchemaSet both = set;
        both.insert(both.end(), contains.begin(), contains.end());
        edges.push_back(edge(normalised(std::move(both)), true));
      }
    }
    loop.positions.push_back(std::move(edges));
  }
  ExprPtr nothing =
      min == 0 && need == 0 ? make_seq({make_bytes("["), space(), make_bytes("]")}) : make_never();
  if (max == 0) return nothing;
  RuleId id = grammar->add("elements");
  loop.min = std::max<uint32_t>(min, 1);
  grammar->rules[id].kind = Rule::Kind::kLoop;
  grammar->rules[id].loop = std::move(loop);
  return make_alt({nothing, make_seq({make_bytes("["), space(), make_rule(id), space(), make_bytes("]")})});
}

// Distinct elements can be told apart only where there are finitely many values: each is taken at most once.
ExprPtr SchemaCompiler::Impl::emit_unique(const Flat& flat, uint32_t min, uint32_t max) {
  const JsonValue* at = flat.arrays[0];
  auto refuse = [&](std::string_view why) {
    if (!unsupported(at, "uniqueItems", why)) return make_never();
    Flat rest = flat;
    for (const JsonValue*& n : rest.arrays) {
      JsonValue copy = *n;
      std::erase_if(copy.members, [](const auto& m) { return m.first == "uniqueItems"; });
      n = make(std::move(copy), n);
    }
    return emit_array(rest);
  };
  for (const JsonValue* node : flat.arrays) {
    if (node->find("contains") != nullptr) return refuse("not together with contains");
  }
  if (prefix_length(flat.arrays) > 0) return refuse("not together with prefixItems");
  SchemaSet set = item_set(flat.arrays, 0);
  std::vector<Flat> flats = expand(set);
  std::vector<const JsonValue*> values;
  for (const Flat& f : flats) {
    std::vector<const JsonValue*> found = f.values;
    static const JsonValue booleans[] = {bool_of(true), bool_of(false), JsonValue()};
    if (!f.has_values) {
      if ((f.types & ~unsigned{kBoolBit | kNullBit}) != 0)
        return refuse("only for elements with finitely many values (enum, const, boolean)");
      found = {&booleans[0], &booleans[1], &booleans[2]};
    }
    for (const JsonValue* v : found) {
      bool twice =
          std::any_of(values.begin(), values.end(), [&](const JsonValue* w) { return equal(*v, *w); });
      if (!twice && valid_flat(f, *v)) values.push_back(v);
    }
  }
  if (values.size() > kMaxAnyOrder) return refuse("more than 40 different values");
  MembersRule members;
  members.any_order = true;
  members.min = std::max<uint32_t>(min, 1);
  members.max = max;
  for (const JsonValue* v : values) {
    RuleId first = grammar->add("value", literal(*v));
    members.properties.push_back({first, after_comma(first), false});
  }
  ExprPtr nothing = min == 0 ? make_seq({make_bytes("["), space(), make_bytes("]")}) : make_never();
  if (values.empty() || max == 0) return nothing;
  RuleId id = grammar->add("distinct elements");
  grammar->rules[id].kind = Rule::Kind::kMembers;
  grammar->rules[id].members = std::move(members);
  return make_alt({nothing, make_seq({make_bytes("["), space(), make_rule(id), space(), make_bytes("]")})});
}

void SchemaCompiler::Impl::member_pair(ExprPtr key, RuleId value, RuleId* first, RuleId* next) {
  *first =
      grammar->add("member", make_seq({std::move(key), space(), make_bytes(":"), space(), make_rule(value)}));
  *next = after_comma(*first);
}

ExprPtr SchemaCompiler::Impl::emit_object(const Flat& flat) {
  const SchemaSet& nodes = flat.objects;
  std::vector<std::string> names;
  std::set<std::string> known, required;
  auto add_name = [&](const std::string& n) {
    if (known.insert(n).second) names.push_back(n);
  };
  for (const JsonValue* node : nodes) {
    if (const JsonValue* p = node->find("properties"); p != nullptr) {
      for (const auto& m : p->members) add_name(m.first);
    }
  }
  for (const JsonValue* node : nodes) {
    if (const JsonValue* r = node->find("required"); r != nullptr) {
      for (const JsonValue& k : r->items) add_name(k.text), required.insert(k.text);
    }
  }
  MembersRule members;
  members.any_order = options.any_order;
  members.max = smallest(nodes, "maxProperties");
  uint32_t min = largest(nodes, "minProperties");
  if (required.size() > members.max) return make_never();
  for (const std::string& n : names) {
    if (!budget->spend_states(2)) return make_never();
    SchemaSet set = member_set(nodes, n);
    bool must = required.count(n) != 0;
    if (!name_allowed(nodes, n) || std::any_of(set.begin(), set.end(), is_false)) {
      if (must) return make_never();
      continue;
    }
    MembersRule::Property p;
    p.required = must;
    member_pair(make_bytes('"' + json_spelling(n) + '"'), rule_for(set), &p.first, &p.next);
    members.properties.push_back(p);
  }
  other_members(nodes, names, &members);
  if (members.any_order && members.properties.size() > kMaxAnyOrder) {
    budget->fail(error(Code::kUnsupported, "{}: members in any order: more than {} declared",
                       pointer(nodes[0], ""), kMaxAnyOrder));
    return make_never();
  }
  // Undeclared members may repeat a name, so that a count of them is not a count of different names.
  if (!members.others.empty() && min > std::max<size_t>(1, required.size())) {
    const JsonValue* at = nodes[0];
    for (const JsonValue* node : nodes) {
      if (node->find("minProperties") != nullptr) at = node;
    }
    if (!unsupported(
            at, "minProperties",
            "not where further members are allowed (additionalProperties: false makes it countable)"))
      return make_never();
    min = 0;
  }
  bool may_be_empty = required.empty() && min == 0;
  ExprPtr nothing = may_be_empty ? make_seq({make_bytes("{"), space(), make_bytes("}")}) : make_never();
  if (members.max == 0 || (members.properties.empty() && members.others.empty())) return nothing;
  members.min = std::max<uint32_t>(min, 1);
  RuleId id = grammar->add("members");
  grammar->rules[id].kind = Rule::Kind::kMembers;
  grammar->rules[id].members = std::move(members);
  return make_alt({nothing, make_seq({make_bytes("{"), space(), make_rule(id), space(), make_bytes("}")})});
}

// Members whose names are not declared: one kind for each way the names can meet the patternProperties.
void SchemaCompiler::Impl::other_members(const SchemaSet& nodes, const std::vector<std::string>& names,
                                         MembersRule* members) {
  std::map<std::string, CharDfaPtr> patterns;
  CharDfaPtr allowed = dfa_any();
  for (const JsonValue* node : nodes) {
    if (const JsonValue* p = node->find("patternProperties"); p != nullptr) {
      for (const auto& m : p->members) patterns[m.first] = pattern_dfa(&m.second, m.first);
    }
    if (const JsonValue* n = node->find("propertyNames"); n != nullptr)
      allowed = intersect(allowed, string_dfa(normalised({n})), budget);
  }
  if (!names.empty()) allowed = subtract(allowed, dfa_texts(names, budget), budget);
  if (patterns.size() > 8) {
    unsupported(nodes[0], "patternProperties", "more than 8 patterns");
    return;
  }
  for (size_t subset = 0; subset < (size_t{1} << patterns.size()) && budget->alive(); ++subset) {
    CharDfaPtr key = allowed;
    std::set<std::string> matched;
    size_t bit = 0;
    for (const auto& [text, dfa] : patterns) {
      bool in = (subset >> bit++ & 1) != 0;
      key = in ? intersect(key, dfa, budget) : subtract(key, dfa, budget);
      if (in) matched.insert(text);
    }
    if (key->empty()) continue;
    SchemaSet set;
    for (const JsonValue* node : nodes) {
      bool found = false;
      if (const JsonValue* p = node->find("patternProperties"); p != nullptr) {
        for (const auto& m : p->members) {
          if (matched.count(m.first) != 0) set.push_back(&m.second), found = true;
        }
      }
      const JsonValue* more = node->find("additionalProperties");
      if (!found && more != nullptr) set.push_back(more);
    }
    set = normalised(std::move(set));
    if (std::any_of(set.begin(), set.end(), is_false)) continue;
    RuleId value = rule_for(set), first = 0, next = 0;
    ExprPtr name;
    if (key == dfa_any()) {
      name = make_rule(shared("string", free_json_string()));
    } else {
      name = make_rule(grammar->add(
          "name", make_seq({make_bytes("\""), make_dfa(key, Spelling::kJson), make_bytes("\"")})));
    }
    member_pair(std::move(name), value, &first, &next);
    members->others.emplace_back(first, next);
  }
}

SchemaCompiler::SchemaCompiler(const JsonValue& document, const SchemaOptions& options, Grammar* grammar,
                               Budget* budget)
    : impl_(std::make_unique<Impl>(document, options, grammar, budget)) {}
SchemaCompiler::~SchemaCompiler() = default;

Result<RuleId> SchemaCompiler::value_rule(const JsonValue& node) {
  RuleId id = impl_->rule_for(normalised({&node}));
  if (!impl_->budget->status().ok()) return impl_->budget->status();
  return id;
}

Result<SchemaCompiler::Split> SchemaCompiler::split_rule(const JsonValue& node) {
  Split out;
  std::vector<ExprPtr> raw, other;
  std::vector<Flat> flats;
  if (!is_false(&node)) flats = impl_->expand(normalised({&node}));
  for (Flat f : flats) {
    if (f.has_values) {
      for (const JsonValue* v : f.values) {
        if (!impl_->valid_flat(f, *v)) continue;
        if (v->is(Type::kString)) {
          raw.push_back(make_bytes(v->text));
        } else {
          other.push_back(impl_->literal(*v));
        }
      }
      continue;
    }
    if ((f.types & kStringBit) != 0) raw.push_back(impl_->emit_string(f, Spelling::kRaw));
    f.types &= ~unsigned{kStringBit};
    if (f.types != 0) other.push_back(impl_->emit(f));
  }
  out.raw_string = make_alt(std::move(raw));
  ExprPtr rest = make_alt(std::move(other));
  if (rest->kind != Expr::Kind::kNever)
    out.has_other = true, out.other = impl_->grammar->add("argument", rest);
  if (!impl_->budget->status().ok()) {
    impl_->budget->locate(impl_->pointer(&node, ""));
    return impl_->budget->status();
  }
  return out;
}

Result<bool> SchemaCompiler::validates(const JsonValue& node, const JsonValue& value) {
  bool ok = !is_false(&node) && impl_->valid(normalised({&node}), value);
  if (!impl_->budget->status().ok()) return impl_->budget->status();
  return ok;
}

const std::vector<std::string>& SchemaCompiler::left_out() const {
  return impl_->left_out;
}

Result<Grammar> schema_grammar(const JsonValue& document, const SchemaOptions& options, Budget* budget,
                               std::vector<std::string>* left_out) {
  Grammar g;
  SchemaCompiler compiler(document, options, &g, budget);
  DI_ASSIGN(g.root, compiler.value_rule(document));
  if (left_out != nullptr) *left_out = compiler.left_out();
  return g;
}

}  // namespace deepinfer::grammar
