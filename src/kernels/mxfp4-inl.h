// y = x W^T for MXFP4 weights in integers. Twice an E2M1 value is an integer of at most 12, so with a block
// of 32 activations as 8-bit integers times a power of two, the dot product of a block is an exact integer.
// For block b:
//
//   x_b = 2^k q,   k = exponent(max |x_b|) - 6,   q = nearest, ties to even, at most 127 in magnitude
//   y   = the fp32 sum over ascending b of   float(sum of 2 w q) * 2^(k - 1) * 2^(s - 127)
//
// Only that sum rounds, one chain per output, so neither the width of the machine nor the number of rows of x
// can show. The rounding of x is finer than the E4M3 rounding the model was trained with at this point (model
// specification 8.5, points 4 and 5). Compiled once per instruction set. Source: model specification 8.1.
#if defined(DEEPINFER_KERNELS_MXFP4_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_MXFP4_INL_H_
#undef DEEPINFER_KERNELS_MXFP4_INL_H_
#else
#define DEEPINFER_KERNELS_MXFP4_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

constexpr int64_t kIntBlocks = 256;       // blocks of 32 columns per pass over the weights: 8,192 columns
constexpr int64_t kIntBand = 64;          // rows of x per pass, at most
constexpr int64_t kIntBytes = 384 << 10;  // and their prepared size
constexpr int kIntTile = 16;              // blocks of one decoded panel
constexpr int64_t kAheadBytes = 512;      // of each of the sixteen rows, fetched ahead of use
constexpr int kIntRows = 16;              // rows of weights of one panel, one per lane

// Rows of x as integers: for row t, block b the 32 values at q + (t * blocks +
// b) * 32.
struct IntRows {
  int64_t blocks = 0;  // even: a last odd block is followed by zeros
  int8_t* q = nullptr;
  float* scale = nullptr;     // 2^(k - 1)
  int32_t* offset = nullptr;  // -12 * sum of q: what makes codes stored as w + 12 >= 0 into w

  static int64_t RowBytes(int64_t blocks) { return blocks * (32 + 4 + 4); }
};

HWY_INLINE void QuantiseBlock(const float* x, int8_t* q, float* scale, int32_t* offset) {
  const F16 lo = Load(x), hi = Load(x + 16);
  if (HWY_UNLIKELY(!(AllFinite(lo) && AllFinite(hi)))) {  // poisons the outputs, as multiplying would
    std::memset(q, 0, 32);
    *scale = std::numeric_limits<float>::quiet_NaN();
    *offset = 0;
    return;
  }
  const uint32_t amax = std::bit_cast<uint32_t>(MaxLanes16(Max(Abs(lo), Abs(hi))));
  const int exponent = std::max(static_cast<int>(amax >> 23),
                                8);  // biased; keeps 2^(k - 1) a normal number
  *scale = std::bit_cast<float>(static_cast<uint32_t>(exponent - 6) << 23) * 0.5f;
  const F16 inverse = Set1(std::bit_cast<float>(static_cast<uint32_t>(254 - (exponent - 6)) << 23));
  const F16 a = Mul(lo, inverse), b = Mul(hi, inverse);
  const hn::Rebind<int8_t, DI> d8;
  VI sum = hn::Zero(DI());
  const VI top = hn::Set(DI(), 127), bottom = hn::Set(DI(), -127);
  DI_LANES {
    const VI i = hn::Max(hn::Min(hn::NearestInt(a.r[k]), top), bottom),
             j = hn::Max(hn::Min(hn::NearestInt(b.r[k]), top), bottom);
    hn::StoreU(hn::DemoteTo(d8, i), d8, q + k * kStep);
    hn::StoreU(hn::DemoteTo(d8, j), d8, q + 16 + k * kStep);
    sum = hn::Add(sum, hn::Add(i, j));
  }
  *offset = -12 * hn::GetLane(hn::SumOfLanes(DI(), sum));
}

// float(isum) * scale * weight_scale joins the chain. Exact but at the ends of
// the fp32 range, so fused or not is one number.
struct Chain {
  float sum = 0.0f;
  HWY_INLINE void Join(int32_t isum, float scale, float weight_scale) {
    sum += static_cast<float>(isum) * scale * weight_scale;
  }
};

alignas(64) inline constexpr uint8_t kTwiceE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};  // 2 w + 12

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

// The byte dot product is AVX-512 VNNI, which this level of Highway implies but
// does not switch on.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace deepinfer {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3
// ---- AVX-512: 16 rows of weights, one per lane.

HWY_INLINE __m512i Dot4(__m512i sum, __m512i w, __m512i x) {
#if HWY_TARGET == HWY_AVX3_DL
  return _mm512_dpbusd_epi32(sum, w, x);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
#endif
}

// 64 codes (32 bytes) to 64 bytes 2 w + 12 in column order.
HWY_INLINE __m512i Expand(__m256i codes, __m512i table) {
  const __m512i wide = _mm512_cvtepu8_epi16(codes);
  const __m512i pair =
      _mm512_ternarylogic_epi32(wide, _mm512_slli_epi16(wide, 4), _mm512_set1_epi8(15), 0xa8);  // (a | b) & c
  return _mm512_shuffle_epi8(table, pair);
}
// Block b and its successor; `last` if the successor does not exist.
HWY_INLINE __m256i LoadCodes(const uint8_t* p, bool last) {
  if (HWY_UNLIKELY(last)) return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

struct RowPointers {
  const uint8_t* codes[kIntRows];
  const uint8_t* scales[kIntRows];
  int64_t row_bytes;
  // Where the walk will be `distance` bytes of each row from now: further along these rows, then in the
  // sixteen after them.
  HWY_INLINE int64_t Ahead(int64_t at, int64_t distance) const {
    const int64_t next = at + distance;
    return next < row_bytes ? next : next + (kIntRows - 1) * row_bytes;
  }
  // Rows beyond `last` repeat it; their results are dropped.
  HWY_INLINE void Start(const MatrixView& w, int64_t o, int64_t last, int64_t block) {
    const int64_t blocks = w.cols / 32;
    row_bytes = blocks * 16;
    for (int r = 0; r < kIntRows; ++r) {
      const int64_t row = std::min(o + r, last);
      codes[r] = static_cast<const uint8_t*>(w.data) + (row * blocks + block) * 16;
      scales[r] = w.scales + row * blocks + block;
    }
  }
};

// Scale bytes of `n` <= 16 blocks from block b of 16 rows, one vector of rows
// per block.
HWY_INLINE void LoadScales(const RowPointers& p, int64_t b, int n, uint8_t (*out)[16]) {
  __m128i v[16], u[16];
  for (int r = 0; r < 16; ++r) {
    if (HWY_LIKELY(n == 16)) {
      v[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.scales[r] + b));
    } else {
      alignas(16) uint8_t part[16] = {};
      std::memcpy(part, p.scales[r] + b, static_cast<size_t>(n));
      v[r] = _mm_load_si128(reinterpret_cast<const __m128i*>(part));
    }
  }
  // Four rounds of interleaving row i with row i + 8 transpose the 16 x 16
  // bytes.
  for (int i = 0; i < 8; ++i)
    u[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]), u[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
  for (int i = 0; i < 8; ++i)
    v[2 * i] = _mm_unpacklo_epi8(u[i], u[i + 8]), v[2 * i + 1] = _mm_unpackhi_epi8(u[i], u[i + 8]);
  for (int i = 0; i < 8; ++i)
    u[2 * i] = _mm_unpacklo_epi8(v[i], v[i + 8]), u[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + 8]);
  for (int i = 0; i < 8; ++i)
    v[2 * i] = _mm_unpacklo_epi8(u[i], u[i + 8]), v[2 * i + 1] = _mm_unpackhi_epi8(u[i], u[i + 8]);
  for (int i = 0; i < 16; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(out[i]), v[i]);
}
HWY_INLINE __m512 ScaleVector(const uint8_t* bytes) {
  const __m512i s = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  __m512i bits = _mm512_slli_epi32(s, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(s, _mm512_setzero_si512()),
                               _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(255)),
                               _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(bits);
}
HWY_INLINE __m512 JoinVector(__m512 chain, __m512i isum, __m512 scale, __m512 weight_scale) {
  return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(isum), scale), weight_scale, chain);
}

// Columns of 16 rows to lanes: v[r] holds 4-column sums of row r for two
// blocks; lane r of sum0 and sum1 becomes the block sum of row r.
HWY_INLINE void FoldRows(const __m512i* v, __m512i& sum0, __m512i& sum1) {
  __m512i u[8], w[4];
  for (int i = 0; i < 8; ++i)
    u[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                            _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  for (int i = 0; i < 4; ++i)
    w[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(u[2 * i], u[2 * i + 1]),
                            _mm512_unpackhi_epi64(u[2 * i], u[2 * i + 1]));
  const __m512i a =
      _mm512_add_epi32(_mm512_shuffle_i32x4(w[0], w[1], 0x88), _mm512_shuffle_i32x4(w[0], w[1], 0xdd));
  const __m512i b =
      _mm512_add_epi32(_mm512_shuffle_i32x4(w[2], w[3], 0x88), _mm512_shuffle_i32x4(w[2], w[3], 0xdd));
  sum0 = _mm512_shuffle_i32x4(a, b, 0x88);
  sum1 = _mm512_shuffle_i32x4(a, b, 0xdd);
}

// One row of x against 16 rows of weights: every code is used the moment it is
// expanded.
HWY_NOINLINE HWY_MAYBE_UNUSED void IntSingle(const RowPointers& p, const IntRows& x, int64_t blocks,
                                             float* sums) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTwiceE2m1)));
  alignas(64) uint8_t scales[kIntTile][16];
  __m512 chain = _mm512_loadu_ps(sums);
  for (int64_t b0 = 0; b0 < blocks; b0 += kIntTile) {
    const int n = static_cast<int>(std::min<int64_t>(kIntTile, blocks - b0));
    LoadScales(p, b0, n, scales);
    for (int i = 0; i < n; i += 2) {
      const int64_t b = b0 + i;
      const __m512i q = _mm512_loadu_si512(x.q + b * 32);
      const int64_t ahead = p.Ahead(b * 16, kAheadBytes);
      __m512i v[kIntRows], sum0, sum1;
      for (int r = 0; r < kIntRows; ++r) {
        _mm_prefetch(reinterpret_cast<const char*>(p.codes[r] + b * 16 + 1024), _MM_HINT_T0);
        v[r] =
            Dot4(_mm512_setzero_si512(), Expand(LoadCodes(p.codes[r] + b * 16, b + 1 == blocks), table), q);
      }
      FoldRows(v, sum0, sum1);
      sum0 = _mm512_add_epi32(sum0, _mm512_set1_epi32(x.offset[b]));
      chain = JoinVector(chain, sum0, _mm512_set1_ps(x.scale[b]), ScaleVector(scales[i]));
      if (HWY_UNLIKELY(b + 1 == blocks)) break;
      sum1 = _mm512_add_epi32(sum1, _mm512_set1_epi32(x.offset[b + 1]));
      chain = JoinVector(chain, sum1, _mm512_set1_ps(x.scale[b + 1]), ScaleVector(scales[i + 1]));
    }
  }
  _mm512_storeu_ps(sums, chain);
}

// Up to 16 blocks of 16 rows of weights, decoded: for each block eight vectors
// of four columns, one row per lane.
struct IntPanel {
  alignas(64) uint8_t w[kIntTile * 8][64];
  alignas(64) float scale[kIntTile][16];
  alignas(64) float sum[kIntBand][16];
};

HWY_INLINE void Transpose16(__m512i* v) {
  __m512i u[16];
  for (int i = 0; i < 8; ++i) {
    u[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    u[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    v[4 * i + 0] = _mm512_unpacklo_epi64(u[4 * i], u[4 * i + 2]);
    v[4 * i + 1] = _mm512_unpackhi_epi64(u[4 * i], u[4 * i + 2]);
    v[4 * i + 2] = _mm512_unpacklo_epi64(u[4 * i + 1], u[4 * i + 3]);
    v[4 * i + 3] = _mm512_unpackhi_epi64(u[4 * i + 1], u[4 * i + 3]);
  }
  // v[4 i + c]: column c, c + 4, c + 8, c + 12 of rows 4 i .. 4 i + 3, one
  // column per 128 bits.
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88),
                  b = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88),
                  e = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
    u[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    u[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    u[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    u[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) v[i] = u[i];
}

HWY_INLINE void DecodePanel(const RowPointers& p, int64_t b0, int n, IntPanel& panel) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTwiceE2m1)));
  alignas(64) uint8_t scales[kIntTile][16];
  LoadScales(p, b0, n, scales);
  for (int i = 0; i < n; ++i) _mm512_store_ps(panel.scale[i], ScaleVector(scales[i]));
  for (int i = 0; i < n; i += 2) {
    __m512i v[16];
    for (int r = 0; r < 16; ++r) v[r] = Expand(LoadCodes(p.codes[r] + (b0 + i) * 16, i + 1 == n), table);
    Transpose16(v);
    for (int j = 0; j < 16; ++j) _mm512_store_si512(panel.w[8 * i + j], v[j]);
  }
}

template <int T>
HWY_INLINE void PanelDot(IntPanel& panel, const IntRows& x, int64_t t0, int64_t b0, int n) {
  __m512 chain[T];
  for (int t = 0; t < T; ++t) chain[t] = _mm512_load_ps(panel.sum[t0 + t]);
  for (int i = 0; i < n; ++i) {
    const int8_t* q[T];
    __m512i isum[T];
    for (int t = 0; t < T; ++t) {
      const int64_t at = (t0 + t) * x.blocks + b0 + i;
      q[t] = x.q + at * 32;
      isum[t] = _mm512_set1_epi32(x.offset[at]);
    }
    for (int j = 0; j < 8; ++j) {
      const __m512i w = _mm512_load_si512(panel.w[8 * i + j]);
      for (int t = 0; t < T; ++t) {
        int32_t four;
        std::memcpy(&four, q[t] + 4 * j, 4);
        isum[t] = Dot4(isum[t], w, _mm512_set1_epi32(four));
      }
    }
    const __m512 s = _mm512_load_ps(panel.scale[i]);
    for (int t = 0; t < T; ++t)
      chain[t] = JoinVector(chain[t], isum[t], _mm512_set1_ps(x.scale[(t0 + t) * x.blocks + b0 + i]), s);
  }
  for (int t = 0; t < T; ++t) _mm512_store_ps(panel.sum[t0 + t], chain[t]);
}

HWY_NOINLINE HWY_MAYBE_UNUSED void IntPanels(const RowPointers& p, const IntRows& x, int64_t blocks,
                                             int64_t T, IntPanel& panel) {
  for (int64_t b = 0; b < blocks; b += kIntTile) {
    const int n = static_cast<int>(std::min<int64_t>(kIntTile, blocks - b));
    DecodePanel(p, b, n, panel);
    int64_t t = 0;
    for (; t + 8 <= T; t += 8) PanelDot<8>(panel, x, t, b, n);
    if (T - t >= 4) PanelDot<4>(panel, x, t, b, n), t += 4;
    if (T - t >= 2) PanelDot<2>(panel, x, t, b, n), t += 2;
    if (T - t >= 1) PanelDot<1>(panel, x, t, b, n);
  }
}

// Adds blocks [0, blocks) from `block` on of weight rows [row0, row1) to sums
// kept in y.
template <typename Args>
HWY_INLINE void IntPass(const Args& a, const IntRows& x, int64_t block, int64_t blocks, int64_t t0, int64_t T,
                        int64_t row0, int64_t row1) {
  RowPointers p;
  IntPanel panel;
  for (int64_t o = row0; o < row1; o += kIntRows) {
    const int64_t rows = std::min<int64_t>(kIntRows, row1 - o);
    p.Start(*a.w, o, row1 - 1, block);
    for (int64_t t = 0; t < T; ++t) {
      std::memset(panel.sum[t], 0, sizeof(panel.sum[t]));
      if (block > 0)
        std::memcpy(panel.sum[t], a.y + (t0 + t) * a.ldy + o, static_cast<size_t>(rows) * sizeof(float));
    }
    if (T == 1)
      IntSingle(p, x, blocks, panel.sum[0]);
    else
      IntPanels(p, x, blocks, T, panel);
    for (int64_t t = 0; t < T; ++t)
      std::memcpy(a.y + (t0 + t) * a.ldy + o, panel.sum[t], static_cast<size_t>(rows) * sizeof(float));
  }
}

#else
// ---- narrower machines: one block of one row at a time.

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

template <typename Args>
HWY_INLINE void IntPass(const Args& a, const IntRows& x, int64_t block, int64_t blocks, int64_t t0, int64_t T,
                        int64_t row0, int64_t row1) {
  const int64_t all = a.w->cols / 32;
  Chain chain[kIntBand];
  for (int64_t o = row0; o < row1; ++o) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.w->data) + (o * all + block) * 16;
    const uint8_t* scales = a.w->scales + o * all + block;
    for (int64_t t = 0; t < T; ++t) chain[t].sum = block > 0 ? a.y[(t0 + t) * a.ldy + o] : 0.0f;
    for (int64_t b = 0; b < blocks; ++b) {
      alignas(32) uint8_t w[32];
      ExpandBlock(codes + b * 16, w);
      const float s = ScaleValue(scales[b]);
      for (int64_t t = 0; t < T; ++t) {
        const int64_t at = t * x.blocks + b;
        chain[t].Join(DotBlock(w, x.q + at * 32) + x.offset[at], x.scale[at], s);
      }
    }
    for (int64_t t = 0; t < T; ++t) a.y[(t0 + t) * a.ldy + o] = chain[t].sum;
  }
}
#endif

// Rows [t0, t0 + T) of x against weight rows [row0, row1).
template <typename Args>
HWY_NOINLINE void IntBand(const Args& a, int64_t t0, int64_t T, int64_t row0, int64_t row1) {
  alignas(64) uint8_t memory[kIntBytes];
  const int64_t all = a.w->cols / 32;
  for (int64_t block = 0; block < all; block += kIntBlocks) {
    const int64_t blocks = std::min(kIntBlocks, all - block);
    IntRows x;
    x.blocks = (blocks + 1) / 2 * 2;
    x.q = reinterpret_cast<int8_t*>(memory);
    x.scale = reinterpret_cast<float*>(memory + T * x.blocks * 32);
    x.offset = reinterpret_cast<int32_t*>(x.scale + T * x.blocks);
    for (int64_t t = 0; t < T; ++t) {
      const float* row = a.X(t0 + t) + block * 32;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = t * x.blocks + b;
        QuantiseBlock(row + b * 32, x.q + at * 32, x.scale + at, x.offset + at);
      }
      if (blocks < x.blocks) std::memset(x.q + (t * x.blocks + blocks) * 32, 0, 32);
    }
    IntPass(a, x, block, blocks, t0, T, row0, row1);
  }
  if (a.out == Out::kRounded)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t o = row0; o < row1; ++o) a.y[(t0 + t) * a.ldy + o] = round_bf16(a.y[(t0 + t) * a.ldy + o]);
}

template <typename Args>
HWY_NOINLINE void LinearMxfp4(const Args& a, int64_t T, int64_t row0, int64_t row1) {
  const int64_t blocks = std::min(kIntBlocks, (a.w->cols / 32 + 1) / 2 * 2);
  const int64_t fit = std::max<int64_t>(1, kIntBytes / IntRows::RowBytes(std::max<int64_t>(blocks, 1)));
  const int64_t band = std::min(kIntBand, fit >= 8 ? fit / 8 * 8 : fit);
  for (int64_t t = 0; t < T; t += band) IntBand(a, t, std::min(band, T - t), row0, row1);
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_MXFP4_INL_H_
