// Worked numbers of serving specification 4.5, 4.8 and 4.9, and the properties of the search.
#include "policy/verify_budget.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace deepinfer::policy {
namespace {

// Inverse of the normal distribution function by bisection: exact to the last printed digit of the table.
double normal_quantile(double p) {
  double lo = -10, hi = 10;
  for (int i = 0; i < 200; ++i) {
    double mid = (lo + hi) / 2;
    (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? lo : hi) = mid;
  }
  return lo;
}

// Step time of the published operating points: the quadratic through three of them, in milliseconds. They
// follow from requests * 3.29 accepted tokens / tokens per second; rounded they are the
// printed 10.763, 14.377, 18.781.
RowCurve published_curve() {
  const double x[3] = {96, 360, 576}, y[3] = {16 * 3.29e3 / 4891, 60 * 3.29e3 / 13730, 96 * 3.29e3 / 16817};
  std::vector<CurvePoint> points;
  for (int64_t r = 1; r <= 640; ++r) {
    double b = static_cast<double>(r), ms = 0;
    for (int i = 0; i < 3; ++i) {
      double term = y[i];
      for (int j = 0; j < 3; ++j) {
        if (j != i) term *= (b - x[j]) / (x[i] - x[j]);
      }
      ms += term;
    }
    points.push_back({r, ms * 1e6, 0});
  }
  return *make_curve(points, 0);
}

std::vector<double> published_survivals(int requests) {
  std::vector<double> all;
  for (int i = 0; i < requests; ++i) {
    double z = normal_quantile((i + 0.5) / requests);
    std::array<double, 5> c{}, a{};
    for (int k = 0; k < 5; ++k) c[static_cast<size_t>(k)] = 1 / (1 + std::exp(-(1.226 + 1.2 * z - 0.15 * k)));
    survivals(c, a);
    all.insert(all.end(), a.begin(), a.end());
  }
  return all;
}

struct PublishedRow {
  int requests;
  double tau_fixed, rate_fixed;
  int64_t drafts;
  double tau, rate, gain, gain_overhead;
};
const PublishedRow kPublished[] = {{16, 3.289, 4889.8, 72, 3.282, 4914.7, 0.5, -1.5},
                                   {60, 3.290, 13729.7, 213, 3.163, 14630.1, 6.6, 4.5},
                                   {96, 3.290, 16817.0, 287, 3.001, 19489.1, 15.9, 13.6}};

TEST(VerifyBudgetGolden, PublishedTable) {
  RowCurve curve = published_curve();
  EXPECT_NEAR(ns_at(curve, 96) / 1e6, 10.763, 5e-4);
  for (const PublishedRow& row : kPublished) {
    std::vector<double> s = published_survivals(row.requests);
    BudgetInput in{row.requests, row.requests, row.requests, s};
    StepCost cost{&curve};
    BudgetChoice fixed = value_of(in, cost, row.requests * 5), best = best_budget(in, cost);
    EXPECT_NEAR(fixed.tokens / row.requests, row.tau_fixed, 5e-4);
    EXPECT_NEAR(fixed.tokens_per_ns() * 1e9, row.rate_fixed, 0.05) << row.requests;
    EXPECT_EQ(best.drafts, row.drafts);
    EXPECT_NEAR(best.tokens / row.requests, row.tau, 5e-4);
    EXPECT_NEAR(best.tokens_per_ns() * 1e9, row.rate, 0.05);
    EXPECT_NEAR((best.tokens_per_ns() / fixed.tokens_per_ns() - 1) * 100, row.gain, 0.05);
    EXPECT_NEAR((best.tokens_per_ns() / 1.02 / fixed.tokens_per_ns() - 1) * 100, row.gain_overhead, 0.05);
  }
}

// The published gains: -1.5, +5.4 and +11.0 %, by sign and within three points.
TEST(VerifyBudgetGolden, PublishedGains) {
  RowCurve curve = published_curve();
  const double published[] = {-1.5, 5.4, 11.0};
  for (int i = 0; i < 3; ++i) {
    int r = kPublished[i].requests;
    std::vector<double> s = published_survivals(r);
    BudgetInput in{r, r, r, s};
    StepCost plain{&curve}, selective{&curve};
    selective.overhead = 0.02;
    double gain =
        (best_budget(in, selective).tokens_per_ns() / value_of(in, plain, 5 * r).tokens_per_ns() - 1) * 100;
    EXPECT_EQ(std::signbit(gain), std::signbit(published[i])) << r;
    EXPECT_NEAR(gain, published[i], 3) << r;
  }
}

// With padded launches of 32 rows the optimum moves up, and stopping early stays on the first stair.
TEST(VerifyBudgetGolden, StaircaseNeedsTheGlobalSearch) {
  RowCurve fine = published_curve();
  std::vector<CurvePoint> points;
  for (int64_t r = 32; r <= 640; r += 32) points.push_back({r, ns_at(fine, r), 0});
  RowCurve stairs = *make_curve(points, 640);
  const int64_t global[] = {80, 228, 288}, greedy[] = {16, 4, 0};
  for (int i = 0; i < 3; ++i) {
    int r = kPublished[i].requests;
    std::vector<double> s = published_survivals(r);
    BudgetInput in{r, r, r, s};
    StepCost cost{&stairs};
    EXPECT_EQ(best_budget(in, cost).drafts, global[i]);
    EXPECT_EQ(best_budget(in, cost, true).drafts, greedy[i]);
  }
}

TEST(VerifyBudgetGolden, SmallMachineLane) {
  struct Row {
    int requests, per_request;
    double theta;
  };
  for (const Row& row : {Row{1, 4, 2.7632}, Row{2, 4, 4.9219}, Row{4, 4, 8.0769}, Row{8, 3, 12.3913},
                         Row{16, 1, 18.4615}, Row{32, 0, 32.0}}) {
    std::vector<double> s;
    for (int i = 0; i < row.requests; ++i) s.insert(s.end(), {0.8, 0.6, 0.45, 0.3, 0.19});
    BudgetChoice c = lane_budget({row.requests, row.requests, row.requests, s}, {});
    EXPECT_EQ(c.drafts, row.requests * row.per_request);
    EXPECT_NEAR(c.tokens / c.ns, row.theta, 5e-5);
  }
}

// The retrospective search of the counter-example: two drafts after token A, none after B, so the output
// distribution is bent. A total from earlier confidences treats both alike.
TEST(VerifyBudgetGolden, RetrospectiveTotalIsBiased) {
  RowCurve curve = *make_curve({{1, 1 / 1.0, 0}, {2, 1 / 0.5, 0}, {3, 1 / 0.45, 0}}, 0);
  StepCost cost{&curve};
  auto retrospective = [&](double c2, bool early) {
    std::array<double, 2> c{0.8, c2}, a{};
    survivals(c, a);
    return best_budget({1, 1, 1, a}, cost, early).drafts;
  };
  EXPECT_EQ(retrospective(0.9, false), 2);
  EXPECT_EQ(retrospective(0.0, false), 0);
  EXPECT_EQ(retrospective(0.9, true), 0);
  EXPECT_EQ(retrospective(0.0, true), 0);

  // Draft A with 0.5 and B with 0.5, target 0.7 and 0.3, accepted by the ratio rule.
  std::mt19937_64 random(1);
  auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  auto share_of_a = [&](auto&& verified_drafts) {
    int a = 0;
    const int kDraws = 200000;
    for (int i = 0; i < kDraws; ++i) {
      bool draft_a = uniform() < 0.5;
      bool out_a;
      if (verified_drafts(draft_a) >= 1) {
        double accept = draft_a ? 1.0 : 0.3 / 0.5;
        out_a = uniform() < accept ? draft_a : true;  // what is left over is all A
      } else {
        out_a = uniform() < 0.7;
      }
      a += out_a;
    }
    return a / static_cast<double>(kDraws);
  };
  EXPECT_NEAR(share_of_a([&](bool a) { return retrospective(a ? 0.9 : 0.0, false); }), 0.85, 0.005);
  EXPECT_NEAR(share_of_a([&](bool a) { return retrospective(a ? 0.9 : 0.0, true); }), 0.70, 0.005);
  // The production split: the total from an earlier round (whatever it was), lengths from this one.
  for (double stale : {0.9, 0.1}) {
    std::array<double, 2> c{0.8, stale}, a{};
    survivals(c, a);
    int64_t total = best_budget({1, 1, 1, a}, cost).drafts;
    EXPECT_NEAR(share_of_a([&](bool is_a) {
                  std::array<double, 2> now{0.8, is_a ? 0.9 : 0.0}, fresh{};
                  survivals(now, fresh);
                  DraftRow row{fresh, 2};
                  return choose_lengths({&row, 1}, total)[0];
                }),
                0.70, 0.005)
        << stale;
  }
}

TEST(VerifyBudget, SurvivalsAreSanitised) {
  std::array<double, 5> c{0.9, NAN, 2.0, -1.0, 0.5}, a{};
  survivals(c, a);
  EXPECT_EQ(a, (std::array<double, 5>{0.9, 0, 0, 0, 0}));
  std::array<double, 2> big{7.0, 0.5}, b{};
  survivals(big, b);
  EXPECT_EQ(b, (std::array<double, 2>{1.0, 0.5}));
}

// Extra rows at full price: nothing is verified. Rows for nothing: everything (field report: drafting on a
// machine limited by expert bandwidth).
TEST(VerifyBudget, MarginalCostDecides) {
  RowCurve full = *make_curve({{1, 100, 0}, {2, 200, 0}, {6, 600, 0}}, 0);
  RowCurve flat = *make_curve({{1, 100, 0}, {6, 100, 0}}, 0);
  std::vector<double> s{0.9, 0.8, 0.7, 0.6, 0.5};
  EXPECT_EQ(best_budget({1, 1, 1, s}, StepCost{&full}).drafts, 0);
  EXPECT_EQ(best_budget({1, 1, 1, s}, StepCost{&flat}).drafts, 5);
}

TEST(VerifyBudget, NeverWorseThanAllOrNothing) {
  std::mt19937_64 random(2);
  auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  for (int round = 0; round < 300; ++round) {
    std::vector<CurvePoint> points;
    double ns = 10;
    for (int64_t r = 1; r < 200; r += 1 + static_cast<int64_t>(uniform() * 20)) {
      ns += uniform() * 20;
      points.push_back({r, ns, 0});
    }
    RowCurve curve = *make_curve(points, uniform() < 0.5 ? 64 : 0);
    std::vector<double> s;
    int requests = 1 + static_cast<int>(uniform() * 20);
    for (int i = 0; i < requests; ++i) {
      std::array<double, 5> c{}, a{};
      for (double& v : c) v = uniform();
      survivals(c, a);
      s.insert(s.end(), a.begin(), a.end());
    }
    BudgetInput in{requests, requests, requests, s};
    StepCost cost{&curve};
    double best = best_budget(in, cost).tokens_per_ns();
    for (int64_t k = 0; k <= static_cast<int64_t>(s.size()); ++k) {
      double padded = static_cast<double>(value_of(in, cost, k).tokens_per_ns());
      ASSERT_GE(best, padded * (1 - 1e-12)) << round << " " << k;
    }
    ASSERT_GE(best, best_budget(in, cost, true).tokens_per_ns() * (1 - 1e-12));
  }
}

TEST(VerifyBudget, LengthsArePrefixesAndSumUp) {
  std::mt19937_64 random(3);
  auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::array<double, 5>> a(1 + random() % 12);
    std::vector<DraftRow> rows;
    int64_t room = 0;
    for (auto& r : a) {
      std::array<double, 5> c{};
      for (double& v : c) v = std::floor(uniform() * 4) / 3;  // many ties
      survivals(c, r);
      rows.push_back({r, static_cast<int>(random() % 7)});
      room += std::min(rows.back().cap, 5);
    }
    int64_t total = static_cast<int64_t>(random() % 40);
    std::vector<int> lengths = choose_lengths(rows, total);
    int64_t sum = 0;
    double least_in = 2, most_out = -1;
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_LE(lengths[i], std::min(rows[i].cap, 5));
      sum += lengths[i];
      for (int j = 0; j < std::min(rows[i].cap, 5); ++j) {
        double v = a[i][static_cast<size_t>(j)];
        if (j < lengths[i]) {
          least_in = std::min(least_in, v);
        } else {
          most_out = std::max(most_out, v);
        }
      }
    }
    ASSERT_EQ(sum, std::min(total, room));
    ASSERT_GE(least_in, most_out);
  }
}

TEST(VerifyBudget, DeadRowsAreCut) {
  std::vector<double> a{0.8, 0.3, 0.1};
  DraftRow row{a, 3};
  EXPECT_EQ(choose_lengths({&row, 1}, 3, 0.2)[0], 2);
  EXPECT_EQ(choose_lengths({&row, 1}, 3)[0], 3);
}

TEST(StepCurve, StairsThenLines) {
  RowCurve c = *make_curve({{8, 10, 4}, {16, 9, 6}, {32, 30, 8}, {48, 40, 9}}, 16);
  EXPECT_EQ(c.points[1].ns, 10);  // running maximum
  EXPECT_EQ(ns_at(c, 1), 10);
  EXPECT_EQ(ns_at(c, 9), 10);
  EXPECT_EQ(ns_at(c, 17), 30);  // never interpolated across the limit
  EXPECT_EQ(ns_at(c, 40), 35);
  EXPECT_EQ(ns_at(c, 64), 50);
  EXPECT_EQ(paid_rows(c, 3), 8);
  EXPECT_EQ(paid_rows(c, 20), 20);
  EXPECT_FALSE(make_curve({{0, 1, 0}}, 0).ok());
  EXPECT_FALSE(make_curve({{1, NAN, 0}}, 0).ok());
}

// A step that touched more experts than usual is explained by them, not held against its rows.
TEST(StepCurve, DistinctExpertsAreACostOfTheirOwn) {
  std::vector<CurvePoint> points;
  auto experts = [](int64_t rows) { return 100.0 * (1 - std::pow(0.9, static_cast<double>(rows))); };
  for (int64_t r : {1, 2, 4, 8, 16, 32, 64})
    points.push_back({r, 1000.0 + 3.0 * static_cast<double>(r) + 20 * experts(r), experts(r)});
  RowCurve curve = *make_curve(points, 0);
  CurveRefinement f = start_refinement(curve);
  EXPECT_NEAR(f.ns_per_expert, 20, 0.01);
  for (int i = 0; i < 200; ++i) {
    double e = experts(16) * 0.5;
    ASSERT_TRUE(refine(curve, &f, 16, e, 1000 + 3.0 * 16 + 20 * e));
  }
  EXPECT_NEAR(f.all, 1, 0.01);
  EXPECT_NEAR(f.experts, 0.5, 0.01);
  EXPECT_NEAR(refined_ns(curve, f, 32), 1000 + 3.0 * 32 + 20 * experts(32) * 0.5, 5);
}

TEST(StepCurve, RefinementFollowsTheMachineAndIgnoresHiccups) {
  RowCurve curve = *make_curve({{1, 100, 0}, {8, 200, 0}, {64, 800, 0}}, 0);
  CurveRefinement f = start_refinement(curve);
  EXPECT_FALSE(refine(curve, &f, 8, -1, 200 * 3.5));
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(refine(curve, &f, 8, -1, 300));
  EXPECT_NEAR(refined_ns(curve, f, 8), 300, 1);
  EXPECT_NEAR(refined_ns(curve, f, 64), 1200, 5);  // never observed there: the common factor
  for (int i = 0; i < 300; ++i) refine(curve, &f, 64, -1, 800 * 4.0 * (i < 150 ? 0.5 : 0.7));
  EXPECT_LE(refined_ns(curve, f, 64), ns_at(curve, 64) * f.all * 1.25 + 1e-9);
}

}  // namespace
}  // namespace deepinfer::policy
