// One connection: bytes in, requests out to the handler, answers back. HTTP/1.1 here, one request at a time;
// HTTP/2 is h2_session's once the first bytes or TLS say so. Internal to the server. A connection costs no
// read buffer while it waits. Threads: its loop's only.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <string>
#include <unordered_set>

#include "edge/http/server.h"

namespace deepinfer {

class Connection;

// What connections of one loop share. It outlives them.
struct LoopState {
  boost::asio::io_context io{1};
  std::unordered_set<std::shared_ptr<Connection>> open;
  std::string scratch = std::string(64 << 10, '\0');  // one read at a time
};

// What all connections share; constant while the server runs.
struct ServerState {
  HttpServerOptions options;
  HttpServer::Handler handler;
  HttpCounters counters;
  std::atomic<bool> closing{false};
  std::unique_ptr<boost::asio::ssl::context> tls;
};

using Socket = boost::asio::generic::stream_protocol::socket;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServerState* server, LoopState* loop, std::shared_ptr<Loop> loop_handle, Socket socket,
             std::string peer, bool tls);
  ~Connection();

  void start();
  // Called now and then: deadlines and keep-alives.
  void tick(int64_t now);
  void close(ExchangeEnd why);

 private:
  friend class HttpExchange;
  friend class H2Exchange;
  friend class H2Session;
  friend struct H2Callbacks;
  struct Parser;
  enum class Phase { kHandshake, kHead, kBody, kIdle, kAnswer, kLinger, kH2 };

  void enter(Phase phase);
  void read();
  void on_readable(const boost::system::error_code& ec);
  void on_bytes(std::string_view bytes);
  void input_ended();
  void speak_h2();
  void pump();
  void parse_failed(int status, const std::string& message);
  void dispatch();

  // The answer's side, called by the exchange.
  void send_head(int status, const std::vector<std::pair<std::string, std::string>>& headers,
                 int64_t body_bytes, bool chunked);
  void send(std::string_view bytes);
  void send_chunk(std::string_view bytes);
  void answered(bool whole);
  void flush();
  void flush_tls();
  void on_writable(const boost::system::error_code& ec);
  void drained();
  int64_t unsent() const { return static_cast<int64_t>(out_.size() - out_pos_ + sending_.size()); }

  ServerState* server_;
  LoopState* loop_;
  std::shared_ptr<Loop> loop_handle_;
  Socket socket_;
  std::unique_ptr<boost::asio::ssl::stream<Socket&>> tls_;
  std::string tls_buffer_;
  std::string peer_;

  Phase phase_ = Phase::kHead;
  int64_t deadline_ns_ = 0;
  bool closed_ = false, reading_ = false, writing_ = false, input_over_ = false, tls_up_ = false;
  bool close_after_ = false;  // once everything is sent
  bool linger_ = false;       // then read on for a moment, so that the answer is not lost to a reset
  std::string in_;            // bytes not yet parsed
  std::unique_ptr<Parser> parser_;
  bool head_seen_ = false;

  bool fresh_ = true;  // nothing parsed yet: the first bytes may begin HTTP/2
  std::unique_ptr<class H2Session> h2_;

  std::shared_ptr<class HttpExchange> exchange_;
  bool keep_ = true, http10_ = false, head_only_ = false;
  std::string out_, sending_;  // waiting, and (TLS) in flight
  size_t out_pos_ = 0;
  int64_t sent_bytes_ = 0, progress_ns_ = 0, last_write_ns_ = 0;
};

}  // namespace deepinfer
