// Wiring of the server (apps/serve_run.h).
#include "apps/serve_run.h"

#include <algorithm>
#include <chrono>

#include "host/clock.h"
#include "host/files.h"

namespace deepinfer {
namespace {

int64_t ns(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

Workers::Workers(int64_t threads) {
  for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
}

Workers::~Workers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Workers::run(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ready_.notify_one();
}

void Workers::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

AdmissionGate::Answer FleetGate::admit(const Caller& c, int64_t prompt, int64_t most) {
  TenantQuota quota{c.requests_per_minute, c.tokens_per_minute, c.concurrent};
  AdmissionControl::Decision d = control.admit(c.tenant, quota, prompt, most, now_ns());
  Answer a;
  a.admitted = d.reason == AdmissionReason::kAdmitted;
  a.overloaded = d.reason == AdmissionReason::kQueueRequests || d.reason == AdmissionReason::kQueueTokens ||
                 d.reason == AdmissionReason::kDraining;
  a.never = d.reason == AdmissionReason::kTooLargeForQuota;
  a.reason = name(d.reason);
  a.retry_after_ns = d.retry_after_ns;
  a.ticket = d.ticket;
  return a;
}

Result<std::unique_ptr<RunningServer>> RunningServer::start(const ServeConfig& config, ServedModel model,
                                                            bool listen) {
  std::unique_ptr<RunningServer> server(new RunningServer());
  if (Status s = server->open(config, std::move(model), listen); !s.ok()) return s;
  return server;
}

Status RunningServer::open_keys(ApiKeys* keys) const {
  std::string text;
  if (!config_.api_key_file.empty()) {
    DI_ASSIGN(text, read_file(config_.api_key_file, int64_t{16} << 20));
  }
  DI_ASSIGN(*keys, ApiKeys::parse(text, config_.api_key_file, config_.api_key));
  if (!config_.api_key_file.empty() && !keys->required())
    return error(Code::kInvalidConfig, "{}: there is no key in it, so nobody could be served",
                 config_.api_key_file);
  return {};
}

std::shared_ptr<Preparer> RunningServer::make_preparer(Status* status) const {
  PrepareOptions p;
  p.encoder = std::make_shared<PromptEncoder>(*model_.tokenizer);
  auto control = ControlTokens::from_tokenizer(*model_.tokenizer);
  if (!control.ok()) {
    *status = control.status();
    return nullptr;
  }
  p.control = *control;
  p.banned = banned_outputs(*model_.tokenizer, p.control);
  const Profile profile = profile_by_name(config_.profile).value_or(Profile::kApi);
  p.convert = convert_options(profile);
  p.convert.max_n = static_cast<int>(config_.max_choices);
  p.render = render_options(profile);
  p.models.served =
      config_.served_model_name.empty() ? std::vector<std::string>{model_.name} : config_.served_model_name;
  p.models.vendor_names = config_.vendor_model_names;
  p.context_tokens = model_.engine->context_tokens();
  if (config_.context_tokens > 0) p.context_tokens = std::min(p.context_tokens, config_.context_tokens);
  p.max_output_tokens = config_.max_output_tokens;
  p.vocab_size = model_.vocab_size;
  p.default_temperature = config_.default_temperature;
  p.default_top_p = config_.default_top_p;
  if (model_.constraints) {
    p.make_constraint =
        [make = model_.constraints](const ConstraintSpec& spec) -> Result<std::shared_ptr<const void>> {
      DI_ASSIGN(std::shared_ptr<const TokenConstraint> made, make(spec));
      return std::shared_ptr<const void>(std::move(made));
    };
  }
  return std::make_shared<Preparer>(std::move(p));
}

HttpServerOptions RunningServer::http_options() const {
  HttpServerOptions h;
  h.listen = config_.listen;
  h.unix_path = config_.unix_socket;
  h.tls_certificate = config_.tls_certificate;
  h.tls_key = config_.tls_key;
  h.tls_client_ca = config_.tls_client_ca;
  h.threads = static_cast<int>(config_.http_threads);
  h.limits.header_bytes = config_.max_header_bytes;
  h.limits.body_bytes = config_.max_body_bytes;
  h.limits.stream_buffer_bytes = config_.stream_buffer_bytes;
  h.limits.connections = config_.max_connections;
  h.limits.header_ns = ns(config_.header_timeout_s);
  h.limits.body_ns = ns(config_.body_timeout_s);
  h.limits.idle_ns = ns(config_.idle_timeout_s);
  h.limits.write_ns = ns(config_.write_timeout_s);
  h.limits.keep_alive_ns = ns(config_.keep_alive_s);
  h.error_body = [](int status, const std::string& message) {
    ErrorReply e{status, message, "invalid_request_error", "http_" + std::to_string(status), 0};
    return error_response(e, Protocol::kChat).body;
  };
  return h;
}

Status RunningServer::open(const ServeConfig& config, ServedModel model, bool listen) {
  config_ = config;
  DI_TRY(validate(config_));
  model_ = std::move(model);
  ApiKeys keys;
  DI_TRY(open_keys(&keys));
  DI_ASSIGN(log_, EventLog::open({config_.log_format == "json", config_.log_file, config_.log_level}));
  if (!config_.otlp_endpoint.empty()) {
    DI_ASSIGN(spans_, OtlpExporter::open(config_.otlp_endpoint, DEEPINFER_VERSION));
  }
  DatabaseOptions d;
  d.path = config_.database;
  d.most_responses = std::max<int64_t>(1, config_.max_responses);
  DI_ASSIGN(database_, Database::open(std::move(d)));
  gate_ = std::make_unique<FleetGate>(QueueLimits{config_.max_queued_requests, config_.max_queued_tokens});
  Status status;
  preparer_ = make_preparer(&status);
  DI_TRY(status);
  generator_ = std::make_unique<EngineGenerator>(model_.engine.get());
  workers_ = std::make_unique<Workers>(config_.workers);

  CallServices calls;
  calls.generator = generator_.get();
  calls.preparer = preparer_.get();
  calls.gate = gate_.get();
  calls.metrics = &metrics_;
  calls.log = log_.get();
  calls.database = database_.get();
  calls.live = &live_;
  calls.spans = spans_.get();
  calls.background = [this](std::function<void()> task) { workers_->run(std::move(task)); };
  calls.fingerprint = "deepinfer-" DEEPINFER_VERSION;
  ServiceOptions s;
  s.version = DEEPINFER_VERSION;
  s.cors_origins = config_.cors_origins;
  s.stall_ns = ns(config_.stall_s);
  s.metric_names = config_.metrics_names == "vllm"   ? MetricNames::kVllm
                   : config_.metrics_names == "both" ? MetricNames::kBoth
                                                     : MetricNames::kOwn;
  s.protect_metrics = config_.protect_metrics;
  s.created = wall_time_ns() / 1'000'000'000;
  s.server_info = [this] { return info(); };
  s.http = [this] {
    if (http_ == nullptr) return HttpGauges{};
    const HttpCounters& c = http_->counters();
    return HttpGauges{c.accepted, c.refused, c.open, c.timeouts, c.slow_readers};
  };
  s.files = console_files();
  service_ = std::make_unique<Service>(std::move(s), std::move(calls), std::move(keys));

  if (!listen) return {};
  HttpServerOptions h = http_options();
  h.on_end = [this](const ExchangeRecord& r) { service_->on_end(r); };
  DI_ASSIGN(http_,
            HttpServer::start(std::move(h), [this](std::shared_ptr<Exchange> e) { service_->handle(e); }));
  log_->info("started", {{"addresses", http_->addresses()},
                         {"model", preparer_->options().models.served.front()},
                         {"engine", config_.engine},
                         {"context_tokens", preparer_->options().context_tokens},
                         {"keys_required", !config_.api_key.empty() || !config_.api_key_file.empty()}});
  return {};
}

Json RunningServer::info() const {
  return {{"version", DEEPINFER_VERSION},
          {"model", preparer_->options().models.served.front()},
          {"served_model_names", preparer_->options().models.served},
          {"addresses", http_ ? Json(http_->addresses()) : Json::array()},
          {"context_tokens", preparer_->options().context_tokens},
          {"vocab_size", model_.vocab_size},
          {"structured_output", model_.constraints != nullptr},
          {"config", config_json(config_)}};
}

void RunningServer::drain(int64_t grace_ns) {
  service_->set_draining();
  gate_->control.drain();
  model_.engine->drain(grace_ns);
  log_->info("draining", {{"grace_ms", grace_ns / 1'000'000}, {"requests", metrics_.in_flight.load()}});
}

bool RunningServer::drained() const {
  return model_.engine->drained() && generator_->open() == 0 && metrics_.in_flight == 0;
}

void RunningServer::stop() {
  if (stopped_) return;
  stopped_ = true;
  if (http_) {
    http_->close_listeners();
    for (int i = 0; i < 200 && http_->counters().open > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    http_->stop();
  }
  if (log_) log_->info("stopped", Json::object());
}

RunningServer::~RunningServer() {
  stop();
  // Tasks of workers and events of the engine still reach calls; both end before what calls use, and the
  // server's loops run what was posted to them before they go.
  workers_.reset();
  if (generator_) generator_->stop();
  http_.reset();
}

}  // namespace deepinfer
