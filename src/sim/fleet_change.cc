// What changes about the instances of a fleet: failures and repairs, drains with grace and forwarding,
// starts, the autoscaler carried out, and clients that leave.
#include <algorithm>

#include "sim/fleet_impl.h"

namespace deepinfer::sim {

using policy::DrainRequestForwarded;

namespace {

size_t at(int i) {
  return static_cast<size_t>(i);
}

int64_t ns(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

int Fleet::serving(bool decode) const {
  auto count = [](const auto& list) {
    return static_cast<int>(
        std::count_if(list.begin(), list.end(), [](const auto& x) { return x.up && !x.draining; }));
  };
  return decode ? count(groups_) : count(engines_);
}

// Machines are paid for from their order to start until they are gone.
void Fleet::meter() {
  const int64_t from = std::max(metered_ns_, warm_ns_), upto = std::min(now_, end_ns_);
  for (int d = 0; d < 2 && upto > from; ++d) on_ns_[d] += on_[d] * static_cast<double>(upto - from);
  metered_ns_ = std::max(metered_ns_, now_);
}

// ---- failures

void Fleet::fail(const FailureEvent& f) {
  using What = FailureEvent::What;
  switch (f.what) {
    case What::kStoreNode:
      store_.set_down(f.which, true);
      return;
    case What::kPrefillEngine:
      fail_prefill(f.which);
      return;
    case What::kLink:
      fail_link(f.which, f.for_s);
      return;
    case What::kVisionMachine:
      fail_vision(f.which);
      return;
    case What::kDecodeGroup:
      if (!groups_[at(f.which)].up) return;
      groups_[at(f.which)].failed = true;
      fail_decode(f.which);
      return;
    case What::kDecodeGpu:
      break;
  }
  Group& g = groups_[at(f.which)];
  if (g.instance.healthy == 0) return;
  const bool stopped = g.up || g.starting;
  if (g.up) fail_decode(f.which);
  policy::apply(&g.instance, policy::GpuFailed{});
  if (!stopped) return;
  g.starting = false;
  ++g.life;  // a start under way is void
  // It starts again on what is left, or waits for a repair.
  if (policy::decide_instance(g.instance).load_weights) order_start(true, f.which, config_.start_s);
}

void Fleet::fail_prefill(int engine) {
  Engine& e = engines_[at(engine)];
  if (!e.up) return;
  if (!e.draining) --serving_prefill_;
  e.up = e.stepping = e.draining = false;
  e.failed = true;
  ++e.generation;
  ++e.life;
  e.wake_ns = 0;  // its wake-ups are void with its generation
  e.running.clear();
  policy::apply(&prefill_, policy::PrefillEngineReport{engine, 0, false});
  for (EngineRank& r : e.ranks) {
    std::vector<uint32_t> lost;
    lost.swap(r.queue);
    r.outstanding_ns = 0;
    for (uint32_t slot : lost) {
      ++out_.failed_over;
      requeue(slot);
    }
  }
  offer_work();
}

void Fleet::fail_decode(int group) {
  Group& g = groups_[at(group)];
  g.up = g.stepping = g.draining = false;
  ++g.generation;
  ++g.life;
  policy::apply(&decode_, policy::DecodeGroupOpened{group, false});
  g.endings.clear();
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    Live& l = live_[slot];
    if (l.group != group || l.stage == Stage::kNone) continue;
    if (l.stage != Stage::kDecode && !l.prefilled) {  // its prompt still runs: another place is enough
      release(slot);
      reserve(slot);
      continue;
    }
    // What was computed and generated is in the store as whole blocks; the rest runs again.
    ++out_.failed_over;
    requeue(slot);
  }
  g.active = g.tokens = 0;
  g.pace = 0;
  g.ranks.assign(g.ranks.size(), {});
  // What was gained per step counts on: requests that are moved look at it.
  for (Verifying& v : g.verifying) {
    for (VerifyingKind& k : v.kinds) k.count = 0;
    v.rows = 0;
  }
  offer_work();
}

// What is being sent stops for so long, and what comes after waits behind it.
void Fleet::fail_link(int engine, double for_s) {
  Engine& e = engines_[at(engine)];
  e.link_free_ns = std::max(e.link_free_ns, now_) + ns(for_s);
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    Live& l = live_[slot];
    if (l.stage != Stage::kHandOff || l.engine != engine || l.ready_ns <= now_) continue;
    l.ready_ns += ns(for_s);
    events_.push(l.ready_ns, kHandOff, slot, l.generation);
  }
}

void Fleet::repair(const FailureEvent& f) {
  using What = FailureEvent::What;
  if (f.what == What::kStoreNode) {
    store_.set_down(f.which, false);
  } else if (f.what == What::kVisionMachine) {
    repair_vision(f.which);
  } else if (f.what == What::kPrefillEngine) {
    if (engines_[at(f.which)].failed) start(false, f.which);
  } else if (f.what == What::kDecodeGroup) {
    if (groups_[at(f.which)].failed) start(true, f.which);
  } else if (f.what == What::kDecodeGpu) {
    Group& g = groups_[at(f.which)];
    if (g.instance.healthy >= config_.decode_ranks) return;
    const bool waits = g.instance.phase == policy::InstancePhase::kDown;
    policy::apply(&g.instance, policy::GpuRepaired{});
    if (waits && !g.off && !g.failed && policy::decide_instance(g.instance).load_weights)
      order_start(true, f.which, config_.start_s);
  }
}

// ---- starts

void Fleet::order_start(bool decode, int i, double after_s) {
  Instance& x = instance(decode, i);
  x.starting = true;
  ++x.life;
  events_.push(now_ + ns(after_s), kStart, static_cast<uint32_t>(i), x.life, decode ? 1 : 0);
}

void Fleet::start(bool decode, int i) {
  Instance& x = instance(decode, i);
  if (x.up) return;
  x.starting = x.failed = false;
  // Too few GPUs: it waits for a repair.
  if (decode && !policy::decide_instance(groups_[at(i)].instance).size.feasible) return;
  x.up = true;
  ++out_.started;
  if (!decode) {
    ++serving_prefill_;
    policy::apply(&prefill_, policy::PrefillEngineReport{i, 0, true});
    for (const auto& [slot, generation] : stranded_) {
      if (live_[slot].generation == generation && live_[slot].stage == Stage::kWaiting) assign(i, slot);
    }
    stranded_.clear();
    pull_all(i);
    start_prefill(i);
    return;
  }
  Group& g = groups_[at(i)];
  policy::apply(&g.instance, policy::WeightsLoaded{});
  policy::apply(&g.instance, policy::GraphsWarm{});
  const policy::Resize size = policy::decide_resize(g.instance.rules, g.instance.healthy);
  if (size.feasible && size.gpus != g.instance.gpus) {  // GPUs came back while it ran without them
    const int64_t epoch = g.instance.epoch + 1;
    g.instance = policy::make_instance(g.instance.rules, g.instance.healthy);
    g.instance.epoch = epoch;
  }
  check(decode_.groups[at(i)].tokens == 0, "a group starts empty");
  for (int r = 0; r < config_.decode_ranks; ++r) {
    const int64_t room = r < g.instance.gpus ? config_.decode_tokens_per_rank : 0;
    policy::apply(&decode_, policy::DecodeReported{i, r, {0, 0, room}});
  }
  policy::apply(&decode_, policy::DecodeGroupOpened{i, true});
}

// ---- drains

void Fleet::begin_drain(bool decode, int i, double back_s) {
  Instance& x = instance(decode, i);
  if (!x.up || x.draining) return;
  x.draining = true;
  x.back_s = back_s;
  ++x.life;
  x.drain = {};
  x.drain.role = decode ? policy::EngineRole::kDecode : policy::EngineRole::kPrefill;
  x.drain.grace_ns = ns(config_.drain_grace_s);
  if (decode) {
    policy::apply(&decode_, policy::DecodeGroupOpened{i, false});
  } else {
    --serving_prefill_;
    policy::apply(&prefill_, policy::PrefillEngineReport{i, 0, false});
  }
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    Live& l = live_[slot];
    if (l.stage == Stage::kNone || (decode ? l.group : l.engine) != i) continue;
    if (decode) {
      if (l.decode_rank < 0) {  // no place yet: it finds one elsewhere
        release(slot);
        reserve(slot);
      } else {
        ++(l.stage == Stage::kDecode ? x.drain.running : x.drain.queued);
      }
    } else if (l.stage == Stage::kPrefill) {
      ++(l.begun ? x.drain.running : x.drain.queued);
    } else if (l.stage == Stage::kHandOff) {
      ++x.drain.transfers;
    }
  }
  policy::apply(&x.drain, policy::DrainAsked{now_});
  events_.push(now_ + x.drain.grace_ns, kDrainTick, static_cast<uint32_t>(i), x.life, decode ? 1 : 0);
  advance_drain(decode, i);
}

// Carries out what the policy wants now. What runs is handed on between two steps.
void Fleet::advance_drain(bool decode, int i) {
  Instance& x = instance(decode, i);
  const policy::DrainDecision d = policy::decide_drain(x.drain);
  if (d.forward_queued > 0) decode ? hand_on(i, false) : hand_back(i, false);
  if (d.forward_running > 0 && !x.stepping && x.draining) decode ? hand_on(i, true) : hand_back(i, true);
  if (x.draining && policy::decide_drain(x.drain).exit) gone(decode, i);
}

// A prefill engine's requests, begun or not, go back to the lines.
void Fleet::hand_back(int engine, bool begun) {
  Engine& e = engines_[at(engine)];
  std::vector<uint32_t> leaving;
  for (EngineRank& r : e.ranks) {
    auto stays = [&](uint32_t slot) { return live_[slot].begun != begun; };
    const auto from = std::stable_partition(r.queue.begin(), r.queue.end(), stays);
    for (auto it = from; it != r.queue.end(); ++it) {
      r.outstanding_ns = std::max(0.0, r.outstanding_ns - live_[*it].unbooked_ns);
      leaving.push_back(*it);
    }
    r.queue.erase(from, r.queue.end());
  }
  for (uint32_t slot : leaving) {
    policy::apply(&e.drain, DrainRequestForwarded{!begun});
    requeue(slot);
  }
  if (!leaving.empty()) offer_work();
}

// A decode group's requests go to others: those that decode with the tokens they have had, the rest as they
// are.
void Fleet::hand_on(int group, bool decoding) {
  Group& g = groups_[at(group)];
  for (uint32_t slot = 0; slot < live_.size(); ++slot) {
    Live& l = live_[slot];
    if (l.stage == Stage::kNone || l.group != group || (l.stage == Stage::kDecode) != decoding) continue;
    policy::apply(&g.drain, DrainRequestForwarded{!decoding});
    if (!decoding) {
      release(slot);
      reserve(slot);
      continue;
    }
    leave_rank(slot);
    ++out_.forwarded;
    requeue(slot);
  }
  if (decoding) offer_work();
}

void Fleet::gone(bool decode, int i) {
  Instance& x = instance(decode, i);
  x.draining = x.up = x.stepping = false;  // a step may run for a client that has left
  ++x.life;
  ++out_.drained;
  if (decode) {
    ++groups_[at(i)].generation;
    groups_[at(i)].endings.clear();
    check(groups_[at(i)].active == 0, "who is gone has nothing left");
  } else {
    ++engines_[at(i)].generation;
    engines_[at(i)].wake_ns = 0;
    engines_[at(i)].running.clear();
    for (const EngineRank& r : engines_[at(i)].ranks) check(r.queue.empty(), "who is gone has nothing left");
  }
  if (x.back_s >= 0) {
    order_start(decode, i, x.back_s);
    return;
  }
  meter();
  x.off = true;
  on_[decode ? 1 : 0] -= 1;
}

// ---- clients that leave

void Fleet::cancel(uint32_t slot) {
  Live& l = live_[slot];
  const Stage stage = l.stage;
  const int group = l.group, engine = l.engine;
  const bool placed = l.decode_rank >= 0;
  if (stage == Stage::kVision) {
    seeing_.erase(slot);  // what is being encoded for it is encoded in vain
  } else if (stage == Stage::kWaiting) {
    policy::apply(&prefill_, policy::PrefillCancelled{l.handle});
    leave_line(slot);
  } else if (stage == Stage::kPrefill) {
    EngineRank& rank = engines_[at(engine)].ranks[at(l.rank)];
    rank.queue.erase(std::find(rank.queue.begin(), rank.queue.end(), slot));
    rank.outstanding_ns = std::max(0.0, rank.outstanding_ns - l.unbooked_ns);
    policy::apply(&prefill_, policy::PrefillRan{engine, l.tier, l.unbooked_ns, true});
    --prefilling_;
  } else if (stage == Stage::kDecode) {
    leave_rank(slot);
  }
  if (placed) cancel_hand_off(&l);
  if (group >= 0) release(slot);
  const bool begun = l.begun;
  policy::apply(&admission_,
                policy::AdmissionReleased{policy::TenantId{l.tenant}, now_, l.input + l.output, 0});
  free_slot(slot);
  if (measuring()) ++out_.cancelled;
  if (group >= 0 && groups_[at(group)].draining && placed) {
    if (stage == Stage::kDecode) {
      policy::apply(&groups_[at(group)].drain, policy::DrainRequestEnded{});
    } else {
      policy::apply(&groups_[at(group)].drain, DrainRequestForwarded{true});
    }
    advance_drain(true, group);
  }
  if (stage == Stage::kPrefill && begun) drained(engine, policy::DrainRequestEnded{});
  if (stage == Stage::kPrefill && !begun) drained(engine, DrainRequestForwarded{true});
  if (stage == Stage::kHandOff) drained(engine, policy::DrainTransferEnded{});
  if (group >= 0) place(group);
}

// ---- autoscaler

void Fleet::look() {
  const double queued_s = policy::queued_ns(prefill_) * 1e-9 /
                          static_cast<double>(std::max<int64_t>(1, serving_prefill_) * config_.prefill_ranks);
  policy::apply(&prefill_scaler_, policy::ScalerSample{now_, queued_s, true});
  double load = 0;
  int open = 0;
  for (const policy::DecodeGroup& g : decode_.groups) {
    if (!g.open) continue;
    ++open;
    load +=
        static_cast<double>(g.tokens) / static_cast<double>(std::max<int64_t>(1, g.tokens + g.free_tokens));
  }
  policy::apply(&decode_scaler_, policy::ScalerSample{now_, open > 0 ? load / open : 1, true});
  // Vision and storage are advised only: nothing of them starts or leaves in a run.
  policy::apply(&vision_scaler_, policy::ScalerSample{now_, vision_queued_s(), true});
  const double bytes = store_.bytes_read();
  const double could =
      static_cast<double>(config_.store.nodes) * config_.store.read_bytes_per_s * config_.scaler_interval_s;
  policy::apply(&store_scaler_, policy::ScalerSample{now_, (bytes - store_looked_bytes_) / could, true});
  store_looked_bytes_ = bytes;
  scale(false, &prefill_scaler_);
  scale(true, &decode_scaler_);
  if (more_ || in_fleet_ > 0) events_.push(now_ + ns(config_.scaler_interval_s), kLook, 0);
}

void Fleet::scale(bool decode, policy::ScalerState* scaler) {
  const int n = decode ? config_.decode_groups - config_.spare_decode_groups : config_.prefill_engines;
  int64_t pending = 0;
  for (int i = 0; i < n; ++i) pending += instance(decode, i).starting;
  int64_t have = serving(decode) + pending;
  policy::apply(scaler, policy::ScalerMembers{now_, have - pending, pending});
  const policy::ScaleDecision d = policy::decide_scale(*scaler, now_);
  if (!d.carry_out) return;
  for (int i = 0; i < n && have < d.desired; ++i) {
    Instance& x = instance(decode, i);
    if (!x.off) continue;
    meter();
    x.off = false;
    on_[decode ? 1 : 0] += 1;
    order_start(decode, i, config_.start_s);
    ++out_.scaled_up;
    ++have;
  }
  for (int i = n - 1; i >= 0 && have > d.desired; --i) {
    Instance& x = instance(decode, i);
    if (!x.up || x.draining) continue;
    begin_drain(decode, i, -1);
    ++out_.scaled_down;
    --have;
  }
  policy::apply(scaler, policy::ScalerChanged{now_, have});
}

}  // namespace deepinfer::sim
