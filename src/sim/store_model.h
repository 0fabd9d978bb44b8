// The storage cluster as the simulator sees it: nodes with a bandwidth and a queue each, reads coded over
// twelve of them of which eleven are asked and ten suffice, nodes that fail. No bytes. Source: serving
// specification 7.6, 7.7. Threads: one owner.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/random.h"

namespace deepinfer::sim {

struct StoreConfig {
  int nodes = 48;
  double read_bytes_per_s = 40e9;  // per node
  double latency_ns = 400e3;       // of a read without a queue
  double jitter_ns = 400e3;        // up to so much more, evenly
  int data = 10, shards = 12, asked = 11;
};

class StoreModel {
 public:
  StoreModel(const StoreConfig& config, uint64_t seed);
  // When the read has arrived, or -1 if too few nodes of its stripe are up.
  int64_t read(uint64_t home, double bytes, int64_t now_ns);
  void set_down(int node, bool down) { down_[static_cast<size_t>(node)] = down; }
  int64_t queue_ns(int64_t now_ns) const;  // of the busiest node
  double bytes_read() const { return bytes_; }
  double busy_share(int64_t over_ns) const;

 private:
  StoreConfig config_;
  Random random_;
  std::vector<int64_t> free_ns_;
  std::vector<char> down_;
  double bytes_ = 0;
  int64_t delay_ns_[32];  // latency and jitter, by five random bits
};

}  // namespace deepinfer::sim
