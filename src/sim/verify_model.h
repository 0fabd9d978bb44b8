// How many drafts the requests of a decode rank have verified, and what they gain by it. The total and its
// distribution are decided by policy/verify_budget.h, the engine's own; what it decides on is synthetic:
// requests of sixteen kinds, evenly spread over a normal quality, whose drafts survive as the confidences of
// the serving specification 4.8 say. Confidences are right on average, so that tokens gained follow from
// them. Knows no clock. Source: serving specification 4.3, 4.8, 14.2. Threads: plain data, one owner.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/speculation.h"

namespace deepinfer::sim {

// A decode step of a rank: quadratic in its rows, linear in the tokens it holds. The defaults pass through
// the published points of 16, 60 and 96 requests per rank with five drafts verified (10.763, 14.377,
// 18.781 ms at 131,072 tokens each); that about a third of the linear term is the reading of the cache is an
// assumption.
struct DecodeCost {
  double fixed_ns = 9.9312e6;
  double per_row_ns = 4.594e3;
  double per_row_squared_ns = 13.957;
  double per_token_ns = 0.125;
  double step_ns(double rows, double tokens) const {
    return fixed_ns + per_row_ns * rows + per_row_squared_ns * rows * rows + per_token_ns * tokens;
  }
};

struct VerifyConfig {
  policy::SpeculationMode mode = policy::SpeculationMode::kDynamic;
  int drafts = 5;          // of a block
  int fixed = 5;           // kFixed
  double overhead = 0.02;  // of a step, for lengths that differ (kDynamic)
  // Confidence of draft k of a request of quality z: the logistic function of logit + spread z - decay (k-1).
  double logit = 1.226, spread = 1.2, decay = 0.15;
};

class VerifyModel {
 public:
  static constexpr int kKinds = 16;
  VerifyModel(const VerifyConfig& config, const DecodeCost& cost);

  // The kind of an arriving request, from an even draw. Slow kinds stay longer: they arrive more rarely by as
  // much, so that those decoding at a moment are evenly of all kinds when every draft is verified.
  uint8_t kind_of(double unit) const;

  // What is decided for a rank; by kind, the mean over its requests of that kind.
  struct Plan {
    std::array<float, kKinds> drafts{}, pace{};  // verified; tokens per step, the model's own among them
    std::array<float, kKinds> deviation{};  // of the tokens of a run of steps, over the root of its tokens
  };
  // `kinds`: of the rank's requests. `tokens`: what they hold together.
  Plan decide(std::span<const uint8_t> kinds, int64_t tokens) const;
  double step_ns(double rows, double tokens) const { return factor_ * cost_.step_ns(rows, tokens); }
  // Tokens per second of a rank on which so many requests are evenly mixed.
  double balanced_per_s(double requests, double tokens) const;
  double survival(int kind, int draft) const {
    return survival_[static_cast<size_t>(kind)][static_cast<size_t>(draft)];
  }

 private:
  double variance(int kind, double drafts) const;
  std::vector<int> lengths(std::span<const uint8_t> kinds, int64_t tokens) const;

  VerifyConfig config_;
  DecodeCost cost_;
  double factor_ = 1;
  std::array<std::array<double, policy::kMaxDrafts>, kKinds> survival_{};
  std::array<double, kKinds> upto_{};  // share of arrivals of this kind and those before
};

}  // namespace deepinfer::sim
