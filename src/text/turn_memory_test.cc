// Turns given back as sampled: found only for what the client was told, and then the old prompt, the sampled
// ids and EOS begin the new prompt whatever the model's spacing, line feeds and pieces were.
#include "text/turn_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/output_parser.h"
#include "text/prompt_encoder.h"
#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

const Tokenizer& vocabulary() {
  static const Tokenizer t = testing::test_tokenizer({{"a", "b"}, {"\n", "\n"}, {"h", "i"}});
  return t;
}
ControlTokens control() {
  return ControlTokens::from_tokenizer(vocabulary()).value();
}
const std::string D = "｜DSML｜";

// Ids of text with markers by id; "|" cuts between tokens, so that pieces need not be the encoder's.
std::vector<int32_t> sampled(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t from = 0; from <= text.size();) {
    size_t to = std::min(text.find('|', from), text.size());
    for (int32_t id : vocabulary().encode_with_added_tokens(text.substr(from, to - from))) ids.push_back(id);
    from = to + 1;
  }
  return ids;
}

struct Turn {
  Message message;
  bool repeatable = false;
  std::vector<int32_t> ids;
};
Turn hear(const std::vector<int32_t>& ids, const ParsingOptions& parsing,
          EngineFinish end = EngineFinish::kStop) {
  OutputParserOptions record;
  record.record = true;
  OutputParser parser(&vocabulary(), control(), parsing, record);
  std::vector<OutputChunk> chunks;
  for (int32_t id : ids) parser.token(id, &chunks);
  parser.finish(end, &chunks);
  Turn t;
  t.message.role = Role::kAssistant;
  t.message.reasoning = "";
  for (const OutputChunk& c : chunks) {
    using K = OutputChunk::Kind;
    if (c.kind == K::kText) t.message.content.add_text(c.text);
    if (c.kind == K::kReasoning) *t.message.reasoning += c.text;
    if (c.kind == K::kCall)
      t.message.tool_calls.push_back({"c" + std::to_string(t.message.tool_calls.size()), c.text, ""});
    if (c.kind == K::kArguments) t.message.tool_calls.back().arguments += c.text;
  }
  t.repeatable = parser.repeatable();
  t.ids = parser.sampled();
  return t;
}
ParsingOptions thinking(bool on = true) {
  ParsingOptions o;
  o.parse_tool_calls = true;
  o.stage = on ? ReasoningStage::kStart : ReasoningStage::kNone;
  return o;
}
Conversation asked(bool think) {
  Conversation c;
  c.thinking_mode = think;
  Message m;
  m.content = "ab";
  c.messages.push_back(m);
  ToolDefinition tool;
  tool.name = "f";
  c.tools = {tool};
  return c;
}

// Spacing of JSON, line feeds the parser drops, noise between tags, and pieces no encoder would make.
const std::string kBlock = "\n\n\n<" + D + " calls>\n\n<" + D + " invoke name=\"f\">\n  <" + D +
                           " parameter name=\"x\" string=\"false\">{\"a\":1,\"b\":[1,2.50]}</" + D +
                           " parameter>\n</" + D + " invoke>\n</" + D + " calls>";

TEST(TurnMemory, TheNextPromptBeginsWithWhatWasSampled) {
  for (bool think : {true, false}) {
    for (bool forced : {false, true}) {
      if (forced && think) continue;
      std::vector<int32_t> ids = forced  ? sampled(kBlock.substr(kBlock.find("\n<" + D + " invoke") + 1))
                                 : think ? sampled("\n\nwhy a|b\n\n</think>\n\n\nanswer h|i" + kBlock)
                                         : sampled("\nanswer h|i" + kBlock);
      Conversation c = asked(think);
      if (forced) c.tool_choice = ToolChoice::kRequired;
      std::vector<int32_t> before = encode_spans(vocabulary(), render_conversation(c, control(), {}).value());
      ParsingOptions parsing = thinking(think);
      parsing.starts_in_calls = forced;
      Turn turn = hear(ids, parsing);
      ASSERT_TRUE(turn.repeatable);
      TurnMemory memory(1 << 20);
      memory.remember("scope", turn.message, {turn.ids, think, forced});
      // The client parses the arguments and writes them its own way.
      turn.message.tool_calls[0].arguments = "{ \"x\" : { \"a\" : 1 , \"b\" : [1,2.5] } }";
      c.tool_choice = ToolChoice::kAuto;
      c.messages.push_back(turn.message);
      Message result;
      result.role = Role::kTool;
      result.tool_call_id = "c0";
      result.content = "r";
      c.messages.push_back(result);
      RenderOptions options;
      options.turns = &memory;
      options.turns_scope = "scope";
      std::vector<Span> spans = render_conversation(c, control(), options).value();
      std::vector<int32_t> after = encode_spans(vocabulary(), spans);
      std::vector<int32_t> want = before;
      want.insert(want.end(), ids.begin(), ids.end());
      want.push_back(control().eos);
      ASSERT_GT(after.size(), want.size());
      EXPECT_TRUE(std::equal(want.begin(), want.end(), after.begin())) << think << forced;
      PromptEncoder encoder(vocabulary());
      EXPECT_EQ(encoder.encode(spans), after);
      EXPECT_EQ(encoder.encode(spans), after);
      std::vector<int32_t> plain = encode_spans(vocabulary(), render_conversation(c, control(), {}).value());
      EXPECT_FALSE(std::equal(want.begin(), want.end(), plain.begin())) << "the template alone would not do";
    }
  }
}

TEST(TurnMemory, OnlyForWhatTheClientWasTold) {
  Turn turn = hear(sampled("why</think>hi" + kBlock), thinking());
  TurnMemory memory(1 << 20);
  memory.remember("me", turn.message, {turn.ids, true, false});
  EXPECT_NE(memory.find("me", turn.message, true), nullptr);
  EXPECT_EQ(memory.find("you", turn.message, true), nullptr) << "clients never share";
  EXPECT_EQ(memory.find("me", turn.message, false), nullptr) << "another header";
  auto changed = [&](auto change) {
    Message m = turn.message;
    change(m);
    return memory.find("me", m, true);
  };
  EXPECT_EQ(changed([](Message& m) { m.content = "hi "; }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.reasoning.reset(); }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.tool_calls[0].id = "z"; }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.tool_calls[0].name = "g"; }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.tool_calls[0].arguments = "{}"; }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.tool_calls.clear(); }), nullptr);
  EXPECT_EQ(changed([](Message& m) { m.tool_calls.push_back(m.tool_calls[0]); }), nullptr);
  // A turn whose reasoning the policy drops is the template's again.
  Conversation c = asked(true);
  c.tools.clear();
  c.messages.push_back(turn.message);
  c.messages.push_back(c.messages[0]);
  RenderOptions drop;
  drop.history = HistoryPolicy::kDropBeforeLastUser;
  drop.turns = &memory;
  drop.turns_scope = "me";
  const std::vector<Span> dropped = render_conversation(c, control(), drop).value();
  for (const Span& s : dropped) EXPECT_NE(s.kind, Span::Kind::kSampled);
}

TEST(TurnMemory, WhatCannotBeRepeated) {
  auto repeatable = [](const std::string& text, EngineFinish end = EngineFinish::kStop,
                       ParsingOptions o = thinking()) { return hear(sampled(text), o, end).repeatable; };
  EXPECT_TRUE(repeatable("why</think>hi"));
  EXPECT_TRUE(repeatable("why</think>hi<｜end▁of▁sentence｜>"));
  EXPECT_FALSE(repeatable("why</think>hi", EngineFinish::kLength));
  EXPECT_FALSE(repeatable("why</think>hi", EngineFinish::kContentFilter));
  EXPECT_FALSE(repeatable("why</think>h</think>i")) << "a stray tag";
  EXPECT_FALSE(repeatable("why</think>hi<｜User｜>")) << "a masked id";
  EXPECT_FALSE(repeatable("why</think>hi" + kBlock + " more")) << "text the client never saw";
  ParsingOptions o = thinking();
  o.stop_sequences = {"hi"};
  EXPECT_FALSE(repeatable("why</think>hi", EngineFinish::kStop, o)) << "the stop string is gone";
  o = thinking();
  o.stage = ReasoningStage::kContent;
  EXPECT_FALSE(repeatable("hi", EngineFinish::kStop, o)) << "a continued turn";
  o = thinking(false);
  o.parse_json_output = true;
  EXPECT_FALSE(repeatable("prose {}", EngineFinish::kStop, o)) << "blanked prose";
  EXPECT_FALSE(hear({5'000'000}, thinking(false)).repeatable);
  std::vector<int32_t> half = vocabulary().encode("\xe4");
  EXPECT_FALSE(hear(half, thinking(false)).repeatable) << "half a character";
  OutputParserOptions record;
  record.record = true;
  OutputParser text(&vocabulary(), control(), thinking(false), record);
  std::vector<OutputChunk> out;
  text.text("hi", 1, &out);
  text.finish(EngineFinish::kStop, &out);
  EXPECT_FALSE(text.repeatable()) << "no ids";
}

TEST(TurnMemory, MemoryIsBounded) {
  TurnMemory memory(3000);
  for (int i = 0; i < 100; ++i) {
    Message m;
    m.role = Role::kAssistant;
    m.content = "turn " + std::to_string(i);
    memory.remember("s", m, {std::vector<int32_t>(50, i), true, false});
    EXPECT_NE(memory.find("s", m, true), nullptr);
    m.content = "turn 0";
    EXPECT_NE(memory.find("s", m, true), nullptr) << "what is used stays";
  }
  EXPECT_LE(memory.size(), 6u);
  Message big;
  memory.remember("s", big, {std::vector<int32_t>(10000, 1), true, false});
  EXPECT_EQ(memory.find("s", big, true), nullptr);
}

}  // namespace
}  // namespace deepinfer
