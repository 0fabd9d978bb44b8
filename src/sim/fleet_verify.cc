// What decode ranks verify: budgets decided for the requests that are there, and what they mean for when each
// of them ends.
#include <algorithm>
#include <cmath>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

}  // namespace

// A request takes its place; its rank decides at once if nobody was there.
void Fleet::enter_rank(uint32_t slot) {
  Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  policy::RankLoad& load = g.ranks[at(l.decode_rank)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  l.kind = verify_.kind_of(random_.unit());
  l.luck = static_cast<float>(random_.roughly_normal());
  l.pace = l.drafts = l.done = l.demand = 0;
  l.place = static_cast<uint32_t>(v.members.size());
  v.members.push_back(slot);
  ++v.rows;
  ++g.active;
  g.tokens += l.booked;
  ++load.requests;
  load.tokens += l.booked;
  if (v.members.size() == 1) {
    decide_drafts(l.group, at(l.decode_rank));
  } else {
    set_pace(slot);
  }
}

// What it had of its rank's steps.
void Fleet::leave_rank(uint32_t slot) {
  Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  policy::RankLoad& load = g.ranks[at(l.decode_rank)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  const uint32_t last = v.members.back();
  check(v.members[l.place] == slot, "a rank knows its requests");
  v.members[l.place] = last;
  live_[last].place = l.place;
  v.members.pop_back();
  v.rows = v.members.empty() ? 0 : v.rows - 1 - static_cast<double>(l.drafts);
  --g.active;
  g.pace = g.active == 0 ? 0 : g.pace - static_cast<double>(l.pace);
  g.tokens -= l.booked;
  --load.requests;
  load.tokens -= l.booked;
}

// Due after so many steps, ranks taking turns, or when the rank holds other requests than it decided for.
bool Fleet::budget_is_due(const Group& g, size_t rank) const {
  const int64_t n = g.ranks[rank].requests, was = g.verifying[rank].plan.requests;
  if (n == 0) return false;
  if (std::abs(n - was) > std::max<int64_t>(1, n / 16)) return true;
  const int64_t every = config_.verify_every, ranks = static_cast<int64_t>(g.ranks.size());
  return (g.step + static_cast<int64_t>(rank) * every / ranks) % every == 0;
}

void Fleet::decide_drafts(int group, size_t rank) {
  Group& g = groups_[at(group)];
  Verifying& v = g.verifying[rank];
  std::vector<uint8_t>& kinds = kinds_;
  kinds.clear();
  for (uint32_t slot : v.members) kinds.push_back(live_[slot].kind);
  v.plan = verify_.decide(kinds, g.ranks[rank].tokens);
  ++out_.budgets;
  for (uint32_t slot : v.members) set_pace(slot);
}

// From the group's next step on it goes at what its rank has decided for its kind.
void Fleet::set_pace(uint32_t slot) {
  Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  const float pace = v.plan.pace[l.kind], drafts = v.plan.drafts[l.kind];
  const int64_t from = g.step + (g.stepping ? 1 : 0);
  if (l.pace > 0) {
    if (pace == l.pace) return;
    l.done += l.pace * static_cast<float>(std::max<int64_t>(0, from - l.begin_step));
  } else {
    // Its luck: how many tokens it would have to expect, to get those it asks for.
    const double left = static_cast<double>(l.output - 1), steps = left / static_cast<double>(pace);
    const double spread = std::sqrt(steps * verify_.variance(l.kind, static_cast<double>(drafts)));
    l.demand = static_cast<float>(std::max(0.25 * left, left + static_cast<double>(l.luck) * spread));
  }
  g.pace += static_cast<double>(pace - l.pace);
  v.rows += static_cast<double>(drafts - l.drafts);
  l.pace = pace;
  l.drafts = drafts;
  l.begin_step = from;
  const float steps = std::ceil((l.demand - l.done) / pace);
  l.end_step = from + std::max<int64_t>(1, static_cast<int64_t>(steps));
  g.endings.push({l.end_step, slot, l.generation});
}

// Of its tokens, how many it has had since it joined.
int64_t Fleet::tokens_had(const Live& l) const {
  const int64_t steps = std::max<int64_t>(0, groups_[at(l.group)].step - l.begin_step);
  const double done = static_cast<double>(l.done + l.pace * static_cast<float>(steps));
  const double share = l.demand > 0 ? std::min(1.0, done / static_cast<double>(l.demand)) : 0;
  return std::min(l.output - 1, 1 + static_cast<int64_t>(share * static_cast<double>(l.output - 1)));
}

}  // namespace deepinfer::sim
