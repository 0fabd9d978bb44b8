// One request and its answer on one connection, as a handler sees it. A stream's bytes wait in bounded
// memory: a reader slower than that is cut off, and nobody waits for a socket. Threads: everything belongs to
// the connection's loop thread, except Loop::post(), which any thread may call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "edge/http/message.h"

namespace deepinfer {

// One event loop thread of the server.
class Loop {
 public:
  virtual ~Loop() = default;
  // Runs `task` on the loop's thread, soon; after the server stopped, when it is destroyed.
  virtual void post(std::function<void()> task) = 0;
};

enum class ExchangeEnd {
  kComplete,    // the whole answer was handed to the socket
  kClientLeft,  // the other side closed (also half: no more bytes will come from it) before the answer was
                // whole
  kSlowReader,  // more unread bytes than a stream may hold, or no progress in the time a write may take
  kServerStop,
};
const char* name(ExchangeEnd end);

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The body moved out, for work on another thread.
  virtual std::string take_body() = 0;
  virtual std::shared_ptr<Loop> loop() const = 0;

  // Headers every answer of this exchange gets, whoever writes it.
  virtual void add_header(std::string name, std::string value) = 0;

  // The whole answer. Nothing happens if the exchange has ended already.
  virtual void respond(HttpResponse response) = 0;
  // The head of a streamed answer; write() and finish() follow. While nothing is written for the server's
  // keep-alive interval, `keep_alive` is sent (empty: nothing).
  virtual void begin_stream(int status, std::string content_type, std::string keep_alive) = 0;
  // False if the exchange has ended (or ends now, because the reader is too slow).
  virtual bool write(std::string_view bytes) = 0;
  virtual void finish() = 0;
  // Gives up: a stream's connection is closed without the end mark, so that the client sees it is not whole.
  virtual void abort() = 0;

  virtual bool ended() const = 0;
  virtual bool streaming() const = 0;
  // Called once when the exchange ends in any way other than kComplete; perhaps from inside begin_stream() or
  // write(), never from inside respond(), finish() or abort().
  virtual void on_abandoned(std::function<void(ExchangeEnd)> callback) = 0;
};

// What the access log and the metrics learn of one exchange when it is over.
struct ExchangeRecord {
  const HttpRequest* request =
      nullptr;  // null: the request never became one (bad bytes, too large, too slow)
  std::string peer;
  int status = 0;
  int64_t bytes_out = 0;
  int64_t duration_ns = 0;
  ExchangeEnd end = ExchangeEnd::kComplete;
};

}  // namespace deepinfer
