// Products of bf16 matrices in fp32 where that is faster. Processors differ: some multiply bf16 pairs at
// twice the rate of fp32, some at half of it (those whose bf16 speed lies in tile instructions that a virtual
// machine may not pass on). Both ways add in fp32 and round once at the end, so they differ by the order of
// additions only.
#include <ATen/CPUFunctions.h>
#include <torch/library.h>

#include <chrono>

#include "ops.h"

namespace {

// fp32 copy of a bf16 matrix in the same order of elements; rows may lie apart.
Tensor widen(const Tensor& t) {
  if (t.dim() == 2 && t.stride(1) != 1 && t.stride(0) == 1) return widen(t.t()).t();
  if (t.dim() != 2 || t.stride(1) != 1) return t.to(at::kFloat);
  Tensor out = at::empty(t.sizes(), t.options().dtype(at::kFloat));
  const bf* from = reinterpret_cast<const bf*>(t.data_ptr());
  float* to = out.data_ptr<float>();
  const int64_t rows = t.size(0), columns = t.size(1), stride = t.stride(0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[r * columns + c] = up(from[r * stride + c]);
  return out;
}

void narrow(const Tensor& from, const Tensor& to) {
  if (!from.is_contiguous() || !to.is_contiguous()) {
    to.copy_(from);
    return;
  }
  const float* f = from.data_ptr<float>();
  bf* t = reinterpret_cast<bf*>(to.data_ptr());
  for (int64_t i = 0, n = from.numel(); i < n; ++i) t[i] = down(f[i]);
}

bool is_bf16(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
}

Tensor& mm_into(const Tensor& a, const Tensor& b, Tensor& out) {
  if (!is_bf16(a, b)) return at::cpu::mm_out(out, a, b);
  TORCH_CHECK(out.size(0) == a.size(0) && out.size(1) == b.size(1),
              "the result has another shape than the product");
  narrow(at::cpu::mm(widen(a), widen(b)), out);
  return out;
}
Tensor mm(const Tensor& a, const Tensor& b) {
  if (!is_bf16(a, b)) return at::cpu::mm(a, b);
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  return mm_into(a, b, out);
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  if (!is_bf16(a, b)) return at::cpu::bmm(a, b);
  Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  narrow(at::cpu::bmm(widen(a), widen(b)), out);
  return out;
}

template <typename F>
double seconds(const F& run) {
  for (int i = 0; i < 20; ++i) run();
  double best = 1e9;
  for (int i = 0; i < 60; ++i) {
    auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

// Has all later products of bf16 matrices on the CPU computed in fp32. Not taken back while the process
// lives.
void widen_products() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  static bool done = false;
  if (done) return;
  done = true;
  library.impl("mm", TORCH_FN(mm));
  library.impl("mm.out", TORCH_FN(mm_into));
  library.impl("bmm", TORCH_FN(bmm));
}

// How many times faster a product of the trainer's size is when it is widened.
double gain_of_widening() {
  Tensor a = at::randn({512, 192}).to(at::kBFloat16), b = at::randn({512, 192}).to(at::kBFloat16);
  Tensor out = at::empty({512, 512}, a.options());
  double narrow_s = seconds([&] { at::cpu::mm_out(out, a, b.t()); });
  return narrow_s / seconds([&] { mm_into(a, b.t(), out); });
}
