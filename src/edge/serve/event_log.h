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
  virtual void set_level(const std::string& level) = 0;
  // Opens the file again by its name, for those who move logs away. kIo: the old one stays.
  virtual Status reopen() = 0;
  // The last write that failed (disk full, say); ok once one succeeds again. Its lines are lost.
  virtual Status health() const = 0;
  virtual int64_t lost() const = 0;  // lines that could not be written
  void info(const std::string& event, const Json& fields) { write(Level::kInfo, event, fields); }
};

}  // namespace deepinfer
