// Choosing by score: top-k, candidate blocks, routing, argmax. Scalar and shared by both modes, so that a
// selection differs between them only where the scores do. A NaN score counts as -inf everywhere. Source:
// model specification 3.4 and 4.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

template <typename A>
constexpr A kLowest = -std::numeric_limits<A>::infinity();

template <typename A>
A score_or_lowest(A v) {
  return std::isnan(v) ? kLowest<A> : v;
}

// Rearranges `index` so that its k best entries come first: larger score, then smaller index. Average cost
// O(n).
template <typename A>
void partition_best(const A* scores, int32_t* index, int64_t n, int64_t k) {
  std::nth_element(index, index + k, index + n, [scores](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
}

}  // namespace

template <typename A>
int64_t select_topk(const A* scores, int64_t n, int64_t k, int32_t* scratch, int32_t* out) {
  int64_t candidates = 0;
  for (int64_t i = 0; i < n; ++i) {
    scratch[candidates] = static_cast<int32_t>(i);
    candidates +=
        scores[i] > kLowest<A>;  // false for -inf and for NaN: what is compared below is totally ordered
  }
  if (k <= 0) return 0;
  if (candidates > k) partition_best(scores, scratch, candidates, k);
  const int64_t count = std::min(candidates, k);
  std::copy(scratch, scratch + count, out);
  std::sort(out, out + count);
  return count;
}
template int64_t select_topk<float>(const float*, int64_t, int64_t, int32_t*, int32_t*);
template int64_t select_topk<double>(const double*, int64_t, int64_t, int32_t*, int32_t*);

template <typename A>
void candidate_pool(const A* scores, int64_t n, int blocks, int block_size, int32_t* scratch,
                    uint8_t* allowed) {
  DI_CHECK(n >= 1 && blocks >= 1 && block_size >= 1, "candidate pool");
  const int64_t count = (n + block_size - 1) / block_size;
  const int64_t newest = (n - 1) / block_size;
  // A block is named by its best entry: comparing those entries compares the blocks, and the lower entry lies
  // in the lower block. The newest block is kept whatever it holds, so it stands aside and leaves one place
  // fewer for the others.
  int64_t candidates = 0;
  for (int64_t b = 0; b < count; ++b) {
    if (b == newest) continue;
    const int64_t first = b * block_size, last = std::min(n, first + block_size);
    int64_t best = -1;
    for (int64_t j = first; j < last; ++j)
      if (scores[j] > kLowest<A> && (best < 0 || scores[j] > scores[best])) best = j;
    if (best >= 0) scratch[candidates++] = static_cast<int32_t>(best);
  }
  const int64_t places = int64_t{blocks} - 1;
  if (candidates > places) partition_best(scores, scratch, candidates, places);
  std::fill(allowed, allowed + n, uint8_t{0});
  auto keep = [&](int64_t b) {
    std::fill(allowed + b * block_size, allowed + std::min(n, (b + 1) * block_size), uint8_t{1});
  };
  for (int64_t i = 0; i < std::min(candidates, places); ++i) keep(scratch[i] / block_size);
  keep(newest);
}
template void candidate_pool<float>(const float*, int64_t, int, int, int32_t*, uint8_t*);
template void candidate_pool<double>(const double*, int64_t, int, int, int32_t*, uint8_t*);

template <typename A>
void route(const A* logits, const A* bias, const RouterParams& p, A* scratch, int32_t* ids, A* weights) {
  DI_CHECK(p.k >= 1 && p.k <= p.experts, "router");
  const int E = p.experts;
  const double t = p.temperature;
  double top = 0, sum = 0;
  if (p.scoring == 1) {
    top = -std::numeric_limits<double>::infinity();
    for (int e = 0; e < E; ++e) top = std::max(top, logits[e] / t);
    for (int e = 0; e < E; ++e) sum += std::exp(logits[e] / t - top);
  }
  auto score = [&](int e) -> double {
    const double g = logits[e] / t;
    switch (p.scoring) {
      case 1:
        return std::exp(g - top) / sum;
      case 2:
        return 1.0 / (1.0 + std::exp(-g));
      default:
        return std::sqrt(g > 20.0 ? g : std::log1p(std::exp(g)));
    }
  };
  for (int e = 0; e < E; ++e) scratch[e] = score_or_lowest(static_cast<A>(score(e) + bias[e]));
  // k is small: keep the best k in order of preference by insertion. Equal keys keep the lower id, which came
  // first.
  int count = 0;
  for (int e = 0; e < E; ++e) {
    int at = count;
    while (at > 0 && scratch[e] > scratch[ids[at - 1]]) --at;
    if (at >= p.k) continue;
    count = std::min(count + 1, p.k);
    for (int i = count - 1; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = e;
  }
  std::sort(ids, ids + p.k);
  double chosen = 0;
  for (int i = 0; i < p.k; ++i) chosen += score(ids[i]);
  const double norm = p.normalise && p.k > 1 ? chosen + 1e-20 : 1.0;
  for (int i = 0; i < p.k; ++i) weights[i] = static_cast<A>(score(ids[i]) / norm * p.scale);
}
template void route<float>(const float*, const float*, const RouterParams&, float*, int32_t*, float*);
template void route<double>(const double*, const double*, const RouterParams&, double*, int32_t*, double*);

template <typename A>
int64_t argmax(const A* x, int64_t n) {
  int64_t best = 0;
  A value = kLowest<A>;
  for (int64_t i = 0; i < n; ++i)
    if (x[i] > value) {  // never true for NaN
      value = x[i];
      best = i;
    }
  return best;
}
template int64_t argmax<float>(const float*, int64_t);
template int64_t argmax<double>(const double*, int64_t);

}  // namespace deepinfer
