// The two phases of the rule, on books that are kept in sums.
#include "policy/decode_balancer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer::policy {

DecodeBalancerState make_decode_balancer(const DecodeConfig& config, int groups, int ranks,
                                         int64_t free_tokens) {
  DI_CHECK(groups >= 0 && ranks >= 1 && free_tokens >= 0, "a group has ranks");
  DecodeBalancerState s;
  s.config = config;
  DecodeGroup g;
  g.ranks.assign(static_cast<size_t>(ranks), RankLoad{0, 0, free_tokens});
  g.free_tokens = free_tokens * ranks;
  s.groups.assign(static_cast<size_t>(groups), g);
  return s;
}

namespace {

DecodeGroup& group_of(DecodeBalancerState* s, int group) {
  return s->groups[static_cast<size_t>(group)];
}

void book(DecodeGroup* g, int rank, int64_t requests, int64_t tokens) {
  RankLoad& r = g->ranks[static_cast<size_t>(rank)];
  r.requests += requests;
  r.tokens += tokens;
  r.free_tokens -= tokens;
  g->tokens += tokens;
  g->free_tokens -= tokens;
}

struct Apply {
  DecodeBalancerState* s;
  void operator()(const DecodeQueued& e) const {
    DecodeGroup& g = group_of(s, e.group);
    g.queue.push_back({e.seq, e.tokens});
    g.queued_tokens += e.tokens;
  }
  void operator()(const DecodePlaced& e) const {
    DecodeGroup& g = group_of(s, e.group);
    for (const DecodeAssignment& a : e.assigned) {
      DI_CHECK(!g.queue.empty() && g.queue.front().seq == a.seq, "a placement adopts the head of the queue");
      g.queue.pop_front();
      g.queued_tokens -= a.tokens;
      book(&g, a.rank, 1, a.tokens);
      g.next_rank = (a.rank + 1) % static_cast<int>(g.ranks.size());
    }
  }
  void operator()(const DecodeGrew& e) const { book(&group_of(s, e.group), e.rank, 0, e.tokens); }
  void operator()(const DecodeReleased& e) const { book(&group_of(s, e.group), e.rank, -1, -e.tokens); }
  void operator()(const DecodeDropped& e) const {
    DecodeGroup& g = group_of(s, e.group);
    auto it =
        std::find_if(g.queue.begin(), g.queue.end(), [&](const WaitingDecode& w) { return w.seq == e.seq; });
    if (it == g.queue.end()) return;
    g.queued_tokens -= it->tokens;
    g.queue.erase(it);
  }
  void operator()(const DecodeReported& e) const {
    DecodeGroup& g = group_of(s, e.group);
    RankLoad& r = g.ranks[static_cast<size_t>(e.rank)];
    g.tokens += e.load.tokens - r.tokens;
    g.free_tokens += e.load.free_tokens - r.free_tokens;
    r = e.load;
  }
  void operator()(const DecodeGroupOpened& e) const { group_of(s, e.group).open = e.open; }
};

// What the rule looks at: a rank's load with what this decision has already given it.
struct View {
  const DecodeGroup& g;
  std::vector<RankLoad> changed;  // only when the queue has more than one request
  const RankLoad& at(size_t i) const { return changed.empty() ? g.ranks[i] : changed[i]; }
};

// The first of the ranks with room and at most `upto` tokens that has the least of kFirst, and among these
// the least of kSecond; null if there is none. Without branches on loads, which nothing can predict: this
// runs once per request over all ranks.
template <int64_t RankLoad::* kFirst, int64_t RankLoad::* kSecond>
const RankLoad* least_of(const RankLoad* ranks, size_t n, int64_t need, int64_t upto) {
  int64_t first = INT64_MAX, second = INT64_MAX;
  size_t chosen = n;
  for (size_t i = 0; i < n; ++i) {
    const RankLoad& r = ranks[i];
    const bool less = (r.*kFirst < first) | ((r.*kFirst == first) & (r.*kSecond < second));
    const bool better = (r.free_tokens >= need) & (r.tokens <= upto) & less;
    first = better ? r.*kFirst : first;
    second = better ? r.*kSecond : second;
    chosen = better ? i : chosen;
  }
  return chosen < n ? ranks + chosen : nullptr;
}

int choose(const DecodeConfig& c, const View& v, const WaitingDecode& w, double limit, int next) {
  const size_t n = v.g.ranks.size();
  const int64_t need = w.tokens + c.reserve_tokens;
  if (c.rule == DecodeRule::kRoundRobin) {
    for (size_t k = 0; k < n; ++k) {
      const size_t i = (k + static_cast<size_t>(next)) % n;
      if (v.at(i).free_tokens >= need) return static_cast<int>(i);
    }
    return -1;
  }
  // A rank is low while tokens + length <= limit, in whole tokens. The comparison rules are limits at the
  // ends.
  int64_t low_upto = static_cast<int64_t>(std::floor(limit)) - w.tokens;
  if (c.rule == DecodeRule::kCountOnly) low_upto = INT64_MAX;
  if (c.rule == DecodeRule::kTokensOnly) low_upto = -1;
  const RankLoad* ranks = v.changed.empty() ? v.g.ranks.data() : v.changed.data();
  const RankLoad* chosen = least_of<&RankLoad::requests, &RankLoad::tokens>(ranks, n, need, low_upto);
  if (chosen == nullptr) chosen = least_of<&RankLoad::tokens, &RankLoad::requests>(ranks, n, need, INT64_MAX);
  return chosen != nullptr ? static_cast<int>(chosen - ranks) : -1;
}

}  // namespace

void apply(DecodeBalancerState* state, const DecodeEvent& event) {
  std::visit(Apply{state}, event);
}

int decide_group(const DecodeBalancerState& state) {
  int best = -1;
  int64_t least = 0;
  for (size_t i = 0; i < state.groups.size(); ++i) {
    const DecodeGroup& g = state.groups[i];
    const int64_t tokens = g.tokens + g.queued_tokens;
    if (g.open && (best < 0 || tokens < least)) {
      best = static_cast<int>(i);
      least = tokens;
    }
  }
  return best;
}

DecodeDecision decide_decode(const DecodeBalancerState& state, int group) {
  const DecodeGroup& g = state.groups[static_cast<size_t>(group)];
  DecodeDecision out;
  if (g.queue.empty()) return out;
  if (!g.open) {
    out.reason = DecodeReason::kClosed;
    return out;
  }
  // As if there were no fragmentation: the longest prefix that the group's free tokens hold.
  size_t count = 0;
  int64_t length = 0;
  while (count < g.queue.size() && length + g.queue[count].tokens <= g.free_tokens)
    length += g.queue[count++].tokens;
  out.limit_tokens =
      state.config.slack * static_cast<double>(length + g.tokens) / static_cast<double>(g.ranks.size());
  out.reason = count == 0 ? DecodeReason::kNoRoom : DecodeReason::kPlaced;
  View view{g, {}};
  if (count > 1) view.changed = g.ranks;
  int next = g.next_rank;
  for (size_t i = 0; i < count; ++i) {
    const WaitingDecode& w = g.queue[i];
    const int rank = choose(state.config, view, w, out.limit_tokens, next);
    if (rank < 0) {
      out.reason = DecodeReason::kNoRoom;
      break;
    }
    out.assigned.push_back({w.seq, rank, w.tokens});
    next = (rank + 1) % static_cast<int>(g.ranks.size());
    if (count > 1) {
      RankLoad& r = view.changed[static_cast<size_t>(rank)];
      r.requests += 1;
      r.tokens += w.tokens;
      r.free_tokens -= w.tokens;
    }
  }
  return out;
}

std::string broken_invariant(const DecodeBalancerState& state) {
  for (size_t i = 0; i < state.groups.size(); ++i) {
    const DecodeGroup& g = state.groups[i];
    int64_t tokens = 0, free_tokens = 0, queued = 0;
    for (const RankLoad& r : g.ranks) {
      if (r.requests < 0 || r.tokens < 0 || r.free_tokens < 0)
        return "a load below zero in group " + std::to_string(i);
      tokens += r.tokens;
      free_tokens += r.free_tokens;
    }
    for (const WaitingDecode& w : g.queue) queued += w.tokens;
    if (tokens != g.tokens || free_tokens != g.free_tokens || queued != g.queued_tokens) {
      return "the sums of group " + std::to_string(i) + " are not those of its ranks";
    }
  }
  return "";
}

}  // namespace deepinfer::policy
