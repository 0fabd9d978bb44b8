// Fused forward and backward operations of the trainer (bf16 activations, fp32 arithmetic), loaded as a PyTorch extension.
//
// Each pair computes what tools/reference/model.py writes out in plain tensors; fast.py wraps them as autograd functions
// and test_fast.py holds them to the reference. Rows are tokens; D is a row's width. Nothing here knows the model's shape.
#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using at::Tensor;
using bf = uint16_t;

namespace {

inline float up(bf v) {
  uint32_t u = uint32_t(v) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline bf down(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  u += 0x7fff + ((u >> 16) & 1);
  return bf(u >> 16);
}
bf* ptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kBFloat16);
  return reinterpret_cast<bf*>(t.data_ptr());
}
float* fptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kFloat);
  return t.data_ptr<float>();
}
int32_t* iptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kInt);
  return t.data_ptr<int32_t>();
}
Tensor f32(std::vector<int64_t> shape) { return torch::zeros(shape, at::kFloat); }
constexpr int kHc = 4, kMix = 24, kLanes = 16, kMaxWidth = 4096;

// ---- RMSNorm -----------------------------------------------------------------------------------------------------

std::vector<Tensor> norm_fwd(Tensor x, Tensor w, double eps) {
  int64_t d = x.size(-1), n = x.numel() / d;
  auto y = torch::empty_like(x);
  auto rs = f32({n});
  const bf* xp = ptr(x);
  bf* yp = ptr(y);
  const float* wp = fptr(w);
  float* rp = fptr(rs);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      float s = 0;
      for (int64_t k = 0; k < d; ++k) s += up(xp[i * d + k]) * up(xp[i * d + k]);
      float r = 1 / std::sqrt(s / d + float(eps));
      rp[i] = r;
      for (int64_t k = 0; k < d; ++k) yp[i * d + k] = down(up(xp[i * d + k]) * r * wp[k]);
    }
  });
  return {y, rs};
}

std::vector<Tensor> norm_bwd(Tensor x, Tensor w, Tensor rs, Tensor dy) {
  int64_t d = x.size(-1), n = x.numel() / d;
  auto dx = torch::empty_like(x);
  auto dw = f32({at::get_num_threads(), d});
  const bf *xp = ptr(x), *gp = ptr(dy);
  bf* op = ptr(dx);
  const float *wp = fptr(w), *rp = fptr(rs);
  float* dwp = fptr(dw);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float* acc = dwp + at::get_thread_num() * d;
    for (int64_t i = a; i < b; ++i) {
      float r = rp[i], dot = 0;
      for (int64_t k = 0; k < d; ++k) {
        float xh = up(xp[i * d + k]) * r, g = up(gp[i * d + k]);
        acc[k] += g * xh;
        dot += g * wp[k] * xh;
      }
      dot /= d;
      for (int64_t k = 0; k < d; ++k)
        op[i * d + k] = down(r * (up(gp[i * d + k]) * wp[k] - up(xp[i * d + k]) * r * dot));
    }
  });
  return {dx, dw.sum(0)};
}

// ---- rotation and cache quantisers -------------------------------------------------------------------------------

inline float pow2_ceil(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  u = (u & 0x7f800000u) + ((u & 0x7fffffu) ? 0x800000u : 0u);
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline float grid(float y, float lowest, int bits) {
  float a = std::fabs(y);
  a = a < lowest ? lowest : a;
  uint32_t u;
  std::memcpy(&u, &a, 4);
  u = (u & 0x7f800000u) - (uint32_t(bits) << 23);
  float step;
  std::memcpy(&step, &u, 4);
  return std::nearbyintf(y / step) * step;
}
// mode 0: none, 1: fp8 per 32, 2: fp4 per 16 (e4m3 scale), 3: fp4 per 32
void quantise_row(float* x, int64_t d, int mode) {
  if (mode == 0) return;
  int64_t block = mode == 2 ? 16 : 32;
  for (int64_t s = 0; s < d; s += block) {
    float amax = 0;
    for (int64_t k = 0; k < block; ++k) amax = std::max(amax, std::fabs(x[s + k]));
    float scale, top = mode == 1 ? 448.f : 6.f;
    if (mode == 1) scale = pow2_ceil(std::max(amax, 1e-4f) * (1.f / 448));
    else if (mode == 3) scale = pow2_ceil(std::max(amax, 6 * 0x1p-126f) * (1.f / 6));
    else scale = std::min(grid(std::max(amax, 6 * 0x1p-9f) / 6, 0x1p-6f, 3), 448.f);
    for (int64_t k = 0; k < block; ++k) {
      float y = std::min(std::max(x[s + k] / scale, -top), top);
      x[s + k] = (mode == 1 ? grid(y, 0x1p-6f, 3) : grid(y, 1.f, 1)) * scale;
    }
  }
}

// x [n, h, d]; cos, sin [n, m]: rotates the last 2m dims of every head, then quantises.
Tensor rope_quant(Tensor x, Tensor cos, Tensor sin, double sign, int64_t mode) {
  int64_t n = x.size(0), h = x.size(1), d = x.size(2), m = cos.size(1);
  TORCH_CHECK(d <= kMaxWidth);
  auto y = torch::empty_like(x);
  const bf* xp = ptr(x);
  bf* yp = ptr(y);
  const float *cp = fptr(cos), *sp = fptr(sin);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float row[kMaxWidth];
    for (int64_t i = a; i < b; ++i)
      for (int64_t j = 0; j < h; ++j) {
        const bf* in = xp + (i * h + j) * d;
        bf* out = yp + (i * h + j) * d;
        for (int64_t k = 0; k < d; ++k) row[k] = up(in[k]);
        float* t = row + d - 2 * m;
        for (int64_t k = 0; k < m; ++k) {
          float c = cp[i * m + k], s = sp[i * m + k] * float(sign), e = t[2 * k], o = t[2 * k + 1];
          t[2 * k] = e * c - o * s;
          t[2 * k + 1] = e * s + o * c;
        }
        if (mode)
          for (int64_t k = d - 2 * m; k < d; ++k) row[k] = up(down(row[k]));
        quantise_row(row, d, int(mode));
        for (int64_t k = 0; k < d; ++k) out[k] = down(row[k]);
      }
  });
  return y;
}

// Weight formats with one power-of-two scale per 32 consecutive values: fp4 (MXFP4) or fp8 (Engram rows). fp32 in and out.
Tensor weight_quant(Tensor w, bool fp4) {
  auto out = torch::empty_like(w);
  const float* in = fptr(w);
  float* to = fptr(out);
  at::parallel_for(0, w.numel() / 32, 1024, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      float amax = 0, top = fp4 ? 6.f : 448.f;
      for (int64_t k = 0; k < 32; ++k) amax = std::max(amax, std::fabs(in[i * 32 + k]));
      float scale = pow2_ceil(std::max(amax, 0x1p-100f) / top);
      for (int64_t k = 0; k < 32; ++k) {
        float y = std::min(std::max(in[i * 32 + k] / scale, -top), top);
        to[i * 32 + k] = (fp4 ? grid(y, 1.f, 1) : grid(y, 0x1p-6f, 3)) * scale;
      }
    }
  });
  return out;
}

// FP8 matrix [o, i] with one power-of-two scale per 32x32 tile. fp32 in and out.
Tensor tile_quant(Tensor w) {
  int64_t o = w.size(0), n = w.size(1);
  auto out = torch::empty_like(w);
  const float* in = fptr(w);
  float* to = fptr(out);
  for (int64_t a = 0; a < o; a += 32)
    for (int64_t c = 0; c < n; c += 32) {
      int64_t a1 = std::min(o, a + 32), c1 = std::min(n, c + 32);
      float amax = 0;
      for (int64_t i = a; i < a1; ++i)
        for (int64_t k = c; k < c1; ++k) amax = std::max(amax, std::fabs(in[i * n + k]));
      float scale = pow2_ceil(std::max(amax, 0x1p-100f) / 448);
      for (int64_t i = a; i < a1; ++i)
        for (int64_t k = c; k < c1; ++k) to[i * n + k] = grid(std::min(std::max(in[i * n + k] / scale, -448.f), 448.f), 0x1p-6f, 3) * scale;
    }
  return out;
}

// ---- optimiser ---------------------------------------------------------------------------------------------------

// momentum <- mix(momentum, grad); returns the look-ahead mix(grad, momentum) as bf16 rows.
Tensor muon_prepare(Tensor grad, Tensor momentum, double beta) {
  auto out = torch::empty(grad.sizes(), grad.options().dtype(at::kBFloat16));
  const float* g = fptr(grad);
  float *m = fptr(momentum), b = float(beta);
  bf* to = ptr(out);
  for (int64_t i = 0, n = grad.numel(); i < n; ++i) {
    m[i] = m[i] * b + g[i] * (1 - b);
    to[i] = down(m[i] * b + g[i] * (1 - b));
  }
  return out;
}

// p <- p keep - update step
void muon_apply(Tensor p, Tensor update, double keep, double step) {
  float *w = fptr(p), k = float(keep), s = float(step);
  const bf* u = ptr(update);
  for (int64_t i = 0, n = p.numel(); i < n; ++i) w[i] = w[i] * k - up(u[i]) * s;
}

// ---- mHC ---------------------------------------------------------------------------------------------------------

using Lanes = float[kLanes];
struct Sinkhorn {  // sixteen tokens at a time
  int iters;
  float eps;
  std::vector<float> y, den;  // outputs and denominators of every normalisation
  explicit Sinkhorn(int it, float e) : iters(it), eps(e), y(size_t(2 * it) * 16 * kLanes), den(size_t(2 * it) * 4 * kLanes) {}
  Lanes* Y(int s) { return reinterpret_cast<Lanes*>(y.data() + size_t(s) * 16 * kLanes); }
  Lanes* D(int s) { return reinterpret_cast<Lanes*>(den.data() + size_t(s) * 4 * kLanes); }
  // Step 0: softmax over k (row), without eps in Y(0); step s odd: columns, s even: rows.
  void forward(Lanes* a) {
    Lanes* y0 = Y(0);
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < kLanes; ++l) {
        float m = std::max(std::max(a[4 * j][l], a[4 * j + 1][l]), std::max(a[4 * j + 2][l], a[4 * j + 3][l]));
        float e0 = std::exp(a[4 * j][l] - m), e1 = std::exp(a[4 * j + 1][l] - m), e2 = std::exp(a[4 * j + 2][l] - m),
              e3 = std::exp(a[4 * j + 3][l] - m), s = 1 / (e0 + e1 + e2 + e3);
        y0[4 * j][l] = e0 * s, y0[4 * j + 1][l] = e1 * s, y0[4 * j + 2][l] = e2 * s, y0[4 * j + 3][l] = e3 * s;
      }
    for (int s = 1; s < 2 * iters; ++s) {
      Lanes *in = Y(s - 1), *out = Y(s), *dn = D(s);
      float add = s == 1 ? eps : 0.f;
      int group = s % 2 ? 1 : 4, step = s % 2 ? 4 : 1;  // columns: start k, stride 4; rows: start 4j, stride 1
      for (int g = 0; g < 4; ++g)
        for (int l = 0; l < kLanes; ++l) {
          float v[4], sum = eps;
          for (int q = 0; q < 4; ++q) v[q] = in[g * group + q * step][l] + add, sum += v[q];
          float inv = 1 / sum;
          dn[g][l] = inv;
          for (int q = 0; q < 4; ++q) out[g * group + q * step][l] = v[q] * inv;
        }
    }
  }
  Lanes* result() { return Y(2 * iters - 1); }
  void backward(Lanes* g16) {  // in: gradient of result; out: gradient of logits
    for (int s = 2 * iters - 1; s >= 1; --s) {
      Lanes *out = Y(s), *dn = D(s);
      int group = s % 2 ? 1 : 4, step = s % 2 ? 4 : 1;
      for (int g = 0; g < 4; ++g)
        for (int l = 0; l < kLanes; ++l) {
          float dot = 0;
          for (int q = 0; q < 4; ++q) dot += g16[g * group + q * step][l] * out[g * group + q * step][l];
          for (int q = 0; q < 4; ++q) {
            float& v = g16[g * group + q * step][l];
            v = (v - dot) * dn[g][l];
          }
        }
    }
    Lanes* y0 = Y(0);
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < kLanes; ++l) {
        float dot = 0;
        for (int q = 0; q < 4; ++q) dot += g16[4 * j + q][l] * y0[4 * j + q][l];
        for (int q = 0; q < 4; ++q) g16[4 * j + q][l] = (g16[4 * j + q][l] - dot) * y0[4 * j + q][l];
      }
  }
};
inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Coefficients from the streams X [n, 4, H] and raw = flatten(X) fn^T [n, 24] -> pre, post [n, 4], comb [n, 16], rs [n].
std::vector<Tensor> coef_fwd(Tensor X, Tensor raw, Tensor scale, Tensor base, double eps, double hc_eps, int64_t iters) {
  int64_t n = X.size(0), w = X.size(1) * X.size(2);
  auto pre = f32({n, 4}), post = f32({n, 4}), comb = f32({n, 16}), rs = f32({n});
  const bf *xp = ptr(X), *rp = ptr(raw);
  const float *sc = fptr(scale), *ba = fptr(base);
  float *prep = fptr(pre), *postp = fptr(post), *cp = fptr(comb), *rsp = fptr(rs);
  at::parallel_for(0, (n + kLanes - 1) / kLanes, 8, [&](int64_t a, int64_t b) {
    Sinkhorn sk{static_cast<int>(iters), static_cast<float>(hc_eps)};
    for (int64_t t = a; t < b; ++t) {
      int64_t i0 = t * kLanes, m = std::min<int64_t>(kLanes, n - i0);
      Lanes logits[16] = {};
      for (int64_t l = 0; l < m; ++l) {
        int64_t i = i0 + l;
        float s = 0;
        for (int64_t k = 0; k < w; ++k) s += up(xp[i * w + k]) * up(xp[i * w + k]);
        float r = 1 / std::sqrt(s / w + float(eps));
        rsp[i] = r;
        for (int k = 0; k < 4; ++k) {
          prep[i * 4 + k] = sigmoid(up(rp[i * kMix + k]) * r * sc[0] + ba[k]) + float(hc_eps);
          postp[i * 4 + k] = 2 * sigmoid(up(rp[i * kMix + 4 + k]) * r * sc[1] + ba[4 + k]);
        }
        for (int k = 0; k < 16; ++k) logits[k][l] = up(rp[i * kMix + 8 + k]) * r * sc[2] + ba[8 + k];
      }
      sk.forward(logits);
      Lanes* out = sk.result();
      for (int64_t l = 0; l < m; ++l)
        for (int k = 0; k < 16; ++k) cp[(i0 + l) * 16 + k] = out[k][l];
    }
  });
  return {pre, post, comb, rs};
}

// -> draw [n, 24] bf16, coefficient of X in dX through the norm [n], dscale [3], dbase [24]
std::vector<Tensor> coef_bwd(Tensor raw, Tensor scale, Tensor base, Tensor rs, Tensor dpre, Tensor dpost, Tensor dcomb, int64_t width,
                             double hc_eps, int64_t iters) {
  int64_t n = raw.size(0);
  auto draw = torch::empty_like(raw);
  auto xc = f32({n});
  int threads = at::get_num_threads();
  auto ds = f32({threads, 3}), db = f32({threads, kMix});
  const bf* rp = ptr(raw);
  bf* dp = ptr(draw);
  const float *sc = fptr(scale), *ba = fptr(base), *rsp = fptr(rs), *dprep = fptr(dpre), *dpostp = fptr(dpost), *dcp = fptr(dcomb);
  float *xcp = fptr(xc), *dsp = fptr(ds), *dbp = fptr(db);
  at::parallel_for(0, (n + kLanes - 1) / kLanes, 8, [&](int64_t a, int64_t b) {
    Sinkhorn sk{static_cast<int>(iters), static_cast<float>(hc_eps)};
    float *dsc = dsp + at::get_thread_num() * 3, *dba = dbp + at::get_thread_num() * kMix;
    for (int64_t t = a; t < b; ++t) {
      int64_t i0 = t * kLanes, m = std::min<int64_t>(kLanes, n - i0);
      Lanes logits[16] = {}, g[16] = {};
      for (int64_t l = 0; l < m; ++l)
        for (int k = 0; k < 16; ++k) {
          logits[k][l] = up(rp[(i0 + l) * kMix + 8 + k]) * rsp[i0 + l] * sc[2] + ba[8 + k];
          g[k][l] = dcp[(i0 + l) * 16 + k];
        }
      sk.forward(logits);
      sk.backward(g);
      for (int64_t l = 0; l < m; ++l) {
        int64_t i = i0 + l;
        float r = rsp[i], dm[kMix];
        for (int k = 0; k < 4; ++k) {
          float p = sigmoid(up(rp[i * kMix + k]) * r * sc[0] + ba[k]);
          dm[k] = dprep[i * 4 + k] * p * (1 - p);
          float q = sigmoid(up(rp[i * kMix + 4 + k]) * r * sc[1] + ba[4 + k]);
          dm[4 + k] = 2 * dpostp[i * 4 + k] * q * (1 - q);
        }
        for (int k = 0; k < 16; ++k) dm[8 + k] = g[k][l];
        float dot = 0;
        for (int k = 0; k < kMix; ++k) {
          int s = k < 4 ? 0 : k < 8 ? 1 : 2;
          float x = up(rp[i * kMix + k]);
          dba[k] += dm[k];
          dsc[s] += dm[k] * x * r;
          dot += dm[k] * sc[s] * x;
          dp[i * kMix + k] = down(dm[k] * sc[s] * r);
        }
        xcp[i] = -r * r * r * dot / width;
      }
    }
  });
  return {draw, xc, ds.sum(0), db.sum(0)};
}

// u = rms(sum_i c_i X_i) w
std::vector<Tensor> collapse_fwd(Tensor X, Tensor c, Tensor w, double eps) {
  int64_t n = X.size(0), d = X.size(2);
  auto u = torch::empty({n, d}, X.options());
  auto rs = f32({n});
  const bf* xp = ptr(X);
  bf* yp = ptr(u);
  const float *cp = fptr(c), *wp = fptr(w);
  float* rp = fptr(rs);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float v[kMaxWidth];
    for (int64_t i = a; i < b; ++i) {
      const bf* x = xp + i * 4 * d;
      const float* cc = cp + i * 4;
      float s = 0;
      for (int64_t k = 0; k < d; ++k) {
        v[k] = cc[0] * up(x[k]) + cc[1] * up(x[d + k]) + cc[2] * up(x[2 * d + k]) + cc[3] * up(x[3 * d + k]);
        s += v[k] * v[k];
      }
      float r = 1 / std::sqrt(s / d + float(eps));
      rp[i] = r;
      for (int64_t k = 0; k < d; ++k) yp[i * d + k] = down(v[k] * r * wp[k]);
    }
  });
  return {u, rs};
}

// dX is written as collapse part + xc * X + add, where add [n, 4H] is draw fn (or undefined).
std::vector<Tensor> collapse_bwd(Tensor X, Tensor c, Tensor w, Tensor rs, Tensor du, c10::optional<Tensor> xc, c10::optional<Tensor> add) {
  int64_t n = X.size(0), d = X.size(2);
  auto dX = torch::empty_like(X);
  auto dc = f32({n, 4}), dw = f32({at::get_num_threads(), d});
  const bf *xp = ptr(X), *gp = ptr(du), *ap = add ? ptr(*add) : nullptr;
  bf* op = ptr(dX);
  const float *cp = fptr(c), *wp = fptr(w), *rp = fptr(rs), *xcp = xc ? fptr(*xc) : nullptr;
  float *dcp = fptr(dc), *dwp = fptr(dw);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float v[kMaxWidth], dv[kMaxWidth];
    float* acc = dwp + at::get_thread_num() * d;
    for (int64_t i = a; i < b; ++i) {
      const bf *x = xp + i * 4 * d, *g = gp + i * d;
      const float* cc = cp + i * 4;
      float r = rp[i], dot = 0, e = xcp ? xcp[i] : 0.f;
      for (int64_t k = 0; k < d; ++k) {
        v[k] = (cc[0] * up(x[k]) + cc[1] * up(x[d + k]) + cc[2] * up(x[2 * d + k]) + cc[3] * up(x[3 * d + k])) * r;
        acc[k] += up(g[k]) * v[k];
        dv[k] = up(g[k]) * wp[k];
        dot += dv[k] * v[k];
      }
      dot /= d;
      for (int64_t k = 0; k < d; ++k) dv[k] = r * (dv[k] - v[k] * dot);
      for (int j = 0; j < 4; ++j) {
        float s = 0;
        bf* o = op + (i * 4 + j) * d;
        const bf* xj = x + j * d;
        if (ap) {
          const bf* aj = ap + (i * 4 + j) * d;
          for (int64_t k = 0; k < d; ++k) s += dv[k] * up(xj[k]), o[k] = down(cc[j] * dv[k] + e * up(xj[k]) + up(aj[k]));
        } else {
          for (int64_t k = 0; k < d; ++k) s += dv[k] * up(xj[k]), o[k] = down(cc[j] * dv[k] + e * up(xj[k]));
        }
        dcp[i * 4 + j] = s;
      }
    }
  });
  return {dX, dc, dw.sum(0)};
}

Tensor expand_fwd(Tensor y, Tensor X, Tensor post, Tensor comb) {
  int64_t n = X.size(0), d = X.size(2);
  auto out = torch::empty_like(X);
  const bf *yp = ptr(y), *xp = ptr(X);
  bf* op = ptr(out);
  const float *pp = fptr(post), *cp = fptr(comb);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      const bf *x = xp + i * 4 * d, *yy = yp + i * d;
      const float* c = cp + i * 16;
      for (int k = 0; k < 4; ++k) {
        float p = pp[i * 4 + k], c0 = c[k], c1 = c[4 + k], c2 = c[8 + k], c3 = c[12 + k];
        bf* o = op + (i * 4 + k) * d;
        for (int64_t e = 0; e < d; ++e)
          o[e] = down(p * up(yy[e]) + c0 * up(x[e]) + c1 * up(x[d + e]) + c2 * up(x[2 * d + e]) + c3 * up(x[3 * d + e]));
      }
    }
  });
  return out;
}

std::vector<Tensor> expand_bwd(Tensor g, Tensor y, Tensor X, Tensor post, Tensor comb) {
  int64_t n = X.size(0), d = X.size(2);
  auto dX = torch::empty_like(X), dy = torch::empty_like(y);
  auto dpost = f32({n, 4}), dcomb = f32({n, 16});
  const bf *gp = ptr(g), *yp = ptr(y), *xp = ptr(X);
  bf *dxp = ptr(dX), *dyp = ptr(dy);
  const float *pp = fptr(post), *cp = fptr(comb);
  float *dpp = fptr(dpost), *dcp = fptr(dcomb);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      const bf *x = xp + i * 4 * d, *yy = yp + i * d, *gg = gp + i * 4 * d;
      const float *c = cp + i * 16, *p = pp + i * 4;
      bf* dyy = dyp + i * d;
      for (int64_t e = 0; e < d; ++e)
        dyy[e] = down(p[0] * up(gg[e]) + p[1] * up(gg[d + e]) + p[2] * up(gg[2 * d + e]) + p[3] * up(gg[3 * d + e]));
      for (int k = 0; k < 4; ++k) {
        float s = 0;
        for (int64_t e = 0; e < d; ++e) s += up(gg[k * d + e]) * up(yy[e]);
        dpp[i * 4 + k] = s;
      }
      for (int j = 0; j < 4; ++j) {
        const bf* xj = x + j * d;
        bf* o = dxp + (i * 4 + j) * d;
        const float* cj = c + 4 * j;
        float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (int64_t e = 0; e < d; ++e) {
          float g0 = up(gg[e]), g1 = up(gg[d + e]), g2 = up(gg[2 * d + e]), g3 = up(gg[3 * d + e]), v = up(xj[e]);
          o[e] = down(cj[0] * g0 + cj[1] * g1 + cj[2] * g2 + cj[3] * g3);
          s0 += v * g0, s1 += v * g1, s2 += v * g2, s3 += v * g3;
        }
        float* dcj = dcp + i * 16 + 4 * j;
        dcj[0] = s0, dcj[1] = s1, dcj[2] = s2, dcj[3] = s3;
      }
    }
  });
  return {dX, dy, dpost, dcomb};
}

// ---- MoE ---------------------------------------------------------------------------------------------------------

// y[i] = x[idx[i]], a zero row where idx is negative.
Tensor gather_rows(Tensor x, Tensor idx) {
  int64_t d = x.size(1), m = idx.size(0);
  auto y = torch::empty({m, d}, x.options());
  const bf* xp = ptr(x);
  bf* yp = ptr(y);
  const int32_t* ip = iptr(idx);
  at::parallel_for(0, m, 256, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      if (ip[i] < 0) std::memset(yp + i * d, 0, size_t(d) * 2);
      else std::memcpy(yp + i * d, xp + int64_t(ip[i]) * d, size_t(d) * 2);
    }
  });
  return y;
}

// out[n] = sum_k y[slot[n][k]] (+ add[n])
Tensor combine_rows(Tensor y, Tensor slot, c10::optional<Tensor> add) {
  int64_t d = y.size(1), n = slot.size(0), k = slot.size(1);
  auto out = torch::empty({n, d}, y.options());
  const bf *yp = ptr(y), *ap = add ? ptr(*add) : nullptr;
  bf* op = ptr(out);
  const int32_t* sp = iptr(slot);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float v[kMaxWidth];
    for (int64_t i = a; i < b; ++i) {
      for (int64_t e = 0; e < d; ++e) v[e] = ap ? up(ap[i * d + e]) : 0.f;
      for (int64_t j = 0; j < k; ++j) {
        const bf* row = yp + int64_t(sp[i * k + j]) * d;
        for (int64_t e = 0; e < d; ++e) v[e] += up(row[e]);
      }
      for (int64_t e = 0; e < d; ++e) op[i * d + e] = down(v[e]);
    }
  });
  return out;
}

// h [m, 2I] = gate | up; a = w silu(min(g, lim)) clamp(u, lim); w [m] optional
Tensor swiglu_fwd(Tensor h, c10::optional<Tensor> w, double limit) {
  int64_t m = h.size(0), d = h.size(1) / 2;
  float lim = float(limit);
  auto out = torch::empty({m, d}, h.options());
  const bf* hp = ptr(h);
  bf* op = ptr(out);
  const float* wp = w ? fptr(*w) : nullptr;
  at::parallel_for(0, m, 128, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      float s = wp ? wp[i] : 1.f;
      for (int64_t k = 0; k < d; ++k) {
        float g = std::min(up(hp[i * 2 * d + k]), lim), u = std::min(std::max(up(hp[i * 2 * d + d + k]), -lim), lim);
        op[i * d + k] = down(s * g * sigmoid(g) * u);
      }
    }
  });
  return out;
}

std::vector<Tensor> swiglu_bwd(Tensor h, c10::optional<Tensor> w, Tensor da, double limit) {
  int64_t m = h.size(0), d = h.size(1) / 2;
  float lim = float(limit);
  auto dh = torch::empty_like(h);
  auto dw = f32({m});
  const bf *hp = ptr(h), *gp = ptr(da);
  bf* op = ptr(dh);
  const float* wp = w ? fptr(*w) : nullptr;
  float* dwp = fptr(dw);
  at::parallel_for(0, m, 128, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      float s = wp ? wp[i] : 1.f, acc = 0;
      for (int64_t k = 0; k < d; ++k) {
        float g0 = up(hp[i * 2 * d + k]), u0 = up(hp[i * 2 * d + d + k]);
        float g = std::min(g0, lim), u = std::min(std::max(u0, -lim), lim), p = sigmoid(g), si = g * p, t = up(gp[i * d + k]);
        acc += t * si * u;
        op[i * 2 * d + k] = down(g0 <= lim ? t * s * u * (p + si * (1 - p)) : 0.f);
        op[i * 2 * d + d + k] = down(std::fabs(u0) <= lim ? t * s * si : 0.f);
      }
      dwp[i] = acc;
    }
  });
  return {dh, dw};
}

// ---- Engram gate -------------------------------------------------------------------------------------------------

// X [n, 4, H], kv [n, 5H], qk [4, H] = q_weight k_weight -> X + gate value
Tensor engram_fwd(Tensor X, Tensor kv, Tensor qk, double eps) {
  int64_t n = X.size(0), d = X.size(2);
  auto out = torch::empty_like(X);
  const bf *xp = ptr(X), *kp = ptr(kv);
  bf* op = ptr(out);
  const float* wp = fptr(qk);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i)
      for (int j = 0; j < 4; ++j) {
        const bf *x = xp + (i * 4 + j) * d, *k = kp + i * 5 * d + j * d, *v = kp + i * 5 * d + 4 * d;
        float sx = 0, sk = 0, dot = 0;
        for (int64_t e = 0; e < d; ++e) {
          float xe = up(x[e]), ke = up(k[e]);
          sx += xe * xe, sk += ke * ke, dot += xe * wp[j * d + e] * ke;
        }
        dot *= 1 / (std::sqrt(sx / d + float(eps)) * std::sqrt(sk / d + float(eps)) * std::sqrt(float(d)));
        float gate = sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6f)), dot));
        bf* o = op + (i * 4 + j) * d;
        for (int64_t e = 0; e < d; ++e) o[e] = down(up(x[e]) + gate * up(v[e]));
      }
  });
  return out;
}

std::vector<Tensor> engram_bwd(Tensor X, Tensor kv, Tensor qk, Tensor g, double eps) {
  int64_t n = X.size(0), d = X.size(2);
  auto dX = torch::empty_like(X), dkv = torch::empty_like(kv);
  auto dqk = f32({at::get_num_threads(), 4, d});
  const bf *xp = ptr(X), *kp = ptr(kv), *gp = ptr(g);
  bf *dxp = ptr(dX), *dkp = ptr(dkv);
  const float* wp = fptr(qk);
  float* dwp = fptr(dqk);
  at::parallel_for(0, n, 64, [&](int64_t a, int64_t b) {
    float dv[kMaxWidth];
    float* acc = dwp + at::get_thread_num() * 4 * d;
    for (int64_t i = a; i < b; ++i) {
      const bf* v = kp + i * 5 * d + 4 * d;
      for (int64_t e = 0; e < d; ++e) dv[e] = 0;
      for (int j = 0; j < 4; ++j) {
        const bf *x = xp + (i * 4 + j) * d, *k = kp + i * 5 * d + j * d, *gg = gp + (i * 4 + j) * d;
        float sx = 0, sk = 0, raw = 0, dgate = 0;
        for (int64_t e = 0; e < d; ++e) {
          float xe = up(x[e]), ke = up(k[e]);
          sx += xe * xe, sk += ke * ke, raw += xe * wp[j * d + e] * ke, dgate += up(gg[e]) * up(v[e]);
        }
        float rx = 1 / std::sqrt(sx / d + float(eps)), rk = 1 / std::sqrt(sk / d + float(eps)), c = rx * rk / std::sqrt(float(d));
        float dot = raw * c, root = std::sqrt(std::max(std::fabs(dot), 1e-6f)), gate = sigmoid(std::copysign(root, dot));
        // The true slope 0.5 / sqrt grows without bound near 0; it is held at its value for a root of 0.03 to keep steps calm.
        float ddot = std::fabs(dot) > 1e-6f ? dgate * gate * (1 - gate) * 0.5f / std::max(root, 0.03f) : 0.f;
        float cx = ddot * dot * rx * rx / d, ck = ddot * dot * rk * rk / d, dc = ddot * c;
        bf *ox = dxp + (i * 4 + j) * d, *ok = dkp + i * 5 * d + j * d;
        for (int64_t e = 0; e < d; ++e) {
          float xe = up(x[e]), ke = up(k[e]), w = wp[j * d + e], ge = up(gg[e]);
          acc[j * d + e] += dc * xe * ke;
          ox[e] = down(ge + dc * w * ke - cx * xe);
          ok[e] = down(dc * w * xe - ck * ke);
          dv[e] += gate * ge;
        }
      }
      for (int64_t e = 0; e < d; ++e) dkp[i * 5 * d + 4 * d + e] = down(dv[e]);
    }
  });
  return {dX, dkv, dqk.sum(0)};
}

// ---- attention over a window and a range of entries --------------------------------------------------------------

// q [B, S, h, d], kw [B, S, d] window latents, km [B, E, d] entries (E may be 0), sink [h].
// Row i of batch b reads window rows wlo..i+off (off = row offset of q inside kw) and entries elo..ehi-1, minus those with sel = 0.
struct Ranges {
  int64_t B, S, h, d, E, K, chunk, off;
  const int32_t *wlo, *elo, *ehi;
  const uint8_t* sel;
};
struct Tile {
  int64_t i0, i1, w0, w1, e0, e1;
};
Tile tile_of(const Ranges& r, int64_t b, int64_t c) {
  Tile t{c * r.chunk, std::min(r.S, (c + 1) * r.chunk), 0, 0, r.E, 0};
  t.w0 = r.K, t.w1 = t.i1 + r.off;
  for (int64_t i = t.i0; i < t.i1; ++i) {
    TORCH_CHECK(r.wlo[b * r.S + i] >= 0 && r.wlo[b * r.S + i] <= i + r.off, "window of a row must hold the row itself");
    TORCH_CHECK(!r.E || (r.elo[b * r.S + i] >= 0 && r.ehi[b * r.S + i] <= r.E), "entries out of range");
    t.w0 = std::min<int64_t>(t.w0, r.wlo[b * r.S + i]);
    if (r.E) t.e0 = std::min<int64_t>(t.e0, r.elo[b * r.S + i]), t.e1 = std::max<int64_t>(t.e1, r.ehi[b * r.S + i]);
  }
  if (t.e1 <= t.e0) t.e0 = t.e1 = 0;
  return t;
}
Tensor keys_of(const Tensor& kw, const Tensor& km, const Tile& t, int64_t b) {
  // Padded to a multiple of 64 rows: the matrix library builds (and keeps) one kernel per shape, so shapes must repeat.
  int64_t nw = t.w1 - t.w0, ne = t.e1 - t.e0, n = (nw + ne + 63) / 64 * 64;
  auto k = at::zeros({n, kw.size(2)}, kw.options());
  k.slice(0, 0, nw).copy_(kw[b].slice(0, t.w0, t.w1));
  if (ne > 0) k.slice(0, nw, nw + ne).copy_(km[b].slice(0, t.e0, t.e1));
  return k;
}

// Turns scores [rows, cols] (fp32 of bf16 products) of one tile into probabilities; writes or uses lse.
void tile_softmax(const Ranges& r, const Tile& t, int64_t b, const float* sink, bf* s, int64_t cols, float scale, float* lse, bool have_lse) {
  int64_t nw = t.w1 - t.w0;
  std::vector<float> buf(static_cast<size_t>(cols));
  for (int64_t i = t.i0; i < t.i1; ++i) {
    int64_t a0 = r.wlo[b * r.S + i] - t.w0, a1 = i + r.off + 1 - t.w0, b0 = 0, b1 = 0;
    if (r.E) b0 = nw + r.elo[b * r.S + i] - t.e0, b1 = nw + r.ehi[b * r.S + i] - t.e0;
    if (b1 <= b0) b0 = b1 = nw;
    const uint8_t* sel = r.sel ? r.sel + (b * r.S + i) * r.E + t.e0 - nw : nullptr;
    for (int64_t h = 0; h < r.h; ++h) {
      bf* row = s + ((i - t.i0) * r.h + h) * cols;
      float* v = buf.data();
      for (int64_t k = 0; k < cols; ++k) v[k] = up(row[k]) * scale;
      if (sel)
        for (int64_t k = b0; k < b1; ++k) v[k] = sel[k] ? v[k] : -1e30f;
      float& l = lse[(b * r.S + i) * r.h + h];
      if (!have_lse) {
        float m = sink[h];
        for (int64_t k = a0; k < a1; ++k) m = std::max(m, v[k]);
        for (int64_t k = b0; k < b1; ++k) m = std::max(m, v[k]);
        float sum = std::exp(sink[h] - m);
        for (int64_t k = a0; k < a1; ++k) sum += std::exp(v[k] - m);
        for (int64_t k = b0; k < b1; ++k) sum += std::exp(v[k] - m);
        l = m + std::log(sum);
      }
      float z = l;
      for (int64_t k = 0; k < a0; ++k) row[k] = 0;
      for (int64_t k = a0; k < a1; ++k) row[k] = down(std::exp(v[k] - z));
      for (int64_t k = a1; k < b0; ++k) row[k] = 0;
      for (int64_t k = b0; k < b1; ++k) row[k] = down(std::exp(v[k] - z));
      for (int64_t k = std::max(b1, a1); k < cols; ++k) row[k] = 0;
    }
  }
}

Ranges ranges(const Tensor& q, const Tensor& kw, const Tensor& km, const Tensor& wlo, const Tensor& elo, const Tensor& ehi,
              const c10::optional<Tensor>& sel, int64_t chunk) {
  Ranges r{q.size(0), q.size(1), q.size(2), q.size(3), km.size(1), kw.size(1), chunk, kw.size(1) - q.size(1), iptr(wlo), iptr(elo), iptr(ehi), nullptr};
  if (sel) {
    TORCH_CHECK(sel->is_contiguous() && sel->scalar_type() == at::kByte && sel->size(2) == r.E && sel->size(1) == r.S);
    r.sel = sel->data_ptr<uint8_t>();
  }
  return r;
}

std::vector<Tensor> attn_fwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi, c10::optional<Tensor> sel, int64_t chunk) {
  at::NoGradGuard guard;
  Ranges r = ranges(q, kw, km, wlo, elo, ehi, sel, chunk);
  auto o = torch::empty_like(q);
  auto lse = f32({r.B, r.S, r.h});
  float scale = 1 / std::sqrt(float(r.d));
  int64_t nc = (r.S + chunk - 1) / chunk;
  const float* sp = fptr(sink);
  float* lp = fptr(lse);
  ptr(q), ptr(kw);
  at::parallel_for(0, r.B * nc, 1, [&](int64_t x, int64_t y) {
    at::NoGradGuard inner;
    for (int64_t t = x; t < y; ++t) {
      int64_t b = t / nc;
      Tile tile = tile_of(r, b, t % nc);
      auto k = keys_of(kw, km, tile, b);
      auto qt = q[b].slice(0, tile.i0, tile.i1).reshape({-1, r.d});
      auto s = at::mm(qt, k.t());
      tile_softmax(r, tile, b, sp, ptr(s), s.size(1), scale, lp, false);
      auto ot = o[b].slice(0, tile.i0, tile.i1).view({-1, r.d});
      at::mm_out(ot, s, k);
    }
  });
  return {o, lse};
}

std::vector<Tensor> attn_bwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi, c10::optional<Tensor> sel, int64_t chunk,
                             Tensor o, Tensor lse, Tensor go) {
  at::NoGradGuard guard;
  Ranges r = ranges(q, kw, km, wlo, elo, ehi, sel, chunk);
  auto dq = torch::empty_like(q);
  auto dkw = torch::zeros(kw.sizes(), at::kFloat), dkm = torch::zeros(km.sizes(), at::kFloat);
  auto dsink = f32({r.B, r.h});
  float scale = 1 / std::sqrt(float(r.d));
  int64_t nc = (r.S + chunk - 1) / chunk;
  const float* sp = fptr(sink);
  float *lp = fptr(lse), *dsp = fptr(dsink);
  auto one = [&](int64_t b, int64_t c) {
    Tile t = tile_of(r, b, c);
    auto k = keys_of(kw, km, t, b);
    auto qt = q[b].slice(0, t.i0, t.i1).reshape({-1, r.d}), gt = go[b].slice(0, t.i0, t.i1).reshape({-1, r.d});
    auto ot = o[b].slice(0, t.i0, t.i1).reshape({-1, r.d});
    auto p = at::mm(qt, k.t());
    int64_t cols = p.size(1), rows = p.size(0);
    tile_softmax(r, t, b, sp, ptr(p), cols, scale, lp, true);
    auto dp = at::mm(gt, k.t());
    auto dk = at::mm(p.t(), gt);
    bf *pp = ptr(p), *dpp = ptr(dp), *op = ptr(ot), *gp = ptr(gt);
    for (int64_t i = 0; i < rows; ++i) {
      float delta = 0;
      for (int64_t e = 0; e < r.d; ++e) delta += up(op[i * r.d + e]) * up(gp[i * r.d + e]);
      int64_t h = i % r.h;
      float l = lp[(b * r.S + t.i0 + i / r.h) * r.h + h];
      dsp[b * r.h + h] -= std::exp(sp[h] - l) * delta;
      for (int64_t e = 0; e < cols; ++e) dpp[i * cols + e] = down(up(pp[i * cols + e]) * (up(dpp[i * cols + e]) - delta) * scale);
    }
    auto dqt = dq[b].slice(0, t.i0, t.i1).view({-1, r.d});
    at::mm_out(dqt, dp, k);
    dk.add_(at::mm(dp.t(), qt));
    auto dw = dkw[b].slice(0, t.w0, t.w1);
    dw.add_(dk.slice(0, 0, t.w1 - t.w0));
    if (t.e1 > t.e0) {
      auto dm = dkm[b].slice(0, t.e0, t.e1);
      dm.add_(dk.slice(0, t.w1 - t.w0, t.w1 - t.w0 + t.e1 - t.e0));
    }
  };
  if (r.B == 1) {
    for (int64_t c = 0; c < nc; ++c) one(0, c);
  } else {
    at::parallel_for(0, r.B, 1, [&](int64_t x, int64_t y) {
      at::NoGradGuard inner;
      for (int64_t b = x; b < y; ++b)
        for (int64_t c = 0; c < nc; ++c) one(b, c);
    });
  }
  return {dq, dkw.to(at::kBFloat16), dkm.to(at::kBFloat16), dsink.sum(0)};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // Two trainer threads run side by side, so no operation may hold the interpreter's lock.
  auto released = py::call_guard<py::gil_scoped_release>();
  m.def("norm_fwd", &norm_fwd, released);
  m.def("norm_bwd", &norm_bwd, released);
  m.def("rope_quant", &rope_quant, released);
  m.def("weight_quant", &weight_quant, released);
  m.def("tile_quant", &tile_quant, released);
  m.def("muon_prepare", &muon_prepare, released);
  m.def("muon_apply", &muon_apply, released);
  m.def("coef_fwd", &coef_fwd, released);
  m.def("coef_bwd", &coef_bwd, released);
  m.def("collapse_fwd", &collapse_fwd, released);
  m.def("collapse_bwd", &collapse_bwd, released);
  m.def("expand_fwd", &expand_fwd, released);
  m.def("expand_bwd", &expand_bwd, released);
  m.def("gather_rows", &gather_rows, released);
  m.def("combine_rows", &combine_rows, released);
  m.def("swiglu_fwd", &swiglu_fwd, released);
  m.def("swiglu_bwd", &swiglu_bwd, released);
  m.def("engram_fwd", &engram_fwd, released);
  m.def("engram_bwd", &engram_bwd, released);
  m.def("attn_fwd", &attn_fwd, released);
  m.def("attn_bwd", &attn_bwd, released);
}
