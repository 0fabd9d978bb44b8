// With the shipped model: the cache is emptied on request, and who waits for news is not woken for each step.
#include <gtest/gtest.h>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

TEST(ServeModelNative, FlushForgetsWhatNobodyUses) {
  TestServer s(TestServer::Model{}, {});
  std::string words;
  for (int i = 0; i < 200; ++i) words += " number " + std::to_string(i);
  const std::string body = Json{
      {"model", "tiny"},
      {"messages", {{{"role", "user"}, {"content", words}}}},
      {"max_tokens", 2},
      {"thinking",
       {{"type", "disabled"}}}}.dump();
  auto cached = [&]() -> int64_t {
    return s.ask("POST", "/v1/chat/completions", body).json()["usage"]["prompt_cache_hit_tokens"];
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_GT(cached(), 0);
  s.ask("POST", "/v1/chat/completions", chat_body());
  const auto results = s.server->metrics().cache_results.values();
  EXPECT_EQ(results, (std::map<std::string, int64_t>{{"hit", 1}, {"miss", 1}, {"too_short", 1}}));
  TestServer::Answer flushed = s.ask("POST", "/flush_cache");
  EXPECT_EQ(flushed.status, 200) << flushed.body;
  EXPECT_EQ(cached(), 0) << "nothing was left";
  EXPECT_GT(cached(), 0);
}

TEST(ServeModelNative, NewsWakesAndContinuationsDoNot) {
  ServeConfig config;
  config.kv_tokens = 4096;
  config.speculate = false;
  auto model = open_engine(config, [](const std::string&) {});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EngineRequest r;
  r.prompt = model->tokenizer->encode("one two three");
  r.max_tokens = 40;
  ASSERT_TRUE(model->engine->submit(std::move(r)).ok());
  int polls = 0;
  size_t tokens = 0;
  for (bool over = false; !over; ++polls) {
    ASSERT_LT(polls, 10) << "woken for tokens that only continue";
    for (const EngineEvent& e : model->engine->poll(60'000'000'000, Engine::Until::kNews)) {
      EXPECT_EQ(e.first, e.kind == EngineEvent::Kind::kTokens && tokens == 0);
      tokens += e.tokens.size();
      over = over || e.kind == EngineEvent::Kind::kFinished;
    }
  }
  EXPECT_LE(polls, 4);
  EXPECT_EQ(tokens, 40u);
}

}  // namespace
}  // namespace deepinfer
