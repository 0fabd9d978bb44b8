// Random lives of an engine: arrivals, cancels, deadlines, losses of windows and blocks, pools that are far
// too small, one or two steps in flight, with and without drafts. Whatever happens, every answer is what the
// request gets alone (or the beginning of it, if it was ended), every block comes back, and the recorded
// events replay to the same decisions.
#include <cstdlib>

#include "serving_fixture.h"

namespace deepinfer::parity {
namespace {

constexpr int kRequests = 24;

class Random {
 public:
  explicit Random(uint64_t seed) : x_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  int64_t in(int64_t least, int64_t most) {
    x_ = x_ * 6364136223846793005ull + 1442695040888963407ull;
    return least + static_cast<int64_t>((x_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return in(1, n) == 1; }

 private:
  uint64_t x_;
};

// A fixed set, so that the answers alone are computed once: prompts of three families with common beginnings.
const std::vector<EngineRequest>& request_set() {
  static const std::vector<EngineRequest> set = [] {
    Random random(5);
    std::vector<EngineRequest> out;
    int vocab = weights("t0").config.vocab_size;
    for (int i = 0; i < kRequests; ++i) {
      std::vector<int32_t> tokens = prompt(static_cast<int>(random.in(40, 120)), vocab, i % 3);
      tokens.resize(static_cast<size_t>(random.one_in(4) ? random.in(1, 20) : random.in(20, 120)));
      for (int64_t k = random.in(0, 30); k > 0; --k)
        tokens.push_back(static_cast<int32_t>(random.in(0, vocab - 7)));
      for (int32_t& t : tokens) t = std::max(t, 0);
      EngineRequest r = request(tokens, random.in(1, 40), random.one_in(2) ? 0.0 : 0.9,
                                static_cast<uint64_t>(random.in(1, 1000)));
      r.exact_hits = true;
      r.choices = random.one_in(5) ? 3 : 1;
      r.use_cache = !random.one_in(6);
      if (random.one_in(3)) {
        for (int32_t id = 5; id < vocab; ++id) r.banned_ids.push_back(id);  // guesses come true
      }
      if (random.one_in(4)) r.stop_ids = {static_cast<int32_t>(random.in(0, 4))};
      out.push_back(r);
    }
    return out;
  }();
  return set;
}

const std::vector<int32_t>& expected(int index, int choice) {
  static std::map<std::pair<int, int>, std::vector<int32_t>> known;
  auto it = known.find({index, choice});
  if (it == known.end()) {
    it =
        known
            .emplace(std::pair{index, choice}, alone("t0", request_set()[static_cast<size_t>(index)], choice))
            .first;
  }
  return it->second;
}

EngineConfig random_config(Random* r) {
  EngineConfig c = test_config(r->one_in(3) ? r->in(100, 300) : r->in(11, 30));
  c.snapshot_slots = r->one_in(3) ? 0 : r->in(1, 12);
  c.max_running = r->in(1, 8);
  c.drafts = r->one_in(2) ? 0 : static_cast<int>(r->in(1, 5));
  c.max_in_flight = static_cast<int>(r->in(1, 2));
  c.cap_snapshots = r->one_in(2);
  c.interactive_budget_ns = r->in(1, 100) * 100'000;
  c.batch_budget_ns = c.interactive_budget_ns * r->in(1, 4);
  c.chunk_max_tokens = r->in(16, 200);
  c.weights_digest = "t0";
  return c;
}

struct Asked {
  RequestId id{};
  int index = 0;
  bool disturbed = false;  // cancelled or with a deadline
};

void lose_something(Server* s, Random* random) {
  uint64_t seed = static_cast<uint64_t>(random->in(1, 1 << 20));
  bool blocks = random->one_in(2);
  s->engine->inspect([&](const policy::SchedulerState& state) {
    Random pick(seed);
    policy::SnapshotsLost windows;
    policy::BlocksLost lost;
    for (size_t i = 0; i < state.cache.snapshots.size(); ++i) {
      if (pick.one_in(2)) windows.snapshots.push_back(policy::SnapshotId(static_cast<int32_t>(i)));
    }
    for (size_t i = 0; blocks && i < state.cache.blocks.size(); ++i) {
      if (pick.one_in(4)) lost.blocks.push_back(policy::BlockId(static_cast<int32_t>(i)));
    }
    return std::vector<policy::Event>{windows, lost};
  });
}

// The log decides again what was decided.
void expect_replay(const policy::SchedulerConfig& config, const std::vector<policy::Event>& log) {
  policy::SchedulerState state = policy::make_scheduler(config).value();
  for (size_t i = 0; i < log.size(); ++i) {
    if (const auto* adopted = std::get_if<policy::PlanAdopted>(&log[i])) {
      policy::StepPlan plan = policy::decide(state, {adopted->now_ns, 0});
      ASSERT_EQ(policy::to_text(plan), policy::to_text(adopted->plan)) << "at event " << i;
    }
    policy::apply(&state, log[i]);
  }
}

void run_schedule(uint64_t seed, int64_t* preemptions, int64_t* hits) {
  Random random(seed);
  EngineConfig config = random_config(&random);
  std::vector<policy::Event> log;
  config.on_policy_event = [&log](const policy::Event& e) { log.push_back(e); };
  Server s("t0", config, static_cast<int>(random.in(1, 2)));
  std::vector<Asked> asked;
  int64_t total = random.in(4, 14);
  while (static_cast<int64_t>(asked.size()) < total) {
    Asked a;
    a.index = static_cast<int>(random.in(0, kRequests - 1));
    EngineRequest r = request_set()[static_cast<size_t>(a.index)];
    r.priority = static_cast<int>(random.in(0, 1));
    r.tenant = static_cast<uint32_t>(random.in(0, 2));
    if (random.one_in(12)) {
      r.deadline_ns = s.engine->now_ns() + random.in(0, 30'000'000);
      a.disturbed = true;
    }
    auto id = s.engine->submit(r);
    if (!id.ok()) {  // longer than this schedule's pool
      ASSERT_EQ(id.status().code(), Code::kInvalidArgument) << id.status().to_string();
      --total;
      continue;
    }
    a.id = *id;
    for (int i = 0; i < r.choices; ++i) s.answers[{*id, i}];
    s.open += r.choices;
    asked.push_back(a);
    if (random.one_in(2)) s.poll(random.in(0, 3) * 1'000'000);
    if (random.one_in(5)) {
      Asked& victim = asked[static_cast<size_t>(random.in(0, static_cast<int64_t>(asked.size()) - 1))];
      victim.disturbed = true;
      if (random.one_in(2)) {
        s.engine->cancel(victim.id);
      } else {
        s.engine->cancel_choice(victim.id, static_cast<int>(random.in(0, 2)));
      }
    }
    if (random.one_in(4)) lose_something(&s, &random);
  }
  if (random.one_in(4)) {
    s.engine->drain(random.one_in(2) ? 0 : 60'000'000'000);
    for (Asked& a : asked) a.disturbed = true;
  }
  ASSERT_TRUE(s.finish_all()) << "stuck";
  for (const Asked& a : asked) {
    const EngineRequest& r = request_set()[static_cast<size_t>(a.index)];
    for (int i = 0; i < r.choices; ++i) {
      const Answer& got = s.answers[{a.id, i}];
      const std::vector<int32_t>& want = expected(a.index, i);
      bool whole = got.finish == Finish::kLength || got.finish == Finish::kStop;
      ASSERT_TRUE(whole ||
                  (a.disturbed && (got.finish == Finish::kCancelled || got.finish == Finish::kDeadline)))
          << name(got.finish) << ": " << got.status.to_string();
      ASSERT_LE(got.ids.size(), want.size());
      ASSERT_TRUE(std::equal(got.ids.begin(), got.ids.end(), want.begin()) &&
                  (!whole || got.ids.size() == want.size()))
          << "request " << a.index << " choice " << i;
    }
  }
  EngineStats stats = s.engine->stats();
  *preemptions += stats.preemptions;
  *hits += stats.cached_tokens;
  EXPECT_EQ(stats.replayed_hits, 0);
  s.expect_clean();
  policy::SchedulerConfig scheduler = s.engine->scheduler();
  s.engine.reset();
  expect_replay(scheduler, log);
}

TEST(ServingSchedules, AnswersDoNotDependOnThem) {
  int first = SCHEDULE_FIRST, count = SCHEDULE_COUNT;
  if (const char* n = std::getenv("DEEPINFER_SCHEDULES")) count = std::atoi(n);
  int64_t preemptions = 0, hits = 0;
  for (int i = first; i < first + count && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("schedule " + std::to_string(i));
    run_schedule(static_cast<uint64_t>(i), &preemptions, &hits);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace deepinfer::parity
