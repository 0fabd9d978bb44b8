// Rotary frequencies of the two tables: main (window layers, draft) and compress (every layer with ratio > 0,
// YaRN), in double precision; users round to their own. Knows no positions.
// Source: model specification 3.2. Threads: pure functions.
#pragma once

#include <vector>

#include "model/config.h"

namespace deepinfer {

// [qk_rope_head_dim / 2], radians per position.
std::vector<double> main_rope_frequencies(const ModelConfig& config);
std::vector<double> compress_rope_frequencies(const ModelConfig& config);

}  // namespace deepinfer
