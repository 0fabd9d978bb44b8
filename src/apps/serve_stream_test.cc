// What a stream owes its client on a real connection: an error in the protocol's own shape when it breaks,
// signs of life while it waits, each event at once.
#include <gtest/gtest.h>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

struct Way {
  const char *path, *body, *first, *error, *end;
};
const Way kWays[] = {
    {"/v1/chat/completions",
     R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":90000,"stream":true})",
     "\"delta\"", "data: {\"error\":{\"message\":", "[DONE]"},
    {"/v1/responses", R"({"model":"tiny","input":"hi","max_output_tokens":90000,"stream":true})",
     "event: response.created", "event: error\ndata: {\"type\":\"error\",\"code\":", "response.completed"},
    {"/v1/messages",
     R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":90000,"stream":true})",
     "event: message_start", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
     "message_stop"},
};

TEST(ServeStream, ABrokenStreamEndsWithAnErrorInItsProtocolsShape) {
  TestServer s({}, "word ", 0, [](SyntheticOptions* o) { o->tokens_per_s = 100; });
  std::vector<std::unique_ptr<TestClient>> clients;
  for (const Way& w : kWays) {
    clients.push_back(std::make_unique<TestClient>(s.address()));
    clients.back()->send(http_request("POST", w.path, w.body));
    ASSERT_TRUE(clients.back()->read_until(w.first)) << w.path;
  }
  s.server->drain(100'000'000);
  for (size_t i = 0; i < clients.size(); ++i) {
    const Way& w = kWays[i];
    ASSERT_TRUE(clients[i]->read_until(w.error)) << w.path << clients[i]->received;
    ASSERT_TRUE(clients[i]->read_until("0\r\n\r\n"));
    const std::string body = TestServer::split(clients[i]->received).body;
    EXPECT_EQ(body.find(w.end), body.npos) << w.path;
    const std::vector<std::string> data = TestServer::data_of(body);
    ASSERT_GT(data.size(), 1u);
    Json last = *parse_json(data.back());
    const Json& e = last.contains("error") ? last["error"] : last;
    EXPECT_NE(e["message"].get<std::string>().find("shutting down"), std::string::npos);
    if (last.contains("sequence_number")) {
      EXPECT_EQ(last["sequence_number"], data.size() - 1) << "the numbers go on";
    }
  }
}

TEST(ServeStream, CommentsWhileItWaitsAndEventsAtOnce) {
  ServeConfig config;
  config.keep_alive_s = 0.1;
  TestServer s(config, "word ", 0, [](SyntheticOptions* o) {
    o->tokens_per_s = 2;
    o->max_running = 1;
  });
  for (const Way& w : kWays) {
    TestClient runs(s.address()), waits(s.address());
    runs.send(http_request("POST", w.path, w.body));
    ASSERT_TRUE(TestServer::eventually([&] { return s.synthetic->stats().running == 1; }));
    waits.send(http_request("POST", w.path, w.body));
    ASSERT_TRUE(waits.read_until(": keep-alive\n\n")) << w.path;
    EXPECT_EQ(status_of(waits.received), 200) << "the status is fixed before the first token";
    EXPECT_EQ(waits.received.find("data: "), std::string::npos);
    // Two tokens a second: an event held back until more come would be seen late or never here.
    ASSERT_TRUE(runs.read_until("word")) << w.path;
    runs.close();
    waits.close();
    ASSERT_TRUE(TestServer::eventually([&] { return s.server->metrics().in_flight == 0; }));
  }
}

}  // namespace
}  // namespace deepinfer
