// The scalar operations and their table. Written to be read against the specification, not to be fast; a
// weight row is still decoded once for a few rows of x, so that math mode can run whole test models. Source:
// model specification 2 to 6.
#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace deepinfer {
namespace reference {
namespace {

constexpr int kLanes = 8;         // partial sums of a dot product: element i goes to sum i mod 8
constexpr int kRowsAtOnce = 8;    // rows of x that share one decoded piece of a weight row
constexpr int64_t kPiece = 1024;  // columns decoded at a time, a multiple of 32
constexpr int64_t kMaxIndexDim = 4096;

// Adds w[i] * x_t[i] to lane i mod 8 of sum[t] for N rows at once: the rows' sums are independent, so the
// wait for one addition is filled with the others'.
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
template <typename T>
[[gnu::always_inline]] inline void load(const T* p, Lanes* out) {
  T v __attribute__((vector_size(kLanes * sizeof(T))));
  std::memcpy(&v, p, sizeof(v));
  *out = __builtin_convertvector(v, Lanes);
}

template <int N, typename X, typename W>
[[gnu::always_inline]] inline void accumulate_lanes(const W* w, const X* const* x, int64_t n,
                                                    double (*sum)[kLanes]) {
  Lanes s[N], wv, xv;
  std::memcpy(s, sum, sizeof(s));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    load(w + i, &wv);
    for (int t = 0; t < N; ++t) {
      load(x[t] + i, &xv);
      s[t] += wv * xv;
    }
  }
  std::memcpy(sum, s, sizeof(s));
  for (int l = 0; i < n; ++i, ++l)
    for (int t = 0; t < N; ++t) sum[t][l] += static_cast<double>(w[i]) * static_cast<double>(x[t][i]);
}

// The same lanes in wider registers: a multiply and an add per element whatever the width (contraction is
// off), so the bits are those of the plain loop. Math mode runs whole models on this.
#if defined(__x86_64__)
template <int N, typename X, typename W>
[[gnu::target("avx512f,prefer-vector-width=512")]] void accumulate_avx512(const W* w, const X* const* x,
                                                                          int64_t n, double (*sum)[kLanes]) {
  accumulate_lanes<N>(w, x, n, sum);
}
template <int N, typename X, typename W>
[[gnu::target("avx2")]] void accumulate_avx2(const W* w, const X* const* x, int64_t n,
                                             double (*sum)[kLanes]) {
  accumulate_lanes<N>(w, x, n, sum);
}
const int kWidth = __builtin_cpu_supports("avx512f") ? 512 : __builtin_cpu_supports("avx2") ? 256 : 128;
#endif

template <int N, typename X, typename W>
void accumulate(const W* w, const X* const* x, int64_t n, double (*sum)[kLanes]) {
#if defined(__x86_64__)
  if (kWidth == 512) return accumulate_avx512<N>(w, x, n, sum);
  if (kWidth == 256) return accumulate_avx2<N>(w, x, n, sum);
#endif
  accumulate_lanes<N>(w, x, n, sum);
}

double total(const double* s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

template <typename X, typename W>
double dot(const W* w, const X* x, int64_t n) {
  double sum[1][kLanes] = {};
  accumulate<1>(w, &x, n, sum);
  return total(sum[0]);
}

double sigmoid(double v) {
  return 1.0 / (1.0 + std::exp(-v));
}

template <typename A>
void linear(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
            int64_t row1, A* y, int64_t ldy, Out out) {
  double piece[kPiece];
  for (int64_t t0 = 0; t0 < T; t0 += kRowsAtOnce) {
    const int64_t nt = std::min<int64_t>(kRowsAtOnce, T - t0);
    const A* px[kRowsAtOnce] = {};
    for (int64_t t = 0; t < nt; ++t) px[t] = x + (rows ? int64_t{rows[t0 + t]} : t0 + t) * ldx;
    for (int64_t o = row0; o < row1; ++o) {
      double sum[kRowsAtOnce][kLanes] = {};
      for (int64_t c = 0; c < w.cols; c += kPiece) {
        const int64_t n = std::min(kPiece, w.cols - c);
        decode_columns(w, o, c, n, piece);
        const A* at[kRowsAtOnce];
        for (int64_t t = 0; t < nt; ++t) at[t] = px[t] + c;
        if (nt == kRowsAtOnce) {
          accumulate<kRowsAtOnce>(piece, at, n, sum);
        } else {
          for (int64_t t = 0; t < nt; ++t) accumulate<1>(piece, at + t, n, sum + t);
        }
      }
      for (int64_t t = 0; t < nt; ++t) {
        const double v = total(sum[t]);
        y[(t0 + t) * ldy + o] = out == Out::kRounded ? rounded<A>(v) : static_cast<A>(v);
      }
    }
  }
}

template <typename A>
void decode_row(const MatrixView& m, int64_t row, A* out) {
  decode_columns(m, row, 0, m.cols, out);
}

template <typename A>
A sum_squares(const A* x, int64_t n) {
  return static_cast<A>(dot(x, x, n));
}

template <typename A>
void rms_norm(const A* x, const A* w, int64_t n, double eps, A* y) {
  const double r = std::sqrt(dot(x, x, n) / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = rounded<A>(x[i] / r * w[i]);
}

template <typename A>
void hc_collapse(const A* X, const A* c, int hc, int64_t H, A* u) {
  for (int64_t d = 0; d < H; ++d) {
    double s = 0;
    for (int i = 0; i < hc; ++i) s += static_cast<double>(c[i]) * X[i * H + d];
    u[d] = rounded<A>(s);
  }
}

constexpr int kMaxStreams = 16;

template <typename A>
void hc_expand(const A* y, const A* post, const A* comb, int hc, int64_t H, A* X) {
  DI_CHECK(hc >= 1 && hc <= kMaxStreams, "hc");
  for (int64_t d = 0; d < H; ++d) {
    double s[kMaxStreams];
    for (int k = 0; k < hc; ++k) {
      s[k] = static_cast<double>(post[k]) * y[d];
      for (int j = 0; j < hc; ++j) s[k] += static_cast<double>(comb[j * hc + k]) * X[j * H + d];
    }
    for (int k = 0; k < hc; ++k) X[k * H + d] = rounded<A>(s[k]);
  }
}

template <typename A>
void hc_mean(const A* X, int hc, int64_t H, A* out) {
  for (int64_t d = 0; d < H; ++d) {
    double s = 0;
    for (int i = 0; i < hc; ++i) s += X[i * H + d];
    out[d] = rounded<A>(s / hc);
  }
}

template <typename A>
void rope(A* x, const A* cos, const A* sin, int pairs, bool inverse) {
  for (int i = 0; i < pairs; ++i) {
    const double c = cos[i], s = inverse ? -static_cast<double>(sin[i]) : static_cast<double>(sin[i]);
    const double a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = rounded<A>(a * c - b * s);
    x[2 * i + 1] = rounded<A>(a * s + b * c);
  }
}

template <typename A>
void encode_record(RecordFormat format, const A* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  if (format == RecordFormat::kRaw) {
    std::memcpy(codes, x, static_cast<size_t>(n) * sizeof(A));
    return;
  }
  DI_DCHECK(n % 32 == 0, "a quantised record holds whole blocks of 32");
  for (int64_t b = 0; b < n / 32; ++b) {
    float v[32];
    for (int i = 0; i < 32; ++i) v[i] = static_cast<float>(x[b * 32 + i]);
    switch (format) {
      case RecordFormat::kFp8_32:
        quant_fp8_32(v, codes + b * 32, scales + b);
        break;
      case RecordFormat::kFp4_32:
        quant_fp4_32(v, codes + b * 16, scales + b);
        break;
      case RecordFormat::kFp4_16:
        quant_fp4_16(std::span<const float, 16>(v, 16), codes + b * 16, scales + 2 * b);
        quant_fp4_16(std::span<const float, 16>(v + 16, 16), codes + b * 16 + 8, scales + 2 * b + 1);
        break;
      case RecordFormat::kRaw:
        break;
    }
  }
}

template <typename A>
void decode_record(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n, A* out) {
  decode_values(format, codes, scales, 0, n, out);
}

template <typename A>
void index_scores(const A* q, const A* w, int heads, int dim, RecordFormat format, const uint8_t* codes,
                  int64_t code_stride, const uint8_t* scales, int64_t scale_stride, int64_t n, A* scores) {
  DI_CHECK(dim <= kMaxIndexDim, "index_head_dim");
  A key[kMaxIndexDim];
  for (int64_t j = 0; j < n; ++j) {
    decode_values(format, codes + j * code_stride, scales + j * scale_stride, 0, dim, key);
    A sum = 0;
    for (int h = 0; h < heads; ++h) {
      A d = 0;
      for (int b = 0; b < dim; b += 32) {
        d += static_cast<A>(dot(q + int64_t{h} * dim + b, key + b, std::min(32, dim - b)));
      }
      sum = std::fma(w[h], std::max(d, A{0}), sum);
    }
    scores[j] = sum;
  }
}

// acc[d] += z[i] * rows[i*D + d] for n rows in order, in registers as wide as the machine has: element by
// element, so the same bits.
constexpr int64_t kChunk = 64;
template <typename A>
[[gnu::always_inline]] inline void weighted_rows_body(const A* z, const A* rows, int64_t n, int64_t D,
                                                      int64_t nd, double* acc) {
  if (nd == kChunk) {
    double s[kChunk] = {};
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < kChunk; ++d) s[d] += static_cast<double>(z[i]) * rows[i * D + d];
    std::memcpy(acc, s, sizeof(s));
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t d = 0; d < nd; ++d) acc[d] += static_cast<double>(z[i]) * rows[i * D + d];
}
#if defined(__x86_64__)
template <typename A>
[[gnu::target("avx512f,prefer-vector-width=512")]] void weighted_rows_avx512(const A* z, const A* rows,
                                                                             int64_t n, int64_t D, int64_t nd,
                                                                             double* acc) {
  weighted_rows_body(z, rows, n, D, nd, acc);
}
#endif
template <typename A>
void weighted_rows(const A* z, const A* rows, int64_t n, int64_t D, int64_t nd, double* acc) {
#if defined(__x86_64__)
  if (kWidth == 512) return weighted_rows_avx512(z, rows, n, D, nd, acc);
#endif
  weighted_rows_body(z, rows, n, D, nd, acc);
}

template <typename A>
void attend(const A* q, const A* rows, int64_t n, int64_t D, int heads, double scale, const A* sink,
            A* scratch, A* out) {
  for (int h = 0; h < heads; ++h) {
    A* z = scratch + h * n;
    int64_t first = 0;
    for (; first + kRowsAtOnce <= n; first += kRowsAtOnce) {
      double sums[kRowsAtOnce][kLanes] = {};
      const A* at[kRowsAtOnce];
      for (int i = 0; i < kRowsAtOnce; ++i) at[i] = rows + (first + i) * D;
      accumulate<kRowsAtOnce>(q + h * D, at, D, sums);
      for (int i = 0; i < kRowsAtOnce; ++i) z[first + i] = static_cast<A>(total(sums[i]) * scale);
    }
    for (; first < n; ++first) z[first] = static_cast<A>(dot(q + h * D, rows + first * D, D) * scale);
    double top = z[0];
    for (int64_t i = 1; i < n; ++i) top = std::max(top, static_cast<double>(z[i]));
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      z[i] = static_cast<A>(std::exp(z[i] - top));
      sum += z[i];
    }
    sum += std::exp(sink[h] - top);
    for (int64_t d0 = 0; d0 < D; d0 += kChunk) {
      const int64_t nd = std::min(kChunk, D - d0);
      double acc[kChunk] = {};
      weighted_rows(z, rows + d0, n, D, nd, acc);
      for (int64_t d = 0; d < nd; ++d) out[h * D + d0 + d] = rounded<A>(acc[d] / sum);
    }
  }
}

template <typename A>
void swiglu(const A* g, const A* u, int64_t n, double weight, double limit, A* a) {
  for (int64_t i = 0; i < n; ++i) {
    double gate = g[i], up = u[i];
    if (limit > 0) {
      gate = std::min(gate, limit);
      up = std::clamp(up, -limit, limit);
    }
    a[i] = rounded<A>(weight * (gate * sigmoid(gate) * up));
  }
}

template <typename A>
void add(const A* x, int64_t n, A* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

template <typename A>
void round(const A* x, int64_t n, A* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = rounded<A>(x[i]);
}

template <typename A>
A engram_stream(const A* key, const A* val, const A* q_weight, const A* k_weight, int64_t H, double eps,
                A* X) {
  const double n = static_cast<double>(H);
  double s = 0;
  for (int64_t d = 0; d < H; ++d) s += static_cast<double>(X[d]) * q_weight[d] * k_weight[d] * key[d];
  const double rs = 1.0 / std::sqrt(dot(X, X, H) / n + eps) / std::sqrt(dot(key, key, H) / n + eps);
  s *= rs / std::sqrt(n);
  const A gate = static_cast<A>(sigmoid(std::copysign(std::sqrt(std::max(std::fabs(s), 1e-6)), s)));
  for (int64_t d = 0; d < H; ++d) X[d] = rounded<A>(X[d] + static_cast<double>(gate) * val[d]);
  return gate;
}

template <typename A>
void compress_pool(const A* const* a, const A* const* g, int r, int64_t n, A* pooled) {
  for (int64_t d = 0; d < n; ++d) {
    double top = g[0][d];
    for (int t = 1; t < r; ++t) top = std::max(top, static_cast<double>(g[t][d]));
    double sum = 0, acc = 0;
    for (int t = 0; t < r; ++t) {
      const double e = std::exp(g[t][d] - top);
      sum += e;
      acc += e * a[t][d];
    }
    pooled[d] = rounded<A>(acc / sum);
  }
}

// A row of -inf alone has no distribution: every probability and the sum are 0.
template <typename A>
A softmax(const A* x, int64_t n, double inv_temperature, A* probs) {
  A top = -std::numeric_limits<A>::infinity();
  for (int64_t i = 0; i < n; ++i) top = std::max(top, x[i]);
  if (top == -std::numeric_limits<A>::infinity()) {
    std::fill(probs, probs + n, A{0});
    return 0;
  }
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    probs[i] = static_cast<A>(std::exp((static_cast<double>(x[i]) - top) * inv_temperature));
    sum += probs[i];
  }
  return static_cast<A>(sum);
}

}  // namespace

template <typename A>
void hc_coefficients(const A* mix, A mean_square, const A* base, const A* scale, const HcParams& p, A* pre,
                     A* post, A* comb) {
  const int hc = p.hc;
  DI_CHECK(hc >= 1 && hc <= kMaxStreams, "hc");
  const double norm = std::sqrt(static_cast<double>(mean_square) + p.rms_eps);
  auto site = [&](int i, int part) { return mix[i] / norm * scale[part] + base[i]; };
  for (int i = 0; i < hc; ++i) pre[i] = static_cast<A>(sigmoid(site(i, 0)) + p.hc_eps);
  for (int i = 0; i < hc; ++i) post[i] = static_cast<A>(2.0 * sigmoid(site(hc + i, 1)));
  double m[kMaxStreams][kMaxStreams];
  for (int j = 0; j < hc; ++j) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int k = 0; k < hc; ++k) top = std::max(top, m[j][k] = site(2 * hc + j * hc + k, 2));
    for (int k = 0; k < hc; ++k) sum += m[j][k] = std::exp(m[j][k] - top);
    for (int k = 0; k < hc; ++k) m[j][k] = m[j][k] / sum + p.hc_eps;
  }
  auto divide_rows = [&] {
    for (int j = 0; j < hc; ++j) {
      double sum = p.hc_eps;
      for (int k = 0; k < hc; ++k) sum += m[j][k];
      for (int k = 0; k < hc; ++k) m[j][k] /= sum;
    }
  };
  auto divide_columns = [&] {
    for (int k = 0; k < hc; ++k) {
      double sum = p.hc_eps;
      for (int j = 0; j < hc; ++j) sum += m[j][k];
      for (int j = 0; j < hc; ++j) m[j][k] /= sum;
    }
  };
  divide_columns();
  for (int i = 1; i < p.sinkhorn_iters; ++i) {
    divide_rows();
    divide_columns();
  }
  for (int j = 0; j < hc; ++j)
    for (int k = 0; k < hc; ++k) comb[j * hc + k] = static_cast<A>(m[j][k]);
}
template void hc_coefficients<float>(const float*, float, const float*, const float*, const HcParams&, float*,
                                     float*, float*);
template void hc_coefficients<double>(const double*, double, const double*, const double*, const HcParams&,
                                      double*, double*, double*);

}  // namespace reference

template <typename A>
const Kernels<A>& reference_kernels() {
  namespace r = reference;
  static constexpr Kernels<A> table = {
      .name = "reference",
      .linear = r::linear<A>,
      .prepared_bytes = [](WeightFormat, int64_t) { return int64_t{0}; },
      .prepare = [](WeightFormat, int64_t, const A*, int64_t, int64_t, uint8_t*) { return false; },
      .linear_prepared = [](const MatrixView&, const uint8_t*, int64_t, const int32_t*, int64_t, int64_t,
                            int64_t, A*, int64_t,
                            Out) { DI_CHECK(false, "the plain definition prepares nothing"); },
      .decode_row = r::decode_row<A>,
      .rms_norm = r::rms_norm<A>,
      .sum_squares = r::sum_squares<A>,
      .hc_coefficients = r::hc_coefficients<A>,
      .hc_collapse = r::hc_collapse<A>,
      .hc_expand = r::hc_expand<A>,
      .hc_mean = r::hc_mean<A>,
      .rope = r::rope<A>,
      .encode_record = r::encode_record<A>,
      .decode_record = r::decode_record<A>,
      .index_scores = r::index_scores<A>,
      .index_prepared_bytes = [](RecordFormat, int, int) { return int64_t{0}; },
      .prepare_index = [](const A*, int, int, uint8_t*) { return false; },
      .index_scores_prepared = [](const uint8_t*, const A*, int, int, const uint8_t*, int64_t, const uint8_t*,
                                  int64_t, int64_t,
                                  A*) { DI_CHECK(false, "the plain definition prepares nothing"); },
      .attend = r::attend<A>,
      .gathered_bytes = [](RecordFormat, int64_t) { return int64_t{0}; },
      .gather_records = [](RecordFormat, const uint8_t*, const uint8_t*, int64_t, uint8_t*) { return false; },
      .attend_gathered = [](const A*, const uint8_t*, int64_t, int64_t, int, double, const A*, A*,
                            A*) { return false; },
      .swiglu = r::swiglu<A>,
      .add = r::add<A>,
      .round = r::round<A>,
      .engram_stream = r::engram_stream<A>,
      .compress_pool = r::compress_pool<A>,
      .softmax = r::softmax<A>,
  };
  return table;
}
template const Kernels<float>& reference_kernels<float>();
template const Kernels<double>& reference_kernels<double>();

}  // namespace deepinfer
