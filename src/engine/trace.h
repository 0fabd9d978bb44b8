// Where spans of the engine's work go: what ran when, for a person looking at a timeline. The engine calls
// the sink; where the spans end up is the sink's business. Threads: span() is called by the loop and by the
// executor at the same time.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace deepinfer {

enum class TraceTrack : uint8_t { kLoop, kExecutor };

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // `name` is a literal: plan, emit (loop); step, restore, draft, forward, sample (executor). Times on the
  // engine's clock.
  virtual void span(const char* name, TraceTrack track, int64_t step, int64_t begin_ns, int64_t end_ns) = 0;
};

// Keeps the spans and writes them in the Chrome trace format (JSON array of complete events, microseconds).
class ChromeTrace final : public TraceSink {
 public:
  void span(const char* name, TraceTrack track, int64_t step, int64_t begin_ns, int64_t end_ns) override;
  std::string to_json() const;

 private:
  struct Span {
    const char* name;
    TraceTrack track;
    int64_t step, begin_ns, end_ns;
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace deepinfer
