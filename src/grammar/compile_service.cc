// Queue, single flight and cache.
#include "grammar/compile_service.h"

#include <algorithm>
#include <optional>

namespace deepinfer::grammar {

CompileService::Ticket::Ticket(Ticket&& other) noexcept : service_(other.service_), id_(other.id_) {
  other.service_ = nullptr;
}
CompileService::Ticket& CompileService::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    cancel();
    service_ = other.service_;
    id_ = other.id_;
    other.service_ = nullptr;
  }
  return *this;
}
void CompileService::Ticket::cancel() {
  if (service_ != nullptr) service_->withdraw(id_);
  service_ = nullptr;
}

CompileService::CompileService(std::shared_ptr<const Vocabulary> vocabulary,
                               const CompileServiceOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  for (int i = 0; i < std::max(1, options_.workers); ++i) workers_.emplace_back([this] { work(); });
}

CompileService::~CompileService() {
  stop();
}

void CompileService::stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    for (const std::shared_ptr<Job>& j : jobs_) j->cancelled = true;
  }
  work_.notify_all();
  for (std::thread& t : workers_) t.join();
  std::list<std::shared_ptr<Job>> left;
  {
    std::lock_guard lock(mutex_);
    left.swap(jobs_);
  }
  for (const std::shared_ptr<Job>& j : left) {
    for (const auto& [ticket, done] : j->waiting) done(Status(Code::kCancelled, "the server is stopping"));
  }
}

CompileService::Allowance& CompileService::allowance(const std::string& tenant) {
  const auto now = std::chrono::steady_clock::now();
  const auto most = static_cast<double>(options_.tenant_ms_per_minute);
  auto refill = [&](Allowance* a) {
    const double ms = std::chrono::duration<double, std::milli>(now - a->at).count();
    a->left_ms = std::min(most, a->left_ms + ms * most / 60'000);
    a->at = now;
  };
  auto it = allowances_.find(tenant);
  if (it == allowances_.end()) {
    // Who has everything left needs no entry, so that many names do not add up.
    if (allowances_.size() >= 1024) {
      for (auto& [name, a] : allowances_) refill(&a);
      std::erase_if(allowances_, [&](const auto& e) { return e.second.left_ms >= most; });
    }
    it = allowances_.emplace(tenant, Allowance{most, now}).first;
  }
  refill(&it->second);
  return it->second;
}

Status CompileService::may_queue(const std::string& tenant) {
  if (stopping_) return Status(Code::kCancelled, "the server is stopping");
  size_t waiting = 0, of_tenant = 0;
  for (const auto& j : jobs_) {
    if (j->running) continue;
    ++waiting;
    if (j->tenant == tenant) ++of_tenant;
  }
  if (waiting >= options_.queue || of_tenant >= std::max<size_t>(1, options_.queue / 2)) {
    ++counters_.refused;
    return error(Code::kUnavailable, "{} grammars are waiting to be compiled already; try again later",
                 waiting);
  }
  if (allowance(tenant).left_ms <= 0) {
    ++counters_.over_allowance;
    return error(Code::kResourceExhausted,
                 "new grammars and schemas have taken more than {} ms to compile in the last minute; try "
                 "again later",
                 options_.tenant_ms_per_minute);
  }
  return {};
}

CompileService::Ticket CompileService::request(const GrammarSource& source, Done done,
                                               const std::string& tenant) {
  Digest id = identity(source);
  std::optional<Compiled> known;
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    ++counters_.requests;
    auto it = cache_.find(id);
    if (it != cache_.end() && it->second.grammar == nullptr &&
        it->second.until < std::chrono::steady_clock::now()) {
      order_.erase(it->second.order);
      counters_.cache_bytes -= it->second.bytes;
      cache_.erase(it);
      it = cache_.end();
    }
    if (it != cache_.end()) {
      ++counters_.cache_hits;
      order_.splice(order_.begin(), order_, it->second.order);
      known = it->second.grammar != nullptr ? Compiled(it->second.grammar) : Compiled(it->second.failure);
    } else {
      auto job = std::find_if(jobs_.begin(), jobs_.end(),
                              [&](const auto& j) { return j->id == id && !j->cancelled; });
      if (job != jobs_.end()) {
        ++counters_.joined;
      } else {
        if (Status s = may_queue(tenant); !s.ok()) {
          known = Compiled(s);
        } else {
          auto made = std::make_shared<Job>();
          made->id = id;
          made->source = source;
          made->tenant = tenant;
          job = jobs_.insert(jobs_.end(), std::move(made));
          work_.notify_one();
        }
      }
      if (!known) {
        ticket.service_ = this;
        ticket.id_ = next_ticket_++;
        (*job)->waiting.emplace(ticket.id_, std::move(done));
      }
    }
  }
  if (known) done(*known);
  return ticket;
}

CompileService::Compiled CompileService::compile_now(const GrammarSource& source) {
  std::mutex mutex;
  std::condition_variable ready;
  std::optional<Compiled> out;
  Ticket ticket = request(source, [&](const Compiled& c) {
    std::lock_guard lock(mutex);
    out = c;
    ready.notify_one();
  });
  std::unique_lock lock(mutex);
  ready.wait(lock, [&] { return out.has_value(); });
  return *out;
}

void CompileService::withdraw(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  // A call that has begun is waited for, so that nothing it refers to goes away under it (unless it is this
  // thread's).
  idle_.wait(lock, [&] { return calling_ != ticket || calling_thread_ == std::this_thread::get_id(); });
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    if ((*it)->waiting.erase(ticket) == 0) continue;
    if ((*it)->waiting.empty()) {
      ++counters_.cancelled;
      (*it)->cancelled = true;
      if (!(*it)->running) jobs_.erase(it);
    }
    return;
  }
}

void CompileService::keep(const Digest& id, const Compiled& result) {
  Entry e;
  if (result.ok()) {
    e.grammar = *result;
    e.bytes = (*result)->memory_bytes() + 256;
    if (e.bytes > options_.entry_bytes) return;
  } else {
    if (result.status().code() == Code::kCancelled) return;
    e.failure = result.status();
    e.until = std::chrono::steady_clock::now() + options_.failure_life;
    e.bytes = 512 + e.failure.message().size();
  }
  if (cache_.count(id) != 0) return;
  order_.push_front(id);
  e.order = order_.begin();
  counters_.cache_bytes += e.bytes;
  cache_.emplace(id, std::move(e));
  while (counters_.cache_bytes > options_.cache_bytes && order_.size() > 1) {
    auto oldest = cache_.find(order_.back());
    counters_.cache_bytes -= oldest->second.bytes;
    cache_.erase(oldest);
    order_.pop_back();
    ++counters_.evicted;
  }
}

// The first in line whose tenant leaves a worker for others.
std::shared_ptr<CompileService::Job> CompileService::next_job() {
  const size_t most = static_cast<size_t>(std::max(1, options_.workers - 1));
  for (const std::shared_ptr<Job>& j : jobs_) {
    if (j->running) continue;
    auto busy = static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& other) {
      return other->running && other->tenant == j->tenant;
    }));
    if (busy < most) return j;
  }
  return nullptr;
}

void CompileService::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Job> job;
    work_.wait(lock, [&] { return stopping_ || (job = next_job()) != nullptr; });
    if (stopping_) return;
    job->running = true;
    const auto begin = std::chrono::steady_clock::now();
    lock.unlock();
    Compiled result = compile(job->source, vocabulary_, options_.limits, &job->cancelled);
    lock.lock();
    const auto end = std::chrono::steady_clock::now();
    // A grammar over a limit is wrong for every request; what is exhausted here is only an allowance.
    if (result.status().code() == Code::kResourceExhausted ||
        result.status().code() == Code::kDeadlineExceeded)
      result = Compiled(Status(Code::kInvalidArgument, result.status().message()));
    allowance(job->tenant).left_ms -= std::chrono::duration<double, std::milli>(end - begin).count();
    ++(result.ok() ? counters_.compiled : counters_.failed);
    if (!job->cancelled) keep(job->id, result);
    if (stopping_) return;  // the destructor answers those who wait
    // Called one by one without the lock; a ticket withdrawn meanwhile is not called.
    while (!job->waiting.empty()) {
      auto node = job->waiting.extract(job->waiting.begin());
      idle_.wait(lock, [&] { return calling_ == 0; });
      calling_ = node.key();
      calling_thread_ = std::this_thread::get_id();
      lock.unlock();
      node.mapped()(result);
      lock.lock();
      calling_ = 0;
      idle_.notify_all();
    }
    jobs_.remove(job);
    work_.notify_one();  // what could not run beside this one may now
  }
}

CompileService::Counters CompileService::counters() const {
  std::lock_guard lock(mutex_);
  Counters c = counters_;
  c.cache_entries = cache_.size();
  c.waiting = jobs_.size();
  return c;
}

}  // namespace deepinfer::grammar
