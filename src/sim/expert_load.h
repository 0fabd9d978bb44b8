// A synthetic load of experts that behaves like text: some experts are popular (Zipf), topics share experts,
// every step mixes few or many requests, and popularity drifts. What expert placement can make of it is a
// property of policy/eplb.h. Source: serving specification 6, 14.4. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/eplb.h"
#include "sim/random.h"

namespace deepinfer::sim {

struct ExpertLoadConfig {
  int experts = 384, active = 6;
  double zipf = 0.5;  // popularity of the k-th expert: k^-zipf
  int topics = 40;
  double topic_sigma = 0.9;  // how much a topic's taste differs from the mean
  int requests_per_step = 3840;
  int tokens_per_request = 2;  // that choose independently: the rows of one request choose alike
  double drift = 0.0005;       // of the topics' tastes per step
};
// `steps` consecutive steps. Deterministic in the seed.
policy::EplbHistory expert_load(const ExpertLoadConfig& config, int steps, uint64_t seed);

// Places experts by a window of steps and measures the steps after it: mean over steps of slowest over mean
// rank, once with the placement and once without any spare copies.
struct PlacementStudy {
  double placed = 1, plain = 1;
  std::vector<double> per_step;  // of the placed ones
};
PlacementStudy study_placement(const policy::EplbConfig& eplb, const ExpertLoadConfig& load, int after,
                               uint64_t seed);

// The three published operating points and the loads on which this placement reaches them.
struct PublishedPlacement {
  const char* name;
  int ranks, redundant_per_rank;
  double published;
  ExpertLoadConfig load;
  policy::EplbConfig eplb() const;
};
std::vector<PublishedPlacement> published_placements();

}  // namespace deepinfer::sim
