// The glue between nghttp2 and exchanges (edge/http/h2_session.h), the only file that sees nghttp2.
// nghttp2 must not be entered again from its callbacks: they note what happened, and it is acted on
// afterwards.
#include "edge/http/h2_session.h"

#include <fmt/format.h>
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>

#include "host/clock.h"

namespace deepinfer {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHandOver = 128 << 10;          // frames waiting at the connection before no more are made
constexpr size_t kKeptCapacity = 16 << 10;       // memory an idle stream may keep
constexpr int32_t kStreamWindow = 1 << 20;       // of a request's body, unacknowledged
constexpr int32_t kConnectionWindow = 16 << 20;  // of all bodies of a connection
// A client that cancels a request in ten is below this; a flood of resets is far above.
constexpr double kResetsPerSecond = 33, kMostResets = 500;
// Pings, settings, priorities, window updates and empty frames beside those that move data.
constexpr double kControlsPerSecond = 500, kMostControls = 10'000;

nghttp2_nv field(std::string_view name, std::string_view value) {
  return {reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

PrefaceMatch match_h2_preface(std::string_view bytes) {
  const size_t n = std::min(bytes.size(), kPreface.size());
  if (bytes.substr(0, n) != kPreface.substr(0, n)) return PrefaceMatch::kNo;
  return n == kPreface.size() ? PrefaceMatch::kYes : PrefaceMatch::kMaybe;
}

bool H2Session::Bucket::take(double per_second, double most) {
  const int64_t now = now_ns();
  if (at_ns == 0) level = most;
  if (at_ns != 0) level = std::min(most, level + per_second * static_cast<double>(now - at_ns) * 1e-9);
  at_ns = now;
  level -= 1;
  return level >= 0;
}

struct H2Callbacks {
  static H2Session* of(void* user) { return static_cast<H2Session*>(user); }

  static int begin_headers(nghttp2_session*, const nghttp2_frame* f, void* user) {
    H2Session* h = of(user);
    if (h->headers_ns_ == 0) h->headers_ns_ = now_ns();
    if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    auto s = std::make_unique<H2Session::Stream>();
    s->id = f->hd.stream_id;
    s->request.peer = h->connection_->peer_;
    ++h->server_->counters.h2_streams;
    h->streams_[s->id] = std::move(s);
    return 0;
  }

  static int header(nghttp2_session*, const nghttp2_frame* f, const uint8_t* name, size_t name_size,
                    const uint8_t* value, size_t value_size, uint8_t, void* user) {
    H2Session* h = of(user);
    H2Session::Stream* s = h->find(f->hd.stream_id);
    if (s == nullptr) return 0;
    s->header_bytes += name_size + value_size + 32;  // RFC 9113 6.5.2
    if (static_cast<int64_t>(s->header_bytes) > h->server_->options.limits.header_bytes) {
      s->too_large = true;
      return 0;
    }
    if (f->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;  // trailers say nothing here
    const std::string_view n = text(name, name_size), v = text(value, value_size);
    HttpRequest& r = s->request;
    if (n == ":method") {
      r.method = v;
    } else if (n == ":path") {
      const size_t question = v.find('?');
      r.path = v.substr(0, question);
      if (question != v.npos) r.query = v.substr(question + 1);
    } else if (n == ":authority") {
      r.headers.emplace_back("host", v);
    } else if (!n.empty() && n[0] != ':') {
      r.headers.emplace_back(n, v);
    }
    return 0;
  }

  static int data(nghttp2_session*, uint8_t, int32_t id, const uint8_t* bytes, size_t size, void* user) {
    H2Session* h = of(user);
    H2Session::Stream* s = h->find(id);
    if (s == nullptr || s->ready || s->answered) return 0;
    h->body_bytes_ += static_cast<int64_t>(size);
    // All bodies of a connection together may take what one of HTTP/1.1 may.
    if (h->body_bytes_ > h->server_->options.limits.body_bytes) {
      s->too_large = true;
      h->ready_.push_back(id);
      h->body_bytes_ -= static_cast<int64_t>(size);
      return 0;
    }
    s->request.body.append(text(bytes, size));
    return 0;
  }

  static int frame(nghttp2_session*, const nghttp2_frame* f, void* user) {
    H2Session* h = of(user);
    const bool moves_data = (f->hd.type == NGHTTP2_DATA && f->hd.length > 0) || f->hd.type == NGHTTP2_HEADERS;
    if (!moves_data && !h->controls_.take(kControlsPerSecond, kMostControls)) h->flooded_ = true;
    if (f->hd.type == NGHTTP2_RST_STREAM) {
      ++h->server_->counters.h2_resets;
      if (!h->resets_.take(kResetsPerSecond, kMostResets)) h->flooded_ = true;
    }
    if (h->flooded_) return NGHTTP2_ERR_CALLBACK_FAILURE;  // not a frame more
    if (f->hd.type == NGHTTP2_SETTINGS) h->settings_ns_ = 0;
    if (f->hd.type == NGHTTP2_HEADERS) h->headers_ns_ = 0;
    if (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA) return 0;
    H2Session::Stream* s = h->find(f->hd.stream_id);
    if (s == nullptr) return 0;
    if ((f->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      s->ready = true;
      s->deadline_ns = INT64_MAX;
      h->ready_.push_back(s->id);
    } else if (f->hd.type == NGHTTP2_HEADERS) {
      s->deadline_ns = now_ns() + h->server_->options.limits.body_ns;
      if (s->too_large) h->ready_.push_back(s->id);
    }
    return 0;
  }

  // What was answered before its request was whole is ended on the other side too.
  static int frame_sent(nghttp2_session* session, const nghttp2_frame* f, void* user) {
    if ((f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA) ||
        (f->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
      return 0;
    H2Session::Stream* s = of(user)->find(f->hd.stream_id);
    if (s != nullptr && !s->ready)
      nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
    return 0;
  }

  static int stream_closed(nghttp2_session*, int32_t id, uint32_t code, void* user) {
    of(user)->forget(id, code);
    return 0;
  }

  static ssize_t read(nghttp2_session*, int32_t, uint8_t* to, size_t most, uint32_t* flags,
                      nghttp2_data_source* source, void* user) {
    return of(user)->read_out(static_cast<H2Session::Stream*>(source->ptr), to, most, flags);
  }
};

H2Session::H2Session(ServerState* server, Connection* connection) : server_(server), connection_(connection) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, H2Callbacks::begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, H2Callbacks::header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, H2Callbacks::data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, H2Callbacks::frame);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, H2Callbacks::frame_sent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, H2Callbacks::stream_closed);
  nghttp2_option* options = nullptr;
  nghttp2_option_new(&options);
  nghttp2_option_set_max_outbound_ack(options, 1000);
  nghttp2_option_set_no_closed_streams(options,
                                       1);  // priorities of streams that are over: memory for nothing
  nghttp2_session_server_new2(&session_, callbacks, this, options);
  nghttp2_option_del(options);
  nghttp2_session_callbacks_del(callbacks);
  const HttpLimits& l = server_->options.limits;
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<uint32_t>(l.h2_streams)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(l.header_bytes)},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, static_cast<uint32_t>(kStreamWindow)}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
  idle_ns_ = now_ns();
  settings_ns_ = idle_ns_ + l.header_ns;
  ++server_->counters.h2_connections;
}

H2Session::~H2Session() {
  nghttp2_session_del(session_);
}

H2Session::Stream* H2Session::find(int32_t id) {
  auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : it->second.get();
}

bool H2Session::has_exchanges() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& s) { return s.second->exchange; });
}

void H2Session::receive(std::string_view bytes) {
  if (leaving_) return;
  inside_ = true;
  const ssize_t used =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  inside_ = false;
  if (flooded_ || used == NGHTTP2_ERR_FLOODED) return flood();
  if (used < 0) return goodbye(NGHTTP2_PROTOCOL_ERROR, ExchangeEnd::kClientLeft);
  tell_abandoned();
  dispatch_ready();
  pump();
}

// Requests that are whole, or cannot be served, in the order they became so.
void H2Session::dispatch_ready() {
  std::vector<int32_t> ready;
  ready.swap(ready_);
  for (int32_t id : ready) {
    if (connection_->closed_) return;
    Stream* s = find(id);
    if (s == nullptr || s->answered || s->exchange) continue;
    body_bytes_ -= static_cast<int64_t>(s->request.body.size());
    if (s->too_large) {
      const bool head = static_cast<int64_t>(s->header_bytes) > server_->options.limits.header_bytes;
      refuse(s, head ? 431 : 413,
             head ? "the request's header is larger than this server accepts"
                  : fmt::format("the request's body is larger than this server accepts ({} bytes)",
                                server_->options.limits.body_bytes));
      continue;
    }
    s->request.received_ns = s->progress_ns = s->last_write_ns = now_ns();
    ++server_->counters.requests;
    auto exchange = std::make_shared<H2Exchange>(connection_->shared_from_this(), server_,
                                                 connection_->loop_handle_, this, id, std::move(s->request));
    s->exchange = exchange;
    server_->handler(exchange);
  }
}

// An answer no handler writes; what the client still sends of the request is not wanted.
void H2Session::refuse(Stream* s, int status, const std::string& message) {
  std::string body = server_->options.error_body ? server_->options.error_body(status, message) : message;
  s->request.body = {};
  s->deadline_ns = INT64_MAX;
  if (server_->options.on_end) {
    ExchangeRecord r;
    r.peer = connection_->peer_;
    r.status = status;
    r.bytes_out = static_cast<int64_t>(body.size());
    server_->options.on_end(r);
  }
  respond(s->id, status, {{"content-type", "application/json"}}, std::move(body), false);
}

void H2Session::submit(Stream* s, int status, const HeaderList& headers, int64_t body_bytes,
                       bool body_follows) {
  const std::string code = std::to_string(status), date = http_date();
  const std::string length = std::to_string(body_bytes);
  std::vector<std::string> names;
  names.reserve(headers.size());
  std::vector<nghttp2_nv> fields = {field(":status", code), field("date", date)};
  if (body_bytes >= 0 && status != 204 && status != 304) fields.push_back(field("content-length", length));
  for (const auto& [key, value] : headers) {
    std::string& name = names.emplace_back(key);
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    fields.push_back(field(name, value));
  }
  nghttp2_data_provider provider{{.ptr = s}, H2Callbacks::read};
  nghttp2_submit_response(session_, s->id, fields.data(), fields.size(), body_follows ? &provider : nullptr);
  s->answered = true;
}

void H2Session::respond(int32_t id, int status, const HeaderList& headers, std::string body,
                        bool stream_follows) {
  Stream* s = find(id);
  if (s == nullptr || s->answered) return;
  const bool head = s->exchange && s->exchange->request().method == "HEAD";
  const bool silent = head || status == 204 || status == 304;
  submit(s, status, headers, stream_follows ? -1 : static_cast<int64_t>(body.size()),
         !silent && (stream_follows || !body.empty()));
  if (!stream_follows) {
    s->exchange = nullptr;  // it ends with this call
    s->out_end = true;
    if (!silent) s->out = std::move(body);
  }
  pump();
}

bool H2Session::write(int32_t id, std::string_view bytes) {
  Stream* s = find(id);
  if (s == nullptr) return false;
  const size_t most = static_cast<size_t>(server_->options.limits.stream_buffer_bytes);
  // One piece may always wait, whatever its size; more only within the limit.
  if (s->unsent() > 0 && s->unsent() + bytes.size() > most) pump();
  s = find(id);
  if (s == nullptr || connection_->closed_) return false;
  if (s->unsent() > 0 && s->unsent() + bytes.size() > most) {
    ++server_->counters.slow_readers;
    auto exchange = std::move(s->exchange);
    nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    pump();
    if (exchange) exchange->abandoned(ExchangeEnd::kSlowReader);
    return false;
  }
  if (s->unsent() == 0) s->progress_ns = now_ns();
  s->out.append(bytes);
  s->last_write_ns = now_ns();
  if (s->waiting) nghttp2_session_resume_data(session_, id);
  s->waiting = false;
  pump();
  return !connection_->closed_;
}

void H2Session::finish(int32_t id) {
  Stream* s = find(id);
  if (s == nullptr) return;
  s->exchange = nullptr;
  s->out_end = true;
  if (s->waiting) nghttp2_session_resume_data(session_, id);
  s->waiting = false;
  pump();
}

void H2Session::reset(int32_t id) {
  Stream* s = find(id);
  if (s == nullptr) return;
  s->exchange = nullptr;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_INTERNAL_ERROR);
  pump();
}

int64_t H2Session::read_out(Stream* s, uint8_t* to, size_t most, uint32_t* flags) {
  const size_t n = std::min(most, s->unsent());
  if (n > 0) {
    std::memcpy(to, s->out.data() + s->out_at, n);
    s->out_at += n;
    s->progress_ns = now_ns();
  }
  if (s->unsent() == 0) {
    s->out.clear();
    s->out_at = 0;
    if (s->out.capacity() > kKeptCapacity) s->out = {};
    if (s->out_end) *flags |= NGHTTP2_DATA_FLAG_EOF;
  } else if (s->out_at > kHandOver && s->out_at * 2 > s->out.size()) {
    s->out.erase(0, s->out_at);
    s->out_at = 0;
  }
  if (n > 0 || (*flags & NGHTTP2_DATA_FLAG_EOF) != 0) return static_cast<int64_t>(n);
  s->waiting = true;
  return NGHTTP2_ERR_DEFERRED;
}

void H2Session::pump() {
  if (inside_ || connection_->closed_) return;
  for (bool more = true; more && !connection_->closed_ && connection_->unsent() == 0;) {
    inside_ = true;
    while (more && connection_->unsent() < static_cast<int64_t>(kHandOver)) {
      const uint8_t* bytes = nullptr;
      const ssize_t n = nghttp2_session_mem_send(session_, &bytes);
      more = n > 0;
      if (more) connection_->send(text(bytes, static_cast<size_t>(n)));
    }
    inside_ = false;
    connection_->flush();
  }
  tell_abandoned();
  if (connection_->closed_) return;
  const bool over = nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0;
  if (over && connection_->unsent() == 0) connection_->close(ExchangeEnd::kComplete);
}

// The stream is closed on both sides, or was reset.
void H2Session::forget(int32_t id, uint32_t) {
  auto it = streams_.find(id);
  if (it == streams_.end()) return;
  Stream& s = *it->second;
  if (s.exchange) {
    abandoned_.emplace_back(std::move(s.exchange), ExchangeEnd::kClientLeft);
  } else if (!s.answered) {
    body_bytes_ -= static_cast<int64_t>(s.request.body.size());
  }
  streams_.erase(it);
  headers_ns_ = 0;  // if its header was being read, it was refused
  if (streams_.empty()) idle_ns_ = now_ns();
}

void H2Session::tell_abandoned() {
  if (inside_) return;
  std::vector<std::pair<std::shared_ptr<H2Exchange>, ExchangeEnd>> list;
  list.swap(abandoned_);
  for (auto& [exchange, why] : list) exchange->abandoned(why);
}

void H2Session::closed(ExchangeEnd why) {
  std::vector<std::shared_ptr<H2Exchange>> left;
  for (auto& [id, s] : streams_) {
    if (s->exchange) left.push_back(std::move(s->exchange));
  }
  for (auto& [exchange, reason] : abandoned_) left.push_back(std::move(exchange));
  abandoned_.clear();
  for (auto& exchange : left) exchange->abandoned(why);
}

void H2Session::flood() {
  ++server_->counters.h2_floods;
  goodbye(NGHTTP2_ENHANCE_YOUR_CALM, ExchangeEnd::kClientLeft);
}

// Says why, as far as the socket takes it at once, and closes.
void H2Session::goodbye(uint32_t code, ExchangeEnd why) {
  leaving_ = true;
  nghttp2_session_terminate_session(session_, code);
  pump();
  if (!connection_->closed_) connection_->close(why);
}

void H2Session::tick(int64_t now) {
  const HttpLimits& l = server_->options.limits;
  const bool slow_head = headers_ns_ > 0 && now - headers_ns_ > l.header_ns;
  if (slow_head || (settings_ns_ > 0 && now > settings_ns_)) {
    ++server_->counters.timeouts;
    return goodbye(NGHTTP2_PROTOCOL_ERROR, ExchangeEnd::kClientLeft);
  }
  if (streams_.empty()) {
    if (now - idle_ns_ > l.idle_ns) return goodbye(NGHTTP2_NO_ERROR, ExchangeEnd::kComplete);
    if (server_->closing) return goodbye(NGHTTP2_NO_ERROR, ExchangeEnd::kComplete);
  } else if (server_->closing && !last_call_) {
    last_call_ = true;  // streams go on; the client opens new ones elsewhere
    nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                          NGHTTP2_NO_ERROR, nullptr, 0);
    pump();
    if (connection_->closed_) return;
  }
  std::vector<int32_t> ids;
  for (const auto& [id, s] : streams_) ids.push_back(id);
  for (int32_t id : ids) {
    Stream* s = connection_->closed_ ? nullptr : find(id);
    if (s == nullptr) continue;
    if (now > s->deadline_ns) {
      ++server_->counters.timeouts;
      body_bytes_ -= static_cast<int64_t>(s->request.body.size());
      refuse(s, 408, "the request's body took too long to arrive");
    } else if (s->unsent() > 0 && now - s->progress_ns > l.write_ns) {
      ++server_->counters.slow_readers;
      if (s->exchange) abandoned_.emplace_back(std::move(s->exchange), ExchangeEnd::kSlowReader);
      nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
      pump();
    } else if (s->exchange && s->exchange->streaming() && s->unsent() == 0 &&
               !s->exchange->keep_alive().empty() && now - s->last_write_ns >= l.keep_alive_ns) {
      write(id, s->exchange->keep_alive());
    }
  }
}

void H2Exchange::respond(HttpResponse r) {
  if (!connection_ || streaming_) return;
  auto c = std::move(connection_);
  prepare(&r);
  session_->respond(stream_, r.status, headers_, std::move(r.body), false);
  record(ExchangeEnd::kComplete);
  abandoned_ = nullptr;
}

void H2Exchange::begin_stream(int status, std::string type, std::string keep_alive) {
  if (!connection_ || streaming_) return;
  auto c = connection_;
  streaming_ = true;
  status_ = status;
  keep_alive_ = std::move(keep_alive);
  HeaderList headers = headers_;
  headers.emplace_back("content-type", std::move(type));
  session_->respond(stream_, status, headers, {}, true);
}

bool H2Exchange::write(std::string_view bytes) {
  if (!connection_) return false;
  auto c = connection_;
  bytes_ += static_cast<int64_t>(bytes.size());
  return bytes.empty() || request_.method == "HEAD" || session_->write(stream_, bytes);
}

void H2Exchange::finish() {
  if (!connection_ || !streaming_) return;
  auto c = std::move(connection_);
  session_->finish(stream_);
  record(ExchangeEnd::kComplete);
  abandoned_ = nullptr;
}

void H2Exchange::abort() {
  if (!connection_) return;
  auto c = std::move(connection_);
  session_->reset(stream_);
  record(ExchangeEnd::kServerStop);
  abandoned_ = nullptr;
}

void H2Exchange::abandoned(ExchangeEnd why) {
  if (!connection_) return;
  auto c = std::move(connection_);
  give_up(why);
}

}  // namespace deepinfer
