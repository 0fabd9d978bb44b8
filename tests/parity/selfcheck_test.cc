// The stated bound on native arithmetic: on the same inputs it is no further from exact arithmetic than the
// rounding points of the format (model specification 8.5, simulated in double precision) put the vendor's own
// reference. Printed by `deepinfer selfcheck`.
#include "engine/selfcheck.h"

#include "engine_fixture.h"

namespace deepinfer::parity {
namespace {

void check(const std::string& name, int positions) {
  ThreadPool pool(2);
  const ModelWeights& w = weights(name);
  auto r = selfcheck(w, prompt(positions, w.config.vocab_size), &pool);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->native.positions, positions);
  EXPECT_LE(r->native.kl_mean, r->ref_mode.kl_mean);
  EXPECT_GE(r->native.top1_agreement, r->ref_mode.top1_agreement);
  // Neither is a copy of the exact run: the comparison measures something.
  EXPECT_GT(r->native.kl_mean, 0);
  EXPECT_GT(r->ref_mode.kl_mean, 0);
}

TEST(Selfcheck, T1) {
  check("t1", 200);
}
TEST(Selfcheck, T2) {
  check("t2", 160);
}

TEST(Selfcheck, BadTokensAreErrors) {
  ThreadPool pool(1);
  const ModelWeights& w = weights("t0");
  EXPECT_EQ(selfcheck(w, {}, &pool).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(selfcheck(w, {1, 256}, &pool).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer::parity
