// The assembled server: engine, admission, endpoints, listeners, worker threads, started and ended in the
// right order. What `deepinfer serve` runs and what tests start inside their own process. Source: issue "the
// server"; serving specification 10.5. Errors: kInvalidConfig, kIo. Threads: one owner; service state may be
// looked at from any.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/otlp.h"
#include "apps/serve_config.h"
#include "apps/serve_engine.h"
#include "edge/http/server.h"
#include "edge/serve/service.h"
#include "fleet/admission.h"

namespace deepinfer {

// Threads that run tasks in the order they came.
class Workers {
 public:
  explicit Workers(int64_t threads);
  ~Workers();  // runs what is queued
  void run(std::function<void()> task);

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// The fleet's admission as the edge's gate.
class FleetGate : public AdmissionGate {
 public:
  explicit FleetGate(policy::AdmissionConfig limits) : control(limits) {}
  Answer admit(const Caller& caller, Work work) override;
  void started(uint64_t ticket) override { control.started(ticket); }
  void prefilled(int64_t uncached_tokens, int64_t prefill_ns) override {
    control.learn(uncached_tokens, prefill_ns);
  }
  void finished(uint64_t ticket, int64_t output_tokens) override;
  AdmissionControl control;
};

class RunningServer {
 public:
  // `listen` false: no listeners; requests come through handle() only.
  static Result<std::unique_ptr<RunningServer>> start(const ServeConfig& config, ServedModel model,
                                                      bool listen = true);
  ~RunningServer();

  const std::vector<std::string>& addresses() const { return http_->addresses(); }
  // A request from inside the process. Threads: the exchange's loop thread.
  void handle(std::shared_ptr<Exchange> exchange) { service_->handle(exchange); }
  Json info() const;
  ServeConfig config() const { return *config_->get(); }

  // Where settings are read again from; set before the first reload().
  void set_config_source(std::function<Result<ServeConfig>()> source) { source_ = std::move(source); }
  // Reads the settings, the keys and takes over what may change, all of it or nothing; names what changed.
  // kInvalidConfig with the reason. Threads: any.
  Result<std::vector<std::string>> reload();

  // Readiness off, new work is refused, unfinished answers have `grace_ns`. Calling it again with less
  // shortens.
  void drain(int64_t grace_ns);
  // Every answer is with its socket.
  bool drained() const;
  // Listeners closed, connections closed when what is written has been sent, at the latest after 2 s.
  void stop();

  Engine& engine() { return *model_.engine; }
  const EngineGenerator& generator() const { return *generator_; }
  const HttpCounters& http_counters() const { return http_->counters(); }
  std::shared_ptr<const Preparer> preparer() const { return preparer_->get(); }
  FleetGate& gate() { return *gate_; }
  ServeMetrics& metrics() { return metrics_; }
  Database& database() { return *database_; }
  EventLog& log() { return *log_; }

 private:
  RunningServer() = default;
  Status open(const ServeConfig& config, ServedModel model, bool listen);
  Result<std::vector<std::string>> take_over(const ServeConfig& next);
  Result<std::shared_ptr<const Preparer>> make_preparer(const ServeConfig& config) const;
  void set_queue_limits(const ServeConfig& config);
  ConstraintFactory make_constraints();  // and what counts its work

  std::shared_ptr<Snapshot<ServeConfig>> config_;
  std::function<Result<ServeConfig>()> source_;
  std::mutex reload_mutex_;
  ServedModel model_;
  ServeMetrics metrics_;
  LiveCalls live_;
  RecentRequests recent_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<OtlpExporter> spans_;
  std::unique_ptr<Database> database_;
  std::unique_ptr<FleetGate> gate_;
  std::shared_ptr<TurnMemory> turns_;  // null: off; stays when settings are read again
  std::shared_ptr<Snapshot<Preparer>> preparer_;
  std::unique_ptr<EngineGenerator> generator_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  bool stopped_ = false;
};

// The files of the console, compiled in; "/" first.
std::vector<StaticFile> console_files();

}  // namespace deepinfer
