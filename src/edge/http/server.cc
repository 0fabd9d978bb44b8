// Listeners and loop threads of edge/http/server.h.
#include "edge/http/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <thread>

#include "edge/http/connection.h"
#include "host/clock.h"
#include "host/thread_name.h"

namespace deepinfer {

namespace asio = boost::asio;
using boost::system::error_code;
using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;

namespace {

constexpr std::chrono::milliseconds kTick(200);

class LoopThread : public Loop {
 public:
  LoopThread() : guard_(asio::make_work_guard(state.io)), timer_(state.io) {}

  void post(std::function<void()> task) override { asio::post(state.io, std::move(task)); }
  void run() {
    arm();
    thread_ = std::thread([this] {
      name_this_thread("edge-http");
      state.io.run();
    });
  }
  void stop() {
    asio::post(state.io, [this] {
      ending_ = true;  // a turn of the timer that is due already is not cancelled any more
      timer_.cancel();
      for (auto& c : std::vector(state.open.begin(), state.open.end())) c->close(ExchangeEnd::kServerStop);
      guard_.reset();
    });
    if (thread_.joinable()) thread_.join();
  }

  // Tasks posted after the thread ended run here, so that what they hold is let go.
  void finish() {
    state.io.restart();
    state.io.poll();
  }

  LoopState state;

 private:
  void arm() {
    timer_.expires_after(kTick);
    timer_.async_wait([this](const error_code& ec) {
      if (ec || ending_) return;
      const int64_t now = now_ns();
      ticking_.assign(state.open.begin(), state.open.end());
      for (auto& c : ticking_) c->tick(now);
      ticking_.clear();
      arm();
    });
  }

  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  asio::steady_timer timer_;
  bool ending_ = false;
  std::vector<std::shared_ptr<Connection>> ticking_;
  std::thread thread_;
};

class Server : public HttpServer {
 public:
  ~Server() override {
    stop();
    for (auto& loop : loops_) loop->finish();
  }

  Status open(HttpServerOptions options, Handler handler) {
    state_.options = std::move(options);
    state_.handler = std::move(handler);
    const HttpServerOptions& o = state_.options;
    if (!o.tls_certificate.empty() || !o.tls_key.empty()) DI_TRY(load_tls());
    for (int i = 0; i < std::max(1, o.threads); ++i) loops_.push_back(std::make_shared<LoopThread>());
    for (const std::string& address : o.listen) DI_TRY(listen_tcp(address));
    if (!o.unix_path.empty()) DI_TRY(listen_unix(o.unix_path));
    if (acceptors_.empty() && !unix_) return error(Code::kInvalidConfig, "no address to listen on");
    for (auto& a : acceptors_) accept(*a);
    if (unix_) accept_unix();
    for (auto& loop : loops_) loop->run();
    return {};
  }

  const std::vector<std::string>& addresses() const override { return addresses_; }
  const HttpCounters& counters() const override { return state_.counters; }
  std::vector<std::shared_ptr<Loop>> loops() const override { return {loops_.begin(), loops_.end()}; }

  void close_listeners() override {
    if (state_.closing.exchange(true) || loops_.empty()) return;
    std::promise<void> done;
    asio::post(loops_[0]->state.io, [&] {
      error_code ignored;
      for (auto& a : acceptors_) a->close(ignored);
      if (unix_) unix_->close(ignored);
      done.set_value();
    });
    done.get_future().wait();
    if (unix_) ::unlink(state_.options.unix_path.c_str());
  }

  void stop() override {
    if (stopped_) return;
    stopped_ = true;
    if (running_) close_listeners();
    for (auto& loop : loops_) loop->stop();
  }
  bool running_ = false;

 private:
  Status load_tls() {
    namespace ssl = asio::ssl;
    const HttpServerOptions& o = state_.options;
    state_.tls = std::make_unique<ssl::context>(ssl::context::tls_server);
    error_code ec;
    state_.tls->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                                ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
                            ec);
    state_.tls->use_certificate_chain_file(o.tls_certificate, ec);
    if (ec) return error(Code::kInvalidConfig, "tls_certificate {}: {}", o.tls_certificate, ec.message());
    state_.tls->use_private_key_file(o.tls_key, ssl::context::pem, ec);
    if (ec) return error(Code::kInvalidConfig, "tls_key {}: {}", o.tls_key, ec.message());
    if (o.http2) SSL_CTX_set_alpn_select_cb(state_.tls->native_handle(), choose_protocol, nullptr);
    if (!o.tls_client_ca.empty()) {
      state_.tls->load_verify_file(o.tls_client_ca, ec);
      if (ec) return error(Code::kInvalidConfig, "tls_client_ca {}: {}", o.tls_client_ca, ec.message());
      state_.tls->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, ec);
    }
    return {};
  }

  // HTTP/2 where the client knows it.
  static int choose_protocol(SSL*, const unsigned char** out, unsigned char* size,
                             const unsigned char* offered, unsigned offered_size, void*) {
    static constexpr unsigned char kOurs[] = "\x02h2\x08http/1.1";
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, size, kOurs, sizeof kOurs - 1, offered, offered_size) !=
        OPENSSL_NPN_NEGOTIATED)
      return SSL_TLSEXT_ERR_NOACK;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
  }

  Status listen_tcp(const std::string& address) {
    size_t colon = address.rfind(':');
    std::string host = colon == address.npos ? address : address.substr(0, colon);
    std::string port = colon == address.npos ? "8000" : address.substr(colon + 1);
    if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    if (host.empty() || host == "*") host = "0.0.0.0";
    asio::io_context& io = loops_[0]->state.io;
    error_code ec;
    auto found = Tcp::resolver(io).resolve(host, port, Tcp::resolver::passive, ec);
    if (ec || found.empty())
      return error(Code::kIo, "cannot listen on {}: {}; give host:port, as in 127.0.0.1:8000", address,
                   ec.message());
    Tcp::endpoint endpoint = *found.begin();
    auto a = std::make_unique<Tcp::acceptor>(io);
    a->open(endpoint.protocol(), ec);
    if (!ec) a->set_option(Tcp::acceptor::reuse_address(true), ec);
    if (!ec) a->bind(endpoint, ec);
    if (!ec) a->listen(4096, ec);
    if (ec == boost::system::errc::address_in_use) {
      return error(Code::kIo,
                   "port {} on {} is in use; stop the other program or choose another port (0: any free one)",
                   port, host);
    }
    if (ec) return error(Code::kIo, "cannot listen on {}: {}", address, ec.message());
    Tcp::endpoint bound = a->local_endpoint(ec);
    std::string shown =
        bound.address().is_v6() ? "[" + bound.address().to_string() + "]" : bound.address().to_string();
    addresses_.push_back((state_.tls ? "https://" : "http://") + shown + ":" + std::to_string(bound.port()));
    acceptors_.push_back(std::move(a));
    return {};
  }

  Status listen_unix(const std::string& path) {
    struct stat st;
    // A socket nobody answers on was left behind by a server that died; anything else is not ours.
    if (::lstat(path.c_str(), &st) == 0) {
      if (!S_ISSOCK(st.st_mode)) return error(Code::kIo, "{} exists and is no socket", path);
      error_code ec;
      Local::socket probe(loops_[0]->state.io);
      probe.connect(Local::endpoint(path), ec);
      if (!ec) return error(Code::kIo, "{} is in use by another server", path);
      ::unlink(path.c_str());
    }
    error_code ec;
    unix_ = std::make_unique<Local::acceptor>(loops_[0]->state.io);
    unix_->open(Local(), ec);
    if (!ec) unix_->bind(Local::endpoint(path), ec);
    if (!ec) unix_->listen(4096, ec);
    if (ec) return error(Code::kIo, "cannot listen on {}: {}", path, ec.message());
    addresses_.push_back("unix:" + path);
    return {};
  }

  void accept(Tcp::acceptor& a) {
    LoopThread& loop = next_loop();
    a.async_accept(loop.state.io, [this, &a, &loop](const error_code& ec, Tcp::socket socket) {
      if (state_.closing) return;
      if (ec) return retry_later([this, &a] { accept(a); });
      error_code ignored;
      socket.set_option(Tcp::no_delay(true), ignored);
      Tcp::endpoint remote = socket.remote_endpoint(ignored);
      begin(loop, Socket(std::move(socket)), remote.address().to_string(), state_.tls != nullptr);
      accept(a);
    });
  }

  void accept_unix() {
    LoopThread& loop = next_loop();
    unix_->async_accept(loop.state.io, [this, &loop](const error_code& ec, Local::socket socket) {
      if (state_.closing) return;
      if (ec) return retry_later([this] { accept_unix(); });
      begin(loop, Socket(std::move(socket)), "unix", false);
      accept_unix();
    });
  }

  // Out of file descriptors, most likely: wait for some to come back instead of spinning.
  void retry_later(std::function<void()> again) {
    ++state_.counters.refused;
    auto timer = std::make_shared<asio::steady_timer>(loops_[0]->state.io);
    timer->expires_after(std::chrono::milliseconds(50));
    timer->async_wait([timer, again = std::move(again)](const error_code&) { again(); });
  }

  void begin(LoopThread& loop, Socket socket, std::string peer, bool tls) {
    ++state_.counters.accepted;
    if (state_.counters.open >= state_.options.limits.connections) {
      ++state_.counters.refused;  // closed by the destructor of `socket`
      return;
    }
    std::shared_ptr<Loop> handle = loops_[static_cast<size_t>(&loop == loops_[0].get() ? 0 : index_of(loop))];
    auto c =
        std::make_shared<Connection>(&state_, &loop.state, handle, std::move(socket), std::move(peer), tls);
    asio::post(loop.state.io, [c] { c->start(); });
  }

  size_t index_of(const LoopThread& loop) const {
    for (size_t i = 0; i < loops_.size(); ++i) {
      if (loops_[i].get() == &loop) return i;
    }
    return 0;
  }
  LoopThread& next_loop() { return *loops_[next_++ % loops_.size()]; }

  ServerState state_;
  std::vector<std::shared_ptr<LoopThread>> loops_;
  std::vector<std::unique_ptr<Tcp::acceptor>> acceptors_;
  std::unique_ptr<Local::acceptor> unix_;
  std::vector<std::string> addresses_;
  size_t next_ = 0;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Handler handler) {
  auto server = std::make_unique<Server>();
  if (Status s = server->open(std::move(options), std::move(handler)); !s.ok()) return s;
  server->running_ = true;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace deepinfer
