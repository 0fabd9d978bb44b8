// Operations on one row: norms, the residual streams, rotation, activation,
// Engram, pooling, softmax, cache records. Element-wise work is the same for
// every lane, so tails and alignment cannot show. Sums run in four virtual
// vectors in turn (element i to vector i / 16 mod 4, lane i mod 16), folded by
// one tree: an order that the length alone decides. Compiled once per
// instruction set. Source: model specification 2, 3.2, 3.3, 4, 5.5, 8.2.
#if defined(DEEPINFER_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_ROWS_INL_H_
#undef DEEPINFER_KERNELS_ROWS_INL_H_
#else
#define DEEPINFER_KERNELS_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

// A walk over n values in vectors: for (Walk w(n); w.more(); w.next()) x =
// w.Get(p). The last vector may be part filled.
struct Walk {
  explicit Walk(int64_t n) : n_(n) {}
  HWY_INLINE bool more() const { return i_ < n_; }
  HWY_INLINE void next() { i_ += static_cast<int64_t>(kLanes); }
  HWY_INLINE F16 Get(const float* p, float fill = 0.0f) const {
    const int64_t left = n_ - i_;
    return HWY_LIKELY(left >= 16) ? Load(p + i_) : LoadPart(p + i_, static_cast<size_t>(left), fill);
  }
  HWY_INLINE void Put(const F16& v, float* p) const {
    const int64_t left = n_ - i_;
    if (HWY_LIKELY(left >= 16))
      Store(v, p + i_);
    else
      StorePart(v, p + i_, static_cast<size_t>(left));
  }
  HWY_INLINE size_t turn() const { return static_cast<size_t>(i_ / 16) % 4; }

 private:
  int64_t i_ = 0;
  int64_t n_;
};

struct Sum4 {
  F16 part[4];
  HWY_INLINE Sum4() {
    for (F16& p : part) p = Zero16();
  }
  HWY_INLINE float Total() const { return SumLanes(Add(Add(part[0], part[2]), Add(part[1], part[3]))); }
};

HWY_MAYBE_UNUSED float SumSquares(const float* x, int64_t n) {
  Sum4 s;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (size_t k = 0; k < 4; ++k) {
      const F16 v = Load(x + i + 16 * k);
      s.part[k] = MulAdd(v, v, s.part[k]);
    }
  for (Walk w(n - i); w.more(); w.next()) {
    const F16 v = w.Get(x + i);
    s.part[w.turn()] = MulAdd(v, v, s.part[w.turn()]);
  }
  return s.Total();
}

HWY_INLINE float InverseRms(const float* x, int64_t n, double eps) {
  return 1.0f / std::sqrt(SumSquares(x, n) / static_cast<float>(n) + static_cast<float>(eps));
}

HWY_MAYBE_UNUSED void RmsNorm(const float* x, const float* w, int64_t n, double eps, float* y) {
  const F16 r = Set1(InverseRms(x, n, eps));
  for (Walk i(n); i.more(); i.next()) i.Put(RoundBf16(Mul(Mul(i.Get(x), r), i.Get(w))), y);
}

HWY_MAYBE_UNUSED void HcCollapse(const float* X, const float* c, int hc, int64_t H, float* u) {
  for (Walk d(H); d.more(); d.next()) {
    F16 s = Mul(Set1(c[0]), d.Get(X));
    for (int i = 1; i < hc; ++i) s = MulAdd(Set1(c[i]), d.Get(X + i * H), s);
    d.Put(RoundBf16(s), u);
  }
}

constexpr int kMaxStreams = 16;

HWY_MAYBE_UNUSED void HcExpand(const float* y, const float* post, const float* comb, int hc, int64_t H,
                               float* X) {
  DI_CHECK(hc >= 1 && hc <= kMaxStreams, "hc");
  for (Walk d(H); d.more(); d.next()) {
    F16 x[kMaxStreams];
    const F16 v = d.Get(y);
    for (int j = 0; j < hc; ++j) x[j] = d.Get(X + j * H);
    for (int k = 0; k < hc; ++k) {
      F16 s = Mul(Set1(post[k]), v);
      for (int j = 0; j < hc; ++j) s = MulAdd(Set1(comb[j * hc + k]), x[j], s);
      d.Put(RoundBf16(s), X + k * H);
    }
  }
}

HWY_MAYBE_UNUSED void HcMean(const float* X, int hc, int64_t H, float* out) {
  const F16 count = Set1(static_cast<float>(hc));
  for (Walk d(H); d.more(); d.next()) {
    F16 s = d.Get(X);
    for (int i = 1; i < hc; ++i) s = Add(s, d.Get(X + i * H));
    d.Put(RoundBf16(Div(s, count)), out);
  }
}

HWY_MAYBE_UNUSED void Rope(float* x, const float* cos, const float* sin, int pairs, bool inverse) {
  alignas(64) float even[kLanes], odd[kLanes];
  for (int i = 0; i < pairs; i += 16) {
    const int n = std::min(16, pairs - i);
    for (int k = 0; k < n; ++k) even[k] = x[2 * (i + k)];
    for (int k = 0; k < n; ++k) odd[k] = x[2 * (i + k) + 1];
    const F16 a = LoadPart(even, static_cast<size_t>(n)), b = LoadPart(odd, static_cast<size_t>(n));
    const F16 c = LoadPart(cos + i, static_cast<size_t>(n));
    F16 s = LoadPart(sin + i, static_cast<size_t>(n));
    if (inverse) s = Sub(Zero16(), s);
    Store(RoundBf16(NegMulAdd(b, s, Mul(a, c))), even);
    Store(RoundBf16(MulAdd(a, s, Mul(b, c))), odd);
    for (int k = 0; k < n; ++k) x[2 * (i + k)] = even[k];
    for (int k = 0; k < n; ++k) x[2 * (i + k) + 1] = odd[k];
  }
}

HWY_MAYBE_UNUSED void Swiglu(const float* g, const float* u, int64_t n, double weight, double limit,
                             float* a) {
  const F16 w = Set1(static_cast<float>(weight)), top = Set1(static_cast<float>(limit)),
            bottom = Set1(static_cast<float>(-limit));
  for (Walk i(n); i.more(); i.next()) {
    F16 gate = i.Get(g), up = i.Get(u);
    if (limit > 0) {
      gate = Min(top, gate);
      up = Max(bottom, Min(top, up));
    }
    i.Put(RoundBf16(Mul(w, Mul(Mul(gate, Sigmoid(gate)), up))), a);
  }
}

HWY_MAYBE_UNUSED void AddTo(const float* x, int64_t n, float* y) {
  for (Walk i(n); i.more(); i.next()) i.Put(Add(i.Get(y), i.Get(x)), y);
}

HWY_MAYBE_UNUSED void Round(const float* x, int64_t n, float* y) {
  for (Walk i(n); i.more(); i.next()) i.Put(RoundBf16(i.Get(x)), y);
}

HWY_MAYBE_UNUSED float EngramStream(const float* key, const float* val, const float* q_weight,
                                    const float* k_weight, int64_t H, double eps, float* X) {
  Sum4 s;
  for (Walk d(H); d.more(); d.next()) {
    const F16 w = Mul(d.Get(q_weight), d.Get(k_weight));
    s.part[d.turn()] = MulAdd(w, Mul(d.Get(X), d.Get(key)), s.part[d.turn()]);
  }
  const double rs = static_cast<double>(InverseRms(X, H, eps)) * InverseRms(key, H, eps);
  const double dot = s.Total() * rs / std::sqrt(static_cast<double>(H));
  const float gate = static_cast<float>(
      1.0 / (1.0 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot))));
  const F16 g = Set1(gate);
  for (Walk d(H); d.more(); d.next()) d.Put(RoundBf16(MulAdd(g, d.Get(val), d.Get(X))), X);
  return gate;
}

HWY_MAYBE_UNUSED void CompressPool(const float* const* a, const float* const* g, int r, int64_t n,
                                   float* pooled) {
  for (Walk d(n); d.more(); d.next()) {
    F16 top = d.Get(g[0]);
    for (int t = 1; t < r; ++t) top = Max(top, d.Get(g[t]));
    F16 sum = Zero16(), acc = Zero16();
    for (int t = 0; t < r; ++t) {
      const F16 e = Exp(Sub(d.Get(g[t]), top));
      sum = Add(sum, e);
      acc = MulAdd(e, d.Get(a[t]), acc);
    }
    d.Put(RoundBf16(Div(acc, sum)), pooled);
  }
}

HWY_MAYBE_UNUSED float Softmax(const float* x, int64_t n, double inv_temperature, float* probs) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  F16 tops = Set1(kLowest);
  for (Walk i(n); i.more(); i.next()) tops = Max(i.Get(x, kLowest), tops);
  const float top = MaxLanes16(tops);
  if (top == kLowest) {
    std::fill(probs, probs + n, 0.0f);
    return 0.0f;
  }
  const F16 t = Set1(top), scale = Set1(static_cast<float>(inv_temperature));
  Sum4 s;
  for (Walk i(n); i.more(); i.next()) {
    const F16 e = Exp(Mul(Sub(i.Get(x, kLowest), t), scale));
    s.part[i.turn()] = Add(s.part[i.turn()], e);
    i.Put(e, probs);
  }
  return s.Total();
}

HWY_MAYBE_UNUSED void EncodeRecord(RecordFormat format, const float* x, int64_t n, uint8_t* codes,
                                   uint8_t* scales) {
  if (format == RecordFormat::kRaw) {
    std::memcpy(codes, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t b = 0; b < n / 32; ++b, x += 32) {
    const F16 lo = Load(x), hi = Load(x + 16);
    if (HWY_UNLIKELY(!(AllFinite(lo) && AllFinite(hi)))) {
      const int64_t code_step = format == RecordFormat::kFp8_32 ? 32 : 16,
                    scale_step = format == RecordFormat::kFp4_16 ? 2 : 1;
      reference_kernels<float>().encode_record(format, x, 32, codes + b * code_step, scales + b * scale_step);
    } else if (format == RecordFormat::kFp8_32) {
      EncodeFp8Block(lo, hi, codes + b * 32, scales + b);
    } else if (format == RecordFormat::kFp4_32) {
      EncodeFp4Block(lo, hi, codes + b * 16, scales + b);
    } else {
      EncodeFp4Half(lo, codes + b * 16, scales + 2 * b);
      EncodeFp4Half(hi, codes + b * 16 + 8, scales + 2 * b + 1);
    }
  }
}

HWY_MAYBE_UNUSED void DecodeRecord(RecordFormat format, const uint8_t* codes, const uint8_t* scales,
                                   int64_t n, float* out) {
  if (format == RecordFormat::kRaw) {
    std::memcpy(out, codes, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t b = 0; b < n / 32; ++b) {
    F16 lo, hi;
    DecodeRecordBlock(format, codes, scales, b, lo, hi);
    Store(lo, out + b * 32);
    Store(hi, out + b * 32 + 16);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_ROWS_INL_H_
