// What a request may ask for and what may happen to it: sampling with penalties, log-probabilities,
// constraints, images, limits, deadlines, cancellation, drain. Against a plain loop over the forward pass
// where there is something to compute.
#include <thread>

#include "serving_fixture.h"

namespace deepinfer::parity {
namespace {

const ModelConfig& config() {
  return weights("t0").config;
}
int vocab() {
  return config().vocab_size;
}
std::vector<int32_t> all_but(int count) {
  std::vector<int32_t> banned;
  for (int32_t id = count; id < vocab(); ++id) banned.push_back(id);
  return banned;
}

// Allowed after n tokens: `width(n)` ids from 5 n on; every third time only one. Ends after `length` tokens.
class Cycle : public TokenConstraint {
 public:
  Cycle(int length, int32_t stop, int dead_end = -1) : length_(length), stop_(stop), dead_end_(dead_end) {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<Cycle>(*this); }
  bool mask(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0);
    if (n_ == dead_end_) return true;
    for (int32_t id = 0; id < vocab(); ++id) {
      if (allowed(id)) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
    return true;
  }
  bool accept(int32_t id) override {
    if (!allowed(id) || id == stop_) return false;
    ++n_;
    return true;
  }
  void rollback(int n) override {
    DI_CHECK(n <= n_, "more taken back than was accepted");
    n_ -= n;
  }
  std::vector<int32_t> forced(int most) override {
    if (most < 1 || n_ % 3 != 0 || n_ >= length_ || n_ == dead_end_) return {};
    return {first()};
  }
  bool terminated() const override { return false; }

 private:
  int32_t first() const { return static_cast<int32_t>((5 * n_) % (vocab() - 20)); }
  bool allowed(int32_t id) const {
    if (n_ >= length_) return id == stop_;
    return id >= first() && id < first() + (n_ % 3 == 0 ? 1 : 6);
  }
  int length_;
  int32_t stop_;
  int dead_end_;
  int n_ = 0;
};

// One sequence, one row at a time, with everything a request may ask for.
Answer plain_answer(const EngineRequest& r) {
  static Bench<float> b("t0");
  Answer out;
  auto s = b.start(r.prompt, r.prompt_logprobs ? -1 : ring_slots(config()));
  s->images = r.images;
  TokenHistory history;
  history.add_prompt(r.prompt);
  auto constraint = r.constraint == nullptr ? nullptr : r.constraint->clone();
  int64_t n = static_cast<int64_t>(r.prompt.size());
  auto logits = b.model.run({{s.get(), 0, n, r.prompt_logprobs ? 0 : n - 1}});
  auto event = [&](const float* row, int32_t id, int top) {
    TokenEvent e;
    e.id = id;
    if (top < 0) return e;
    double sum = log_sum_exp(row, vocab());
    e.logprob = row[id] - sum;
    e.top = top_logprobs(row, vocab(), sum, top);
    return e;
  };
  for (int64_t i = 0; r.prompt_logprobs && i + 1 < n; ++i)
    out.prompt_logprobs.push_back(event(logits.row(static_cast<size_t>(i)),
                                        r.prompt[static_cast<size_t>(i) + 1], std::max(0, r.top_logprobs)));
  out.finish = Finish::kLength;
  while (static_cast<int64_t>(out.ids.size()) < r.max_tokens) {
    const float* row = logits.row(logits.rows.size() - 1);
    std::vector<float> adjusted(static_cast<size_t>(vocab()));
    adjust_logits(row, vocab(), r.sampling, history, adjusted.data());
    std::vector<uint32_t> mask(static_cast<size_t>((vocab() + 31) / 32));
    DrawRules rules{r.banned_ids, {}, {}};
    if (static_cast<int64_t>(out.ids.size()) < r.min_tokens) rules.also_banned = r.stop_ids;
    if (constraint != nullptr && constraint->mask(mask)) rules.mask = mask;
    int32_t id = draw(adjusted.data(), vocab(), s->length, r.sampling, rules);
    if (id < 0) {
      out.finish = Finish::kError;
      break;
    }
    if (std::binary_search(r.stop_ids.begin(), r.stop_ids.end(), id)) {
      out.finish = Finish::kStop;
      break;
    }
    out.ids.push_back(id);
    out.tokens.push_back(event(row, id, r.top_logprobs));
    history.push(id);
    if (constraint != nullptr) {
      EXPECT_TRUE(constraint->accept(id));
    }
    s->tokens.push_back(id);
    EXPECT_TRUE(s->reserve(s->length + 1).ok());
    logits = b.model.run({{s.get(), s->length, s->length + 1, s->length}});
  }
  return out;
}

bool same(const std::vector<TokenEvent>& a, const std::vector<TokenEvent>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const TokenEvent& x, const TokenEvent& y) {
    return x.id == y.id && x.logprob == y.logprob && x.top == y.top;
  });
}

// Also beside others, twice (cold and from the cache), with and without drafts.
void expect_plain(const EngineRequest& r, const std::string& what) {
  Answer want = plain_answer(r);
  for (int drafts : {0, 5}) {
    EngineConfig c = test_config();
    c.drafts = drafts;
    Server s("t0", c);
    for (int round = 0; round < 2; ++round) {
      std::vector<RequestId> beside;
      for (int i = 0; i < 3; ++i) beside.push_back(s.submit(request(prompt(20 + 30 * i, vocab(), i), 20)));
      RequestId id = s.submit(r);
      ASSERT_TRUE(s.finish_all());
      const Answer& got = s.answers[{id, 0}];
      EXPECT_EQ(got.ids, want.ids) << what << ", drafts " << drafts << ", round " << round;
      EXPECT_EQ(got.finish, want.finish) << what << ": " << got.status.to_string();
      EXPECT_TRUE(same(got.tokens, want.tokens)) << what;
      EXPECT_TRUE(same(got.prompt_logprobs, want.prompt_logprobs)) << what;
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ((s.answers[{beside[static_cast<size_t>(i)], 0}].ids),
                  alone("t0", request(prompt(20 + 30 * i, vocab(), i), 20)));
      }
    }
    s.expect_clean();
  }
}

TEST(ServingFeatures, PenaltiesAndBias) {
  EngineRequest r = request(prompt(60, vocab()), 40, 0.9);
  r.banned_ids = all_but(8);
  EngineRequest free = r;
  r.sampling.repetition_penalty = 1.3;
  r.sampling.frequency_penalty = 0.4;
  r.sampling.presence_penalty = -0.3;
  r.sampling.logit_bias = {{1, 1.5}, {3, -100}};
  expect_plain(r, "penalties");
  EXPECT_NE(plain_answer(r).ids, plain_answer(free).ids);
  auto ids = plain_answer(r).ids;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 0);
}

TEST(ServingFeatures, StopsAndMinimum) {
  EngineRequest r = request(prompt(60, vocab()), 60, 1.0);
  r.banned_ids = all_but(6);
  r.stop_ids = {2, 4};
  Answer early = plain_answer(r);
  ASSERT_EQ(early.finish, Finish::kStop);
  ASSERT_LT(early.ids.size(), 30u);
  expect_plain(r, "stop ids");
  r.min_tokens = 30;
  EXPECT_GE(plain_answer(r).ids.size(), 30u);
  expect_plain(r, "min_tokens");
}

TEST(ServingFeatures, LogProbabilities) {
  EngineRequest r = request(prompt(70, vocab()), 12, 0.7);
  r.top_logprobs = 0;
  expect_plain(r, "logprob");
  r.top_logprobs = 5;
  Answer a = plain_answer(r);
  ASSERT_EQ(a.tokens[0].top.size(), 5u);
  EXPECT_GE(a.tokens[0].top[0].second, a.tokens[0].top[4].second);
  expect_plain(r, "top logprobs");
  r.prompt_logprobs = true;
  ASSERT_EQ(plain_answer(r).prompt_logprobs.size(), 69u);
  expect_plain(r, "prompt logprobs");
}

TEST(ServingFeatures, Constraints) {
  EngineRequest r = request(prompt(50, vocab()), 60, 0.9);
  r.stop_ids = {vocab() - 1};
  r.constraint = std::make_shared<Cycle>(25, vocab() - 1);
  Answer want = plain_answer(r);
  EXPECT_EQ(want.ids.size(), 25u);
  EXPECT_EQ(want.finish, Finish::kStop);
  expect_plain(r, "constraint");
  r.min_tokens = 40;  // what must match goes before how long it should be
  Server s("t0", test_config());
  const Answer& bound = s.run(r);
  EXPECT_EQ(bound.ids, want.ids);
  EXPECT_EQ(bound.finish, Finish::kStop);
  EXPECT_GT(bound.usage.accepted_tokens, 0) << "ids without a choice are guessed right";
}

// A constraint that leaves nothing ends its request alone, and says why.
TEST(ServingFeatures, ConstraintWithoutAWayOut) {
  EngineRequest r = request(prompt(50, vocab()), 60);
  r.stop_ids = {vocab() - 1};
  r.constraint = std::make_shared<Cycle>(25, vocab() - 1, 7);
  expect_plain(r, "dead end");
  Server s("t0", test_config());
  const Answer& a = s.run(r);
  EXPECT_EQ(a.finish, Finish::kError);
  EXPECT_EQ(a.ids.size(), 7u);
  EXPECT_NE(a.status.message().find("leaves no token"), std::string::npos) << a.status.message();
  EXPECT_EQ(s.engine->stats().failed, 1);
  s.expect_clean();
}

TEST(ServingFeatures, ImagesArePartOfThePrefix) {
  EngineRequest r = request(prompt(90, vocab()), 16, 0.5);
  ImageSpan image{40, 30, {}};
  for (int64_t i = 0; i < 30 * config().hidden_size; ++i)
    image.rows.push_back(static_cast<float>((i * 37 % 101) - 50) / 50.0f);
  for (int64_t i = 40; i < 70; ++i) r.prompt[static_cast<size_t>(i)] = config().image_token_id;
  r.images = {image};
  r.image_digests = {"one"};
  expect_plain(r, "image");
  Server s("t0", test_config());
  s.run(r);
  EXPECT_GT(s.run(r).usage.cached_tokens, 50);
  EngineRequest other = r;
  for (float& v : other.images[0].rows) v = -v;
  other.image_digests = {"two"};
  // Two blocks lie before the image; without a window there, the second is replayed.
  EXPECT_EQ(s.run(other).usage.cached_tokens, 16);
  other.exact_hits = true;
  EXPECT_EQ(s.run(other).ids, plain_answer(other).ids);
}

TEST(ServingFeatures, ScopesDoNotShare) {
  Server s("t0", test_config());
  EngineRequest r = request(prompt(100, vocab()), 4);
  r.cache_scope = "a";
  s.run(r);
  EXPECT_GT(s.run(r).usage.cached_tokens, 0);
  r.cache_scope = "b";
  EXPECT_EQ(s.run(r).usage.cached_tokens, 0);
}

TEST(ServingFeatures, BadRequestsAreRefusedByName) {
  EngineConfig c = test_config(8);
  c.context_tokens = 500;
  Server s("t0", c);
  EngineRequest good = request(prompt(20, vocab()), 5);
  auto refused = [&](const std::function<void(EngineRequest*)>& change, const std::string& word) {
    EngineRequest r = good;
    change(&r);
    auto id = s.engine->submit(r);
    ASSERT_FALSE(id.ok()) << word;
    EXPECT_EQ(id.status().code(), Code::kInvalidArgument) << word;
    EXPECT_NE(id.status().message().find(word), std::string::npos) << id.status().message();
  };
  refused([](auto* r) { r->prompt.clear(); }, "prompt");
  refused([](auto* r) { r->prompt[3] = vocab(); }, "vocabulary");
  refused([](auto* r) { r->prompt[3] = -1; }, "vocabulary");
  refused([](auto* r) { r->max_tokens = 0; }, "max_tokens");
  refused([](auto* r) { r->max_tokens = INT64_MAX; }, "context");
  refused([](auto* r) { r->max_tokens = 481; }, "context");
  refused([](auto* r) { r->max_tokens = 200; }, "cache blocks");
  refused([](auto* r) { r->min_tokens = 6; }, "min_tokens");
  refused([](auto* r) { r->choices = 0; }, "choices");
  refused([](auto* r) { r->choices = 100000; }, "choices");
  refused([](auto* r) { r->top_logprobs = -2; }, "top_logprobs");
  refused([](auto* r) { r->stop_ids = {3, 3}; }, "stop_ids");
  refused([](auto* r) { r->banned_ids = {-1}; }, "banned_ids");
  refused([](auto* r) { r->banned_ids = all_but(0); }, "banned_ids");
  refused([](auto* r) { r->tenant_weight = 0; }, "tenant_weight");
  refused([](auto* r) { r->tenant_weight = std::nan(""); }, "tenant_weight");
  refused([](auto* r) { r->deadline_ns = -1; }, "deadline_ns");
  refused([](auto* r) { r->sampling.top_p = 0; }, "top_p");
  refused([](auto* r) { r->sampling.repetition_penalty = 0; }, "repetition_penalty");
  refused([](auto* r) { r->sampling.presence_penalty = 3; }, "presence_penalty");
  refused([](auto* r) { r->sampling.logit_bias = {{vocab(), 1.0}}; }, "logit_bias");
  refused([](auto* r) { r->sampling.logit_bias = {{4, 1.0}, {4, 1.0}}; }, "logit_bias");
  refused([](auto* r) { r->images = {{18, 4, {}}}; }, "image");
  refused(
      [](auto* r) {
        r->images = {{18, 4, {}}};
        r->image_digests = {"x"};
      },
      "images[0]");
  EXPECT_EQ(s.run(good).finish, Finish::kLength);
  EXPECT_EQ(s.engine->stats().submitted, 1);
}

TEST(ServingFeatures, BadConfigurationsAreRefusedByName) {
  const ModelWeights& w = weights("t0");
  ThreadPool pool(1);
  auto refused = [&](const std::function<void(EngineConfig*)>& change, const std::string& word) {
    EngineConfig c = test_config();
    change(&c);
    auto e = make_engine(&w, &pool, c, [] { return int64_t{1}; });
    ASSERT_FALSE(e.ok()) << word;
    EXPECT_EQ(e.status().code(), Code::kInvalidConfig);
    EXPECT_NE(e.status().message().find(word), std::string::npos) << e.status().message();
  };
  refused([](auto* c) { c->pool_blocks = 0, c->pool_bytes = 10; }, "pool_bytes");
  refused([](auto* c) { c->max_running = 0; }, "max_running");
  refused([](auto* c) { c->drafts = 6; }, "drafts");
  refused([](auto* c) { c->snapshot_slots = -1; }, "snapshot_slots");
  refused([](auto* c) { c->context_tokens = int64_t{1} << 40; }, "context_tokens");
  refused([](auto* c) { c->max_in_flight = 3; }, "max_in_flight");
  refused([](auto* c) { c->keep_tokens = 4; }, "keep");
  refused([](auto* c) { c->chunk_max_tokens = 3; }, "chunk_max_tokens");
}

EngineRequest endless() {
  return request(prompt(40, vocab()), 3000);
}

TEST(ServingFeatures, FullQueueRefusesTyped) {
  EngineConfig c = test_config();
  c.max_running = 1;
  c.max_waiting = 1;
  Server s("t0", c);
  RequestId a = s.submit(endless()), b = s.submit(endless());
  auto third = s.engine->submit(endless());
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code(), Code::kResourceExhausted);
  s.engine->cancel(a);
  s.engine->cancel(b);
  ASSERT_TRUE(s.finish_all());
  EXPECT_EQ(s.run(request(prompt(10, vocab()), 2)).finish, Finish::kLength);
}

TEST(ServingFeatures, CancelledWhereverTheyAre) {
  EngineConfig c = test_config();
  c.max_running = 2;
  Server s("t0", c);
  EngineRequest three = endless();
  three.choices = 3;
  RequestId a = s.submit(endless()), b = s.submit(three), d = s.submit(endless());
  while (s.answers[{a, 0}].ids.size() < 5) s.poll(100'000'000);
  s.engine->cancel(d);                  // in the queue
  s.engine->cancel_choice(b, 2);        // held back or in the queue
  s.engine->cancel_choice(b, 77);       // there is none
  s.engine->cancel(RequestId(999999));  // never was
  while (!s.answers[{d, 0}].finished || !s.answers[{b, 2}].finished) s.poll(100'000'000);
  EXPECT_TRUE((s.answers[{d, 0}].ids.empty()));
  EXPECT_FALSE((s.answers[{b, 0}].finished));
  s.engine->cancel(a);  // in flight
  s.engine->cancel(a);
  s.engine->cancel(b);
  ASSERT_TRUE(s.finish_all());
  for (auto& [key, answer] : s.answers) EXPECT_EQ(answer.finish, Finish::kCancelled);
  EXPECT_EQ(s.engine->stats().cancelled, 5);
  s.engine->cancel(a);  // over
  std::vector<int32_t> want = alone("t0", request(prompt(40, vocab()), 40));
  const std::vector<int32_t>& got = s.answers[{a, 0}].ids;
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<int64_t>(std::min(got.size(), want.size())),
                         want.begin()));
  s.expect_clean();
}

TEST(ServingFeatures, DeadlinesEndTyped) {
  EngineConfig c = test_config();
  c.max_running = 1;
  Server s("t0", c);
  EngineRequest late = endless();
  late.deadline_ns = s.engine->now_ns() + 200'000'000;
  RequestId runs = s.submit(late);
  // It holds the seat: those with less time would be let in before it.
  while (s.answers[{runs, 0}].ids.empty()) s.poll(100'000'000);
  EngineRequest waits = request(prompt(30, vocab()), 5);
  waits.deadline_ns = s.engine->now_ns() + 20'000'000;
  RequestId queued = s.submit(waits);
  EngineRequest hopeless = request(prompt(100, vocab()), 5);
  hopeless.deadline_ns = s.engine->now_ns() + 1'000'000;  // a row costs 0.1 ms here
  RequestId never = s.submit(hopeless);
  ASSERT_TRUE(s.finish_all());
  for (RequestId id : {runs, queued, never}) {
    EXPECT_EQ((s.answers[{id, 0}].finish), Finish::kDeadline);
    EXPECT_EQ((s.answers[{id, 0}].status.code()), Code::kDeadlineExceeded);
  }
  EXPECT_EQ(s.engine->stats().expired, 3);
  s.expect_clean();
}

TEST(ServingFeatures, DrainFinishesOrCancels) {
  for (bool patient : {true, false}) {
    Server s("t0", test_config());
    EngineRequest r = patient ? request(prompt(40, vocab()), 50) : endless();
    RequestId id = s.submit(r);
    EXPECT_FALSE(s.engine->drained());
    s.engine->drain(patient ? 60'000'000'000 : 5'000'000);
    auto refused = s.engine->submit(r);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kUnavailable);
    ASSERT_TRUE(s.finish_all());
    EXPECT_EQ((s.answers[{id, 0}].finish), patient ? Finish::kLength : Finish::kCancelled);
    EXPECT_TRUE(s.engine->drained());
    EXPECT_TRUE(s.engine->stats().draining);
  }
}

TEST(ServingFeatures, DestroyedWithWorkInFlight) {
  for (int i = 0; i < 10; ++i) {
    Server s("t0", test_config());
    for (int k = 0; k < 4; ++k) s.submit(endless());
    s.poll(i * 1'000'000);
  }
}

TEST(ServingFeatures, WakeEndsAPoll) {
  Server s("t0", test_config());
  std::thread other([&] { s.engine->wake(); });
  EXPECT_TRUE(s.engine->poll(-1).empty());
  other.join();
}

TEST(ServingFeatures, StatisticsAndTraceTellWhatHappened) {
  ChromeTrace trace;
  EngineConfig c = test_config();
  c.trace = &trace;
  EngineStats stats;
  {
    Server s("t0", c);
    int64_t before = s.engine->now_ns();
    for (int i = 0; i < 3; ++i) s.submit(request(prompt(50, vocab(), i), 10));
    ASSERT_TRUE(s.finish_all());
    s.wait_for_steps();
    s.poll(0);
    stats = s.engine->stats();
    EXPECT_GT(stats.last_step_ns, before);
    for (auto& [key, a] : s.answers) {
      EXPECT_LE(before, a.times.submitted_ns);
      EXPECT_LE(a.times.submitted_ns, a.times.admitted_ns);
      EXPECT_LE(a.times.admitted_ns, a.times.first_token_ns);
      EXPECT_LE(a.times.first_token_ns, a.times.finished_ns);
    }
  }
  EXPECT_EQ(stats.submitted, 3);
  EXPECT_EQ(stats.finished, 3);
  EXPECT_EQ(stats.prompt_tokens, 150);
  EXPECT_EQ(stats.prefill_rows, 150);
  EXPECT_EQ(stats.output_tokens, 30);
  EXPECT_GE(stats.decode_rows, 27);
  EXPECT_GT(stats.forward_ns, 0);
  EXPECT_GE(stats.schedule_ns, stats.overlapped_ns);
  EXPECT_EQ(stats.blocks_total, 400);
  EXPECT_EQ(stats.running + stats.waiting + stats.blocks_used, 0);
  std::string json = trace.to_json();
  for (const char* name : {"\"plan\"", "\"forward\"", "\"draft\"", "\"sample\"", "\"emit\""})
    EXPECT_NE(json.find(name), std::string::npos) << name;
}

// A short start-up measurement gives a usable model: costs grow with rows.
TEST(ServingFeatures, CalibrationIsBoundedAndUsable) {
  EngineConfig c = test_config();
  c.calibrate_ns = 100'000'000;
  Server s("t0", c);
  const policy::CostModel& m = s.engine->calibrated();
  EXPECT_GT(policy::rows_cost_ns(m, 100, 0), 0);
  EXPECT_GT(policy::rows_cost_ns(m, 1000, 0), policy::rows_cost_ns(m, 100, 0));
  EngineRequest r = request(prompt(100, vocab()), 10);
  EXPECT_EQ(s.run(r).ids, alone("t0", r));
}

// Experts that a bench makes up: other answers than the model's, of the same lengths.
TEST(ServingFeatures, MadeUpRoutingIsForMeasurementsOnly) {
  ThreadPool pool(2);
  EngineRequest r = request(prompt(60, vocab()), 24);
  std::vector<std::vector<int32_t>> answers;
  for (Routing routing : {Routing::kModel, Routing::kBalanced, Routing::kRandom}) {
    EngineConfig c = test_config();
    c.routing = routing;
    auto engine = make_engine(&weights("t0"), &pool, c, now_ns);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE((*engine)->submit(r).ok());
    std::vector<int32_t> ids;
    for (bool over = false; !over;) {
      for (const EngineEvent& e : (*engine)->poll(1'000'000'000)) {
        for (const TokenEvent& t : e.tokens) ids.push_back(t.id);
        over = over || e.kind == EngineEvent::Kind::kFinished;
      }
    }
    EXPECT_EQ(ids.size(), 24u);
    answers.push_back(std::move(ids));
  }
  EXPECT_EQ(answers[0], alone("t0", r));
  EXPECT_NE(answers[0], answers[1]);
  EXPECT_NE(answers[0], answers[2]);
}

}  // namespace
}  // namespace deepinfer::parity
