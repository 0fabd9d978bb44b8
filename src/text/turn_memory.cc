// Keys of turns and the memory of text/turn_memory.h.
#include "text/turn_memory.h"

namespace deepinfer {
namespace {

// Every field with its length in front, so that no two turns spell the same bytes.
class KeyHash {
 public:
  void number(uint64_t n) { hash_.update(&n, sizeof n); }
  void text(std::string_view s) {
    number(s.size());
    hash_.update(s);
  }
  Digest finish() { return hash_.finish(); }

 private:
  Sha256 hash_;
};

// Clients parse and rewrite arguments: only their value counts.
std::string canonical(const std::string& arguments) {
  Result<Json> v = parse_json(arguments);
  return v.ok() && v->is_object() ? to_python_json(*v) : arguments;
}

Digest turn_key(std::string_view scope, const Message& turn, bool thinking) {
  KeyHash h;
  h.text(scope);
  h.number(thinking);
  h.text(turn.reasoning.value_or(""));
  h.text(turn.content.text());
  h.number(turn.tool_calls.size());
  for (const ToolCall& call : turn.tool_calls) {
    h.text(call.id);
    h.text(call.name);
    h.text(canonical(call.arguments));
  }
  return h.finish();
}

}  // namespace

void TurnMemory::drop(Order::iterator entry) {
  used_bytes_ -= bytes(*entry);
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void TurnMemory::remember(std::string_view scope, const Message& turn, SampledTurn sampled) {
  Digest key = turn_key(scope, turn, sampled.thinking);
  Entry entry{key, std::make_shared<const SampledTurn>(std::move(sampled))};
  std::lock_guard lock(mutex_);
  if (auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  if (bytes(entry) > max_bytes_) return;
  used_bytes_ += bytes(entry);
  ++counters_.remembered;
  entries_.push_front(std::move(entry));
  by_key_.emplace(key, entries_.begin());
  while (used_bytes_ > max_bytes_) drop(std::prev(entries_.end()));
}

std::shared_ptr<const SampledTurn> TurnMemory::find(std::string_view scope, const Message& turn,
                                                    bool thinking) {
  Digest key = turn_key(scope, turn, thinking);
  std::lock_guard lock(mutex_);
  auto it = by_key_.find(key);
  ++(it == by_key_.end() ? counters_.misses : counters_.hits);
  if (it == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->turn;
}

TurnMemory::Counters TurnMemory::counters() const {
  std::lock_guard lock(mutex_);
  Counters c = counters_;
  c.turns = static_cast<int64_t>(entries_.size());
  c.bytes = static_cast<int64_t>(used_bytes_);
  return c;
}

size_t TurnMemory::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace deepinfer
