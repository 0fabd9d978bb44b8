// Sorting by queue length with a rotating tie break.
#include "policy/store_reads.h"

#include <algorithm>
#include <tuple>

namespace deepinfer::policy {

std::vector<int> choose_reads(const std::vector<ReadPlace>& places, int k, uint64_t turn) {
  std::vector<int> up;
  for (int i = 0; i < static_cast<int>(places.size()); ++i) {
    if (places[static_cast<size_t>(i)].has_part) up.push_back(i);
  }
  if (static_cast<int>(up.size()) < k) return {};
  uint64_t n = places.size();
  auto rank = [&](int i) { return (static_cast<uint64_t>(i) + turn) % n; };
  std::sort(up.begin(), up.end(), [&](int a, int b) {
    return std::make_tuple(places[static_cast<size_t>(a)].queue, rank(a)) <
           std::make_tuple(places[static_cast<size_t>(b)].queue, rank(b));
  });
  up.resize(std::min<size_t>(up.size(), static_cast<size_t>(k) + 1));
  std::sort(up.begin(), up.end());
  return up;
}

int choose_hedge(const std::vector<ReadPlace>& places, const std::vector<bool>& asked) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(places.size()); ++i) {
    const ReadPlace& p = places[static_cast<size_t>(i)];
    if (!p.has_part || asked[static_cast<size_t>(i)]) continue;
    if (best < 0 || p.queue < places[static_cast<size_t>(best)].queue) best = i;
  }
  return best;
}

WriteVerdict judge_write(int parts, int acknowledged) {
  if (acknowledged >= parts) return WriteVerdict::kDone;
  return acknowledged == parts - 1 ? WriteVerdict::kDoneRepair : WriteVerdict::kAbort;
}

std::vector<int> place_parts(int k, int m, int domains, uint64_t turn) {
  int parts = k + m;
  if (domains < 1 || m < 1 || (parts + domains - 1) / domains > m) return {};
  std::vector<int> out;
  for (int i = 0; i < parts; ++i)
    out.push_back(static_cast<int>((static_cast<uint64_t>(i) + turn) % static_cast<uint64_t>(domains)));
  return out;
}

}  // namespace deepinfer::policy
