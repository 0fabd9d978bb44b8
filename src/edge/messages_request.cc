// Anthropic Messages bodies (request edge specification 4.3).
#include "edge/fields.h"
#include "edge/images.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxStops = 16;

class Messages {
 public:
  Messages(const Json& body, const ConvertOptions& options) : body_(body), o_(options), f_(body, "") {}

  Result<ProtocolRequest> run() {
    DI_TRY(f_.status());
    r_.protocol = Protocol::kMessages;
    c_.thinking_mode = o_.default_thinking;
    r_.model = f_.required_text("model");
    if (f_.any("messages") == nullptr) DI_TRY(bad_body("", "missing field `messages`"));
    r_.stream = f_.flag("stream").value_or(false);
    DI_TRY(f_.status());
    DI_TRY(check_model(Protocol::kMessages, r_.model, o_));
    DI_TRY(thinking());
    DI_TRY(read_sampling(f_, "max_tokens", &r_));
    DI_TRY(stops());
    DI_TRY(tools());
    DI_TRY(system());
    DI_TRY(messages());
    DI_TRY(check_image_literal(c_, o_));
    DI_TRY(check_reasoning_back(c_, o_, "content[].thinking"));
    if (const Json* metadata = f_.object("metadata")) {
      Fields g(*metadata, "metadata");
      r_.user_id = g.text("user_id");
      DI_TRY(g.status());
    }
    DI_TRY(f_.status());
    note_ignored(
        body_,
        {"top_k", "service_tier", "container", "mcp_servers", "context_management", "cache_control", "betas"},
        &r_);
    set_parsing(&r_);
    return std::move(r_);
  }

 private:
  Status thinking() {
    const Json* thinking = f_.object("thinking");
    const Json* output = f_.object("output_config");
    DI_TRY(f_.status());
    if (output != nullptr) {
      Fields g(*output, "output_config");
      std::optional<std::string> effort = g.text("effort");
      DI_TRY(g.status());
      if (effort) DI_TRY(apply_effort(*effort, "output_config.effort", &c_));
    }
    return apply_thinking(thinking, "thinking", &r_);
  }

  Status stops() {
    const Json* list = f_.array("stop_sequences");
    DI_TRY(f_.status());
    if (list == nullptr) return {};
    for (const Json& s : *list) {
      if (!s.is_string()) return bad_body("stop_sequences", "expected strings");
      if (list->size() > kMaxStops || s == "")
        return refuse("stop_sequences must contain at most 16 non-empty strings");
      r_.parsing.stop_sequences.push_back(s.get<std::string>());
    }
    return {};
  }

  Status tools() {
    std::string ignored_search;  // name of a web search tool that is dropped
    if (const Json* list = f_.array("tools")) {
      for (size_t i = 0; i < list->size(); ++i) {
        std::string path = fmt::format("tools.{}", i);
        Fields f((*list)[i], path);
        std::optional<std::string> type = f.text("type");
        ToolDefinition t;
        t.name = f.required_text("name");
        t.description = f.text("description");
        DI_TRY(f.status());
        if (type) {
          if (!type->starts_with("web_search") || o_.reject_messages_web_search)
            return refuse("{}: server tools are not supported", path);
          ignored_search = t.name;
          continue;
        }
        DI_TRY(check_tool_name(t.name, path + ".name"));
        const Json* schema = f.any("input_schema");
        if (schema == nullptr || !is_object_schema(*schema))
          return refuse("{}.input_schema must be a JSON Schema of type object", path);
        t.parameters = *schema;
        t.strict = f.flag("strict");
        DI_TRY(f.status());
        c_.tools.push_back(std::move(t));
      }
    }
    const Json* choice = f_.object("tool_choice");
    DI_TRY(f_.status());
    // Tools that are not used need no order among them.
    bool unused = choice != nullptr && choice->contains("type") && (*choice)["type"] == "none";
    if (!unused) DI_TRY(check_unique_names(c_.tools));
    if (choice == nullptr) return {};
    Fields f(*choice, "tool_choice");
    std::string type = f.required_text("type");
    r_.inference.disable_parallel_tool_use = f.flag("disable_parallel_tool_use").value_or(false);
    DI_TRY(f.status());
    if (type == "none") {
      c_.tools.clear();
      c_.tool_choice = ToolChoice::kNone;
    } else if (type == "tool") {
      std::string name = f.required_text("name");
      DI_TRY(f.status());
      if (c_.tools.empty() || (!ignored_search.empty() && name == ignored_search)) return {};
      DI_TRY(choose_tool(name, &c_));
      return check_choice(&c_, o_);
    } else if (type == "any") {
      // VENDOR: the prompt is the one of auto; only constrained decoding makes the call come. Pinned by
      // MessagesRequest.Tools.
      c_.must_call = !c_.tools.empty();
    } else if (type != "auto") {
      return bad_body("tool_choice.type", "unknown value '" + type + "'");
    }
    return {};
  }

  // Text of a system value or a system entry: a string, or text blocks joined by an empty line.
  Status system_text(const Json& v, const std::string& path, Content* out) {
    if (v.is_string()) {
      *out = Content(v.get<std::string>());
      return {};
    }
    if (!v.is_array()) return bad_body(path, "expected a string or an array");
    PartJoiner join(out);
    for (size_t k = 0; k < v.size(); ++k) {
      Fields b(v[k], fmt::format("{}[{}]", path, k));
      std::string type = b.required_text("type");
      DI_TRY(b.status());
      if (type == "text" || type == "tool_reference") {
        join.text(type == "text" ? b.required_text("text") : b.required_text("tool_name"));
      } else if (type == "document") {
        join.text(document(b));
      } else if (type == "image") {
        return refuse("Image in system message is unsupported");
      } else {
        return refuse("{}: Unsupported content block", b.path(""));
      }
      DI_TRY(b.status());
    }
    return {};
  }

  Status system() {
    const Json* v = f_.any("system");
    if (v == nullptr) return {};
    Message m;
    m.role = Role::kSystem;
    DI_TRY(system_text(*v, "system", &m.content));
    if (!m.content.empty()) c_.messages.push_back(std::move(m));
    return {};
  }

  static std::string document(Fields& b) {
    std::string kind = "unknown";
    if (const Json* source = b.object("source")) {
      Fields s(*source, b.path("source"));
      kind = s.text("media_type").value_or("unknown");
    }
    return "[Unsupported document type: " + kind + "]";
  }

  Status messages() {
    const Json* list = f_.array("messages");
    DI_TRY(f_.status());
    if (list->empty()) return refuse("messages: at least one message is required");
    for (size_t i = 0; i < list->size(); ++i) {
      Fields f((*list)[i], fmt::format("messages.{}", i));
      std::string role = f.required_text("role");
      const Json* content = f.any("content");
      DI_TRY(f.status());
      if (content == nullptr) return bad_body(f.path(""), "missing field `content`");
      if (!content->is_string() && !content->is_array())
        return bad_body(f.path("content"), "expected a string or an array");
      if (content->is_array() && content->empty())
        return refuse("messages.{}: all messages must have non-empty content", i);
      if (role == "user") {
        DI_TRY(user(*content, i));
      } else if (role == "assistant") {
        DI_TRY(unanswered(i, false));
        DI_TRY(assistant(*content, i));
      } else if (role == "system") {
        DI_TRY(unanswered(i, false));
        DI_TRY(system_entry(*content, i));
      } else {
        return bad_body(f.path("role"),
                        "unknown variant `" + role + "`, expected one of `user`, `assistant`, `system`");
      }
    }
    return unanswered(list->size(), false);
  }

  // The calls of the assistant turn before must have their results by now. VENDOR: without a message that
  // could hold them the index is the call's and the space after the colon is missing; pinned by
  // MessagesRequest.ToolResultRules.
  Status unanswered(size_t index, bool user_turn) {
    if (pending_.empty()) return {};
    std::string ids;
    for (const std::string& id : order_) {
      if (pending_.contains(id)) ids += (ids.empty() ? "" : ", ") + id;
    }
    std::string place =
        user_turn ? fmt::format("messages.{}: ", index) : fmt::format("messages.{}:", index - 1);
    return refuse(
        "{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` "
        "block must have a corresponding "
        "`tool_result` block in the next message.",
        place, ids);
  }

  Status system_entry(const Json& content, size_t i) {
    Message m;
    std::string path = fmt::format("messages.{}.content", i);
    if (o_.messages_system_in_place) {
      m.role = Role::kSystem;
      DI_TRY(system_text(content, path, &m.content));
    } else {
      Content inner;
      DI_TRY(system_text(content, path, &inner));
      m.content = "<system-reminder>\n";
      for (Content::Part& p : inner.parts) m.content.add_text(std::move(p.text));
      m.content.add_text("\n</system-reminder>");
    }
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status user(const Json& content, size_t i) {
    if (content.is_string()) {
      DI_TRY(unanswered(i, true));
      push_user(content.get<std::string>());
      return {};
    }
    std::set<std::string> answered;
    for (size_t k = 0; k < content.size(); ++k) {
      Fields b(content[k], fmt::format("messages.{}.content[{}]", i, k));
      std::string type = b.required_text("type");
      DI_TRY(b.status());
      if (type == "tool_result") {
        DI_TRY(tool_result(b, i, k, &answered));
        continue;
      }
      DI_TRY(unanswered(i, true));
      if (type == "text" || type == "tool_reference") {
        push_user(type == "text" ? b.required_text("text") : b.required_text("tool_name"));
        DI_TRY(b.status());
      } else if (type == "document") {
        push_user(document(b));
      } else if (type == "image") {
        Message m;
        DI_ASSIGN(ImageSource source, image(b));
        m.content.add_image(std::move(source));
        c_.messages.push_back(std::move(m));
      } else {
        return misplaced(type, i, b.path(""));
      }
    }
    return unanswered(i, true);
  }

  void push_user(std::string text) {
    Message m;
    m.content = Content(std::move(text));
    c_.messages.push_back(std::move(m));
  }

  Status misplaced(const std::string& type, size_t i, const std::string& path) const {
    for (const char* mine : {"tool_use", "thinking", "server_tool_use"}) {
      if (type == mine)
        return refuse("messages.{}: `{}` blocks can only be in `assistant` messages", i, type);
    }
    if (type == "tool_result")
      return refuse("messages.{}: `tool_result` blocks can only be in `user` messages", i);
    return refuse("{}: Unsupported content block", path);
  }

  Status tool_result(Fields& b, size_t i, size_t k, std::set<std::string>* answered) {
    Message m;
    m.role = Role::kTool;
    m.tool_call_id = b.required_text("tool_use_id");
    DI_TRY(b.status());
    if (answered->contains(m.tool_call_id)) {
      return refuse(
          "messages.{}.content.{}: each tool_use must have a single result. Found multiple `tool_result` "
          "blocks with id: {}",
          i, k, m.tool_call_id);
    }
    if (pending_.erase(m.tool_call_id) == 0) {
      return refuse(
          "unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each "
          "`tool_result` block must have a "
          "corresponding `tool_use` block in the previous message.",
          i, k, m.tool_call_id);
    }
    answered->insert(m.tool_call_id);
    const Json* content = b.any("content");
    if (content != nullptr && content->is_string()) {
      m.content = Content(content->get<std::string>());
    } else if (content != nullptr && content->is_array()) {
      PartJoiner join(&m.content);
      for (size_t n = 0; n < content->size(); ++n) {
        Fields p((*content)[n], fmt::format("{}.content[{}]", b.path(""), n));
        std::string type = p.required_text("type");
        DI_TRY(p.status());
        if (type == "text" || type == "tool_reference") {
          join.text(type == "text" ? p.required_text("text") : p.required_text("tool_name"));
          DI_TRY(p.status());
        } else if (type == "document") {
          join.text(document(p));
        } else if (type == "image") {
          DI_ASSIGN(ImageSource source, image(p));
          join.image(std::move(source));
        } else {
          return refuse("{}: Unsupported content block", p.path(""));
        }
      }
    } else if (content != nullptr) {
      return bad_body(b.path("content"), "expected a string or an array");
    }
    c_.messages.push_back(std::move(m));
    return {};
  }

  static Result<ImageSource> image(Fields& b) {
    const Json* source = b.object("source");
    DI_TRY(b.status());
    if (source == nullptr) return bad_body(b.path(""), "missing field `source`");
    Fields s(*source, b.path("source"));
    std::string type = s.required_text("type");
    DI_TRY(s.status());
    if (type == "base64") {
      std::string media = s.required_text("media_type"), data = s.required_text("data");
      DI_TRY(s.status());
      return image_from_base64(media, data, b.path(""));
    }
    if (type == "file")
      return refuse("{}: file_id is not supported. Pass the image as a base64 data url instead.", b.path(""));
    if (type != "url") return bad_body(s.path("type"), "unknown variant `" + type + "`");
    std::string url = s.required_text("url");
    DI_TRY(s.status());
    if (!url.starts_with("http")) return refuse("{}: invalid url: \"{}\"", b.path(""), url);
    return image_from_url(url, ImageSource::Detail::kHigh, b.path(""));
  }

  Status assistant(const Json& content, size_t i) {
    Message m;
    m.role = Role::kAssistant;
    if (content.is_string()) {
      m.content = Content(content.get<std::string>());
      c_.messages.push_back(std::move(m));
      return {};
    }
    for (size_t k = 0; k < content.size(); ++k) {
      Fields b(content[k], fmt::format("messages.{}.content[{}]", i, k));
      std::string type = b.required_text("type");
      DI_TRY(b.status());
      if (type == "text") {
        if (!m.tool_calls.empty()) {
          std::string ids;
          for (const ToolCall& call : m.tool_calls) ids += (ids.empty() ? "" : ", ") + call.id;
          return refuse(
              "messages.{}.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. "
              "Each `tool_use` block must "
              "have a corresponding `tool_result` block in the next message.",
              i, k, ids);
        }
        // VENDOR: empty blocks in front leave no separator; pinned by
        // MessagesRequest.AssistantBlocksAndResults.
        if (!m.content.empty()) m.content.add_text("\n\n");
        m.content.add_text(b.required_text("text"));
      } else if (type == "thinking") {
        std::string text = b.required_text("thinking");
        if (m.reasoning) {
          m.reasoning->append("\n\n").append(text);
        } else {
          m.reasoning = std::move(text);
        }
      } else if (type == "tool_use") {
        DI_TRY(tool_use(b, i, k, &m));
      } else if (type == "image") {
        return refuse("Image in assistant message is unsupported");
      } else if (type == "server_tool_use" || type == "web_search_tool_result") {
        if (o_.reject_messages_web_search) return refuse("{}: server tools are not supported", b.path(""));
      } else {
        return misplaced(type, i, b.path(""));
      }
      DI_TRY(b.status());
    }
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status tool_use(Fields& b, size_t i, size_t k, Message* m) {
    ToolCall call;
    call.id = b.required_text("id");
    call.name = b.required_text("name");
    DI_TRY(b.status());
    const Json* input = b.any("input");
    call.arguments = input == nullptr ? "{}" : to_python_json(*input);
    if (!pending_.insert(call.id).second) {
      return refuse("messages.{}.content.{}: `tool_use` ids must be unique", i, k);
    }
    if (m->tool_calls.empty()) order_.clear();
    order_.push_back(call.id);
    m->tool_calls.push_back(std::move(call));
    return {};
  }

  const Json& body_;
  const ConvertOptions& o_;
  Fields f_;
  ProtocolRequest r_;
  Conversation& c_ = r_.conversation;
  std::set<std::string> pending_;   // calls of the last assistant turn without a result yet
  std::vector<std::string> order_;  // calls of the last assistant turn that had any, in order
};

}  // namespace

Result<ProtocolRequest> convert_messages(const Json& body, const ConvertOptions& options) {
  return Messages(body, options).run();
}

}  // namespace deepinfer
