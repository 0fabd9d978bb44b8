// The fleet's admission as the edge sees it: refusals as HTTP statuses, words for counters and sentences for
// people (apps/serve_run.h).
#include <fmt/format.h>

#include "apps/serve_run.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

using policy::AdmitReason;
using policy::Quota;

const char* quota_word(Quota q) {
  switch (q) {
    case Quota::kRequests:
      return "tenant_requests_per_minute";
    case Quota::kTokens:
      return "tenant_tokens_per_minute";
    case Quota::kOutputTokens:
      return "tenant_output_tokens_per_minute";
    case Quota::kConcurrent:
      return "tenant_concurrency";
    case Quota::kKvTokens:
      return "tenant_kv_tokens";
    case Quota::kUncachedNs:
      return "tenant_compute_time";
    case Quota::kGrammarMs:
      return "tenant_grammar_time";
  }
  return "tenant_quota";
}

const char* reason_word(const AdmissionAnswer& a) {
  switch (a.decision.reason) {
    case AdmitReason::kAdmitted:
      return "admitted";
    case AdmitReason::kTooLong:
      return "too_long";
    case AdmitReason::kQuota:
      return quota_word(a.decision.quota);
    case AdmitReason::kQueueFull:
      return "queue_work";
    case AdmitReason::kQueueRequests:
      return "queue_requests";
    case AdmitReason::kQueueTokens:
      return "queue_tokens";
    case AdmitReason::kDeadline:
      return "deadline_unreachable";
    case AdmitReason::kNoDecodeRoom:
      return "no_decode_room";
    case AdmitReason::kNoEngines:
      return "draining";
  }
  return "refused";
}

std::string sentence(const policy::AdmitDecision& d, const std::string& word) {
  switch (d.reason) {
    case AdmitReason::kTooLong:
      return fmt::format("This request needs {} tokens; the maximum context length is {}.", d.need, d.limit);
    case AdmitReason::kQuota:
      return fmt::format("Rate limit of this key reached ({}). Try again later.", word);
    case AdmitReason::kQueueRequests:
    case AdmitReason::kQueueTokens:
      return fmt::format("The server takes no more work now ({}: {} of {}). Try again later.", word, d.need,
                         d.limit);
    case AdmitReason::kDeadline:
      return fmt::format(
          "The first token is expected in {} ms, after the deadline of this request; nothing was computed.",
          static_cast<int64_t>(d.predicted_ttft_ns / 1e6));
    default:
      return fmt::format("The server takes no more work now ({}). Try again later.", word);
  }
}

}  // namespace

AdmissionGate::Answer FleetGate::admit(const Caller& c, Work work) {
  AdmissionRequest r;
  r.tenant = c.tenant;
  r.quota = {c.requests_per_minute, c.tokens_per_minute, c.output_tokens_per_minute, c.concurrent,
             c.kv_tokens};
  r.weight = c.weight;
  r.priority = work.priority;
  r.prompt_tokens = work.prompt_tokens;
  r.most_tokens = work.most_tokens;
  r.now_ns = now_ns();
  r.deadline_ns = work.timeout_ns > 0 ? r.now_ns + work.timeout_ns : 0;
  r.displaced = std::move(work.displaced);
  const AdmissionAnswer d = control.admit(std::move(r));
  Answer a;
  a.ticket = d.ticket;
  a.admitted = d.ticket != 0;
  if (a.admitted) return a;
  a.status = d.decision.reason == AdmitReason::kTooLong ? 400
             : d.decision.reason == AdmitReason::kQuota ? 429
                                                        : 503;
  a.reason = reason_word(d);
  a.message = sentence(d.decision, a.reason);
  a.retry_after_ns = d.decision.retry_after_ns;
  return a;
}

void FleetGate::finished(uint64_t ticket, int64_t output_tokens) {
  control.finished(ticket, output_tokens, now_ns());
}

}  // namespace deepinfer
