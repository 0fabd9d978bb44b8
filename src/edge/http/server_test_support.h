// A server whose handler answers by path, for the tests of both HTTP versions.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "edge/http/server.h"
#include "edge/http/test_client.h"

namespace deepinfer {

// What streams do is told by the test.
class ServerTest : public ::testing::Test {
 protected:
  void start(HttpLimits limits = {}, int threads = 1) {
    HttpServerOptions o;
    o.listen = {"127.0.0.1:0"};
    o.unix_path = path_;
    o.limits = limits;
    o.threads = threads;
    if (change_) change_(&o);
    o.error_body = [](int status, const std::string& m) {
      return "{" + std::to_string(status) + " " + m + "}";
    };
    o.on_end = [this](const ExchangeRecord& r) {
      std::lock_guard lock(mutex_);
      ends_.push_back(std::string(name(r.end)) + " " + std::to_string(r.status));
    };
    auto server = HttpServer::start(o, [this](std::shared_ptr<Exchange> e) { handle(e); });
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }
  void handle(const std::shared_ptr<Exchange>& e) {
    const std::string& path = e->request().path;
    if (path == "/big") {
      HttpResponse r;
      r.body = std::string(static_cast<size_t>(std::atoi(e->request().query.c_str())), 'b');
      e->respond(r);
    } else if (path == "/echo") {
      HttpResponse r;
      r.body = e->request().method + " " + e->request().query + " " + e->request().body;
      e->respond(r);
    } else if (path == "/never") {
      std::lock_guard lock(mutex_);
      held_.push_back(e);
      e->on_abandoned([this](ExchangeEnd end) { set_left(name(end)); });
    } else if (path == "/three") {
      e->begin_stream(200, "text/event-stream", ": wait\n\n");
      for (const char* s : {"data: 1\n\n", "data: 2\n\n", "data: 3\n\n"}) e->write(s);
      e->finish();
    } else if (path == "/flood") {
      e->begin_stream(200, "text/plain", "");
      e->on_abandoned([this](ExchangeEnd end) { set_left(name(end)); });
      flood(e);
    } else if (path == "/quiet") {
      e->begin_stream(200, "text/event-stream", ": wait\n\n");
      std::lock_guard lock(mutex_);
      held_.push_back(e);
    }
  }
  static void flood(const std::shared_ptr<Exchange>& e) {
    if (!e->write(std::string(8192, 'x'))) return;
    e->loop()->post([e] { flood(e); });
  }
  std::string ask(const std::string& bytes, int timeout_ms = 5000) {
    TestClient c(server_->addresses()[0]);
    EXPECT_TRUE(c.ok());
    c.send(bytes);
    c.read_all(timeout_ms);
    return c.received;
  }
  void wait_until(const std::function<bool()>& done) {
    for (int i = 0; i < 500 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(done());
  }
  void set_left(const std::string& how) {
    std::lock_guard lock(left_mutex_);
    left_ = how;
  }
  std::string left() {
    std::lock_guard lock(left_mutex_);
    return left_;
  }
  // An exchange belongs to its loop: questions are asked there.
  static bool on_loop(const std::shared_ptr<Exchange>& e, const std::function<bool(Exchange&)>& ask) {
    std::promise<bool> answer;
    e->loop()->post([&] { answer.set_value(ask(*e)); });
    return answer.get_future().get();
  }
  bool ended(size_t held) {
    std::shared_ptr<Exchange> e;
    {
      std::lock_guard lock(mutex_);
      e = held_[held];
    }
    return on_loop(e, [](Exchange& x) { return x.ended(); });
  }
  bool has_end(const std::string& end) {
    std::lock_guard lock(mutex_);
    return std::find(ends_.begin(), ends_.end(), end) != ends_.end();
  }

  std::function<void(HttpServerOptions*)> change_;
  std::string path_ = ::testing::TempDir() + "di_http_test_" + std::to_string(::getpid()) + ".sock";
  std::mutex mutex_, left_mutex_;
  std::vector<std::string> ends_;
  std::vector<std::shared_ptr<Exchange>> held_;
  std::string left_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace deepinfer
