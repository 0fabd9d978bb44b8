// EventLog over spdlog's asynchronous logger, the only file that sees spdlog.
#include "edge/serve/event_log.h"

#include <fcntl.h>
#include <spdlog/async.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <cstring>
#include <ctime>

#include "host/clock.h"

namespace deepinfer {
namespace {

constexpr size_t kQueueLines = 8192;

std::string time_stamp() {
  int64_t ns = wall_time_ns();
  time_t seconds = static_cast<time_t>(ns / 1'000'000'000);
  tm utc;
  gmtime_r(&seconds, &utc);
  char text[40];
  size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", std::string_view(text, n), ns / 1'000'000 % 1000);
}

const char* level_name(EventLog::Level level) {
  switch (level) {
    case EventLog::Level::kDebug:
      return "debug";
    case EventLog::Level::kInfo:
      return "info";
    case EventLog::Level::kWarning:
      return "warning";
    case EventLog::Level::kError:
      return "error";
  }
  return "info";
}

// Writes whole lines to a descriptor and remembers whether that works.
class LineSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(std::string file) : file_(std::move(file)) {}
  ~LineSink() override {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  Status open() {
    if (file_.empty()) return {};
    const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return error(Code::kIo, "log_file {}: {}", file_, std::strerror(errno));
    std::lock_guard lock(mutex_);
    if (fd_ > STDERR_FILENO) ::close(fd_);
    fd_ = fd;
    return {};
  }
  Status health() {
    std::lock_guard lock(mutex_);
    return failed_ == 0 ? Status() : error(Code::kIo, "{}: {}", file_, std::strerror(failed_));
  }
  int64_t lost() {
    std::lock_guard lock(mutex_);
    return lost_;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& m) override {
    std::string line(m.payload.data(), m.payload.size());
    line += '\n';
    for (size_t at = 0; at < line.size();) {
      const ssize_t n = ::write(fd_, line.data() + at, line.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        failed_ = n < 0 ? errno : ENOSPC;
        ++lost_;
        return;
      }
      at += static_cast<size_t>(n);
    }
    failed_ = 0;
  }
  void flush_() override {}

 private:
  std::string file_;
  int fd_ = STDERR_FILENO, failed_ = 0;
  int64_t lost_ = 0;
};

spdlog::level::level_enum level_of(const std::string& level) {
  return level == "debug"     ? spdlog::level::debug
         : level == "warning" ? spdlog::level::warn
         : level == "error"   ? spdlog::level::err
         : level == "off"     ? spdlog::level::off
                              : spdlog::level::info;
}

class Log : public EventLog {
 public:
  Log(std::shared_ptr<LineSink> sink, bool json, spdlog::level::level_enum least)
      : json_(json), sink_(std::move(sink)) {
    pool_ = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
    logger_ = std::make_shared<spdlog::async_logger>("events", sink_, pool_,
                                                     spdlog::async_overflow_policy::overrun_oldest);
    logger_->set_level(least);
  }
  void set_level(const std::string& level) override { logger_->set_level(level_of(level)); }
  Status reopen() override { return sink_->open(); }
  Status health() const override { return sink_->health(); }
  int64_t lost() const override { return sink_->lost(); }

  void write(Level level, const std::string& event, const Json& fields) override {
    auto l = level == Level::kDebug     ? spdlog::level::debug
             : level == Level::kInfo    ? spdlog::level::info
             : level == Level::kWarning ? spdlog::level::warn
                                        : spdlog::level::err;
    if (!logger_->should_log(l)) return;
    std::string line;
    if (json_) {
      Json all = {{"time", time_stamp()}, {"level", level_name(level)}, {"event", event}};
      for (auto it = fields.begin(); it != fields.end(); ++it) all[it.key()] = it.value();
      append_json(all, JsonStyle::kCompact, &line);
    } else {
      line = fmt::format("{} {} {}", time_stamp(), level_name(level), event);
      for (auto it = fields.begin(); it != fields.end(); ++it) {
        line += " " + it.key() + "=";
        if (it->is_string() && !it->get_ref<const std::string&>().empty() &&
            it->get_ref<const std::string&>().find_first_of(" \"\n\t=") == std::string::npos) {
          line += it->get_ref<const std::string&>();
        } else {
          append_json(*it, JsonStyle::kCompact, &line);
        }
      }
    }
    logger_->log(l, line);
  }

 private:
  bool json_;
  std::shared_ptr<LineSink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace

Result<std::unique_ptr<EventLog>> EventLog::open(const EventLogOptions& o) {
  auto sink = std::make_shared<LineSink>(o.file);
  DI_TRY(sink->open());
  return std::unique_ptr<EventLog>(std::make_unique<Log>(std::move(sink), o.json, level_of(o.level)));
}

}  // namespace deepinfer
