// Corrections, filters, the Gumbel-max draw, log-probabilities.
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
  if (!(p.repetition_penalty > 0.0 && p.repetition_penalty <= 100.0))
    return error(Code::kInvalidArgument, "repetition_penalty must be above 0 and at most 100, not {}",
                 p.repetition_penalty);
  for (auto [name, value] : {std::pair<const char*, double>{"frequency_penalty", p.frequency_penalty},
                             {"presence_penalty", p.presence_penalty}}) {
    if (!(value >= -2.0 && value <= 2.0))
      return error(Code::kInvalidArgument, "{} must be in [-2, 2], not {}", name, value);
  }
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    auto [id, bias] = p.logit_bias[i];
    if (!std::isfinite(bias))
      return error(Code::kInvalidArgument, "logit_bias of id {} is not a finite number", id);
    if (i > 0 && p.logit_bias[i - 1].first >= id)
      return error(Code::kInvalidArgument, "logit_bias must have ascending ids, {} follows {}", id,
                   p.logit_bias[i - 1].first);
  }
  return {};
}

void TokenHistory::add_prompt(std::span<const int32_t> ids) {
  for (int32_t id : ids) counts_[id].prompt = true;
}

void TokenHistory::pop(int32_t id) {
  Count& c = counts_[id];
  DI_CHECK(c.output > 0, "a token is taken back that was never counted");
  --c.output;
}

bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0;
}

template <typename A>
void adjust_logits(const A* logits, int64_t vocab, const SamplingParams& p, const TokenHistory& history,
                   A* out) {
  std::copy(logits, logits + vocab, out);
  if (has_penalties(p)) {
    for (const auto& [id, count] : history.counts()) {
      double v = static_cast<double>(logits[id]);
      if (count.prompt || count.output > 0) v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
      v -= p.frequency_penalty * count.output;
      if (count.output > 0) v -= p.presence_penalty;
      out[id] = static_cast<A>(v);
    }
  }
  for (auto [id, bias] : p.logit_bias) out[id] = static_cast<A>(static_cast<double>(out[id]) + bias);
}

double counter_uniform(uint64_t seed, int64_t position, DrawPurpose purpose, uint32_t index) {
  uint64_t key = mix64(seed + 0x9E3779B97F4A7C15ull);
  key = mix64(key ^ (static_cast<uint64_t>(position) + 0xD1B54A32D192ED03ull));
  key = mix64(key ^ ((static_cast<uint64_t>(purpose) << 32 | index) + 0x8CB92BA72F3D8DD7ull));
  return (static_cast<double>(key >> 11) + 0.5) * 0x1.0p-53;
}

namespace {

// Whether rules leave an id. Lists are ascending, so a caller that asks in ascending order pays little.
class Allowed {
 public:
  explicit Allowed(const DrawRules& r) : r_(r) {}
  bool operator()(int32_t id) const {
    if (!r_.mask.empty() && (r_.mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) == 0) return false;
    return !(has(r_.banned, id) || has(r_.also_banned, id));
  }

 private:
  static bool has(std::span<const int32_t> ids, int32_t id) {
    return !ids.empty() && std::binary_search(ids.begin(), ids.end(), id);
  }
  const DrawRules& r_;
};

template <typename A>
int32_t greedy(const A* logits, int64_t vocab, const Allowed& allowed) {
  int32_t best = -1;
  for (int64_t i = 0; i < vocab; ++i) {
    // A larger logit first: the rules are only asked about an id that would win.
    if (std::isfinite(logits[i]) && (best < 0 || logits[i] > logits[best]) &&
        allowed(static_cast<int32_t>(i)))
      best = static_cast<int32_t>(i);
  }
  return best;
}

void filter(std::vector<Candidate>* kept_io, const SamplingParams& p) {
  std::vector<Candidate>& kept = *kept_io;
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
}

// The largest logit plus noise. Noise g = -log(-log u) beats a lead d >= 0 only if -log u < exp(-d). As
// -log u >= 1 - u and exp(-d) <= 1 / (1 + d + d^2/2 + d^3/6), most candidates are seen to lose without a
// logarithm; the factor covers the rounding of both sides, so the winner is the same.
int32_t gumbel_winner(const std::vector<Candidate>& kept, int64_t position, uint64_t seed) {
  Candidate winner{-1, -std::numeric_limits<double>::infinity()};
  for (const Candidate& c : kept) {
    double u = counter_uniform(seed, position, DrawPurpose::kToken, static_cast<uint32_t>(c.id));
    double lead = winner.logit - c.logit;
    if (lead > 0 && (1.0 - u) * (1.0 + lead * (1.0 + lead * (0.5 + lead / 6.0))) > 1.0 + 1e-9) continue;
    Candidate drawn{c.id, c.logit - std::log(-std::log(u))};
    if (winner.id < 0 || better(drawn, winner)) winner = drawn;
  }
  return winner.id;
}

}  // namespace

namespace {
template <typename A>
std::vector<Candidate> candidates(const A* logits, int64_t vocab, const SamplingParams& p,
                                  const Allowed& allowed) {
  std::vector<Candidate> kept;
  kept.reserve(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i]) && allowed(static_cast<int32_t>(i))) {
      kept.push_back({static_cast<int32_t>(i), static_cast<double>(logits[i]) / p.temperature});
    }
  }
  if (!kept.empty()) filter(&kept, p);
  return kept;
}
}  // namespace

template <typename A>
int32_t draw(const A* logits, int64_t vocab, int64_t position, const SamplingParams& p,
             const DrawRules& rules) {
  Allowed allowed(rules);
  if (p.temperature == 0.0) return greedy(logits, vocab, allowed);
  std::vector<Candidate> kept = candidates(logits, vocab, p, allowed);
  return kept.empty() ? -1 : gumbel_winner(kept, position, p.seed);
}

template <typename A>
Distribution distribution(const A* logits, int64_t vocab, const SamplingParams& p, const DrawRules& rules) {
  Allowed allowed(rules);
  Distribution out;
  if (p.temperature == 0.0) {
    int32_t best = greedy(logits, vocab, allowed);
    if (best >= 0) out.push_back({best, 1.0});
    return out;
  }
  std::vector<Candidate> kept = candidates(logits, vocab, p, allowed);
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Candidate& c : kept) top = std::max(top, c.logit);
  for (const Candidate& c : kept) {
    out.push_back({c.id, std::exp(c.logit - top)});
    sum += out.back().second;
  }
  for (auto& [id, share] : out) share /= sum;
  return out;
}

template <typename A>
int32_t sample(const A* logits, int64_t vocab, int64_t position, const SamplingParams& p,
               const std::vector<int32_t>& banned) {
  return std::max(draw(logits, vocab, position, p, DrawRules{banned, {}, {}}), 0);
}

template <typename A>
double log_sum_exp(const A* logits, int64_t vocab) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i])) top = std::max(top, static_cast<double>(logits[i]));
  }
  for (int64_t i = 0; i < vocab; ++i) {
    if (std::isfinite(logits[i])) sum += std::exp(static_cast<double>(logits[i]) - top);
  }
  return top + std::log(sum);
}

template <typename A>
std::vector<std::pair<int32_t, double>> top_logprobs(const A* logits, int64_t vocab, double log_sum, int k) {
  std::vector<Candidate> best;  // best first; k is small
  for (int64_t i = 0; i < vocab && k > 0; ++i) {
    Candidate c{static_cast<int32_t>(i), static_cast<double>(logits[i])};
    bool full = static_cast<int>(best.size()) >= k;
    if (!std::isfinite(logits[i]) || (full && !better(c, best.back()))) continue;
    if (full) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), c, better), c);
  }
  std::vector<std::pair<int32_t, double>> out;
  for (const Candidate& c : best) out.emplace_back(c.id, c.logit - log_sum);
  return out;
}

#define DI_INSTANTIATE(A)                                                                            \
  template void adjust_logits<A>(const A*, int64_t, const SamplingParams&, const TokenHistory&, A*); \
  template Distribution distribution<A>(const A*, int64_t, const SamplingParams&, const DrawRules&); \
  template int32_t draw<A>(const A*, int64_t, int64_t, const SamplingParams&, const DrawRules&);     \
  template int32_t sample<A>(const A*, int64_t, int64_t, const SamplingParams&,                      \
                             const std::vector<int32_t>&);                                           \
  template double log_sum_exp<A>(const A*, int64_t);                                                 \
  template std::vector<std::pair<int32_t, double>> top_logprobs<A>(const A*, int64_t, double, int);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
