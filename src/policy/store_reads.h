// Which parts of an object that was coded as k + m are asked for. k + 1 are asked and the first k that arrive
// win: one slow place does not slow the read. Places that are down are not asked, then the one with the
// longest queue is left out, in turn among equals. A failure or a late answer brings in the next one. Source:
// serving specification 7.6. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::policy {

struct ReadPlace {
  bool has_part = false;  // it is up and holds its part
  int64_t queue = 0;      // reads it has not answered
};
// Indices of the places to ask first, at most k + 1, in the order of asking: systematic parts (below k)
// first, since k of them need no decoding. Empty when fewer than k can answer.
std::vector<int> choose_reads(const std::vector<ReadPlace>& places, int k, uint64_t turn);
// The next place to ask after failures or a late answer; -1: none is left.
int choose_hedge(const std::vector<ReadPlace>& places, const std::vector<bool>& asked);

// What a write may count on: all acknowledged, or all but one with a repair queued.
enum class WriteVerdict : uint8_t { kDone, kDoneRepair, kAbort };
WriteVerdict judge_write(int parts, int acknowledged);

// Domain of each of `parts` parts over `domains` failure domains, at most `m` parts in one, so that any one
// domain may fail; empty if that cannot be. Rotated by `turn`, so that load is even.
std::vector<int> place_parts(int k, int m, int domains, uint64_t turn);

}  // namespace deepinfer::policy
