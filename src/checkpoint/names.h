// Spellings of tensor names. The table has one spelling per tensor; some exports of the same weights use
// others. Source: model specification 9.3. Threads: pure function.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// The table's spelling of a name: without a leading "model.", `attn` for `self_attn` and `ffn` for `mlp` in
// layers and draft stages (the vision tower keeps its `mlp`), `scale` for `weight_scale_inv`, `bias` for
// `e_score_correction_bias`. Other names come back unchanged.
std::string canonical_tensor_name(std::string_view name);

}  // namespace deepinfer
