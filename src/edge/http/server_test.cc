// The HTTP server against raw sockets: framing, limits, slow and leaving clients, shutdown.
#include "edge/http/server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "edge/http/compress.h"
#include "edge/http/server_test_support.h"

namespace deepinfer {
namespace {

TEST_F(ServerTest, KeepsTheConnectionAndAnswersPipelinedRequestsInOrder) {
  start({}, 2);
  for (const std::string& address : server_->addresses()) {
    TestClient c(address);
    ASSERT_TRUE(c.ok());
    c.send(http_request("POST", "/echo?a=1", "one") + http_request("GET", "/echo?b") +
           http_request("POST", "/echo", "three", "Connection: close\r\n"));
    c.read_all();
    size_t one = c.received.find("POST a=1 one"), two = c.received.find("GET b "),
           three = c.received.find("POST  three");
    EXPECT_LT(one, two);
    EXPECT_LT(two, three);
    EXPECT_NE(three, std::string::npos) << c.received;
    EXPECT_TRUE(c.at_end);
  }
}

TEST_F(ServerTest, ChunkedBodiesAndExpectContinue) {
  start();
  TestClient c(server_->addresses()[0]);
  c.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_TRUE(c.read_until("100 Continue\r\n\r\n"));
  c.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_NE(c.read_all().find("POST  abcde"), std::string::npos) << c.received;
}

TEST_F(ServerTest, StreamsInChunks) {
  start();
  std::string answer = ask(http_request("GET", "/three", {}, "Connection: close\r\n"));
  EXPECT_NE(answer.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(answer.find("9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n9\r\ndata: 3\n\n\r\n0\r\n\r\n"),
            std::string::npos)
      << answer;
  // HTTP/1.0 knows no chunks: the connection's end is the end.
  answer = ask("GET /three HTTP/1.0\r\n\r\n");
  EXPECT_NE(answer.find("\r\n\r\ndata: 1\n\ndata: 2\n\ndata: 3\n\n"), std::string::npos) << answer;
}

TEST_F(ServerTest, RefusesWhatIsTooLargeOrNoHttp) {
  HttpLimits limits;
  limits.header_bytes = 8 << 10;
  limits.body_bytes = 1000;
  start(limits);
  EXPECT_EQ(status_of(ask("GET /echo HTTP/1.1\r\nHost: x\r\nX: " + std::string(10 << 20, 'a') + "\r\n\r\n")),
            431);
  EXPECT_EQ(status_of(ask(http_request("POST", "/echo", std::string(2000, 'b')))), 413);
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")), 413);
  EXPECT_EQ(status_of(ask("\x16\x03\x01 hello hello\r\n\r\n")), 400);
  EXPECT_EQ(status_of(ask("GET /echo HTTP/1.1\r\n\r\n")), 400);
  EXPECT_EQ(status_of(ask("GET /echo HTTP/2.0\r\nHost: x\r\n\r\n")), 505);
  // Two lengths, or a length and chunks: requests could be smuggled.
  EXPECT_EQ(status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
                          "chunked\r\n\r\n0\r\n\r\n")),
            400);
  EXPECT_EQ(
      status_of(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")),
      400);
  wait_until([&] { return server_->counters().open == 0; });
}

TEST_F(ServerTest, SlowHeadersAndBodiesTimeOut) {
  HttpLimits limits;
  limits.header_ns = limits.body_ns = limits.idle_ns = 300'000'000;
  start(limits);
  TestClient silent(server_->addresses()[0]);
  TestClient head(server_->addresses()[0]), body(server_->addresses()[0]), idle(server_->addresses()[0]);
  head.send("GET /echo HTTP/1.1\r\nHo");
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  idle.send(http_request("GET", "/echo"));
  EXPECT_EQ(status_of(head.read_all()), 408);
  EXPECT_EQ(status_of(body.read_all()), 408);
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_TRUE(silent.at_end);
  EXPECT_EQ(status_of(idle.read_all()), 200);
  EXPECT_TRUE(idle.at_end);
  for (TestClient* c : {&head, &body}) c->close();
  wait_until([&] { return server_->counters().open == 0; });
}

TEST_F(ServerTest, ALeavingClientIsNoticedAtOnce) {
  start();
  for (int how = 0; how < 3; ++how) {
    set_left("");
    TestClient c(server_->addresses()[0]);
    c.send(http_request("GET", "/never"));
    wait_until([&] {
      std::lock_guard lock(mutex_);
      return held_.size() == static_cast<size_t>(how + 1);
    });
    if (how == 0) c.close();
    if (how == 1) c.reset();
    if (how == 2) c.half_close();
    wait_until([&] { return left() == "client_left"; });
    EXPECT_TRUE(ended(static_cast<size_t>(how)));
    EXPECT_FALSE(on_loop(held_[static_cast<size_t>(how)], [](Exchange& e) { return e.write("late"); }));
  }
  wait_until([&] { return server_->counters().open == 0; });
}

TEST_F(ServerTest, ASlowReaderIsCutAndItsMemoryIsBounded) {
  HttpLimits limits;
  limits.stream_buffer_bytes = 64 << 10;
  start(limits);
  TestClient c(server_->addresses()[0], 4096);
  c.send(http_request("GET", "/flood"));
  wait_until([&] { return left() == "slow_reader"; });
  EXPECT_TRUE(has_end("slow_reader 200"));
  // Others are served meanwhile and afterwards.
  EXPECT_EQ(status_of(ask(http_request("GET", "/echo", {}, "Connection: close\r\n"))), 200);
}

TEST_F(ServerTest, AStalledReaderTimesOut) {
  HttpLimits limits;
  limits.write_ns = 300'000'000;
  limits.stream_buffer_bytes = 1 << 30;
  start(limits);
  TestClient c(server_->addresses()[0], 4096);
  c.send(http_request("GET", "/flood"));
  wait_until([&] { return left() == "slow_reader"; });
}

TEST_F(ServerTest, SilentStreamsAreKeptAlive) {
  HttpLimits limits;
  limits.keep_alive_ns = 100'000'000;
  start(limits);
  TestClient c(server_->addresses()[0]);
  c.send(http_request("GET", "/quiet"));
  EXPECT_TRUE(c.read_until(": wait\n\n"));
}

TEST_F(ServerTest, StopAbandonsWhatIsOpenAndClosesListeners) {
  start();
  TestClient c(server_->addresses()[0]);
  c.send(http_request("GET", "/never"));
  wait_until([&] {
    std::lock_guard lock(mutex_);
    return held_.size() == 1;
  });
  server_->close_listeners();
  TestClient late(server_->addresses()[0]);
  EXPECT_FALSE(late.ok());
  EXPECT_EQ(left(), "");
  server_->stop();
  EXPECT_EQ(left(), "server_stop");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// The timer of a loop runs out while the loop is busy, so that its turn comes only after the order to stop.
TEST(Server, StopsThoughATurnOfTheTimerIsDue) {
  HttpServerOptions o;
  o.listen = {"127.0.0.1:0"};
  auto server = HttpServer::start(o, [](std::shared_ptr<Exchange>) {});
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  (*server)->close_listeners();
  (*server)->loops()[0]->post([] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); });
  std::promise<void> stopped;
  std::thread stopping([&] {
    (*server)->stop();
    stopped.set_value();
  });
  bool in_time = stopped.get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
  EXPECT_TRUE(in_time);
  if (!in_time) std::_Exit(1);  // the thread can never be joined
  stopping.join();
}

TEST(Server, NamesAnAddressThatIsTaken) {
  HttpServerOptions o;
  o.listen = {"127.0.0.1:0"};
  auto first = HttpServer::start(o, [](std::shared_ptr<Exchange>) {});
  ASSERT_TRUE(first.ok());
  o.listen = {(*first)->addresses()[0].substr(7)};
  auto second = HttpServer::start(o, [](std::shared_ptr<Exchange>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status().message();
}

TEST_F(ServerTest, CompressesWhatIsWorthIt) {
  start();
  auto length = [&](const std::string& path, const std::string& accept) {
    const std::string a = ask(http_request("GET", path, {}, accept + "Connection: close\r\n"));
    const bool zipped = a.find("Content-Encoding: gzip") != a.npos;
    const size_t size = a.size() - a.find("\r\n\r\n") - 4;
    EXPECT_NE(a.find("Content-Length: " + std::to_string(size) + "\r\n"), a.npos);
    return std::pair(zipped, size);
  };
  EXPECT_EQ(length("/big?5000", ""), std::pair(false, size_t{5000}));
  EXPECT_EQ(length("/big?500", "Accept-Encoding: gzip\r\n"), std::pair(false, size_t{500}));
  EXPECT_EQ(length("/big?5000", "Accept-Encoding: br, gzip;q=0\r\n").first, false);
  const auto [zipped, size] = length("/big?5000", "Accept-Encoding: deflate, gzip\r\n");
  EXPECT_TRUE(zipped);
  EXPECT_LT(size, 100u);
  // Never a stream: events must not wait for a block to fill.
  EXPECT_EQ(
      ask(http_request("GET", "/three", {}, "Accept-Encoding: gzip\r\nConnection: close\r\n")).find("gzip"),
      std::string::npos);
}

TEST(Server, AcceptEncodings) {
  for (const char* yes : {"gzip", "GZIP", "br, gzip", "gzip;q=0.5", "*", "x-gzip", "*;q=0.1, br"})
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  for (const char* no : {"", "br", "gzip;q=0", "gzip; q=0.000", "*;q=0", "gzipped", "*, gzip;q=0"})
    EXPECT_FALSE(accepts_gzip(no)) << no;
}

TEST(Server, QueryValues) {
  EXPECT_EQ(query_value("a=1&b=x%20y+z", "b"), "x y z");
  EXPECT_EQ(query_value("a=1&b", "b"), "");
  EXPECT_EQ(query_value("a=1", "c"), "");
}

}  // namespace
}  // namespace deepinfer
