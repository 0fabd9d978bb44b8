// The output is written line by line and flushed, so that a killed run loses at most a torn last line, which
// the next run cuts off.
#include "apps/batch_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "edge/writer.h"
#include "host/clock.h"
#include "text/json.h"

namespace deepinfer {
namespace {

// The caller's thread as an event loop.
class CallerLoop : public Loop {
 public:
  void post(std::function<void()> task) override {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    ready_.notify_one();
  }
  // Runs what was posted; waits up to 100 ms for the first.
  void run() {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      ready_.wait_for(lock, std::chrono::milliseconds(100), [&] { return !tasks_.empty(); });
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
};

class OfflineExchange : public Exchange {
 public:
  OfflineExchange(HttpRequest request, std::shared_ptr<Loop> loop, std::function<void(HttpResponse)> done)
      : request_(std::move(request)), loop_(std::move(loop)), done_(std::move(done)) {}

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  std::shared_ptr<Loop> loop() const override { return loop_; }
  void add_header(std::string, std::string) override {}
  void respond(HttpResponse response) override {
    if (ended_) return;
    ended_ = true;
    // The answer is looked at after the call that gave it has returned.
    loop_->post([done = std::move(done_), r = std::move(response)]() mutable { done(std::move(r)); });
  }
  // Nothing streams here: the body's "stream" was taken out.
  void begin_stream(int status, std::string, std::string) override {
    respond({status, "text/plain", {}, {}});
  }
  bool write(std::string_view) override { return false; }
  void finish() override {}
  void abort() override { respond({500, "text/plain", {}, {}}); }
  bool ended() const override { return ended_; }
  bool streaming() const override { return false; }
  void on_abandoned(std::function<void(ExchangeEnd)> callback) override { abandoned_ = std::move(callback); }

  void give_up() {
    if (ended_) return;
    ended_ = true;
    done_ = nullptr;
    if (abandoned_) abandoned_(ExchangeEnd::kClientLeft);
  }

 private:
  HttpRequest request_;
  std::shared_ptr<Loop> loop_;
  std::function<void(HttpResponse)> done_;
  std::function<void(ExchangeEnd)> abandoned_;
  bool ended_ = false;
};

Status io_error(const std::string& path, const char* what) {
  return error(Code::kIo, "{}: cannot be {}: {}", path, what, std::strerror(errno));
}

// An answer that another try would not change.
bool is_final(const Json& answer) {
  auto r = answer.find("response");
  if (r == answer.end() || !r->is_object()) return true;  // a line that is no request
  int status = r->value("status_code", 0);
  return status == 200 || (status >= 400 && status < 500 && status != 408 && status != 429);
}

// What an earlier run answered. Torn and transient answers are taken out of the file.
Result<std::set<std::string>> read_output(const std::string& path) {
  std::set<std::string> done;
  std::ifstream in(path, std::ios::binary);
  if (!in) return done;
  std::string kept = path + ".partial";
  std::ofstream out(kept, std::ios::binary | std::ios::trunc);
  if (!out) return io_error(kept, "written");
  bool changed = false;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    bool torn = in.eof();  // without its line feed
    Result<Json> j = parse_json(line);
    bool good =
        !torn && j.ok() && j->is_object() && j->contains("custom_id") && (*j)["custom_id"].is_string();
    if (!good && !torn)
      return error(Code::kInvalidData,
                   "{}:{}: not an answer of `deepinfer batch`; give another output file, or remove this one",
                   path, number);
    if (!good || !is_final(*j)) {
      changed = true;
      continue;
    }
    done.insert((*j)["custom_id"].get<std::string>());
    out << line << '\n';
  }
  out.close();
  if (!out) return io_error(kept, "written");
  if (!changed) {
    std::remove(kept.c_str());
  } else if (std::rename(kept.c_str(), path.c_str()) != 0) {
    return io_error(path, "replaced");
  }
  return done;
}

struct Line {
  std::string custom_id, url;
  Json body;
};

const char* guess_url(const Json& body) {
  if (body.contains("messages")) return "/v1/chat/completions";
  if (body.contains("input")) return "/v1/responses";
  return body.contains("prompt") ? "/v1/completions" : nullptr;
}

Result<Line> read_line(const std::string& text, int64_t number, const std::string& model) {
  DI_ASSIGN(Json j, parse_json(text));
  if (!j.is_object()) return error(Code::kInvalidArgument, "a line must be a JSON object");
  Line l;
  l.custom_id = fmt::format("line-{}", number);
  if (auto id = j.find("custom_id"); id != j.end()) {
    if (!id->is_string() || id->get<std::string>().empty())
      return error(Code::kInvalidArgument, "custom_id must be a string that is not empty");
    l.custom_id = id->get<std::string>();
    j.erase("custom_id");
  }
  if (j.contains("body")) {
    if (!j["body"].is_object()) return error(Code::kInvalidArgument, "body must be an object");
    if (j.contains("method") && j["method"] != "POST")
      return error(Code::kInvalidArgument, "method must be POST");
    l.body = j["body"];
    if (j.contains("url") && j["url"].is_string()) l.url = j["url"].get<std::string>();
  } else {
    l.body = std::move(j);
  }
  if (l.url.empty()) {
    const char* url = guess_url(l.body);
    if (url == nullptr)
      return error(Code::kInvalidArgument, "no url, and no messages, input or prompt to tell it from");
    l.url = url;
  }
  static const std::set<std::string> kUrls{"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                           "/v1/messages"};
  if (kUrls.count(l.url) == 0)
    return error(Code::kInvalidArgument, "url {} is none that a batch can use", l.url);
  if (!l.body.contains("model")) l.body["model"] = model;
  l.body["stream"] = false;  // there is nobody to stream to
  l.body.erase("stream_options");
  return l;
}

int64_t output_tokens(const Json& body) {
  auto usage = body.find("usage");
  if (usage == body.end() || !usage->is_object()) return 0;
  for (const char* key : {"completion_tokens", "output_tokens"}) {
    if (auto n = usage->find(key); n != usage->end() && n->is_number_integer()) return n->get<int64_t>();
  }
  return 0;
}

class Batch {
 public:
  Batch(const std::function<void(std::shared_ptr<Exchange>)>& handle, const BatchOptions& options)
      : handle_(handle), o_(options), loop_(std::make_shared<CallerLoop>()) {}

  Result<BatchCounts> run(const std::string& in_path, const std::string& out_path) {
    std::ifstream in(in_path, std::ios::binary);
    if (!in) return io_error(in_path, "read");
    DI_ASSIGN(done_, read_output(out_path));
    out_ = std::fopen(out_path.c_str(), "ab");
    if (out_ == nullptr) return io_error(out_path, "written");
    Status s = feed(&in, in_path);
    while (!live_.empty() && s.ok()) s = wait();
    if (std::fclose(out_) != 0 && s.ok()) s = io_error(out_path, "written");
    if (!s.ok()) {
      give_up();
      return s;
    }
    return counts_;
  }

 private:
  Status feed(std::ifstream* in, const std::string& in_path) {
    int64_t number = 0;
    for (std::string text; !counts_.stopped && std::getline(*in, text);) {
      ++number;
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      ++counts_.lines;
      Result<Line> line =
          static_cast<int64_t>(text.size()) > o_.line_limit_bytes
              ? Result<Line>(error(Code::kInvalidArgument, "a line of {} bytes; {} is the most", text.size(),
                                   o_.line_limit_bytes))
              : read_line(text, number, o_.model);
      if (!line.ok()) {
        std::string id = fmt::format("line-{}", number);
        if (done_.count(id) > 0) {
          ++counts_.kept;
        } else {
          DI_TRY(refuse(id, fmt::format("{}:{}: {}", in_path, number, line.status().message())));
        }
        continue;
      }
      if (done_.count(line->custom_id) > 0) {
        ++counts_.kept;
        continue;
      }
      if (!seen_.insert(line->custom_id).second) {
        DI_TRY(refuse(fmt::format("line-{}", number), fmt::format("{}:{}: the custom_id {} was used before",
                                                                  in_path, number, line->custom_id)));
        continue;
      }
      send(std::move(*line));
      while (static_cast<int64_t>(live_.size()) >= o_.concurrency) DI_TRY(wait());
    }
    return in->bad() ? io_error(in_path, "read") : Status();
  }

  void send(Line line) {
    HttpRequest r;
    r.method = "POST";
    r.path = line.url;
    r.headers = {{"content-type", "application/json"}};
    append_json(line.body, JsonStyle::kCompact, &r.body);
    r.peer = "batch";
    r.received_ns = now_ns();
    int64_t number = ++sent_;
    auto exchange = std::make_shared<OfflineExchange>(
        std::move(r), loop_,
        [this, number, id = line.custom_id](HttpResponse a) { take(number, id, std::move(a)); });
    live_[number] = exchange;
    handle_(exchange);
  }

  Status wait() {
    loop_->run();
    if (!told()) give_up();
    return failure_;
  }
  bool told() {
    if (counts_.stopped) return true;
    counts_.stopped = o_.progress && !o_.progress(counts_);
    return !counts_.stopped;
  }
  void give_up() {
    auto live = std::move(live_);
    live_.clear();
    for (auto& [number, exchange] : live) exchange->give_up();
  }

  void take(int64_t number, const std::string& id, HttpResponse answer) {
    if (live_.erase(number) == 0) return;
    Json body;
    if (Result<Json> j = parse_json(answer.body); j.ok()) body = std::move(*j);
    bool good = answer.status == 200 && body.is_object();
    ++(good ? counts_.answered : counts_.failed);
    if (good) counts_.output_tokens += output_tokens(body);
    Json line = {{"id", fmt::format("batch_req_{}", number)},
                 {"custom_id", id},
                 {"response",
                  {{"status_code", answer.status},
                   {"request_id", fmt::format("req_{}", number)},
                   {"body", std::move(body)}}},
                 {"error", nullptr}};
    if (Status s = write(line); failure_.ok()) failure_ = s;
  }

  Status refuse(const std::string& id, const std::string& message) {
    ++counts_.failed;
    return write({{"id", fmt::format("batch_req_{}", ++sent_)},
                  {"custom_id", id},
                  {"response", nullptr},
                  {"error", {{"code", "invalid_line"}, {"message", message}}}});
  }

  Status write(const Json& line) {
    std::string text;
    append_json(line, JsonStyle::kCompact, &text);
    text += '\n';
    if (std::fwrite(text.data(), 1, text.size(), out_) != text.size() || std::fflush(out_) != 0)
      return io_error("the output", "written");
    return {};
  }

  const std::function<void(std::shared_ptr<Exchange>)>& handle_;
  const BatchOptions& o_;
  std::shared_ptr<CallerLoop> loop_;
  std::set<std::string> done_, seen_;
  std::map<int64_t, std::shared_ptr<OfflineExchange>> live_;
  FILE* out_ = nullptr;
  int64_t sent_ = 0;
  BatchCounts counts_;
  Status failure_;
};

}  // namespace

Result<BatchCounts> run_batch(const std::function<void(std::shared_ptr<Exchange>)>& handle,
                              const std::string& in_path, const std::string& out_path,
                              const BatchOptions& options) {
  return Batch(handle, options).run(in_path, out_path);
}

}  // namespace deepinfer
