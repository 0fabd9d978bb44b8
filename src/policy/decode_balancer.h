// Where a request decodes: first the group with the fewest tokens, then, inside it, the rank that keeps both
// the number of requests and the sum of their lengths even. A short request goes to a rank with few requests
// and much cache, a long one to a rank with little cache. Loads are booked when a place is chosen, before the
// prompt is computed, so that a burst does not pile up on one rank. Knows no engines.
// Source: serving specification 9.3, 9.4. Threads: plain data, one owner.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "policy/ids.h"

namespace deepinfer::policy {

enum class DecodeRule {
  kJoint,       // the 1.05 rule
  kTokensOnly,  // for comparison: least tokens
  kCountOnly,   // for comparison: fewest requests
  kRoundRobin,  // for comparison: next rank that fits
};
struct DecodeConfig {
  DecodeRule rule = DecodeRule::kJoint;
  double slack = 1.05;           // a rank is low while it stays below this times the group's mean
  int64_t reserve_tokens = 134;  // room for the first output block and the drafts
};

struct RankLoad {
  int64_t requests = 0;
  int64_t tokens = 0;  // prompts and outputs so far of its unfinished requests
  int64_t free_tokens = 0;
};
struct WaitingDecode {
  SeqId seq{};
  int64_t tokens = 0;
};
struct DecodeGroup {
  std::vector<RankLoad> ranks;
  std::deque<WaitingDecode> queue;                         // private to the group, first come first served
  int64_t tokens = 0, free_tokens = 0, queued_tokens = 0;  // sums
  int next_rank = 0;                                       // kRoundRobin
  bool open = true;                                        // false: drains or is down; takes nothing new
};
struct DecodeBalancerState {
  DecodeConfig config;
  std::vector<DecodeGroup> groups;
};
DecodeBalancerState make_decode_balancer(const DecodeConfig& config, int groups, int ranks,
                                         int64_t free_tokens_per_rank);

struct DecodeQueued {
  int group = 0;
  SeqId seq{};
  int64_t tokens = 0;
};
struct DecodeAssignment {
  SeqId seq{};
  int rank = 0;
  int64_t tokens = 0;
};
struct DecodePlaced {  // adopts what decide_decode returned
  int group = 0;
  std::vector<DecodeAssignment> assigned;
};
struct DecodeGrew {  // it generated tokens
  int group = 0, rank = 0;
  int64_t tokens = 0;
};
struct DecodeReleased {  // finished, cancelled, failed or moved away; tokens: all that is booked for it
  int group = 0, rank = 0;
  int64_t tokens = 0;
};
struct DecodeDropped {  // cancelled while it waited
  int group = 0;
  SeqId seq{};
};
struct DecodeReported {  // what an engine says of itself: the balancer's own books are only soft state
  int group = 0, rank = 0;
  RankLoad load;
};
struct DecodeGroupOpened {
  int group = 0;
  bool open = true;
};
using DecodeEvent = std::variant<DecodeQueued, DecodePlaced, DecodeGrew, DecodeReleased, DecodeDropped,
                                 DecodeReported, DecodeGroupOpened>;
void apply(DecodeBalancerState* state, const DecodeEvent& event);

// The open group with the fewest tokens, placed and queued; -1 if none is open.
int decide_group(const DecodeBalancerState& state);

enum class DecodeReason { kPlaced, kNothingWaits, kNoRoom, kClosed };
struct DecodeDecision {
  DecodeReason reason = DecodeReason::kNothingWaits;  // why it stopped where it did
  double limit_tokens = 0;                            // Z of the rule
  std::vector<DecodeAssignment> assigned;             // a prefix of the queue, in order
};
DecodeDecision decide_decode(const DecodeBalancerState& state, int group);

// Empty if the sums are those of the ranks and nothing is negative.
std::string broken_invariant(const DecodeBalancerState& state);

}  // namespace deepinfer::policy
