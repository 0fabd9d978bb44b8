// Sends spans as OTLP over HTTP with JSON to a collector, from a thread of its own. A collector that does not
// answer costs spans, never a request's time. Source: OpenTelemetry protocol 1. Threads: add() from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "apps/http_client.h"
#include "edge/serve/trace.h"
#include "text/json.h"

namespace deepinfer {

// The body of an export request.
Json otlp_json(const std::vector<TraceSpan>& spans, const std::string& version);

class OtlpExporter : public SpanSink {
 public:
  // `url`: the collector, as in http://127.0.0.1:4318; /v1/traces is added. kInvalidArgument for another
  // scheme.
  static Result<std::unique_ptr<OtlpExporter>> open(const std::string& url, std::string version);
  ~OtlpExporter() override;  // tries once more to send what is left
  void add(std::vector<TraceSpan> spans) override;
  int64_t dropped() const { return dropped_; }

 private:
  OtlpExporter(HttpClient client, std::string version);
  void loop();

  HttpClient client_;
  std::string version_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<TraceSpan> waiting_;
  bool stop_ = false;
  std::atomic<int64_t> dropped_{0};
  std::thread thread_;
};

}  // namespace deepinfer
