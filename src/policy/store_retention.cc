// Times to live, victims, and a clock with doubts.
#include "policy/store_retention.h"

#include <algorithm>
#include <tuple>

namespace deepinfer::policy {

Status validate(const RetentionRules& r) {
  if (r.agent_ttl_s < 1 || r.chat_ttl_s < 1 || r.longest_ttl_s < std::max(r.agent_ttl_s, r.chat_ttl_s))
    return error(Code::kInvalidConfig, "store: a time to live of {} s (agent) or {} s (chat), at most {} s",
                 r.agent_ttl_s, r.chat_ttl_s, r.longest_ttl_s);
  if (r.window_agent_ttl_s < 0 || r.window_chat_ttl_s < 0 ||
      r.longest_ttl_s < std::max(r.window_agent_ttl_s, r.window_chat_ttl_s))
    return error(Code::kInvalidConfig,
                 "store: a time to live of windows of {} s (agent) or {} s (chat), at most {} s",
                 r.window_agent_ttl_s, r.window_chat_ttl_s, r.longest_ttl_s);
  if (r.quota_bytes < 0)
    return error(Code::kInvalidConfig, "store: a quota of {} bytes is none", r.quota_bytes);
  if (!(r.end_share > 0 && r.end_share <= r.begin_share && r.begin_share <= 1))
    return error(Code::kInvalidConfig, "store: eviction from {} down to {} of the quota makes no sense",
                 r.begin_share, r.end_share);
  return {};
}

int64_t decide_ttl_s(const RetentionRules& r, TtlClass traffic, StoredKind kind, const TtlWish& wish) {
  bool agent = traffic == TtlClass::kAgent, window = kind == StoredKind::kWindow;
  int64_t asked = window && wish.window_s > 0 ? wish.window_s : wish.block_s;
  if (asked > 0) return std::min(asked, r.longest_ttl_s);
  int64_t of_windows = agent ? r.window_agent_ttl_s : r.window_chat_ttl_s;
  if (window && of_windows > 0) return of_windows;
  return agent ? r.agent_ttl_s : r.chat_ttl_s;
}

uint32_t raised_expiry_s(uint32_t expires_s, uint32_t now_s, int64_t ttl_s) {
  int64_t end = std::min<int64_t>(int64_t{now_s} + ttl_s, UINT32_MAX);
  return std::max(expires_s, static_cast<uint32_t>(end));
}

bool worth_recording(uint32_t recorded_s, uint32_t new_s, int64_t ttl_s) {
  return new_s > recorded_s && int64_t{new_s} - recorded_s >= std::max<int64_t>(1, ttl_s / 8);
}

int64_t bytes_to_evict(const RetentionRules& r, int64_t held) {
  if (r.quota_bytes == 0) return 0;
  double quota = static_cast<double>(r.quota_bytes);
  if (static_cast<double>(held) <= r.begin_share * quota) return 0;
  return held - static_cast<int64_t>(r.end_share * quota);
}

std::vector<EvictionCandidate> choose_victims(std::vector<EvictionCandidate> all, int64_t bytes) {
  std::sort(all.begin(), all.end(), [](const EvictionCandidate& a, const EvictionCandidate& b) {
    // Deepest first among equally old ones; the number last, so that the order is one.
    return std::make_tuple(a.used_s, UINT32_MAX - a.depth, a.id) <
           std::make_tuple(b.used_s, UINT32_MAX - b.depth, b.id);
  });
  size_t n = 0;
  for (; n < all.size() && bytes > 0; ++n) bytes -= all[n].bytes;
  all.resize(n);
  return all;
}

void apply(StoreClock* c, const ClockRead& r) {
  constexpr int64_t kSecond = 1'000'000'000;
  if (!c->set) {
    c->set = true;
    c->wall_s = std::max(r.wall_s, r.floor_s);
    c->wall_offset_s = c->wall_s - r.wall_s;
    c->monotonic_ns = r.monotonic_ns;
    return;
  }
  int64_t passed_s = std::max<int64_t>(0, (r.monotonic_ns - c->monotonic_ns) / kSecond);
  int64_t shown_s = r.wall_s + c->wall_offset_s;
  bool back = shown_s<c->wall_s - 1, leap = shown_s> c->wall_s + passed_s + kLeapSeconds;
  if (back || leap) {
    ++c->jumps;
    shown_s = c->wall_s + passed_s;
    c->wall_offset_s = shown_s - r.wall_s;
  }
  c->wall_s = std::max(c->wall_s, shown_s);
  // Whole seconds only: fractions must not be lost reading by reading.
  c->monotonic_ns += passed_s * kSecond;
}

}  // namespace deepinfer::policy
