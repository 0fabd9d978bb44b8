// One user turn as token ids, and the ids a model must never produce. Shared by the commands that take plain
// text. Does not know conversations, tools or images: those are rendered by text/. Source: request edge
// specification 1.2, 3.4. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct ChatPromptOptions {
  std::string system;
  bool thinking = false;  // let the model reason first
  bool raw = false;       // no template: BOS and the bare text
};

// One user turn in the V4.1 template, or BOS and the bare text with `raw` or for a tokenizer that has no turn
// markers.
std::vector<int32_t> chat_prompt(const Tokenizer& tokenizer, const ModelConfig& config,
                                 const ChatPromptOptions& options, const std::string& user);

// Everything that is input-side only: added tokens other than end of sequence, </think> and the tool marker;
// ascending.
std::vector<int32_t> input_only_ids(const Tokenizer& tokenizer, const ModelConfig& config);

}  // namespace deepinfer
