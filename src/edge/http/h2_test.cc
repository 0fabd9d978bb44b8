// HTTP/2: requests, streams, windows that stay shut, limits and floods, against a client that makes frames.
#include <gtest/gtest.h>

#include "edge/http/h2_test_client.h"
#include "edge/http/server_test_support.h"

namespace deepinfer {
namespace {

class H2Test : public ServerTest {
 protected:
  const std::string& address() const { return server_->addresses()[0]; }
  const HttpCounters& counters() const { return server_->counters(); }
  size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
};

TEST_F(H2Test, AnswersManyRequestsOnOneConnection) {
  start();
  H2TestClient c(address());
  std::vector<int32_t> ids;
  for (int i = 0; i < 50; ++i) ids.push_back(c.ask("POST", "/echo?n=" + std::to_string(i), "body"));
  const int32_t head = c.ask("HEAD", "/echo?x"), large = c.ask("GET", "/big?3000000");
  const int32_t packed = c.ask("GET", "/big?5000", {}, {{"accept-encoding", "gzip"}});
  for (int i = 0; i < 50; ++i) {
    auto& a = c.whole(ids[static_cast<size_t>(i)]);
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(a.body, "POST n=" + std::to_string(i) + " body");
    EXPECT_EQ(a.headers["content-length"], std::to_string(a.body.size()));
    EXPECT_EQ(a.error, 0u);
  }
  EXPECT_EQ(c.whole(head).body, "");
  EXPECT_EQ(c.answers[head].status, 200);
  EXPECT_EQ(c.whole(large).body.size(), 3'000'000u);
  EXPECT_LT(c.whole(packed).body.size(), 100u);
  EXPECT_EQ(c.answers[packed].headers["content-encoding"], "gzip");
  EXPECT_EQ(counters().h2_connections, 1);
  EXPECT_EQ(counters().h2_streams, 53);
  EXPECT_EQ(counters().requests, 53);
  // A body in many frames, and HTTP/1.1 beside it.
  const int32_t upload = c.ask("POST", "/echo", std::string(2'500'000, 'u'));
  EXPECT_EQ(c.whole(upload).body.size(), 2'500'000u + 6);
  EXPECT_EQ(status_of(ask(http_request("GET", "/echo", {}, "Connection: close\r\n"))), 200);
}

TEST_F(H2Test, StreamsEventsAndKeepsThemAlive) {
  HttpLimits limits;
  limits.keep_alive_ns = 100'000'000;
  start(limits);
  H2TestClient c(address());
  const int32_t three = c.ask("GET", "/three"), quiet = c.ask("GET", "/quiet");
  auto& a = c.whole(three);
  EXPECT_EQ(a.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
  EXPECT_EQ(a.headers["content-type"], "text/event-stream");
  EXPECT_TRUE(c.read_until([&] { return c.answers[quiet].body.find(": wait\n\n") == 0; }));
}

TEST_F(H2Test, AShutWindowCostsOneStreamItsBufferAndNobodyElse) {
  HttpLimits limits;
  limits.stream_buffer_bytes = 64 << 10;
  start(limits);
  H2TestClient c(address(), false);
  const int32_t flood = c.ask("GET", "/flood");
  EXPECT_TRUE(c.read_until([&] { return c.answers[flood].closed; }));
  EXPECT_EQ(c.answers[flood].error, static_cast<uint32_t>(NGHTTP2_CANCEL));
  EXPECT_LE(c.answers[flood].body.size(), 65'535u);  // the window it had
  wait_until([&] { return left() == "slow_reader"; });
  EXPECT_EQ(counters().slow_readers, 1);
  // The connection lives; with its window opened again other streams go on.
  nghttp2_session_consume_connection(c.session, c.answers[flood].body.size());
  c.push();
  EXPECT_EQ(c.whole(c.ask("GET", "/echo?after")).body, "GET after ");
}

TEST_F(H2Test, AWindowThatStaysShutTimesOut) {
  HttpLimits limits;
  limits.write_ns = 300'000'000;
  limits.stream_buffer_bytes = 1 << 30;
  start(limits);
  H2TestClient c(address(), false);
  const int32_t big = c.ask("GET", "/big?300000");
  EXPECT_TRUE(c.read_until([&] { return c.answers[big].closed; }));
  EXPECT_EQ(counters().slow_readers, 1);
}

TEST_F(H2Test, WhoResetsOrLeavesIsNoticedAtOnce) {
  start();
  {
    H2TestClient c(address());
    const int32_t one = c.ask("GET", "/never");
    wait_until([&] { return held() == 1; });
    c.reset(one);
    wait_until([&] { return left() == "client_left"; });
    EXPECT_TRUE(ended(0));
    EXPECT_FALSE(on_loop(held_[0], [](Exchange& e) { return e.write("late"); }));
    EXPECT_EQ(c.whole(c.ask("GET", "/echo?still")).status, 200);
    set_left("");
    c.ask("GET", "/never");
    c.ask("GET", "/quiet");
    wait_until([&] { return held() == 3; });
    c.socket.half_close();
    wait_until([&] { return left() == "client_left" && ended(2); });
  }
  wait_until([&] { return counters().open == 0; });
  EXPECT_EQ(counters().h2_resets, 1);
}

TEST_F(H2Test, LimitsOfHeaderBodyAndStreams) {
  HttpLimits limits;
  limits.header_bytes = 8 << 10;
  limits.body_bytes = 100'000;
  limits.h2_streams = 4;
  start(limits);
  H2TestClient c(address());
  EXPECT_EQ(c.whole(c.ask("GET", "/echo", {}, {{"x-long", std::string(20'000, 'a')}})).status, 431);
  EXPECT_EQ(c.whole(c.ask("POST", "/echo", std::string(200'000, 'b'))).status, 413);
  EXPECT_EQ(c.whole(c.ask("POST", "/echo", std::string(100'000, 'b'))).status, 200);
  for (int i = 0; i < 4; ++i) c.ask("GET", "/never");
  wait_until([&] { return held() == 4; });
  // A client that heeds the setting waits with its fifth.
  const int32_t fifth = c.ask("GET", "/echo");
  EXPECT_FALSE(c.read_until([&] { return c.answers[fifth].closed; }, 300));
  c.reset(1 + 2 * 3);
  EXPECT_EQ(c.whole(fifth).status, 200);
  // 10 MB of header fields end the connection.
  H2TestClient huge(address());
  const std::string frame_head("\x00\x40\x00\x09\x00\x00\x00\x00\x01", 9);  // CONTINUATION, no END_HEADERS
  huge.push();
  huge.socket.send(std::string("\x00\x40\x00\x01\x00\x00\x00\x00\x01", 9) + std::string(16384, '\x20'));
  bool open = true;
  for (int i = 0; i < 640 && open; ++i) open = huge.socket.send(frame_head + std::string(16384, '\x20'));
  EXPECT_TRUE(huge.socket.read_all(3000).size() < 1 << 20);
  EXPECT_TRUE(huge.socket.at_end);
  EXPECT_EQ(c.whole(c.ask("GET", "/echo")).status, 200);
}

TEST_F(H2Test, FloodsEndTheConnection) {
  start();
  {
    H2TestClient resets(address());
    for (int i = 0; i < 3000; ++i) {
      const int32_t id = resets.ask("GET", "/never");
      if (id < 0) break;
      nghttp2_submit_rst_stream(resets.session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
      if (!resets.push()) break;
    }
    resets.read_until([&] { return false; }, 2000);
    EXPECT_TRUE(resets.socket.at_end);
    EXPECT_EQ(counters().h2_floods, 1);
    EXPECT_LE(counters().h2_streams, 700);
  }
  {
    H2TestClient pings(address());
    pings.push();
    const std::string ping(
        "\x00\x00\x08\x06\x00\x00\x00\x00\x00"
        "12345678",
        17);
    std::string many;
    for (int i = 0; i < 1000; ++i) many += ping;
    for (int i = 0; i < 40; ++i) {
      if (!pings.socket.send(many)) break;
    }
    pings.socket.read_all(2000);
    EXPECT_TRUE(pings.socket.at_end);
    EXPECT_EQ(counters().h2_floods, 2);
  }
  {
    H2TestClient settings(address());
    settings.push();
    const std::string one(
        "\x00\x00\x06\x04\x00\x00\x00\x00\x00"
        "\x00\x03\x00\x00\x00\x64",
        15);
    std::string many;
    for (int i = 0; i < 1000; ++i) many += one;
    for (int i = 0; i < 40; ++i) {
      if (!settings.socket.send(many)) break;
    }
    settings.socket.read_all(2000);
    EXPECT_TRUE(settings.socket.at_end);
    EXPECT_EQ(counters().h2_floods, 3);
  }
  wait_until([&] { return counters().open == 0; });
  for (size_t i = 0; i < held(); ++i) EXPECT_TRUE(ended(i));
  H2TestClient after(address());
  EXPECT_EQ(after.whole(after.ask("GET", "/echo")).status, 200);
}

TEST_F(H2Test, SlowOnesTimeOut) {
  HttpLimits limits;
  limits.header_ns = limits.body_ns = limits.idle_ns = 300'000'000;
  start(limits);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  TestClient half(address()), silent(address()), open_head(address());
  half.send(preface.substr(0, 10));
  silent.send(preface);
  open_head.send(preface + std::string("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 9) +
                 std::string("\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", 10));  // never END_HEADERS
  H2TestClient body(address());
  const int32_t slow = body.ask("POST", "/echo", "begun", {}, false);
  EXPECT_EQ(body.whole(slow).status, 408);
  H2TestClient idle(address());
  EXPECT_EQ(idle.whole(idle.ask("GET", "/echo")).status, 200);
  for (TestClient* t : {&half, &silent, &open_head}) {
    t->read_all();
    EXPECT_TRUE(t->at_end);
  }
  idle.read_until([&] { return idle.socket.at_end; });
  EXPECT_TRUE(idle.socket.at_end);
  EXPECT_EQ(idle.goaway, 0);
  EXPECT_EQ(status_of(half.received), 408);
  EXPECT_GE(counters().timeouts, 4);
}

TEST_F(H2Test, ABrokenHeaderCostsItsStreamOnly) {
  HttpLimits limits;
  limits.header_ns = 200'000'000;
  start(limits);
  H2TestClient c(address());
  const int32_t bad = c.ask("GET", "/echo", {}, {{"connection", "close"}});
  EXPECT_NE(c.whole(bad).error, 0u);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(c.whole(c.ask("GET", "/echo?fine")).status, 200);
}

TEST_F(H2Test, StopSaysGoodbyeAndAbandons) {
  start();
  H2TestClient c(address());
  c.ask("GET", "/never");
  wait_until([&] { return held() == 1; });
  server_->close_listeners();
  EXPECT_TRUE(c.read_until([&] { return c.goaway == 0; }));
  EXPECT_EQ(left(), "");
  server_->stop();
  EXPECT_EQ(left(), "server_stop");
}

TEST_F(H2Test, RubbishAfterThePrefaceAndTurnedOff) {
  start();
  TestClient rubbish(address());
  rubbish.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(1000, '\xff'));
  rubbish.read_all();
  EXPECT_TRUE(rubbish.at_end);
  server_.reset();
  change_ = [](HttpServerOptions* o) { o->http2 = false; };
  start();
  EXPECT_EQ(status_of(ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")), 505);
}

}  // namespace
}  // namespace deepinfer
