// The ring of endings against a plain list: the same entries at the same step in the order they came, rounds
// of the ring apart, lines that overflow into the pool, and a clear in between.
#include "sim/endings.h"

#include <gtest/gtest.h>

#include <vector>

#include "sim/random.h"

namespace deepinfer::sim {
namespace {

struct Plain {
  int64_t step;
  uint32_t slot, generation;
};

TEST(Endings, LikeAPlainList) {
  Random random(7);
  Endings ring;
  std::vector<Plain> plain;
  std::vector<Ending> out;
  uint32_t next = 0;
  int64_t taken = 0;
  for (int64_t step = 0; step < 4000; ++step) {
    for (int64_t n = random.in(0, 40); n > 0; --n) {
      // Mostly soon, some a round of the ring (512 steps) or several later.
      const int64_t at = step + 1 + (random.in(0, 9) == 0 ? random.in(0, 2000) : random.in(0, 20));
      ring.push(at, next, next * 3);
      plain.push_back({at, next, next * 3});
      ++next;
    }
    if (step == 2000) {
      ring.clear();
      plain.clear();
    }
    ring.take(step, &out);
    size_t i = 0, kept = 0;
    for (const Plain& p : plain) {
      if (p.step != step) {
        plain[kept++] = p;
        continue;
      }
      ASSERT_LT(i, out.size());
      EXPECT_EQ(out[i].slot, p.slot);
      EXPECT_EQ(out[i].generation, p.generation);
      ++i;
    }
    EXPECT_EQ(i, out.size()) << step;
    plain.resize(kept);
    taken += static_cast<int64_t>(i);
  }
  EXPECT_GT(taken, 50'000);
}

}  // namespace
}  // namespace deepinfer::sim
