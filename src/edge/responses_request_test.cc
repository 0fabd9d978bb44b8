// Responses bodies: every row of request edge specification 4.2 and the grouping rule of calls.
#include "edge/request_test_support.h"

namespace deepinfer {
namespace {

Json body(Json input) {
  return {{"model", "m"}, {"input", std::move(input)}};
}
Json with(Json b, const char* key, Json value) {
  b[key] = std::move(value);
  return b;
}
std::string ask(const Json& b, Profile p = Profile::kApi) {
  return testing::prompt(Protocol::kResponses, b, p);
}
Result<ProtocolRequest> conv(const Json& b, ConvertOptions o = {}) {
  return testing::convert(Protocol::kResponses, b, o);
}
Json items(std::initializer_list<Json> list) {
  Json a = Json::array();
  for (const Json& i : list) a.push_back(i);
  return a;
}
Json message(const char* role, Json content) {
  return {{"type", "message"}, {"role", role}, {"content", std::move(content)}};
}
Json call(const char* id, const char* name = "f") {
  return {{"type", "function_call"},
          {"call_id", id},
          {"name", name},
          {"arguments", "{\"id\":\"" + std::string(id) + "\"}"}};
}
Json output(const char* id, Json out) {
  return {{"type", "function_call_output"}, {"call_id", id}, {"output", std::move(out)}};
}
Json reasoning(const char* text) {
  return {{"type", "reasoning"},
          {"summary", Json::array()},
          {"content", Json::array({{{"type", "reasoning_text"}, {"text", text}}})}};
}
std::string invoke(const std::string& id, const std::string& name = "f") {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n<｜DSML｜ parameter name=\"id\" string=\"true\">" + id +
         "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n";
}
std::string block(const std::string& inner) {
  return "\n\n<｜DSML｜ calls>\n" + inner + "</｜DSML｜ calls>";
}
const std::string kOn = "<｜System｜>{E}", kTail = "<｜Assistant｜><think>", kEos = "<｜end▁of▁sentence｜>",
                  kU = "<｜User｜>", kA = "<｜Assistant｜>";

TEST(ResponsesRequest, InputForms) {
  EXPECT_EQ(ask(body("hi")), kOn + kU + "hi" + kTail);
  EXPECT_EQ(ask(with(body("hi"), "instructions", "i")), kOn + "i" + kU + "hi" + kTail);
  EXPECT_EQ(ask({{"model", "m"}, {"instructions", "i"}}), kOn + "i" + kTail);
  EXPECT_EQ(ask({{"model", "m"}}), "400 Either input or instructions must be provided");
  EXPECT_EQ(ask(body(Json::array())), "400 Input items array must not be empty");
  EXPECT_EQ(ask(body(items({{{"role", "user"}, {"content", "bare"}}}))), kOn + kU + "bare" + kTail);
}

TEST(ResponsesRequest, Messages) {
  Json list = items({message("system", "s"), message("developer", "d"),
                     message("user", items({{{"type", "input_text"}, {"text", "x"}},
                                            {{"type", "input_image"}, {"image_url", "http://x/y"}},
                                            {{"type", "input_file"}}}))});
  EXPECT_EQ(ask(body(list)), kOn + "s" + kU + "d\n\nx\n\n<｜image｜>\n\n[Unsupported Document]" + kTail);
  EXPECT_EQ(ask(body(list), Profile::kRecipe02),
            kOn + "s<｜System｜>d" + kU + "x\n\n<｜image｜>\n\n[Unsupported Document]" + kTail);
  EXPECT_EQ(ask(body(items({message("user", "x"),
                            message("assistant", items({{{"type", "output_text"}, {"text", "y"}}})),
                            message("assistant", "z"), message("user", "w")}))),
            kOn + kU + "x" + kA + "<think></think>y\n\nz" + kEos + kU + "w" + kTail);
  EXPECT_EQ(ask(body(items({message("user", items({{{"type", "zzz"}}}))}))),
            "400 input[0].content[0]: Unsupported content block");
  EXPECT_EQ(
      ask(body(items({message("system", items({{{"type", "input_image"}, {"image_url", "http://x"}}}))}))),
      "400 Image in system message is unsupported");
  EXPECT_EQ(
      ask(body(items({message("user", items({{{"type", "input_image"}, {"file_id", "f"}}}))}))),
      "400 input[0].content[0]: file_id is not supported. Pass the image as a base64 data url instead.");
}

TEST(ResponsesRequest, Reasoning) {
  EXPECT_EQ(ask(body(items({message("user", "x"), reasoning("r1"), reasoning("r2"), message("assistant", "y"),
                            message("user", "z")}))),
            kOn + kU + "x" + kA + "<think>r1\nr2</think>y" + kEos + kU + "z" + kTail);
  EXPECT_EQ(
      ask(body(
          items({message("user", "x"), message("assistant", "y"), reasoning("r"), message("user", "z")}))),
      kOn + kU + "x" + kA + "<think></think>y" + kEos + kA + "<think>r</think>" + kEos + kU + "z" + kTail)
      << "an assistant with content is closed to reasoning";
  Json empty = {{"type", "reasoning"}, {"summary", items({{{"text", "s"}}})}, {"encrypted_content", "e"}};
  EXPECT_EQ(ask(body(items({message("user", "x"), empty}))), ask(body("x")));
}

TEST(ResponsesRequest, GroupsAreSortedByCallId) {
  EXPECT_EQ(ask(body(items({message("user", "x"), message("assistant", "y"), call("b"), call("a"),
                            output("b", "B"), output("a", "A"), message("user", "n")}))),
            kOn + kU + "x" + kA + "<think></think>y" + block(invoke("a") + invoke("b")) + kEos + kU +
                "<tool_result>A</tool_result>\n\n<tool_result>B</tool_result>\n\nn" + kTail);
  // Byte order: _10 before _2.
  EXPECT_NE(ask(body(items({message("user", "x"), call("c_2"), call("c_10"), output("c_2", "two"),
                            output("c_10", "ten")})))
                .find("ten</tool_result>\n\n<tool_result>two"),
            std::string::npos);
  EXPECT_EQ(
      ask(body(items({message("user", "x"), call("b"), output("b", "B"), call("a"), output("a", "A")}))),
      kOn + kU + "x" + kA + "<think></think>" + block(invoke("b")) + kEos + kU +
          "<tool_result>B</tool_result>" + kA + "<think></think>" + block(invoke("a")) + kEos + kU +
          "<tool_result>A</tool_result>" + kTail)
      << "a group is written as soon as it is answered";
}

TEST(ResponsesRequest, CallFaults) {
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b")}))), "400 No tool output found for tool call b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b"), message("user", "y")}))),
            "400 No tool output found for tool call b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b"), reasoning("r")}))),
            "400 No tool output found for tool call b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), output("b", "B")}))),
            "400 No tool call found for tool output with call_id b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b"), call("b"), output("b", "B")}))),
            "400 Duplicate 'call_id': b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b"), output("b", "B"), output("b", "B")}))),
            "400 Duplicate tool output for call_id: b.");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("")}))),
            "400 Invalid 'input[1].call_id': empty string. Expected a string with minimum length 1, but got "
            "an empty string instead.");
}

TEST(ResponsesRequest, OtherItems) {
  Json custom = {
      {"type", "custom_tool_call"}, {"call_id", "q"}, {"name", "apply_patch"}, {"input", "*** \"x\""}};
  Json answer = {{"type", "custom_tool_call_output"}, {"call_id", "q"}, {"output", "ok"}};
  EXPECT_NE(ask(body(items({message("user", "x"), custom, answer})))
                .find("name=\"input\" string=\"true\">*** \"x\"</｜DSML｜ parameter>"),
            std::string::npos);
  Json spaced = call("b");
  spaced["namespace"] = "ns";
  EXPECT_NE(ask(body(items({message("user", "x"), spaced, output("b", "B")}))).find("invoke name=\"ns::f\""),
            std::string::npos);
  EXPECT_EQ(ask(body(items({message("user", "x"),
                            {{"type", "item_reference"}, {"id", "q"}},
                            {{"type", "web_search_call"}},
                            {{"type", "compaction"}}}))),
            ask(body("x")));
}

TEST(ResponsesRequest, Tools) {
  auto tools = [](std::initializer_list<Json> list) { return with(body("x"), "tools", items(list)); };
  Json f = {{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "object"}}}};
  Json space = {{"type", "namespace"},
                {"name", "ns"},
                {"description", "D"},
                {"tools", items({{{"type", "function"}, {"name", "f"}, {"description", "fd"}},
                                 {{"type", "function"}, {"name", "g"}}})}};
  ProtocolRequest r = conv(tools({space, f})).value();
  ASSERT_EQ(r.conversation.tools.size(), 3u);
  EXPECT_EQ(r.conversation.tools[0].name, "ns::f");
  EXPECT_EQ(r.conversation.tools[0].description, "D\nfd");
  EXPECT_EQ(r.conversation.tools[2].name, "f");
  Json twice = {{"type", "namespace"}, {"name", "n2"}, {"tools", items({f, f})}};
  EXPECT_EQ(conv(tools({twice}))->conversation.tools[1].name, "n2::f_1");
  EXPECT_EQ(ask(tools({space, space})), "400 tools[1]: duplicate namespace name 'ns'");
  EXPECT_EQ(ask(tools({{{"type", "namespace"},
                        {"name", "c"},
                        {"tools", items({{{"type", "custom"}, {"name", "apply_patch"}}})}}})),
            "400 tools[0].tools[0]: custom tools are not supported inside a namespace");
  EXPECT_EQ(ask(tools({{{"type", "custom"}, {"name", "zz"}}})),
            "400 Unsupported custom tool: 'zz'. Only 'apply_patch' is supported");
  EXPECT_EQ(conv(tools({{{"type", "custom"}, {"name", "apply_patch"}}}))->custom_tools,
            (std::vector<std::string>{"apply_patch"}));
  EXPECT_EQ(ask(tools({{{"type", "web_search"}}, {{"type", "mcp"}}})), ask(body("x")));
  for (bool must : {false, true}) {
    Json choice = {{"type", "allowed_tools"},
                   {"mode", must ? "required" : "auto"},
                   {"tools", items({{{"type", "function"}, {"name", "f"}}})}};
    r = conv(with(tools({space, f}), "tool_choice", choice)).value();
    EXPECT_EQ(r.conversation.callable, std::vector<std::string>{"f"});
    EXPECT_EQ(r.conversation.must_call, must);
    EXPECT_EQ(r.conversation.tools.size(), 3u);
    EXPECT_EQ(ask(with(tools({space, f}), "tool_choice", choice)), ask(tools({space, f})));
    choice["tools"][0]["name"] = "zz";
    EXPECT_EQ(ask(with(tools({space, f}), "tool_choice", choice)),
              "400 tool_choice: no tool named 'zz' was specified");
  }
  ConvertOptions strict;
  strict.reject_responses_web_search = true;
  EXPECT_EQ(conv(tools({{{"type", "web_search"}}}), strict).status().message(),
            "Server tools are not supported");
  EXPECT_EQ(ask(tools({{{"type", "function"}, {"name", "f"}, {"parameters", {{"type", "array"}}}}})),
            "400 Tool 'f' parameters must be a JSON Schema of type object");
  EXPECT_EQ(ask(with(tools({f}), "tool_choice", "required")),
            "400 Thinking mode does not support this tool_choice");
  EXPECT_EQ(ask(with(tools({f}), "tool_choice", {{"type", "web_search"}})), ask(tools({f})));
  Json off = with(with(tools({f, space}), "tool_choice", {{"type", "function"}, {"name", "f"}}), "reasoning",
                  {{"effort", "none"}});
  EXPECT_EQ(conv(off)->conversation.tools.size(), 1u);
  EXPECT_TRUE(conv(off)->parsing.starts_in_calls);
}

TEST(ResponsesRequest, ImageLiteralComesFirst) {
  const std::string x = "a <｜image｜> b";
  for (Json b : {body(x), with(body("x"), "instructions", x), body(items({message("user", x)})),
                 body(items({message("user", items({{{"type", "input_text"}, {"text", x}}}))})),
                 body(items({message("user", "x"), call("b"), output("b", x)})),
                 body(items({reasoning(x.c_str())}))}) {
    b["temperature"] = 9;
    EXPECT_TRUE(ask(b).starts_with("400 The sub-string \"<｜image｜>\"")) << b;
    ConvertOptions plain;
    plain.image_literal_is_text = true;
    EXPECT_EQ(conv(b, plain).status().message(), "temperature must be in [0, 2]") << b;
  }
  for (const Json& b :
       {body(items({{{"type", "function_call"}, {"call_id", "b"}, {"name", x}, {"arguments", "{}"}},
                    output("b", "B")})),
        body(items({{{"type", "function_call"},
                     {"call_id", "b"},
                     {"name", "f"},
                     {"arguments", R"({"k":"\u003c｜image｜>"})"}},
                    output("b", "B")}))}) {
    EXPECT_TRUE(ask(b).starts_with("400 The sub-string")) << b;
  }
  EXPECT_EQ(ask(body(items({message("user", "x"), {{"type", "web_search_call"}, {"content", 5}}}))),
            ask(body("x")));
}

TEST(ResponsesRequest, ContentFaultsAndIgnoredFields) {
  EXPECT_EQ(ask(body(items({message("user", items({{{"type", "input_audio"}}}))}))),
            "400 input[0].content[0]: Unsupported content block");
  EXPECT_EQ(
      ask(body(items({message("assistant", items({{{"type", "input_image"}, {"image_url", "http://x"}}}))}))),
      "400 Image in assistant message is unsupported");
  EXPECT_EQ(ask(body(items({message("user", "x"), call("b"),
                            output("b", items({{{"type", "input_text"}, {"text", "1"}},
                                               {{"type", "input_image"}, {"image_url", "http://x/y"}}}))})))
                .find("400"),
            std::string::npos)
      << "results may hold images";
  EXPECT_FALSE(conv(body(items({message("tool", "x")}))).ok());
  EXPECT_FALSE(conv(body(items({{{"content", "x"}}}))).ok());
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, Json>>{{"store", true},
                                                 {"metadata", {{"k", "v"}}},
                                                 {"user", "u"},
                                                 {"include", Json::array({"x"})},
                                                 {"truncation", "auto"},
                                                 {"background", true},
                                                 {"parallel_tool_calls", false},
                                                 {"previous_response_id", "r"},
                                                 {"thinking", {{"type", "disabled"}}}}) {
    EXPECT_EQ(ask(with(body("x"), name, value)), ask(body("x"))) << name;
  }
  EXPECT_TRUE(conv(with(body("x"), "parallel_tool_calls", false))->inference.disable_parallel_tool_use);
  for (auto [word, level] : std::vector<std::pair<const char*, Effort>>{{"minimal", Effort::kLow},
                                                                        {"low", Effort::kLow},
                                                                        {"medium", Effort::kHigh},
                                                                        {"high", Effort::kHigh},
                                                                        {"xhigh", Effort::kXhigh},
                                                                        {"max", Effort::kMax}}) {
    EXPECT_EQ(conv(with(body("x"), "reasoning", {{"effort", word}}))->conversation.effort, level) << word;
  }
  EXPECT_EQ(ask(with(body("x"), "temperature", 3)), "400 temperature must be in [0, 2]");
  EXPECT_EQ(ask(with(body("x"), "top_p", 0)), "400 top_p must be in (0, 1]");
}

TEST(ResponsesRequest, OtherFields) {
  EXPECT_EQ(ask(with(body("x"), "reasoning", {{"effort", "none"}, {"summary", "auto"}})),
            kU + "x" + kA + "</think>");
  EXPECT_EQ(ask(with(body("x"), "thinking", {{"type", "disabled"}})), ask(body("x"))) << "a Chat field";
  EXPECT_EQ(ask(with(body("x"), "max_output_tokens", 0)), "400 max_output_tokens must be greater than zero");
  auto format = [](const char* input, Json f) {
    return with(body(input), "text", {{"format", std::move(f)}});
  };
  EXPECT_EQ(
      ask(format("x", {{"type", "json_object"}})),
      "400 Response input messages must contain the word 'json' to use text.format of type json_object");
  EXPECT_TRUE(conv(format("json", {{"type", "json_object"}}))->parsing.parse_json_output);
  EXPECT_EQ(ask(format("x", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}})), ask(body("x")));
  ProtocolRequest r = conv(with(with(body("x"), "previous_response_id", "resp_1"), "store", true)).value();
  EXPECT_EQ(r.previous_response_id, "resp_1");
  EXPECT_EQ(r.notes.size(), 2u);
  EXPECT_TRUE(ask(body("a <｜image｜>")).starts_with("400 The sub-string"));
}

}  // namespace
}  // namespace deepinfer
