// Weights larger than memory: the routed experts of a mapped checkpoint, of which a bounded number of bytes
// is kept resident. A layer's routed experts are asked for together before the first of them is multiplied,
// so that the system reads the later ones while the earlier ones are used; experts that have to go are
// forgotten, and the system reads them again when they are needed, so the results do not depend on any of
// this. What goes is decided by policy/expert_cache.h. Experts that lie outside a file mapping are left
// alone. Private to the engine. Threads: one caller at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/weights.h"
#include "policy/expert_cache.h"

namespace deepinfer {

class ExpertResidency {
 public:
  // Bounded by weights.expert_memory_bytes; without a bound it does nothing and counts nothing.
  explicit ExpertResidency(const ModelWeights& weights);

  bool bounded() const { return !layers_.empty(); }
  // Before the experts of one layer's call: `ids` distinct, of the layer whose experts are given.
  void use(const std::vector<ExpertWeights>& experts, const std::vector<int32_t>& ids);

  const policy::ExpertCache& state() const { return cache_; }
  int64_t expert_bytes() const { return expert_bytes_; }  // the largest

 private:
  struct Layer {
    const std::vector<ExpertWeights>* experts;
    int32_t first;  // slot of its expert 0
  };
  std::vector<Layer> layers_;
  policy::ExpertCache cache_;
  int64_t expert_bytes_ = 0;
  std::vector<int32_t> slots_;  // of the call at hand
};

}  // namespace deepinfer
