// OpenAI Responses bodies (request edge specification 4.2).
#include <algorithm>
#include <map>

#include "edge/apply_patch.h"
#include "edge/fields.h"
#include "edge/images.h"

namespace deepinfer {
namespace {

class Responses {
 public:
  Responses(const Json& body, const ConvertOptions& options) : body_(body), o_(options), f_(body, "") {}

  Result<ProtocolRequest> run() {
    DI_TRY(f_.status());
    DI_TRY(image_literal_first());
    r_.protocol = Protocol::kResponses;
    c_.thinking_mode = o_.default_thinking;
    r_.model = f_.required_text("model");
    r_.stream = f_.flag("stream").value_or(false);
    r_.previous_response_id = f_.text("previous_response_id");
    std::optional<bool> parallel = f_.flag("parallel_tool_calls");
    DI_TRY(f_.status());
    r_.inference.disable_parallel_tool_use = !parallel.value_or(true);
    if (const Json* user = f_.any("user"); user != nullptr && user->is_string())
      r_.user_id = user->get<std::string>();
    DI_TRY(check_model(Protocol::kResponses, r_.model, o_));
    if (const Json* reasoning = f_.object("reasoning")) {
      Fields g(*reasoning, "reasoning");
      std::optional<std::string> effort = g.text("effort");
      DI_TRY(g.status());
      if (effort) DI_TRY(apply_effort(*effort, "reasoning.effort", &c_));
    }
    DI_TRY(read_sampling(f_, "max_output_tokens", &r_));
    DI_TRY(tools());
    DI_TRY(instructions());
    DI_TRY(input());
    DI_TRY(check_image_literal(c_, o_));
    DI_TRY(text_format());
    DI_TRY(check_reasoning_back(c_, o_, "reasoning"));
    note_ignored(
        body_,
        {"thinking", "store", "metadata", "include", "truncation", "background", "previous_response_id"},
        &r_);
    set_parsing(&r_);
    return std::move(r_);
  }

 private:
  // VENDOR: this protocol looks for the image placeholder's spelling before anything else; pinned by
  // ResponsesRequest.ImageLiteralComesFirst. Here the text of instructions and items is searched; what else
  // reaches the prompt is checked where it is known.
  Status image_literal_first() const {
    bool found = spells_image(f_.any("instructions"));
    const Json* input = f_.any("input");
    if (input != nullptr && input->is_string()) found = found || spells_image(input);
    for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
      const Json& item = (*input)[i];
      if (!item.is_object()) continue;
      const Json type = item.contains("type") ? item["type"] : Json("message");
      if (type != "message" && type != "reasoning" && type != "function_call_output" &&
          type != "custom_tool_call_output")
        continue;
      for (const char* name : {"content", "output"}) {
        auto text = item.find(name);
        if (text == item.end()) continue;
        found = found || spells_image(&*text);
        for (size_t k = 0; text->is_array() && k < text->size(); ++k) {
          const Json& part = (*text)[k];
          if (part.is_object() && part.contains("text")) found = found || spells_image(&part["text"]);
        }
      }
    }
    if (!found) return {};
    Conversation spelt;
    spelt.messages.emplace_back().content = "<｜image｜>";
    return check_image_literal(spelt, o_);
  }
  static bool spells_image(const Json* v) {
    return v != nullptr && v->is_string() &&
           v->get_ref<const std::string&>().find("<｜image｜>") != std::string::npos;
  }

  // ---- tools
  Status tools() {
    if (const Json* list = f_.array("tools")) {
      for (size_t i = 0; i < list->size(); ++i) DI_TRY(tool((*list)[i], i));
    }
    DI_TRY(f_.status());
    rename_clashes();
    const Json* choice = f_.any("tool_choice");
    if (choice == nullptr || *choice != "none") DI_TRY(check_unique_names(c_.tools));
    if (choice == nullptr) return {};
    if (choice->is_string()) {
      if (*choice != "none" && *choice != "auto" && *choice != "required")
        return bad_body("tool_choice", "expected none, auto, required or a tool");
      if (*choice == "none") {
        c_.tools.clear();
        c_.tool_choice = ToolChoice::kNone;
      } else if (*choice == "required" && !c_.tools.empty()) {
        c_.tool_choice = ToolChoice::kRequired;
      }
      return check_choice(&c_, o_);
    }
    Fields g(*choice, "tool_choice");
    std::string type = g.required_text("type");
    DI_TRY(g.status());
    if (type.starts_with("web_search")) {
      if (o_.reject_responses_web_search) return refuse("Server tools are not supported");
      return {};
    }
    if (type == "allowed_tools") {
      std::string mode = g.required_text("mode");
      const Json* list = g.array("tools");
      DI_TRY(g.status());
      return allow_tools(mode, list, &c_);
    }
    if (type != "function" && type != "custom")
      return bad_body("tool_choice.type", "unknown value '" + type + "'");
    std::string name = g.required_text("name");
    DI_TRY(g.status());
    if (c_.tools.empty()) return {};
    DI_TRY(choose_tool(name, &c_));
    return check_choice(&c_, o_);
  }

  Status tool(const Json& json, size_t i) {
    Fields f(json, fmt::format("tools[{}]", i));
    std::string type = f.required_text("type");
    DI_TRY(f.status());
    if (type == "function") return function(f, "", "");
    if (type == "namespace") return name_space(f, i);
    if (type == "custom") {
      std::string name = f.required_text("name");
      DI_TRY(f.status());
      if (name != "apply_patch")
        return refuse("Unsupported custom tool: '{}'. Only 'apply_patch' is supported", name);
      ToolDefinition t;
      t.name = name;
      t.description = std::string(kApplyPatchDescription);
      t.parameters = Json{
          {"type", "object"},
          {"additionalProperties", false},
          {"properties", {{"input", {{"type", "string"}, {"description", std::string(kApplyPatchInput)}}}}},
          {"required", Json::array({"input"})}};
      c_.tools.push_back(std::move(t));
      from_namespace_.push_back(false);
      r_.custom_tools.push_back(name);
      return {};
    }
    if (type.starts_with("web_search") && o_.reject_responses_web_search)
      return refuse("Server tools are not supported");
    r_.notes.push_back(fmt::format("tools[{}] of type {} is skipped", i, type));
    return {};
  }

  Status function(Fields& f, const std::string& space, const std::string& space_description) {
    ToolDefinition t;
    std::string name = f.required_text("name");
    t.description = f.text("description");
    t.strict = f.flag("strict");
    DI_TRY(f.status());
    DI_TRY(check_tool_name(name, f.path("name")));
    t.name = space.empty() ? name : space + "::" + name;
    if (!space_description.empty()) t.description = space_description + "\n" + t.description.value_or("");
    if (const Json* parameters = f.any("parameters")) {
      if (!is_object_schema(*parameters))
        return refuse("Tool '{}' parameters must be a JSON Schema of type object", name);
      t.parameters = *parameters;
    }
    c_.tools.push_back(std::move(t));
    from_namespace_.push_back(!space.empty());
    return {};
  }

  Status name_space(Fields& f, size_t i) {
    std::string name = f.required_text("name");
    std::string description = f.text("description").value_or("");
    const Json* list = f.array("tools");
    DI_TRY(f.status());
    DI_TRY(check_tool_name(name, f.path("name")));
    if (!namespaces_.insert(name).second) return refuse("tools[{}]: duplicate namespace name '{}'", i, name);
    for (size_t j = 0; list != nullptr && j < list->size(); ++j) {
      Fields g((*list)[j], fmt::format("tools[{}].tools[{}]", i, j));
      std::string type = g.required_text("type");
      DI_TRY(g.status());
      if (type == "custom")
        return refuse("tools[{}].tools[{}]: custom tools are not supported inside a namespace", i, j);
      if (type == "function") DI_TRY(function(g, name, description));
    }
    return {};
  }

  // A flattened name that another tool has already gets _1, _2, ...; names the client gave itself are left
  // alone.
  void rename_clashes() {
    std::set<std::string> taken;
    std::map<std::string, int> next;
    for (size_t i = 0; i < c_.tools.size(); ++i) {
      if (!from_namespace_[i]) taken.insert(c_.tools[i].name);
    }
    for (size_t i = 0; i < c_.tools.size(); ++i) {
      if (!from_namespace_[i]) continue;
      std::string name = c_.tools[i].name;
      int& k = next[name];  // goes on where the last clash of this name ended: many clashes stay cheap
      while (!taken.insert(name).second) name = fmt::format("{}_{}", c_.tools[i].name, ++k);
      c_.tools[i].name = name;
    }
  }

  // ---- conversation
  Status instructions() {
    std::optional<std::string> text = f_.text("instructions");
    DI_TRY(f_.status());
    has_instructions_ = text.has_value();
    if (!text || text->empty()) return {};
    Message m;
    m.role = Role::kSystem;
    m.content = Content(*text);
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status input() {
    const Json* v = f_.any("input");
    if (v == nullptr) {
      if (has_instructions_) return {};
      return refuse("Either input or instructions must be provided");
    }
    if (v->is_string()) {
      Message m;
      m.content = Content(v->get<std::string>());
      c_.messages.push_back(std::move(m));
      return {};
    }
    if (!v->is_array()) return bad_body("input", "expected a string or an array");
    if (v->empty()) return refuse("Input items array must not be empty");
    for (size_t i = 0; i < v->size(); ++i) {
      Fields f((*v)[i], fmt::format("input[{}]", i));
      std::optional<std::string> type = f.text("type");
      DI_TRY(f.status());
      if (!type && f.any("role") == nullptr) return bad_body(f.path(""), "missing field `type`");
      DI_TRY(item(f, type.value_or("message"), i));
    }
    return nothing_pending();
  }

  Status item(Fields& f, const std::string& type, size_t i) {
    if (type == "function_call" || type == "custom_tool_call") return call(f, type, i);
    if (type == "function_call_output" || type == "custom_tool_call_output") return output(f, i);
    if (type == "message") {
      DI_TRY(nothing_pending());
      return message(f);
    }
    if (type == "reasoning") {
      DI_TRY(nothing_pending());
      return reasoning(f);
    }
    r_.notes.push_back(fmt::format("input[{}] of type {} is skipped", i, type));
    return {};
  }

  Status nothing_pending() const {
    if (unanswered_ == 0) return {};
    auto open = std::find_if(group_.begin(), group_.end(), [](const Group& g) { return !g.answered; });
    return refuse("No tool output found for tool call {}.", open->call.id);
  }

  Status message(Fields& f) {
    std::string role = f.required_text("role");
    DI_TRY(f.status());
    Message m;
    if (role == "system" || (role == "developer" && o_.developer_is_system)) {
      m.role = Role::kSystem;
    } else if (role == "user" || role == "developer") {
      m.role = Role::kUser;
    } else if (role == "assistant") {
      m.role = Role::kAssistant;
    } else {
      return bad_body(f.path("role"), "unknown variant `" + role + "`");
    }
    const Json* content = f.any("content");
    if (content == nullptr) return bad_body(f.path(""), "missing field `content`");
    DI_TRY(parts(*content, f.path("content"), m.role, role, &m.content));
    if (m.role == Role::kAssistant && !c_.messages.empty()) {
      Message& before = c_.messages.back();
      if (before.role == Role::kAssistant && before.tool_calls.empty()) {
        if (!before.content.empty()) before.content.add_text("\n\n");
        before.content.add_text(m.content.text());
        return {};
      }
    }
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status parts(const Json& v, const std::string& path, Role role, const std::string& role_name,
               Content* out) {
    if (v.is_string()) {
      *out = Content(v.get<std::string>());
      return {};
    }
    if (!v.is_array()) return bad_body(path, "expected a string or an array");
    PartJoiner join(out);
    for (size_t k = 0; k < v.size(); ++k) {
      Fields p(v[k], fmt::format("{}[{}]", path, k));
      std::string type = p.required_text("type");
      DI_TRY(p.status());
      if (type == "input_text" || type == "output_text") {
        join.text(p.required_text("text"));
        DI_TRY(p.status());
      } else if (type == "input_file") {
        join.text("[Unsupported Document]");
      } else if (type == "input_image") {
        if (role == Role::kSystem || role == Role::kAssistant)
          return refuse("Image in {} message is unsupported", role_name);
        std::optional<std::string> url = p.text("image_url"), id = p.text("file_id"),
                                   detail = p.text("detail");
        DI_TRY(p.status());
        if (!url && id)
          return refuse("{}: file_id is not supported. Pass the image as a base64 data url instead.",
                        p.path(""));
        if (!url) return bad_body(p.path(""), "missing field `image_url`");
        DI_ASSIGN(ImageSource::Detail level, image_detail(detail, p.path("")));
        DI_ASSIGN(ImageSource image, image_from_url(*url, level, p.path("")));
        join.image(std::move(image));
      } else {
        return refuse("{}: Unsupported content block", p.path(""));
      }
    }
    return {};
  }

  Status reasoning(Fields& f) {
    std::string text;
    bool first = true;
    const Json* content = f.array("content");
    DI_TRY(f.status());
    for (size_t k = 0; content != nullptr && k < content->size(); ++k) {
      Fields p((*content)[k], fmt::format("{}[{}]", f.path("content"), k));
      std::optional<std::string> part = p.text("text");
      DI_TRY(p.status());
      if (part && !first) text += "\n";
      if (part) text += *part;
      if (part) first = false;
    }
    if (text.empty()) return {};
    bool open = !c_.messages.empty() && c_.messages.back().role == Role::kAssistant &&
                c_.messages.back().content.empty() && c_.messages.back().tool_calls.empty();
    if (!open) {
      c_.messages.emplace_back().role = Role::kAssistant;
    }
    Message& m = c_.messages.back();
    if (m.reasoning) {
      m.reasoning->append("\n").append(text);
    } else {
      m.reasoning = std::move(text);
    }
    return {};
  }

  // ---- calls and their outputs
  struct Group {
    ToolCall call;
    Message result;
    bool answered = false;
  };

  Status call(Fields& f, const std::string& type, size_t i) {
    ToolCall c;
    c.id = f.required_text("call_id");
    std::string name = f.required_text("name");
    std::optional<std::string> space = f.text("namespace");
    if (type == "function_call") {
      c.arguments = f.required_text("arguments");
    } else {
      c.arguments = to_python_json(Json{{"input", f.required_text("input")}});
    }
    DI_TRY(f.status());
    DI_TRY(check_call_id(c.id, i));
    c.name = space && !space->empty() ? *space + "::" + name : name;
    if (!by_id_.emplace(c.id, group_.size()).second) return refuse("Duplicate 'call_id': {}.", c.id);
    ++unanswered_;
    group_.push_back({std::move(c), {}, false});
    return {};
  }

  Status check_call_id(const std::string& id, size_t i) const {
    if (!id.empty()) return {};
    return refuse(
        "Invalid 'input[{}].call_id': empty string. Expected a string with minimum length 1, but got an "
        "empty string instead.",
        i);
  }

  Status output(Fields& f, size_t i) {
    std::string id = f.required_text("call_id");
    const Json* v = f.any("output");
    DI_TRY(f.status());
    DI_TRY(check_call_id(id, i));
    auto known = by_id_.find(id);
    if (known == by_id_.end()) {
      if (answered_.contains(id)) return refuse("Duplicate tool output for call_id: {}.", id);
      return refuse("No tool call found for tool output with call_id {}.", id);
    }
    Group& group = group_[known->second];
    if (group.answered) return refuse("Duplicate tool output for call_id: {}.", id);
    if (v == nullptr) return bad_body(f.path(""), "missing field `output`");
    group.result.role = Role::kTool;
    group.result.tool_call_id = id;
    DI_TRY(parts(*v, f.path("output"), Role::kTool, "tool", &group.result.content));
    group.answered = true;
    answered_.insert(id);
    if (--unanswered_ == 0) write_group();
    return {};
  }

  // VENDOR: calls and results stand in the order of their ids' bytes, whatever the order in the request;
  // pinned by ResponsesRequest.GroupsAreSortedByCallId.
  void write_group() {
    std::stable_sort(group_.begin(), group_.end(),
                     [](const Group& a, const Group& b) { return a.call.id < b.call.id; });
    if (c_.messages.empty() || c_.messages.back().role != Role::kAssistant) {
      c_.messages.emplace_back().role = Role::kAssistant;
    }
    for (const Group& g : group_) c_.messages.back().tool_calls.push_back(g.call);
    for (Group& g : group_) c_.messages.push_back(std::move(g.result));
    group_.clear();
    by_id_.clear();
  }

  Status text_format() {
    const Json* text = f_.object("text");
    DI_TRY(f_.status());
    if (text == nullptr) return {};
    Fields f(*text, "text");
    const Json* format = f.object("format");
    DI_TRY(f.status());
    if (format == nullptr) return {};
    Fields g(*format, "text.format");
    std::string type = g.required_text("type");
    DI_TRY(g.status());
    if (type == "json_object") {
      if (!mentions_json(c_)) {
        return refuse(
            "Response input messages must contain the word 'json' to use text.format of type json_object");
      }
      c_.response_format = ResponseFormat::kJsonObject;
    } else if (type == "json_schema") {
      if (const Json* schema = g.any("schema")) {
        c_.response_format = ResponseFormat::kJsonSchema;
        c_.response_schema = *schema;
      }
    } else if (type != "text") {
      return bad_body("text.format.type", "unknown variant `" + type + "`");
    }
    return {};
  }

  const Json& body_;
  const ConvertOptions& o_;
  Fields f_;
  ProtocolRequest r_;
  Conversation& c_ = r_.conversation;
  std::vector<bool> from_namespace_;  // beside c_.tools while they are read
  std::set<std::string> namespaces_;
  bool has_instructions_ = false;
  std::vector<Group> group_;
  std::map<std::string, size_t> by_id_;  // place in group_
  size_t unanswered_ = 0;                // of group_
  std::set<std::string> answered_;
};

}  // namespace

Result<ProtocolRequest> convert_responses(const Json& body, const ConvertOptions& options) {
  return Responses(body, options).run();
}

}  // namespace deepinfer
