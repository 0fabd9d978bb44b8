// Anthropic Messages answers (request edge specification 6.3).
#include "edge/writer_parts.h"

namespace deepinfer {
namespace {

class MessagesWriter : public ResponseWriter {
 public:
  explicit MessagesWriter(ResponseInfo info) : info_(std::move(info)) {
    if (info_.signature.empty()) info_.signature = info_.id;
  }

  void write(const OutputChunk& c, std::vector<Event>* out) override {
    if (done_) return;
    out_ = out;
    using K = OutputChunk::Kind;
    switch (c.kind) {
      case K::kStart: {
        usage_ = c.usage;
        Json message = head();
        message["usage"] = messages_usage(usage_);
        emit("message_start", {{"type", "message_start"}, {"message", std::move(message)}});
        // Opened at once, even if no reasoning follows.
        if (info_.thinking) open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return;
      }
      case K::kReasoning:
        if (!is_open("thinking")) open({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        append("thinking", c.text);
        return text_delta("thinking_delta", "thinking", c.text);
      case K::kText:
        if (!is_open("text")) open({{"type", "text"}, {"text", ""}});
        append("text", c.text);
        return text_delta("text_delta", "text", c.text);
      case K::kCall:
        open({{"type", "tool_use"},
              {"id", call_id(Protocol::kMessages, info_.id, calls_++)},
              {"name", c.text},
              {"input", Json::object()}});
        input_.clear();
        return;
      case K::kArguments:
        input_ += c.text;
        return text_delta("input_json_delta", "partial_json", c.text);
      case K::kFinish:
        finish(c);
    }
  }

  std::string final_object() const override {
    Json message = head();
    message["content"] = content_;
    message["stop_reason"] = stop_reason_;
    message["stop_sequence"] = stop_sequence_;
    message["usage"] = messages_usage(usage_);
    return compact_json(message);
  }

 private:
  Json head() const {
    return {{"id", info_.id},          {"type", "message"},        {"role", "assistant"},
            {"model", info_.model},    {"content", Json::array()}, {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  void emit(const char* name, const Json& data) { out_->push_back({name, compact_json(data)}); }
  bool is_open(const char* type) const { return open_ && content_.back()["type"] == type; }
  void append(const char* member, const std::string& text) {
    content_.back()[member].get_ref<std::string&>() += text;
  }
  void delta(Json value) {
    emit("content_block_delta",
         {{"type", "content_block_delta"}, {"index", content_.size() - 1}, {"delta", std::move(value)}});
  }

  // The event of almost every token, written without building a value.
  void text_delta(const char* type, const char* member, const std::string& text) {
    out_->push_back({"content_block_delta",
                     "{\"type\":\"content_block_delta\",\"index\":" + std::to_string(content_.size() - 1) +
                         ",\"delta\":{\"type\":\"" + type + "\",\"" + member + "\":" + json_quoted(text) +
                         "}}"});
  }

  void open(Json block) {
    close();
    content_.push_back(block);
    open_ = true;
    emit("content_block_start", {{"type", "content_block_start"},
                                 {"index", content_.size() - 1},
                                 {"content_block", std::move(block)}});
    if (content_.size() == 1) emit("ping", {{"type", "ping"}});
  }

  void close() {
    if (!open_) return;
    Json& block = content_.back();
    if (block["type"] == "thinking") {
      block["signature"] = info_.signature;
      delta({{"type", "signature_delta"}, {"signature", info_.signature}});
    } else if (block["type"] == "tool_use") {
      // Input that is no JSON object stays empty rather than half true.
      Result<Json> input = parse_json(input_);
      if (input.ok() && input->is_object()) block["input"] = std::move(*input);
    }
    emit("content_block_stop", {{"type", "content_block_stop"}, {"index", content_.size() - 1}});
    open_ = false;
  }

  static const char* stop_reason(FinishReason reason) {
    switch (reason) {
      case FinishReason::kToolCalls:
        return "tool_use";
      case FinishReason::kStopSequence:
        return "stop_sequence";
      case FinishReason::kLength:
        return "max_tokens";
      case FinishReason::kContentFilter:
        return "refusal";
      default:
        return "end_turn";
    }
  }

  void finish(const OutputChunk& c) {
    close();
    usage_ = c.usage;
    stop_reason_ = stop_reason(c.reason);
    if (c.stop_string) stop_sequence_ = *c.stop_string;
    emit("message_delta", {{"type", "message_delta"},
                           {"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                           {"usage", messages_usage(usage_)}});
    emit("message_stop", {{"type", "message_stop"}});
    done_ = true;
  }

  ResponseInfo info_;
  std::vector<Event>* out_ = nullptr;
  Json content_ = Json::array();
  bool open_ = false, done_ = false;
  size_t calls_ = 0;
  std::string input_;
  Usage usage_;
  Json stop_reason_, stop_sequence_;
};

}  // namespace

std::unique_ptr<ResponseWriter> make_messages_writer(ResponseInfo info) {
  return std::make_unique<MessagesWriter>(std::move(info));
}

}  // namespace deepinfer
