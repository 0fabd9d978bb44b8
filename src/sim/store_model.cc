// First ten of eleven over the nodes of a stripe.
#include "sim/store_model.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::sim {

StoreModel::StoreModel(const StoreConfig& config, uint64_t seed)
    : config_(config),
      random_(seed),
      free_ns_(static_cast<size_t>(config.nodes), 0),
      down_(static_cast<size_t>(config.nodes), 0) {
  DI_CHECK(config.nodes >= config.shards && config.shards <= 16 && config.data <= config.asked &&
               config.asked <= config.shards,
           "a stripe needs as many nodes as it has shards");
  for (int i = 0; i < 32; ++i)
    delay_ns_[i] = static_cast<int64_t>(config_.latency_ns + static_cast<double>(i) / 31 * config_.jitter_ns);
}

int64_t StoreModel::read(uint64_t home, double bytes, int64_t now_ns) {
  const size_t n = free_ns_.size(), shards = static_cast<size_t>(config_.shards);
  size_t node = static_cast<size_t>(home % n), up = 0, longest = 0;
  size_t nodes[16];
  int64_t most = INT64_MIN;
  for (size_t i = 0; i < shards; ++i, node = node + 1 == n ? 0 : node + 1) {
    if (down_[node]) continue;
    nodes[up] = node;
    const int64_t free = free_ns_[node];
    longest = free > most ? up : longest;
    most = free > most ? free : most;
    ++up;
  }
  if (up < static_cast<size_t>(config_.data)) return -1;
  // All but the one with the longest queue, if there is one to spare.
  if (up > static_cast<size_t>(config_.asked)) nodes[longest] = nodes[--up];
  const double shard = bytes / config_.data;
  const int64_t service = static_cast<int64_t>(shard / config_.read_bytes_per_s * 1e9);
  int64_t done[16];
  const uint64_t noise = random_.bits();
  for (size_t i = 0; i < up; ++i) {
    int64_t& free = free_ns_[nodes[i]];
    free = std::max(free, now_ns) + service;
    done[i] = free + delay_ns_[(noise >> (5 * i)) & 31];
  }
  bytes_ += shard * static_cast<double>(up);
  if (up <= static_cast<size_t>(config_.data) + 1) {  // one to spare, as is usual: the last or the one before
    int64_t last = INT64_MIN, before = INT64_MIN;
    for (size_t i = 0; i < up; ++i) {
      before = std::max(before, std::min(last, done[i]));
      last = std::max(last, done[i]);
    }
    return up == static_cast<size_t>(config_.data) ? last : before;
  }
  std::nth_element(done, done + config_.data - 1, done + up);
  return done[config_.data - 1];
}

int64_t StoreModel::queue_ns(int64_t now_ns) const {
  return std::max<int64_t>(0, *std::max_element(free_ns_.begin(), free_ns_.end()) - now_ns);
}

double StoreModel::busy_share(int64_t over_ns) const {
  return over_ns > 0 ? bytes_ / (config_.read_bytes_per_s * static_cast<double>(free_ns_.size()) *
                                 static_cast<double>(over_ns) * 1e-9)
                     : 0;
}

}  // namespace deepinfer::sim
