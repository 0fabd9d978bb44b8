// The two processes of the edge bench (apps/bench_edge.h). Times of making are written by the server's engine
// into memory both share; the clock is the machine's.
#include "apps/bench_edge.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <csignal>
#include <cstring>

#include "apps/serve_run.h"
#include "engine/synthetic_engine.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

// Ids whose text is a space and letters: each is text at once, and its text says which it was.
std::vector<int32_t> plain_words(const Tokenizer& t, size_t most) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < t.vocab_size() && ids.size() < most; ++id) {
    std::string_view text = t.token_bytes(id);
    if (text.size() < 3 || text[0] != ' ' || t.is_added(id)) continue;
    if (std::all_of(text.begin() + 1, text.end(),
                    [](char c) { return std::isalpha(static_cast<unsigned char>(c)); }))
      ids.push_back(id);
  }
  return ids;
}

class SharedTimes {
 public:
  SharedTimes(int64_t streams, int64_t tokens)
      : tokens_(tokens), bytes_(static_cast<size_t>(streams * tokens) * 8) {
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    times_ = p == MAP_FAILED ? nullptr : static_cast<std::atomic<int64_t>*>(p);
  }
  ~SharedTimes() {
    if (times_ != nullptr) ::munmap(times_, bytes_);
  }
  SharedTimes(const SharedTimes&) = delete;
  SharedTimes& operator=(const SharedTimes&) = delete;
  bool ok() const { return times_ != nullptr; }
  std::atomic<int64_t>& at(int64_t stream, int64_t token) { return times_[stream * tokens_ + token]; }
  void touch() {
    std::memset(static_cast<void*>(times_), 0, bytes_);
  }  // so that pages count before the start

 private:
  int64_t tokens_;
  size_t bytes_;
  std::atomic<int64_t>* times_ = nullptr;
};

void raise_open_files() {
  rlimit l{};
  if (::getrlimit(RLIMIT_NOFILE, &l) == 0) {
    l.rlim_cur = l.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &l);
  }
}

// The server process: writes its port, serves until the pipe closes.
[[noreturn]] void serve(const EdgeBenchOptions& o, const std::shared_ptr<Tokenizer>& tokenizer,
                        const std::vector<int32_t>& words, SharedTimes* times, int out, int in) {
  ServedModel model;
  model.name = "bench";
  model.tokenizer = tokenizer;
  model.vocab_size = tokenizer->vocab_size();
  SyntheticOptions s;
  s.script = words;
  s.tokens_per_s = o.tokens_per_s;
  s.aligned = o.aligned;
  s.vocab_size = model.vocab_size;
  s.on_token = [&](uint64_t seed, int, int64_t index, int64_t now) {
    if (seed < static_cast<uint64_t>(o.streams) && index < o.tokens)
      times->at(static_cast<int64_t>(seed), index).store(now, std::memory_order_release);
  };
  model.engine = std::make_unique<SyntheticEngine>(std::move(s));
  ServeConfig c;
  c.listen = {"127.0.0.1:0"};
  c.log_level = "off";
  c.max_queued_requests = 0;
  auto server = RunningServer::start(c, std::move(model));
  if (!server.ok()) ::_exit(1);
  const std::string& address = (*server)->addresses()[0];
  const int port = std::atoi(address.c_str() + address.rfind(':') + 1);
  if (::write(out, &port, sizeof port) != sizeof port) ::_exit(1);
  char byte;
  while (::read(in, &byte, 1) > 0) {
  }
  ::_exit(0);
}

int64_t resident_bytes(pid_t pid) {
  std::string path = fmt::format("/proc/{}/statm", pid);
  FILE* f = std::fopen(path.c_str(), "r");
  long total = 0, resident = 0;
  if (f != nullptr) {
    if (std::fscanf(f, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * ::sysconf(_SC_PAGESIZE);
}

double cpu_seconds(pid_t pid) {
  std::string path = fmt::format("/proc/{}/stat", pid);
  FILE* f = std::fopen(path.c_str(), "r");
  unsigned long user = 0, system = 0;
  if (f != nullptr) {
    if (std::fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) !=
        2)
      user = system = 0;
    std::fclose(f);
  }
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_cpu_seconds() {
  rusage r{};
  ::getrusage(RUSAGE_SELF, &r);
  auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return s(r.ru_utime) + s(r.ru_stime);
}

class Client {
 public:
  Client(const EdgeBenchOptions& o, const Tokenizer& t, const std::vector<int32_t>& words, SharedTimes* times,
         int port)
      : o_(o), times_(times), port_(port), streams_(static_cast<size_t>(o.streams)) {
    for (int32_t id : words) words_.emplace_back(t.token_bytes(id));
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    added_.reserve(static_cast<size_t>(o.streams * o.tokens));
  }
  ~Client() {
    for (Stream& s : streams_) {
      if (s.fd >= 0) ::close(s.fd);
    }
    ::close(epoll_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Status open(int64_t i) {
    Stream& s = streams_[static_cast<size_t>(i)];
    s.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s.fd < 0)
      return error(Code::kResourceExhausted, "no descriptor for stream {}: {}", i, std::strerror(errno));
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port_));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(s.fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0)
      return error(Code::kIo, "stream {}: {}", i, std::strerror(errno));
    std::string body = fmt::format(
        R"({{"model":"bench","messages":[{{"role":"user","content":"go"}}],"thinking":{{"type":"disabled"}},"stream":true,"max_tokens":{},"seed":{}}})",
        o_.tokens, i);
    std::string head = fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body);
    if (::send(s.fd, head.data(), head.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(head.size()))
      return error(Code::kIo, "stream {}: the request was not taken whole", i);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = static_cast<uint64_t>(i);
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, s.fd, &e);
    ++open_;
    return {};
  }

  // Reads what is there, waiting at most `ms`.
  void pump(int ms) {
    epoll_event events[256];
    int n = ::epoll_wait(epoll_, events, 256, ms);
    for (int k = 0; k < n; ++k) {
      const auto i = static_cast<int64_t>(events[k].data.u64);
      Stream& s = streams_[static_cast<size_t>(i)];
      ssize_t got = ::recv(s.fd, buffer_, sizeof buffer_, MSG_DONTWAIT);
      if (got > 0) {
        take(i, s, std::string_view(buffer_, static_cast<size_t>(got)), now_ns());
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        ::close(s.fd);
        s.fd = -1;
        --open_;
      }
    }
  }
  int64_t open() const { return open_; }

  void report(EdgeBenchReport* r) {
    for (const Stream& s : streams_) {
      r->lost += o_.tokens - s.received;
      r->reordered += s.wrong;
      if (!s.done) ++r->failed;
      r->tokens += s.received;
    }
    std::sort(added_.begin(), added_.end());
    auto at = [&](double share) {
      return added_.empty()
                 ? 0.0
                 : added_[std::min(added_.size() - 1,
                                   static_cast<size_t>(share * static_cast<double>(added_.size())))] /
                       1e6;
    };
    r->p50_added_ms = at(0.5);
    r->p99_added_ms = at(0.99);
    r->max_added_ms = added_.empty() ? 0 : added_.back() / 1e6;
  }

 private:
  struct Stream {
    int fd = -1;
    int64_t received = 0, wrong = 0;
    bool done = false;
    std::string held;
  };

  void take(int64_t i, Stream& s, std::string_view bytes, int64_t now) {
    s.held.append(bytes);
    size_t begin = 0;
    for (size_t end; (end = s.held.find("\n\n", begin)) != s.held.npos; begin = end + 2) {
      std::string_view event(s.held.data() + begin, end - begin);
      if (event.find("data: [DONE]") != event.npos) s.done = true;
      constexpr std::string_view kContent = "\"content\":\"";
      size_t at = event.find(kContent);
      if (at == event.npos) continue;
      at += kContent.size();
      std::string_view text = event.substr(at, event.find('"', at) - at);
      // Tokens that went out together are one text; each begins with the only space it has.
      for (size_t space = 0; space < text.size();) {
        const size_t next = std::min(text.find(' ', space + 1), text.size());
        take_word(i, s, text.substr(space, next - space), now);
        space = next;
      }
    }
    s.held.erase(0, begin);
  }

  // The k-th word must be the k-th of the script: a lost or swapped one shows at once.
  void take_word(int64_t i, Stream& s, std::string_view word, int64_t now) {
    if (word != words_[static_cast<size_t>(s.received) % words_.size()]) ++s.wrong;
    if (s.received < o_.tokens) {
      const int64_t made = times_->at(i, s.received).load(std::memory_order_acquire);
      added_.push_back(static_cast<double>(now - made));
    }
    ++s.received;
  }

  const EdgeBenchOptions& o_;
  SharedTimes* times_;
  int port_, epoll_ = -1;
  std::vector<Stream> streams_;
  std::vector<std::string> words_;
  std::vector<double> added_;
  int64_t open_ = 0;
  char buffer_[1 << 16];
};

Status run_client(const EdgeBenchOptions& o, Client* client, pid_t server, EdgeBenchReport* r) {
  const int64_t empty = resident_bytes(server);
  const int64_t begin = now_ns();
  const double cpu = cpu_seconds(server), own = own_cpu_seconds();
  // Two seconds of arrivals, so that staggered streams are spread over their period.
  const int64_t gap = 2'000'000'000 / std::max<int64_t>(1, o.streams);
  for (int64_t i = 0; i < o.streams; ++i) {
    DI_TRY(client->open(i));
    while (now_ns() < begin + (i + 1) * gap) client->pump(0);
  }
  const double expected = 2 + static_cast<double>(o.tokens) / std::max(0.001, o.tokens_per_s);
  const int64_t limit = now_ns() + static_cast<int64_t>((expected * 3 + 30) * 1e9);
  int64_t most = resident_bytes(server);
  for (int64_t sampled = 0; client->open() > 0 && now_ns() < limit;) {
    client->pump(20);
    if (now_ns() - sampled > 500'000'000 && client->open() == o.streams) {
      most = std::max(most, resident_bytes(server));
      sampled = now_ns();
    }
  }
  r->seconds = static_cast<double>(now_ns() - begin) / 1e9;
  r->cpu_share = (cpu_seconds(server) - cpu) / r->seconds;
  r->client_cpu_share = (own_cpu_seconds() - own) / r->seconds;
  r->bytes_per_stream = static_cast<double>(most - empty) / static_cast<double>(o.streams);
  r->streams = o.streams;
  client->report(r);
  return {};
}

}  // namespace

Result<EdgeBenchReport> bench_edge(const EdgeBenchOptions& o) {
  DI_ASSIGN(Tokenizer loaded, Tokenizer::from_file(o.tokenizer));
  auto tokenizer = std::make_shared<Tokenizer>(std::move(loaded));
  const std::vector<int32_t> words = plain_words(*tokenizer, 251);  // a prime: no short period fits
  if (words.size() < 2)
    return error(Code::kInvalidData, "{}: no plain words in this vocabulary", o.tokenizer);
  SharedTimes times(o.streams, o.tokens);
  if (!times.ok()) return error(Code::kResourceExhausted, "no memory for {} times", o.streams * o.tokens);
  times.touch();
  raise_open_files();
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0)
    return error(Code::kIo, "pipe: {}", std::strerror(errno));
  const pid_t child = ::fork();
  if (child < 0) return error(Code::kIo, "fork: {}", std::strerror(errno));
  if (child == 0) {
    ::close(to_child[1]);
    serve(o, tokenizer, words, &times, from_child[1], to_child[0]);
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  int port = 0;
  EdgeBenchReport report;
  Status status = ::read(from_child[0], &port, sizeof port) == sizeof port
                      ? Status()
                      : error(Code::kIo, "the server of the bench did not start");
  if (status.ok()) {
    // One stream first: what is allocated once is not the streams'.
    EdgeBenchOptions warm = o;
    warm.streams = 1;
    warm.tokens = 3;
    EdgeBenchReport ignored;
    Client first(warm, *tokenizer, words, &times, port);
    status = run_client(warm, &first, child, &ignored);
    auto client = std::make_unique<Client>(o, *tokenizer, words, &times, port);
    if (status.ok()) status = run_client(o, client.get(), child, &report);
  }
  ::close(to_child[1]);
  ::close(from_child[0]);
  int end = 0;
  ::waitpid(child, &end, 0);
  if (!status.ok()) return status;
  if (!WIFEXITED(end) || WEXITSTATUS(end) != 0)
    return error(Code::kIo, "the server of the bench did not end well");
  return report;
}

Json to_json(const EdgeBenchReport& r, const EdgeBenchOptions& o) {
  return {{"streams", r.streams},
          {"tokens_per_s", o.tokens_per_s},
          {"mode", o.aligned ? "aligned" : "staggered"},
          {"tokens", r.tokens},
          {"lost", r.lost},
          {"reordered", r.reordered},
          {"failed", r.failed},
          {"p50_added_ms", r.p50_added_ms},
          {"p99_added_ms", r.p99_added_ms},
          {"max_added_ms", r.max_added_ms},
          {"bytes_per_stream", r.bytes_per_stream},
          {"cpu_share", r.cpu_share},
          {"client_cpu_share", r.client_cpu_share},
          {"seconds", r.seconds}};
}

}  // namespace deepinfer
