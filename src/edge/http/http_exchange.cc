// Answers on a connection (edge/http/http_exchange.h).
#include "edge/http/http_exchange.h"

#include <ctime>

#include "edge/http/compress.h"
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

namespace {
constexpr size_t kLeastGzip = 1024;    // below, the header eats the gain
constexpr size_t kMostGzip = 1 << 20;  // above, the loop would be held for more than some 20 ms
}  // namespace

std::string http_date() {
  char date[64];
  const time_t wall = static_cast<time_t>(wall_time_ns() / 1'000'000'000);
  tm utc;
  gmtime_r(&wall, &utc);
  return std::string(date, strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc));
}

void compress(const HttpRequest& request, bool enabled, HttpResponse* r) {
  if (!enabled || r->body.size() < kLeastGzip || r->body.size() > kMostGzip ||
      !worth_compressing(r->content_type))
    return;
  r->headers.emplace_back("Vary", "Accept-Encoding");
  const std::string* accept = request.header("accept-encoding");
  if (accept == nullptr || !accepts_gzip(*accept)) return;
  std::string small = gzip(r->body);
  if (small.empty()) return;
  r->body = std::move(small);
  r->headers.emplace_back("Content-Encoding", "gzip");
}

void ExchangeBase::add_header(std::string name, std::string value) {
  // A value comes from a client now and then (a request id): nothing in it may end the line.
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  headers_.emplace_back(std::move(name), std::move(value));
}

void HttpExchange::respond(HttpResponse r) {
  if (!connection_ || streaming_) return;
  auto c = std::move(connection_);
  prepare(&r);
  c->send_head(r.status, headers_, static_cast<int64_t>(r.body.size()), false);
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
  HeaderList headers = headers_;
  headers.emplace_back("Content-Type", std::move(type));
  connection_->send_head(status, headers, -1, true);
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
  give_up(why);
}

void ExchangeBase::prepare(HttpResponse* r) {
  compress(request_, server_->options.gzip, r);
  if (!r->body.empty()) headers_.emplace_back("Content-Type", r->content_type);
  for (auto& [key, value] : r->headers) add_header(std::move(key), std::move(value));
  status_ = r->status;
  bytes_ = static_cast<int64_t>(r->body.size());
}

void ExchangeBase::give_up(ExchangeEnd why) {
  record(why);
  if (auto callback = std::exchange(abandoned_, nullptr)) callback(why);
}

void ExchangeBase::record(ExchangeEnd end) {
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
