// What decode ranks verify: budgets decided for the requests that are there, and what they mean for when each
// of them ends.
#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

// Numbers of requests that share a budget: single ones up to sixteen, then eighths of a power of two.
size_t bucket_of(int64_t requests) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(requests))) - 4);
  return static_cast<size_t>(8 * shift + (requests >> shift));
}

double rate(const VerifyingKind& k) {
  return static_cast<double>(k.pace);
}

// Tokens that a request of a kind has been expected to gain on a rank until a step begins.
double expected(const VerifyingKind& k, int64_t since_step, int64_t step) {
  return k.gained + rate(k) * static_cast<double>(step - since_step);
}

}  // namespace

// A request takes its place among those that decode.
void Fleet::enter_rank(uint32_t slot) {
  Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  policy::RankLoad& load = g.ranks[at(l.decode_rank)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  l.kind = verify_.kind_of(random_.unit());
  const double luck = random_.roughly_normal();
  ++g.active;
  g.tokens += l.booked;
  ++load.requests;
  load.tokens += l.booked;
  if (load.requests == 1) follow_budget(l.group, at(l.decode_rank), l.kind);
  VerifyingKind& k = v.kinds[l.kind];
  ++k.count;
  const double pace = rate(k), drafts = static_cast<double>(k.drafts);
  v.rows += 1 + drafts;
  g.pace += pace;
  // Its luck: how many tokens it has to expect until those it asks for are there.
  const double left = static_cast<double>(l.output - 1);
  const double spread = std::sqrt(left) * static_cast<double>(k.deviation);
  l.demand = static_cast<float>(std::max(0.25 * left, left + luck * spread));
  const int64_t from = g.step + (g.stepping ? 1 : 0);
  l.gained_before = expected(k, v.since_step, from);
  schedule_end(slot, from);
}

void Fleet::leave_rank(uint32_t slot) {
  const Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  policy::RankLoad& load = g.ranks[at(l.decode_rank)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  VerifyingKind& k = v.kinds[l.kind];
  check(k.count > 0, "a rank knows its requests");
  --k.count;
  --g.active;
  g.tokens -= l.booked;
  --load.requests;
  load.tokens -= l.booked;
  v.rows = load.requests == 0 ? 0 : v.rows - 1 - static_cast<double>(k.drafts);
  g.pace = g.active == 0 ? 0 : g.pace - rate(k);
}

// Tokens a request has been expected to gain since it joined.
double Fleet::gained(const Live& l, int64_t step) const {
  const Verifying& v = groups_[at(l.group)].verifying[at(l.decode_rank)];
  return expected(v.kinds[l.kind], v.since_step, step) - l.gained_before;
}

// When its tokens should be there at the pace of now. If the pace falls meanwhile it gets further steps; if
// it rises it ends as late as this, by the few per cent that budgets change within its life.
void Fleet::schedule_end(uint32_t slot, int64_t from) {
  const Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  const double left = static_cast<double>(l.demand) - gained(l, from);
  const double steps = std::ceil(left / rate(g.verifying[at(l.decode_rank)].kinds[l.kind]) - 1e-6);
  g.endings.push(from + std::max<int64_t>(1, static_cast<int64_t>(steps)), slot, l.generation);
}

// False: it needs further steps, and is looked at again.
bool Fleet::has_all_tokens(uint32_t slot) {
  const Live& l = live_[slot];
  const Group& g = groups_[at(l.group)];
  if (gained(l, g.step) >= static_cast<double>(l.demand) - 1e-3) return true;
  schedule_end(slot, g.step);
  return false;
}

// Of its tokens, how many it has had since it joined.
int64_t Fleet::tokens_had(const Live& l) const {
  const double had = gained(l, groups_[at(l.group)].step);
  const double share = l.demand > 0 ? std::clamp(had / static_cast<double>(l.demand), 0.0, 1.0) : 0;
  return std::min<int64_t>(l.output - 1, 1 + static_cast<int64_t>(share * static_cast<double>(l.output - 1)));
}

// Ranks of a group with about as many requests share a budget, which one of them decides anew when it is
// verify_every steps old: requests stay for about as long. `first`: the kind of who enters an empty rank.
void Fleet::follow_budget(int group, size_t rank, int first) {
  Group& g = groups_[at(group)];
  Verifying& v = g.verifying[rank];
  const int64_t requests = g.ranks[rank].requests;
  if (requests == 0) return;
  const size_t bucket = bucket_of(requests);
  if (bucket >= g.budgets.size()) g.budgets.resize(bucket + 1);
  Budget& b = g.budgets[bucket];
  if (b.decided_step < 0 || b.decided_step + config_.verify_every <= g.step) {
    kinds_.assign(first < 0 ? 0 : 1, static_cast<uint8_t>(first));
    for (int k = 0; k < VerifyModel::kKinds; ++k)
      kinds_.insert(kinds_.end(), at(v.kinds[at(k)].count), static_cast<uint8_t>(k));
    b = {verify_.decide(kinds_, g.ranks[rank].tokens), g.step};
    ++out_.budgets;
  } else if (v.bucket == bucket && v.decided_step == b.decided_step) {
    return;
  }
  // Between two steps of the group: what was gained until now at the old pace, what comes at the new one.
  double rows = 0, pace = 0, before = 0;
  const int64_t now = g.step;
  for (size_t i = 0; i < v.kinds.size(); ++i) {
    VerifyingKind& k = v.kinds[i];
    const double n = k.count;
    k.gained = expected(k, v.since_step, now);
    before += n * rate(k);
    k.drafts = b.plan.drafts[i];
    k.pace = b.plan.pace[i];
    k.deviation = b.plan.deviation[i];
    rows += n * (1 + static_cast<double>(k.drafts));
    pace += n * rate(k);
  }
  v.since_step = now;
  v.bucket = bucket;
  v.decided_step = b.decided_step;
  v.rows = rows;
  g.pace += pace - before;
}

}  // namespace deepinfer::sim
