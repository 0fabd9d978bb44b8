// Blocking requests over a socket (apps/http_client.h).
#include "apps/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace deepinfer {
namespace {

constexpr int kPollMs = 100;
constexpr size_t kMostBody = size_t{256} << 20;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Takes the chunk framing off, whatever pieces it comes in.
class Unchunker {
 public:
  // False once the end mark was seen or the framing is wrong.
  bool push(std::string_view in, std::string* out) {
    held_.append(in);
    while (true) {
      if (left_ > 0) {
        size_t n = std::min(left_, held_.size());
        out->append(held_, 0, n);
        held_.erase(0, n);
        left_ -= n;
        if (left_ > 0) return true;
        tail_ = true;
      }
      if (tail_) {
        if (held_.size() < 2) return true;
        held_.erase(0, 2);
        tail_ = false;
      }
      size_t end = held_.find("\r\n");
      if (end == held_.npos) return held_.size() < 64;
      left_ = std::strtoull(held_.c_str(), nullptr, 16);
      held_.erase(0, end + 2);
      if (left_ == 0) return false;
    }
  }

 private:
  std::string held_;
  size_t left_ = 0;
  bool tail_ = false;
};

// Calls `on_event` for whole events and keeps the rest in `text`.
bool give_events(std::string* text, const std::function<bool(const std::string&)>& on_event) {
  for (size_t end; (end = text->find("\n\n")) != text->npos; text->erase(0, end + 2)) {
    size_t at = text->rfind("data: ", end);
    if (at != text->npos && (at == 0 || (*text)[at - 1] == '\n')) {
      if (!on_event(text->substr(at + 6, end - at - 6))) return false;
    } else if (!on_event("")) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<HttpClient> HttpClient::open(const std::string& url, std::string key) {
  HttpClient c;
  c.key_ = std::move(key);
  if (url.rfind("unix:", 0) == 0) {
    c.unix_path_ = url.substr(5);
    if (c.unix_path_.size() >= sizeof(sockaddr_un{}.sun_path))
      return error(Code::kInvalidArgument, "{}: the path of a Unix socket is too long", url);
    return c;
  }
  if (url.rfind("http://", 0) != 0)
    return error(Code::kInvalidArgument, "{}: give http://host:port or unix:/path; https is not spoken here",
                 url);
  std::string rest = url.substr(7);
  size_t slash = rest.find('/');
  if (slash != rest.npos) c.base_ = rest.substr(slash);
  while (!c.base_.empty() && c.base_.back() == '/') c.base_.pop_back();
  rest = rest.substr(0, slash);
  size_t colon = rest.rfind(':');
  const bool has_port = colon != rest.npos && rest.find(']', colon) == rest.npos;
  c.host_ = has_port ? rest.substr(0, colon) : rest;
  c.port_ = has_port ? rest.substr(colon + 1) : "80";
  if (c.host_.size() > 1 && c.host_.front() == '[') c.host_ = c.host_.substr(1, c.host_.size() - 2);
  return c;
}

static Result<int> connect_to(const std::string& host, const std::string& port,
                              const std::string& unix_path) {
  if (!unix_path.empty()) {
    int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::strncpy(a.sun_path, unix_path.c_str(), sizeof a.sun_path - 1);
    if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) return fd;
    const int why = errno;
    if (fd >= 0) ::close(fd);
    return error(Code::kIo, "cannot connect to {}: {}", unix_path, std::strerror(why));
  }
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); rc != 0)
    return error(Code::kIo, "{}:{}: {}", host, port, ::gai_strerror(rc));
  int fd = -1, why = 0;
  for (addrinfo* a = list; a != nullptr && fd < 0; a = a->ai_next) {
    fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd >= 0 && ::connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
    why = errno;
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  ::freeaddrinfo(list);
  if (fd < 0) return error(Code::kIo, "cannot connect to {}:{}: {}", host, port, std::strerror(why));
  return fd;
}

Result<HttpAnswer> HttpClient::request(const std::string& method, const std::string& path,
                                       const std::string& body,
                                       const std::function<bool(const std::string&)>& on_event,
                                       const std::function<bool()>& keep_waiting) const {
  DI_ASSIGN(int raw, connect_to(host_, port_, unix_path_));
  Descriptor fd(raw);
  std::string out = method + " " + base_ + path +
                    " HTTP/1.1\r\nHost: " + (host_.empty() ? "localhost" : host_) +
                    "\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: " +
                    std::to_string(body.size()) + "\r\n";
  if (!key_.empty()) out += "Authorization: Bearer " + key_ + "\r\n";
  out += "\r\n" + body;
  for (size_t at = 0; at < out.size();) {
    ssize_t n = ::send(fd.get(), out.data() + at, out.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return error(Code::kIo, "the server closed the connection: {}", std::strerror(errno));
    at += static_cast<size_t>(n);
  }
  HttpAnswer answer;
  std::string head, text;
  Unchunker unchunker;
  bool in_body = false, chunked = false, events = false, more = true;
  char buffer[16384];
  while (more) {
    if (keep_waiting && !keep_waiting()) return answer;
    pollfd p{fd.get(), POLLIN, 0};
    if (::poll(&p, 1, kPollMs) <= 0) continue;
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    std::string_view bytes(buffer, static_cast<size_t>(n));
    if (!in_body) {
      head.append(bytes);
      size_t end = head.find("\r\n\r\n");
      if (end == head.npos) continue;
      in_body = true;
      answer.status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
      chunked = head.find("Transfer-Encoding: chunked") < end;
      events = on_event && head.find("text/event-stream") < end;
      std::string rest = head.substr(end + 4);
      if (chunked) {
        more = unchunker.push(rest, &text);
      } else {
        text += rest;
      }
    } else if (chunked) {
      more = unchunker.push(bytes, &text);
    } else {
      text.append(bytes);
    }
    if (text.size() > kMostBody) return error(Code::kIo, "the answer is larger than this client takes");
    if (events && !give_events(&text, on_event)) return answer;
  }
  if (answer.status == 0) return error(Code::kIo, "the server closed the connection without an answer");
  if (!events) answer.body = std::move(text);
  return answer;
}

}  // namespace deepinfer
