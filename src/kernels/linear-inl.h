// y = x W^T for every weight format. One arithmetic for all shapes: lane i of
// 16 sums w[i] x[i] + w[i + 16] x[i + 16] + ... with one (fused) multiply-add
// each, w being the exact dequantised weight, and SumLanes folds the lanes. So
// the result of a row depends on the row and the weights alone, and the format
// of the weights does not show either. What varies below is only who waits for
// whom: few rows of x use a weight while it is in registers, many rows share a
// piece of decoded weights in the first-level cache. Compiled once per
// instruction set. Source: model specification 8.1.
#if defined(DEEPINFER_KERNELS_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_LINEAR_INL_H_
#undef DEEPINFER_KERNELS_LINEAR_INL_H_
#else
#define DEEPINFER_KERNELS_LINEAR_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/formats-inl.h"
#include "kernels/mxfp4-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

// Sums held in registers at once: kTileO rows of weights by kTileT rows of x.
constexpr int kTileO = kManyRegisters ? 4 : 2;
constexpr int kTileT = kManyRegisters ? 4 : kStep == 8 ? 2 : 1;
constexpr int64_t kPanelCols = 1024;  // decoded weights of one panel: kPanelRows
                                      // * 4 KiB, half the first-level cache
constexpr int kPanelRows = 4;
constexpr int64_t kBandRows = 64;          // rows of x per pass over the weights, at most
constexpr int64_t kBandBytes = 512 << 10;  // and their size, half the second-level cache

struct LinearArgs {
  const MatrixView* w;
  const float* x;
  int64_t ldx;
  const int32_t* rows;
  float* y;
  int64_t ldy;
  Out out;

  HWY_INLINE const float* X(int64_t t) const { return x + (rows ? int64_t{rows[t]} : t) * ldx; }
  HWY_INLINE void Put(int64_t t, int64_t o, const F16& sum) const {
    const float v = SumLanes(sum);
    y[t * ldy + o] = out == Out::kRounded ? round_bf16(v) : v;
  }
};

// sum[r][t] += w[r] x[t] over two vectors.
template <int R, int T>
HWY_INLINE void Accumulate(const F16& w0, const F16& w1, int r, const F16 (&x0)[T], const F16 (&x1)[T],
                           F16 (&sum)[R][T]) {
  for (int t = 0; t < T; ++t) sum[r][t] = MulAdd(w0, x0[t], sum[r][t]);
  for (int t = 0; t < T; ++t) sum[r][t] = MulAdd(w1, x1[t], sum[r][t]);
}

// R rows of weights from o, T rows of x from t0, straight from the stored
// format.
template <WeightFormat F, int R, int T>
HWY_NOINLINE void DirectTile(const LinearArgs& a, int64_t t0, int64_t o) {
  WeightRow<F> row[R];
  const float* x[T];
  F16 sum[R][T], x0[T], x1[T], w0, w1;
  for (int r = 0; r < R; ++r) row[r].Start(*a.w, o + r);
  for (int t = 0; t < T; ++t) x[t] = a.X(t0 + t);
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sum[r][t] = Zero16();
  const int64_t cols = a.w->cols, whole = cols & ~int64_t{31};
  for (int64_t c = 0; c < whole; c += 32) {
    for (int t = 0; t < T; ++t) x0[t] = Load(x[t] + c);
    for (int t = 0; t < T; ++t) x1[t] = Load(x[t] + c + 16);
    for (int r = 0; r < R; ++r) {
      row[r].Block(c, w0, w1);
      Accumulate<R, T>(w0, w1, r, x0, x1, sum);
    }
  }
  if (whole < cols) {
    for (int t = 0; t < T; ++t) {
      alignas(64) float piece[32] = {};
      std::memcpy(piece, x[t] + whole, static_cast<size_t>(cols - whole) * sizeof(float));
      x0[t] = Load(piece);
      x1[t] = Load(piece + 16);
    }
    for (int r = 0; r < R; ++r) {
      DecodeSlow(*a.w, o + r, whole, cols - whole, w0, w1);
      Accumulate<R, T>(w0, w1, r, x0, x1, sum);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) a.Put(t0 + t, o + r, sum[r][t]);
}

template <WeightFormat F, int T>
HWY_INLINE void DirectRows(const LinearArgs& a, int64_t t0, int64_t row0, int64_t row1) {
  int64_t o = row0;
  for (; o + kTileO <= row1; o += kTileO) DirectTile<F, kTileO, T>(a, t0, o);
  for (; o < row1; ++o) DirectTile<F, 1, T>(a, t0, o);
}

// The running sums of a panel and what they are made of.
struct Panel {
  alignas(64) float w[kPanelRows][kPanelCols];
  alignas(64) float sum[kBandRows][kPanelRows][kLanes];
  alignas(64) float x_tail[kBandRows][32];
};

// n columns (a multiple of 32) of kTileO decoded rows from r0 against T rows of
// x.
template <int T>
HWY_INLINE void PanelTile(Panel& p, int r0, int64_t t0, const float* const* px, int64_t n) {
  F16 sum[kTileO][T], x0[T], x1[T];
  for (int r = 0; r < kTileO; ++r)
    for (int t = 0; t < T; ++t) sum[r][t] = Load(p.sum[t0 + t][r0 + r]);
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = px[t];
  for (int64_t c = 0; c < n; c += 32) {
    for (int t = 0; t < T; ++t) x0[t] = Load(x[t] + c);
    for (int t = 0; t < T; ++t) x1[t] = Load(x[t] + c + 16);
    for (int r = 0; r < kTileO; ++r)
      Accumulate<kTileO, T>(Load(p.w[r0 + r] + c), Load(p.w[r0 + r] + c + 16), r, x0, x1, sum);
  }
  for (int r = 0; r < kTileO; ++r)
    for (int t = 0; t < T; ++t) Store(sum[r][t], p.sum[t0 + t][r0 + r]);
}

// The decoded panel against all nt rows of the band; x(t) gives the columns of
// row t that match the panel.
HWY_INLINE void PanelBand(Panel& p, const float* const* px, int64_t nt, int64_t n) {
  for (int r0 = 0; r0 < kPanelRows; r0 += kTileO) {
    int64_t t = 0;
    for (; t + kTileT <= nt; t += kTileT) PanelTile<kTileT>(p, r0, t, px + t, n);
    for (; t < nt; ++t) PanelTile<1>(p, r0, t, px + t, n);
  }
}

// Columns [c, c + n) of one row in fp32; n a multiple of 32.
template <WeightFormat F>
HWY_NOINLINE void DecodePiece(const MatrixView& m, int64_t row, int64_t c, int64_t n, float* out) {
  WeightRow<F> w;
  w.Start(m, row);
  for (int64_t i = 0; i < n; i += 32) {
    F16 lo, hi;
    w.Block(c + i, lo, hi);
    Store(lo, out + i);
    Store(hi, out + i + 16);
  }
}
HWY_MAYBE_UNUSED void Decode(const MatrixView& m, int64_t row, int64_t c, int64_t n, float* out) {
  switch (m.format) {
    case WeightFormat::kF64:
      return DecodePiece<WeightFormat::kF64>(m, row, c, n, out);
    case WeightFormat::kF32:
      return DecodePiece<WeightFormat::kF32>(m, row, c, n, out);
    case WeightFormat::kBF16:
      return DecodePiece<WeightFormat::kBF16>(m, row, c, n, out);
    case WeightFormat::kFp8Tile32:
      return DecodePiece<WeightFormat::kFp8Tile32>(m, row, c, n, out);
    case WeightFormat::kFp8Row32:
      return DecodePiece<WeightFormat::kFp8Row32>(m, row, c, n, out);
    case WeightFormat::kMxfp4:
      return DecodePiece<WeightFormat::kMxfp4>(m, row, c, n, out);
  }
}

HWY_NOINLINE HWY_MAYBE_UNUSED void PanelRows(const LinearArgs& a, int64_t t0, int64_t nt, int64_t row0,
                                             int64_t row1) {
  Panel p;
  const float* px[kBandRows];
  const int64_t cols = a.w->cols, whole = cols & ~int64_t{31};
  if (whole < cols) {
    for (int64_t t = 0; t < nt; ++t) {
      std::memset(p.x_tail[t], 0, sizeof(p.x_tail[t]));
      std::memcpy(p.x_tail[t], a.X(t0 + t) + whole, static_cast<size_t>(cols - whole) * sizeof(float));
    }
  }
  for (int64_t o = row0; o < row1; o += kPanelRows) {
    const int nr = static_cast<int>(std::min<int64_t>(kPanelRows, row1 - o));
    std::memset(p.sum, 0, static_cast<size_t>(nt) * sizeof(p.sum[0]));
    for (int64_t c = 0; c < whole; c += kPanelCols) {
      const int64_t n = std::min(kPanelCols, whole - c);
      // Rows beyond the range repeat the last one; their sums are dropped.
      for (int r = 0; r < kPanelRows; ++r) Decode(*a.w, o + std::min(r, nr - 1), c, n, p.w[r]);
      for (int64_t t = 0; t < nt; ++t) px[t] = a.X(t0 + t) + c;
      PanelBand(p, px, nt, n);
    }
    if (whole < cols) {
      for (int r = 0; r < kPanelRows; ++r) {
        F16 w0, w1;
        DecodeSlow(*a.w, o + std::min(r, nr - 1), whole, cols - whole, w0, w1);
        Store(w0, p.w[r]);
        Store(w1, p.w[r] + 16);
      }
      for (int64_t t = 0; t < nt; ++t) px[t] = p.x_tail[t];
      PanelBand(p, px, nt, 32);
    }
    for (int64_t t = 0; t < nt; ++t)
      for (int r = 0; r < nr; ++r) a.Put(t0 + t, o + r, Load(p.sum[t][r]));
  }
}

template <WeightFormat F>
HWY_INLINE void DirectFormat(const LinearArgs& a, int64_t T, int64_t row0, int64_t row1) {
  switch (T) {
    case 1:
      return DirectRows<F, 1>(a, 0, row0, row1);
    case 2:
      return DirectRows<F, std::min(2, kTileT)>(a, 0, row0, row1);
    case 3:
      return DirectRows<F, std::min(3, kTileT)>(a, 0, row0, row1);
    default:
      return DirectRows<F, kTileT>(a, 0, row0, row1);
  }
}

// Weights that need no decoding: a few rows of them meet all rows of a band of x before the next are read.
template <WeightFormat F>
HWY_NOINLINE void DirectBand(const LinearArgs& a, int64_t T, int64_t row0, int64_t row1) {
  const auto tiles = [&](int64_t o, auto rows) {
    constexpr int kRows = decltype(rows)::value;
    int64_t t = 0;
    for (; t + kTileT <= T; t += kTileT) DirectTile<F, kRows, kTileT>(a, t, o);
    for (; t < T; ++t) DirectTile<F, kRows, 1>(a, t, o);
  };
  int64_t o = row0;
  for (; o + kTileO <= row1; o += kTileO) tiles(o, std::integral_constant<int, kTileO>());
  for (; o < row1; ++o) tiles(o, std::integral_constant<int, 1>());
}

HWY_MAYBE_UNUSED void Linear(const MatrixView& w, const float* x, int64_t ldx, const int32_t* rows, int64_t T,
                             int64_t row0, int64_t row1, float* y, int64_t ldy, Out out) {
  const LinearArgs a{&w, x, ldx, rows, y, ldy, out};
  if (T <= 0 || row0 >= row1) return;
  if (w.format == WeightFormat::kMxfp4) return LinearMxfp4(w, x, ldx, rows, T, row0, row1, y, ldy, out);
  if (T <= kTileT) {
    if (w.format == WeightFormat::kF32) return DirectFormat<WeightFormat::kF32>(a, T, row0, row1);
    if (w.format == WeightFormat::kBF16) return DirectFormat<WeightFormat::kBF16>(a, T, row0, row1);
    if (w.format == WeightFormat::kFp8Tile32) return DirectFormat<WeightFormat::kFp8Tile32>(a, T, row0, row1);
  }
  const int64_t row_bytes = std::max<int64_t>(1, w.cols * static_cast<int64_t>(sizeof(float)));
  const int64_t fit = std::max<int64_t>(8, kBandBytes / row_bytes / kTileT * kTileT);
  const int64_t band = std::min(kBandRows, fit);
  if (w.format == WeightFormat::kF32) {
    for (int64_t t = 0; t < T; t += band) {
      const LinearArgs part{&w, rows ? x : x + t * ldx, ldx, rows ? rows + t : nullptr, y + t * ldy, ldy,
                            out};
      DirectBand<WeightFormat::kF32>(part, std::min(band, T - t), row0, row1);
    }
    return;
  }
  for (int64_t t = 0; t < T; t += band) PanelRows(a, t, std::min(band, T - t), row0, row1);
}

// The prepared form of a level without bf16 products: integers for MXFP4, nothing for the others.
HWY_MAYBE_UNUSED int64_t PreparedBytes(WeightFormat format, int64_t cols) {
  return format == WeightFormat::kMxfp4 ? IntRow::Bytes(cols / 32) : 0;
}
HWY_MAYBE_UNUSED bool Prepare(WeightFormat format, int64_t cols, const float* x, int64_t col, int64_t n,
                              uint8_t* row) {
  DI_CHECK(format == WeightFormat::kMxfp4 && cols % 32 == 0 && col % 32 == 0 && n % 32 == 0, "prepare");
  PrepareInts(cols, x, col, n, row);
  return true;
}
HWY_MAYBE_UNUSED void LinearPrepared(const MatrixView& w, const uint8_t* x, int64_t stride,
                                     const int32_t* rows, int64_t T, int64_t row0, int64_t row1, float* y,
                                     int64_t ldy, Out out) {
  DI_CHECK(w.format == WeightFormat::kMxfp4, "linear_prepared");
  LinearInts(w, x, stride, rows, T, row0, row1, y, ldy, out);
}

HWY_MAYBE_UNUSED void DecodeRow(const MatrixView& m, int64_t row, float* out) {
  const int64_t whole = m.cols & ~int64_t{31};
  Decode(m, row, 0, whole, out);
  if (whole < m.cols) reference::decode_columns(m, row, whole, m.cols - whole, out + whole);
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_LINEAR_INL_H_
