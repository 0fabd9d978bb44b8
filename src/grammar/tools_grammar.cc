// The DSML grammar.
#include "grammar/tools_grammar.h"

#include <algorithm>
#include <deque>

#include "grammar/char_dfa.h"

namespace deepinfer::grammar {
namespace {

using Type = JsonValue::Type;

class Builder {
 public:
  Builder(const ToolsOptions& options, Budget* budget) : options_(options), budget_(budget) {}

  Result<Grammar> run(const std::vector<ToolSpec>& tools) {
    DI_CHECK(options_.dsml_token >= 0, "tool calls need the DSML token");
    if (tools.empty()) return Status(Code::kInvalidArgument, "there is no tool to call");
    std::vector<ExprPtr> calls;
    for (const ToolSpec& t : tools) {
      Result<ExprPtr> call = invoke(t);
      if (!call.ok()) return call.status().with_context("tool '" + t.name + "'");
      calls.push_back(*call);
    }
    RuleId one = g_.add("invoke", make_alt(std::move(calls)));
    ExprPtr many = options_.parallel ? make_repeat(make_rule(one), 1, kUnbounded) : make_rule(one);
    ExprPtr block = make_seq({many, make_bytes("</"), tag("calls", ">")});
    ExprPtr opened = make_seq({make_bytes("<"), tag("calls", ">\n"), block});
    ExprPtr root;
    if (options_.required) {
      root = options_.opener_in_prompt ? block : make_seq({make_bytes("\n\n"), opened});
    } else if (!options_.answer_schema.empty()) {
      DI_ASSIGN(const JsonValue* schema, parse(options_.answer_schema));
      auto answer = compiler(*schema, false).value_rule(*schema);
      if (!answer.ok()) return answer.status().with_context("answer format");
      root = make_alt({make_rule(*answer), make_seq({make_bytes("\n\n"), opened})});
    } else {
      // Free text; the block begins at "<" and the control token, which no text can spell.
      RuleId text = g_.add("text", make_repeat(make_class(CharSet::any(), Spelling::kRaw), 0, kUnbounded));
      root = make_seq({make_rule(text), make_repeat(opened, 0, 1)});
    }
    g_.root = g_.add("root", root);
    return std::move(g_);
  }

 private:
  ExprPtr tag(std::string name, const std::string& rest) {
    if (options_.v4 && name == "calls") name = "tool_calls";
    return make_seq({make_token(options_.dsml_token), make_bytes((options_.v4 ? "" : " ") + name + rest)});
  }

  ExprPtr parameter(ExprPtr key, ExprPtr string_value, ExprPtr json_value) {
    ExprPtr close = make_seq({make_bytes("</"), tag("parameter", ">\n")});
    std::vector<ExprPtr> ways;
    if (string_value->kind != Expr::Kind::kNever)
      ways.push_back(make_seq({make_bytes("\" string=\"true\">"), string_value, close}));
    if (json_value != nullptr)
      ways.push_back(make_seq({make_bytes("\" string=\"false\">"), json_value, close}));
    ExprPtr value = make_alt(std::move(ways));
    return make_seq({make_bytes("<"), tag("parameter", " name=\""), std::move(key), value});
  }

  Result<const JsonValue*> parse(const std::string& text) {
    if (static_cast<int64_t>(text.size()) > budget_->limits().source_bytes)
      return error(Code::kResourceExhausted, "schema: more than {} bytes", budget_->limits().source_bytes);
    DI_ASSIGN(JsonValue document, parse_json_value(text, budget_->limits().json_depth));
    documents_.push_back(std::move(document));
    return &documents_.back();
  }
  SchemaCompiler& compiler(const JsonValue& document, bool best_effort) {
    SchemaOptions o = options_.schema;
    o.best_effort = o.best_effort || best_effort;
    return compilers_.emplace_back(document, o, &g_, budget_);
  }

  // Members of the argument object: an optional object schema as parameter lines.
  Result<ExprPtr> invoke(const ToolSpec& tool) {
    ExprPtr open = make_seq({make_bytes("<"), tag("invoke", " name=\"" + tool.name + "\">\n")});
    ExprPtr close = make_seq({make_bytes("</"), tag("invoke", ">\n")});
    DI_ASSIGN(const JsonValue* document, parse(tool.parameters.empty() ? "{}" : tool.parameters));
    const JsonValue& schema = *document;
    SchemaCompiler& compiler = this->compiler(schema, tool.best_effort);
    if (!schema.is(Type::kObject))
      return Status(Code::kInvalidArgument, "parameters must be a schema object");
    const JsonValue* node = resolve_top(schema);
    const bool typed = tool.strict || tool.best_effort;
    MembersRule members;
    members.any_order = options_.schema.any_order;
    bool required_any = false;
    if (typed) {
      DI_TRY(check_keywords(*node, tool.best_effort));
      DI_TRY(declared(*node, compiler, &members, &required_any));
    }
    const JsonValue* more = node->find("additionalProperties");
    bool closed = typed && ((more != nullptr && more->is(Type::kBool) && !more->boolean) ||
                            (more == nullptr && !tool.best_effort && node->find("properties") != nullptr));
    if (!closed) DI_TRY(others(typed ? more : nullptr, *node, typed, compiler, &members));
    std::vector<ExprPtr> bodies;
    if (!required_any)
      bodies.push_back(make_repeat(make_bytes("\n"), 0, 1));  // no arguments: an empty line, or nothing
    if (!members.properties.empty() || !members.others.empty()) {
      members.min = 1;
      RuleId id = g_.add("arguments of " + tool.name);
      g_.rules[id].kind = Rule::Kind::kMembers;
      g_.rules[id].members = std::move(members);
      bodies.push_back(make_rule(id));
    }
    return make_seq({open, make_alt(std::move(bodies)), close});
  }

  // A top-level $ref to a definition is common; it is followed here, deeper ones by the schema compiler.
  static const JsonValue* resolve_top(const JsonValue& schema) {
    const JsonValue* ref = schema.find("$ref");
    if (ref == nullptr || !ref->is(Type::kString)) return &schema;
    for (const char* defs : {"$defs", "definitions"}) {
      std::string prefix = std::string("#/") + defs + "/";
      const JsonValue* table = schema.find(defs);
      if (table == nullptr || !ref->text.starts_with(prefix)) continue;
      const JsonValue* target = table->find(ref->text.substr(prefix.size()));
      if (target != nullptr && target->is(Type::kObject)) return target;
    }
    return &schema;
  }

  // The argument object itself is written as tags, so its schema must be a plain object.
  Status check_keywords(const JsonValue& node, bool best_effort) const {
    static constexpr std::string_view kKnown[] = {
        "type",     "properties",  "required", "additionalProperties",
        "title",    "description", "$defs",    "definitions",
        "$schema",  "$id",         "$comment", "default",
        "examples", "strict"};
    for (const auto& [name, value] : node.members) {
      (void)value;
      if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown) || name.starts_with("x-"))
        continue;
      if (!options_.schema.best_effort && !best_effort)
        return error(Code::kUnsupported, "#/{}: not supported at the top of a tool's parameters", name);
    }
    if (const JsonValue* t = node.find("type");
        t != nullptr && (!t->is(Type::kString) || t->text != "object"))
      return Status(Code::kInvalidArgument, "#/type: a tool's parameters must be an object");
    return {};
  }

  Status declared(const JsonValue& node, SchemaCompiler& compiler, MembersRule* members, bool* required_any) {
    std::vector<std::string> required;
    if (const JsonValue* r = node.find("required"); r != nullptr) {
      for (const JsonValue& k : r->items) required.push_back(k.text);
    }
    *required_any = !required.empty();
    const JsonValue* properties = node.find("properties");
    std::vector<std::pair<std::string, const JsonValue*>> list;
    if (properties != nullptr) {
      if (!properties->is(Type::kObject))
        return Status(Code::kInvalidArgument, "#/properties: must be an object");
      for (const auto& [name, schema] : properties->members) list.emplace_back(name, &schema);
    }
    for (const std::string& r : required) {
      bool known = std::any_of(list.begin(), list.end(), [&](const auto& p) { return p.first == r; });
      if (!known) list.emplace_back(r, &true_schema_);
    }
    if (members->any_order && list.size() > kMaxAnyOrder)
      return error(Code::kUnsupported, "#/properties: arguments in any order: more than {}", kMaxAnyOrder);
    for (const auto& [name, schema] : list) {
      if (name.find('"') != std::string::npos || name.find('<') != std::string::npos ||
          name.find('\n') != std::string::npos)
        return error(Code::kUnsupported, "#/properties: the name '{}' cannot be written in a tag", name);
      DI_ASSIGN(SchemaCompiler::Split split, compiler.split_rule(*schema));
      MembersRule::Property p;
      p.required = std::find(required.begin(), required.end(), name) != required.end();
      p.first = p.next = g_.add(
          "argument " + name,
          parameter(make_bytes(name), split.raw_string, split.has_other ? make_rule(split.other) : nullptr));
      members->properties.push_back(p);
      names_.push_back(name);
    }
    return {};
  }

  // Arguments that are not declared.
  Status others(const JsonValue* schema, const JsonValue& node, bool strict, SchemaCompiler& compiler,
                MembersRule* members) {
    DI_ASSIGN(SchemaCompiler::Split split, compiler.split_rule(schema == nullptr ? true_schema_ : *schema));
    CharSet letters =
        CharSet::any().minus(CharSet::of_ranges({{0, 0x1F}, {'"', '"'}, {'<', '<'}, {'>', '>'}}));
    ExprPtr key = make_repeat(make_class(letters, Spelling::kRaw), 1, kUnbounded);
    std::vector<std::string> taken;
    if (strict) {
      if (const JsonValue* p = node.find("properties"); p != nullptr) {
        for (const auto& m : p->members) taken.push_back(m.first);
      }
    }
    if (!taken.empty())
      key = make_dfa(subtract(dfa_of(key, budget_), dfa_texts(taken, budget_), budget_), Spelling::kRaw);
    RuleId other = g_.add("other argument", parameter(key, split.raw_string,
                                                      split.has_other ? make_rule(split.other) : nullptr));
    members->others.emplace_back(other, other);
    return budget_->status();
  }

  ToolsOptions options_;
  Budget* budget_;
  Grammar g_;
  std::deque<JsonValue> documents_;
  std::deque<SchemaCompiler> compilers_;
  std::vector<std::string> names_;
  JsonValue true_schema_ = [] {
    JsonValue v;
    v.type = Type::kBool;
    v.boolean = true;
    return v;
  }();
};

}  // namespace

Result<Grammar> tools_grammar(const std::vector<ToolSpec>& tools, const ToolsOptions& options,
                              Budget* budget) {
  return Builder(options, budget).run(tools);
}

}  // namespace deepinfer::grammar
