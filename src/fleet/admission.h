// Admission at work: keeps the state of policy/admission from live events (requests that come, start, give
// their first token and end), asks it, and carries out what it decides. Learns what a prompt token costs from
// the fastest recent prefills, so that a predicted wait is never too pessimistic. Knows no HTTP and no
// engine; decides nothing itself; time is an argument. Source: serving specification 10.2, 10.4. Threads:
// any.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "policy/admission.h"

namespace deepinfer {

struct TenantQuota {  // 0: no limit
  int64_t requests_per_minute = 0, tokens_per_minute = 0, output_tokens_per_minute = 0;
  int64_t concurrent = 0, kv_tokens = 0;
  bool operator==(const TenantQuota&) const = default;
};

struct AdmissionRequest {
  std::string tenant;
  TenantQuota quota;
  double weight = 1;
  int priority = 0;
  // What the answer may need is charged now; what it did not use is given back at finished().
  int64_t prompt_tokens = 0, most_tokens = 0;
  int64_t now_ns = 0, deadline_ns = 0;  // 0: none
  // Called once, from inside another request's admit(), if this one has to give up its place in line: it is
  // over for admission, and its owner ends it. Never after started().
  std::function<void()> displaced;
};

struct AdmissionAnswer {
  policy::AdmitDecision decision;
  bool draining = false;  // why there is no engine
  uint64_t ticket = 0;    // 0: refused
};

class AdmissionControl {
 public:
  // `limits.default_limits` are not used: each request brings its tenant's.
  explicit AdmissionControl(policy::AdmissionConfig limits);

  AdmissionAnswer admit(AdmissionRequest request);
  // The request left the line.
  void started(uint64_t ticket);
  // Its prompt is computed: `uncached_tokens` took `prefill_ns`.
  void learn(int64_t uncached_tokens, int64_t prefill_ns);
  // Once per ticket, whatever happened; later calls change nothing.
  void finished(uint64_t ticket, int64_t output_tokens, int64_t now_ns);

  // Of the lines; from the next request on.
  void set_queue_limits(int64_t requests, int64_t tokens, double work_ns);
  void drain();
  bool draining() const;
  int64_t active() const;  // admitted and not finished
  int64_t queued() const;
  int64_t displaced() const;  // so far
  double queued_ns() const;   // predicted work in all lines
  double ns_per_token() const;

 private:
  struct Ticket {
    policy::TenantId tenant{};
    double weight = 1;
    int priority = 0, tier = 0;
    int64_t prompt_tokens = 0, most_tokens = 0;
    double work_ns = 0;
    bool started = false;
    std::function<void()> displaced;
  };
  struct Tenant {
    policy::TenantId id{};
    TenantQuota quota;
  };
  policy::TenantId tenant_of(const AdmissionRequest& request);
  policy::AdmissionQuery query_of(const AdmissionRequest& request, policy::TenantId tenant) const;
  bool make_room(const policy::AdmissionQuery& query, const AdmissionRequest& request,
                 const policy::AdmitDecision& decision, std::vector<std::function<void()>>* displaced);
  void leave_line(const Ticket& ticket);
  void release(std::map<uint64_t, Ticket>::iterator ticket, int64_t output_tokens, int64_t now_ns);

  mutable std::mutex mutex_;
  policy::AdmissionState state_;
  policy::TierConfig tiers_;
  std::map<std::string, Tenant> tenants_;
  std::map<uint64_t, Ticket> tickets_;
  std::array<double, policy::kTiers> line_ns_{};
  uint64_t last_ = 0;
  int64_t queued_ = 0, queued_tokens_ = 0, displaced_ = 0;
  double ns_per_token_ = 0;  // 0: nothing learned yet
  bool draining_ = false;
};

}  // namespace deepinfer
