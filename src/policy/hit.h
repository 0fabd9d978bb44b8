// How much of a prompt needs no computation, and where its rows begin. A hit may only start where every state
// the forward pass reads is present; if the longest such place is short of the blocks, it backs off to the
// last stored boundary, not to zero. Does not look anything up: lengths and boundaries are given. Source:
// serving specification 2.3, 2.7, 3; model specification 10. Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace deepinfer::policy {

// The lengths that the rules are made of; a block has window_tokens positions.
struct ReplayRules {
  int64_t window_tokens = 0;
  int64_t backtrack_tokens = 0;  // drafts + 1
  int64_t keep_tokens = 0;       // decoder rows at the end of a prompt
  int64_t cap_tokens() const { return window_tokens + backtrack_tokens; }
};
// kInvalidConfig when a decoder would be rebuilt from fewer rows than a window with its backtracking.
Status validate(const ReplayRules& rules);

enum class HitMode {
  kReplay,  // without a window snapshot at the boundary, the last block runs again to rebuild the window
  kExact,   // never: only boundaries with a snapshot count, so that a hit equals a cold run bit for bit
};

enum class HitReason {
  kCold,          // no state is stored for this prefix
  kTooShort,      // the prompt's own end covers it: at least cap_tokens are always computed
  kSnapshot,      // starts at a stored window
  kReplayed,      // starts one block earlier and replays it
  kSnapshotLost,  // blocks are there, but no window at any boundary that could be used
  kExactBackOff,  // exact mode: an earlier boundary that has a stored window
};
const char* name(HitReason reason);

struct HitQuery {
  int64_t prompt_tokens = 0;
  // Prompt tokens covered by each state that is stored per block (main KV, index keys, ...). The least
  // counts.
  std::span<const int64_t> state_tokens;
  std::span<const int64_t> snapshots;  // boundaries with a window snapshot, any order
  HitMode mode = HitMode::kReplay;
  // Rows from here on must run whatever is stored (a resumed request's decoder floor); prompt_tokens: no
  // limit.
  int64_t start_limit = INT64_MAX;
};
struct HitDecision {
  HitReason reason = HitReason::kCold;
  int64_t kv_hit_tokens = 0;  // global KV taken from blocks; never rewritten
  int64_t start_tokens = 0;   // first position that runs; reported and billed as the hit
  bool from_snapshot = false;
  // Where tokens between the longest stored state and start_tokens were lost.
  int64_t lost_to_cap = 0, lost_to_rounding = 0, lost_to_snapshot = 0, lost_to_missing_blocks = 0;
  bool operator==(const HitDecision&) const = default;
};
HitDecision decide_hit(const HitQuery& query, const ReplayRules& rules);

// First row of the decoder half, fixed when a request is first admitted and kept for its life.
int64_t decoder_floor(int64_t prompt_tokens, int64_t start_tokens, const ReplayRules& rules);
// How many rows of [begin, end) run the decoder half.
inline int64_t decoder_rows(int64_t begin, int64_t end, int64_t floor) {
  return end <= floor ? 0 : end - (begin > floor ? begin : floor);
}

// Layer-tokens of one prompt under four ways of running it, of `half` encoder and `half` decoder layers.
struct PrefillWork {
  int64_t none = 0;       // no cache
  int64_t ordinary = 0;   // one stack of layers, perfect cache
  int64_t exact = 0;      // this model, windows rebuilt exactly
  int64_t deepinfer = 0;  // this model, bounded replay
  PrefillWork& operator+=(const PrefillWork& o);
};
struct WorkRules {
  int64_t half_layers = 20;
  int64_t exact_rebuild_tokens = 0;  // model/sizes.h: exact_rebuild_tokens
  int64_t keep_tokens = 0;
};
PrefillWork prefill_work(int64_t prompt_tokens, int64_t perfect_hit_tokens, int64_t start_tokens,
                         const WorkRules& rules);

}  // namespace deepinfer::policy
