// See apps/event_gap.h.
#include "apps/event_gap.h"

#include <algorithm>
#include <iterator>

namespace deepinfer {

void EventGap::add(std::vector<EngineEvent> events, int64_t now) {
  for (EngineEvent& e : events) {
    Sent& sent = sent_[{static_cast<uint64_t>(e.request), e.choice}];
    const bool tokens = e.kind == EngineEvent::Kind::kTokens;
    const bool first = sent.tokens_ns == kNever;
    due_ns_ = std::min(due_ns_, tokens && !first ? sent.tokens_ns + gap_ns_ : now);
    if (tokens && sent.held >= 0) {
      EngineEvent& before = held_[static_cast<size_t>(sent.held)];
      before.tokens.insert(before.tokens.end(), std::make_move_iterator(e.tokens.begin()),
                           std::make_move_iterator(e.tokens.end()));
      continue;
    }
    if (tokens) sent.held = static_cast<int>(held_.size());
    held_.push_back(std::move(e));
  }
}

int64_t EventGap::wait_ns(int64_t now) const {
  return held_.empty() ? kNothing : std::max<int64_t>(0, due_ns_ - now);
}

std::vector<EngineEvent> EventGap::take(int64_t now) {
  for (const EngineEvent& e : held_) {
    const Choice choice{static_cast<uint64_t>(e.request), e.choice};
    if (e.kind == EngineEvent::Kind::kFinished) {
      sent_.erase(choice);
    } else if (e.kind == EngineEvent::Kind::kTokens) {
      sent_[choice] = {now, -1};
    }
  }
  due_ns_ = kNothing;
  return std::exchange(held_, {});
}

}  // namespace deepinfer
