// Products of bf16 and FP8 weights by the bf16 dot-product instruction of AVX-512 (`vdpbf16ps`): y = x W^T on
// bf16 activations. A level of its own above the AVX-512 levels of the vector back end, chosen in native.cc.
// Does not know the other formats; what it cannot do exactly it hands to the fp32 products given to it.
//
// One arithmetic for every number of rows. Columns are taken in groups of four; within a piece of 256 columns
// one accumulator adds columns 2 and then 0 of each group, a second columns 3 and then 1, one instruction per
// group in ascending order; the two are added, and the pieces are added in ascending order. A weight is its
// exact dequantised value. The instruction multiplies exactly, rounds each of its two sums to nearest even,
// and takes and gives subnormal numbers as zero whatever the control register says. So, with n columns and
// S = sum |w x|, a result is within 2^-24 (130 + n / 256) S + 2^-126 n (1 + max |w| + max |x|) of the exact
// one: for 5,120 columns less than half the bound of the fp32 products, and the second part is below anything
// a model holds.
//
// Rows of x that are not bf16 values, weight rows with a scale below 2^-117 or above 2^119 (their bf16 values
// would be subnormal or infinite), and matrices whose columns are no multiple of 32 take the fp32 products: a
// property of that row alone, so the rest of the batch cannot show. Source: model specification 8.1.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace deepinfer::bf16 {

// Whether the program holds this level and the CPU runs it.
bool available();

// Entries of the kernel table, for kBF16, kFp8Tile32 and kFp8Row32; `plain` computes what they cannot.
int64_t prepared_bytes(WeightFormat format, int64_t cols);
bool prepare(const float* x, int64_t col, int64_t n, uint8_t* row);
void linear_prepared(const MatrixView& w, const uint8_t* x, int64_t stride, const int32_t* rows, int64_t T,
                     int64_t row0, int64_t row1, float* y, int64_t ldy, Out out, const Kernels<float>& plain);
void linear(const MatrixView& w, const float* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
            int64_t row1, float* y, int64_t ldy, Out out, const Kernels<float>& plain);

}  // namespace deepinfer::bf16
