// The forward pass of the model: rows of any number of sequences at any positions go through the encoder
// half, those that need it through the decoder half, those that ask for it through the head. One code path
// for prefill, chunked prefill, decode and verification; a row's result depends on its own sequence only,
// never on the other rows of the batch, on the split into calls, or on the number of threads. Does not
// schedule, sample or own sequences. A = float: native mode. A = double: math mode (with or without the cache
// quantisers). Source: model specification 2 to 6 and 10. Threads: one caller at a time; work is spread over
// the pool given.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "checkpoint/weights.h"
#include "engine/block_pool.h"
#include "engine/cache_layout.h"
#include "engine/sequence.h"
#include "engine/step_profile.h"
#include "host/thread_pool.h"
#include "kernels/kernels.h"
#include "model/engram.h"
#include "model/layer_map.h"

namespace deepinfer {

// Where the window of the encoder layers is copied while rows pass a boundary: begin < boundary <= end.
struct SnapshotCapture {
  int64_t boundary = 0;
  WindowSnapshot* into = nullptr;
};

class LoadGate;

// Consecutive rows [begin, end) of one sequence. REQUIRES begin == sequence->length (or, when re-running kept
// rows, below it with the needed windows still in the rings), end <= tokens.size(), and reserve(end) done.
struct RowSpan {
  SequenceState* sequence = nullptr;
  int64_t begin = 0, end = 0;
  int64_t logits_from = -1;  // rows at or after it get logits; -1: none. Rows below decoder_floor never do.
  std::vector<SnapshotCapture> captures = {};
  LoadGate* gate = nullptr;  // asked before a layer reads what may not be in the blocks yet; null: all is
};

template <typename A>
struct ForwardResult {
  int64_t vocab = 0;
  std::vector<A> logits;  // [rows, vocab], in batch order
  struct Row {
    int span = 0;
    int64_t position = 0;
  };
  std::vector<Row> rows;  // one per logits row
  int64_t experts = 0;    // distinct routed experts that the rows touched, summed over the layers
  const A* row(size_t i) const { return logits.data() + i * static_cast<size_t>(vocab); }
};

// What a test or `selfcheck` wants to see of the inside. Vectors are in row order of the layer's row set.
template <typename A>
struct ForwardTrace {
  struct Layer {
    std::vector<A> streams;                         // [rows, hc, H] after the layer
    std::vector<A> pre;                             // [rows, hc] for the next site
    std::vector<std::vector<int32_t>> selection;    // per row, layers with ratio > 0
    std::vector<std::vector<int32_t>> pool;         // per row, candidate source only
    std::vector<std::vector<int32_t>> route;        // per row, ascending expert ids
    std::vector<std::vector<int64_t>> engram_rows;  // per row, Engram layers
    std::vector<A> engram_gates;                    // [rows, hc]
  };
  std::vector<Layer> layers;
};

template <typename A>
struct DraftResult {
  std::vector<int32_t> tokens;       // block drafts for positions p+2 .. p+1+block
  std::vector<A> confidence_logits;  // one per draft
  std::vector<A> logits;             // [block, vocab], Markov-corrected; empty unless asked for
};

// How a draft token is taken from its corrected logits row; `position` is the absolute position the token
// would stand at.
template <typename A>
using DraftPick = std::function<int32_t(const A* logits, int64_t vocab, int64_t position)>;

// One sequence of a draft pass. `next` is the token the backbone produced for position sequence->length,
// whose row is still to run.
template <typename A>
struct DraftSpan {
  SequenceState* sequence = nullptr;
  int32_t next = 0;
  const DraftPick<A>* pick = nullptr;
};

// Which experts a row takes. The made-up ones are for measuring: `kBalanced` goes round all experts, so that
// a call spreads as evenly as it can, `kRandom` draws them, by row and layer. Weights stay the router's.
enum class Routing { kModel, kBalanced, kRandom };

template <typename A>
struct ForwardOptions {
  bool quantise_caches = true;          // false only in math mode
  const Kernels<A>* kernels = nullptr;  // nullptr: kernels<A>()
  Routing routing = Routing::kModel;
};

// Routed experts under a bound on their memory (ModelWeights::expert_memory_bytes); all zero without one. The
// hit rate is 1 - misses / uses.
struct ExpertUse {
  int64_t uses = 0, misses = 0, evictions = 0;  // experts asked for by layers' calls; not resident; forgotten
  int64_t resident = 0, capacity = 0;           // experts
  int64_t expert_bytes = 0;                     // of one
};

template <typename A>
class Forward {
 public:
  // `weights` and `pool` outlive this object.
  Forward(const ModelWeights* weights, ThreadPool* pool, const ForwardOptions<A>& options);
  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  const ModelConfig& config() const;
  const CacheLayout& layout() const;

  // Runs the rows, advances every sequence's length to its span's end, writes caches and rings and keeps
  // what the draft stages will need.
  // Two spans of one call must not share a sequence. Never fails on data: everything that can be wrong was
  // checked when tokens and weights came in.
  ForwardResult<A> run(const std::vector<RowSpan>& spans, ForwardTrace<A>* trace = nullptr);

  // One DSpark pass for any number of different sequences, each processed up to its own last position. Brings
  // their draft rings up to date first: rows since their last pass cost that pass, not the steps. The drafts
  // of a sequence are picked one after the other, as each corrects the next through the Markov head. A
  // sequence's drafts do not depend on the others.
  std::vector<DraftResult<A>> draft(const std::vector<DraftSpan<A>>& spans, bool with_logits = false);
  DraftResult<A> draft(SequenceState* sequence, int32_t next, const DraftPick<A>& pick);

  // Books where the time of later calls goes; nullptr ends it. Costs a clock reading per part.
  void set_profile(StepProfile* profile);

  ExpertUse expert_use() const;

  // Whether a token id may be fed (inside the embedding).
  bool valid_token(int32_t id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
