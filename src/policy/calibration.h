// Draft confidences made honest: the head's logits are over-confident, the budget needs probabilities. One
// temperature per draft position, fitted to what was really accepted, offline over samples or online over
// decaying histograms. No temperatures ship with a checkpoint: they start at 1. Also the measure of what is
// left: the calibration error. Source: serving specification 4.2; DSpark (arXiv 2607.05147). Threads: pure
// functions on plain data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::policy {

// Confidence of a logit at a temperature; a logit that is not a number is no confidence.
double confidence_of(double logit, double temperature);

// One verified prefix: the head's logits, and how many leading drafts were right. Position k is a trial only
// if all before it were accepted and k itself was verified.
struct DraftOutcome {
  std::span<const float> logits;  // of all drafts
  int verified = 0;
  int accepted = 0;  // at most verified
};

// Expected calibration error of the predicted survival against reality over equal-width bins of [0, 1], for
// one draft position or for all (position < 0): the mean over positions of the bins' weighted gaps.
struct OfflineSample {
  std::vector<float> logits;
  int accepted = 0;  // of all drafts, none withheld
};
double calibration_error(std::span<const OfflineSample> samples, std::span<const double> temperatures,
                         int position, int bins = 10);
// Sequential temperature scaling: for each position in turn the temperature of the grid that makes the
// cumulative product's calibration error least, earlier ones fixed.
std::vector<double> fit_temperatures(std::span<const OfflineSample> samples, int positions);

// The candidates: log-spaced from 1/8 to 8.
inline constexpr int kTemperatures = 49;
double temperature_at(int index);

// The running fit: per position, decaying counts over logit bins.
struct CalibrationConfig {
  int positions = 5;
  double decay = 0.999;      // per step with outcomes
  double prior_weight = 64;  // trials a position needs to outweigh the pooled fit
  double min_trials = 32;    // before that the temperature stays at 1
};
struct CalibrationState {
  static constexpr int kBins = 16;  // of logits in [-8, 8], the outer ones open
  struct Bin {
    double trials = 0, accepted = 0, logit_sum = 0;
  };
  CalibrationConfig config;
  std::vector<Bin> bins;            // [positions, kBins]
  std::vector<double> temperature;  // [positions]
  double error = 0;                 // of the calibrated conditional confidences, pooled, after the last fit
};
CalibrationState make_calibration(const CalibrationConfig& config);
// Takes a step's outcomes and refits. Cost: positions x temperatures x bins.
void observe(CalibrationState* state, std::span<const DraftOutcome> outcomes);

}  // namespace deepinfer::policy
