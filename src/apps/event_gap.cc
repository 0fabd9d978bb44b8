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
  size_t spoke = 0;  // of those that are not over
  ++round_;
  for (const EngineEvent& e : held_) {
    auto it = sent_.find({static_cast<uint64_t>(e.request), e.choice});
    if (e.kind == EngineEvent::Kind::kTokens) {
      talking_ += it->second.tokens_ns == kNever ? 1 : 0;
      it->second = {now, -1, round_};
      ++spoke;
    } else if (e.kind == EngineEvent::Kind::kFinished) {
      talking_ -= it->second.tokens_ns == kNever ? 0 : 1;
      spoke -= it->second.round == round_ ? 1 : 0;
      sent_.erase(it);
    }
  }
  due_ns_ = kNothing;
  calm_until_ns_ = spoke == talking_ ? now + gap_ns_ : now;
  return std::exchange(held_, {});
}

}  // namespace deepinfer
