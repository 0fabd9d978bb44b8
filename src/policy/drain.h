// How an engine leaves: it takes no new work, finishes what it can within a minute's grace, hands the rest to
// others, waits until nobody reads its memory, and goes. A request that races in is served or handed on,
// never an error. A second signal ends it at once. Source: serving specification 10.5. Threads: plain data,
// one owner.
#pragma once

#include <cstdint>
#include <variant>

namespace deepinfer::policy {

enum class EngineRole : uint8_t { kPrefill, kDecode };
enum class DrainPhase : uint8_t {
  kServing,
  kGrace,       // no new work; what runs goes on
  kForwarding,  // the grace is over: unfinished requests move
  kQuiescing,   // nothing runs; peers may still read from here
  kGone,
  kAborted,  // second signal
};
const char* name(DrainPhase phase);

struct DrainState {
  EngineRole role = EngineRole::kDecode;
  int64_t grace_ns = 60'000'000'000;
  DrainPhase phase = DrainPhase::kServing;
  int64_t deadline_ns = 0;
  int64_t queued = 0;     // routed here, not started
  int64_t running = 0;    // in chunks or decoding
  int64_t transfers = 0;  // in or out of this engine's memory
  int64_t forwarded = 0, aborted = 0;
};

struct DrainAsked {
  int64_t now_ns = 0;
};
struct DrainTick {
  int64_t now_ns = 0;
};
struct DrainRequestRouted {};  // arrived here, whatever the phase
struct DrainRequestStarted {};
struct DrainRequestEnded {};    // finished, cancelled or failed
struct DrainRequestForwarded {  // carried out: queued or running one now lives elsewhere
  bool was_queued = false;
};
struct DrainTransferBegan {};
struct DrainTransferEnded {};
using DrainEvent =
    std::variant<DrainAsked, DrainTick, DrainRequestRouted, DrainRequestStarted, DrainRequestEnded,
                 DrainRequestForwarded, DrainTransferBegan, DrainTransferEnded>;
void apply(DrainState* state, const DrainEvent& event);

struct DrainDecision {
  bool registered = true;       // balancers may choose this engine
  bool start_queued = true;     // queued requests may start here
  int64_t forward_queued = 0;   // hand these back, epoch + 1
  int64_t forward_running = 0;  // stop at a step boundary, flush, hand on with the tokens delivered
  bool exit = false;
  bool abort = false;
};
DrainDecision decide_drain(const DrainState& state);

}  // namespace deepinfer::policy
