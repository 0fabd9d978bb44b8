// Where requests come from: a trace, or a mix of session generators in their steady state. A generator plays
// whole sessions once and keeps every turn; requests are then drawn from these turns, as a Poisson stream, so
// that a run of ten seconds already sees old and new sessions in their right proportion. What a turn finds in
// the store depends on how long ago the turn before it was. Source: serving specification 2.7, 14.2. Threads:
// one owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "sim/block_store.h"
#include "sim/cachesim.h"
#include "sim/random.h"
#include "sim/trace.h"

namespace deepinfer::sim {

struct SessionMix {
  SessionShape shape;
  double share = 1;          // of the sessions' turns
  double gap_median_s = 20;  // between an answer and the next turn: log-normal
  double gap_sigma = 1.5;
  uint32_t tenant = 0;
};
struct WorkloadConfig {
  std::vector<SessionMix> mix;
  double requests_per_s = 10;
  double diurnal = 0;  // the rate swings by this share over the day
  double day_s = 86400;
  double ttl_s = 259200;  // blocks, since the last use
  double window_ttl_s = 600;
  int sessions = 400;  // played per kind
  // What the store can hold; 0: everything until its time is over. When it is full, what was used longest ago
  // goes: a prefix is kept for the time in which a store that size turns over once.
  double capacity_bytes = 0;
  double image_share = 0;  // of the requests bring new images, one to four (generators)
  double kv_bytes_per_token = 890;
};
SessionMix agent_mix();
SessionMix chat_mix();
SessionMix document_mix();
// Agents whose token mix is that of reading A: 0.5 % outputs and 97 % of the input stored.
SessionMix reading_a_mix();

struct SimRequest {
  int64_t arrival_ns = 0;
  int64_t input_tokens = 0, output_tokens = 1;
  int64_t stored_tokens = 0;    // longest stored prefix, token by token
  int64_t windows[2] = {0, 0};  // boundaries with a stored window; 0: none
  int64_t gap_ns = 0;           // since the prefix was last used
  uint32_t tenant = 0;
  uint64_t home = 0;  // decides which nodes and which engine served it last
  int images = 0;     // new ones, with their patches
  int64_t patches[4] = {0, 0, 0, 0};
};

class Workload {
 public:
  Workload(const WorkloadConfig& config, uint64_t seed, double start_of_day_s);
  // The trace must live as long as the workload.
  // `capacity_blocks` of the trace: the store's; what was used longest ago goes first. 0: no limit.
  Workload(const Trace* trace, double ttl_s, double window_ttl_s, double speed, int64_t capacity_blocks = 0);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  // The next request in time, or false at the end (of a trace).
  bool next(SimRequest* out);
  // Of the generators: mean input and output per request.
  double mean_input() const { return mean_input_; }
  double mean_output() const { return mean_output_; }
  // How long a prefix is kept after its last use (generators): the time to live, or what the capacity allows.
  double kept_s() const { return config_.ttl_s; }
  int64_t evicted_blocks() const { return evicted_; }  // of a trace, for want of room

 private:
  // A turn of a played session, small because turns are drawn at random from a hundred thousand: what is
  // stored of it and where windows are follows from the turn before it.
  struct Turn {
    int32_t input, output;
    int32_t before_input, before_output;  // of the turn before; none: 0
  };
  // Requests are drawn some ahead, so that their turns come from memory meanwhile.
  struct Drawn {
    SimRequest request;  // without what the turn says
    const Turn* turn = nullptr;
    const double* gap_s = nullptr;  // null: the first of its session
    int64_t system = 0;
  };
  static constexpr size_t kAhead = 16;
  struct Kind {
    std::vector<Turn> turns;
    std::vector<bool> first;  // by turn: of its session
    double share_upto = 0;
    std::vector<double> gaps_s;  // drawn once; each request takes one of them
    SessionMix mix;
  };
  void play(const SessionMix& mix, int sessions, Random* random);
  double resident_bytes(double kept_s) const;
  void draw(Drawn* out);
  bool next_of_trace(SimRequest* out);
  double rate_at(double now_s) const;

  WorkloadConfig config_;
  Random random_;
  double now_s_ = 0, start_of_day_s_ = 0;
  std::vector<Kind> kinds_;
  std::vector<Drawn> drawn_;
  size_t next_drawn_ = 0;
  double mean_input_ = 0, mean_output_ = 0;
  const Trace* trace_ = nullptr;
  size_t at_ = 0;
  double speed_ = 1;
  BlockStore blocks_, windows_;
  int64_t capacity_blocks_ = 0, evicted_ = 0;
};

}  // namespace deepinfer::sim
