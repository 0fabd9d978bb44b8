// Chat Completions answers (request edge specification 6.1).
#include "edge/writer_parts.h"

namespace deepinfer {
namespace {

class ChatWriter : public ResponseWriter {
 public:
  explicit ChatWriter(ResponseInfo info) : info_(std::move(info)) {}

  void write(const OutputChunk& c, std::vector<Event>* out) override {
    if (done_) return;
    using K = OutputChunk::Kind;
    if (c.kind != K::kStart) usage_.completion_tokens = c.usage.completion_tokens;
    switch (c.kind) {
      case K::kStart:
        start(c, out);
        return;
      case K::kReasoning:
        reasoning_ += c.text;
        return text_delta("{\"content\":null,\"reasoning_content\":" + json_quoted(c.text) + "}", c, out);
      case K::kText:
        content_ += c.text;
        return text_delta(
            "{\"content\":" + json_quoted(c.text) + (info_.thinking ? ",\"reasoning_content\":null}" : "}"),
            c, out);
      case K::kCall: {
        std::string id = call_id(Protocol::kChat, info_.id, calls_.size());
        calls_.push_back({id, c.text, ""});
        return chunk("{\"tool_calls\":[{\"index\":" + index() + ",\"id\":" + json_quoted(id) +
                         ",\"type\":\"function\",\"function\":{\"name\":" + json_quoted(c.text) +
                         ",\"arguments\":\"\"}}]}",
                     "null", "null", nullptr, out);
      }
      case K::kArguments:
        calls_.back().arguments += c.text;
        return chunk("{\"tool_calls\":[{\"index\":" + index() +
                         ",\"function\":{\"arguments\":" + json_quoted(c.text) + "}}]}",
                     "null", "null", nullptr, out);
      case K::kFinish:
        finish(c, out);
    }
  }

  std::string final_object() const override {
    Json message = {{"role", "assistant"}, {"content", content_}};
    if (info_.thinking) message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) {
      Json list = Json::array();
      for (const Call& call : calls_) {
        list.push_back({{"index", list.size()},
                        {"id", call.id},
                        {"type", "function"},
                        {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      }
      message["tool_calls"] = std::move(list);
    }
    Json choice = {{"index", info_.choice},
                   {"message", std::move(message)},
                   {"logprobs", nullptr},
                   {"finish_reason", chat_finish_reason(reason_)}};
    if (!content_logprobs_.empty()) choice["logprobs"]["content"] = content_logprobs_;
    if (!reasoning_logprobs_.empty()) choice["logprobs"]["reasoning_content"] = reasoning_logprobs_;
    Json object = {{"id", info_.id},
                   {"object", "chat.completion"},
                   {"created", info_.created},
                   {"model", info_.model},
                   {"choices", Json::array({std::move(choice)})},
                   {"usage", chat_usage(usage_, info_.count_reasoning)},
                   {"system_fingerprint", nullptr}};
    if (fingerprint_) object["system_fingerprint"] = *fingerprint_;
    return compact_json(object);
  }

 private:
  struct Call {
    std::string id, name, arguments;
  };

  std::string index() const { return std::to_string(calls_.size() - 1); }

  void start(const OutputChunk& c, std::vector<Event>* out) {
    fingerprint_ = c.fingerprint;
    usage_ = c.usage;
    head_ = "{\"id\":" + json_quoted(info_.id) +
            ",\"object\":\"chat.completion.chunk\",\"created\":" + std::to_string(info_.created) +
            ",\"model\":" + json_quoted(info_.model) +
            ",\"system_fingerprint\":" + (fingerprint_ ? json_quoted(*fingerprint_) : "null") +
            ",\"choices\":[";
    chunk(info_.thinking ? R"({"role":"assistant","content":null,"reasoning_content":""})"
                         : R"({"role":"assistant","content":""})",
          "null", "null", nullptr, out);
  }

  void text_delta(const std::string& delta, const OutputChunk& c, std::vector<Event>* out) {
    std::string logprobs = "null";
    if (info_.logprobs && !c.logprobs.empty()) {
      Json list = logprob_list(c.logprobs, info_.tokenizer);
      bool reasoning = c.kind == OutputChunk::Kind::kReasoning;
      Json& all = reasoning ? reasoning_logprobs_ : content_logprobs_;
      all.insert(all.end(), list.begin(), list.end());
      logprobs = compact_json({{reasoning ? "reasoning_content" : "content", list}});
    }
    chunk(delta, logprobs, "null", nullptr, out);
  }

  void finish(const OutputChunk& c, std::vector<Event>* out) {
    reason_ = c.reason;
    usage_ = c.usage;
    Json usage = chat_usage(usage_, info_.count_reasoning);
    bool apart = info_.trailing_usage && info_.include_usage;
    chunk(info_.thinking ? R"({"content":"","reasoning_content":null})" : R"({"content":""})", "null",
          json_quoted(chat_finish_reason(reason_)), apart ? nullptr : &usage, out);
    if (apart) out->push_back({"", head_ + "],\"usage\":" + compact_json(usage) + "}"});
    out->push_back({"", "[DONE]"});
    done_ = true;
  }

  void chunk(const std::string& delta, const std::string& logprobs, const std::string& finish_reason,
             const Json* usage, std::vector<Event>* out) {
    std::string data = head_ + "{\"index\":" + std::to_string(info_.choice) + ",\"delta\":" + delta +
                       ",\"logprobs\":" + logprobs + ",\"finish_reason\":" + finish_reason + "}]";
    if (usage != nullptr) {
      data += ",\"usage\":" + compact_json(*usage);
    } else if (info_.running_usage) {
      data += ",\"usage\":" + compact_json(chat_usage(usage_, false));
    } else if (info_.include_usage) {
      data += ",\"usage\":null";
    }
    out->push_back({"", data + "}"});
  }

  ResponseInfo info_;
  std::string head_;
  std::string content_, reasoning_;
  std::vector<Call> calls_;
  std::optional<std::string> fingerprint_;
  Json content_logprobs_ = Json::array(), reasoning_logprobs_ = Json::array();
  FinishReason reason_ = FinishReason::kStop;
  Usage usage_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<ResponseWriter> make_chat_writer(ResponseInfo info) {
  return std::make_unique<ChatWriter>(std::move(info));
}

}  // namespace deepinfer
