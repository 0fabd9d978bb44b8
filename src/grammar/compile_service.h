// Compiling for a server: a few workers behind a bounded queue, each grammar once however many requests ask
// for it, results in a cache bounded in bytes, failures remembered for a while, and a compile that nobody
// waits for any more is stopped. Tenants share the workers: one of them never holds all, nor more than half
// of the queue, nor more compile time a minute than its allowance. A request asks, goes on queueing without a
// batch slot, and is told when its grammar is there. Source: serving specification 12.2, 12.4. Threads: every
// method may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "grammar/compile.h"

namespace deepinfer::grammar {

struct CompileServiceOptions {
  int workers = 3;    // a tenant runs at most one fewer at a time, if there are several
  size_t queue = 64;  // compiles that may wait, half of it for one tenant; more are refused (kUnavailable)
  int64_t tenant_ms_per_minute =
      60'000;                       // compile time; beyond, new grammars are refused (kResourceExhausted)
  size_t cache_bytes = 512u << 20;  // compiled grammars kept, least recently used first out
  size_t entry_bytes = 64u << 20;   // a larger one is given out but not kept
  std::chrono::seconds failure_life{60};  // a source that failed fails again at once for this long
  CompileLimits limits;
};

class CompileService {
 public:
  // Errors: of compile() (compile.h), but kInvalidArgument where it is over a limit; kUnavailable: the queue
  // is full; kResourceExhausted: the tenant's compile time is used up; kCancelled: the service has stopped.
  using Compiled = Result<std::shared_ptr<const CompiledGrammar>>;
  // Called once, from a worker or from request() itself if the answer is known. Must not block.
  using Done = std::function<void(const Compiled&)>;

  // A request's interest in one grammar. Letting go of it (or cancel()) before `done` was called withdraws
  // it: done will not be called, and the compile stops if nobody else waits. The ticket must not outlive the
  // service.
  class Ticket {
   public:
    Ticket() = default;
    ~Ticket() { cancel(); }
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    void cancel();

   private:
    friend class CompileService;
    CompileService* service_ = nullptr;
    uint64_t id_ = 0;
  };

  CompileService(std::shared_ptr<const Vocabulary> vocabulary, const CompileServiceOptions& options = {});
  ~CompileService();  // stops running compiles; waiting requests are told kCancelled

  // `tenant`: on whose account it compiles, if it is not known already.
  Ticket request(const GrammarSource& source, Done done, const std::string& tenant = {});
  // The same, waiting here: for commands and tests.
  Compiled compile_now(const GrammarSource& source);
  // Stops the workers and running compiles; requests that wait, and later ones, are told kCancelled.
  void stop();

  struct Counters {
    uint64_t requests = 0, cache_hits = 0, joined = 0, compiled = 0, failed = 0, cancelled = 0, refused = 0,
             evicted = 0, over_allowance = 0;
    size_t cache_bytes = 0, cache_entries = 0, waiting = 0;
  };
  Counters counters() const;

 private:
  struct Job {
    Digest id{};
    GrammarSource source;
    std::string tenant;
    std::map<uint64_t, Done> waiting;  // by ticket
    std::atomic<bool> cancelled{false};
    bool running = false;
  };
  struct Entry {
    std::shared_ptr<const CompiledGrammar> grammar;  // nullptr: failed
    Status failure;
    std::chrono::steady_clock::time_point until;
    size_t bytes = 0;
    std::list<Digest>::iterator order;
  };

  // Compile time a tenant has left; grows back with time.
  struct Allowance {
    double left_ms = 0;
    std::chrono::steady_clock::time_point at;
  };

  void work();
  std::shared_ptr<Job> next_job();
  Status may_queue(const std::string& tenant);
  Allowance& allowance(const std::string& tenant);
  void withdraw(uint64_t ticket);
  void keep(const Digest& id, const Compiled& result);

  std::shared_ptr<const Vocabulary> vocabulary_;
  CompileServiceOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::list<std::shared_ptr<Job>> jobs_;  // waiting first in front; running ones stay until done
  std::map<Digest, Entry> cache_;
  std::list<Digest> order_;                      // most recently used first
  std::map<std::string, Allowance> allowances_;  // of tenants that have used some
  Counters counters_;
  uint64_t next_ticket_ = 1;
  uint64_t calling_ = 0;  // ticket whose `done` is being called, one at a time
  std::thread::id calling_thread_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace deepinfer::grammar
