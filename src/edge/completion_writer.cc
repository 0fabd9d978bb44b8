// Plain completion answers (request edge specification 7.4).
#include "edge/writer_parts.h"

namespace deepinfer {
namespace {

class CompletionWriter : public ResponseWriter {
 public:
  CompletionWriter(ResponseInfo info, std::string echo) : info_(std::move(info)), echo_(std::move(echo)) {}

  void write(const OutputChunk& c, std::vector<Event>* out) override {
    using K = OutputChunk::Kind;
    if (done_) return;
    if (c.kind == K::kStart && !echo_.empty()) piece(echo_, "null", "", out);
    if (c.kind == K::kText) piece(c.text, "null", "", out);
    if (c.kind != K::kFinish) return;
    reason_ = c.reason;
    usage_ = c.usage;
    piece("", json_quoted(chat_finish_reason(reason_)),
          ",\"usage\":" + compact_json(chat_usage(usage_, false)), out);
    out->push_back({"", "[DONE]"});
    done_ = true;
  }

  std::string final_object() const override {
    Json choice = {{"text", text_},
                   {"index", info_.choice},
                   {"logprobs", nullptr},
                   {"finish_reason", chat_finish_reason(reason_)}};
    return compact_json({{"id", info_.id},
                         {"object", "text_completion"},
                         {"created", info_.created},
                         {"model", info_.model},
                         {"choices", Json::array({std::move(choice)})},
                         {"usage", chat_usage(usage_, false)}});
  }

 private:
  void piece(const std::string& text, const std::string& reason, const std::string& usage,
             std::vector<Event>* out) {
    text_ += text;
    out->push_back({"", "{\"id\":" + json_quoted(info_.id) + ",\"object\":\"text_completion\",\"created\":" +
                            std::to_string(info_.created) + ",\"model\":" + json_quoted(info_.model) +
                            ",\"choices\":[{\"text\":" + json_quoted(text) +
                            ",\"index\":" + std::to_string(info_.choice) +
                            ",\"logprobs\":null,\"finish_reason\":" + reason + "}]" + usage + "}"});
  }

  ResponseInfo info_;
  std::string echo_, text_;
  FinishReason reason_ = FinishReason::kStop;
  Usage usage_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<ResponseWriter> make_completion_writer(ResponseInfo info, std::string echo) {
  return std::make_unique<CompletionWriter>(std::move(info), std::move(echo));
}

}  // namespace deepinfer
