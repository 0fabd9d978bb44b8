// HTTP/2 on one connection: frames by nghttp2, streams as the same exchanges that HTTP/1.1 makes. Bytes of an
// answer wait per stream in bounded memory, and the connection is given a little at a time, so a reader that
// stops costs one stream's buffer. Floods (resets, pings, settings, empty frames) end the connection.
// Internal to the server. Source: RFC 9113; RFC 7541; issue "the server" 1. Threads: the connection's loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "edge/http/http_exchange.h"

struct nghttp2_session;

namespace deepinfer {

// Whether a connection's first bytes begin HTTP/2: kMaybe until enough have come.
enum class PrefaceMatch { kNo, kMaybe, kYes };
PrefaceMatch match_h2_preface(std::string_view bytes);

class H2Exchange;

class H2Session {
 public:
  // `connection` outlives the session.
  H2Session(ServerState* server, Connection* connection);
  ~H2Session();
  H2Session(const H2Session&) = delete;
  H2Session& operator=(const H2Session&) = delete;

  // Each may close the connection.
  void receive(std::string_view bytes);
  void pump();  // hands frames to the connection while little waits there
  void tick(int64_t now);
  // The connection is closed: every exchange that has not ended is abandoned.
  void closed(ExchangeEnd why);
  bool has_exchanges() const;

  // The exchange's side. A stream that is gone ignores them.
  void respond(int32_t stream, int status, const HeaderList& headers, std::string body, bool stream_follows);
  // False if the stream may hold no more: it is reset.
  bool write(int32_t stream, std::string_view bytes);
  void finish(int32_t stream);
  void reset(int32_t stream);

 private:
  friend struct H2Callbacks;
  struct Stream {
    int32_t id = 0;
    HttpRequest request;
    size_t header_bytes = 0;
    int64_t deadline_ns = INT64_MAX;  // of the body
    bool too_large = false, ready = false, answered = false, out_end = false, waiting = false;
    std::string out;
    size_t out_at = 0;
    int64_t progress_ns = 0, last_write_ns = 0;
    std::shared_ptr<H2Exchange> exchange;  // null before the request is whole, and once it has ended
    size_t unsent() const { return out.size() - out_at; }
  };
  struct Bucket {
    double level = 0;
    int64_t at_ns = 0;
    bool take(double per_second, double most);
  };

  Stream* find(int32_t id);
  void dispatch_ready();
  void refuse(Stream* s, int status, const std::string& message);
  void submit(Stream* s, int status, const HeaderList& headers, int64_t body_bytes, bool body_follows);
  void forget(int32_t id, uint32_t error_code);
  void tell_abandoned();
  void flood();
  void goodbye(uint32_t error_code, ExchangeEnd why);
  int64_t read_out(Stream* s, uint8_t* to, size_t most, uint32_t* flags);

  ServerState* server_;
  Connection* connection_;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, std::unique_ptr<Stream>> streams_;
  std::vector<int32_t> ready_;
  std::vector<std::pair<std::shared_ptr<H2Exchange>, ExchangeEnd>> abandoned_;
  Bucket resets_, controls_;
  int64_t body_bytes_ = 0;   // of requests that are still coming
  int64_t headers_ns_ = 0;   // since when a block of headers is unfinished; 0: none is
  int64_t settings_ns_ = 0;  // until when the client's settings may take; 0: they came
  int64_t idle_ns_ = 0;      // since when there is no stream
  bool inside_ = false;      // nghttp2 is working: it must not be called again
  bool flooded_ = false, leaving_ = false, last_call_ = false;
};

class H2Exchange : public ExchangeBase {
 public:
  H2Exchange(std::shared_ptr<Connection> connection, ServerState* server, std::shared_ptr<Loop> loop,
             H2Session* session, int32_t stream, HttpRequest request)
      : ExchangeBase(server, std::move(loop), std::move(request)),
        connection_(std::move(connection)),
        session_(session),
        stream_(stream) {}

  void respond(HttpResponse response) override;
  void begin_stream(int status, std::string content_type, std::string keep_alive) override;
  bool write(std::string_view bytes) override;
  void finish() override;
  void abort() override;
  bool ended() const override { return connection_ == nullptr; }

  void abandoned(ExchangeEnd why);

 private:
  std::shared_ptr<Connection> connection_;  // null once ended
  H2Session* session_;
  int32_t stream_;
};

}  // namespace deepinfer
