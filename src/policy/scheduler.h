// The step scheduler: which sequences run how many rows in the next step, who is let in with which hit, who
// has to yield its blocks, what is evicted, where window snapshots are taken. Pure: a State is changed only
// by events, a plan is made from a State and a time, and adopting a plan is an event. The live engine and a
// simulator drive these very functions. Knows no tokens, no bytes and no threads.
// Source: serving specification 1 to 3 and 5; docs/policies.md. Threads: plain data, one owner.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "policy/scheduler_types.h"

namespace deepinfer::policy {

// Window, drafts and context from the model; keep = window + drafts + 1. The rest are the defaults.
SchedulerConfig scheduler_config(const ModelConfig& model, int64_t pool_blocks, int64_t snapshot_slots);

// kInvalidConfig names the field and the rule.
Result<SchedulerState> make_scheduler(const SchedulerConfig& config);

// Whether a request could ever run here: kAccepted, or why not, with what it needs and what there is. A
// server asks before it queues; a request that arrives in spite of a refusal ends in the next plan with this
// reason.
struct AdmissionVerdict {
  EndReason reason = EndReason::kAccepted;
  int64_t need = 0, limit = 0;  // tokens for the context, blocks for the pool
  int64_t most_new_tokens = 0;  // what max_new could be for this prompt; 0 if the prompt itself is too long
  std::string message() const;  // for a person
};
AdmissionVerdict decide_admission(const SchedulerConfig& config, int64_t prompt_tokens,
                                  int64_t max_new_tokens);

// Whether an outside reader may pin these blocks now: only while the promises made to running requests hold.
bool lease_allowed(const SchedulerState& state, const std::vector<BlockId>& blocks);

// The next step. Never changes the state; the caller carries the plan out and applies PlanAdopted. A plan
// without runs and loads launches nothing (StepPlan::launches), but may still end or evict.
// Cost: linear in the running requests, plus the requests looked at for admission.
StepPlan decide(const SchedulerState& state, const PlanQuery& query);

// What this rank would propose as the group's budget (serving specification 1.5); kNoWork without work.
int64_t decide_budget(const SchedulerState& state, int64_t now_ns);

// Events about requests that are gone are counted and ignored. A plan must have been decided on this very
// state; steps finish in the order they were adopted. Breaking that is a fault of the caller and aborts.
void apply(SchedulerState* state, const Event& event);

// Empty if every invariant holds, else the first one that does not. Linear in blocks and requests: for tests
// and debug builds.
std::string broken_invariant(const SchedulerState& state);

// One line per decision of the plan, for logs, scenario files and comparison of replays.
// `names` gives requests their names; without it they are numbers.
using SeqNames = std::function<std::string(SeqId)>;
std::string to_text(const StepPlan& plan, const SeqNames& names = nullptr);

}  // namespace deepinfer::policy
