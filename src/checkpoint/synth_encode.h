// Synthetic values into stored bytes: the released weight formats, a band of rows at a time. Pure arithmetic,
// no files. Source: model specification 8.1, 11.2 (scale rule) and 12.7 (values). Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/synth_values.h"
#include "model/tensor_table.h"

namespace deepinfer {

// Scale exponent of a block: smallest k with 2^k >= fp32(amax / largest), the true quotient, largest = 448
// (E4M3) or 6 (E2M1). A block of zeros gets what the cache quantisers give it (model specification 12.4). The
// stored byte is k + 127.
int weight_scale_exponent(float amax, float largest);

// Bytes of rows [row0, row1) of a tensor in its stored type, appended to nothing: `weight` has rows *
// bytes-per-row. `scale` receives the rows of the sibling scale (one per 32 weight rows for dense FP8, else
// one per row); unused for BF16 and F32. Values are rounded to fp32 first, then once to the stored type.
// REQUIRES row0 % 32 == 0, and row1 % 32 == 0 or row1 the last row; a role with values.
void encode_rows(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1,
                 uint8_t* weight, uint8_t* scale);

}  // namespace deepinfer
