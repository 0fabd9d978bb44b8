// Drives an engine with a workload and records what every request saw. Open loop: sessions arrive when the
// workload says; closed loop: so many sessions at a time. Knows any Engine and no model. Source: serving
// specification 13.5. Threads: one caller, who is the engine's poller meanwhile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/load_workload.h"
#include "engine/engine.h"

namespace deepinfer {

struct DriveOptions {
  int64_t concurrency = 0;  // sessions at a time; 0: open loop
  SamplingParams sampling;  // the seed of a request is this plus its number
  bool speculate = true;
  std::vector<int32_t> stop_ids;  // ascending; empty: every answer has the length the workload says
  bool exact_hits = false, use_cache = true;
  int64_t deadline_ns = 0;  // after submission; 0: none
  int priority = 0;
  // Told after every finished request: (finished, of how many). Returning false stops the run.
  std::function<bool(int64_t, int64_t)> progress;
};

struct RequestRecord {
  int64_t session = 0, turn = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  bool replayed_window = false;
  int64_t drafted = 0, accepted = 0, preemptions = 0;
  RequestTimes times;
  int64_t arrival_ns = 0;        // when the workload wanted it sent
  std::vector<int64_t> gaps_ns;  // between events with tokens
  Finish finish = Finish::kStop;
  std::string message;  // why, if it did not end well
  bool well() const { return finish == Finish::kStop || finish == Finish::kLength; }
};

struct LoadResult {
  std::vector<RequestRecord> requests;  // by end
  int64_t begin_ns = 0, end_ns = 0;     // first submission to last finish
  EngineStats before, after;
  bool stopped = false;
};

// Errors: kUnavailable when the engine refuses everything. A request that is refused or fails is a record,
// and ends its session.
Result<LoadResult> run_load(Engine* engine, const Workload& workload, const DriveOptions& options);

// A short request whose figures are thrown away; its prefix is nobody's. REQUIRES a session.
Status warm_up(Engine* engine, const Workload& workload);

}  // namespace deepinfer
