// The index scan on AVX-512: FP4 keys as sixteen rows of weights, the heads of a query as rows of x, by the
// integer products of mxfp4_wide-inl.h. Queries on the FP4 grid turn into integers exactly, so every block
// sum is the exact one and the bits are those of the plain way. Compiled once per instruction set. Source:
// model specification 3.4.
#if defined(DEEPINFER_KERNELS_INDEX_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_INDEX_WIDE_INL_H_
#undef DEEPINFER_KERNELS_INDEX_WIDE_INL_H_
#else
#define DEEPINFER_KERNELS_INDEX_WIDE_INL_H_
#endif

#include "kernels/mxfp4-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace deepinfer {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3

constexpr int kIndexTile = 6;  // heads, at most, of one register tile over two groups of keys

// Two groups of sixteen keys, turned to lanes.
struct KeyPanel {
  alignas(64) uint8_t w[2][kIntPiece * 4][64];
  alignas(64) int32_t step[2][kIntPiece][16];
  bool middle;
};

HWY_INLINE void LoadKeys(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                         int64_t scale_stride, int64_t keys, int blocks, KeyPanel& p) {
  p.middle = true;
  for (int g = 0; g < 2; ++g) {
    IntGroup group;
    for (int r = 0; r < kIntRows; ++r) {
      const int64_t j = std::min<int64_t>(g * kIntRows + r, keys - 1);
      group.codes[r] = codes + j * code_stride;
      group.scales[r] = scales + j * scale_stride;
    }
    IntScales s;
    // The four scale bytes of a key are its lane already.
    const bool lanes = blocks == 4 && scale_stride == 4 && keys == 2 * kIntRows;
    p.middle &= lanes ? s.Put(0, _mm512_loadu_si512(scales + g * kIntRows * 4)) : s.Load(group, 0, blocks);
    for (int b = 0; b < blocks; ++b) {
      _mm512_store_si512(p.step[g][b], ScaleSteps(s.Exponents(b)));
      __m512i v[4];
      group.Load(b, v);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(p.w[g][4 * b + j], v[j]);
    }
  }
}

template <int T, bool kMiddle>
HWY_INLINE void KeyTile(const KeyPanel& p, const uint8_t* const* rows, const float* w, int blocks,
                        __m512 (&total)[2]) {
  __m512 dot[2][T];
  const uint8_t* q[T];
  for (int t = 0; t < T; ++t) q[t] = rows[t], dot[0][t] = dot[1][t] = _mm512_setzero_ps();
  for (int b = 0; b < blocks; ++b) {
    __m512i isum[2][T];
    IntTileBlock<T>(p.w[0] + 4 * b, p.w[1] + 4 * b, q, b, blocks, isum);
    for (int g = 0; g < 2; ++g) {
      const __m512i step = _mm512_load_si512(p.step[g][b]);
      for (int t = 0; t < T; ++t)
        dot[g][t] = kMiddle
                        ? JoinSteps(dot[g][t], isum[g][t], FloatAt(q[t] + blocks * 32 + b * 4), step)
                        : JoinVector(dot[g][t], isum[g][t],
                                     _mm512_set1_ps(FloatAt(q[t] + blocks * 32 + b * 4)), StepScale(step));
    }
  }
  for (int t = 0; t < T; ++t)
    for (int g = 0; g < 2; ++g)
      total[g] =
          _mm512_fmadd_ps(_mm512_set1_ps(w[t]), _mm512_max_ps(dot[g][t], _mm512_setzero_ps()), total[g]);
}

template <bool kMiddle>
HWY_INLINE void KeyHeads(const KeyPanel& p, const uint8_t* const* q, const float* w, int heads, int blocks,
                         __m512 (&total)[2]) {
  // Tiles of about the same size: a tile of one or two heads waits for its loads.
  int h = 0;
  for (int tiles = (heads + kIndexTile - 1) / kIndexTile; tiles > 0; --tiles) {
    const int take = (heads - h + tiles - 1) / tiles;
    if (take == 6) KeyTile<6, kMiddle>(p, q + h, w + h, blocks, total);
    if (take == 5) KeyTile<5, kMiddle>(p, q + h, w + h, blocks, total);
    if (take == 4) KeyTile<4, kMiddle>(p, q + h, w + h, blocks, total);
    if (take == 3) KeyTile<3, kMiddle>(p, q + h, w + h, blocks, total);
    if (take == 2) KeyTile<2, kMiddle>(p, q + h, w + h, blocks, total);
    if (take == 1) KeyTile<1, kMiddle>(p, q + h, w + h, blocks, total);
    h += take;
  }
}

// q: heads prepared rows (PrepareInts) one after the other.
HWY_NOINLINE HWY_MAYBE_UNUSED void IntIndexScores(const uint8_t* q, const float* w, int heads, int dim,
                                                  const uint8_t* codes, int64_t code_stride,
                                                  const uint8_t* scales, int64_t scale_stride, int64_t n,
                                                  float* scores) {
  const int blocks = dim / 32;
  const uint8_t* rows[kMaxIndexHeads];
  bool middle = true;
  for (int h = 0; h < heads; ++h) {
    rows[h] = q + h * IntRow::Bytes(blocks);
    middle = middle && MiddleScales(IntRow(rows[h], blocks).scale, blocks);
  }
  KeyPanel p;
  for (int64_t j = 0; j < n; j += 2 * kIntRows) {
    const int64_t keys = std::min<int64_t>(2 * kIntRows, n - j);
    for (int64_t i = 0; i < 2 * kIntRows; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(codes + (j + 4 * kIntRows + i) * code_stride), _MM_HINT_T0);
    LoadKeys(codes + j * code_stride, code_stride, scales + j * scale_stride, scale_stride, keys, blocks, p);
    __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    if (HWY_LIKELY(middle && p.middle))
      KeyHeads<true>(p, rows, w, heads, blocks, total);
    else
      KeyHeads<false>(p, rows, w, heads, blocks, total);
    for (int g = 0; g < 2; ++g) {
      const int64_t left = keys - g * kIntRows;
      if (left <= 0) break;
      const auto some = static_cast<__mmask16>(left >= 16 ? 0xffffu : 0xffffu >> (16 - left));
      _mm512_mask_storeu_ps(scores + j + g * kIntRows, some, total[g]);
    }
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_INDEX_WIDE_INL_H_
