// Endpoints that other servers' tools look for: SGLang's /generate, prompts as ids, slots, emptying the
// cache; and that many tokens given together are one event.
#include <gtest/gtest.h>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

TEST(ServeNative, GenerateAnswersWholeAndAsAStreamOfTheTextSoFar) {
  TestServer s({}, "one two three four ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 200; });
  const std::string body = R"({"text":"go","sampling_params":{"max_new_tokens":8,"temperature":0}})";
  Json whole = s.ask("POST", "/generate", body).json();
  EXPECT_EQ(whole["meta_info"]["completion_tokens"], 8);
  EXPECT_EQ(whole["meta_info"]["finish_reason"], (Json{{"type", "length"}, {"length", 8}}));
  EXPECT_GT(whole["meta_info"]["prompt_tokens"], 0);
  std::string streamed = body;
  streamed.replace(0, 1, "{\"stream\":true,");
  std::vector<std::string> data = TestServer::data_of(s.ask("POST", "/generate", streamed).body);
  ASSERT_GT(data.size(), 3u);
  EXPECT_EQ(data.back(), "[DONE]");
  std::string text;
  int64_t tokens = 0;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    Json e = *parse_json(data[i]);
    const std::string now = e["text"];
    EXPECT_EQ(now.rfind(text, 0), 0u) << "the text so far";
    EXPECT_GE(e["meta_info"]["completion_tokens"].get<int64_t>(), tokens);
    text = now;
    tokens = e["meta_info"]["completion_tokens"];
    EXPECT_EQ(e["meta_info"]["finish_reason"].is_null(), i + 2 < data.size());
  }
  EXPECT_EQ(text, whole["text"].get<std::string>());
  EXPECT_EQ(tokens, 8);
}

TEST(ServeNative, GenerateRefusesWhatItDoesNotDo) {
  TestServer s;
  for (const char* body :
       {R"({})", R"([])", R"({"text":["a","b"]})", R"({"text":"a","input_ids":[1]})", R"({"input_ids":"a"})",
        R"({"input_ids":[]})", R"({"input_ids":[-1]})", R"({"input_ids":[[1],[2]]})",
        R"({"text":"a","return_logprob":true})", R"({"text":"a","sampling_params":{"n":2}})",
        R"({"text":"a","sampling_params":5})", R"({"text":"a","sampling_params":{"json_schema":"{"}})"}) {
    TestServer::Answer a = s.ask("POST", "/generate", body);
    EXPECT_EQ(a.status, 400) << body << a.body;
    EXPECT_TRUE(a.json().contains("error")) << a.body;
  }
}

TEST(ServeNative, PromptsAsIds) {
  TestServer s;
  const std::vector<int32_t> ids = s.server->preparer()->options().encoder->tokenizer().encode("good friend");
  Json body = {{"model", "tiny"}, {"prompt", ids}, {"max_tokens", 4}};
  Json usage = s.ask("POST", "/v1/completions", body.dump()).json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], ids.size()) << "just these";
  body["prompt"] = Json::array({ids});
  EXPECT_EQ(s.ask("POST", "/v1/completions", body.dump()).json()["usage"]["prompt_tokens"], ids.size());
  body["prompt"] = {"good friend"};
  EXPECT_EQ(s.ask("POST", "/v1/completions", body.dump()).status, 200);
  EXPECT_EQ(s.ask("POST", "/generate", Json{{"input_ids", ids}}.dump()).json()["meta_info"]["prompt_tokens"],
            ids.size());
  for (Json wrong : {Json::array(), Json{"a", "b"}, Json{1, "a"}, Json{-1}, Json{1 << 30}, Json{1.5}}) {
    body["prompt"] = wrong;
    EXPECT_EQ(s.ask("POST", "/v1/completions", body.dump()).status, 400) << wrong;
  }
  body["prompt"] = ids;
  body["echo"] = true;
  EXPECT_EQ(s.ask("POST", "/v1/completions", body.dump()).status, 400);
}

TEST(ServeNative, SlotsAreBusyAsChoicesRun) {
  ServeConfig config;
  config.max_running = 3;
  TestServer s(config, "word ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 20; });
  TestClient runs(s.address());
  runs.send(http_request("POST", "/v1/chat/completions", chat_body(R"(,"stream":true)")));
  ASSERT_TRUE(runs.read_until("word"));
  Json slots = s.ask("GET", "/slots").json();
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0]["is_processing"], true);
  EXPECT_EQ(slots[1]["is_processing"], false);
  EXPECT_EQ(s.ask("GET", "/props").json()["total_slots"], 3);
}

TEST(ServeNative, UsageSoFarInEveryEvent) {
  TestServer s({}, "one two three four ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 100; });
  const std::string ask =
      chat_body(R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})");
  std::vector<std::string> data = TestServer::data_of(s.ask("POST", "/v1/chat/completions", ask).body);
  ASSERT_GT(data.size(), 3u);
  int64_t tokens = -1;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    Json usage = (*parse_json(data[i]))["usage"];
    ASSERT_TRUE(usage.is_object()) << data[i];
    EXPECT_GT(usage["prompt_tokens"], 0);
    EXPECT_GE(usage["completion_tokens"].get<int64_t>(), tokens);
    tokens = usage["completion_tokens"];
  }
  EXPECT_EQ(tokens, 12);
}

TEST(ServeNative, TokensGivenTogetherAreOneEvent) {
  TestServer s({}, "one two three four ");  // all at once
  std::vector<std::string> data =
      TestServer::data_of(s.ask("POST", "/v1/chat/completions", chat_body(R"(,"stream":true)")).body);
  EXPECT_LE(data.size(), 4u) << "role, text, finish, end";
  std::string text;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    Json delta = (*parse_json(data[i]))["choices"][0]["delta"];
    if (delta.contains("content")) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(text,
            s.ask("POST", "/v1/chat/completions", chat_body()).json()["choices"][0]["message"]["content"]);
}

}  // namespace
}  // namespace deepinfer
