// A run of the fleet as a table, as JSON, and as one page with charts that needs nothing from outside. The
// bytes follow from the run alone: no host time, no host name. Threads: pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/fleet.h"

namespace deepinfer::sim {

struct FleetReport {
  std::string title;
  FleetConfig config;
  double requests_per_s = 0;  // asked for; 0: a trace
  FleetResult result;
  DayResult day;  // of a run in windows: day.windows is not empty
};
std::string report_text(const FleetReport& report);
nlohmann::json report_json(const FleetReport& report);
std::string report_html(const FleetReport& report);
// The charts by name ("waiting.svg"), for files of their own.
std::vector<std::pair<std::string, std::string>> report_charts(const FleetReport& report);

}  // namespace deepinfer::sim
