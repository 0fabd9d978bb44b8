// Attention of one query row by the bf16 dot-product instruction of AVX-512 (`vdpbf16ps`). Queries are bf16
// values and so is every decoded cache record (E4M3 times a power of two; E2M1 times an E4M3 scale has six
// significant bits), so the logits are sums of exact products. The probabilities are rounded to bf16 for the
// value product and to nothing for their sum, as the reference does (model specification 3.5).
//
// One arithmetic: a logit adds pairs of dimensions in ascending order in one accumulator, a value adds pairs
// of rows in ascending order in one accumulator; an odd last row is paired with a zero. The instruction takes
// and gives subnormal numbers as zero. Inputs that are not bf16 values, or a width that is no multiple of 32
// or beyond 1,024, take the plain kernel: a property of this row alone.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace deepinfer::bf16 {

// Entry `attend` of the kernel table. REQUIRES the instruction (bf16 level).
void attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
            const float* sink, float* scratch, float* out, const Kernels<float>& plain);

// Entries `gathered_bytes`, `gather_records` and `attend_gathered`: the same on records decoded to bf16,
// which is half of the memory and no second look at what they hold.
int64_t gathered_bytes(RecordFormat format, int64_t D);
bool gather_records(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                    uint8_t* out);
bool attend_gathered(const float* q, const uint8_t* rows, int64_t n, int64_t D, int heads, double scale,
                     const float* sink, float* scratch, float* out, const Kernels<float>& plain);

}  // namespace deepinfer::bf16
