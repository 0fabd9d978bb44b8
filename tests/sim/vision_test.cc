// Requests with images pass the vision machines first (serving specification 9.1, 14.2).
#include <gtest/gtest.h>

#include "fleet_fixture.h"

namespace deepinfer::sim {
namespace {

FleetConfig with_vision(int machines, int gpus) {
  FleetConfig c = small_fleet(3);
  c.vision.machines = machines;
  c.vision.gpus = gpus;
  return c;
}

WorkloadConfig with_images(double rate, double share) {
  WorkloadConfig w = work(rate);
  w.image_share = share;
  return w;
}

TEST(Vision, ImagesComeFirstAndEveryPatchIsGivenBack) {
  const FleetResult without = run(with_vision(2, 4), work(80)),
                    r = run(with_vision(2, 4), with_images(80, 0.5));
  ASSERT_EQ(r.broken, "");  // patches in flight return is one of the invariants
  EXPECT_EQ(without.images, 0);
  EXPECT_EQ(r.refused, 0);
  // One to four images of 1,521 to 9,216 patches for half of the requests.
  EXPECT_NEAR(static_cast<double>(r.images), 80 * 6 * 0.5 * 2.5, 120);
  EXPECT_NEAR(static_cast<double>(r.patches) / static_cast<double>(r.images), 5368.5, 300);
  const double encode_s = 5368.5 / 200'000 + 0.002;
  EXPECT_NEAR(r.vision_busy, static_cast<double>(r.images) * encode_s / (6 * 8), 0.05);
  // A request's last image is not there before its largest is encoded.
  EXPECT_GT(r.vision_ns.quantile(0.5) * 1e-9, encode_s);
  EXPECT_GT(r.ttft_ns.mean(), without.ttft_ns.mean() + 0.4 * r.vision_ns.mean());
  EXPECT_EQ(run(with_vision(2, 4), with_images(80, 0.5)).log_hash, r.log_hash);
}

// Fewest patches in flight over four GPUs: as many machines again make waiting, not encoding, go away.
TEST(Vision, MoreGpusWaitLess) {
  const FleetResult one = run(with_vision(1, 4), with_images(80, 0.5)),
                    four = run(with_vision(4, 4), with_images(80, 0.5));
  ASSERT_EQ(one.broken + four.broken, "");
  EXPECT_LT(four.vision_ns.quantile(0.99), 0.5 * one.vision_ns.quantile(0.99));
  EXPECT_NEAR(four.vision_busy, one.vision_busy / 4, 0.03);
  EXPECT_GT(one.series.back().vision_advice, 0);
}

TEST(Vision, AFailedMachinesImagesAreEncodedElsewhereOrWait) {
  FleetConfig c = with_vision(2, 2);
  c.failures = {{FailureEvent::What::kVisionMachine, 0, 3, 2}};
  const FleetResult one = run(c, with_images(90, 0.5));
  ASSERT_EQ(one.broken, "");
  EXPECT_GT(one.failed_over, 0);
  c.failures.push_back({FailureEvent::What::kVisionMachine, 1, 4, 0.5});  // none for half a second
  c.cancel_share = 0.3;
  c.cancel_after_s = 0.3;
  const FleetResult both = run(c, with_images(40, 0.4));
  ASSERT_EQ(both.broken, "");
  EXPECT_GT(both.cancelled, 0);
  EXPECT_GT(both.vision_ns.quantile(1), 0.5e9);
}

TEST(Vision, AdmissionCountsTheWaitForImages) {
  FleetConfig c = with_vision(1, 1);
  c.deadline_s = 0.5;
  const FleetResult r = run(c, with_images(60, 0.5));
  ASSERT_EQ(r.broken, "");
  EXPECT_GT(r.refusals[static_cast<int>(policy::AdmitReason::kDeadline)], 20);
  EXPECT_GT(r.completed, 100);  // those without images
}

}  // namespace
}  // namespace deepinfer::sim
