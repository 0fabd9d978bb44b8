// Bounds, intervals, calibration.
#include "apps/eval_stats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr double kZ95 = 1.959963984540054;
constexpr int kResamples = 2000;

// SplitMix64: small, and the same on every machine.
uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

double share(double sum, int64_t n) {
  return n > 0 ? sum / static_cast<double>(n) : 0.0;
}

}  // namespace

double wilson_lower(int64_t hits, int64_t n) {
  if (hits == 0) return 0.0;  // also without any items; spares the rounding of the formula
  const double count = static_cast<double>(n), p = static_cast<double>(hits) / count, z2 = kZ95 * kZ95;
  const double root = std::sqrt(p * (1 - p) / count + z2 / (4 * count * count));
  return std::max(0.0, (p + z2 / (2 * count) - kZ95 * root) / (1 + z2 / count));
}

double pass_at(int64_t n, int64_t c, int64_t k) {
  DI_CHECK(0 <= c && c <= n && 1 <= k && k <= n, "pass_at arguments");
  double none = 1.0;  // C(n - c, k) / C(n, k)
  for (int64_t i = 0; i < k; ++i) {
    none *= static_cast<double>(std::max<int64_t>(0, n - c - i)) / static_cast<double>(n - i);
  }
  return 1.0 - none;
}

Interval clustered_mean(const std::vector<Cluster>& clusters) {
  double sum = 0;
  int64_t n = 0;
  for (const Cluster& c : clusters) {
    sum += c.sum;
    n += c.n;
  }
  Interval out;
  out.mean = out.low = out.high = share(sum, n);
  if (clusters.size() < 2) return out;
  uint64_t state = 1;
  std::vector<double> means;
  means.reserve(kResamples);
  for (int r = 0; r < kResamples; ++r) {
    double s = 0;
    int64_t m = 0;
    for (size_t i = 0; i < clusters.size(); ++i) {
      const Cluster& c = clusters[next_random(&state) % clusters.size()];
      s += c.sum;
      m += c.n;
    }
    means.push_back(share(s, m));
  }
  std::sort(means.begin(), means.end());
  out.low = means[kResamples / 40];
  out.high = means[kResamples - 1 - kResamples / 40];
  return out;
}

void DraftTally::add(const std::vector<double>& confidence, int64_t observed, int64_t matched) {
  DI_CHECK(0 <= matched && matched <= observed && observed <= static_cast<int64_t>(confidence.size()),
           "draft step with impossible counts");
  ++steps;
  accepted += matched;
  if (positions.size() < confidence.size()) positions.resize(confidence.size());
  double survival = 1.0;
  for (int64_t k = 0; k < observed; ++k) {
    const double c = confidence[static_cast<size_t>(k)];
    Position& p = positions[static_cast<size_t>(k)];
    survival *= c;
    ++p.observed;
    p.predicted += survival;
    p.survived += k < matched ? 1 : 0;
    if (k > matched) continue;  // a draft before it was wrong already
    ++p.alive;
    p.accepted += k < matched ? 1 : 0;
    Bin& bin = bins[std::min(kBins - 1, static_cast<size_t>(std::max(0.0, c) * static_cast<double>(kBins)))];
    ++bin.n;
    bin.predicted += c;
    bin.accepted += k < matched ? 1 : 0;
  }
}

double DraftTally::mean_accepted() const {
  return share(static_cast<double>(accepted), steps);
}

double DraftTally::mean_accepted_uncut() const {
  double total = 0;
  for (const Position& p : positions) total += share(static_cast<double>(p.survived), p.observed);
  return total;
}

double DraftTally::calibration_error() const {
  double distance = 0;
  int64_t n = 0;
  for (const Bin& b : bins) {
    distance += std::abs(b.predicted - static_cast<double>(b.accepted));
    n += b.n;
  }
  return share(distance, n);
}

}  // namespace deepinfer
