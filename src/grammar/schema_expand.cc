// Keywords to alternatives: references, allOf, anyOf, oneOf, not, if and the dependent keywords are written
// out until only keywords about the value itself are left.
#include <algorithm>

#include "grammar/schema_format.h"
#include "grammar/schema_impl.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonValue::Type;

constexpr std::string_view kAnnotations[] = {"title",
                                             "description",
                                             "default",
                                             "examples",
                                             "deprecated",
                                             "readOnly",
                                             "writeOnly",
                                             "$comment",
                                             "$schema",
                                             "$id",
                                             "$defs",
                                             "definitions",
                                             "$anchor",
                                             "$vocabulary",
                                             "contentEncoding",
                                             "contentMediaType",
                                             "contentSchema",
                                             "id",
                                             "then",
                                             "else",
                                             "minContains",
                                             "x-order",
                                             "strict"};
constexpr std::string_view kNumberKeywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                "multipleOf"};
constexpr std::string_view kArrayKeywords[] = {"items",    "prefixItems", "additionalItems", "minItems",
                                               "maxItems", "contains",    "uniqueItems"};
constexpr std::string_view kObjectKeywords[] = {"properties",        "required",      "additionalProperties",
                                                "patternProperties", "propertyNames", "minProperties",
                                                "maxProperties"};
constexpr std::string_view kCombinators[] = {
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"};

template <size_t N>
bool one_of_names(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

bool is_schema(const JsonValue& v) {
  return v.is(Type::kObject) || v.is(Type::kBool);
}

}  // namespace

const JsonValue& true_schema() {
  static const JsonValue v = [] {
    JsonValue t;
    t.type = Type::kBool;
    t.boolean = true;
    return t;
  }();
  return v;
}

bool is_false(const JsonValue* node) {
  return node->is(Type::kBool) && !node->boolean;
}

SchemaSet normalised(SchemaSet set) {
  std::erase_if(set, [](const JsonValue* n) { return n->is(Type::kBool) && n->boolean; });
  std::erase_if(set, [](const JsonValue* n) { return n->is(Type::kObject) && n->members.empty(); });
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

std::string SchemaCompiler::Impl::pointer(const JsonValue* at, std::string_view keyword) const {
  std::string p;
  if (!find_pointer(document, at, &p)) {
    // Part of a schema this program wrote: named after where that came from.
    for (const JsonValue& m : made) {
      p.clear();
      if (!find_pointer(m, at, &p)) continue;
      std::string from = pointer(made_from.at(&m), "");
      p = from.substr(1) + p;
      break;
    }
  }
  if (keyword.empty() || keyword[0] == '\x01') return p.empty() ? "#" : "#" + p;
  p += '/';
  for (char c : keyword) p += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return "#" + p;
}

void SchemaCompiler::Impl::fail(const JsonValue* at, std::string_view keyword, Code code,
                                std::string_view why) {
  if (budget->status().ok()) budget->fail(error(code, "{}: {}", pointer(at, keyword), why));
}

bool SchemaCompiler::Impl::unsupported(const JsonValue* at, std::string_view keyword, std::string_view why) {
  if (options.best_effort) {
    std::string p = pointer(at, keyword);
    if (std::find(left_out.begin(), left_out.end(), p) == left_out.end()) left_out.push_back(p);
    return true;
  }
  fail(at, keyword, Code::kUnsupported, why);
  return false;
}

const JsonValue* SchemaCompiler::Impl::resolve(const JsonValue* at, const std::string& ref) {
  if (!nested_ids) {
    // A part with an $id is a document of its own, against which its references are meant; that is not
    // followed.
    nested_ids = false;
    std::vector<const JsonValue*> todo = {&document};
    while (!todo.empty()) {
      const JsonValue* v = todo.back();
      todo.pop_back();
      const JsonValue* id = v != &document && v->is(Type::kObject) ? v->find("$id") : nullptr;
      if (id != nullptr && id->is(Type::kString)) nested_ids = true;
      for (const JsonValue& i : v->items) todo.push_back(&i);
      for (const auto& m : v->members) todo.push_back(&m.second);
    }
  }
  if (*nested_ids) {
    fail(at, "$ref", Code::kUnsupported,
         "references in a document whose parts have an $id of their own are not supported");
    return nullptr;
  }
  size_t hash = ref.find('#');
  std::string_view base = std::string_view(ref).substr(0, hash == std::string::npos ? ref.size() : hash);
  const JsonValue* id = document.is(Type::kObject) ? document.find("$id") : nullptr;
  if (!base.empty() && (id == nullptr || !id->is(Type::kString) || id->text != base)) {
    fail(at, "$ref", Code::kUnsupported, "only references inside the document are supported");
    return nullptr;
  }
  std::string_view path =
      hash == std::string::npos ? std::string_view() : std::string_view(ref).substr(hash + 1);
  const JsonValue* node = &document;
  if (!path.empty() && path[0] != '/') {
    // An anchor: wherever it stands.
    std::vector<const JsonValue*> todo = {&document};
    while (!todo.empty()) {
      const JsonValue* v = todo.back();
      todo.pop_back();
      const JsonValue* a = v->is(Type::kObject) ? v->find("$anchor") : nullptr;
      if (a != nullptr && a->is(Type::kString) && a->text == path) return v;
      for (const JsonValue& i : v->items) todo.push_back(&i);
      for (const auto& m : v->members) todo.push_back(&m.second);
    }
    fail(at, "$ref", Code::kInvalidArgument, "the anchor does not exist");
    return nullptr;
  }
  while (!path.empty()) {
    path.remove_prefix(1);
    size_t slash = path.find('/');
    std::string_view raw = path.substr(0, slash);
    std::string part;
    for (size_t i = 0; i < raw.size(); ++i) {
      auto hex = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
      if (raw[i] == '%' && i + 2 < raw.size() && std::isxdigit(static_cast<unsigned char>(raw[i + 1])) &&
          std::isxdigit(static_cast<unsigned char>(raw[i + 2]))) {
        part += static_cast<char>(hex(raw[i + 1]) * 16 + hex(raw[i + 2]));
        i += 2;
      } else {
        part += raw[i];
      }
    }
    for (size_t i = 0; (i = part.find('~', i)) != std::string::npos; ++i) {
      if (i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1'))
        part.replace(i, 2, part[i + 1] == '0' ? "~" : "/");
    }
    const JsonValue* next = nullptr;
    if (node->is(Type::kObject)) next = node->find(part);
    if (node->is(Type::kArray) && !part.empty() && part.size() < 7 &&
        part.find_first_not_of("0123456789") == std::string::npos) {
      auto i = static_cast<size_t>(std::stoul(part));
      if (i < node->items.size()) next = &node->items[i];
    }
    if (next == nullptr) {
      fail(at, "$ref", Code::kInvalidArgument, "the reference leads nowhere");
      return nullptr;
    }
    node = next;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash);
  }
  return node;
}

const std::vector<Flat>& SchemaCompiler::Impl::expand(const SchemaSet& set) {
  auto it = flats_of.find(set);
  if (it != flats_of.end()) return it->second;
  std::vector<Flat> out;
  Walk walk;
  walk.todo = set;
  expand_walk(std::move(walk), &out, 0);
  if (!budget->alive()) out.clear();
  return flats_of.emplace(set, std::move(out)).first->second;
}

void SchemaCompiler::Impl::expand_walk(Walk walk, std::vector<Flat>* out, int level) {
  if (level > budget->limits().schema_depth * 4) {
    budget->fail(error(Code::kResourceExhausted, "{}: more than {} decisions inside one another",
                       walk.todo.empty() ? "#" : pointer(walk.todo[0], ""),
                       budget->limits().schema_depth * 4));
    return;
  }
  if (!budget->spend_branches(1)) return;
  while (!walk.todo.empty()) {
    if (!budget->alive()) return;
    const JsonValue* node = walk.todo.back();
    walk.todo.pop_back();
    if (!walk.seen.insert(node).second) continue;
    if (!read_node(node, &walk)) return;
    if (walk.flat.number.integer && walk.flat.number.fractional) walk.flat.types &= ~unsigned{kNumberBit};
    if (walk.flat.types == 0) return;
  }
  if (walk.choices.empty()) {
    out->push_back(std::move(walk.flat));
    return;
  }
  std::vector<const JsonValue*> choice = std::move(walk.choices.back());
  walk.choices.pop_back();
  for (const JsonValue* node : choice) {
    if (!budget->alive()) return;
    Walk next = walk;
    next.todo.push_back(node);
    expand_walk(std::move(next), out, level + 1);
  }
}

// Adds a node's keywords to the walk. False: nothing can satisfy it, or the compile has failed.
bool SchemaCompiler::Impl::read_node(const JsonValue* node, Walk* walk) {
  if (node->is(Type::kBool)) return node->boolean;
  if (!node->is(Type::kObject)) {
    fail(node, "", Code::kInvalidArgument, "a schema must be an object or a boolean");
    return false;
  }
  bool array = false, object = false;
  for (const auto& [name, value] : node->members) {
    if (!budget->alive()) return false;
    if (!read_keyword(node, name, value, walk)) return false;
    array = array || one_of_names(kArrayKeywords, name);
    object = object || one_of_names(kObjectKeywords, name);
  }
  if (array) walk->flat.arrays.push_back(node);
  if (object) walk->flat.objects.push_back(node);
  return true;
}

bool SchemaCompiler::Impl::read_keyword(const JsonValue* node, const std::string& name,
                                        const JsonValue& value, Walk* walk) {
  if (one_of_names(kCombinators, name)) return read_combinator(node, name, value, walk);
  if (one_of_names(kNumberKeywords, name)) return read_number(node, name, value, &walk->flat);
  if (name == "$schema" &&
      !(value.is(Type::kString) && value.text.find("json-schema.org/") != std::string::npos))
    return unsupported(node, name, "only the dialects of json-schema.org are known");
  if (one_of_names(kAnnotations, name) || name.starts_with("x-")) return true;
  return check_value_keyword(node, name, value, &walk->flat);
}

bool SchemaCompiler::Impl::read_number(const JsonValue* node, const std::string& name, const JsonValue& value,
                                       Flat* flat) {
  if (!value.is(Type::kNumber)) return fail(node, name, Code::kInvalidArgument, "must be a number"), false;
  Result<Decimal> d = parse_decimal(value.text);
  if (!d.ok()) return fail(node, name, d.status().code(), d.status().message()), false;
  if (name == "minimum") flat->number.at_least(*d, false);
  if (name == "exclusiveMinimum") flat->number.at_least(*d, true);
  if (name == "maximum") flat->number.at_most(*d, false);
  if (name == "exclusiveMaximum") flat->number.at_most(*d, true);
  if (name == "multipleOf") {
    if (d->is_zero() || d->negative)
      return fail(node, name, Code::kInvalidArgument, "must be greater than 0"), false;
    if (!multiple_supported(*d)) return unsupported(node, name, "this divisor is too large for an automaton");
    flat->number.multiples.push_back(*d);
  }
  return true;
}

bool SchemaCompiler::Impl::read_size(const JsonValue* node, std::string_view name, uint32_t* out) {
  const JsonValue* v = node->find(name);
  if (v == nullptr) return false;
  Result<Decimal> d =
      v->is(Type::kNumber) ? parse_decimal(v->text) : Result<Decimal>(Status(Code::kInvalidArgument, ""));
  if (!d.ok() || d->negative || !d->is_integer())
    return fail(node, name, Code::kInvalidArgument, "must be a non-negative integer"), false;
  std::string digits = d->integer_part();
  uint64_t n = digits.empty() ? 0 : digits.size() > 9 ? 1'000'000'000 : std::stoull(digits);
  *out = static_cast<uint32_t>(n);
  return true;
}

// False for a name that is no type.
bool SchemaCompiler::Impl::read_type(const JsonValue& value, Flat* flat) {
  static constexpr std::pair<std::string_view, unsigned> kNames[] = {
      {"null", kNullBit},     {"boolean", kBoolBit}, {"number", kNumberBit}, {"integer", kNumberBit},
      {"string", kStringBit}, {"array", kArrayBit},  {"object", kObjectBit}};
  unsigned bits = 0;
  bool integer = false, number = false;
  for (const JsonValue& t : value.is(Type::kArray) ? value.items : std::vector<JsonValue>{value}) {
    auto it = std::find_if(std::begin(kNames), std::end(kNames),
                           [&](const auto& n) { return t.is(Type::kString) && t.text == n.first; });
    if (it == std::end(kNames)) return false;
    bits |= it->second;
    integer = integer || it->first == "integer";
    number = number || it->first == "number";
  }
  flat->types &= bits;
  if (integer && !number) flat->number.integer = true;
  return true;
}

// False if there is no list where one must be.
bool SchemaCompiler::Impl::read_values(const std::string& name, const JsonValue& value, Flat* flat) {
  std::vector<const JsonValue*> values;
  if (name == "const") {
    values.push_back(&value);
  } else {
    if (!value.is(Type::kArray)) return false;
    budget->spend_branches(static_cast<int64_t>(value.items.size()));
    for (const JsonValue& v : value.items) values.push_back(&v);
  }
  if (name == kNotEnum) {
    flat->excluded.insert(flat->excluded.end(), values.begin(), values.end());
  } else if (!flat->has_values) {
    flat->has_values = true;
    flat->values = std::move(values);
  } else {
    std::erase_if(flat->values, [&](const JsonValue* v) {
      return std::none_of(values.begin(), values.end(), [&](const JsonValue* w) { return equal(*v, *w); });
    });
  }
  return true;
}

// Keywords about the value itself that are not about numbers; unknown ones end here.
bool SchemaCompiler::Impl::check_value_keyword(const JsonValue* node, const std::string& name,
                                               const JsonValue& value, Flat* flat) {
  uint32_t n = 0;
  auto wrong = [&](std::string_view why) { return fail(node, name, Code::kInvalidArgument, why), false; };
  if (name == "type") return read_type(value, flat) || wrong("unknown type");
  if (name == "enum" || name == "const" || name == kNotEnum)
    return read_values(name, value, flat) || wrong("must be an array");
  if (name == kNotInteger) {
    flat->number.fractional = true;
    return true;
  }
  if (name == "minLength" || name == "maxLength") {
    if (!read_size(node, name, &n)) return false;
    if (name == "minLength") flat->min_length = std::max(flat->min_length, n);
    if (name == "maxLength") flat->max_length = std::min(flat->max_length, n);
    return true;
  }
  if (name == "pattern" || name == kNotPattern) {
    if (!value.is(Type::kString)) return wrong("must be a string");
    flat->patterns.push_back({&value, name == kNotPattern});
    return true;
  }
  if (name == "format") {
    if (!value.is(Type::kString)) return wrong("must be a string");
    if (!known_format(value.text)) return unsupported(node, name, "this format is not supported");
    flat->formats.push_back(&value);
    return true;
  }
  if (name == "minItems" || name == "maxItems" || name == "minProperties" || name == "maxProperties")
    return read_size(node, name, &n);
  if (name == "uniqueItems") return value.is(Type::kBool) || wrong("must be a boolean");
  if (name == "items" && value.is(Type::kArray)) {
    return std::all_of(value.items.begin(), value.items.end(), is_schema) || wrong("must hold schemas");
  }
  if (name == "items" || name == "contains" || name == "additionalItems" || name == "additionalProperties" ||
      name == "propertyNames")
    return is_schema(value) || wrong("must be a schema");
  if (name == "prefixItems") {
    if (!value.is(Type::kArray) || !std::all_of(value.items.begin(), value.items.end(), is_schema))
      return wrong("must be an array of schemas");
    return true;
  }
  if (name == "properties" || name == "patternProperties") {
    if (!value.is(Type::kObject)) return wrong("must be an object");
    if (!budget->spend_branches(static_cast<int64_t>(value.members.size()))) return false;
    for (const auto& m : value.members) {
      if (!is_schema(m.second))
        return fail(&value, m.first, Code::kInvalidArgument, "must be a schema"), false;
    }
    return true;
  }
  if (name == "required") {
    if (!value.is(Type::kArray)) return wrong("must be an array of strings");
    for (const JsonValue& v : value.items) {
      if (!v.is(Type::kString)) return wrong("must be an array of strings");
    }
    return true;
  }
  return unsupported(node, name, "this keyword is not supported");
}

bool SchemaCompiler::Impl::read_combinator(const JsonValue* node, const std::string& name,
                                           const JsonValue& value, Walk* walk) {
  if (name == "$ref") {
    if (!value.is(Type::kString)) return fail(node, name, Code::kInvalidArgument, "must be a string"), false;
    const JsonValue* target = resolve(node, value.text);
    if (target == nullptr) return false;
    walk->todo.push_back(target);
    return true;
  }
  if (name == "allOf" || name == "anyOf" || name == "oneOf") {
    if (!value.is(Type::kArray) || value.items.empty())
      return fail(node, name, Code::kInvalidArgument, "must be an array of schemas"), false;
    if (name == "allOf") {
      for (const JsonValue& v : value.items) walk->todo.push_back(&v);
      return true;
    }
    std::vector<const JsonValue*> list;
    for (const JsonValue& v : value.items) list.push_back(&v);
    if (name == "oneOf") {
      const std::vector<const JsonValue*>* rewritten = one_of_choices(node, value);
      if (rewritten == nullptr) return false;
      list = *rewritten;
    }
    walk->choices.push_back(std::move(list));
    return true;
  }
  if (name == "not") {
    const JsonValue* opposite = negate(&value, 0);
    if (!budget->status().ok()) return false;
    if (opposite == nullptr)
      return unsupported(node, name, "the negation of this schema cannot be written as a grammar");
    walk->todo.push_back(opposite);
    return true;
  }
  if (name == "if") {
    const JsonValue* both = conditional(node);
    if (!budget->status().ok()) return false;
    if (both == nullptr)
      return unsupported(node, name, "the negation of this condition cannot be written as a grammar");
    walk->todo.push_back(both);
    return true;
  }
  return read_dependent(node, name, value, walk);
}

bool SchemaCompiler::Impl::read_dependent(const JsonValue* node, const std::string& name,
                                          const JsonValue& value, Walk* walk) {
  if (!value.is(Type::kObject)) return fail(node, name, Code::kInvalidArgument, "must be an object"), false;
  // Written once per node: the address of a schema is its identity, and recursive schemas must come back to
  // it.
  auto [it, fresh] =
      dependents.emplace(std::make_pair(node, name), std::vector<std::vector<const JsonValue*>>());
  if (fresh) {
    for (const auto& [key, dependent] : value.members) {
      // Either the member is absent, or what depends on it holds.
      JsonValue absent = object_of({{"properties", object_of({{key, bool_of(false)}})}});
      JsonValue required = array_of({text_of(key)});
      if (dependent.is(Type::kArray)) {
        required.items.insert(required.items.end(), dependent.items.begin(), dependent.items.end());
      } else if (!is_schema(dependent)) {
        return fail(&value, key, Code::kInvalidArgument, "must be a schema or names"), false;
      }
      JsonValue present = object_of({{"required", required}});
      if (!dependent.is(Type::kArray)) present.members.push_back({"allOf", array_of({dependent})});
      it->second.push_back({make(std::move(absent), node), make(std::move(present), node)});
    }
  }
  walk->choices.insert(walk->choices.end(), it->second.begin(), it->second.end());
  return true;
}

}  // namespace deepinfer::grammar
