// Threads, queues and the public functions. The loop thread drives ServingLoop, the executor thread drives
// StepRunner; they share nothing but the queues here.
#include "engine/serving_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <variant>

#include "engine/prefix_identity.h"
#include "engine/request_check.h"
#include "engine/serving_loop.h"
#include "engine/step_runner.h"
#include "engine/store_bridge.h"
#include "model/sizes.h"

namespace deepinfer {
namespace {

struct CancelCommand {
  RequestId request{};
  int choice = -1;  // -1: all
};
struct DrainCommand {
  int64_t deadline_ns = 0;
};
struct InspectCommand {
  const std::function<std::vector<policy::Event>(const policy::SchedulerState&)>* look = nullptr;
  std::promise<void>* done = nullptr;
};
using Command = std::variant<Submission, CancelCommand, DrainCommand, InspectCommand, FirstLoaded, Loaded>;

// Time during which a step was being executed, readable while one is.
class BusyClock {
 public:
  void begin(int64_t now_ns) {
    std::lock_guard lock(mutex_);
    since_ = now_ns;
  }
  void end(int64_t now_ns) {
    std::lock_guard lock(mutex_);
    total_ += now_ns - since_;
    since_ = -1;
  }
  int64_t read(int64_t now_ns) const {
    std::lock_guard lock(mutex_);
    return total_ + (since_ >= 0 ? now_ns - since_ : 0);
  }

 private:
  mutable std::mutex mutex_;
  int64_t total_ = 0, since_ = -1;
};

class ServingEngineImpl final : public ServingEngine {
 public:
  struct Parts {
    std::unique_ptr<Forward<float>> owned_model;  // or null
    Forward<float>* model = nullptr;
    ThreadPool* pool = nullptr;
    std::unique_ptr<BlockArena> arena;
    policy::SchedulerState state;
    policy::CostModel calibrated;
    policy::CurvesMeasured curves;
    PrefixIdentity identity;
    RequestLimits limits;
    EngineConfig config;
    EngineClock clock;
  };

  explicit ServingEngineImpl(Parts parts)
      : p_(std::move(parts)),
        scheduler_(p_.state.config),
        runner_(p_.model, p_.pool, p_.arena.get(), runner_options(p_)),
        loop_(std::move(p_.state), p_.config.plan_late, p_.config.on_policy_event) {
    if (p_.config.store != nullptr) {
      StoreBridgeParts b;
      b.store = p_.config.store;
      b.arena = p_.arena.get();
      b.block_bytes = p_.model->layout().block_bytes;
      const CacheLayout& layout = p_.model->layout();
      b.block_tokens = layout.block_tokens;
      b.split = split_block(layout, p_.config.store_split_bytes);
      b.make_window = [this] { return make_window_snapshot(p_.model->config(), p_.model->layout()); };
      b.window = [this](policy::SnapshotId id) -> const WindowSnapshot& { return runner_.window(id); };
      mailbox_ = std::make_shared<Mailbox>();
      mailbox_->engine = this;
      b.first_arrived = [box = mailbox_](FirstLoaded f) {
        std::lock_guard lock(box->mutex);
        if (box->engine != nullptr) box->engine->send(std::move(f));
      };
      b.arrived = [box = mailbox_](Loaded l) {
        std::lock_guard lock(box->mutex);
        if (box->engine != nullptr) box->engine->send(std::move(l));
      };
      // Layers take about the same time each.
      double rest_share = static_cast<double>(layout.sources[static_cast<size_t>(b.split.sources)].layer) /
                          static_cast<double>(p_.model->config().num_hidden_layers);
      bridge_ = std::make_unique<StoreBridge>(std::move(b));
      loop_.use_store(bridge_.get(), p_.config.store_late, rest_share);
      if (p_.config.store_warm_ns > 0)
        loop_.warm(bridge_->warm_up(loop_.state().cache, p_.config.store_warm_ns));
    }
    stats_ = loop_.stats();
    executor_thread_ = std::thread([this] { run_executor(); });
    loop_thread_ = std::thread([this] { run_loop(); });
  }

  ~ServingEngineImpl() override {
    {
      std::lock_guard lock(inbox_mutex_);
      stop_ = true;
    }
    inbox_changed_.notify_all();
    loop_thread_.join();
    // What the store still writes into goes after it has let go of it.
    if (bridge_ != nullptr) {
      bridge_->give_up_all();
      std::lock_guard lock(mailbox_->mutex);
      mailbox_->engine = nullptr;
    }
    {
      std::lock_guard lock(orders_mutex_);
      orders_closed_ = true;
    }
    orders_changed_.notify_all();
    executor_thread_.join();
    wake();
  }

  Result<RequestId> submit(EngineRequest request) override;
  void cancel(RequestId request) override { send(CancelCommand{request, -1}); }
  void cancel_choice(RequestId request, int choice) override {
    if (choice >= 0) send(CancelCommand{request, choice});
  }
  std::vector<EngineEvent> poll(int64_t wait_ns, Until until) override;
  void wake() override;
  void drain(int64_t grace_ns) override;
  bool drained() const override;
  EngineStats stats() const override {
    EngineStats out;
    {
      std::lock_guard lock(stats_mutex_);
      out = stats_;
    }
    if (p_.config.store != nullptr) p_.config.store->report(&out.store);
    return out;
  }
  int64_t now_ns() const override { return p_.clock(); }
  int64_t context_tokens() const override { return p_.limits.context; }
  int64_t vocab_size() const override { return p_.model->config().vocab_size; }
  void inspect(const std::function<std::vector<policy::Event>(const policy::SchedulerState&)>& look) override;
  void clear_cache() override;
  const policy::SchedulerConfig& scheduler() const override { return scheduler_; }
  const policy::CostModel& calibrated() const override { return p_.calibrated; }

 private:
  // Where loads end: an answer may still be on its way when the engine is gone.
  struct Mailbox {
    std::mutex mutex;
    ServingEngineImpl* engine = nullptr;
  };
  static StepRunnerOptions runner_options(const Parts& p) {
    StepRunnerOptions o;
    o.drafts = static_cast<int>(p.state.config.drafts);
    o.ratio_rule = p.config.acceptance == EngineConfig::Acceptance::kRatio;
    o.guesses = p.config.guesses;
    o.speculation = p.config.speculation;
    o.curves = p.curves;
    o.snapshot_slots = p.state.config.snapshot_slots;
    o.poison_blocks = p.config.poison_blocks;
    o.trace = p.config.trace;
    o.now_ns = p.clock;
    return o;
  }

  void send(Command command) {
    {
      std::lock_guard lock(inbox_mutex_);
      inbox_.push_back(std::move(command));
    }
    inbox_changed_.notify_all();
  }
  void run_loop();
  void run_executor();
  bool take_inbox(std::vector<Command>* commands, std::vector<StepOutcome>* outcomes);
  void obey(Command* command, int64_t now);
  void post_orders(int64_t now);
  void publish(int64_t busy_from, int64_t begin_ns);

  Parts p_;
  const policy::SchedulerConfig scheduler_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<StoreBridge> bridge_;  // loop thread
  StepRunner runner_;                    // executor thread
  ServingLoop loop_;                     // loop thread

  std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  std::vector<Command> inbox_;
  std::vector<StepOutcome> outcomes_;
  bool stop_ = false;

  std::mutex orders_mutex_;
  std::condition_variable orders_changed_;
  std::deque<StepOrder> orders_;
  bool orders_closed_ = false;

  mutable std::mutex events_mutex_;
  std::condition_variable events_changed_;
  std::vector<EngineEvent> events_;
  bool woken_ = false, news_ = false;  // news_: among events_
  Until poller_waits_for_ = Until::kAny;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;
  int64_t schedule_ns_ = 0, overlapped_ns_ = 0;  // loop thread
  int64_t load_deadline_ns_ = INT64_MAX;         // likewise

  BusyClock busy_;
  std::atomic<uint64_t> last_request_{0};
  std::atomic<int64_t> open_choices_{0};  // submitted, their kFinished not yet in events_
  std::atomic<bool> draining_{false};
  std::thread executor_thread_, loop_thread_;
};

Result<RequestId> ServingEngineImpl::submit(EngineRequest request) {
  if (draining_.load()) return error(Code::kUnavailable, "the engine is draining and takes no new requests");
  DI_TRY(check_request(request, p_.model->config(), p_.limits));
  policy::AdmissionVerdict v =
      policy::decide_admission(scheduler_, static_cast<int64_t>(request.prompt.size()), request.max_tokens);
  if (v.reason != policy::EndReason::kAccepted) return Status(Code::kInvalidArgument, v.message());
  int64_t limit = p_.config.max_running + p_.config.max_waiting;
  int64_t choices = request.choices;
  if (open_choices_.fetch_add(choices) + choices > limit) {
    open_choices_.fetch_sub(choices);
    return error(Code::kResourceExhausted,
                 "{} answers are running or waiting, no more than {} may be; try again later", limit, limit);
  }
  Submission s;
  s.submitted_ns = p_.clock();
  s.id = RequestId(last_request_.fetch_add(1) + 1);
  if (request.use_cache) {
    PromptKeys keys = prompt_keys(p_.identity, request, static_cast<int>(p_.model->layout().block_tokens));
    s.keys = std::move(keys.keys);
    s.last_key = keys.last;
    if (p_.config.store != nullptr && !s.keys.empty() && !request.prompt_logprobs)
      s.offer = p_.config.store->match(s.keys, request.store);
  }
  s.request = std::make_shared<const EngineRequest>(std::move(request));
  RequestId id = s.id;
  send(std::move(s));
  return id;
}

std::vector<EngineEvent> ServingEngineImpl::poll(int64_t wait_ns, Until until) {
  std::unique_lock lock(events_mutex_);
  poller_waits_for_ = until;
  auto ready = [&] { return woken_ || news_ || (until == Until::kAny && !events_.empty()); };
  if (wait_ns < 0) {
    events_changed_.wait(lock, ready);
  } else if (wait_ns > 0) {
    events_changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), ready);
  }
  woken_ = news_ = false;
  return std::exchange(events_, {});
}

void ServingEngineImpl::wake() {
  {
    std::lock_guard lock(events_mutex_);
    woken_ = true;
  }
  events_changed_.notify_all();
}

void ServingEngineImpl::drain(int64_t grace_ns) {
  draining_.store(true);
  int64_t now = p_.clock();
  send(DrainCommand{grace_ns > INT64_MAX - now ? INT64_MAX : now + std::max<int64_t>(0, grace_ns)});
}

bool ServingEngineImpl::drained() const {
  if (!draining_.load()) return false;
  std::lock_guard lock(events_mutex_);
  return open_choices_.load() == 0 && events_.empty();
}

void ServingEngineImpl::inspect(
    const std::function<std::vector<policy::Event>(const policy::SchedulerState&)>& look) {
  std::promise<void> done;
  std::future<void> future = done.get_future();
  send(InspectCommand{&look, &done});
  future.wait();
}

void ServingEngineImpl::clear_cache() {
  inspect([](const policy::SchedulerState& s) {
    policy::BlocksLost blocks;
    policy::SnapshotsLost snapshots;
    for (size_t i = 0; i < s.cache.blocks.size(); ++i) {
      if (s.cache.blocks[i].cached) blocks.blocks.push_back(policy::BlockId(static_cast<int32_t>(i)));
    }
    for (size_t i = 0; i < s.cache.snapshots.size(); ++i) {
      const policy::SnapshotEntry& e = s.cache.snapshots[i];
      if (e.place == policy::SnapshotPlace::kReady && e.pins == 0)
        snapshots.snapshots.push_back(policy::SnapshotId(static_cast<int32_t>(i)));
    }
    return std::vector<policy::Event>{blocks, snapshots};
  });
}

void ServingEngineImpl::obey(Command* command, int64_t now) {
  if (auto* s = std::get_if<Submission>(command)) {
    loop_.submit(*s, now);
  } else if (auto* c = std::get_if<CancelCommand>(command)) {
    if (c->choice < 0) {
      loop_.cancel(c->request, now);
    } else {
      loop_.cancel_choice(c->request, c->choice, now);
    }
  } else if (auto* d = std::get_if<DrainCommand>(command)) {
    loop_.drain(d->deadline_ns);
  } else if (auto* f = std::get_if<FirstLoaded>(command)) {
    loop_.first_loaded(std::move(*f), now);
  } else if (auto* l = std::get_if<Loaded>(command)) {
    loop_.loaded(std::move(*l), now);
  } else {
    auto& i = std::get<InspectCommand>(*command);
    for (const policy::Event& e : (*i.look)(loop_.state())) loop_.happen(e);
    i.done->set_value();
  }
}

// Waits for something to do. False: the engine is being destroyed.
bool ServingEngineImpl::take_inbox(std::vector<Command>* commands, std::vector<StepOutcome>* outcomes) {
  std::unique_lock lock(inbox_mutex_);
  auto ready = [this] { return stop_ || !inbox_.empty() || !outcomes_.empty(); };
  if (!ready()) {
    int64_t now = p_.clock(), wake_ns = std::min(loop_.next_wake_ns(now), load_deadline_ns_);
    // The engine's clock may be any clock: at most a while at a time.
    constexpr int64_t kLongestNs = 20'000'000;
    if (wake_ns == INT64_MAX) {
      inbox_changed_.wait(lock, ready);
    } else {
      int64_t wait = std::clamp<int64_t>(wake_ns - now, 0, kLongestNs);
      inbox_changed_.wait_for(lock, std::chrono::nanoseconds(wait), ready);
    }
  }
  commands->swap(inbox_);
  outcomes->swap(outcomes_);
  return !stop_;
}

void ServingEngineImpl::post_orders(int64_t now) {
  // One at a time, as far ahead as the policy allows; the bound is for plans that launch nothing.
  for (int i = 0; i < 8; ++i) {
    std::optional<StepOrder> order = loop_.next_order(now);
    if (!order.has_value()) return;
    {
      std::lock_guard lock(orders_mutex_);
      orders_.push_back(std::move(*order));
    }
    orders_changed_.notify_one();
  }
}

// Hands out figures and then events, so that who sees an end sees it counted.
void ServingEngineImpl::publish(int64_t busy_from, int64_t begin_ns) {
  std::vector<EngineEvent> events = loop_.take_events();
  int64_t ended = 0;
  bool news = false;
  for (const EngineEvent& e : events) {
    ended += e.kind == EngineEvent::Kind::kFinished ? 1 : 0;
    news = news || e.news();
  }
  int64_t emit_ns = p_.clock();
  schedule_ns_ += emit_ns - begin_ns;
  overlapped_ns_ += busy_.read(emit_ns) - busy_from;
  EngineStats s = loop_.stats();
  s.schedule_ns = schedule_ns_;
  s.overlapped_ns = overlapped_ns_;
  {
    std::lock_guard lock(stats_mutex_);
    stats_ = s;
  }
  if (!events.empty()) {
    bool wake_poller;
    {
      std::lock_guard lock(events_mutex_);
      std::move(events.begin(), events.end(), std::back_inserter(events_));
      open_choices_.fetch_sub(ended);
      news_ = news_ || news;
      wake_poller = news || poller_waits_for_ == Until::kAny;
    }
    if (wake_poller) events_changed_.notify_all();
  }
  if (p_.config.trace == nullptr) return;
  p_.config.trace->span("plan", TraceTrack::kLoop, s.steps, begin_ns, emit_ns);
  p_.config.trace->span("emit", TraceTrack::kLoop, s.steps, emit_ns, p_.clock());
}

void ServingEngineImpl::run_loop() {
  std::vector<Command> commands;
  std::vector<StepOutcome> outcomes;
  while (take_inbox(&commands, &outcomes)) {
    int64_t now = p_.clock(), busy_from = busy_.read(now);
    // A load's end was sent before the end of the step that waited for it, and is told before.
    auto of_store = [](const Command& c) {
      return std::holds_alternative<FirstLoaded>(c) || std::holds_alternative<Loaded>(c);
    };
    for (Command& c : commands) {
      if (of_store(c)) obey(&c, now);
    }
    for (StepOutcome& o : outcomes) loop_.finish(std::move(o), now);
    for (Command& c : commands) {
      if (!of_store(c)) obey(&c, now);
    }
    outcomes.clear();
    commands.clear();
    post_orders(now);
    if (bridge_ != nullptr) load_deadline_ns_ = bridge_->check_deadlines(now);
    publish(busy_from, now);
  }
  // Somebody may wait for an answer of a loop that stops.
  for (Command& c : commands) {
    if (auto* i = std::get_if<InspectCommand>(&c)) i->done->set_value();
  }
}

void ServingEngineImpl::run_executor() {
  for (;;) {
    StepOrder order;
    {
      std::unique_lock lock(orders_mutex_);
      orders_changed_.wait(lock, [this] { return orders_closed_ || !orders_.empty(); });
      if (orders_closed_) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    busy_.begin(p_.clock());
    StepOutcome outcome = runner_.execute(order);
    busy_.end(p_.clock());
    if (raw(order.step) == 0) continue;
    {
      std::lock_guard lock(inbox_mutex_);
      outcomes_.push_back(std::move(outcome));
    }
    inbox_changed_.notify_all();
  }
}

Status check_config(const EngineConfig& c, const ModelConfig& model) {
  if (c.guesses != nullptr && c.acceptance == EngineConfig::Acceptance::kRatio)
    return error(Code::kInvalidConfig, "engine: the ratio rule judges the draft stages' own guesses only");
  struct Field {
    const char* name;
    int64_t value, least, most;
  };
  for (const Field& f :
       {Field{"pool_bytes", c.pool_blocks > 0 ? 1 : c.pool_bytes, 1, INT64_MAX},
        Field{"pool_blocks", c.pool_blocks, 0, INT32_MAX - 1},
        Field{"snapshot_slots", c.snapshot_slots, 0, 1 << 20},
        Field{"max_running", c.max_running, 1, 1 << 16}, Field{"max_waiting", c.max_waiting, 0, 1 << 24},
        Field{"context_tokens", c.context_tokens, 0, model.max_position_embeddings},
        Field{"keep_tokens", c.keep_tokens, 0, model.max_position_embeddings},
        Field{"drafts", c.drafts, -1, model.drafts()}, Field{"max_in_flight", c.max_in_flight, 1, 2}}) {
    if (f.value < f.least || f.value > f.most)
      return error(Code::kInvalidConfig, "engine: {} is {}, must be in [{}, {}]", f.name, f.value, f.least,
                   f.most);
  }
  for (int layer : model.kv_source_layer_ids) {
    // A boundary must never split a group: windows and blocks are stored without open groups.
    if (model.sliding_window % model.ratio(layer) != 0)
      return error(Code::kInvalidConfig, "engine: a block of {} tokens splits groups of {} of layer {}",
                   model.sliding_window, model.ratio(layer), layer);
  }
  return {};
}

policy::SchedulerConfig scheduler_of(const EngineConfig& c, const ModelConfig& model, int64_t blocks) {
  policy::SchedulerConfig s = policy::scheduler_config(model, blocks, c.snapshot_slots);
  if (c.context_tokens > 0) s.context_tokens = c.context_tokens;
  if (c.keep_tokens > 0) s.replay.keep_tokens = c.keep_tokens;
  if (c.drafts >= 0) s.drafts = c.drafts;
  s.max_running = c.max_running;
  s.chunk_max_tokens = c.chunk_max_tokens;
  s.batch_budget_ns = c.batch_budget_ns;
  s.interactive_budget_ns = c.interactive_budget_ns;
  s.min_budget_ns = std::min(s.min_budget_ns, std::min(c.batch_budget_ns, c.interactive_budget_ns));
  s.max_in_flight = c.max_in_flight;
  s.exact_hits = c.exact_hits;
  s.cap_snapshots = c.cap_snapshots;
  s.cost = c.cost;
  s.tiers.quota_ns = 4.0 * static_cast<double>(c.batch_budget_ns);
  return s;
}

// Depths and modes that the model's block allows.
Status set_speculation(const ModelConfig& model, const policy::SchedulerConfig& scheduler,
                       EngineConfig* config) {
  policy::SpeculationConfig& s = config->speculation;
  if (model.drafts() == 0 || scheduler.drafts == 0) {
    s = {};
    s.mode = policy::SpeculationMode::kOff;
    return {};
  }
  s.drafts = s.calibration.positions = model.drafts();
  return policy::validate(s);
}

Result<std::unique_ptr<ServingEngine>> build(std::unique_ptr<Forward<float>> owned, Forward<float>* model,
                                             const ModelWeights& weights, ThreadPool* pool,
                                             const EngineConfig& config, EngineClock clock) {
  const ModelConfig& m = model->config();
  DI_TRY(check_config(config, m));
  int64_t block_bytes = (model->layout().block_bytes + 63) / 64 * 64;
  int64_t blocks = config.pool_blocks > 0 ? config.pool_blocks : config.pool_bytes / block_bytes;
  if (blocks < 1)
    return error(Code::kInvalidConfig, "engine: pool_bytes {} holds no block of {} bytes", config.pool_bytes,
                 block_bytes);
  policy::SchedulerConfig scheduler = scheduler_of(config, m, blocks);
  ServingEngineImpl::Parts p;
  p.owned_model = std::move(owned);
  p.model = model;
  p.pool = pool;
  DI_ASSIGN(p.arena, BlockArena::make(block_bytes, blocks));
  if (config.calibrate_ns > 0)
    scheduler.cost = calibrate_cost(model, p.arena.get(), config.calibrate_ns, scheduler.context_tokens,
                                    config.cost, clock);
  p.calibrated = scheduler.cost;
  DI_ASSIGN(p.state, policy::make_scheduler(scheduler));
  p.identity = engine_identity(weights, model->layout(), scheduler.replay.keep_tokens, config.weights_digest,
                               config.tokenizer_digest);
  p.limits.context = scheduler.context_tokens;
  p.config = config;
  DI_TRY(set_speculation(m, scheduler, &p.config));
  if (p.config.speculation.mode == policy::SpeculationMode::kDynamic)
    p.curves = measure_curves(model, p.arena.get(), config.calibrate_ns / 2,
                              scheduler.max_running * (1 + scheduler.drafts), scheduler.max_running, clock);
  p.clock = std::move(clock);
  return std::unique_ptr<ServingEngine>(new ServingEngineImpl(std::move(p)));
}

}  // namespace

Result<std::unique_ptr<ServingEngine>> make_serving_engine(Forward<float>* model, const ModelWeights& weights,
                                                           ThreadPool* pool, const EngineConfig& config,
                                                           EngineClock clock) {
  return build(nullptr, model, weights, pool, config, std::move(clock));
}

Result<std::unique_ptr<Engine>> make_engine(const ModelWeights* weights, ThreadPool* pool,
                                            const EngineConfig& config, EngineClock clock) {
  if (config.routing != Routing::kModel && config.store != nullptr)
    return error(Code::kInvalidConfig,
                 "engine: made-up routing would fill the store with blocks of no model");
  ForwardOptions<float> options;
  options.routing = config.routing;
  auto owned = std::make_unique<Forward<float>>(weights, pool, options);
  Forward<float>* model = owned.get();
  DI_ASSIGN(std::unique_ptr<ServingEngine> engine,
            build(std::move(owned), model, *weights, pool, config, std::move(clock)));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace deepinfer
