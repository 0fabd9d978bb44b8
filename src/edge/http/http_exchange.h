// The exchange of an HTTP/1.1 connection. Internal to the server. Threads: the connection's loop, and take
// care: a connection may close inside any call that writes.
#pragma once

#include "edge/http/connection.h"

namespace deepinfer {

class HttpExchange : public Exchange {
 public:
  HttpExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), server_(connection_->server_), request_(std::move(request)) {
    loop_ = connection_->loop_handle_;
  }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  std::shared_ptr<Loop> loop() const override { return loop_; }
  void add_header(std::string name, std::string value) override;
  void respond(HttpResponse response) override;
  void begin_stream(int status, std::string content_type, std::string keep_alive) override;
  bool write(std::string_view bytes) override;
  void finish() override;
  void abort() override;
  bool ended() const override { return connection_ == nullptr; }
  bool streaming() const override { return streaming_; }
  void on_abandoned(std::function<void(ExchangeEnd)> callback) override { abandoned_ = std::move(callback); }

  const std::string& keep_alive() const { return keep_alive_; }
  // The connection is closed; called by it, once.
  void abandoned(ExchangeEnd why);

 private:
  void record(ExchangeEnd end);

  std::shared_ptr<Connection> connection_;  // null once ended
  ServerState* server_;
  std::shared_ptr<Loop> loop_;
  HttpRequest request_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::string keep_alive_;
  std::function<void(ExchangeEnd)> abandoned_;
  int status_ = 0;
  int64_t bytes_ = 0;
  bool streaming_ = false;
};

}  // namespace deepinfer
