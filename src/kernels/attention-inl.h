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
#include "kernels/index_wide-inl.h"
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

// Queries in integers for IndexScoresPrepared; zero where a level or a format has no such way.
HWY_MAYBE_UNUSED int64_t IndexPreparedBytes(RecordFormat format, int heads, int dim) {
#if HWY_TARGET <= HWY_AVX3
  if (format == RecordFormat::kFp4_32 && heads <= kMaxIndexHeads && dim % 32 == 0)
    return heads * IntRow::Bytes(dim / 32);
#endif
  (void)format, (void)heads, (void)dim;
  return 0;
}
HWY_MAYBE_UNUSED bool PrepareIndex(const float* q, int heads, int dim, uint8_t* out) {
  bool exact = true;
  for (int h = 0; h < heads; ++h)
    exact = PrepareInts(dim, q + int64_t{h} * dim, 0, dim, out + h * IntRow::Bytes(dim / 32)) && exact;
  return exact;
}
HWY_MAYBE_UNUSED void IndexScoresPrepared(const uint8_t* q, const float* w, int heads, int dim,
                                          const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                                          int64_t scale_stride, int64_t n, float* scores) {
#if HWY_TARGET <= HWY_AVX3
  IntIndexScores(q, w, heads, dim, codes, code_stride, scales, scale_stride, n, scores);
#else
  (void)q, (void)w, (void)heads, (void)dim, (void)codes, (void)code_stride, (void)scales, (void)scale_stride;
  (void)n, (void)scores;
  DI_CHECK(false, "no prepared index scan at this level");
#endif
}

HWY_MAYBE_UNUSED void IndexScores(const float* q, const float* w, int heads, int dim, RecordFormat format,
                                  const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                                  int64_t scale_stride, int64_t n, float* scores) {
  DI_CHECK(dim >= 1 && dim <= kMaxIndexDim, "index_head_dim");
#if HWY_TARGET <= HWY_AVX3
  alignas(64) uint8_t prepared[kMaxIndexHeads * kMaxIndexDim * 2];
  if (IndexPreparedBytes(format, heads, dim) > 0 && PrepareIndex(q, heads, dim, prepared))
    return IntIndexScores(prepared, w, heads, dim, codes, code_stride, scales, scale_stride, n, scores);
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
