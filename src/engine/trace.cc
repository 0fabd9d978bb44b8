// The Chrome trace format: https://chromium.googlesource.com, "Trace Event Format", complete events.
#include "engine/trace.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer {

void ChromeTrace::span(const char* name, TraceTrack track, int64_t step, int64_t begin_ns, int64_t end_ns) {
  std::lock_guard lock(mutex_);
  spans_.push_back({name, track, step, begin_ns, end_ns});
}

std::string ChromeTrace::to_json() const {
  std::lock_guard lock(mutex_);
  int64_t origin = INT64_MAX;
  for (const Span& s : spans_) origin = std::min(origin, s.begin_ns);
  std::string out = "[\n";
  out += R"({"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"loop"}},)"
         "\n";
  out += R"({"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"executor"}})";
  for (const Span& s : spans_) {
    out += fmt::format(
        ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"args\":"
        "{{\"step\":{}}}}}",
        s.name, static_cast<int>(s.track), static_cast<double>(s.begin_ns - origin) / 1e3,
        static_cast<double>(s.end_ns - s.begin_ns) / 1e3, s.step);
  }
  return out + "\n]\n";
}

}  // namespace deepinfer
