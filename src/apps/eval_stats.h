// The few statistics of `deepinfer eval`: bounds of a share, intervals of clustered means, calibration of
// draft confidence, pass@k. Knows no model. Same numbers in, same numbers out: the bootstrap draws from a
// fixed seed. Source: Wilson (1927) for the bound; Chen et al., arXiv 2107.03374, for pass@k; model
// specification 6.3 for survival. Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

// Lower 95 % bound of a share of `hits` among n, 0 for n = 0.
double wilson_lower(int64_t hits, int64_t n);

// The chance that at least one of k draws (without repetition) from n samples, c of them right, is right.
// REQUIRES 0 <= c <= n, 1 <= k <= n.
double pass_at(int64_t n, int64_t c, int64_t k);

// Sums over one cluster (a document) of a quantity, and how many positions they stand for.
struct Cluster {
  double sum = 0;
  int64_t n = 0;
};
struct Interval {
  double mean = 0, low = 0, high = 0;  // mean over positions; central 95 % of the bootstrap over clusters
};
// Positions of one document are not independent, so documents are drawn, not positions. All zero when there
// is nothing; low = high = mean with a single cluster, which says nothing about its spread.
Interval clustered_mean(const std::vector<Cluster>& clusters);

// What drafting did over many steps. A step has `confidence.size()` drafts with the estimated probability of
// each to be accepted if all earlier ones were; `matched` of the first `observed` drafts in a row were right.
// Drafts from `observed` on lie beyond the end of the text: nothing is known about them and they count
// nowhere.
class DraftTally {
 public:
  struct Position {
    int64_t observed = 0;             // steps in which this draft could be judged
    int64_t survived = 0;             // ... and it and all before it were right
    double predicted = 0;             // sum over observed steps of the product of confidences up to it
    int64_t alive = 0, accepted = 0;  // steps in which all before it were right; ... and it was too
  };
  struct Bin {
    int64_t n = 0, accepted = 0;
    double predicted = 0;  // sum of confidences
  };
  static constexpr size_t kBins = 10;

  // REQUIRES 0 <= matched <= observed <= confidence.size().
  void add(const std::vector<double>& confidence, int64_t observed, int64_t matched);

  int64_t steps = 0, accepted = 0;
  std::vector<Position> positions;
  std::array<Bin, kBins> bins{};  // of drafts whose predecessors were all right, by confidence

  // Accepted drafts per step, as a run sees them: the last step of a text is cut by its end.
  double mean_accepted() const;
  // The same without that cut: the sum over positions of the share that survived.
  double mean_accepted_uncut() const;
  // Mean distance between confidence and acceptance over the bins, weighted by their counts.
  double calibration_error() const;
};

}  // namespace deepinfer
