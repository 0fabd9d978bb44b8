// Rotary frequencies in double precision; users round them to their own. Source: model specification 3.2.
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deepinfer {
namespace {

std::vector<double> plain_frequencies(int rotary_dims, double base) {
  std::vector<double> f(static_cast<size_t>(rotary_dims / 2));
  for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(base, -2.0 * static_cast<double>(i) / rotary_dims);
  return f;
}

}  // namespace

std::vector<double> main_rope_frequencies(const ModelConfig& config) {
  return plain_frequencies(config.qk_rope_head_dim, config.rope_theta);
}

std::vector<double> compress_rope_frequencies(const ModelConfig& config) {
  std::vector<double> f = plain_frequencies(config.qk_rope_head_dim, config.compress_rope_theta);
  const RopeScaling& yarn = config.rope_scaling;
  if (yarn.original_max_position_embeddings <= 0) return f;
  const double dims = config.qk_rope_head_dim;
  const auto length = static_cast<double>(yarn.original_max_position_embeddings);
  // The pair, as a real number, whose wave turns `turns` times over the original length.
  auto pair_of = [&](double turns) {
    return dims * std::log(length / (2.0 * std::numbers::pi * turns)) /
           (2.0 * std::log(config.compress_rope_theta));
  };
  const double low = std::max(std::floor(pair_of(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(yarn.beta_slow)), dims - 1.0);
  // 0.001 keeps the ramp a step where both ends fall on one pair.
  const double width = std::max(high - low, 0.001);
  for (size_t i = 0; i < f.size(); ++i) {
    double t = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    f[i] *= (1.0 - t) + t / yarn.factor;
  }
  return f;
}

}  // namespace deepinfer
