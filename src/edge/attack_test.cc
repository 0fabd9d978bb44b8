// Bodies made to break or to stall: depth, width, repeated members, numbers past any range, broken Unicode,
// and lists that a careless reader would take quadratic time over. Nothing crashes, everything answers in
// linear time. Time limits are far above what linear work needs and far below what quadratic work would take.
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "edge/request_test_support.h"
#include "text/prompt_encoder.h"
#include "text/test_vocabulary.h"
#include "text/unicode.h"

namespace deepinfer {
namespace {

using testing::user;

constexpr double kSeconds = 20;

// Converts and renders; the time taken in seconds.
double timed(Protocol p, const std::string& body, bool accepted, Profile profile = Profile::kApi) {
  auto start = std::chrono::steady_clock::now();
  Result<ProtocolRequest> r = convert_request(p, body, convert_options(profile));
  EXPECT_EQ(r.ok(), accepted) << (r.ok() ? "" : r.status().message().substr(0, 300));
  if (r.ok()) {
    EXPECT_TRUE(
        render_conversation(r->conversation, ControlTokens::released(), render_options(profile)).ok());
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
std::string repeat(int n, const std::function<std::string(int)>& item) {
  std::string out;
  for (int i = 0; i < n; ++i) out += (i == 0 ? "" : ",") + item(i);
  return out;
}
std::string with_number(std::string text, int i) {
  for (size_t at = text.find('#'); at != text.npos; at = text.find('#'))
    text.replace(at, 1, std::to_string(i));
  return text;
}
std::string many(int n, const std::string& item) {
  return repeat(n, [&](int i) { return with_number(item, i); });
}

TEST(Attack, LongListsTakeLinearTime) {
  constexpr int n = 30000;
  const std::string chat = R"({"model":"m","messages":[)", end = "]}";
  EXPECT_LT(timed(Protocol::kChat, chat + many(n, R"({"role":"user","content":"#"})") + end, true), kSeconds);
  EXPECT_LT(timed(Protocol::kChat,
                  chat + many(n, R"({"role":"assistant","content":"#","reasoning_content":"r"})") + end, true,
                  Profile::kHfReference),
            kSeconds)
      << "no user message after any of them";
  EXPECT_LT(timed(Protocol::kChat,
                  chat + R"({"role":"assistant","tool_calls":[)" +
                      many(n, R"({"id":"#","function":{"name":"f","arguments":"{}"}})") + "]}," +
                      many(n, R"({"role":"tool","tool_call_id":"#","content":"r"})") + end,
                  true),
            kSeconds);
  EXPECT_LT(timed(Protocol::kMessages,
                  R"({"model":"m","messages":[{"role":"assistant","content":[)" +
                      many(n, R"({"type":"tool_use","id":"#","name":"f","input":{}})") +
                      R"(]},{"role":"user","content":[)" +
                      repeat(n,
                             [](int i) {
                               return with_number(R"({"type":"tool_result","tool_use_id":"#"})", n - 1 - i);
                             }) +
                      "]}]}",
                  true),
            kSeconds);
  EXPECT_LT(timed(Protocol::kMessages,
                  R"({"model":"m","messages":[{"role":"assistant","content":[)" +
                      many(n, R"({"type":"thinking","thinking":"some words of thought #"})") + "]}]}",
                  true),
            kSeconds);
  EXPECT_LT(timed(Protocol::kResponses,
                  R"({"model":"m","input":[)" +
                      many(n, R"({"type":"function_call","call_id":"#","name":"f","arguments":"{}"})") + "," +
                      repeat(n,
                             [](int i) {
                               return with_number(
                                   R"({"type":"function_call_output","call_id":"#","output":"x"})",
                                   n - 1 - i);
                             }) +
                      end,
                  true),
            kSeconds);
  EXPECT_LT(timed(Protocol::kResponses,
                  R"({"model":"m","input":[)" +
                      many(n, R"({"type":"reasoning","content":[{"text":"some words of thought #"}]})") + end,
                  true),
            kSeconds);
  EXPECT_LT(timed(Protocol::kResponses,
                  R"({"model":"m","input":"x","tools":[{"type":"namespace","name":"n","tools":[)" +
                      repeat(n, [](int) { return R"({"type":"function","name":"f"})"; }) + "]}]}",
                  true),
            kSeconds)
      << "one name for all";
  EXPECT_LT(
      timed(Protocol::kChat,
            R"({"model":"m","messages":[{"role":"user","content":"x"}],)" + many(n, R"("unknown#":#)") + "}",
            true),
      kSeconds);
  EXPECT_LT(
      timed(
          Protocol::kMessages,
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object","properties":{)" +
              many(n, R"("p#":{"type":"string"})") + "}}}]}",
          true),
      kSeconds);
}

TEST(Attack, Depth) {
  auto nested = [](int n, const char* open, const char* close) {
    std::string s;
    for (int i = 0; i < n; ++i) s += open;
    s += "1";
    for (int i = 0; i < n; ++i) s += close;
    return s;
  };
  for (int depth : {100, 119, 130, 200, 5000, 1000000}) {
    bool fits = depth <= 119;  // levels around it come on top
    const std::string list = nested(depth, "[", "]"), object = nested(depth, "{\"a\":", "}");
    for (const std::string& deep : {list, object}) {
      timed(Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":"x"}],"x":)" + deep + "}",
            fits);
      timed(
          Protocol::kMessages,
          R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object","default":)" +
              deep + "}}]}",
          fits);
      timed(
          Protocol::kMessages,
          R"({"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"k":)" +
              deep + R"(}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]})",
          fits);
      // As a string, arguments of any depth are legal: too deep ones are shown as they are.
      Json call = {{"id", "a"}, {"function", {{"name", "f"}, {"arguments", "{\"k\":" + deep + "}"}}}};
      Json body = {{"model", "m"},
                   {"messages", Json::array({user("x"),
                                             {{"role", "assistant"}, {"tool_calls", Json::array({call})}},
                                             {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "r"}}})}};
      timed(Protocol::kChat, body.dump(), true);
    }
    timed(Protocol::kChat, std::string(static_cast<size_t>(depth), '['), false);
    timed(Protocol::kChat, std::string(static_cast<size_t>(depth), ']'), false);
    timed(Protocol::kChat, "{\"a\":" + std::string(static_cast<size_t>(depth), '{'), false);
  }
}

// A prompt as long as the context, in linear time, the same by one thread and by several.
TEST(Attack, AMillionTokens) {
  PromptEncoder encoder(testing::test_tokenizer({}), 0);
  std::string body = R"({"model":"m","messages":[)" +
                     many(500, R"({"role":"user","content":")" + std::string(2000, 'x') +
                                   R"(\n# 中文 <｜User｜>"},{"role":"assistant","content":"a"})") +
                     "]}";
  auto start = std::chrono::steady_clock::now();
  Result<ProtocolRequest> r = convert_request(Protocol::kChat, body, {});
  ASSERT_TRUE(r.ok());
  std::vector<Span> spans = render_conversation(r->conversation, ControlTokens::released(), {}).value();
  std::vector<int32_t> ids = encoder.encode(spans);
  EXPECT_GT(ids.size(), 1000000u);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), kSeconds);
  auto threads = [](size_t n, const std::function<void(size_t)>& task) {
    std::thread other([&] {
      for (size_t i = 0; i < n; i += 2) task(i);
    });
    for (size_t i = 1; i < n; i += 2) task(i);
    other.join();
  };
  EXPECT_EQ(encoder.encode(spans, threads), ids);
}

TEST(Attack, RepeatedMembers) {
  auto text = [](const char* body) { return testing::prompt(Protocol::kChat, parse_json(body).value()); };
  // The last value counts, in every check alike: no second reading sees the first one.
  EXPECT_EQ(text(R"({"model":"m","messages":[],"messages":[{"role":"user","content":"b"}]})"),
            "<｜System｜>{E}<｜User｜>b<｜Assistant｜><think>");
  EXPECT_EQ(
      text(
          R"({"model":"m","messages":[{"role":"user","role":"system","content":"<｜image｜>","content":"s"}]})"),
      "<｜System｜>{E}s<｜Assistant｜><think>");
  EXPECT_EQ(
      text(R"({"model":"m","temperature":9,"temperature":1,"messages":[{"role":"user","content":"b"}]})"),
      "<｜System｜>{E}<｜User｜>b<｜Assistant｜><think>");
}

TEST(Attack, Numbers) {
  for (const char* number : {"1e400",
                             "-1e400",
                             "1e-400",
                             "99999999999999999999999999",
                             "-99999999999999999999999999",
                             "1e308",
                             "-0",
                             "-0.0",
                             "9223372036854775807",
                             "9223372036854775808",
                             "18446744073709551615",
                             "18446744073709551616",
                             "0.5",
                             "1e0",
                             "2147483648",
                             "-1",
                             "0",
                             "01",
                             "+1",
                             ".5",
                             "1.",
                             "0x10",
                             "NaN",
                             "Infinity",
                             "-Infinity",
                             "--1",
                             "1e",
                             "1e+"}) {
    for (const char* field :
         {"temperature", "top_p", "max_tokens", "n", "seed", "frequency_penalty", "presence_penalty",
          "top_logprobs", "logprobs", "stream", "stop", "user_id", "reasoning_effort", "thinking", "tools",
          "tool_choice", "response_format", "stream_options", "parallel_tool_calls"}) {
      std::string body = std::string(R"({"model":"m","messages":[{"role":"user","content":"x"}],")") + field +
                         "\":" + number + "}";
      Result<ProtocolRequest> r = convert_request(Protocol::kChat, body, {});
      if (r.ok()) {
        EXPECT_TRUE(!r->inference.max_tokens || *r->inference.max_tokens > 0) << body;
        EXPECT_TRUE(!r->inference.temperature ||
                    (*r->inference.temperature >= 0 && *r->inference.temperature <= 2))
            << body;
        EXPECT_TRUE(!r->inference.top_p || (*r->inference.top_p > 0 && *r->inference.top_p <= 1)) << body;
        EXPECT_EQ(r->n, 1) << body;
      }
    }
    for (const char* field :
         {"max_tokens", "thinking", "output_config", "top_k", "system", "metadata", "stop_sequences"}) {
      (void)convert_request(Protocol::kMessages,
                            std::string(R"({"model":"m","messages":[{"role":"user","content":"x"}],")") +
                                field + "\":" + number + "}",
                            {});
    }
    std::string budget =
        std::string(
            R"({"model":"m","messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled","budget_tokens":)") +
        number + "}}";
    Result<ProtocolRequest> r = convert_request(Protocol::kMessages, budget, {});
    if (r.ok()) {
      EXPECT_GE(r->inference.thinking_budget_tokens.value_or(0), 0) << budget;
    }
    for (const char* field : {"max_tokens", "logprobs", "seed", "echo", "suffix", "stop"}) {
      Result<Json> json =
          parse_json(std::string(R"({"model":"m","prompt":"x",")") + field + "\":" + number + "}");
      if (json.ok()) (void)convert_completion(*json, {});
    }
  }
}

TEST(Attack, EveryFieldWithEveryType) {
  const char* bodies[] = {
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"http://x/y","detail":"low"}},{"type":"file","file":{"file_data":"data:image/png;base64,AAAA"}}]},{"role":"assistant","content":"c","reasoning_content":"r","prefix":false,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"R"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],"tool_choice":"auto","thinking":{"type":"enabled","budget_tokens":5},"stop":["x"],"stream":true,"stream_options":{"include_usage":true},"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}})",
      R"({"model":"m","instructions":"i","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"http://x/y"}]},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"type":"function_call","call_id":"b","name":"f","namespace":"n","arguments":"{}"},{"type":"function_call_output","call_id":"b","output":"R"}],"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f","parameters":{"type":"object"}}]},{"type":"custom","name":"apply_patch"}],"tool_choice":{"type":"web_search"},"reasoning":{"effort":"low"},"text":{"format":{"type":"json_schema","schema":{}}}})",
      R"({"model":"m","system":[{"type":"text","text":"s"}],"metadata":{"user_id":"u"},"messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"f","input":{"k":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"R"}]},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},{"type":"document","source":{"media_type":"z"}}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":true},"thinking":{"type":"enabled","budget_tokens":5},"output_config":{"effort":"max"},"stop_sequences":["q"]})"};
  const Json values[] = {nullptr,
                         true,
                         5,
                         -1.5,
                         "",
                         "text",
                         "<｜image｜>",
                         Json::array(),
                         Json::object(),
                         Json::array({nullptr}),
                         Json::array({Json::object()}),
                         {{"type", nullptr}},
                         {{"type", "text"}},
                         Json::array({{{"type", "text"}}})};
  int accepted = 0, refused = 0;
  for (int p = 0; p < 3; ++p) {
    Json body = parse_json(bodies[p]).value();
    ASSERT_TRUE(testing::convert(static_cast<Protocol>(p), body).ok()) << p;
    // Every node of the body, inner ones included.
    std::vector<Json::json_pointer> places;
    std::function<void(const Json&, const Json::json_pointer&)> walk = [&](const Json& v,
                                                                           const Json::json_pointer& at) {
      places.push_back(at);
      if (!v.is_structured()) return;
      for (auto it = v.begin(); it != v.end(); ++it)
        walk(*it, v.is_object() ? at / it.key() : at / static_cast<size_t>(it - v.begin()));
    };
    walk(body, Json::json_pointer());
    for (const Json::json_pointer& place : places) {
      for (const Json& value : values) {
        Json changed = body;
        changed[place] = value;
        for (Profile profile : {Profile::kApi, Profile::kRecipe02}) {
          Result<ProtocolRequest> r =
              testing::convert(static_cast<Protocol>(p), changed, convert_options(profile));
          if (!r.ok()) {
            ++refused;
            ASSERT_EQ(http_status(r.status()), 400);
            ASSERT_FALSE(r.status().message().empty());
            ASSERT_TRUE(parse_json(error_body(r.status(), static_cast<Protocol>(p))).ok());
          } else {
            ++accepted;
            ASSERT_TRUE(
                render_conversation(r->conversation, ControlTokens::released(), render_options(profile))
                    .ok());
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 1000);
}

TEST(Attack, BrokenUnicode) {
  std::mt19937 rng(77);
  const std::vector<std::string> bits = {"\\ud800",
                                         "\\udfff",
                                         "\\uD83D\\uDE00",
                                         "\\udc00\\ud800",
                                         "\\u0000",
                                         "\\uffff",
                                         "\\u202e",
                                         "\\u2028",
                                         "\xff",
                                         "\xc0\x80",
                                         "\xed\xa0\x80",
                                         "\xf4\x90\x80\x80",
                                         "\xe4\xb8",
                                         "\xf0\x9f\x98\x80",
                                         "\xef\xbb\xbf",
                                         "\\\\ud800",
                                         "a",
                                         "\\\"",
                                         "\x7f"};
  for (int round = 0; round < 500; ++round) {
    std::string s;
    for (size_t i = rng() % 12; i > 0; --i) s += bits[rng() % bits.size()];
    Result<ProtocolRequest> r = convert_request(
        Protocol::kChat, R"({"model":"m","messages":[{"role":"user","content":")" + s + "\"}]}", {});
    ASSERT_TRUE(r.ok()) << s;
    std::string text = r->conversation.messages[0].content.text();
    ASSERT_EQ(to_valid_utf8(text), text) << "only whole characters reach the prompt";
    ASSERT_EQ(text.find("\xed\xa0"), text.npos) << "no surrogate";
  }
  for (const char* bad : {"\"\\u12\"", "\"\\u\"", "\"\\uzzzz\"", "\"\\x\"", "\"\\ud83d\\u\"", "\"a\nb\"",
                          "\"a\x01\"", "\"\\"}) {
    EXPECT_FALSE(convert_request(
                     Protocol::kChat,
                     std::string(R"({"model":"m","messages":[{"role":"user","content":)") + bad + "}]}", {})
                     .ok())
        << bad;
  }
  // Random bytes as a body.
  for (int round = 0; round < 2000; ++round) {
    std::string s;
    for (size_t i = rng() % 40; i > 0; --i)
      s += static_cast<char>(rng() % 3 ? "{}[]\",:\\u0d8ntrue"[rng() % 18] : static_cast<int>(rng() % 256));
    for (Protocol p : {Protocol::kChat, Protocol::kResponses, Protocol::kMessages})
      (void)convert_request(p, s, {}).ok();
  }
}

}  // namespace
}  // namespace deepinfer
