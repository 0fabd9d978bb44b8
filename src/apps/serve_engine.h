// The engine behind the server's edge: one thread polls it and hands events to connections' loops, so that
// the engine never waits for a socket. And where an engine comes from: a model on disk, or the synthetic one.
// Source: issue "the server". Threads: EngineGenerator as Generator; open_engine once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "apps/event_gap.h"
#include "apps/serve_config.h"
#include "edge/serve/generation.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace deepinfer {

class GrammarFactory;

// The request in the engine's words; `now` on its clock.
EngineRequest engine_request(GenerationRequest request, int64_t now);

class EngineGenerator : public Generator {
 public:
  // Tokens of an answer that had some less than `gap_ns` ago may wait for the next ones (apps/event_gap.h).
  explicit EngineGenerator(Engine* engine, int64_t gap_ns = 0);
  ~EngineGenerator() override;  // as stop()
  void stop();                  // requests still open get no more events

  Result<uint64_t> submit(GenerationRequest request, std::shared_ptr<Loop> loop, Sink sink) override;
  void cancel(uint64_t id) override;
  void cancel_choice(uint64_t id, int choice) override;
  EngineView view() const override;
  bool clear_cache() override;
  int64_t context_tokens() const override { return engine_->context_tokens(); }

  // Requests whose last event has not been handed over.
  int64_t open() const;

 private:
  struct Stream {
    std::shared_ptr<Loop> loop;
    Sink sink;
    int unfinished = 0;
  };
  void dispatch();
  void hand_over(std::vector<EngineEvent> events);

  Engine* engine_;
  EventGap gap_;  // of the polling thread
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> streams_;
  int64_t busy_since_ns_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct ServedModel {
  std::string name, notice;
  std::shared_ptr<Tokenizer> tokenizer;
  std::shared_ptr<void> owner;  // what the engine stands on; destroyed after it
  std::unique_ptr<Engine> engine;
  std::shared_ptr<GrammarFactory> grammars;  // null: structured output is refused
  int64_t vocab_size = 0;
};
// Loads what the configuration names. `progress` gets lines for a person.
Result<ServedModel> open_engine(const ServeConfig& config,
                                const std::function<void(const std::string&)>& progress);
// The synthetic engine over a tokenizer: its script is `text`, encoded.
std::unique_ptr<Engine> open_synthetic(const Tokenizer& tokenizer, const std::string& text,
                                       double tokens_per_s, bool aligned = false);

}  // namespace deepinfer
