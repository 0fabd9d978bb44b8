// Reading members of request objects, and the checks the three protocols share. Internal to the edge.
// Source: request edge specification 4, 4.5.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "edge/request.h"

namespace deepinfer {

// Members of one object. null equals absent; unknown members are ignored. The first fault is kept and ends
// nothing: callers look at status() where the order of checks wants it.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
    if (!object.is_object()) fail("", "an object");
  }
  const Json* any(const char* name) const;
  std::optional<std::string> text(const char* name);
  std::optional<bool> flag(const char* name);
  std::optional<int64_t> count(const char* name);  // an integer >= 0
  std::optional<double> number(const char* name);
  const Json* array(const char* name);
  const Json* object(const char* name);
  std::string required_text(const char* name);
  void fail(const std::string& name, const std::string& expected);
  std::string path(const std::string& name) const {
    return path_.empty() ? name : name.empty() ? path_ : path_ + "." + name;
  }
  const Status& status() const { return status_; }

 private:
  const Json* object_;
  std::string path_;
  Status status_;
};

Status bad_body(const std::string& path, const std::string& problem);
template <typename... A>
Status refuse(fmt::format_string<A...> f, A&&... args) {
  return Status(Code::kInvalidArgument, fmt::format(f, std::forward<A>(args)...));
}

// Adds a note for each known member that is accepted without effect.
void note_ignored(const Json& body, std::initializer_list<const char*> names, ProtocolRequest* request);

// temperature, top_p and the token limit (named differently in Responses).
Status read_sampling(Fields& body, const char* max_name, ProtocolRequest* request);
// An effort word to thinking and level. "none" turns thinking off, any other turns it on.
Status apply_effort(const std::string& word, const std::string& path, Conversation* conversation);
// thinking.type of Chat and Messages; wins over effort.
Status apply_thinking(const Json* thinking, const std::string& path, ProtocolRequest* request);

bool valid_tool_name(std::string_view name);
Status check_tool_name(std::string_view name, const std::string& path);
// A JSON Schema whose type is object, as far as its keywords' shapes go.
bool is_object_schema(const Json& schema);
Status check_unique_names(const std::vector<ToolDefinition>& tools);
// Keeps only the named tool and requires it.
Status choose_tool(const std::string& name, Conversation* conversation);
// Only these tools may be called; the prompt shows all. `tools`: names in {"name"}, or in {"function":
// {"name"}}.
Status allow_tools(const std::string& mode, const Json* tools, Conversation* conversation);
// required or a named tool while thinking is on is refused, or left to constrained decoding.
Status check_choice(Conversation* conversation, const ConvertOptions& options);

// The literal image placeholder in any client text that reaches the prompt.
Status check_image_literal(const Conversation& conversation, const ConvertOptions& options);
bool mentions_json(const Conversation& conversation);
// Parsing options follow from the conversation (specification 4.1).
void set_parsing(ProtocolRequest* request);
// Stored turns with calls must bring their reasoning back in thinking mode (hosted rule); `field` names it in
// the message.
Status check_reasoning_back(const Conversation& conversation, const ConvertOptions& options,
                            const char* field);
Status check_model(Protocol protocol, const std::string& model, const ConvertOptions& options);
Result<ImageSource::Detail> image_detail(const std::optional<std::string>& word, const std::string& path);

// Joins parts of one message with "\n\n".
class PartJoiner {
 public:
  explicit PartJoiner(Content* content) : content_(content) {}
  void text(std::string text) {
    separate();
    content_->add_text(std::move(text));
  }
  void image(ImageSource image) {
    separate();
    content_->add_image(std::move(image));
  }

 private:
  void separate() {
    if (!first_) content_->add_text("\n\n");
    first_ = false;
  }
  Content* content_;
  bool first_ = true;
};

}  // namespace deepinfer
