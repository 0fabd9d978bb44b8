// A small blocking HTTP client for our own commands: plain TCP and Unix sockets, one request per connection,
// streamed answers event by event. Knows no protocol above HTTP. Errors: kInvalidArgument for an address it
// cannot use, kIo for the rest. Threads: one object per thread.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace deepinfer {

struct HttpAnswer {
  int status = 0;
  std::string body;  // of streamed answers: empty
};

class HttpClient {
 public:
  // http://host:port[/path] or unix:/path; https is not spoken.
  static Result<HttpClient> open(const std::string& url, std::string key);

  // `on_event`: called for each SSE event's data (and with "" for a comment line); returning false ends the
  // request by closing the connection. Null: the body is collected. An answer that is no event stream is
  // collected anyway.
  Result<HttpAnswer> request(const std::string& method, const std::string& path, const std::string& body,
                             const std::function<bool(const std::string& data)>& on_event,
                             const std::function<bool()>& keep_waiting) const;

 private:
  std::string host_, port_, unix_path_, base_, key_;
};

}  // namespace deepinfer
