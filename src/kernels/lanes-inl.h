// The virtual vector of the native back end: 16 fp32 lanes on every instruction
// set (one AVX-512 register, two of AVX2, four of SSE4, sixteen scalars). All
// sums are taken in these lanes and folded by one tree, so the width of the
// machine never shows in the bits; only whether it fuses a multiply with an add
// does. Compiled once per instruction set (Highway). Knows no operation of the
// model.
#if defined(DEEPINFER_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_LANES_INL_H_
#undef DEEPINFER_KERNELS_LANES_INL_H_
#else
#define DEEPINFER_KERNELS_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::Rebind<uint32_t, DF>;
using DI = hn::Rebind<int32_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;

constexpr size_t kLanes = 16;
constexpr size_t kStep = hn::MaxLanes(DF());  // lanes of one machine register
constexpr size_t kRegs = kLanes / kStep;
constexpr bool kManyRegisters = kStep == 16;  // AVX-512 has 32 registers, the others 16

struct F16 {
  VF r[kRegs];
};

// What each function does to the 16 lanes is said by its name; `f` is applied
// register by register.
#define DI_LANES for (size_t k = 0; k < kRegs; ++k)

HWY_INLINE F16 Load(const float* HWY_RESTRICT p) {
  F16 v;
  DI_LANES v.r[k] = hn::LoadU(DF(), p + k * kStep);
  return v;
}
HWY_INLINE void Store(const F16& v, float* HWY_RESTRICT p) {
  DI_LANES hn::StoreU(v.r[k], DF(), p + k * kStep);
}

HWY_INLINE F16 Set1(float x) {
  F16 v;
  DI_LANES v.r[k] = hn::Set(DF(), x);
  return v;
}
HWY_INLINE F16 Zero16() {
  F16 v;
  DI_LANES v.r[k] = hn::Zero(DF());
  return v;
}

// The first n < 16 values of p, the other lanes `fill`; nothing else is read or
// written.
HWY_INLINE F16 LoadPart(const float* p, size_t n, float fill = 0.0f) {
  alignas(64) float b[kLanes];
  for (size_t i = 0; i < kLanes; ++i) b[i] = fill;
  std::memcpy(b, p, n * sizeof(float));
  return Load(b);
}
HWY_INLINE void StorePart(const F16& v, float* p, size_t n) {
  alignas(64) float b[kLanes];
  Store(v, b);
  std::memcpy(p, b, n * sizeof(float));
}

HWY_INLINE F16 Add(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::Add(a.r[k], b.r[k]);
  return v;
}
HWY_INLINE F16 Sub(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::Sub(a.r[k], b.r[k]);
  return v;
}
HWY_INLINE F16 Mul(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::Mul(a.r[k], b.r[k]);
  return v;
}
HWY_INLINE F16 Div(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::Div(a.r[k], b.r[k]);
  return v;
}
// a * b + c, fused where the instruction set can.
HWY_INLINE F16 MulAdd(const F16& a, const F16& b, const F16& c) {
  F16 v;
  DI_LANES v.r[k] = hn::MulAdd(a.r[k], b.r[k], c.r[k]);
  return v;
}
// c - a * b.
HWY_INLINE F16 NegMulAdd(const F16& a, const F16& b, const F16& c) {
  F16 v;
  DI_LANES v.r[k] = hn::NegMulAdd(a.r[k], b.r[k], c.r[k]);
  return v;
}
// Of a NaN in b and a number in a, the NaN wins; of a NaN in a and a number in
// b, the number.
HWY_INLINE F16 Min(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::IfThenElse(hn::Lt(a.r[k], b.r[k]), a.r[k], b.r[k]);
  return v;
}
HWY_INLINE F16 Max(const F16& a, const F16& b) {
  F16 v;
  DI_LANES v.r[k] = hn::IfThenElse(hn::Gt(a.r[k], b.r[k]), a.r[k], b.r[k]);
  return v;
}
HWY_INLINE F16 Abs(const F16& a) {
  F16 v;
  DI_LANES v.r[k] = hn::Abs(a.r[k]);
  return v;
}

// Lane i with lane i + 8, then + 4, + 2, + 1: the one tree of the back end.
HWY_INLINE float SumLanes(const F16& v) {
  VF r[kRegs];
  DI_LANES r[k] = v.r[k];
  for (size_t half = kRegs / 2; half > 0; half /= 2)
    for (size_t k = 0; k < half; ++k) r[k] = hn::Add(r[k], r[k + half]);
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(r[0]);
#else
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<DF> d8;
  const auto v8 = hn::Add(hn::LowerHalf(d8, r[0]), hn::UpperHalf(d8, r[0]));
#elif HWY_TARGET == HWY_AVX2
  const DF d8;
  const VF v8 = r[0];
#endif
#if HWY_TARGET <= HWY_AVX2
  const hn::Half<decltype(d8)> d4;
  const auto v4 = hn::Add(hn::LowerHalf(d4, v8), hn::UpperHalf(d4, v8));
#else
  const DF d4;
  const VF v4 = r[0];
#endif
  const auto v2 = hn::Add(v4, hn::Shuffle1032(v4));
  return hn::GetLane(hn::Add(v2, hn::Shuffle2301(v2)));
#endif
}
// The order does not matter to a maximum of numbers; what a NaN does to it is
// left open.
HWY_INLINE float MaxLanes16(const F16& v) {
  VF top = v.r[0];
  for (size_t k = 1; k < kRegs; ++k) top = hn::Max(top, v.r[k]);
  return hn::GetLane(hn::MaxOfLanes(DF(), top));
}
HWY_INLINE bool AllFinite(const F16& v) {
  bool all = true;
  DI_LANES all = hn::AllTrue(DF(), hn::Eq(hn::Sub(v.r[k], v.r[k]), hn::Zero(DF()))) && all;
  return all;
}

// fp32 to the nearest bf16 value, ties to even; as f32_to_bf16.
HWY_INLINE F16 RoundBf16(const F16& a) {
  F16 v;
  DI_LANES {
    const VU u = hn::BitCast(DU(), a.r[k]);
    const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(DU(), 1u));
    const VU up = hn::Add(hn::Add(u, hn::Set(DU(), 0x7fffu)), odd);
    const VU quiet = hn::Or(u, hn::Set(DU(), 0x400000u));
    const auto nan = hn::RebindMask(DU(), hn::IsNaN(a.r[k]));
    v.r[k] = hn::BitCast(DF(), hn::And(hn::IfThenElse(nan, quiet, up), hn::Set(DU(), 0xffff0000u)));
  }
  return v;
}

// e^x to about 1 ulp, 0 below the subnormals, infinity above the range, NaN for
// NaN. Every lane alone: position never matters.
HWY_INLINE F16 Exp(const F16& x) {
  F16 v;
  DI_LANES {
    const DF d;
    const VF c = hn::Min(hn::Max(x.r[k], hn::Set(d, -110.0f)), hn::Set(d, 100.0f));
    const VF n = hn::Round(hn::Mul(c, hn::Set(d, 1.44269504088896341f)));
    // ln 2 in two parts; the first has trailing zeros enough for n times it to
    // be exact.
    VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), c);
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    VF p = hn::Set(d,
                   1.9841270e-4f);  // Taylor coefficients 1/7!, 1/6!, ...: |r|
                                    // <= ln2 / 2, the next term is below 2^-27
    p = hn::MulAdd(p, r, hn::Set(d, 1.3888889e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 8.3333333e-3f));
    p = hn::MulAdd(p, r, hn::Set(d, 4.1666667e-2f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.6666667e-1f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
    p = hn::MulAdd(hn::Mul(r, r), p, r);
    p = hn::Add(p, hn::Set(d, 1.0f));
    // 2^n in two factors, so that both stay normal numbers while the product
    // may leave the range at either end.
    const VI e = hn::ConvertTo(DI(), n);
    const VI half = hn::ShiftRight<1>(e);
    const VI bias = hn::Set(DI(), 127);
    const VF s0 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
    const VF s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(e, half), bias)));
    v.r[k] = hn::IfThenElse(hn::IsNaN(x.r[k]), x.r[k], hn::Mul(hn::Mul(p, s0), s1));
  }
  return v;
}

// 1 / (1 + e^-x).
HWY_INLINE F16 Sigmoid(const F16& x) {
  const F16 one = Set1(1.0f);
  return Div(one, Add(one, Exp(Sub(Zero16(), x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_LANES_INL_H_
