// Exact repetition of turns the model wrote here. A client sends an answer back as text and JSON; rendered
// again, it need not give the ids that were sampled: the model wrote {"a":1} where the template writes {"a":
// 1}, put a line feed where the parser drops one, or spelt a word with other pieces. From there on a cached
// prefix is lost. This memory keeps the sampled ids beside what the client was told, and gives them back only
// for a stored turn that still says exactly that. Knows no protocol. Source: request edge specification 8
// (no. 25), 9 (no. 5). Threads: all members may be called at once.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "text/conversation.h"

namespace deepinfer {

struct SampledTurn {
  std::vector<int32_t> ids;  // as sampled, after the turn's header (and forced opener), without EOS
  bool thinking = false;     // the header ended with <think>
  bool forced_call = false;  // the prompt held the opener of the call block
};

class TurnMemory {
 public:
  // `max_bytes`: of ids kept, least recently used first out.
  explicit TurnMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `scope` keeps clients apart: what one was told is never given to another. `turn` is the assistant
  // message as the client will send it back. A later turn with the same key replaces the earlier one.
  // REQUIRES ids of an OutputParser whose repeatable() holds: they bring no control id a turn may not have.
  void remember(std::string_view scope, const Message& turn, SampledTurn sampled);
  // The turn's ids if the stored message says the same: reasoning, content, and each call's id, name and
  // arguments (as values, not as spelling). Null otherwise. Cost: a digest over the message's text.
  std::shared_ptr<const SampledTurn> find(std::string_view scope, const Message& turn, bool thinking);
  size_t size() const;

  struct Counters {
    int64_t remembered = 0, hits = 0, misses = 0;  // turns kept, found, looked for and not found
    int64_t turns = 0, bytes = 0;                  // held now
  };
  Counters counters() const;

 private:
  struct Entry {
    Digest key;
    std::shared_ptr<const SampledTurn> turn;
  };
  using Order = std::list<Entry>;
  // An entry's ids and about what it costs beside them.
  static size_t bytes(const Entry& e) { return e.turn->ids.size() * sizeof(int32_t) + 256; }
  void drop(Order::iterator entry);

  size_t max_bytes_;
  mutable std::mutex mutex_;
  Order entries_;  // most recently used first
  std::map<Digest, Order::iterator> by_key_;
  size_t used_bytes_ = 0;
  Counters counters_;
};

}  // namespace deepinfer
