// Profiles, the conversion entry point, and the rules that need the prompt's length (edge/request.h).
#include "edge/fields.h"

namespace deepinfer {

std::optional<Profile> profile_by_name(std::string_view name) {
  if (name == "api") return Profile::kApi;
  if (name == "hosted_strict") return Profile::kHostedStrict;
  if (name == "hf_reference") return Profile::kHfReference;
  if (name == "v4") return Profile::kV4;
  if (name == "recipe_0_2") return Profile::kRecipe02;
  return std::nullopt;
}

std::optional<Protocol> protocol_by_name(std::string_view name) {
  if (name == "chat") return Protocol::kChat;
  if (name == "responses") return Protocol::kResponses;
  if (name == "messages") return Protocol::kMessages;
  return std::nullopt;
}

ConvertOptions convert_options(Profile profile) {
  ConvertOptions o;
  if (profile == Profile::kHostedStrict) {
    o.require_reasoning_back = o.check_models = true;
    o.allow_prefix = false;
  }
  if (profile == Profile::kRecipe02) {
    o.image_literal_is_text = o.developer_is_system = o.messages_system_in_place = true;
  }
  return o;
}

RenderOptions render_options(Profile profile) {
  RenderOptions o;
  if (profile == Profile::kV4) o.dialect = RenderOptions::Dialect::kV4;
  if (profile == Profile::kV4 || profile == Profile::kHfReference)
    o.history = HistoryPolicy::kDropBeforeLastUser;
  if (profile == Profile::kRecipe02) {
    o.history = HistoryPolicy::kKeepWithTools;
    o.schema_in_prompt = true;
  }
  return o;
}

Result<ProtocolRequest> convert_request(Protocol protocol, std::string_view body,
                                        const ConvertOptions& options) {
  DI_ASSIGN(Json json, parse_json(body));
  switch (protocol) {
    case Protocol::kChat:
      return convert_chat(json, options);
    case Protocol::kResponses:
      return convert_responses(json, options);
    case Protocol::kMessages:
      break;
  }
  return convert_messages(json, options);
}

std::string cache_identity(std::string_view account, const std::optional<std::string>& user_id) {
  // The account's length in front: no choice of names can spell another pair.
  std::string out = fmt::format("{}:{}", account.size(), account);
  if (user_id) out += "/" + *user_id;
  return out;
}

Result<int64_t> resolve_max_tokens(const std::optional<int64_t>& requested, bool thinking,
                                   int64_t prompt_tokens, int64_t context_limit) {
  constexpr int64_t kDefault = 8192, kDefaultThinking = 65536;
  int64_t room = context_limit - prompt_tokens;
  // What the message calls "requested": without a wish of the client one token must fit.
  int64_t asked = requested.value_or(1);
  if (asked > room) {
    // The sum is written from parts that cannot overflow: a limit near 2^63 is legal JSON.
    int64_t total = asked > INT64_MAX - prompt_tokens ? INT64_MAX : prompt_tokens + asked;
    return refuse(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
        "messages, {} in the completion). "
        "Please reduce the length of the messages or completion.",
        context_limit, total, prompt_tokens, asked);
  }
  if (requested) return *requested;
  return std::min(thinking ? kDefaultThinking : kDefault, room);
}

Result<TokenizeRequest> convert_tokenize(const Json& body, const ConvertOptions& options) {
  Fields f(body, "");
  TokenizeRequest out;
  std::optional<std::string> prompt = f.text("prompt");
  out.special = f.flag("special").value_or(false);
  DI_TRY(f.status());
  if (prompt) {
    out.prompt = std::move(*prompt);
    return out;
  }
  if (f.any("messages") == nullptr) return bad_body("", "missing field `prompt` or `messages`");
  DI_ASSIGN(out.chat, convert_chat(body, options));
  return out;
}

Result<std::vector<int32_t>> convert_detokenize(const Json& body) {
  Fields f(body, "");
  const Json* tokens = f.array("tokens");
  DI_TRY(f.status());
  if (tokens == nullptr) return bad_body("", "missing field `tokens`");
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    bool fits = id.is_number_integer() && (!id.is_number_unsigned() || id.get<uint64_t>() <= INT32_MAX) &&
                id.get<int64_t>() >= 0;
    if (!fits) return bad_body("tokens", "expected token ids");
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return ids;
}

Result<CompletionRequest> convert_completion(const Json& body, const ConvertOptions& options) {
  if (!body.is_object()) return bad_body("", "expected an object");
  ProtocolRequest common;
  CompletionRequest out;
  Fields f(body, "");
  out.model = f.required_text("model");
  out.prompt = f.required_text("prompt");
  out.suffix = f.text("suffix");
  out.echo = f.flag("echo").value_or(false);
  out.stream = f.flag("stream").value_or(false);
  std::optional<int64_t> logprobs = f.count("logprobs");
  DI_TRY(f.status());
  DI_TRY(check_model(Protocol::kChat, out.model, options));
  DI_TRY(read_sampling(f, "max_tokens", &common));
  if (logprobs && *logprobs > 20) return refuse("logprobs must be in [0, 20]");
  constexpr int64_t kMaxFimTokens = 4096;
  if (out.suffix && common.inference.max_tokens.value_or(0) > kMaxFimTokens)
    return refuse("max_tokens must be at most 4096 with a suffix");
  out.inference = common.inference;
  out.inference.logprobs = logprobs.has_value();
  out.inference.top_logprobs = static_cast<int>(logprobs.value_or(0));
  out.inference.seed = f.any("seed") != nullptr ? f.count("seed") : std::nullopt;
  const Json* stop = f.any("stop");
  if (stop != nullptr && stop->is_string()) {
    if (*stop != "") out.parsing.stop_sequences = {stop->get<std::string>()};
  } else if (stop != nullptr) {
    if (!stop->is_array()) return bad_body("stop", "expected a string or an array");
    if (stop->size() > 16)
      return refuse("ChatCompletionStopSequences string array too long: {}", stop->size());
    for (const Json& s : *stop) {
      if (!s.is_string()) return bad_body("stop", "expected strings");
      if (s != "") out.parsing.stop_sequences.push_back(s.get<std::string>());
    }
  }
  // The prompt is continued where it ends: leading line feeds belong to the text.
  out.parsing.stage = ReasoningStage::kContent;
  return out;
}

}  // namespace deepinfer
