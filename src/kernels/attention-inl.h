// Index scores and attention of one query row. Compiled once per instruction set. Source: model
// specification 3.4 and 3.5.
#if defined(DEEPINFER_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_ATTENTION_INL_H_
#undef DEEPINFER_KERNELS_ATTENTION_INL_H_
#else
#define DEEPINFER_KERNELS_ATTENTION_INL_H_
#endif

#include <algorithm>

#include "base/check.h"
#include "kernels/linear-inl.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

constexpr int kMaxIndexDim = 512;

// G heads from h against 16 keys, one key per lane. Within a block of 32 dims one multiply-add per dim in
// ascending order (exact for FP4 operands), blocks added in ascending order.
template <int G>
HWY_INLINE void ScoreHeads(const float* q, int dim, const float* keys, F16 (&dots)[G]) {
  for (int g = 0; g < G; ++g) dots[g] = Zero16();
  for (int b = 0; b < dim; b += 32) {
    F16 block[G];
    for (int g = 0; g < G; ++g) block[g] = Zero16();
    const int end = std::min(dim, b + 32);
    for (int d = b; d < end; ++d) {
      const F16 key = Load(keys + d * 16);
      for (int g = 0; g < G; ++g) block[g] = MulAdd(Set1(q[g * dim + d]), key, block[g]);
    }
    for (int g = 0; g < G; ++g) dots[g] = Add(dots[g], block[g]);
  }
}

#if HWY_TARGET <= HWY_AVX3
// The same scores by integers, 16 keys at a time as sixteen rows of weights and the heads as rows of x.
// Queries on the FP4 grid turn into integers exactly, so every block sum is the exact one and the bits are
// those of the other way. False, and nothing done, for a query that is not on the grid.
HWY_MAYBE_UNUSED bool IntIndexScores(const float* q, const float* w, int heads, int dim, const uint8_t* codes,
                                     int64_t code_stride, const uint8_t* scales, int64_t scale_stride,
                                     int64_t n, float* scores) {
  if (heads > kIntBand || dim % 32 != 0) return false;
  alignas(64) int8_t q8[kIntBand * kMaxIndexDim];
  float q_scale[kIntBand * kMaxIndexDim / 32];
  int32_t q_offset[kIntBand * kMaxIndexDim / 32];
  const int64_t blocks = dim / 32;
  const IntRows rows{(blocks + 1) / 2 * 2, q8, q_scale, q_offset};
  for (int h = 0; h < heads; ++h) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = h * rows.blocks + b;
      const float* x = q + h * dim + b * 32;
      QuantiseBlock(x, q8 + at * 32, q_scale + at, q_offset + at);
      for (int i = 0; i < 32; ++i)
        if (static_cast<float>(q8[at * 32 + i]) * q_scale[at] != 0.5f * x[i]) return false;
    }
    if (blocks < rows.blocks) std::memset(q8 + (h * rows.blocks + blocks) * 32, 0, 32);
  }
  IntPanel panel;
  RowPointers keys;
  keys.row_bytes = blocks * 16;
  for (int64_t j0 = 0; j0 < n; j0 += 16) {
    const int64_t nj = std::min<int64_t>(16, n - j0);
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t j = j0 + std::min(r, nj - 1);
      keys.codes[r] = codes + j * code_stride;
      keys.scales[r] = scales + j * scale_stride;
    }
    std::memset(panel.sum, 0, static_cast<size_t>(heads) * sizeof(panel.sum[0]));
    IntPanels(keys, rows, blocks, heads, panel);
    F16 total = Zero16();
    for (int h = 0; h < heads; ++h) total = MulAdd(Set1(w[h]), Max(Load(panel.sum[h]), Zero16()), total);
    if (nj == 16)
      Store(total, scores + j0);
    else
      StorePart(total, scores + j0, static_cast<size_t>(nj));
  }
  return true;
}
#endif

HWY_MAYBE_UNUSED void IndexScores(const float* q, const float* w, int heads, int dim, RecordFormat format,
                                  const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                                  int64_t scale_stride, int64_t n, float* scores) {
  DI_CHECK(dim >= 1 && dim <= kMaxIndexDim, "index_head_dim");
#if HWY_TARGET <= HWY_AVX3
  if (format == RecordFormat::kFp4_32 &&
      IntIndexScores(q, w, heads, dim, codes, code_stride, scales, scale_stride, n, scores))
    return;
#endif
  constexpr int kGroup = kManyRegisters ? 8 : kStep == 8 ? 4 : 1;
  alignas(64) float keys[kMaxIndexDim * kLanes];  // [dim][key]
  alignas(64) float key[kMaxIndexDim];
  for (int64_t j0 = 0; j0 < n; j0 += 16) {
    const int64_t nj = std::min<int64_t>(16, n - j0);
    if (nj < 16) std::fill(keys, keys + dim * 16, 0.0f);
    for (int64_t j = 0; j < nj; ++j) {
      DecodeRecord(format, codes + (j0 + j) * code_stride, scales + (j0 + j) * scale_stride, dim, key);
      for (int d = 0; d < dim; ++d) keys[d * 16 + j] = key[d];
    }
    F16 total = Zero16();
    int h = 0;
    for (; h + kGroup <= heads; h += kGroup) {
      F16 dots[kGroup];
      ScoreHeads<kGroup>(q + int64_t{h} * dim, dim, keys, dots);
      for (int g = 0; g < kGroup; ++g) total = MulAdd(Set1(w[h + g]), Max(dots[g], Zero16()), total);
    }
    for (; h < heads; ++h) {
      F16 dots[1];
      ScoreHeads<1>(q + int64_t{h} * dim, dim, keys, dots);
      total = MulAdd(Set1(w[h]), Max(dots[0], Zero16()), total);
    }
    if (nj == 16)
      Store(total, scores + j0);
    else
      StorePart(total, scores + j0, static_cast<size_t>(nj));
  }
}

// Logits to unnormalised probabilities in place; returns their sum with the sink's share.
HWY_INLINE float Weights(float* z, int64_t n, float scale, float sink) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  F16 tops = Set1(kLowest);
  const F16 s = Set1(scale);
  for (Walk i(n); i.more(); i.next()) {
    const F16 v = Mul(i.Get(z), s);
    i.Put(v, z);
    tops = Max(i.Get(z, kLowest), tops);
  }
  const float top = MaxLanes16(tops);
  const F16 t = Set1(top);
  Sum4 sum;
  for (Walk i(n); i.more(); i.next()) {
    const F16 e = Exp(Sub(i.Get(z, kLowest), t));
    i.Put(e, z);
    sum.part[i.turn()] = Add(sum.part[i.turn()], e);
  }
  alignas(64) float last[kLanes];
  Store(Exp(Set1(sink - top)), last);
  return sum.Total() + last[0];
}

// out[h][d .. d + 16 V) += sum_i p[h][i] rows[i][d ..] over rows [i0, i1) in ascending order, G heads at
// once.
template <int G, int V>
HWY_INLINE void ValueTile(const float* p, int64_t ldp, const float* rows, int64_t D, int64_t i0, int64_t i1,
                          float* out) {
  F16 acc[G][V];
  for (int g = 0; g < G; ++g)
    for (int v = 0; v < V; ++v) acc[g][v] = Load(out + g * D + 16 * v);
  for (int64_t i = i0; i < i1; ++i) {
    F16 row[V];
    for (int v = 0; v < V; ++v) row[v] = Load(rows + i * D + 16 * v);
    for (int g = 0; g < G; ++g) {
      const F16 w = Set1(p[g * ldp + i]);
      for (int v = 0; v < V; ++v) acc[g][v] = MulAdd(w, row[v], acc[g][v]);
    }
  }
  for (int g = 0; g < G; ++g)
    for (int v = 0; v < V; ++v) Store(acc[g][v], out + g * D + 16 * v);
}

template <int G>
HWY_INLINE void ValueHeads(const float* p, int64_t ldp, const float* rows, int64_t D, int64_t i0, int64_t i1,
                           float* out) {
  constexpr int V = kManyRegisters ? 4 : kStep == 8 ? 2 : 1;
  int64_t d = 0;
  for (; d + 16 * V <= D; d += 16 * V) ValueTile<G, V>(p, ldp, rows + d, D, i0, i1, out + d);
  for (; d + 16 <= D; d += 16) ValueTile<G, 1>(p, ldp, rows + d, D, i0, i1, out + d);
  for (; d < D; ++d) {
    for (int g = 0; g < G; ++g) {
      F16 acc = Set1(out[g * D + d]);
      for (int64_t i = i0; i < i1; ++i) acc = MulAdd(Set1(p[g * ldp + i]), Set1(rows[i * D + d]), acc);
      StorePart(acc, out + g * D + d, 1);
    }
  }
}

HWY_MAYBE_UNUSED void Attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
                             const float* sink, float* scratch, float* out) {
  constexpr int kGroup = kManyRegisters ? 4 : 2;
  constexpr int64_t kTileRows =
      32;  // rows that stay in the second-level cache while all heads pass over them
  const MatrixView keys{WeightFormat::kF32, n, D, rows, nullptr};
  Linear(keys, q, D, nullptr, heads, 0, n, scratch, n, Out::kFull);
  std::fill(out, out + heads * D, 0.0f);
  float sums[64];
  for (int h0 = 0; h0 < heads; h0 += 64) {
    const int nh = std::min(64, heads - h0);
    float* p = scratch + h0 * n;
    float* o = out + h0 * D;
    for (int h = 0; h < nh; ++h) sums[h] = Weights(p + h * n, n, static_cast<float>(scale), sink[h0 + h]);
    for (int64_t i = 0; i < n; i += kTileRows) {
      const int64_t end = std::min(n, i + kTileRows);
      int h = 0;
      for (; h + kGroup <= nh; h += kGroup) ValueHeads<kGroup>(p + h * n, n, rows, D, i, end, o + h * D);
      for (; h < nh; ++h) ValueHeads<1>(p + h * n, n, rows, D, i, end, o + h * D);
    }
    for (int h = 0; h < nh; ++h) {
      const F16 sum = Set1(sums[h]);
      for (Walk d(D); d.more(); d.next()) d.Put(RoundBf16(Div(d.Get(o + h * D), sum)), o + h * D);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_ATTENTION_INL_H_
