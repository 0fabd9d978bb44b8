// For each special token and each string a client controls, in all three protocols: the ids between the
// template's hold no control token (request edge specification 2.4, 9).
#include <gtest/gtest.h>

#include "edge/request.h"
#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

const char* kChat = R"({"model":"m","reasoning_effort":"low","user_id":"u","messages":[
  {"role":"system","content":"s"},
  {"role":"user","name":"n","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"http://x/y"}},{"type":"text","text":"u"}]},
  {"role":"assistant","content":"c","reasoning_content":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"k\":\"v\",\"n\":[\"w\"]}"}}]},
  {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"R"}]},
  {"role":"latest_reminder","content":"l"},{"role":"user","content":"q"}],
  "stop":["x"],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","description":"sd","properties":{"p":{"type":"string","enum":["e"]}}}}}]})";
const char* kResponses = R"({"model":"m","instructions":"i","user":"u","input":[
  {"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},
  {"type":"message","role":"assistant","content":"a"},{"type":"function_call","call_id":"b","name":"f","namespace":"n","arguments":"{\"k\":\"v\"}"},
  {"type":"function_call_output","call_id":"b","output":"R"},{"type":"custom_tool_call","call_id":"c","name":"apply_patch","input":"p"},
  {"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]},{"type":"message","role":"developer","content":"d"}],
  "tools":[{"type":"namespace","name":"n","description":"nd","tools":[{"type":"function","name":"f","description":"fd","parameters":{"type":"object"}}]},{"type":"custom","name":"apply_patch"}]})";
const char* kMessages =
    R"({"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"metadata":{"user_id":"u"},"messages":[{"role":"user","content":"u"},
  {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"f","input":{"k":["v"],"m":"w"}}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"R"}]},{"type":"document","source":{"media_type":"z"}},{"type":"text","text":"y"}]},
  {"role":"system","content":"e"}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object","title":"T"}}],"stop_sequences":["q"]})";

// Control ids found by encoding, and those the template placed.
void expect_no_control_from_text(const Tokenizer& t, const ControlTokens& control, Protocol p,
                                 const Json& body, int* accepted) {
  ConvertOptions plain;
  plain.image_literal_is_text =
      true;  // the literal would be refused otherwise, which hides it from this test
  Result<ProtocolRequest> r = convert_request(p, body.dump(), plain);
  if (!r.ok()) return;
  ++*accepted;
  std::vector<Span> spans = render_conversation(r->conversation, control, {}).value();
  std::vector<int32_t> placed, found;
  for (const Span& s : spans) {
    if (s.kind != Span::Kind::kText) placed.push_back(s.id);
  }
  for (int32_t id : encode_spans(t, spans)) {
    if (t.is_added(id)) found.push_back(id);
  }
  EXPECT_EQ(found, placed) << body;
}

TEST(EdgeSafety, NoControlIdComesFromAnyClientField) {
  Tokenizer t = testing::test_tokenizer({{"\xef\xbd", "\x9c"}, {"\xef", "\xbd"}, {"<", "\xef\xbd\x9c"}});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  for (auto [p, text] : std::vector<std::pair<Protocol, const char*>>{
           {Protocol::kChat, kChat}, {Protocol::kResponses, kResponses}, {Protocol::kMessages, kMessages}}) {
    const Json body = parse_json(text).value();
    const Json flat = body.flatten();
    int accepted = 0, fields = 0;
    for (const auto& [pointer, leaf] : flat.items()) {
      if (!leaf.is_string()) continue;
      ++fields;
      for (const auto& added : testing::test_added_tokens()) {
        for (const std::string& spelling : {std::string(added.text), "x" + std::string(added.text) + "y",
                                            leaf.get<std::string>() + added.text}) {
          Json changed = body;
          changed[Json::json_pointer(pointer)] = spelling;
          expect_no_control_from_text(t, control, p, changed, &accepted);
        }
      }
    }
    EXPECT_GT(fields, 20);
    EXPECT_GT(accepted, fields * 8) << "most fields are free text";
  }
}

TEST(EdgeSafety, MemberNamesToo) {
  Tokenizer t = testing::test_tokenizer({});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  int accepted = 0;
  for (const auto& added : testing::test_added_tokens()) {
    Json body = parse_json(kMessages).value();
    body["messages"][1]["content"][2]["input"][added.text] = added.text;
    body["tools"][0]["input_schema"]["properties"][added.text] = {{"type", "string"}};
    expect_no_control_from_text(t, control, Protocol::kMessages, body, &accepted);
  }
  EXPECT_EQ(accepted, static_cast<int>(testing::test_added_tokens().size()));
}

}  // namespace
}  // namespace deepinfer
