// The policy looks at every draft of every request; lengths are averaged by kind afterwards.
#include "sim/verify_model.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::sim {

using policy::SpeculationMode;

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

// Of the standard normal distribution, by bisection: exact enough, and the same everywhere.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

VerifyModel::VerifyModel(const VerifyConfig& config, const DecodeCost& cost) : config_(config), cost_(cost) {
  if (config.mode == SpeculationMode::kDynamic) factor_ = 1 + config.overhead;
  for (int kind = 0; kind < kKinds; ++kind) {
    const double z = normal_quantile((kind + 0.5) / kKinds);
    double confidence[policy::kMaxDrafts];
    for (int k = 0; k < policy::kMaxDrafts; ++k)
      confidence[k] = policy::confidence_of(config.logit + config.spread * z - config.decay * k, 1);
    policy::survivals(std::span(confidence).first(at(config.drafts)), survival_[at(kind)]);
  }
  double sum = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    sum += 1;
    for (int k = 0; k < config.drafts; ++k) sum += survival(kind, k);
    upto_[at(kind)] = sum;
  }
  for (double& u : upto_) u /= sum;
}

uint8_t VerifyModel::kind_of(double unit) const {
  uint8_t kind = 0;
  while (kind + 1 < kKinds && unit >= upto_[kind]) ++kind;
  return kind;
}

std::vector<int> VerifyModel::lengths(std::span<const uint8_t> kinds, int64_t tokens) const {
  const int64_t n = static_cast<int64_t>(kinds.size());
  if (config_.mode == SpeculationMode::kOff) return std::vector<int>(kinds.size(), 0);
  if (config_.mode == SpeculationMode::kFixed) return std::vector<int>(kinds.size(), config_.fixed);
  std::vector<policy::DraftRow> rows;
  std::vector<double> all;
  rows.reserve(kinds.size());
  all.reserve(kinds.size() * at(config_.drafts));
  for (uint8_t kind : kinds) {
    const auto own = std::span(survival_[kind]).first(at(config_.drafts));
    rows.push_back({own, config_.drafts});
    all.insert(all.end(), own.begin(), own.end());
  }
  if (config_.mode == SpeculationMode::kLane) {
    const policy::LaneRule rule;
    return policy::choose_lengths(rows, policy::lane_budget({n, n, n, all}, rule).drafts, rule.dead_below);
  }
  // The curve as it would be profiled at what the rank holds, at totals from no draft to all.
  policy::RowCurve curve;
  constexpr int kPoints = 9;
  for (int i = 0; i < kPoints; ++i) {
    const int64_t r = n + i * n * config_.drafts / (kPoints - 1);
    if (!curve.points.empty() && curve.points.back().rows == r) continue;
    curve.points.push_back({r, step_ns(static_cast<double>(r), static_cast<double>(tokens)), 0});
  }
  policy::StepCost cost;
  cost.verify = &curve;
  return policy::choose_lengths(rows, policy::best_budget({n, n, n, all}, cost).drafts);
}

VerifyModel::Plan VerifyModel::decide(std::span<const uint8_t> kinds, int64_t tokens) const {
  Plan plan;
  const std::vector<int> chosen = lengths(kinds, tokens);
  std::array<int, kKinds> count{};
  double most_survival =
      0;  // of what is not verified: a kind that is not here yet takes what survives better
  for (size_t i = 0; i < kinds.size(); ++i) {
    const size_t kind = kinds[i];
    ++count[kind];
    plan.drafts[kind] += static_cast<float>(chosen[i]);
    if (chosen[i] < config_.drafts) most_survival = std::max(most_survival, survival(kinds[i], chosen[i]));
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    float& drafts = plan.drafts[at(kind)];
    if (count[at(kind)] > 0) {
      drafts /= static_cast<float>(count[at(kind)]);
    } else if (config_.mode == SpeculationMode::kFixed) {
      drafts = static_cast<float>(config_.fixed);
    } else if (config_.mode != SpeculationMode::kOff) {
      for (int k = 0; k < config_.drafts && survival(kind, k) > most_survival; ++k) ++drafts;
    }
    double pace = 1;
    for (int k = 0; k < config_.drafts; ++k)
      pace += survival(kind, k) * std::clamp(static_cast<double>(drafts) - k, 0.0, 1.0);
    plan.pace[at(kind)] = static_cast<float>(pace);
    plan.deviation[at(kind)] =
        static_cast<float>(std::sqrt(variance(kind, static_cast<double>(drafts)) / pace));
  }
  return plan;
}

// Of the tokens of one step.
double VerifyModel::variance(int kind, double drafts) const {
  // The number accepted is the number of survivors: E[N^2] is the sum of (2k - 1) S_k.
  double first = 0, second = 0;
  for (int k = 0; k < config_.drafts; ++k) {
    const double s = survival(kind, k) * std::clamp(drafts - k, 0.0, 1.0);
    first += s;
    second += (2 * k + 1) * s;
  }
  return std::max(0.0, second - first * first);
}

double VerifyModel::balanced_per_s(double requests, double tokens) const {
  auto rate = [&](int64_t n) {
    std::vector<uint8_t> kinds;
    for (int64_t i = 0; i < n; ++i)
      kinds.push_back(static_cast<uint8_t>((static_cast<double>(i) + 0.5) / static_cast<double>(n) * kKinds));
    const std::vector<int> chosen = lengths(kinds, static_cast<int64_t>(tokens));
    double rows = 0, gained = 0;
    for (size_t i = 0; i < kinds.size(); ++i) {
      rows += 1 + chosen[i];
      gained += 1;
      for (int k = 0; k < chosen[i]; ++k) gained += survival(kinds[i], k);
    }
    return gained / (step_ns(rows, tokens) * 1e-9);
  };
  if (requests <= 1) return requests * rate(1);
  const int64_t below = static_cast<int64_t>(requests);
  const double part = requests - static_cast<double>(below);
  return (1 - part) * rate(below) + (part > 0 ? part * rate(below + 1) : 0);
}

}  // namespace deepinfer::sim
