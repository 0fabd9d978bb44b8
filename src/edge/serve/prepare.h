// From the bytes of a generation request to token ids and everything the answer needs: parse, convert,
// render, encode, limits. Costs time with long prompts, so it runs on a worker thread, not on a loop. Source:
// request edge specification 0, 4, 7.2. Threads: Preparer is immutable; prepare() from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "edge/serve/extras.h"
#include "edge/serve/generation.h"
#include "edge/writer.h"
#include "text/prompt_encoder.h"

namespace deepinfer {

enum class Endpoint { kChat, kResponses, kMessages, kCompletions, kGenerate };
Protocol protocol_of(Endpoint endpoint);  // of completions and generate: kChat, whose errors they share
// Continues a text: no turns, no reasoning, no calls.
inline bool is_plain(Endpoint e) {
  return e == Endpoint::kCompletions || e == Endpoint::kGenerate;
}

struct ModelNames {
  std::vector<std::string> served;  // the first one is the model's own name
  // Names of the vendor's API stand for the served model too (specification 7.1).
  bool vendor_names = true;
  bool known(Protocol protocol, const std::string& name) const;
};

struct PrepareOptions {
  std::shared_ptr<PromptEncoder> encoder;
  ControlTokens control;
  std::vector<int32_t> banned;  // ascending
  ConvertOptions convert;
  RenderOptions render;
  ModelNames models;
  int64_t context_tokens = 0;
  int64_t max_output_tokens = 0;  // a server's own limit; 0: the context's
  int64_t vocab_size = 0;
  double default_temperature = 1, default_top_p = 1;
  bool constrains = false;  // whether the engine can be told what its output must match; else that is refused
  // Turns that were generated here are given back as sampled; null: every stored turn is encoded anew.
  std::shared_ptr<TurnMemory> turns;
};

struct Prepared {
  Endpoint endpoint = Endpoint::kChat;
  GenerationRequest generation;
  std::optional<ConstraintSpec> constraint;  // what the output must match, still to be made
  ParsingOptions parsing;
  ResponseInfo info;  // model, thinking, usage and logprob switches; id and times come later
  bool stream = false, count_usage_apart = false;
  std::string echo;
  std::optional<std::string> user_id;
  std::string cache_salt;
  std::optional<int> priority;
  // Responses
  std::optional<std::string> previous_response_id;
  bool store = false;
  Json input_items = Json::array();  // what a later turn continues from
  bool forced_call = false;          // the prompt ends with the opener of a call block
};

// Who shares cached prefixes and remembered turns: the account, its end user and the request's own salt.
std::string cache_scope(const std::string& account, const std::optional<std::string>& user_id,
                        const std::string& salt);

class Preparer {
 public:
  explicit Preparer(PrepareOptions options) : o_(std::move(options)) {}
  const PrepareOptions& options() const { return o_; }

  // Responses: `previous` are the items of the response to be continued, an array; the caller looked them up.
  // `account`: whose turns may be given back as sampled.
  Result<Prepared> prepare(Endpoint endpoint, const Json& body, const Json* previous,
                           const std::string& account) const;
  // The prompt alone, for token counts and /tokenize. `scope`: of remembered turns; null: none are used.
  Result<std::vector<int32_t>> prompt_ids(const ProtocolRequest& request,
                                          const std::string* scope = nullptr) const;
  Result<std::vector<int32_t>> tokenize(const Json& body) const;
  // The rendered prompt as spans with kind, origin, text and tokens, for people. Takes a Chat, Responses or
  // Messages body; member "protocol" names which (default chat).
  Result<Json> inspect(const Json& body) const;

 private:
  Status convert(Endpoint endpoint, const Json& body, const std::string& account, Prepared* out) const;
  Status complete(const Json& body, Prepared* out) const;
  Status finish(const InferenceOptions& inference, bool thinking, const Extras& extras, Prepared* out) const;
  Status constrain(const Conversation& conversation, bool parallel_calls, const Extras& extras,
                   Prepared* out) const;

  PrepareOptions o_;
};

}  // namespace deepinfer
