// A recorded run of a serving engine as text: what its scheduler was told, when it was asked, and what the
// requests of the workload saw. Plans are not written: reading plans all of them again with a fresh scheduler
// and compares, so that a file that reads well is also the proof that simulator and server decide alike. One
// JSON object per line. Knows no engine. Source: serving specification 14.4. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/load_run.h"
#include "policy/scheduler.h"

namespace deepinfer {

// One run of a serving engine: what it was told from its start, and what the requests of the workload saw.
struct RecordedRun {
  policy::SchedulerConfig scheduler;  // as it was at the engine's start
  std::vector<policy::Event> log;
  LoadResult result;
  int64_t concurrency = 0;  // of the closed loop; 0: open
};

// kInvalidArgument: a run whose scheduler was told of a store or of outside readers.
Result<std::string> write_runs(const std::vector<RecordedRun>& runs);
// kInvalidData names the line: not what write_runs wrote, or a plan that comes out differently.
Result<std::vector<RecordedRun>> read_runs(std::string_view text);

}  // namespace deepinfer
