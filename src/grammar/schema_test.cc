// The schema compiler by explicit examples, keyword by keyword; refusals with their pointers; numbers
// exactly; hostile schemas. Larger sets run in tests/grammar.
#include <gtest/gtest.h>

#include <chrono>

#include "grammar/compile.h"
#include "grammar/schema_number.h"

namespace deepinfer::grammar {
namespace {

// A vocabulary of single bytes: what is tested here is the language.
std::shared_ptr<const Vocabulary> bytes_only() {
  static const std::shared_ptr<const Vocabulary> v = [] {
    VocabularySpec spec;
    for (int b = 0; b < 256; ++b) spec.bytes.push_back(std::string(1, static_cast<char>(b)));
    spec.bytes.insert(spec.bytes.end(), {"<stop>", "D"});
    spec.stop = {256};
    spec.control = {257};
    return *Vocabulary::create(std::move(spec));
  }();
  return v;
}

Result<std::shared_ptr<const CompiledGrammar>> build(const std::string& schema,
                                                     const SchemaOptions& options = {},
                                                     const CompileLimits& limits = {}) {
  GrammarSource s;
  s.text = schema;
  s.schema = options;
  return compile(s, bytes_only(), limits);
}

bool accepts(const std::shared_ptr<const CompiledGrammar>& g, const std::string& text) {
  Matcher m(g);
  for (char c : text) {
    if (!m.accept(static_cast<uint8_t>(c))) return false;
  }
  return m.can_stop();
}

struct Case {
  const char* schema;
  std::vector<std::string> yes, no;
};

void check(const std::vector<Case>& cases, const SchemaOptions& options = {}) {
  for (const Case& c : cases) {
    auto g = build(c.schema, options);
    ASSERT_TRUE(g.ok()) << c.schema << ": " << g.status().to_string();
    for (const std::string& t : c.yes) EXPECT_TRUE(accepts(*g, t)) << c.schema << " should accept " << t;
    for (const std::string& t : c.no) EXPECT_FALSE(accepts(*g, t)) << c.schema << " should not accept " << t;
  }
}

TEST(SchemaTest, Types) {
  check({{R"({"type":"null"})", {"null"}, {"0", "nul", "\"null\"", ""}},
         {R"({"type":"boolean"})", {"true", "false"}, {"1", "truefalse"}},
         {R"({"type":"integer"})",
          {"0", "-0", "12", "-7", "98249283749234923498293171823948729348710298301928331"},
          {"01", "1.0", "1e3", "+1", "-"}},
         {R"({"type":"number"})",
          {"0", "-0.5", "1e10", "1E-2", "3.25", "-1.5e+300"},
          {".5", "1.", "1e", "0x1", "NaN"}},
         {R"({"type":"string"})",
          {R"("")", R"("a\n\u00e9é\ud83d\ude00/\/")"},
          {R"("\ud83d")", "\"\n\"", R"("a)", R"("\x")", "\"\xff\""}},
         {R"({"type":["string","null"]})", {R"("x")", "null"}, {"1"}},
         {R"({})",
          {"1", R"("x")", "null", R"([1, {"a": [true]}])", "{ }", "[]"},
          {"", "[1,]", "{a:1}", R"({"a":1,})"}},
         {"true", {"[[[]]]"}, {}}});
}

TEST(SchemaTest, EnumAndConst) {
  check({{R"({"enum":["a",1,null,[1,2],{"k":"v"}]})",
          {R"("a")", "1", "null", "[1,2]", "[ 1 , 2 ]", R"({"k": "v"})"},
          {R"("b")", "2", "[1]", R"({})"}},
         {R"({"const":1.50})", {"1.50", "1.5"}, {"1", "1.51"}},
         {R"({"enum":[1,"ab","abcd"],"type":"string","minLength":3})", {R"("abcd")"}, {"1", R"("ab")"}},
         {R"({"const":"q\"\\\n\u0001é"})", {R"("q\"\\\n\u0001é")"}, {}},
         {R"({"enum":[1,2,3],"not":{"const":2}})", {"1", "3"}, {"2"}}});
}

TEST(SchemaTest, Strings) {
  check({{R"({"type":"string","minLength":2,"maxLength":3})",
          {R"("ab")", R"("é漢😀")", R"("\u0041\n")", R"("\ud83d\ude00a")"},
          {R"("a")", R"("abcd")", R"("")"}},
         {R"({"type":"string","maxLength":0})", {R"("")"}, {R"("a")"}},
         {R"({"type":"string","pattern":"^a+b?$"})", {R"("a")", R"("aab")"}, {R"("b")", R"("abb")", R"("")"}},
         {R"({"type":"string","pattern":"b"})", {R"("b")", R"("abc")"}, {R"("ac")", R"("")"}},
         {R"({"type":"string","pattern":"^[a-z]*$","maxLength":2})",
          {R"("")", R"("ab")"},
          {R"("abc")", R"("A")"}},
         {R"({"allOf":[{"pattern":"^a"},{"pattern":"b$"}],"type":"string"})",
          {R"("ab")", R"("axxb")"},
          {R"("a")", R"("b")"}},
         {R"({"type":"string","pattern":"^\"\\\\$"})", {R"("\"\\")"}, {R"("")"}},
         {R"({"type":"string","not":{"enum":["a","b"]}})",
          {R"("c")", R"("ab")", R"("")"},
          {R"("a")", R"("b")"}}});
}

TEST(SchemaTest, Formats) {
  check({{R"({"type":"string","format":"date"})",
          {R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"},
          {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")"}},
         {R"({"type":"string","format":"date-time"})",
          {R"("2024-02-29T23:59:59Z")", R"("2024-01-01T00:00:00.123+02:00")"},
          {R"("2024-01-01 00:00:00Z")", R"("2024-01-01T24:00:00Z")", R"("2024-01-01T00:00:00")"}},
         {R"({"type":"string","format":"time"})", {R"("12:00:00Z")"}, {R"("12:00")"}},
         {R"({"type":"string","format":"uuid"})",
          {R"("123e4567-e89b-12d3-a456-426614174000")"},
          {R"("123e4567e89b12d3a456426614174000")"}},
         {R"({"type":"string","format":"ipv4"})",
          {R"("192.168.0.255")"},
          {R"("256.1.1.1")", R"("1.2.3")", R"("01.2.3.4")"}},
         {R"({"type":"string","format":"ipv6"})",
          {R"("::1")", R"("2001:db8::ff00:42:8329")", R"("::")", R"("1:2:3:4:5:6:7:8")",
           R"("::ffff:1.2.3.4")", R"("1::")"},
          {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"(":1")", R"("12345::")"}},
         {R"({"type":"string","format":"email"})",
          {R"("a.b@example.com")"},
          {R"("a@")", R"("@b.c")", R"("a b@c.d")"}},
         {R"({"type":"string","format":"hostname"})", {R"("a-b.example")"}, {R"("-a")", R"("a..b")"}},
         {R"({"type":"string","format":"uri"})",
          {R"("https://a.example/x?y=1#z")", R"("mailto:a@b.c")"},
          {R"("//a.b")", R"("a b")"}},
         {R"({"type":"string","format":"duration"})",
          {R"("P1Y2M3DT4H5M6S")", R"("PT0S")", R"("P4W")"},
          {R"("P")", R"("P1")", R"("PT")"}}});
}

TEST(SchemaTest, NumbersInRanges) {
  check({{R"({"type":"integer","minimum":3,"maximum":12})",
          {"3", "9", "10", "12"},
          {"2", "13", "0", "-3", "3.0", "003", "100"}},
         {R"({"type":"integer","minimum":-12,"exclusiveMaximum":5})",
          {"-12", "-1", "0", "4"},
          {"-13", "5", "12"}},
         {R"({"type":"number","minimum":0.5,"maximum":1.25})",
          {"0.5", "0.50", "1", "1.25", "1.0", "0.999"},
          {"0.49", "1.26", "1.2500001", "0", "2"}},
         {R"({"type":"number","exclusiveMinimum":0})", {"0.001", "5", "10.5"}, {"0", "0.0", "-1", "-0.1"}},
         {R"({"type":"number","maximum":-1.5})", {"-1.5", "-2", "-10.1"}, {"-1.4", "0", "1.5", "-1"}},
         {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700"}, {"1", "13"}},
         {R"({"type":"number","multipleOf":0.05})", {"0.05", "1.5", "2", "0.10", "-0.25"}, {"0.01", "0.051"}},
         {R"({"type":"integer","minimum":10,"multipleOf":3,"maximum":20})",
          {"12", "15", "18"},
          {"9", "21", "10"}},
         {R"({"minimum":5})", {"5", R"("a")", "null"}, {"4"}},
         {R"({"type":"integer","minimum":1e2,"maximum":1.2e2})", {"100", "120"}, {"99", "121"}},
         {R"({"type":"number","not":{"const":3}})", {"2", "3.5", "30"}, {"3", "3.0", "3.00"}}});
}

TEST(SchemaTest, NumberLanguagesAgreeWithComparisonOnEveryShortText) {
  auto d = [](const char* s) { return *parse_decimal(s); };
  struct Range {
    const char *min, *max;
    bool min_ex, max_ex, integer;
  };
  static const Range ranges[] = {{"0", "10", false, false, false},    {"-1.5", "1.5", true, true, false},
                                 {"0.05", "0.5", false, true, false}, {"-20", "-3", false, false, true},
                                 {"9", "11", true, true, true},       {"0", "0", false, false, false},
                                 {"-0.1", "0", false, true, false},   {"1.05", "1.10", false, false, false},
                                 {"99", "101.5", true, false, true}};
  std::vector<std::string> texts;
  for (const char* sign : {"", "-"}) {
    for (int whole = 0; whole < 125; ++whole) {
      std::string w = sign + std::to_string(whole);
      texts.push_back(w);
      for (int f = 0; f < 100; ++f) {
        texts.push_back(w + "." + std::to_string(f));
        if (f < 10) texts.push_back(w + ".0" + std::to_string(f));
      }
    }
  }
  for (const Range& r : ranges) {
    NumberBounds b;
    b.integer = r.integer;
    b.at_least(d(r.min), r.min_ex);
    b.at_most(d(r.max), r.max_ex);
    Budget budget{CompileLimits{}};
    CharDfaPtr language = number_language(b, &budget);
    for (const std::string& t : texts) {
      bool written = !r.integer || t.find('.') == std::string::npos;
      bool want = written && b.contains(d(t.c_str()));
      // Negative zero is left out where negative numbers are.
      if (t[0] == '-' && d(t.c_str()).is_zero() && want) continue;
      ASSERT_EQ(language->accepts(t), want) << t << " in " << r.min << ".." << r.max;
    }
  }
}

TEST(SchemaTest, Arrays) {
  check({{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
          {"[1]", "[1,2,3]", "[ 1 , 2 ]"},
          {"[]", "[1,2,3,4]", R"(["a"])", "[1,]"}},
         {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"null"}})",
          {"[]", R"(["a"])", R"(["a",1,null,null])"},
          {"[1]", R"(["a",1,2])"}},
         {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":false})",
          {"[]", "[1]", "[1,2]"},
          {"[1,2,3]", "[2]"}},
         {R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":5},"minContains":2})",
          {"[5,6]", "[1,5,2,9]"},
          {"[]", "[5]", "[1,2]", "[5,1]"}},
         {R"({"type":"array","contains":{"const":1},"maxItems":2})",
          {"[1]", "[0,1]", "[1,\"x\"]"},
          {"[0,0]", "[0,0,1]", "[]"}},
         {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":2})",
          {R"(["a","b"])", R"(["c","a","b"])"},
          {R"(["a","a"])", R"(["a"])"}},
         {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
         {R"({"type":"array","items":{"type":"array","items":{"type":"boolean"}}})",
          {"[[true],[]]"},
          {"[true]"}}});
}

TEST(SchemaTest, Objects) {
  check(
      {{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false})",
        {R"({"a":1})", R"({"a":1,"b":"x"})", R"({ "a" : 1 , "b" : "x" })"},
        {R"({})", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"c":2})", R"({"a":1,"a":2})"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"}}})",
        {"{}", R"({"a":1})", R"({"a":1,"z":[]})", R"({"z":1})", R"({"aa":1,"":2})"},
        {R"({"a":"x"})", R"({"z":1,"a":1})", R"({"\u0061":"x"})"}},
       {R"({"type":"object","additionalProperties":{"type":"integer"}})",
        {"{}", R"({"x":1,"y":2})"},
        {R"({"x":"1"})"}},
       {R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"_s$":{"type":"string"}},"additionalProperties":false})",
        {R"({"n_a":1})", R"({"a_s":"x"})", R"({"n_a":1,"b_s":"t"})"},
        {R"({"n_a":"x"})", R"({"n_s":1})", R"({"n_s":"x"})", R"({"q":1})"}},
       {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"}})", {R"({"ab":1})"}, {R"({"A":1})"}},
       {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2,"maxProperties":2})",
        {R"({"a":1,"b":1})", R"({"b":1,"c":1})"},
        {R"({"a":1})", R"({"a":1,"b":1,"c":1})"}},
       {R"({"type":"object","required":["q"]})", {R"({"q":1})", R"({"q":1,"r":2})"}, {"{}", R"({"r":1})"}},
       {R"({"type":"object","properties":{"a":false,"b":true}})", {R"({"b":1})"}, {R"({"a":1})"}},
       {R"({"type":"object","properties":{"a":{"const":1}},"dependentRequired":{"a":["b"]}})",
        {R"({"a":1,"b":0})", R"({"b":0})", R"({})"},
        {R"({"a":1})", R"({"a":1,"c":0})"}}});
}

TEST(SchemaTest, AnyOrder) {
  SchemaOptions options;
  options.any_order = true;
  check(
      {{R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"required":["a","b"],"additionalProperties":false})",
        {R"({"a":1,"b":2})", R"({"b":2,"a":1})", R"({"c":3,"b":2,"a":1})", R"({"b":2,"c":3,"a":1})"},
        {R"({"a":1})", R"({"a":1,"a":1,"b":2})", R"({"a":1,"b":2,"c":3,"b":2})"}},
       {R"({"type":"object","properties":{"a":{"const":1}},"required":["a"]})",
        {R"({"x":0,"a":1})", R"({"a":1,"x":0})"},
        {R"({"x":0})", R"({"x":0,"a":2})"}}},
      options);
}

TEST(SchemaTest, Combinators) {
  check(
      {{R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
        {"1", R"("a")"},
        {R"("ab")", "1.5"}},
       {R"({"oneOf":[{"type":"integer","minimum":5},{"type":"integer","maximum":10}]})",
        {"4", "11"},
        {"5", "7", "10"}},
       {R"({"oneOf":[{"properties":{"k":{"const":"a"},"v":{"type":"integer"}},"required":["k","v"],"type":"object"},{"properties":{"k":{"const":"b"},"v":{"type":"string"}},"required":["k","v"],"type":"object"}]})",
        {R"({"k":"a","v":1})", R"({"k":"b","v":"x"})"},
        {R"({"k":"a","v":"x"})"}},
       {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":3},"b":{"type":"null"}},"required":["b"]}]})",
        {R"({"a":3,"b":null})"},
        {R"({"a":2,"b":null})", R"({"a":3})"}},
       {R"({"not":{"type":"string"}})", {"1", "null", "{}"}, {R"("a")"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false,"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"required":["b"]}})",
        {R"({"a":1,"b":2})", R"({"a":2})", R"({})", R"({"b":1})"},
        {R"({"a":1})"}},
       {R"({"anyOf":[{"type":"string"}],"allOf":[{"minLength":2}]})", {R"("ab")"}, {R"("a")", "1"}},
       {R"({"type":"integer","not":{"minimum":3}})", {"2", "-5"}, {"3"}}});
}

TEST(SchemaTest, References) {
  check(
      {{R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
        {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
        {R"({"v":1,"next":1})", R"({})"}},
       {R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
       {R"({"$defs":{"a/b":{"type":"null"},"c~d":{"type":"boolean"}},"type":"array","prefixItems":[{"$ref":"#/$defs/a~1b"},{"$ref":"#/$defs/c~0d"}]})",
        {"[null,true]"},
        {"[true]"}},
       {R"({"$defs":{"x":{"$anchor":"here","type":"integer"}},"$ref":"#here"})", {"1"}, {"null"}},
       {R"({"$defs":{"p":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/p","maxLength":1}},"type":"object"})",
        {R"({"a":"x"})"},
        {R"({"a":"xy"})"}}});
}

TEST(SchemaTest, RefusalsNameTheKeyword) {
  struct Refusal {
    const char *schema, *pointer;
    Code code;
  };
  static const Refusal cases[] = {
      {R"({"properties":{"a":{"unevaluatedItems":false}}})", "#/properties/a/unevaluatedItems",
       Code::kUnsupported},
      {R"({"type":"array","uniqueItems":true})", "#/uniqueItems", Code::kUnsupported},
      {R"({"type":"array","contains":{"const":1},"maxContains":2})", "#/maxContains", Code::kUnsupported},
      {R"({"allOf":[{"type":"string"},{"format":"nope"}]})", "#/allOf/1/format", Code::kUnsupported},
      {R"({"properties":{"x~y/z":{"maxlenght":3}}})", "#/properties/x~0y~1z/maxlenght", Code::kUnsupported},
      {R"({"type":"object","minProperties":3})", "#/minProperties", Code::kUnsupported},
      {R"({"oneOf":[{"type":"integer","format":"date"},{"type":"number","format":"time"}]})", "#/oneOf",
       Code::kUnsupported},
      {R"({"$ref":"other.json#/a"})", "#/$ref", Code::kUnsupported},
      {R"({"$ref":"#/nowhere"})", "#/$ref", Code::kInvalidArgument},
      {R"({"type":"strin"})", "#/type", Code::kInvalidArgument},
      {R"({"minLength":-1})", "#/minLength", Code::kInvalidArgument},
      {R"({"properties":{"a":3}})", "#/properties/a", Code::kInvalidArgument},
      {R"({"type":"string","pattern":"(a)\\1"})", "#/pattern", Code::kUnsupported},
      {R"({"type":"string","pattern":"("})", "#/pattern", Code::kInvalidArgument},
      {R"({"anyOf":[]})", "#/anyOf", Code::kInvalidArgument},
      {R"({"multipleOf":0})", "#/multipleOf", Code::kInvalidArgument}};
  for (const Refusal& r : cases) {
    auto g = build(r.schema);
    ASSERT_FALSE(g.ok()) << r.schema;
    EXPECT_EQ(g.status().code(), r.code) << r.schema << " " << g.status().to_string();
    EXPECT_TRUE(g.status().message().starts_with(r.pointer)) << r.schema << ": " << g.status().message();
  }
  for (const char* nothing :
       {"false", R"({"type":"integer","minimum":3,"maximum":2})", R"({"type":[]})", R"({"enum":[]})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"type":"string","pattern":"^a$","minLength":2})"}) {
    auto g = build(nothing);
    ASSERT_FALSE(g.ok()) << nothing;
    EXPECT_EQ(g.status().code(), Code::kInvalidArgument) << nothing << g.status().to_string();
  }
}

TEST(SchemaTest, BestEffortLeavesOutAndSaysSo) {
  SchemaOptions options;
  options.best_effort = true;
  GrammarSource s;
  s.text = R"({"type":"array","uniqueItems":true,"items":{"type":"integer","wishful":1}})";
  s.schema = options;
  std::vector<std::string> left_out;
  auto g = compile(s, bytes_only(), {}, nullptr, &left_out);
  ASSERT_TRUE(g.ok()) << g.status().to_string();
  EXPECT_TRUE(accepts(*g, "[1,1]"));
  EXPECT_FALSE(accepts(*g, "[\"a\"]"));
  EXPECT_EQ(left_out.size(), 2u);
}

TEST(SchemaTest, WhiteSpaceIsBounded) {
  SchemaOptions options;
  options.max_space = 3;
  auto g = build(R"({"type":"array","items":{"type":"integer"}})", options);
  ASSERT_TRUE(g.ok());
  EXPECT_TRUE(accepts(*g, "[ \n 1,   2   ]"));
  EXPECT_FALSE(accepts(*g, "[    1]"));
  options.max_space = 0;
  g = build(R"({"type":"array","items":{"type":"integer"}})", options);
  EXPECT_TRUE(accepts(*g, "[1,2]"));
  EXPECT_FALSE(accepts(*g, "[1, 2]"));
}

// Every one of these must end soon, with a grammar or with an error that is about a limit or about the
// schema.
TEST(SchemaTest, HostileSchemasEndWithinTheirLimits) {
  std::vector<std::string> hostile;
  for (int n = 1; n <= 12; ++n) {
    std::string s = R"({"type":"integer","minimum":1})";
    for (int i = 0; i < n; ++i)
      s = R"({"oneOf":[)" + s + R"(,{"type":"object","properties":{"a":)" + s + R"(},"required":["a"]}]})";
    hostile.push_back(s);
    std::string t = R"({"properties":{"k":{"enum":["x","y"]}}})";
    for (int i = 0; i < n; ++i) t = R"({"oneOf":[)" + t + "," + t + R"(,{"type":"string"}]})";
    hostile.push_back(t.size() < 250'000 ? t : t.substr(0, 10));
  }
  hostile.push_back(R"({"type":"string","pattern":"^(a|b)*a(a|b){20}$","maxLength":100})");
  hostile.push_back(R"({"type":"string","pattern":"((a{0,100}){0,100}){0,100}"})");
  hostile.push_back(R"({"type":"string","pattern":"^(((a+)+)+)+$"})");
  hostile.push_back(R"({"type":"string","pattern":"^[\\s\\S]{0,10000}[^\\W\\d]{5000}$","minLength":9000})");
  hostile.push_back(R"({"type":"string","pattern":"\\p{L}+\\P{Lu}*[\\p{N}\\p{P}]{3,900}\\p{C}"})");
  hostile.push_back(R"({"type":"array","minItems":18446744073709551615})");
  hostile.push_back(R"({"type":"string","minLength":1000000000})");
  hostile.push_back(R"({"multipleOf":1e-300})");
  hostile.push_back(R"({"minimum":1e400000})");
  hostile.push_back(R"({"minimum":1e399,"maximum":1.5e399})");
  hostile.push_back(std::string(100'000, '['));
  hostile.push_back("{\"x\":\"" + std::string(10 << 20, 'a') + "\"}");
  std::string refs = R"({"$defs":{)", all = R"({"allOf":[)", names = R"({"properties":{)",
              choices = R"({"enum":[)", any = R"({"allOf":[)";
  for (int i = 0; i < 2000; ++i) {
    refs += (i > 0 ? "," : "") + ("\"d" + std::to_string(i)) +
            R"(":{"type":"object","properties":{"n":{"$ref":"#/$defs/d)" + std::to_string((i + 1) % 2000) +
            R"("}}})";
    names += (i > 0 ? "," : "") + ("\"p" + std::to_string(i)) + R"(":{"type":"integer"})";
    choices += (i > 0 ? "," : "") + ("\"value number " + std::to_string(i)) + "\"";
    if (i < 60) {
      any += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"minLength":)" + std::to_string(i) +
             R"(},{"maxLength":)" + std::to_string(i + 50) + "}]}";
      all +=
          std::string(i > 0 ? "," : "") + R"({"patternProperties":{"^a{)" + std::to_string(i) + R"(}":{}}})";
    }
  }
  hostile.push_back(refs + R"(},"$ref":"#/$defs/d0"})");
  hostile.push_back(all + "]}");
  hostile.push_back(names + "}}");
  hostile.push_back(choices + "]}");
  hostile.push_back(any + R"(],"type":"string"})");
  hostile.push_back(R"({"$ref":"#"})");
  hostile.push_back(R"({"allOf":[{"$ref":"#"}]})");
  hostile.push_back(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})");
  hostile.push_back(R"({"not":{"not":{"$ref":"#"}}})");
  hostile.push_back(R"({"oneOf":[{"$ref":"#"},{"type":"null"}]})");
  CompileLimits limits;
  limits.time_ms = 3000;
  for (const std::string& s : hostile) {
    auto before = std::chrono::steady_clock::now();
    auto g = build(s, {}, limits);
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - before)
                  .count();
    // Generous: the machine may be busy; without limits these would take hours.
    EXPECT_LT(ms, 20'000) << s.substr(0, 200);
    if (!g.ok()) {
      EXPECT_FALSE(g.status().message().empty());
    }
  }
}

TEST(SchemaTest, AnythingHasNoEndlessNumbersOrSpaces) {
  auto g = build("{}");
  ASSERT_TRUE(g.ok());
  EXPECT_TRUE(accepts(*g, std::string(64, '7')));
  EXPECT_FALSE(accepts(*g, std::string(65, '7')));
  EXPECT_FALSE(accepts(*g, "0." + std::string(65, '3')));
  EXPECT_FALSE(accepts(*g, "[" + std::string(33, ' ') + "]"));
}

TEST(SchemaTest, ALimitNamesThePlaceThatReachedIt) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"ok":{"type":"integer"},"deep":{"items":{"type":"string","pattern":"^(a|b)*a(a|b){24}$",
       "maxLength":1000}}}})",
       "#/properties/deep/items: more than"},
      {R"({"$defs":{"wide":{"allOf":[{"anyOf":[{"minLength":1},{"maxLength":9}]},{"anyOf":[{"minLength":2},
       {"maxLength":8}]},{"anyOf":[{"minLength":3},{"maxLength":7}]},{"anyOf":[{"minLength":4},{"maxLength":6}]}]}},
       "items":{"$ref":"#/$defs/wide"}})",
       "#/items: more than"}};
  CompileLimits limits;
  limits.states = 3000;
  limits.branches = 10;
  for (const auto& [schema, start] : cases) {
    auto g = build(schema, {}, limits);
    ASSERT_FALSE(g.ok()) << schema;
    EXPECT_TRUE(g.status().message().starts_with(start)) << g.status().message();
  }
}

TEST(SchemaTest, CancelStopsACompile) {
  GrammarSource s;
  s.text = R"({"type":"string","pattern":"^(a|b)*a(a|b){18}$","maxLength":1000})";
  std::atomic<bool> cancelled{true};
  auto g = compile(s, bytes_only(), {}, &cancelled);
  ASSERT_FALSE(g.ok());
  EXPECT_EQ(g.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace deepinfer::grammar
