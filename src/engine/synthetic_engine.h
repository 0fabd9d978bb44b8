// An engine without a model: it emits ids of a fixed script on a schedule. What stands outside the engine
// (edge, server, benches, fault tests) is measured and tested with it, at any rate and on one thread. It
// keeps the whole contract of engine.h: order of events, exactly one kFinished, deadlines, drain, statistics.
// Knows no weights and no grammar: constraints are ignored. Threads: as engine.h; one timer thread of its
// own.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <thread>

#include "engine/engine.h"

namespace deepinfer {

struct SyntheticOptions {
  std::vector<int32_t> script;  // token i of a choice is script[i % size]; at least one id
  int64_t script_tokens = 0;    // the choice stops by itself after so many; 0: only max_tokens ends it
  double tokens_per_s = 20;     // per choice; 0: everything at once in the first step
  bool aligned = false;         // all choices get their token in the same step; else each at its own time
  int64_t first_token_ns = 0;   // time a prompt "computes" before its first token
  int64_t context_tokens = 1 << 20;
  int64_t vocab_size = 129280;
  int64_t max_running = 1 << 20;  // choices; more wait in line
  int64_t max_waiting = 1 << 20;  // choices in line; a request beyond is kResourceExhausted
  int64_t block_tokens = 128;     // statistics count blocks of this size
  int64_t blocks_total = 1 << 20;
  // Called for each token as it is made, on the timer thread: (seed of the request, choice, index, now).
  std::function<void(uint64_t, int, int64_t, int64_t)> on_token;
};

class SyntheticEngine : public Engine {
 public:
  explicit SyntheticEngine(SyntheticOptions options);
  ~SyntheticEngine() override;

  Result<RequestId> submit(EngineRequest request) override;
  void cancel(RequestId request) override;
  void cancel_choice(RequestId request, int choice) override;
  std::vector<EngineEvent> poll(int64_t wait_ns, Until until = Until::kAny) override;
  void wake() override;
  void drain(int64_t grace_ns) override;
  bool drained() const override;
  EngineStats stats() const override;
  int64_t now_ns() const override;
  int64_t context_tokens() const override { return options_.context_tokens; }
  int64_t vocab_size() const override { return options_.vocab_size; }

  // Fault injection: while stalled no step is made; requests are taken and wait.
  void stall(bool stalled);

 private:
  struct Stream {
    RequestId request{};
    int choice = 0;
    int64_t made = 0;
    bool running = false;
    uint64_t seed = 0;
    int64_t max_tokens = 0, blocks = 0, deadline_ns = 0;
    int top_logprobs = -1;
    RequestUsage usage;
    RequestTimes times;
  };
  using Key = std::pair<uint64_t, int>;
  using Due = std::pair<int64_t, Key>;

  void loop();
  void step(int64_t now);
  void start_waiting(int64_t now);
  void produce(Stream& s, int64_t now);
  void tell(EngineEvent e);
  void finish(Key key, Finish why, Status status, int64_t now);
  int64_t next_due(int64_t now) const;

  const SyntheticOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, ready_;
  std::map<Key, Stream> streams_;
  std::queue<Key> waiting_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::set<std::pair<int64_t, Key>> deadlines_;
  std::vector<EngineEvent> events_;
  EngineStats stats_;
  uint64_t last_id_ = 0;
  int64_t drain_at_ns_ = 0;
  bool woken_ = false, stalled_ = false, stop_ = false;
  bool news_ = false;  // among events_
  Until poller_waits_for_ = Until::kAny;
  std::thread thread_;
};

}  // namespace deepinfer
