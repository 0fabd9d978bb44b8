// Holds back the tokens of answers that are written faster than a reader can tell, so that several steps go
// out as one write: on a small machine the system calls of a token cost the server and its client more than
// the token's text. An answer whose last token went out `gap` ago is never held, so one that is slower than
// that is not touched at all. It knows no sockets and no engine. Source: issue "the server" (what the edge
// may add to a request). Times: ns on any one clock. Errors: none. Threads: one at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace deepinfer {

class EventGap {
 public:
  static constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

  explicit EventGap(int64_t gap_ns) : gap_ns_(gap_ns) {}

  // Events in the order the engine gave them, at `now`. Tokens of one choice that are held become one event.
  void add(std::vector<EngineEvent> events, int64_t now);

  // How long what is held may still wait: 0 if it has to go now, kNothing if there is none. Beginnings, ends,
  // first tokens and answers that are due take everything with them.
  int64_t wait_ns(int64_t now) const;

  // Until when no token can be due but the first one of an answer: a step's tokens need wake nobody before.
  // In the past if any answer's next token is to go at once.
  int64_t calm_until_ns() const { return calm_until_ns_; }

  // All that is held, in order; `now` becomes the time its answers went out.
  std::vector<EngineEvent> take(int64_t now);

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();
  using Choice = std::pair<uint64_t, int>;
  struct Sent {
    int64_t tokens_ns = kNever;  // when its last tokens went out
    int held = -1;               // where its tokens are in held_
    uint64_t round = 0;          // the take() that was in
  };

  int64_t gap_ns_;
  int64_t due_ns_ = kNothing, calm_until_ns_ = kNever;
  size_t talking_ = 0;  // answers that have had tokens
  uint64_t round_ = 0;
  std::vector<EngineEvent> held_;
  std::map<Choice, Sent> sent_;
};

}  // namespace deepinfer
