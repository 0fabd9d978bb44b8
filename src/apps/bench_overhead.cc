// Rounds, pairs and the client of apps/bench_overhead.h.
#include "apps/bench_overhead.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "apps/serve_run.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

double own_cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return s(u.ru_utime) + s(u.ru_stime);
}

double thread_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

std::string first_line(const std::string& path) {
  char line[128] = "";
  if (FILE* f = std::fopen(path.c_str(), "r"); f != nullptr) {
    if (std::fgets(line, sizeof line, f) == nullptr) line[0] = '\0';
    std::fclose(f);
  }
  return line;
}

// Of this process's threads that are the server's, by their names.
double edge_cpu_seconds() {
  int64_t ns = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  while (const dirent* e = ::readdir(tasks)) {
    const std::string dir = fmt::format("/proc/self/task/{}", e->d_name);
    if (first_line(dir + "/comm").rfind("edge-", 0) == 0)
      ns += std::atoll(first_line(dir + "/schedstat").c_str());
  }
  ::closedir(tasks);
  return static_cast<double>(ns) / 1e9;
}

std::string body_of(const OverheadOptions& o, const std::string& model, int64_t i) {
  // Different prompts of the same length, and no end before the limit, so that every round is the same work.
  std::string text = fmt::format("Question {:03}: ", i);
  for (int word = 0; word < 60; ++word) text += fmt::format("{} ", (i * 7919 + word * 104729) % 997);
  return Json{{"model", model},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"messages", Json::array({{{"role", "user"}, {"content", text}}})},
              {"thinking", {{"type", "disabled"}}},
              {"temperature", 1},
              {"seed", i},
              {"ignore_eos", true},
              {"use_prefix_cache", false},
              {"max_tokens", o.tokens}}
      .dump();
}

Result<double> run_direct(Engine* engine, const std::vector<GenerationRequest>& requests, int64_t* tokens) {
  const int64_t begin = now_ns();
  for (const GenerationRequest& g : requests) {
    DI_TRY(engine->submit(engine_request(g, engine->now_ns())).status());
  }
  *tokens = 0;
  for (size_t left = requests.size(); left > 0;) {
    for (const EngineEvent& e : engine->poll(1'000'000'000)) {
      *tokens += static_cast<int64_t>(e.tokens.size());
      if (e.kind == EngineEvent::Kind::kFinished) --left;
    }
  }
  return static_cast<double>(now_ns() - begin) / 1e9;
}

class Socket {
 public:
  explicit Socket(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) ended = true;
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  void send(const std::string& bytes) {
    if (::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      ended = true;
  }
  void read() {
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      ended = true;
    } else {
      received.append(buffer, static_cast<size_t>(n));
      whole = received.find("data: [DONE]",
                            received.size() - std::min(received.size(), static_cast<size_t>(n) + 16)) !=
              received.npos;
      ended = ended || whole;
    }
  }
  std::string received;
  bool ended = false, whole = false;

 private:
  int fd_;
};

// All streams of a round; each must be whole.
Result<double> run_http(int port, const std::vector<std::string>& bodies) {
  const int64_t begin = now_ns();
  std::vector<std::unique_ptr<Socket>> sockets;
  for (const std::string& body : bodies) {
    sockets.push_back(std::make_unique<Socket>(port));
    sockets.back()->send(fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n\r\n{}",
        body.size(), body));
  }
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<Socket*> of;
    for (auto& s : sockets) {
      if (s->ended) continue;
      waiting.push_back({s->fd(), POLLIN, 0});
      of.push_back(s.get());
    }
    if (waiting.empty()) break;
    if (::poll(waiting.data(), waiting.size(), 120'000) <= 0) return error(Code::kIo, "a stream went silent");
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) of[i]->read();
    }
  }
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  for (auto& s : sockets) {
    if (!s->whole) return error(Code::kIo, "a stream broke: {}", s->received.substr(0, 300));
  }
  return seconds;
}

void summarize(std::vector<double> added, OverheadReport* r) {
  std::sort(added.begin(), added.end());
  const size_t n = added.size();
  r->least_added = added.front();
  r->most_added = added.back();
  r->median_added = (added[(n - 1) / 2] + added[n / 2]) / 2;
  // How many of n pairs lie below the median of all there could be is binomial with one half: these two have
  // it between them, whatever the distribution.
  const double reach = 1.96 * std::sqrt(static_cast<double>(n)) / 2;
  const auto below = static_cast<size_t>(std::max(0.0, std::floor(static_cast<double>(n) / 2 - reach)));
  r->median_low = added[below];
  r->median_high = added[n - 1 - below];
  auto quarter = [](std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 4];
  };
  r->quartile_added = quarter(r->http_s) / quarter(r->direct_s) - 1;
}

}  // namespace

Result<OverheadReport> bench_overhead(const OverheadOptions& o) {
  ServeConfig c;
  c.model = o.model;
  c.threads = o.threads;
  c.max_running = std::max<int64_t>(64, o.streams);
  c.kv_tokens = 2 * o.streams * (o.tokens + 512);
  c.listen = {"127.0.0.1:0"};
  c.log_level = "off";
  c.speculate = false;  // two engines would learn apart what drafts are worth and do different work
  auto quiet = [](const std::string&) {};
  DI_ASSIGN(ServedModel alone, open_engine(c, quiet));
  DI_ASSIGN(ServedModel served, open_engine(c, quiet));
  const std::string name = served.name;
  DI_ASSIGN(std::unique_ptr<RunningServer> server, RunningServer::start(c, std::move(served)));
  const std::string& address = server->addresses()[0];
  const int port = std::atoi(address.c_str() + address.rfind(':') + 1);
  std::vector<std::string> bodies;
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < o.streams; ++i) {
    bodies.push_back(body_of(o, name, i));
    DI_ASSIGN(Json body, parse_json(bodies.back()));
    DI_ASSIGN(Prepared p, server->preparer()->prepare(Endpoint::kChat, body, nullptr, {}));
    requests.push_back(std::move(p.generation));
  }
  OverheadReport r;
  std::vector<double> added;
  for (int64_t round = -1; round < o.rounds; ++round) {  // the first one warms up
    int64_t by_engine = 0, by_http = 0;
    double direct = 0, http = 0;
    for (int turn = 0; turn < 2; ++turn) {
      const double edge = edge_cpu_seconds(), cpu = own_cpu_seconds(), client = thread_cpu_seconds();
      double& spent = (round + turn) % 2 == 0 ? r.direct_cpu_s : r.http_cpu_s;
      if ((round + turn) % 2 == 0) {
        DI_ASSIGN(direct, run_direct(alone.engine.get(), requests, &by_engine));
      } else {
        // Counted at the engine: an answer's usage leaves out tokens that stand for no text.
        by_http = -server->engine().stats().output_tokens;
        DI_ASSIGN(http, run_http(port, bodies));
        by_http += server->engine().stats().output_tokens;
      }
      if (round < 0) continue;
      spent += own_cpu_seconds() - cpu;
      if (&spent == &r.http_cpu_s) {
        r.client_cpu_s += thread_cpu_seconds() - client;
        r.http_cpu_s -= thread_cpu_seconds() - client;
        r.edge_cpu_s += edge_cpu_seconds() - edge;
      }
    }
    if (by_engine != by_http)
      return error(Code::kInvalidData, "{} tokens from the engine, {} through HTTP", by_engine, by_http);
    if (round < 0) continue;
    r.tokens = by_engine;
    r.direct_s.push_back(direct);
    r.http_s.push_back(http);
    added.push_back(http / direct - 1);
  }
  summarize(std::move(added), &r);
  return r;
}

Json to_json(const OverheadReport& r, const OverheadOptions& o) {
  return {{"streams", o.streams},
          {"tokens_per_round", r.tokens},
          {"rounds", o.rounds},
          {"added_share", r.median_added},
          {"added_share_interval", {r.median_low, r.median_high}},
          {"added_share_of_quartiles", r.quartile_added},
          {"least_added_share", r.least_added},
          {"most_added_share", r.most_added},
          {"direct_s", r.direct_s},
          {"http_s", r.http_s},
          {"direct_cpu_s", r.direct_cpu_s},
          {"http_cpu_s", r.http_cpu_s},
          {"edge_cpu_s", r.edge_cpu_s},
          {"client_cpu_s", r.client_cpu_s},
          {"edge_cpu_share", r.edge_cpu_s / r.direct_cpu_s},
          {"added_cpu_share", r.http_cpu_s / r.direct_cpu_s - 1}};
}

}  // namespace deepinfer
