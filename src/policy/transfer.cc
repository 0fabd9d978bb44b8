// The three machines. A message of an epoch that is over is answered so that its sender can let go; one of an
// epoch that is not known yet is dropped, and will be said again.
#include "policy/transfer.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer::policy {

using enum TransferWord;

const char* name(TransferWord word) {
  constexpr const char* kNames[] = {"prepare", "ready",  "refused", "start",  "commit",    "ack",   "owned",
                                    "confirm", "failed", "token",   "cancel", "cancelled", "query", "have"};
  return kNames[static_cast<size_t>(word)];
}
const char* name(ControlPhase phase) {
  constexpr const char* kNames[] = {"queued",    "preparing", "prefill",  "asking",
                                    "streaming", "done",      "cancelled"};
  return kNames[static_cast<size_t>(phase)];
}

// ---- source

namespace {

void say(SourceState* s, TransferWord word, Party to, int32_t epoch) {
  // Counts and checksums are of what was really written; a fault shows at the destination.
  s->outbox.push_back({word, Party::kSource, to, epoch, s->tokens, 0, true});
}

void let_go(SourceState* s) {
  s->phase = SourcePhase::kIdle;
  s->closed = std::max(s->closed, s->epoch);
  s->pinned = false;
}

}  // namespace

void apply(SourceState* s, const TransferMessage& m) {
  if (m.word == kCancel) {
    if (s->phase != SourcePhase::kIdle && s->epoch <= m.epoch) let_go(s);
    s->closed = std::max(s->closed, m.epoch);
    s->outbox.push_back({kCancelled, Party::kSource, Party::kControl, m.epoch, 0, 0, false});
  } else if (m.word == kStart) {
    if (m.epoch <= s->closed || m.epoch <= s->epoch) return;
    if (s->phase != SourcePhase::kIdle) let_go(s);  // a newer attempt: the older one is over
    s->phase = SourcePhase::kComputing;
    s->epoch = m.epoch;
    s->tokens = m.tokens;
    s->pinned = true;
  } else if (m.word == kAck) {
    if (s->phase == SourcePhase::kCommitted && m.epoch == s->epoch) let_go(s);
  }
}

void apply(SourceState* s, SourceEvent event) {
  if (s->phase == SourcePhase::kIdle) return;
  switch (event) {
    case SourceEvent::kComputed:
      if (s->phase != SourcePhase::kComputing) return;
      s->phase = SourcePhase::kCommitted;
      say(s, kCommit, Party::kDestination, s->epoch);
      return;
    case SourceEvent::kComputeFailed:
      if (s->phase != SourcePhase::kComputing) return;
      say(s, kFailed, Party::kControl, s->epoch);
      let_go(s);
      return;
    case SourceEvent::kLeaseExpired:
      say(s, kFailed, Party::kControl, s->epoch);
      let_go(s);
      return;
    case SourceEvent::kRetry:
      if (s->phase == SourcePhase::kCommitted) say(s, kCommit, Party::kDestination, s->epoch);
      return;
  }
}

// ---- destination

namespace {

void say(DestinationState* d, TransferWord word, Party to, int32_t epoch, bool flag = false) {
  d->outbox.push_back({word, Party::kDestination, to, epoch, 0, d->next_token, flag});
}

// Deregistered first: a peer that still writes hits nothing.
void let_go(DestinationState* d) {
  d->registered = false;
  d->reserved = false;
  d->phase = DestinationPhase::kIdle;
  d->closed = std::max(d->closed, d->epoch);
}

void take_commit(DestinationState* d, const TransferMessage& m) {
  if (d->phase == DestinationPhase::kOwned && m.epoch == d->epoch) {
    say(d, kAck, Party::kSource, m.epoch);  // the first one was lost
    return;
  }
  if (m.epoch <= d->closed) {
    say(d, kAck, Party::kSource, m.epoch);  // over here: the source may free
    return;
  }
  if (d->phase != DestinationPhase::kPrepared || m.epoch != d->epoch) return;
  // Against the length it reserved for, not the sender's claim.
  if (!m.flag || m.tokens != d->tokens) {
    say(d, kRefused, Party::kControl, m.epoch);
    say(d, kAck, Party::kSource, m.epoch);
    let_go(d);
    return;
  }
  d->phase = DestinationPhase::kOwned;
  d->registered = false;
  d->confirmed = false;
  say(d, kAck, Party::kSource, m.epoch);
  say(d, kOwned, Party::kControl, m.epoch);
}

void take_prepare(DestinationState* d, const TransferMessage& m) {
  if (m.epoch <= d->closed) {
    say(d, kRefused, Party::kControl, m.epoch);
    return;
  }
  if (m.epoch < d->epoch) return;
  if (m.epoch == d->epoch) {
    if (d->phase == DestinationPhase::kPrepared) say(d, kReady, Party::kControl, m.epoch);
    return;
  }
  if (d->phase != DestinationPhase::kIdle) let_go(d);
  d->phase = DestinationPhase::kPrepared;
  d->epoch = m.epoch;
  d->tokens = m.tokens;
  d->next_token = m.delivered;
  d->reserved = d->registered = true;
  d->confirmed = d->finished = false;
  say(d, kReady, Party::kControl, m.epoch);
}

}  // namespace

void apply(DestinationState* d, const TransferMessage& m) {
  switch (m.word) {
    case kPrepare:
      take_prepare(d, m);
      return;
    case kCommit:
      take_commit(d, m);
      return;
    case kConfirm:
      if (d->phase != DestinationPhase::kOwned || m.epoch != d->epoch) return;
      d->confirmed = true;
      return;
    case kCancel:
      if (d->phase != DestinationPhase::kIdle && d->epoch <= m.epoch) let_go(d);
      d->closed = std::max(d->closed, m.epoch);
      say(d, kCancelled, Party::kControl, m.epoch);
      return;
    case kQuery: {
      const bool yes = d->phase == DestinationPhase::kOwned && d->epoch == m.epoch;
      if (!yes) {
        // "No" is a promise: a commit of this epoch that is still on its way must not make an owner of it.
        if (d->phase != DestinationPhase::kIdle && d->epoch <= m.epoch) let_go(d);
        d->closed = std::max(d->closed, m.epoch);
      }
      say(d, kHave, Party::kControl, m.epoch, yes);
      return;
    }
    default:
      return;
  }
}

void apply(DestinationState* d, DestinationEvent event) {
  switch (event) {
    case DestinationEvent::kNoRoom:
    case DestinationEvent::kLeaseExpired:
      if (d->phase != DestinationPhase::kPrepared) return;
      let_go(d);
      say(d, kRefused, Party::kControl, d->epoch);
      return;
    case DestinationEvent::kEmit:
    case DestinationEvent::kEmitLast:
      if (!may_emit(*d)) return;
      d->finished = event == DestinationEvent::kEmitLast;
      say(d, kToken, Party::kControl, d->epoch, d->finished);
      ++d->next_token;
      return;
    case DestinationEvent::kRetry:
      if (d->phase == DestinationPhase::kPrepared) say(d, kReady, Party::kControl, d->epoch);
      if (d->phase == DestinationPhase::kOwned && (!d->confirmed || d->finished)) {
        say(d, kOwned, Party::kControl, d->epoch, d->finished);
      }
      return;
  }
}

// ---- control plane

namespace {

void say(ControlState* c, TransferWord word, Party to, int32_t epoch) {
  c->outbox.push_back(
      {word, Party::kControl, to, epoch, c->prompt_tokens + c->delivered, c->delivered, false});
}

bool live(const ControlState& c) {
  return c.epoch > c.over;
}

void send_cancels(ControlState* c) {
  if (c->source_open) say(c, kCancel, Party::kSource, c->over);
  if (c->destination_open) say(c, kCancel, Party::kDestination, c->over);
}

// From here on nothing of this attempt counts, whoever still believes in it.
void close_attempt(ControlState* c, ControlPhase phase) {
  c->over = c->epoch;
  c->phase = phase;
  send_cancels(c);
}

void ask(ControlState* c) {
  c->phase = ControlPhase::kAsking;
  say(c, kQuery, Party::kDestination, c->epoch);
}

void take_token(ControlState* c, const TransferMessage& m) {
  if (c->phase == ControlPhase::kPreparing || m.delivered < c->delivered) {
    ++c->dropped_tokens;
    return;
  }
  if (m.delivered > c->delivered) {
    // A token was lost on the way. This attempt cannot go on; what was delivered is kept.
    ++c->dropped_tokens;
    close_attempt(c, ControlPhase::kQueued);
    return;
  }
  c->phase = ControlPhase::kStreaming;  // tokens may overtake kOwned: whoever emits, owns
  ++c->delivered;
  if (m.flag) close_attempt(c, ControlPhase::kDone);
}

void take_owned(ControlState* c, const TransferMessage& m) {
  if (c->phase == ControlPhase::kPreparing) return;
  c->phase = ControlPhase::kStreaming;
  if (m.flag && m.delivered != c->delivered) {  // it has emitted everything, and some of it is not here
    close_attempt(c, ControlPhase::kQueued);
  } else {
    say(c, kConfirm, Party::kDestination, c->epoch);
  }
}

}  // namespace

void apply(ControlState* c, const TransferMessage& m) {
  if (m.word == kCancelled) {
    if (live(*c) || m.epoch < c->over) return;
    (m.from == Party::kSource ? c->source_open : c->destination_open) = false;
    return;
  }
  if (m.epoch <= c->over || m.epoch > c->epoch) {
    if (m.word == kToken) ++c->dropped_tokens;
    // Stale: the sender is told, so that it can let go.
    if (m.word != kRefused && m.word != kFailed && m.word != kHave) say(c, kCancel, m.from, m.epoch);
    return;
  }
  switch (m.word) {
    case kToken:
      take_token(c, m);
      return;
    case kOwned:
      take_owned(c, m);
      return;
    case kReady:
      if (c->phase != ControlPhase::kPreparing) return;
      c->phase = ControlPhase::kPrefill;
      c->source_open = true;
      say(c, kStart, Party::kSource, c->epoch);
      return;
    case kRefused:
      close_attempt(c, ControlPhase::kQueued);
      return;
    case kFailed:
      // A source that gives up after its commit was taken changes nothing: ask who owns.
      if (c->phase == ControlPhase::kPrefill) ask(c);
      return;
    case kHave:
      if (c->phase != ControlPhase::kAsking) return;
      if (m.flag) {
        take_owned(c, {kOwned, m.from, m.to, m.epoch, 0, c->delivered, false});
      } else {
        close_attempt(c, ControlPhase::kQueued);
      }
      return;
    default:
      return;
  }
}

void apply(ControlState* c, ControlEvent event) {
  switch (event) {
    case ControlEvent::kBegin:
      if (c->phase != ControlPhase::kQueued) return;
      ++c->epoch;
      c->phase = ControlPhase::kPreparing;
      c->source_open = false;
      c->destination_open = true;
      say(c, kPrepare, Party::kDestination, c->epoch);
      return;
    case ControlEvent::kClientCancelled:
      if (c->phase != ControlPhase::kDone && c->phase != ControlPhase::kCancelled) {
        close_attempt(c, ControlPhase::kCancelled);
      }
      return;
    case ControlEvent::kSourceDied:
      c->source_open = false;  // it holds nothing any more
      if (c->phase == ControlPhase::kPrefill) ask(c);
      return;
    case ControlEvent::kDestinationDied:
      c->destination_open = false;
      if (live(*c)) close_attempt(c, ControlPhase::kQueued);
      return;
    case ControlEvent::kTimeout:
      if (c->phase == ControlPhase::kPreparing) close_attempt(c, ControlPhase::kQueued);
      if (c->phase == ControlPhase::kPrefill) ask(c);
      return;
    case ControlEvent::kRetry:
      if (c->phase == ControlPhase::kPreparing) say(c, kPrepare, Party::kDestination, c->epoch);
      if (c->phase == ControlPhase::kPrefill) say(c, kStart, Party::kSource, c->epoch);
      if (c->phase == ControlPhase::kAsking) say(c, kQuery, Party::kDestination, c->epoch);
      if (!live(*c)) send_cancels(c);
      return;
  }
}

// ---- descriptors

std::string refuse_layout(const TransferLayout& p, const TransferLayout& d) {
  auto converted = [&](const std::string& what) {
    return std::find(p.converters.begin(), p.converters.end(), what) != p.converters.end();
  };
  auto differs = [&](const char* field, int64_t a, int64_t b) -> std::string {
    if (a == b || converted(fmt::format("{}:{}>{}", field, a, b))) return "";
    return fmt::format("{} {} at the source, {} at the destination", field, a, b);
  };
  for (std::string why :
       {differs("version", p.version, d.version), differs("block_tokens", p.block_tokens, d.block_tokens),
        differs("window_slots", p.window_slots, d.window_slots),
        differs("window_record_bytes", p.window_record_bytes, d.window_record_bytes),
        differs("draft_stages", p.draft_stages, d.draft_stages),
        differs("page_bytes", p.page_bytes, d.page_bytes)}) {
    if (!why.empty()) return why;
  }
  if (p.record_bytes != d.record_bytes) return "record_bytes differ";
  if (p.kv_sources != d.kv_sources) return "kv_sources differ";
  if (p.compress_ratios != d.compress_ratios) return "compress_ratios differ";
  if (p.dtypes != d.dtypes) return "dtypes differ";
  if (p.checksum != d.checksum) return "checksum algorithms differ";
  return "";
}

}  // namespace deepinfer::policy
