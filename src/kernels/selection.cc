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

// The k best entries of a walk that offers them by ascending index: larger score, then smaller index. Keeps
// up to 2 k; when full it throws the worse half away and from then on lets only larger scores in than the
// worst it kept (an equal one has a larger index and loses). So n offers cost O(n), whatever their order.
template <typename A>
class Best {
 public:
  // `index` has room for min(2 k, offers) entries.
  Best(const A* scores, int64_t k, int32_t* index) : scores_(scores), k_(k), index_(index) {}
  // Never lets in -inf or NaN.
  void offer(int64_t i) {
    if (!(scores_[i] > floor_)) return;
    index_[count_++] = static_cast<int32_t>(i);
    if (count_ == 2 * k_) cut();
  }
  // Number of entries kept, at most k; they are the first in `index`, in no order.
  int64_t finish() {
    if (count_ > k_) cut();
    return count_;
  }

 private:
  void cut() {
    std::nth_element(index_, index_ + (k_ - 1), index_ + count_, [this](int32_t a, int32_t b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    count_ = k_;
    floor_ = scores_[index_[k_ - 1]];
  }

  const A* scores_;
  int64_t k_;
  int32_t* index_;
  int64_t count_ = 0;
  A floor_ = kLowest<A>;
};

}  // namespace

template <typename A>
int64_t select_topk(const A* scores, int64_t n, int64_t k, int32_t* scratch, int32_t* out) {
  if (k <= 0) return 0;
  Best<A> best(scores, k, scratch);
  for (int64_t i = 0; i < n; ++i) best.offer(i);
  const int64_t count = best.finish();
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
  const int64_t newest = (n - 1) / block_size;
  // A block is named by its best entry: comparing those entries compares the blocks, and the lower entry lies
  // in the lower block. The newest block is kept whatever it holds, so it stands aside and leaves one place
  // fewer for the others.
  std::fill(allowed, allowed + n, uint8_t{0});
  const auto keep = [&](int64_t b) {
    std::fill(allowed + b * block_size, allowed + std::min(n, (b + 1) * block_size), uint8_t{1});
  };
  keep(newest);
  if (blocks == 1) return;
  Best<A> best(scores, int64_t{blocks} - 1, scratch);
  for (int64_t b = 0; b < newest; ++b) {
    int64_t top = b * block_size;
    A value = score_or_lowest(scores[top]);
    for (int64_t j = top + 1; j < (b + 1) * block_size; ++j) {
      if (scores[j] > value) {  // never true for NaN
        value = scores[j];
        top = j;
      }
    }
    best.offer(top);
  }
  const int64_t count = best.finish();
  for (int64_t i = 0; i < count; ++i) keep(scratch[i] / block_size);
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
