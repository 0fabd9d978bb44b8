// The published cache table, the deterministic conversation of the serving specification 2.7, and the trace
// study against a plain search.
#include "sim/cachesim.h"

#include <gtest/gtest.h>

#include <map>

#include "sim/block_store.h"

namespace deepinfer::sim {
namespace {

TEST(CachesimGolden, PublishedTable) {
  auto studies = published_studies(1, {});
  ASSERT_EQ(studies.size(), 3u);
  for (const PublishedStudy& s : studies) {
    const CacheStudy& m = s.measured;
    EXPECT_TRUE(s.within) << m.name << " " << m.perfect_percent() << " " << m.start_percent() << " "
                          << m.percent_of_none(m.work.ordinary) << " " << m.percent_of_none(m.work.exact)
                          << " " << m.percent_of_none(m.work.deepinfer);
    const double prompt = static_cast<double>(m.prompt_tokens), none = static_cast<double>(m.work.none);
    EXPECT_NEAR(static_cast<double>(m.work.ordinary) / none, 1 - m.perfect_percent() / 100, 1e-9);
    EXPECT_NEAR(static_cast<double>(m.work.exact) / none,
                (1 - m.perfect_percent() / 100) / 2 + static_cast<double>(m.exact_part) / (2 * prompt), 1e-9);
    EXPECT_NEAR(static_cast<double>(m.work.deepinfer) / none,
                (1 - m.start_percent() / 100) / 2 + static_cast<double>(m.keep_part) / (2 * prompt), 1e-9);
  }
  const policy::PrefillWork& agent = studies[0].measured.work;
  const policy::PrefillWork& chat = studies[1].measured.work;
  EXPECT_LT(static_cast<double>(agent.deepinfer), 0.55 * static_cast<double>(agent.exact));
  EXPECT_GT(static_cast<double>(chat.deepinfer), 1.6 * static_cast<double>(chat.ordinary));
  EXPECT_LT(static_cast<double>(chat.deepinfer), 2.0 * static_cast<double>(chat.ordinary));
  EXPECT_LT(static_cast<double>(chat.deepinfer), 0.2 * static_cast<double>(chat.exact));
}

TEST(CachesimGolden, OneConversation) {
  const CacheRules rules;
  Chain chain;
  CacheStudy study;
  const int64_t inputs[] = {1100, 300, 40, 40, 200, 134, 133, 1000};
  const int64_t starts[] = {0, 1408, 1792, 2176, 2816, 3456, 3968, 4352};
  int64_t context = 0;
  for (int i = 0; i < 8; ++i) {
    const int64_t prompt = context + inputs[i], perfect = chain.stored_tokens;
    policy::HitDecision hit = chain.turn(prompt, 360, rules);
    EXPECT_EQ(hit.start_tokens, starts[i]) << "turn " << i + 1;
    study.add(prompt, perfect, hit, rules.work);
    context = prompt + 360;
  }
  EXPECT_EQ(study.prompt_tokens, 23888);
  EXPECT_EQ(study.perfect_tokens, 20941);
  EXPECT_EQ(study.start_tokens, 19968);
  EXPECT_EQ(study.work.none, 955520);
  EXPECT_EQ(study.work.ordinary, 117880);
  EXPECT_EQ(study.work.exact, 415340);
  EXPECT_EQ(study.work.deepinfer, 100800);
}

Trace small_trace() {
  const char* text =
      "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 10, \"hash_ids\": [1, 2]}\n"
      "{\"timestamp\": 1000, \"input_length\": 1600, \"output_length\": 10, \"hash_ids\": [1, 2, 3, 4]}\n"
      "{\"timestamp\": 9000, \"input_length\": 1600, \"output_length\": 10, \"hash_ids\": [1, 2, 3, 4]}\n";
  return parse_trace(text, "small").value();
}

TEST(Cachesim, TraceHitsWindowsAndExpiry) {
  CacheStudy all = study_trace(small_trace(), "small", {}, {});
  // Second: blocks 1 and 2 are there, with the window at 1,024. Third: everything, but the rows at the end
  // always run, and the window stored at 1,536 lies beyond the cap of 1,408: the last block is replayed.
  EXPECT_EQ(all.perfect_tokens, 1024 + 1600);
  EXPECT_EQ(all.start_tokens, 1024 + 1280);
  TraceCacheOptions short_lived;
  short_lived.ttl_ns = 5'000'000'000;
  CacheStudy expired = study_trace(small_trace(), "small", short_lived, {});
  EXPECT_EQ(expired.perfect_tokens, 1024);
  EXPECT_EQ(expired.expired_blocks, 4);
  TraceCacheOptions tiny;
  tiny.capacity_bytes = 512 * 890;
  CacheStudy evicted = study_trace(small_trace(), "small", tiny, {});
  EXPECT_EQ(evicted.perfect_tokens, 512 + 512);  // only the head survives, which is why it is touched last
  EXPECT_GT(evicted.evicted_blocks, 0);
  EXPECT_EQ(evicted.peak_bytes, 512 * 890);
}

TEST(BlockStore, EqualsAPlainSearch) {
  Random random(5);
  BlockStore store(300);
  std::map<uint64_t, int64_t> plain;
  for (int64_t now = 0; now < 20000; ++now) {
    const uint64_t key = static_cast<uint64_t>(random.in(0, 400));
    auto it = plain.find(key);
    ASSERT_EQ(store.contains(key, now), it != plain.end() && it->second + 300 > now);
    if (random.unit() < 0.7) {
      store.put(key, now);
      plain[key] = now;
    }
    int64_t dropped = 0;
    if (random.unit() < 0.2) {
      for (auto p = plain.begin(); p != plain.end();) {
        bool old = p->second + 300 <= now;
        dropped += old;
        p = old ? plain.erase(p) : std::next(p);
      }
      ASSERT_EQ(store.expire(now), dropped);
    }
    ASSERT_EQ(store.size(), static_cast<int64_t>(plain.size()));
  }
  while (store.size() > 0) ASSERT_EQ(store.evict_oldest(), 1);
  EXPECT_EQ(store.evict_oldest(), 0);
}

}  // namespace
}  // namespace deepinfer::sim
