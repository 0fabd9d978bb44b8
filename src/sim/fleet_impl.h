// The state of one run of the fleet. Private to the room.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "policy/failover.h"
#include "policy/transfer.h"
#include "policy/vision_balancer.h"
#include "sim/endings.h"
#include "sim/event_queue.h"
#include "sim/fleet.h"

namespace deepinfer::sim {

enum Kind : uint16_t {
  kArrive,
  kPrefillStep,
  kPrefillWake,
  kHandOff,
  kDecodeStep,
  kFail,
  kRepair,
  kStart,      // part: 1 of decode; an instance has loaded
  kDrain,      // an order's time has come
  kDrainTick,  // part: 1 of decode; the grace is over
  kCancel,
  kLook,  // autoscalers
  kSeen,  // an image is encoded
  kSample,
};

enum class Stage : uint8_t { kNone, kVision, kWaiting, kPrefill, kHandOff, kDecode };

// The three transfer machines of a request while nobody speaks: a cache line. Token numbers are below 2^31,
// as contexts are (validate).
struct RestingTransfer {
  int32_t control_epoch = 0, control_over = 0, prompt = 0, passed = 0, dropped = 0;
  int32_t source_epoch = 0, source_closed = 0, source_tokens = 0;
  int32_t epoch = 0, closed = 0, tokens = 0, next_token = 0;  // of the destination
  policy::ControlPhase control_phase{};
  policy::SourcePhase source_phase{};
  policy::DestinationPhase phase{};
  bool source_open = false, destination_open = false, pinned = false;
  bool reserved = false, registered = false, confirmed = false, finished = false;
};
// The machines while they speak: one set, lent to one request after the other.
struct Machines {
  policy::ControlState control;
  policy::SourceState source;
  policy::DestinationState destination;
  void take(const RestingTransfer& r);
  RestingTransfer rest() const;
};

// A request. There are tens of thousands, each looked at a dozen times in its life and long out of the caches
// by then, so that lines touched are what a run costs: one while it is a prompt, one while it decodes.
struct alignas(64) Live {
  int64_t arrived_ns = 0, ready_ns = 0;
  double work_ns = 0, unbooked_ns = 0;          // of the prompt; the rest of it in the engine's quota
  int32_t input = 0, output = 0, position = 0;  // position: first row that still has to run
  int32_t booked = 0;                           // decode tokens
  uint32_t generation = 0;
  int32_t engine = -1;
  int16_t rank = -1;
  Stage stage = Stage::kNone;
  int8_t tier = 0;
  bool counted = false;  // arrived in the measured part
  bool prefilled = false;
  bool begun = false;  // a chunk of its prompt was planned here
  // While it decodes: of what kind it is, how many tokens it has to be expected to gain, and what its kind
  // had gained on its rank when it joined.
  uint8_t kind = 0;

  double gained_before = 0;
  float demand = 0;
  int32_t group = -1, decode_rank = -1;
  int32_t delivered = 0;  // tokens of earlier attempts, part of `input` now
  int32_t asked = 0;      // tokens in all
  uint32_t tenant = 0;
  uint32_t handle = 0;  // in the lines, while it waits there
  int64_t first_token_ns = 0;
  int64_t moved_ns = 0;  // it stopped decoding somewhere else; 0: it did not
  uint64_t home = 0;

  RestingTransfer transfer;
};
static_assert(sizeof(Live) == 192, "three cache lines");

// A request that is next is most likely not in any cache: it is fetched while the ones before it are served.
inline void prefetch(const Live& l, size_t bytes = sizeof(Live)) {
  const char* p = reinterpret_cast<const char*>(&l);
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}
constexpr size_t kPromptBytes = 64;  // of a request, while it is a prompt

struct Chunk {
  uint32_t slot = 0, generation = 0;
  int64_t rows = 0;
  double cost_ns = 0;
};
struct EngineRank {
  double outstanding_ns = 0;
  std::vector<uint32_t> queue;  // slots, in the order they were pulled
};
// What engines and groups have in common: whether they are there.
struct Instance {
  bool up = true;  // runs steps
  bool stepping = false;
  bool off = false;     // no machine
  bool failed = false;  // comes back by its repair alone
  bool starting = false, draining = false;
  uint32_t life = 0;  // of its timers: those of an earlier life are void
  double back_s = -1;
  policy::DrainState drain;
};
struct Engine : Instance {
  std::vector<EngineRank> ranks;
  std::vector<Chunk> running;
  bool hungry = false;
  int64_t wake_ns = INT64_MAX, link_free_ns = 0;
  int64_t step_began_ns = 0;
  uint32_t generation = 0;
};

// What a decode rank verifies, and what its requests have gained by it, by kind.
struct VerifyingKind {
  double gained = 0;  // of one request since the start, until since_step
  int32_t count = 0;
  float drafts = 0, pace = 0, deviation = 0;  // VerifyModel::Plan
};
struct Verifying {
  std::array<VerifyingKind, VerifyModel::kKinds> kinds;
  int64_t since_step = 0;  // of the group: the plan holds since
  size_t bucket = 0;       // whose budget it follows
  int64_t decided_step = -1;
  double rows = 0;  // of a step
};
struct Budget {
  VerifyModel::Plan plan;
  int64_t decided_step = -1;
};
struct Group : Instance {
  Endings endings;
  int64_t step = 0, active = 0, tokens = 0;
  std::vector<policy::RankLoad> ranks;  // what really decodes, without what is only booked
  std::vector<Verifying> verifying;     // by rank
  std::vector<Budget> budgets;          // by number of requests
  double pace = 0;                      // tokens of all its requests per step
  int64_t stepping_active = 0;          // in the step under way; who joined meanwhile waits for the next
  double stepping_pace = 0;
  bool spare = false;
  policy::InstanceState instance;  // its GPUs
  int64_t step_began_ns = 0;
  uint32_t generation = 0;
};

// Images being encoded, and the requests they belong to.
struct Image {
  uint32_t slot = 0, generation = 0, life = 0;
  int machine = -1, gpu = 0;  // -1: not in use
  int64_t patches = 0, begin_ns = 0, end_ns = 0;
};
struct Seeing {
  uint32_t generation = 0;
  int machine = -1, left = 0;
  int engine = -1;  // where its prompt is pushed afterwards
  std::vector<int64_t> patches;
};

class Fleet {
 public:
  Fleet(const FleetConfig& config, Workload* workload);
  FleetResult run();

 private:
  // fleet.cc
  void handle(const SimEvent& e);
  void schedule_arrival();
  void arrive();
  bool admit(const SimRequest& r, double work_ns, double fetch_ns, int tier);
  uint32_t take_slot();
  uint32_t take_handle(uint32_t slot);
  void leave_line(uint32_t slot);
  void free_slot(uint32_t slot);
  void line_up(uint32_t slot, int chosen, int priority);
  void sample();
  void finish(FleetResult* out);
  void check(bool ok, const char* what);
  bool measuring() const { return now_ >= warm_ns_; }

  // fleet_change.cc
  void fail(const FailureEvent& f);
  void fail_prefill(int engine);
  void fail_decode(int group);
  void fail_link(int engine, double for_s);
  void repair(const FailureEvent& f);
  void order_start(bool decode, int i, double after_s);
  void start(bool decode, int i);
  void begin_drain(bool decode, int i, double back_s);
  void advance_drain(bool decode, int i);
  void hand_back(int engine, bool begun);
  void hand_on(int group, bool decoding);
  void gone(bool decode, int i);
  void cancel(uint32_t slot);
  void look();
  void scale(bool decode, policy::ScalerState* scaler);
  void meter();
  Instance& instance(bool decode, int i) {
    return decode ? static_cast<Instance&>(groups_[static_cast<size_t>(i)])
                  : static_cast<Instance&>(engines_[static_cast<size_t>(i)]);
  }
  int serving(bool decode) const;

  // fleet_prefill.cc
  void offer_work();
  void pull_all(int engine);
  void assign(int engine, uint32_t slot);
  void start_prefill(int engine);
  double plan_rank(int engine, int rank);
  bool plan_chunk(int engine, EngineRank* rank, size_t at, double left_ns, bool whole, bool progress,
                  double* used);
  void end_prefill(int engine);
  void prompt_done(int engine, uint32_t slot);
  int push_engine(const SimRequest& r, double work_ns, int64_t start, double cold_ns, int* previous);
  void requeue(uint32_t slot);
  void take_with(Live* l);

  // fleet_decode.cc
  void reserve(uint32_t slot);
  void place(int group);
  void hand_off(uint32_t slot);
  void join(uint32_t slot);
  void start_decode(int group);
  void end_decode(int group);
  void complete(uint32_t slot);
  void cancel_hand_off(Live* l);
  void drained(int engine, const policy::DrainEvent& event);
  void release(uint32_t slot);
  template <typename Begin>
  void converse(Begin begin);

  // fleet_verify.cc
  void enter_rank(uint32_t slot);
  void leave_rank(uint32_t slot);
  double gained(const Live& l, int64_t step) const;
  void schedule_end(uint32_t slot, int64_t from);
  bool has_all_tokens(uint32_t slot);
  int64_t tokens_had(const Live& l) const;
  void follow_budget(int group, size_t rank, int first = -1);

  // fleet_vision.cc
  int64_t encode_ns(int64_t patches) const;
  int64_t vision_wait_ns(const std::vector<int64_t>& patches) const;
  double measured_part(int64_t from_ns, int64_t upto_ns) const;
  void place_images(uint32_t slot);
  void release_image(uint32_t i);
  void seen(uint32_t i);
  void fail_vision(int machine);
  void repair_vision(int machine);
  double vision_queued_s() const;

  FleetConfig config_;
  Workload* workload_;
  Random random_;
  EventQueue events_;
  StoreModel store_;
  policy::AdmissionState admission_;
  policy::PrefillBalancerState prefill_;
  policy::DecodeBalancerState decode_;
  policy::VisionState vision_;
  VerifyModel verify_;
  policy::ScalerState prefill_scaler_, decode_scaler_, vision_scaler_, store_scaler_;
  std::vector<Live> live_;
  std::vector<uint32_t> free_;
  std::vector<Engine> engines_;
  std::vector<Group> groups_;
  std::deque<int> hungry_;
  Machines machines_;                                    // lent to the request that speaks
  std::vector<uint32_t> handle_slot_, free_handles_;     // of the lines: few, and used again at once
  std::vector<std::pair<uint32_t, uint32_t>> stranded_;  // (slot, generation): no engine was open to push to
  std::vector<double> moe_steps_;
  std::vector<std::vector<int64_t>> gpu_free_ns_;  // of vision machines
  std::vector<Image> images_;
  std::vector<uint32_t> free_images_;
  std::map<uint32_t, Seeing> seeing_;  // by slot
  std::vector<uint8_t> kinds_;         // lent to a decision
  std::vector<Ending> ending_;         // lent to a step that ends
  double store_looked_bytes_ = 0;      // read when the autoscaler looked last
  SimRequest next_;
  bool more_ = false, ended_ = false;
  int64_t now_ = 0, warm_ns_ = 0, end_ns_ = 0;
  int64_t in_fleet_ = 0, waiting_ = 0, prefilling_ = 0;
  int64_t serving_prefill_ = 0;                // engines that take work
  double on_[2] = {0, 0}, on_ns_[2] = {0, 0};  // instances with machines: prefill, decode; over measured time
  int64_t metered_ns_ = 0, idle_from_ns_ = 0;
  FleetResult out_;
  double busy_prefill_ns_ = 0, busy_decode_ns_ = 0, busy_vision_ns_ = 0;
  double pace_steps_ = 0, draft_steps_ = 0, active_steps_ = 0;
  double balance_sum_ = 0, moe_sum_ = 0, spread_r_ = 0, spread_t_ = 0;
  double requests_ns_ = 0, tokens_ns_ = 0, rank_ns_ = 0, mix_sum_ = 0;
  double decode_tokens_ = 0, prefill_work_ns_ = 0;
  int64_t balance_steps_ = 0;
};

}  // namespace deepinfer::sim
