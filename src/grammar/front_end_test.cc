// Regular expressions, the two EBNF spellings, tool calls and the compile service.
#include <gtest/gtest.h>

#include <future>
#include <random>
#include <regex>

#include "grammar/char_dfa.h"
#include "grammar/compile_service.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr int32_t kStop = 256, kDsml = 257;

std::shared_ptr<const Vocabulary> bytes_only() {
  static const std::shared_ptr<const Vocabulary> v = [] {
    VocabularySpec spec;
    for (int b = 0; b < 256; ++b) spec.bytes.push_back(std::string(1, static_cast<char>(b)));
    spec.bytes.insert(spec.bytes.end(), {"<stop>", "DSML"});
    spec.stop = {kStop};
    spec.control = {kDsml};
    return *Vocabulary::create(std::move(spec));
  }();
  return v;
}

// '\x01' in a text stands for the DSML token.
bool accepts(const std::shared_ptr<const CompiledGrammar>& g, const std::string& text) {
  Matcher m(g);
  for (char c : text) {
    if (!m.accept(c == '\x01' ? kDsml : static_cast<uint8_t>(c))) return false;
  }
  return m.can_stop();
}

std::shared_ptr<const CompiledGrammar> build(GrammarSource::Kind kind, const std::string& text) {
  GrammarSource s;
  s.kind = kind;
  s.text = text;
  auto g = compile(s, bytes_only());
  EXPECT_TRUE(g.ok()) << text << ": " << g.status().to_string();
  return g.ok() ? *g : nullptr;
}

TEST(RegexTest, AgreesWithTheStandardLibraryOnRandomPatterns) {
  std::mt19937_64 rng(11);
  auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  std::function<std::string(int)> make = [&](int depth) -> std::string {
    if (depth == 0) {
      static const char* const atoms[] = {"a", "b", "c", "[ab]", "[^a]", ".", "\\d", "\\w", "0", "[a-c0]"};
      return atoms[pick(10)];
    }
    switch (pick(6)) {
      case 0:
        return make(depth - 1) + make(depth - 1);
      case 1:
        return "(?:" + make(depth - 1) + "|" + make(depth - 1) + ")";
      case 2:
        return "(?:" + make(depth - 1) + ")*";
      case 3:
        return "(" + make(depth - 1) + ")?";
      case 4:
        return "(?:" + make(depth - 1) + "){" + std::to_string(pick(2)) + "," + std::to_string(2 + pick(2)) +
               "}";
      default:
        return make(depth - 1);
    }
  };
  int compared = 0;
  for (int i = 0; i < 300; ++i) {
    std::string pattern = std::string(pick(3) == 0 ? "^" : "") + make(3) + (pick(3) == 0 ? "$" : "");
    Budget budget{CompileLimits{}};
    RegexOptions options;
    options.search = true;
    Result<ExprPtr> e = parse_regex(pattern, options, &budget);
    ASSERT_TRUE(e.ok()) << pattern << e.status().to_string();
    CharDfaPtr d = dfa_of(*e, &budget);
    Grammar g;
    g.root = g.add("root", *e);
    auto compiled = CompiledGrammar::create(g, bytes_only(), &budget);
    ASSERT_TRUE(compiled.ok()) << pattern << compiled.status().to_string();
    std::regex oracle(pattern);
    for (int k = 0; k < 60; ++k) {
      std::string text;
      for (int n = pick(7); n > 0; --n) text += "abc01x"[pick(6)];
      bool want = std::regex_search(text, oracle);
      ASSERT_EQ(d->accepts(text), want) << pattern << " on " << text;
      ASSERT_EQ(accepts(*compiled, text), want) << pattern << " on " << text;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 18'000);
}

TEST(RegexTest, Features) {
  struct Case {
    const char* pattern;
    std::vector<std::string> yes, no;
  };
  static const Case cases[] = {{"\\u{1F600}|\\u00e9|\\x41|\\cA", {"😀", "é", "A", "\x01"}, {"B"}},
                               {"[\\u4e00-\\u9fff]{2}", {"漢字"}, {"漢", "ab"}},
                               {"\\p{Lu}\\p{Ll}*", {"Éa", "Ab"}, {"a", "1"}},
                               {"\\P{L}", {"1"}, {"a"}},
                               {"[^\\s\\d]+", {"ab"}, {"a b", "1"}},
                               {"a{2,}", {"aa", "aaaaaaaaaa"}, {"a"}},
                               {"(?<name>a)b", {"ab"}, {"b"}},
                               {"[\\]\\-a]", {"]", "-", "a"}, {"b"}},
                               {"[]|a", {"a"}, {""}},
                               {"[^]", {"a", "\n"}, {""}},
                               {"a*?b+?", {"aab"}, {"a"}},
                               {"\\/\\.", {"/."}, {"/a"}},
                               {"(^a|b$)", {"a", "b"}, {"c"}}};
  for (const Case& c : cases) {
    auto g = build(GrammarSource::Kind::kRegex, c.pattern);
    // '\x01' means a token in accepts(); the control character is tried on the character automaton.
    for (const std::string& t : c.yes) {
      if (t != "\x01") {
        EXPECT_TRUE(accepts(g, t)) << c.pattern << " " << t;
      }
    }
    for (const std::string& t : c.no) EXPECT_FALSE(accepts(g, t)) << c.pattern << " " << t;
  }
  for (const char* bad : {"(", ")", "[a", "a{2,1}", "*a", "a**", "\\", "(?=a)", "(?!a)b", "a\\b", "\\1",
                          "(?<=a)b", "x{99999}", "\\p{Nope}", "\\q", "a^b", "[b-a]"}) {
    GrammarSource s;
    s.kind = GrammarSource::Kind::kRegex;
    s.text = bad;
    auto g = compile(s, bytes_only());
    EXPECT_FALSE(g.ok()) << bad;
  }
}

TEST(EbnfTest, Gbnf) {
  auto g = build(GrammarSource::Kind::kGbnf, R"G(# a list
root  ::= "[" ws (item ("," ws item)*)? "]"   # trailing comment
item  ::= word | number
  | root
word  ::= [a-z_] [a-z0-9_]{0,3}
number ::= "-"? [0-9]+ "\x2e"? [0-9]*
ws ::= [ \t\n]*
)G");
  for (const char* t : {"[]", "[ab]", "[ab, -12.5,[x_1]]", "[ 1]"}) EXPECT_TRUE(accepts(g, t)) << t;
  for (const char* t : {"[", "[abcde]", "[a,]", "[--1]"}) EXPECT_FALSE(accepts(g, t)) << t;
  for (const char* bad : {"root = \"a\"", "root ::= x", "a ::= \"b\"", "root ::= \"a", "root ::= (\"a\"",
                          "root ::= \"a\"\nroot ::= \"b\"", "root ::= [b-a]", "root ::= root",
                          "root ::= \"a\"??????????????", "root ::= \"\\", "root ::= \"a\"??????????????",
                          "root ::= \"a\"{2,1}", "root ::= x \"a\"\nx ::= root \"b\" | \"\""}) {
    GrammarSource s;
    s.kind = GrammarSource::Kind::kGbnf;
    s.text = bad;
    EXPECT_FALSE(compile(s, bytes_only()).ok()) << bad;
  }
}

TEST(EbnfTest, Lark) {
  auto g = build(GrammarSource::Kind::kLark, R"G(// sums
start: sum
?sum: product
    | sum "+" product   -> add
    | sum "-" product
?product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")" | NAME | call
call: NAME "(" [sum ("," sum)~0..2] ")"
NAME: /[a-z]\w*/i
%import common.NUMBER
%import common.WS
%ignore WS
)G");
  for (const char* t : {"1+2", " 1 + 2 * ( x - 3.5 )", "f(1, 2, 3)", "f()"}) EXPECT_TRUE(accepts(g, t)) << t;
  for (const char* t : {"1+", "f(1,2,3,4)", "(1", "1 2", "+"}) EXPECT_FALSE(accepts(g, t)) << t;
  auto h = build(GrammarSource::Kind::kLark, "start: \"select\"i X\nX: \"a\"..\"c\" ~ 2\n");
  EXPECT_TRUE(accepts(h, "SeLectab"));
  EXPECT_FALSE(accepts(h, "selecta"));
  for (const char* bad : {"start: x", "start: \"a\" %", "begin: \"a\"", "start: /a",
                          "%import nope.X\nstart: \"a\"", "start: \"a\"\nstart: \"b\"", "start{x}: \"a\""}) {
    GrammarSource s;
    s.kind = GrammarSource::Kind::kLark;
    s.text = bad;
    EXPECT_FALSE(compile(s, bytes_only()).ok()) << bad;
  }
}

GrammarSource tools() {
  GrammarSource s;
  s.kind = GrammarSource::Kind::kTools;
  s.tools = {
      {"get_weather",
       R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},"unit":{"enum":["C","F"]}},"required":["city"],"additionalProperties":false})",
       true},
      {"stop", "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", true},
      {"free", "", false}};
  s.tool_options.dsml_token = kDsml;
  return s;
}

std::shared_ptr<const CompiledGrammar> built(const GrammarSource& s) {
  auto g = compile(s, bytes_only());
  EXPECT_TRUE(g.ok()) << g.status().to_string();
  return g.ok() ? *g : nullptr;
}

const char kOpen[] = "<\x01 invoke name=\"", kClose[] = "</\x01 invoke>\n", kEnd[] = "</\x01 calls>";

std::string parameter(const std::string& key, bool text, const std::string& value) {
  return "<\x01 parameter name=\"" + key + "\" string=\"" + (text ? "true" : "false") + "\">" + value +
         "</\x01 parameter>\n";
}

TEST(ToolsTest, StrictCallsFollowTheirSchemas) {
  auto g = built(tools());
  auto call = [](const std::string& name, const std::string& body) {
    return kOpen + name + "\">\n" + body + kClose;
  };
  std::string city = parameter("city", true, "São \"Paulo\" </ x>\nline");
  EXPECT_TRUE(accepts(g, call("get_weather", city) + kEnd));
  EXPECT_TRUE(accepts(
      g, call("get_weather", city + parameter("days", false, "14") + parameter("unit", true, "F")) + kEnd));
  EXPECT_TRUE(accepts(g, call("stop", "\n") + call("get_weather", city) + kEnd));
  EXPECT_TRUE(
      accepts(g, call("free", parameter("x", false, R"({"a": [1]})") + parameter("y", true, "t")) + kEnd));
  EXPECT_FALSE(accepts(g, call("get_weather", "\n") + kEnd));  // city is required
  EXPECT_FALSE(
      accepts(g, call("get_weather", city + parameter("days", false, "15")) + kEnd));          // out of range
  EXPECT_FALSE(accepts(g, call("get_weather", city + parameter("days", true, "14")) + kEnd));  // not a string
  EXPECT_FALSE(accepts(g, call("get_weather", parameter("city", false, "\"x\"")) + kEnd));  // a string is raw
  EXPECT_FALSE(accepts(g, call("get_weather", city + parameter("unit", true, "K")) + kEnd));  // not in enum
  EXPECT_FALSE(accepts(g, call("get_weather", city + parameter("more", true, "K")) + kEnd));  // not declared
  EXPECT_FALSE(accepts(g, call("other", "\n") + kEnd));
  EXPECT_FALSE(accepts(g, std::string(kEnd)));
  EXPECT_FALSE(accepts(g, call("stop", "\n")));
}

TEST(ToolsTest, ChoicesOfTheRequest) {
  GrammarSource s = tools();
  s.tool_options.parallel = false;
  std::string one = std::string(kOpen) + "stop\">\n\n" + kClose;
  EXPECT_TRUE(accepts(built(s), one + kEnd));
  EXPECT_FALSE(accepts(built(s), one + one + kEnd));
  s = tools();
  s.tool_options.opener_in_prompt = false;
  EXPECT_TRUE(accepts(built(s), "\n\n<\x01 calls>\n" + one + kEnd));
  EXPECT_FALSE(accepts(built(s), one + kEnd));
  s.tool_options.required = false;
  auto g = built(s);
  EXPECT_TRUE(accepts(g, "just text < and </ tags"));
  EXPECT_TRUE(accepts(g, ""));
  EXPECT_TRUE(accepts(g, "text\n\n<\x01 calls>\n" + one + kEnd));
  EXPECT_FALSE(accepts(g, "text\n\n<\x01 calls>\n" + one + kEnd + "more"));
  EXPECT_FALSE(accepts(g, "text \x01"));
  // A value of a schema, or a call.
  s.tool_options.answer_schema =
      R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})";
  g = built(s);
  EXPECT_TRUE(accepts(g, R"({"n":7})"));
  EXPECT_TRUE(accepts(g, "\n\n<\x01 calls>\n" + one + kEnd));
  EXPECT_FALSE(accepts(g, "text"));
  EXPECT_FALSE(accepts(g, R"({"n":7})" + ("\n\n<\x01 calls>\n" + one + kEnd)));
  s = tools();
  s.tools = {
      {"hint",
       R"({"type":"object","properties":{"q":{"type":"array","uniqueItems":true},"n":{"type":"integer"}},)"
       R"("required":["n"],"minProperties":1})",
       false, true}};
  g = built(s);
  auto hint = [](const std::string& body) { return std::string(kOpen) + "hint\">\n" + body + kClose + kEnd; };
  EXPECT_TRUE(accepts(g, hint(parameter("q", false, "[1, 1]") + parameter("n", false, "3"))));
  EXPECT_TRUE(accepts(g, hint(parameter("n", false, "3") + parameter("other", true, "x"))));
  EXPECT_FALSE(accepts(g, hint(parameter("n", true, "3"))));
  EXPECT_FALSE(accepts(g, hint(parameter("q", false, "[1]"))));
  s = tools();
  s.tools.push_back(
      {"bad", R"({"type":"object","properties":{"q":{"type":"array","uniqueItems":true}}})", true});
  auto bad = compile(s, bytes_only());
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kUnsupported);
  EXPECT_NE(bad.status().message().find("tool 'bad'"), std::string::npos);
  EXPECT_NE(bad.status().message().find("#/properties/q/uniqueItems"), std::string::npos)
      << bad.status().message();
}

TEST(ServiceTest, EqualGrammarsCompileOnce) {
  CompileServiceOptions options;
  options.workers = 2;
  CompileService service(bytes_only(), options);
  GrammarSource s;
  s.kind = GrammarSource::Kind::kRegex;
  s.text = "(a|b)*a(a|b){200}";
  std::vector<std::promise<CompileService::Compiled>> promises(20);
  std::vector<CompileService::Ticket> tickets;
  for (auto& p : promises)
    tickets.push_back(service.request(s, [&p](const CompileService::Compiled& c) { p.set_value(c); }));
  std::set<const CompiledGrammar*> grammars;
  for (auto& p : promises) {
    CompileService::Compiled c = p.get_future().get();
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    grammars.insert(c->get());
  }
  EXPECT_EQ(grammars.size(), 1u);
  auto counters = service.counters();
  EXPECT_EQ(counters.compiled, 1u);
  EXPECT_EQ(counters.joined + counters.cache_hits, 19u);
}

TEST(ServiceTest, FailuresAreRememberedAndCancelledCompilesStop) {
  CompileServiceOptions options;
  options.workers = 1;
  options.limits.time_ms = 60'000;
  options.limits.states = 2'000'000'000;
  options.limits.memory_bytes = int64_t{1} << 40;
  options.queue = 2;
  CompileService service(bytes_only(), options);
  GrammarSource bad;
  bad.text = R"({"type":"array","uniqueItems":true})";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(service.compile_now(bad).status().code(), Code::kUnsupported);
  EXPECT_EQ(service.counters().failed, 1u);
  // A compile that would take long: its only request goes away, and the worker is free again.
  GrammarSource slow;
  slow.text = R"({"type":"string","pattern":"^(a|b)*a(a|b){24}$","maxLength":1000})";
  bool called = false;
  {
    CompileService::Ticket t = service.request(slow, [&](const CompileService::Compiled&) { called = true; });
  }
  GrammarSource quick;
  quick.text = "{}";
  EXPECT_TRUE(service.compile_now(quick).ok());
  EXPECT_FALSE(called);
  // The queue is bounded, half of it for one tenant: one runs, one waits, the next is refused at once.
  std::vector<CompileService::Ticket> tickets;
  std::atomic<int> refused{0};
  for (int i = 0; i < 6; ++i) {
    slow.text =
        R"({"type":"string","pattern":"^(a|b)*a(a|b){24}$","maxLength":)" + std::to_string(1000 + i) + "}";
    tickets.push_back(service.request(slow, [&](const CompileService::Compiled& c) {
      if (c.status().code() == Code::kUnavailable) ++refused;
    }));
  }
  EXPECT_GE(refused.load(), 4);
}

TEST(ServiceTest, OneTenantLeavesWorkersQueueAndTimeToOthers) {
  CompileServiceOptions options;
  options.workers = 2;
  options.queue = 8;
  options.limits.time_ms = 60'000;
  options.limits.states = 2'000'000'000;
  options.limits.memory_bytes = int64_t{1} << 40;
  options.tenant_ms_per_minute = 50;
  CompileService service(bytes_only(), options);
  GrammarSource s;
  std::vector<CompileService::Ticket> tickets;
  std::atomic<int> refused{0}, stopped{0};
  for (int i = 0; i < 20; ++i) {
    s.text =
        R"({"type":"string","pattern":"^(a|b)*a(a|b){24}$","maxLength":)" + std::to_string(2000 + i) + "}";
    tickets.push_back(service.request(
        s,
        [&](const CompileService::Compiled& c) {
          ++(c.status().code() == Code::kUnavailable ? refused : stopped);
        },
        "loud"));
  }
  EXPECT_GE(refused.load(), 15) << "half of the queue waits, one runs";
  s.text = "{}";
  std::promise<Code> quiet;
  auto ticket = service.request(
      s, [&](const CompileService::Compiled& c) { quiet.set_value(c.status().code()); }, "quiet");
  EXPECT_EQ(quiet.get_future().get(), Code::kOk) << "while the other tenant's compile runs";
  // What was compiled is known for everybody; only new work is charged.
  for (int i = 0; i < 40 && service.counters().over_allowance == 0; ++i) {
    s.text = R"({"type":"string","pattern":"^(a|b)*a(a|b){6}$","maxLength":)" + std::to_string(50 + i) + "}";
    std::promise<Code> end;
    auto t = service.request(
        s, [&](const CompileService::Compiled& c) { end.set_value(c.status().code()); }, "busy");
    Code code = end.get_future().get();
    if (code != Code::kOk) {
      EXPECT_EQ(code, Code::kResourceExhausted);
    }
  }
  EXPECT_EQ(service.counters().over_allowance, 1u);
  s.text = "{}";
  EXPECT_TRUE(service.compile_now(s).ok());
  service.stop();
  EXPECT_GT(stopped.load(), 0) << "those who wait are told";
  EXPECT_EQ(service.compile_now(s).status().code(), Code::kOk) << "what is known stays known";
  s.text = R"({"type":"null"})";
  EXPECT_EQ(service.compile_now(s).status().code(), Code::kCancelled);
}

TEST(ServiceTest, TheCacheStaysUnderItsBound) {
  CompileServiceOptions options;
  options.workers = 1;
  options.cache_bytes = 100'000;
  CompileService service(bytes_only(), options);
  GrammarSource s;
  for (int i = 0; i < 300; ++i) {
    s.text = R"({"type":"object","properties":{"p)" + std::to_string(i) + R"(":{"type":"integer"}}})";
    ASSERT_TRUE(service.compile_now(s).ok());
    ASSERT_LE(service.counters().cache_bytes, options.cache_bytes);
  }
  EXPECT_GT(service.counters().evicted, 100u);
}

TEST(ServiceTest, MatchersOfOneGrammarRunOnManyThreads) {
  CompileService service(bytes_only());
  GrammarSource s;
  s.text =
      R"({"type":"array","items":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["a","b"]}})";
  auto g = service.compile_now(s);
  ASSERT_TRUE(g.ok());
  std::string text = R"([{"a":"x y z","b":1.5},{"a":"é","b":-3}])";
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<uint32_t> mask((*g)->vocabulary().mask_words());
      for (int i = 0; i < 50; ++i) {
        Matcher m(*g);
        bool ok = true;
        for (char c : text) {
          m.fill_mask(mask);
          auto b = static_cast<uint8_t>(c);
          ok = ok && (mask[b / 32] >> (b % 32) & 1) != 0 && m.accept(b);
        }
        if (ok && m.can_stop()) ++good;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good.load(), 200);
}

}  // namespace
}  // namespace deepinfer::grammar
