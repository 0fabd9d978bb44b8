// Wiring of the server (apps/serve_run.h).
#include "apps/serve_run.h"

#include <algorithm>
#include <chrono>

#include "apps/serve_constraints.h"
#include "host/clock.h"
#include "host/files.h"
#include "host/thread_name.h"

namespace deepinfer {
namespace {

int64_t ns(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

Workers::Workers(int64_t threads) {
  for (int64_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      name_this_thread("edge-worker");
      loop();
    });
  }
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

Result<std::unique_ptr<RunningServer>> RunningServer::start(const ServeConfig& config, ServedModel model,
                                                            bool listen) {
  std::unique_ptr<RunningServer> server(new RunningServer());
  if (Status s = server->open(config, std::move(model), listen); !s.ok()) return s;
  return server;
}

namespace {

Result<ServiceSettings> service_settings(const ServeConfig& c) {
  ServiceSettings s;
  std::string text;
  if (!c.api_key_file.empty()) {
    DI_ASSIGN(text, read_file(c.api_key_file, int64_t{16} << 20));
  }
  DI_ASSIGN(s.keys, ApiKeys::parse(text, c.api_key_file, c.api_key));
  if (!c.api_key_file.empty() && !s.keys.required())
    return error(Code::kInvalidConfig, "{}: there is no key in it, so nobody could be served",
                 c.api_key_file);
  s.cors_origins = c.cors_origins;
  s.stall_ns = ns(c.stall_s);
  s.metric_names = c.metrics_names == "vllm"   ? MetricNames::kVllm
                   : c.metrics_names == "both" ? MetricNames::kBoth
                                               : MetricNames::kOwn;
  s.protect_metrics = c.protect_metrics;
  return s;
}

}  // namespace

Result<std::shared_ptr<const Preparer>> RunningServer::make_preparer(const ServeConfig& config) const {
  PrepareOptions p;
  p.encoder = std::make_shared<PromptEncoder>(*model_.tokenizer);
  DI_ASSIGN(p.control, ControlTokens::from_tokenizer(*model_.tokenizer));
  p.banned = banned_outputs(*model_.tokenizer, p.control);
  const Profile profile = profile_by_name(config.profile).value_or(Profile::kApi);
  p.convert = convert_options(profile);
  p.convert.max_n = static_cast<int>(config.max_choices);
  p.render = render_options(profile);
  p.models.served =
      config.served_model_name.empty() ? std::vector<std::string>{model_.name} : config.served_model_name;
  p.models.vendor_names = config.vendor_model_names;
  p.context_tokens = model_.engine->context_tokens();
  if (config.context_tokens > 0) p.context_tokens = std::min(p.context_tokens, config.context_tokens);
  p.max_output_tokens = config.max_output_tokens;
  p.vocab_size = model_.vocab_size;
  p.default_temperature = config.default_temperature;
  p.default_top_p = config.default_top_p;
  p.constrains = model_.grammars != nullptr;
  p.convert.required_with_thinking = config.thinking_tool_choice && p.constrains;
  p.turns = turns_;
  return std::shared_ptr<const Preparer>(std::make_shared<Preparer>(std::move(p)));
}

ConstraintFactory RunningServer::make_constraints() {
  if (turns_) {
    metrics_.turn_events = [turns = turns_]() -> std::map<std::string, int64_t> {
      const TurnMemory::Counters c = turns->counters();
      return {{"remembered", c.remembered}, {"hit", c.hits}, {"miss", c.misses}};
    };
  }
  if (!model_.grammars) return {};
  metrics_.grammar_events = [g = model_.grammars]() -> std::map<std::string, int64_t> {
    const grammar::CompileService::Counters c = g->counters();
    auto n = [](uint64_t v) { return static_cast<int64_t>(v); };
    return {{"requested", n(c.requests)}, {"cache_hit", n(c.cache_hits)},
            {"joined", n(c.joined)},      {"compiled", n(c.compiled)},
            {"failed", n(c.failed)},      {"cancelled", n(c.cancelled)},
            {"queue_full", n(c.refused)}, {"over_allowance", n(c.over_allowance)},
            {"evicted", n(c.evicted)},    {"relaxed", g->relaxed()}};
  };
  return [g = model_.grammars](const ConstraintSpec& spec, const std::string& tenant, ConstraintDone done) {
    return g->request(spec, tenant, [done = std::move(done)](GrammarFactory::Made made) {
      if (!made.ok()) return done(made.status());
      done(std::shared_ptr<const void>(std::move(*made)));
    });
  };
}

namespace {

HttpServerOptions http_options(const ServeConfig& c) {
  HttpServerOptions h;
  h.listen = c.listen;
  h.unix_path = c.unix_socket;
  h.tls_certificate = c.tls_certificate;
  h.tls_key = c.tls_key;
  h.tls_client_ca = c.tls_client_ca;
  h.threads = static_cast<int>(c.http_threads);
  h.limits.header_bytes = c.max_header_bytes;
  h.limits.body_bytes = c.max_body_bytes;
  h.limits.stream_buffer_bytes = c.stream_buffer_bytes;
  h.http2 = c.http2;
  h.limits.h2_streams = c.http2_streams;
  h.limits.connections = c.max_connections;
  h.limits.header_ns = ns(c.header_timeout_s);
  h.limits.body_ns = ns(c.body_timeout_s);
  h.limits.idle_ns = ns(c.idle_timeout_s);
  h.limits.write_ns = ns(c.write_timeout_s);
  h.limits.keep_alive_ns = ns(c.keep_alive_s);
  h.error_body = [](int status, const std::string& message) {
    ErrorReply e{status, message, "invalid_request_error", "http_" + std::to_string(status), 0};
    return error_response(e, Protocol::kChat).body;
  };
  return h;
}

}  // namespace

void RunningServer::set_queue_limits(const ServeConfig& c) {
  constexpr double kNoLimit = 1e18;
  gate_->control.set_queue_limits(c.max_queued_requests, c.max_queued_tokens,
                                  c.max_queue_s > 0 ? c.max_queue_s * 1e9 : kNoLimit);
}

Status RunningServer::open(const ServeConfig& config, ServedModel model, bool listen) {
  const ServeConfig& c = config;
  DI_TRY(validate(c));
  config_ = std::make_shared<Snapshot<ServeConfig>>(std::make_shared<const ServeConfig>(c));
  model_ = std::move(model);
  DI_ASSIGN(ServiceSettings settings, service_settings(c));
  DI_ASSIGN(log_, EventLog::open({c.log_format == "json", c.log_file, c.log_level}));
  if (!c.otlp_endpoint.empty()) {
    DI_ASSIGN(spans_, OtlpExporter::open(c.otlp_endpoint, DEEPINFER_VERSION));
  }
  DatabaseOptions d;
  d.path = c.database;
  d.most_responses = std::max<int64_t>(1, c.max_responses);
  d.recover = true;
  DI_ASSIGN(database_, Database::open(std::move(d)));
  policy::AdmissionConfig admission;
  admission.context_tokens = model_.engine->context_tokens();
  gate_ = std::make_unique<FleetGate>(admission);
  set_queue_limits(c);
  if (c.turn_memory_bytes > 0)
    turns_ = std::make_shared<TurnMemory>(static_cast<size_t>(c.turn_memory_bytes));
  DI_ASSIGN(std::shared_ptr<const Preparer> preparer, make_preparer(c));
  preparer_ = std::make_shared<Snapshot<Preparer>>(std::move(preparer));
  generator_ =
      std::make_unique<EngineGenerator>(model_.engine.get(), static_cast<int64_t>(c.stream_gap_ms * 1e6));
  workers_ = std::make_unique<Workers>(c.workers);

  CallServices calls;
  calls.generator = generator_.get();
  calls.preparer = preparer_;
  calls.constraints = make_constraints();
  calls.gate = gate_.get();
  calls.metrics = &metrics_;
  calls.log = log_.get();
  calls.database = database_.get();
  calls.live = &live_;
  calls.recent = &recent_;
  calls.spans = spans_.get();
  calls.background = [this](std::function<void()> task) { workers_->run(std::move(task)); };
  calls.fingerprint = "deepinfer-" DEEPINFER_VERSION;
  ServiceOptions s;
  s.version = DEEPINFER_VERSION;
  s.created = wall_time_ns() / 1'000'000'000;
  s.slots = c.max_running;
  s.server_info = [this] { return info(); };
  s.reload = [this]() -> Result<Json> {
    DI_ASSIGN(std::vector<std::string> changed, reload());
    return Json{{"changed", std::move(changed)}};
  };
  s.http = [this] {
    if (http_ == nullptr) return HttpGauges{};
    const HttpCounters& h = http_->counters();
    return HttpGauges{h.accepted,       h.refused,    h.open,      h.timeouts, h.slow_readers,
                      h.h2_connections, h.h2_streams, h.h2_resets, h.h2_floods};
  };
  s.files = console_files();
  service_ = std::make_unique<Service>(std::move(s), std::move(calls), std::move(settings));

  if (!listen) return {};
  HttpServerOptions h = http_options(c);
  h.on_end = [this](const ExchangeRecord& r) { service_->on_end(r); };
  DI_ASSIGN(http_,
            HttpServer::start(std::move(h), [this](std::shared_ptr<Exchange> e) { service_->handle(e); }));
  log_->info("started", {{"addresses", http_->addresses()},
                         {"model", preparer_->get()->options().models.served.front()},
                         {"engine", c.engine},
                         {"context_tokens", preparer_->get()->options().context_tokens},
                         {"keys_required", !c.api_key.empty() || !c.api_key_file.empty()}});
  return {};
}

Result<std::vector<std::string>> RunningServer::reload() {
  std::lock_guard lock(reload_mutex_);
  auto changed = source_ ? [&]() -> Result<std::vector<std::string>> {
    DI_ASSIGN(ServeConfig next, source_());
    return take_over(next);
  }()
      : Result<std::vector<std::string>>(
            error(Code::kUnsupported, "this server was started without settings that can be read again"));
  if (changed.ok()) {
    log_->info("settings_read", {{"changed", *changed}});
  } else {
    log_->write(EventLog::Level::kError, "settings_refused", {{"why", changed.status().message()}});
  }
  return changed;
}

Result<std::vector<std::string>> RunningServer::take_over(const ServeConfig& next) {
  DI_TRY(validate(next));
  DI_ASSIGN(std::vector<std::string> changed, live_changes(config(), next));
  // Everything that can fail comes before anything that changes.
  DI_ASSIGN(ServiceSettings settings, service_settings(next));
  DI_ASSIGN(std::shared_ptr<const Preparer> preparer, make_preparer(next));
  DI_TRY(log_->reopen());
  log_->set_level(next.log_level);
  set_queue_limits(next);
  service_->set_settings(std::move(settings));
  preparer_->set(std::move(preparer));
  config_->set(std::make_shared<const ServeConfig>(next));
  return changed;
}

Json RunningServer::info() const {
  const auto preparer = preparer_->get();
  return {{"version", DEEPINFER_VERSION},
          {"model", preparer->options().models.served.front()},
          {"served_model_names", preparer->options().models.served},
          {"addresses", http_ ? Json(http_->addresses()) : Json::array()},
          {"context_tokens", preparer->options().context_tokens},
          {"vocab_size", model_.vocab_size},
          {"structured_output", model_.grammars != nullptr},
          {"config", config_json(config())}};
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
  if (model_.grammars) model_.grammars->stop();
  http_.reset();
}

}  // namespace deepinfer
