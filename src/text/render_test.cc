// Template, history, tools, prefixes and images; no client text becomes a control id; prompts only grow.
#include "text/render.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

const std::string kBos = "<｜begin▁of▁sentence｜>", kEos = "<｜end▁of▁sentence｜>", kSys = "<｜System｜>",
                  kUser = "<｜User｜>", kAsst = "<｜Assistant｜>", kOpen = "<think>", kClose = "</think>";
std::string effort(int n) {
  return "Reasoning Effort: " + std::to_string(n) +
         " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
}

Message msg(Role role, const std::string& text) {
  Message m;
  m.role = role;
  m.content = text;
  return m;
}
Message assistant(const std::string& text, std::optional<std::string> reasoning = {},
                  std::vector<ToolCall> calls = {}) {
  Message m = msg(Role::kAssistant, text);
  m.reasoning = std::move(reasoning);
  m.tool_calls = std::move(calls);
  return m;
}
Message tool(const std::string& id, const std::string& text) {
  Message m = msg(Role::kTool, text);
  m.tool_call_id = id;
  return m;
}
Conversation talk(std::vector<Message> messages, bool thinking = true) {
  Conversation c;
  c.messages = std::move(messages);
  c.thinking_mode = thinking;
  return c;
}
ToolDefinition weather() {
  ToolDefinition t;
  t.name = "get_weather";
  t.description = "Weather";
  t.parameters = Json::parse(R"({"type":"object","properties":{"city":{"type":"string"}}})");
  return t;
}

std::vector<Span> spans(const Conversation& c, const RenderOptions& o = {}) {
  Result<std::vector<Span>> r = render_conversation(c, ControlTokens::released(), o);
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return r.ok() ? *r : std::vector<Span>();
}
std::string prompt(const Conversation& c, const RenderOptions& o = {}) {
  return spans_text(spans(c, o));
}

TEST(Render, OneUserMessage) {
  EXPECT_EQ(prompt(talk({msg(Role::kUser, "hi")})), kBos + kSys + effort(75) + kUser + "hi" + kAsst + kOpen);
  EXPECT_EQ(prompt(talk({msg(Role::kUser, "hi")}, false)), kBos + kUser + "hi" + kAsst + kClose);
}

TEST(Render, EffortLevels) {
  for (auto [level, n] : std::vector<std::pair<Effort, int>>{
           {Effort::kLow, 50}, {Effort::kHigh, 75}, {Effort::kXhigh, 75}, {Effort::kMax, 100}}) {
    Conversation c = talk({msg(Role::kUser, "x")});
    c.effort = level;
    EXPECT_NE(prompt(c).find(effort(n)), std::string::npos);
    c.thinking_mode = false;
    EXPECT_EQ(prompt(c).find("Reasoning Effort"), std::string::npos);
  }
}

TEST(Render, SystemMessagesStayWhereTheyAre) {
  EXPECT_EQ(prompt(talk({msg(Role::kSystem, "s"), msg(Role::kUser, "u"), msg(Role::kSystem, "later"),
                         msg(Role::kUser, "v")})),
            kBos + kSys + effort(75) + "s" + kUser + "u" + kSys + "later" + kUser + "v" + kAsst + kOpen);
  EXPECT_EQ(prompt(talk({msg(Role::kSystem, "s"), msg(Role::kUser, "u")}, false)),
            kBos + kSys + "s" + kUser + "u" + kAsst + kClose);
  EXPECT_EQ(
      prompt(talk({msg(Role::kUser, "a"), msg(Role::kLatestReminder, "r"), msg(Role::kUser, "b")}, false)),
      kBos + kUser + "a<｜latest_reminder｜>r" + kUser + "b" + kAsst + kClose);
}

TEST(Render, NeighbouringUserMessagesMerge) {
  EXPECT_EQ(prompt(talk({msg(Role::kUser, "a"), msg(Role::kUser, "b")}, false)),
            kBos + kUser + "a\n\nb" + kAsst + kClose);
}

TEST(Render, AssistantTurns) {
  std::vector<Message> m = {msg(Role::kUser, "1"), assistant("c1", "r1"), msg(Role::kUser, "2"),
                            assistant("c2"), msg(Role::kUser, "3")};
  EXPECT_EQ(prompt(talk(m)), kBos + kSys + effort(75) + kUser + "1" + kAsst + kOpen + "r1" + kClose + "c1" +
                                 kEos + kUser + "2" + kAsst + kOpen + kClose + "c2" + kEos + kUser + "3" +
                                 kAsst + kOpen);
  EXPECT_EQ(prompt(talk(m, false)), kBos + kUser + "1" + kAsst + kClose + "c1" + kEos + kUser + "2" + kAsst +
                                        kClose + "c2" + kEos + kUser + "3" + kAsst + kClose);
  // At index 0 there is no think part.
  EXPECT_EQ(prompt(talk({assistant("c", "r"), msg(Role::kUser, "u")})),
            kBos + kSys + effort(75) + kAsst + kClose + "c" + kEos + kUser + "u" + kAsst + kOpen);
}

TEST(Render, HistoryPolicies) {
  std::vector<Message> m = {msg(Role::kUser, "1"), assistant("c1", "r1"), msg(Role::kUser, "2"),
                            assistant("c2", "r2")};
  RenderOptions drop, with_tools;
  drop.history = HistoryPolicy::kDropBeforeLastUser;
  with_tools.history = HistoryPolicy::kKeepWithTools;
  Conversation c = talk(m);
  EXPECT_EQ(prompt(c, drop).find("r1"), std::string::npos);
  EXPECT_NE(prompt(c, drop).find("r2"), std::string::npos);
  EXPECT_EQ(prompt(c, with_tools).find("r2"), std::string::npos);
  c.tools = {weather()};
  for (const RenderOptions& o : {drop, with_tools})
    EXPECT_NE(prompt(c, o).find("<think>r1</think>c1"), std::string::npos);
}

TEST(Render, ToolSectionWordForWord) {
  Conversation c = talk({msg(Role::kUser, "x")});
  c.tools = {weather(), {"plain", {}, Json::object(), {}}};
  std::string p = prompt(c);
  EXPECT_EQ(p.substr(0, p.find("You have access")), kBos + kSys + effort(75) + "\n\n## Tools\n\n");
  EXPECT_NE(p.find("\n{\"name\": \"get_weather\", \"description\": \"Weather\", \"parameters\": {\"type\": "
                   "\"object\", \"properties\": {\"city\": "
                   "{\"type\": \"string\"}}}}\n{\"name\": \"plain\", \"description\": \"\", \"parameters\": "
                   "{}}\n\nYou MUST"),
            std::string::npos)
      << p;
  EXPECT_TRUE(p.ends_with("to invoke tool calls.\n" + kUser + "x" + kAsst + kOpen)) << p;
  // The constant's control spellings are control tokens: DSML 9 times, think-open 2, think-close 2 in the
  // section.
  int dsml = 0, open = 0, close = 0;
  for (const Span& s : spans(c)) {
    dsml += s.id == 128825, open += s.id == 128821, close += s.id == 128822;
    if (s.kind == Span::Kind::kText && s.origin == Span::Origin::kTemplate) {
      EXPECT_EQ(s.text.find("｜DSML｜"), std::string::npos);
    }
  }
  EXPECT_EQ(dsml, 9);
  EXPECT_EQ(open, 2 + 1);
  EXPECT_EQ(close, 2);
  c.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(prompt(c).find("## Tools"), std::string::npos);
}

TEST(Render, JsonModeSectionComesAfterTools) {
  Conversation c = talk({msg(Role::kUser, "x")}, false);
  c.response_format = ResponseFormat::kJsonObject;
  EXPECT_TRUE(prompt(c).starts_with(kBos + kSys + "\n\n## Response Format:")) << "an empty system in front";
  c.messages.insert(c.messages.begin(), msg(Role::kSystem, "s"));
  const std::string section =
      "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": "
      "\"json_object\"}";
  EXPECT_EQ(prompt(c), kBos + kSys + "s\n\n" + section + kUser + "x" + kAsst + kClose);
  c.tools = {weather()};
  EXPECT_NE(prompt(c).find("tool calls.\n\n\n" + section + kUser), std::string::npos);
  c.response_format = ResponseFormat::kJsonSchema;
  c.response_schema = Json::parse(R"({"type":"object"})");
  EXPECT_EQ(prompt(c).find("Response Format"), std::string::npos) << "ignored by default";
  RenderOptions o;
  o.schema_in_prompt = true;
  EXPECT_NE(prompt(c, o).find("to reply:\n{\"type\": \"object\"}" + kUser), std::string::npos);
}

TEST(Render, CallBlock) {
  Conversation c = talk({msg(Role::kUser, "u"),
                         assistant("c", {},
                                   {{"a", "f", R"({"s":"q\"\n<x>","n":1e5,"o":{"b":[1,2.50,null,true]}})"},
                                    {"b", "g", "{}"},
                                    {"c", "h", "not json"},
                                    {"d", "i", "[1]"}})},
                        false);
  EXPECT_NE(prompt(c).find("c\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
                           "<｜DSML｜ parameter name=\"s\" string=\"true\">q\"\n<x></｜DSML｜ parameter>\n"
                           "<｜DSML｜ parameter name=\"n\" string=\"false\">100000.0</｜DSML｜ parameter>\n"
                           "<｜DSML｜ parameter name=\"o\" string=\"false\">{\"b\": [1, 2.5, null, "
                           "true]}</｜DSML｜ parameter>\n"
                           "</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n"
                           "<｜DSML｜ invoke name=\"h\">\n<｜DSML｜ parameter name=\"arguments\" "
                           "string=\"true\">not json</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
                           "<｜DSML｜ invoke name=\"i\">\n<｜DSML｜ parameter name=\"arguments\" "
                           "string=\"true\">[1]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
                           "</｜DSML｜ calls>" +
                           kEos),
            std::string::npos)
      << prompt(c);
}

TEST(Render, ToolResultsFollowTheOrderOfTheirCalls) {
  Conversation c = talk(
      {msg(Role::kUser, "u"), assistant("", {}, {{"a", "f", "{}"}, {"b", "f", "{}"}, {"c", "f", "{}"}}),
       tool("c", "C"), msg(Role::kUser, "between"), tool("b", "B"), tool("a", "A"), msg(Role::kUser, "go")},
      false);
  EXPECT_NE(prompt(c).find(kUser +
                           "<tool_result>A</tool_result>\n\nbetween\n\n<tool_result>B</"
                           "tool_result>\n\n<tool_result>C</tool_result>\n\ngo" +
                           kAsst),
            std::string::npos)
      << prompt(c);
  // Unknown ids count as the first position, and the sort is stable.
  Conversation d = talk({msg(Role::kUser, "u"), assistant("", {}, {{"a", "f", "{}"}, {"b", "f", "{}"}}),
                         tool("b", "B"), tool("?", "Q"), tool("a", "A")},
                        false);
  EXPECT_NE(
      prompt(d).find(
          "<tool_result>Q</tool_result>\n\n<tool_result>A</tool_result>\n\n<tool_result>B</tool_result>"),
      std::string::npos);
}

TEST(Render, ForcedCallOpener) {
  Conversation c = talk({msg(Role::kUser, "u")}, false);
  c.tools = {weather()};
  c.tool_choice = ToolChoice::kRequired;
  EXPECT_TRUE(prompt(c).ends_with(kAsst + kClose + "\n\n<｜DSML｜ calls>\n"));
}

TEST(Render, PrefixContinuation) {
  auto with = [](const std::string& content, std::optional<std::string> reasoning, bool thinking) {
    Message m = assistant(content, std::move(reasoning));
    m.prefix = true;
    return talk({msg(Role::kUser, "u"), m}, thinking);
  };
  auto tail = [](const Conversation& c) { return prompt(c).substr(prompt(c).find(kAsst)); };
  EXPECT_EQ(tail(with("pre", {}, false)), kAsst + kClose + "pre");
  EXPECT_EQ(tail(with("pre", "r", true)), kAsst + kOpen + "r" + kClose + "pre");
  EXPECT_EQ(tail(with("", "r", true)), kAsst + kOpen + "r");
  EXPECT_EQ(initial_stage(with("pre", {}, false)), ReasoningStage::kContent);
  EXPECT_EQ(initial_stage(with("pre", "r", true)), ReasoningStage::kContent);
  EXPECT_EQ(initial_stage(with("", "r", true)), ReasoningStage::kReasoning);
  EXPECT_EQ(initial_stage(talk({}, true)), ReasoningStage::kStart);
  EXPECT_EQ(initial_stage(talk({}, false)), ReasoningStage::kNone);
}

TEST(Render, V4Dialect) {
  RenderOptions o;
  o.dialect = RenderOptions::Dialect::kV4;
  Conversation c = talk({msg(Role::kSystem, "a"), msg(Role::kSystem, "b"), msg(Role::kUser, "u"),
                         msg(Role::kSystem, "late"), assistant("", {}, {{"i", "f", "{\"k\":1}"}})},
                        false);
  EXPECT_EQ(prompt(c, o),
            kBos + "a\n\nb" + kUser + "u\n\nlate" + kAsst + kClose +
                "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"k\" "
                "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" +
                kEos + kAsst + kClose);
}

TEST(Render, TaskTurns) {
  ControlTokens control = ControlTokens::released();
  control.tasks["action"] = 128829;
  control.tasks["query"] = 128830;
  Message m = msg(Role::kUser, "u");
  m.task = "action";
  EXPECT_EQ(spans_text(render_conversation(talk({m}, false), control, {}).value()),
            kBos + kUser + "u" + kAsst + kClose + "<｜action｜>");
  m.task = "query";
  EXPECT_EQ(spans_text(render_conversation(talk({m}, false), control, {}).value()),
            kBos + kUser + "u<｜query｜>");
  // The answer to a task turn: no header of its own, no think part; the last one may go without EOS.
  Message answer = assistant("yes", "because");
  answer.without_eos = true;
  EXPECT_EQ(spans_text(render_conversation(talk({m, answer, msg(Role::kUser, "v")}), control, {}).value()),
            kBos + kSys + effort(75) + kUser + "u<｜query｜>yes" + kUser + "v" + kAsst + kOpen);
  m.task = "action";
  answer.without_eos = false;
  EXPECT_EQ(spans_text(render_conversation(talk({m, answer, msg(Role::kUser, "v")}), control, {}).value()),
            kBos + kSys + effort(75) + kUser + "u" + kAsst + kOpen + "<｜action｜>yes" + kEos + kUser + "v" +
                kAsst + kOpen);
  m.task = "nonsense";
  EXPECT_EQ(render_conversation(talk({m}, false), control, {}).status().code(), Code::kUnsupported);
}

TEST(Render, ImagesAreSpansWithTheirTokens) {
  Message m = msg(Role::kUser, "see\n\n");
  ImageSource image;
  image.width = 1920, image.height = 1080;
  m.content.add_image(image);
  m.content.add_text("\n\nand");
  std::vector<Span> s = spans(talk({m}, false));
  int images = 0;
  for (const Span& span : s) {
    if (span.kind != Span::Kind::kImage) continue;
    ++images;
    EXPECT_EQ(span.id, 129264);
    EXPECT_EQ(span.image_tokens, 968);
  }
  EXPECT_EQ(images, 1);
  // Merged user messages and tool results: the images stand in the order of the prompt.
  Message first = msg(Role::kUser, "a"), second = msg(Role::kUser, "b"), result = tool("y", "");
  image.width = 640, image.height = 480;
  first.content.add_image(image);
  image.width = image.height = 1;
  second.content.add_image(image);
  image.width = image.height = 8192;
  result.content.add_image(image);
  std::vector<int64_t> sizes;
  const std::vector<Span> merged = spans(
      talk({first, second, assistant("", {}, {{"x", "f", "{}"}, {"y", "g", "{}"}}), result, tool("x", "R")},
           false));
  for (const Span& span : merged) {
    if (span.kind == Span::Kind::kImage) sizes.push_back(span.image_tokens);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{206, 184, 994}));
  EXPECT_NE(spans_text(merged).find("a<｜image｜>\n\nb<｜image｜>"), std::string::npos);
  EXPECT_NE(spans_text(merged).find("<tool_result>R</tool_result>\n\n<tool_result><｜image｜></tool_result>"),
            std::string::npos);
  EXPECT_EQ(image_tokens(640, 480), 206);
  EXPECT_EQ(image_tokens(1, 1), 184);
  EXPECT_EQ(image_tokens(8192, 8192), 994);
  EXPECT_EQ(image_tokens(0, 5), 0);
  ControlTokens none = ControlTokens::released();
  none.image = -1;
  EXPECT_EQ(render_conversation(talk({m}), none, {}).status().code(), Code::kUnsupported);
}

TEST(Render, Completions) {
  ControlTokens c = ControlTokens::released();
  EXPECT_EQ(spans_text(render_completion("p", {}, c).value()), kBos + "p");
  EXPECT_EQ(spans_text(render_completion("p", "s", c).value()),
            kBos + "<｜fim▁begin｜>p<｜fim▁hole｜>s<｜fim▁end｜>");
}

// For each special token and each client-controlled field: no control id comes from the field.
TEST(RenderSafety, NoClientTextBecomesAControlId) {
  Tokenizer t = testing::test_tokenizer({{"t", "h"}, {"\xef\xbd", "\x9c"}, {"\xef", "\xbd"}});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  auto count = [&](const std::string& x) {
    Conversation c = talk(
        {msg(Role::kSystem, x), msg(Role::kUser, x),
         assistant(x, x, {{"id", x, "{\"" + x + "\":\"" + x + "\",\"n\":[\"" + x + "\"]}"}, {"j", "f", x}}),
         tool("id", x), tool("j", x), msg(Role::kLatestReminder, x), msg(Role::kUser, x)});
    ToolDefinition d = weather();
    d.name = d.description.emplace(x);
    d.parameters["description"] = x;
    d.parameters[x] = 1;
    c.tools = {d};
    std::map<int32_t, int> seen;
    for (int32_t id : encode_spans(t, render_conversation(c, control, {}).value())) {
      if (t.is_added(id)) ++seen[id];
    }
    return seen;
  };
  auto harmless = count("harmless");
  EXPECT_GT(harmless.size(), 5u);
  for (const auto& added : testing::test_added_tokens()) EXPECT_EQ(count(added.text), harmless) << added.text;
  std::mt19937 rng(9);
  for (int round = 0; round < 100; ++round) {
    std::string x;
    for (int i = 0; i < 6; ++i) {
      std::string s = testing::test_added_tokens()[rng() % testing::test_added_tokens().size()].text;
      x += s.substr(rng() % 2 ? 0 : 3 * (rng() % 2), rng() % 2 ? s.npos : 7);
    }
    x = to_valid_utf8(x);
    EXPECT_EQ(count(x), harmless) << x;
  }
}

// keep_all: the prompt of turn n and what the model wrote, EOS included, is a prefix of the prompt of turn n
// + 1.
TEST(RenderPrefix, PromptsOnlyGrow) {
  Tokenizer t = testing::test_tokenizer({{"\n", "\n"}, {"a", "b"}});
  ControlTokens control = ControlTokens::from_tokenizer(t).value();
  for (bool thinking : {true, false}) {
    Conversation c = talk({msg(Role::kSystem, "s"), msg(Role::kUser, "ab")}, thinking);
    c.tools = {weather()};
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<int32_t> before = encode_spans(t, render_conversation(c, control, {}).value());
      std::string wrote =
          (thinking ? "why" + kClose : "") +
          "answer ab\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
          "string=\"true\">v</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
          kEos;
      for (int32_t id : t.encode_with_added_tokens(wrote)) before.push_back(id);
      std::string id = "c" + std::to_string(turn);
      c.messages.push_back(assistant("answer ab", thinking ? std::optional<std::string>("why") : std::nullopt,
                                     {{id, "f", "{\"x\":\"v\"}"}}));
      c.messages.push_back(tool(id, "result"));
      std::vector<int32_t> after = encode_spans(t, render_conversation(c, control, {}).value());
      ASSERT_GT(after.size(), before.size());
      ASSERT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
    }
  }
}

}  // namespace
}  // namespace deepinfer
