// For each special token and each string a client controls, in all three protocols: the ids between the
// template's hold no control token (request edge specification 2.4, 9).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "edge/request.h"
#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

// Every string member the three protocols' tables name stands in one of these (BodiesNameEveryField).
const char* kChat =
    R"({"model":"m","reasoning_effort":"low","user_id":"u","user":"U","metadata":{"mk":"mv"},"messages":[
  {"role":"system","content":[{"type":"text","text":"s"}]},{"role":"system","name":"sn","content":"s2"},
  {"role":"user","name":"n","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"http://x/y","detail":"low"}},
    {"type":"file","file":{"file_data":"data:image/png;base64,AAAA","filename":"fn"}},{"type":"text","text":"u"}]},
  {"role":"assistant","name":"an","content":"c","reasoning_content":"r","tool_calls":[{"id":"a","type":"function",
    "function":{"name":"f","arguments":"{\"k\":\"v\",\"n\":[\"w\"]}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"no JSON"}}]},
  {"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"R"}]},{"role":"tool","tool_call_id":"b","name":"tn","content":"R2"},
  {"role":"latest_reminder","content":"l"},{"role":"user","content":"q"},
  {"role":"assistant","content":[{"type":"text","text":"begun"}],"reasoning_content":"r2","prefix":true}],
  "stop":["x"],"tool_choice":"auto","thinking":{"type":"enabled"},"response_format":{"type":"json_schema","json_schema":{"name":"jn","schema":{"type":"object","title":"jt"}}},
  "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","description":"sd",
    "properties":{"p":{"type":"string","enum":["e"],"default":"df","pattern":"pt"}},"required":["p"]}}}]})";
const char* kResponses =
    R"({"model":"m","instructions":"i","user":"u","metadata":{"mk":"mv"},"previous_response_id":"pr","prompt_cache_key":"pk","input":[
  {"type":"message","role":"system","content":"sy"},{"type":"message","role":"user","content":[{"type":"input_text","text":"x"},
    {"type":"input_image","image_url":"http://x/y","detail":"low"},{"type":"input_file","filename":"fn","file_data":"fd"}]},
  {"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}],"summary":[{"type":"summary_text","text":"su"}],"encrypted_content":"ec"},
  {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
  {"type":"function_call","call_id":"b","name":"f","namespace":"n","arguments":"{\"k\":\"v\"}"},
  {"type":"function_call_output","call_id":"b","output":"R"},{"type":"custom_tool_call","call_id":"c","name":"apply_patch","input":"p"},
  {"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]},{"type":"message","role":"developer","content":"d"},
  {"type":"item_reference","id":"ir"}],"reasoning":{"effort":"low","summary":"auto"},"tool_choice":"auto",
  "text":{"format":{"type":"json_schema","name":"jn","schema":{"type":"object","title":"jt"}}},
  "tools":[{"type":"namespace","name":"n","description":"nd","tools":[{"type":"function","name":"f","description":"fd","parameters":{"type":"object","title":"pt"}}]},
    {"type":"custom","name":"apply_patch","description":"cd"},{"type":"function","name":"g","description":"gd"},{"type":"web_search"}]})";
const char* kMessages =
    R"({"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"},{"type":"tool_reference","tool_name":"tr"},{"type":"document","source":{"media_type":"dm"}}],
  "metadata":{"user_id":"u"},"messages":[{"role":"user","content":"u"},
  {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"x"},
    {"type":"tool_use","id":"a","name":"f","input":{"k":["v"],"m":"w"}},{"type":"tool_use","id":"b","name":"g","input":"is"}]},
  {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"R"},{"type":"tool_reference","tool_name":"tr"}]},
    {"type":"tool_result","tool_use_id":"b","content":"R2"},{"type":"document","title":"dt","context":"dc","source":{"media_type":"z","data":"dd"}},
    {"type":"tool_reference","tool_name":"tr"},{"type":"text","text":"y"},{"type":"image","source":{"type":"url","url":"http://x/y"}},
    {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
  {"role":"assistant","content":"plain"},{"role":"system","content":"e"},{"role":"system","content":[{"type":"text","text":"e2"}]}],
  "output_config":{"effort":"low"},"thinking":{"type":"enabled"},"tool_choice":{"type":"auto"},
  "tools":[{"name":"f","description":"d","input_schema":{"type":"object","title":"T","properties":{"p":{"const":"cv"}}}}],"stop_sequences":["q"]})";

const std::vector<std::pair<Protocol, const char*>>& bodies() {
  static const std::vector<std::pair<Protocol, const char*>> list = {
      {Protocol::kChat, kChat}, {Protocol::kResponses, kResponses}, {Protocol::kMessages, kMessages}};
  return list;
}

// Control ids found by encoding, and those the template placed: the same, and as many as harmless text has.
void expect_no_control_from_text(const Tokenizer& t, const ControlTokens& control, Protocol p,
                                 const Json& body, int* accepted) {
  for (Profile profile : {Profile::kApi, Profile::kV4, Profile::kRecipe02}) {
    ConvertOptions plain = convert_options(profile);
    // The literal would be refused otherwise, which hides it from this test.
    plain.image_literal_is_text = true;
    plain.reject_messages_web_search = false;
    Result<ProtocolRequest> r = convert_request(p, body.dump(), plain);
    if (!r.ok()) continue;
    ++*accepted;
    std::vector<Span> spans = render_conversation(r->conversation, control, render_options(profile)).value();
    std::vector<int32_t> placed, found;
    for (const Span& s : spans) {
      if (s.kind != Span::Kind::kText) placed.push_back(s.id);
    }
    for (int32_t id : encode_spans(t, spans)) {
      if (t.is_added(id)) found.push_back(id);
    }
    ASSERT_EQ(found, placed) << body;
    // A placeholder too many would shift every image after it.
    int64_t images = 0;
    for (const Message& m : r->conversation.messages) {
      for (const Content::Part& part : m.content.parts) images += part.is_image;
    }
    ASSERT_EQ(std::count(found.begin(), found.end(), control.image), images) << body;
  }
}

TEST(EdgeSafety, NoControlIdComesFromAnyClientField) {
  Tokenizer t = testing::test_tokenizer({{"\xef\xbd", "\x9c"}, {"\xef", "\xbd"}, {"<", "\xef\xbd\x9c"}});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  for (auto [p, text] : bodies()) {
    const Json body = parse_json(text).value();
    int base = 0;
    expect_no_control_from_text(t, control, p, body, &base);
    ASSERT_EQ(base, 3) << "the body itself is legal in every profile";
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
          if (HasFatalFailure()) return;
        }
      }
    }
    EXPECT_GT(fields, 35);
    EXPECT_GT(accepted, fields * 20) << "most fields are free text";
  }
}

// Names of members become text as well: keys of arguments, of schemas, of metadata.
TEST(EdgeSafety, MemberNamesToo) {
  Tokenizer t = testing::test_tokenizer({});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  for (auto [p, text] : bodies()) {
    const Json body = parse_json(text).value();
    std::vector<Json::json_pointer> objects;
    std::function<void(const Json&, const Json::json_pointer&)> walk = [&](const Json& v,
                                                                           const Json::json_pointer& at) {
      if (v.is_object()) objects.push_back(at);
      if (!v.is_structured()) return;
      for (auto it = v.begin(); it != v.end(); ++it)
        walk(*it, v.is_object() ? at / it.key() : at / static_cast<size_t>(it - v.begin()));
    };
    walk(body, Json::json_pointer());
    int accepted = 0;
    for (const Json::json_pointer& place : objects) {
      for (const auto& added : testing::test_added_tokens()) {
        Json changed = body;
        changed[place][added.text] = added.text;
        expect_no_control_from_text(t, control, p, changed, &accepted);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(accepted, 200);
  }
  // Keys inside arguments that are text themselves.
  for (const auto& added : testing::test_added_tokens()) {
    Json body = parse_json(kChat).value();
    Json arguments = {{added.text, {{added.text, Json::array({added.text})}}}};
    body["messages"][3]["tool_calls"][0]["function"]["arguments"] = arguments.dump();
    int accepted = 0;
    expect_no_control_from_text(t, control, Protocol::kChat, body, &accepted);
    EXPECT_EQ(accepted, 3);
  }
}

// The list above is only as good as its bodies: each string member that the field tables name must be there.
TEST(EdgeSafety, BodiesNameEveryField) {
  std::vector<std::vector<const char*>> members = {{"model",
                                                    "reasoning_effort",
                                                    "user_id",
                                                    "user",
                                                    "metadata/mk",
                                                    "role",
                                                    "name",
                                                    "content",
                                                    "text",
                                                    "url",
                                                    "detail",
                                                    "file_data",
                                                    "reasoning_content",
                                                    "id",
                                                    "arguments",
                                                    "tool_call_id",
                                                    "stop/0",
                                                    "tool_choice",
                                                    "thinking/type",
                                                    "schema/title",
                                                    "description",
                                                    "enum/0",
                                                    "default",
                                                    "pattern",
                                                    "required/0",
                                                    "function/name",
                                                    "json_schema/name"},
                                                   {"model",
                                                    "instructions",
                                                    "user",
                                                    "metadata/mk",
                                                    "previous_response_id",
                                                    "role",
                                                    "content",
                                                    "text",
                                                    "image_url",
                                                    "detail",
                                                    "encrypted_content",
                                                    "summary/0/text",
                                                    "call_id",
                                                    "name",
                                                    "namespace",
                                                    "arguments",
                                                    "output",
                                                    "input",
                                                    "output/0/text",
                                                    "effort",
                                                    "schema/title",
                                                    "description",
                                                    "parameters/title",
                                                    "tool_choice",
                                                    "filename"},
                                                   {"model",
                                                    "system/0/text",
                                                    "tool_name",
                                                    "media_type",
                                                    "user_id",
                                                    "content",
                                                    "thinking",
                                                    "signature",
                                                    "text",
                                                    "id",
                                                    "name",
                                                    "input/k/0",
                                                    "input/m",
                                                    "input",
                                                    "tool_use_id",
                                                    "data",
                                                    "url",
                                                    "effort",
                                                    "type",
                                                    "description",
                                                    "input_schema/title",
                                                    "stop_sequences/0",
                                                    "title",
                                                    "context"}};
  for (size_t i = 0; i < bodies().size(); ++i) {
    const Json flat = parse_json(bodies()[i].second)->flatten();
    for (const char* member : members[i]) {
      bool found = false;
      for (const auto& [pointer, leaf] : flat.items())
        found = found || (leaf.is_string() && pointer.ends_with("/" + std::string(member)));
      EXPECT_TRUE(found) << i << " " << member;
    }
  }
}

TEST(EdgeSafety, CompletionsAndTokeniseBodies) {
  Tokenizer t = testing::test_tokenizer({});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  for (const auto& added : testing::test_added_tokens()) {
    const std::string x = added.text;
    for (const Json& body :
         {Json{{"model", x}, {"prompt", x}, {"stop", x}, {"user", x}},
          Json{{"model", "m"}, {"prompt", x}, {"suffix", x}, {"stop", Json::array({x})}}}) {
      CompletionRequest r = convert_completion(body, {}).value();
      std::vector<Span> spans = render_completion(r.prompt, r.suffix, control).value();
      size_t placed = 0, found = 0;
      for (const Span& s : spans) placed += s.kind != Span::Kind::kText;
      for (int32_t id : encode_spans(t, spans)) found += t.is_added(id);
      EXPECT_EQ(found, placed) << body;
    }
    EXPECT_FALSE(convert_tokenize({{"prompt", x}}, {})->special) << "only where a client asks for it";
    for (int32_t id : t.encode(x)) EXPECT_FALSE(t.is_added(id));
    EXPECT_EQ(t.decode(t.encode(x)), x);
  }
}

}  // namespace
}  // namespace deepinfer
