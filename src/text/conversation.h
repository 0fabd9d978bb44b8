// The neutral conversation: what all three protocols become, and what the renderer and the output parser
// read. Plain data; knows no protocol, no token ids and no HTTP. Source: request edge specification 3.1.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/json.h"

namespace deepinfer {

struct ImageSource {
  enum class Kind { kDataUrl, kUrl };
  enum class Detail { kLow, kHigh, kOriginal, kAuto };
  Kind kind = Kind::kUrl;
  std::string url;  // the data URL or the http(s) URL
  Detail detail = Detail::kHigh;
  std::string path;  // where the request had it, for error messages
  // Pixels, read from the header of a data URL; 0 while unknown (an image that has to be fetched first).
  int64_t width = 0, height = 0;
};

// Text with images at their places. Placeholders are parts of their own, never spellings inside a text.
struct Content {
  struct Part {
    bool is_image = false;
    std::string text;
    ImageSource image;
  };
  std::vector<Part> parts;

  Content() = default;
  Content(std::string text) { add_text(std::move(text)); }  // NOLINT: implicit on purpose
  Content(const char* text) { add_text(text); }             // NOLINT
  void add_text(std::string text) {
    if (!parts.empty() && !parts.back().is_image) {
      parts.back().text += text;
    } else if (!text.empty()) {
      parts.push_back({false, std::move(text), {}});
    }
  }
  void add_image(ImageSource image) { parts.push_back({true, {}, std::move(image)}); }
  bool empty() const { return parts.empty(); }
  bool has_images() const {
    for (const Part& p : parts) {
      if (p.is_image) return true;
    }
    return false;
  }
  // The text alone; images leave nothing.
  std::string text() const {
    std::string out;
    for (const Part& p : parts) out += p.text;
    return out;
  }
};

struct ToolCall {
  std::string id, name;
  std::string arguments;  // JSON text as the client sent it
};

struct ToolDefinition {
  std::string name;
  std::optional<std::string> description;
  Json parameters = Json::object();
  std::optional<bool> strict;
};

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

struct Message {
  Role role = Role::kUser;
  Content content;
  std::optional<std::string> reasoning;  // assistant
  std::vector<ToolCall> tool_calls;      // assistant
  std::string tool_call_id;              // tool
  bool prefix = false;                   // assistant, last message: to be continued (specification 3.9)
  std::string task;          // user, hf_reference only: "action", "query", ... (specification 3.8)
  bool without_eos = false;  // assistant, hf_reference only
};

enum class Effort { kLow, kHigh, kXhigh, kMax };
enum class ToolChoice { kAuto, kNone, kRequired };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

struct Conversation {
  std::vector<Message> messages;
  bool thinking_mode = true;
  std::optional<Effort> effort;
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  Json response_schema;  // kJsonSchema only
  // What constrained decoding keeps and the prompt does not say: a call must come although the prompt does
  // not begin it; names of the tools that may be called (empty: all that are shown).
  bool must_call = false;
  std::vector<std::string> callable;

  bool tools_shown() const { return tool_choice != ToolChoice::kNone && !tools.empty(); }
};

struct InferenceOptions {
  std::optional<int64_t> max_tokens;
  std::optional<float> temperature, top_p;
  std::optional<int64_t> thinking_budget_tokens;
  bool disable_parallel_tool_use = false;
  std::optional<uint64_t> seed;
  bool logprobs = false;
  int top_logprobs = 0;
};

// Where the model's text begins (specification 5.3).
enum class ReasoningStage { kNone, kStart, kReasoning, kContent };

// What a tool's schema says of one argument: a string only, no string, or either (or nothing).
enum class ArgumentType { kAny, kString, kJson };
// Tool name -> argument name -> type; what is not listed is kAny.
using ArgumentTypes = std::map<std::string, std::map<std::string, ArgumentType>>;

struct ParsingOptions {
  bool parse_tool_calls = false;
  bool starts_in_calls = false;
  bool parse_json_output = false;
  ReasoningStage stage = ReasoningStage::kNone;
  std::vector<std::string> stop_sequences;
  ArgumentTypes argument_types;  // for values whose tag does not say, or says what cannot be
};

}  // namespace deepinfer
