// Whether a request is let in at all, and whom to send away when there is too much: tenants' token buckets,
// the lines' length, the predicted first token against the deadline, room to decode. A refusal costs no GPU
// work and says when to come back. Predictions are the caller's. Source: serving specification 10.1 to 10.4.
// Threads: plain data, one owner.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "policy/ids.h"
#include "policy/tiers.h"

namespace deepinfer::policy {

// What a tenant may use. Each refills at its rate up to its size; kKvTokens and kConcurrent are levels, not
// rates. kTokens counts prompt and output together.
enum class Quota : uint8_t {
  kRequests,
  kUncachedNs,
  kOutputTokens,
  kGrammarMs,
  kKvTokens,
  kTokens,
  kConcurrent
};
inline constexpr int kQuotas = 7;
struct QuotaLimit {
  double per_second = 0;  // refill
  double size = 0;        // most at once; 0: no limit
};
struct Bucket {
  double left = 0;
  int64_t at_ns = 0;
};
struct TenantBook {
  std::array<QuotaLimit, kQuotas> limits{};
  std::array<Bucket, kQuotas> buckets{};  // of levels: what is free
  int64_t accepted = 0, refused = 0;
};
struct AdmissionConfig {
  int64_t context_tokens = 0;              // least of context, prefill, decode
  double queue_limit_ns = 30e9;            // predicted work per line and engine
  int64_t queue_requests = 0;              // over all lines; 0: no limit
  int64_t queue_tokens = 0;                // of prompts, over all lines; 0: no limit
  int64_t decode_wait_ns = 2'000'000'000;  // a place to decode must be in sight by then
  std::array<QuotaLimit, kQuotas> default_limits{};
};
struct AdmissionState {
  AdmissionConfig config;
  std::map<TenantId, TenantBook> tenants;
};

struct AdmissionQuery {
  TenantId tenant{};
  int64_t now_ns = 0, deadline_ns = 0;  // 0: none
  int64_t prompt_tokens = 0, hit_tokens = 0, max_new_tokens = 1;
  int tier = 0;
  double work_ns = 0;                              // of the uncached part
  double fetch_ns = 0;                             // of the hit
  double queued_ns = 0;                            // ahead of it in its line
  int64_t queued_requests = 0, queued_tokens = 0;  // in all lines
  int64_t engines = 1;                             // that pull from the line
  double decode_wait_ns = 0;                       // until a rank has room
  double grammar_ms = 0;
};
enum class AdmitReason {
  kAdmitted,
  kTooLong,        // 4xx: names limit and length
  kQuota,          // 429
  kQueueFull,      // 503: too much predicted work in its line
  kQueueRequests,  // 503: too many requests in all lines
  kQueueTokens,    // 503: too many prompt tokens in all lines
  kDeadline,       // 503: the first token would be late
  kNoDecodeRoom,   // 503
  kNoEngines,      // 503
};
const char* name(AdmitReason reason);
const char* name(Quota quota);
struct AdmitDecision {
  AdmitReason reason = AdmitReason::kAdmitted;
  Quota quota{};  // of kQuota
  double predicted_ttft_ns = 0;
  int64_t retry_after_ns = 0;
  int64_t need = 0, limit = 0;  // of kTooLong, kQueueRequests, kQueueTokens
};
AdmitDecision decide_admit(const AdmissionState& state, const AdmissionQuery& query);

struct TenantLimits {
  TenantId tenant{};
  int64_t now_ns = 0;
  std::array<QuotaLimit, kQuotas> limits{};
};
struct Admitted {  // adopts an admission: takes from the buckets
  AdmissionQuery query;
};
struct Refused {
  TenantId tenant{};
};
struct AdmissionReleased {  // the request is over: its place and cache tokens are free, unused outputs come
                            // back
  TenantId tenant{};
  int64_t now_ns = 0;
  int64_t kv_tokens = 0, unused_output_tokens = 0;
};
using AdmissionEvent = std::variant<TenantLimits, Admitted, Refused, AdmissionReleased>;
void apply(AdmissionState* state, const AdmissionEvent& event);

// Who is sent away first when the lines are too long: lowest priority, then tenants over their quota, then
// the most predicted work. Never one that has streamed a token.
struct ShedCandidate {
  SeqId seq{};
  int priority = 0;
  bool over_quota = false;
  double work_ns = 0;
  bool streamed = false;
};
std::vector<SeqId> decide_shed(std::span<const ShedCandidate> candidates, double excess_ns);

// One request that waits, as it is judged when the lines are full.
struct LineEntry {
  SeqId seq{};
  TenantId tenant{};
  double weight = 1;  // of the tenant, > 0
  int priority = 0;
  double work_ns = 0;
  int64_t tokens = 0;  // of its prompt
};
// Which of those that wait give way to a newcomer that finds the lines full: at least `requests` of them with
// at least `tokens`, or none when they cannot be found. One gives way only if its priority is lower, or if
// its tenant holds more than its share of the line (by weight, of the tenants present) and the newcomer's
// would not: so one tenant cannot fill the line, and nobody is sent away for his own tenant's newcomer.
std::vector<SeqId> decide_displaced(std::span<const LineEntry> waiting, const LineEntry& newcomer,
                                    int64_t requests, int64_t tokens);

}  // namespace deepinfer::policy
