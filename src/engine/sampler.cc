// Filters and the Gumbel-max draw.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace deepinfer {
namespace {

// A 64-bit finaliser (two rounds of multiply and shift), used as a keyed counter-based generator.
uint64_t mix64(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ull;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

struct Candidate {
  int32_t id;
  double logit;
};

// Larger logit first, lower id first on ties: one total order whatever the library's sort does.
bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace

Status validate(const SamplingParams& p) {
  if (!(p.temperature >= 0.0 && p.temperature <= 100.0))
    return error(Code::kInvalidArgument, "temperature must be in [0, 100], not {}", p.temperature);
  if (!(p.top_p > 0.0 && p.top_p <= 1.0))
    return error(Code::kInvalidArgument, "top_p must be in (0, 1], not {}", p.top_p);
  if (p.top_k < 0)
    return error(Code::kInvalidArgument, "top_k must be 0 (off) or a positive count, not {}", p.top_k);
  if (!(p.min_p >= 0.0 && p.min_p < 1.0))
    return error(Code::kInvalidArgument, "min_p must be in [0, 1), not {}", p.min_p);
  return {};
}

double counter_uniform(uint64_t seed, int64_t position, DrawPurpose purpose, uint32_t index) {
  uint64_t key = mix64(seed + 0x9E3779B97F4A7C15ull);
  key = mix64(key ^ (static_cast<uint64_t>(position) + 0xD1B54A32D192ED03ull));
  key = mix64(key ^ ((static_cast<uint64_t>(purpose) << 32 | index) + 0x8CB92BA72F3D8DD7ull));
  return (static_cast<double>(key >> 11) + 0.5) * 0x1.0p-53;
}

template <typename A>
int32_t sample(const A* logits, int64_t vocab, int64_t position, const SamplingParams& p,
               const std::vector<int32_t>& banned) {
  auto is_banned = [&](int32_t id) { return std::binary_search(banned.begin(), banned.end(), id); };
  if (p.temperature == 0.0) {
    int32_t best = -1;
    for (int64_t i = 0; i < vocab; ++i) {
      if (std::isfinite(logits[i]) && (best < 0 || logits[i] > logits[best]) &&
          !is_banned(static_cast<int32_t>(i)))
        best = static_cast<int32_t>(i);
    }
    return std::max(best, 0);
  }
  std::vector<Candidate> kept;
  for (int64_t i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i]) && !is_banned(static_cast<int32_t>(i))) {
      kept.push_back({static_cast<int32_t>(i), static_cast<double>(logits[i]) / p.temperature});
    }
  }
  if (kept.empty()) return 0;
  if (p.top_k > 0 && p.top_k < static_cast<int>(kept.size())) {
    std::nth_element(kept.begin(), kept.begin() + p.top_k - 1, kept.end(), better);
    kept.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0) {
    std::sort(kept.begin(), kept.end(), better);
    double total = 0, run = 0;
    for (const Candidate& c : kept) total += std::exp(c.logit - kept.front().logit);
    size_t n = 0;
    while (n < kept.size() && run < p.top_p * total) run += std::exp(kept[n++].logit - kept.front().logit);
    kept.resize(std::max<size_t>(n, 1));
  }
  if (p.min_p > 0.0) {
    double best =
        std::max_element(kept.begin(), kept.end(), [](auto& a, auto& b) { return better(b, a); })->logit;
    double limit = best + std::log(p.min_p);
    std::erase_if(kept, [&](const Candidate& c) { return c.logit < limit; });
  }
  Candidate winner{-1, -std::numeric_limits<double>::infinity()};
  for (const Candidate& c : kept) {
    double u = counter_uniform(p.seed, position, DrawPurpose::kToken, static_cast<uint32_t>(c.id));
    Candidate drawn{c.id, c.logit - std::log(-std::log(u))};
    if (winner.id < 0 || better(drawn, winner)) winner = drawn;
  }
  return winner.id;
}

template int32_t sample<float>(const float*, int64_t, int64_t, const SamplingParams&,
                               const std::vector<int32_t>&);
template int32_t sample<double>(const double*, int64_t, int64_t, const SamplingParams&,
                                const std::vector<int32_t>&);

}  // namespace deepinfer
