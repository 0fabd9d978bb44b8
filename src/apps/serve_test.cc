// The server's endpoints over real sockets, with the synthetic engine behind them.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

TEST(Serve, ChatWholeAndStreamedAreEqual) {
  TestServer s;
  TestServer::Answer whole = s.ask("POST", "/v1/chat/completions", chat_body());
  ASSERT_EQ(whole.status, 200) << whole.body;
  Json object = whole.json();
  std::string content = object["choices"][0]["message"]["content"];
  EXPECT_EQ(content.rfind("Hello there", 0), 0u);
  EXPECT_EQ(object["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(object["usage"]["completion_tokens"], 12);
  TestServer::Answer stream = s.ask("POST", "/chat/completions",
                                    chat_body(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.head.find("text/event-stream"), std::string::npos);
  std::vector<std::string> data = TestServer::data_of(stream.body);
  ASSERT_GT(data.size(), 2u);
  EXPECT_EQ(data.back(), "[DONE]");
  std::string streamed;
  Json usage;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    Json chunk = *parse_json(data[i]);
    for (const Json& choice : chunk["choices"]) {
      if (choice["delta"].contains("content") && choice["delta"]["content"].is_string())
        streamed += choice["delta"]["content"].get<std::string>();
    }
    if (chunk.contains("usage") && chunk["usage"].is_object()) usage = chunk["usage"];
  }
  EXPECT_EQ(streamed, content);
  EXPECT_EQ(usage["completion_tokens"], 12);
  EXPECT_EQ(s.server->metrics().in_flight, 0);
}

TEST(Serve, ThinkingAndToolCallsAreTold) {
  const std::string reply =
      "let me see</think>I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n<｜DSML｜ parameter "
      "name=\"zone\" "
      "string=\"true\">UTC</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  TestServer s({}, reply, -1);
  Json object =
      s.ask(
           "POST", "/v1/chat/completions",
           R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":500,"tools":[{"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}]})")
          .json();
  const Json& message = object["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "let me see");
  EXPECT_EQ(message["content"], "I look.");
  ASSERT_TRUE(message.contains("tool_calls")) << object.dump();
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "now");
  EXPECT_EQ(*parse_json(message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            Json({{"zone", "UTC"}}));
  EXPECT_EQ(object["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_GT(object["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>(), 0);
}

TEST(Serve, AStopStringEndsTheChoiceInTheEngineToo) {
  TestServer s({}, "one two three four ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 2000; });
  Json object =
      s.ask(
           "POST", "/v1/chat/completions",
           R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"},"max_tokens":90000,"stop":[" three"]})")
          .json();
  EXPECT_EQ(object["choices"][0]["message"]["content"], "one two");
  EXPECT_EQ(object["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(s.synthetic->stats().running, 0);
  EXPECT_EQ(s.synthetic->stats().blocks_used, 0);
}

TEST(Serve, SeveralChoicesAndLogprobs) {
  TestServer s;
  Json object =
      s.ask("POST", "/v1/chat/completions", chat_body(R"(,"n":3,"logprobs":true,"top_logprobs":2)")).json();
  ASSERT_EQ(object["choices"].size(), 3u);
  EXPECT_EQ(object["choices"][2]["index"], 2);
  EXPECT_EQ(object["usage"]["completion_tokens"], 36);
  const Json& tokens = object["choices"][1]["logprobs"]["content"];
  ASSERT_EQ(tokens.size(), 12u);
  EXPECT_EQ(tokens[0]["logprob"], -0.5);
  EXPECT_EQ(tokens[0]["top_logprobs"].size(), 2u);
  std::string stream = s.ask("POST", "/v1/chat/completions",
                             chat_body(R"(,"n":2,"stream":true,"stream_options":{"include_usage":true})"))
                           .body;
  std::vector<std::string> data = TestServer::data_of(stream);
  EXPECT_EQ(std::count(data.begin(), data.end(), "[DONE]"), 1);
  Json total = *parse_json(data[data.size() - 2]);
  EXPECT_EQ(total["usage"]["completion_tokens"], 24);
  EXPECT_EQ(s.ask("POST", "/v1/chat/completions", chat_body(R"(,"n":99)")).status, 400);
}

TEST(Serve, ResponsesAreKeptContinuedAndDeleted) {
  TestServer s;
  Json first =
      s.ask("POST", "/v1/responses", R"({"model":"tiny","input":"My name is Ada.","max_output_tokens":9})")
          .json();
  std::string id = first["id"];
  EXPECT_EQ(s.ask("GET", "/v1/responses/" + id).json()["id"], id);
  Json second = s.ask("POST", "/v1/responses",
                      R"({"model":"tiny","input":"And now?","max_output_tokens":9,"previous_response_id":")" +
                          id + "\"}")
                    .json();
  EXPECT_GT(second["usage"]["input_tokens"].get<int>(), first["usage"]["input_tokens"].get<int>() + 3)
      << second.dump();
  EXPECT_EQ(
      s.ask("POST", "/v1/responses", R"({"model":"tiny","input":"x","previous_response_id":"resp_nobody"})")
          .status,
      404);
  EXPECT_EQ(s.ask("DELETE", "/v1/responses/" + id).json()["deleted"], true);
  EXPECT_EQ(s.ask("GET", "/v1/responses/" + id).status, 404);
  Json unstored =
      s.ask("POST", "/v1/responses", R"({"model":"tiny","input":"x","max_output_tokens":9,"store":false})")
          .json();
  EXPECT_EQ(s.ask("GET", "/v1/responses/" + unstored["id"].get<std::string>()).status, 404);
}

TEST(Serve, ARunningResponseIsCancelledById) {
  TestServer s({}, "word ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 100; });
  TestClient c(s.address());
  c.send(http_request("POST", "/v1/responses",
                      R"({"model":"tiny","input":"x","stream":true,"max_output_tokens":90000})"));
  ASSERT_TRUE(c.read_until("\"delta\""));
  size_t at = c.received.find("resp_");
  std::string id = c.received.substr(at, c.received.find('"', at) - at);
  EXPECT_EQ(s.ask("POST", "/v1/responses/" + id + "/cancel", "{}").json()["status"], "cancelled");
  EXPECT_TRUE(c.read_until("0\r\n\r\n"));
  EXPECT_TRUE(TestServer::eventually([&] { return s.synthetic->stats().running == 0; }));
}

TEST(Serve, MessagesAndItsCount) {
  TestServer s;
  const std::string body = R"({"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"hi"}]})";
  Json object = s.ask("POST", "/v1/messages", body, "anthropic-version: 2023-06-01\r\n").json();
  EXPECT_EQ(object["type"], "message");
  EXPECT_EQ(object["stop_reason"], "max_tokens");
  EXPECT_EQ(
      s.ask("POST", "/anthropic/v1/messages/count_tokens", body).json()["input_tokens"],
      object["usage"]["input_tokens"].get<int>() + object["usage"]["cache_read_input_tokens"].get<int>());
  TestServer::Answer bad =
      s.ask("POST", "/v1/messages",
            R"({"model":"nobody","max_tokens":8,"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(bad.status, 404);
  EXPECT_EQ(bad.json()["type"], "error");
  EXPECT_EQ(bad.json()["error"]["type"], "not_found_error");
}

TEST(Serve, CompletionsAndTokens) {
  TestServer s;
  Json object =
      s.ask("POST", "/v1/completions", R"({"model":"tiny","prompt":"Once","max_tokens":5,"echo":true})")
          .json();
  EXPECT_EQ(object["choices"][0]["text"].get<std::string>().rfind("OnceHello", 0), 0u);
  Json tokens = s.ask("POST", "/tokenize", R"({"prompt":"Once upon a time"})").json();
  EXPECT_EQ(s.ask("POST", "/detokenize", Json({{"tokens", tokens["tokens"]}}).dump()).json()["prompt"],
            "Once upon a time");
  Json chat = s.ask("POST", "/v1/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_GT(chat["count"].get<int>(), 3);
  Json render =
      s.ask("POST", "/render", R"({"messages":[{"role":"user","content":"hi <｜User｜>"}]})").json();
  EXPECT_EQ(render["spans"][0]["kind"], "control");
}

TEST(Serve, ErrorsInEachShape) {
  TestServer s;
  struct Case {
    const char* path;
    std::string body;
    int status;
    const char* word;
  };
  const std::vector<Case> cases = {
      {"/v1/chat/completions", "{\"model\":", 400, "JSON"},
      {"/v1/chat/completions", "\xff\xfe", 400, ""},
      {"/v1/chat/completions", R"({"messages":[]})", 400, "model"},
      {"/v1/chat/completions", R"({"model":"gpt-9","messages":[{"role":"user","content":"x"}]})", 404,
       "gpt-9"},
      {"/v1/chat/completions", chat_body(R"(,"temperature":9)"), 400, "temperature"},
      {"/v1/chat/completions", chat_body(R"(,"top_k":-5)"), 400, "top_k"},
      {"/v1/chat/completions", chat_body(R"(,"min_p":1.5)"), 400, "min_p"},
      {"/v1/chat/completions",
       R"({"model":"tiny","messages":[{"role":"user","content":"x"}],"max_completion_tokens":0})", 400,
       "max_tokens"},
      {"/v1/chat/completions", chat_body(R"(,"stop_token_ids":[99999999])"), 400, "stop_token_ids"},
      {"/v1/chat/completions", chat_body(R"(,"logit_bias":{"x":1})"), 400, "logit_bias"},
      {"/v1/chat/completions", chat_body(R"(,"guided_json":{"type":"object"})"), 400, "guided_json"},
      {"/v1/chat/completions", chat_body(R"(,"structured_outputs":{"regex":"a+"})"), 400,
       "structured_outputs.regex"},
      {"/v1/chat/completions",
       chat_body(
           R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object"}}})"),
       400, "response_format"},
      {"/v1/chat/completions",
       R"({"model":"tiny","messages":[{"role":"user","content":"x"}],"max_tokens":200000})", 400,
       "maximum context length"},
      {"/v1/responses", R"({"model":"tiny","input":"x","background":true})", 400, "background"},
      {"/v1/embeddings", "{}", 501, "embeddings"},
      {"/v1/nothing", "{}", 404, "nothing"},
  };
  for (const Case& c : cases) {
    TestServer::Answer a = s.ask("POST", c.path, c.body);
    EXPECT_EQ(a.status, c.status) << c.path << " " << c.body << " " << a.body;
    Json j = a.json();
    ASSERT_TRUE(j.contains("error")) << a.body;
    EXPECT_NE(j["error"]["message"].get<std::string>().find(c.word), std::string::npos) << a.body;
  }
  EXPECT_EQ(s.ask("GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(s.server->metrics().in_flight, 0);
  EXPECT_EQ(s.server->gate().control.active(), 0);
}

TEST(Serve, KeysTenantsAndQuotas) {
  std::string file = ::testing::TempDir() + "di_keys_" + std::to_string(::getpid());
  {
    std::FILE* f = std::fopen(file.c_str(), "w");
    std::string text = "# two tenants\n" + hash_api_key("secret-a") + " tenant=a requests_per_minute=2\n" +
                       hash_api_key("secret-b") + " tenant=b tokens_per_minute=5 admin=1\n";
    std::fputs(text.c_str(), f);
    std::fclose(f);
  }
  ServeConfig config;
  config.api_key_file = file;
  TestServer s(config);
  std::remove(file.c_str());
  TestServer::Answer none = s.ask("POST", "/v1/chat/completions", chat_body());
  EXPECT_EQ(none.status, 401);
  EXPECT_NE(none.head.find("WWW-Authenticate"), std::string::npos);
  EXPECT_EQ(s.ask("POST", "/v1/chat/completions", chat_body(), "Authorization: Bearer wrong\r\n").status,
            401);
  EXPECT_EQ(s.ask("GET", "/health").status, 200);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(s.ask("POST", "/v1/chat/completions", chat_body(), "Authorization: Bearer secret-a\r\n").status,
              200);
  TestServer::Answer over = s.ask("POST", "/v1/chat/completions", chat_body(), "x-api-key: secret-a\r\n");
  EXPECT_EQ(over.status, 429);
  EXPECT_NE(over.head.find("Retry-After: "), std::string::npos) << over.head;
  // Larger than its bucket: the full bucket lets it through, and the debt is waited for.
  const std::string b = "Authorization: Bearer secret-b\r\n";
  EXPECT_EQ(s.ask("POST", "/v1/chat/completions", chat_body(), b).status, 200);
  TestServer::Answer later = s.ask("POST", "/v1/chat/completions", chat_body(), b);
  EXPECT_EQ(later.status, 429);
  EXPECT_NE(later.body.find("tenant_tokens_per_minute"), std::string::npos) << later.body;
  auto totals = s.server->database().totals(0, "");
  ASSERT_TRUE(totals.ok());
  ASSERT_EQ(totals->size(), 2u);
  EXPECT_EQ((*totals)[0].tenant, "a");
  EXPECT_EQ((*totals)[0].requests, 2);
  EXPECT_EQ((*totals)[0].output_tokens, 24);
  TestServer::Answer flush = s.ask("POST", "/flush_cache", "{}", "x-api-key: secret-a\r\n");
  EXPECT_EQ(flush.status, 403) << "the cache is not this tenant's alone";
  EXPECT_EQ(s.ask("POST", "/reset_prefix_cache", {}, b).status, 501) << "this engine has none";
}

TEST(Serve, RequestIdsAndCors) {
  ServeConfig config;
  config.cors_origins = {"https://ok.example"};
  TestServer s(config);
  EXPECT_NE(s.ask("GET", "/v1/models", {}, "X-Request-Id: mine-7\r\n").head.find("x-request-id: mine-7"),
            std::string::npos);
  EXPECT_NE(s.ask("GET", "/v1/models", {}, "X-Request-Id: bad id!\r\n").head.find("x-request-id: req_"),
            std::string::npos);
  TestServer::Answer preflight =
      s.ask("OPTIONS", "/v1/chat/completions", {},
            "Origin: https://ok.example\r\nAccess-Control-Request-Headers: x-a\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_NE(preflight.head.find("Access-Control-Allow-Headers: x-a"), std::string::npos);
  EXPECT_EQ(s.ask("GET", "/v1/models", {}, "Origin: https://evil.example\r\n").head.find("Access-Control"),
            std::string::npos);
}

TEST(Serve, MetricsAreInTheCatalogue) {
  ServeConfig config;
  config.metrics_names = "both";
  TestServer s(config);
  s.ask("POST", "/v1/chat/completions", chat_body());
  s.ask("POST", "/v1/chat/completions", "{");
  std::string text = s.ask("GET", "/metrics").body;
  std::set<std::string> known;
  for (const MetricInfo& m : metric_catalogue()) {
    known.insert(m.name);
    EXPECT_NE(text.find(std::string("# TYPE ") + m.name + " " + m.type), std::string::npos) << m.name;
  }
  for (size_t at = 0; (at = text.find("# TYPE deepinfer", at)) != text.npos; ++at) {
    std::string name = text.substr(at + 7, text.find(' ', at + 7) - at - 7);
    EXPECT_TRUE(known.contains(name)) << name;
  }
  EXPECT_NE(text.find("deepinfer_output_tokens_total{model_name=\"tiny\"} 12\n"), std::string::npos) << text;
  EXPECT_NE(text.find("vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 12\n"),
            std::string::npos);
  EXPECT_NE(text.find("deepinfer_rejected_total{model_name=\"tiny\",reason=\"invalid_request\"} 1"),
            std::string::npos);
  EXPECT_NE(text.find("deepinfer_time_to_first_token_seconds_count{model_name=\"tiny\"} 1"),
            std::string::npos);
}

TEST(Serve, SmallEndpointsAndTheConsole) {
  TestServer s;
  for (const char* path :
       {"/health", "/livez", "/readyz", "/ready", "/ping", "/progress", "/version", "/load", "/server_info",
        "/tokenizer_info", "/props", "/v1/models", "/models", "/v1/models/tiny", "/console/state"}) {
    EXPECT_EQ(s.ask("GET", path).status, 200) << path;
  }
  EXPECT_EQ(s.ask("GET", "/v1/models/other").status, 404);
  TestServer::Answer page = s.ask("GET", "/");
  EXPECT_NE(page.head.find("text/html"), std::string::npos);
  EXPECT_NE(page.body.find("console.js"), std::string::npos);
  EXPECT_EQ(s.ask("GET", "/console.js").status, 200);
  EXPECT_EQ(s.ask("HEAD", "/").body, "");
  Json info = s.ask("GET", "/server_info").json();
  EXPECT_EQ(info["config"]["engine"], "synthetic");
}

TEST(Serve, ADepartedClientCancelsItsRequest) {
  TestServer s({}, "word ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 50; });
  for (bool stream : {true, false}) {
    TestClient c(s.address());
    c.send(http_request(
        "POST", "/v1/chat/completions",
        R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":90000,"stream":)" +
            std::string(stream ? "true}" : "false}")));
    ASSERT_TRUE(TestServer::eventually([&] { return s.synthetic->stats().running == 1; }));
    c.close();
    EXPECT_TRUE(TestServer::eventually(
        [&] { return s.synthetic->stats().running == 0 && s.server->metrics().in_flight == 0; }));
  }
  EXPECT_EQ(s.server->gate().control.active(), 0);
  EXPECT_EQ(s.server->metrics().finished.values()["client_left"], 2);
}

TEST(Serve, DrainEndsReadinessAndFinishesWhatRuns) {
  TestServer s({}, "word ", 20, [](SyntheticOptions* o) { o->tokens_per_s = 50; });
  TestClient c(s.address());
  c.send(http_request("POST", "/v1/chat/completions", chat_body(R"(,"stream":true)")));
  ASSERT_TRUE(c.read_until("data: "));
  s.server->drain(20'000'000'000);
  EXPECT_EQ(s.ask("GET", "/readyz").status, 503);
  EXPECT_EQ(s.ask("GET", "/livez").status, 200);
  TestServer::Answer refused = s.ask("POST", "/v1/chat/completions", chat_body());
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("Retry-After: 5"), std::string::npos);
  EXPECT_TRUE(c.read_until("[DONE]"));
  EXPECT_TRUE(TestServer::eventually([&] { return s.server->drained(); }));
}

}  // namespace
}  // namespace deepinfer
