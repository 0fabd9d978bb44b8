// What tests of the serving engine share: an engine over a synthetic checkpoint, requests, answers collected
// from events, and the same answers from the one-sequence generator.
#pragma once

#include <algorithm>
#include <map>

#include "engine/serving_engine.h"
#include "engine_fixture.h"
#include "host/clock.h"

namespace deepinfer::parity {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<TokenEvent> tokens, prompt_logprobs;
  Finish finish = Finish::kError;
  Status status;
  RequestUsage usage;
  RequestTimes times;
  bool started = false, finished = false;
};
using AnswerKey = std::pair<RequestId, int>;

// An engine and the answers it has given. Checks the order of events.
class Server {
 public:
  Server(const std::string& name, EngineConfig config, int threads = 2)
      : w(weights(name)), pool(threads), model(&w, &pool, {}) {
    auto made = make_serving_engine(&model, w, &pool, config, [] { return deepinfer::now_ns(); });
    DI_CHECK(made.ok(), made.status().to_string());
    engine = std::move(made).value();
  }

  RequestId submit(EngineRequest r) {
    int choices = r.choices;
    auto id = engine->submit(std::move(r));
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    if (!id.ok()) return RequestId(0);
    for (int i = 0; i < choices; ++i) answers[{*id, i}];
    open += choices;
    return *id;
  }

  // Takes events for at most wait_ns; how many choices are still to end.
  int64_t poll(int64_t wait_ns) {
    for (EngineEvent& e : engine->poll(wait_ns)) {
      ++events;
      auto it = answers.find({e.request, e.choice});
      if (it == answers.end()) {
        ADD_FAILURE() << "an event of a choice that was never asked for";
        continue;
      }
      Answer& a = it->second;
      EXPECT_FALSE(a.finished) << "an event after the end";
      switch (e.kind) {
        case EngineEvent::Kind::kStarted:
          EXPECT_FALSE(a.started);
          EXPECT_TRUE(a.ids.empty());
          a.started = true;
          a.prompt_logprobs = e.prompt_logprobs;
          break;
        case EngineEvent::Kind::kTokens:
          EXPECT_TRUE(a.started);
          EXPECT_FALSE(e.tokens.empty());
          EXPECT_EQ(e.first, a.ids.empty());
          for (TokenEvent& t : e.tokens) {
            a.ids.push_back(t.id);
            a.tokens.push_back(std::move(t));
          }
          break;
        case EngineEvent::Kind::kFinished:
          a.finished = true;
          a.finish = e.finish;
          a.status = e.status;
          a.usage = e.usage;
          a.times = e.times;
          EXPECT_EQ(a.usage.output_tokens, static_cast<int64_t>(a.ids.size()));
          --open;
          break;
      }
    }
    return open;
  }

  // Until every request has ended; false after a minute without an event.
  bool finish_all() {
    for (int64_t quiet = 0; open > 0;) {
      int64_t before = events;
      poll(1'000'000'000);
      quiet = events == before ? quiet + 1 : 0;
      if (quiet > 60) return false;
    }
    return true;
  }

  const Answer& run(EngineRequest r) {
    RequestId id = submit(std::move(r));
    EXPECT_TRUE(finish_all());
    return answers[{id, 0}];
  }

  // What a cancelled request still holds comes back when the steps in flight have finished.
  void wait_for_steps() {
    for (bool flying = true; flying;) {
      engine->inspect([&](const policy::SchedulerState& s) {
        flying = !s.in_flight.empty();
        return std::vector<policy::Event>{};
      });
    }
  }

  // Nothing is held by anybody, nothing is lost, and what is cached can be forgotten.
  void expect_clean() {
    wait_for_steps();
    engine->inspect([](const policy::SchedulerState& s) {
      EXPECT_EQ(policy::broken_invariant(s), "");
      EXPECT_EQ(s.cache.count[static_cast<int>(policy::BlockPlace::kUsed)], 0) << "blocks are still in use";
      EXPECT_EQ(s.cache.count[static_cast<int>(policy::BlockPlace::kLeased)], 0);
      EXPECT_EQ(s.promised_blocks, 0);
      return std::vector<policy::Event>{};
    });
    engine->clear_cache();
    engine->inspect([](const policy::SchedulerState& s) {
      EXPECT_EQ(s.cache.count[static_cast<int>(policy::BlockPlace::kFree)], s.config.pool_blocks);
      EXPECT_TRUE(s.cache.snapshot_index.empty());
      return std::vector<policy::Event>{};
    });
  }

  const ModelWeights& w;
  ThreadPool pool;
  Forward<float> model;
  std::unique_ptr<ServingEngine> engine;
  std::map<AnswerKey, Answer> answers;
  int64_t open = 0, events = 0;
};

// Small, quick, and with every mechanism in use.
inline EngineConfig test_config(int64_t blocks = 400) {
  EngineConfig c;
  c.pool_blocks = blocks;
  c.snapshot_slots = 32;
  c.max_running = 32;
  c.calibrate_ns = 0;
  c.cost = {0, 0, 100'000, 0, 0, 0, 0};  // 0.1 ms per row
  c.batch_budget_ns = 40'000'000;
  c.interactive_budget_ns = 10'000'000;
  c.poison_blocks = true;
  return c;
}

inline EngineRequest request(std::vector<int32_t> tokens, int64_t max_tokens, double temperature = 0,
                             uint64_t seed = 7) {
  EngineRequest r;
  r.prompt = std::move(tokens);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  r.sampling.seed = seed;
  return r;
}

// The answer of the plain generator: one sequence, no scheduler, no cache.
inline std::vector<int32_t> alone(const std::string& name, const EngineRequest& r, int choice = 0) {
  static std::map<std::string, std::unique_ptr<Bench<float>>> benches;
  auto& bench = benches[name];
  if (bench == nullptr) bench = std::make_unique<Bench<float>>(name);
  GenerateOptions o;
  o.max_tokens = r.max_tokens;
  o.sampling = r.sampling;
  o.sampling.seed = choice_seed(r.sampling.seed, choice);
  o.stop_ids = r.stop_ids;
  o.banned_ids = r.banned_ids;
  o.speculate = false;
  std::vector<int32_t> out;
  auto stats = generate<float>(
      &bench->model, &bench->blocks, r.prompt, o,
      [&](int32_t id) {
        out.push_back(id);
        return true;
      },
      [] { return int64_t{0}; });
  EXPECT_TRUE(stats.ok()) << stats.status().to_string();
  return out;
}

}  // namespace deepinfer::parity
