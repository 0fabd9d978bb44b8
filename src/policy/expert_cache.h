// Which routed experts stay in memory when not all of them fit: those used often lately. Frequencies halve as
// steps go by, so that a change of topic is followed; a newcomer takes the place of the least used expert
// that the call at hand does not need. Does not know bytes, files or matrices. Source: model specification 4
// (experts are touched a few at a time); least-frequently-used with ageing. Threads: plain data, one owner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::policy {

struct ExpertCache {
  struct Slot {
    bool resident = false;
    int64_t frequency = 0;  // uses since long ago, halved every half_life calls; as of `last`
    int64_t last = 0;       // the call that used it last
  };
  std::vector<Slot> slots;  // one per expert of every layer
  int64_t capacity = 0;     // experts that may be resident; more only while one call needs more
  int64_t half_life = 1;    // calls
  // What happened.
  int64_t calls = 0, resident = 0;
  int64_t uses = 0, misses = 0, evictions = 0;
};

// What a call changes: experts to read, in the order of `touched`, and experts to forget.
struct ExpertCacheChange {
  std::vector<int32_t> read, forget;
};

// One call (the routed experts of one layer for one batch) that uses `touched`: distinct slots. Afterwards
// they are all resident. Cost: touched, plus all slots where somebody has to go.
ExpertCacheChange use_experts(ExpertCache* cache, std::span<const int32_t> touched);

}  // namespace deepinfer::policy
