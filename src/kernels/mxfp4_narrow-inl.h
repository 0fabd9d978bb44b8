// The integer products of mxfp4-inl.h on machines narrower than AVX-512: one block of one row at a time,
// shared by the rows of x. Once per instruction set.
#if defined(DEEPINFER_KERNELS_MXFP4_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_MXFP4_NARROW_INL_H_
#undef DEEPINFER_KERNELS_MXFP4_NARROW_INL_H_
#else
#define DEEPINFER_KERNELS_MXFP4_NARROW_INL_H_
#endif

#include "kernels/mxfp4_rows-inl.h"

#if HWY_TARGET > HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

// Sum of 32 products of bytes w (unsigned) and q.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
HWY_INLINE __m128i Dot16(const uint8_t* w, const int8_t* q) {
  const __m128i a = _mm_load_si128(reinterpret_cast<const __m128i*>(w)),
                b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
  return _mm_madd_epi16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1));
}
HWY_INLINE int32_t DotBlock(const uint8_t* w, const int8_t* q) {
  __m128i s = _mm_add_epi32(Dot16(w, q), Dot16(w + 16, q + 16));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
HWY_INLINE void ExpandBlock(const uint8_t* codes, uint8_t* w) {
  const D8 d;
  hn::Vec<D8> lo, hi;
  SplitNibbles(codes, lo, hi);
  const auto table = hn::Load(d, kTwiceE2m1);
  hn::Store(hn::TableLookupBytes(table, lo), d, w);
  hn::Store(hn::TableLookupBytes(table, hi), d, w + 16);
}
#else
HWY_INLINE int32_t DotBlock(const uint8_t* w, const int8_t* q) {
  int32_t s = 0;
  for (int i = 0; i < 32; ++i) s += int32_t{w[i]} * q[i];
  return s;
}
HWY_INLINE void ExpandBlock(const uint8_t* codes, uint8_t* w) {
  for (int i = 0; i < 16; ++i) {
    w[2 * i] = kTwiceE2m1[codes[i] & 15];
    w[2 * i + 1] = kTwiceE2m1[codes[i] >> 4];
  }
}
#endif

struct IntArgs {
  const MatrixView* w;
  const uint8_t* x;
  int64_t stride;
  const int32_t* rows;
  int64_t row0, row1;
  float* y;
  int64_t ldy;
  Out out;
  HWY_INLINE const uint8_t* X(int64_t t) const { return x + (rows ? int64_t{rows[t]} : t) * stride; }
};

HWY_NOINLINE HWY_MAYBE_UNUSED void IntBand(const IntArgs& a, int64_t t0, int64_t T) {
  const int64_t blocks = a.w->cols / 32;
  Chain chain[kIntBand];
  IntRow x[kIntBand];
  for (int64_t t = 0; t < T; ++t) x[t] = IntRow(a.X(t0 + t), blocks);
  for (int64_t o = a.row0; o < a.row1; ++o) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.w->data) + o * blocks * 16;
    const uint8_t* scales = a.w->scales + o * blocks;
    for (int64_t t = 0; t < T; ++t) chain[t].sum = 0.0f;
    for (int64_t b = 0; b < blocks; ++b) {
      alignas(32) uint8_t w[32];
      ExpandBlock(codes + b * 16, w);
      const float s = ScaleValue(scales[b]);
      for (int64_t t = 0; t < T; ++t)
        chain[t].Join(DotBlock(w, x[t].q + b * 32) + x[t].offset[b], x[t].scale[b], s);
    }
    for (int64_t t = 0; t < T; ++t)
      a.y[(t0 + t) * a.ldy + o] = a.out == Out::kRounded ? round_bf16(chain[t].sum) : chain[t].sum;
  }
}

HWY_MAYBE_UNUSED void IntCall(const IntArgs& a, int64_t T) {
  for (int64_t t = 0; t < T; t += kIntBand) IntBand(a, t, std::min(kIntBand, T - t));
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET > HWY_AVX3

#endif  // DEEPINFER_KERNELS_MXFP4_NARROW_INL_H_
