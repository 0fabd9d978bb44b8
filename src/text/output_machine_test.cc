// Every vector runs whole, one character at a time and cut at every position; random replies likewise.
#include "text/output_machine.h"

#include <gtest/gtest.h>

#include <random>

#include "text/render.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

// What a client would have in hand: "R:" reasoning, "T:" text, then "name(arguments)" per call, and "!stop"
// where a stop string ended it.
struct Reply {
  std::string reasoning, text, calls, stop;
  bool operator==(const Reply&) const = default;
};
std::ostream& operator<<(std::ostream& o, const Reply& r) {
  return o << "R[" << r.reasoning << "] T[" << r.text << "] C[" << r.calls << "] S[" << r.stop << "]";
}

Reply collect(const OutputMachine& m, const std::vector<Piece>& pieces) {
  Reply r;
  for (const Piece& p : pieces) {
    switch (p.kind) {
      case Piece::Kind::kText:
        r.text += p.text;
        break;
      case Piece::Kind::kReasoning:
        r.reasoning += p.text;
        break;
      case Piece::Kind::kCall:
        r.calls += "|" + p.text + "=";
        break;
      case Piece::Kind::kArguments:
        r.calls += p.text;
        break;
    }
  }
  if (m.stop_string() != nullptr) r.stop = *m.stop_string();
  return r;
}

Reply run(const ParsingOptions& o, const std::vector<std::string>& chunks) {
  OutputMachine m(o);
  std::vector<Piece> pieces;
  for (const std::string& c : chunks) m.push(c, ByteOrigin::kAny, &pieces);
  m.finish(&pieces);
  return collect(m, pieces);
}

std::vector<std::string> characters(const std::string& s) {
  std::vector<std::string> out;
  for (size_t i = 0; i < s.size();) {
    size_t n = decode_utf8(std::string_view(s).substr(i)).size;
    out.push_back(s.substr(i, n));
    i += n;
  }
  return out;
}

// Whole, one character at a time, and every two-way cut must agree.
Reply all_ways(const ParsingOptions& o, const std::string& s) {
  Reply whole = run(o, {s});
  std::vector<std::string> chars = characters(s);
  EXPECT_EQ(run(o, chars), whole) << s;
  size_t at = 0;
  for (const std::string& c : chars) {
    EXPECT_EQ(run(o, {s.substr(0, at), s.substr(at)}), whole) << s << " cut at " << at;
    at += c.size();
  }
  return whole;
}

ParsingOptions options(ReasoningStage stage = ReasoningStage::kNone, bool tools = true,
                       std::vector<std::string> stops = {}) {
  ParsingOptions o;
  o.parse_tool_calls = tools;
  o.stage = stage;
  o.stop_sequences = std::move(stops);
  return o;
}

const std::string D = "｜DSML｜";
std::string block(const std::string& inner) {
  return "<" + D + " calls>\n" + inner + "</" + D + " calls>";
}
std::string invoke(const std::string& name, const std::string& params) {
  return "<" + D + " invoke name=\"" + name + "\">\n" + params + "</" + D + " invoke>\n";
}
std::string param(const std::string& key, const std::string& value, bool string) {
  return "<" + D + " parameter name=\"" + key + "\" string=\"" + (string ? "true" : "false") + "\">" + value +
         "</" + D + " parameter>\n";
}

TEST(OutputMachine, PlainText) {
  EXPECT_EQ(all_ways(options(), "Hello, world"), (Reply{"", "Hello, world", "", ""}));
  EXPECT_EQ(all_ways(options(), "\n\n\nHello\n"), (Reply{"", "Hello\n", "", ""}))
      << "leading line feeds vanish";
  EXPECT_EQ(all_ways(options(ReasoningStage::kContent), "\nHello"), (Reply{"", "\nHello", "", ""}))
      << "a continuation keeps them";
  EXPECT_EQ(all_ways(options(), "2 < 3 and 2 <"), (Reply{"", "2 < 3 and 2 <", "", ""}));
}

TEST(OutputMachine, TextThatMightStartAMarkerIsNotHeldForEver) {
  OutputMachine m(options());
  std::vector<Piece> pieces;
  m.push("2 <", ByteOrigin::kAny, &pieces);
  EXPECT_EQ(m.held_bytes(), 1u);
  m.push(" 3", ByteOrigin::kAny, &pieces);
  EXPECT_EQ(m.held_bytes(), 0u);
  EXPECT_EQ(collect(m, pieces).text, "2 < 3");
}

TEST(OutputMachine, Reasoning) {
  EXPECT_EQ(all_ways(options(ReasoningStage::kStart), "\n\nwhy\nso\n\n</think>\n\nanswer"),
            (Reply{"why\nso", "answer", "", ""}));
  EXPECT_EQ(all_ways(options(ReasoningStage::kReasoning), "\nwhy</think>a"), (Reply{"\nwhy", "a", "", ""}));
  EXPECT_EQ(all_ways(options(ReasoningStage::kStart), "never closed"), (Reply{"never closed", "", "", ""}));
  EXPECT_EQ(all_ways(options(ReasoningStage::kStart), "a</thin</think>b</think>c"),
            (Reply{"a</thin", "bc", "", ""}))
      << "a stray close tag is dropped";
  EXPECT_EQ(all_ways(options(), "x</think>\ny"), (Reply{"", "x\ny", "", ""}))
      << "no leading line feed is taken after a stray tag";
}

TEST(OutputMachine, Calls) {
  std::string s = "I look.\n\n" +
                  block(invoke("f", param("x", "a\"b\\\n\x01", true) + param("y", "[1, {\"k\":2}]", false)) +
                        invoke("g", ""));
  EXPECT_EQ(all_ways(options(), s),
            (Reply{"", "I look.", "|f={\"x\": \"a\\\"b\\\\\\n\\u0001\", \"y\": [1, {\"k\":2}]}|g={}", ""}));
  EXPECT_EQ(all_ways(options(), s + " more " + s), (Reply{"", "I look.", run(options(), {s}).calls, ""}))
      << "only the first block counts";
  EXPECT_EQ(all_ways(options(ReasoningStage::kNone, false), s).calls, "")
      << "tool parsing belongs to the request's tools";
}

TEST(OutputMachine, OlderDialect) {
  std::string s = "<" + D + "tool_calls>\n<" + D + "invoke name=\"f\">\n<" + D +
                  "parameter name=\"x\" string=\"true\">v</" + D + "parameter>\n</" + D + "invoke>\n</" + D +
                  "tool_calls>tail";
  EXPECT_EQ(all_ways(options(), s), (Reply{"", "", "|f={\"x\": \"v\"}", ""}));
}

TEST(OutputMachine, LenientWithMalformedBlocks) {
  EXPECT_EQ(
      all_ways(options(), "t\n<" + D + " invoke name=\"f\">" + param("x", "1", false) + "</" + D + " invoke>")
          .calls,
      "|f={\"x\": 1}")
      << "an invoke without the outer block";
  EXPECT_EQ(
      all_ways(options(), "<" + D + " function_calls>\n" + invoke("f", "") + "</" + D + " function_calls>")
          .calls,
      "|f={}")
      << "wrong outer name";
  EXPECT_EQ(
      all_ways(options(), block("words " + invoke("f", "noise" + param("x", "1", false)) + "words")).calls,
      "|f={\"x\": 1}");
  EXPECT_EQ(all_ways(options(), block(invoke("f", param("x", "1", false) + param("x", "oops", false)))).calls,
            "|f={\"x\": 1, \"x\": oops}");
  EXPECT_EQ(all_ways(options(), "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
                                    " parameter name=\"x\" string=\"true\">abc")
                .calls,
            "|f={\"x\": \"abc")
      << "a cut leaves the arguments open: no call is completed with missing arguments";
  EXPECT_EQ(all_ways(options(), "<" + D + " calls>\n<" + D + " invoke name=\"f").calls, "")
      << "no call without a whole name";
  EXPECT_EQ(all_ways(options(), block(invoke("f", param("x", "cmd 2>&1", true)))).calls,
            "|f={\"x\": \"cmd 2>&1\"}");
  EXPECT_EQ(all_ways(options(), block(invoke("f", param("x", "a</b><" + D + "</ " + D, true)))).calls,
            "|f={\"x\": \"a</b><" + D + "</ " + D + "\"}");
}

TEST(OutputMachine, CallEndsReasoning) {
  EXPECT_EQ(all_ways(options(ReasoningStage::kStart), "why\n\n" + block(invoke("f", ""))),
            (Reply{"why", "", "|f={}", ""}));
  EXPECT_EQ(all_ways(options(ReasoningStage::kStart, false), "why\n<" + D + " calls>"),
            (Reply{"why\n<" + D + " calls>", "", "", ""}));
}

TEST(OutputMachine, ForcedCallStartsInside) {
  ParsingOptions o = options();
  o.starts_in_calls = true;
  EXPECT_EQ(all_ways(o, invoke("f", param("x", "1", false)) + "</" + D + " calls>"),
            (Reply{"", "", "|f={\"x\": 1}", ""}));
}

TEST(OutputMachine, StopStrings) {
  auto stop = [](std::vector<std::string> s) { return options(ReasoningStage::kNone, true, std::move(s)); };
  EXPECT_EQ(all_ways(stop({"END"}), "abcENDdef"), (Reply{"", "abc", "", "END"}));
  EXPECT_EQ(all_ways(stop({"END"}), "abcEN"), (Reply{"", "abcEN", "", ""}));
  EXPECT_EQ(all_ways(stop({"abcd", "bc"}), "xabcd"), (Reply{"", "xa", "", "bc"}))
      << "the one that completes first";
  EXPECT_EQ(all_ways(stop({"aab"}), "aaab"), (Reply{"", "a", "", "aab"}));
  EXPECT_EQ(all_ways(stop({"", "x"}), "axb"), (Reply{"", "a", "", "x"})) << "empty strings are removed";
  EXPECT_EQ(all_ways(stop({"\n\n"}), "a\n\nb"), (Reply{"", "a", "", "\n\n"}));
  EXPECT_EQ(all_ways(stop({"中文"}), "a中中文b"), (Reply{"", "a中", "", "中文"}));
  EXPECT_EQ(all_ways(stop({"x"}), block(invoke("fx", param("x", "x", true)))).stop, "")
      << "never inside calls";
  ParsingOptions o = options(ReasoningStage::kStart, true, {"x"});
  EXPECT_EQ(all_ways(o, "xxx</think>axb"), (Reply{"xxx", "a", "", "x"})) << "never in reasoning";
}

TEST(OutputMachine, LineFeedQuirk) {
  EXPECT_EQ(all_ways(options(), "a<\n<" + D + " calls>").text, "a<\n")
      << "the feed that broke a partial marker stays";
  EXPECT_EQ(all_ways(options(), "a<\n\n<" + D + " calls>").text, "a<\n");
  EXPECT_EQ(all_ways(options(), "a\n<<" + D + " calls>").text, "a\n<");
  EXPECT_EQ(all_ways(options(), "a\n\n<" + D + " calls>").text, "a");
}

TEST(OutputMachine, JsonMode) {
  ParsingOptions o = options(ReasoningStage::kNone, false);
  o.parse_json_output = true;
  EXPECT_EQ(all_ways(o, "{\"a\": 1}").text, "{\"a\": 1}");
  EXPECT_EQ(all_ways(o, "Here it is:\n```json\n{\"a\": 1}\n```\nDone.").text, " {\"a\": 1} ");
  EXPECT_EQ(all_ways(o, "```\n[1]\n```").text, "[1]");
  EXPECT_EQ(all_ways(o, "Sure: [1, 2] and more").text, " [1, 2] and more");
  o.stage = ReasoningStage::kStart;
  EXPECT_EQ(all_ways(o, "{\"a\": 1}"), (Reply{"{\"a\": 1}", "", "", ""})) << "thinking never closed";
}

// Provenance: with token input a marker needs the control token, so the model can quote it.
TEST(OutputMachine, QuotedMarkersAreText) {
  OutputMachine m(options(ReasoningStage::kStart));
  std::vector<Piece> pieces;
  m.push("the tag </think> ends", ByteOrigin::kPlain, &pieces);
  m.push("</think>", ByteOrigin::kControl, &pieces);
  m.push("write <" + D + " calls> so", ByteOrigin::kPlain, &pieces);
  m.push("\n\n<", ByteOrigin::kPlain, &pieces);
  m.push(D, ByteOrigin::kControl, &pieces);
  m.push(" calls>\n<", ByteOrigin::kPlain, &pieces);
  m.push(D, ByteOrigin::kControl, &pieces);
  m.push(" invoke name=\"f\">\n<", ByteOrigin::kPlain, &pieces);
  m.push(D, ByteOrigin::kControl, &pieces);
  m.push(" parameter name=\"x\" string=\"true\">quote </" + D + " parameter> done</", ByteOrigin::kPlain,
         &pieces);
  m.push(D, ByteOrigin::kControl, &pieces);
  m.push(" parameter>\n</", ByteOrigin::kPlain, &pieces);
  m.push(D, ByteOrigin::kControl, &pieces);
  m.push(" invoke>\n", ByteOrigin::kPlain, &pieces);
  m.finish(&pieces);
  EXPECT_EQ(collect(m, pieces), (Reply{"the tag </think> ends", "write <" + D + " calls> so",
                                       "|f={\"x\": \"quote </" + D + " parameter> done\"}", ""}));
}

// Field report P20: by the attribute, then by the schema. The wrapper's words are ordinary keys.
TEST(OutputMachine, ArgumentTypesByAttributeThenBySchema) {
  ParsingOptions o = options();
  o.argument_types["f"] = {{"s", ArgumentType::kString}, {"j", ArgumentType::kJson}};
  auto one = [&](const std::string& tag, const std::string& value) {
    std::string s = block(invoke("f", "<" + D + " parameter name=" + tag + value + "</" + D +
                                          " parameter>\n" + param("after", "1", false)));
    std::string calls = all_ways(o, s).calls;
    EXPECT_TRUE(calls.starts_with("|f={")) << calls;
    EXPECT_TRUE(calls.ends_with(", \"after\": 1}")) << calls;
    return calls.substr(4, calls.size() - 4 - std::string(", \"after\": 1}").size());
  };
  const std::string yes = " string=\"true\">", no = " string=\"false\">";
  // The attribute decides where it can.
  EXPECT_EQ(one("\"j\"" + yes, "5"), "\"j\": \"5\"");
  EXPECT_EQ(one("\"s\"" + yes, "5"), "\"s\": \"5\"");
  EXPECT_EQ(one("\"j\"" + no, "[1,2]"), "\"j\": [1,2]");
  EXPECT_EQ(one("\"x\"" + no, "raw"), "\"x\": raw") << "no schema: passed through as it is";
  // It says JSON, the schema says string: what is no JSON string is the string itself.
  EXPECT_EQ(one("\"s\"" + no, "\"quoted\""), "\"s\": \"quoted\"");
  EXPECT_EQ(one("\"s\"" + no, "raw \"q\"\n"), "\"s\": \"raw \\\"q\\\"\\n\"");
  EXPECT_EQ(one("\"s\"" + no, "5"), "\"s\": \"5\"");
  EXPECT_EQ(one("\"s\"" + no, ""), "\"s\": \"\"");
  EXPECT_EQ(one("\"s\"" + no, "null"), "\"s\": null");
  EXPECT_EQ(one("\"s\"" + no, "nullable"), "\"s\": \"nullable\"");
  EXPECT_EQ(one("\"s\"" + no, "nu"), "\"s\": \"nu\"");
  EXPECT_EQ(one("\"s\"" + no, "中"), "\"s\": \"中\"");
  // No attribute, or no word of it that we know: the schema; a string where it does not say.
  for (const std::string tag : {">", " string=\"maybe\">", " string=true>", " type=\"x\">"}) {
    EXPECT_EQ(one("\"j\"" + tag, "5"), "\"j\": 5") << tag;
    EXPECT_EQ(one("\"s\"" + tag, "5"), "\"s\": \"5\"") << tag;
    EXPECT_EQ(one("\"x\"" + tag, "5"), "\"x\": \"5\"") << tag << ": the next key's value is not taken";
  }
  for (const char* key : {"arguments", "input", "name", "parameter", "string"})
    EXPECT_EQ(one("\"" + std::string(key) + "\"" + yes, "v"), "\"" + std::string(key) + "\": \"v\"");
  // Another tool's types do not count.
  EXPECT_EQ(all_ways(o, block(invoke("g", param("s", "raw", false)))).calls, "|g={\"s\": raw}");
  EXPECT_EQ(all_ways(o, "<" + D + " calls>\n<" + D + " invoke name=\"f\">\n<" + D +
                            " parameter name=\"s\" string=\"false\">nul")
                .calls,
            "|f={\"s\": nul")
      << "a cut value stays open";
}

TEST(OutputMachine, NamesAreBounded) {
  const std::string open = "<" + D + " calls>\n<" + D + " invoke name=\"";
  std::string long_name;
  for (int i = 0; i < 2000; ++i) long_name += "中";
  std::string calls = run(options(), characters(open + long_name + "\">")).calls;
  EXPECT_EQ(calls, run(options(), {open + long_name + "\">"}).calls);
  EXPECT_EQ(calls, "|" + long_name.substr(0, 341 * 3) + "=") << "whole characters up to 1024 bytes";
  std::string short_name(1024, 'n');
  EXPECT_EQ(run(options(), {open + short_name + "\">"}).calls, "|" + short_name + "=");
}

// The reply ends anywhere: nothing is invented, nothing is lost, markup never shows.
TEST(OutputMachine, TruncatedAtEveryByte) {
  const std::string s =
      "\nwhy 中\n</think>\n\nI look.\n\n" +
      block(invoke("f", param("x", "a\"b <", true) + param("y", "[1]", false)) + invoke("g", ""));
  Reply whole = all_ways(options(ReasoningStage::kStart), s);
  size_t block_at = s.find("\n\n<" + D);
  const std::string closer = "</" + D;
  size_t at = 0;
  for (const std::string& c : characters(s)) {
    at += c.size();
    Reply r = run(options(ReasoningStage::kStart), {s.substr(0, at)});
    ASSERT_EQ(run(options(ReasoningStage::kStart), characters(s.substr(0, at))), r) << at;
    // What might have become the closing tag is part of the value when nothing follows.
    for (size_t n = closer.size(); n > 0 && !whole.calls.starts_with(r.calls); --n) {
      if (r.calls.ends_with(closer.substr(0, n))) r.calls.resize(r.calls.size() - n);
    }
    ASSERT_TRUE(whole.calls.starts_with(r.calls)) << r.calls;
    // A held line feed or a partial marker at the end is text when nothing follows.
    if (at >= block_at + 2 + 1 + D.size()) {
      ASSERT_EQ(r.text, "I look.");
      ASSERT_EQ(r.reasoning, whole.reasoning);
    }
  }
}

TEST(OutputMachine, StopStringsThatOverlapMarkers) {
  auto with = [](std::vector<std::string> stops, ReasoningStage stage = ReasoningStage::kNone) {
    return options(stage, true, std::move(stops));
  };
  const std::string call = block(invoke("f", ""));
  // The one that completes first wins; of two that complete together the first in the list, stops in front.
  EXPECT_EQ(all_ways(with({"<"}), "a\n\n" + call), (Reply{"", "a\n\n", "", "<"}));
  EXPECT_EQ(all_ways(with({"\n\n<"}), "a\n\n" + call), (Reply{"", "a", "", "\n\n<"}));
  EXPECT_EQ(all_ways(with({"<" + D}), "a\n" + call), (Reply{"", "a\n", "", "<" + D}));
  EXPECT_EQ(all_ways(with({"<" + D + " calls>"}), "a\n" + call), (Reply{"", "a", "|f={}", ""}))
      << "the opener is complete before the stop string is";
  EXPECT_EQ(all_ways(with({"</think>"}), "a</think>b"), (Reply{"", "a", "", "</think>"}));
  EXPECT_EQ(all_ways(with({"</thi"}), "a</think>b"), (Reply{"", "a", "", "</thi"}));
  EXPECT_EQ(all_ways(with({"</think>x"}), "a</think>xb"), (Reply{"", "axb", "", ""}))
      << "a stray close tag is dropped before the stop string is complete";
  EXPECT_EQ(all_ways(with({"</think>"}, ReasoningStage::kStart), "a</think>b</think>c"),
            (Reply{"a", "b", "", "</think>"}))
      << "reasoning ends, it does not stop";
  EXPECT_EQ(all_ways(with({"\n"}), "\n\na\nb"), (Reply{"", "", "", "\n"}))
      << "a stop string comes before the leading line feeds";
  std::mt19937 rng(23);
  const std::vector<std::string> stops = {"<",  "</think>", D,    "\n\n<",  "｜",
                                          "\n", "</",       "k>", "calls>", "a<"};
  const std::vector<std::string> bits = {"<",      "</", D,       "\n",        "</think>", "a",
                                         "calls>", "｜", "</thi", " calls>\n", "中",       "think>"};
  for (int round = 0; round < 300; ++round) {
    std::string s;
    for (size_t i = rng() % 16; i > 0; --i) s += bits[rng() % bits.size()];
    ParsingOptions o = with({stops[rng() % stops.size()], stops[rng() % stops.size()]},
                            static_cast<ReasoningStage>(rng() % 4));
    Reply r = all_ways(o, s);
    if (!r.stop.empty()) {
      ASSERT_EQ(r.text.find(r.stop), std::string::npos) << s;
    }
    if (HasFailure()) return;
  }
}

TEST(OutputMachine, RandomRepliesDoNotDependOnCuts) {
  const std::vector<std::string> bits = {"<",
                                         "</",
                                         D,
                                         " calls>",
                                         " invoke name=\"",
                                         "f\"",
                                         ">",
                                         "\n",
                                         "\n\n",
                                         " parameter name=\"",
                                         "k\" string=\"",
                                         "true\">",
                                         "false\">",
                                         "</think>",
                                         "<think>",
                                         "text ",
                                         "中",
                                         "😀",
                                         "END",
                                         "EN",
                                         "{",
                                         "[",
                                         "```json\n",
                                         "\n```",
                                         "```\n",
                                         "\"",
                                         "\\",
                                         "tool_calls>",
                                         "｜"};
  std::mt19937 rng(21);
  for (int round = 0; round < 400; ++round) {
    std::string s;
    for (size_t i = rng() % 30; i > 0; --i) s += bits[rng() % bits.size()];
    ParsingOptions o =
        options(static_cast<ReasoningStage>(rng() % 4), rng() % 4 != 0,
                rng() % 2 ? std::vector<std::string>{"END", "t "} : std::vector<std::string>{});
    o.parse_json_output = rng() % 4 == 0;
    o.starts_in_calls = rng() % 8 == 0;
    all_ways(o, s);
    if (HasFailure()) return;
  }
}

// A call that the renderer writes is the call the parser reads.
TEST(OutputMachine, RoundTripWithTheRenderer) {
  std::mt19937 rng(22);
  for (int round = 0; round < 60; ++round) {
    auto word = [&] {
      std::string w = "k";
      for (size_t i = rng() % 5; i > 0; --i)
        append_utf8(rng() % 3 ? 'a' + rng() % 26 : rng() % 0x3000 + 0x20, &w);
      for (char& c : w) {
        if (c == '"' || c == '\\') c = '_';
      }
      return w;
    };
    Json args = Json::object();
    for (size_t i = rng() % 4; i > 0; --i) {
      if (rng() % 2) {
        args[word()] = word() + "\n<\"\\ </b>" + word();
      } else {
        args[word()] = Json{{word(), rng() % 1000}, {"l", {1.5, nullptr, true, word()}}};
      }
    }
    Conversation c;
    Message m;
    m.role = Role::kUser;
    c.messages.push_back(m);
    m.role = Role::kAssistant;
    m.reasoning = "because " + word();
    m.content = "answer " + word();
    m.tool_calls = {{"i", "f", args.dump()}, {"j", "g", "{}"}};
    c.messages.push_back(m);
    std::string p = spans_text(render_conversation(c, ControlTokens::released(), {}).value());
    size_t from = p.find("<think>") + 7, to = p.find("<｜end▁of▁sentence｜>");
    Reply r = all_ways(options(ReasoningStage::kStart), p.substr(from, to - from));
    EXPECT_EQ(r.reasoning, *m.reasoning);
    EXPECT_EQ(r.text, m.content.text());
    size_t second = r.calls.find("|g={}");
    ASSERT_NE(second, std::string::npos) << r.calls;
    Result<Json> back = parse_json(r.calls.substr(3, second - 3));
    ASSERT_TRUE(back.ok()) << r.calls;
    EXPECT_EQ(*back, args);
  }
}

}  // namespace
}  // namespace deepinfer
