// The exporting thread of apps/otlp.h.
#include "apps/otlp.h"

#include <chrono>

#include "host/clock.h"

namespace deepinfer {
namespace {
constexpr size_t kMostWaiting = 10'000, kBatch = 500;
constexpr auto kDelay = std::chrono::milliseconds(500);
constexpr int64_t kPatienceNs = 3'000'000'000;
}  // namespace

Json otlp_json(const std::vector<TraceSpan>& spans, const std::string& version) {
  auto text = [](const std::string& key, const std::string& v) {
    return Json{{"key", key}, {"value", {{"stringValue", v}}}};
  };
  Json list = Json::array();
  for (const TraceSpan& s : spans) {
    Json attributes = Json::array();
    for (const auto& [key, v] : s.texts) attributes.push_back(text(key, v));
    for (const auto& [key, v] : s.numbers)
      attributes.push_back({{"key", key}, {"value", {{"intValue", std::to_string(v)}}}});
    Json one = {{"traceId", s.trace_id}, {"spanId", s.span_id}};
    if (!s.parent_id.empty()) one["parentSpanId"] = s.parent_id;
    one["name"] = s.name;
    one["kind"] = 2;  // a server's
    one["startTimeUnixNano"] = std::to_string(s.begin_ns);
    one["endTimeUnixNano"] = std::to_string(s.end_ns);
    one["attributes"] = std::move(attributes);
    list.push_back(std::move(one));
  }
  Json scope = {{"scope", {{"name", "deepinfer"}, {"version", version}}}, {"spans", std::move(list)}};
  return {{"resourceSpans",
           Json::array({{{"resource", {{"attributes", Json::array({text("service.name", "deepinfer")})}}},
                         {"scopeSpans", Json::array({std::move(scope)})}}})}};
}

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::open(const std::string& url, std::string version) {
  DI_ASSIGN(HttpClient client, HttpClient::open(url, ""));
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(std::move(client), std::move(version)));
}

OtlpExporter::OtlpExporter(HttpClient client, std::string version)
    : client_(std::move(client)), version_(std::move(version)) {
  thread_ = std::thread([this] { loop(); });
}

OtlpExporter::~OtlpExporter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  thread_.join();
}

void OtlpExporter::add(std::vector<TraceSpan> spans) {
  std::lock_guard lock(mutex_);
  for (TraceSpan& s : spans) {
    if (waiting_.size() >= kMostWaiting) {
      ++dropped_;
      continue;
    }
    waiting_.push_back(std::move(s));
  }
  ready_.notify_one();
}

void OtlpExporter::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    if (!stop_) ready_.wait_for(lock, kDelay, [&] { return stop_ || waiting_.size() >= kBatch; });
    std::vector<TraceSpan> batch;
    while (!waiting_.empty() && batch.size() < kBatch) {
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    const bool last = stop_;
    lock.unlock();
    std::string body;
    append_json(otlp_json(batch, version_), JsonStyle::kCompact, &body);
    const int64_t end = now_ns() + kPatienceNs;
    auto answer = client_.request("POST", "/v1/traces", body, {}, [&] { return now_ns() < end; });
    if (!answer.ok() || answer->status != 200) dropped_ += static_cast<int64_t>(batch.size());
    lock.lock();
    if (last && (!answer.ok() || answer->status != 200)) return;
  }
}

}  // namespace deepinfer
