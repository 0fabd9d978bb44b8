// The quadratic solved in its stable form, then corrected to the exact integer.
#include "policy/cost_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer::policy {

int64_t rows_within(const CostModel& m, double time_ns, int64_t context) {
  if (time_ns <= 0) return 0;
  double linear = m.b * static_cast<double>(context) + m.d;
  double denominator = linear + std::sqrt(linear * linear + 4 * m.a * time_ns);
  // A model without any cost per row would let everything in; callers cap anyway.
  constexpr double kMost = 1e12;
  double root = denominator > 0 ? std::min(kMost, 2 * time_ns / denominator) : kMost;
  int64_t q = static_cast<int64_t>(root);
  // The root is rounded; one step to either side makes cost(q) <= time < cost(q + 1) hold in the arithmetic
  // that the caller will check with.
  while (q > 0 && rows_cost_ns(m, q, context) > time_ns) --q;
  while (root < kMost && rows_cost_ns(m, q + 1, context) <= time_ns) ++q;
  return q;
}

int64_t solve_chunk(const CostModel& m, const ChunkQuery& query) {
  DI_CHECK(query.block_tokens >= 1 && query.chunk_max >= 1, "block and chunk have at least one token");
  int64_t q = rows_within(m, query.time_ns, query.context);
  q = std::min({q, query.chunk_max, query.remaining});
  if (q < query.remaining) {
    int64_t end = (query.context + q) / query.block_tokens * query.block_tokens;
    q = std::max<int64_t>(0, end - query.context);
  }
  if (q == 0 && query.must_progress) {
    int64_t to_boundary = query.block_tokens - query.context % query.block_tokens;
    q = std::min({to_boundary, query.remaining, query.chunk_max});
  }
  return q;
}

int64_t propose_budget(const BudgetQuery& query) {
  if (!query.has_work) return kNoWork;
  return std::clamp(query.target_ns, std::min(query.min_ns, query.need_ns),
                    std::max(query.min_ns, query.need_ns));
}

int64_t agree_budget(const int64_t* proposals, int count) {
  int64_t least = kNoWork;
  for (int i = 0; i < count; ++i) least = std::min(least, proposals[i]);
  return least;
}

}  // namespace deepinfer::policy
