// Messages bodies: every row of request edge specification 4.3 and the rules of tool results.
#include "edge/request_test_support.h"

namespace deepinfer {
namespace {

using testing::assistant;
using testing::user;

Json body(Json messages) {
  return {{"model", "m"}, {"max_tokens", 10}, {"messages", std::move(messages)}};
}
Json with(Json b, const char* key, Json value) {
  b[key] = std::move(value);
  return b;
}
std::string ask(const Json& b, Profile p = Profile::kApi) {
  return testing::prompt(Protocol::kMessages, b, p);
}
Result<ProtocolRequest> conv(const Json& b, ConvertOptions o = {}) {
  return testing::convert(Protocol::kMessages, b, o);
}
Json hi() {
  return body(Json::array({user("hi")}));
}
Json text(const char* t) {
  return {{"type", "text"}, {"text", t}};
}
Json use(const char* id) {
  return {{"type", "tool_use"}, {"id", id}, {"name", "f"}, {"input", {{"x", 1}}}};
}
Json result(const char* id, Json content = "R") {
  return {{"type", "tool_result"}, {"tool_use_id", id}, {"content", std::move(content)}};
}
Json tool(const char* name) {
  return {{"name", name}, {"description", "d"}, {"input_schema", {{"type", "object"}}}};
}
Json blocks(std::initializer_list<Json> list) {
  Json a = Json::array();
  for (const Json& b : list) a.push_back(b);
  return a;
}
const std::string kOn = "<｜System｜>{E}", kTail = "<｜Assistant｜><think>";
const std::string kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
    "string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

TEST(MessagesRequest, SystemAndEntries) {
  EXPECT_EQ(ask(with(hi(), "system", "s")), kOn + "s<｜User｜>hi" + kTail);
  EXPECT_EQ(ask(with(hi(), "system", blocks({text("a"), text("b")}))), kOn + "a\n\nb<｜User｜>hi" + kTail);
  EXPECT_EQ(ask(with(hi(), "system", blocks({{{"type", "image"}}}))),
            "400 Image in system message is unsupported");
  Json entry = {{"role", "system"}, {"content", "note"}};
  EXPECT_EQ(ask(body({user("a"), entry})),
            kOn + "<｜User｜>a\n\n<system-reminder>\nnote\n</system-reminder>" + kTail);
  EXPECT_EQ(ask(body({user("a"), entry}), Profile::kRecipe02), kOn + "<｜User｜>a<｜System｜>note" + kTail);
  EXPECT_EQ(ask(body(Json::array())), "400 messages: at least one message is required");
  EXPECT_EQ(ask(body({user("a"), assistant(Json::array())})),
            "400 messages.1: all messages must have non-empty content");
  EXPECT_FALSE(conv(body({{{"role", "developer"}, {"content", "x"}}})).ok());
}

TEST(MessagesRequest, UserBlocks) {
  EXPECT_EQ(ask(body({user(blocks(
                {text("1"),
                 {{"type", "image"}, {"source", {{"type", "url"}, {"url", "http://x/y"}}}},
                 {{"type", "document"}, {"source", {{"type", "base64"}, {"media_type", "application/pdf"}}}},
                 text("2")}))})),
            kOn + "<｜User｜>1\n\n<｜image｜>\n\n[Unsupported document type: application/pdf]\n\n2" + kTail);
  auto image = [](Json source) { return body({user(blocks({{{"type", "image"}, {"source", source}}}))}); };
  EXPECT_TRUE(conv(image({{"type", "base64"}, {"media_type", "image/png"}, {"data", "AAA"}})).ok())
      << "padding is repaired";
  EXPECT_EQ(ask(image({{"type", "base64"}, {"media_type", "image/png"}, {"data", "A!"}})),
            "400 messages.0.content[0]: base64 decode error");
  EXPECT_EQ(ask(image({{"type", "url"}, {"url", "ftp://x"}})),
            "400 messages.0.content[0]: invalid url: \"ftp://x\"");
  EXPECT_EQ(
      ask(image({{"type", "file"}, {"file_id", "x"}})),
      "400 messages.0.content[0]: file_id is not supported. Pass the image as a base64 data url instead.");
  EXPECT_EQ(ask(body({user(blocks({{{"type", "search_result"}}}))})),
            "400 messages.0.content[0]: Unsupported content block");
}

TEST(MessagesRequest, AssistantBlocksAndResults) {
  Json turn = assistant(blocks({{{"type", "thinking"}, {"thinking", "t1"}, {"signature", "sig"}},
                                {{"type", "thinking"}, {"thinking", "t2"}},
                                text("p"),
                                text("q"),
                                use("i1")}));
  EXPECT_EQ(
      ask(body({user("a"), turn, user(blocks({result("i1", blocks({text("A"), text("B")})), text("go")}))})),
      kOn + "<｜User｜>a<｜Assistant｜><think>t1\n\nt2</think>p\n\nq" + kCall +
          "<｜end▁of▁sentence｜><｜User｜><tool_result>A\n\nB</tool_result>\n\ngo" + kTail);
  EXPECT_EQ(ask(body({user("a"), assistant(blocks({text(""), text("x"), text("")})), user("b")})),
            kOn + "<｜User｜>a<｜Assistant｜><think></think>x\n\n<｜end▁of▁sentence｜><｜User｜>b" + kTail);
  Json none = result("i1");
  none.erase("content");
  EXPECT_NE(ask(body({user("a"), assistant(blocks({use("i1")})), user(blocks({none}))}))
                .find("<tool_result></tool_result>"),
            std::string::npos);
  EXPECT_EQ(ask(body({assistant(blocks({{{"type", "redacted_thinking"}, {"data", "x"}}}))})),
            "400 messages.0.content[0]: Unsupported content block");
  EXPECT_EQ(ask(body({assistant(blocks({{{"type", "image"}}}))})),
            "400 Image in assistant message is unsupported");
}

TEST(MessagesRequest, ToolResultRules) {
  Json called = assistant(blocks({use("a"), use("b")}));
  const std::string rest = "`tool_use` ids were found without `tool_result` blocks immediately after: ";
  const std::string end =
      ". Each `tool_use` block must have a corresponding `tool_result` block in the next message.";
  EXPECT_EQ(ask(body({user("u"), called})), "400 messages.1:" + rest + "a, b" + end)
      << "no space for the previous index";
  EXPECT_EQ(ask(body({user("u"), called, user("x")})), "400 messages.2: " + rest + "a, b" + end);
  EXPECT_EQ(ask(body({user("u"), called, user(blocks({result("b")}))})),
            "400 messages.2: " + rest + "a" + end);
  EXPECT_EQ(ask(body({user("u"), called, user(blocks({text("first"), result("a"), result("b")}))})),
            "400 messages.2: " + rest + "a, b" + end)
      << "results come first";
  EXPECT_EQ(ask(body({user("u"), called, user(blocks({result("a"), result("zz")}))})),
            "400 unexpected `messages.2.content.1: tool_use_id` found in `tool_result` blocks: zz. Each "
            "`tool_result` block must have a corresponding `tool_use` block in the previous "
            "message.");
  EXPECT_EQ(ask(body({user("u"), called, user(blocks({result("a"), result("a")}))})),
            "400 messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` "
            "blocks with id: a");
  EXPECT_EQ(ask(body({user(blocks({use("a")}))})),
            "400 messages.0: `tool_use` blocks can only be in `assistant` messages");
  EXPECT_EQ(ask(body({user(blocks({{{"type", "thinking"}, {"thinking", "x"}}}))})),
            "400 messages.0: `thinking` blocks can only be in `assistant` messages");
  EXPECT_EQ(ask(body({assistant(blocks({result("a")}))})),
            "400 messages.0: `tool_result` blocks can only be in `user` messages");
  EXPECT_TRUE(ask(body({user("u"), assistant(blocks({use("a"), text("late")})), user(blocks({result("a")}))}))
                  .starts_with("400 messages.1.1: "));
  EXPECT_TRUE(ask(body({user("u"), assistant(blocks({use("a"), use("a")})), user(blocks({result("a")}))}))
                  .starts_with("400"));
}

TEST(MessagesRequest, ThinkingEffortAndLimits) {
  const std::string off = "<｜User｜>hi<｜Assistant｜></think>";
  EXPECT_EQ(ask(with(hi(), "thinking", {{"type", "disabled"}})), off);
  EXPECT_EQ(ask(with(with(hi(), "thinking", {{"type", "disabled"}}), "output_config", {{"effort", "max"}})),
            off);
  EXPECT_EQ(conv(with(hi(), "thinking", {{"type", "enabled"}, {"budget_tokens", 100}}))
                ->inference.thinking_budget_tokens,
            100);
  for (auto [word, level] : std::vector<std::pair<const char*, Effort>>{{"low", Effort::kLow},
                                                                        {"medium", Effort::kHigh},
                                                                        {"high", Effort::kHigh},
                                                                        {"xhigh", Effort::kXhigh},
                                                                        {"ultra", Effort::kMax},
                                                                        {"max", Effort::kMax}}) {
    EXPECT_EQ(conv(with(hi(), "output_config", {{"effort", word}}))->conversation.effort, level);
  }
  EXPECT_EQ(ask(with(hi(), "max_tokens", 0)), "400 max_tokens must be greater than zero");
  Json b = hi();
  b.erase("max_tokens");
  EXPECT_TRUE(conv(b).ok());
  EXPECT_EQ(ask(with(hi(), "temperature", 2.5)), "400 temperature must be in [0, 2]");
  EXPECT_TRUE(conv(with(hi(), "temperature", 1.5)).ok());
  const std::string stops = "400 stop_sequences must contain at most 16 non-empty strings";
  EXPECT_EQ(ask(with(hi(), "stop_sequences", blocks({""}))), stops);
  EXPECT_EQ(ask(with(hi(), "stop_sequences", Json(std::vector<std::string>(17, "x")))), stops);
  EXPECT_EQ(conv(with(hi(), "stop_sequences", Json(std::vector<std::string>(16, "x"))))
                ->parsing.stop_sequences.size(),
            16u);
  EXPECT_EQ(conv(with(hi(), "metadata", {{"user_id", "u"}}))->user_id, "u");
  EXPECT_EQ(conv(with(with(hi(), "top_k", 5), "service_tier", "auto"))->notes.size(), 2u);
}

TEST(MessagesRequest, Tools) {
  Json b = with(hi(), "tools", blocks({tool("f"), tool("g")}));
  EXPECT_EQ(ask(b), kOn + "\n\n{TOOLS}<｜User｜>hi" + kTail);
  EXPECT_EQ(ask(with(b, "tool_choice", {{"type", "any"}})), ask(b)) << "any = auto";
  EXPECT_TRUE(conv(with(b, "tool_choice", {{"type", "any"}}))->conversation.must_call);
  EXPECT_FALSE(conv(b)->conversation.must_call);
  Json strict = b;
  strict["tools"][1]["strict"] = true;
  EXPECT_EQ(conv(strict)->conversation.tools[1].strict, true);
  EXPECT_EQ(conv(strict)->conversation.tools[0].strict, std::nullopt);
  EXPECT_EQ(ask(strict), ask(b)) << "strict is not shown";
  EXPECT_EQ(ask(with(b, "tool_choice", {{"type", "none"}})), ask(hi()));
  Json named = {{"type", "tool"}, {"name", "g"}, {"disable_parallel_tool_use", true}};
  EXPECT_EQ(ask(with(b, "tool_choice", named)), "400 Thinking mode does not support this tool_choice");
  ProtocolRequest r = conv(with(with(b, "tool_choice", named), "thinking", {{"type", "disabled"}})).value();
  EXPECT_EQ(r.conversation.tools.size(), 1u);
  EXPECT_TRUE(r.parsing.starts_in_calls);
  EXPECT_TRUE(r.inference.disable_parallel_tool_use);
  EXPECT_EQ(ask(with(hi(), "tool_choice", named)), ask(hi())) << "ignored without tools";
  EXPECT_TRUE(
      conv(with(with(hi(), "tools", blocks({tool("f"), tool("f")})), "tool_choice", {{"type", "none"}}))
          .ok());
  named["name"] = "zz";
  EXPECT_EQ(ask(with(b, "tool_choice", named)), "400 tool_choice: no tool named 'zz' was specified");
  auto one = [](Json t) { return with(hi(), "tools", blocks({std::move(t)})); };
  EXPECT_EQ(ask(one({{"type", "bash_20250124"}, {"name", "bash"}})),
            "400 tools.0: server tools are not supported");
  EXPECT_EQ(ask(one({{"type", "web_search_20250305"}, {"name", "web_search"}})),
            "400 tools.0: server tools are not supported");
  ConvertOptions search;
  search.reject_messages_web_search = false;
  Json web = with(one({{"type", "web_search_20250305"}, {"name", "web_search"}}), "tool_choice",
                  {{"type", "tool"}, {"name", "web_search"}});
  EXPECT_TRUE(conv(web, search).ok()) << "naming an ignored tool means auto";
  EXPECT_EQ(ask(one({{"name", "f"}})), "400 tools.0.input_schema must be a JSON Schema of type object");
  EXPECT_EQ(ask(one({{"name", "f"}, {"input_schema", {{"type", "string"}}}})),
            "400 tools.0.input_schema must be a JSON Schema of type object");
  EXPECT_EQ(ask(one({{"name", "a b"}, {"input_schema", {{"type", "object"}}}})),
            "400 tools.0.name: expected 1-128 ASCII letters, digits, underscores or hyphens");
  EXPECT_EQ(ask(with(hi(), "tools", blocks({tool("f"), tool("f")}))), "400 Tool names must be unique");
}

TEST(MessagesRequest, OtherBlocks) {
  Json reference = {{"type", "tool_reference"}, {"tool_name", "tr"}};
  EXPECT_EQ(ask(with(body({user(blocks({reference, text("x")}))}), "system", blocks({text("s"), reference}))),
            kOn + "s\n\ntr<｜User｜>tr\n\nx" + kTail);
  Json failed = result("a", blocks({text("no"), reference, {{"type", "document"}}}));
  failed["is_error"] = true;
  EXPECT_NE(ask(body({user("u"), assistant(blocks({use("a")})), user(blocks({failed}))}))
                .find("<tool_result>no\n\ntr\n\n[Unsupported document type: unknown]</tool_result>"),
            std::string::npos)
      << "is_error changes nothing";
  EXPECT_EQ(ask(body({user("u"), assistant(blocks({use("a")})),
                      user(blocks({result("a", blocks({{{"type", "search_result"}}}))}))})),
            "400 messages.2.content[0].content[0]: Unsupported content block");
  // Server tools: dropped or refused by option.
  Json searched = assistant(blocks({{{"type", "server_tool_use"}, {"id", "s"}, {"name", "web_search"}},
                                    {{"type", "web_search_tool_result"}, {"tool_use_id", "s"}},
                                    text("found")}));
  EXPECT_EQ(ask(body({user("u"), searched, user("v")})),
            "400 messages.1.content[0]: server tools are not supported");
  ConvertOptions keep;
  keep.reject_messages_web_search = false;
  EXPECT_EQ(conv(body({user("u"), searched, user("v")}), keep)->conversation.messages[1].content.text(),
            "found");
  EXPECT_EQ(ask(body({user(blocks({{{"type", "server_tool_use"}, {"id", "s"}, {"name", "web_search"}}}))})),
            "400 messages.0: `server_tool_use` blocks can only be in `assistant` messages");
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, Json>>{{"top_k", 5},
                                                 {"service_tier", "auto"},
                                                 {"container", "c"},
                                                 {"mcp_servers", Json::array()},
                                                 {"context_management", Json::object()},
                                                 {"cache_control", {{"type", "ephemeral"}}},
                                                 {"betas", Json::array({"b"})},
                                                 {"anthropic-version", "2023-06-01"},
                                                 {"metadata", {{"user_id", "u"}}}}) {
    EXPECT_EQ(ask(with(hi(), name, value)), ask(hi())) << name;
  }
  Json marked = text("x");
  marked["cache_control"] = {{"type", "ephemeral"}};
  EXPECT_EQ(ask(body({user(blocks({marked}))})), ask(body({user("x")})));
}

TEST(MessagesRequest, HostedChecks) {
  Json b = with(body({user("u"), assistant(blocks({use("a")})), user(blocks({result("a")}))}), "model",
                "claude-sonnet");
  EXPECT_EQ(ask(b, Profile::kHostedStrict),
            "400 The `content[].thinking` in the thinking mode must be passed back to the API.");
  EXPECT_TRUE(ask(b).starts_with(kOn));
}

}  // namespace
}  // namespace deepinfer
