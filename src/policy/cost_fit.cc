// Normal equations on unit-norm columns, solved by elimination; the most negative coefficient is dropped and
// the rest solved again until none is negative.
#include "policy/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "base/check.h"

namespace deepinfer::policy {
namespace {

constexpr int kColumns = 7;
using Row = std::array<double, kColumns>;

Row columns(const CostSample& s) {
  return {s.rows_squared, s.rows_context,        s.rows, 1.0, s.decoder_sequences,
          s.decoder_rows, s.decoder_rows_context};
}
Row coefficients(const CostModel& m) {
  return {m.a, m.b, m.d, m.e, m.e_decoder, m.d_decoder, m.g_decoder};
}
CostModel model_of(const Row& x) {
  CostModel m;
  std::tie(m.a, m.b, m.d, m.e, m.e_decoder, m.d_decoder, m.g_decoder) =
      std::tie(x[0], x[1], x[2], x[3], x[4], x[5], x[6]);
  return m;
}

// Solves normal equations restricted to `active`; columns that depend on earlier ones get 0.
Row solve(const std::array<Row, kColumns>& ata, const Row& atb, const std::array<bool, kColumns>& active) {
  std::array<std::array<double, kColumns + 1>, kColumns> m{};
  std::vector<int> index;
  for (int i = 0; i < kColumns; ++i) {
    if (active[i]) index.push_back(i);
  }
  int n = static_cast<int>(index.size());
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) m[i][j] = ata[index[i]][index[j]];
    m[i][n] = atb[index[i]];
  }
  std::vector<bool> used(static_cast<size_t>(n), true);
  for (int i = 0; i < n; ++i) {
    // Symmetric and positive: the diagonal is the pivot. Columns have unit norm, so a tiny pivot is
    // dependence.
    if (m[i][i] < 1e-12) {
      used[static_cast<size_t>(i)] = false;
      continue;
    }
    for (int r = 0; r < n; ++r) {
      if (r == i || m[r][i] == 0) continue;
      double f = m[r][i] / m[i][i];
      for (int c = i; c <= n; ++c) m[r][c] -= f * m[i][c];
    }
  }
  Row x{};
  for (int i = 0; i < n; ++i) {
    if (used[static_cast<size_t>(i)]) x[index[i]] = m[i][n] / m[i][i];
  }
  return x;
}

Row nonnegative_fit(std::span<const CostSample> samples, std::span<const double> weights, Row x,
                    std::array<bool, kColumns> active) {
  Row scale{};
  for (const CostSample& s : samples) {
    Row r = columns(s);
    for (int c = 0; c < kColumns; ++c) scale[c] += r[c] * r[c] / (s.measured_ns * s.measured_ns);
  }
  std::array<Row, kColumns> ata{};
  Row atb{};
  for (size_t k = 0; k < samples.size(); ++k) {
    Row r = columns(samples[k]);
    double w = weights.empty() ? 1.0 : weights[k];
    double target = 1.0;  // relative error: both sides divided by the measured time
    for (int c = 0; c < kColumns; ++c) {
      r[c] = scale[c] > 0 ? r[c] / samples[k].measured_ns / std::sqrt(scale[c]) : 0;
      // Columns nobody varied keep their old coefficient, whose share is not explained again.
      if (!active[c]) target -= x[c] * columns(samples[k])[c] / samples[k].measured_ns;
    }
    for (int i = 0; i < kColumns; ++i) {
      atb[i] += w * r[i] * target;
      for (int j = 0; j < kColumns; ++j) ata[i][j] += w * r[i] * r[j];
    }
  }
  for (;;) {
    Row y = solve(ata, atb, active);
    int worst = -1;
    for (int c = 0; c < kColumns; ++c) {
      if (active[c] && y[c] < 0 && (worst < 0 || y[c] < y[worst])) worst = c;
    }
    if (worst < 0) {
      for (int c = 0; c < kColumns; ++c) {
        if (active[c]) x[c] = y[c] / std::sqrt(scale[c]);
      }
      return x;
    }
    active[worst] = false;
    x[worst] = 0;
  }
}

double median(std::vector<double> values) {
  size_t mid = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(mid), values.end());
  return values[mid];
}

}  // namespace

const char* name(FitReason reason) {
  switch (reason) {
    case FitReason::kFitted:
      return "fitted";
    case FitReason::kTooFewPoints:
      return "too few distinct points";
    case FitReason::kErrorTooLarge:
      return "error too large";
    case FitReason::kNotDue:
      return "not due";
    case FitReason::kScaledAfterSlowSteps:
      return "scaled after slow steps";
    case FitReason::kScaledBack:
      return "scaled back after fast steps";
  }
  return "?";
}

void add_rows(CostSample* sample, int64_t rows, int64_t context, int64_t decoder_rows) {
  double q = static_cast<double>(rows), n = static_cast<double>(decoder_rows);
  sample->rows_squared += q * q;
  sample->rows_context += q * static_cast<double>(context);
  sample->rows += q;
  if (decoder_rows > 0) {
    sample->decoder_sequences += 1;
    sample->decoder_rows += n;
    sample->decoder_rows_context += n * static_cast<double>(context + rows);
  }
}

double predict_ns(const CostModel& m, const CostSample& sample) {
  Row r = columns(sample), x = coefficients(m);
  double t = 0;
  for (int c = 0; c < kColumns; ++c) t += r[c] * x[c];
  return t;
}

FitDecision fit_cost(std::span<const CostSample> samples, std::span<const double> weights,
                     const CostModel& previous, double max_error) {
  DI_CHECK(weights.empty() || weights.size() == samples.size(), "one weight per sample");
  FitDecision out;
  out.model = previous;
  std::set<Row> distinct;
  std::vector<CostSample> usable;
  std::vector<double> usable_weights;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!(samples[i].measured_ns > 0)) continue;
    distinct.insert(columns(samples[i]));
    usable.push_back(samples[i]);
    if (!weights.empty()) usable_weights.push_back(weights[i]);
  }
  if (static_cast<int>(distinct.size()) < kFitMinPoints) {
    out.reason = FitReason::kTooFewPoints;
    return out;
  }
  std::array<bool, kColumns> active{};
  for (const CostSample& s : usable) {
    Row r = columns(s);
    for (int c = 0; c < kColumns; ++c) active[c] = active[c] || r[c] != 0;
  }
  CostModel fitted = model_of(nonnegative_fit(usable, usable_weights, coefficients(previous), active));
  std::vector<double> errors;
  for (const CostSample& s : usable) {
    errors.push_back(std::abs(predict_ns(fitted, s) - s.measured_ns) / s.measured_ns);
  }
  out.median_relative_error = median(std::move(errors));
  out.partition_ratio = fitted.a > 0 ? fitted.b / (2 * fitted.a) : 0;
  if (out.median_relative_error > max_error) {
    out.reason = FitReason::kErrorTooLarge;
    return out;
  }
  out.reason = FitReason::kFitted;
  out.adopt = true;
  out.model = fitted;
  return out;
}

void apply(FitState* state, const StepMeasured& event) {
  if (event.excluded || !(event.sample.measured_ns > 0)) return;
  if (static_cast<int>(state->ring.size()) < state->config.ring) {
    state->ring.push_back(event.sample);
  } else {
    state->ring[static_cast<size_t>(state->next)] = event.sample;
    state->next = (state->next + 1) % state->config.ring;
  }
  state->since_fit = state->since_fit % state->config.refit_every + 1;
  double predicted = predict_ns(state->model, event.sample);
  double ratio = predicted > 0 ? event.sample.measured_ns / predicted : 0;
  if (ratio > state->config.slow_factor) {
    state->slow_least = state->slow_run == 0 ? ratio : std::min(state->slow_least, ratio);
    state->slow_took_ns += event.sample.measured_ns;
    ++state->slow_run;
  } else {
    state->slow_run = 0;
    state->slow_took_ns = 0;
  }
  if (state->scale > 1 && ratio > 0 && ratio * state->config.slow_factor < 1) {
    state->fast_most = std::max(state->fast_run == 0 ? 0 : state->fast_most, ratio);
    ++state->fast_run;
  } else {
    state->fast_run = 0;
  }
}

void apply(FitState* state, const CostAdopted& event) {
  state->model = event.model;
  state->scale = event.scale;
  // Scaling puts no fit off: however often it happens, one is due every so many steps.
  if (state->since_fit == state->config.refit_every) state->since_fit = 0;
  state->slow_run = state->fast_run = 0;
  state->slow_took_ns = 0;
}

namespace {

// All of it: what slows a machine slows every part of a step, and a model whose decoder half stayed as it was
// would find the next decode steps slow again, and scale the rest once more for them.
FitDecision scaled(const FitState& state, double times, FitReason reason) {
  FitDecision out;
  CostModel& m = out.model = state.model;
  for (double* c : {&m.a, &m.b, &m.d, &m.e, &m.e_decoder, &m.d_decoder, &m.g_decoder}) *c *= times;
  out.scale = state.scale * times;
  out.adopt = true;
  out.reason = reason;
  out.partition_ratio = m.a > 0 ? m.b / (2 * m.a) : 0;
  return out;
}

}  // namespace

FitDecision decide_fit(const FitState& state) {
  const FitConfig& c = state.config;
  // The machine changed: old samples would average the change away, so the model follows the last steps, as
  // far as all of them say: of the steps of a hitch some are slower than others, of a slower machine all are.
  if (state.slow_run >= c.slow_steps && state.slow_took_ns >= c.slow_ns)
    return scaled(state, state.slow_least, FitReason::kScaledAfterSlowSteps);
  if (state.fast_run >= c.slow_steps)
    return scaled(state, std::max(state.fast_most, 1 / state.scale), FitReason::kScaledBack);
  // A fit that is refused is tried again when as many steps have been run: it costs as much as a step.
  if (state.since_fit < c.refit_every) {
    FitDecision out;
    out.model = state.model;
    out.scale = state.scale;
    return out;
  }
  std::vector<CostSample> ordered;
  std::vector<double> weights;
  int n = static_cast<int>(state.ring.size());
  double w = std::pow(state.config.decay, n - 1);
  for (int i = 0; i < n; ++i) {
    ordered.push_back(state.ring[static_cast<size_t>((state.next + i) % n)]);
    weights.push_back(w);
    w /= state.config.decay;
  }
  return fit_cost(ordered, weights, state.model);
}

}  // namespace deepinfer::policy
