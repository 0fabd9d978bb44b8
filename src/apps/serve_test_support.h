// A server inside the test's process, on a free port: the synthetic engine over the shipped tokenizer, or the
// shipped model.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "apps/serve_run.h"
#include "edge/http/test_client.h"
#include "engine/synthetic_engine.h"

// Tests are told where the sources are; compiled alone this header only has to be complete.
#ifndef DEEPINFER_SOURCE_DIR
#define DEEPINFER_SOURCE_DIR "."
#endif

namespace deepinfer {

class TestServer {
 public:
  // `text` is what every answer repeats; `tokens` ends an answer by itself (0: at max_tokens).
  explicit TestServer(ServeConfig config = {}, const std::string& text = "Hello there, good friend. ",
                      int64_t tokens = 0, std::function<void(SyntheticOptions*)> adjust = {}) {
    config.listen = {"127.0.0.1:0"};
    config.engine = "synthetic";
    if (config.log_level == "info") config.log_level = "off";
    ServedModel model;
    auto tokenizer = Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
    if (!tokenizer.ok()) {
      ADD_FAILURE() << tokenizer.status().to_string();
      return;
    }
    model.name = "tiny";
    model.tokenizer = std::make_shared<Tokenizer>(std::move(*tokenizer));
    SyntheticOptions o;
    o.script = model.tokenizer->encode_with_added_tokens(text);
    o.script_tokens = tokens < 0 ? static_cast<int64_t>(o.script.size()) : tokens;
    o.tokens_per_s = 0;
    o.vocab_size = model.vocab_size = model.tokenizer->vocab_size();
    o.context_tokens = 100'000;
    if (adjust) adjust(&o);
    auto engine = std::make_unique<SyntheticEngine>(std::move(o));
    synthetic = engine.get();
    model.engine = std::move(engine);
    auto started = RunningServer::start(config, std::move(model));
    if (!started.ok()) {
      ADD_FAILURE() << started.status().to_string();
      return;
    }
    server = std::move(*started);
  }

  // The shipped model behind it; answers are sampled.
  struct Model {};
  TestServer(Model, ServeConfig config) {
    config.listen = {"127.0.0.1:0"};
    config.engine = "serving";
    config.model = DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny";
    config.served_model_name = {"tiny"};
    if (config.kv_tokens == 0) config.kv_tokens = 16 << 10;
    if (config.log_level == "info") config.log_level = "off";
    auto model = open_engine(config, [](const std::string&) {});
    if (!model.ok()) {
      ADD_FAILURE() << model.status().to_string();
      return;
    }
    auto started = RunningServer::start(config, std::move(*model));
    if (!started.ok()) {
      ADD_FAILURE() << started.status().to_string();
      return;
    }
    server = std::move(*started);
  }

  struct Answer {
    int status = 0;
    std::string head, body;
    Json json() const {
      Result<Json> j = parse_json(body);
      EXPECT_TRUE(j.ok()) << body;
      return j.ok() ? *j : Json();
    }
  };
  const std::string& address() const { return server->addresses()[0]; }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& headers = {}) const {
    TestClient c(address());
    c.send(http_request(method, path, body, headers + "Connection: close\r\n"));
    c.read_all(60'000);
    return split(c.received);
  }
  static Answer split(const std::string& raw) {
    Answer a;
    a.status = status_of(raw);
    size_t end = raw.find("\r\n\r\n");
    a.head = raw.substr(0, end);
    if (end != raw.npos) a.body = raw.substr(end + 4);
    if (a.head.find("Transfer-Encoding: chunked") != a.head.npos) a.body = unchunk(a.body);
    return a;
  }
  static std::string unchunk(const std::string& in) {
    std::string out;
    for (size_t at = 0; at < in.size();) {
      size_t line = in.find("\r\n", at);
      if (line == in.npos) break;
      size_t n = std::stoul(in.substr(at, line - at), nullptr, 16);
      out += in.substr(line + 2, n);
      at = line + 4 + n;
    }
    return out;
  }
  // The data members of an SSE body.
  static std::vector<std::string> data_of(const std::string& body) {
    std::vector<std::string> out;
    for (size_t at = 0; (at = body.find("data: ", at)) != body.npos;) {
      size_t end = body.find('\n', at);
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end;
    }
    return out;
  }
  static bool eventually(const std::function<bool()>& done, int ms = 8000) {
    for (int i = 0; i < ms / 10 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return done();
  }

  SyntheticEngine* synthetic = nullptr;
  std::unique_ptr<RunningServer> server;
};

inline std::string chat_body(const std::string& more = {}) {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"},"max_tokens":12)" +
         more + "}";
}

}  // namespace deepinfer
