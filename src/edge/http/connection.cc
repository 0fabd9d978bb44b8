// Reading, parsing, answering and timing out on one connection (edge/http/connection.h). The parser is
// Beast's, fed by hand, so that no read buffer exists while a connection waits.
#include "edge/http/connection.h"

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "edge/http/h2_session.h"
#include "edge/http/http_exchange.h"
#include "host/clock.h"

namespace deepinfer {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {
constexpr size_t kPipelineBytes = 64 << 10;   // unparsed bytes kept while an answer is on its way
constexpr int64_t kLingerNs = 2'000'000'000;  // how long an early answer waits for its reader
constexpr int64_t kLingerBytes = 256 << 20;   // and how much is thrown away meanwhile
constexpr size_t kKeptCapacity = 16 << 10;    // memory an idle stream may keep

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}
}  // namespace

struct Connection::Parser {
  http::request_parser<http::string_body> p;
  explicit Parser(const HttpLimits& limits) {
    p.eager(true);
    p.header_limit(static_cast<uint32_t>(limits.header_bytes));
    p.body_limit(static_cast<uint64_t>(limits.body_bytes));
  }
};

Connection::Connection(ServerState* server, LoopState* loop, std::shared_ptr<Loop> handle, Socket socket,
                       std::string peer, bool tls)
    : server_(server),
      loop_(loop),
      loop_handle_(std::move(handle)),
      socket_(std::move(socket)),
      peer_(std::move(peer)) {
  if (tls) {
    tls_ = std::make_unique<asio::ssl::stream<Socket&>>(socket_, *server_->tls);
    tls_buffer_.resize(8 << 10);
  }
}

Connection::~Connection() = default;

void Connection::start() {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  progress_ns_ = last_write_ns_ = now_ns();
  loop_->open.insert(shared_from_this());
  ++server_->counters.open;
  if (!tls_) {
    tls_up_ = true;
    enter(Phase::kHead);
    read();
    return;
  }
  enter(Phase::kHandshake);
  auto self = shared_from_this();
  tls_->async_handshake(asio::ssl::stream_base::server, [self](const error_code& ec) {
    if (self->closed_) return;
    if (ec) return self->close(ExchangeEnd::kClientLeft);
    self->tls_up_ = true;
    const unsigned char* chosen = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(self->tls_->native_handle(), &chosen, &size);
    if (size == 2 && chosen[0] == 'h' && chosen[1] == '2') {
      self->speak_h2();
      if (self->closed_) return;
      return self->read();
    }
    self->enter(Phase::kHead);
    self->read();
  });
}

void Connection::enter(Phase phase) {
  const HttpLimits& l = server_->options.limits;
  phase_ = phase;
  const int64_t now = now_ns();
  switch (phase) {
    case Phase::kHandshake:
    case Phase::kHead:
      deadline_ns_ = now + l.header_ns;
      break;
    case Phase::kBody:
      deadline_ns_ = now + l.body_ns;
      break;
    case Phase::kIdle:
      deadline_ns_ = now + l.idle_ns;
      break;
    case Phase::kLinger:
      deadline_ns_ = now + kLingerNs;
      break;
    case Phase::kAnswer:
    case Phase::kH2:
      deadline_ns_ = INT64_MAX;
  }
}

void Connection::tick(int64_t now) {
  if (closed_) return;
  if (unsent() > 0 && now - progress_ns_ > server_->options.limits.write_ns) {
    ++server_->counters.slow_readers;
    return close(ExchangeEnd::kSlowReader);
  }
  if (h2_) return h2_->tick(now);
  if (exchange_ && exchange_->streaming() && unsent() == 0 && !exchange_->keep_alive().empty() &&
      now - last_write_ns_ >= server_->options.limits.keep_alive_ns) {
    send_chunk(exchange_->keep_alive());
    return flush();
  }
  if (phase_ == Phase::kIdle && server_->closing && unsent() == 0) return close(ExchangeEnd::kComplete);
  if (now < deadline_ns_) return;
  if (phase_ == Phase::kLinger || phase_ == Phase::kIdle || phase_ == Phase::kHandshake)
    return close(ExchangeEnd::kClientLeft);
  ++server_->counters.timeouts;
  // A connection that never sent a byte is closed without a word.
  if (phase_ == Phase::kHead && in_.empty()) return close(ExchangeEnd::kClientLeft);
  parse_failed(408, phase_ == Phase::kHead ? "the request's header took too long to arrive"
                                           : "the request's body took too long to arrive");
}

void Connection::close(ExchangeEnd why) {
  if (closed_) return;
  closed_ = true;
  auto self = shared_from_this();
  error_code ignored;
  socket_.shutdown(Socket::shutdown_both, ignored);
  socket_.close(ignored);
  loop_->open.erase(self);
  --server_->counters.open;
  if (auto exchange = std::exchange(exchange_, nullptr)) exchange->abandoned(why);
  if (h2_) h2_->closed(why);
}

void Connection::speak_h2() {
  fresh_ = false;
  enter(Phase::kH2);
  h2_ = std::make_unique<H2Session>(server_, this);
  h2_->pump();
}

void Connection::read() {
  if (closed_ || reading_ || input_over_) return;
  if (phase_ == Phase::kAnswer && in_.size() >= kPipelineBytes) return;
  // Who does not read what his frames made us answer is not read either.
  if (h2_ && unsent() >= static_cast<int64_t>(4 * kPipelineBytes)) return;
  reading_ = true;
  auto self = shared_from_this();
  if (!tls_) {
    socket_.async_wait(Socket::wait_read, [self](const error_code& ec) { self->on_readable(ec); });
    return;
  }
  tls_->async_read_some(asio::buffer(tls_buffer_), [self](const error_code& ec, size_t n) {
    self->reading_ = false;
    if (self->closed_) return;
    if (ec) return self->input_ended();
    self->on_bytes(std::string_view(self->tls_buffer_).substr(0, n));
    self->read();
  });
}

void Connection::on_readable(const error_code& ec) {
  reading_ = false;
  if (closed_) return;
  if (ec) return input_ended();
  for (int rounds = 0; rounds < 4 && !closed_; ++rounds) {
    ssize_t n = ::recv(socket_.native_handle(), loop_->scratch.data(), loop_->scratch.size(), MSG_DONTWAIT);
    if (n == 0) return input_ended();
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) break;
      return input_ended();
    }
    on_bytes(std::string_view(loop_->scratch).substr(0, static_cast<size_t>(n)));
    if (static_cast<size_t>(n) < loop_->scratch.size()) break;
    if (phase_ == Phase::kAnswer && in_.size() >= kPipelineBytes) break;
  }
  read();
}

void Connection::on_bytes(std::string_view bytes) {
  if (phase_ == Phase::kLinger) {
    sent_bytes_ += static_cast<int64_t>(bytes.size());  // counts what was thrown away from here on
    if (sent_bytes_ > kLingerBytes) close(ExchangeEnd::kClientLeft);
    return;
  }
  if (close_after_) return;
  if (h2_) return h2_->receive(bytes);
  in_.append(bytes);
  if (fresh_ && server_->options.http2) {
    const PrefaceMatch m = match_h2_preface(in_);
    if (m == PrefaceMatch::kMaybe) return;
    if (m == PrefaceMatch::kYes) {
      speak_h2();
      const std::string first = std::exchange(in_, {});
      if (!closed_) h2_->receive(first);
      return;
    }
  }
  fresh_ = false;
  if (!exchange_) pump();
}

void Connection::input_ended() {
  input_over_ = true;
  // A peer that closed its side is taken as gone: a closed socket and a half-closed one look the same, and
  // work for a client that left must end at once. What is already written still goes out.
  if (exchange_ || (h2_ && h2_->has_exchanges())) return close(ExchangeEnd::kClientLeft);
  if (unsent() == 0) return close(ExchangeEnd::kComplete);
  close_after_ = true;
}

void Connection::pump() {
  const int64_t most_unsent = server_->options.limits.stream_buffer_bytes;
  while (!closed_ && !exchange_ && !close_after_ && !in_.empty() && unsent() <= most_unsent) {
    if (!parser_) {
      // Line ends between requests are not the next request (RFC 9112 2.2).
      size_t begin = in_.find_first_not_of("\r\n");
      if (begin != 0) in_.erase(0, begin == in_.npos ? in_.size() : begin);
      if (in_.empty()) return;
      parser_ = std::make_unique<Parser>(server_->options.limits);
      head_seen_ = false;
      if (phase_ != Phase::kHead) enter(Phase::kHead);
    }
    auto& p = parser_->p;
    error_code ec;
    size_t used = p.put(asio::const_buffer(in_.data(), in_.size()), ec);
    in_.erase(0, used);
    if (ec == http::error::need_more) ec = {};
    if (ec == http::error::header_limit)
      return parse_failed(431, "the request's header is larger than this server accepts");
    if (ec == http::error::body_limit) {
      return parse_failed(413, "the request's body is larger than this server accepts (" +
                                   std::to_string(server_->options.limits.body_bytes) + " bytes)");
    }
    if (ec == http::error::bad_version)
      return parse_failed(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    if (ec) return parse_failed(400, "not an HTTP request: " + ec.message());
    if (p.is_header_done() && !head_seen_) {
      head_seen_ = true;
      if (p.get().version() >= 11 && p.get().find(http::field::host) == p.get().end())
        return parse_failed(400, "the Host header is missing");
      if (!p.is_done()) {
        enter(Phase::kBody);
        if (boost::beast::iequals(p.get()[http::field::expect], "100-continue")) {
          send("HTTP/1.1 100 Continue\r\n\r\n");
          flush();
        }
      }
    }
    if (p.is_done()) {
      dispatch();
    } else if (used == 0) {
      return;  // more bytes are needed
    }
  }
}

void Connection::parse_failed(int status, const std::string& message) {
  in_.clear();
  parser_.reset();
  close_after_ = linger_ = true;
  keep_ = false;
  head_only_ = false;
  std::string body = server_->options.error_body ? server_->options.error_body(status, message) : message;
  send_head(status, {{"Content-Type", "application/json"}}, static_cast<int64_t>(body.size()), false);
  send(body);
  if (server_->options.on_end) {
    ExchangeRecord r;
    r.peer = peer_;
    r.status = status;
    r.bytes_out = static_cast<int64_t>(body.size());
    server_->options.on_end(r);
  }
  flush();
  if (!closed_ && unsent() == 0) drained();
}

void Connection::dispatch() {
  auto& m = parser_->p.get();
  HttpRequest r;
  r.method = std::string(m.method_string());
  std::string target(m.target());
  if (target.rfind("http://", 0) == 0 || target.rfind("https://", 0) == 0) {  // absolute form
    size_t slash = target.find('/', target.find("//") + 2);
    target = slash == target.npos ? "/" : target.substr(slash);
  }
  size_t question = target.find('?');
  r.path = target.substr(0, question);
  if (question != target.npos) r.query = target.substr(question + 1);
  for (const auto& field : m) r.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  r.body = std::move(m.body());
  r.peer = peer_;
  r.received_ns = now_ns();
  keep_ = m.keep_alive() && !server_->closing;
  http10_ = m.version() < 11;
  head_only_ = r.method == "HEAD";
  parser_.reset();
  if (in_.empty() && in_.capacity() > kKeptCapacity) in_ = {};
  sent_bytes_ = 0;
  enter(Phase::kAnswer);
  ++server_->counters.requests;
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), std::move(r));
  auto exchange = exchange_;
  server_->handler(exchange);
}

void Connection::send_head(int status, const std::vector<std::pair<std::string, std::string>>& headers,
                           int64_t body_bytes, bool chunked) {
  std::string head = "HTTP/1.1 " + std::to_string(status) + " ";
  head += reason_phrase(status);
  head += "\r\nDate: " + http_date();
  for (const auto& [key, value] : headers) head += "\r\n" + key + ": " + value;
  if (chunked && !http10_) {
    head += "\r\nTransfer-Encoding: chunked";
  } else if (body_bytes >= 0 && status != 204 && status != 304) {
    head += "\r\nContent-Length: " + std::to_string(body_bytes);
  } else if (chunked) {
    keep_ = false;  // HTTP/1.0: the end of the body is the end of the connection
  }
  if (!keep_) {
    head += "\r\nConnection: close";
  } else if (http10_) {
    head += "\r\nConnection: keep-alive";
  }
  head += "\r\n\r\n";
  send(head);
}

void Connection::send(std::string_view bytes) {
  if (closed_) return;
  if (unsent() == 0) progress_ns_ = now_ns();
  out_.append(bytes);
}

void Connection::send_chunk(std::string_view bytes) {
  if (closed_ || bytes.empty() || head_only_) return;
  if (http10_) return send(bytes);
  char size[20];
  int n = snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  send(std::string_view(size, static_cast<size_t>(n)));
  out_.append(bytes);
  out_.append("\r\n");
}

void Connection::answered(bool whole) {
  exchange_.reset();
  if (!whole || !keep_) close_after_ = true;
  enter(Phase::kIdle);
  flush();
  if (closed_) return;
  if (close_after_) {
    if (unsent() == 0) drained();
    return;
  }
  if (!in_.empty()) {
    auto self = shared_from_this();
    asio::post(loop_->io, [self] {
      if (!self->closed_ && !self->exchange_) self->pump();
    });
  }
  read();
}

void Connection::flush() {
  if (closed_ || writing_ || !tls_up_) return;
  if (tls_) return flush_tls();
  while (out_pos_ < out_.size()) {
    ssize_t n = ::send(socket_.native_handle(), out_.data() + out_pos_, out_.size() - out_pos_,
                       MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return close(ExchangeEnd::kClientLeft);
      writing_ = true;
      auto self = shared_from_this();
      socket_.async_wait(Socket::wait_write, [self](const error_code& ec) { self->on_writable(ec); });
      return;
    }
    out_pos_ += static_cast<size_t>(n);
    sent_bytes_ += n;
    progress_ns_ = last_write_ns_ = now_ns();
  }
  out_pos_ = 0;
  out_.clear();
  if (out_.capacity() > kKeptCapacity) out_ = {};
}

void Connection::flush_tls() {
  if (out_.empty()) return;
  sending_.swap(out_);
  writing_ = true;
  auto self = shared_from_this();
  // The whole of `sending_` in TLS records of at most 16 KiB; one asynchronous write each.
  auto more = std::make_shared<std::function<void(size_t)>>();
  *more = [self, more](size_t offset) {
    self->tls_->async_write_some(asio::buffer(self->sending_.data() + offset, self->sending_.size() - offset),
                                 [self, more, offset](const error_code& ec, size_t n) {
                                   auto again = more;  // the function object outlives this call
                                   if (ec || self->closed_) {
                                     *again = nullptr;
                                     self->writing_ = false;
                                     return self->close(ExchangeEnd::kClientLeft);
                                   }
                                   self->progress_ns_ = self->last_write_ns_ = now_ns();
                                   self->sent_bytes_ += static_cast<int64_t>(n);
                                   if (offset + n < self->sending_.size()) return (*again)(offset + n);
                                   self->sending_.clear();
                                   *again = nullptr;
                                   self->on_writable({});
                                 });
  };
  (*more)(0);
}

void Connection::on_writable(const error_code& ec) {
  writing_ = false;
  if (closed_) return;
  if (ec) return close(ExchangeEnd::kClientLeft);
  if (out_pos_ > kPipelineBytes && out_pos_ * 2 > out_.size()) {
    out_.erase(0, out_pos_);
    out_pos_ = 0;
  }
  flush();
  if (!closed_ && unsent() == 0) drained();
}

// Everything is with the socket.
void Connection::drained() {
  if (closed_) return;
  if (!close_after_) {
    if (h2_) {
      h2_->pump();
      if (!closed_) read();  // it may have waited for this
      return;
    }
    if (!exchange_) pump();
    return;
  }
  if (!linger_ || input_over_ || tls_) return close(ExchangeEnd::kComplete);
  // Bytes the client is still sending must be read away, or the system answers them with a reset that may
  // overtake our answer.
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  sent_bytes_ = 0;
  enter(Phase::kLinger);
  read();
}

}  // namespace deepinfer
