// Wraps the scalar reference: compute exactly, then round where the vendor's reference rounds.
#include "kernels/ref_mode.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"

namespace deepinfer {
namespace {

double bf16(double v) {
  return static_cast<double>(round_bf16(static_cast<float>(v)));
}

void round_all(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = bf16(x[i]);
}

const Kernels<double>& exact() {
  return reference_kernels<double>();
}

// Inputs of FP8 and FP4 products go through quant_fp8_32 (8.5, points 4 and 5).
void linear(const MatrixView& w, const double* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
            int64_t row1, double* y, int64_t ldy, Out out) {
  bool quantise =
      (w.format == WeightFormat::kFp8Tile32 || w.format == WeightFormat::kMxfp4) && !w.plain_input;
  std::vector<double> input(static_cast<size_t>(T * w.cols));
  std::vector<uint8_t> codes(static_cast<size_t>(w.cols)), scales(static_cast<size_t>(w.cols / 32 + 1));
  for (int64_t t = 0; t < T; ++t) {
    const double* from = x + (rows != nullptr ? rows[t] : t) * ldx;
    double* to = input.data() + t * w.cols;
    std::copy(from, from + w.cols, to);
    if (!quantise) continue;
    exact().encode_record(RecordFormat::kFp8_32, to, w.cols, codes.data(), scales.data());
    exact().decode_record(RecordFormat::kFp8_32, codes.data(), scales.data(), w.cols, to);
  }
  exact().linear(w, input.data(), w.cols, nullptr, T, row0, row1, y, ldy, out);
  if (out == Out::kFull) return;
  for (int64_t t = 0; t < T; ++t) round_all(y + t * ldy + row0, row1 - row0);
}

void rms_norm(const double* x, const double* w, int64_t n, double eps, double* y) {
  exact().rms_norm(x, w, n, eps, y);
  round_all(y, n);
}

void hc_collapse(const double* X, const double* c, int hc, int64_t H, double* u) {
  exact().hc_collapse(X, c, hc, H, u);
  round_all(u, H);
}

void hc_expand(const double* y, const double* post, const double* comb, int hc, int64_t H, double* X) {
  exact().hc_expand(y, post, comb, hc, H, X);
  round_all(X, hc * H);
}

void hc_mean(const double* X, int hc, int64_t H, double* out) {
  exact().hc_mean(X, hc, H, out);
  round_all(out, H);
}

void rope(double* x, const double* cos, const double* sin, int pairs, bool inverse) {
  exact().rope(x, cos, sin, pairs, inverse);
  round_all(x, 2 * pairs);
}

// Dot products, the weighted ReLU and the head sum are bf16 tensors (8.5, point 12).
void index_scores(const double* q, const double* w, int heads, int dim, RecordFormat format,
                  const uint8_t* codes, int64_t code_stride, const uint8_t* scales, int64_t scale_stride,
                  int64_t n, double* scores) {
  std::vector<double> key(static_cast<size_t>(dim));
  for (int64_t j = 0; j < n; ++j) {
    exact().decode_record(format, codes + j * code_stride, scales + j * scale_stride, dim, key.data());
    double sum = 0;
    for (int h = 0; h < heads; ++h) {
      double d = 0;
      for (int i = 0; i < dim; ++i) d += q[h * dim + i] * key[static_cast<size_t>(i)];
      sum += bf16(w[h] * std::max(bf16(d), 0.0));
    }
    scores[j] = bf16(sum);
  }
}

// Probabilities are bf16 for the value product, the denominator is not (model specification 3.5).
void attend(const double* q, const double* rows, int64_t n, int64_t D, int heads, double scale,
            const double* sink, double* scratch, double* out) {
  for (int h = 0; h < heads; ++h) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      double z = 0;
      for (int64_t d = 0; d < D; ++d) z += q[h * D + d] * rows[i * D + d];
      scratch[i] = z * scale;
      top = std::max(top, scratch[i]);
    }
    double* o = out + h * D;
    std::fill(o, o + D, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      double e = std::exp(scratch[i] - top), rounded = bf16(e);
      sum += e;
      for (int64_t d = 0; d < D; ++d) o[d] += rounded * rows[i * D + d];
    }
    sum += std::exp(sink[h] - top);
    for (int64_t d = 0; d < D; ++d) o[d] = bf16(o[d] / sum);
  }
}

void swiglu(const double* g, const double* u, int64_t n, double weight, double limit, double* a) {
  exact().swiglu(g, u, n, weight, limit, a);
  round_all(a, n);
}

void round(const double* x, int64_t n, double* y) {
  std::copy(x, x + n, y);
  round_all(y, n);
}

double engram_stream(const double* key, const double* val, const double* q_weight, const double* k_weight,
                     int64_t H, double eps, double* X) {
  double gate = exact().engram_stream(key, val, q_weight, k_weight, H, eps, X);
  round_all(X, H);
  return gate;
}

void compress_pool(const double* const* a, const double* const* g, int r, int64_t n, double* pooled) {
  exact().compress_pool(a, g, r, n, pooled);
  round_all(pooled, n);
}

}  // namespace

const Kernels<double>& ref_mode_kernels() {
  static const Kernels<double> table = [] {
    Kernels<double> t = reference_kernels<double>();
    t.name = "ref_mode";
    t.linear = linear;
    t.rms_norm = rms_norm;
    t.hc_collapse = hc_collapse;
    t.hc_expand = hc_expand;
    t.hc_mean = hc_mean;
    t.rope = rope;
    t.index_scores = index_scores;
    t.attend = attend;
    t.swiglu = swiglu;
    t.round = round;
    t.engram_stream = engram_stream;
    t.compress_pool = compress_pool;
    return t;
  }();
  return table;
}

}  // namespace deepinfer
