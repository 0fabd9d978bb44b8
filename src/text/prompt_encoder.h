// Encodes spans as encode_spans does, with a memory of runs it has seen and, if the caller lends threads, in
// parallel: turn 40 of a conversation costs about its own text. Source: request edge specification 2.4, 2.5.
// Threads: encode() may be called from any number of threads at once.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer {

class PromptEncoder {
 public:
  // Calls task(i) for every i in [0, n), each once, on any threads, and returns when all are done.
  using ParallelFor = std::function<void(size_t n, const std::function<void(size_t)>& task)>;

  // `cache_bytes`: text kept for reuse, least recently used first out; 0 keeps nothing.
  explicit PromptEncoder(Tokenizer tokenizer, size_t cache_bytes = size_t{64} << 20)
      : tokenizer_(std::move(tokenizer)), cache_bytes_(cache_bytes) {}

  std::vector<int32_t> encode(const std::vector<Span>& spans, const ParallelFor& parallel = {});
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Entry {
    std::string text;
    std::vector<int32_t> ids;
  };
  using Order = std::list<Entry>;
  bool find(std::string_view text, std::vector<int32_t>* ids);
  void remember(std::string text, const std::vector<int32_t>& ids);

  Tokenizer tokenizer_;
  size_t cache_bytes_;
  std::mutex mutex_;
  Order entries_;                                                  // most recently used first
  std::unordered_map<std::string_view, Order::iterator> by_text_;  // keys point into entries_
  size_t used_bytes_ = 0;
};

// Cuts a text so that encoding the parts gives the ids of the whole: only after a line feed whose next
// character is no white space. Parts are at least `least_bytes` long but for the last.
std::vector<std::string_view> cut_for_encoding(std::string_view text, size_t least_bytes);

}  // namespace deepinfer
