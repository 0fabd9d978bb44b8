// Sixteen rows of weights, one per lane: four columns of a row lie in one 32-bit lane, so that turning rows
// into lanes takes in-lane interleaves only, and a row of x is read four bytes at a time for all sixteen. Few
// rows of x use a weight the moment it is decoded; many share a decoded panel of the first-level cache.
#include "kernels/bf16.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/numeric.h"
#include "kernels/fp8_bytes.h"
#include "kernels/rows_to_lanes.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx2,fma,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vbmi,avx512bf16")
namespace deepinfer::bf16 {
namespace {

constexpr int kGroup = 16;       // rows of weights, one per lane
constexpr int64_t kPiece = 256;  // columns of one pair of accumulators
constexpr int64_t kBand = 256;   // rows of x that share a decoded panel
constexpr int kTile = 6;         // rows of x of one register tile over two groups
constexpr int kFewRows = 8;      // so many rows of x at most use weights straight from the decoder
constexpr int kPanelRows = 48;   // more rows of x than this share a panel; fewer pass over a group in turns
constexpr int64_t kAhead = 256;  // bytes of every weight row brought to the first-level cache ahead of use
constexpr int64_t kMaxCols = 1 << 15;  // a row in fp32 fits the stack
constexpr int64_t kStackBytes = 256 << 10;

// The lane of row r of a group. Rows 4 i to 4 i + 3 are loaded one after the other: of rows an odd multiple
// of 1,024 bytes apart every fourth falls into the same set of the first-level cache, and loads of one set
// wait for each other.
constexpr int lane_of(int r) {
  return r % 4 * 4 + r / 4;
}

// Sixteen rows of a matrix from o (a multiple of 16); rows beyond the last repeat it.
struct Group {
  const uint8_t* data[kGroup];
  const uint8_t* scales;  // of the tile that holds all sixteen (kFp8Tile32)
  int64_t row_bytes, first_row;
  // Rows that lie a multiple of 4,096 bytes apart fall into one set of the first-level cache and push each
  // other out: their lines are copied side by side, once each.
  bool staged;
  alignas(64) mutable uint8_t stage[kGroup][64];

  HWY_INLINE void start(const MatrixView& w, int64_t o) {
    first_row = o;
    row_bytes = w.cols * (w.format == WeightFormat::kBF16 ? 2 : 1);
    for (int r = 0; r < kGroup; ++r)
      data[r] = static_cast<const uint8_t*>(w.data) + std::min(o + r, w.rows - 1) * row_bytes;
    staged = row_bytes % 4096 == 0;
    scales = w.format == WeightFormat::kFp8Tile32 ? w.scales + o / 32 * (w.cols / 32) : nullptr;
  }
  // 16 bytes at `at` of all rows: v[d] has the d-th four bytes of row r in lane_of(r). In eight parts, which
  // leave something else to do between them; `a` is what is on its way.
  // REQUIRES that a walk comes by every multiple of 64.
  template <bool kStaged, int kPart>
  HWY_INLINE void load_part(int64_t at, __m512i (&a)[4], __m512i (&v)[4]) const {
    if constexpr (kStaged && kPart == 0) {
      if (at % 64 == 0)
        for (int r = 0; r < kGroup; ++r) _mm512_store_si512(stage[r], _mm512_loadu_si512(data[r] + at));
    }
    const auto part = [&](int lane) {
      const int r = lane_of(lane);  // which is its own inverse
      const uint8_t* p = kStaged ? stage[r] + at % 64 : data[r] + at;
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    };
    rows_to_lanes_part<kPart>(part, a, v);
  }
  template <bool kStaged>
  HWY_INLINE void load(int64_t at, __m512i (&v)[4]) const {
    __m512i a[4];
    load_part<kStaged, 0>(at, a, v), load_part<kStaged, 1>(at, a, v), load_part<kStaged, 2>(at, a, v);
    load_part<kStaged, 3>(at, a, v), load_part<kStaged, 4>(at, a, v), load_part<kStaged, 5>(at, a, v);
    load_part<kStaged, 6>(at, a, v), load_part<kStaged, 7>(at, a, v);
  }
  // Brings what the walk along the rows comes to next from the second-level cache to the first.
  HWY_INLINE void fetch(int64_t at) const {
    if (staged || at + kAhead >= row_bytes) return;
    for (int r = 0; r < kGroup; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(data[r] + at + kAhead), _MM_HINT_T0);
  }
};

// Reads ahead of the walk, in the order of addresses, into the second-level cache: the rows after the group,
// at the pace at which the group's own are used by `walks` walks, up to the end of the call's range.
struct Stream {
  const uint8_t *next, *end;
  int64_t turns;
  Stream(const MatrixView& w, int64_t row, int64_t last, int64_t walks = 1) : turns(walks) {
    const int64_t bytes = w.cols * (w.format == WeightFormat::kBF16 ? 2 : 1);
    next = static_cast<const uint8_t*>(w.data) + std::min(row, last) * bytes;
    end = static_cast<const uint8_t*>(w.data) + last * bytes;
  }
  HWY_INLINE void advance(int64_t bytes) {
    for (int64_t i = 0; i < bytes && next < end; i += 64 * turns, next += 64)
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
  }
};

// How 16 bytes of sixteen rows (Group::load) become weights: kCols columns, in order; pair(v[i], ...) gives
// the pairs of kPairs / 4 groups of four columns. Group g: pair 2 g has columns 4 g and 4 g + 2 of a row in
// its lane, pair 2 g + 1 the other two.
template <WeightFormat F>
struct Decoder;

template <>
struct Decoder<WeightFormat::kBF16> {
  static constexpr int64_t kUnit = 2, kCols = 8;
  HWY_INLINE void start(const Group&, int64_t) {}
  // Groups of four columns 2 i and 2 i + 1 of a chunk: v[2 g] and v[2 g + 1] have a group's columns in order.
  HWY_INLINE void pairs(const __m512i (&v)[4], int g, __m512i* first, __m512i* second) const {
    const __mmask32 odd = 0xaaaaaaaau;
    *first = _mm512_mask_mov_epi16(v[2 * g], odd, _mm512_slli_epi32(v[2 * g + 1], 16));
    *second = _mm512_mask_mov_epi16(_mm512_srli_epi32(v[2 * g], 16), odd, v[2 * g + 1]);
  }
};

template <>
struct Decoder<WeightFormat::kFp8Tile32> {
  static constexpr int64_t kUnit = 1, kCols = 16;
  __m512i l0, l1, h0, h1;
  // The tables of the tile at column c, with its scale in the exponents.
  HWY_INLINE void start(const Group& group, int64_t c) {
    const int e = int{group.scales[c / 32]} - 127;
    const uint8_t *low = kFp8Bytes.low[e & 1], *high = kFp8Bytes.high[e & 1];
    const __m512i half = _mm512_set1_epi8(static_cast<char>(e >> 1));
    l0 = _mm512_load_si512(low), l1 = _mm512_load_si512(low + 64);
    h0 = _mm512_load_si512(high), h1 = _mm512_load_si512(high + 64);
    // The first code is zero, the last NaN: they have no exponent to add to.
    h0 = _mm512_mask_add_epi8(h0, ~uint64_t{1}, h0, half);
    h1 = _mm512_mask_add_epi8(h1, ~uint64_t{0} >> 1, h1, half);
  }
  HWY_INLINE void pairs(const __m512i (&v)[4], int g, __m512i* first, __m512i* second) const {
    const __m512i low_bytes = _mm512_set1_epi16(0x00ff), sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i l = _mm512_permutex2var_epi8(l0, v[g], l1);
    __m512i h = _mm512_permutex2var_epi8(h0, v[g], h1);
    h = _mm512_ternarylogic_epi32(h, v[g], sign, 0xf8);  // a | (b & c)
    *first = _mm512_ternarylogic_epi32(_mm512_slli_epi16(h, 8), l, low_bytes, 0xf8);
    *second = _mm512_ternarylogic_epi32(_mm512_srli_epi16(l, 8), h, low_bytes, 0xf4);  // a | (b & ~c)
  }
};

// 32 columns of sixteen rows from column c.
template <WeightFormat F>
HWY_INLINE void decode(const MatrixView& w, const Group& group, int64_t o, int64_t c, __m512i (&pair)[16]) {
  if constexpr (F != WeightFormat::kFp8Row32) {
    using D = Decoder<F>;
    constexpr int kGroups = D::kCols / 4;
    D d;
    d.start(group, c);
    for (int i = 0; i < 32 / D::kCols; ++i) {
      __m512i v[4];
      const int64_t at = (c + i * D::kCols) * D::kUnit;
      group.staged ? group.load<true>(at, v) : group.load<false>(at, v);
      for (int g = 0; g < kGroups; ++g)
        d.pairs(v, g, &pair[2 * (kGroups * i + g)], &pair[2 * (kGroups * i + g) + 1]);
    }
  } else {
    // Scales per row: no product of the model has them, so this is the plain definition.
    alignas(64) uint32_t lanes[16][kGroup];
    for (int r = 0; r < kGroup; ++r) {
      const int64_t row = std::min(o + r, w.rows - 1);
      const float s = e8m0_to_f32(w.scales[row * (w.cols / 32) + c / 32]);
      for (int i = 0; i < 32; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(e4m3_to_f32(group.data[r][c + i]) * s) >> 16;
        uint32_t& lane = lanes[i / 4 * 2 + i % 2][lane_of(r)];
        lane = i % 4 < 2 ? bits : lane | bits << 16;
      }
    }
    for (int i = 0; i < 16; ++i) pair[i] = _mm512_load_si512(lanes[i]);
  }
}

HWY_INLINE __m512 dot(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}
// sum + w . the two values at p + at + kAt in every lane: one instruction, of which the compiler would make
// two.
template <int kAt>
HWY_INLINE __m512 dot_at(__m512 sum, __m512i w, const uint8_t* p, int64_t at) {
  asm("vdpbf16ps %c4(%2,%3)%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(w), "r"(p), "r"(at), "i"(kAt), "m"(*reinterpret_cast<const uint8_t(*)[1 << 20]>(p)));
  return sum;
}
HWY_INLINE __m512i four_bytes(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

struct Call {
  const MatrixView* w;
  const uint8_t* x;
  int64_t stride;
  const int32_t* rows;
  float* y;
  int64_t ldy, row0, row1;
  Out out;

  HWY_INLINE const uint8_t* X(int64_t t) const { return x + (rows ? int64_t{rows[t]} : t) * stride; }
  // Sums of rows o .. o + 15, by lane_of, to y, those of the range only.
  HWY_INLINE void put(int64_t t, int64_t o, __m512 v) const {
    v = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
    if (out == Out::kRounded) {
      const __m512i u = _mm512_castps_si512(v);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
      __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
      up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                                 _mm512_or_si512(u, _mm512_set1_epi32(0x400000)));
      v = _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))));
    }
    unsigned mask = 0xffffu;
    if (o < row0) mask &= 0xffffu << (row0 - o);
    if (o + kGroup > row1) mask &= 0xffffu >> (o + kGroup - row1);
    _mm512_mask_storeu_ps(y + t * ldy + o, static_cast<__mmask16>(mask), v);
  }
};

// Groups of four columns kG and those after it of chunk kI of 32 columns from c, and the parts of loading the
// next chunk that go between them.
template <WeightFormat F, bool kStaged, int kI, int kG, int T>
HWY_INLINE void few_groups(const Group& group, const Decoder<F>& d, const uint8_t* const (&x)[T], int64_t c,
                           int64_t next_at, const __m512i (&v)[4], __m512i (&a)[4], __m512i (&next)[4],
                           __m512 (&even)[T], __m512 (&odd)[T]) {
  using D = Decoder<F>;
  constexpr int kGroups = D::kCols / 4, kAt = 2 * (kI * D::kCols + 4 * kG);
  __m512i first, second;
  if constexpr (kGroups == 2 && kG == 0) group.load<kStaged>(next_at, next);
  d.pairs(v, kG, &first, &second);
  for (int t = 0; t < T; ++t) even[t] = dot_at<kAt>(even[t], first, x[t], 2 * c);
  if constexpr (kGroups == 4) {
    group.load_part<kStaged, 2 * kG>(next_at, a, next);
    group.load_part<kStaged, 2 * kG + 1>(next_at, a, next);
  }
  for (int t = 0; t < T; ++t) odd[t] = dot_at<kAt + 4>(odd[t], second, x[t], 2 * c);
  if constexpr (kG + 1 < kGroups)
    few_groups<F, kStaged, kI, kG + 1, T>(group, d, x, c, next_at, v, a, next, even, odd);
}
template <WeightFormat F, bool kStaged, int kI, int T>
HWY_INLINE void few_chunks(const Group& group, const Decoder<F>& d, const uint8_t* const (&x)[T], int64_t c,
                           __m512i (&v)[4], __m512 (&even)[T], __m512 (&odd)[T]) {
  using D = Decoder<F>;
  __m512i a[4], next[4];
  const int64_t at = std::min((c + (kI + 1) * D::kCols) * D::kUnit, group.row_bytes - 16);
  few_groups<F, kStaged, kI, 0, T>(group, d, x, c, at, v, a, next, even, odd);
  v[0] = next[0], v[1] = next[1], v[2] = next[2], v[3] = next[3];
  if constexpr (kI + 1 < 32 / D::kCols) few_chunks<F, kStaged, kI + 1, T>(group, d, x, c, v, even, odd);
}

// T rows of x from t0 against one group, every weight used as it is decoded: while a chunk of it is
// multiplied, the next is on its way.
template <WeightFormat F, bool kStaged, int T>
HWY_NOINLINE void few_rows(const Call& call, const Group& group, int64_t t0, Stream& stream) {
  using D = Decoder<F>;
  const uint8_t* x[T];
  alignas(64) float total[T][kGroup] = {};
  for (int t = 0; t < T; ++t) x[t] = call.X(t0 + t);
  __m512i v[4];
  group.load<kStaged>(0, v);
  for (int64_t c0 = 0; c0 < call.w->cols; c0 += kPiece) {
    const int64_t end = std::min(call.w->cols, c0 + kPiece);
    __m512 even[T], odd[T];
    for (int t = 0; t < T; ++t) even[t] = odd[t] = _mm512_setzero_ps();
    for (int64_t c = c0; c < end; c += 32) {
      if (c * D::kUnit % 64 == 0) group.fetch(c * D::kUnit);
      stream.advance(kGroup * 32 * D::kUnit);
      D d;
      d.start(group, c);
      few_chunks<F, kStaged, 0, T>(group, d, x, c, v, even, odd);
    }
    for (int t = 0; t < T; ++t)
      _mm512_store_ps(total[t], _mm512_add_ps(_mm512_load_ps(total[t]), _mm512_add_ps(even[t], odd[t])));
    asm volatile("" : : : "memory");  // the totals stay in memory: the registers have better uses
  }
  for (int t = 0; t < T; ++t) call.put(t0 + t, group.first_row, _mm512_load_ps(total[t]));
}

// Two groups of decoded weights over one piece of columns, and the sums of a band.
struct Panel {
  alignas(64) uint8_t w[2][kPiece / 2][64];
  alignas(64) float sum[kBand][2][kGroup];
};

template <int T>
HWY_INLINE void panel_tile(Panel& p, const uint8_t* const* rows, int64_t t0, int64_t c0, int64_t cols) {
  __m512 even[2][T], odd[2][T];
  const uint8_t* x[T];
  for (int t = 0; t < T; ++t) {
    x[t] = rows[t0 + t] + 2 * c0;
    for (int i = 0; i < 2; ++i) even[i][t] = odd[i][t] = _mm512_setzero_ps();
  }
  for (int64_t g = 0; g < cols / 4; ++g) {
    const __m512i e0 = _mm512_load_si512(p.w[0][2 * g]), e1 = _mm512_load_si512(p.w[1][2 * g]);
    for (int t = 0; t < T; ++t) {
      const __m512i v = four_bytes(x[t] + 8 * g);
      even[0][t] = dot(even[0][t], e0, v);
      even[1][t] = dot(even[1][t], e1, v);
    }
    const __m512i o0 = _mm512_load_si512(p.w[0][2 * g + 1]), o1 = _mm512_load_si512(p.w[1][2 * g + 1]);
    for (int t = 0; t < T; ++t) {
      const __m512i v = four_bytes(x[t] + 8 * g + 4);
      odd[0][t] = dot(odd[0][t], o0, v);
      odd[1][t] = dot(odd[1][t], o1, v);
    }
  }
  for (int t = 0; t < T; ++t)
    for (int i = 0; i < 2; ++i) {
      float* s = p.sum[t0 + t][i];
      _mm512_store_ps(s, _mm512_add_ps(_mm512_load_ps(s), _mm512_add_ps(even[i][t], odd[i][t])));
    }
}

// The tile of n <= kTile rows; returns n.
int64_t panel_rows(int64_t n, Panel& p, const uint8_t* const* rows, int64_t t0, int64_t c0, int64_t cols) {
  switch (n) {
    case 1:
      panel_tile<1>(p, rows, t0, c0, cols);
      break;
    case 2:
      panel_tile<2>(p, rows, t0, c0, cols);
      break;
    case 3:
      panel_tile<3>(p, rows, t0, c0, cols);
      break;
    case 4:
      panel_tile<4>(p, rows, t0, c0, cols);
      break;
    case 5:
      panel_tile<5>(p, rows, t0, c0, cols);
      break;
    default:
      panel_tile<kTile>(p, rows, t0, c0, cols);
  }
  return n;
}

template <WeightFormat F>
HWY_NOINLINE void fill_panel(const MatrixView& w, const Group& group, int64_t o, int64_t c0, int64_t end,
                             Stream& stream, uint8_t (*out)[64]) {
  constexpr int64_t kUnit = F == WeightFormat::kBF16 ? 2 : 1;
  for (int64_t c = c0; c < end; c += 32) {
    if (c * kUnit % 64 == 0) group.fetch(c * kUnit);
    stream.advance(kGroup * 32 * kUnit);
    __m512i pair[16];
    decode<F>(w, group, o, c, pair);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out[(c - c0) / 2 + i], pair[i]);
  }
}

template <WeightFormat F>
HWY_NOINLINE void many_rows(const Call& a, int64_t t0, int64_t T, int64_t begin, int64_t end) {
  Panel p;
  Group group[2];
  const uint8_t* x[kBand];
  for (int64_t t = 0; t < T; ++t) x[t] = a.X(t0 + t);
  for (int64_t o = begin; o < end; o += 2 * kGroup) {
    const int groups = o + kGroup < end ? 2 : 1;
    for (int i = 0; i < groups; ++i) group[i].start(*a.w, o + i * kGroup);
    std::memset(p.sum, 0, static_cast<size_t>(T) * sizeof p.sum[0]);
    Stream stream(*a.w, o + 2 * kGroup, std::min(a.row1, a.w->rows));
    for (int64_t c = 0; c < a.w->cols; c += kPiece) {
      const int64_t stop = std::min(a.w->cols, c + kPiece);
      // A group that does not exist keeps what the panel had; its sums are dropped.
      for (int i = 0; i < groups; ++i) fill_panel<F>(*a.w, group[i], o + i * kGroup, c, stop, stream, p.w[i]);
      if (groups == 1 && c == 0) std::memset(p.w[1], 0, sizeof p.w[1]);
      // Tiles of about the same size: a tile of one or two rows waits for its loads.
      for (int64_t t = 0, tiles = (T + kTile - 1) / kTile; tiles > 0; --tiles)
        t += panel_rows((T - t + tiles - 1) / tiles, p, x, t, c, stop - c);
    }
    for (int64_t t = 0; t < T; ++t)
      for (int i = 0; i < groups; ++i) a.put(t0 + t, o + i * kGroup, _mm512_load_ps(p.sum[t][i]));
  }
}

template <WeightFormat F, int... N>
void few_rows_of(const Call& a, int64_t T, int64_t begin, int64_t end, std::integer_sequence<int, N...>) {
  using Kernel = void (*)(const Call&, const Group&, int64_t, Stream&);
  static constexpr Kernel kernels[2][sizeof...(N)] = {{few_rows<F, false, N + 1>...},
                                                      {few_rows<F, true, N + 1>...}};
  Group group;
  const int64_t turns = (T + kFewRows - 1) / kFewRows;
  for (int64_t o = begin; o < end; o += kGroup) {
    group.start(*a.w, o);
    Stream stream(*a.w, o + kGroup, std::min(a.row1, a.w->rows), turns);
    for (int64_t t = 0, left = turns; left > 0; --left) {
      const int64_t take = (T - t + left - 1) / left;
      kernels[group.staged ? 1 : 0][take - 1](a, group, t, stream);
      t += take;
    }
  }
}

// Rows [begin, end) of whole groups, all within what bf16 can hold.
template <WeightFormat F>
void run(const Call& a, int64_t T, int64_t begin, int64_t end) {
  if constexpr (F != WeightFormat::kFp8Row32) {
    if (T <= kPanelRows) return few_rows_of<F>(a, T, begin, end, std::make_integer_sequence<int, kFewRows>());
  }
  for (int64_t t = 0; t < T; t += kBand) many_rows<F>(a, t, std::min(kBand, T - t), begin, end);
}

// Whether all scales of a weight row leave its values normal bf16 numbers: the property of that row which
// chooses its arithmetic. 2^-9 and 448 are the ends of E4M3.
bool in_range(const MatrixView& w, int64_t row) {
  if (w.format == WeightFormat::kBF16) return true;
  const int64_t blocks = w.cols / 32;
  const uint8_t* s = w.scales + (w.format == WeightFormat::kFp8Tile32 ? row / 32 : row) * blocks;
  bool inside = true;
  for (int64_t b = 0; b < blocks; ++b) inside &= static_cast<uint8_t>(s[b] - 10) <= 246 - 10;
  return inside;
}

// A prepared row back in fp32.
void restore(const uint8_t* row, int64_t cols, float* x) {
  constexpr int kOrder[4] = {0, 2, 1, 3};
  for (int64_t i = 0; i < cols; ++i) {
    uint16_t half;
    std::memcpy(&half, row + 2 * (i / 4 * 4 + kOrder[i % 4]), 2);
    x[i] = bf16_to_f32(half);
  }
}
HWY_NOINLINE void plain_rows(const Call& a, int64_t T, int64_t begin, int64_t end,
                             const Kernels<float>& plain) {
  float x[kMaxCols];
  for (int64_t t = 0; t < T; ++t) {
    restore(a.X(t), a.w->cols, x);
    plain.linear(*a.w, x, a.w->cols, nullptr, 1, begin, end, a.y + t * a.ldy, a.ldy, a.out);
  }
}

}  // namespace

bool available() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

int64_t prepared_bytes(WeightFormat format, int64_t cols) {
  const bool ours = format == WeightFormat::kBF16 || format == WeightFormat::kFp8Tile32 ||
                    format == WeightFormat::kFp8Row32;
  // An odd number of lines: rows of x that lie a multiple of 4,096 bytes apart would share a set of the
  // cache.
  return ours && cols % 32 == 0 && cols <= kMaxCols ? ((2 * cols + 63) / 64 | 1) * 64 : 0;
}

bool prepare(const float* x, int64_t col, int64_t n, uint8_t* row) {
  DI_CHECK(col % 32 == 0 && n % 32 == 0, "columns of a prepared row come in blocks of 32");
  __m512i low = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 16) {
    // Upper halves of sixteen values; then columns 1 and 2 of each group of four change places.
    const __m512i v = _mm512_loadu_si512(x + i);
    low = _mm512_or_si512(low, v);
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16));
    const __m256i out = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(half, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * (col + i)), out);
  }
  return _mm512_test_epi32_mask(low, _mm512_set1_epi32(0xffff)) == 0;
}

void linear_prepared(const MatrixView& w, const uint8_t* x, int64_t stride, const int32_t* rows, int64_t T,
                     int64_t row0, int64_t row1, float* y, int64_t ldy, Out out,
                     const Kernels<float>& plain) {
  if (T <= 0 || row0 >= row1) return;
  const Call a{&w, x, stride, rows, y, ldy, row0, row1, out};
  // Runs of rows of one kind; the range of a run that is ours is widened to whole groups, whose other rows
  // are computed and dropped.
  for (int64_t o = row0; o < row1;) {
    const bool ours = in_range(w, o);
    int64_t end = o + 1;
    while (end < row1 && (end % 32 != 0 || in_range(w, end) == ours) &&
           (w.format != WeightFormat::kFp8Row32 || in_range(w, end) == ours))
      ++end;
    if (!ours) {
      plain_rows(a, T, o, end, plain);
    } else {
      Call part = a;
      part.row0 = o;
      part.row1 = end;
      const int64_t begin = o / kGroup * kGroup, stop = (end + kGroup - 1) / kGroup * kGroup;
      if (w.format == WeightFormat::kBF16)
        run<WeightFormat::kBF16>(part, T, begin, stop);
      else if (w.format == WeightFormat::kFp8Tile32)
        run<WeightFormat::kFp8Tile32>(part, T, begin, stop);
      else
        run<WeightFormat::kFp8Row32>(part, T, begin, stop);
    }
    o = end;
  }
}

void linear(const MatrixView& w, const float* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
            int64_t row1, float* y, int64_t ldy, Out out, const Kernels<float>& plain) {
  const int64_t bytes = prepared_bytes(w.format, w.cols);
  if (bytes == 0) return plain.linear(w, x, ldx, rows, T, row0, row1, y, ldy, out);
  alignas(64) uint8_t memory[kStackBytes];
  const int64_t fit = std::max<int64_t>(1, kStackBytes / bytes);
  const auto row = [&](int64_t t) { return x + (rows ? int64_t{rows[t]} : t) * ldx; };
  for (int64_t t = 0; t < T;) {
    int64_t n = 0;
    while (n < fit && t + n < T && prepare(row(t + n), 0, w.cols, memory + n * bytes)) ++n;
    if (n > 0) {
      linear_prepared(w, memory, bytes, nullptr, n, row0, row1, y + t * ldy, ldy, out, plain);
      t += n;
      continue;
    }
    plain.linear(w, row(t), ldx, nullptr, 1, row0, row1, y + t * ldy, ldy, out);
    ++t;
  }
}

}  // namespace deepinfer::bf16
HWY_POP_ATTRIBUTES

#else

namespace deepinfer::bf16 {

bool available() {
  return false;
}
int64_t prepared_bytes(WeightFormat, int64_t) {
  return 0;
}
bool prepare(const float*, int64_t, int64_t, uint8_t*) {
  DI_CHECK(false, "no such level");
}
void linear_prepared(const MatrixView&, const uint8_t*, int64_t, const int32_t*, int64_t, int64_t, int64_t,
                     float*, int64_t, Out, const Kernels<float>&) {
  DI_CHECK(false, "no such level");
}
void linear(const MatrixView&, const float*, int64_t, const int32_t*, int64_t, int64_t, int64_t, float*,
            int64_t, Out, const Kernels<float>&) {
  DI_CHECK(false, "no such level");
}

}  // namespace deepinfer::bf16
#endif
