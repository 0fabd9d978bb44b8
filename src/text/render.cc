// The template, word for word, and the order of messages before it is written (text/render.h).
#include "text/render.h"

#include <algorithm>
#include <list>
#include <unordered_map>

#include "model/images.h"

namespace deepinfer {
namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";

// {c} {i} {p}: the tag names calls, invoke, parameter of the dialect; {S}: one schema per line. Control
// spellings in this constant are control tokens, the schemas are client text (specification 3.5.1).
constexpr std::string_view kToolsHead =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "
    "\"<｜DSML｜{c}>\" block like "
    "the following:\n\n"
    "<｜DSML｜{c}>\n"
    "<｜DSML｜{i} name=\"$TOOL_NAME\">\n"
    "<｜DSML｜{p} name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜{p}>\n"
    "...\n"
    "</｜DSML｜{i}>\n"
    "<｜DSML｜{i} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜{i}>\n"
    "</｜DSML｜{c}>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
    "booleans, arrays, objects), pass "
    "the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool "
    "calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

struct Tags {
  std::string_view calls, invoke, parameter;
};
constexpr Tags kTagsV41 = {" calls", " invoke", " parameter"};
constexpr Tags kTagsV4 = {"tool_calls", "invoke", "parameter"};

std::string with_tags(std::string_view text, const Tags& tags) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' && i + 2 < text.size() && text[i + 2] == '}') {
      char which = text[i + 1];
      out += which == 'c' ? tags.calls : which == 'i' ? tags.invoke : tags.parameter;
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

int effort_number(const std::optional<Effort>& effort) {
  if (!effort) return 75;
  return *effort == Effort::kLow ? 50 : *effort == Effort::kMax ? 100 : 75;
}

class Renderer {
 public:
  Renderer(const Conversation& conversation, const ControlTokens& control, const RenderOptions& options)
      : c_(conversation),
        control_(control),
        options_(options),
        tags_(options.dialect == RenderOptions::Dialect::kV4 ? kTagsV4 : kTagsV41) {}

  Result<std::vector<Span>> run() {
    order_messages();
    put(control_.bos, "<｜begin▁of▁sentence｜>");
    for (size_t i = 0; i < order_.size(); ++i) message(i);
    if (order_.empty() || !order_.back()->prefix) tail();
    if (!missing_.empty()) {
      return error(Code::kUnsupported, "this model's vocabulary has no {} token, which the request needs",
                   missing_);
    }
    return std::move(spans_);
  }

 private:
  void put(int32_t id, std::string_view spelling) {
    if (id < 0 && missing_.empty()) missing_ = spelling;
    spans_.push_back({Span::Kind::kControl, Span::Origin::kTemplate, id, std::string(spelling), 0});
  }
  void text(std::string_view text, Span::Origin origin) {
    if (text.empty()) return;
    if (!spans_.empty() && spans_.back().kind == Span::Kind::kText && spans_.back().origin == origin) {
      spans_.back().text += text;
    } else {
      spans_.push_back({Span::Kind::kText, origin, 0, std::string(text), 0});
    }
  }
  void client(std::string_view s) { text(s, Span::Origin::kClient); }
  // Template text: its control spellings become control tokens.
  void fixed(std::string_view s) {
    while (!s.empty()) {
      size_t at = std::min({s.find(kThinkOpen), s.find(kThinkClose), s.find(kDsml)});
      text(s.substr(0, at), Span::Origin::kTemplate);
      if (at == s.npos) return;
      s.remove_prefix(at);
      std::string_view which = s.starts_with(kThinkOpen)    ? kThinkOpen
                               : s.starts_with(kThinkClose) ? kThinkClose
                                                            : kDsml;
      put(which == kThinkOpen    ? control_.think_open
          : which == kThinkClose ? control_.think_close
                                 : control_.dsml,
          which);
      s.remove_prefix(which.size());
    }
  }
  void content(const Content& content) {
    for (const Content::Part& part : content.parts) {
      if (!part.is_image) {
        client(part.text);
        continue;
      }
      if (control_.image < 0 && missing_.empty()) missing_ = "<｜image｜>";
      spans_.push_back({Span::Kind::kImage, Span::Origin::kClient, control_.image, "<｜image｜>",
                        image_tokens(part.image.width, part.image.height)});
    }
  }

  bool v4() const { return options_.dialect == RenderOptions::Dialect::kV4; }
  bool format_shown() const {
    return c_.response_format == ResponseFormat::kJsonObject ||
           (c_.response_format == ResponseFormat::kJsonSchema && options_.schema_in_prompt);
  }

  // Specification 3.3: tool results in the order of their calls, a system message in front where sections
  // need one, and V4's system rule.
  void order_messages() {
    for (const Message& m : c_.messages) order_.push_back(&m);
    if (v4()) move_system_v4();
    sort_tool_results();
    bool needs_system = c_.tools_shown() || format_shown();
    if (needs_system && (order_.empty() || order_.front()->role != Role::kSystem)) {
      Message& m = own_.emplace_back();
      m.role = Role::kSystem;
      order_.insert(order_.begin(), &m);
    }
    for (size_t k = 0; k < order_.size(); ++k) {
      if (order_[k]->role == Role::kUser || order_[k]->role == Role::kSystem) last_user_ = k;
    }
  }

  // V4 knows one system text, at the start; later non-empty ones are user text there.
  void move_system_v4() {
    std::vector<const Message*> rest;
    Message* head = nullptr;
    for (const Message* m : order_) {
      if (m->role != Role::kSystem) {
        rest.push_back(m);
      } else if (rest.empty()) {
        if (head == nullptr) {
          head = &own_.emplace_back(*m);
        } else {
          head->content.add_text("\n\n" + m->content.text());
        }
      } else if (!m->content.empty()) {
        Message& user = own_.emplace_back(*m);
        user.role = Role::kUser;
        rest.push_back(&user);
      }
    }
    if (head != nullptr) rest.insert(rest.begin(), head);
    order_ = std::move(rest);
  }

  void sort_tool_results() {
    std::unordered_map<std::string, size_t> rank;  // of the nearest earlier assistant with calls
    for (size_t i = 0; i < order_.size();) {
      const Message& m = *order_[i];
      if (m.role == Role::kAssistant && !m.tool_calls.empty()) {
        rank.clear();
        for (const ToolCall& call : m.tool_calls) rank.emplace(call.id, rank.size());
      }
      size_t end = i;
      std::vector<size_t> at;
      while (end < order_.size() && is_turn(*order_[end])) {
        if (order_[end]->role == Role::kTool) at.push_back(end);
        ++end;
      }
      if (at.size() > 1) {
        std::vector<const Message*> results;
        for (size_t k : at) results.push_back(order_[k]);
        auto key = [&](const Message* r) {
          auto it = rank.find(r->tool_call_id);
          return it == rank.end() ? size_t{0} : it->second;
        };
        std::stable_sort(results.begin(), results.end(), [&](auto* a, auto* b) { return key(a) < key(b); });
        for (size_t k = 0; k < at.size(); ++k) order_[at[k]] = results[k];
      }
      i = end == i ? i + 1 : end;
    }
  }
  static bool is_turn(const Message& m) { return m.role == Role::kUser || m.role == Role::kTool; }

  void message(size_t i) {
    const Message& m = *order_[i];
    if (i == 0) head(m);
    switch (m.role) {
      case Role::kSystem:
        if (i > 0) put(control_.system, "<｜System｜>");
        content(m.content);
        if (i == 0) sections();
        return;
      case Role::kUser:
      case Role::kTool:
        turn_opener(i);
        if (m.role == Role::kTool) fixed("<tool_result>");
        content(m.content);
        if (m.role == Role::kTool) fixed("</tool_result>");
        if (!m.task.empty()) task(m.task);
        return;
      case Role::kLatestReminder:
        put(control_.latest_reminder, "<｜latest_reminder｜>");
        content(m.content);
        return;
      case Role::kAssistant:
        assistant(i, m);
    }
  }

  void head(const Message& first) {
    bool effort = c_.thinking_mode && !v4();
    if (!v4() && (effort || first.role == Role::kSystem)) put(control_.system, "<｜System｜>");
    if (effort) {
      fixed(fmt::format(
          "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
          effort_number(c_.effort)));
    }
  }

  void turn_opener(size_t i) {
    if (i > 0 && is_turn(*order_[i - 1])) {
      fixed("\n\n");
    } else {
      put(control_.user, "<｜User｜>");
    }
  }

  void sections() {
    if (c_.tools_shown()) {
      fixed("\n\n");
      fixed(with_tags(kToolsHead, tags_));
      for (size_t i = 0; i < c_.tools.size(); ++i) {
        if (i > 0) fixed("\n");
        client(tool_line(c_.tools[i]));
      }
      fixed(kToolsTail);
    }
    if (format_shown()) {
      fixed("\n\n");
      fixed(kFormatHead);
      if (c_.response_format == ResponseFormat::kJsonObject) {
        fixed(R"({"type": "json_object"})");
      } else {
        client(to_python_json(c_.response_schema));
      }
    }
  }
  static std::string tool_line(const ToolDefinition& tool) {
    Json line = Json::object();
    line["name"] = tool.name;
    line["description"] = tool.description.value_or("");
    line["parameters"] = tool.parameters;
    return to_python_json(line);
  }

  // A task turn's token stands after the user text; "action" also opens the assistant's turn
  // (specification 3.8).
  void task(const std::string& name) {
    if (name == "action") {
      put(control_.assistant, "<｜Assistant｜>");
      c_.thinking_mode ? put(control_.think_open, kThinkOpen) : put(control_.think_close, kThinkClose);
    }
    auto it = control_.tasks.find(name);
    put(it == control_.tasks.end() ? -1 : it->second, "<｜" + name + "｜>");
  }

  // The task turn has written whatever header there is; no think part.
  void task_answer(const Message& m) {
    content(m.content);
    if (!m.tool_calls.empty()) call_block(m.tool_calls);
    if (!m.without_eos) put(control_.eos, "<｜end▁of▁sentence｜>");
  }

  bool reasoning_kept(size_t i) const {
    if (order_[i]->prefix || c_.tools_shown()) return true;
    switch (options_.history) {
      case HistoryPolicy::kKeepAll:
        return true;
      case HistoryPolicy::kKeepWithTools:
        return false;
      case HistoryPolicy::kDropBeforeLastUser:
        break;
    }
    return i >= last_user_;
  }

  // A turn as the model sampled it, if the memory has it; the header and the end are the template's.
  bool sampled(const Message& m, bool thinking) {
    if (options_.turns == nullptr || m.prefix) return false;
    std::shared_ptr<const SampledTurn> turn = options_.turns->find(options_.turns_scope, m, thinking);
    if (turn == nullptr) return false;
    put(thinking ? control_.think_open : control_.think_close, thinking ? kThinkOpen : kThinkClose);
    if (turn->forced_call) call_opener();
    spans_.push_back({Span::Kind::kSampled, Span::Origin::kTemplate, 0, "", 0, turn->ids});
    return true;
  }

  void assistant(size_t i, const Message& m) {
    if (i > 0 && !order_[i - 1]->task.empty()) return task_answer(m);
    put(control_.assistant, "<｜Assistant｜>");
    bool thinking = c_.thinking_mode && i > 0 && reasoning_kept(i);
    if (sampled(m, thinking)) {
      if (!m.without_eos) put(control_.eos, "<｜end▁of▁sentence｜>");
      return;
    }
    if (thinking) {
      put(control_.think_open, kThinkOpen);
      client(m.reasoning.value_or(""));
      // A continued turn without content is still thinking.
      if (!m.prefix || !m.content.empty()) put(control_.think_close, kThinkClose);
    } else {
      put(control_.think_close, kThinkClose);
    }
    content(m.content);
    if (!m.tool_calls.empty()) call_block(m.tool_calls);
    if (!m.prefix && !m.without_eos) put(control_.eos, "<｜end▁of▁sentence｜>");
  }

  void open(std::string_view tag, std::string_view name) {
    fixed(fmt::format("<{}{} name=\"", kDsml, tag));
    client(name);
    fixed("\"");
  }
  void close(std::string_view tag) { fixed(fmt::format("</{}{}>", kDsml, tag)); }

  void call_opener() { fixed(fmt::format("\n\n<{}{}>\n", kDsml, tags_.calls)); }

  void call_block(const std::vector<ToolCall>& calls) {
    call_opener();
    for (const ToolCall& call : calls) {
      open(tags_.invoke, call.name);
      fixed(">\n");
      arguments(call.arguments);
      fixed("\n");
      close(tags_.invoke);
      fixed("\n");
    }
    close(tags_.calls);
  }

  void arguments(const std::string& json) {
    Result<Json> parsed = parse_json(json);
    if (!parsed.ok() || !parsed->is_object()) {
      parameter("arguments", json, true);
      return;
    }
    bool first = true;
    for (auto& [key, value] : parsed->items()) {
      if (!first) fixed("\n");
      first = false;
      parameter(key, value.is_string() ? value.get_ref<const std::string&>() : to_python_json(value),
                value.is_string());
    }
  }

  void parameter(std::string_view key, std::string_view value, bool is_string) {
    open(tags_.parameter, key);
    fixed(is_string ? " string=\"true\">" : " string=\"false\">");
    client(value);
    close(tags_.parameter);
  }

  void tail() {
    if (!order_.empty() && !order_.back()->task.empty()) return;
    put(control_.assistant, "<｜Assistant｜>");
    c_.thinking_mode ? put(control_.think_open, kThinkOpen) : put(control_.think_close, kThinkClose);
    if (c_.tool_choice == ToolChoice::kRequired && !c_.tools.empty()) call_opener();
  }

  const Conversation& c_;
  const ControlTokens& control_;
  const RenderOptions& options_;
  Tags tags_;
  std::vector<const Message*> order_;
  size_t last_user_ = 0;  // place of the last user-like message
  std::vector<Span> spans_;
  std::string missing_;
  std::list<Message> own_;  // messages made here; a list keeps their addresses
};

}  // namespace

Result<ControlTokens> ControlTokens::from_tokenizer(const Tokenizer& t) {
  ControlTokens c;
  struct Entry {
    int32_t* id;
    const char* spelling;
    bool required;
  };
  for (const Entry& e : std::initializer_list<Entry>{
           {&c.bos, "<｜begin▁of▁sentence｜>", true},
           {&c.eos, "<｜end▁of▁sentence｜>", true},
           {&c.user, "<｜User｜>", true},
           {&c.assistant, "<｜Assistant｜>", true},
           {&c.think_open, "<think>", true},
           {&c.think_close, "</think>", true},
           {&c.dsml, "｜DSML｜", true},
           {&c.system, "<｜System｜>", false},
           {&c.latest_reminder, "<｜latest_reminder｜>", false},
           {&c.image, "<｜image｜>", false},
           {&c.fim_begin, "<｜fim▁begin｜>", false},
           {&c.fim_hole, "<｜fim▁hole｜>", false},
           {&c.fim_end, "<｜fim▁end｜>", false},
       }) {
    *e.id = t.added_token_id(e.spelling);
    if (e.required && *e.id < 0)
      return error(Code::kInvalidData, "the tokenizer has no added token '{}'", e.spelling);
  }
  for (const char* task : {"action", "query", "authority", "domain", "title", "read_url"}) {
    int32_t id = t.added_token_id(fmt::format("<｜{}｜>", task));
    if (id >= 0) c.tasks[task] = id;
  }
  return c;
}

ControlTokens ControlTokens::released() {
  ControlTokens c;
  c.bos = 0, c.eos = 1, c.system = 128799, c.fim_hole = 128800, c.fim_begin = 128801, c.fim_end = 128802;
  c.user = 128803, c.assistant = 128804, c.think_open = 128821, c.think_close = 128822, c.dsml = 128825;
  c.latest_reminder = 128828, c.image = 129264;
  return c;
}

Result<std::vector<Span>> render_conversation(const Conversation& conversation, const ControlTokens& control,
                                              const RenderOptions& options) {
  return Renderer(conversation, control, options).run();
}

ReasoningStage initial_stage(const Conversation& c) {
  if (!c.messages.empty() && c.messages.back().prefix) {
    const Message& m = c.messages.back();
    if (!c.thinking_mode || !m.content.empty()) return ReasoningStage::kContent;
    return m.reasoning && !m.reasoning->empty() ? ReasoningStage::kReasoning : ReasoningStage::kStart;
  }
  return c.thinking_mode ? ReasoningStage::kStart : ReasoningStage::kNone;
}

Result<std::vector<Span>> render_completion(const std::string& prompt,
                                            const std::optional<std::string>& suffix,
                                            const ControlTokens& control) {
  auto mark = [](int32_t id, const char* spelling) {
    return Span{Span::Kind::kControl, Span::Origin::kTemplate, id, spelling, 0};
  };
  auto client = [](const std::string& text) {
    return Span{Span::Kind::kText, Span::Origin::kClient, 0, text, 0};
  };
  std::vector<Span> spans = {mark(control.bos, "<｜begin▁of▁sentence｜>")};
  if (!suffix) {
    spans.push_back(client(prompt));
    return spans;
  }
  if (control.fim_begin < 0 || control.fim_hole < 0 || control.fim_end < 0) {
    return error(Code::kUnsupported,
                 "this model's vocabulary has no fill-in-the-middle tokens; send no suffix");
  }
  spans.push_back(mark(control.fim_begin, "<｜fim▁begin｜>"));
  spans.push_back(client(prompt));
  spans.push_back(mark(control.fim_hole, "<｜fim▁hole｜>"));
  spans.push_back(client(*suffix));
  spans.push_back(mark(control.fim_end, "<｜fim▁end｜>"));
  return spans;
}

std::string spans_text(const std::vector<Span>& spans) {
  std::string out;
  for (const Span& s : spans) out += s.text;
  return out;
}

int64_t image_tokens(int64_t width, int64_t height) {
  constexpr int64_t kMaxSide = int64_t{1} << 24;
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide) return 0;
  return plan_image(width, height, VisionConfig{}).span_tokens;
}

}  // namespace deepinfer
