// From a conversation to spans: the V4.1 prompt (and V4's), control tokens apart from client text, which is
// never searched for control spellings. Knows neither protocols nor BPE. Source: request edge
// specification 3.3 to 3.10, 7.4. Threads: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "text/conversation.h"
#include "text/tokenizer.h"
#include "text/turn_memory.h"

namespace deepinfer {

// Ids of the template's control tokens, looked up by spelling. -1: the vocabulary lacks an optional one.
struct ControlTokens {
  int32_t bos = -1, eos = -1, user = -1, assistant = -1, think_open = -1, think_close = -1, dsml = -1;
  int32_t system = -1, latest_reminder = -1, image = -1, fim_begin = -1, fim_hole = -1, fim_end = -1;
  // Of hf_reference's task turns: action, query, authority, domain, title, read_url (specification 3.8),
  // those the vocabulary has.
  std::map<std::string, int32_t> tasks;

  // kInvalidData naming the first of bos, eos, user, assistant, think and DSML tokens that is missing.
  static Result<ControlTokens> from_tokenizer(const Tokenizer& tokenizer);
  // The released ids (specification 1.1), for rendering without a vocabulary at hand.
  static ControlTokens released();
};

// Which stored reasoning reaches the prompt (specification 3.7).
enum class HistoryPolicy {
  kKeepAll,             // prompts only grow: what a prefix cache needs
  kDropBeforeLastUser,  // thinking mode without tools: turns before the last user-like message lose theirs
  kKeepWithTools,  // thinking mode without tools: every stored turn loses it (the vendor's library since 0.2)
};

struct RenderOptions {
  enum class Dialect { kV41, kV4 };
  Dialect dialect = Dialect::kV41;
  HistoryPolicy history = HistoryPolicy::kKeepAll;
  bool schema_in_prompt = false;  // show a json_schema to the model as JSON mode shows its fixed line
  // Turns the model wrote here are given back as sampled, where the memory still knows them. Null: never.
  TurnMemory* turns = nullptr;
  std::string turns_scope = {};
};

// The prompt as spans. kUnsupported if it needs a control token the vocabulary lacks (an image, say).
Result<std::vector<Span>> render_conversation(const Conversation& conversation, const ControlTokens& control,
                                              const RenderOptions& options);
// Where the parser starts on the answer to this conversation (specification 3.9, 4.1).
ReasoningStage initial_stage(const Conversation& conversation);

// Plain and fill-in-the-middle completion prompts (specification 7.4). A missing suffix makes a plain one.
Result<std::vector<Span>> render_completion(const std::string& prompt,
                                            const std::optional<std::string>& suffix,
                                            const ControlTokens& control);

// The spans written out one after the other: for people, never for encoding.
std::string spans_text(const std::vector<Span>& spans);

// Tokens of a w x h image (specification 3.10), 0 if the size is unknown.
int64_t image_tokens(int64_t width, int64_t height);

}  // namespace deepinfer
