// Faults around a running server, each with what must be left afterwards: no open request, no block, no
// thread and no descriptor more than before. The engine is the synthetic one: it counts blocks as the real
// one.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "apps/serve_test_support.h"

namespace deepinfer {
namespace {

int count_entries(const char* path) {
  int n = 0;
  if (DIR* d = ::opendir(path)) {
    while (::readdir(d) != nullptr) ++n;
    ::closedir(d);
  }
  return n;
}

// Open descriptors, threads and engine state of this process, to be compared before and after.
struct Footprint {
  int descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
  bool operator==(const Footprint&) const = default;
};

class ServerFault : public ::testing::Test {
 protected:
  void begin(ServeConfig config = {}, double tokens_per_s = 100) {
    server_ = std::make_unique<TestServer>(config, "word and word ", 0,
                                           [=](SyntheticOptions* o) { o->tokens_per_s = tokens_per_s; });
    // One request first: what is made once on first use is no leak.
    EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", chat_body()).status, 200);
    settle();
    before_ = Footprint();
  }
  bool quiet() const {
    const EngineStats s = server_->synthetic->stats();
    return s.running == 0 && s.waiting == 0 && s.blocks_used == 0 &&
           server_->server->metrics().in_flight == 0 && server_->server->gate().control.active() == 0 &&
           server_->server->generator().open() == 0 && server_->server->http_counters().open == 0;
  }
  void settle() {
    EXPECT_TRUE(TestServer::eventually([&] { return quiet(); }));
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    settle();
    EXPECT_TRUE(TestServer::eventually([&] { return Footprint() == before_; }))
        << Footprint().descriptors << " descriptors, were " << before_.descriptors << "; "
        << Footprint().threads << " threads, were " << before_.threads;
    // And it still works.
    EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", chat_body()).status, 200);
  }
  static std::string endless(bool stream = true) {
    return http_request(
        "POST", "/v1/chat/completions",
        R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":90000,"stream":)" +
            std::string(stream ? "true}" : "false}"));
  }

  std::unique_ptr<TestServer> server_;
  Footprint before_;
};

TEST_F(ServerFault, AThousandClientsLeaveMidStream) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;  // two descriptors per client, both ends being here
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 3000) GTEST_SKIP() << "only " << files.rlim_max << " descriptors on this machine";
  begin({}, 10);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->address()));
    ASSERT_TRUE(clients.back()->ok()) << i;
    clients.back()->send(endless(i % 4 != 0));
  }
  ASSERT_TRUE(TestServer::eventually([&] { return server_->synthetic->stats().running == 1000; }, 20'000));
  EXPECT_TRUE(clients[1]->read_until("data: "));
  for (size_t i = 0; i < clients.size(); ++i) {
    if (i % 3 == 0) {
      clients[i]->reset();
    } else if (i % 3 == 1) {
      clients[i]->close();
    } else {
      clients[i]->half_close();
    }
  }
  EXPECT_TRUE(TestServer::eventually([&] { return server_->synthetic->stats().running == 0; }));
  clients.clear();
  settle();
  EXPECT_EQ(server_->server->metrics().finished.values()["client_left"], 1000);
}

TEST_F(ServerFault, HeadersThatAreTooLongOrTooSlow) {
  ServeConfig c;
  c.header_timeout_s = c.body_timeout_s = 0.4;
  begin(c);
  TestClient big(server_->address());
  big.send("GET /health HTTP/1.1\r\nHost: x\r\nX-Big: " + std::string(10 << 20, 'a'));
  EXPECT_EQ(status_of(big.read_all()), 431);
  // Slowloris: a header byte now and then, on many connections; others are served meanwhile.
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<TestClient>(server_->address()));
    slow.back()->send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n");
  }
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (auto& s : slow) s->send("X");
    EXPECT_EQ(server_->ask("GET", "/health").status, 200);
  }
  for (auto& s : slow) EXPECT_EQ(status_of(s->read_all()), 408);
  TestClient body(server_->address());
  body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
  EXPECT_EQ(status_of(body.read_all()), 408);
  EXPECT_GE(server_->server->http_counters().timeouts, 101);
}

TEST_F(ServerFault, BytesThatAreNoText) {
  begin();
  const std::string ill = "\xc3\x28\xff\xfe\xed\xa0\x80";
  // Ill-formed UTF-8 inside a string becomes U+FFFD; outside it is no JSON.
  TestServer::Answer a = server_->ask(
      "POST", "/v1/chat/completions",
      "{\"model\":\"tiny\",\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"" + ill + "\"}]}");
  EXPECT_EQ(a.status, 200) << a.body;
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", ill).status, 400);
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", std::string(300, '[')).status, 400);
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", std::string("{\"a\0b\":1}", 9)).status, 400);
  EXPECT_EQ(server_->ask("POST", "/tokenize", "{\"prompt\":\"" + ill + "\"}").status, 200);
  TestServer::Answer path = server_->ask("GET", "/v1/models/%ff%fe");
  EXPECT_EQ(path.status, 404);
  EXPECT_TRUE(parse_json(path.body).ok());
}

TEST_F(ServerFault, AReaderThatStopsIsCut) {
  ServeConfig c;
  c.stream_buffer_bytes = 64 << 10;
  c.stream_gap_ms = 0;  // an event per token
  begin(c, 20'000);     // megabytes a second: more than sockets and buffer hold
  TestClient stuck(server_->address(), 4096);
  stuck.send(endless());
  EXPECT_TRUE(TestServer::eventually([&] { return server_->server->http_counters().slow_readers == 1; }));
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", chat_body()).status, 200);
  stuck.close();
  settle();
  EXPECT_EQ(server_->server->metrics().finished.values()["slow_reader"], 1);
}

TEST_F(ServerFault, AStalledEngineTurnsReadinessOff) {
  ServeConfig c;
  c.stall_s = 0.3;
  c.keep_alive_s = 0.1;
  begin(c);
  EXPECT_EQ(server_->ask("GET", "/readyz").status, 200);
  EXPECT_EQ(server_->ask("GET", "/progress").json()["progress"], "idle");
  server_->synthetic->stall(true);
  TestClient waiting(server_->address());
  waiting.send(endless());
  EXPECT_TRUE(waiting.read_until(": keep-alive"));
  EXPECT_TRUE(TestServer::eventually([&] { return server_->ask("GET", "/readyz").status == 503; }));
  Json health = server_->ask("GET", "/health").json();
  EXPECT_EQ(health["progress"], "stalled");
  EXPECT_NE(health["reason"].get<std::string>().find("no step"), std::string::npos);
  EXPECT_EQ(server_->ask("GET", "/livez").status, 200);
  server_->synthetic->stall(false);
  EXPECT_TRUE(waiting.read_until("data: "));
  EXPECT_TRUE(TestServer::eventually([&] { return server_->ask("GET", "/readyz").status == 200; }));
  waiting.close();
}

TEST_F(ServerFault, DeadlinesAndFullLines) {
  ServeConfig c;
  c.max_queued_requests = 2;
  server_ = std::make_unique<TestServer>(c, "word ", 0, [](SyntheticOptions* o) {
    o->tokens_per_s = 100;
    o->max_running = 1;
  });
  EXPECT_EQ(server_->ask("POST", "/v1/chat/completions", chat_body()).status, 200);
  settle();
  before_ = Footprint();
  TestClient first(server_->address());
  first.send(endless());
  ASSERT_TRUE(first.read_until("data: "));
  TestServer::Answer late = server_->ask("POST", "/v1/chat/completions", chat_body(R"(,"timeout_ms":100)"));
  EXPECT_EQ(late.status, 504) << late.body;
  TestClient second(server_->address()), third(server_->address());
  second.send(endless());
  third.send(endless());
  ASSERT_TRUE(TestServer::eventually([&] { return server_->server->gate().control.queued() == 2; }));
  TestServer::Answer full = server_->ask("POST", "/v1/chat/completions", chat_body());
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.head.find("Retry-After"), std::string::npos);
  EXPECT_NE(full.body.find("queue_requests"), std::string::npos);
  for (TestClient* t : {&first, &second, &third}) t->close();
}

TEST_F(ServerFault, OneTenantCannotKeepTheLineFromAnother) {
  const std::string file = ::testing::TempDir() + "di_fair_" + std::to_string(::getpid());
  std::ofstream(file) << hash_api_key("one") << " tenant=crowd\n" << hash_api_key("two") << " tenant=few\n";
  ServeConfig c;
  c.max_queued_requests = 4;
  c.api_key_file = file;
  server_ = std::make_unique<TestServer>(c, "word ", 0, [](SyntheticOptions* o) {
    o->tokens_per_s = 100;
    o->max_running = 1;
  });
  std::remove(file.c_str());
  auto ask = [](const char* key, bool stream) {
    return http_request(
        "POST", "/v1/chat/completions",
        R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":90000,"stream":)" +
            std::string(stream ? "true}" : "false}"),
        std::string("x-api-key: ") + key + "\r\n");
  };
  auto& control = server_->server->gate().control;
  std::vector<std::unique_ptr<TestClient>> crowd, few;
  auto come = [&](auto* list, const char* key, bool stream) {
    list->push_back(std::make_unique<TestClient>(server_->address()));
    list->back()->send(ask(key, stream));
  };
  come(&crowd, "one", true);
  ASSERT_TRUE(crowd[0]->read_until("data: "));
  for (int i = 0; i < 4; ++i) come(&crowd, "one", i % 2 == 0);
  ASSERT_TRUE(TestServer::eventually([&] { return control.queued() == 4; }));
  come(&crowd, "one", false);  // the line is full, and it is his own
  EXPECT_TRUE(crowd.back()->read_until("queue_requests"));
  EXPECT_EQ(status_of(crowd.back()->received), 503);
  for (int i = 0; i < 2; ++i) come(&few, "two", false);
  ASSERT_TRUE(TestServer::eventually([&] { return control.displaced() == 2; }));
  EXPECT_EQ(control.queued(), 4);
  come(&few, "two", false);  // two of four are his share
  EXPECT_TRUE(few.back()->read_until("queue_requests"));
  // Those who gave way were told, as a stream or as a whole answer; who runs was left alone.
  int told = 0;
  for (size_t i = 1; i < 5; ++i) {
    const bool gone = crowd[i]->read_until("another tenant", 300);
    told += gone;
    if (gone && i % 2 == 0) {
      EXPECT_EQ(status_of(crowd[i]->received), 503);
      EXPECT_NE(crowd[i]->received.find("Retry-After"), std::string::npos);
    }
  }
  EXPECT_EQ(told, 2);
  EXPECT_EQ(server_->server->metrics().finished.values()["displaced"], 2);
  for (auto* list : {&crowd, &few}) list->clear();
  EXPECT_TRUE(TestServer::eventually([&] { return quiet(); }));
  EXPECT_EQ(control.active(), 0);
  server_.reset();  // keys are needed here: the usual last request would be refused
}

TEST_F(ServerFault, ADrainOutlastedByARequestCutsIt) {
  begin();
  TestClient hung(server_->address());
  hung.send(endless());
  ASSERT_TRUE(hung.read_until("data: "));
  server_->server->drain(300'000'000);
  EXPECT_TRUE(hung.read_until("shutting down")) << hung.received.substr(hung.received.size() / 2);
  EXPECT_TRUE(TestServer::eventually([&] { return server_->server->drained(); }));
  server_->server->stop();
  server_.reset();  // nothing to be compared: the server is gone
}

TEST_F(ServerFault, ADatabaseThatCannotBeWrittenDegradesAndNothingElse) {
  ServeConfig c;
  c.database = "/dev/full";
  // A file that is no database is refused at the start, with its name.
  ServedModel model;
  auto tokenizer = Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  model.tokenizer = std::make_shared<Tokenizer>(std::move(*tokenizer));
  model.name = "tiny";
  model.vocab_size = model.tokenizer->vocab_size();
  model.engine = open_synthetic(*model.tokenizer, "x", 10);
  c.listen = {"127.0.0.1:0"};
  c.log_level = "off";
  auto refused = RunningServer::start(c, std::move(model));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("/dev/full"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
