// The server of HTTP/1.1 and HTTP/2: listeners, loop threads, limits. Knows no route: a handler gets each
// request as an Exchange. Source: RFC 9112, RFC 9113; issue "the server" 1. Errors: kIo when an address
// cannot be listened on, kInvalidConfig for TLS files. Threads: start, stop and the counters from any one
// thread; the handler runs on loop threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "edge/http/exchange.h"

namespace deepinfer {

struct HttpLimits {
  int64_t header_bytes = 64 << 10;
  int64_t body_bytes = 64 << 20;
  int64_t stream_buffer_bytes = 1 << 20;  // unread bytes one answer may hold
  int64_t connections = 8192;
  int64_t header_ns = 10'000'000'000;     // from the first byte (or the accept) to the end of the head
  int64_t body_ns = 60'000'000'000;       // from the head to the end of the body
  int64_t idle_ns = 75'000'000'000;       // between two requests
  int64_t write_ns = 30'000'000'000;      // without any progress of an answer
  int64_t h2_streams = 128;               // at a time on a connection of HTTP/2
  int64_t keep_alive_ns = 5'000'000'000;  // silence of a stream before its keep-alive text
};

struct HttpServerOptions {
  std::vector<std::string> listen = {"127.0.0.1:8000"};  // host:port; [::1]:port; port 0: any free one
  std::string unix_path;                                 // empty: none
  std::string tls_certificate, tls_key;                  // PEM files; both empty: no TLS
  std::string tls_client_ca;                             // PEM file: clients must show a certificate of it
  int threads = 1;
  HttpLimits limits;
  bool http2 = true;  // also: by TLS's choice of protocol, or because a client begins with it
  bool gzip = true;   // whole answers of some size, for clients that take it; never streams
  // The body of an answer that no handler writes (400, 408, 413, 431, 503).
  std::function<std::string(int status, const std::string& message)> error_body;
  std::function<void(const ExchangeRecord&)> on_end;  // on loop threads
};

struct HttpCounters {
  std::atomic<int64_t> accepted{0}, refused{0}, open{0}, requests{0}, timeouts{0}, slow_readers{0};
  // HTTP/2: connections, streams opened, streams reset by clients, connections closed for flooding.
  std::atomic<int64_t> h2_connections{0}, h2_streams{0}, h2_resets{0}, h2_floods{0};
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Handler handler);
  virtual ~HttpServer() = default;  // as stop(0)

  virtual const std::vector<std::string>& addresses() const = 0;  // "http://127.0.0.1:8000", "unix:/path"
  virtual const HttpCounters& counters() const = 0;
  virtual std::vector<std::shared_ptr<Loop>> loops() const = 0;
  // No new connections; idle ones close after their next answer. Exchanges go on.
  virtual void close_listeners() = 0;
  // Closes everything; exchanges that have not ended are abandoned with kServerStop. Joins the threads.
  virtual void stop() = 0;
};

}  // namespace deepinfer
