// Negation, as far as it can be written with the keywords there are: the branches of oneOf, not, and
// conditions.
#include <algorithm>

#include "grammar/schema_impl.h"

namespace deepinfer::grammar {

using Type = JsonValue::Type;

JsonValue object_of(std::vector<std::pair<std::string, JsonValue>> members) {
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
  auto inner = [&](const JsonValue* n, JsonValue* out) {
    const JsonValue* m = negate(n, level + 1);
    if (m != nullptr) *out = *m;
    return m != nullptr;
  };
  for (const auto& [name, value] : node->members) {
    JsonValue part;
    uint32_t n = 0;
    if (name == "$ref" && value.is(Type::kString)) {
      const JsonValue* target = resolve(node, value.text);
      if (target == nullptr || !inner(target, &part)) return nullptr;
      ways.push_back(part);
    } else if (name == "type") {
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
        ways.push_back(typed("number", kNotInteger, bool_of(true)));
      }
      JsonValue types = array_of({});
      for (const std::string& t : left) types.items.push_back(text_of(t));
      ways.push_back(left.empty() ? bool_of(false) : object_of({{"type", types}}));
    } else if (name == "const") {
      ways.push_back(object_of({{kNotEnum, array_of({value})}}));
    } else if (name == "enum" && value.is(Type::kArray)) {
      ways.push_back(object_of({{kNotEnum, value}}));
    } else if (name == kNotEnum) {
      ways.push_back(object_of({{"enum", value}}));
    } else if (name == kNotInteger) {
      ways.push_back(
          object_of({{"type", array_of({text_of("null"), text_of("boolean"), text_of("integer"),
                                        text_of("string"), text_of("array"), text_of("object")})}}));
    } else if (name == "properties" && value.is(Type::kObject)) {
      for (const auto& [key, schema] : value.members) {
        if (!inner(&schema, &part)) return nullptr;
        ways.push_back(object_of({{"type", text_of("object")},
                                  {"required", array_of({text_of(key)})},
                                  {"properties", object_of({{key, part}})}}));
      }
    } else if (name == "required" && value.is(Type::kArray)) {
      for (const JsonValue& key : value.items)
        ways.push_back(typed("object", "properties", object_of({{key.text, bool_of(false)}})));
    } else if (name == "minimum") {
      ways.push_back(typed("number", "exclusiveMaximum", value));
    } else if (name == "exclusiveMinimum") {
      ways.push_back(typed("number", "maximum", value));
    } else if (name == "maximum") {
      ways.push_back(typed("number", "exclusiveMinimum", value));
    } else if (name == "exclusiveMaximum") {
      ways.push_back(typed("number", "minimum", value));
    } else if (name == "minLength" || name == "minItems" || name == "minProperties") {
      if (!read_size(node, name, &n)) return nullptr;
      const char* type = name == "minLength" ? "string" : name == "minItems" ? "array" : "object";
      std::string other = "max" + name.substr(3);
      ways.push_back(n == 0 ? bool_of(false) : typed(type, other, number_of(n - 1)));
    } else if (name == "maxLength" || name == "maxItems" || name == "maxProperties") {
      if (!read_size(node, name, &n)) return nullptr;
      const char* type = name == "maxLength" ? "string" : name == "maxItems" ? "array" : "object";
      ways.push_back(typed(type, "min" + name.substr(3), number_of(uint64_t{n} + 1)));
    } else if (name == "pattern") {
      ways.push_back(typed("string", kNotPattern, value));
    } else if (name == kNotPattern) {
      ways.push_back(typed("string", "pattern", value));
    } else if (name == "items" && !value.is(Type::kArray) && node->find("prefixItems") == nullptr) {
      if (!inner(&value, &part)) return nullptr;
      ways.push_back(typed("array", "contains", part));
    } else if (name == "contains" && node->find("minContains") == nullptr &&
               node->find("maxContains") == nullptr) {
      if (!inner(&value, &part)) return nullptr;
      ways.push_back(typed("array", "items", part));
    } else if (name == "allOf" && value.is(Type::kArray)) {
      for (const JsonValue& v : value.items) {
        if (!inner(&v, &part)) return nullptr;
        ways.push_back(part);
      }
    } else if (name == "anyOf" && value.is(Type::kArray)) {
      JsonValue all = array_of({});
      for (const JsonValue& v : value.items) {
        if (!inner(&v, &part)) return nullptr;
        all.items.push_back(part);
      }
      ways.push_back(object_of({{"allOf", all}}));
    } else if (name == "not") {
      ways.push_back(value);
    } else {
      static constexpr std::string_view kHarmless[] = {"title",       "description", "default", "examples",
                                                       "$comment",    "$schema",     "$id",     "$defs",
                                                       "definitions", "$anchor"};
      if (std::find(std::begin(kHarmless), std::end(kHarmless), name) == std::end(kHarmless))
        return negated[node] = nullptr;
    }
  }
  std::erase_if(ways, [](const JsonValue& w) { return is_false(&w); });
  JsonValue out = ways.empty()       ? bool_of(false)
                  : ways.size() == 1 ? ways[0]
                                     : object_of({{"anyOf", array_of(std::move(ways))}});
  return negated[node] = make(std::move(out), node);
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
