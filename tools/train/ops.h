// What the parts of the trainer's extension share: bf16 conversions, checked pointers, and the operations
// that ops.cc gives to Python. Rows are tokens; D is a row's width.
#pragma once

#include <ATen/Parallel.h>
#include <torch/extension.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using at::Tensor;
using bf = uint16_t;

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
inline bf* ptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kBFloat16);
  return reinterpret_cast<bf*>(t.data_ptr());
}
inline float* fptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kFloat);
  return t.data_ptr<float>();
}
inline int32_t* iptr(const Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kInt);
  return t.data_ptr<int32_t>();
}
inline Tensor f32(std::vector<int64_t> shape) {
  return torch::zeros(shape, at::kFloat);
}
inline float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}
constexpr int kHc = 4, kMix = 24, kLanes = 16, kMaxWidth = 4096;

std::vector<Tensor> norm_fwd(Tensor x, Tensor w, double eps);
std::vector<Tensor> norm_bwd(Tensor x, Tensor w, Tensor rs, Tensor dy);
Tensor rope_quant(Tensor x, Tensor cos, Tensor sin, double sign, int64_t mode);
Tensor weight_quant(Tensor w, bool fp4);
Tensor tile_quant(Tensor w);
Tensor muon_prepare(Tensor grad, Tensor momentum, double beta);
void muon_apply(Tensor p, Tensor update, double keep, double step);
std::vector<Tensor> coef_fwd(Tensor X, Tensor raw, Tensor scale, Tensor base, double eps, double hc_eps,
                             int64_t iters);
std::vector<Tensor> coef_bwd(Tensor raw, Tensor scale, Tensor base, Tensor rs, Tensor dpre, Tensor dpost,
                             Tensor dcomb, int64_t width, double hc_eps, int64_t iters);
std::vector<Tensor> collapse_fwd(Tensor X, Tensor c, Tensor w, double eps);
std::vector<Tensor> collapse_bwd(Tensor X, Tensor c, Tensor w, Tensor rs, Tensor du, c10::optional<Tensor> xc,
                                 c10::optional<Tensor> add);
Tensor expand_fwd(Tensor y, Tensor X, Tensor post, Tensor comb);
std::vector<Tensor> expand_bwd(Tensor g, Tensor y, Tensor X, Tensor post, Tensor comb);
Tensor gather_rows(Tensor x, Tensor idx);
Tensor combine_rows(Tensor y, Tensor slot, c10::optional<Tensor> add);
Tensor swiglu_fwd(Tensor h, c10::optional<Tensor> w, double limit);
std::vector<Tensor> swiglu_bwd(Tensor h, c10::optional<Tensor> w, Tensor da, double limit);
Tensor engram_fwd(Tensor X, Tensor kv, Tensor qk, double eps);
std::vector<Tensor> engram_bwd(Tensor X, Tensor kv, Tensor qk, Tensor g, double eps);
std::vector<Tensor> attn_fwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi,
                             c10::optional<Tensor> sel, int64_t chunk);
std::vector<Tensor> attn_bwd(Tensor q, Tensor kw, Tensor km, Tensor sink, Tensor wlo, Tensor elo, Tensor ehi,
                             c10::optional<Tensor> sel, int64_t chunk, Tensor o, Tensor lse, Tensor go);
void widen_products();
double gain_of_widening();
