// One line per request and per event of the server's life, as JSON or for people. Lines are written by a
// thread of their own from a bounded queue: when the reader of the log is slow, old lines are dropped and the
// server goes on. Knows no request: the fields are given. Threads: any.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "text/json.h"

namespace deepinfer {

struct EventLogOptions {
  bool json = false;
  std::string file;            // empty: standard error
  std::string level = "info";  // debug, info, warning, error, off
};

class EventLog {
 public:
  enum class Level { kDebug, kInfo, kWarning, kError };
  static Result<std::unique_ptr<EventLog>> open(const EventLogOptions& options);
  virtual ~EventLog() = default;  // writes what is queued
  // `event`: a word such as "request" or "drain"; `fields`: an object.
  virtual void write(Level level, const std::string& event, const Json& fields) = 0;
  void info(const std::string& event, const Json& fields) { write(Level::kInfo, event, fields); }
};

}  // namespace deepinfer
