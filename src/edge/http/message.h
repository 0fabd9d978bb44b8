// One HTTP request as read and one answer as given: plain data, no sockets. Knows no route and no protocol of
// the products. Source: RFC 9110, RFC 9112. Threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

struct HttpRequest {
  std::string method;
  std::string path;   // without the query, as sent (not percent-decoded)
  std::string query;  // after '?', as sent
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::string peer;         // address of the other side; "unix" for a Unix socket
  int64_t received_ns = 0;  // when its last byte was read, monotonic

  // The first value, or nullptr. `name` in lower case.
  const std::string* header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // beside type, length and connection
  std::string body;
};

// "Not Found" for 404; empty for a status this server never sends.
std::string_view reason_phrase(int status);

// The value of `name` in a query string, percent-decoded; empty if absent.
std::string query_value(std::string_view query, std::string_view name);

}  // namespace deepinfer
