// Rows of the cache pass in tiles: sixteen rows, one per lane, for the logits; pairs of rows, interleaved,
// for the values. All heads pass over a tile while it is in the first-level cache.
#include "kernels/attend_bf16.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

#if defined(__x86_64__)
#include <hwy/base.h>
// The compiler's own header leaves the lanes it masks off undefined and then warns of it.
HWY_DIAGNOSTICS(push)
HWY_DIAGNOSTICS_OFF(disable : 4703 6001 26494, ignored "-Wmaybe-uninitialized")
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)

HWY_PUSH_ATTRIBUTES("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vbmi,avx512bf16")
namespace deepinfer::bf16 {
namespace {

constexpr int64_t kMaxWidth = 1024;
constexpr int kKeys = 16;        // rows of a logit tile, one per lane
constexpr int64_t kValues = 32;  // rows of a value tile
constexpr int kHeads = 64;       // of one pass: their queries stay in the second-level cache
constexpr int kLogitHeads = 8;   // accumulators of a logit tile
constexpr int kValueHeads = 4;   // times kValueWide: accumulators of a value tile
constexpr int kValueWide = 4;

// n floats (a multiple of 32) as bf16 values; collects the bits that were lost.
HWY_INLINE void narrow(const float* x, int64_t n, uint16_t* out, __m512i* lost) {
  const __m512i low = _mm512_set1_epi32(0xffff);
  for (int64_t i = 0; i < n; i += 32) {
    const __m512i a = _mm512_loadu_si512(x + i), b = _mm512_loadu_si512(x + i + 16);
    *lost = _mm512_or_si512(*lost, _mm512_and_si512(_mm512_or_si512(a, b), low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 16),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)));
  }
}
HWY_INLINE bool any(const __m512i& v) {
  return _mm512_test_epi32_mask(v, v) != 0;
}

// tile[16][D] -> keys[D / 2][16]: a pair of dimensions of sixteen rows.
HWY_INLINE void turn(const uint16_t* tile, int64_t D, __m512i* keys) {
  for (int64_t at = 0; at < D; at += 8) {
    __m512i a[4], b[4];
    for (int j = 0; j < 4; ++j) {
      const auto part = [&](int r) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile + r * D + at));
      };
      a[j] = _mm512_castsi128_si512(part(j));
      a[j] = _mm512_inserti32x4(a[j], part(4 + j), 1);
      a[j] = _mm512_inserti32x4(a[j], part(8 + j), 2);
      a[j] = _mm512_inserti32x4(a[j], part(12 + j), 3);
    }
    b[0] = _mm512_unpacklo_epi32(a[0], a[1]), b[1] = _mm512_unpacklo_epi32(a[2], a[3]);
    b[2] = _mm512_unpackhi_epi32(a[0], a[1]), b[3] = _mm512_unpackhi_epi32(a[2], a[3]);
    keys[at / 2] = _mm512_unpacklo_epi64(b[0], b[1]);
    keys[at / 2 + 1] = _mm512_unpackhi_epi64(b[0], b[1]);
    keys[at / 2 + 2] = _mm512_unpacklo_epi64(b[2], b[3]);
    keys[at / 2 + 3] = _mm512_unpackhi_epi64(b[2], b[3]);
  }
}

HWY_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Logits of H heads against sixteen rows; q: pairs of dimensions, [heads][D / 2].
template <int H>
HWY_INLINE void logit_tile(const uint32_t* q, int64_t pairs, const __m512i* keys, float* z, int64_t ldz,
                           int rows) {
  __m512 sum[H];
  for (int h = 0; h < H; ++h) sum[h] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512i key = _mm512_loadu_si512(keys + p);
    for (int h = 0; h < H; ++h)
      sum[h] = dot(sum[h], key, _mm512_set1_epi32(static_cast<int>(q[h * pairs + p])));
  }
  const auto mask = static_cast<__mmask16>((1u << rows) - 1);
  for (int h = 0; h < H; ++h) _mm512_mask_storeu_ps(z + h * ldz, mask, sum[h]);
}

// Logits of `heads` heads against all rows. False when a row is not bf16.
bool logits(const uint32_t* q, int heads, const float* rows, int64_t n, int64_t D, float* z) {
  alignas(64) uint16_t tile[kKeys * kMaxWidth];
  alignas(64) __m512i keys[kMaxWidth / 2];
  __m512i lost = _mm512_setzero_si512();
  const int64_t pairs = D / 2;
  for (int64_t i = 0; i < n; i += kKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kKeys, n - i));
    for (int r = 0; r < kKeys; ++r) narrow(rows + (i + std::min(r, count - 1)) * D, D, tile + r * D, &lost);
    if (any(lost)) return false;
    turn(tile, D, keys);
    int h = 0;
    for (; h + kLogitHeads <= heads; h += kLogitHeads)
      logit_tile<kLogitHeads>(q + h * pairs, pairs, keys, z + h * n + i, n, count);
    for (; h + 4 <= heads; h += 4) logit_tile<4>(q + h * pairs, pairs, keys, z + h * n + i, n, count);
    for (; h < heads; ++h) logit_tile<1>(q + h * pairs, pairs, keys, z + h * n + i, n, count);
  }
  return true;
}

// Probabilities of one head as pairs of bf16 in place (the first half of z, a zero after an odd last one),
// and their sum with the sink's share.
float probabilities(float* z, int64_t n, float scale, float sink, const Kernels<float>& plain) {
  const auto mask_of = [&](int64_t i) {
    return static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1u << (n - i)) - 1);
  };
  __m512 tops = _mm512_set1_ps(z[0]);
  for (int64_t i = 0; i < n; i += 16)
    tops = _mm512_mask_max_ps(tops, mask_of(i), tops, _mm512_maskz_loadu_ps(mask_of(i), z + i));
  const float top = _mm512_reduce_max_ps(tops);
  const float sum = plain.softmax(z, n, static_cast<double>(scale), z);
  auto* out = reinterpret_cast<uint16_t*>(z);
  const int64_t even = (n + 1) / 2 * 2;
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 p = _mm512_maskz_loadu_ps(mask_of(i), z + i);
    const auto mask = static_cast<__mmask16>(even - i >= 16 ? 0xffff : (1u << (even - i)) - 1);
    _mm256_mask_storeu_epi16(out + i, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
  }
  return sum + std::exp(sink - top * scale);
}

// tile[rows][D] -> values[rows / 2][D]: a dimension of two rows in one lane. rows even.
HWY_INLINE void interleave(const uint16_t* tile, int64_t rows, int64_t D, uint32_t* values) {
  alignas(64) uint16_t order[2][32];
  for (int i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
    order[1][i] = static_cast<uint16_t>(16 + i / 2 + (i % 2) * 32);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t d = 0; d < D; d += 32) {
      const __m512i a = _mm512_loadu_si512(tile + r * D + d), b = _mm512_loadu_si512(tile + (r + 1) * D + d);
      _mm512_storeu_si512(values + r / 2 * D + d, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(values + r / 2 * D + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// out[h][d ..] += sum over pairs of rows, H heads and V vectors of sixteen dimensions; p: pairs of
// probabilities.
template <int H, int V>
HWY_INLINE void value_tile(const uint32_t* p, int64_t ldp, const uint32_t* values, int64_t D, int64_t pairs,
                           float* out) {
  __m512 sum[H][V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v) sum[h][v] = _mm512_loadu_ps(out + h * D + 16 * v);
  for (int64_t i = 0; i < pairs; ++i) {
    __m512i row[V];
    for (int v = 0; v < V; ++v) row[v] = _mm512_loadu_si512(values + i * D + 16 * v);
    for (int h = 0; h < H; ++h) {
      const __m512i w = _mm512_set1_epi32(static_cast<int>(p[h * ldp + i]));
      for (int v = 0; v < V; ++v) sum[h][v] = dot(sum[h][v], row[v], w);
    }
  }
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(out + h * D + 16 * v, sum[h][v]);
}

template <int H>
HWY_INLINE void value_heads(const uint32_t* p, int64_t ldp, const uint32_t* values, int64_t D, int64_t pairs,
                            float* out) {
  int64_t d = 0;
  for (; d + 16 * kValueWide <= D; d += 16 * kValueWide)
    value_tile<H, kValueWide>(p, ldp, values + d, D, pairs, out + d);
  for (; d < D; d += 16) value_tile<H, 1>(p, ldp, values + d, D, pairs, out + d);
}

void values_of(const uint32_t* p, int64_t ldp, int heads, const float* rows, int64_t n, int64_t D,
               float* out) {
  alignas(64) uint16_t tile[kValues * kMaxWidth];
  alignas(64) uint32_t values[kValues / 2 * kMaxWidth];
  __m512i lost = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += kValues) {
    const int64_t count = std::min(kValues, n - i), even = (count + 1) / 2 * 2;
    for (int64_t r = 0; r < count; ++r) narrow(rows + (i + r) * D, D, tile + r * D, &lost);
    if (count < even) std::memset(tile + count * D, 0, static_cast<size_t>(D) * sizeof(uint16_t));
    interleave(tile, even, D, values);
    int h = 0;
    for (; h + kValueHeads <= heads; h += kValueHeads)
      value_heads<kValueHeads>(p + h * ldp + i / 2, ldp, values, D, even / 2, out + h * D);
    for (; h < heads; ++h) value_heads<1>(p + h * ldp + i / 2, ldp, values, D, even / 2, out + h * D);
  }
}

}  // namespace

void attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
            const float* sink, float* scratch, float* out, const Kernels<float>& plain) {
  if (D % 32 != 0 || D > kMaxWidth) return plain.attend(q, rows, n, D, heads, scale, sink, scratch, out);
  alignas(64) uint16_t query[kHeads * kMaxWidth];
  float sums[kHeads];
  for (int h0 = 0; h0 < heads;) {
    // As many heads at once as have bf16 queries: another head's query must not show in this one's bits.
    int nh = 0;
    for (; nh < kHeads && h0 + nh < heads; ++nh) {
      __m512i lost = _mm512_setzero_si512();
      narrow(q + (h0 + nh) * D, D, query + nh * D, &lost);
      if (any(lost)) break;
    }
    float* z = scratch + h0 * n;
    float* o = out + h0 * D;
    if (nh == 0 || !logits(reinterpret_cast<const uint32_t*>(query), nh, rows, n, D, z)) {
      nh = std::max(nh, 1);
      plain.attend(q + h0 * D, rows, n, D, nh, scale, sink + h0, z, o);
      h0 += nh;
      continue;
    }
    for (int h = 0; h < nh; ++h)
      sums[h] = probabilities(z + h * n, n, static_cast<float>(scale), sink[h0 + h], plain);
    std::fill(o, o + nh * D, 0.0f);
    values_of(reinterpret_cast<const uint32_t*>(z), n, nh, rows, n, D, o);
    for (int h = 0; h < nh; ++h) {
      const __m512 sum = _mm512_set1_ps(sums[h]);
      for (int64_t d = 0; d < D; d += 16)
        _mm512_storeu_ps(o + h * D + d, _mm512_div_ps(_mm512_loadu_ps(o + h * D + d), sum));
      plain.round(o + h * D, D, o + h * D);
    }
    h0 += nh;
  }
}

}  // namespace deepinfer::bf16
HWY_POP_ATTRIBUTES

#else

namespace deepinfer::bf16 {
void attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
            const float* sink, float* scratch, float* out, const Kernels<float>& plain) {
  plain.attend(q, rows, n, D, heads, scale, sink, scratch, out);
}
}  // namespace deepinfer::bf16

#endif
