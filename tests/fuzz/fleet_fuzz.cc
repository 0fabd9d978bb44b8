// Fuzzes the fleet simulator: a small fleet, requests and changes made from the bytes. Whatever fails,
// drains, starts and leaves at whatever time, the invariants of a run hold. The first byte 'c' reads the rest
// as a checkpoint of a run instead: it is refused or holds no more windows than the run has.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sim/fleet.h"
#include "sim/fleet_checkpoint.h"

namespace {

using namespace deepinfer;

struct Bytes {
  const uint8_t* at;
  size_t left;
  int64_t in(int64_t low, int64_t high) {
    if (left == 0) return low;
    --left;
    return low + *at++ % (high - low + 1);
  }
};

void read_checkpoint(std::string_view text) {
  sim::DayConfig day;
  day.windows = 3;
  day.workload.mix = {sim::chat_mix()};
  auto windows = sim::read_checkpoint(text, "fuzz", day);
  if (windows.ok()) {
    DI_CHECK(windows->size() <= 3, "no more windows than the run has");
  } else {
    DI_CHECK(windows.status().message().starts_with("fuzz:"), "an error names its file");
  }
}

void add_change(Bytes* b, sim::FleetConfig* c) {
  using What = sim::FailureEvent::What;
  const double at = 0.125 * static_cast<double>(b->in(0, 40)),
               back = 0.125 * static_cast<double>(b->in(1, 20));
  const int engine = static_cast<int>(b->in(0, c->prefill_engines - 1)),
            group = static_cast<int>(b->in(0, c->decode_groups - 1));
  switch (b->in(0, 7)) {
    case 0:
      c->drains.push_back({policy::EngineRole::kDecode, group, at, back});
      break;
    case 1:
      c->drains.push_back({policy::EngineRole::kPrefill, engine, at, back});
      break;
    case 2:
      c->failures.push_back({What::kDecodeGpu, group, at, back});
      break;
    case 3:
      c->failures.push_back({What::kLink, engine, at, back});
      break;
    case 4:
      c->failures.push_back({What::kPrefillEngine, engine, at, back});
      break;
    case 5:
      c->failures.push_back({What::kDecodeGroup, group, at, back});
      break;
    case 6:
      c->failures.push_back(
          {What::kVisionMachine, static_cast<int>(b->in(0, c->vision.machines - 1)), at, back});
      break;
    default:
      c->failures.push_back({What::kStoreNode, static_cast<int>(b->in(0, 11)), at, back});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == 'c') {
    read_checkpoint({reinterpret_cast<const char*>(data) + 1, size - 1});
    return 0;
  }
  Bytes b{data, size};
  sim::FleetConfig c;
  c.seed = static_cast<uint64_t>(b.in(0, 255));
  c.warmup_s = 0;
  c.measure_s = 6;
  c.moe_lb = 1.05;
  c.prefill_engines = static_cast<int>(b.in(1, 3));
  c.prefill_ranks = static_cast<int>(b.in(1, 2));
  c.decode_groups = static_cast<int>(b.in(1, 3));
  c.decode_ranks = static_cast<int>(b.in(2, 8));
  c.decode_tokens_per_rank = 20'000 * b.in(5, 100);
  c.store.nodes = 12;
  c.prefill_balancer.rule = static_cast<policy::PrefillRule>(b.in(0, 3));
  c.decode_balancer.rule = static_cast<policy::DecodeRule>(b.in(0, 3));
  c.drain_grace_s = 0.25 * static_cast<double>(b.in(0, 8));
  c.start_s = 0.25 * static_cast<double>(b.in(0, 6));
  c.cancel_share = 0.25 * static_cast<double>(b.in(0, 2));
  c.cancel_after_s = 0.3;
  c.vision.machines = static_cast<int>(b.in(1, 3));
  c.vision.gpus = static_cast<int>(b.in(1, 3));
  c.verify.mode = static_cast<policy::SpeculationMode>(b.in(0, 3));
  c.verify.fixed = static_cast<int>(b.in(0, 5));
  c.verify_every = static_cast<int>(b.in(1, 64));
  if (b.in(0, 3) == 0) c.autoscale = {true, 1, 1, 0.5, 1};
  for (int64_t n = b.in(0, 6); n > 0; --n) add_change(&b, &c);
  DI_CHECK(sim::validate(c).ok(), "a fleet that can run");
  sim::Trace trace;
  int64_t now = 0;
  while (b.left > 0 && trace.requests.size() < 200) {
    sim::TraceRequest r;
    r.arrival_ns = now += 1'000'000 * b.in(0, 255);
    r.input_tokens = 1 + b.in(0, 255) * b.in(1, 255);
    r.output_tokens = 1 + b.in(0, 255);
    r.first_id = static_cast<uint32_t>(trace.ids.size());
    r.id_count = static_cast<uint32_t>(std::min<int64_t>(r.input_tokens / 512, b.in(0, 8)));
    for (uint32_t i = 0; i < r.id_count; ++i)
      trace.ids.push_back(static_cast<uint64_t>(b.in(0, 3)) * 100 + i);
    trace.requests.push_back(r);
  }
  // Half of the runs: sessions with images instead of the bytes' own requests.
  sim::Workload traced(&trace, 3600, 60, 1, b.in(0, 1) * 20);
  sim::WorkloadConfig generated;
  generated.mix = {sim::chat_mix()};
  generated.sessions = 5;
  generated.image_share = 0.5;
  generated.requests_per_s = 20;
  sim::Workload sessions(generated, c.seed, 0);
  const sim::FleetResult r = sim::run_fleet(c, c.seed % 2 == 0 ? &traced : &sessions);
  DI_CHECK(r.broken.empty(), r.broken);
  DI_CHECK(r.completed + r.refused + r.cancelled <= r.arrived, "nobody ends twice");
  return 0;
}
