// The three generators, their accounts, and the trace study with expiry and a bounded store.
#include "sim/cachesim.h"

#include <algorithm>
#include <cmath>

#include "sim/block_store.h"

namespace deepinfer::sim {

void CacheStudy::add(int64_t prompt, int64_t perfect, const policy::HitDecision& hit,
                     const policy::WorkRules& rules) {
  ++requests;
  prompt_tokens += prompt;
  perfect_tokens += perfect;
  start_tokens += hit.start_tokens;
  exact_part += std::min(rules.exact_rebuild_tokens, prompt);
  keep_part += std::min(rules.keep_tokens, prompt);
  work += policy::prefill_work(prompt, perfect, hit.start_tokens, rules);
  lost_to_cap += hit.lost_to_cap;
  lost_to_rounding += hit.lost_to_rounding;
  lost_to_snapshot += hit.lost_to_snapshot;
  lost_to_missing_blocks += hit.lost_to_missing_blocks;
}

namespace {

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

int64_t boundary(int64_t tokens, const CacheRules& rules) {
  return tokens / rules.replay.window_tokens * rules.replay.window_tokens;
}

}  // namespace

double CacheStudy::perfect_percent() const {
  return percent(perfect_tokens, prompt_tokens);
}
double CacheStudy::start_percent() const {
  return percent(start_tokens, prompt_tokens);
}
double CacheStudy::percent_of_none(int64_t part) const {
  return percent(part, work.none);
}

policy::HitDecision Chain::turn(int64_t prompt, int64_t answer, const CacheRules& rules) {
  const int64_t states[] = {boundary(stored_tokens, rules)};
  policy::HitQuery query;
  query.prompt_tokens = prompt;
  query.state_tokens = states;
  query.snapshots = snapshots;
  policy::HitDecision hit = policy::decide_hit(query, rules.replay);
  snapshots.push_back(boundary(prompt, rules));
  snapshots.push_back(boundary(prompt + answer, rules));
  stored_tokens = prompt + answer;
  return hit;
}

SessionShape agent_shape() {
  return {"agent", 4000, 200, 2000, 200, 4000, 100, 500, 40, 100000, 2000};
}
SessionShape chat_shape() {
  return {"chat", 800, 20, 200, 20, 200, 200, 600, 8, 0, 2000};
}

CacheStudy study_sessions(const SessionShape& g, int64_t sessions, uint64_t seed, const CacheRules& rules) {
  Random random(seed);
  CacheStudy study;
  study.name = g.name;
  for (int64_t s = 0; s < sessions; ++s) {
    Chain chain;
    chain.stored_tokens =
        s == 0 ? 0 : g.system_tokens;  // blocks of the shared beginning, but no window of it
    int64_t context = g.system_tokens;
    for (int turn = 0; turn < g.turns; ++turn) {
      const int64_t input =
          turn == 0 ? random.in(g.first_low, g.first_high) : random.in(g.input_low, g.input_high);
      if (g.compact_above > 0 && context > g.compact_above) {
        context = g.system_tokens + g.summary_tokens;
        chain = Chain{};
        chain.stored_tokens = g.system_tokens;
      }
      const int64_t prompt = context + input, answer = random.in(g.answer_low, g.answer_high);
      const int64_t perfect = chain.stored_tokens;
      study.add(prompt, perfect, chain.turn(prompt, answer, rules), rules.work);
      context = prompt + answer;
    }
  }
  return study;
}

CacheStudy study_documents(const DocumentShape& shape, int64_t count, uint64_t seed,
                           const CacheRules& rules) {
  Random random(seed);
  CacheStudy study;
  study.name = "documents";
  std::vector<int64_t> seen;
  for (int64_t i = 0; i < count; ++i) {
    // Repeats are spread evenly, so that the hit rate does not wander with the draw.
    const bool again = !seen.empty() && (i * shape.repeats_per_hundred) % 100 < shape.repeats_per_hundred;
    Chain chain;
    int64_t length = 0;
    if (again) {
      length = seen[static_cast<size_t>(random.in(0, static_cast<int64_t>(seen.size()) - 1))];
      chain.stored_tokens = length;
      chain.snapshots = {boundary(length, rules)};
    } else {
      length = random.in(shape.low, shape.high);
      seen.push_back(length);
    }
    const int64_t perfect = chain.stored_tokens;
    study.add(length, perfect, chain.turn(length, shape.answer, rules), rules.work);
  }
  return study;
}

std::vector<PublishedStudy> published_studies(uint64_t seed, const CacheRules& rules) {
  std::vector<PublishedStudy> out(3);
  out[0] = {study_sessions(agent_shape(), 2000, seed, rules), {95.8, 95.7, 4.2, 4.7, 2.3, 0.15, 0.15}, false};
  out[1] = {
      study_sessions(chat_shape(), 4000, seed + 1, rules), {95.9, 90.8, 4.1, 41.1, 7.4, 0.4, 0.25}, false};
  out[2] = {study_documents({}, 2000, seed + 2, rules), {22.0, 21.9, 78.0, 40.3, 39.1, 1.0, 1.0}, false};
  for (PublishedStudy& s : out) {
    const CacheStudy& m = s.measured;
    const PublishedRow& p = s.published;
    s.within = std::fabs(m.perfect_percent() - p.perfect) <= p.hit_tolerance &&
               std::fabs(m.start_percent() - p.start) <= p.hit_tolerance &&
               std::fabs(m.percent_of_none(m.work.ordinary) - p.ordinary) <= p.work_tolerance &&
               std::fabs(m.percent_of_none(m.work.exact) - p.exact) <= p.work_tolerance &&
               std::fabs(m.percent_of_none(m.work.deepinfer) - p.deepinfer) <= p.work_tolerance;
  }
  return out;
}

CacheStudy study_trace(const Trace& trace, const std::string& name, const TraceCacheOptions& options,
                       const CacheRules& rules) {
  CacheStudy study;
  study.name = name;
  BlockStore blocks(options.ttl_ns), windows(options.snapshot_ttl_ns);
  const int64_t block_bytes = trace.block_tokens * rules.kv_bytes_per_token;
  const int64_t limit =
      options.capacity_bytes > 0 ? std::max<int64_t>(1, options.capacity_bytes / block_bytes) : 0;
  std::vector<int64_t> boundaries;
  for (const TraceRequest& r : trace.requests) {
    study.expired_blocks += blocks.expire(r.arrival_ns);
    windows.expire(r.arrival_ns);
    const uint64_t* ids = trace.ids.data() + r.first_id;
    const uint32_t full =
        std::min<uint32_t>(r.id_count, static_cast<uint32_t>(r.input_tokens / trace.block_tokens));
    uint32_t found = 0;
    while (found < r.id_count && blocks.contains(ids[found], r.arrival_ns)) ++found;
    const int64_t perfect = std::min<int64_t>(r.input_tokens, found * trace.block_tokens);
    boundaries.clear();
    for (uint32_t i = 0; i < std::min(found, full); ++i) {
      if (windows.contains(ids[i], r.arrival_ns)) boundaries.push_back((i + 1) * trace.block_tokens);
    }
    const int64_t states[] = {boundary(perfect, rules)};
    policy::HitQuery query;
    query.prompt_tokens = r.input_tokens;
    query.state_tokens = states;
    query.snapshots = boundaries;
    study.add(r.input_tokens, perfect, policy::decide_hit(query, rules.replay), rules.work);
    for (uint32_t i = r.id_count; i-- > 0;) {  // the head of a chain is used last, so its tail goes first
      blocks.put(ids[i], r.arrival_ns);
      if (limit > 0 && blocks.size() > limit) study.evicted_blocks += blocks.evict_oldest();
    }
    if (full > 0) windows.put(ids[full - 1], r.arrival_ns);
    study.peak_bytes = std::max(study.peak_bytes, blocks.size() * block_bytes);
  }
  return study;
}

}  // namespace deepinfer::sim
