// Admission at work: what is charged and comes back, who is refused and for how long, who gives way.
#include "fleet/admission.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
using R = policy::AdmitReason;
using policy::Quota;

policy::AdmissionConfig lines(int64_t requests, int64_t tokens = 0, double work_ns = 1e18) {
  policy::AdmissionConfig c;
  c.queue_requests = requests;
  c.queue_tokens = tokens;
  c.queue_limit_ns = work_ns;
  return c;
}
AdmissionRequest ask(const std::string& tenant, TenantQuota quota, int64_t prompt, int64_t most,
                     int64_t now) {
  AdmissionRequest r;
  r.tenant = tenant;
  r.quota = quota;
  r.prompt_tokens = prompt;
  r.most_tokens = most;
  r.now_ns = now;
  return r;
}

TEST(Admission, RequestsPerMinuteRefillEvenly) {
  AdmissionControl a(lines(0));
  TenantQuota q;
  q.requests_per_minute = 60;
  int64_t now = kSecond;
  for (int i = 0; i < 60; ++i) {
    auto d = a.admit(ask("t", q, 1, 1, now));
    ASSERT_EQ(d.decision.reason, R::kAdmitted) << i;
    a.finished(d.ticket, 1, now);
  }
  auto d = a.admit(ask("t", q, 1, 1, now));
  EXPECT_EQ(d.decision.reason, R::kQuota);
  EXPECT_EQ(d.decision.quota, Quota::kRequests);
  EXPECT_EQ(d.decision.retry_after_ns, kSecond);
  EXPECT_EQ(d.ticket, 0u);
  EXPECT_EQ(a.admit(ask("other", q, 1, 1, now)).decision.reason, R::kAdmitted);
  EXPECT_EQ(a.admit(ask("t", q, 1, 1, now + kSecond + 1000)).decision.reason, R::kAdmitted);
  EXPECT_EQ(a.admit(ask("t", q, 1, 1, now + kSecond + 2000)).decision.reason, R::kQuota);
}

TEST(Admission, UnusedTokensComeBackAndAFullBucketAdmitsAnySize) {
  AdmissionControl a(lines(0));
  TenantQuota q;
  q.tokens_per_minute = 1000;
  auto d = a.admit(ask("t", q, 100, 800, kSecond));
  ASSERT_NE(d.ticket, 0u);
  EXPECT_EQ(a.admit(ask("t", q, 100, 800, kSecond)).decision.quota, Quota::kTokens);
  a.finished(d.ticket, 10, kSecond);  // 110 of 1000 are gone
  a.finished(d.ticket, 10, kSecond);  // once is enough, twice gives nothing back
  d = a.admit(ask("t", q, 90, 800, kSecond));
  ASSERT_NE(d.ticket, 0u);
  EXPECT_EQ(a.admit(ask("t", q, 1, 1, kSecond)).decision.reason, R::kQuota);
  a.finished(d.ticket, 800, kSecond);
  // Larger than the bucket: it waits until the bucket is full, and pays afterwards.
  EXPECT_EQ(a.admit(ask("t", q, 500, 4500, 30 * kSecond)).decision.reason, R::kQuota);
  EXPECT_EQ(a.admit(ask("t", q, 500, 4500, 61 * kSecond)).decision.reason, R::kAdmitted);
  auto late = a.admit(ask("t", q, 1, 1, 62 * kSecond));
  EXPECT_EQ(late.decision.reason, R::kQuota);
  EXPECT_GT(late.decision.retry_after_ns, 200 * kSecond);
}

TEST(Admission, LevelsOfConcurrencyAndCacheTokens) {
  AdmissionControl a(lines(0));
  TenantQuota q;
  q.concurrent = 2;
  q.kv_tokens = 1000;
  auto one = a.admit(ask("t", q, 600, 100, kSecond));
  ASSERT_NE(one.ticket, 0u);
  EXPECT_EQ(a.admit(ask("t", q, 600, 100, kSecond)).decision.quota, Quota::kKvTokens);
  ASSERT_NE(a.admit(ask("t", q, 100, 100, kSecond)).ticket, 0u);
  EXPECT_EQ(a.admit(ask("t", q, 1, 1, kSecond)).decision.quota, Quota::kConcurrent);
  EXPECT_EQ(a.admit(ask("t", q, 1, 1, kSecond + 3600 * kSecond)).decision.reason, R::kQuota);  // no rate
  a.finished(one.ticket, 3, kSecond);
  EXPECT_EQ(a.admit(ask("t", q, 600, 100, kSecond)).decision.reason, R::kAdmitted);
}

TEST(Admission, TheLine) {
  AdmissionControl a(lines(2, 100));
  auto d = a.admit(ask("t", {}, 10, 1, kSecond));
  EXPECT_EQ(a.admit(ask("t", {}, 95, 1, kSecond)).decision.reason, R::kQueueTokens);
  auto e = a.admit(ask("t", {}, 10, 1, kSecond));
  auto full = a.admit(ask("t", {}, 10, 1, kSecond));
  EXPECT_EQ(full.decision.reason, R::kQueueRequests);
  EXPECT_GE(full.decision.retry_after_ns, kSecond);
  a.started(d.ticket);
  a.started(d.ticket);  // once is enough, twice does no harm
  EXPECT_EQ(a.queued(), 1);
  EXPECT_EQ(a.admit(ask("t", {}, 10, 1, kSecond)).decision.reason, R::kAdmitted);
  a.finished(d.ticket, 0, kSecond);
  a.finished(e.ticket, 0, kSecond);
  EXPECT_EQ(a.active(), 1);
  EXPECT_EQ(a.queued(), 1);
  // Alone in line, any length may wait.
  AdmissionControl b(lines(2, 100));
  EXPECT_EQ(b.admit(ask("t", {}, 5000, 1, kSecond)).decision.reason, R::kAdmitted);
}

TEST(Admission, OneTenantCannotFillTheLine) {
  AdmissionControl a(lines(9));
  std::map<std::string, int> waiting;
  auto come = [&](const std::string& tenant, double weight) {
    AdmissionRequest r = ask(tenant, {}, 10, 1, kSecond);
    r.weight = weight;
    r.displaced = [&waiting, tenant] { --waiting[tenant]; };
    const bool in = a.admit(std::move(r)).ticket != 0;
    waiting[tenant] += in;
    return in;
  };
  for (int i = 0; i < 20; ++i) EXPECT_EQ(come("crowd", 1), i < 9) << i;
  // The others take their shares, by weight, and not more.
  for (int i = 0; i < 20; ++i) come("double", 2);
  EXPECT_EQ(waiting["double"], 6);
  EXPECT_EQ(waiting["crowd"], 3);
  for (int i = 0; i < 20; ++i) come("crowd", 1);
  EXPECT_EQ(waiting["crowd"], 3);
  EXPECT_EQ(a.queued(), 9);
  EXPECT_EQ(a.active(), 9);
  EXPECT_EQ(a.displaced(), 6);
}

TEST(Admission, HigherPriorityTakesThePlaceOfLower) {
  AdmissionControl a(lines(2));
  int gone = 0;
  auto come = [&](int priority, int64_t prompt) {
    AdmissionRequest r = ask("t", {}, prompt, 1, kSecond);
    r.priority = priority;
    r.displaced = [&gone, prompt] { gone = static_cast<int>(prompt); };
    return a.admit(std::move(r)).ticket;
  };
  const uint64_t low = come(-1, 11);
  ASSERT_NE(low, 0u);
  ASSERT_NE(come(0, 12), 0u);
  EXPECT_EQ(come(-1, 13), 0u);  // equals do not push each other
  EXPECT_NE(come(0, 14), 0u);
  EXPECT_EQ(gone, 11);
  a.finished(low, 0, kSecond);  // its owner still says that it is over
  EXPECT_EQ(a.active(), 2);
  // One that has started keeps its place.
  EXPECT_EQ(come(0, 15), 0u);
}

TEST(Admission, LearnsThePriceAndRefusesWhatWouldBeLate) {
  AdmissionControl a(lines(0, 0, 5e9));
  AdmissionRequest r = ask("t", {}, 1000, 1, kSecond);
  r.deadline_ns = kSecond + 1;
  EXPECT_EQ(a.admit(r).decision.reason, R::kAdmitted);  // nothing is known yet
  a.learn(100, 100'000'000);                            // a millisecond per token
  a.learn(100, 900'000'000);                            // shared with others: the fastest counts
  a.learn(3, 1);                                        // too short to say anything
  EXPECT_NEAR(a.ns_per_token(), 1.02e6, 1e4);
  r.deadline_ns = kSecond + 900'000'000;
  EXPECT_EQ(a.admit(r).decision.reason, R::kDeadline);
  r.deadline_ns = kSecond + 1'100'000'000;
  EXPECT_EQ(a.admit(r).decision.reason, R::kAdmitted);
  for (int i = 0; i < 4; ++i)
    ASSERT_EQ(a.admit(ask("t", {}, 1000, 1, kSecond)).decision.reason, R::kAdmitted) << i;
  EXPECT_EQ(a.admit(ask("t", {}, 10, 1, kSecond)).decision.reason, R::kQueueFull);
  EXPECT_EQ(a.admit(ask("t", {}, 20'000, 1, kSecond)).decision.reason, R::kAdmitted);  // another line
  EXPECT_GT(a.queued_ns(), 5e9);
}

TEST(Admission, DrainAndLongerThanTheContext) {
  policy::AdmissionConfig c = lines(0);
  c.context_tokens = 100;
  AdmissionControl a(c);
  auto d = a.admit(ask("t", {}, 90, 11, kSecond));
  EXPECT_EQ(d.decision.reason, R::kTooLong);
  EXPECT_EQ(d.decision.limit, 100);
  a.drain();
  d = a.admit(ask("t", {}, 1, 1, kSecond));
  EXPECT_EQ(d.decision.reason, R::kNoEngines);
  EXPECT_TRUE(d.draining);
  EXPECT_GT(d.decision.retry_after_ns, 0);
}

}  // namespace
}  // namespace deepinfer
