// Typed member reads and shared checks of edge/fields.h. Schema checks here look at shapes only; meaning is
// the grammar's business.
#include "edge/fields.h"

#include <algorithm>

#include "edge/argument_types.h"

namespace deepinfer {

namespace {
constexpr std::string_view kImageLiteral = "<｜image｜>";

bool is_schema(const Json& s);

bool is_schema_list(const Json& list) {
  return list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), is_schema);
}
bool is_schema_map(const Json& map) {
  if (!map.is_object()) return false;
  return std::all_of(map.begin(), map.end(), is_schema);
}
bool is_text_list(const Json& list) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [](const Json& v) { return v.is_string(); });
}
bool is_type_word(const Json& v) {
  static const std::set<std::string> words = {"object",  "array",   "string", "number",
                                              "integer", "boolean", "null"};
  return v.is_string() && words.contains(v.get_ref<const std::string&>());
}

// The shapes of the keywords, not their meaning: that is the grammar's business.
bool is_keyword_value(const std::string& key, const Json& v) {
  if (key == "type")
    return is_type_word(v) || (v.is_array() && !v.empty() && std::all_of(v.begin(), v.end(), is_type_word));
  if (key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions" ||
      key == "dependentSchemas") {
    return is_schema_map(v);
  }
  if (key == "required") return is_text_list(v);
  if (key == "allOf" || key == "anyOf" || key == "oneOf" || key == "prefixItems") return is_schema_list(v);
  if (key == "items") return is_schema(v) || (v.is_array() && std::all_of(v.begin(), v.end(), is_schema));
  if (key == "additionalProperties" || key == "not" || key == "if" || key == "then" || key == "else" ||
      key == "contains" || key == "propertyNames" || key == "unevaluatedProperties" ||
      key == "additionalItems") {
    return is_schema(v);
  }
  if (key == "enum") return v.is_array();
  if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum" ||
      key == "multipleOf") {
    return v.is_number() || v.is_boolean();
  }
  if (key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems" ||
      key == "minProperties" || key == "maxProperties") {
    return v.is_number() && v.get<double>() >= 0;
  }
  if (key == "pattern" || key == "$ref" || key == "$id" || key == "title" || key == "description")
    return v.is_string();
  return true;
}

bool is_schema(const Json& s) {
  if (s.is_boolean()) return true;
  if (!s.is_object()) return false;
  for (auto it = s.begin(); it != s.end(); ++it) {
    if (!is_keyword_value(it.key(), it.value())) return false;
  }
  return true;
}

bool has_literal(const std::string& s) {
  return s.find(kImageLiteral) != s.npos;
}
bool has_literal(const Json& v) {
  if (v.is_string()) return has_literal(v.get_ref<const std::string&>());
  if (v.is_array()) return std::any_of(v.begin(), v.end(), [](const Json& x) { return has_literal(x); });
  if (!v.is_object()) return false;
  for (auto it = v.begin(); it != v.end(); ++it) {
    if (has_literal(it.key()) || has_literal(it.value())) return true;
  }
  return false;
}
bool has_literal(const ToolCall& call) {
  if (has_literal(call.name) || has_literal(call.arguments)) return true;
  // An escape can spell it as well: look at what the renderer will write.
  Result<Json> arguments = parse_json(call.arguments);
  return arguments.ok() && has_literal(*arguments);
}

std::string lower(std::string s) {
  for (char& c : s) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return s;
}
}  // namespace

Status bad_body(const std::string& path, const std::string& problem) {
  return refuse("invalid request body: {}{}{}", path, path.empty() ? "" : ": ", problem);
}

void Fields::fail(const std::string& name, const std::string& expected) {
  if (status_.ok()) status_ = bad_body(path(name), "expected " + expected);
}

const Json* Fields::any(const char* name) const {
  if (!object_->is_object()) return nullptr;
  auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> Fields::text(const char* name) {
  const Json* v = any(name);
  if (v == nullptr) return std::nullopt;
  if (v->is_string()) return v->get<std::string>();
  fail(name, "a string");
  return std::nullopt;
}

std::optional<bool> Fields::flag(const char* name) {
  const Json* v = any(name);
  if (v == nullptr) return std::nullopt;
  if (v->is_boolean()) return v->get<bool>();
  fail(name, "a boolean");
  return std::nullopt;
}

std::optional<int64_t> Fields::count(const char* name) {
  const Json* v = any(name);
  if (v == nullptr) return std::nullopt;
  if (v->is_number_integer() && (v->is_number_unsigned() || v->get<int64_t>() >= 0) &&
      v->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) {
    return v->get<int64_t>();
  }
  fail(name, "a non-negative integer");
  return std::nullopt;
}

std::optional<double> Fields::number(const char* name) {
  const Json* v = any(name);
  if (v == nullptr) return std::nullopt;
  if (v->is_number()) return v->get<double>();
  fail(name, "a number");
  return std::nullopt;
}

const Json* Fields::array(const char* name) {
  const Json* v = any(name);
  if (v != nullptr && !v->is_array()) fail(name, "an array");
  return v != nullptr && v->is_array() ? v : nullptr;
}

const Json* Fields::object(const char* name) {
  const Json* v = any(name);
  if (v != nullptr && !v->is_object()) fail(name, "an object");
  return v != nullptr && v->is_object() ? v : nullptr;
}

std::string Fields::required_text(const char* name) {
  if (any(name) == nullptr && status_.ok())
    status_ = bad_body(path(""), std::string("missing field `") + name + "`");
  return text(name).value_or("");
}

void note_ignored(const Json& body, std::initializer_list<const char*> names, ProtocolRequest* request) {
  for (const char* name : names) {
    auto it = body.find(name);
    if (it != body.end() && !it->is_null())
      request->notes.push_back(std::string(name) + " is accepted without effect");
  }
}

Status read_sampling(Fields& body, const char* max_name, ProtocolRequest* request) {
  std::optional<double> temperature = body.number("temperature"), top_p = body.number("top_p");
  std::optional<int64_t> max_tokens = body.count(max_name);
  DI_TRY(body.status());
  if (temperature) {
    auto t = static_cast<float>(*temperature);
    if (!(t >= 0.0f && t <= 2.0f)) return refuse("temperature must be in [0, 2]");
    request->inference.temperature = t;
  }
  if (top_p) {
    auto p = static_cast<float>(*top_p);
    if (!(p > 0.0f && p <= 1.0f)) return refuse("top_p must be in (0, 1]");
    request->inference.top_p = p;
  }
  if (max_tokens) {
    if (*max_tokens == 0) return refuse("{} must be greater than zero", max_name);
    request->inference.max_tokens = max_tokens;
  }
  return {};
}

Status apply_effort(const std::string& word, const std::string& path, Conversation* c) {
  if (word == "none") {
    c->thinking_mode = false;
    return {};
  }
  c->thinking_mode = true;
  if (word == "minimal" || word == "low") {
    c->effort = Effort::kLow;
  } else if (word == "medium" || word == "high") {
    c->effort = Effort::kHigh;
  } else if (word == "xhigh") {
    c->effort = Effort::kXhigh;
  } else if (word == "max" || word == "ultra") {
    c->effort = Effort::kMax;
  } else {
    return bad_body(path, "unknown value '" + word + "'");
  }
  return {};
}

Status apply_thinking(const Json* thinking, const std::string& path, ProtocolRequest* request) {
  if (thinking == nullptr) return {};
  Fields f(*thinking, path);
  std::string type = f.required_text("type");
  std::optional<int64_t> budget = f.count("budget_tokens");
  DI_TRY(f.status());
  if (type != "enabled" && type != "adaptive" && type != "disabled")
    return bad_body(f.path("type"), "unknown value '" + type + "'");
  request->conversation.thinking_mode = type != "disabled";
  if (budget) request->inference.thinking_budget_tokens = budget;
  return {};
}

bool valid_tool_name(std::string_view name) {
  if (name.empty() || name.size() > 128) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Status check_tool_name(std::string_view name, const std::string& path) {
  if (valid_tool_name(name)) return {};
  return refuse("{}: expected 1-128 ASCII letters, digits, underscores or hyphens", path);
}

bool is_object_schema(const Json& schema) {
  if (!schema.is_object()) return false;
  auto type = schema.find("type");
  return type != schema.end() && *type == "object" && is_schema(schema);
}

Status check_unique_names(const std::vector<ToolDefinition>& tools) {
  std::set<std::string> seen;
  for (const ToolDefinition& t : tools) {
    if (!seen.insert(t.name).second) return refuse("Tool names must be unique");
  }
  return {};
}

Status choose_tool(const std::string& name, Conversation* c) {
  auto it =
      std::find_if(c->tools.begin(), c->tools.end(), [&](const ToolDefinition& t) { return t.name == name; });
  if (it == c->tools.end()) return refuse("tool_choice: no tool named '{}' was specified", name);
  ToolDefinition only = *it;
  c->tools = {std::move(only)};
  c->tool_choice = ToolChoice::kRequired;
  return {};
}

Status allow_tools(const std::string& mode, const Json* tools, Conversation* c) {
  if (mode != "auto" && mode != "required") return bad_body("tool_choice.mode", "expected auto or required");
  if (tools == nullptr || tools->empty()) return bad_body("tool_choice.tools", "expected at least one tool");
  for (const Json& t : *tools) {
    Fields f(t, "tool_choice.tools");
    const Json* function = f.object("function");
    Fields g(function != nullptr ? *function : t, "tool_choice.tools");
    std::string name = g.required_text("name");
    DI_TRY(g.status());
    if (c->tools.empty()) continue;
    if (std::none_of(c->tools.begin(), c->tools.end(), [&](const auto& d) { return d.name == name; }))
      return refuse("tool_choice: no tool named '{}' was specified", name);
    c->callable.push_back(std::move(name));
  }
  c->must_call = mode == "required" && !c->tools.empty();
  return {};
}

Status check_choice(Conversation* c, const ConvertOptions& options) {
  if (c->tool_choice != ToolChoice::kRequired || !c->thinking_mode) return {};
  if (!options.required_with_thinking) return refuse("Thinking mode does not support this tool_choice");
  c->tool_choice = ToolChoice::kAuto;
  c->must_call = true;
  return {};
}

Status check_image_literal(const Conversation& c, const ConvertOptions& options) {
  if (options.image_literal_is_text) return {};
  bool found = false;
  for (const Message& m : c.messages) {
    for (const Content::Part& p : m.content.parts) found = found || has_literal(p.text);
    found = found || has_literal(m.reasoning.value_or(""));
    for (const ToolCall& call : m.tool_calls) found = found || has_literal(call);
  }
  for (const ToolDefinition& t : c.tools) {
    found =
        found || has_literal(t.name) || has_literal(t.description.value_or("")) || has_literal(t.parameters);
  }
  if (!found) return {};
  return refuse(
      "The sub-string \"{0}\" in your input is not allowed for this API. Please remove \"{0}\" from your "
      "input and try again.",
      kImageLiteral);
}

bool mentions_json(const Conversation& c) {
  return std::any_of(c.messages.begin(), c.messages.end(), [](const Message& m) {
    return std::any_of(m.content.parts.begin(), m.content.parts.end(), [](const Content::Part& p) {
      return lower(p.text).find("json") != std::string::npos;
    });
  });
}

void set_parsing(ProtocolRequest* request) {
  const Conversation& c = request->conversation;
  request->parsing.parse_tool_calls = c.tools_shown();
  request->parsing.starts_in_calls = c.tools_shown() && c.tool_choice == ToolChoice::kRequired &&
                                     !(!c.messages.empty() && c.messages.back().prefix);
  request->parsing.parse_json_output = c.response_format == ResponseFormat::kJsonObject;
  request->parsing.stage = initial_stage(c);
  if (request->parsing.parse_tool_calls) request->parsing.argument_types = argument_types(c.tools);
}

Status check_reasoning_back(const Conversation& c, const ConvertOptions& options, const char* field) {
  if (!options.require_reasoning_back || !c.thinking_mode) return {};
  for (const Message& m : c.messages) {
    if (m.role == Role::kAssistant && !m.tool_calls.empty() && !m.reasoning) {
      return refuse("The `{}` in the thinking mode must be passed back to the API.", field);
    }
  }
  return {};
}

std::optional<std::string> resolve_model(Protocol protocol, std::string_view name) {
  for (const char* flash : {"deepseek-flash", "deepseek-v4-flash", "deepseek-v4-flash-vision-exp"}) {
    if (name == flash) return "deepseek-flash";
  }
  if (name == "deepseek-v4-pro") return "deepseek-v4-pro";
  if (protocol == Protocol::kMessages && name.starts_with("claude-opus")) return "deepseek-v4-pro";
  if (protocol == Protocol::kMessages && name.starts_with("claude")) return "deepseek-flash";
  return std::nullopt;
}

Status check_model(Protocol protocol, const std::string& model, const ConvertOptions& options) {
  if (!options.check_models || resolve_model(protocol, model)) return {};
  return refuse(
      "The supported API model names are deepseek-flash, deepseek-v4-flash, deepseek-v4-flash-vision-exp, "
      "deepseek-v4-pro, but you passed {}.",
      model);
}

Result<ImageSource::Detail> image_detail(const std::optional<std::string>& word, const std::string& path) {
  if (!word || *word == "high") return ImageSource::Detail::kHigh;
  if (*word == "low") return ImageSource::Detail::kLow;
  if (*word == "original") return ImageSource::Detail::kOriginal;
  if (*word == "auto") return ImageSource::Detail::kAuto;
  return bad_body(path + ".detail", "unknown value '" + *word + "'");
}

}  // namespace deepinfer
