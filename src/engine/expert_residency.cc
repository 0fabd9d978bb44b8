// Hints to the system about the pages of experts.
#include "engine/expert_residency.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "engine/step_profile.h"
#include "host/mapped_file.h"

namespace deepinfer {
namespace {

// Calls of one layer after which a use counts half: some hundred tokens of one sequence.
constexpr int64_t kHalfLifeCalls = 256;

struct Range {
  const uint8_t* data;
  size_t bytes;
};

// Codes and scales of the three matrices.
std::array<Range, 6> ranges(const ExpertWeights& e) {
  std::array<Range, 6> out{};
  size_t i = 0;
  for (const MatrixView* m : {&e.w1, &e.w3, &e.w2}) {
    out[i++] = {static_cast<const uint8_t*>(m->data), static_cast<size_t>(code_bytes(*m, m->rows))};
    out[i++] = {m->scales, static_cast<size_t>(m->scales == nullptr ? 0 : scale_bytes(*m, m->rows))};
  }
  return out;
}

void advise(MapAdvice advice, const ExpertWeights& e) {
  for (const Range& r : ranges(e)) advise_mapping(advice, r.data, r.bytes);
}

}  // namespace

ExpertResidency::ExpertResidency(const ModelWeights& weights) {
  if (weights.expert_memory_bytes <= 0) return;
  int64_t slots = 0;
  const auto add = [&](const std::vector<BlockWeights>& blocks) {
    for (const BlockWeights& b : blocks) {
      const bool mapped = std::all_of(b.experts.begin(), b.experts.end(), [&](const ExpertWeights& e) {
        const auto all = ranges(e);
        return std::all_of(all.begin(), all.end(), [&](const Range& r) {
          return r.bytes == 0 || weights.is_mapped(r.data, r.bytes);
        });
      });
      if (!mapped) continue;
      layers_.push_back({&b.experts, static_cast<int32_t>(slots)});
      slots += static_cast<int64_t>(b.experts.size());
      for (const ExpertWeights& e : b.experts) {
        int64_t bytes = 0;
        for (const Range& r : ranges(e)) bytes += static_cast<int64_t>(r.bytes);
        expert_bytes_ = std::max(expert_bytes_, bytes);
      }
    }
  };
  add(weights.layers);
  add(weights.mtp);
  cache_.slots.resize(static_cast<size_t>(slots));
  cache_.capacity = expert_bytes_ > 0 ? weights.expert_memory_bytes / expert_bytes_ : 0;
  cache_.half_life = kHalfLifeCalls * std::max<int64_t>(1, static_cast<int64_t>(layers_.size()));
}

void ExpertResidency::use(const std::vector<ExpertWeights>& experts, const std::vector<int32_t>& ids) {
  const auto layer =
      std::find_if(layers_.begin(), layers_.end(), [&](const Layer& l) { return l.experts == &experts; });
  if (layer == layers_.end()) return;
  slots_.clear();
  for (int32_t id : ids) slots_.push_back(layer->first + id);
  const policy::ExpertCacheChange change = policy::use_experts(&cache_, slots_);
  const auto expert = [&](int32_t slot) -> const ExpertWeights& {
    const auto at = std::upper_bound(layers_.begin(), layers_.end(), slot,
                                     [](int32_t s, const Layer& l) { return s < l.first; });
    const Layer& l = *(at - 1);
    return (*l.experts)[static_cast<size_t>(slot - l.first)];
  };
  // Room first: what is read ahead must not push out what is about to be used.
  for (int32_t slot : change.forget) advise(MapAdvice::kDontNeed, expert(slot));
  for (int32_t slot : change.read) advise(MapAdvice::kWillNeed, expert(slot));
}

}  // namespace deepinfer
