// What exchanges of both HTTP versions share, and that of HTTP/1.1. Internal to the server. Threads: the
// connection's loop, and take care: a connection may close inside any call that writes.
#pragma once

#include "edge/http/connection.h"

namespace deepinfer {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// Replaces the body by its gzip form when the client takes it and it is worth it.
void compress(const HttpRequest& request, bool enabled, HttpResponse* response);
// The time as the Date header has it.
std::string http_date();

class ExchangeBase : public Exchange {
 public:
  ExchangeBase(ServerState* server, std::shared_ptr<Loop> loop, HttpRequest request)
      : server_(server), loop_(std::move(loop)), request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  std::shared_ptr<Loop> loop() const override { return loop_; }
  void add_header(std::string name, std::string value) override;
  bool streaming() const override { return streaming_; }
  void on_abandoned(std::function<void(ExchangeEnd)> callback) override { abandoned_ = std::move(callback); }

  const std::string& keep_alive() const { return keep_alive_; }

 protected:
  // Of a whole answer: compression, headers, what the record says.
  void prepare(HttpResponse* response);
  void record(ExchangeEnd end);
  void give_up(ExchangeEnd why);  // record and callback

  ServerState* server_;
  std::shared_ptr<Loop> loop_;
  HttpRequest request_;
  HeaderList headers_;
  std::string keep_alive_;
  std::function<void(ExchangeEnd)> abandoned_;
  int status_ = 0;
  int64_t bytes_ = 0;
  bool streaming_ = false;
};

class HttpExchange : public ExchangeBase {
 public:
  HttpExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : ExchangeBase(connection->server_, connection->loop_handle_, std::move(request)),
        connection_(std::move(connection)) {}

  void respond(HttpResponse response) override;
  void begin_stream(int status, std::string content_type, std::string keep_alive) override;
  bool write(std::string_view bytes) override;
  void finish() override;
  void abort() override;
  bool ended() const override { return connection_ == nullptr; }

  // The connection is closed; called by it, once.
  void abandoned(ExchangeEnd why);

 private:
  std::shared_ptr<Connection> connection_;  // null once ended
};

}  // namespace deepinfer
