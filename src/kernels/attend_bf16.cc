// Rows of the cache pass in tiles: sixteen rows, one per lane, for the logits; pairs of rows, interleaved,
// for the values. All heads pass over a tile while it is in the first-level cache.
#include "kernels/attend_bf16.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"
#include "kernels/fp8_bytes.h"
#include "kernels/rows_to_lanes.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vbmi,avx512bf16")
namespace deepinfer::bf16 {
namespace {

constexpr int64_t kMaxWidth = 1024;
constexpr int kKeys = 16;        // rows of a logit tile, one per lane
constexpr int64_t kValues = 32;  // rows of a value tile
constexpr int kHeads = 64;       // of one pass: their queries stay in the second-level cache
constexpr int kLogitHeads = 8;   // accumulators of a logit tile
constexpr int kFewHeads = 4;     // so many heads at most use rows straight from the registers that turn them
constexpr int kValueHeads = 4;   // times kValueWide: accumulators of a value tile
constexpr int kValueWide = 4;
constexpr int64_t kFetchAhead =
    1024;  // bytes of records brought to the first-level cache ahead of their decoding

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

// Eight dimensions from `at` of sixteen rows: pairs of dimensions, a row per lane.
HWY_INLINE void turn8(const uint16_t* const (&rows)[kKeys], int64_t at, __m512i (&keys)[4]) {
  rows_to_lanes([&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at)); }, keys);
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

// The same for few heads, whose rows are turned and used at once; G tiles of sixteen rows, so that a head's
// sums of one tile need not wait for each other.
template <int H, int G>
HWY_INLINE void few_heads_tile(const uint32_t* q, int64_t pairs, const uint16_t* const (&rows)[G][kKeys],
                               float* z, int64_t ldz, int64_t count) {
  __m512 sum[G][H];
  for (int g = 0; g < G; ++g)
    for (int h = 0; h < H; ++h) sum[g][h] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; p += 4) {
    for (int g = 0; g < G; ++g) {
      __m512i keys[4];
      turn8(rows[g], 2 * p, keys);
      for (int j = 0; j < 4; ++j)
        for (int h = 0; h < H; ++h)
          sum[g][h] = dot(sum[g][h], keys[j], _mm512_set1_epi32(static_cast<int>(q[h * pairs + p + j])));
    }
  }
  for (int g = 0; g < G; ++g) {
    const int64_t left = std::clamp<int64_t>(count - g * kKeys, 0, kKeys);
    for (int h = 0; h < H; ++h)
      _mm512_mask_storeu_ps(z + h * ldz + g * kKeys, static_cast<__mmask16>((1u << left) - 1), sum[g][h]);
  }
}
template <int H>
void few_heads(const uint32_t* q, const uint16_t* rows, int64_t n, int64_t D, float* z, int64_t ldz) {
  constexpr int kTiles = 2;
  const uint16_t* row[kTiles][kKeys];
  for (int64_t i = 0; i < n; i += kTiles * kKeys) {
    for (int g = 0; g < kTiles; ++g)
      for (int r = 0; r < kKeys; ++r) row[g][r] = rows + std::min(i + g * kKeys + r, n - 1) * D;
    few_heads_tile<H, kTiles>(q, D / 2, row, z + i, ldz, n - i);
  }
}

// Logits of `heads` heads against n rows, to z[h * ldz ..].
void logits(const uint32_t* q, int heads, const uint16_t* rows, int64_t n, int64_t D, float* z, int64_t ldz) {
  const int64_t pairs = D / 2;
  if (heads == 4) return few_heads<4>(q, rows, n, D, z, ldz);
  if (heads <= kFewHeads) {
    for (int h = 0; h < heads; ++h) few_heads<1>(q + h * pairs, rows, n, D, z + h * ldz, ldz);
    return;
  }
  alignas(64) __m512i keys[kMaxWidth / 2];
  for (int64_t i = 0; i < n; i += kKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kKeys, n - i));
    const uint16_t* row[kKeys];
    for (int r = 0; r < kKeys; ++r) row[r] = rows + (i + std::min(r, count - 1)) * D;
    for (int64_t at = 0; at < D; at += 8) {
      __m512i part[4];
      turn8(row, at, part);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(keys + at / 2 + j, part[j]);
    }
    int h = 0;
    for (; h + kLogitHeads <= heads; h += kLogitHeads)
      logit_tile<kLogitHeads>(q + h * pairs, pairs, keys, z + h * ldz + i, ldz, count);
    for (; h + 4 <= heads; h += 4) logit_tile<4>(q + h * pairs, pairs, keys, z + h * ldz + i, ldz, count);
    for (; h < heads; ++h) logit_tile<1>(q + h * pairs, pairs, keys, z + h * ldz + i, ldz, count);
  }
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

// Where the dimensions of a pair of rows go: a dimension of both in one lane, the first sixteen and the
// others of 32.
struct PairOrder {
  alignas(64) uint16_t order[2][32];
  PairOrder() {
    for (int i = 0; i < 32; ++i) {
      order[0][i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
      order[1][i] = static_cast<uint16_t>(16 + i / 2 + (i % 2) * 32);
    }
  }
};

// rows[count][D] -> values[(count + 1) / 2][D]; an odd last row is paired with zeros.
HWY_INLINE void interleave(const uint16_t* rows, int64_t count, int64_t D, uint32_t* values) {
  const PairOrder o;
  const __m512i low = _mm512_load_si512(o.order[0]), high = _mm512_load_si512(o.order[1]);
  for (int64_t r = 0; r < count; r += 2) {
    for (int64_t d = 0; d < D; d += 32) {
      const __m512i a = _mm512_loadu_si512(rows + r * D + d);
      const __m512i b = r + 1 < count ? _mm512_loadu_si512(rows + (r + 1) * D + d) : _mm512_setzero_si512();
      _mm512_storeu_si512(values + r / 2 * D + d, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(values + r / 2 * D + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// out[h][d .. d + 32 V) += sum over the pairs of n rows for few heads, whose rows are interleaved and used at
// once.
template <int H, int V>
HWY_INLINE void few_values_tile(const uint32_t* p, int64_t ldp, const uint16_t* rows, int64_t n, int64_t D,
                                float* out) {
  const PairOrder o;
  const __m512i low = _mm512_load_si512(o.order[0]), high = _mm512_load_si512(o.order[1]);
  __m512 sum[H][2 * V];
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < 2 * V; ++v) sum[h][v] = _mm512_loadu_ps(out + h * D + 16 * v);
  const auto pair = [&](int64_t i, const uint16_t* first, const __m512i(&second)[V]) {
    for (int v = 0; v < V; ++v) {
      const __m512i a = _mm512_loadu_si512(first + 32 * v);
      const __m512i l = _mm512_permutex2var_epi16(a, low, second[v]),
                    u = _mm512_permutex2var_epi16(a, high, second[v]);
      for (int h = 0; h < H; ++h) {
        const __m512i w = _mm512_set1_epi32(static_cast<int>(p[h * ldp + i]));
        sum[h][2 * v] = dot(sum[h][2 * v], l, w);
        sum[h][2 * v + 1] = dot(sum[h][2 * v + 1], u, w);
      }
    }
  };
  __m512i second[V];
  int64_t r = 0;
  for (; r + 2 <= n; r += 2) {
    for (int v = 0; v < V; ++v) second[v] = _mm512_loadu_si512(rows + (r + 1) * D + 32 * v);
    pair(r / 2, rows + r * D, second);
  }
  for (int v = 0; v < V; ++v) second[v] = _mm512_setzero_si512();
  if (r < n) pair(r / 2, rows + r * D, second);
  for (int h = 0; h < H; ++h)
    for (int v = 0; v < 2 * V; ++v) _mm512_storeu_ps(out + h * D + 16 * v, sum[h][v]);
}
template <int H>
void few_values(const uint32_t* p, int64_t ldp, const uint16_t* rows, int64_t n, int64_t D, float* out) {
  int64_t d = 0;
  for (; d + 64 <= D; d += 64) few_values_tile<H, 2>(p, ldp, rows + d, n, D, out + d);
  for (; d < D; d += 32) few_values_tile<H, 1>(p, ldp, rows + d, n, D, out + d);
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

// out[h] += the values of n rows, weighted. Tiles begin at even rows, so that pairs are the same however the
// rows are handed over.
void values_of(const uint32_t* p, int64_t ldp, int heads, const uint16_t* rows, int64_t n, int64_t D,
               float* out) {
  if (heads == 4) return few_values<4>(p, ldp, rows, n, D, out);
  if (heads <= kFewHeads) {
    for (int h = 0; h < heads; ++h) few_values<1>(p + h * ldp, ldp, rows, n, D, out + h * D);
    return;
  }
  alignas(64) uint32_t values[kValues / 2 * kMaxWidth];
  for (int64_t i = 0; i < n; i += kValues) {
    const int64_t count = std::min(kValues, n - i), pairs = (count + 1) / 2;
    interleave(rows + i * D, count, D, values);
    int h = 0;
    for (; h + kValueHeads <= heads; h += kValueHeads)
      value_heads<kValueHeads>(p + h * ldp + i / 2, ldp, values, D, pairs, out + h * D);
    for (; h < heads; ++h) value_heads<1>(p + h * ldp + i / 2, ldp, values, D, pairs, out + h * D);
  }
}

// Sixteen E2M1 values times every E4M3 scale, as bf16: six significant bits, so exact.
struct Fp4Table {
  alignas(64) uint16_t value[256][16];
  Fp4Table() {
    for (int s = 0; s < 256; ++s)
      for (int i = 0; i < 16; ++i)
        value[s][i] = f32_to_bf16(kE2m1[static_cast<size_t>(i)] * e4m3_to_f32(static_cast<uint8_t>(s)));
  }
};

// n values (a multiple of 32) of FP4 records with a scale per 16.
bool gather_fp4(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* out) {
  static const Fp4Table table;
  const __m512i nibbles = _mm512_set1_epi32(0x000f000f);
  // The second half of the indices looks into the second scale's values.
  const __m512i upper = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  for (int64_t i = 0; i < n; i += 32) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + i / 2 + kFetchAhead), _MM_HINT_T0);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    // A byte's low nibble in the lower half of a lane, its high nibble in the upper: (a | b) & c.
    const __m512i index = _mm512_ternarylogic_epi32(bytes, _mm512_slli_epi32(bytes, 12), nibbles, 0xa8);
    const uint16_t* first = table.value[scales[i / 16]];
    const uint16_t* second = table.value[scales[i / 16 + 1]];
    const __m512i values =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(first))),
                           _mm256_load_si256(reinterpret_cast<const __m256i*>(second)), 1);
    _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(_mm512_or_si512(index, upper), values));
  }
  return true;
}

// n values (a multiple of 32) of FP8 records with a power of two per 32. False where a value is not a normal
// bf16 number or zero.
bool gather_fp8(const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* out) {
  const __m512i l0 = _mm512_load_si512(kFp8Bytes.low[0]), l1 = _mm512_load_si512(kFp8Bytes.low[0] + 64),
                h0 = _mm512_load_si512(kFp8Bytes.high[0]), h1 = _mm512_load_si512(kFp8Bytes.high[0] + 64);
  // Eight codes per lane of 128 bits from each half, so that interleaving bytes gives values in order.
  const __m512i halves = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80)), magnitude = _mm512_set1_epi8(0x7f),
                number = _mm512_set1_epi16(0x7fff);
  __mmask64 nan = 0;
  bool inside = true;
  // The scale goes into the exponents; zero has none.
  const auto put = [&](__m512i v, uint8_t s, uint16_t* to) {
    inside = inside && s >= 10 && s <= 134;
    const __m512i shift = _mm512_set1_epi16(static_cast<int16_t>((int{s} - 127) * 128));
    _mm512_storeu_si512(to, _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(v, number), v, shift));
  };
  for (int64_t i = 0; i < n; i += 64) {
    const bool both = i + 32 < n;
    _mm_prefetch(reinterpret_cast<const char*>(codes + i + kFetchAhead), _MM_HINT_T0);
    const __m512i v = _mm512_permutexvar_epi64(
        halves,
        both ? _mm512_loadu_si512(codes + i)
             : _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i))));
    nan |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(v, magnitude), magnitude);
    const __m512i l = _mm512_permutex2var_epi8(l0, v, l1);
    const __m512i h =
        _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(h0, v, h1), v, sign, 0xf8);  // a | (b & c)
    put(_mm512_unpacklo_epi8(l, h), scales[i / 32], out + i);
    if (both) put(_mm512_unpackhi_epi8(l, h), scales[i / 32 + 1], out + i + 32);
  }
  return inside && nan == 0;
}

// Softmax and the share of the sums, between the two products of `nh` heads.
template <typename Values>
void finish(float* z, int64_t n, int64_t D, int nh, double scale, const float* sink, float* o,
            const Kernels<float>& plain, const Values& values) {
  float sums[kHeads];
  for (int h = 0; h < nh; ++h)
    sums[h] = probabilities(z + h * n, n, static_cast<float>(scale), sink[h], plain);
  std::fill(o, o + nh * D, 0.0f);
  values(reinterpret_cast<const uint32_t*>(z), o);
  for (int h = 0; h < nh; ++h) {
    const __m512 sum = _mm512_set1_ps(sums[h]);
    for (int64_t d = 0; d < D; d += 16)
      _mm512_storeu_ps(o + h * D + d, _mm512_div_ps(_mm512_loadu_ps(o + h * D + d), sum));
    plain.round(o + h * D, D, o + h * D);
  }
}

// Up to kHeads heads from q whose queries are bf16 values, as such; another head's query must not show in
// this one's bits.
int bf16_queries(const float* q, int heads, int64_t D, uint16_t* query) {
  int nh = 0;
  for (; nh < kHeads && nh < heads; ++nh) {
    __m512i lost = _mm512_setzero_si512();
    narrow(q + nh * D, D, query + nh * D, &lost);
    if (any(lost)) break;
  }
  return nh;
}

}  // namespace

void attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
            const float* sink, float* scratch, float* out, const Kernels<float>& plain) {
  if (D % 32 != 0 || D > kMaxWidth) return plain.attend(q, rows, n, D, heads, scale, sink, scratch, out);
  alignas(64) uint16_t query[kHeads * kMaxWidth];
  alignas(64) uint16_t tile[kValues * kMaxWidth];
  for (int h0 = 0; h0 < heads;) {
    int nh = bf16_queries(q + h0 * D, heads - h0, D, query);
    float* z = scratch + h0 * n;
    float* o = out + h0 * D;
    __m512i lost = _mm512_setzero_si512();
    const auto load = [&](int64_t i) {
      const int64_t count = std::min(kValues, n - i);
      narrow(rows + i * D, count * D, tile, &lost);
      return count;
    };
    for (int64_t i = 0; nh > 0 && i < n && !any(lost); i += kValues)
      logits(reinterpret_cast<const uint32_t*>(query), nh, tile, load(i), D, z + i, n);
    if (nh == 0 || any(lost)) {
      nh = std::max(nh, 1);
      plain.attend(q + h0 * D, rows, n, D, nh, scale, sink + h0, z, o);
    } else {
      finish(z, n, D, nh, scale, sink + h0, o, plain, [&](const uint32_t* p, float* to) {
        for (int64_t i = 0; i < n; i += kValues) values_of(p + i / 2, n, nh, tile, load(i), D, to);
      });
    }
    h0 += nh;
  }
}

int64_t gathered_bytes(RecordFormat format, int64_t D) {
  const bool ours = format == RecordFormat::kFp4_16 || format == RecordFormat::kFp8_32;
  return ours && D % 32 == 0 && D <= kMaxWidth ? D * 2 : 0;
}

bool gather_records(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                    uint8_t* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  return format == RecordFormat::kFp4_16 ? gather_fp4(codes, scales, n, to)
                                         : gather_fp8(codes, scales, n, to);
}

bool attend_gathered(const float* q, const uint8_t* gathered, int64_t n, int64_t D, int heads, double scale,
                     const float* sink, float* scratch, float* out, const Kernels<float>& plain) {
  alignas(64) uint16_t query[kHeads * kMaxWidth];
  const auto* rows = reinterpret_cast<const uint16_t*>(gathered);
  for (int h0 = 0, nh = 0; h0 < heads; h0 += nh) {
    nh = std::min(heads - h0, kHeads);
    if (bf16_queries(q + h0 * D, nh, D, query) < nh) return false;
    float* z = scratch + h0 * n;
    logits(reinterpret_cast<const uint32_t*>(query), nh, rows, n, D, z, n);
    finish(z, n, D, nh, scale, sink + h0, out + h0 * D, plain,
           [&](const uint32_t* p, float* to) { values_of(p, n, nh, rows, n, D, to); });
  }
  return true;
}

}  // namespace deepinfer::bf16
HWY_POP_ATTRIBUTES

#else

namespace deepinfer::bf16 {
void attend(const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
            const float* sink, float* scratch, float* out, const Kernels<float>& plain) {
  plain.attend(q, rows, n, D, heads, scale, sink, scratch, out);
}
int64_t gathered_bytes(RecordFormat, int64_t) {
  return 0;
}
bool gather_records(RecordFormat, const uint8_t*, const uint8_t*, int64_t, uint8_t*) {
  DI_CHECK(false, "no such level");
}
bool attend_gathered(const float*, const uint8_t*, int64_t, int64_t, int, double, const float*, float*,
                     float*, const Kernels<float>&) {
  DI_CHECK(false, "no such level");
}
}  // namespace deepinfer::bf16

#endif
