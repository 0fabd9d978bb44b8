// y = x W^T for MXFP4 weights in integers. Twice an E2M1 value is an integer of at most 12, so with a block
// of 32 activations as 8-bit integers times a power of two, the dot product of a block is an exact integer.
// For block b:
//
//   x_b = 2^k q,   k = exponent(max |x_b|) - 6,   q = nearest, ties to even, at most 127 in magnitude
//   y   = the fp32 sum over ascending b of   float(sum of 2 w q) * 2^(k - 1) * 2^(s - 127)
//
// Only that sum rounds, one chain per output, so neither the width of the machine nor the number of rows of x
// can show. The rounding of x is finer than the E4M3 rounding the model was trained with at this point (model
// specification 8.5, points 4 and 5). A row of x is turned into integers once (PrepareInts) and read by every
// product after that. Compiled once per instruction set. Source: model specification 8.1.
#if defined(DEEPINFER_KERNELS_MXFP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_MXFP4_INL_H_
#undef DEEPINFER_KERNELS_MXFP4_INL_H_
#else
#define DEEPINFER_KERNELS_MXFP4_INL_H_
#endif

#include "base/check.h"
#include "kernels/mxfp4_narrow-inl.h"
#include "kernels/mxfp4_rows-inl.h"
#include "kernels/mxfp4_wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

// Rows of x already prepared against weight rows [a.row0, a.row1).
HWY_MAYBE_UNUSED void LinearInts(const MatrixView& w, const uint8_t* x, int64_t stride, const int32_t* rows,
                                 int64_t T, int64_t row0, int64_t row1, float* y, int64_t ldy, Out out) {
  if (T <= 0 || row0 >= row1) return;
  IntCall(IntArgs{&w, x, stride, rows, row0, row1, y, ldy, out}, T);
}

HWY_MAYBE_UNUSED void LinearMxfp4(const MatrixView& w, const float* x, int64_t ldx, const int32_t* rows,
                                  int64_t T, int64_t row0, int64_t row1, float* y, int64_t ldy, Out out) {
  const int64_t bytes = std::max<int64_t>(64, IntRow::Bytes(w.cols / 32));
  DI_CHECK(bytes <= kIntMemory, "columns of an MXFP4 matrix");
  alignas(64) uint8_t memory[kIntMemory];
  const int64_t fit = kIntMemory / bytes;
  for (int64_t t = 0; t < T; t += fit) {
    const int64_t n = std::min(fit, T - t);
    for (int64_t i = 0; i < n; ++i)
      PrepareInts(w.cols, x + (rows ? int64_t{rows[t + i]} : t + i) * ldx, 0, w.cols, memory + i * bytes);
    LinearInts(w, memory, bytes, nullptr, n, row0, row1, y + t * ldy, ldy, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_MXFP4_INL_H_
