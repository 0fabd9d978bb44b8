// Two smoothed numbers and a threshold with two sides.
#include "policy/store_restore.h"

#include <algorithm>

namespace deepinfer::policy {

void apply(RestoreState* s, const RestoreRules& rules, const FetchMeasured& f) {
  if (f.bytes <= 0 || f.ns <= 0) return;
  double ns = static_cast<double>(f.ns), bytes = static_cast<double>(f.bytes);
  // A fetch of little says what a fetch costs at all, one of much what a byte costs.
  constexpr double kSmallBytes = 1 << 20;
  double w = s->measured ? rules.smoothing : 1.0;
  if (bytes < kSmallBytes) {
    double rest = std::max(0.0, ns - bytes * std::min(s->ns_per_byte, 1.0));
    s->latency_ns += w * (rest - s->latency_ns);
  } else {
    double per_byte = std::max(0.0, ns - std::min(s->latency_ns, ns / 2)) / bytes;
    s->ns_per_byte += w * (per_byte - s->ns_per_byte);
  }
  s->measured = true;
  s->late = false;
  s->last_measure_ns = f.now_ns;
}

void apply(RestoreState* s, const FetchLate& late) {
  s->late = true;
  s->last_measure_ns = late.now_ns;
}

double predicted_ns(const RestoreState& s, int64_t bytes) {
  return bytes <= 0 ? 0 : s.latency_ns + s.ns_per_byte * static_cast<double>(bytes);
}

RestoreQuote quote(const RestoreState& s, const RestoreRules& rules, int64_t blocks, int64_t bytes) {
  double ns = predicted_ns(s, bytes);
  // No request is worth a quarter of an hour.
  constexpr double kNever = 1e12;
  RestoreQuote q;
  q.ns_per_block =
      s.late ? kNever : ns * (s.pays ? 1 : rules.enter) / static_cast<double>(std::max<int64_t>(1, blocks));
  q.deadline_ns = std::max(rules.deadline_floor_ns, static_cast<int64_t>(rules.deadline_factor * ns));
  return q;
}

void apply(RestoreState* s, const RestoreAdopted& adopted) {
  s->switches += s->pays != adopted.fetch ? 1 : 0;
  s->pays = adopted.fetch;
}

bool decide_split(const SplitQuery& q) {
  return q.alone && q.rest_part > 0 && kSplitCost * q.fetch_ns * q.rest_part <= q.needed_share * q.step_ns;
}

bool should_probe(const RestoreState& s, const RestoreRules& rules, int64_t now_ns) {
  return (!s.pays || s.late) && now_ns - s.last_measure_ns >= rules.probe_every_ns;
}

}  // namespace deepinfer::policy
