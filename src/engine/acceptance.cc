// Distributions are sparse and ascending, so the residual is one merge.
#include "engine/acceptance.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

namespace {
double probability(const Distribution& d, int32_t id) {
  auto it = std::lower_bound(d.begin(), d.end(), id, [](const auto& e, int32_t i) { return e.first < i; });
  return it != d.end() && it->first == id ? it->second : 0;
}
}  // namespace

int32_t draw_from(const Distribution& d, double u) {
  DI_CHECK(!d.empty(), "a draw from an empty distribution");
  double sum = 0;
  for (const auto& [id, p] : d) {
    sum += p;
    if (u < sum) return id;
  }
  // Rounding: the sum fell short of u. The last id that can come at all.
  for (size_t i = d.size(); i-- > 0;) {
    if (d[i].second > 0) return d[i].first;
  }
  return d.back().first;
}

int32_t draw_draft(const Distribution& draft, uint64_t seed, int64_t position) {
  return draw_from(draft, counter_uniform(seed, position, DrawPurpose::kDraft, 0));
}

int32_t draw_bonus(const Distribution& target, uint64_t seed, int64_t position) {
  return draw_from(target, counter_uniform(seed, position, DrawPurpose::kToken, 0));
}

RatioVerdict accept_by_ratio(const Distribution& target, const Distribution& draft, int32_t drafted,
                             uint64_t seed, int64_t position) {
  double pt = probability(target, drafted), pd = probability(draft, drafted);
  double u = counter_uniform(seed, position, DrawPurpose::kAccept, 0);
  if (pt > 0 && u * pd < pt) return {true, drafted};
  Distribution rest;
  double mass = 0;
  for (const auto& [id, p] : target) {
    double left = std::max(0.0, p - probability(draft, id));
    rest.push_back({id, left});
    mass += left;
  }
  double v = counter_uniform(seed, position, DrawPurpose::kResidual, 0);
  if (mass < 1e-12) return {false, draw_from(target, v)};
  return {false, draw_from(rest, v * mass)};
}

}  // namespace deepinfer
