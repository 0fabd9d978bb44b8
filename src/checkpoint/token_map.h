// The Engram token map of a checkpoint: which compressed id each token has. Source: model specification 5.1
// and 11.2. Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/problems.h"
#include "model/config.h"

namespace deepinfer {

// Reads DIR/engram_token_map.i32 (vocab_size little-endian int32). Without the file, configurations with a
// vocabulary of at most kMaxTinyVocab use the tiny rule (any compressed size follows it); a real vocabulary
// never does, because a wrong map would give wrong text without any error. Without Engram layers the map is
// empty and no file is looked for. What is wrong with a map goes to `problems`: its size, ids outside [0,
// compressed), ids 0..3 that are not themselves, compressed ids that no token has. Errors: kIo.
Result<std::vector<int32_t>> read_token_map(const std::string& dir, const ModelConfig& config,
                                            ProblemList* problems);

// The largest of the configurations for which the specification states the rule (t2).
inline constexpr int kMaxTinyVocab = 1024;

// The file's bytes for a map.
std::string token_map_bytes(const std::vector<int32_t>& map);

}  // namespace deepinfer
