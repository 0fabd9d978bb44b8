// The timer thread and the bookkeeping of the engine without a model.
#include "engine/synthetic_engine.h"

#include <algorithm>
#include <chrono>

#include "host/clock.h"

namespace deepinfer {

SyntheticEngine::SyntheticEngine(SyntheticOptions options) : options_(std::move(options)) {
  DI_CHECK(!options_.script.empty(), "a synthetic engine needs a script");
  stats_.blocks_total = options_.blocks_total;
  thread_ = std::thread([this] { loop(); });
}

SyntheticEngine::~SyntheticEngine() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  ready_.notify_all();
  thread_.join();
}

int64_t SyntheticEngine::now_ns() const {
  return deepinfer::now_ns();
}

Result<RequestId> SyntheticEngine::submit(EngineRequest r) {
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  if (r.prompt.empty()) return error(Code::kInvalidArgument, "prompt: at least one token is needed");
  for (int32_t id : r.prompt) {
    if (id < 0 || id >= options_.vocab_size)
      return error(Code::kInvalidArgument, "prompt: id {} is outside the vocabulary of {}", id,
                   options_.vocab_size);
  }
  if (r.max_tokens < 1) return error(Code::kInvalidArgument, "max_tokens must be at least 1");
  if (r.choices < 1) return error(Code::kInvalidArgument, "choices must be at least 1");
  if (prompt > options_.context_tokens || r.max_tokens > options_.context_tokens - prompt)
    return error(Code::kInvalidArgument, "prompt of {} and max_tokens of {} exceed the context of {} tokens",
                 prompt, r.max_tokens, options_.context_tokens);
  DI_TRY(validate(r.sampling));
  std::lock_guard lock(mutex_);
  if (stats_.draining) return error(Code::kUnavailable, "the engine is draining");
  if (stats_.waiting + r.choices > options_.max_waiting + (options_.max_running - stats_.running)) {
    ++stats_.refused;
    return error(Code::kResourceExhausted, "the queue is full: {} choices wait", stats_.waiting);
  }
  const uint64_t id = ++last_id_;
  const int64_t now = now_ns();
  stats_.submitted += 1;
  for (int c = 0; c < r.choices; ++c) {
    Stream s;
    s.request = RequestId{id};
    s.choice = c;
    s.seed = r.sampling.seed;
    s.max_tokens = r.max_tokens;
    s.top_logprobs = r.top_logprobs;
    s.blocks = (prompt + r.max_tokens + options_.block_tokens - 1) / options_.block_tokens;
    s.deadline_ns = r.deadline_ns;
    s.usage.prompt_tokens = prompt;
    s.times.submitted_ns = now;
    Key key{id, c};
    if (s.deadline_ns > 0) deadlines_.insert({s.deadline_ns, key});
    streams_.emplace(key, std::move(s));
    waiting_.push(key);
    ++stats_.waiting;
  }
  work_.notify_one();
  return RequestId{id};
}

void SyntheticEngine::finish(Key key, Finish why, Status status, int64_t now) {
  auto it = streams_.find(key);
  Stream& s = it->second;
  if (s.running) {
    --stats_.running;
    stats_.blocks_used -= s.blocks;
  } else {
    --stats_.waiting;
  }
  if (s.deadline_ns > 0) deadlines_.erase({s.deadline_ns, key});
  switch (why) {
    case Finish::kCancelled:
      ++stats_.cancelled;
      break;
    case Finish::kDeadline:
      ++stats_.expired;
      break;
    default:
      ++stats_.finished;
  }
  EngineEvent e;
  e.kind = EngineEvent::Kind::kFinished;
  e.request = s.request;
  e.choice = s.choice;
  e.finish = why;
  e.status = std::move(status);
  e.usage = s.usage;
  e.times = s.times;
  e.times.finished_ns = now;
  tell(std::move(e));
  streams_.erase(it);
}

void SyntheticEngine::cancel(RequestId request) {
  std::lock_guard lock(mutex_);
  const uint64_t id = static_cast<uint64_t>(request);
  for (auto it = streams_.lower_bound({id, 0}); it != streams_.end() && it->first.first == id;) {
    Key key = (it++)->first;
    finish(key, Finish::kCancelled, {}, now_ns());
  }
  ready_.notify_all();
  work_.notify_one();
}

void SyntheticEngine::cancel_choice(RequestId request, int choice) {
  std::lock_guard lock(mutex_);
  Key key{static_cast<uint64_t>(request), choice};
  if (streams_.contains(key)) finish(key, Finish::kCancelled, {}, now_ns());
  ready_.notify_all();
  work_.notify_one();
}

std::vector<EngineEvent> SyntheticEngine::poll(int64_t wait_ns, Until until) {
  std::unique_lock lock(mutex_);
  poller_waits_for_ = until;
  auto something = [&] { return woken_ || stop_ || news_ || (until == Until::kAny && !events_.empty()); };
  if (wait_ns < 0) {
    ready_.wait(lock, something);
  } else {
    ready_.wait_for(lock, std::chrono::nanoseconds(wait_ns), something);
  }
  woken_ = news_ = false;
  return std::exchange(events_, {});
}

void SyntheticEngine::wake() {
  std::lock_guard lock(mutex_);
  woken_ = true;
  ready_.notify_all();
}

void SyntheticEngine::drain(int64_t grace_ns) {
  std::lock_guard lock(mutex_);
  stats_.draining = true;
  drain_at_ns_ = now_ns() + std::max<int64_t>(0, grace_ns);
  work_.notify_one();
}

bool SyntheticEngine::drained() const {
  std::lock_guard lock(mutex_);
  return stats_.draining && streams_.empty() && events_.empty();
}

EngineStats SyntheticEngine::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void SyntheticEngine::stall(bool stalled) {
  std::lock_guard lock(mutex_);
  stalled_ = stalled;
  work_.notify_one();
}

void SyntheticEngine::tell(EngineEvent e) {
  news_ = news_ || e.news();
  events_.push_back(std::move(e));
}

void SyntheticEngine::start_waiting(int64_t now) {
  const int64_t period =
      options_.tokens_per_s > 0 ? static_cast<int64_t>(1e9 / options_.tokens_per_s) : int64_t{0};
  while (!waiting_.empty() && stats_.running < options_.max_running) {
    Key key = waiting_.front();
    waiting_.pop();
    auto it = streams_.find(key);
    if (it == streams_.end()) continue;  // cancelled in line
    Stream& s = it->second;
    s.running = true;
    --stats_.waiting;
    ++stats_.running;
    stats_.blocks_used += s.blocks;
    stats_.prompt_tokens += s.usage.prompt_tokens;
    stats_.prefill_rows += s.usage.prompt_tokens;
    s.times.admitted_ns = now;
    EngineEvent e;
    e.request = s.request;
    e.choice = s.choice;
    e.usage = s.usage;
    tell(std::move(e));
    int64_t first = now + options_.first_token_ns;
    if (options_.aligned && period > 0) first = (first / period + 1) * period;
    due_.push({first, key});
  }
}

void SyntheticEngine::produce(Stream& s, int64_t now) {
  const int64_t end =
      options_.script_tokens > 0 ? std::min(options_.script_tokens, s.max_tokens) : s.max_tokens;
  const int64_t many = options_.tokens_per_s > 0 ? 1 : end - s.made;
  EngineEvent e;
  e.kind = EngineEvent::Kind::kTokens;
  e.first = s.made == 0;
  e.request = s.request;
  e.choice = s.choice;
  for (int64_t i = 0; i < many; ++i) {
    TokenEvent t;
    t.id = options_.script[static_cast<size_t>(s.made) % options_.script.size()];
    if (s.top_logprobs >= 0) t.logprob = -0.5;
    for (int k = 0; k < s.top_logprobs; ++k) {
      t.top.push_back({static_cast<int32_t>((t.id + k) % options_.vocab_size), -0.5 - k});
    }
    if (options_.on_token) options_.on_token(s.seed, s.choice, s.made, now);
    if (s.made == 0) s.times.first_token_ns = now;
    ++s.made;
    e.tokens.push_back(std::move(t));
  }
  s.usage.output_tokens = s.made;
  stats_.output_tokens += many;
  stats_.decode_rows += many;
  tell(std::move(e));
}

void SyntheticEngine::step(int64_t now) {
  const int64_t period =
      options_.tokens_per_s > 0 ? static_cast<int64_t>(1e9 / options_.tokens_per_s) : int64_t{0};
  start_waiting(now);
  bool any = false;
  while (!due_.empty() && due_.top().first <= now) {
    auto [when, key] = due_.top();
    due_.pop();
    auto it = streams_.find(key);
    if (it == streams_.end()) continue;
    any = true;
    produce(it->second, now);
    const Stream& s = it->second;
    if (s.made >= s.max_tokens) {
      finish(key, Finish::kLength, {}, now);
    } else if (options_.script_tokens > 0 && s.made >= options_.script_tokens) {
      finish(key, Finish::kStop, {}, now);
    } else {
      due_.push({when + period, key});
    }
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    finish(deadlines_.begin()->second, Finish::kDeadline,
           error(Code::kDeadlineExceeded, "the deadline passed"), now);
  }
  if (stats_.draining && now >= drain_at_ns_) {
    while (!streams_.empty()) finish(streams_.begin()->first, Finish::kCancelled, {}, now);
  }
  if (any) {
    ++stats_.steps;
    stats_.last_step_ns = now;
  }
}

int64_t SyntheticEngine::next_due(int64_t now) const {
  int64_t next = now + 1'000'000'000;
  if (!due_.empty()) next = std::min(next, due_.top().first);
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (stats_.draining && !streams_.empty()) next = std::min(next, drain_at_ns_);
  if (!waiting_.empty() && stats_.running < options_.max_running) next = now;
  return next;
}

void SyntheticEngine::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const int64_t now = now_ns();
    const int64_t next = next_due(now);
    if (stalled_) {
      work_.wait(lock);
      continue;
    }
    if (next > now) {
      work_.wait_for(lock, std::chrono::nanoseconds(next - now));
      continue;
    }
    step(now);
    if (news_ || (poller_waits_for_ == Until::kAny && !events_.empty())) ready_.notify_all();
  }
}

}  // namespace deepinfer
