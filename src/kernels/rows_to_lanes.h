// Sixteen rows to sixteen lanes, for the bf16 kernels: four bytes of a row become one 32-bit lane. Brings the
// compiler's intrinsics with it. Private to kernels that are compiled for AVX-512 by attribute.
#pragma once

#if defined(__x86_64__)
#include <hwy/base.h>
// GCC's own header leaves the lanes it masks off undefined and then warns of it; clang knows no such warning.
HWY_DIAGNOSTICS(push)
#if !defined(__clang__)
HWY_DIAGNOSTICS_OFF(disable : 4703 6001 26494, ignored "-Wmaybe-uninitialized")
#endif
HWY_DIAGNOSTICS_OFF(disable : 4703, ignored "-Wuninitialized")
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)

HWY_PUSH_ATTRIBUTES("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vbmi,avx512bf16")
namespace deepinfer::bf16 {

// `part(r)` loads 16 bytes of row r. v[d] has the d-th four bytes of row r in lane r.
// Loads that repeat 16 bytes, masked: they leave the shuffling units to the interleaves.
template <typename Part>
HWY_INLINE void rows_to_lanes(const Part& part, __m512i (&v)[4]) {
  __m512i a[4], b[4];
  for (int j = 0; j < 4; ++j) {
    a[j] = _mm512_castsi128_si512(part(j));
    a[j] = _mm512_mask_broadcast_i32x4(a[j], 0x00f0, part(4 + j));
    a[j] = _mm512_mask_broadcast_i32x4(a[j], 0x0f00, part(8 + j));
    a[j] = _mm512_mask_broadcast_i32x4(a[j], 0xf000, part(12 + j));
  }
  b[0] = _mm512_unpacklo_epi32(a[0], a[1]), b[1] = _mm512_unpacklo_epi32(a[2], a[3]);
  b[2] = _mm512_unpackhi_epi32(a[0], a[1]), b[3] = _mm512_unpackhi_epi32(a[2], a[3]);
  v[0] = _mm512_unpacklo_epi64(b[0], b[1]), v[1] = _mm512_unpackhi_epi64(b[0], b[1]);
  v[2] = _mm512_unpacklo_epi64(b[2], b[3]), v[3] = _mm512_unpackhi_epi64(b[2], b[3]);
}

}  // namespace deepinfer::bf16
HWY_POP_ATTRIBUTES
#endif
