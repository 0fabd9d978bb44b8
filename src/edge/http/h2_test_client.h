// A client of HTTP/2 for tests, over a TestClient: nghttp2 makes the frames, the test decides when windows
// open and what is broken. Reads time out, so that no test can hang.
#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "edge/http/test_client.h"

namespace deepinfer {

class H2TestClient {
 public:
  struct Answer {
    int status = 0;
    std::map<std::string, std::string> headers;
    std::string body;
    bool closed = false;
    uint32_t error = 0;
  };

  // `open_windows` false: the client never says that it has read anything.
  explicit H2TestClient(const std::string& address, bool open_windows = true, int receive_buffer = 0)
      : socket(address, receive_buffer) {
    nghttp2_session_callbacks* c = nullptr;
    nghttp2_session_callbacks_new(&c);
    nghttp2_session_callbacks_set_on_header_callback(
        c, [](nghttp2_session*, const nghttp2_frame* f, const uint8_t* name, size_t name_size,
              const uint8_t* value, size_t value_size, uint8_t, void* user) {
          Answer& a = static_cast<H2TestClient*>(user)->answers[f->hd.stream_id];
          std::string n(reinterpret_cast<const char*>(name), name_size),
              v(reinterpret_cast<const char*>(value), value_size);
          if (n == ":status") a.status = std::atoi(v.c_str());
          a.headers[n] = v;
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        c, [](nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t size, void* user) {
          static_cast<H2TestClient*>(user)->answers[id].body.append(reinterpret_cast<const char*>(data),
                                                                    size);
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        c, [](nghttp2_session*, int32_t id, uint32_t error, void* user) {
          Answer& a = static_cast<H2TestClient*>(user)->answers[id];
          a.closed = true;
          a.error = error;
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        c, [](nghttp2_session*, const nghttp2_frame* f, void* user) {
          if (f->hd.type == NGHTTP2_GOAWAY) {
            static_cast<H2TestClient*>(user)->goaway = static_cast<int>(f->goaway.error_code);
          }
          return 0;
        });
    nghttp2_option* o = nullptr;
    nghttp2_option_new(&o);
    nghttp2_option_set_no_auto_window_update(o, open_windows ? 0 : 1);
    nghttp2_session_client_new2(&session, c, this, o);
    nghttp2_option_del(o);
    nghttp2_session_callbacks_del(c);
    nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~H2TestClient() { nghttp2_session_del(session); }
  H2TestClient(const H2TestClient&) = delete;
  H2TestClient& operator=(const H2TestClient&) = delete;

  // The stream's number. `whole` false: more of the body may follow, and never does.
  int32_t ask(const std::string& method, const std::string& path, const std::string& body = {},
              const std::vector<std::pair<std::string, std::string>>& more = {}, bool whole = true) {
    std::vector<std::pair<std::string, std::string>> all = {
        {":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "test"}};
    all.insert(all.end(), more.begin(), more.end());
    std::vector<nghttp2_nv> fields;
    for (auto& [n, v] : all) {
      fields.push_back({reinterpret_cast<uint8_t*>(n.data()), reinterpret_cast<uint8_t*>(v.data()), n.size(),
                        v.size(), NGHTTP2_NV_FLAG_NONE});
    }
    bodies_.push_back(std::make_unique<Body>(Body{body, 0, whole}));
    nghttp2_data_provider provider{};
    provider.source.ptr = bodies_.back().get();
    provider.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t most, uint32_t* flags,
                                nghttp2_data_source* source, void*) -> ssize_t {
      Body* b = static_cast<Body*>(source->ptr);
      const size_t n = std::min(most, b->bytes.size() - b->at);
      std::memcpy(to, b->bytes.data() + b->at, n);
      b->at += n;
      if (b->at == b->bytes.size()) {
        if (!b->whole && n == 0) return NGHTTP2_ERR_DEFERRED;
        if (b->whole) *flags |= NGHTTP2_DATA_FLAG_EOF;
      }
      return static_cast<ssize_t>(n);
    };
    const int32_t id = nghttp2_submit_request(session, nullptr, fields.data(), fields.size(),
                                              body.empty() && whole ? nullptr : &provider, nullptr);
    push();
    return id;
  }
  void reset(int32_t id) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    push();
  }
  // Sends what is queued; false when the other side has closed.
  bool push() {
    const uint8_t* bytes = nullptr;
    for (ssize_t n; (n = nghttp2_session_mem_send(session, &bytes)) > 0;) {
      if (!socket.send(std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n))))
        return false;
    }
    return true;
  }
  // Reads until `done`, the other side's end, or silence of `timeout_ms`.
  template <typename F>
  bool read_until(F done, int timeout_ms = 5000) {
    while (!done()) {
      socket.received.clear();
      if (!socket.read_some(timeout_ms)) return done();
      nghttp2_session_mem_recv(session, reinterpret_cast<const uint8_t*>(socket.received.data()),
                               socket.received.size());
      push();
    }
    return true;
  }
  Answer& whole(int32_t id, int timeout_ms = 5000) {
    read_until([&] { return answers[id].closed; }, timeout_ms);
    return answers[id];
  }

  TestClient socket;
  nghttp2_session* session = nullptr;
  std::map<int32_t, Answer> answers;
  int goaway = -1;  // the error code it came with

 private:
  struct Body {
    std::string bytes;
    size_t at = 0;
    bool whole = true;
  };
  std::vector<std::unique_ptr<Body>> bodies_;
};

}  // namespace deepinfer
