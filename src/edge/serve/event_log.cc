// EventLog over spdlog's asynchronous logger, the only file that sees spdlog.
#include "edge/serve/event_log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

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

class Log : public EventLog {
 public:
  Log(std::shared_ptr<spdlog::sinks::sink> sink, bool json, spdlog::level::level_enum least) : json_(json) {
    pool_ = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
    logger_ = std::make_shared<spdlog::async_logger>("events", std::move(sink), pool_,
                                                     spdlog::async_overflow_policy::overrun_oldest);
    logger_->set_pattern("%v");
    logger_->set_level(least);
    logger_->flush_on(spdlog::level::info);
  }

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
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace

Result<std::unique_ptr<EventLog>> EventLog::open(const EventLogOptions& o) {
  auto least = spdlog::level::info;
  if (o.level == "debug") least = spdlog::level::debug;
  if (o.level == "warning") least = spdlog::level::warn;
  if (o.level == "error") least = spdlog::level::err;
  if (o.level == "off") least = spdlog::level::off;
  std::shared_ptr<spdlog::sinks::sink> sink;
  try {
    if (o.file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(o.file);
    }
  } catch (const spdlog::spdlog_ex& e) {
    return error(Code::kIo, "log_file {}: {}", o.file, e.what());
  }
  return std::unique_ptr<EventLog>(std::make_unique<Log>(std::move(sink), o.json, least));
}

}  // namespace deepinfer
