// Temperatures by grid search: the objective is cheap, has flat stretches and needs no gradient.
#include "policy/calibration.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::policy {

double confidence_of(double logit, double temperature) {
  return std::isnan(logit) ? 0 : 1 / (1 + std::exp(-logit / temperature));
}

double temperature_at(int index) {
  return std::exp2(-3 + 6.0 * index / (kTemperatures - 1));
}

namespace {

double survival_of(const OfflineSample& s, std::span<const double> temperatures, size_t position) {
  double p = 1;
  for (size_t k = 0; k <= position; ++k)
    p *=
        confidence_of(k < s.logits.size() ? s.logits[k] : NAN, k < temperatures.size() ? temperatures[k] : 1);
  return p;
}

double position_error(std::span<const OfflineSample> samples, std::span<const double> temperatures,
                      size_t position, int bins) {
  std::vector<double> n(static_cast<size_t>(bins)), predicted(n), right(n);
  for (const OfflineSample& s : samples) {
    double p = survival_of(s, temperatures, position);
    auto b = static_cast<size_t>(std::min(bins - 1, static_cast<int>(p * bins)));
    n[b] += 1;
    predicted[b] += p;
    right[b] += s.accepted > static_cast<int>(position) ? 1 : 0;
  }
  double gap = 0;
  for (size_t b = 0; b < n.size(); ++b) gap += std::fabs(predicted[b] - right[b]);
  return samples.empty() ? 0 : gap / static_cast<double>(samples.size());
}

}  // namespace

double calibration_error(std::span<const OfflineSample> samples, std::span<const double> temperatures,
                         int position, int bins) {
  if (position >= 0) return position_error(samples, temperatures, static_cast<size_t>(position), bins);
  size_t positions = 0;
  for (const OfflineSample& s : samples) positions = std::max(positions, s.logits.size());
  double sum = 0;
  for (size_t k = 0; k < positions; ++k) sum += position_error(samples, temperatures, k, bins);
  return positions == 0 ? 0 : sum / static_cast<double>(positions);
}

std::vector<double> fit_temperatures(std::span<const OfflineSample> samples, int positions) {
  std::vector<double> t;
  for (int k = 0; k < positions; ++k) {
    t.push_back(1);
    double best = calibration_error(samples, t, k), chosen = 1;
    for (int i = 0; i < kTemperatures; ++i) {
      t.back() = temperature_at(i);
      double e = calibration_error(samples, t, k);
      if (e < best) {
        best = e;
        chosen = t.back();
      }
    }
    t.back() = chosen;
  }
  return t;
}

CalibrationState make_calibration(const CalibrationConfig& config) {
  CalibrationState s;
  s.config = config;
  s.bins.resize(static_cast<size_t>(config.positions) * CalibrationState::kBins);
  s.temperature.assign(static_cast<size_t>(config.positions), 1.0);
  return s;
}

namespace {

using Bin = CalibrationState::Bin;

// Cross-entropy of the bins at a temperature: unlike the calibration error it has one minimum and does not
// reward a temperature for a lucky bin.
double loss(std::span<const Bin> bins, double temperature) {
  double sum = 0;
  for (const Bin& b : bins) {
    if (b.trials <= 0) continue;
    double p = std::clamp(confidence_of(b.logit_sum / b.trials, temperature), 1e-9, 1 - 1e-9);
    sum -= b.accepted * std::log(p) + (b.trials - b.accepted) * std::log(1 - p);
  }
  return sum;
}

double best_temperature(std::span<const Bin> bins) {
  double best = INFINITY, t = 1;
  for (int i = 0; i < kTemperatures; ++i) {
    double l = loss(bins, temperature_at(i));
    if (l < best) {
      best = l;
      t = temperature_at(i);
    }
  }
  return t;
}

double trials_of(std::span<const Bin> bins) {
  double n = 0;
  for (const Bin& b : bins) n += b.trials;
  return n;
}

void refit(CalibrationState* s) {
  constexpr size_t kBins = CalibrationState::kBins;
  std::vector<Bin> pooled(kBins);
  for (size_t i = 0; i < s->bins.size(); ++i) {
    Bin& p = pooled[i % kBins];
    p.trials += s->bins[i].trials;
    p.accepted += s->bins[i].accepted;
    p.logit_sum += s->bins[i].logit_sum;
  }
  double all = trials_of(pooled);
  if (all < s->config.min_trials) return;
  double common = std::log(best_temperature(pooled)), gap = 0;
  for (size_t k = 0; k < s->temperature.size(); ++k) {
    std::span<const Bin> own(s->bins.data() + k * kBins, kBins);
    double n = trials_of(own), share = n / (n + s->config.prior_weight);
    double t = n > 0 ? std::log(best_temperature(own)) : common;
    s->temperature[k] = std::exp(share * t + (1 - share) * common);
    for (const Bin& b : own) {
      if (b.trials <= 0) continue;
      gap += std::fabs(b.trials * confidence_of(b.logit_sum / b.trials, s->temperature[k]) - b.accepted);
    }
  }
  s->error = gap / all;
}

}  // namespace

void observe(CalibrationState* state, std::span<const DraftOutcome> outcomes) {
  if (outcomes.empty()) return;
  for (Bin& b : state->bins) {
    b.trials *= state->config.decay;
    b.accepted *= state->config.decay;
    b.logit_sum *= state->config.decay;
  }
  for (const DraftOutcome& o : outcomes) {
    int trials =
        std::min({o.verified, o.accepted + 1, state->config.positions, static_cast<int>(o.logits.size())});
    for (int k = 0; k < trials; ++k) {
      double logit = o.logits[static_cast<size_t>(k)];
      if (std::isnan(logit)) continue;
      logit = std::clamp(logit, -8.0, 8.0);
      int bin = std::clamp(static_cast<int>(std::floor(logit)) + 8, 0, CalibrationState::kBins - 1);
      Bin& b = state->bins[static_cast<size_t>(k * CalibrationState::kBins + bin)];
      b.trials += 1;
      b.logit_sum += logit;
      b.accepted += o.accepted > k ? 1 : 0;
    }
  }
  refit(state);
}

}  // namespace deepinfer::policy
