// What the three writers share. Internal to the edge.
#pragma once

#include "edge/writer.h"

namespace deepinfer {

inline std::string compact_json(const Json& value) {
  std::string out;
  append_json(value, JsonStyle::kCompact, &out);
  return out;
}

// "key":"escaped" appended to an object being written by hand.
inline void append_text_member(const char* key, std::string_view text, std::string* out) {
  *out += '"';
  *out += key;
  *out += "\":\"";
  append_json_escaped(text, JsonStyle::kCompact, out);
  *out += '"';
}

inline std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(text, JsonStyle::kCompact, &out);
  return out + '"';
}

const char* chat_finish_reason(FinishReason reason);
// [{token, logprob, bytes, top_logprobs}, ...]
Json logprob_list(const std::vector<TokenLogprob>& tokens, const Tokenizer* tokenizer);

std::unique_ptr<ResponseWriter> make_chat_writer(ResponseInfo info);
std::unique_ptr<ResponseWriter> make_responses_writer(ResponseInfo info);
std::unique_ptr<ResponseWriter> make_messages_writer(ResponseInfo info);

}  // namespace deepinfer
