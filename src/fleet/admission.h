// Who may start work now: quotas of a tenant (requests and tokens per minute, requests at a time), limits of
// the line as a whole (requests and tokens), and draining. Refusal costs no work and says when to try again.
// Knows no HTTP and no engine; time is an argument. Source: serving specification 10.2, 10.4. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace deepinfer {

struct TenantQuota {  // 0: no limit
  int64_t requests_per_minute = 0, tokens_per_minute = 0, concurrent = 0;
};
struct QueueLimits {  // over all tenants; 0: no limit
  int64_t requests = 0, tokens = 0;
};

enum class AdmissionReason {
  kAdmitted,
  kTenantRequests,
  kTenantTokens,
  kTenantConcurrency,
  kTooLargeForQuota,  // more tokens than the tenant's bucket can ever hold: never admitted
  kQueueRequests,
  kQueueTokens,
  kDraining,
};
const char* name(AdmissionReason reason);

class AdmissionControl {
 public:
  struct Decision {
    AdmissionReason reason = AdmissionReason::kAdmitted;
    int64_t retry_after_ns = 0;
    uint64_t ticket = 0;
  };
  explicit AdmissionControl(QueueLimits limits) : limits_(limits) {}

  // `prompt_tokens` and `most_tokens` (what the answer may need) are charged now; what the answer did not use
  // is given back at finished().
  Decision admit(const std::string& tenant, const TenantQuota& quota, int64_t prompt_tokens,
                 int64_t most_tokens, int64_t now_ns);
  // The request left the line.
  void started(uint64_t ticket);
  // Exactly once per ticket, whatever happened.
  void finished(uint64_t ticket, int64_t output_tokens);

  void drain();
  bool draining() const;
  int64_t active() const;  // admitted and not finished
  int64_t queued() const;

 private:
  struct Bucket {
    double level = 0;
    int64_t filled_ns = 0;
  };
  struct Tenant {
    Bucket requests, tokens;
    int64_t concurrent = 0;
    int64_t token_capacity = 0;
  };
  struct Ticket {
    std::string tenant;
    int64_t prompt_tokens = 0, most_tokens = 0;
    bool started = false;
  };
  static void refill(Bucket* bucket, int64_t per_minute, int64_t now_ns);

  const QueueLimits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, Tenant> tenants_;
  std::map<uint64_t, Ticket> tickets_;
  uint64_t last_ = 0;
  int64_t queued_ = 0, queued_tokens_ = 0;
  bool draining_ = false;
};

}  // namespace deepinfer
