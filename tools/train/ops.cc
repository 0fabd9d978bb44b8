// Fused forward and backward operations of the trainer (bf16 activations, fp32 arithmetic), loaded as a
// PyTorch extension.
//
// Each pair computes what tools/reference/model.py writes out in plain tensors; fast.py wraps them as
// autograd functions and test_fast.py holds them to the reference. Rows are tokens; D is a row's width.
// Nothing here knows the model's shape.
#include "ops.h"

// ---- RMSNorm

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

// ---- rotation and cache quantisers

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
    if (mode == 1)
      scale = pow2_ceil(std::max(amax, 1e-4f) * (1.f / 448));
    else if (mode == 3)
      scale = pow2_ceil(std::max(amax, 6 * 0x1p-126f) * (1.f / 6));
    else
      scale = std::min(grid(std::max(amax, 6 * 0x1p-9f) / 6, 0x1p-6f, 3), 448.f);
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

// Weight formats with one power-of-two scale per 32 consecutive values: fp4 (MXFP4) or fp8 (Engram rows).
// fp32 in and out.
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
        for (int64_t k = c; k < c1; ++k)
          to[i * n + k] = grid(std::min(std::max(in[i * n + k] / scale, -448.f), 448.f), 0x1p-6f, 3) * scale;
    }
  return out;
}

// ---- optimiser

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

// ---- mHC

using Lanes = float[kLanes];
struct Sinkhorn {  // sixteen tokens at a time
  int iters;
  float eps;
  std::vector<float> y, den;  // outputs and denominators of every normalisation
  explicit Sinkhorn(int it, float e)
      : iters(it), eps(e), y(size_t(2 * it) * 16 * kLanes), den(size_t(2 * it) * 4 * kLanes) {}
  Lanes* Y(int s) { return reinterpret_cast<Lanes*>(y.data() + size_t(s) * 16 * kLanes); }
  Lanes* D(int s) { return reinterpret_cast<Lanes*>(den.data() + size_t(s) * 4 * kLanes); }
  // Step 0: softmax over k (row), without eps in Y(0); step s odd: columns, s even: rows.
  void forward(Lanes* a) {
    Lanes* y0 = Y(0);
    for (int j = 0; j < 4; ++j)
      for (int l = 0; l < kLanes; ++l) {
        float m =
            std::max(std::max(a[4 * j][l], a[4 * j + 1][l]), std::max(a[4 * j + 2][l], a[4 * j + 3][l]));
        float e0 = std::exp(a[4 * j][l] - m), e1 = std::exp(a[4 * j + 1][l] - m),
              e2 = std::exp(a[4 * j + 2][l] - m), e3 = std::exp(a[4 * j + 3][l] - m),
              s = 1 / (e0 + e1 + e2 + e3);
        y0[4 * j][l] = e0 * s, y0[4 * j + 1][l] = e1 * s, y0[4 * j + 2][l] = e2 * s,
               y0[4 * j + 3][l] = e3 * s;
      }
    for (int s = 1; s < 2 * iters; ++s) {
      Lanes *in = Y(s - 1), *out = Y(s), *dn = D(s);
      float add = s == 1 ? eps : 0.f;
      int group = s % 2 ? 1 : 4,
          step = s % 2 ? 4 : 1;  // columns: start k, stride 4; rows: start 4j, stride 1
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

// Coefficients from the streams X [n, 4, H] and raw = flatten(X) fn^T [n, 24] -> pre, post [n, 4], comb [n,
// 16], rs [n].
std::vector<Tensor> coef_fwd(Tensor X, Tensor raw, Tensor scale, Tensor base, double eps, double hc_eps,
                             int64_t iters) {
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
std::vector<Tensor> coef_bwd(Tensor raw, Tensor scale, Tensor base, Tensor rs, Tensor dpre, Tensor dpost,
                             Tensor dcomb, int64_t width, double hc_eps, int64_t iters) {
  int64_t n = raw.size(0);
  auto draw = torch::empty_like(raw);
  auto xc = f32({n});
  int threads = at::get_num_threads();
  auto ds = f32({threads, 3}), db = f32({threads, kMix});
  const bf* rp = ptr(raw);
  bf* dp = ptr(draw);
  const float *sc = fptr(scale), *ba = fptr(base), *rsp = fptr(rs), *dprep = fptr(dpre),
              *dpostp = fptr(dpost), *dcp = fptr(dcomb);
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
std::vector<Tensor> collapse_bwd(Tensor X, Tensor c, Tensor w, Tensor rs, Tensor du, c10::optional<Tensor> xc,
                                 c10::optional<Tensor> add) {
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
        v[k] =
            (cc[0] * up(x[k]) + cc[1] * up(x[d + k]) + cc[2] * up(x[2 * d + k]) + cc[3] * up(x[3 * d + k])) *
            r;
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
          for (int64_t k = 0; k < d; ++k)
            s += dv[k] * up(xj[k]), o[k] = down(cc[j] * dv[k] + e * up(xj[k]) + up(aj[k]));
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
          o[e] = down(p * up(yy[e]) + c0 * up(x[e]) + c1 * up(x[d + e]) + c2 * up(x[2 * d + e]) +
                      c3 * up(x[3 * d + e]));
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
        dyy[e] = down(p[0] * up(gg[e]) + p[1] * up(gg[d + e]) + p[2] * up(gg[2 * d + e]) +
                      p[3] * up(gg[3 * d + e]));
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
          float g0 = up(gg[e]), g1 = up(gg[d + e]), g2 = up(gg[2 * d + e]), g3 = up(gg[3 * d + e]),
                v = up(xj[e]);
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
  m.def("widen_products", &widen_products);
  m.def("gain_of_widening", &gain_of_widening);
}
