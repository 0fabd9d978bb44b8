// Costs, the two greedy starts, and relabelling.
#include "policy/eplb.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "policy/eplb_search.h"

namespace deepinfer::policy {
namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

std::vector<double> mean_loads(const EplbHistory& h, double risk) {
  std::vector<double> sum(at(h.experts), 0), squares(at(h.experts), 0);
  for (size_t i = 0; i < h.load.size(); ++i) {
    sum[i % at(h.experts)] += h.load[i];
    squares[i % at(h.experts)] += static_cast<double>(h.load[i]) * h.load[i];
  }
  const double n = std::max(1, h.steps());
  for (size_t e = 0; e < sum.size(); ++e) {
    sum[e] /= n;
    sum[e] += risk * std::sqrt(std::max(0.0, squares[e] / n - sum[e] * sum[e]));
  }
  return sum;
}

// Copies of each expert: one each, then one at a time to the largest load per copy. At most one per rank.
std::vector<int> copy_counts(const EplbShape& s, const std::vector<double>& mean) {
  std::vector<int> count(at(s.experts), 1);
  for (int left = s.redundant(); left > 0; --left) {
    int best = -1;
    for (int e = 0; e < s.experts; ++e) {
      if (count[at(e)] >= s.ranks) continue;
      if (best < 0 || mean[at(e)] / count[at(e)] > mean[at(best)] / count[at(best)]) best = e;
    }
    // More slots than experts times ranks: a second copy on a rank is forced and does no good.
    if (best < 0) best = static_cast<int>(std::min_element(count.begin(), count.end()) - count.begin());
    ++count[at(best)];
  }
  return count;
}

std::vector<int> copies_by_share(const std::vector<int>& count, const std::vector<double>& mean) {
  std::vector<int> list;
  for (size_t e = 0; e < count.size(); ++e) list.insert(list.end(), at(count[e]), static_cast<int>(e));
  std::stable_sort(list.begin(), list.end(),
                   [&](int a, int b) { return mean[at(a)] / count[at(a)] > mean[at(b)] / count[at(b)]; });
  return list;
}

}  // namespace

std::string problem(const EplbShape& s) {
  if (s.experts < 1 || s.ranks < 1 || s.slots < 1) return "experts, ranks and slots must be at least 1";
  if (s.redundant() < 0) return "fewer slots than experts";
  if (s.nodes < 1 || s.groups < 1) return "nodes and groups must be at least 1";
  if (s.nodes > 1) {
    if (s.ranks % s.nodes != 0) return "ranks must be a multiple of nodes";
    if (s.groups % s.nodes != 0) return "groups must be a multiple of nodes";
    if (s.experts % s.groups != 0) return "experts must be a multiple of groups";
  }
  return "";
}

EplbHistory compress(const EplbHistory& h, int groups) {
  const int steps = h.steps();
  std::vector<double> totals(at(steps), 0);
  for (size_t i = 0; i < h.load.size(); ++i) totals[i / at(h.experts)] += h.load[i];
  std::vector<double> sorted = totals;
  std::sort(sorted.begin(), sorted.end());
  const double least = steps > 0 ? 0.01 * sorted[at(steps / 2)] : 0;
  std::vector<int> used;
  for (int t = 0; t < steps; ++t) {
    if (totals[at(t)] > 0 && totals[at(t)] >= least) used.push_back(t);
  }
  EplbHistory out;
  out.experts = h.experts;
  const int m = std::min(groups, static_cast<int>(used.size()));
  out.load.assign(at(m) * at(h.experts), 0);
  for (size_t i = 0; i < used.size(); ++i) {
    const size_t to = i * at(m) / used.size(), from = at(used[i]);
    for (size_t e = 0; e < at(h.experts); ++e)
      out.load[to * at(h.experts) + e] += h.load[from * at(h.experts) + e];
  }
  return out;
}

double placement_cost(const EplbShape& s, const EplbHistory& h, const Placement& p) {
  return EplbLoads(s, h, p).cost();
}

double moe_lb(const EplbShape& s, const EplbHistory& h, const Placement& p) {
  std::vector<int> copies(at(s.experts), 0);
  for (int e : p.slot) ++copies[at(e)];
  double sum = 0;
  int counted = 0;
  std::vector<double> x(at(s.ranks));
  for (int t = 0; t < h.steps(); ++t) {
    std::fill(x.begin(), x.end(), 0);
    for (size_t i = 0; i < p.slot.size(); ++i) {
      x[i / at(s.slots)] +=
          static_cast<double>(h.load[at(t) * at(s.experts) + at(p.slot[i])]) / copies[at(p.slot[i])];
    }
    const double total = std::accumulate(x.begin(), x.end(), 0.0);
    if (total <= 0) continue;
    sum += *std::max_element(x.begin(), x.end()) * s.ranks / total;
    ++counted;
  }
  return counted > 0 ? sum / counted : 1;
}

int64_t moved_slots(const EplbShape& s, const Placement& from, const Placement& to) {
  int64_t moved = 0;
  for (int g = 0; g < s.ranks; ++g) {
    auto begin = [&](const Placement& p) { return p.slot.begin() + g * s.slots; };
    std::vector<int> a(begin(from), begin(from) + s.slots), b(begin(to), begin(to) + s.slots), common;
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
    moved += s.slots - static_cast<int64_t>(common.size());
  }
  return moved;
}

std::string broken_placement(const EplbShape& s, const Placement& p) {
  if (static_cast<int>(p.slot.size()) != s.ranks * s.slots) return "not one expert per slot";
  std::vector<int> count(at(s.experts), 0);
  for (int e : p.slot) {
    if (e < 0 || e >= s.experts) return "a slot holds no expert";
    ++count[at(e)];
  }
  for (int c : count) {
    if (c == 0) return "an expert has no slot";
  }
  if (s.slots > s.experts) return "";
  for (int g = 0; g < s.ranks; ++g) {
    std::vector<int> on(p.slot.begin() + g * s.slots, p.slot.begin() + (g + 1) * s.slots);
    std::sort(on.begin(), on.end());
    if (std::adjacent_find(on.begin(), on.end()) != on.end()) return "a rank holds an expert twice";
  }
  return "";
}

namespace {

// Puts copies one after another on the rank that `worse(rank)` rates lowest among those with room. If only
// ranks that already hold the expert have room, a slot of another rank makes room.
template <typename Score, typename Took>
Placement pack(const EplbShape& s, const std::vector<int>& list, Score score, Took took) {
  std::vector<std::vector<int>> on(at(s.ranks));
  auto holds = [&](int g, int e) {
    return std::find(on[at(g)].begin(), on[at(g)].end(), e) != on[at(g)].end();
  };
  for (int e : list) {
    int best = -1, any = -1;
    double best_score = 0;
    for (int g = 0; g < s.ranks; ++g) {
      if (static_cast<int>(on[at(g)].size()) >= s.slots) continue;
      any = g;
      if (holds(g, e)) continue;
      const double v = score(g, e);
      if (best < 0 || v < best_score) {
        best = g;
        best_score = v;
      }
    }
    int expert = e;
    if (best < 0) {  // trade with a rank that lacks e for an expert that `any` lacks
      for (int g = 0; g < s.ranks && best < 0; ++g) {
        if (g == any || holds(g, e)) continue;
        for (int& other : on[at(g)]) {
          if (holds(any, other)) continue;
          std::swap(other, expert);
          best = any;
          break;
        }
      }
      if (best < 0) best = any;
    }
    on[at(best)].push_back(expert);
    took(best, expert);
  }
  Placement p;
  for (const auto& rank : on) p.slot.insert(p.slot.end(), rank.begin(), rank.end());
  return p;
}

}  // namespace

Placement average_greedy(const EplbShape& s, const EplbHistory& h) {
  const std::vector<double> mean = mean_loads(h, 0);
  const std::vector<int> count = copy_counts(s, mean);
  std::vector<double> load(at(s.ranks), 0);
  return pack(
      s, copies_by_share(count, mean), [&](int g, int) { return load[at(g)]; },
      [&](int g, int e) { load[at(g)] += mean[at(e)] / count[at(e)]; });
}

Placement step_greedy(const EplbShape& s, const EplbHistory& h, double risk) {
  const std::vector<double> mean = mean_loads(h, risk);
  const std::vector<int> count = copy_counts(s, mean);
  const size_t steps = at(h.steps());
  std::vector<double> x(at(s.ranks) * steps, 0), most(steps, 0), total(at(s.ranks), 0);
  double scale = 1e-9;
  for (double m : mean) scale += m;
  auto share = [&](size_t t, int e) {
    return static_cast<double>(h.load[t * at(s.experts) + at(e)]) / count[at(e)];
  };
  return pack(
      s, copies_by_share(count, mean),
      [&](int g, int e) {
        double increase = 0;
        for (size_t t = 0; t < steps; ++t)
          increase += std::max(0.0, x[at(g) * steps + t] + share(t, e) - most[t]);
        return increase + 1e-6 * total[at(g)] / scale;  // ties: the smaller total
      },
      [&](int g, int e) {
        for (size_t t = 0; t < steps; ++t) {
          double& v = x[at(g) * steps + t];
          v += share(t, e);
          most[t] = std::max(most[t], v);
        }
        total[at(g)] += mean[at(e)] / count[at(e)];
      });
}

}  // namespace deepinfer::policy
