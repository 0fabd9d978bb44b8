// Quotas and line limits: who is refused, for how long, and what comes back.
#include "fleet/admission.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
using R = AdmissionReason;

TEST(Admission, RequestsPerMinuteRefillEvenly) {
  AdmissionControl a({});
  TenantQuota q{60, 0, 0};
  int64_t now = kSecond;
  for (int i = 0; i < 60; ++i) {
    auto d = a.admit("t", q, 1, 1, now);
    ASSERT_EQ(d.reason, R::kAdmitted) << i;
    a.finished(d.ticket, 1);
  }
  auto d = a.admit("t", q, 1, 1, now);
  EXPECT_EQ(d.reason, R::kTenantRequests);
  EXPECT_EQ(d.retry_after_ns, kSecond);
  EXPECT_EQ(a.admit("other", q, 1, 1, now).reason, R::kAdmitted);
  EXPECT_EQ(a.admit("t", q, 1, 1, now + kSecond + 1000).reason, R::kAdmitted);
  EXPECT_EQ(a.admit("t", q, 1, 1, now + kSecond + 2000).reason, R::kTenantRequests);
}

TEST(Admission, UnusedTokensComeBack) {
  AdmissionControl a({});
  TenantQuota q{0, 1000, 0};
  auto d = a.admit("t", q, 100, 800, kSecond);
  ASSERT_EQ(d.reason, R::kAdmitted);
  EXPECT_EQ(a.admit("t", q, 100, 800, kSecond).reason, R::kTenantTokens);
  a.finished(d.ticket, 10);  // 110 of 1000 are gone
  EXPECT_EQ(a.admit("t", q, 90, 800, kSecond).reason, R::kAdmitted);
  EXPECT_EQ(a.admit("t", q, 500, 800, kSecond).reason, R::kTooLargeForQuota);
}

TEST(Admission, ConcurrencyAndTheLine) {
  AdmissionControl a({2, 100});
  TenantQuota one{0, 0, 1};
  auto d = a.admit("t", one, 10, 1, kSecond);
  EXPECT_EQ(a.admit("t", one, 10, 1, kSecond).reason, R::kTenantConcurrency);
  EXPECT_EQ(a.admit("u", {}, 95, 1, kSecond).reason, R::kQueueTokens);
  auto e = a.admit("u", {}, 10, 1, kSecond);
  EXPECT_EQ(a.admit("u", {}, 10, 1, kSecond).reason, R::kQueueRequests);
  a.started(d.ticket);
  a.started(d.ticket);  // once is enough, twice does no harm
  EXPECT_EQ(a.queued(), 1);
  EXPECT_EQ(a.admit("u", {}, 10, 1, kSecond).reason, R::kAdmitted);
  a.finished(d.ticket, 0);
  a.finished(e.ticket, 0);
  EXPECT_EQ(a.active(), 1);
  EXPECT_EQ(a.queued(), 1);
  // Alone in line, any length may wait.
  AdmissionControl b({2, 100});
  EXPECT_EQ(b.admit("t", {}, 5000, 1, kSecond).reason, R::kAdmitted);
}

TEST(Admission, Drain) {
  AdmissionControl a({});
  a.drain();
  EXPECT_EQ(a.admit("t", {}, 1, 1, kSecond).reason, R::kDraining);
}

}  // namespace
}  // namespace deepinfer
