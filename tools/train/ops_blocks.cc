// Fused operations of whole blocks: experts, Engram gate, attention over a window and a range of entries. The
// counterpart of ops.cc, which has the row operations and the bindings.
#include "ops.h"

// ---- MoE

// y[i] = x[idx[i]], a zero row where idx is negative.
Tensor gather_rows(Tensor x, Tensor idx) {
  int64_t d = x.size(1), m = idx.size(0);
  auto y = torch::empty({m, d}, x.options());
  const bf* xp = ptr(x);
  bf* yp = ptr(y);
  const int32_t* ip = iptr(idx);
  at::parallel_for(0, m, 256, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; ++i) {
      if (ip[i] < 0)
        std::memset(yp + i * d, 0, size_t(d) * 2);
      else
        std::memcpy(yp + i * d, xp + int64_t(ip[i]) * d, size_t(d) * 2);
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
        float g = std::min(up(hp[i * 2 * d + k]), lim),
              u = std::min(std::max(up(hp[i * 2 * d + d + k]), -lim), lim);
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
        float g = std::min(g0, lim), u = std::min(std::max(u0, -lim), lim), p = sigmoid(g), si = g * p,
              t = up(gp[i * d + k]);
        acc += t * si * u;
        op[i * 2 * d + k] = down(g0 <= lim ? t * s * u * (p + si * (1 - p)) : 0.f);
        op[i * 2 * d + d + k] = down(std::fabs(u0) <= lim ? t * s * si : 0.f);
      }
      dwp[i] = acc;
    }
  });
  return {dh, dw};
}

// ---- Engram gate

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
        float rx = 1 / std::sqrt(sx / d + float(eps)), rk = 1 / std::sqrt(sk / d + float(eps)),
              c = rx * rk / std::sqrt(float(d));
        float dot = raw * c, root = std::sqrt(std::max(std::fabs(dot), 1e-6f)),
              gate = sigmoid(std::copysign(root, dot));
        // The true slope 0.5 / sqrt grows without bound near 0; it is held at its value for a root of 0.03 to
        // keep steps calm.
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

// ---- attention over a window and a range of entries

// q [B, S, h, d], kw [B, S, d] window latents, km [B, E, d] entries (E may be 0), sink [h].
// Row i of batch b reads window rows wlo..i+off (off = row offset of q inside kw) and entries elo..ehi-1,
// minus those with sel = 0.
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
    TORCH_CHECK(r.wlo[b * r.S + i] >= 0 && r.wlo[b * r.S + i] <= i + r.off,
                "window of a row must hold the row itself");
    TORCH_CHECK(!r.E || (r.elo[b * r.S + i] >= 0 && r.ehi[b * r.S + i] <= r.E), "entries out of range");
    t.w0 = std::min<int64_t>(t.w0, r.wlo[b * r.S + i]);
    if (r.E)
      t.e0 = std::min<int64_t>(t.e0, r.elo[b * r.S + i]), t.e1 = std::max<int64_t>(t.e1, r.ehi[b * r.S + i]);
  }
  if (t.e1 <= t.e0) t.e0 = t.e1 = 0;
  return t;
}
Tensor keys_of(const Tensor& kw, const Tensor& km, const Tile& t, int64_t b) {
  // Padded to a multiple of 64 rows: the matrix library builds (and keeps) one kernel per shape, so shapes
  // must repeat.
  int64_t nw = t.w1 - t.w0, ne = t.e1 - t.e0, n = (nw + ne + 63) / 64 * 64;
  auto k = at::zeros({n, kw.size(2)}, kw.options());
  k.slice(0, 0, nw).copy_(kw[b].slice(0, t.w0, t.w1));
  if (ne > 0) k.slice(0, nw, nw + ne).copy_(km[b].slice(0, t.e0, t.e1));
  return k;
}

// Turns scores [rows, cols] (fp32 of bf16 products) of one tile into probabilities; writes or uses lse.
void tile_softmax(const Ranges& r, const Tile& t, int64_t b, const float* sink, bf* s, int64_t cols,
                  float scale, float* lse, bool have_lse) {
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

Ranges ranges(const Tensor& q, const Tensor& kw, const Tensor& km, const Tensor& wlo, const Tensor& elo,
              const Tensor& ehi, const c10::optional<Tensor>& sel, int64_t chunk) {
  Ranges r{q.size(0), q.size(1), q.size(2), q.size(3), km.size(1), kw.size(1), chunk, kw.size(1) - q.size(1),
           iptr(wlo), iptr(elo), iptr(ehi), nullptr};
  if (sel) {
    TORCH_CHECK(sel->is_contiguous() && sel->scalar_type() == at::kByte && sel->size(2) == r.E &&
                sel->size(1) == r.S);
    r.sel = sel->data_ptr<uint8_t>();
  }
  return r;
}

std::vector<Tensor> attn_fwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi,
                             c10::optional<Tensor> sel, int64_t chunk) {
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

std::vector<Tensor> attn_bwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi,
                             c10::optional<Tensor> sel, int64_t chunk, Tensor o, Tensor lse, Tensor go) {
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
    auto qt = q[b].slice(0, t.i0, t.i1).reshape({-1, r.d}),
         gt = go[b].slice(0, t.i0, t.i1).reshape({-1, r.d});
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
      for (int64_t e = 0; e < cols; ++e)
        dpp[i * cols + e] = down(up(pp[i * cols + e]) * (up(dpp[i * cols + e]) - delta) * scale);
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
