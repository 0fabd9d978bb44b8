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

// Bytes of rows [row0, row1) of a tensor in its stored type, written from `weight` on; `scale` receives the
// rows of the sibling scale (one per 32 weight rows for dense FP8, else one per row) and is unused for BF16
// and F32. Values are rounded to fp32 first, then once to the stored type. REQUIRES row0 % 32 == 0; a role
// with values; an offset of 0 for the quantised types.
void encode_rows(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1,
                 uint8_t* weight, uint8_t* scale);

// The same function compiled for each instruction set this CPU has, best last; all give the same bytes. For
// tests.
struct EncodeLevel {
  const char* name;
  void (*encode)(const TensorSpec&, const SyntheticStream&, int64_t, int64_t, uint8_t*, uint8_t*);
};
std::vector<EncodeLevel> encode_levels();

}  // namespace deepinfer
