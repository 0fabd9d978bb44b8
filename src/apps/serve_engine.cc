// The polling thread between engine and edge (apps/serve_engine.h).
#include "apps/serve_engine.h"

#include <algorithm>

#include "engine/serving_engine.h"
#include "engine/synthetic_engine.h"
#include "host/clock.h"
#include "host/thread_name.h"

namespace deepinfer {

EngineRequest engine_request(GenerationRequest g, int64_t now) {
  EngineRequest r;
  r.prompt = std::move(g.prompt);
  r.sampling.temperature = g.temperature;
  r.sampling.top_p = g.top_p;
  r.sampling.top_k = g.top_k;
  r.sampling.min_p = g.min_p;
  r.sampling.seed = g.seed;
  r.sampling.repetition_penalty = g.repetition_penalty;
  r.sampling.frequency_penalty = g.frequency_penalty;
  r.sampling.presence_penalty = g.presence_penalty;
  r.sampling.logit_bias = std::move(g.logit_bias);
  r.max_tokens = g.max_tokens;
  r.min_tokens = g.min_tokens;
  r.stop_ids = std::move(g.stop_ids);
  r.banned_ids = std::move(g.banned_ids);
  r.choices = g.choices;
  r.top_logprobs = g.top_logprobs;
  r.prompt_logprobs = g.prompt_logprobs;
  r.tenant = g.tenant;
  r.tenant_weight = g.tenant_weight;
  r.priority = g.priority;
  r.deadline_ns = g.timeout_ns > 0 ? now + g.timeout_ns : 0;
  r.cache_scope = std::move(g.cache_scope);
  r.use_cache = g.use_cache;
  r.store.agent = g.offers_tools;
  r.store.ttl_s = std::max<int64_t>(0, g.store_ttl_s);
  r.store.no_write = g.store_ttl_s == 0;
  r.store.window_ttl_s = std::max<int64_t>(0, g.store_window_ttl_s);
  r.store.no_windows = g.store_window_ttl_s == 0;
  // Made by the factory serve_run hands to the edge.
  r.constraint = std::static_pointer_cast<const TokenConstraint>(g.constraint);
  return r;
}

namespace {

std::vector<TokenLogprob> to_edge(std::vector<TokenEvent> tokens) {
  std::vector<TokenLogprob> out;
  out.reserve(tokens.size());
  for (TokenEvent& t : tokens) out.push_back({t.id, t.logprob, std::move(t.top)});
  return out;
}

GenerationEvent to_edge(EngineEvent&& e) {
  GenerationEvent g;
  g.choice = e.choice;
  g.usage = {e.usage.prompt_tokens,   e.usage.cached_tokens, e.usage.output_tokens, e.usage.drafted_tokens,
             e.usage.accepted_tokens, e.usage.preemptions,   e.usage.store_tokens};
  switch (e.kind) {
    case EngineEvent::Kind::kStarted:
      g.kind = GenerationEvent::Kind::kStarted;
      g.prompt_logprobs = to_edge(std::move(e.prompt_logprobs));
      break;
    case EngineEvent::Kind::kTokens:
      g.kind = GenerationEvent::Kind::kTokens;
      g.tokens = to_edge(std::move(e.tokens));
      break;
    case EngineEvent::Kind::kFinished: {
      g.kind = GenerationEvent::Kind::kFinished;
      g.status = std::move(e.status);
      using End = GenerationEvent::End;
      g.end = e.finish == Finish::kStop        ? End::kStop
              : e.finish == Finish::kLength    ? End::kLength
              : e.finish == Finish::kCancelled ? End::kCancelled
              : e.finish == Finish::kDeadline  ? End::kDeadline
              : e.finish == Finish::kRefused   ? End::kRefused
                                               : End::kError;
      const RequestTimes& t = e.times;
      const int64_t admitted = t.admitted_ns > 0 ? t.admitted_ns : t.finished_ns;
      g.queue_ns = std::max<int64_t>(0, admitted - t.submitted_ns);
      if (t.admitted_ns > 0 && t.first_token_ns > 0) g.prefill_ns = t.first_token_ns - t.admitted_ns;
      if (t.first_token_ns > 0) g.decode_ns = std::max<int64_t>(0, t.finished_ns - t.first_token_ns);
    }
  }
  return g;
}

}  // namespace

EngineGenerator::EngineGenerator(Engine* engine, int64_t gap_ns) : engine_(engine), gap_(gap_ns) {
  thread_ = std::thread([this] {
    name_this_thread("edge-events");
    dispatch();
  });
}

EngineGenerator::~EngineGenerator() {
  stop();
}

void EngineGenerator::stop() {
  if (stop_.exchange(true)) return;
  engine_->wake();
  thread_.join();
}

Result<uint64_t> EngineGenerator::submit(GenerationRequest g, std::shared_ptr<Loop> loop, Sink sink) {
  const int choices = g.choices;
  EngineRequest r = engine_request(std::move(g), engine_->now_ns());
  auto stream = std::make_shared<Stream>(Stream{std::move(loop), std::move(sink), choices});
  // Under the lock, so that no event of the request is looked up before it is known.
  std::lock_guard lock(mutex_);
  DI_ASSIGN(RequestId id, engine_->submit(std::move(r)));
  if (streams_.empty()) busy_since_ns_ = deepinfer::now_ns();
  streams_.emplace(static_cast<uint64_t>(id), std::move(stream));
  return static_cast<uint64_t>(id);
}

void EngineGenerator::cancel(uint64_t id) {
  engine_->cancel(RequestId{id});
}
void EngineGenerator::cancel_choice(uint64_t id, int choice) {
  engine_->cancel_choice(RequestId{id}, choice);
}

bool EngineGenerator::clear_cache() {
  auto* serving = dynamic_cast<ServingEngine*>(engine_);
  if (serving != nullptr) serving->clear_cache();
  return serving != nullptr;
}

int64_t EngineGenerator::open() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(streams_.size());
}

void EngineGenerator::dispatch() {
  constexpr int64_t kLongestPollNs = 200'000'000;
  int64_t now = deepinfer::now_ns();
  while (!stop_) {
    int64_t wait = std::min(gap_.wait_ns(now), kLongestPollNs);
    Engine::Until until = Engine::Until::kAny;
    if (const int64_t calm = gap_.calm_until_ns() - now; calm > 0) {
      wait = std::min(wait, calm);
      until = Engine::Until::kNews;
    }
    std::vector<EngineEvent> events = engine_->poll(wait, until);
    now = deepinfer::now_ns();
    if (!events.empty()) gap_.add(std::move(events), now);
    if (gap_.wait_ns(now) == 0) hand_over(gap_.take(now));
  }
}

// One task per loop, however many streams it has.
void EngineGenerator::hand_over(std::vector<EngineEvent> events) {
  struct Delivery {
    std::shared_ptr<Stream> stream;
    GenerationEvent event;
  };
  std::vector<std::pair<std::shared_ptr<Loop>, std::shared_ptr<std::vector<Delivery>>>> batches;
  {
    std::lock_guard lock(mutex_);
    for (EngineEvent& e : events) {
      auto it = streams_.find(static_cast<uint64_t>(e.request));
      if (it == streams_.end()) continue;
      std::shared_ptr<Stream> s = it->second;
      if (e.kind == EngineEvent::Kind::kFinished && --s->unfinished == 0) streams_.erase(it);
      auto batch =
          std::find_if(batches.begin(), batches.end(), [&](const auto& b) { return b.first == s->loop; });
      if (batch == batches.end()) {
        batches.emplace_back(s->loop, std::make_shared<std::vector<Delivery>>());
        batch = batches.end() - 1;
      }
      batch->second->push_back({std::move(s), to_edge(std::move(e))});
    }
    if (streams_.empty()) busy_since_ns_ = 0;
  }
  for (auto& [loop, batch] : batches) {
    loop->post([batch = batch] {
      for (Delivery& d : *batch) d.stream->sink(std::move(d.event));
    });
  }
}

EngineView EngineGenerator::view() const {
  const EngineStats s = engine_->stats();
  EngineView v;
  v.running = s.running;
  v.waiting = s.waiting;
  v.last_step_age_ns = s.last_step_ns > 0 ? std::max<int64_t>(0, engine_->now_ns() - s.last_step_ns) : -1;
  v.draining = s.draining;
  v.blocks_total = s.blocks_total;
  v.blocks_used = s.blocks_used;
  v.blocks_cached = s.blocks_cached;
  v.prompt_tokens = s.prompt_tokens;
  v.cached_tokens = s.cached_tokens;
  v.output_tokens = s.output_tokens;
  v.steps = s.steps;
  v.preemptions = s.preemptions;
  v.drafted_tokens = s.drafted_tokens;
  v.accepted_tokens = s.accepted_tokens;
  const SpeculationStats& d = s.speculation;
  v.speculation = {d.on,           d.drifting,      d.draft_passes, d.switched_off,  d.switched_on, d.trials,
                   d.drift_alarms, d.origin_alarms, d.budgets,      d.budget_drafts, d.last_budget, {}};
  for (const SpeculationStats::Position& p : d.position)
    v.speculation.position.push_back({p.verified, p.accepted, p.predicted});
  v.counters = {{"submitted", s.submitted},
                {"finished", s.finished},
                {"cancelled", s.cancelled},
                {"refused", s.refused},
                {"expired", s.expired},
                {"failed", s.failed},
                {"prompt_tokens", s.prompt_tokens},
                {"cached_tokens", s.cached_tokens},
                {"output_tokens", s.output_tokens},
                {"replayed_hits", s.replayed_hits},
                {"preemptions", s.preemptions},
                {"wasted_tokens", s.wasted_tokens},
                {"skipped_snapshots", s.skipped_snapshots},
                {"evicted_blocks", s.evicted_blocks},
                {"evicted_snapshots", s.evicted_snapshots},
                {"stalls", s.stalls},
                {"floors_lost", s.floors_lost},
                {"drafted_tokens", s.drafted_tokens},
                {"verified_tokens", s.verified_tokens},
                {"accepted_tokens", s.accepted_tokens},
                {"steps", s.steps},
                {"prefill_rows", s.prefill_rows},
                {"decode_rows", s.decode_rows},
                {"decoder_rows", s.decoder_rows},
                {"plain_steps", s.plain_steps},
                {"plain_forward_ns", s.plain_forward_ns},
                {"forward_ns", s.forward_ns},
                {"draft_ns", s.draft_ns},
                {"sample_ns", s.sample_ns},
                {"schedule_ns", s.schedule_ns},
                {"overlapped_ns", s.overlapped_ns}};
  v.gauges = {{"running", s.running},
              {"waiting", s.waiting},
              {"blocks_total", s.blocks_total},
              {"blocks_used", s.blocks_used},
              {"blocks_cached", s.blocks_cached},
              {"snapshots_total", s.snapshots_total},
              {"snapshots_used", s.snapshots_used}};
  if (!s.store.gauges.empty()) {
    v.counters.insert(v.counters.end(), {{"store_offers", s.store_offers},
                                         {"store_loads", s.store_loads},
                                         {"store_short_loads", s.store_short_loads},
                                         {"store_declined", s.store_declined},
                                         {"store_tokens", s.store_tokens},
                                         {"store_loaded_blocks", s.store_blocks},
                                         {"store_loaded_windows", s.store_windows},
                                         {"store_puts", s.store_puts},
                                         {"store_put_refusals", s.store_put_refusals},
                                         {"store_warm_blocks", s.store_warm_blocks},
                                         {"store_warm_windows", s.store_warm_windows},
                                         {"store_lost_tokens", s.store_lost_tokens},
                                         {"store_stall_ns", s.store_stall_ns},
                                         {"store_early_steps", s.store_early_steps},
                                         {"store_lost_steps", s.store_lost_steps},
                                         {"store_step_wait_ns", s.store_step_wait_ns}});
    v.counters.insert(v.counters.end(), s.store.counters.begin(), s.store.counters.end());
    v.gauges.insert(v.gauges.end(), s.store.gauges.begin(), s.store.gauges.end());
    v.store_trouble = s.store.trouble;
  }
  std::lock_guard lock(mutex_);
  v.busy_ns = busy_since_ns_ > 0 ? std::max<int64_t>(1, deepinfer::now_ns() - busy_since_ns_) : 0;
  return v;
}

std::unique_ptr<Engine> open_synthetic(const Tokenizer& tokenizer, const std::string& text,
                                       double tokens_per_s, bool aligned) {
  SyntheticOptions o;
  o.script = tokenizer.encode(text);
  o.tokens_per_s = tokens_per_s;
  o.aligned = aligned;
  o.vocab_size = tokenizer.vocab_size();
  return std::make_unique<SyntheticEngine>(std::move(o));
}

}  // namespace deepinfer
