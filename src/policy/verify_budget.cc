// The search is over every total, because step times are staircases on some machines and a search that stops
// early stays on the first stair.
#include "policy/verify_budget.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace deepinfer::policy {

void survivals(std::span<const double> confidence, std::span<double> out) {
  double alive = 1;
  for (size_t i = 0; i < out.size(); ++i) {
    double c = i < confidence.size() ? confidence[i] : 0;
    alive *= std::isnan(c) ? 0 : std::clamp(c, 0.0, 1.0);
    out[i] = alive;
  }
}

// ---- curve

Result<RowCurve> make_curve(std::vector<CurvePoint> points, int64_t staircase_rows) {
  for (const CurvePoint& p : points) {
    if (p.rows < 1 || !(p.ns > 0) || !std::isfinite(p.ns) || !(p.experts >= 0)) {
      return error(
          Code::kInvalidArgument,
          "step time curve: a point with {} rows, {} ns and {} experts; rows and time must be positive",
          p.rows, p.ns, p.experts);
    }
  }
  std::sort(points.begin(), points.end(), [](const CurvePoint& a, const CurvePoint& b) {
    return a.rows != b.rows ? a.rows < b.rows : a.ns < b.ns;
  });
  points.erase(std::unique(points.begin(), points.end(),
                           [](const CurvePoint& a, const CurvePoint& b) { return a.rows == b.rows; }),
               points.end());
  for (size_t i = 1; i < points.size(); ++i) {
    points[i].ns = std::max(points[i].ns, points[i - 1].ns);
    points[i].experts = std::max(points[i].experts, points[i - 1].experts);
  }
  return RowCurve{std::move(points), staircase_rows};
}

size_t bucket_of(const RowCurve& curve, int64_t rows) {
  auto it = std::lower_bound(curve.points.begin(), curve.points.end(), rows,
                             [](const CurvePoint& p, int64_t r) { return p.rows < r; });
  return it == curve.points.end() ? curve.points.size() - 1 : static_cast<size_t>(it - curve.points.begin());
}

int64_t paid_rows(const RowCurve& curve, int64_t rows) {
  if (rows < 1 || rows > curve.staircase_rows) return rows;
  const CurvePoint& p = curve.points[bucket_of(curve, rows)];
  return p.rows >= rows && p.rows <= curve.staircase_rows ? p.rows : rows;
}

namespace {

// Interpolates one quantity of the points; never between a padded and an unpadded one.
double interpolate(const RowCurve& curve, int64_t rows, double CurvePoint::* what) {
  if (rows < 1) return 0;
  const auto& p = curve.points;
  DI_CHECK(!p.empty(), "a step time was asked of an empty curve");
  size_t i = bucket_of(curve, rows);
  bool beyond = p[i].rows < rows;
  if (!beyond && (p[i].rows == rows || i == 0 || rows <= curve.staircase_rows)) return p[i].*what;
  if (beyond && i == 0) return p[0].*what;
  const CurvePoint &a = p[i - 1], &b = p[i];
  if (!beyond && a.rows <= curve.staircase_rows) return b.*what;
  if (beyond && a.rows <= curve.staircase_rows && b.rows > curve.staircase_rows) return b.*what;
  double slope = (b.*what - a.*what) / static_cast<double>(b.rows - a.rows);
  return a.*what + slope * static_cast<double>(rows - a.rows);
}

}  // namespace

double ns_at(const RowCurve& curve, int64_t rows) {
  return interpolate(curve, rows, &CurvePoint::ns);
}
double experts_at(const RowCurve& curve, int64_t rows) {
  return interpolate(curve, rows, &CurvePoint::experts);
}

// ---- refinement

namespace {
constexpr double kRate = 0.05;                          // of every new observation
constexpr double kBucketLow = 0.8, kBucketHigh = 1.25;  // how far one bucket may leave the others
constexpr double kOutlier = 3;

// Least squares of ns on [1, rows, experts] with no negative coefficient, by trying every subset of columns;
// relative errors count. Returns the coefficient of experts.
double expert_cost(const std::vector<CurvePoint>& points) {
  double best_error = INFINITY, best = 0;
  for (int subset = 1; subset < 8; ++subset) {
    double m[3][4] = {};
    for (const CurvePoint& p : points) {
      double x[3] = {1, static_cast<double>(p.rows), p.experts};
      for (int i = 0; i < 3; ++i) {
        if ((subset >> i & 1) == 0) continue;
        for (int j = 0; j < 3; ++j) {
          if ((subset >> j & 1) != 0) m[i][j] += x[i] * x[j] / (p.ns * p.ns);
        }
        m[i][3] += x[i] / p.ns;
      }
    }
    for (int i = 0; i < 3; ++i) {
      if ((subset >> i & 1) == 0) m[i][i] = 1;
    }
    bool solvable = true;
    for (int i = 0; i < 3 && solvable; ++i) {
      int pivot = i;
      for (int r = i + 1; r < 3; ++r) {
        if (std::fabs(m[r][i]) > std::fabs(m[pivot][i])) pivot = r;
      }
      std::swap_ranges(m[i], m[i] + 4, m[pivot]);
      // Relative to the column's own size: rows and experts that grow together tell nothing apart.
      solvable = std::fabs(m[i][i]) > 1e-30;
      for (int r = 0; r < 3 && solvable; ++r) {
        if (r == i) continue;
        double f = m[r][i] / m[i][i];
        for (int k = i; k < 4; ++k) m[r][k] -= f * m[i][k];
      }
    }
    if (!solvable) continue;
    double c[3];
    for (int i = 0; i < 3; ++i) c[i] = m[i][3] / m[i][i];
    if (c[0] < 0 || c[1] < 0 || c[2] < 0) continue;
    double e = 0;
    for (const CurvePoint& p : points) {
      double d = (c[0] + c[1] * static_cast<double>(p.rows) + c[2] * p.experts) / p.ns - 1;
      e += d * d;
    }
    if (e < best_error * (1 - 1e-9)) {
      best_error = e;
      best = c[2];
    }
  }
  return best;
}

double expected_ns(const RowCurve& curve, const CurveRefinement& f, int64_t rows, double experts) {
  double base = ns_at(curve, rows);
  return std::max(0.1 * base, base + f.ns_per_expert * (experts - experts_at(curve, rows)));
}

}  // namespace

CurveRefinement start_refinement(const RowCurve& curve) {
  CurveRefinement f;
  f.bucket.assign(curve.points.size(), 0);
  if (curve.points.size() >= 4) f.ns_per_expert = expert_cost(curve.points);
  return f;
}

double refined_ns(const RowCurve& curve, const CurveRefinement& f, int64_t rows) {
  if (rows < 1) return 0;
  double ns = expected_ns(curve, f, rows, experts_at(curve, rows) * f.experts) * f.all;
  double b = f.bucket.empty() ? 0 : f.bucket[bucket_of(curve, rows)];
  return b == 0 ? ns : ns * std::clamp(b / f.all, kBucketLow, kBucketHigh);
}

bool refine(const RowCurve& curve, CurveRefinement* f, int64_t rows, double experts, double ns) {
  if (rows < 1 || !(ns > 0)) return false;
  double usual = experts_at(curve, rows);
  if (experts >= 0 && usual > 0) f->experts += kRate * (experts / usual - f->experts);
  double expected = expected_ns(curve, *f, rows, experts >= 0 ? experts : usual * f->experts);
  double ratio = ns / expected;
  if (ratio > kOutlier * f->all) return false;
  f->all += kRate * (ratio - f->all);
  double& b = f->bucket[bucket_of(curve, rows)];
  b = b == 0 ? ratio : b + kRate * (ratio - b);
  return true;
}

// ---- budget

double step_ns(const StepCost& cost, int64_t rows, int64_t drafting) {
  auto part = [](const RowCurve* curve, const CurveRefinement* f, int64_t n) {
    if (curve == nullptr || curve->empty()) return 0.0;
    return f == nullptr ? ns_at(*curve, n) : refined_ns(*curve, *f, n);
  };
  return (part(cost.verify, cost.verify_refinement, rows) +
          part(cost.draft, cost.draft_refinement, drafting)) *
         (1 + cost.overhead);
}

namespace {
std::vector<double> sorted(std::span<const double> s) {
  std::vector<double> v(s.begin(), s.end());
  std::sort(v.begin(), v.end(), std::greater<>());
  return v;
}
}  // namespace

BudgetChoice value_of(const BudgetInput& in, const StepCost& cost, int64_t drafts) {
  std::vector<double> s = sorted(in.survivals);
  drafts = std::min(drafts, static_cast<int64_t>(s.size()));
  BudgetChoice c{drafts, static_cast<double>(in.deciding), step_ns(cost, in.base_rows + drafts, in.drafting)};
  for (int64_t i = 0; i < drafts; ++i) c.tokens += s[static_cast<size_t>(i)];
  return c;
}

BudgetChoice best_budget(const BudgetInput& in, const StepCost& cost, bool early_stop) {
  std::vector<double> s = sorted(in.survivals);
  BudgetChoice at{0, static_cast<double>(in.deciding), step_ns(cost, in.base_rows, in.drafting)};
  BudgetChoice best = at;
  for (double a : s) {
    ++at.drafts;
    at.tokens += a;
    at.ns = step_ns(cost, in.base_rows + at.drafts, in.drafting);
    if (at.tokens * best.ns > best.tokens * at.ns) {
      best = at;
    } else if (early_stop) {
      break;
    }
  }
  // What the padded launch carries anyway.
  int64_t room = paid_rows(*cost.verify, in.base_rows + best.drafts) - in.base_rows;
  int64_t fill = std::min(room, static_cast<int64_t>(s.size()));
  for (; best.drafts < fill; ++best.drafts) best.tokens += s[static_cast<size_t>(best.drafts)];
  return best;
}

BudgetChoice lane_budget(const BudgetInput& in, const LaneRule& rule) {
  BudgetChoice c{0, static_cast<double>(in.deciding), 1};
  for (double a : sorted(in.survivals)) {
    if (a < rule.dead_below || !(a > rule.row_share * c.tokens / c.ns)) break;
    ++c.drafts;
    c.tokens += a;
    c.ns += rule.row_share;
  }
  return c;
}

std::vector<int> choose_lengths(std::span<const DraftRow> rows, int64_t total, double dead_below) {
  struct Draft {
    double survival;
    int position;
    size_t row;
  };
  std::vector<Draft> all;
  std::vector<int> lengths(rows.size(), 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    int cap = std::min(rows[r].cap, static_cast<int>(rows[r].survivals.size()));
    for (int j = 0; j < cap && rows[r].survivals[static_cast<size_t>(j)] >= dead_below; ++j)
      all.push_back({rows[r].survivals[static_cast<size_t>(j)], j, r});
  }
  auto first = [](const Draft& a, const Draft& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.position != b.position ? a.position < b.position : a.row < b.row;
  };
  if (total < static_cast<int64_t>(all.size())) {
    std::nth_element(all.begin(), all.begin() + std::max<int64_t>(total, 0), all.end(), first);
    all.resize(static_cast<size_t>(std::max<int64_t>(total, 0)));
  }
  for (const Draft& d : all) ++lengths[d.row];
  return lengths;
}

}  // namespace deepinfer::policy
