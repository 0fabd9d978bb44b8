// Three runs of the same tokens and the distances between their distributions.
#include "engine/selfcheck.h"

#include <algorithm>
#include <cmath>

#include "engine/forward.h"
#include "kernels/ref_mode.h"

namespace deepinfer {
namespace {

template <typename A>
Result<std::vector<double>> all_logits(const ModelWeights& w, const std::vector<int32_t>& tokens,
                                       ThreadPool* pool, const Kernels<A>* kernels) {
  ForwardOptions<A> options;
  options.kernels = kernels;
  Forward<A> model(&w, pool, options);
  int64_t n = static_cast<int64_t>(tokens.size());
  BlockPool blocks(model.layout().block_bytes, n / model.layout().block_tokens + 1);
  SequenceState state(w.config, model.layout(), &blocks);
  state.tokens = tokens;
  DI_TRY(state.reserve(n));
  std::vector<double> out;
  for (int64_t at = 0; at < n; at += 256) {
    auto r = model.run({{&state, at, std::min(n, at + 256), at}});
    out.insert(out.end(), r.logits.begin(), r.logits.end());
  }
  return out;
}

// log of the softmax denominators, stable.
double log_sum(const double* z, int64_t n) {
  double top = *std::max_element(z, z + n), s = 0;
  for (int64_t i = 0; i < n; ++i) s += std::exp(z[i] - top);
  return top + std::log(s);
}

Divergence compare(const std::vector<double>& exact, const std::vector<double>& mode, int64_t V) {
  Divergence d;
  d.positions = static_cast<int64_t>(exact.size()) / V;
  std::vector<double> kl;
  int64_t same = 0;
  for (int64_t t = 0; t < d.positions; ++t) {
    const double* p = exact.data() + t * V;
    const double* q = mode.data() + t * V;
    double lp = log_sum(p, V), lq = log_sum(q, V), sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
    kl.push_back(std::max(0.0, sum));
    same += argmax(p, V) == argmax(q, V);
  }
  d.top1_agreement = static_cast<double>(same) / static_cast<double>(d.positions);
  for (double v : kl) d.kl_mean += v / static_cast<double>(d.positions);
  std::sort(kl.begin(), kl.end());
  d.kl_p99 = kl[static_cast<size_t>(0.99 * static_cast<double>(kl.size() - 1))];
  d.kl_max = kl.back();
  return d;
}

}  // namespace

Result<SelfcheckResult> selfcheck(const ModelWeights& w, const std::vector<int32_t>& tokens,
                                  ThreadPool* pool) {
  if (tokens.empty()) return error(Code::kInvalidArgument, "selfcheck needs at least one token");
  for (int32_t t : tokens) {
    if (t < 0 || t >= w.config.vocab_size)
      return error(Code::kInvalidArgument, "token id {} is outside the vocabulary of {}", t,
                   w.config.vocab_size);
  }
  DI_ASSIGN(std::vector<double> exact, all_logits<double>(w, tokens, pool, nullptr));
  DI_ASSIGN(std::vector<double> native, all_logits<float>(w, tokens, pool, nullptr));
  DI_ASSIGN(std::vector<double> ref, all_logits<double>(w, tokens, pool, &ref_mode_kernels()));
  return SelfcheckResult{compare(exact, native, w.config.vocab_size),
                         compare(exact, ref, w.config.vocab_size)};
}

}  // namespace deepinfer
