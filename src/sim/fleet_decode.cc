// Decode groups: places chosen early, hand-offs by the transfer machines, steps of whole groups.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

using policy::Party;
using policy::SeqId;

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

SeqId seq_of(uint32_t slot, uint32_t generation) {
  return SeqId{(uint64_t{generation} << 32) | slot};
}

}  // namespace

void Machines::take(const RestingTransfer& r) {
  control.phase = r.control_phase;
  control.epoch = r.control_epoch;
  control.over = r.control_over;
  control.prompt_tokens = r.prompt;
  control.delivered = r.passed;
  control.source_open = r.source_open;
  control.destination_open = r.destination_open;
  control.dropped_tokens = r.dropped;
  source.phase = r.source_phase;
  source.epoch = r.source_epoch;
  source.closed = r.source_closed;
  source.tokens = r.source_tokens;
  source.pinned = r.pinned;
  destination.phase = r.phase;
  destination.epoch = r.epoch;
  destination.closed = r.closed;
  destination.tokens = r.tokens;
  destination.next_token = r.next_token;
  destination.reserved = r.reserved;
  destination.registered = r.registered;
  destination.confirmed = r.confirmed;
  destination.finished = r.finished;
}

RestingTransfer Machines::rest() const {
  RestingTransfer r;
  r.control_phase = control.phase;
  r.control_epoch = control.epoch;
  r.control_over = control.over;
  r.prompt = static_cast<int32_t>(control.prompt_tokens);
  r.passed = static_cast<int32_t>(control.delivered);
  r.source_open = control.source_open;
  r.destination_open = control.destination_open;
  r.dropped = static_cast<int32_t>(control.dropped_tokens);
  r.source_phase = source.phase;
  r.source_epoch = source.epoch;
  r.source_closed = source.closed;
  r.source_tokens = static_cast<int32_t>(source.tokens);
  r.pinned = source.pinned;
  r.phase = destination.phase;
  r.epoch = destination.epoch;
  r.closed = destination.closed;
  r.tokens = static_cast<int32_t>(destination.tokens);
  r.next_token = static_cast<int32_t>(destination.next_token);
  r.reserved = destination.reserved;
  r.registered = destination.registered;
  r.confirmed = destination.confirmed;
  r.finished = destination.finished;
  return r;
}

// Lets one machine begin, and hears everything they say to each other at once: what delays there are, the
// caller has added already. The machines are those of the request that was taken.
template <typename Begin>
void Fleet::converse(Begin begin) {
  std::vector<policy::TransferMessage>* const boxes[] = {&machines_.control.outbox, &machines_.source.outbox,
                                                         &machines_.destination.outbox};
  begin();
  for (bool said = true; said;) {
    said = false;
    for (auto* box : boxes) {
      if (box->empty()) continue;
      said = true;
      const policy::TransferMessage m = box->back();
      box->pop_back();
      if (m.to == Party::kControl) {
        policy::apply(&machines_.control, m);
      } else if (m.to == Party::kSource) {
        policy::apply(&machines_.source, m);
      } else {
        policy::apply(&machines_.destination, m);
      }
    }
  }
}

void Fleet::cancel_hand_off(Live* l) {
  machines_.take(l->transfer);
  converse([&] { policy::apply(&machines_.control, policy::ControlEvent::kClientCancelled); });
  check(policy::settled(machines_.control) && !machines_.source.pinned && !machines_.destination.reserved,
        "nothing is held for a client that left");
  l->transfer = machines_.rest();
}

// Chooses where it will decode when its prompt begins, so that layers can be sent as they come.
void Fleet::reserve(uint32_t slot) {
  Live& l = live_[slot];
  const int group = policy::decide_group(decode_);
  l.group = group;
  l.decode_rank = -1;
  if (group < 0) {
    // No group is open: look again in a second. While its prompt runs, its end will look.
    if (l.stage == Stage::kHandOff && l.ready_ns <= now_)
      events_.push(now_ + 1'000'000'000, kHandOff, slot, l.generation);
    return;
  }
  policy::apply(&decode_, policy::DecodeQueued{group, seq_of(slot, l.generation), l.booked});
  place(group);
}

void Fleet::place(int group) {
  policy::DecodeDecision d = policy::decide_decode(decode_, group);
  if (d.assigned.empty()) return;
  const policy::DecodePlaced placed{group, std::move(d.assigned)};
  policy::apply(&decode_, placed);
  for (const policy::DecodeAssignment& a : placed.assigned) {
    const uint32_t slot = static_cast<uint32_t>(raw(a.seq));
    Live& l = live_[slot];
    l.decode_rank = a.rank;
    machines_.take({});
    machines_.control.prompt_tokens = l.input;
    converse([&] { policy::apply(&machines_.control, policy::ControlEvent::kBegin); });
    check(machines_.source.pinned && machines_.destination.reserved,
          "a prepared hand-off is held at both ends");
    l.transfer = machines_.rest();
    // The prompt was done before there was a place: it has waited here.
    if (l.stage == Stage::kHandOff && l.ready_ns <= now_) events_.push(now_, kHandOff, slot, l.generation);
  }
}

void Fleet::hand_off(uint32_t slot) {
  Live& l = live_[slot];
  if (l.stage != Stage::kHandOff || l.ready_ns > now_) return;  // its link failed: it comes later
  if (l.group < 0) {
    reserve(slot);
    return;
  }
  if (l.decode_rank < 0) return;  // place() comes back to it
  machines_.take(l.transfer);
  converse([&] { policy::apply(&machines_.source, policy::SourceEvent::kComputed); });
  check(policy::may_emit(machines_.destination) && !machines_.source.pinned,
        "after the commit the destination owns");
  converse([&] { policy::apply(&machines_.destination, policy::DestinationEvent::kEmit); });
  l.transfer = machines_.rest();
  const int engine = l.engine;
  join(slot);
  drained(engine, policy::DrainTransferEnded{});
}

// The first token leaves with the hand-off; the rest comes in steps.
void Fleet::join(uint32_t slot) {
  Live& l = live_[slot];
  Group& g = groups_[at(l.group)];
  l.stage = Stage::kDecode;
  if (l.delivered == 0) l.first_token_ns = now_;
  if (l.moved_ns > 0)
    out_.longest_gap_s = std::max(out_.longest_gap_s, static_cast<double>(now_ - l.moved_ns) * 1e-9);
  l.moved_ns = 0;
  if (g.draining) policy::apply(&g.drain, policy::DrainRequestStarted{});
  enter_rank(slot);
  if (!g.stepping) start_decode(l.group);
}

void Fleet::start_decode(int group) {
  Group& g = groups_[at(group)];
  if (!g.up || g.active == 0) return;
  double slowest = 0, sum = 0, rows = 0;
  int64_t most_r = 0, most_t = 0;
  const size_t gpus = static_cast<size_t>(g.instance.gpus);
  for (size_t i = 0; i < gpus; ++i) {
    const policy::RankLoad& r = g.ranks[i];
    follow_budget(group, i);
    const double cost = verify_.step_ns(g.verifying[i].rows, static_cast<double>(r.tokens));
    rows += g.verifying[i].rows;
    slowest = std::max(slowest, cost);
    sum += cost;
    most_r = std::max(most_r, r.requests);
    most_t = std::max(most_t, r.tokens);
  }
  const double n = static_cast<double>(gpus), balance = sum / n / slowest;
  const double moe = moe_steps_[static_cast<size_t>(random_.bits() % moe_steps_.size())];
  const double step_ns = slowest * moe;
  g.stepping = true;
  g.stepping_active = g.active;
  g.stepping_pace = g.pace;
  g.step_began_ns = now_;
  events_.push(now_ + static_cast<int64_t>(step_ns), kDecodeStep, static_cast<uint32_t>(group), g.generation);
  if (!measuring() || ended_) return;
  ++balance_steps_;
  balance_sum_ += balance;
  moe_sum_ += moe;
  spread_r_ += static_cast<double>(most_r) * n / static_cast<double>(g.active);
  spread_t_ += static_cast<double>(most_t) * n / static_cast<double>(std::max<int64_t>(1, g.tokens));
  requests_ns_ += static_cast<double>(g.active) * step_ns;
  tokens_ns_ += static_cast<double>(g.tokens) * step_ns;
  rank_ns_ += n * step_ns;
  pace_steps_ += g.pace;
  draft_steps_ += rows - static_cast<double>(g.active);
  active_steps_ += static_cast<double>(g.active);
}

void Fleet::end_decode(int group) {
  Group& g = groups_[at(group)];
  g.stepping = false;
  ++g.step;
  ++out_.decode_steps;
  out_.request_steps += g.stepping_active;
  if (measuring() && g.step_began_ns < end_ns_) {
    const double part = static_cast<double>(std::min(now_, end_ns_) - std::max(warm_ns_, g.step_began_ns));
    busy_decode_ns_ += part;
    decode_tokens_ +=
        g.stepping_pace * part / static_cast<double>(std::max<int64_t>(1, now_ - g.step_began_ns));
  }
  g.endings.take(g.step, &ending_);
  constexpr size_t kAhead = 3;
  for (size_t i = 0; i < std::min(kAhead, ending_.size()); ++i) prefetch(live_[ending_[i].slot]);
  for (size_t i = 0; i < ending_.size(); ++i) {
    if (i + kAhead < ending_.size()) prefetch(live_[ending_[i + kAhead].slot]);
    const Ending e = ending_[i];
    if (live_[e.slot].generation == e.generation && has_all_tokens(e.slot)) complete(e.slot);
  }
  if (g.draining) advance_drain(true, group);
  place(group);
  start_decode(group);
}

// Something of a draining prefill engine is over.
void Fleet::drained(int engine, const policy::DrainEvent& event) {
  if (engine < 0 || !engines_[at(engine)].draining) return;
  policy::apply(&engines_[at(engine)].drain, event);
  advance_drain(false, engine);
}

void Fleet::complete(uint32_t slot) {
  Live& l = live_[slot];
  const int group = l.group;
  machines_.take(l.transfer);
  converse([&] { policy::apply(&machines_.destination, policy::DestinationEvent::kEmitLast); });
  check(machines_.control.phase == policy::ControlPhase::kDone && policy::settled(machines_.control),
        "a finished hand-off is settled");
  check(!machines_.source.pinned && !machines_.destination.reserved, "nothing stays pinned");
  ++out_.events;  // a completion, found at the end of a step
  const double beyond = gained(l, groups_[at(group)].step) - static_cast<double>(l.output - 1);
  leave_rank(slot);
  if (groups_[at(group)].draining) policy::apply(&groups_[at(group)].drain, policy::DrainRequestEnded{});
  release(slot);
  const int64_t output = l.output + l.delivered;
  check(output == l.asked, "every token is delivered once");
  policy::apply(&admission_,
                policy::AdmissionReleased{policy::TenantId{l.tenant}, now_, l.input + l.output, 0});
  if (measuring() && now_ <= end_ns_) {
    // What its last step was expected to bring beyond its end is not given to anybody.
    decode_tokens_ -= beyond;
    const int64_t ttft = l.first_token_ns - l.arrived_ns;
    const int64_t tpot = (now_ - l.first_token_ns) / std::max<int64_t>(1, output - 1);
    out_.ttft_ns.add(ttft);
    out_.tpot_ns.add(tpot);
    out_.e2e_ns.add(now_ - l.arrived_ns);
    ++out_.completed;
    out_.output_tokens += output;
    const bool good = static_cast<double>(ttft) <= config_.ttft_slo_s * 1e9 &&
                      static_cast<double>(tpot) <= config_.tpot_slo_ms * 1e6;
    out_.within_slo += good;
    if (good) out_.good_output_tokens += output;
  }
  free_slot(slot);
}

void Fleet::release(uint32_t slot) {
  Live& l = live_[slot];
  if (l.decode_rank >= 0) {
    policy::apply(&decode_, policy::DecodeReleased{l.group, l.decode_rank, l.booked});
  } else if (l.group >= 0) {
    policy::apply(&decode_, policy::DecodeDropped{l.group, seq_of(slot, l.generation)});
  }
  l.group = l.decode_rank = -1;
}

}  // namespace deepinfer::sim
