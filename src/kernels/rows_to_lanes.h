// Sixteen rows to sixteen lanes: four bytes of a row become one 32-bit lane. Brings the compiler's intrinsics
// with it. Private to kernels that are compiled for AVX-512 by attribute; asks for no more of it than the
// least of them has, so that all can inline it.
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

HWY_PUSH_ATTRIBUTES("avx512f")
namespace deepinfer {

// Part kPart of eight, between which there may be something else to do: `part(r)` loads the 16 bytes for lane
// r, `a` is what is on its way, and after the last v[d] has the d-th four bytes of lane r's in lane r.
template <int kPart, typename Part>
HWY_INLINE void rows_to_lanes_part(const Part& part, __m512i (&a)[4], __m512i (&v)[4]) {
  if constexpr (kPart < 4) {
    a[kPart] = _mm512_castsi128_si512(part(kPart));
    // Loads that repeat 16 bytes, masked: they leave the shuffling units to the interleaves.
    a[kPart] = _mm512_mask_broadcast_i32x4(a[kPart], 0x00f0, part(4 + kPart));
    a[kPart] = _mm512_mask_broadcast_i32x4(a[kPart], 0x0f00, part(8 + kPart));
    a[kPart] = _mm512_mask_broadcast_i32x4(a[kPart], 0xf000, part(12 + kPart));
  } else if constexpr (kPart < 6) {
    constexpr int i = 2 * (kPart - 4);
    const __m512i low = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    a[i] = low;
  } else {
    constexpr int i = kPart - 6;
    v[2 * i] = _mm512_unpacklo_epi64(a[i], a[2 + i]);
    v[2 * i + 1] = _mm512_unpackhi_epi64(a[i], a[2 + i]);
  }
}
template <typename Part>
HWY_INLINE void rows_to_lanes(const Part& part, __m512i (&v)[4]) {
  __m512i a[4];
  rows_to_lanes_part<0>(part, a, v), rows_to_lanes_part<1>(part, a, v), rows_to_lanes_part<2>(part, a, v);
  rows_to_lanes_part<3>(part, a, v), rows_to_lanes_part<4>(part, a, v), rows_to_lanes_part<5>(part, a, v);
  rows_to_lanes_part<6>(part, a, v), rows_to_lanes_part<7>(part, a, v);
}

}  // namespace deepinfer
HWY_POP_ATTRIBUTES
#endif
