// Chat bodies: every row of request edge specification 4.1, the check order, the message constants of 4.5;
// also completions, tokenise bodies, error bodies and model names.
#include <set>

#include "edge/request_test_support.h"

namespace deepinfer {
namespace {

using testing::assistant;
using testing::user;

Json body(Json messages) {
  return {{"model", "m"}, {"messages", std::move(messages)}};
}
Json with(Json b, const char* key, Json value) {
  b[key] = std::move(value);
  return b;
}
std::string ask(const Json& b, Profile p = Profile::kApi) {
  return testing::prompt(Protocol::kChat, b, p);
}
Result<ProtocolRequest> conv(const Json& b, ConvertOptions o = {}) {
  return testing::convert(Protocol::kChat, b, o);
}
Json hi() {
  return body({user("hi")});
}
Json tool(const char* name) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
}
Json call(const char* id) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
}
Json result(const char* id, Json content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}};
}
Json calls(std::initializer_list<const char*> ids) {
  Json m = {{"role", "assistant"}, {"content", "c"}, {"tool_calls", Json::array()}};
  for (const char* id : ids) m["tool_calls"].push_back(call(id));
  return m;
}
const std::string kOn = "<｜System｜>{E}", kTail = "<｜Assistant｜><think>";

TEST(ChatRequest, ThinkingAndEffort) {
  EXPECT_EQ(ask(hi()), kOn + "<｜User｜>hi" + kTail);
  const std::string off = "<｜User｜>hi<｜Assistant｜></think>";
  EXPECT_EQ(ask(with(hi(), "reasoning_effort", "none")), off);
  EXPECT_EQ(ask(with(hi(), "thinking", {{"type", "disabled"}})), off);
  EXPECT_EQ(ask(with(with(hi(), "thinking", {{"type", "disabled"}}), "reasoning_effort", "max")), off)
      << "thinking wins over effort";
  EXPECT_EQ(ask(with(with(hi(), "thinking", {{"type", "adaptive"}}), "reasoning_effort", "none")),
            kOn + "<｜User｜>hi" + kTail);
  for (auto [word, level] : std::vector<std::pair<const char*, Effort>>{{"minimal", Effort::kLow},
                                                                        {"low", Effort::kLow},
                                                                        {"medium", Effort::kHigh},
                                                                        {"high", Effort::kHigh},
                                                                        {"xhigh", Effort::kXhigh},
                                                                        {"max", Effort::kMax},
                                                                        {"ultra", Effort::kMax}}) {
    EXPECT_EQ(conv(with(hi(), "reasoning_effort", word))->conversation.effort, level) << word;
  }
  EXPECT_FALSE(conv(with(hi(), "reasoning_effort", 5)).ok());
  EXPECT_FALSE(conv(with(hi(), "reasoning_effort", "loud")).ok());
  EXPECT_FALSE(conv(with(hi(), "thinking", {{"type", "loud"}})).ok());
  ConvertOptions quiet;
  quiet.default_thinking = false;
  EXPECT_FALSE(conv(hi(), quiet)->conversation.thinking_mode);
  EXPECT_TRUE(conv(with(hi(), "reasoning_effort", "low"), quiet)->conversation.thinking_mode)
      << "any effort but none turns thinking on";
}

TEST(ChatRequest, BodyFaults) {
  for (const char* text :
       {"", "[]", "7", "{", R"({"messages":[{"role":"user","content":"x"}]})", R"({"model":"m"})",
        R"({"model":"m","messages":5})", R"({"model":5,"messages":[]})", R"({"model":"m","messages":[5]})",
        R"({"model":"m","messages":[{"content":"x"}]})",
        R"({"model":"m","messages":[{"role":"developer","content":"x"}]})",
        R"({"model":"m","messages":[{"role":"user"}]})",
        R"({"model":"m","messages":[{"role":"user","content":null}]})",
        R"({"model":"m","messages":[{"role":"user","content":[{"type":"input_audio"}]}]})",
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"stream":"yes"})"}) {
    Result<ProtocolRequest> r = convert_request(Protocol::kChat, text, {});
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(http_status(r.status()), 400);
  }
  EXPECT_TRUE(conv(with(hi(), "unknown_field", {{"x", 1}})).ok()) << "unknown fields are ignored";
  EXPECT_TRUE(conv(with(with(hi(), "temperature", nullptr), "tools", nullptr)).ok()) << "null equals absent";
  EXPECT_EQ(ask(body(Json::array())), "400 Empty input messages");
}

TEST(ChatRequest, Limits) {
  EXPECT_EQ(ask(with(hi(), "temperature", -0.1)), "400 temperature must be in [0, 2]");
  EXPECT_EQ(ask(with(hi(), "temperature", 2.1)), "400 temperature must be in [0, 2]");
  EXPECT_EQ(ask(with(hi(), "top_p", 0)), "400 top_p must be in (0, 1]");
  EXPECT_EQ(ask(with(hi(), "top_p", 1.5)), "400 top_p must be in (0, 1]");
  EXPECT_EQ(ask(with(hi(), "max_tokens", 0)), "400 max_tokens must be greater than zero");
  EXPECT_EQ(ask(with(hi(), "frequency_penalty", 3)), "400 frequency_penalty must be in [-2, 2]");
  EXPECT_EQ(ask(with(hi(), "presence_penalty", -3)), "400 presence_penalty must be in [-2, 2]");
  EXPECT_EQ(ask(with(hi(), "seed", -1)), "400 seed must be in [0, 2^63)");
  EXPECT_EQ(ask(with(hi(), "seed", uint64_t{1} << 63)), "400 seed must be in [0, 2^63)");
  EXPECT_EQ(ask(with(hi(), "n", 2)), "400 Invalid n value (currently only n = 1 is supported)");
  EXPECT_EQ(ask(with(hi(), "stop", Json(std::vector<std::string>(17, "x")))),
            "400 ChatCompletionStopSequences string array too long: 17");
  EXPECT_EQ(ask(with(hi(), "stream_options", {{"include_usage", true}})),
            "400 stream_options should be set along with stream = true");
  ProtocolRequest r =
      conv(with(with(with(with(with(with(hi(), "temperature", 0.5), "top_p", 1), "max_tokens", 7), "seed",
                          (uint64_t{1} << 63) - 1),
                     "stop", {"", "END"}),
                "stream", true))
          .value();
  EXPECT_EQ(r.inference.temperature, 0.5f);
  EXPECT_EQ(r.inference.top_p, 1.0f);
  EXPECT_EQ(r.inference.max_tokens, 7);
  EXPECT_EQ(r.inference.seed, (uint64_t{1} << 63) - 1);
  EXPECT_EQ(r.parsing.stop_sequences, (std::vector<std::string>{"END"}));
  EXPECT_TRUE(r.stream);
  EXPECT_EQ(conv(with(hi(), "stop", "x"))->parsing.stop_sequences, (std::vector<std::string>{"x"}));
  EXPECT_TRUE(conv(with(hi(), "stop", ""))->parsing.stop_sequences.empty());
  ConvertOptions many;
  many.max_n = 4;
  EXPECT_EQ(conv(with(hi(), "n", 3), many)->n, 3);
  EXPECT_FALSE(conv(with(hi(), "n", 5), many).ok());
  EXPECT_EQ(conv(with(with(hi(), "logprobs", true), "top_logprobs", 20))->inference.top_logprobs, 20);
  EXPECT_FALSE(conv(with(with(hi(), "logprobs", true), "top_logprobs", 21)).ok());
}

TEST(ChatRequest, FirstFailureWins) {
  Json b =
      with(with(with(body(Json::array()), "temperature", 9), "stop", Json(std::vector<std::string>(17, "x"))),
           "response_format", {{"type", "regex"}});
  EXPECT_EQ(ask(b), "400 temperature must be in [0, 2]");
  b.erase("temperature");
  EXPECT_EQ(ask(b), "400 ChatCompletionStopSequences string array too long: 17");
  b.erase("stop");
  EXPECT_EQ(ask(b), "400 Empty input messages");
  b["messages"] = Json::array({user("<｜image｜>")});
  EXPECT_TRUE(ask(b).starts_with("400 The sub-string")) << ask(b);
  b["messages"] = Json::array({user("x")});
  EXPECT_EQ(ask(b), "400 response_format: only text and json_object are supported");
}

TEST(ChatRequest, Messages) {
  EXPECT_EQ(
      ask(body({{{"role", "system"}, {"content", ""}},
                user("a"),
                user("b"),
                assistant("c"),
                {{"role", "system"}, {"content", "s"}},
                user("d")})),
      kOn + "<｜User｜>a\n\nb<｜Assistant｜><think></think>c<｜end▁of▁sentence｜><｜System｜>s<｜User｜>d" +
          kTail);
  Json parts = Json::array({{{"type", "text"}, {"text", "p"}},
                            {{"type", "text"}, {"text", ""}},
                            {{"type", "text"}, {"text", "q"}}});
  EXPECT_EQ(ask(body({{{"role", "system"}, {"content", parts}}, user(parts)})),
            kOn + "p\n\n\n\nq<｜User｜>p\n\n\n\nq" + kTail);
  EXPECT_EQ(ask(body({user("a"), {{"role", "latest_reminder"}, {"content", "r"}}})),
            kOn + "<｜User｜>a<｜latest_reminder｜>r" + kTail);
  EXPECT_EQ(ask(body({user("a"),
                      {{"role", "assistant"}, {"name", "n"}, {"content", "c"}, {"reasoning_content", "why"}},
                      user("b")})),
            kOn + "<｜User｜>a<｜Assistant｜><think>why</think>c<｜end▁of▁sentence｜><｜User｜>b" + kTail);
  EXPECT_EQ(ask(body({user("a"), {{"role", "assistant"}}})),
            "400 Invalid assistant message: content or tool_calls must be set");
  EXPECT_EQ(ask(body({user("a"), {{"role", "assistant"}, {"tool_calls", Json::array()}}})),
            "400 Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but "
            "got an empty array instead.");
}

TEST(ChatRequest, ToolMessages) {
  EXPECT_EQ(ask(body({user("u"), calls({"a", "b"}), result("b", "B"),
                      result("a", Json::array({{{"type", "text"}, {"text", "1"}},
                                               {{"type", "text"}, {"text", "2"}}}))})),
            kOn +
                "<｜User｜>u<｜Assistant｜><think></think>c\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke "
                "name=\"f\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ "
                "invoke>\n</｜DSML｜ "
                "calls><｜end▁of▁sentence｜><｜User｜><tool_result>1\n\n2</tool_result>\n\n<tool_result>B</"
                "tool_result>" +
                kTail);
  const std::string rule =
      "400 An assistant message with 'tool_calls' must be followed by tool messages responding to each "
      "'tool_call_id'. ";
  const std::string missing = rule + "(insufficient tool messages following tool_calls message)";
  EXPECT_EQ(ask(body({user("u"), calls({"a"})})), missing);
  EXPECT_EQ(ask(body({user("u"), calls({"a", "b"}), result("a", "A"), user("v")})), missing);
  EXPECT_EQ(ask(body({user("u"), calls({"a"}), result("z", "Z")})), rule + "Unexpected tool_call_id: z");
  EXPECT_EQ(ask(body({user("u"), result("a", "A")})),
            "400 Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
  EXPECT_EQ(ask(body({user("u"), calls({"a", "a"}), result("a", "A")})),
            "400 Duplicate value for 'tool_call_id' of a in message[1]");
}

TEST(ChatRequest, Tools) {
  Json b = with(hi(), "tools", Json::array({tool("f"), tool("g")}));
  EXPECT_EQ(ask(b), kOn + "\n\n{TOOLS}<｜User｜>hi" + kTail);
  EXPECT_EQ(ask(with(b, "tool_choice", "none")), kOn + "<｜User｜>hi" + kTail);
  EXPECT_FALSE(conv(with(b, "tool_choice", "none"))->parsing.parse_tool_calls);
  EXPECT_EQ(ask(with(b, "tool_choice", "required")), "400 Thinking mode does not support this tool_choice");
  Json named = {{"type", "function"}, {"function", {{"name", "g"}}}};
  EXPECT_EQ(ask(with(b, "tool_choice", named)), "400 Thinking mode does not support this tool_choice");
  Json off = with(b, "thinking", {{"type", "disabled"}});
  EXPECT_EQ(ask(with(off, "tool_choice", "required")),
            "<｜System｜>\n\n{TOOLS}<｜User｜>hi<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n");
  ProtocolRequest r = conv(with(off, "tool_choice", named)).value();
  ASSERT_EQ(r.conversation.tools.size(), 1u);
  EXPECT_EQ(r.conversation.tools[0].name, "g");
  EXPECT_TRUE(r.parsing.starts_in_calls);
  named["function"]["name"] = "zz";
  EXPECT_EQ(ask(with(off, "tool_choice", named)), "400 tool_choice: no tool named 'zz' was specified");
  EXPECT_EQ(ask(with(hi(), "tool_choice", "required")), ask(hi())) << "ignored without tools";
  EXPECT_FALSE(conv(with(b, "tool_choice", "loud")).ok());
  EXPECT_EQ(ask(with(hi(), "tools", {tool("f"), tool("f")})), "400 Tool names must be unique");
  EXPECT_EQ(ask(with(hi(), "tools", Json::array({tool("bad name")}))),
            "400 tools.0.function.name: expected 1-128 ASCII letters, digits, underscores or hyphens");
  EXPECT_FALSE(conv(with(hi(), "tools", Json::array({tool(std::string(129, 'x').c_str())}))).ok());
  EXPECT_TRUE(conv(with(hi(), "tools", Json::array({tool(std::string(128, 'x').c_str())}))).ok());
  for (const char* schema : {R"({"type":"string"})", R"({})", R"([])", R"({"type":"object","properties":5})",
                             R"({"type":"object","required":[1]})",
                             R"({"type":"object","properties":{"a":{"type":"nonsense"}}})"}) {
    Json t = tool("f");
    t["function"]["parameters"] = Json::parse(schema);
    Json c = with(hi(), "tools", Json::array({t}));
    EXPECT_EQ(ask(c), "400 tools.0.function.parameters must be a JSON Schema of type object") << schema;
    EXPECT_TRUE(conv(with(c, "tool_choice", "none")).ok()) << "schemas are not checked when tools are off";
  }
  EXPECT_FALSE(conv(with(with(hi(), "tools", Json::array({tool("bad name")})), "tool_choice", "none")).ok())
      << "names still are";
}

TEST(ChatRequest, ToolsForConstrainedDecoding) {
  Json b = with(hi(), "tools", Json::array({tool("f"), tool("g")}));
  auto allowed = [&](const char* mode, const char* name) {
    Json t = {{"type", "function"}, {"function", {{"name", name}}}};
    return with(
        b, "tool_choice",
        {{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", Json::array({t})}}}});
  };
  for (bool must : {false, true}) {
    ProtocolRequest r = conv(allowed(must ? "required" : "auto", "g")).value();
    EXPECT_EQ(r.conversation.callable, std::vector<std::string>{"g"});
    EXPECT_EQ(r.conversation.must_call, must);
    EXPECT_EQ(r.conversation.tools.size(), 2u);
    EXPECT_EQ(ask(allowed(must ? "required" : "auto", "g")), ask(b)) << "the prompt is that of auto";
  }
  EXPECT_EQ(ask(allowed("auto", "zz")), "400 tool_choice: no tool named 'zz' was specified");
  EXPECT_FALSE(conv(allowed("loud", "g")).ok());
  Json none = {{"type", "allowed_tools"}, {"allowed_tools", {{"mode", "auto"}, {"tools", Json::array()}}}};
  EXPECT_FALSE(conv(with(b, "tool_choice", none)).ok());
  Json strict = b;
  strict["tools"][1]["function"]["strict"] = true;
  EXPECT_EQ(conv(strict)->conversation.tools[1].strict, true);
  EXPECT_EQ(ask(strict), ask(b)) << "strict is not shown";
  // A server whose grammar makes calls come may take a required one with thinking on.
  ConvertOptions o;
  o.required_with_thinking = true;
  ProtocolRequest r = convert_chat(with(b, "tool_choice", "required"), o).value();
  EXPECT_TRUE(r.conversation.must_call);
  EXPECT_FALSE(r.parsing.starts_in_calls);
  r = convert_chat(with(with(b, "tool_choice", "required"), "thinking", {{"type", "disabled"}}), o).value();
  EXPECT_FALSE(r.conversation.must_call) << "the prompt begins the call";
  EXPECT_TRUE(r.parsing.starts_in_calls);
}

TEST(ChatRequest, ResponseFormat) {
  auto format = [](Json b, const char* type) {
    return with(std::move(b), "response_format", {{"type", type}});
  };
  EXPECT_EQ(
      ask(format(hi(), "json_object")),
      "400 Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.");
  ProtocolRequest r = conv(format(body({user("as JSON")}), "json_object")).value();
  EXPECT_TRUE(r.parsing.parse_json_output);
  EXPECT_NE(ask(format(body({user("as JSON")}), "json_object")).find("## Response Format:"),
            std::string::npos);
  EXPECT_EQ(ask(format(hi(), "text")), ask(hi()));
  EXPECT_EQ(ask(format(hi(), "regex")), "400 response_format: only text and json_object are supported");
  Json schema =
      with(hi(), "response_format",
           {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"type", "object"}}}}}});
  EXPECT_EQ(ask(schema), ask(hi())) << "the prompt does not change";
  EXPECT_EQ(conv(schema)->conversation.response_schema, Json({{"type", "object"}}))
      << "constrained decoding gets it";
  EXPECT_NE(ask(schema, Profile::kRecipe02).find("reply:\n{\"type\": \"object\"}"), std::string::npos);
}

TEST(ChatRequest, Images) {
  auto image = [](Json url) {
    return user(Json::array(
        {{{"type", "text"}, {"text", "see"}}, {{"type", "image_url"}, {"image_url", {{"url", url}}}}}));
  };
  EXPECT_EQ(ask(body({image("http://x/y.png")})), kOn + "<｜User｜>see\n\n<｜image｜>" + kTail);
  EXPECT_EQ(ask(body({image("ftp://x")})), "400 messages.0.content[1]: Unsupported image_url format");
  EXPECT_EQ(ask(body({image("data:image/bmp;base64,AAAA")})),
            "400 messages.0.content[1]: Unsupported image_url format");
  EXPECT_EQ(ask(body({image("data:image/png;base64,A!AA")})),
            "400 messages.0.content[1]: base64 decode error");
  EXPECT_TRUE(
      ask(body({image("http://" + std::string(9000, 'x'))}))
          .starts_with(
              "400 messages.0.content[1]: external link length 9007 too long, max link length 8192."));
  EXPECT_TRUE(conv(body({image("https://" + std::string(8184, 'x'))})).ok());
  EXPECT_TRUE(conv(body({image("DATA:Image/JPG;charset=x;base64,AAAA")})).ok());
  // A 3 x 2 PNG header.
  std::string png = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAYAAACddGYaAAAAC0lEQVR4";
  ProtocolRequest r = conv(body({image("data:image/png;base64," + png)})).value();
  EXPECT_EQ(r.conversation.messages[0].content.parts[1].image.width, 3);
  EXPECT_EQ(r.conversation.messages[0].content.parts[1].image.height, 2);
  for (const char* role : {"system", "assistant"}) {
    Json m = image("http://x");
    m["role"] = role;
    EXPECT_EQ(ask(body({m})), std::string("400 Image in ") + role + " message is unsupported");
  }
  auto file = [](Json f) { return body({user(Json::array({{{"type", "file"}, {"file", f}}}))}); };
  EXPECT_EQ(
      ask(file({{"file_id", "x"}})),
      "400 messages.0.content[0]: file_id is not supported. Pass the image as a base64 data url instead.");
  EXPECT_FALSE(conv(file(Json::object())).ok());
  EXPECT_TRUE(conv(file({{"file_data", "data:image/png;base64,AAAA"}})).ok());
}

TEST(ChatRequest, ImageLiteral) {
  const std::string refusal =
      "400 The sub-string \"<｜image｜>\" in your input is not allowed for this API. Please remove "
      "\"<｜image｜>\" from your input and try again.";
  const std::string x = "a <｜image｜> b";
  Json t = tool("f");
  t["function"]["description"] = x;
  Json s = tool("f");
  s["function"]["parameters"]["properties"][x] = {{"type", "string"}};
  Json c = calls({"a"});
  c["tool_calls"][0]["function"]["arguments"] = R"({"k":"a \u003c｜image｜> b"})";
  Json named = calls({"a"});
  named["tool_calls"][0]["function"]["name"] = x;
  for (const Json& b :
       {body({user(x)}), body({{{"role", "system"}, {"content", x}}, user("u")}),
        body({user("u"), {{"role", "assistant"}, {"content", "c"}, {"reasoning_content", x}}}),
        with(hi(), "tools", Json::array({t})), with(hi(), "tools", Json::array({s})),
        body({user("u"), c, result("a", "r")}), body({user("u"), named, result("a", "r")}),
        body({user("u"), calls({"a"}), result("a", x)})}) {
    EXPECT_EQ(ask(b), refusal) << b;
    ConvertOptions plain;
    plain.image_literal_is_text = true;
    Result<ProtocolRequest> r = conv(b, plain);
    ASSERT_TRUE(r.ok());
    const std::vector<Span> spans =
        render_conversation(r->conversation, ControlTokens::released(), {}).value();
    for (const Span& span : spans) EXPECT_NE(span.id, 129264);
  }
}

TEST(ChatRequest, Prefix) {
  Json pre = {{"role", "assistant"}, {"content", "pre"}, {"prefix", true}};
  EXPECT_EQ(ask(body({user("u"), pre})), kOn + "<｜User｜>u<｜Assistant｜><think></think>pre");
  EXPECT_EQ(conv(body({user("u"), pre}))->parsing.stage, ReasoningStage::kContent);
  pre["content"] = "";
  pre["reasoning_content"] = "so far";
  EXPECT_EQ(ask(body({user("u"), pre})), kOn + "<｜User｜>u<｜Assistant｜><think>so far");
  EXPECT_EQ(conv(body({user("u"), pre}))->parsing.stage, ReasoningStage::kReasoning);
  EXPECT_TRUE(ask(body({user("u"), pre}), Profile::kHostedStrict).starts_with("400"));
}

TEST(ChatRequest, HostedChecks) {
  Json b = with(body({user("u"), calls({"a"}), result("a", "A")}), "model", "deepseek-flash");
  EXPECT_EQ(ask(b, Profile::kHostedStrict),
            "400 The `reasoning_content` in the thinking mode must be passed back to the API.");
  b["messages"][1]["reasoning_content"] = "";
  EXPECT_TRUE(ask(b, Profile::kHostedStrict).starts_with(kOn));
  b["model"] = "gpt-9";
  EXPECT_TRUE(ask(b, Profile::kHostedStrict).starts_with("400 The supported API model names are"));
  EXPECT_TRUE(ask(b).starts_with(kOn));
}

TEST(ChatRequest, UserIds) {
  EXPECT_EQ(conv(hi())->user_id, std::nullopt);
  EXPECT_EQ(conv(with(hi(), "user_id", "u1"))->user_id, "u1");
  EXPECT_EQ(conv(with(hi(), "user_id", 5))->user_id, std::nullopt);
  EXPECT_EQ(ask(with(hi(), "user_id", "u1")), ask(hi())) << "never in the prompt";
}

TEST(ChatRequest, IgnoredFieldsChangeNothing) {
  const std::vector<std::pair<const char*, Json>> ignored = {
      {"user", "u"},
      {"metadata", {{"k", "v"}}},
      {"store", true},
      {"service_tier", "x"},
      {"logit_bias", {{"5", 1}}},
      {"modalities", Json::array({"text"})},
      {"audio", {{"a", 1}}},
      {"prediction", {{"p", 1}}},
      {"max_completion_tokens", 5},
      {"frequency_penalty", 2},
      {"presence_penalty", -2},
      {"seed", 5},
      {"parallel_tool_calls", false},
      {"user_id", "x"},
      {"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}};
  for (const auto& [name, value] : ignored) {
    EXPECT_EQ(ask(with(hi(), name, value)), ask(hi())) << name;
    EXPECT_EQ(conv(with(hi(), name, value))->inference.max_tokens, std::nullopt) << name;
    EXPECT_EQ(conv(with(hi(), name, value))->inference.thinking_budget_tokens, std::nullopt) << name;
  }
  EXPECT_EQ(conv(with(hi(), "store", true))->notes.size(), 1u) << "and it is said";
  EXPECT_TRUE(conv(with(hi(), "parallel_tool_calls", false))->inference.disable_parallel_tool_use);
  EXPECT_EQ(conv(with(hi(), "stop", Json(std::vector<std::string>(16, "x"))))->parsing.stop_sequences.size(),
            16u);
}

TEST(ChatRequest, CacheIdentity) {
  std::set<std::string> seen;
  for (const char* account : {"", "a", "a/b", "1:a"}) {
    for (const std::optional<std::string>& user :
         {std::optional<std::string>(), std::optional<std::string>(""), std::optional<std::string>("b"),
          std::optional<std::string>("/b"), std::optional<std::string>("a/b")}) {
      EXPECT_TRUE(seen.insert(cache_identity(account, user)).second) << account;
    }
  }
  EXPECT_EQ(cache_identity("a", "b"), cache_identity("a", "b"));
}

TEST(ChatRequest, MaximumLengths) {
  EXPECT_EQ(resolve_max_tokens({}, false, 100, 1048576).value(), 8192);
  EXPECT_EQ(resolve_max_tokens({}, true, 100, 1048576).value(), 65536);
  EXPECT_EQ(resolve_max_tokens({}, true, 1000, 1500).value(), 500) << "a default is clamped to the room left";
  EXPECT_EQ(resolve_max_tokens(500, true, 1000, 1500).value(), 500);
  EXPECT_EQ(resolve_max_tokens(501, true, 1000, 1500).status().message(),
            "This model's maximum context length is 1500 tokens. However, you requested 1501 tokens (1000 in "
            "the messages, 501 in the completion). Please reduce the length of "
            "the messages or completion.");
  EXPECT_FALSE(resolve_max_tokens({}, true, 1500, 1500).ok());
  EXPECT_FALSE(resolve_max_tokens(INT64_MAX, true, 1000, 1500).ok());
}

TEST(CompletionRequest, FieldsAndLimits) {
  auto conv_completion = [](const char* text) { return convert_completion(parse_json(text).value(), {}); };
  CompletionRequest r =
      conv_completion(R"({"model":"m","prompt":"p","suffix":"s","max_tokens":5,"stop":["x"],"echo":true})")
          .value();
  EXPECT_EQ(r.prompt, "p");
  EXPECT_EQ(r.suffix, "s");
  EXPECT_TRUE(r.echo);
  EXPECT_EQ(r.parsing.stop_sequences, (std::vector<std::string>{"x"}));
  EXPECT_FALSE(r.parsing.parse_tool_calls);
  EXPECT_FALSE(conv_completion(R"({"model":"m","prompt":"p","suffix":"s","max_tokens":4097})").ok());
  EXPECT_FALSE(conv_completion(R"({"model":"m","prompt":"p","logprobs":21})").ok());
  EXPECT_FALSE(conv_completion(R"({"model":"m"})").ok());
}

TEST(TokenizeRequest, BothForms) {
  EXPECT_EQ(convert_tokenize(parse_json(R"({"prompt":"p"})").value(), {})->prompt, "p");
  EXPECT_TRUE(convert_tokenize(hi(), {})->chat.has_value());
  EXPECT_FALSE(convert_tokenize(parse_json("{}").value(), {}).ok());
  EXPECT_FALSE(convert_tokenize(parse_json("[]").value(), {}).ok());
  EXPECT_EQ(convert_detokenize(parse_json(R"({"tokens":[1,2147483647]})").value()).value(),
            (std::vector<int32_t>{1, 2147483647}));
  for (const char* bad : {"{}", R"({"tokens":5})", R"({"tokens":[-1]})", R"({"tokens":[2147483648]})",
                          R"({"tokens":["1"]})", R"({"tokens":[18446744073709551615]})"}) {
    EXPECT_FALSE(convert_detokenize(parse_json(bad).value()).ok()) << bad;
  }
}

TEST(Errors, Bodies) {
  Status bad(Code::kInvalidArgument, "say \"why\"");
  EXPECT_EQ(
      error_body(bad, Protocol::kChat),
      R"({"error":{"message":"say \"why\"","type":"invalid_request_error","param":null,"code":"invalid_request_error"}})");
  EXPECT_EQ(error_body(bad, Protocol::kResponses), error_body(bad, Protocol::kChat));
  EXPECT_TRUE(error_body(bad, Protocol::kMessages).starts_with(R"({"type":"error","error":{"message":)"));
  Status fault(Code::kIo, "x");
  EXPECT_EQ(http_status(fault), 500);
  EXPECT_NE(error_body(fault, Protocol::kChat)
                .find(R"("type":"internal_error","param":null,"code":"internal_error")"),
            std::string::npos);
  EXPECT_EQ(stream_error_frame(bad, Protocol::kMessages, 0),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"say "
            "\\\"why\\\"\"}}\n\n");
  EXPECT_TRUE(stream_error_frame(bad, Protocol::kChat, 0).starts_with("data: {\"error\":{"));
  EXPECT_NE(stream_error_frame(bad, Protocol::kResponses, 7).find("\"sequence_number\":7"),
            std::string::npos);
}

TEST(Models, Names) {
  EXPECT_EQ(resolve_model(Protocol::kChat, "deepseek-v4-flash"), "deepseek-flash");
  EXPECT_EQ(resolve_model(Protocol::kChat, "claude-x"), std::nullopt);
  EXPECT_EQ(resolve_model(Protocol::kMessages, "claude-opus-9"), "deepseek-v4-pro");
  EXPECT_EQ(resolve_model(Protocol::kMessages, "claude-sonnet"), "deepseek-flash");
}

}  // namespace
}  // namespace deepinfer
