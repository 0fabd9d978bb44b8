// This room's own validator (enum values, property names) and the question whether a schema has any instance.
// emptiness errs on one side only: true is a proof.
#include <algorithm>

#include "grammar/regex.h"
#include "grammar/schema_format.h"
#include "grammar/schema_impl.h"

namespace deepinfer::grammar {

using Type = JsonValue::Type;

namespace {

constexpr int kMaxEmptyLevel = 6;  // how deep members are looked into for a proof

unsigned type_bit(const JsonValue& v) {
  switch (v.type) {
    case Type::kNull:
      return kNullBit;
    case Type::kBool:
      return kBoolBit;
    case Type::kNumber:
      return kNumberBit;
    case Type::kString:
      return kStringBit;
    case Type::kArray:
      return kArrayBit;
    case Type::kObject:
      return kObjectBit;
  }
  return 0;
}

}  // namespace

uint32_t SchemaCompiler::Impl::largest(const SchemaSet& nodes, std::string_view name) {
  uint32_t out = 0, n = 0;
  for (const JsonValue* node : nodes) {
    if (node->find(name) != nullptr && read_size(node, name, &n)) out = std::max(out, n);
  }
  return out;
}
uint32_t SchemaCompiler::Impl::smallest(const SchemaSet& nodes, std::string_view name) {
  uint32_t out = kUnbounded, n = 0;
  for (const JsonValue* node : nodes) {
    if (node->find(name) != nullptr && read_size(node, name, &n)) out = std::min(out, n);
  }
  return out;
}

// What must hold for element i of an array.
SchemaSet SchemaCompiler::Impl::item_set(const SchemaSet& nodes, size_t i) const {
  SchemaSet out;
  for (const JsonValue* node : nodes) {
    const JsonValue* prefix = node->find("prefixItems");
    const JsonValue* items = node->find("items");
    const JsonValue* rest = items;
    if (items != nullptr && items->is(Type::kArray))
      prefix = items, rest = node->find("additionalItems");  // the older spelling
    if (prefix != nullptr && i < prefix->items.size()) {
      out.push_back(&prefix->items[i]);
    } else if (rest != nullptr) {
      out.push_back(rest);
    }
  }
  return normalised(std::move(out));
}

size_t SchemaCompiler::Impl::prefix_length(const SchemaSet& nodes) const {
  size_t n = 0;
  for (const JsonValue* node : nodes) {
    const JsonValue* prefix = node->find("prefixItems");
    const JsonValue* items = node->find("items");
    if (items != nullptr && items->is(Type::kArray)) prefix = items;
    if (prefix != nullptr) n = std::max(n, prefix->items.size());
  }
  return n;
}

// What must hold for the member `name`.
SchemaSet SchemaCompiler::Impl::member_set(const SchemaSet& nodes, const std::string& name) {
  SchemaSet out;
  for (const JsonValue* node : nodes) {
    bool found = false;
    if (const JsonValue* p = node->find("properties"); p != nullptr) {
      if (const JsonValue* s = p->find(name); s != nullptr) out.push_back(s), found = true;
    }
    if (const JsonValue* p = node->find("patternProperties"); p != nullptr) {
      for (const auto& [pattern, schema] : p->members) {
        if (pattern_dfa(&schema, pattern)->accepts(name)) out.push_back(&schema), found = true;
      }
    }
    const JsonValue* more = node->find("additionalProperties");
    if (!found && more != nullptr) out.push_back(more);
  }
  return normalised(std::move(out));
}

bool SchemaCompiler::Impl::name_allowed(const SchemaSet& nodes, const std::string& name) {
  for (const JsonValue* node : nodes) {
    const JsonValue* names = node->find("propertyNames");
    if (names != nullptr && !valid(normalised({names}), text_of(name))) return false;
  }
  return true;
}

CharDfaPtr SchemaCompiler::Impl::pattern_dfa(const JsonValue* at, const std::string& text) {
  auto it = pattern_dfas.find(text);
  if (it != pattern_dfas.end()) return it->second;
  RegexOptions regex;
  regex.search = true;
  Result<ExprPtr> e = parse_regex(text, regex, budget);
  CharDfaPtr d = dfa_none();
  if (e.ok()) {
    d = dfa_of(*e, budget);
  } else {
    fail(at, "", e.status().code(), e.status().message());
  }
  return pattern_dfas.emplace(text, d).first->second;
}

CharDfaPtr SchemaCompiler::Impl::string_dfa(const Flat& flat) {
  CharDfaPtr d = dfa_any();
  for (const Flat::Pattern& p : flat.patterns) {
    CharDfaPtr one = pattern_dfa(p.source, p.source->text);
    d = p.negated ? subtract(d, one, budget) : intersect(d, one, budget);
  }
  for (const JsonValue* f : flat.formats) {
    auto it = format_dfas.find(f->text);
    if (it == format_dfas.end()) {
      Result<ExprPtr> e = format_expr(f->text, Spelling::kRaw, budget);
      it = format_dfas.emplace(f->text, e.ok() ? dfa_of(*e, budget) : dfa_none()).first;
    }
    d = intersect(d, it->second, budget);
  }
  std::vector<std::string> texts;
  for (const JsonValue* v : flat.excluded) {
    if (v->is(Type::kString)) texts.push_back(v->text);
  }
  if (!texts.empty()) d = subtract(d, dfa_texts(texts, budget), budget);
  if (flat.min_length > 0 || flat.max_length != kUnbounded)
    d = intersect(d, dfa_length(flat.min_length, flat.max_length, budget), budget);
  return d;
}

// The strings that satisfy a schema (property names).
CharDfaPtr SchemaCompiler::Impl::string_dfa(const SchemaSet& set) {
  CharDfaPtr out = dfa_none();
  std::vector<Flat> flats = expand(set);
  for (const Flat& f : flats) {
    if ((f.types & kStringBit) == 0) continue;
    if (f.has_values) {
      std::vector<std::string> texts;
      for (const JsonValue* v : f.values) {
        if (v->is(Type::kString) && valid_flat(f, *v)) texts.push_back(v->text);
      }
      out = unite(out, dfa_texts(texts, budget), budget);
    } else {
      out = unite(out, string_dfa(f), budget);
    }
  }
  return out;
}

bool SchemaCompiler::Impl::valid(const SchemaSet& set, const JsonValue& value) {
  std::vector<Flat> flats = expand(set);
  return std::any_of(flats.begin(), flats.end(),
                     [&](const Flat& f) { return budget->alive() && valid_flat(f, value); });
}

bool SchemaCompiler::Impl::valid_flat(const Flat& flat, const JsonValue& value) {
  if ((flat.types & type_bit(value)) == 0) return false;
  auto is_value = [&](const JsonValue* v) { return equal(*v, value); };
  if (flat.has_values && std::none_of(flat.values.begin(), flat.values.end(), is_value)) return false;
  if (std::any_of(flat.excluded.begin(), flat.excluded.end(), is_value)) return false;
  switch (value.type) {
    case Type::kNumber: {
      Result<Decimal> d = parse_decimal(value.text);
      return d.ok() ? flat.number.contains(*d) : !flat.number.any();
    }
    case Type::kString: {
      size_t n = code_points(value.text).size();
      if (n < flat.min_length || n > flat.max_length) return false;
      if (flat.patterns.empty() && flat.formats.empty()) return true;
      Flat lengths_done = flat;
      lengths_done.min_length = 0;
      lengths_done.max_length = kUnbounded;
      return string_dfa(lengths_done)->accepts(value.text);
    }
    case Type::kArray:
      return valid_array(flat.arrays, value);
    case Type::kObject:
      return valid_object(flat.objects, value);
    default:
      return true;
  }
}

bool SchemaCompiler::Impl::valid_array(const SchemaSet& nodes, const JsonValue& value) {
  size_t n = value.items.size();
  if (n < largest(nodes, "minItems") || n > smallest(nodes, "maxItems")) return false;
  for (size_t i = 0; i < n; ++i) {
    if (!valid(item_set(nodes, i), value.items[i])) return false;
  }
  for (const JsonValue* node : nodes) {
    if (const JsonValue* c = node->find("contains"); c != nullptr) {
      uint32_t min = 1, max = kUnbounded, found = 0;
      read_size(node, "minContains", &min);
      if (node->find("maxContains") != nullptr) read_size(node, "maxContains", &max);
      for (const JsonValue& v : value.items) found += valid(normalised({c}), v) ? 1 : 0;
      if (found < min || found > max) return false;
    }
    const JsonValue* unique = node->find("uniqueItems");
    if (unique == nullptr || !unique->boolean) continue;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (equal(value.items[i], value.items[j])) return false;
      }
    }
  }
  return true;
}

bool SchemaCompiler::Impl::valid_object(const SchemaSet& nodes, const JsonValue& value) {
  size_t n = value.members.size();
  if (n < largest(nodes, "minProperties") || n > smallest(nodes, "maxProperties")) return false;
  for (const auto& [name, member] : value.members) {
    if (!name_allowed(nodes, name) || !valid(member_set(nodes, name), member)) return false;
  }
  for (const JsonValue* node : nodes) {
    const JsonValue* required = node->find("required");
    if (required == nullptr) continue;
    for (const JsonValue& r : required->items) {
      if (value.find(r.text) == nullptr) return false;
    }
  }
  return true;
}

// True only if it is certain that no value satisfies the set.
bool SchemaCompiler::Impl::empty(const SchemaSet& set, int level) {
  if (std::any_of(set.begin(), set.end(), is_false)) return true;
  if (level > kMaxEmptyLevel || !budget->alive()) return false;
  std::vector<Flat> flats = expand(set);
  for (const Flat& f : flats) {
    if (f.has_values) {
      for (const JsonValue* v : f.values) {
        if (valid_flat(f, *v)) return false;
      }
      continue;
    }
    for (unsigned bit = 1; bit < kAllBits; bit <<= 1) {
      if ((f.types & bit) != 0 && !empty_type(f, bit, level)) return false;
    }
  }
  return budget->alive();
}

bool SchemaCompiler::Impl::empty_type(const Flat& flat, unsigned type, int level) {
  switch (type) {
    case kBoolBit: {
      bool seen[2] = {};
      for (const JsonValue* v : flat.excluded) {
        if (v->is(Type::kBool)) seen[v->boolean ? 1 : 0] = true;
      }
      return seen[0] && seen[1];
    }
    case kNullBit:
      return std::any_of(flat.excluded.begin(), flat.excluded.end(),
                         [](const JsonValue* v) { return v->is(Type::kNull); });
    case kNumberBit:
      return flat.number.any() && number_language(flat.number, budget)->empty();
    case kStringBit:
      if (flat.min_length > flat.max_length) return true;
      if (flat.patterns.empty() && flat.formats.empty()) return false;
      return string_dfa(flat)->empty();
    case kArrayBit: {
      uint32_t min = largest(flat.arrays, "minItems");
      if (min > smallest(flat.arrays, "maxItems")) return true;
      for (size_t i = 0; i < min && i <= prefix_length(flat.arrays); ++i) {
        if (empty(item_set(flat.arrays, i), level + 1)) return true;
      }
      return false;
    }
    default: {
      if (largest(flat.objects, "minProperties") > smallest(flat.objects, "maxProperties")) return true;
      for (const JsonValue* node : flat.objects) {
        const JsonValue* required = node->find("required");
        if (required == nullptr) continue;
        for (const JsonValue& r : required->items) {
          if (!name_allowed(flat.objects, r.text) || empty(member_set(flat.objects, r.text), level + 1))
            return true;
        }
      }
      return false;
    }
  }
}

}  // namespace deepinfer::grammar
