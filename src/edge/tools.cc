// The report of `deepinfer render` and the piece reader of `deepinfer parse` (edge/tools.h).
#include "edge/tools.h"

#include "edge/errors.h"
#include "edge/fields.h"

namespace deepinfer {
namespace {

Json span_json(const Span& s) {
  const char* origin = s.origin == Span::Origin::kTemplate ? "template" : "client";
  switch (s.kind) {
    case Span::Kind::kControl:
      return {{"kind", "control"}, {"id", s.id}, {"text", s.text}, {"origin", origin}};
    case Span::Kind::kImage:
      return {{"kind", "image"},
              {"id", s.id},
              {"text", s.text},
              {"origin", origin},
              {"image_tokens", s.image_tokens > 0 ? Json(s.image_tokens) : Json()}};
    case Span::Kind::kSampled:
      return {{"kind", "sampled"}, {"ids", s.ids}, {"origin", origin}};
    case Span::Kind::kText:
      break;
  }
  return {{"kind", "text"}, {"text", s.text}, {"origin", origin}};
}

template <typename T>
Json optional_json(const std::optional<T>& v) {
  return v ? Json(*v) : Json();
}

const char* stage_name(ReasoningStage stage) {
  switch (stage) {
    case ReasoningStage::kStart:
      return "start";
    case ReasoningStage::kReasoning:
      return "reasoning";
    case ReasoningStage::kContent:
      return "content";
    case ReasoningStage::kNone:
      break;
  }
  return "none";
}

Json counts(const std::vector<Span>& spans, size_t ids) {
  int64_t images = 0, unknown = 0, prompt = static_cast<int64_t>(ids), client = 0;
  for (const Span& s : spans) {
    if (s.kind == Span::Kind::kText && s.origin == Span::Origin::kClient)
      client += static_cast<int64_t>(s.text.size());
    if (s.kind != Span::Kind::kImage) continue;
    ++images;
    if (s.image_tokens > 0) prompt += s.image_tokens - 1;
    if (s.image_tokens <= 0) ++unknown;
  }
  // prompt_tokens counts an image of unknown size as its one placeholder.
  return {{"spans", spans.size()},
          {"token_ids", ids},
          {"prompt_tokens", prompt},
          {"images", images},
          {"images_of_unknown_size", unknown},
          {"client_text_bytes", client}};
}

Json refused(const Status& status, Protocol protocol) {
  Json report = parse_json(error_body(status, protocol)).value();
  report["status"] = http_status(status);
  return report;
}

}  // namespace

Json render_report(Protocol protocol, std::string_view body, const ConvertOptions& convert,
                   const RenderOptions& render, PromptEncoder* encoder, bool* ok) {
  *ok = false;
  Result<ProtocolRequest> request = convert_request(protocol, body, convert);
  if (!request.ok()) return refused(request.status(), protocol);
  Result<ControlTokens> control = ControlTokens::from_tokenizer(encoder->tokenizer());
  if (!control.ok()) return refused(control.status(), protocol);
  Result<std::vector<Span>> spans = render_conversation(request->conversation, *control, render);
  if (!spans.ok()) return refused(spans.status(), protocol);
  std::vector<int32_t> ids = encoder->encode(*spans);
  *ok = true;
  Json list = Json::array();
  for (const Span& s : *spans) list.push_back(span_json(s));
  const InferenceOptions& i = request->inference;
  const ParsingOptions& p = request->parsing;
  return {{"spans", std::move(list)},
          {"text", spans_text(*spans)},
          {"token_ids", ids},
          {"counts", counts(*spans, ids.size())},
          {"model", request->model},
          {"stream", request->stream},
          {"inference",
           {{"max_tokens", optional_json(i.max_tokens)},
            {"temperature", optional_json(i.temperature)},
            {"top_p", optional_json(i.top_p)},
            {"seed", optional_json(i.seed)},
            {"thinking_budget_tokens", optional_json(i.thinking_budget_tokens)},
            {"disable_parallel_tool_use", i.disable_parallel_tool_use},
            {"logprobs", i.logprobs},
            {"top_logprobs", i.top_logprobs}}},
          {"parsing",
           {{"thinking", request->conversation.thinking_mode},
            {"stage", stage_name(p.stage)},
            {"parse_tool_calls", p.parse_tool_calls},
            {"starts_in_calls", p.starts_in_calls},
            {"parse_json_output", p.parse_json_output},
            {"stop", p.stop_sequences},
            {"custom_tools", request->custom_tools}}},
          {"notes", request->notes}};
}

Result<ParseSettings> parse_settings(const Json& options) {
  ParseSettings s;
  Fields f(options, "");
  auto texts = [&](const char* name, std::vector<std::string>* out) {
    const Json* list = f.array(name);
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      if (!(*list)[i].is_string()) return f.fail(name, "strings");
      out->push_back((*list)[i].get<std::string>());
    }
  };
  s.info.id = f.text("id").value_or("R");
  s.info.model = f.text("model").value_or("deepseek-flash");
  s.info.created = f.count("created").value_or(0);
  s.info.completed = f.count("completed").value_or(0);
  s.info.thinking = f.flag("thinking").value_or(true);
  s.info.include_usage = f.flag("include_usage").value_or(false);
  s.info.trailing_usage = f.flag("trailing_usage").value_or(false);
  s.info.count_reasoning = f.flag("count_reasoning").value_or(false);
  s.info.logprobs = f.flag("logprobs").value_or(false);
  s.info.signature = f.text("signature").value_or("");
  texts("custom_tools", &s.info.custom_tools);
  texts("stop", &s.parsing.stop_sequences);
  s.parsing.parse_tool_calls = f.flag("parse_tool_calls").value_or(true);
  s.parsing.starts_in_calls = f.flag("starts_in_calls").value_or(false);
  s.parsing.parse_json_output = f.flag("parse_json_output").value_or(false);
  if (const Json* tools = f.object("argument_types")) {
    for (auto tool = tools->begin(); tool != tools->end(); ++tool) {
      if (!tool->is_object()) return bad_body("argument_types", "expected objects of tools");
      for (auto argument = tool->begin(); argument != tool->end(); ++argument) {
        if (*argument != "string" && *argument != "json")
          return bad_body("argument_types", "expected string or json");
        s.parsing.argument_types[tool.key()][argument.key()] =
            *argument == "string" ? ArgumentType::kString : ArgumentType::kJson;
      }
    }
  }
  std::string stage = f.text("stage").value_or(s.info.thinking ? "start" : "none");
  std::string markers = f.text("markers").value_or("id");
  DI_TRY(f.status());
  bool known = false;
  for (ReasoningStage each : {ReasoningStage::kNone, ReasoningStage::kStart, ReasoningStage::kReasoning,
                              ReasoningStage::kContent}) {
    if (stage != stage_name(each)) continue;
    s.parsing.stage = each;
    known = true;
  }
  if (!known) return bad_body("stage", "expected none, start, reasoning or content");
  if (markers != "id" && markers != "text") return bad_body("markers", "expected id or text");
  s.parser.markers_by_spelling = markers == "text";
  return s;
}

namespace {

class PieceReader {
 public:
  PieceReader(Protocol protocol, const Tokenizer& tokenizer, const ControlTokens& control,
              const ParseSettings& settings, std::vector<Event>* events)
      : parser_(&tokenizer, control, settings.parsing, settings.parser), events_(events) {
    ResponseInfo info = settings.info;
    info.tokenizer = &tokenizer;
    writer_ = make_writer(protocol, std::move(info));
  }

  Status line(const std::string& text) {
    DI_ASSIGN(Json v, parse_json(text));
    DI_TRY(piece(v));
    deliver();
    return {};
  }
  std::string end() {
    parser_.end(&chunks_);
    deliver();
    return writer_->final_object();
  }

 private:
  Status piece(const Json& v) {
    if (v.is_string()) {
      parser_.text(v.get_ref<const std::string&>(), 1, &chunks_);
      return {};
    }
    if (v.is_number_integer()) return token(v, nullptr);
    Fields f(v, "");
    if (const Json* ready = f.object("ready")) {
      Fields g(*ready, "ready");
      std::optional<std::string> fingerprint = g.text("fingerprint");
      int64_t prompt = g.count("prompt_tokens").value_or(0), hit = g.count("cache_hit_tokens").value_or(0);
      DI_TRY(g.status());
      parser_.ready(fingerprint, prompt, hit);
    } else if (f.any("token") != nullptr) {
      TokenLogprob logprob;
      logprob.logprob = f.number("logprob").value_or(0);
      if (const Json* top = f.array("top")) {
        for (const Json& t : *top) {
          if (!t.is_array() || t.size() != 2 || !t[0].is_number_integer() || !t[1].is_number())
            return bad_body("top", "expected [id, logprob] pairs");
          logprob.top.emplace_back(t[0].get<int32_t>(), t[1].get<double>());
        }
      }
      DI_TRY(f.status());
      return token(*f.any("token"), f.any("logprob") != nullptr ? &logprob : nullptr);
    } else if (f.any("text") != nullptr) {
      std::string text = f.text("text").value_or("");
      int64_t tokens = f.count("tokens").value_or(1);
      DI_TRY(f.status());
      parser_.text(text, tokens, &chunks_);
    } else if (const Json* tokens = f.array("tokens")) {
      for (const Json& id : *tokens) DI_TRY(token(id, nullptr));
    } else if (std::optional<std::string> reason = f.text("finish")) {
      return finish(*reason);
    } else if (f.status().ok()) {
      return bad_body("", "expected ready, token, tokens, text or finish");
    }
    return f.status();
  }

  Status token(const Json& id, TokenLogprob* logprob) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      return bad_body("token", "expected an id");
    auto value = static_cast<int32_t>(id.get<int64_t>());
    if (logprob != nullptr) logprob->id = value;
    parser_.token(value, &chunks_, logprob);
    return {};
  }

  Status finish(const std::string& reason) {
    const std::pair<const char*, EngineFinish> known[] = {
        {"stop", EngineFinish::kStop},
        {"length", EngineFinish::kLength},
        {"content_filter", EngineFinish::kContentFilter},
        {"insufficient_system_resource", EngineFinish::kInsufficientResource},
        {"aborted", EngineFinish::kAborted}};
    for (auto& [name, value] : known) {
      if (reason != name) continue;
      parser_.finish(value, &chunks_);
      return {};
    }
    return bad_body("finish", "unknown value '" + reason + "'");
  }

  void deliver() {
    for (const OutputChunk& chunk : chunks_) writer_->write(chunk, events_);
    chunks_.clear();
  }

  OutputParser parser_;
  std::unique_ptr<ResponseWriter> writer_;
  std::vector<OutputChunk> chunks_;
  std::vector<Event>* events_;
};

}  // namespace

Status parse_pieces(std::istream& in, Protocol protocol, const Tokenizer& tokenizer,
                    const ControlTokens& control, const ParseSettings& settings, std::vector<Event>* events,
                    std::string* final_object) {
  PieceReader reader(protocol, tokenizer, control, settings, events);
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    if (Status s = reader.line(text); !s.ok()) return s.with_context(fmt::format("line {}", number));
  }
  *final_object = reader.end();
  return {};
}

}  // namespace deepinfer
