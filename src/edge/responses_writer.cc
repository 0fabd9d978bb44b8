// Responses answers (request edge specification 6.2).
#include <algorithm>
#include <charconv>

#include "edge/writer_parts.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

// Takes the argument text of a custom tool call as it comes and gives the decoded value of its string member
// "input". The text was written by the output machine, so keys and separators are exact; only this member is
// looked at.
class InputDecoder {
 public:
  std::string push(std::string_view text) {
    std::string out;
    for (char c : text) byte(c, &out);
    return out;
  }

 private:
  enum class In { kOutside, kKey, kAfterKey, kValue, kOther };

  void byte(char c, std::string* out) {
    switch (in_) {
      case In::kOutside:
        if (c == '"') in_ = In::kKey, key_.clear();
        return;
      case In::kKey:
        if (c == '"') {
          in_ = In::kAfterKey;
        } else if (key_.size() < kMaxKey) {
          key_ += c;
        }
        return;
      case In::kAfterKey:
        if (c == '"') {
          in_ = In::kValue;
        } else if (c != ':' && c != ' ') {
          in_ = In::kOther, depth_ = 0, quoted_ = false;
          other(c);
        }
        return;
      case In::kValue:
        return value(c, out);
      case In::kOther:
        return other(c);
    }
  }

  void value(char c, std::string* out) {
    if (!escape_.empty() || c == '\\') {
      escape_ += c;
      if (escape_.size() >= 2 && (escape_[1] != 'u' || escape_.size() == 6)) escape(out);
      return;
    }
    end_half(out);
    if (c == '"') {
      in_ = In::kOutside;
    } else {
      put(std::string_view(&c, 1), out);
    }
  }
  void put(std::string_view text, std::string* out) const {
    if (key_ == "input") *out += text;
  }
  void put(uint32_t code_point, std::string* out) const {
    std::string text;
    append_utf8(code_point, &text);
    put(text, out);
  }
  // The first half of a surrogate pair that got no second one.
  void end_half(std::string* out) {
    if (half_ != 0) put(0xfffd, out);
    half_ = 0;
  }

  void escape(std::string* out) {
    std::string text = std::move(escape_);
    escape_.clear();
    uint32_t unit = 0;
    auto [end, fault] = std::from_chars(text.data() + 2, text.data() + text.size(), unit, 16);
    bool unicode = text[1] == 'u' && fault == std::errc() && end == text.data() + 6;
    if (unicode && half_ != 0 && unit >= 0xdc00 && unit < 0xe000) {
      put(0x10000 + ((half_ - 0xd800) << 10) + (unit - 0xdc00), out);
      half_ = 0;
      return;
    }
    end_half(out);
    if (unicode && unit >= 0xd800 && unit < 0xdc00) {
      half_ = unit;
    } else if (unicode) {
      put(unit, out);
    } else {
      Result<Json> v = parse_json("\"" + text + "\"");
      put(v.ok() && v->is_string() ? v->get<std::string>() : text, out);
    }
  }
  // A value that is no string: skipped to the comma or brace that ends it.
  void other(char c) {
    if (quoted_) {
      if (skip_) {
        skip_ = false;
      } else if (c == '\\') {
        skip_ = true;
      } else if (c == '"') {
        quoted_ = false;
      }
      return;
    }
    if (c == '"') quoted_ = true;
    if (c == '[' || c == '{') ++depth_;
    if ((c == ',' || c == '}') && depth_ == 0) {
      in_ = In::kOutside;
    } else if (c == ']' || c == '}') {
      --depth_;
    }
  }

  In in_ = In::kOutside;
  static constexpr size_t kMaxKey = 16;  // enough to tell "input" from any other
  std::string key_, escape_;
  uint32_t half_ = 0;  // first half of a surrogate pair
  int depth_ = 0;
  bool quoted_ = false, skip_ = false;
};

class ResponsesWriter : public ResponseWriter {
 public:
  explicit ResponsesWriter(ResponseInfo info) : info_(std::move(info)) {}

  void write(const OutputChunk& c, std::vector<Event>* out) override {
    if (done_) return;
    out_ = out;
    using K = OutputChunk::Kind;
    switch (c.kind) {
      case K::kStart:
        emit("response.created", {{"response", snapshot()}});
        emit("response.in_progress", {{"response", snapshot()}});
        return;
      case K::kReasoning:
        return text(c, "reasoning");
      case K::kText:
        return text(c, "message");
      case K::kCall:
        return call(c.text);
      case K::kArguments:
        return arguments(c.text);
      case K::kFinish:
        finish(c);
    }
  }

  std::string final_object() const override { return compact_json(snapshot()); }

 private:
  Json snapshot() const {
    return {{"id", info_.id},
            {"object", "response"},
            {"created_at", info_.created},
            {"status", status_},
            {"completed_at", completed_at_},
            {"error", nullptr},
            {"incomplete_details", incomplete_},
            {"model", info_.model},
            {"output", output_},
            {"usage", usage_}};
  }

  // Members in the order type, own members, sequence_number.
  void emit(const std::string& name, const Json& members) {
    Json data = {{"type", name}};
    for (auto it = members.begin(); it != members.end(); ++it) data[it.key()] = it.value();
    data["sequence_number"] = sequence_++;
    out_->push_back({name, compact_json(data)});
  }

  size_t index() const { return output_.size() - 1; }
  Json& item() { return output_.back(); }
  std::string item_id() { return item()["id"].get<std::string>(); }

  void add(Json item) {
    output_.push_back(item);
    open_ = true;
    emit("response.output_item.added", {{"item", std::move(item)}, {"output_index", index()}});
  }

  static Json text_part(bool reasoning, const std::string& text) {
    if (reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {
        {"type", "output_text"}, {"annotations", Json::array()}, {"logprobs", Json::array()}, {"text", text}};
  }

  void text(const OutputChunk& c, const std::string& type) {
    if (c.text.empty()) return;
    bool reasoning = type == "reasoning";
    if (!open_ || item()["type"] != type) {
      close("completed", false);
      std::string suffix = info_.id + "_" + std::to_string(output_.size());
      if (reasoning) {
        add({{"type", "reasoning"},
             {"id", "rs_" + suffix},
             {"status", "in_progress"},
             {"content", Json::array()},
             {"summary", Json::array()}});
      } else {
        add({{"type", "message"},
             {"id", "msg_" + suffix},
             {"status", "in_progress"},
             {"role", "assistant"},
             {"phase", "final_answer"},
             {"content", Json::array()}});
      }
      text_.clear();
      emit("response.content_part.added", {{"content_index", 0},
                                           {"item_id", item_id()},
                                           {"output_index", index()},
                                           {"part", text_part(reasoning, "")}});
    }
    text_ += c.text;
    if (reasoning) return delta("response.reasoning_text.delta", "\"content_index\":0,", c.text, "");
    std::string logprobs = "[]";
    if (info_.logprobs) {
      Json list = logprob_list(c.logprobs, info_.tokenizer);
      logprobs_.insert(logprobs_.end(), list.begin(), list.end());
      logprobs = compact_json(list);
    }
    delta("response.output_text.delta", "\"content_index\":0,", c.text, "\"logprobs\":" + logprobs + ",");
  }

  // The event of almost every token, written without building a value. `before` and `after` stand around the
  // item id.
  void delta(const std::string& name, const char* before, const std::string& text, const std::string& after) {
    out_->push_back({name, "{\"type\":\"" + name + "\"," + before + "\"delta\":" + json_quoted(text) +
                               ",\"item_id\":" + json_quoted(item_id()) + "," + after +
                               "\"output_index\":" + std::to_string(index()) +
                               ",\"sequence_number\":" + std::to_string(sequence_++) + "}"});
  }

  void call(const std::string& full_name) {
    close("completed", true);
    std::string suffix = info_.id + "_" + std::to_string(output_.size());
    std::string own_call_id = call_id(Protocol::kResponses, info_.id, calls_++);
    text_.clear();
    custom_ = std::find(info_.custom_tools.begin(), info_.custom_tools.end(), full_name) !=
              info_.custom_tools.end();
    if (custom_) {
      decoder_ = {};
      return add({{"type", "custom_tool_call"},
                  {"id", "ctc_" + suffix},
                  {"status", "in_progress"},
                  {"call_id", own_call_id},
                  {"name", full_name},
                  {"input", ""}});
    }
    size_t colons = full_name.find("::");
    Json item = {{"type", "function_call"},
                 {"id", "fc_" + suffix},
                 {"status", "in_progress"},
                 {"call_id", own_call_id},
                 {"name", full_name}};
    if (colons != full_name.npos) {
      item["name"] = full_name.substr(colons + 2);
      item["namespace"] = full_name.substr(0, colons);
    }
    item["arguments"] = "";
    add(std::move(item));
  }

  void arguments(const std::string& text) {
    std::string more = custom_ ? decoder_.push(text) : text;
    if (more.empty()) return;
    text_ += more;
    delta(custom_ ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta", "",
          more, "");
  }

  // Ends the open item. `before_call`: a message that introduces a call is commentary.
  void close(const std::string& status, bool before_call) {
    if (!open_) return;
    open_ = false;
    std::string type = item()["type"].get<std::string>();
    if (type == "reasoning" || type == "message") {
      bool reasoning = type == "reasoning";
      Json part = text_part(reasoning, text_);
      Json members = {{"content_index", 0}, {"item_id", item_id()}};
      if (!reasoning) {
        part["logprobs"] = logprobs_;
        members["logprobs"] = logprobs_;
        logprobs_ = Json::array();
        if (before_call) item()["phase"] = "commentary";
      }
      members["output_index"] = index();
      members["text"] = text_;
      emit(reasoning ? "response.reasoning_text.done" : "response.output_text.done", members);
      emit("response.content_part.done",
           {{"content_index", 0}, {"item_id", item_id()}, {"output_index", index()}, {"part", part}});
      item()["content"].push_back(std::move(part));
    } else {
      const char* member = custom_ ? "input" : "arguments";
      item()[member] = text_;
      emit(custom_ ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
           {{member, text_}, {"item_id", item_id()}, {"output_index", index()}});
    }
    item()["status"] = status;
    emit("response.output_item.done", {{"item", item()}, {"output_index", index()}});
  }

  void finish(const OutputChunk& c) {
    bool length = c.reason == FinishReason::kLength, filtered = c.reason == FinishReason::kContentFilter;
    bool whole = !length && !filtered && c.reason != FinishReason::kInsufficientResource &&
                 c.reason != FinishReason::kAborted;
    close(whole ? "completed" : "incomplete", false);
    usage_ = responses_usage(c.usage, info_.count_reasoning);
    status_ = whole ? "completed" : "incomplete";
    if (whole) {
      completed_at_ = info_.completed != 0 ? info_.completed : info_.created;
    } else {
      incomplete_ = {{"reason", length     ? "max_output_tokens"
                                : filtered ? "content_filter"
                                           : chat_finish_reason(c.reason)}};
    }
    emit("response." + status_, {{"response", snapshot()}});
    done_ = true;
  }

  ResponseInfo info_;
  std::vector<Event>* out_ = nullptr;
  int64_t sequence_ = 0;
  Json output_ = Json::array();
  bool open_ = false, done_ = false, custom_ = false;
  std::string text_;  // of the open item
  Json logprobs_ = Json::array();
  InputDecoder decoder_;
  size_t calls_ = 0;
  std::string status_ = "in_progress";
  Json completed_at_, incomplete_, usage_;
};

}  // namespace

std::unique_ptr<ResponseWriter> make_responses_writer(ResponseInfo info) {
  return std::make_unique<ResponsesWriter>(std::move(info));
}

}  // namespace deepinfer
