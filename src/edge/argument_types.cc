// Walks of a schema for edge/argument_types.h.
#include "edge/argument_types.h"

namespace deepinfer {
namespace {

constexpr int kMaxDepth = 8;  // references and alternatives; a cycle ends here
constexpr int kBudget = 256;  // schemas looked at for one argument: alternatives multiply with depth

// Which kinds of value a schema admits.
struct Kinds {
  bool string = false, other = false;
  void add(Kinds more) {
    string = string || more.string;
    other = other || more.other;
  }
};
constexpr Kinds kBoth{true, true};

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

Kinds kinds_of_value(const Json& v) {
  return {v.is_string(), !v.is_string()};
}
Kinds kinds_of_word(const Json& word) {
  return {word == "string", word != "string"};
}

const Json* resolve(const Json& reference, const Json& root) {
  if (!reference.is_string()) return nullptr;
  const auto& text = reference.get_ref<const std::string&>();
  if (text == "#") return &root;
  if (!text.starts_with("#/")) return nullptr;
  const Json* at = &root;
  for (size_t from = 2; at != nullptr && from <= text.size();) {
    size_t to = std::min(text.find('/', from), text.size());
    std::string name = text.substr(from, to - from);
    for (auto [escape, plain] : {std::pair("~1", "/"), std::pair("~0", "~")}) {
      for (size_t i = name.find(escape); i != name.npos; i = name.find(escape, i + 1))
        name.replace(i, 2, plain);
    }
    at = member(*at, name.c_str());
    from = to + 1;
  }
  return at;
}

Kinds kinds(const Json& schema, const Json& root, int depth, int* budget) {
  if (depth > kMaxDepth || --*budget < 0) return kBoth;
  if (const Json* type = member(schema, "type")) {
    if (!type->is_array()) return kinds_of_word(*type);
    Kinds all;
    for (const Json& word : *type) all.add(kinds_of_word(word));
    return all;
  }
  if (const Json* value = member(schema, "const")) return kinds_of_value(*value);
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    Kinds all;
    for (const Json& v : *values) all.add(kinds_of_value(v));
    return all;
  }
  if (const Json* reference = member(schema, "$ref")) {
    const Json* target = resolve(*reference, root);
    return target == nullptr ? kBoth : kinds(*target, root, depth + 1, budget);
  }
  for (const char* word : {"anyOf", "oneOf"}) {
    const Json* list = member(schema, word);
    if (list == nullptr || !list->is_array()) continue;
    Kinds all;
    for (const Json& each : *list) {
      all.add(kinds(each, root, depth + 1, budget));
      if (all.string && all.other) break;
    }
    return all;
  }
  if (const Json* list = member(schema, "allOf"); list != nullptr && list->is_array()) {
    for (const Json& one : *list) {
      Kinds each = kinds(one, root, depth + 1, budget);
      if (*budget < 0) break;
      if (!each.string || !each.other) return each;
    }
  }
  return kBoth;
}

}  // namespace

ArgumentType argument_type(const Json& schema, const Json& root) {
  int budget = kBudget;
  Kinds k = kinds(schema, root, 0, &budget);
  if (k.string == k.other) return ArgumentType::kAny;
  return k.string ? ArgumentType::kString : ArgumentType::kJson;
}

ArgumentTypes argument_types(const std::vector<ToolDefinition>& tools) {
  ArgumentTypes all;
  for (const ToolDefinition& tool : tools) {
    const Json* properties = member(tool.parameters, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (auto it = properties->begin(); it != properties->end(); ++it) {
      ArgumentType type = argument_type(it.value(), tool.parameters);
      if (type != ArgumentType::kAny) all[tool.name][it.key()] = type;
    }
  }
  return all;
}

}  // namespace deepinfer
