// Negation, as far as it can be written with the keywords there are: the branches of oneOf, not, and
// conditions.
#include <algorithm>

#include "grammar/schema_impl.h"

namespace deepinfer::grammar {

using Type = JsonValue::Type;

JsonValue object_of(std::vector<JsonMember> members) {
  JsonValue v;
  v.type = Type::kObject;
  v.members = std::move(members);
  return v;
}
JsonValue array_of(std::vector<JsonValue> items) {
  JsonValue v;
  v.type = Type::kArray;
  v.items = std::move(items);
  return v;
}
JsonValue text_of(std::string_view text) {
  JsonValue v;
  v.type = Type::kString;
  v.text = text;
  return v;
}
JsonValue number_of(uint64_t n) {
  JsonValue v;
  v.type = Type::kNumber;
  v.text = std::to_string(n);
  return v;
}
JsonValue bool_of(bool b) {
  JsonValue v;
  v.type = Type::kBool;
  v.boolean = b;
  return v;
}

namespace {

constexpr int kMaxNegation = 12;  // nested; deeper ones are refused

JsonValue typed(const char* type, std::string name, JsonValue value) {
  return object_of({{"type", text_of(type)}, {std::move(name), std::move(value)}});
}

}  // namespace

const JsonValue* SchemaCompiler::Impl::make(JsonValue value, const JsonValue* from) {
  made.push_back(std::move(value));
  made_from[&made.back()] = from;
  budget->spend_branches(1);
  return &made.back();
}

// A schema that holds exactly where `node` does not; nullptr if it cannot be written.
const JsonValue* SchemaCompiler::Impl::negate(const JsonValue* node, int level) {
  auto known = negated.find(node);
  if (known != negated.end()) return known->second;
  if (level > kMaxNegation || !budget->alive()) return nullptr;
  if (node->is(Type::kBool)) return negated[node] = make(bool_of(!node->boolean), node);
  if (!node->is(Type::kObject)) return nullptr;
  std::vector<JsonValue> ways;  // each breaks one keyword
  for (const auto& [name, value] : node->members) {
    std::optional<bool> done = negate_values(name, value, &ways);
    if (!done) done = negate_bounds(node, name, value, &ways);
    if (!done) done = negate_parts(node, name, value, level, &ways);
    if (!done) done = negate_logic(node, name, value, level, &ways);
    if (!done) {
      static constexpr std::string_view kHarmless[] = {"title",       "description", "default", "examples",
                                                       "$comment",    "$schema",     "$id",     "$defs",
                                                       "definitions", "$anchor"};
      done = std::find(std::begin(kHarmless), std::end(kHarmless), name) != std::end(kHarmless);
    }
    if (!*done) return nullptr;
  }
  std::erase_if(ways, [](const JsonValue& w) { return is_false(&w); });
  JsonValue out = ways.empty()       ? bool_of(false)
                  : ways.size() == 1 ? ways[0]
                                     : object_of({{"anyOf", array_of(std::move(ways))}});
  return negated[node] = make(std::move(out), node);
}

// The four families of keywords. Nothing: the keyword is of another family; false: its negation cannot be
// written.
std::optional<bool> SchemaCompiler::Impl::negate_values(const std::string& name, const JsonValue& value,
                                                        std::vector<JsonValue>* ways) {
  if (name == "type") {
    std::vector<std::string> left = {"null", "boolean", "number", "string", "array", "object"};
    std::vector<JsonValue> named = value.is(Type::kArray) ? value.items : std::vector<JsonValue>{value};
    bool integer = false, number = false;
    for (const JsonValue& t : named) {
      integer = integer || t.text == "integer";
      number = number || t.text == "number";
      std::erase(left, t.text);
    }
    if (integer && !number) {
      std::erase(left, "number");
      ways->push_back(typed("number", kNotInteger, bool_of(true)));
    }
    JsonValue types = array_of({});
    for (const std::string& t : left) types.items.push_back(text_of(t));
    ways->push_back(left.empty() ? bool_of(false) : object_of({{"type", types}}));
    return true;
  }
  if (name == kNotInteger) {
    JsonValue types = array_of({});
    for (const char* t : {"null", "boolean", "integer", "string", "array", "object"})
      types.items.push_back(text_of(t));
    ways->push_back(object_of({{"type", types}}));
    return true;
  }
  if (name == "const") return ways->push_back(object_of({{kNotEnum, array_of({value})}})), true;
  if (name == "enum") return ways->push_back(object_of({{kNotEnum, value}})), value.is(Type::kArray);
  if (name == kNotEnum) return ways->push_back(object_of({{"enum", value}})), true;
  if (name == "pattern") return ways->push_back(typed("string", kNotPattern, value)), true;
  if (name == kNotPattern) return ways->push_back(typed("string", "pattern", value)), true;
  return {};
}

std::optional<bool> SchemaCompiler::Impl::negate_bounds(const JsonValue* node, const std::string& name,
                                                        const JsonValue& value,
                                                        std::vector<JsonValue>* ways) {
  static constexpr std::pair<std::string_view, std::string_view> kOpposite[] = {
      {"minimum", "exclusiveMaximum"},
      {"exclusiveMinimum", "maximum"},
      {"maximum", "exclusiveMinimum"},
      {"exclusiveMaximum", "minimum"}};
  for (auto [from, to] : kOpposite) {
    if (name == from) return ways->push_back(typed("number", std::string(to), value)), true;
  }
  static constexpr std::pair<std::string_view, const char*> kCounts[] = {
      {"Length", "string"}, {"Items", "array"}, {"Properties", "object"}};
  for (auto [what, type] : kCounts) {
    uint32_t n = 0;
    bool min = name == "min" + std::string(what), max = name == "max" + std::string(what);
    if (!min && !max) continue;
    if (!read_size(node, name, &n)) return false;
    if (min && n == 0) return ways->push_back(bool_of(false)), true;
    std::string other = (min ? "max" : "min") + std::string(what);
    ways->push_back(typed(type, other, number_of(min ? n - 1 : uint64_t{n} + 1)));
    return true;
  }
  return {};
}

std::optional<bool> SchemaCompiler::Impl::negate_parts(const JsonValue* node, const std::string& name,
                                                       const JsonValue& value, int level,
                                                       std::vector<JsonValue>* ways) {
  if (name == "properties" && value.is(Type::kObject)) {
    for (const auto& [key, schema] : value.members) {
      const JsonValue* part = negate(&schema, level + 1);
      if (part == nullptr) return false;
      ways->push_back(object_of({{"type", text_of("object")},
                                 {"required", array_of({text_of(key)})},
                                 {"properties", object_of({{key, *part}})}}));
    }
    return true;
  }
  if (name == "required" && value.is(Type::kArray)) {
    for (const JsonValue& key : value.items)
      ways->push_back(typed("object", "properties", object_of({{key.text, bool_of(false)}})));
    return true;
  }
  bool items = name == "items" && !value.is(Type::kArray) && node->find("prefixItems") == nullptr;
  bool contains =
      name == "contains" && node->find("minContains") == nullptr && node->find("maxContains") == nullptr;
  if (!items && !contains) return {};
  const JsonValue* part = negate(&value, level + 1);
  if (part == nullptr) return false;
  ways->push_back(typed("array", items ? "contains" : "items", *part));
  return true;
}

std::optional<bool> SchemaCompiler::Impl::negate_logic(const JsonValue* node, const std::string& name,
                                                       const JsonValue& value, int level,
                                                       std::vector<JsonValue>* ways) {
  if (name == "not") return ways->push_back(value), true;
  if (name == "$ref" && value.is(Type::kString)) {
    const JsonValue* target = resolve(node, value.text);
    const JsonValue* part = target == nullptr ? nullptr : negate(target, level + 1);
    if (part == nullptr) return false;
    return ways->push_back(*part), true;
  }
  if ((name != "allOf" && name != "anyOf") || !value.is(Type::kArray)) return {};
  JsonValue all = array_of({});
  for (const JsonValue& v : value.items) {
    const JsonValue* part = negate(&v, level + 1);
    if (part == nullptr) return false;
    (name == "allOf" ? *ways : all.items).push_back(*part);
  }
  if (name == "anyOf") ways->push_back(object_of({{"allOf", all}}));
  return true;
}

// if, then, else: both hold, or the condition does not and the rest does.
const JsonValue* SchemaCompiler::Impl::conditional(const JsonValue* node) {
  auto known = conditionals.find(node);
  if (known != conditionals.end()) return known->second;
  const JsonValue* cond = node->find("if");
  const JsonValue* then = node->find("then");
  const JsonValue* other = node->find("else");
  if (then == nullptr && other == nullptr) return conditionals[node] = make(bool_of(true), node);
  const JsonValue* negated_cond = negate(cond, 0);
  if (negated_cond == nullptr) return conditionals[node] = nullptr;
  JsonValue yes = then == nullptr ? *cond : object_of({{"allOf", array_of({*cond, *then})}});
  JsonValue no = other == nullptr ? *negated_cond : object_of({{"allOf", array_of({*negated_cond, *other})}});
  return conditionals[node] = make(object_of({{"anyOf", array_of({std::move(yes), std::move(no)})}}), node);
}

// The branches of oneOf as alternatives that exclude each other: as they are if they are provably disjoint,
// else with the negations of the others they may share values with. nullptr after an error.
const std::vector<const JsonValue*>* SchemaCompiler::Impl::one_of_choices(const JsonValue* node,
                                                                          const JsonValue& list) {
  auto known = one_of.find(&list);
  if (known != one_of.end()) return &known->second;
  std::vector<const JsonValue*> branches;
  for (const JsonValue& v : list.items) branches.push_back(&v);
  if (!one_of_open.insert(&list).second) {
    // Asked while it is being decided (a recursive schema): the union is a safe answer to "could these share
    // a value".
    return &one_of.emplace(&list, branches).first->second;
  }
  std::vector<const JsonValue*> out;
  for (size_t i = 0; i < branches.size() && budget->alive(); ++i) {
    std::vector<JsonValue> parts;
    for (size_t j = 0; j < branches.size() && budget->alive(); ++j) {
      if (i == j || empty(normalised({branches[i], branches[j]}), 0)) continue;
      const JsonValue* others = negate(branches[j], 0);
      if (others == nullptr) {
        if (!unsupported(node, "oneOf",
                         "branches " + std::to_string(std::min(i, j)) + " and " +
                             std::to_string(std::max(i, j)) + " may hold at once"))
          return nullptr;
        continue;
      }
      parts.push_back(*others);
    }
    if (parts.empty()) {
      out.push_back(branches[i]);
    } else {
      parts.insert(parts.begin(), *branches[i]);
      out.push_back(make(object_of({{"allOf", array_of(std::move(parts))}}), branches[i]));
    }
  }
  one_of_open.erase(&list);
  // What was expanded meanwhile took the union for the answer.
  if (one_of.count(&list) != 0) flats_of.clear();
  one_of[&list] = std::move(out);
  return budget->status().ok() ? &one_of[&list] : nullptr;
}

}  // namespace deepinfer::grammar
