// OpenAI Chat Completions bodies (request edge specification 4.1).
#include "edge/fields.h"
#include "edge/images.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxStops = 16;

class Chat {
 public:
  Chat(const Json& body, const ConvertOptions& options) : body_(body), o_(options), f_(body, "") {}

  Result<ProtocolRequest> run() {
    DI_TRY(f_.status());
    r_.protocol = Protocol::kChat;
    r_.conversation.thinking_mode = o_.default_thinking;
    r_.model = f_.required_text("model");
    if (f_.any("messages") == nullptr) DI_TRY(bad_body("", "missing field `messages`"));
    DI_TRY(f_.status());
    DI_TRY(check_model(Protocol::kChat, r_.model, o_));
    DI_TRY(thinking());
    DI_TRY(limits());
    DI_TRY(stops());
    DI_TRY(tools());
    DI_TRY(messages());
    DI_TRY(check_image_literal(c_, o_));
    DI_TRY(response_format());
    DI_TRY(check_reasoning_back(c_, o_, "reasoning_content"));
    note_ignored(
        body_,
        {"metadata", "store", "service_tier", "logit_bias", "modalities", "audio", "prediction", "user",
         "max_completion_tokens", "frequency_penalty", "presence_penalty", "functions", "function_call"},
        &r_);
    set_parsing(&r_);
    return std::move(r_);
  }

 private:
  Status thinking() {
    std::optional<std::string> effort = f_.text("reasoning_effort");
    DI_TRY(f_.status());
    if (effort) DI_TRY(apply_effort(*effort, "reasoning_effort", &c_));
    const Json* thinking = f_.object("thinking");
    DI_TRY(f_.status());
    DI_TRY(apply_thinking(thinking, "thinking", &r_));
    // Chat reads the budget and has no use for it.
    if (r_.inference.thinking_budget_tokens)
      r_.notes.push_back("thinking.budget_tokens is accepted without effect");
    r_.inference.thinking_budget_tokens.reset();
    return {};
  }

  Status limits() {
    DI_TRY(read_sampling(f_, "max_tokens", &r_));
    for (const char* name : {"frequency_penalty", "presence_penalty"}) {
      std::optional<double> v = f_.number(name);
      DI_TRY(f_.status());
      if (v && !(*v >= -2 && *v <= 2)) return refuse("{} must be in [-2, 2]", name);
    }
    if (const Json* seed = f_.any("seed")) {
      if (!seed->is_number_integer()) return bad_body("seed", "expected an integer");
      if (!seed->is_number_unsigned() || seed->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        return refuse("seed must be in [0, 2^63)");
      r_.inference.seed = seed->get<uint64_t>();
    }
    std::optional<int64_t> n = f_.count("n");
    std::optional<bool> logprobs = f_.flag("logprobs");
    std::optional<int64_t> top = f_.count("top_logprobs");
    std::optional<bool> parallel = f_.flag("parallel_tool_calls");
    DI_TRY(f_.status());
    if (n && (*n < 1 || *n > o_.max_n)) {
      return o_.max_n == 1 ? refuse("Invalid n value (currently only n = 1 is supported)")
                           : refuse("n must be in [1, {}]", o_.max_n);
    }
    r_.n = static_cast<int>(n.value_or(1));
    if (top && *top > 20) return refuse("top_logprobs must be in [0, 20]");
    if (top && *top > 0 && !logprobs.value_or(false)) return refuse("top_logprobs needs logprobs to be true");
    r_.inference.logprobs = logprobs.value_or(false);
    r_.inference.top_logprobs = static_cast<int>(top.value_or(0));
    r_.inference.disable_parallel_tool_use = !parallel.value_or(true);
    // VENDOR: ids of end users may be any JSON; only strings take part in isolation. Pinned by
    // ChatRequest.UserIds.
    if (const Json* user = f_.any("user_id"); user != nullptr && user->is_string())
      r_.user_id = user->get<std::string>();
    return {};
  }

  Status stops() {
    if (const Json* stop = f_.any("stop")) {
      if (stop->is_string()) {
        if (*stop != "") r_.parsing.stop_sequences = {stop->get<std::string>()};
      } else {
        if (!stop->is_array()) return bad_body("stop", "expected a string or an array");
        if (stop->size() > kMaxStops)
          return refuse("ChatCompletionStopSequences string array too long: {}", stop->size());
        for (const Json& s : *stop) {
          if (!s.is_string()) return bad_body("stop", "expected strings");
          if (s != "") r_.parsing.stop_sequences.push_back(s.get<std::string>());
        }
      }
    }
    r_.stream = f_.flag("stream").value_or(false);
    const Json* stream_options = f_.object("stream_options");
    DI_TRY(f_.status());
    if (stream_options != nullptr) {
      Fields s(*stream_options, "stream_options");
      r_.include_usage = s.flag("include_usage").value_or(false);
      r_.running_usage = r_.include_usage && s.flag("continuous_usage_stats").value_or(false);
      DI_TRY(s.status());
      if (!r_.stream) return refuse("stream_options should be set along with stream = true");
    }
    return {};
  }

  Status tools() {
    const Json* choice = f_.any("tool_choice");
    bool none = choice != nullptr && *choice == "none";
    if (const Json* list = f_.array("tools")) {
      for (size_t i = 0; i < list->size(); ++i) DI_TRY(tool((*list)[i], i, !none));
    }
    DI_TRY(f_.status());
    if (!none) DI_TRY(check_unique_names(c_.tools));
    if (choice == nullptr) return {};
    if (choice->is_string()) {
      if (*choice != "none" && *choice != "auto" && *choice != "required")
        return bad_body("tool_choice", "expected none, auto, required or a tool");
      if (none) c_.tools.clear();
      if (none) c_.tool_choice = ToolChoice::kNone;
      if (*choice == "required" && !c_.tools.empty()) c_.tool_choice = ToolChoice::kRequired;
    } else {
      Fields f(*choice, "tool_choice");
      std::string type = f.required_text("type");
      const Json* function = f.object("function");
      const Json* allowed = f.object("allowed_tools");
      DI_TRY(f.status());
      if (type == "allowed_tools" && allowed != nullptr) {
        Fields g(*allowed, "tool_choice.allowed_tools");
        std::string mode = g.required_text("mode");
        const Json* list = g.array("tools");
        DI_TRY(g.status());
        return allow_tools(mode, list, &c_);
      }
      if (type != "function" || function == nullptr)
        return bad_body("tool_choice", "expected none, auto, required or a tool");
      Fields g(*function, "tool_choice.function");
      std::string name = g.required_text("name");
      DI_TRY(g.status());
      if (!c_.tools.empty()) DI_TRY(choose_tool(name, &c_));
    }
    return check_choice(&c_, o_);
  }

  Status tool(const Json& json, size_t i, bool check_schema) {
    std::string path = fmt::format("tools.{}", i);
    Fields f(json, path);
    std::string type = f.required_text("type");
    const Json* function = f.object("function");
    DI_TRY(f.status());
    if (type != "function") return bad_body(path + ".type", "unknown value '" + type + "'");
    if (function == nullptr) return bad_body(path, "missing field `function`");
    Fields g(*function, path + ".function");
    ToolDefinition t;
    t.name = g.required_text("name");
    t.description = g.text("description");
    t.strict = g.flag("strict");
    DI_TRY(g.status());
    DI_TRY(check_tool_name(t.name, path + ".function.name"));
    if (const Json* parameters = g.any("parameters")) {
      if (check_schema && !is_object_schema(*parameters))
        return refuse("{}.function.parameters must be a JSON Schema of type object", path);
      t.parameters = *parameters;
    }
    c_.tools.push_back(std::move(t));
    return {};
  }

  Status messages() {
    const Json* list = f_.array("messages");
    DI_TRY(f_.status());
    if (list->empty()) return refuse("Empty input messages");
    for (size_t i = 0; i < list->size(); ++i) DI_TRY(message((*list)[i], i, i + 1 == list->size()));
    return close_calls();
  }

  // The calls of the last assistant message must all be answered before anything else follows.
  Status close_calls() {
    if (pending_.empty()) return {};
    return refuse(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. (insufficient tool "
        "messages following tool_calls message)");
  }

  Status message(const Json& json, size_t i, bool last) {
    std::string path = fmt::format("messages.{}", i);
    Fields f(json, path);
    std::string role = f.required_text("role");
    DI_TRY(f.status());
    if (role == "tool") return tool_message(f, path);
    DI_TRY(close_calls());
    Message m;
    if (role == "system") {
      m.role = Role::kSystem;
      DI_TRY(content(f, path, role, false, &m.content));
      if (m.content.empty()) return {};
    } else if (role == "user") {
      DI_TRY(content(f, path, role, true, &m.content));
    } else if (role == "latest_reminder") {
      m.role = Role::kLatestReminder;
      m.content = f.required_text("content");
      DI_TRY(f.status());
    } else if (role == "assistant") {
      DI_TRY(assistant(f, i, last, &m));
    } else {
      return bad_body(path + ".role",
                      "unknown variant `" + role +
                          "`, expected one of `system`, `user`, `assistant`, `tool`, `latest_reminder`");
    }
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status assistant(Fields& f, size_t i, bool last, Message* m) {
    m->role = Role::kAssistant;
    const Json* calls = f.array("tool_calls");
    m->reasoning = f.text("reasoning_content");
    bool prefix = f.flag("prefix").value_or(false);
    DI_TRY(f.status());
    if (calls != nullptr && calls->empty()) {
      return refuse(
          "Invalid 'messages[{}].tool_calls': empty array. Expected an array with minimum length 1, but got "
          "an empty array instead.",
          i);
    }
    if (f.any("content") == nullptr && calls == nullptr)
      return refuse("Invalid assistant message: content or tool_calls must be set");
    if (f.any("content") != nullptr) DI_TRY(content(f, f.path(""), "assistant", false, &m->content));
    if (prefix && last) {
      if (!o_.allow_prefix)
        return refuse("{}.prefix: prefix continuation is served under the /beta base path only", f.path(""));
      m->prefix = true;
    }
    if (calls == nullptr) return {};
    for (size_t k = 0; k < calls->size(); ++k) {
      Fields g((*calls)[k], fmt::format("{}.tool_calls[{}]", f.path(""), k));
      ToolCall call;
      call.id = g.required_text("id");
      const Json* function = g.object("function");
      DI_TRY(g.status());
      if (function == nullptr) return bad_body(g.path(""), "missing field `function`");
      Fields h(*function, g.path("function"));
      call.name = h.required_text("name");
      call.arguments = h.required_text("arguments");
      DI_TRY(h.status());
      if (!pending_.insert(call.id).second)
        return refuse("Duplicate value for 'tool_call_id' of {} in message[{}]", call.id, i);
      m->tool_calls.push_back(std::move(call));
    }
    return {};
  }

  Status tool_message(Fields& f, const std::string& path) {
    Message m;
    m.role = Role::kTool;
    m.tool_call_id = f.required_text("tool_call_id");
    DI_TRY(f.status());
    if (pending_.empty())
      return refuse("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
    if (pending_.erase(m.tool_call_id) == 0) {
      return refuse(
          "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
          "'tool_call_id'. Unexpected "
          "tool_call_id: {}",
          m.tool_call_id);
    }
    DI_TRY(content(f, path, "tool", true, &m.content));
    c_.messages.push_back(std::move(m));
    return {};
  }

  Status content(Fields& f, const std::string& path, const std::string& role, bool images, Content* out) {
    const Json* v = f.any("content");
    if (v == nullptr) return bad_body(path, "missing field `content`");
    if (v->is_string()) {
      *out = Content(v->get<std::string>());
      return {};
    }
    if (!v->is_array()) return bad_body(path + ".content", "expected a string or an array");
    PartJoiner join(out);
    for (size_t k = 0; k < v->size(); ++k) {
      std::string here = fmt::format("{}.content[{}]", path, k);
      Fields p((*v)[k], here);
      std::string type = p.required_text("type");
      DI_TRY(p.status());
      if (type == "text") {
        join.text(p.required_text("text"));
        DI_TRY(p.status());
        continue;
      }
      if (type != "image_url" && type != "file")
        return bad_body(here + ".type",
                        "unknown variant `" + type + "`, expected one of `text`, `image_url`, `file`");
      if (!images) return refuse("Image in {} message is unsupported", role);
      Result<ImageSource> image = type == "file" ? file_part(p) : image_part(p);
      if (!image.ok()) return image.status();
      join.image(std::move(*image));
    }
    return {};
  }

  static Result<ImageSource> image_part(Fields& p) {
    const Json* v = p.object("image_url");
    DI_TRY(p.status());
    if (v == nullptr) return bad_body(p.path(""), "missing field `image_url`");
    Fields f(*v, p.path("image_url"));
    std::string url = f.required_text("url");
    std::optional<std::string> detail = f.text("detail");
    DI_TRY(f.status());
    DI_ASSIGN(ImageSource::Detail level, image_detail(detail, f.path("")));
    return image_from_url(url, level, p.path(""));
  }

  static Result<ImageSource> file_part(Fields& p) {
    const Json* v = p.object("file");
    DI_TRY(p.status());
    if (v == nullptr) return bad_body(p.path(""), "missing field `file`");
    Fields f(*v, p.path("file"));
    std::optional<std::string> data = f.text("file_data"), id = f.text("file_id");
    DI_TRY(f.status());
    if (id)
      return refuse("{}: file_id is not supported. Pass the image as a base64 data url instead.", p.path(""));
    if (!data) return refuse("{}: file must have a file_id or file_data", p.path(""));
    return image_from_url(*data, ImageSource::Detail::kHigh, p.path(""));
  }

  Status response_format() {
    const Json* format = f_.object("response_format");
    DI_TRY(f_.status());
    if (format == nullptr) return {};
    Fields f(*format, "response_format");
    std::string type = f.required_text("type");
    DI_TRY(f.status());
    if (type == "text") return {};
    if (type == "json_object") {
      if (!mentions_json(c_))
        return refuse(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type "
            "'json_object'.");
      c_.response_format = ResponseFormat::kJsonObject;
      return {};
    }
    if (type == "regex") return refuse("response_format: only text and json_object are supported");
    if (type != "json_schema") return bad_body("response_format.type", "unknown variant `" + type + "`");
    // The schema goes to constrained decoding; the prompt shows it only under a profile that says so.
    if (const Json* schema = f.object("json_schema")) {
      Fields g(*schema, "response_format.json_schema");
      if (const Json* inner = g.any("schema")) {
        c_.response_format = ResponseFormat::kJsonSchema;
        c_.response_schema = *inner;
      }
    }
    return f.status();
  }

  const Json& body_;
  const ConvertOptions& o_;
  Fields f_;
  ProtocolRequest r_;
  Conversation& c_ = r_.conversation;
  std::set<std::string> pending_;  // calls of the last assistant message without a result yet
};

}  // namespace

Result<ProtocolRequest> convert_chat(const Json& body, const ConvertOptions& options) {
  return Chat(body, options).run();
}

}  // namespace deepinfer
