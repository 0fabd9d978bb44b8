// Cost of the step scheduler's own work: policy_bench [RUNNING] prints the time of decide() and of apply()
// per step with so many requests decoding (256 if not given), alone and with a long prompt and a queue behind
// them. Numbers are for this machine at this moment; nothing is asserted.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "policy/scheduler.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::policy;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Arrived request(uint64_t id, int64_t prompt) {
  Arrived a;
  a.seq = SeqId(id);
  a.prompt_tokens = prompt;
  a.max_new_tokens = 100000;
  for (int64_t i = 0; i < prompt / 128; ++i) a.keys.push_back(BlockKey{{id, static_cast<uint64_t>(i), 0, 0}});
  return a;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

void measure(int64_t running, int64_t waiting, bool long_prompt, int64_t drafts) {
  ModelConfig model = builtin_config("v41-flash").value();
  SchedulerConfig config = scheduler_config(model, 400000, 512);
  config.max_running = running + (long_prompt ? 1 : 0);
  config.drafts = drafts;
  config.max_bypass = 1 << 30;
  SchedulerState s = make_scheduler(config).value();
  uint64_t id = 0;
  for (int64_t i = 0; i < running; ++i) apply(&s, request(++id, 500));
  std::vector<double> decide_us, adopt_us, finish_us;
  int64_t warm = 200 + running, steps = 2000;
  for (int64_t n = 0; n < warm + steps; ++n) {
    if (n == warm) {
      if (long_prompt) apply(&s, request(++id, 900000));
      for (int64_t i = 0; i < waiting; ++i) apply(&s, request(++id, 700));
    }
    double t0 = now_us();
    StepPlan plan = decide(s, {n * 1'000'000, 0});
    double t1 = now_us();
    StepFinished f;
    f.step = plan.step;
    f.measured_ns = plan.predicted_ns;
    for (const RowRun& r : plan.runs) {
      RowResult x;
      x.seq = r.seq;
      x.new_tokens = r.yields ? 1 : 0;
      x.snapshot_taken = true;
      f.results.push_back(x);
    }
    double t2 = now_us();
    apply(&s, PlanAdopted{plan, n});
    double t3 = now_us();
    if (plan.launches()) apply(&s, f);
    double t4 = now_us();
    if (n < warm) continue;
    decide_us.push_back(t1 - t0);
    adopt_us.push_back(t3 - t2);
    finish_us.push_back(t4 - t3);
  }
  std::printf(
      "%4lld decoding, %lld drafts, long prompt %s, %5lld waiting: decide %6.1f us, adopt %6.1f us, finish "
      "%6.1f us (medians)\n",
      static_cast<long long>(running), static_cast<long long>(drafts), long_prompt ? "yes" : "no ",
      static_cast<long long>(waiting), median(decide_us), median(adopt_us), median(finish_us));
}

}  // namespace

int main(int argc, char** argv) {
  int64_t running = argc > 1 ? std::atoll(argv[1]) : 256;
  if (running < 1) {
    std::fprintf(stderr, "usage: policy_bench [RUNNING]\n");
    return 2;
  }
  measure(running, 0, false, 0);
  measure(running, 0, false, 5);
  measure(running, 0, true, 0);
  measure(running, 2000, true, 0);
  return 0;
}
