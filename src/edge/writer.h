// From output chunks to the events and the final object of one protocol. Both come from one pass: an event is
// written and its effect on the final object applied at the same place, so that a client that adds up the
// events holds the final object. Source: request edge specification 5.5 to 5.7, 6. Threads: one object per
// stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "edge/request.h"
#include "text/output_parser.h"

namespace deepinfer {

struct Event {
  std::string name;  // SSE event name; empty for Chat
  std::string data;  // one line of JSON, or [DONE]
};
// Appends the frame: optional event line, data line, empty line.
void append_sse(const Event& event, std::string* out);

struct ResponseInfo {
  std::string id;                      // unique, made by the server; ids of items and calls derive from it
  std::string model;                   // echoed
  int64_t created = 0, completed = 0;  // seconds; completed may be set until the finish chunk
  bool thinking = true;
  bool include_usage = false;  // Chat streams: every chunk has a usage member
  bool running_usage = false;  // Chat streams: it is of the answer so far
  bool trailing_usage =
      false;  // Chat streams: usage in a chunk of its own after the finish, as OpenAI orders it
  bool count_reasoning = false;  // report reasoning tokens
  bool logprobs = false;
  int choice = 0;                         // Chat: index of this choice
  std::string signature;                  // Messages: of thinking blocks; the id if empty
  std::vector<std::string> custom_tools;  // Responses
  const Tokenizer* tokenizer = nullptr;   // spells tokens in logprobs
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Chunks in order, as OutputParser gives them. Nothing is written after the finish chunk.
  virtual void write(const OutputChunk& chunk, std::vector<Event>* out) = 0;
  // The whole answer. REQUIRES that the finish chunk was written.
  virtual std::string final_object() const = 0;
};
std::unique_ptr<ResponseWriter> make_writer(Protocol protocol, ResponseInfo info);

// Plain and fill-in-the-middle completions: text only, streamed as text_completion chunks. `echo`: the
// prompt, given back in front.
std::unique_ptr<ResponseWriter> make_completion_writer(ResponseInfo info, std::string echo = {});

// The id of a response's k-th call: call_R_k, in Messages toolu_R_k.
std::string call_id(Protocol protocol, const std::string& response_id, size_t k);

// The assistant message as the client will send it back, from the chunks it was sent: what a TurnMemory
// (text/turn_memory.h) remembers the sampled ids under.
class TurnRecorder {
 public:
  TurnRecorder(Protocol protocol, std::string response_id)
      : protocol_(protocol), response_id_(std::move(response_id)) {}
  void write(const OutputChunk& chunk);
  Message turn() const;

 private:
  Protocol protocol_;
  std::string response_id_, reasoning_, content_;
  std::vector<ToolCall> calls_;
};

// Usage objects (specification 5.6).
Json chat_usage(const Usage& usage, bool count_reasoning);
Json responses_usage(const Usage& usage, bool count_reasoning);
Json messages_usage(const Usage& usage);

// Other small bodies of the edge (specification 6, 7): a model list, a token count, token lists.
struct ModelEntry {
  std::string id;
  int64_t created = 0;
  int64_t context_tokens = 0;
};
std::string model_list(const std::vector<ModelEntry>& models, Protocol protocol);
std::string messages_token_count(int64_t input_tokens);
std::string completion_object(const ResponseInfo& info, const std::string& text, FinishReason reason,
                              const Usage& usage);
// {"tokens":[...],"count":n,"max_model_len":n} and {"prompt":"..."}.
std::string tokenize_object(const std::vector<int32_t>& ids, int64_t context_tokens);
std::string detokenize_object(const std::string& text);

}  // namespace deepinfer
