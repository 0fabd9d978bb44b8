// The last generation requests that ended, for the console's time lines: times and sizes, no text. Bounded.
// Source: issue "the server" 5. Threads: any.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "text/json.h"

namespace deepinfer {

struct RecentRequest {
  std::string tenant, id, request_id, path, reason;
  int64_t ended_ns = 0;  // since 1970
  int64_t queue_ns = 0, prefill_ns = 0, decode_ns = 0, total_ns = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
};

class RecentRequests {
 public:
  explicit RecentRequests(size_t most = 200) : most_(most) {}
  void add(RecentRequest request) {
    std::lock_guard lock(mutex_);
    list_.push_back(std::move(request));
    if (list_.size() > most_) list_.pop_front();
  }
  // Of one tenant, newest first; `id` not empty: only that one.
  Json json(const std::string& tenant, const std::string& id) const {
    Json all = Json::array();
    std::lock_guard lock(mutex_);
    for (auto r = list_.rbegin(); r != list_.rend(); ++r) {
      if (r->tenant != tenant || (!id.empty() && r->id != id && r->request_id != id)) continue;
      auto ms = [](int64_t ns) { return static_cast<double>(ns / 1000) / 1000; };
      all.push_back({{"id", r->id},
                     {"request_id", r->request_id},
                     {"path", r->path},
                     {"reason", r->reason},
                     {"ended", r->ended_ns / 1'000'000'000},
                     {"queue_ms", ms(r->queue_ns)},
                     {"prefill_ms", ms(r->prefill_ns)},
                     {"decode_ms", ms(r->decode_ns)},
                     {"total_ms", ms(r->total_ns)},
                     {"prompt_tokens", r->prompt_tokens},
                     {"cached_tokens", r->cached_tokens},
                     {"output_tokens", r->output_tokens},
                     {"drafted_tokens", r->drafted_tokens},
                     {"accepted_tokens", r->accepted_tokens}});
    }
    return all;
  }

 private:
  const size_t most_;
  mutable std::mutex mutex_;
  std::deque<RecentRequest> list_;
};

}  // namespace deepinfer
