// The server's endpoints: which path does what, who may call it, and the small answers. Generation itself is
// GenerationCall. Source: issue "the server"; request edge specification 4.4, 7; peers' interfaces. Threads:
// handle() on loop threads; the rest from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "edge/http/server.h"
#include "edge/serve/call.h"

namespace deepinfer {

struct StaticFile {
  const char* path;
  const char* content_type;
  std::string_view bytes;
};

// What may change while the server runs.
struct ServiceSettings {
  std::vector<std::string> cors_origins;  // "*": any
  int64_t stall_ns = 30'000'000'000;      // work without a step for so long: not ready
  MetricNames metric_names = MetricNames::kOwn;
  bool protect_metrics = false;  // with keys: /metrics and the live view need one too
  ApiKeys keys;
};

struct ServiceOptions {
  std::string version;
  int64_t created = 0;  // seconds; of the model list
  int64_t slots = 1;    // choices computed at a time
  std::function<Json()> server_info;
  std::function<Result<Json>()> reload;  // reads the settings again; what changed. On a worker
  std::function<HttpGauges()> http;
  std::vector<StaticFile> files;  // the console; "/" is the first one
};

class Service {
 public:
  // Everything pointed to outlives the service.
  Service(ServiceOptions options, CallServices calls, ServiceSettings settings);

  void handle(const std::shared_ptr<Exchange>& exchange);
  void on_end(const ExchangeRecord& record);  // for HttpServerOptions::on_end

  void set_draining() { draining_ = true; }
  // From the next request on.
  void set_settings(ServiceSettings settings) {
    settings_.set(std::make_shared<const ServiceSettings>(std::move(settings)));
  }

  enum class Progress { kIdle, kOk, kStalled };
  Progress progress(const EngineView& view) const;
  Json health() const;
  bool ready(std::string* why) const;

 private:
  struct Context {
    std::shared_ptr<Exchange> exchange;
    Caller caller;
    std::string request_id;
    Protocol protocol = Protocol::kChat;
    std::string rest;  // of the path, behind the route's prefix
  };
  using Action = void (Service::*)(Context&);
  struct Route {
    const char* method;
    const char* path;  // a trailing '/' matches every path below it
    bool open;         // no key needed
    Action action;
  };
  static const std::vector<Route>& routes();

  bool cors(Exchange& exchange);
  void generate(Context& c, Endpoint endpoint);
  void chat(Context& c) { generate(c, Endpoint::kChat); }
  void responses(Context& c) { generate(c, Endpoint::kResponses); }
  void messages(Context& c) { generate(c, Endpoint::kMessages); }
  void completions(Context& c) { generate(c, Endpoint::kCompletions); }
  void generate_text(Context& c) { generate(c, Endpoint::kGenerate); }
  void response_get(Context& c);
  void response_delete(Context& c);
  void response_post(Context& c);
  void count_tokens(Context& c);
  void tokenize(Context& c);
  void detokenize(Context& c);
  void render(Context& c);
  void models(Context& c);
  void model(Context& c);
  void live(Context& c);
  void readiness(Context& c);
  void progress_answer(Context& c);
  void metrics(Context& c);
  void info(Context& c);
  void reload(Context& c);
  void version(Context& c);
  void ping(Context& c);
  void load(Context& c);
  void props(Context& c);
  void slots(Context& c);
  void flush_cache(Context& c);
  void state(Context& c);
  void recent(Context& c);
  void tokenizer_info(Context& c);
  void abort_request(Context& c);
  void unsupported(Context& c);
  bool serve_file(Exchange& exchange, const std::string& path);

  // Runs `work` on a worker with the parsed body; its JSON text is the answer.
  void answer_from_body(Context& c, std::function<Result<std::string>(const Json&)> work);
  void refuse(Exchange& exchange, const ErrorReply& reply, Protocol protocol);
  static void json(Exchange& exchange, const Json& value, int status = 200);

  std::shared_ptr<const ServiceSettings> settings() const { return settings_.get(); }

  ServiceOptions o_;
  CallServices calls_;
  Snapshot<ServiceSettings> settings_;
  std::atomic<bool> draining_{false};
};

}  // namespace deepinfer
