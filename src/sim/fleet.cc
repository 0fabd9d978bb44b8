// The event loop, arrivals and admission, failures, and the accounts.
#include "sim/fleet.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "sim/expert_load.h"
#include "sim/fleet_impl.h"

namespace deepinfer::sim {

using policy::SeqId;
using policy::TenantId;

Status validate(const FleetConfig& c) {
  auto bad = [](const char* field, const char* rule) {
    return error(Code::kInvalidArgument, "{} must be {}", field, rule);
  };
  if (c.prefill_engines < 1 || c.prefill_engines > 100'000) return bad("prefill engines", "1 to 100,000");
  if (c.prefill_ranks < 1 || c.prefill_ranks > 1024) return bad("prefill ranks", "1 to 1,024");
  if (c.decode_groups < 1 || c.decode_groups > 10'000) return bad("decode groups", "1 to 10,000");
  if (c.decode_ranks < 1 || c.decode_ranks > 1024) return bad("decode ranks", "1 to 1,024");
  if (c.spare_decode_groups < 0 || c.spare_decode_groups >= c.decode_groups) {
    return bad("spare decode groups", "fewer than the decode groups");
  }
  if (!(c.measure_s > 0) || !(c.warmup_s >= 0) || c.measure_s + c.warmup_s > 1e8)
    return bad("seconds", "positive");
  const VerifyConfig& v = c.verify;
  if (v.drafts < 1 || v.drafts > policy::kMaxDrafts || v.fixed < 0 || v.fixed > v.drafts)
    return bad("drafts", "1 to 5, and no more verified than drafted");
  if (!(v.overhead >= 0 && v.overhead < 1) || !(std::abs(v.logit) < 50) || !(std::abs(v.spread) < 50) ||
      !(std::abs(v.decay) < 50) || c.verify_every < 1)
    return bad("the drafts' confidences", "numbers of at most 50, and the overhead a share");
  if (c.vision.machines < 0 || c.vision.machines > 10'000 || c.vision.gpus < 1 || c.vision.gpus > 1024)
    return bad("vision machines", "0 to 10,000 of 1 to 1,024 GPUs");
  if (!(c.vision.patches_per_s > 0) || !(c.vision.fixed_ns >= 0)) return bad("vision rates", "positive");
  if (c.store.nodes < c.store.shards) return bad("store nodes", "at least 12, one per shard");
  if (c.decode_tokens_per_rank < 1000 || c.decode_tokens_per_rank > INT32_MAX)
    return bad("decode tokens per rank", "1,000 to 2,147,483,647");
  if (!(c.prefill.d > 0) || !(c.decode.fixed_ns > 0)) return bad("costs", "positive");
  if (c.batch_budget_ns < 1'000'000) return bad("prefill budget", "at least 1 ms");
  if (!(c.link_bytes_per_s > 0) || !(c.store.read_bytes_per_s > 0)) return bad("bandwidths", "positive");
  if (!(c.sample_interval_s > 0) || !(c.scaler_interval_s > 0)) return bad("intervals", "positive");
  for (const FailureEvent& f : c.failures) {
    using What = FailureEvent::What;
    const bool prefill = f.what == What::kPrefillEngine || f.what == What::kLink;
    const int most = f.what == What::kStoreNode       ? c.store.nodes
                     : f.what == What::kVisionMachine ? c.vision.machines
                     : prefill                        ? c.prefill_engines
                                                      : c.decode_groups;
    if (f.what == What::kLink && !(f.for_s > 0)) return bad("how long a link fails", "positive");
    if (f.which < 0 || f.which >= most) return bad("the number of what fails", "one that exists");
    if (!(f.at_s >= 0)) return bad("the time of a failure", "zero or later");
  }
  for (const DrainOrder& d : c.drains) {
    const int most = d.role == policy::EngineRole::kDecode ? c.decode_groups : c.prefill_engines;
    if (d.which < 0 || d.which >= most) return bad("the number of what drains", "one that exists");
    if (!(d.at_s >= 0)) return bad("the time of a drain", "zero or later");
  }
  if (!(c.drain_grace_s >= 0) || !(c.start_s >= 0)) return bad("grace and start-up", "zero or more seconds");
  if (!(c.cancel_share >= 0 && c.cancel_share <= 1)) return bad("the cancelled share", "0 to 1");
  if (!(c.cancel_after_s > 0)) return bad("the time until a client leaves", "positive");
  const AutoscaleConfig& a = c.autoscale;
  if (a.prefill_engines < 0 || a.prefill_engines > c.prefill_engines || a.decode_groups < 0 ||
      a.decode_groups > c.decode_groups - c.spare_decode_groups) {
    return bad("what serves at the start", "no more than there is");
  }
  if (!(a.up_after_s >= 0) || !(a.down_after_s >= 0)) return bad("the autoscaler's times", "zero or more");
  return {};
}

namespace {

int64_t ns(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

// Steps of the slowest over the mean rank, from the placement policy on a stated synthetic load.
std::vector<double> expert_steps(const FleetConfig& c) {
  if (c.moe_lb > 0) return {c.moe_lb};
  const policy::EplbConfig eplb = policy::decode_eplb(c.decode_ranks);
  if (c.decode_ranks < 2 || !policy::problem(eplb.shape).empty()) return {1};
  PublishedPlacement at = published_placements()[2];
  at.ranks = c.decode_ranks;
  at.load.requests_per_step = 60 * c.decode_ranks;
  return study_placement(at.eplb(), at.load, 100, c.seed).per_step;
}

policy::ScalerState scaler(const FleetConfig& c, int64_t ready, int64_t most, double target) {
  policy::ScalerState s;
  s.config.target = target;
  s.config.advisory = !c.autoscale.on;
  s.config.up_after_ns = ns(c.autoscale.up_after_s);
  s.config.down_after_ns = ns(c.autoscale.down_after_s);
  if (c.autoscale.on) s.config.most = most;
  policy::apply(&s, policy::ScalerMembers{0, ready, 0});
  return s;
}

}  // namespace

Fleet::Fleet(const FleetConfig& config, Workload* workload)
    : config_(config),
      workload_(workload),
      random_(config.seed * 7919 + 17),
      store_(config.store, config.seed * 104729 + 5),
      prefill_(policy::make_prefill_balancer(config.prefill_balancer, config.prefill_engines)),
      decode_(policy::make_decode_balancer(config.decode_balancer, config.decode_groups, config.decode_ranks,
                                           config.decode_tokens_per_rank)),
      verify_(config.verify, config.decode),
      prefill_scaler_(
          scaler(config, config.prefill_engines, config.prefill_engines, 0.5 * config.ttft_slo_s)),
      decode_scaler_(
          scaler(config, config.decode_groups, config.decode_groups - config.spare_decode_groups, 0.75)),
      vision_scaler_(scaler(config, config.vision.machines, config.vision.machines, 0.5)),
      store_scaler_(scaler(config, config.store.nodes, config.store.nodes, 0.7)),
      moe_steps_(expert_steps(config)) {
  vision_scaler_.config.advisory = store_scaler_.config.advisory = true;
  vision_scaler_.config.most = store_scaler_.config.most = policy::ScalerConfig{}.most;
  const size_t gpus = static_cast<size_t>(config.vision.gpus);
  vision_.machines.resize(static_cast<size_t>(config.vision.machines));
  for (policy::VisionMachine& m : vision_.machines) m.patches_in_flight.assign(gpus, 0);
  gpu_free_ns_.assign(vision_.machines.size(), std::vector<int64_t>(gpus, 0));
  admission_.config = config.admission;
  // No longer than a decode rank can hold.
  const int64_t most = config.decode_tokens_per_rank - config.decode_balancer.reserve_tokens;
  int64_t& context = admission_.config.context_tokens;
  context = context > 0 ? std::min(context, most) : most;
  prefill_.config.ranks = config.prefill_ranks;
  // A quota is an engine's: its ranks together.
  prefill_.config.tiers.quota_ns = 4.0 * static_cast<double>(config.batch_budget_ns) * config.prefill_ranks;
  engines_.resize(static_cast<size_t>(config.prefill_engines));
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i].ranks.resize(static_cast<size_t>(config.prefill_ranks));
    engines_[i].hungry = true;
    hungry_.push_back(static_cast<int>(i));
  }
  groups_.resize(static_cast<size_t>(config.decode_groups));
  // A sixth more places than experts: 448 of 384 on 64 ranks, as published.
  policy::ResizeRules rules;
  rules.most_slots = (rules.experts * 7 / 6 + config.decode_ranks - 1) / config.decode_ranks;
  for (Group& g : groups_) {
    g.ranks.resize(static_cast<size_t>(config.decode_ranks));
    g.verifying.resize(static_cast<size_t>(config.decode_ranks));
    g.instance = policy::make_instance(rules, config.decode_ranks);
  }
  const int decoding = config.decode_groups - config.spare_decode_groups;
  const AutoscaleConfig& scale = config.autoscale;
  const int first_off[2] = {
      scale.on && scale.prefill_engines > 0 ? scale.prefill_engines : config.prefill_engines,
      scale.on && scale.decode_groups > 0 ? scale.decode_groups : decoding};
  for (int i = first_off[0]; i < config.prefill_engines; ++i) {
    engines_[static_cast<size_t>(i)].up = false;
    engines_[static_cast<size_t>(i)].off = true;
    policy::apply(&prefill_, policy::PrefillEngineReport{i, 0, false});
  }
  for (int g = first_off[1]; g < config.decode_groups; ++g) {
    groups_[static_cast<size_t>(g)].up = false;
    (g < decoding ? groups_[static_cast<size_t>(g)].off : groups_[static_cast<size_t>(g)].spare) = true;
    policy::apply(&decode_, policy::DecodeGroupOpened{g, false});
  }
  serving_prefill_ = first_off[0];
  on_[0] = first_off[0];
  on_[1] = first_off[1] + config.spare_decode_groups;
  warm_ns_ = ns(config.warmup_s);
  end_ns_ = ns(config.warmup_s + config.measure_s);
}

void Fleet::check(bool ok, const char* what) {
  if (!ok && out_.broken.empty()) out_.broken = fmt::format("{} at {} ns", what, now_);
}

uint32_t Fleet::take_slot() {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(live_.size()));
    live_.emplace_back();
  }
  uint32_t slot = free_.back();
  free_.pop_back();
  ++in_fleet_;
  return slot;
}

uint32_t Fleet::take_handle(uint32_t slot) {
  if (free_handles_.empty()) {
    free_handles_.push_back(static_cast<uint32_t>(handle_slot_.size()));
    handle_slot_.push_back(0);
  }
  const uint32_t handle = free_handles_.back();
  free_handles_.pop_back();
  handle_slot_[handle] = slot;
  return handle;
}

void Fleet::leave_line(uint32_t slot) {
  free_handles_.push_back(live_[slot].handle);
  --waiting_;
}

void Fleet::free_slot(uint32_t slot) {
  Live& r = live_[slot];
  check(r.stage != Stage::kNone, "a request is freed once");
  r.stage = Stage::kNone;
  ++r.generation;
  free_.push_back(slot);
  if (--in_fleet_ == 0) idle_from_ns_ = now_;
}

void Fleet::schedule_arrival() {
  more_ = workload_->next(&next_);
  if (more_ && next_.arrival_ns < end_ns_) {
    events_.push(std::max(now_, next_.arrival_ns), kArrive, 0);
  } else {
    more_ = false;
  }
}

bool Fleet::admit(const SimRequest& r, double work_ns, double fetch_ns, int tier) {
  policy::AdmissionQuery q;
  q.tenant = TenantId{r.tenant};
  q.now_ns = now_;
  q.deadline_ns = config_.deadline_s > 0 ? now_ + ns(config_.deadline_s) : 0;
  q.prompt_tokens = r.input_tokens;
  q.max_new_tokens = r.output_tokens;
  q.tier = tier;
  q.work_ns = work_ns;
  q.fetch_ns = fetch_ns;
  q.queued_ns = policy::queued_ns(prefill_);
  q.engines = std::max<int64_t>(1, serving_prefill_) * config_.prefill_ranks;
  const policy::AdmitDecision d = policy::decide_admit(admission_, q);
  if (d.reason == policy::AdmitReason::kAdmitted) {
    policy::apply(&admission_, policy::Admitted{q});
    return true;
  }
  policy::apply(&admission_, policy::Refused{q.tenant});
  if (measuring()) {
    ++out_.refused;
    ++out_.refusals[static_cast<size_t>(d.reason)];
  }
  return false;
}

void Fleet::arrive() {
  const SimRequest r = next_;
  schedule_arrival();
  if (measuring()) ++out_.arrived;
  const int64_t states[] = {r.stored_tokens / 128 * 128};
  policy::HitQuery query;
  query.prompt_tokens = r.input_tokens;
  query.state_tokens = states;
  query.snapshots = {r.windows, r.windows[1] > 0 ? size_t{2} : r.windows[0] > 0 ? size_t{1} : size_t{0}};
  policy::HitDecision hit = policy::decide_hit(query, config_.cache.replay);
  const double cold_ns = policy::rows_cost_ns(config_.prefill, r.input_tokens, 0);
  double work_ns = policy::rows_cost_ns(config_.prefill, r.input_tokens - hit.start_tokens, hit.start_tokens);
  int chosen = -1;
  if (prefill_.config.rule != policy::PrefillRule::kPull) {
    int previous = -1;
    chosen = push_engine(r, work_ns, hit.start_tokens, cold_ns, &previous);
    if (!config_.shared_store && chosen != previous) {
      hit = {};
      work_ns = cold_ns;
    }
  }
  int64_t ready = now_;
  if (hit.kv_hit_tokens > 0 && config_.shared_store) {
    ready = store_.read(r.home, static_cast<double>(hit.kv_hit_tokens * config_.kv_bytes_per_token), now_);
    if (ready < 0) {  // too few nodes: an absent prefix
      if (measuring()) ++out_.unreadable_hits;
      hit = {};
      work_ns = cold_ns;
      ready = now_;
    }
  }
  const int tier = policy::tier_of(prefill_.config.tiers, r.input_tokens);
  const std::vector<int64_t> patches(r.patches, r.patches + r.images);
  const int64_t vision = patches.empty() ? 0 : vision_wait_ns(patches);
  if (!admit(r, work_ns, static_cast<double>(std::max(ready - now_, vision)), tier)) return;
  const uint32_t slot = take_slot();
  Live& l = live_[slot];
  l.stage = Stage::kVision;
  l.arrived_ns = now_;
  l.ready_ns = ready;
  // Admission has seen that they fit a decode rank.
  l.input = static_cast<int32_t>(r.input_tokens);
  l.output = static_cast<int32_t>(r.output_tokens);
  l.position = static_cast<int32_t>(hit.start_tokens);
  l.booked = l.input + l.output;
  l.work_ns = l.unbooked_ns = work_ns;
  l.tenant = r.tenant;
  l.home = r.home;
  l.rank = -1;
  l.engine = l.group = l.decode_rank = -1;
  l.counted = measuring();
  l.prefilled = l.begun = false;
  l.delivered = 0;
  l.asked = static_cast<int32_t>(r.output_tokens);
  l.moved_ns = 0;
  if (config_.cancel_share > 0 && random_.unit() < config_.cancel_share) {
    events_.push(now_ + 1 + ns(random_.exponential(config_.cancel_after_s)), kCancel, slot, l.generation);
  }
  if (l.counted) {
    out_.input_tokens += r.input_tokens;
    out_.perfect_tokens += std::min(r.stored_tokens, r.input_tokens);
    out_.hit_tokens += hit.start_tokens;
    out_.replayed_hits += hit.reason == policy::HitReason::kReplayed;
    out_.fetch_ns.add(ready - now_);
  }
  if (!patches.empty()) {
    check(!vision_.machines.empty(), "images need machines that encode them");
    seeing_[slot] = {l.generation, -1, 0, chosen, patches};
    place_images(slot);
    return;
  }
  line_up(slot, chosen, 0);
  if (prefill_.config.rule == policy::PrefillRule::kPull) offer_work();
}

void Fleet::handle(const SimEvent& e) {
  const int who = static_cast<int>(e.who);
  switch (static_cast<Kind>(e.kind)) {
    case kArrive:
      arrive();
      break;
    case kPrefillStep:
      if (engines_[e.who].generation == e.generation) end_prefill(who);
      break;
    case kPrefillWake:
      if (engines_[e.who].generation == e.generation && !engines_[e.who].stepping) start_prefill(who);
      break;
    case kHandOff:
      if (live_[e.who].generation == e.generation) hand_off(e.who);
      break;
    case kDecodeStep:
      if (groups_[e.who].generation == e.generation) end_decode(who);
      break;
    case kFail:
      fail(config_.failures[e.who]);
      break;
    case kRepair:
      repair(config_.failures[e.who]);
      break;
    case kStart:
      if (instance(e.part != 0, who).life == e.generation) start(e.part != 0, who);
      break;
    case kDrain: {
      const DrainOrder& d = config_.drains[e.who];
      begin_drain(d.role == policy::EngineRole::kDecode, d.which, d.back_s);
      break;
    }
    case kDrainTick: {
      Instance& x = instance(e.part != 0, who);
      if (x.life != e.generation || !x.draining) break;
      policy::apply(&x.drain, policy::DrainTick{now_});
      advance_drain(e.part != 0, who);
      break;
    }
    case kCancel:
      if (live_[e.who].generation == e.generation) cancel(e.who);
      break;
    case kSeen:
      if (images_[e.who].life == e.generation) seen(e.who);
      break;
    case kLook:
      look();
      break;
    case kSample:
      sample();
      break;
  }
}

void Fleet::sample() {
  FleetSample s;
  s.at_s = static_cast<double>(now_) * 1e-9;
  s.waiting = static_cast<double>(waiting_);
  s.prefilling = static_cast<double>(prefilling_);
  s.decoding = static_cast<double>(in_fleet_ - waiting_ - prefilling_ - static_cast<int64_t>(seeing_.size()));
  s.queued_s = policy::queued_ns(prefill_) * 1e-9 /
               static_cast<double>(std::max<int64_t>(1, serving_prefill_) * config_.prefill_ranks);
  double most_r = 0, most_t = 0, sum_r = 0, sum_t = 0, n = 0;
  for (const policy::DecodeGroup& g : decode_.groups) {
    for (const policy::RankLoad& r : g.ranks) {
      most_r = std::max(most_r, static_cast<double>(r.requests));
      most_t = std::max(most_t, static_cast<double>(r.tokens));
      sum_r += static_cast<double>(r.requests);
      sum_t += static_cast<double>(r.tokens);
      ++n;
    }
  }
  s.requests_spread = sum_r > 0 ? most_r * n / sum_r : 1;
  s.tokens_spread = sum_t > 0 ? most_t * n / sum_t : 1;
  s.prefill_advice = policy::decide_scale(prefill_scaler_, now_).desired;
  s.decode_advice = policy::decide_scale(decode_scaler_, now_).desired;
  if (config_.vision.machines > 0) s.vision_advice = policy::decide_scale(vision_scaler_, now_).desired;
  s.store_advice = policy::decide_scale(store_scaler_, now_).desired;
  out_.series.push_back(s);
  if (more_ || in_fleet_ > 0) events_.push(now_ + ns(config_.sample_interval_s), kSample, 0);
}

FleetResult Fleet::run() {
  schedule_arrival();
  for (size_t i = 0; i < config_.failures.size(); ++i) {
    const FailureEvent& f = config_.failures[i];
    events_.push(ns(f.at_s), kFail, static_cast<uint32_t>(i));
    if (f.for_s > 0) events_.push(ns(f.at_s + f.for_s), kRepair, static_cast<uint32_t>(i));
  }
  for (size_t i = 0; i < config_.drains.size(); ++i)
    events_.push(ns(config_.drains[i].at_s), kDrain, static_cast<uint32_t>(i));
  events_.push(0, kLook, 0);
  events_.push(0, kSample, 0);
  uint64_t hash = 0xcbf29ce484222325ull;
  // After the end nothing arrives any more and what is there is finished, but not measured; half an hour is
  // more than any request needs that can be finished at all.
  const int64_t give_up_ns = end_ns_ + ns(1800);
  while (!events_.empty() && events_.next_ns() <= give_up_ns && out_.broken.empty()) {
    const SimEvent e = events_.pop();
    check(e.at_ns >= now_, "no event lies in the past");
    now_ = e.at_ns;
    hash = (hash ^ static_cast<uint64_t>(e.at_ns)) * 0x100000001b3ull;
    hash = (hash ^ (uint64_t{e.kind} << 32 | e.who)) * 0x100000001b3ull;
    if (!ended_ && now_ >= end_ns_) ended_ = true;
    if (!events_.empty() && events_.peek().kind == kHandOff) prefetch(live_[events_.peek().who]);
    handle(e);
    out_.events += e.kind <= kDecodeStep && e.kind != kPrefillWake;
  }
  out_.log_hash = hash;
  finish(&out_);
  return std::move(out_);
}

void Fleet::finish(FleetResult* out) {
  // Everything was given back.
  const bool stuck = in_fleet_ > 0;
  const bool may_stick = std::any_of(config_.failures.begin(), config_.failures.end(),
                                     [](const FailureEvent& f) {
                                       return f.for_s <= 0 && f.what != FailureEvent::What::kStoreNode;
                                     }) ||
                         std::any_of(config_.drains.begin(), config_.drains.end(),
                                     [](const DrainOrder& d) { return d.back_s < 0; });
  if (!stuck) {
    check(policy::broken_invariant(decode_).empty(), "the decode books balance");
    for (const policy::DecodeGroup& g : decode_.groups)
      check(g.tokens == 0 && g.queued_tokens == 0, "decode tokens return");
    for (const policy::PrefillEngine& e : prefill_.engines)
      check(e.total_ns < 1e3 && e.requests == 0, "quotas return");
    check(policy::queued_ns(prefill_) == 0, "lines are empty");
    for (const Group& g : groups_)
      for (const policy::RankLoad& r : g.ranks) check(r.requests == 0 && r.tokens == 0, "ranks are empty");
    for (const policy::VisionMachine& m : vision_.machines)
      for (int64_t p : m.patches_in_flight) check(p == 0, "patches in flight return");
  } else {
    check(may_stick, "every request ends");
  }
  check(out->hit_tokens <= out->perfect_tokens, "a hit is stored");
  now_ = std::max(now_, end_ns_);
  meter();
  const double measured = config_.measure_s, span_ns = static_cast<double>(end_ns_ - warm_ns_);
  constexpr double kNone = 1e-9;  // instances; a pool without any has no load
  const double prefill_on = std::max(kNone, on_ns_[0] / span_ns),
               decode_on = std::max(kNone, on_ns_[1] / span_ns);
  const double decode_gpus = decode_on * config_.decode_ranks;
  const double prefill_gpus = prefill_on * config_.prefill_ranks;
  out->measured_s = measured;
  const double vision_gpus = static_cast<double>(config_.vision.machines * config_.vision.gpus);
  out->gpus = decode_gpus + prefill_gpus + vision_gpus;
  if (vision_gpus > 0) out->vision_busy = busy_vision_ns_ * 1e-9 / measured / vision_gpus;
  if (active_steps_ > 0) {
    out->tokens_per_step = pace_steps_ / active_steps_;
    out->drafts_per_step = draft_steps_ / active_steps_;
  }
  out->prefill_busy = busy_prefill_ns_ * 1e-9 / measured / prefill_on;
  out->decode_busy = busy_decode_ns_ * 1e-9 / measured / decode_on;
  out->prefill_load = prefill_work_ns_ * 1e-9 / measured / prefill_gpus;
  out->output_per_s = decode_tokens_ / measured;
  const double steps = static_cast<double>(std::max<int64_t>(1, balance_steps_));
  out->step_balance = balance_steps_ > 0 ? balance_sum_ / steps : 1;
  out->moe_lb = balance_steps_ > 0 ? moe_sum_ / steps : 1;
  out->requests_spread = spread_r_ / steps;
  out->tokens_spread = spread_t_ / steps;
  out->store_busy = store_.busy_share(stuck ? now_ : std::max(idle_from_ns_, end_ns_));
  if (rank_ns_ > 0) {
    out->mean_requests = requests_ns_ / rank_ns_;
    out->mean_tokens = tokens_ns_ / rank_ns_;
    const double bench = verify_.balanced_per_s(out->mean_requests, out->mean_tokens);
    out->eta = decode_tokens_ / measured / decode_gpus / bench;
    out->eta_time = out->decode_busy;
    out->eta_step = out->step_balance / out->moe_lb;
    out->eta_mix = out->eta_time * out->eta_step > 0 ? out->eta / (out->eta_time * out->eta_step) : 0;
  }
  const double hours = measured / 3600;
  const double usd = hours * (out->gpus * config_.usd_per_gpu_hour + config_.other_usd_per_hour);
  if (out->good_output_tokens > 0)
    out->usd_per_million_output = usd * 1e6 / static_cast<double>(out->good_output_tokens);
  if (out->completed > 0) out->usd_per_request = usd / static_cast<double>(out->completed);
}

FleetResult run_fleet(const FleetConfig& config, Workload* workload) {
  DI_CHECK(validate(config).ok(), "a checked configuration");
  return Fleet(config, workload).run();
}

}  // namespace deepinfer::sim
