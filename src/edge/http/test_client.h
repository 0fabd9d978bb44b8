// A blocking client socket for tests: what arrives is kept byte for byte. Reads time out, so that no test can
// hang.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace deepinfer {

class TestClient {
 public:
  // "http://127.0.0.1:PORT" or "unix:/path".
  explicit TestClient(const std::string& address, int receive_buffer = 0) {
    if (address.rfind("unix:", 0) == 0) {
      fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un a{};
      a.sun_family = AF_UNIX;
      std::strncpy(a.sun_path, address.c_str() + 5, sizeof a.sun_path - 1);
      ok_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
      return;
    }
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + address.rfind(':') + 1)));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ok_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool ok() const { return ok_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Closes with a reset instead of an orderly end.
  void reset() {
    linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }
  bool send(const std::string& bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  // Reads once into `received`; false at the end, on an error, or after `timeout_ms`.
  bool read_some(int timeout_ms = 5000) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, timeout_ms) <= 0) return false;
    char buffer[16384];
    ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      at_end = true;
      return false;
    }
    received.append(buffer, static_cast<size_t>(n));
    return true;
  }
  bool read_until(const std::string& text, int timeout_ms = 5000) {
    while (received.find(text) == received.npos) {
      if (!read_some(timeout_ms)) return received.find(text) != received.npos;
    }
    return true;
  }
  const std::string& read_all(int timeout_ms = 5000) {
    while (read_some(timeout_ms)) {
    }
    return received;
  }

  std::string received;
  bool at_end = false;

 private:
  int fd_ = -1;
  bool ok_ = false;
};

// A request with a Content-Length.
inline std::string http_request(const std::string& method, const std::string& path,
                                const std::string& body = {}, const std::string& headers = {}) {
  std::string out = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers;
  if (!body.empty()) out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return out + "\r\n" + body;
}

// "HTTP/1.1 200 ..." -> 200; 0 if there is no answer.
inline int status_of(const std::string& answer) {
  return answer.size() > 12 && answer.rfind("HTTP/1.1 ", 0) == 0 ? std::atoi(answer.c_str() + 9) : 0;
}

}  // namespace deepinfer
