// Finds and reads a trace for the simulator's commands.
#pragma once

#include <string>

#include "base/status.h"
#include "sim/trace.h"

namespace deepinfer {

// "-" is standard input. Errors name the file, and for its contents the line.
Result<sim::Trace> read_trace(const std::string& path, int64_t block_tokens);

}  // namespace deepinfer
