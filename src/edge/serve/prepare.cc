// Bodies to generation requests (edge/serve/prepare.h).
#include "edge/serve/prepare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>

#include "edge/fields.h"
#include "edge/generate_request.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

// Seeds of requests that bring none must differ, or every greedy-free answer would be the same. The bytes of
// the prompt do not decide it: two clients asking the same get different answers.
uint64_t fresh_seed() {
  static std::atomic<uint64_t> counter{0};
  uint64_t x = static_cast<uint64_t>(wall_time_ns()) + 0x9e3779b97f4a7c15ull * ++counter;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) >> 1;
}

Json items_of(const Json& body) {
  const auto it = body.find("input");
  if (it == body.end() || it->is_null()) return Json::array();
  if (it->is_string()) return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *it}}});
  return it->is_array() ? *it : Json::array();
}

}  // namespace

Protocol protocol_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kResponses:
      return Protocol::kResponses;
    case Endpoint::kMessages:
      return Protocol::kMessages;
    default:
      return Protocol::kChat;
  }
}

bool ModelNames::known(Protocol protocol, const std::string& name) const {
  if (std::find(served.begin(), served.end(), name) != served.end()) return true;
  return vendor_names && resolve_model(protocol, name).has_value();
}

std::string cache_scope(const std::string& account, const std::optional<std::string>& user_id,
                        const std::string& salt) {
  return account + "\n" + (user_id ? "u" + *user_id : "-") + "\n" + salt;
}

Result<std::vector<int32_t>> Preparer::prompt_ids(const ProtocolRequest& request,
                                                  const std::string* scope) const {
  for (const Message& m : request.conversation.messages) {
    if (m.content.has_images())
      return error(
          Code::kUnsupported,
          "images are not supported by this server: it runs without a vision tower. Send text only.");
  }
  RenderOptions render = o_.render;
  if (scope != nullptr && o_.turns != nullptr) {
    render.turns = o_.turns.get();
    render.turns_scope = *scope;
  }
  DI_ASSIGN(std::vector<Span> spans, render_conversation(request.conversation, o_.control, render));
  return o_.encoder->encode(spans);
}

Result<std::vector<int32_t>> Preparer::tokenize(const Json& body) const {
  DI_ASSIGN(TokenizeRequest request, convert_tokenize(body, o_.convert));
  if (request.chat) return prompt_ids(*request.chat);
  const Tokenizer& t = o_.encoder->tokenizer();
  return request.special ? t.encode_with_added_tokens(request.prompt) : t.encode(request.prompt);
}

Result<Json> Preparer::inspect(const Json& body) const {
  Fields f(body, "");
  const std::string word = f.text("protocol").value_or("chat");
  DI_TRY(f.status());
  std::optional<Protocol> protocol = protocol_by_name(word);
  if (!protocol) return refuse("protocol must be chat, responses or messages");
  Json filled = body;
  if (!filled.contains("model")) filled["model"] = o_.models.served.front();
  auto r = *protocol == Protocol::kChat        ? convert_chat(filled, o_.convert)
           : *protocol == Protocol::kResponses ? convert_responses(filled, o_.convert)
                                               : convert_messages(filled, o_.convert);
  if (!r.ok()) return r.status();
  DI_ASSIGN(std::vector<int32_t> ids, prompt_ids(*r));
  DI_ASSIGN(std::vector<Span> spans, render_conversation(r->conversation, o_.control, o_.render));
  Json list = Json::array();
  for (const Span& s : spans) {
    const bool control = s.kind == Span::Kind::kControl;
    list.push_back({{"kind", control ? "control" : "text"},
                    {"origin", s.origin == Span::Origin::kTemplate ? "template" : "client"},
                    {"text", s.text},
                    {"tokens", control ? size_t{1} : o_.encoder->tokenizer().encode(s.text).size()}});
  }
  return Json{{"prompt_tokens", ids.size()}, {"spans", std::move(list)}, {"notes", r->notes}};
}

Result<Prepared> Preparer::prepare(Endpoint endpoint, const Json& body, const Json* previous,
                                   const std::string& account) const {
  Prepared out;
  out.endpoint = endpoint;
  if (endpoint != Endpoint::kResponses) {
    if (endpoint == Endpoint::kGenerate) {
      DI_ASSIGN(const Json completion, completion_of_generate(body, o_.models.served.front()));
      DI_TRY(complete(completion, &out));
    } else {
      DI_TRY(is_plain(endpoint) ? complete(body, &out) : convert(endpoint, body, account, &out));
    }
    return out;
  }
  if (!body.is_object()) return bad_body("", "expected an object");
  Fields f(body, "");
  out.store = f.flag("store").value_or(true);
  const bool background = f.flag("background").value_or(false);
  DI_TRY(f.status());
  if (background) return refuse("background: responses are made while the client waits; leave it out");
  out.input_items = items_of(body);
  if (previous != nullptr) {
    Json all = *previous;
    for (Json& item : out.input_items) all.push_back(std::move(item));
    out.input_items = std::move(all);
    Json continued = body;
    continued["input"] = out.input_items;
    DI_TRY(convert(endpoint, continued, account, &out));
  } else {
    DI_TRY(convert(endpoint, body, account, &out));
  }
  return out;
}

Status Preparer::convert(Endpoint endpoint, const Json& body, const std::string& account,
                         Prepared* out) const {
  const Protocol protocol = protocol_of(endpoint);
  Result<ProtocolRequest> converted = protocol == Protocol::kChat        ? convert_chat(body, o_.convert)
                                      : protocol == Protocol::kResponses ? convert_responses(body, o_.convert)
                                                                         : convert_messages(body, o_.convert);
  if (!converted.ok()) return converted.status();
  ProtocolRequest& r = *converted;
  if (!o_.models.known(protocol, r.model))
    return error(Code::kNotFound, "The model `{}` does not exist here. Served: {}.", r.model,
                 fmt::format("{}", fmt::join(o_.models.served, ", ")));
  auto extras = read_extras(body, o_.vocab_size);
  if (!extras.ok()) return extras.status();
  const std::string scope = cache_scope(account, r.user_id, extras->cache_salt);
  auto ids = prompt_ids(r, &scope);
  if (!ids.ok()) return ids.status();
  out->generation.prompt = std::move(*ids);
  out->generation.choices = r.n;
  out->parsing = r.parsing;
  out->stream = r.stream;
  out->user_id = r.user_id;
  out->previous_response_id = r.previous_response_id;
  out->info.model = r.model;
  out->info.thinking = r.conversation.thinking_mode;
  out->info.include_usage = r.include_usage;
  out->info.running_usage = r.running_usage;
  out->info.count_reasoning = true;
  out->info.custom_tools = r.custom_tools;
  out->forced_call = r.parsing.starts_in_calls;
  DI_TRY(finish(r.inference, r.conversation.thinking_mode, *extras, out));
  return constrain(r.conversation, !r.inference.disable_parallel_tool_use, *extras, out);
}

namespace {

// A prompt may be a list: of ids, or of one prompt. `body` gets the text, empty if there are ids.
Result<std::vector<int32_t>> take_prompt_list(int64_t vocab_size, Json* body) {
  Json list = std::move((*body)["prompt"]);
  if (list.size() == 1 && (list[0].is_string() || list[0].is_array())) list = Json(std::move(list[0]));
  (*body)["prompt"] = list.is_string() ? std::move(list) : Json("");
  std::vector<int32_t> ids;
  if (!list.is_array()) return ids;
  if (list.empty()) return refuse("prompt: a list of ids must not be empty");
  for (const Json& v : list) {
    if (v.is_string() || v.is_array())
      return refuse("prompt: one prompt per request; send several prompts as several requests");
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= vocab_size)
      return bad_body("prompt", "expected ids in [0, " + std::to_string(vocab_size) + ")");
    ids.push_back(static_cast<int32_t>(v.get<int64_t>()));
  }
  return ids;
}

}  // namespace

Status Preparer::complete(const Json& given, Prepared* out) const {
  std::vector<int32_t> ids;
  Json listed;
  if (const auto it = given.find("prompt"); given.is_object() && it != given.end() && it->is_array()) {
    listed = given;
    DI_ASSIGN(ids, take_prompt_list(o_.vocab_size, &listed));
  }
  const Json& body = listed.is_null() ? given : listed;
  auto converted = convert_completion(body, o_.convert);
  if (!converted.ok()) return converted.status();
  CompletionRequest& r = *converted;
  if (!o_.models.known(Protocol::kChat, r.model))
    return error(Code::kNotFound, "The model `{}` does not exist here. Served: {}.", r.model,
                 fmt::format("{}", fmt::join(o_.models.served, ", ")));
  Fields f(body, "");
  std::optional<int64_t> n = f.count("n");
  DI_TRY(f.status());
  if (n && (*n < 1 || *n > o_.convert.max_n)) return refuse("n must be in [1, {}]", o_.convert.max_n);
  auto spans = render_completion(r.prompt, r.suffix, o_.control);
  if (!spans.ok()) return spans.status();
  if (!ids.empty() && (r.suffix || r.echo))
    return refuse("suffix and echo need a prompt of text, not of ids");
  out->generation.prompt = ids.empty() ? o_.encoder->encode(*spans) : std::move(ids);
  out->generation.choices = static_cast<int>(n.value_or(1));
  out->parsing = r.parsing;
  out->stream = r.stream;
  if (r.echo) out->echo = r.prompt;
  out->info.model = r.model;
  out->info.thinking = false;
  auto extras = read_extras(body, o_.vocab_size);
  if (!extras.ok()) return extras.status();
  DI_TRY(finish(r.inference, false, *extras, out));
  return constrain({}, true, *extras, out);
}

Status Preparer::finish(const InferenceOptions& inference, bool thinking, const Extras& extras,
                        Prepared* out) const {
  GenerationRequest& g = out->generation;
  const int64_t prompt = static_cast<int64_t>(g.prompt.size());
  const std::optional<int64_t> asked =
      inference.max_tokens ? inference.max_tokens : extras.max_completion_tokens;
  if (o_.max_output_tokens > 0 && asked.value_or(0) > o_.max_output_tokens)
    return refuse("max_tokens {} is above this server's limit of {}", *asked, o_.max_output_tokens);
  auto most = resolve_max_tokens(asked, thinking, prompt, o_.context_tokens);
  if (!most.ok()) return most.status();
  g.max_tokens = o_.max_output_tokens > 0 ? std::min(*most, o_.max_output_tokens) : *most;
  if (g.max_tokens < 1) return refuse("max_tokens must be at least 1");
  if (extras.min_tokens > g.max_tokens)
    return refuse("min_tokens {} is above max_tokens {}", extras.min_tokens, g.max_tokens);
  g.min_tokens = extras.min_tokens;
  g.temperature =
      inference.temperature ? static_cast<double>(*inference.temperature) : o_.default_temperature;
  g.top_p = inference.top_p ? static_cast<double>(*inference.top_p) : o_.default_top_p;
  if (g.top_p <= 0) g.top_p = 1e-6;  // only the best token, which is what 0 asks for
  g.top_k = extras.top_k;
  g.min_p = extras.min_p;
  g.repetition_penalty = extras.repetition_penalty;
  g.frequency_penalty = extras.frequency_penalty;
  g.presence_penalty = extras.presence_penalty;
  g.logit_bias = extras.logit_bias;
  g.seed = inference.seed ? *inference.seed : fresh_seed();
  g.top_logprobs = inference.logprobs ? inference.top_logprobs : -1;
  g.prompt_logprobs = extras.prompt_logprobs;
  g.use_cache = extras.use_cache;
  g.timeout_ns = extras.timeout_ms.value_or(0) > 0
                     ? std::min<int64_t>(*extras.timeout_ms, 1'000'000'000) * 1'000'000
                     : 0;
  g.banned_ids = o_.banned;
  g.stop_ids = extras.stop_token_ids;
  if (extras.ignore_eos) {
    g.banned_ids.push_back(o_.control.eos);
  } else {
    g.stop_ids.push_back(o_.control.eos);
  }
  for (auto* ids : {&g.banned_ids, &g.stop_ids}) {
    std::sort(ids->begin(), ids->end());
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  }
  out->info.logprobs = inference.logprobs;
  out->cache_salt = extras.cache_salt;
  out->priority = extras.priority;
  return {};
}

namespace {

// What calls need beyond what the prompt says; nothing if the model may call as it likes.
std::optional<ConstraintSpec> call_constraint(const Conversation& c, bool parallel, const Prepared& p,
                                              bool v4) {
  if (!c.tools_shown()) return std::nullopt;
  const bool required = c.tool_choice == ToolChoice::kRequired || c.must_call;
  bool strict = false;
  Json tools = Json::array();
  for (const ToolDefinition& t : c.tools) {
    if (!c.callable.empty() && std::find(c.callable.begin(), c.callable.end(), t.name) == c.callable.end())
      continue;
    strict = strict || t.strict.value_or(false);
    tools.push_back({{"name", t.name}, {"parameters", t.parameters}, {"strict", t.strict.value_or(false)}});
  }
  if (!required && !strict && c.callable.empty() && parallel && c.response_format == ResponseFormat::kText)
    return std::nullopt;
  Json value = {{"tools", std::move(tools)},
                {"required", required},
                {"opener_in_prompt", p.forced_call},
                {"parallel", parallel},
                {"v4", v4}};
  if (!required && c.response_format == ResponseFormat::kJsonSchema) value["answer"] = c.response_schema;
  if (!required && c.response_format == ResponseFormat::kJsonObject) value["answer"] = {{"type", "object"}};
  return ConstraintSpec{ConstraintSpec::Kind::kTools, std::move(value), "tools", false};
}

// Whether the client counts on it: an answer without the grammar would break a promise.
bool promised(const Conversation& c) {
  return !c.callable.empty() || std::any_of(c.tools.begin(), c.tools.end(),
                                            [](const ToolDefinition& t) { return t.strict.value_or(false); });
}

}  // namespace

Status Preparer::constrain(const Conversation& c, bool parallel, const Extras& extras, Prepared* out) const {
  std::optional<ConstraintSpec> spec = extras.constraint;
  const char* format = out->endpoint == Endpoint::kResponses  ? "text.format"
                       : out->endpoint == Endpoint::kMessages ? "output_config.format"
                                                              : "response_format";
  if (spec && c.response_format == ResponseFormat::kJsonSchema)
    return refuse("{} and {}: only one kind of structured output per request", format, spec->field);
  if (spec && c.tools_shown() && (promised(c) || c.tool_choice == ToolChoice::kRequired || c.must_call))
    return refuse("tools and {}: only one kind of structured output per request", spec->field);
  if (!spec && (o_.constrains || promised(c)))
    spec = call_constraint(c, parallel, *out, o_.render.dialect == RenderOptions::Dialect::kV4);
  if (!spec && c.response_format == ResponseFormat::kJsonSchema)
    spec = ConstraintSpec{ConstraintSpec::Kind::kJsonSchema, c.response_schema, format, false};
  // JSON mode needs no constraint: the prompt asks for it and the parser finds the payload.
  if (!spec && c.response_format == ResponseFormat::kJsonObject && o_.constrains)
    spec = ConstraintSpec{ConstraintSpec::Kind::kJsonObject, {}, format, false};
  if (!spec) return {};
  if (!o_.constrains)
    return error(Code::kUnsupported,
                 "{}: constrained decoding is not available on this server. Ask for JSON in words with "
                 "response_format {{\"type\": \"json_object\"}}.",
                 spec->field);
  spec->after_thinking =
      out->parsing.stage == ReasoningStage::kStart || out->parsing.stage == ReasoningStage::kReasoning;
  out->constraint = std::move(spec);
  return {};
}

}  // namespace deepinfer
