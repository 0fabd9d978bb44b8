// Bounded replay (serving specification 3.4, 3.6): T-RP-1 to T-RP-5. Small windows exhaustively, the tiny
// models by random schedules.
#include "engine/replay_check.h"

#include <gtest/gtest.h>

#include <map>

#include "model/sizes.h"
#include "policy/hit.h"

namespace deepinfer {
namespace {

constexpr int64_t kWindow = 8, kBack = 3;

// T-RP-1: a ring of `slots` slots under verification; whether every key a row needs is the one last written.
bool ring_holds(int64_t slots, int64_t window, int64_t drafts, int sequences) {
  uint64_t x = 99;
  auto next = [&x](uint64_t n) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((x >> 33) % n);
  };
  for (int k = 0; k < sequences; ++k) {
    std::vector<std::pair<int64_t, int64_t>> ring(static_cast<size_t>(slots), {-1, -1});  // position, version
    std::map<int64_t, int64_t> truth;
    int64_t version = 0;
    for (int64_t t = 0; t < 3 * window;) {
      // All rows of a step are written, then read: t and its drafts.
      int64_t end = t + 1 + drafts;
      for (int64_t p = t; p < end; ++p) {
        ring[static_cast<size_t>(p % slots)] = {p, ++version};
        truth[p] = version;
      }
      for (int64_t p = t; p < end; ++p) {
        for (int64_t key = std::max<int64_t>(0, p - window + 1); key <= p; ++key) {
          if (ring[static_cast<size_t>(key % slots)] != std::pair{key, truth[key]}) return false;
        }
      }
      t += 1 + next(static_cast<uint64_t>(drafts + 1));
    }
  }
  return true;
}

TEST(ReplayCheck, RingIsAsLargeAsAVerificationNeeds) {
  EXPECT_TRUE(ring_holds(134, 128, 5, 10000 / 20));
  EXPECT_TRUE(ring_holds(133, 128, 5, 500)) << "one slot of margin";
  EXPECT_FALSE(ring_holds(132, 128, 5, 500));
  EXPECT_TRUE(ring_holds(kWindow + kBack, kWindow, kBack - 1, 10000));
}

// T-RP-2, T-RP-4, T-RP-5, exhaustive: every prompt, start and keep, whole and in chunks of every size.
TEST(ReplayCheck, MaskEqualsCompactExhaustively) {
  int64_t slots = kWindow + kBack, compared = 0;
  for (int64_t prompt = 1; prompt <= 600; prompt += prompt < 60 ? 1 : 27) {
    int64_t cap = std::max<int64_t>(0, prompt - kWindow - kBack) / kWindow;
    for (int64_t hit = 0; hit <= cap; hit += hit < 6 ? 1 : 5) {
      for (bool snapshot : {false, true}) {
        if (hit == 0 && snapshot) continue;
        if (hit == 1 && !snapshot) continue;  // nothing left to reuse: recomputed from 0
        for (int64_t keep : {kWindow + kBack, kWindow + kBack + 1, kWindow + kBack + 6}) {
          ReplaySchedule s;
          s.prompt = prompt;
          s.kv_hit = hit * kWindow;
          s.from_snapshot = snapshot;
          s.keep = keep;
          s.chunks = {prompt};
          auto enc = masked_rows(s, false, kWindow, slots), dec = masked_rows(s, true, kWindow, slots);
          ASSERT_EQ(static_cast<int64_t>(dec.size()), std::min(keep, prompt - s.start(kWindow)));
          ASSERT_EQ(s.decoder_floor(kWindow),
                    policy::decoder_floor(prompt, s.start(kWindow), {kWindow, kBack, keep}));
          for (int64_t chunk : {prompt, int64_t{1}, int64_t{3}, kWindow, kWindow + 1, 2 * kWindow + 5}) {
            s.chunks.clear();
            for (int64_t at = s.start(kWindow); at < prompt;)
              s.chunks.push_back(at = std::min(prompt, at + chunk));
            ASSERT_EQ(enc, compact_rows(s, false, kWindow, slots)) << prompt << " " << hit << " " << chunk;
            ASSERT_EQ(dec, compact_rows(s, true, kWindow, slots)) << prompt << " " << hit << " " << chunk;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 10000);
}

// A ring one slot too small is noticed.
TEST(ReplayCheck, SmallRingIsNoticed) {
  ReplaySchedule s;
  s.prompt = 40;
  s.keep = kWindow + kBack;
  for (int64_t at = 1; at <= 40; ++at) s.chunks.push_back(at);
  EXPECT_EQ(masked_rows(s, false, kWindow, kWindow - 1), compact_rows(s, false, kWindow, kWindow - 1))
      << "a window of W needs W - 1 records besides the row itself";
  EXPECT_NE(masked_rows(s, false, kWindow, kWindow - 2), compact_rows(s, false, kWindow, kWindow - 2));
}

// T-RP-3 and the logits: on the tiny models, through the real forward pass.
TEST(ReplayCheck, ForwardPassAgreesWithTheMask) {
  for (const char* name : {"t0", "t1"}) {
    ModelWeights w = exact_synthetic_weights(builtin_config(name).value()).value();
    ThreadPool pool(2);
    ReplayReport r =
        check_replay(w, &pool, std::string(name) == "t0" ? 30 : 6, 1, std::string(name) == "t0" ? 150 : 260);
    EXPECT_EQ(r.mismatches, 0) << r.first;
    EXPECT_GT(r.replayed, 0);
    EXPECT_GT(r.from_snapshot, 0);
    EXPECT_GT(r.logit_rows, 100);
    EXPECT_GT(r.block_digests, 10);
  }
}

}  // namespace
}  // namespace deepinfer
