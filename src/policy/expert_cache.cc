// Least-frequently-used with ageing.
#include "policy/expert_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace deepinfer::policy {
namespace {

// One use counts so much, so that some halvings leave something to compare.
constexpr int64_t kUse = int64_t{1} << 20;

int64_t aged(const ExpertCache& c, const ExpertCache::Slot& s) {
  const int64_t halvings = (c.calls - s.last) / std::max<int64_t>(1, c.half_life);
  return halvings > 40 ? 0 : s.frequency >> halvings;
}

}  // namespace

ExpertCacheChange use_experts(ExpertCache* cache, std::span<const int32_t> touched) {
  ExpertCache& c = *cache;
  ExpertCacheChange change;
  ++c.calls;
  for (int32_t i : touched) {
    DI_CHECK(i >= 0 && static_cast<size_t>(i) < c.slots.size(), "an expert outside the cache");
    ExpertCache::Slot& s = c.slots[static_cast<size_t>(i)];
    s.frequency = std::min(aged(c, s), int64_t{1} << 60) + kUse;
    s.last = c.calls;
    ++c.uses;
    if (s.resident) continue;
    s.resident = true;
    ++c.resident;
    ++c.misses;
    change.read.push_back(i);
  }
  const int64_t over = c.resident - c.capacity;
  if (over <= 0) return change;
  // (frequency, last use, slot) of everything this call does not need, the least first.
  std::vector<std::pair<std::pair<int64_t, int64_t>, int32_t>> others;
  for (size_t i = 0; i < c.slots.size(); ++i) {
    const ExpertCache::Slot& s = c.slots[i];
    if (s.resident && s.last != c.calls) others.push_back({{aged(c, s), s.last}, static_cast<int32_t>(i)});
  }
  const auto leave = std::min<size_t>(static_cast<size_t>(over), others.size());
  std::partial_sort(others.begin(), others.begin() + static_cast<int64_t>(leave), others.end());
  for (size_t i = 0; i < leave; ++i) {
    change.forget.push_back(others[i].second);
    c.slots[static_cast<size_t>(others[i].second)].resident = false;
    --c.resident;
    ++c.evictions;
  }
  return change;
}

}  // namespace deepinfer::policy
