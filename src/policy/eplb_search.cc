// Local search by three kinds of change, assignment of rank sets, and the decision whether a map is worth its
// movement.
#include "policy/eplb_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace deepinfer::policy {
namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

constexpr double kStrict = 1 - 1e-9;

struct Change {
  double cost = std::numeric_limits<double>::infinity();
  int a = -1, b = -1, expert = -1;  // expert < 0: a plain swap
};

class Search {
 public:
  Search(const EplbShape& s, const EplbHistory& h, Placement start, int64_t* evaluations, double per_slot)
      : s_(s), history_(h), loads_(s, h, std::move(start)), left_(evaluations), per_slot_(per_slot) {}

  Placement run() {
    while (*left_ > 0) {
      const Change best = best_change();
      if (improves(best)) {
        carry_out(&loads_, best);
      } else if (slots() > kPairsUpTo || per_slot_ > 0 || !improve_by_pair()) {
        break;
      }
    }
    return loads_.placement();
  }

 private:
  // Beyond so many slots looking two changes ahead costs more than it finds.
  static constexpr int kPairsUpTo = 32;

  bool improves(const Change& c) const {
    const double touched = c.expert < 0 ? 2 : c.a == c.b ? 1 : 3;
    return c.cost + per_slot_ * touched < loads_.cost() * kStrict;
  }
  Change best_change() {
    Change best = best_swap();
    if (!improves(best)) best = best_replace(false);
    if (!improves(best)) best = best_replace(true);
    return best;
  }
  static void carry_out(EplbLoads* loads, const Change& c) {
    if (c.expert < 0) {
      loads->swap(c.a, c.b);
    } else {
      loads->replace(c.a, c.expert, c.b);
    }
  }

  // Out of a local optimum: any change, then the best one after it.
  bool improve_by_pair() {
    const Placement here = loads_.placement();
    const double cost = loads_.cost();
    Placement best = here;
    double best_cost = cost * kStrict;
    auto look = [&](const Change& first) {
      loads_ = EplbLoads(s_, history_, here);
      carry_out(&loads_, first);
      const Change second = best_change();
      if (second.cost >= best_cost) return;
      carry_out(&loads_, second);
      best = loads_.placement();
      best_cost = second.cost;
    };
    for (int a = 0; a < slots() && *left_ > 0; ++a) {
      loads_ = EplbLoads(s_, history_, here);
      std::vector<Change> firsts;
      for (int b = a + 1; b < slots(); ++b) {
        if (swappable(a, b)) firsts.push_back({0, a, b, -1});
      }
      for (int e = 0; e < s_.experts && loads_.copies(loads_.at(a)) > 1; ++e) {
        if (!loads_.holds(loads_.rank_of(a), e)) firsts.push_back({0, a, a, e});
      }
      for (const Change& f : firsts) look(f);
    }
    loads_ = EplbLoads(s_, history_, best);
    return best_cost < cost * kStrict;
  }
  int slots() const { return s_.ranks * s_.slots; }
  bool swappable(int a, int b) const {
    const int ga = loads_.rank_of(a), gb = loads_.rank_of(b);
    return ga != gb && loads_.at(a) != loads_.at(b) && !loads_.holds(ga, loads_.at(b)) &&
           !loads_.holds(gb, loads_.at(a));
  }
  void offer(Change* best, double cost, int a, int b, int expert) const {
    if (cost < best->cost) *best = {cost, a, b, expert};
  }

  // One side is a rank that is the slowest in some step; nothing else can lower the cost. The first rank that
  // yields an improvement is taken, with its best swap.
  Change best_swap() {
    Change best;
    for (int g = 0; g < s_.ranks; ++g) {
      if (!loads_.is_worst(g)) continue;
      for (int a = g * s_.slots; a < (g + 1) * s_.slots; ++a) {
        for (int b = 0; b < slots() && *left_ > 0; ++b) {
          if (!swappable(a, b)) continue;
          --*left_;
          offer(&best, loads_.swap_cost(a, b), a, b, -1);
        }
      }
      if (improves(best)) return best;
    }
    return best;
  }

  // A spare copy becomes a copy of an expert of a slowest rank; with `moving` it also changes places.
  Change best_replace(bool moving) {
    Change best;
    std::vector<char> wanted(at(s_.experts), 0);
    for (int i = 0; i < slots(); ++i) {
      if (loads_.is_worst(loads_.rank_of(i))) wanted[at(loads_.at(i))] = 1;
    }
    for (int a = 0; a < slots(); ++a) {
      if (loads_.copies(loads_.at(a)) < 2) continue;
      for (int e = 0; e < s_.experts; ++e) {
        if (!wanted[at(e)] || e == loads_.at(a)) continue;
        try_replace(a, e, moving, &best);
        if (*left_ <= 0) return best;
      }
      if (s_.experts > 64 && improves(best)) return best;  // large: the first good one
    }
    return best;
  }
  void try_replace(int a, int e, bool moving, Change* best) {
    const int ga = loads_.rank_of(a);
    if (!moving) {
      if (loads_.holds(ga, e)) return;
      --*left_;
      offer(best, loads_.replace_cost(a, e, a), a, a, e);
      return;
    }
    for (int b = 0; b < slots() && *left_ > 0; ++b) {
      const int gb = loads_.rank_of(b), other = loads_.at(b);
      if (gb == ga || other == e || loads_.holds(gb, e)) continue;
      if (loads_.holds(ga, other) && other != loads_.at(a)) continue;
      --*left_;
      offer(best, loads_.replace_cost(a, e, b), a, b, e);
    }
  }

  const EplbShape& s_;
  const EplbHistory& history_;
  EplbLoads loads_;
  int64_t* left_;
  double per_slot_;
};

// Hungarian method, O(n^3): column of each row with the least total cost.
std::vector<int> assignment(const std::vector<std::vector<double>>& cost) {
  const int n = static_cast<int>(cost.size());
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> u(at(n + 1), 0), v(at(n + 1), 0);
  std::vector<int> row_of(at(n + 1), 0), way(at(n + 1), 0);
  for (int i = 1; i <= n; ++i) {
    row_of[0] = i;
    int column = 0;
    std::vector<double> least(at(n + 1), inf);
    std::vector<char> used(at(n + 1), 0);
    do {
      used[at(column)] = 1;
      const int row = row_of[at(column)];
      double delta = inf;
      int next = 0;
      for (int j = 1; j <= n; ++j) {
        if (used[at(j)]) continue;
        const double c = cost[at(row - 1)][at(j - 1)] - u[at(row)] - v[at(j)];
        if (c < least[at(j)]) {
          least[at(j)] = c;
          way[at(j)] = column;
        }
        if (least[at(j)] < delta) {
          delta = least[at(j)];
          next = j;
        }
      }
      for (int j = 0; j <= n; ++j) {
        if (used[at(j)]) {
          u[at(row_of[at(j)])] += delta;
          v[at(j)] -= delta;
        } else {
          least[at(j)] -= delta;
        }
      }
      column = next;
    } while (row_of[at(column)] != 0);
    while (column != 0) {
      row_of[at(column)] = row_of[at(way[at(column)])];
      column = way[at(column)];
    }
  }
  std::vector<int> column_of(at(n), 0);
  for (int j = 1; j <= n; ++j) column_of[at(row_of[at(j)] - 1)] = j - 1;
  return column_of;
}

Placement search_flat(const EplbShape& s, const EplbHistory& h, const EplbSearch& search) {
  // Half of the evaluations for each start, so that neither can starve the other.
  int64_t first = search.evaluations / 2, second = search.evaluations / 2;
  const Placement a = local_search(s, h, average_greedy(s, h), &first);
  const Placement b = local_search(s, h, step_greedy(s, h, search.risk), &second);
  return placement_cost(s, h, b) < placement_cost(s, h, a) ? b : a;
}

// Groups of experts are dealt to the nodes, then each node is a problem of its own.
Placement search_nodes(const EplbShape& s, const EplbHistory& h, const EplbSearch& search) {
  const int per_group = s.experts / s.groups, groups_per_node = s.groups / s.nodes;
  std::vector<double> load(at(s.groups), 0), node_load(at(s.nodes), 0);
  for (size_t i = 0; i < h.load.size(); ++i) load[(i % at(s.experts)) / at(per_group)] += h.load[i];
  std::vector<int> order(at(s.groups));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[at(a)] > load[at(b)]; });
  std::vector<std::vector<int>> groups_of(at(s.nodes));
  for (int g : order) {
    int best = -1;
    for (int n = 0; n < s.nodes; ++n) {
      if (static_cast<int>(groups_of[at(n)].size()) >= groups_per_node) continue;
      if (best < 0 || node_load[at(n)] < node_load[at(best)]) best = n;
    }
    groups_of[at(best)].push_back(g);
    node_load[at(best)] += load[at(g)];
  }
  Placement out;
  for (int n = 0; n < s.nodes; ++n) {
    std::vector<int> experts;
    for (int g : groups_of[at(n)]) {
      for (int e = 0; e < per_group; ++e) experts.push_back(g * per_group + e);
    }
    EplbShape part{static_cast<int>(experts.size()), s.ranks / s.nodes, s.slots, 1, 1};
    EplbHistory sub{part.experts, {}};
    for (int t = 0; t < h.steps(); ++t) {
      for (int e : experts) sub.load.push_back(h.load[at(t) * at(s.experts) + at(e)]);
    }
    for (int e : search_flat(part, sub, search).slot) out.slot.push_back(experts[at(e)]);
  }
  return out;
}

}  // namespace

Placement local_search(const EplbShape& s, const EplbHistory& h, Placement start, int64_t* evaluations,
                       double per_slot) {
  if (h.steps() == 0) return start;
  return Search(s, h, std::move(start), evaluations, per_slot).run();
}

Placement relabel(const EplbShape& s, const Placement& current, const Placement& wanted) {
  std::vector<std::vector<double>> cost(at(s.ranks), std::vector<double>(at(s.ranks), 0));
  std::vector<std::vector<int>> had(at(s.ranks), std::vector<int>(at(s.experts), 0));
  for (size_t i = 0; i < current.slot.size(); ++i) ++had[i / at(s.slots)][at(current.slot[i])];
  // Ranks may only change names inside their node.
  const int per_node = s.ranks / s.nodes;
  for (int from = 0; from < s.ranks; ++from) {
    for (int to = 0; to < s.ranks; ++to) {
      double shared = 0;
      for (int i = from * s.slots; i < (from + 1) * s.slots; ++i)
        shared += had[at(to)][at(wanted.slot[at(i)])] > 0;
      cost[at(from)][at(to)] = from / per_node == to / per_node || s.nodes == 1 ? -shared : 1e6;
    }
  }
  const std::vector<int> to = assignment(cost);
  Placement out;
  out.slot.assign(wanted.slot.size(), -1);
  for (int from = 0; from < s.ranks; ++from) {
    const int base = to[at(from)] * s.slots;
    std::vector<int> rest;
    for (int i = from * s.slots; i < (from + 1) * s.slots; ++i) {
      const int e = wanted.slot[at(i)];
      bool kept = false;
      for (int k = base; k < base + s.slots && !kept; ++k) {
        if (current.slot[at(k)] == e && out.slot[at(k)] < 0) {
          out.slot[at(k)] = e;
          kept = true;
        }
      }
      if (!kept) rest.push_back(e);
    }
    int k = base;
    for (int e : rest) {
      while (out.slot[at(k)] >= 0) ++k;
      out.slot[at(k)] = e;
    }
  }
  return out;
}

const char* name(EplbReason reason) {
  switch (reason) {
    case EplbReason::kFirst:
      return "first";
    case EplbReason::kBetter:
      return "better";
    case EplbReason::kNotWorthIt:
      return "not worth it";
    case EplbReason::kNoHistory:
      return "no history";
  }
  return "?";
}

EplbDecision decide_experts(const EplbShape& s, const EplbHistory& history, const Placement& current,
                            const EplbSearch& search) {
  DI_CHECK(problem(s).empty(), problem(s));
  EplbDecision out;
  const EplbHistory h = compress(history, search.compress_to);
  const bool first = current.slot.empty();
  if (h.steps() == 0) {
    out.placement =
        first ? average_greedy(s, EplbHistory{s.experts, std::vector<float>(at(s.experts), 1)}) : current;
    return out;
  }
  Placement best = s.nodes > 1 ? search_nodes(s, h, search) : search_flat(s, h, search);
  if (first) {
    out.reason = EplbReason::kFirst;
    out.placement = best;
    out.old_cost = out.new_cost = placement_cost(s, h, best);
    return out;
  }
  out.old_cost = placement_cost(s, h, current);
  // Also from where we are: often nearly as good and little moves.
  int64_t evaluations = search.evaluations / 4;
  const Placement near =
      s.nodes > 1 ? current : local_search(s, h, current, &evaluations, search.migration_cost);
  auto total = [&](const Placement& p) {
    return placement_cost(s, h, p) + search.migration_cost * static_cast<double>(moved_slots(s, current, p));
  };
  best = relabel(s, current, best);
  if (total(near) <= total(best)) best = near;
  out.new_cost = placement_cost(s, h, best);
  out.moved = moved_slots(s, current, best);
  const double needed =
      std::max(search.least_gain * out.old_cost, search.migration_cost * static_cast<double>(out.moved));
  if (out.old_cost - out.new_cost >= needed && out.moved > 0) {
    out.reason = EplbReason::kBetter;
    out.placement = best;
  } else {
    out.reason = EplbReason::kNotWorthIt;
    out.placement = current;
    out.new_cost = out.old_cost;
    out.moved = 0;
  }
  return out;
}

}  // namespace deepinfer::policy
