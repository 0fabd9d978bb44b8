// Topics, mixes of requests, and multinomial noise by its normal limit.
#include "sim/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace deepinfer::sim {

using policy::EplbHistory;

EplbHistory expert_load(const ExpertLoadConfig& c, int steps, uint64_t seed) {
  Random random(seed);
  const size_t experts = static_cast<size_t>(c.experts), topics = static_cast<size_t>(c.topics);
  std::vector<size_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = experts; i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(random.in(0, static_cast<int64_t>(i) - 1))]);
  std::vector<std::vector<double>> taste(topics, std::vector<double>(experts));
  for (auto& t : taste) {
    for (size_t k = 0; k < experts; ++k) {
      t[order[k]] = std::pow(static_cast<double>(k + 1), -c.zipf) * std::exp(c.topic_sigma * random.normal());
    }
  }
  EplbHistory h;
  h.experts = c.experts;
  std::vector<double> mix(experts);
  for (int s = 0; s < steps; ++s) {
    std::fill(mix.begin(), mix.end(), 0);
    std::vector<int> drawn(topics, 0);
    for (int r = 0; r < c.requests_per_step; ++r) ++drawn[static_cast<size_t>(random.in(0, c.topics - 1))];
    for (size_t t = 0; t < topics; ++t) {
      if (drawn[t] == 0) continue;
      const double sum = std::accumulate(taste[t].begin(), taste[t].end(), 0.0);
      for (size_t e = 0; e < experts; ++e) mix[e] += drawn[t] * taste[t][e] / sum;
    }
    const double tokens = static_cast<double>(c.tokens_per_request) * c.active;
    for (size_t e = 0; e < experts; ++e) {
      const double mean = mix[e] * tokens;
      h.load.push_back(
          static_cast<float>(std::max(0.0, std::round(mean + std::sqrt(mean) * random.normal()))));
    }
    for (auto& t : taste) {
      for (double& v : t) v *= std::exp(std::sqrt(c.drift) * 0.5 * random.normal());
    }
  }
  return h;
}

PlacementStudy study_placement(const policy::EplbConfig& eplb, const ExpertLoadConfig& load, int after,
                               uint64_t seed) {
  const int window = static_cast<int>(eplb.window_steps);
  const EplbHistory all = expert_load(load, window + after, seed);
  const auto cut = all.load.begin() + static_cast<std::ptrdiff_t>(window) * all.experts;
  const EplbHistory seen{all.experts, {all.load.begin(), cut}}, later{all.experts, {cut, all.load.end()}};
  PlacementStudy out;
  const policy::Placement placed = policy::decide_experts(eplb.shape, seen, {}, eplb.search).placement;
  for (int t = 0; t < after; ++t) {
    const auto row = later.load.begin() + static_cast<std::ptrdiff_t>(t) * all.experts;
    out.per_step.push_back(policy::moe_lb(eplb.shape, {all.experts, {row, row + all.experts}}, placed));
  }
  out.placed = std::accumulate(out.per_step.begin(), out.per_step.end(), 0.0) / std::max(1, after);
  policy::EplbShape plain = eplb.shape;
  if (all.experts % plain.ranks == 0) {
    plain.slots = all.experts / plain.ranks;
    policy::Placement in_order;
    for (int e = 0; e < all.experts; ++e) in_order.slot.push_back(e);
    out.plain = policy::moe_lb(plain, later, in_order);
  }
  return out;
}

policy::EplbConfig PublishedPlacement::eplb() const {
  policy::EplbConfig c = ranks >= 32 ? policy::decode_eplb(ranks) : policy::prefill_eplb(ranks);
  c.shape.slots = (c.shape.experts + ranks * redundant_per_rank) / ranks;
  c.window_steps = 100;
  c.search.evaluations = 60'000;
  return c;
}

std::vector<PublishedPlacement> published_placements() {
  ExpertLoadConfig decode;
  // A prefill step holds few long prompts, each with a taste of its own.
  ExpertLoadConfig prefill;
  prefill.topic_sigma = 1.5;
  prefill.tokens_per_request = 4096;
  prefill.requests_per_step = 4;
  ExpertLoadConfig two = prefill;
  two.topic_sigma = 2.1;
  two.requests_per_step = 2;
  return {{"prefill EP4", 4, 8, 1.074, prefill},
          {"prefill EP2", 2, 8, 1.045, two},
          {"decode EP64", 64, 1, 1.090, decode}};
}

}  // namespace deepinfer::sim
