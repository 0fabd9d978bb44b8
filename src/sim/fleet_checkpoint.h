// The simulator's own state between windows of a day: what is finished is kept, so that a long run that was
// broken off goes on where it was and ends with the same bytes. Windows depend on nothing but their seed, so
// their results are the whole state. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/fleet.h"

namespace deepinfer::sim {

// JSON text; names the run it belongs to.
std::string write_checkpoint(const DayConfig& config, const std::vector<FleetResult>& windows);
// kInvalidData: not a checkpoint, or of another run (then the message says what to do).
Result<std::vector<FleetResult>> read_checkpoint(std::string_view text, const std::string& name,
                                                 const DayConfig& config);

}  // namespace deepinfer::sim
