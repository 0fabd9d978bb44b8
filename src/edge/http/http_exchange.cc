// Answers on a connection (edge/http/http_exchange.h).
#include "edge/http/http_exchange.h"

#include "host/clock.h"

namespace deepinfer {

const char* name(ExchangeEnd end) {
  switch (end) {
    case ExchangeEnd::kComplete:
      return "complete";
    case ExchangeEnd::kClientLeft:
      return "client_left";
    case ExchangeEnd::kSlowReader:
      return "slow_reader";
    case ExchangeEnd::kServerStop:
      return "server_stop";
  }
  return "unknown";
}

void HttpExchange::add_header(std::string name, std::string value) {
  // A value comes from a client now and then (a request id): nothing in it may end the line.
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  headers_.emplace_back(std::move(name), std::move(value));
}

void HttpExchange::respond(HttpResponse r) {
  if (!connection_ || streaming_) return;
  auto c = std::move(connection_);
  for (auto& [key, value] : r.headers) add_header(std::move(key), std::move(value));
  status_ = r.status;
  bytes_ = static_cast<int64_t>(r.body.size());
  c->send_head(r.status, r.body.empty() ? std::string() : r.content_type, headers_,
               static_cast<int64_t>(r.body.size()), false);
  if (!c->head_only_ && r.status != 204 && r.status != 304) c->send(r.body);
  record(ExchangeEnd::kComplete);
  abandoned_ = nullptr;
  c->answered(true);
}

void HttpExchange::begin_stream(int status, std::string type, std::string keep_alive) {
  if (!connection_ || streaming_) return;
  streaming_ = true;
  status_ = status;
  keep_alive_ = std::move(keep_alive);
  connection_->send_head(status, type, headers_, -1, true);
  auto c = connection_;
  c->flush();
}

bool HttpExchange::write(std::string_view bytes) {
  if (!connection_) return false;
  auto c = connection_;
  // One piece may always wait, whatever its size; more only within the limit.
  auto too_much = [&] {
    return c->unsent() > 0 &&
           c->unsent() + static_cast<int64_t>(bytes.size()) > server_->options.limits.stream_buffer_bytes;
  };
  if (too_much()) {
    c->flush();
    if (!c->closed_ && too_much()) {
      ++server_->counters.slow_readers;
      c->close(ExchangeEnd::kSlowReader);
    }
    if (!connection_) return false;
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  c->send_chunk(bytes);
  c->flush();
  return connection_ != nullptr;
}

void HttpExchange::finish() {
  if (!connection_ || !streaming_) return;
  auto c = std::move(connection_);
  if (!c->http10_ && !c->head_only_) c->send("0\r\n\r\n");
  record(ExchangeEnd::kComplete);
  abandoned_ = nullptr;
  c->answered(true);
}

void HttpExchange::abort() {
  if (!connection_) return;
  auto c = std::move(connection_);
  record(ExchangeEnd::kServerStop);
  abandoned_ = nullptr;
  c->keep_ = false;
  c->answered(false);
}

void HttpExchange::abandoned(ExchangeEnd why) {
  if (!connection_) return;
  auto c = std::move(connection_);
  record(why);
  if (auto callback = std::exchange(abandoned_, nullptr)) callback(why);
}

void HttpExchange::record(ExchangeEnd end) {
  if (!server_->options.on_end) return;
  ExchangeRecord r;
  r.request = &request_;
  r.peer = request_.peer;
  r.status = status_;
  r.bytes_out = bytes_;
  r.duration_ns = now_ns() - request_.received_ns;
  r.end = end;
  server_->options.on_end(r);
}

}  // namespace deepinfer
