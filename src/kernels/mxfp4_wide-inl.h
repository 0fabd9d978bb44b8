// The integer products of mxfp4-inl.h and the index scan on AVX-512: sixteen rows of weights (or keys), one
// per lane. A 32-bit lane holds four bytes of a row, eight codes: low nibbles are its even columns, high
// nibbles its odd ones, so rows become lanes by in-lane interleaves of the packed bytes and the activations
// are read four bytes at a time for all sixteen rows. Few rows of x use a weight the moment it is expanded;
// many share an expanded panel of the first-level cache. Once per instruction set.
#if defined(DEEPINFER_KERNELS_MXFP4_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_MXFP4_WIDE_INL_H_
#undef DEEPINFER_KERNELS_MXFP4_WIDE_INL_H_
#else
#define DEEPINFER_KERNELS_MXFP4_WIDE_INL_H_
#endif

#include "kernels/mxfp4_rows-inl.h"
#include "kernels/rows_to_lanes.h"

#if HWY_TARGET <= HWY_AVX3

// The byte dot product is AVX-512 VNNI, the byte permute VBMI, which this level of Highway implies but does
// not switch on.
#if HWY_TARGET == HWY_AVX3_DL
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni,avx512vbmi")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace deepinfer {
namespace HWY_NAMESPACE {

constexpr int kIntRows = 16;   // rows of weights of a group, one per lane
constexpr int kIntPiece = 16;  // blocks whose scales are loaded together
constexpr int kIntDeep = 32;   // blocks of a panel
constexpr int kIntTile = 6;    // rows of x of one register tile over two groups
constexpr int kIntFew = 8;     // so many rows of x at most use codes straight from the expander
constexpr int kIntPanel = 24;  // more rows of x than this share a panel; fewer pass over a group in turns
constexpr int64_t kIntAhead = 256;  // bytes of every weight row brought to the first-level cache ahead of use

HWY_INLINE __m512i Dot4(__m512i sum, __m512i w, __m512i x) {
#if HWY_TARGET == HWY_AVX3_DL
  return _mm512_dpbusd_epi32(sum, w, x);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
#endif
}
HWY_INLINE __m512i FourBytes(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
// sum + w . the four bytes at p in every lane: one instruction, of which the compiler would make two.
template <int kAt>
HWY_INLINE __m512i Dot4At(__m512i sum, __m512i w, const uint8_t* p, int64_t at) {
#if HWY_TARGET == HWY_AVX3_DL
  asm("vpdpbusd %c4(%2,%3)%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(w), "r"(p), "r"(at), "i"(kAt), "m"(*reinterpret_cast<const uint8_t(*)[1 << 20]>(p)));
  return sum;
#else
  return Dot4(sum, w, FourBytes(reinterpret_cast<const int8_t*>(p + at + kAt)));
#endif
}
HWY_INLINE float FloatAt(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, 4);
  return v;
}
HWY_INLINE __m512i IntTable() {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kTwiceE2m1)));
}
// 2 w + 12 of the low nibbles of all bytes. The permute looks at six bits of a byte and the table repeats
// every sixteen, so what stands above a nibble need not be cleared.
HWY_INLINE __m512i LowCodes(__m512i v, __m512i table) {
#if HWY_TARGET == HWY_AVX3_DL
  return _mm512_permutexvar_epi8(v, table);
#else
  return _mm512_shuffle_epi8(table, _mm512_and_si512(v, _mm512_set1_epi8(15)));
#endif
}
HWY_INLINE __m512i HighCodes(__m512i v, __m512i table) {
  return LowCodes(_mm512_srli_epi16(v, 4), table);
}

// Sixteen packed rows.
struct IntGroup {
  const uint8_t* codes[kIntRows];
  const uint8_t* scales[kIntRows];

  // Rows of a matrix from o; rows beyond `last` repeat it, their results are dropped.
  HWY_INLINE void Start(const MatrixView& w, int64_t o, int64_t last) {
    const int64_t blocks = w.cols / 32;
    for (int r = 0; r < kIntRows; ++r) {
      const int64_t row = std::min(o + r, last);
      codes[r] = static_cast<const uint8_t*>(w.data) + row * blocks * 16;
      scales[r] = w.scales + row * blocks;
    }
  }
  // Block b of all rows, packed: v[i] has four bytes of a row in its lane, columns 8 i to 8 i + 7. In eight
  // parts, which leave something else to do between them; `a` is what is on its way.
  template <int kPart>
  HWY_INLINE void LoadPart(int64_t b, __m512i (&a)[4], __m512i (&v)[4]) const {
    rows_to_lanes_part<kPart>(
        [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[r] + b * 16)); }, a, v);
  }
  HWY_INLINE void Load(int64_t b, __m512i (&v)[4]) const {
    rows_to_lanes([&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[r] + b * 16)); },
                  v);
  }
  // Brings what the walk along the rows comes to next from the second-level cache to the first.
  HWY_INLINE void Fetch(int64_t b, int64_t blocks) const {
    const int64_t next = b * 16 + kIntAhead;
    if (next >= blocks * 16) return;
    for (int r = 0; r < kIntRows; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(codes[r] + next), _MM_HINT_T0);
  }
};

// Reads ahead of the walk, in the order of addresses, into the second-level cache: the rows after the group,
// at the pace at which the group's own are used by `turns` walks, up to the end of the call's range.
struct IntStream {
  const uint8_t *codes, *codes_end, *scales, *scales_end;
  int lines;
  IntStream(const MatrixView& w, int64_t row, int64_t last, int turns = 1) : lines((3 + turns) / turns) {
    const int64_t blocks = w.cols / 32;
    row = std::min(row, last);
    codes = static_cast<const uint8_t*>(w.data) + row * blocks * 16;
    codes_end = static_cast<const uint8_t*>(w.data) + last * blocks * 16;
    scales = w.scales + row * blocks;
    scales_end = w.scales + last * blocks;
  }
  // By what block b of sixteen rows takes.
  HWY_INLINE void Advance(int64_t b) { Take(lines, b % 4 == 0); }
  // So many cache lines of each.
  HWY_INLINE void Take(int64_t code_lines, int64_t scale_lines) {
    for (int64_t i = 0; i < code_lines && codes < codes_end; ++i, codes += 64)
      _mm_prefetch(reinterpret_cast<const char*>(codes), _MM_HINT_T1);
    for (int64_t i = 0; i < scale_lines && scales < scales_end; ++i, scales += 64)
      _mm_prefetch(reinterpret_cast<const char*>(scales), _MM_HINT_T1);
  }
};

// Scale bytes of up to sixteen blocks of sixteen rows: v[d] has those of blocks 4 d to 4 d + 3 of a row in
// its lane.
struct IntScales {
  alignas(64) int32_t lanes[4][kIntRows];

  // n blocks from block b on; the rest is left at one. Returns whether all are in [64, 190]: with an
  // activation scale in the same range the product is a normal number and is the sum of the exponents.
  HWY_INLINE bool Load(const IntGroup& p, int64_t b, int n) {
    __m512i a[4], c[4];
    const auto turn = [&](const auto& part) {
      for (int j = 0; j < 4; ++j) {
        a[j] = _mm512_castsi128_si512(part(j));
        a[j] = _mm512_mask_broadcast_i32x4(a[j], 0x00f0, part(4 + j));
        a[j] = _mm512_mask_broadcast_i32x4(a[j], 0x0f00, part(8 + j));
        a[j] = _mm512_mask_broadcast_i32x4(a[j], 0xf000, part(12 + j));
      }
    };
    if (HWY_LIKELY(n == 16)) {
      turn([&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.scales[r] + b)); });
    } else {
      const auto some = static_cast<__mmask16>(0xffffu >> (16 - n));
      turn([&](int r) { return _mm_mask_loadu_epi8(_mm_set1_epi8(127), some, p.scales[r] + b); });
    }
    for (int j = 0; j < 2; ++j) {
      c[j] = _mm512_unpacklo_epi32(a[2 * j], a[2 * j + 1]);
      c[2 + j] = _mm512_unpackhi_epi32(a[2 * j], a[2 * j + 1]);
    }
    bool middle = true;
    for (int j = 0; j < 2; ++j) {
      middle &= Put(2 * j, _mm512_unpacklo_epi64(c[2 * j], c[2 * j + 1]));
      middle &= Put(2 * j + 1, _mm512_unpackhi_epi64(c[2 * j], c[2 * j + 1]));
    }
    return middle;
  }
  HWY_INLINE bool Put(int d, __m512i v) {
    _mm512_store_si512(lanes[d], v);
    return _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(v, _mm512_set1_epi8(64)), _mm512_set1_epi8(126)) == 0;
  }
  // Of block i of these, shifted to the place of an exponent.
  HWY_INLINE __m512i Exponents(int i) const {
    static constexpr int32_t kTurn[4] = {23, 15, 7, 31};
    return _mm512_and_si512(
        _mm512_rolv_epi32(_mm512_load_si512(lanes[i / 4]), _mm512_set1_epi32(kTurn[i % 4])),
        _mm512_set1_epi32(0x7f800000));
  }
};
// 2^(s - 127) of exponents from the scale bytes.
HWY_INLINE __m512 ScaleVector(__m512i bits) {
  const __m512i zero = _mm512_setzero_si512(), ones = _mm512_set1_epi32(0x7f800000);
  const __mmask16 least = _mm512_cmpeq_epi32_mask(bits, zero), nan = _mm512_cmpeq_epi32_mask(bits, ones);
  bits = _mm512_mask_mov_epi32(bits, least, _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(bits);
}
HWY_INLINE __m512 JoinVector(__m512 chain, __m512i isum, __m512 scale, __m512 weight_scale) {
  return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(isum), scale), weight_scale, chain);
}

// 2^(s - 127) as what is added to the bits of a power of two. REQUIRES MiddleScales.
HWY_INLINE __m512i ScaleSteps(__m512i bits) {
  return _mm512_sub_epi32(bits, _mm512_set1_epi32(127 << 23));
}
HWY_INLINE __m512 StepScale(__m512i step) {
  return ScaleVector(_mm512_add_epi32(step, _mm512_set1_epi32(127 << 23)));
}
// The same as JoinVector with the scales multiplied by adding exponents, which takes nothing from the units
// that multiply.
HWY_INLINE __m512 JoinSteps(__m512 chain, __m512i isum, float scale, __m512i step) {
  const __m512i both = _mm512_add_epi32(step, _mm512_castps_si512(_mm512_set1_ps(scale)));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_castsi512_ps(both), chain);
}
// Whether the scales of a prepared row are in the range of IntScales::Load.
HWY_INLINE bool MiddleScales(const float* x, int64_t n) {
  __mmask16 outside = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const auto some = static_cast<__mmask16>(n - i >= 16 ? 0xffffu : 0xffffu >> (16 - (n - i)));
    const __m512i e = _mm512_srli_epi32(_mm512_castps_si512(_mm512_maskz_loadu_ps(some, x + i)), 23);
    outside |= _mm512_mask_cmpgt_epu32_mask(some, _mm512_sub_epi32(e, _mm512_set1_epi32(64)),
                                            _mm512_set1_epi32(126));
  }
  return outside == 0;
}

struct IntArgs {
  const MatrixView* w;
  const uint8_t* x;
  int64_t stride;
  const int32_t* rows;
  int64_t row0, row1;
  float* y;
  int64_t ldy;
  Out out;
  bool middle = false;  // MiddleScales of all rows of x

  HWY_INLINE const uint8_t* X(int64_t t) const { return x + (rows ? int64_t{rows[t]} : t) * stride; }
  HWY_INLINE void Put(int64_t t, int64_t o, __m512 v) const {
    if (out == Out::kRounded) v = RoundBf16(F16{{VF{v}}}).r[0].raw;
    const auto some = static_cast<__mmask16>(0xffffu >> (o + kIntRows > row1 ? o + kIntRows - row1 : 0));
    _mm512_mask_storeu_ps(y + t * ldy + o, some, v);
  }
};

// Columns 8 J to 8 J + 7 of block b, and two parts of loading the block after it.
template <int J, int T>
HWY_INLINE void IntFewStep(const IntGroup& p, const uint8_t* const (&x)[T], int64_t b, int64_t next_b,
                           const __m512i (&v)[4], __m512i (&a)[4], __m512i (&next)[4], __m512i (&isum)[T]) {
  const __m512i table = IntTable();
  const __m512i even = LowCodes(v[J], table);
  p.LoadPart<2 * J>(next_b, a, next);
  for (int t = 0; t < T; ++t) isum[t] = Dot4At<8 * J>(isum[t], even, x[t], b * 32);
  const __m512i odd = HighCodes(v[J], table);
  p.LoadPart<2 * J + 1>(next_b, a, next);
  for (int t = 0; t < T; ++t) isum[t] = Dot4At<8 * J + 4>(isum[t], odd, x[t], b * 32);
}

// Blocks [b0, b0 + n) of T prepared rows against one group; `scales`: of these blocks. `v` holds the packed
// codes of block b0 and is left with those of the block after the last, so that a block is on its way while
// the one before it is multiplied.
template <int T, bool kMiddle>
HWY_INLINE void IntFewPiece(const IntGroup& p, const uint8_t* const (&x)[T], int64_t b0, int n,
                            int64_t blocks, const IntScales& scales, IntStream& stream, __m512i (&v)[4],
                            __m512 (&sums)[T]) {
  __m512 chain[T];
  for (int t = 0; t < T; ++t) chain[t] = sums[t];
  for (int i = 0; i < n; ++i) {
    const int64_t b = b0 + i, next_b = std::min(b + 1, blocks - 1);
    if (b % 4 == 0) p.Fetch(b, blocks);
    stream.Advance(b);
    __m512i isum[T], a[4], next[4];
    for (int t = 0; t < T; ++t)
      isum[t] = FourBytes(reinterpret_cast<const int8_t*>(x[t] + blocks * 36 + b * 4));
    IntFewStep<0, T>(p, x, b, next_b, v, a, next, isum);
    IntFewStep<1, T>(p, x, b, next_b, v, a, next, isum);
    IntFewStep<2, T>(p, x, b, next_b, v, a, next, isum);
    IntFewStep<3, T>(p, x, b, next_b, v, a, next, isum);
    for (int j = 0; j < 4; ++j) v[j] = next[j];
    if constexpr (kMiddle) {
      const __m512i step = ScaleSteps(scales.Exponents(i));
      for (int t = 0; t < T; ++t)
        chain[t] = JoinSteps(chain[t], isum[t], FloatAt(x[t] + blocks * 32 + b * 4), step);
    } else {
      const __m512 s = ScaleVector(scales.Exponents(i));
      for (int t = 0; t < T; ++t)
        chain[t] = JoinVector(chain[t], isum[t], _mm512_set1_ps(FloatAt(x[t] + blocks * 32 + b * 4)), s);
    }
  }
  for (int t = 0; t < T; ++t) sums[t] = chain[t];
}

// T rows of x from t0 against sixteen rows of weights from o.
template <int T>
HWY_NOINLINE HWY_MAYBE_UNUSED void IntFewRows(const IntArgs& a, const IntGroup& p, int64_t o, int64_t t0,
                                              IntStream& stream) {
  const int64_t blocks = a.w->cols / 32;
  IntScales scales;
  const uint8_t* x[T];
  __m512 chain[T];
  for (int t = 0; t < T; ++t) x[t] = a.X(t0 + t), chain[t] = _mm512_setzero_ps();
  __m512i v[4];
  p.Load(0, v);
  for (int64_t b0 = 0; b0 < blocks; b0 += kIntPiece) {
    const int n = static_cast<int>(std::min<int64_t>(kIntPiece, blocks - b0));
    if (HWY_LIKELY(scales.Load(p, b0, n) && a.middle))
      IntFewPiece<T, true>(p, x, b0, n, blocks, scales, stream, v, chain);
    else
      IntFewPiece<T, false>(p, x, b0, n, blocks, scales, stream, v, chain);
  }
  for (int t = 0; t < T; ++t) a.Put(t0 + t, o, chain[t]);
}

// Up to kIntDeep blocks of two groups, rows turned to lanes but still packed: a tile expands them on units
// that its products leave idle. `middle`: the steps may be used.
struct IntPanel {
  alignas(64) uint8_t w[2][kIntDeep * 4][64];
  alignas(64) int32_t step[2][kIntDeep][16];
  alignas(64) float sum[kIntBand][2][16];
  bool middle;
};

HWY_NOINLINE HWY_MAYBE_UNUSED bool FillPanel(const IntGroup& p, int64_t b0, int n, int64_t blocks,
                                             uint8_t (*w)[64], int32_t (*step)[16]) {
  bool middle = true;
  for (int from = 0; from < n; from += kIntPiece) {
    const int to = std::min(n, from + kIntPiece);
    IntScales scales;
    middle = scales.Load(p, b0 + from, to - from) && middle;
    for (int i = from; i < to; ++i) {
      if ((b0 + i) % 4 == 0) p.Fetch(b0 + i, blocks);
      _mm512_store_si512(step[i], ScaleSteps(scales.Exponents(i - from)));
      __m512i v[4];
      p.Load(b0 + i, v);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(w[4 * i + j], v[j]);
    }
  }
  return middle;
}

// Block b of T prepared rows of `blocks` blocks against two groups: the exact block sums. The rows are
// addressed from their start, so that one pointer each is enough.
template <int T>
HWY_INLINE void IntTileBlock(const uint8_t (*w0)[64], const uint8_t (*w1)[64], const uint8_t* const (&x)[T],
                             int64_t b, int64_t blocks, __m512i (&isum)[2][T]) {
  const __m512i table = IntTable();
  for (int t = 0; t < T; ++t)
    isum[0][t] = isum[1][t] = FourBytes(reinterpret_cast<const int8_t*>(x[t] + blocks * 36 + b * 4));
  for (int j = 0; j < 4; ++j) {
    const __m512i v = _mm512_load_si512(w0[j]), u = _mm512_load_si512(w1[j]);
    const __m512i a = LowCodes(v, table), c = LowCodes(u, table);
    for (int t = 0; t < T; ++t) {
      const __m512i q = FourBytes(reinterpret_cast<const int8_t*>(x[t] + b * 32 + 8 * j));
      isum[0][t] = Dot4(isum[0][t], a, q);
      isum[1][t] = Dot4(isum[1][t], c, q);
    }
    const __m512i d = HighCodes(v, table), e = HighCodes(u, table);
    for (int t = 0; t < T; ++t) {
      const __m512i q = FourBytes(reinterpret_cast<const int8_t*>(x[t] + b * 32 + 8 * j + 4));
      isum[0][t] = Dot4(isum[0][t], d, q);
      isum[1][t] = Dot4(isum[1][t], e, q);
    }
  }
}

// n blocks from b0 of T rows of x against the panel.
template <int T, bool kMiddle>
HWY_INLINE void IntTilePiece(IntPanel& p, const uint8_t* const* rows, int64_t t0, int64_t b0, int n,
                             int64_t blocks) {
  __m512 chain[2][T];
  const uint8_t* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = rows[t0 + t];
    for (int g = 0; g < 2; ++g) chain[g][t] = _mm512_load_ps(p.sum[t0 + t][g]);
  }
  for (int i = 0; i < n; ++i) {
    __m512i isum[2][T];
    const int64_t b = b0 + i, at = blocks * 32 + b * 4;
    IntTileBlock<T>(p.w[0] + 4 * i, p.w[1] + 4 * i, x, b, blocks, isum);
    for (int g = 0; g < 2; ++g) {
      const __m512i step = _mm512_load_si512(p.step[g][i]);
      for (int t = 0; t < T; ++t)
        chain[g][t] = kMiddle ? JoinSteps(chain[g][t], isum[g][t], FloatAt(x[t] + at), step)
                              : JoinVector(chain[g][t], isum[g][t], _mm512_set1_ps(FloatAt(x[t] + at)),
                                           StepScale(step));
    }
  }
  for (int t = 0; t < T; ++t)
    for (int g = 0; g < 2; ++g) _mm512_store_ps(p.sum[t0 + t][g], chain[g][t]);
}
template <int T>
HWY_NOINLINE HWY_MAYBE_UNUSED void IntTileRows(IntPanel& p, const uint8_t* const* rows, int64_t t0,
                                               int64_t b0, int n, int64_t blocks) {
  if (HWY_LIKELY(p.middle))
    IntTilePiece<T, true>(p, rows, t0, b0, n, blocks);
  else
    IntTilePiece<T, false>(p, rows, t0, b0, n, blocks);
}

HWY_NOINLINE HWY_MAYBE_UNUSED void IntManyRows(const IntArgs& a, int64_t t0, int64_t T) {
  IntPanel p;
  const uint8_t* x[kIntBand];
  const int64_t blocks = a.w->cols / 32;
  for (int64_t t = 0; t < T; ++t) x[t] = a.X(t0 + t);
  for (int64_t o = a.row0; o < a.row1; o += 2 * kIntRows) {
    const int groups = o + kIntRows < a.row1 ? 2 : 1;
    IntGroup group[2];
    for (int g = 0; g < 2; ++g) group[g].Start(*a.w, o + g * kIntRows, a.row1 - 1);
    std::memset(p.sum, 0, static_cast<size_t>(T) * sizeof p.sum[0]);
    IntStream stream(*a.w, o + 2 * kIntRows, a.row1);
    for (int64_t b = 0; b < blocks; b += kIntDeep) {
      const int n = static_cast<int>(std::min<int64_t>(kIntDeep, blocks - b));
      p.middle = a.middle;
      for (int g = 0; g < 2; ++g) {
        const bool middle = FillPanel(group[g], b, n, blocks, p.w[g], p.step[g]);
        p.middle = p.middle && middle;
      }
      // Tiles of about the same size: a tile of one or two rows waits for its loads. What is read ahead is
      // spread over them: asked for all at once it would wait for memory.
      const int64_t all = (T + kIntTile - 1) / kIntTile;
      for (int64_t t = 0, tiles = all; tiles > 0; --tiles) {
        stream.Take((8 * n + all - 1) / all, (n / 2 + all - 1) / all);
        const int64_t left = T - t, take = (left + tiles - 1) / tiles;
        if (take == 6) IntTileRows<6>(p, x, t, b, n, blocks);
        if (take == 5) IntTileRows<5>(p, x, t, b, n, blocks);
        if (take == 4) IntTileRows<4>(p, x, t, b, n, blocks);
        if (take == 3) IntTileRows<3>(p, x, t, b, n, blocks);
        if (take == 2) IntTileRows<2>(p, x, t, b, n, blocks);
        if (take == 1) IntTileRows<1>(p, x, t, b, n, blocks);
        t += take;
      }
    }
    for (int64_t t = 0; t < T; ++t)
      for (int g = 0; g < groups; ++g) a.Put(t0 + t, o + g * kIntRows, _mm512_load_ps(p.sum[t][g]));
  }
}

HWY_MAYBE_UNUSED void IntCall(IntArgs a, int64_t T) {
  const int64_t blocks = a.w->cols / 32;
  a.middle = true;
  for (int64_t t = 0; t < T; ++t)
    a.middle = MiddleScales(reinterpret_cast<const float*>(a.X(t) + blocks * 32), blocks) && a.middle;
  using Few = void (*)(const IntArgs&, const IntGroup&, int64_t, int64_t, IntStream&);
  static constexpr Few kFew[kIntFew] = {IntFewRows<1>, IntFewRows<2>, IntFewRows<3>, IntFewRows<4>,
                                        IntFewRows<5>, IntFewRows<6>, IntFewRows<7>, IntFewRows<8>};
  if (T > kIntPanel) {
    for (int64_t t = 0; t < T; t += kIntBand) IntManyRows(a, t, std::min(kIntBand, T - t));
    return;
  }
  IntGroup p;
  const auto turns = static_cast<int>((T + kIntFew - 1) / kIntFew);
  for (int64_t o = a.row0; o < a.row1; o += kIntRows) {
    p.Start(*a.w, o, a.row1 - 1);
    IntStream stream(*a.w, o + kIntRows, a.row1, turns);
    for (int64_t t = 0, left = turns; left > 0; --left) {
      const int64_t take = (T - t + left - 1) / left;
      kFew[take - 1](a, p, o, t, stream);
      t += take;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET <= HWY_AVX3

#endif  // DEEPINFER_KERNELS_MXFP4_WIDE_INL_H_
