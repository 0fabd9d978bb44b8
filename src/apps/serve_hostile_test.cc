// Grammars that were written to hurt, through the server with the shipped model: each ends with an answer or
// a clear error within the limits, and whoever asks for other things meanwhile does not notice.
#include <gtest/gtest.h>

#include <atomic>

#include "apps/serve_constraints.h"
#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string schema_body(const std::string& schema) {
  return chat_body(R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" +
                   schema + "}}");
}
std::string quoted(const std::string& text) {
  return Json(text).dump();
}

std::string one_of(int depth) {
  std::string s = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  for (int i = 0; i < depth; ++i) {
    const std::string n = std::to_string(i);
    s = R"({"oneOf":[{"type":"object","properties":{"k":{"const":)" + n + R"(},"v":)" + s +
        R"(}},{"type":"object","properties":{"w":)" + s +
        R"(},"minProperties":1},{"type":["array","null"]}]})";
    if (s.size() > 200'000) break;
  }
  return s;
}
std::string nested(const std::string& open, const std::string& core, const std::string& close, int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += open;
  s += core;
  for (int i = 0; i < n; ++i) s += close;
  return s;
}
std::string references(int n) {
  std::string s = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < n; ++i)
    s += "\"d" + std::to_string(i) + R"(":{"anyOf":[{"$ref":"#/$defs/d)" + std::to_string((i + 1) % n) +
         R"("},{"$ref":"#/$defs/d)" + std::to_string((i + 7) % n) + "\"}]},";
  s.back() = '}';
  return s + "}";
}

// Field reports, group 7: nested oneOf, exponential expressions, huge and deep documents, classes of all
// Unicode, languages without a text, schemas without an end.
std::vector<std::string> hostile() {
  std::vector<std::string> all;
  for (int depth = 1; depth <= 12; ++depth) all.push_back(schema_body(one_of(depth)));
  auto regex = [&](const std::string& r) { all.push_back(chat_body(",\"guided_regex\":" + quoted(r))); };
  regex("(a|b)*a(a|b){30}");
  regex("((a{0,100}){0,100}){0,100}");
  regex("(a*)*(a*)*(a*)*b");
  regex(nested("(", "a", ")*", 3000));
  regex("[\\s\\S]{10000}[\\u{0}-\\u{10FFFF}]{10000}(x|[^y]){9999}z");
  regex("\\p{L}+\\p{Lu}{500}[^\\p{L}\\p{N}]{500}");
  regex("a{4294967295}");
  regex("[^\\u{0}-\\u{10FFFF}]");
  all.push_back(schema_body(R"({"description":)" + quoted(std::string(10 << 20, 'x')) + "}"));
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 60'000; ++i) wide += "\"p" + std::to_string(i) + R"(":{"type":"string"},)";
  wide.back() = '}';
  all.push_back(schema_body(wide + "}"));
  all.push_back(schema_body(nested(R"({"items":)", "{}", "}", 120)));
  all.push_back(schema_body(references(60)));
  all.push_back(schema_body(R"({"$ref":"#"})"));
  all.push_back(schema_body(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}})"));
  for (const char* empty :
       {"false", R"({"enum":[]})", R"({"not":{}})", R"({"type":"integer","minimum":2,"maximum":1})",
        R"({"allOf":[{"type":"string"},{"type":"number"}]})",
        R"({"type":"array","minItems":18446744073709551615})", R"({"type":"string","pattern":"("})",
        R"({"type":"string","pattern":"^(a|b)*a(a|b){30}$"})", R"({"uniqueItems":true})"})
    all.push_back(schema_body(empty));
  auto grammar = [&](const std::string& g) { all.push_back(chat_body(",\"guided_grammar\":" + quoted(g))); };
  grammar("root ::= root");
  grammar("root ::= a\na ::= b\nb ::= a");
  grammar("root ::= nobody");
  grammar("start: start start | \"\"");
  grammar("");
  all.push_back(chat_body(R"(,"guided_choice":[])"));
  all.push_back(chat_body(R"(,"guided_json":"not json")"));
  Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"strict", true}}}};
  tool["function"]["parameters"] = *parse_json(R"({"type":"object","properties":{"q":)" + one_of(9) + "}}");
  all.push_back(chat_body(",\"tools\":[" + tool.dump() + "]"));
  return all;
}

class ServeHostile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ServeConfig config;
    server_ = std::make_unique<TestServer>(TestServer::Model{}, config);
  }
  static void TearDownTestSuite() { server_.reset(); }
  static int64_t event(const std::string& name) {
    std::string text = server_->ask("GET", "/metrics").body;
    size_t at = text.find("deepinfer_grammar_events_total{model_name=\"tiny\",event=\"" + name + "\"}");
    return at == text.npos ? -1 : std::stoll(text.substr(text.find("} ", at) + 2));
  }
  static std::unique_ptr<TestServer> server_;
};
std::unique_ptr<TestServer> ServeHostile::server_;

TEST_F(ServeHostile, EveryOneEndsAndOthersDoNotNotice) {
  const std::string plain = chat_body(R"(,"temperature":0,"use_prefix_cache":false)");
  const std::string extract = chat_body(
      R"(,"temperature":0,"guided_json":{"type":"object","properties":{"n":{"type":"integer","maximum":9,"minimum":0}},
      "required":["n"],"additionalProperties":false})");
  const Json alone = server_->ask("POST", "/v1/chat/completions", plain).json()["choices"];
  const Json matched = server_->ask("POST", "/v1/chat/completions", extract).json()["choices"];
  const std::vector<std::string> bodies = hostile();
  std::atomic<size_t> next{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> attackers;
  for (int t = 0; t < 4; ++t) {
    attackers.emplace_back([&] {
      for (size_t i; (i = next++) < bodies.size();) {
        const auto begin = Clock::now();
        TestServer::Answer a = server_->ask("POST", "/v1/chat/completions", bodies[i]);
        const double took = seconds_since(begin);
        const std::string what = bodies[i].substr(0, 300);
        // Five seconds of one compile, behind at most three others on a busy machine.
        EXPECT_LT(took, 40) << what;
        EXPECT_TRUE(a.status == 200 || a.status == 400) << a.status << " " << a.body << " " << what;
        if (a.status == 400) {
          EXPECT_GT(a.json()["error"]["message"].get<std::string>().size(), 20u) << what;
        }
      }
    });
  }
  std::thread watch([&] {
    for (std::thread& t : attackers) t.join();
    over = true;
  });
  int asked = 0;
  double slowest = 0;
  while (!over || asked <= 4) {
    for (const auto& [body, want] : {std::pair(&plain, &alone), std::pair(&extract, &matched)}) {
      const auto begin = Clock::now();
      TestServer::Answer a = server_->ask("POST", "/v1/chat/completions", *body);
      slowest = std::max(slowest, seconds_since(begin));
      ASSERT_EQ(a.status, 200) << a.body;
      EXPECT_EQ(a.json()["choices"], *want);
      ++asked;
    }
    EXPECT_EQ(server_->ask("GET", "/livez").status, 200);
  }
  watch.join();
  EXPECT_LT(slowest, 4) << "of " << asked << ": shorter than one compile may take";
  EXPECT_GT(asked, 4);
  EXPECT_EQ(server_->server->metrics().in_flight, 0);
}

TEST_F(ServeHostile, DegenerateRequestsAreAnsweredOrRefusedAndNothingElse) {
  const std::pair<const char*, int> cases[] = {
      {R"(,"structured_outputs":{"json_object":false})", 200},
      {R"(,"structured_outputs":{})", 200},
      {R"(,"guided_json":"")", 400},
      {R"(,"guided_json":{})", 200},
      {R"(,"guided_json":true)", 200},
      {R"(,"guided_json":false)", 400},
      {R"(,"guided_json":5)", 400},
      {R"(,"guided_regex":"")", 200},
      {R"(,"guided_choice":[""])", 200},
      {R"(,"guided_choice":["a","a"])", 200},
      {R"(,"guided_grammar":"root ::= \"a\"\nroot ::= \"b\"")", 400},
      {R"(,"guided_json":{"type":"array","maxItems":18446744073709551615})", 200},
      {R"(,"tools":[{"type":"function","function":{"name":"f","strict":true}}])", 200},
      {R"(,"tools":[],"tool_choice":"required","parallel_tool_calls":false)", 200},
      {R"(,"guided_json":{},"guided_regex":"a")", 400},
  };
  const std::string plain = chat_body(R"(,"temperature":0)");
  const Json want = server_->ask("POST", "/v1/chat/completions", plain).json()["choices"];
  for (const auto& [more, status] : cases) {
    TestServer::Answer a = server_->ask("POST", "/v1/chat/completions", chat_body(more));
    EXPECT_EQ(a.status, status) << more << a.body;
    EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", plain).json()["choices"], want) << more;
  }
}

TEST_F(ServeHostile, AClientThatLeavesStopsItsCompile) {
  const int64_t before = event("cancelled");
  for (int i = 0; i < 3; ++i) {
    TestClient c(server_->address());
    c.send(http_request("POST", "/v1/chat/completions",
                        schema_body(R"({"type":"string","pattern":"^(a|b)*a(a|b){25}$","maxLength":)" +
                                    std::to_string(400 + i) + "}")));
    ASSERT_TRUE(TestServer::eventually([&] { return event("requested") > i; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    c.close();
    EXPECT_TRUE(TestServer::eventually([&] { return server_->server->metrics().in_flight == 0; }));
  }
  EXPECT_TRUE(TestServer::eventually([&] { return event("cancelled") >= before + 1; }));
}

TEST_F(ServeHostile, ABadGrammarIsRememberedAndNamedByItsPointer) {
  const std::string body =
      schema_body(R"({"type":"object","properties":{"a":{"type":"array","items":{"format":"nobody"}}}})");
  TestServer::Answer first = server_->ask("POST", "/v1/chat/completions", body);
  EXPECT_EQ(first.status, 400);
  EXPECT_NE(first.body.find("response_format: #/properties/a/items/format"), std::string::npos) << first.body;
  // Remembered: no compile is begun for it. What earlier tests left running may still end meanwhile.
  const int64_t hits = event("cache_hit");
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", body).body, first.body);
  EXPECT_EQ(event("cache_hit"), hits + 1);
}

}  // namespace
}  // namespace deepinfer
