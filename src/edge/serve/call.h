// One generation request on the server, from its bytes to its last event: prepared on a worker, admitted,
// submitted, its tokens parsed and written on the connection's loop, cancelled when the client leaves,
// counted once when it is over. Source: request edge specification 0, 5, 6; serving specification 10.1.
// Threads: the loop's, except prepare.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "edge/http/exchange.h"
#include "edge/serve/api_keys.h"
#include "edge/serve/database.h"
#include "edge/serve/event_log.h"
#include "edge/serve/generation.h"
#include "edge/serve/metrics.h"
#include "edge/serve/prepare.h"
#include "edge/serve/recent.h"
#include "edge/serve/snapshot.h"
#include "edge/serve/trace.h"
#include "edge/writer.h"

namespace deepinfer {

// Admission as the edge sees it; apps/ wires the fleet's.
class AdmissionGate {
 public:
  struct Work {
    int64_t prompt_tokens = 0, most_tokens = 0;
    int priority = 0;
    int64_t timeout_ns = 0;           // from now; 0: none
    std::function<void()> displaced;  // another one takes its place in line; from any thread, at most once
  };
  struct Answer {
    bool admitted = true;
    int status = 0;       // refused: 400 can never run, 429 this tenant, 503 the server as a whole
    std::string reason;   // a word, for counters
    std::string message;  // for people
    int64_t retry_after_ns = 0;
    uint64_t ticket = 0;
  };
  virtual ~AdmissionGate() = default;
  virtual Answer admit(const Caller& caller, Work work) = 0;
  virtual void started(uint64_t ticket) = 0;
  // A prompt was computed: so many tokens not from the cache, in this time.
  virtual void prefilled(int64_t uncached_tokens, int64_t prefill_ns) = 0;
  virtual void finished(uint64_t ticket, int64_t output_tokens) = 0;
};

class GenerationCall;

// Calls on their way, by the ids clients know.
class LiveCalls {
 public:
  void add(const std::string& tenant, const std::string& id, std::weak_ptr<GenerationCall> call);
  void remove(const std::string& tenant, const std::string& id);
  std::shared_ptr<GenerationCall> find(const std::string& tenant, const std::string& id);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<GenerationCall>> calls_;
};

// What all calls share; outlives them.
struct CallServices {
  Generator* generator = nullptr;
  std::shared_ptr<Snapshot<Preparer>> preparer;  // a call keeps the one it began with
  ConstraintFactory constraints;                 // empty: no request has a constraint
  AdmissionGate* gate = nullptr;
  ServeMetrics* metrics = nullptr;
  EventLog* log = nullptr;
  Database* database = nullptr;
  LiveCalls* live = nullptr;
  RecentRequests* recent = nullptr;
  SpanSink* spans = nullptr;                              // null: no tracing
  std::function<void(std::function<void()>)> background;  // runs a task on a worker thread
  std::string fingerprint;
  // A cached prefix is whole blocks, and so many tokens of a prompt are always computed (serving
  // specification 2.3): what shorter prompts miss nothing can change.
  int64_t block_tokens = 128, computed_tokens = 134;
};

// An error answer in the protocol's shape; 401, 404, 409, 429, 503 and 504 included.
struct ErrorReply {
  int status = 500;
  std::string message, type, code;
  int64_t retry_after_ns = 0;
};
ErrorReply error_reply(const Status& status);
HttpResponse error_response(const ErrorReply& reply, Protocol protocol);

class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  GenerationCall(CallServices* services, std::shared_ptr<Exchange> exchange, Endpoint endpoint, Caller caller,
                 std::string request_id);

  void start();
  // From any thread: ends it as if the client had asked for no more.
  void cancel();

 private:
  struct Choice {
    std::unique_ptr<OutputParser> parser;
    std::unique_ptr<ResponseWriter> writer;
    std::unique_ptr<TurnRecorder> recorder;  // null: the turn is not remembered
    std::vector<TokenLogprob> prompt_logprobs;
    Usage usage;
    bool done = false;                // the finish chunk is written
    bool finished = false;            // the engine is done with it
    int64_t last_ns = 0, tokens = 0;  // delivered so far
  };

  void prepared(Result<Prepared> result);
  void constrained(Result<std::shared_ptr<const void>> made);
  void proceed();
  void remember(const Choice& c);
  bool admit();
  void displaced();
  bool submit();
  int64_t wished_seconds(const char* header) const;  // -1: no wish
  void open_answer();
  void on_event(GenerationEvent&& e);
  void take_tokens(Choice& c, GenerationEvent& e);
  void take_finish(Choice& c, GenerationEvent& e);
  void deliver(Choice& c, std::vector<OutputChunk>& chunks);
  void send_events(std::vector<Event>& events);
  void conclude();
  void answer_whole();
  void store_response();
  void account();
  const char* cache_result() const;
  void note_progress(int64_t now);
  UsageRow usage_row(int64_t output, int64_t reasoning) const;
  void trace(int64_t now, int64_t output);
  std::string merged_object() const;
  void fail(const ErrorReply& reply, const std::string& reason);

  CallServices* s_;
  std::shared_ptr<const Preparer> preparer_;
  std::shared_ptr<Exchange> exchange_;
  Endpoint endpoint_;
  Caller caller_;
  std::string request_id_, response_id_;
  TraceContext trace_;
  Prepared p_;
  std::string scope_;  // of cached prefixes and remembered turns
  // What the output must match is compiled while the request holds no place in the engine.
  std::shared_ptr<void> compiling_;
  std::optional<Result<std::shared_ptr<const void>>> constraint_;
  bool waits_for_constraint_ = false;
  std::vector<Choice> choices_;
  uint64_t ticket_ = 0, engine_id_ = 0;
  bool admitted_ = false, submitted_ = false, started_ = false, over_ = false, cancelled_ = false;
  int unfinished_ = 0;
  Status failure_;      // why the engine gave up
  std::string reason_;  // how it ended, for counters, log and ledger
  int64_t received_ns_ = 0, first_token_ns_ = 0, noted_ns_ = 0;
  int64_t queue_ns_ = 0, prefill_ns_ = 0, decode_ns_ = 0;
  GenerationUsage usage_;
  int64_t sequence_ = 0;  // events sent
  std::vector<OutputChunk> chunks_;
  std::vector<Event> events_;
  std::string frame_;
};

}  // namespace deepinfer
