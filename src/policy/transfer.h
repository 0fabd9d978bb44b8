// The hand-off of one request from the engine that computed its prompt (the source) to the one that decodes
// it (the destination), under a control plane that also stands at the front: it alone passes tokens to the
// client. At every moment one party owns the request, no token is delivered twice, and every buffer is freed
// in the end, whatever is lost, doubled or late and whoever dies. Everything carries (request, epoch); the
// control plane raises the epoch for every attempt, and nobody acts on an older one.
//
// Three machines, one per party. apply() changes a machine and leaves what it wants sent in its outbox; the
// caller sends it and empties it. Timers are events: of the lease the caller must hold that a destination's
// runs out before its source's (the source's is longer by more than the clocks may differ).
// Moves no bytes. Source: serving specification 8. Threads: plain data, one owner per machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::policy {

enum class Party : uint8_t { kControl, kSource, kDestination };

enum class TransferWord : uint8_t {
  kPrepare,    // C -> D: reserve for `tokens`, continue after `delivered` tokens
  kReady,      // D -> C: reserved and registered
  kRefused,    // D -> C: no room or another layout; also anything that ends the attempt at D
  kStart,      // C -> P: compute the prompt and send to D
  kCommit,     // P -> D: everything is written; counts and checksums
  kAck,        // D -> P: verified for all groups; D owns, P may free
  kOwned,      // D -> C: the same, to the control plane, repeated until kConfirm
  kConfirm,    // C -> D: heard
  kFailed,     // P -> C: this attempt will not be sent
  kToken,      // D -> C: output token number `delivered`; `last` with the final one
  kCancel,     // C -> P, D: this epoch is over
  kCancelled,  // P, D -> C: nothing of this epoch is held here any more
  kQuery,      // C -> D: do you own this epoch?
  kHave,       // D -> C: yes (`flag`), or no, and then never
};
const char* name(TransferWord word);

struct TransferMessage {
  TransferWord word{};
  Party from{}, to{};
  int32_t epoch = 0;
  int64_t tokens = 0;     // reserved for, or counted at the commit
  int64_t delivered = 0;  // tokens before this attempt, or the number of a token
  bool flag = false;      // kCommit: checksums hold; kHave: yes; kToken: the last one; kOwned: all is emitted
  bool operator==(const TransferMessage&) const = default;
};

// ---- source

enum class SourcePhase : uint8_t { kIdle, kComputing, kCommitted };
struct SourceState {
  SourcePhase phase = SourcePhase::kIdle;
  int32_t epoch = 0;   // of the attempt that is here, or was last
  int32_t closed = 0;  // epochs up to this one are over here
  int64_t tokens = 0;
  bool pinned = false;  // its blocks may not be reused
  std::vector<TransferMessage> outbox;
};
enum class SourceEvent : uint8_t { kComputed, kComputeFailed, kLeaseExpired, kRetry };
void apply(SourceState* state, const TransferMessage& message);
void apply(SourceState* state, SourceEvent event);

// ---- destination

enum class DestinationPhase : uint8_t { kIdle, kPrepared, kOwned };
struct DestinationState {
  DestinationPhase phase = DestinationPhase::kIdle;
  int32_t epoch = 0;
  int32_t closed = 0;
  int64_t tokens = 0;       // reserved for
  int64_t next_token = 0;   // number of the next one it emits
  bool reserved = false;    // blocks are held
  bool registered = false;  // a peer may write into them
  bool confirmed = false;   // the control plane knows that it owns
  bool finished = false;    // every token was emitted
  std::vector<TransferMessage> outbox;
};
enum class DestinationEvent : uint8_t {
  kNoRoom,  // with kPrepared: the reservation failed after all
  kEmit,    // one more token was generated
  kEmitLast,
  kLeaseExpired,  // no commit in time, while prepared
  kRetry,         // say again what was not answered
};
void apply(DestinationState* state, const TransferMessage& message);
void apply(DestinationState* state, DestinationEvent event);
inline bool may_emit(const DestinationState& d) {
  return d.phase == DestinationPhase::kOwned && !d.finished;
}
// Room for the prompt, the drafts, the target's own token and the first block of output.
inline int64_t reserve_tokens(int64_t prompt_tokens, int64_t drafts, int64_t block_tokens) {
  return prompt_tokens + drafts + 1 + block_tokens;
}

// ---- control plane

enum class ControlPhase : uint8_t {
  kQueued,     // nobody has it
  kPreparing,  // D was asked to reserve
  kPrefill,    // P computes or has committed; D has not said that it owns
  kAsking,     // P is gone or silent: does D own it?
  kStreaming,  // D owns
  kDone,       // every token delivered
  kCancelled,  // the client left
};
const char* name(ControlPhase phase);
struct ControlState {
  ControlPhase phase = ControlPhase::kQueued;
  int32_t epoch = 0;  // of the attempt under way, or the last one
  int32_t over = 0;   // epochs up to this one are over: nobody's words of them count
  int64_t prompt_tokens = 0;
  int64_t delivered = 0;     // to the client; the next token must have this number
  bool source_open = false;  // it may still hold something of the last attempt
  bool destination_open = false;
  int64_t dropped_tokens = 0;  // of old epochs or out of order
  std::vector<TransferMessage> outbox;
};
enum class ControlEvent : uint8_t {
  kBegin,  // a source and a destination were chosen; the epoch goes up
  kClientCancelled,
  kSourceDied,  // it lost everything
  kDestinationDied,
  kTimeout,  // nothing was heard for too long
  kRetry,
};
void apply(ControlState* state, const TransferMessage& message);
void apply(ControlState* state, ControlEvent event);
inline bool settled(const ControlState& c) {
  return (c.phase == ControlPhase::kDone || c.phase == ControlPhase::kCancelled) && !c.source_open &&
         !c.destination_open;
}

// ---- descriptors (8.6)

struct TransferLayout {
  int32_t version = 1;
  int64_t block_tokens = 0, window_slots = 0, window_record_bytes = 0, draft_stages = 0, page_bytes = 0;
  std::vector<int64_t> record_bytes;     // per KV source
  std::vector<int32_t> kv_sources;       // layers
  std::vector<int32_t> compress_ratios;  // per layer
  std::string dtypes, checksum;
  int32_t expert_ranks = 0, data_ranks = 0;  // may differ: only the mapping of ranks does
  std::vector<std::string> converters;       // offered by the source: "window_record_bytes:528>584", ...
  bool operator==(const TransferLayout&) const = default;
};
// Empty if D can take what P sends, else the first field that differs. Equal totals are no compatibility.
std::string refuse_layout(const TransferLayout& source, const TransferLayout& destination);

}  // namespace deepinfer::policy
