// What the three protocols' request bodies become. Pure: no sockets, no fetching, no model; the same body
// always gives the same result. Source: request edge specification 4, 7. Errors: kInvalidArgument for what
// the client must change (HTTP 400), with the documented message; edge/errors.h gives the body. Threads: pure
// functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/conversation.h"
#include "text/render.h"

namespace deepinfer {

enum class Protocol { kChat, kResponses, kMessages };

// kApi: the published library's behaviour, as the specification records it. kHostedStrict adds the hosted
// service's own checks. kHfReference: the encoder beside the weights. kV4: the older dialect. kRecipe02: what
// release 0.2 of the library changed.
enum class Profile { kApi, kHostedStrict, kHfReference, kV4, kRecipe02 };
std::optional<Profile> profile_by_name(std::string_view name);
std::optional<Protocol> protocol_by_name(std::string_view name);

struct ConvertOptions {
  bool default_thinking = true;
  bool reject_responses_web_search = false;
  bool reject_messages_web_search = true;
  // Client text that spells the image placeholder: refused, or encoded as plain text (always safe with
  // spans).
  bool image_literal_is_text = false;
  bool developer_is_system = false;       // Responses role "developer"
  bool messages_system_in_place = false;  // Messages entries of role "system" stay system messages
  bool require_reasoning_back = false;  // stored turns with calls must bring their reasoning in thinking mode
  // A required or named call with thinking on comes after the reasoning instead of being refused; for servers
  // whose grammar makes it come.
  bool required_with_thinking = false;
  bool check_models = false;  // only the names of specification 7.1
  bool allow_prefix = true;   // Chat prefix continuation (the hosted service wants its beta path)
  int max_n = 1;
};
ConvertOptions convert_options(Profile profile);
RenderOptions render_options(Profile profile);

struct ProtocolRequest {
  Protocol protocol = Protocol::kChat;
  std::string model;
  bool stream = false;
  bool include_usage = false;  // Chat
  bool running_usage = false;  // Chat: in every chunk, as continuous_usage_stats of other servers
  int n = 1;                   // Chat
  Conversation conversation;
  InferenceOptions inference;
  ParsingOptions parsing;
  std::optional<std::string>
      user_id;  // part of the prefix cache's key, never of the prompt; absence is a value of its own
  std::vector<std::string> custom_tools;  // Responses: names whose calls come back as custom tool calls
  std::optional<std::string> previous_response_id;  // Responses: carried for a server that keeps state
  std::vector<std::string> notes;                   // known fields that were accepted without effect
};

Result<ProtocolRequest> convert_chat(const Json& body, const ConvertOptions& options);
Result<ProtocolRequest> convert_responses(const Json& body, const ConvertOptions& options);
Result<ProtocolRequest> convert_messages(const Json& body, const ConvertOptions& options);
// Parses the bytes and converts.
Result<ProtocolRequest> convert_request(Protocol protocol, std::string_view body,
                                        const ConvertOptions& options);

// Plain and fill-in-the-middle completions (specification 7.4).
struct CompletionRequest {
  std::string model, prompt;
  std::optional<std::string> suffix;
  bool echo = false, stream = false;
  InferenceOptions inference;
  ParsingOptions parsing;  // stop strings only; text is never searched for tool markup
};
Result<CompletionRequest> convert_completion(const Json& body, const ConvertOptions& options);

// {"prompt": text} or {"messages": [...]} and what else a Chat body has; {"tokens": [...]}. `special` of a
// prompt: control spellings become control tokens, for diagnostics only.
struct TokenizeRequest {
  std::optional<ProtocolRequest> chat;
  std::string prompt;
  bool special = false;
};
Result<TokenizeRequest> convert_tokenize(const Json& body, const ConvertOptions& options);
Result<std::vector<int32_t>> convert_detokenize(const Json& body);

// Who may share cached prefixes and remembered turns: the account and its end user, told apart from any other
// pair and from the account without one (specification 7.5). For the salt of cache keys and for
// RenderOptions::turns_scope; never part of a prompt.
std::string cache_identity(std::string_view account, const std::optional<std::string>& user_id);

// The model a name stands for (specification 7.1): "deepseek-flash", "deepseek-v4-pro", or nothing if the
// name is unknown.
std::optional<std::string> resolve_model(Protocol protocol, std::string_view name);

// The answer's token limit once the prompt is counted (specification 7.2): a default is clamped to the room
// left, a requested one must fit. kInvalidArgument with the documented message otherwise.
Result<int64_t> resolve_max_tokens(const std::optional<int64_t>& requested, bool thinking,
                                   int64_t prompt_tokens, int64_t context_limit);

}  // namespace deepinfer
