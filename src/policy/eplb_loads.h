// The working copy of a placement under search: rank loads per step, kept up to date, with what a change
// would cost. Private to the room. Threads: one search, one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/eplb.h"

namespace deepinfer::policy {

class EplbLoads {
 public:
  EplbLoads(const EplbShape& shape, const EplbHistory& history, const Placement& placement);

  const Placement& placement() const { return placement_; }
  double cost() const { return cost_; }
  int copies(int expert) const { return copies_[static_cast<size_t>(expert)]; }
  bool holds(int rank, int expert) const { return on_[cell(rank, expert)] > 0; }
  int at(int slot) const { return placement_.slot[static_cast<size_t>(slot)]; }
  int rank_of(int slot) const { return slot / shape_.slots; }
  bool is_worst(int rank) const { return worst_[static_cast<size_t>(rank)] > 0; }

  // Cost if two slots of different ranks changed places.
  double swap_cost(int a, int b) const;
  // Cost if slot `a` became `expert` and then changed places with `b` (b == a: it stays).
  double replace_cost(int a, int expert, int b);
  void swap(int a, int b);
  void replace(int a, int expert, int b);

 private:
  size_t cell(int rank, int expert) const {
    return static_cast<size_t>(rank) * static_cast<size_t>(shape_.experts) + static_cast<size_t>(expert);
  }
  double share(int t, int expert) const {
    const size_t row = static_cast<size_t>(t) * static_cast<size_t>(shape_.experts);
    return static_cast<double>(history_->load[row + static_cast<size_t>(expert)]) /
           copies_[static_cast<size_t>(expert)];
  }
  double& x(int t, int rank) {
    return x_[static_cast<size_t>(t) * static_cast<size_t>(shape_.ranks) + static_cast<size_t>(rank)];
  }
  double x(int t, int rank) const {
    return x_[static_cast<size_t>(t) * static_cast<size_t>(shape_.ranks) + static_cast<size_t>(rank)];
  }
  void put(int slot, int expert);
  void recount();
  void summarise();

  EplbShape shape_;
  const EplbHistory* history_;
  int steps_ = 0;
  Placement placement_;
  std::vector<int> copies_, on_;
  std::vector<double> x_;
  std::vector<int> worst_;  // steps in which a rank is the slowest
  struct Top {
    double value[3];
    int rank[3];
  };
  std::vector<Top> top_;  // the three slowest ranks of each step
  double cost_ = 0;
};

}  // namespace deepinfer::policy
