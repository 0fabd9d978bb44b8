// The plain definition of every operation of kernels.h, as scalar templates over A = double (math mode) and A
// = float (the oracle of the vector back end: sums run in double, results are rounded where the contract says
// so). Internal to the room: the engine sees only the table. Knows nothing of instruction sets. Source: model
// specification 2 to 6, 8.
#pragma once

#include <cstdint>

#include "base/numeric.h"
#include "kernels/kernels.h"

namespace deepinfer::reference {

// The rounding of a result marked [r].
template <typename A>
inline A rounded(double v) {
  if constexpr (sizeof(A) == 8)
    return v;
  else
    return round_bf16(static_cast<float>(v));
}

// out[0..n) = dequantised columns [col, col + n) of a row. REQUIRES col a multiple of 32.
template <typename T>
void decode_columns(const MatrixView& m, int64_t row, int64_t col, int64_t n, T* out);

// out[0..n) = values [first, first + n) of a record. REQUIRES first a multiple of 32; n a multiple of 32
// unless kRaw.
template <typename A>
void decode_values(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t first, int64_t n,
                   A* out);

template <typename A>
void hc_coefficients(const A* mix, A mean_square, const A* base, const A* scale, const HcParams& p, A* pre,
                     A* post, A* comb);

}  // namespace deepinfer::reference
