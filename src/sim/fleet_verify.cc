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

double rate(const VerifyModel::Plan& plan, uint8_t kind) {
  return static_cast<double>(plan.pace[kind]);
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
  ++v.count[l.kind];
  const double pace = rate(v.plan, l.kind), drafts = static_cast<double>(v.plan.drafts[l.kind]);
  v.rows += 1 + drafts;
  g.pace += pace;
  // Its luck: how many tokens it has to expect until those it asks for are there.
  const double left = static_cast<double>(l.output - 1);
  const double spread = std::sqrt(left) * static_cast<double>(v.plan.deviation[l.kind]);
  l.demand = static_cast<float>(std::max(0.25 * left, left + luck * spread));
  const int64_t from = g.step + (g.stepping ? 1 : 0);
  l.gained_before = expected(v, l.kind, from);
  schedule_end(slot, from);
}

void Fleet::leave_rank(uint32_t slot) {
  const Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  policy::RankLoad& load = g.ranks[at(l.decode_rank)];
  Verifying& v = g.verifying[at(l.decode_rank)];
  check(v.count[l.kind] > 0, "a rank knows its requests");
  --v.count[l.kind];
  --g.active;
  g.tokens -= l.booked;
  --load.requests;
  load.tokens -= l.booked;
  v.rows = load.requests == 0 ? 0 : v.rows - 1 - static_cast<double>(v.plan.drafts[l.kind]);
  g.pace = g.active == 0 ? 0 : g.pace - rate(v.plan, l.kind);
}

// Tokens that a request of a kind has been expected to gain on a rank until a step begins.
double Fleet::expected(const Verifying& v, uint8_t kind, int64_t step) const {
  return v.gained[kind] + rate(v.plan, kind) * static_cast<double>(step - v.since_step);
}

// When its tokens should be there at the pace of now. If the pace falls meanwhile it gets further steps; if
// it rises it ends as late as this, by the few per cent that budgets change within its life.
void Fleet::schedule_end(uint32_t slot, int64_t from) {
  const Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  const Verifying& v = g.verifying[at(l.decode_rank)];
  const double left = static_cast<double>(l.demand) - (expected(v, l.kind, from) - l.gained_before);
  const double steps = std::ceil(left / rate(v.plan, l.kind) - 1e-6);
  g.endings.push({from + std::max<int64_t>(1, static_cast<int64_t>(steps)), slot, l.generation});
}

// False: it needs further steps, and is looked at again.
bool Fleet::has_all_tokens(uint32_t slot) {
  const Live& l = live_[slot];
  const Group& g = groups_[at(l.group)];
  const double gained = expected(g.verifying[at(l.decode_rank)], l.kind, g.step) - l.gained_before;
  if (gained >= static_cast<double>(l.demand) - 1e-3) return true;
  schedule_end(slot, g.step);
  return false;
}

// Of its tokens, how many it has had since it joined.
int64_t Fleet::tokens_had(const Live& l) const {
  const Group& g = groups_[at(l.group)];
  const double gained = expected(g.verifying[at(l.decode_rank)], l.kind, g.step) - l.gained_before;
  const double share = l.demand > 0 ? std::clamp(gained / static_cast<double>(l.demand), 0.0, 1.0) : 0;
  return std::min(l.output - 1, 1 + static_cast<int64_t>(share * static_cast<double>(l.output - 1)));
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
      kinds_.insert(kinds_.end(), at(v.count[at(k)]), static_cast<uint8_t>(k));
    b = {verify_.decide(kinds_, g.ranks[rank].tokens), g.step};
    ++out_.budgets;
  } else if (v.bucket == bucket && v.decided_step == b.decided_step) {
    return;
  }
  // Between two steps of the group: what was gained until now at the old pace, what comes at the new one.
  double rows = 0, pace = 0, before = 0;
  const int64_t now = g.step;
  for (uint8_t k = 0; k < VerifyModel::kKinds; ++k) {
    const double n = v.count[k];
    v.gained[k] = expected(v, k, now);
    before += n * rate(v.plan, k);
    rows += n * (1 + static_cast<double>(b.plan.drafts[k]));
    pace += n * rate(b.plan, k);
  }
  v.plan = b.plan;
  v.since_step = now;
  v.bucket = bucket;
  v.decided_step = b.decided_step;
  v.rows = rows;
  g.pace += pace - before;
}

}  // namespace deepinfer::sim
