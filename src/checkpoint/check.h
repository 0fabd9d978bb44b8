// Full verification of a checkpoint directory, as `deepinfer inspect --check` runs it: files, table and every
// value. Source: model specification 8.1 and 9. Cost: reads every byte once. Threads: uses its own.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/problems.h"

namespace deepinfer {

// Values that no weight may have: E8M0 byte 255 and E4M3 bytes 0x7f and 0xff (NaN), and bf16 or f32 that are
// not finite. Where the files carry digests (synthetic checkpoints do), also bytes that differ from those
// written. One line per tensor.
void check_values(const CheckpointFiles& files, ProblemList* problems);

// open_checkpoint_files and, if the structure is sound, check_values. Errors: those of opening.
Status check_checkpoint(const std::string& dir, ProblemList* problems);

}  // namespace deepinfer
