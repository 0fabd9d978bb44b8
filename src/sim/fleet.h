// The fleet under a virtual clock: requests arrive, are admitted, wait in lines by length, are pulled by
// prefill engines, read their prefix from the store, run in chunks, are handed to a decode rank that was
// chosen early, and decode until they are done. Instances fail, drain, start and follow the autoscaler. Every
// decision is taken by policy/, the objects the live fleet links: admission, hits, lines and quotas, chunk
// solver, prefill and decode balancers, transfer machines, expert placement, drain, re-sizing, autoscaler.
// Times come from cost models. Knows no clock: the same seed gives the same result, byte for byte. Source:
// serving specification 14. Threads: one run, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "policy/admission.h"
#include "policy/autoscaler.h"
#include "policy/cost_model.h"
#include "policy/decode_balancer.h"
#include "policy/drain.h"
#include "policy/prefill_balancer.h"
#include "sim/histogram.h"
#include "sim/store_model.h"
#include "sim/verify_model.h"
#include "sim/workload.h"

namespace deepinfer::sim {

struct FailureEvent {
  enum class What : uint8_t {
    kStoreNode,
    kPrefillEngine,
    kDecodeGroup,
    kDecodeGpu,  // of a group: all of it stops, and starts again with the GPUs that are left
    kLink,       // a prefill engine's: nothing is sent meanwhile
    kVisionMachine,
  };
  What what{};
  int which = 0;
  double at_s = 0, for_s = 0;  // for_s <= 0: until the end
};

// An instance is asked to leave, with grace (policy/drain.h). back_s after it has gone it serves again; < 0:
// it does not come back.
struct DrainOrder {
  policy::EngineRole role = policy::EngineRole::kDecode;
  int which = 0;
  double at_s = 0, back_s = -1;
};

// The pools follow the autoscalers between their floors and the fleet's counts. Without it their advice is
// only reported.
struct AutoscaleConfig {
  bool on = false;
  int prefill_engines = 0, decode_groups = 0;  // that serve at the start; 0: all
  double up_after_s = 30, down_after_s = 600;
};

// Machines that turn images into embeddings before a prompt is computed. An image has 1,521 to 9,216 patches
// (model specification 1.4); 0.82 GFLOP each without attention make 200,000 a second an assumption of about a
// third of a GPU's rate.
struct VisionConfig {
  int machines = 0, gpus = 8;
  double patches_per_s = 200'000;  // of a GPU
  double fixed_ns = 2e6;           // of an image
};

struct FleetConfig {
  uint64_t seed = 1;
  double warmup_s = 5, measure_s = 20;
  int prefill_engines = 16, prefill_ranks = 4;
  int decode_groups = 1, decode_ranks = 64;
  int spare_decode_groups = 0;  // of them in reserve, draining or loading: take nothing
  VisionConfig vision;
  policy::CostModel prefill{2.0e-4, 4.0e-4, 12'000, 2.0e6, 0, 0, 0};  // per rank
  double prefill_noise = 0.03;                                        // relative, of a step
  int64_t batch_budget_ns = 200'000'000;
  int64_t chunk_max_tokens = 32768;
  double short_fraction = 0.25, long_fraction = 0.5;
  policy::PrefillConfig prefill_balancer;
  policy::DecodeConfig decode_balancer;
  DecodeCost decode;
  VerifyConfig verify;
  int verify_every = 64;  // steps until a budget is decided again
  int64_t decode_tokens_per_rank = 40'000'000;
  double moe_lb = 0;  // slowest over mean rank; 0: measured from expert placement on synthetic loads
  StoreConfig store;
  bool shared_store = true;        // false: every engine has only its own cache
  double local_cache_s = 600;      // how long an engine's own cache keeps a prefix
  double link_bytes_per_s = 25e9;  // of a prefill engine: 50 GB/s per eight GPUs
  int64_t kv_bytes_per_token = 890;
  int64_t state_bytes = 3'042'336;  // window and draft rings
  policy::AdmissionConfig admission;
  double ttft_slo_s = 3, tpot_slo_ms = 20;
  double deadline_s = 0;  // of the first token; 0: none
  double usd_per_gpu_hour = 4, other_usd_per_hour = 0;
  std::vector<FailureEvent> failures;
  std::vector<DrainOrder> drains;
  double drain_grace_s = 60;
  double start_s = 120;  // an instance loads its weights and warms up
  AutoscaleConfig autoscale;
  double cancel_share = 0;          // of the requests whose client leaves,
  double cancel_after_s = 5;        // after so long in the mean
  double scaler_interval_s = 1;     // autoscalers look this often (advisory)
  double sample_interval_s = 0.25;  // of the time series
  CacheRules cache;
};
// Refuses what cannot run, naming the field.
Status validate(const FleetConfig& config);

struct FleetSample {
  double at_s = 0;
  double waiting = 0, prefilling = 0, decoding = 0;
  double queued_s = 0;                            // predicted work waiting, per engine
  double requests_spread = 0, tokens_spread = 0;  // of the decode ranks: largest over mean
  // Instances the autoscalers would have.
  int64_t prefill_advice = 0, decode_advice = 0, vision_advice = 0, store_advice = 0;
};

struct FleetResult {
  // Counts of the measured part.
  int64_t arrived = 0, completed = 0, refused = 0, within_slo = 0, failed_over = 0;
  int64_t input_tokens = 0, output_tokens = 0, perfect_tokens = 0, hit_tokens = 0, computed_tokens = 0;
  int64_t good_output_tokens = 0;
  int64_t cancelled = 0;
  int64_t evicted_blocks = 0;          // of a trace, by the store for want of room
  int64_t drained = 0, forwarded = 0;  // instances that left; requests they handed on while decoding
  int64_t scaled_up = 0, scaled_down = 0, started = 0;
  double longest_gap_s = 0;     // in the tokens of a request that moved while it decoded
  int64_t most_moved_rows = 0;  // of a prompt that such a request had to run again
  int64_t unreadable_hits = 0, replayed_hits = 0;
  // By policy::AdmitReason.
  int64_t refusals[static_cast<size_t>(policy::AdmitReason::kNoEngines) + 1] = {};
  int64_t images = 0, patches = 0;
  Histogram ttft_ns, tpot_ns, e2e_ns, queue_ns, fetch_ns, vision_ns;
  double measured_s = 0;
  double prefill_busy = 0, decode_busy = 0;  // share of the time in a step
  double prefill_load = 0;                   // predicted work done per rank and second
  double output_per_s = 0;                   // tokens generated in the measured time
  double step_balance = 0;  // mean over decode steps of mean over slowest rank, without the experts
  double moe_lb = 1;
  double tokens_per_step = 0, drafts_per_step = 0;  // of a request: generated; drafts verified
  double vision_busy = 0;                           // of the GPUs that encode images
  double mean_requests = 0, mean_tokens = 0;        // per decode rank, over time
  double requests_spread = 0, tokens_spread = 0;
  // Live throughput per decode GPU over the balanced benchmark at the same mean load, and its three parts.
  double eta = 0, eta_time = 0, eta_step = 0, eta_mix = 0;
  double store_busy = 0;
  double gpus = 0;  // in the mean, those that start or drain among them
  double usd_per_million_output = 0, usd_per_request = 0;
  // Work done by the simulator itself, the warm-up included.
  int64_t events = 0, request_steps = 0, decode_steps = 0, prefill_steps = 0, budgets = 0;
  uint64_t log_hash = 0;  // of every event in order
  std::string broken;     // the first invariant that did not hold; empty: all held
  std::vector<FleetSample> series;
};
// REQUIRES validate(config).ok().
FleetResult run_fleet(const FleetConfig& config, Workload* workload);

// A day in windows: each with its own seed and time of day, merged, with the spread between them.
struct DayConfig {
  FleetConfig fleet;
  WorkloadConfig workload;
  int windows = 24;
};
struct WindowFigure {
  double mean = 0, error = 0;  // 95 % of the mean over windows
};
struct DayResult {
  FleetResult total;                 // sums and merged histograms
  std::vector<FleetResult> windows;  // without their histograms
  WindowFigure ttft_p50_s, ttft_p99_s, tpot_p50_ms, output_per_s, hit_rate, eta, prefill_busy;
};
// `done`: windows that an earlier run has finished, from a checkpoint; they are not run again, and the result
// is the same. `finished` is called after every window with all windows so far; it may be empty.
using WindowsDone = std::function<void(const std::vector<FleetResult>&)>;
DayResult run_day(const DayConfig& config, std::vector<FleetResult> done = {},
                  const WindowsDone& finished = {});

// The cluster of reading A: 155e12 tokens a day on all its 1,721 GPUs.
DayConfig cluster_day(uint64_t seed, int windows, double window_s);

}  // namespace deepinfer::sim
