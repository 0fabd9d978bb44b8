// How long stored objects live and which go first: a time to live by the kind of traffic and of object,
// raised by every use and never lowered; above a share of the quota the least recently used go, of equally
// old ones the end of a prefix before its beginning (a head without its tail is useful, a tail without its
// head is not). And the clock these times are on, which survives restarts and does not believe jumps. Source:
// serving specification 7.5; docs/store.md. Threads: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace deepinfer::policy {

enum class TtlClass : uint8_t { kAgent, kChat };
// A window spares the replay of its own length, a block the computing of 128 tokens: their promises are
// apart.
enum class StoredKind : uint8_t { kBlock, kWindow };

struct RetentionRules {
  int64_t agent_ttl_s = 3 * 86400;
  int64_t chat_ttl_s = 7 * 86400;
  int64_t window_agent_ttl_s = 0;  // of windows; 0: as their blocks
  int64_t window_chat_ttl_s = 0;
  int64_t longest_ttl_s = 365 * 86400;  // of what a request may ask for
  int64_t quota_bytes = 0;              // of one process and what it took over; 0: no limit
  double begin_share = 0.90;            // of the quota: from here on objects are evicted
  double end_share = 0.85;              // down to here
};
Status validate(const RetentionRules& rules);

// What a request asks for itself: 0 is no wish. A wish for blocks holds for windows too, unless there is one
// for these.
struct TtlWish {
  int64_t block_s = 0, window_s = 0;
};
// Life of an object that is written or used now: the wish if there is one, else by class and kind.
int64_t decide_ttl_s(const RetentionRules& rules, TtlClass traffic, StoredKind kind, const TtlWish& wish);
// When it ends after a use now: raised, never lowered.
uint32_t raised_expiry_s(uint32_t expires_s, uint32_t now_s, int64_t ttl_s);
// Whether the longer life is worth a record of it: only when a good part of it is new.
bool worth_recording(uint32_t recorded_expiry_s, uint32_t new_expiry_s, int64_t ttl_s);

struct EvictionCandidate {
  uint32_t id = 0;
  uint32_t used_s = 0, depth = 0;
  uint32_t bytes = 0;
};
// Bytes to give up now; 0 below begin_share.
int64_t bytes_to_evict(const RetentionRules& rules, int64_t held_bytes);
// The first of the order whose bytes together are at least `bytes`, or all. Takes the candidates over.
std::vector<EvictionCandidate> choose_victims(std::vector<EvictionCandidate> candidates, int64_t bytes);

// Seconds since 1970 that never go back and never leap: a wall clock that went back is waited for, one that
// ran ahead of the monotonic clock by more than `leap_s` is not believed.
struct StoreClock {
  bool set = false;
  int64_t wall_s = 0;         // store time
  int64_t monotonic_ns = 0;   // when that was
  int64_t wall_offset_s = 0;  // store time minus wall time, of the jumps not believed
  int64_t jumps = 0;
};
inline constexpr int64_t kLeapSeconds = 3600;
// `floor_s`: the latest store time that was recorded (0: none); at the first reading time begins there.
struct ClockRead {
  int64_t wall_s = 0;
  int64_t monotonic_ns = 0;
  int64_t floor_s = 0;
};
void apply(StoreClock* clock, const ClockRead& read);
inline uint32_t store_seconds(const StoreClock& clock) {
  return static_cast<uint32_t>(clock.wall_s);
}

}  // namespace deepinfer::policy
