// Weight formats and cache records in 16 lanes: 32 values at a time, bit for
// bit the numbers of base/numeric.h. A block with something rare in it (a scale
// at the end of its range, a value that is not finite, a piece of a block) goes
// to the scalar definition. Compiled once per instruction set. Source: model
// specification 8.1 and 8.2.
#if defined(DEEPINFER_KERNELS_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_FORMATS_INL_H_
#undef DEEPINFER_KERNELS_FORMATS_INL_H_
#else
#define DEEPINFER_KERNELS_FORMATS_INL_H_
#endif

#include <array>
#include <bit>
#include <cstdint>

#include "base/numeric.h"
#include "kernels/lanes-inl.h"
#include "kernels/reference.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

// E8M0 byte to its power of two: subnormal for 0, NaN for 255.
HWY_INLINE float ScaleValue(uint8_t s) {
  const uint32_t u = s == 0 ? 0x00400000u : s == 255 ? 0x7fc00000u : uint32_t{s} << 23;
  return std::bit_cast<float>(u);
}

HWY_INLINE F16 LoadBf16(const uint16_t* HWY_RESTRICT p) {
  const hn::Rebind<uint16_t, DU> d16;
  F16 v;
  DI_LANES v.r[k] = hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, p + k * kStep))));
  return v;
}

// 16 E4M3 codes times 2^(scale - 127). The seven magnitude bits, shifted to where fp32 keeps exponent and
// mantissa, are the value times 2^-120 (subnormal codes become subnormal floats), and one multiplication
// repairs both factors exactly. REQUIRES that PlainE4m3 holds of the block.
HWY_INLINE F16 E4m3Factor(uint8_t scale) {
  return Set1(std::bit_cast<float>((uint32_t{scale} + 120u) << 23));
}
HWY_INLINE F16 LoadE4m3(const uint8_t* HWY_RESTRICT p, const F16& factor) {
  const hn::Rebind<int8_t, DI> d8;
  F16 v;
  DI_LANES {
    const VI code = hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p) + k * kStep));
    const VI bits = hn::And(hn::ShiftLeft<20>(code), hn::Set(DI(), static_cast<int32_t>(0x87f00000u)));
    v.r[k] = hn::Mul(hn::BitCast(DF(), bits), factor.r[k]);
  }
  return v;
}
// No NaN among 32 codes, and a scale for which 2^(120 + scale - 127) is finite.
HWY_INLINE bool PlainE4m3(const uint8_t* HWY_RESTRICT p, uint8_t scale) {
  using DB = hn::CappedTag<uint8_t, 32>;
  const DB d;
  constexpr size_t kBytes = hn::MaxLanes(DB());
  const auto magnitude = hn::Set(d, uint8_t{0x7f});
  bool plain = scale <= 134;
  for (size_t i = 0; i < 32; i += kBytes)
    plain = hn::AllFalse(d, hn::Eq(hn::And(hn::LoadU(d, p + i), magnitude), magnitude)) && plain;
  return plain;
}

// 32 E2M1 codes (16 bytes, even value in the low nibble) times `scale`, a power
// of two or an E4M3 value: exact.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void LoadE2m1(const uint8_t* HWY_RESTRICT p, float scale_lo, float scale_hi, F16& lo, F16& hi) {
  for (size_t i = 0; i < 16; ++i) {
    const float s = i < 8 ? scale_lo : scale_hi;
    F16& v = i < 8 ? lo : hi;
    v.r[2 * i % 16] = hn::Set(DF(), kE2m1[p[i] & 15] * s);
    v.r[2 * i % 16 + 1] = hn::Set(DF(), kE2m1[p[i] >> 4] * s);
  }
}
#else
using D8 = hn::Full128<uint8_t>;
// The nibbles of 16 bytes in order: 16 of the first 8 bytes in `lo`, 16 of the
// others in `hi`.
HWY_INLINE void SplitNibbles(const uint8_t* HWY_RESTRICT p, hn::Vec<D8>& lo, hn::Vec<D8>& hi) {
  const D8 d;
  const auto bytes = hn::LoadU(d, p), mask = hn::Set(d, uint8_t{15});
  const auto even = hn::And(bytes, mask);
  const auto odd =
      hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(hn::Full128<uint16_t>(), bytes))), mask);
  lo = hn::InterleaveLower(d, even, odd);
  hi = hn::InterleaveUpper(d, even, odd);
}
#if HWY_TARGET <= HWY_AVX3
// One permute of a register that holds all sixteen values, scaled beforehand.
HWY_INLINE void LoadE2m1(const uint8_t* HWY_RESTRICT p, float scale_lo, float scale_hi, F16& lo, F16& hi) {
  alignas(64) static constexpr float kValues[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                                    -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
  hn::Vec<D8> a, b;
  SplitNibbles(p, a, b);
  const auto table = hn::Load(DF(), kValues);
  lo.r[0] =
      VF{_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(a.raw), hn::Mul(table, hn::Set(DF(), scale_lo)).raw)};
  hi.r[0] =
      VF{_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(b.raw), hn::Mul(table, hn::Set(DF(), scale_hi)).raw)};
}
#else
// Byte tables of the upper halves of the fp32 values; the lower halves are
// zero.
HWY_INLINE void LoadE2m1(const uint8_t* HWY_RESTRICT p, float scale_lo, float scale_hi, F16& lo, F16& hi) {
  alignas(16) static constexpr uint8_t kHigh[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                    0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  alignas(16) static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                                   0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
  const D8 d;
  const hn::Rebind<uint16_t, DU> d16;
  hn::Vec<D8> nibbles[2];
  SplitNibbles(p, nibbles[0], nibbles[1]);
  alignas(32) uint16_t words[32];
  for (size_t i = 0; i < 2; ++i) {
    const auto low = hn::TableLookupBytes(hn::Load(d, kLow), nibbles[i]);
    const auto high = hn::TableLookupBytes(hn::Load(d, kHigh), nibbles[i]);
    const hn::Full128<uint16_t> dw;
    hn::Store(hn::BitCast(dw, hn::InterleaveLower(d, low, high)), dw, words + 16 * i);
    hn::Store(hn::BitCast(dw, hn::InterleaveUpper(d, low, high)), dw, words + 16 * i + 8);
  }
  DI_LANES {
    const VU a = hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, words + k * kStep)));
    const VU b = hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(d16, words + 16 + k * kStep)));
    lo.r[k] = hn::Mul(hn::BitCast(DF(), a), hn::Set(DF(), scale_lo));
    hi.r[k] = hn::Mul(hn::BitCast(DF(), b), hn::Set(DF(), scale_hi));
  }
}
#endif
#endif

// Any piece of a row by the scalar definition, zero beyond n.
HWY_NOINLINE HWY_MAYBE_UNUSED void DecodeSlow(const MatrixView& m, int64_t row, int64_t col, int64_t n,
                                              F16& lo, F16& hi) {
  alignas(64) float b[32] = {};
  reference::decode_columns(m, row, col, n, b);
  lo = Load(b);
  hi = Load(b + 16);
}

// One row of a weight matrix: Block(c) gives columns c .. c + 31, REQUIRES c a
// multiple of 32 and c + 32 <= cols.
template <WeightFormat F>
struct WeightRow {
  const MatrixView* m;
  int64_t row;
  const uint8_t* data;
  const uint8_t* scales;

  HWY_INLINE void Start(const MatrixView& matrix, int64_t r) {
    m = &matrix;
    row = r;
    const int64_t blocks = (matrix.cols + 31) / 32;
    const int64_t bits = F == WeightFormat::kMxfp4  ? 4
                         : F == WeightFormat::kBF16 ? 16
                         : F == WeightFormat::kF32  ? 32
                                                    : 8;
    data = static_cast<const uint8_t*>(matrix.data) + r * matrix.cols * bits / 8;
    scales = matrix.scales + (F == WeightFormat::kFp8Tile32 ? r / 32 : r) * blocks;
  }
  HWY_INLINE void Block(int64_t c, F16& lo, F16& hi) const {
    if constexpr (F == WeightFormat::kF32) {
      lo = Load(reinterpret_cast<const float*>(data) + c);
      hi = Load(reinterpret_cast<const float*>(data) + c + 16);
    } else if constexpr (F == WeightFormat::kBF16) {
      lo = LoadBf16(reinterpret_cast<const uint16_t*>(data) + c);
      hi = LoadBf16(reinterpret_cast<const uint16_t*>(data) + c + 16);
    } else if constexpr (F == WeightFormat::kFp8Tile32 || F == WeightFormat::kFp8Row32) {
      const uint8_t s = scales[c / 32];
      if (HWY_UNLIKELY(!PlainE4m3(data + c, s))) return DecodeSlow(*m, row, c, 32, lo, hi);
      const F16 factor = E4m3Factor(s);
      lo = LoadE4m3(data + c, factor);
      hi = LoadE4m3(data + c + 16, factor);
    } else if constexpr (F == WeightFormat::kMxfp4) {
      const float s = ScaleValue(scales[c / 32]);
      LoadE2m1(data + c / 2, s, s, lo, hi);
    } else {
      DecodeSlow(*m, row, c, 32, lo, hi);
    }
  }
};

// ---- cache records

// |a| <= 448 to seven magnitude bits, plus the sign of `a`.
HWY_INLINE void StoreE4m3(const F16& a, uint8_t* HWY_RESTRICT codes) {
  const hn::Rebind<uint8_t, DI> d8;
  DI_LANES {
    const VF top = hn::Set(DF(), 448.0f);
    const VF mag = hn::Min(hn::Abs(a.r[k]), top);
    const VU u = hn::BitCast(DU(), mag);
    const VU odd = hn::And(hn::ShiftRight<20>(u), hn::Set(DU(), 1u));
    const VU normal = hn::Sub(hn::ShiftRight<20>(hn::Add(hn::Add(u, hn::Set(DU(), 0x7ffffu)), odd)),
                              hn::Set(DU(), 120u << 3));
    // Below 2^-6 the grid is 2^-9: adding 2^14 leaves exactly those steps in
    // the low bits, rounded to even.
    const VF magic = hn::Set(DF(), 16384.0f);
    const VU small = hn::Sub(hn::BitCast(DU(), hn::Add(mag, magic)), hn::BitCast(DU(), magic));
    const auto is_small = hn::RebindMask(DU(), hn::Lt(mag, hn::Set(DF(), 0.015625f)));
    const VU sign = hn::And(hn::ShiftRight<24>(hn::BitCast(DU(), a.r[k])), hn::Set(DU(), 0x80u));
    const VU code = hn::Or(hn::IfThenElse(is_small, small, normal), sign);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(DI(), code)), d8, codes + k * kStep);
  }
}

// 16 values to E2M1 codes, one per byte.
HWY_INLINE void StoreE2m1(const F16& a, uint8_t* HWY_RESTRICT codes) {
  const hn::Rebind<uint8_t, DI> d8;
  DI_LANES {
    const DF d;
    const VF mag = hn::Abs(a.r[k]);
    // Boundaries between codes: a tie goes to the even one, so it belongs to
    // the upper interval where that one is even.
    VI code = hn::Zero(DI());
    const VI one = hn::Set(DI(), 1);
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Gt(mag, hn::Set(d, 0.25f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Ge(mag, hn::Set(d, 0.75f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Gt(mag, hn::Set(d, 1.25f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Ge(mag, hn::Set(d, 1.75f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Gt(mag, hn::Set(d, 2.5f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Ge(mag, hn::Set(d, 3.5f))), one));
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(DI(), hn::Gt(mag, hn::Set(d, 5.0f))), one));
    const VU sign = hn::And(hn::ShiftRight<28>(hn::BitCast(DU(), a.r[k])), hn::Set(DU(), 8u));
    hn::StoreU(hn::DemoteTo(d8, hn::Or(code, hn::BitCast(DI(), sign))), d8, codes + k * kStep);
  }
}

HWY_INLINE void PackNibbles(const uint8_t* HWY_RESTRICT codes, size_t n, uint8_t* HWY_RESTRICT packed) {
  for (size_t i = 0; i < n / 2; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
}

// 2^-k for the exponent of a block scale; both it and 2^k are normal, so
// multiplying by it is dividing by the scale.
HWY_INLINE F16 InversePower(int k) {
  return Set1(std::bit_cast<float>(static_cast<uint32_t>(127 - k) << 23));
}

HWY_INLINE void EncodeFp8Block(const F16& a, const F16& b, uint8_t* codes, uint8_t* scale) {
  const float amax = std::max(MaxLanes16(Max(Abs(a), Abs(b))), 1e-4f);
  const int k = ceil_log2(amax * (1.0f / 448.0f));
  *scale = static_cast<uint8_t>(k + 127);
  StoreE4m3(Mul(a, InversePower(k)), codes);
  StoreE4m3(Mul(b, InversePower(k)), codes + 16);
}

HWY_INLINE void EncodeFp4Block(const F16& a, const F16& b, uint8_t* packed, uint8_t* scale) {
  const float amax = std::max(MaxLanes16(Max(Abs(a), Abs(b))), 0x1.8p-124f);  // 6 * 2^-126
  const int k = ceil_log2(amax * (1.0f / 6.0f));
  *scale = static_cast<uint8_t>(k + 127);
  uint8_t codes[32];
  StoreE2m1(Mul(a, InversePower(k)), codes);
  StoreE2m1(Mul(b, InversePower(k)), codes + 16);
  PackNibbles(codes, 32, packed);
}

HWY_INLINE void EncodeFp4Half(const F16& a, uint8_t* packed, uint8_t* scale) {
  const float amax = std::max(MaxLanes16(Abs(a)), 0x1.8p-7f);  // 6 * 2^-9
  *scale = f32_to_e4m3(amax / 6.0f);
  uint8_t codes[16];
  StoreE2m1(Div(a, Set1(e4m3_to_f32(*scale))), codes);
  PackNibbles(codes, 16, packed);
}

HWY_INLINE void DecodeRecordBlock(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t b,
                                  F16& lo, F16& hi) {
  if (format == RecordFormat::kFp4_32) {
    const float s = ScaleValue(scales[b]);
    return LoadE2m1(codes + b * 16, s, s, lo, hi);
  }
  if (format == RecordFormat::kFp4_16)
    return LoadE2m1(codes + b * 16, e4m3_to_f32(scales[2 * b]), e4m3_to_f32(scales[2 * b + 1]), lo, hi);
  if (format == RecordFormat::kFp8_32 && HWY_LIKELY(PlainE4m3(codes + b * 32, scales[b]))) {
    const F16 factor = E4m3Factor(scales[b]);
    lo = LoadE4m3(codes + b * 32, factor);
    hi = LoadE4m3(codes + b * 32 + 16, factor);
    return;
  }
  alignas(64) float v[32];
  reference::decode_values(format, codes, scales, b * 32, 32, v);
  lo = Load(v);
  hi = Load(v + 16);
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_FORMATS_INL_H_
