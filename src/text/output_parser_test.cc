// Counts, reasons, log-probabilities and partial characters of the token front; tokens, bytes and text must
// agree.
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

using Chunks = std::vector<OutputChunk>;
using K = OutputChunk::Kind;

const Tokenizer& vocabulary() {
  static const Tokenizer t =
      testing::test_tokenizer({{"a", "b"}, {"\n", "\n"}, {"h", "i"}, {"\xf0\x9f", "\x98"}, {"\xf0", "\x9f"}});
  return t;
}
ControlTokens control() {
  return ControlTokens::from_tokenizer(vocabulary()).value();
}
ParsingOptions thinking() {
  ParsingOptions o;
  o.parse_tool_calls = true;
  o.stage = ReasoningStage::kStart;
  return o;
}

struct Flat {
  std::string reasoning, text, calls;
  FinishReason reason = FinishReason::kStop;
  Usage usage;
  int starts = 0, finishes = 0;
};
Flat flat(const Chunks& chunks) {
  Flat f;
  for (const OutputChunk& c : chunks) {
    EXPECT_EQ(f.finishes, 0) << "nothing comes after the finish";
    if (c.kind != K::kStart) {
      EXPECT_EQ(f.starts, 1) << "the start comes first";
    }
    switch (c.kind) {
      case K::kStart:
        ++f.starts;
        break;
      case K::kText:
        f.text += c.text;
        break;
      case K::kReasoning:
        f.reasoning += c.text;
        break;
      case K::kCall:
        f.calls += "|" + c.text + "=";
        break;
      case K::kArguments:
        f.calls += c.text;
        break;
      case K::kFinish:
        ++f.finishes, f.reason = c.reason, f.usage = c.usage;
        break;
    }
  }
  EXPECT_EQ(f.starts, 1);
  EXPECT_EQ(f.finishes, 1);
  return f;
}

Flat parse(const std::string& reply, const ParsingOptions& o, EngineFinish reason = EngineFinish::kStop) {
  OutputParser p(&vocabulary(), control(), o);
  Chunks out;
  p.ready("fp", 10, 4);
  for (int32_t id : vocabulary().encode_with_added_tokens(reply)) p.token(id, &out);
  p.finish(reason, &out);
  p.finish(reason, &out);
  p.token(67, &out);
  p.end(&out);
  return flat(out);
}

TEST(OutputParser, ChannelsCountsAndReasons) {
  Flat f = parse("hi\n\n</think>\n\nab<｜end▁of▁sentence｜>", thinking());
  EXPECT_EQ(f.reasoning, "hi");
  EXPECT_EQ(f.text, "ab");
  EXPECT_EQ(f.reason, FinishReason::kStop);
  EXPECT_EQ(f.usage.prompt_tokens, 10);
  EXPECT_EQ(f.usage.cache_hit_tokens, 4);
  EXPECT_EQ(f.usage.completion_tokens, 5) << "hi, feeds, </think>, feeds, ab; EOS is not counted";
  EXPECT_EQ(f.usage.reasoning_tokens, 3) << "hi, feeds and the closing tag";
  EXPECT_EQ(parse("ab", thinking(), EngineFinish::kLength).reason, FinishReason::kLength);
  EXPECT_EQ(parse("ab", thinking(), EngineFinish::kContentFilter).reason, FinishReason::kContentFilter);
}

TEST(OutputParser, CallsDecideTheReason) {
  const std::string block =
      "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  Flat f = parse(block, thinking());
  EXPECT_EQ(f.calls, "|f={}");
  EXPECT_EQ(f.reason, FinishReason::kToolCalls);
  EXPECT_EQ(parse(block, thinking(), EngineFinish::kLength).reason, FinishReason::kLength)
      << "length wins even with calls";
}

TEST(OutputParser, StopStringWinsAndEndsTheStream) {
  ParsingOptions o;
  o.stop_sequences = {"STOP"};
  OutputParser p(&vocabulary(), control(), o);
  Chunks out;
  p.text("before STO", 3, &out);
  EXPECT_FALSE(p.finished());
  p.text("P after", 2, &out);
  EXPECT_TRUE(p.finished());
  p.text("more", 7, &out);
  p.finish(EngineFinish::kLength, &out);
  Flat f = flat(out);
  EXPECT_EQ(f.text, "before ");
  EXPECT_EQ(f.reason, FinishReason::kStopSequence);
  EXPECT_EQ(out.back().stop_string, "STOP");
  EXPECT_EQ(f.usage.completion_tokens, 5)
      << "tokens of the chunk that held it count in full, later ones do not";
}

TEST(OutputParser, StartWithoutReadyAndEndWithoutFinish) {
  OutputParser p(nullptr, ControlTokens::released(), {});
  Chunks out;
  p.text("x", 1, &out);
  p.ready("late", 99, 1);
  p.end(&out);
  Flat f = flat(out);
  EXPECT_EQ(out.front().fingerprint, std::nullopt);
  EXPECT_EQ(f.usage.prompt_tokens, 0);
  EXPECT_EQ(f.reason, FinishReason::kEndOfStream);
  OutputParser empty(nullptr, ControlTokens::released(), {});
  Chunks none;
  empty.end(&none);
  flat(none);
}

TEST(OutputParser, BytesOfOneCharacterOverSeveralTokens) {
  OutputParser p(&vocabulary(), control(), {});
  Chunks out;
  for (int32_t id : vocabulary().encode("😀")) p.token(id, &out);
  p.token(vocabulary().encode("\xf0").at(0), &out);
  p.token(128822, &out);  // a control boundary releases what is held
  p.token(vocabulary().encode("\xe4").at(0), &out);
  p.finish(EngineFinish::kStop, &out);
  Flat f = flat(out);
  EXPECT_EQ(f.text, "😀\xef\xbf\xbd");
  EXPECT_EQ(f.usage.completion_tokens, static_cast<int64_t>(vocabulary().encode("😀").size()) + 2)
      << "what is held at the end does not count";
}

TEST(OutputParser, MaskedIdsAreDroppedAndCounted) {
  OutputParser p(&vocabulary(), control(), {});
  Chunks out;
  p.token(67, &out);
  p.token(128803, &out);
  p.token(5'000'000, &out);
  p.token(68, &out);
  p.finish(EngineFinish::kStop, &out);
  Flat f = flat(out);
  EXPECT_EQ(f.text, "ab");
  EXPECT_EQ(p.banned_tokens(), 1);
  EXPECT_EQ(f.usage.completion_tokens, 3);
}

TEST(OutputParser, LogprobsGoToTheChannelThatUsedTheToken) {
  OutputParser p(&vocabulary(), control(), thinking());
  Chunks out;
  double value = 0;
  for (int32_t id : vocabulary().encode_with_added_tokens("hi</think>\n\nab\n\n<｜DSML｜ calls>\n")) {
    TokenLogprob l{id, value -= 1, {{id, value}}};
    p.token(id, &out, &l);
  }
  p.finish(EngineFinish::kStop, &out);
  std::string reasoning, text;
  for (const OutputChunk& c : out) {
    for (const TokenLogprob& l : c.logprobs)
      (c.kind == K::kReasoning ? reasoning : text) += std::string(vocabulary().token_bytes(l.id)) + ";";
  }
  EXPECT_EQ(reasoning, "hi;");
  EXPECT_EQ(text, "ab;") << "tags and withheld line feeds get none";
}

// Joined or not, what the chunks say is the same; joined, neighbours of one kind are one chunk.
TEST(OutputParser, JoinedChunksSayTheSameInFewer) {
  const std::string reply =
      "hi hi</think>\n\nab hi ab\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
      "name=\"k\" string=\"true\">hi ab</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::vector<int32_t> ids = vocabulary().encode_with_added_tokens(reply);
  for (size_t together : {size_t{1}, size_t{3}, ids.size()}) {
    OutputParserOptions join;
    join.join = true;
    OutputParser apart(&vocabulary(), control(), thinking()),
        joined(&vocabulary(), control(), thinking(), join);
    Chunks a, b, some;
    double value = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      TokenLogprob l{ids[i], value -= 1, {}};
      apart.token(ids[i], &a, &l);
      joined.token(ids[i], &some, &l);
      if ((i + 1) % together != 0) continue;
      for (size_t k = 1; k < some.size(); ++k)
        EXPECT_TRUE(some[k].kind != some[k - 1].kind || some[k].kind == K::kCall)
            << "two that follow each other";
      b.insert(b.end(), some.begin(), some.end());
      some.clear();
    }
    b.insert(b.end(), some.begin(), some.end());
    apart.finish(EngineFinish::kStop, &a);
    joined.finish(EngineFinish::kStop, &b);
    Flat x = flat(a), y = flat(b);
    EXPECT_EQ(x.reasoning, y.reasoning);
    EXPECT_EQ(x.text, y.text);
    EXPECT_EQ(x.calls, y.calls);
    EXPECT_EQ(x.usage.completion_tokens, y.usage.completion_tokens);
    EXPECT_LE(b.size(), a.size() - (together > 1 ? 1 : 0));
    auto probabilities = [](const Chunks& chunks, K kind) {
      std::vector<double> all;
      for (const OutputChunk& c : chunks) {
        if (c.kind != kind) continue;
        for (const TokenLogprob& l : c.logprobs) all.push_back(l.logprob);
      }
      return all;
    };
    for (K kind : {K::kReasoning, K::kText}) EXPECT_EQ(probabilities(a, kind), probabilities(b, kind));
  }
}

TEST(OutputParser, BanListLeavesTheThreeTokensTheModelMayEmit) {
  std::vector<int32_t> banned = banned_outputs(vocabulary(), control());
  EXPECT_EQ(banned.size(), testing::test_added_tokens().size() - 3);
  for (int32_t id : {1, 128822, 128825}) EXPECT_EQ(std::count(banned.begin(), banned.end(), id), 0);
}

// Byte by byte: a vocabulary without merges gives every byte a token of its own.
TEST(OutputParser, ByteByByteEqualsTheWhole) {
  Tokenizer bytes = testing::test_tokenizer({});
  ControlTokens ids = ControlTokens::from_tokenizer(bytes).value();
  const std::string reply =
      "why 中文\n</think>\n\nanswer 😀 2 < 3\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ "
      "parameter name=\"k\" string=\"true\">é\"</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  for (size_t length = 0; length <= reply.size(); ++length) {
    if (length < reply.size() && (static_cast<uint8_t>(reply[length]) & 0xc0) == 0x80) continue;
    const std::string cut = reply.substr(0, length);
    OutputParser one(&bytes, ids, thinking()), whole(nullptr, ids, thinking());
    Chunks a, b;
    for (int32_t id : bytes.encode_with_added_tokens(cut)) one.token(id, &a);
    one.finish(EngineFinish::kLength, &a);
    whole.text(cut, 1, &b);
    whole.finish(EngineFinish::kLength, &b);
    Flat x = flat(a), y = flat(b);
    ASSERT_EQ(x.text, y.text) << cut;
    ASSERT_EQ(x.reasoning, y.reasoning) << cut;
    ASSERT_EQ(x.calls, y.calls) << cut;
  }
}

// Token by token and text in any cut give one result; usage of the token run equals its length.
TEST(OutputParser, TokensAndTextAgree) {
  // No lone "<": a line feed after one is kept or not by provenance (OutputMachine.LineFeedQuirk).
  const std::vector<std::string> bits = {
      "ab",        "hi ",        "\n",        "</think>",
      "<｜DSML｜", "</｜DSML｜", " calls>\n", " invoke name=\"",
      "f\">\n",    "中",         "😀",        " parameter name=\"k\" string=\"true\">"};
  std::mt19937 rng(31);
  for (int round = 0; round < 500; ++round) {
    std::string s;
    for (size_t i = rng() % 20; i > 0; --i) s += bits[rng() % bits.size()];
    Flat tokens = parse(s, thinking());
    OutputParser p(nullptr, ControlTokens::released(), thinking());
    Chunks out;
    for (size_t i = 0; i < s.size();) {
      size_t n = decode_utf8(std::string_view(s).substr(i)).size;
      p.text(std::string_view(s).substr(i, n), 1, &out);
      i += n;
    }
    p.finish(EngineFinish::kStop, &out);
    Flat text = flat(out);
    ASSERT_EQ(tokens.reasoning, text.reasoning) << s;
    ASSERT_EQ(tokens.text, text.text) << s;
    ASSERT_EQ(tokens.calls, text.calls) << s;
    ASSERT_EQ(tokens.usage.completion_tokens,
              static_cast<int64_t>(vocabulary().encode_with_added_tokens(s).size()));
    ASSERT_LE(tokens.usage.reasoning_tokens, tokens.usage.completion_tokens);
  }
}

}  // namespace
}  // namespace deepinfer
