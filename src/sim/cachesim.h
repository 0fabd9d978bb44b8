// The cache-policy study: how much of the prompts a policy reuses and how many layer-tokens are left, counted
// four ways, for three published workloads and for any trace. Hits are decided by policy/hit.h, the code the
// engine runs. Knows no time except the age of entries. Source: serving specification 2.7. Threads: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/hit.h"
#include "sim/random.h"
#include "sim/trace.h"

namespace deepinfer::sim {

// Window, drafts, kept rows and layers of the released model.
struct CacheRules {
  policy::ReplayRules replay{128, 6, 134};
  policy::WorkRules work{20, 2560, 140};  // the published table counts 140 kept rows
  int64_t kv_bytes_per_token = 890;
  int64_t snapshot_bytes = 1'415'040;
};

struct CacheStudy {
  std::string name;
  int64_t requests = 0;
  int64_t prompt_tokens = 0, perfect_tokens = 0, start_tokens = 0;
  int64_t exact_part = 0,
          keep_part = 0;  // sums of min(exact rebuild, L) and min(keep, L): for the identities
  policy::PrefillWork work;
  int64_t lost_to_cap = 0, lost_to_rounding = 0, lost_to_snapshot = 0, lost_to_missing_blocks = 0;
  int64_t expired_blocks = 0, evicted_blocks = 0, peak_bytes = 0;
  void add(int64_t prompt, int64_t perfect, const policy::HitDecision& hit, const policy::WorkRules& rules);
  double perfect_percent() const;  // token-weighted hit rates
  double start_percent() const;
  double percent_of_none(int64_t part) const;
};

// What is stored of one conversation: how far it reaches and at which boundaries its windows are kept.
struct Chain {
  int64_t stored_tokens = 0;
  std::vector<int64_t> snapshots;
  // Decides the hit of the next prompt and stores what it and its answer leave.
  policy::HitDecision turn(int64_t prompt_tokens, int64_t answer_tokens, const CacheRules& rules);
};

// A session: a shared beginning, then turns of new input and an answer. All draws uniform, both ends
// included.
struct SessionShape {
  std::string name;
  int64_t system_tokens = 0;
  int64_t first_low = 0, first_high = 0;
  int64_t input_low = 0, input_high = 0;
  int64_t answer_low = 0, answer_high = 0;
  int turns = 1;
  int64_t compact_above = 0;  // start over with a summary when the context is longer; 0: never
  int64_t summary_tokens = 2000;
};
SessionShape agent_shape();
SessionShape chat_shape();
CacheStudy study_sessions(const SessionShape& shape, int64_t sessions, uint64_t seed,
                          const CacheRules& rules);

struct DocumentShape {
  int64_t low = 20000, high = 200000, answer = 300;
  int repeats_per_hundred = 22;
};
CacheStudy study_documents(const DocumentShape& shape, int64_t count, uint64_t seed, const CacheRules& rules);

// The three published rows.
struct PublishedRow {
  double perfect = 0, start = 0, ordinary = 0, exact = 0, deepinfer = 0;  // percent
  double hit_tolerance = 0, work_tolerance = 0;
};
struct PublishedStudy {
  CacheStudy measured;
  PublishedRow published;
  bool within = false;
};
std::vector<PublishedStudy> published_studies(uint64_t seed, const CacheRules& rules);

struct TraceCacheOptions {
  int64_t ttl_ns = 0;          // since the last use; 0: for ever
  int64_t capacity_bytes = 0;  // block KV of whole trace blocks; 0: no limit. Least recently used goes first.
  int64_t snapshot_ttl_ns = 0;
};
// Blocks are those of the trace. A stored window is found again at the last whole trace block of a prompt
// (finer boundaries cannot be told from the ids).
CacheStudy study_trace(const Trace& trace, const std::string& name, const TraceCacheOptions& options,
                       const CacheRules& rules);

}  // namespace deepinfer::sim
