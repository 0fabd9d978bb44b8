// The ring's thread with its helpers, and the fallback's threads.
#include "store/reader.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "host/clock.h"
#include "store/record.h"

namespace deepinfer::store {
namespace {

bool is_cancelled(const ReadOp& op) {
  return op.limit != nullptr && op.rank >= op.limit->load(std::memory_order_relaxed);
}

Status cancelled_status() {
  return error(Code::kCancelled, "the read was given up before it began");
}

// Spends time so that bytes pass at most at the given rate.
class Throttle {
 public:
  explicit Throttle(int64_t bytes_per_s) : rate_(bytes_per_s) {}
  bool limits() const { return rate_ > 0; }
  void pass(int64_t bytes) {
    if (rate_ <= 0) return;
    std::unique_lock lock(mutex_);
    int64_t now = now_ns();
    free_ns_ = std::max(free_ns_, now) +
               static_cast<int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(rate_));
    int64_t wait = free_ns_ - now;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
  }

 private:
  const int64_t rate_;
  std::mutex mutex_;
  int64_t free_ns_ = 0;
};

// Pages of one region, always the first free ones: what a device writes and a helper reads at once stays in
// a cache as long as few pages do it again and again.
class Region {
 public:
  explicit Region(int64_t bytes) : memory_(make_buffer(bytes)) { free_[0] = memory_.bytes; }
  // Null when no run of pages is long enough now.
  uint8_t* take(int64_t bytes) {
    auto holds = [&](const auto& run) { return run.second >= bytes; };
    auto it = std::find_if(free_.begin(), free_.end(), holds);
    if (it == free_.end()) return nullptr;
    auto [at, run_bytes] = *it;
    free_.erase(it);
    if (run_bytes > bytes) free_[at + bytes] = run_bytes - bytes;
    return memory_.data.get() + at;
  }
  void give(uint8_t* p, int64_t bytes) {
    int64_t at = p - memory_.data.get();
    auto next = free_.lower_bound(at);
    if (next != free_.end() && at + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    free_[at] = bytes;
  }
  const Buffer& memory() const { return memory_; }

 private:
  Buffer memory_;
  std::map<int64_t, int64_t> free_;  // bytes by place
};

class ThreadReader final : public Reader {
 public:
  explicit ThreadReader(const ReaderOptions& o) : throttle_(o.limit_bytes_per_s) {
    constexpr int kThreads = 4;
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadReader() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
    for (ReadOp& op : queue_) op.done(cancelled_status(), {});
  }
  void submit(std::vector<ReadOp> ops) override {
    {
      std::lock_guard lock(mutex_);
      for (ReadOp& op : ops) queue_.push_back(std::move(op));
    }
    changed_.notify_all();
  }
  bool uses_uring() const override { return false; }
  int64_t queued() const override {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(queue_.size());
  }

 private:
  void run() {
    Buffer buffer;
    for (;;) {
      ReadOp op;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        op = std::move(queue_.front());
        queue_.pop_front();
      }
      if (is_cancelled(op)) {
        op.done(cancelled_status(), {});
        continue;
      }
      if (buffer.bytes < op.bytes) buffer = make_buffer(op.bytes);
      Result<size_t> n = read_at(*op.file, buffer.span().first(static_cast<size_t>(op.bytes)), op.offset);
      throttle_.pass(op.bytes);
      if (n.ok()) {
        op.done({}, buffer.span().first(*n));
      } else {
        op.done(n.status(), {});
      }
    }
  }

  Throttle throttle_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReadOp> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

class UringReader final : public Reader {
 public:
  // Null where the kernel or a sandbox does not allow it.
  static std::unique_ptr<UringReader> make(const ReaderOptions& o) {
    std::unique_ptr<UringReader> r(new UringReader(o));
    if (r->wake_fd_ < 0) return nullptr;
    if (io_uring_queue_init(static_cast<unsigned>(o.depth) + 1, &r->ring_, 0) != 0) return nullptr;
    r->ring_open_ = true;
    iovec all{r->region_.memory().data.get(), static_cast<size_t>(r->region_.memory().bytes)};
    r->registered_ = io_uring_register_buffers(&r->ring_, &all, 1) == 0;
    r->thread_ = std::thread([p = r.get()] { p->run(); });
    for (size_t i = 0; i < kHelpers; ++i) r->helpers_.emplace_back([p = r.get(), i] { p->help(i); });
    return r;
  }
  ~UringReader() override {
    if (thread_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        stop_ = true;
      }
      wake();
      thread_.join();
      {
        std::lock_guard lock(mutex_);
        stop_helpers_ = true;
      }
      for (std::condition_variable& c : ended_changed_) c.notify_all();
      for (std::thread& t : helpers_) t.join();
    }
    for (ReadOp& op : queue_) op.done(cancelled_status(), {});
    if (ring_open_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }
  void submit(std::vector<ReadOp> ops) override {
    {
      std::lock_guard lock(mutex_);
      for (ReadOp& op : ops) queue_.push_back(std::move(op));
    }
    wake();
  }
  bool uses_uring() const override { return true; }
  int64_t queued() const override {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(queue_.size()) + in_flight_;
  }

 private:
  // One helper keeps up with a device of some 10 GB/s, and two take from each other what they share; the
  // second is for when reads wait for the first.
  static constexpr size_t kHelpers = 2, kBacklog = 4;

  struct Flying {
    ReadOp op;
    uint8_t* at = nullptr;
    Buffer own;  // when it was too large for the region
    int result = 0;
  };

  explicit UringReader(const ReaderOptions& o)
      : depth_(o.depth),
        region_(o.memory_bytes),
        throttle_(o.limit_bytes_per_s),
        wake_fd_(::eventfd(0, EFD_CLOEXEC)) {}

  void wake() {
    uint64_t one = 1;
    // A counter that is full is a wake-up that is due anyway.
    [[maybe_unused]] ssize_t n = ::write(wake_fd_, &one, sizeof(one));
  }

  void arm_wake() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, wake_fd_, &wake_value_, sizeof(wake_value_), 0);
    io_uring_sqe_set_data(sqe, nullptr);
  }

  // The device gets an eighth of the memory, which keeps it busy and stays in the caches; the rest is for
  // helpers that lag behind. With a limit, what they have counts too: reads shall not run ahead of the limit.
  bool has_room() const {
    return (throttle_.limits() ? in_flight_ : in_device_) < depth_ &&
           (in_device_ == 0 || device_bytes_ < region_.memory().bytes / 8);
  }

  // Puts as many reads into the ring as buffers and places allow. Those given up meanwhile end here.
  void fill() {
    std::vector<ReadOp> over;
    std::unique_lock lock(mutex_);
    starved_ = false;
    while (!stop_ && !queue_.empty() && has_room()) {
      if (is_cancelled(queue_.front())) {
        over.push_back(std::move(queue_.front()));
        queue_.pop_front();
        continue;
      }
      auto flying = std::make_unique<Flying>();
      int64_t bytes = queue_.front().bytes;
      if (bytes > region_.memory().bytes / 2) {
        flying->own = make_buffer(bytes);
        flying->at = flying->own.data.get();
      } else {
        flying->at = region_.take(bytes);
        if (flying->at == nullptr) {
          starved_ = true;
          break;
        }
      }
      flying->op = std::move(queue_.front());
      queue_.pop_front();
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      const ReadOp& op = flying->op;
      unsigned n = static_cast<unsigned>(bytes);
      uint64_t offset = static_cast<uint64_t>(op.offset);
      if (registered_ && flying->own.bytes == 0) {
        io_uring_prep_read_fixed(sqe, op.file->fd(), flying->at, n, offset, 0);
      } else {
        io_uring_prep_read(sqe, op.file->fd(), flying->at, n, offset);
      }
      io_uring_sqe_set_data(sqe, flying.release());
      ++in_flight_;
      ++in_device_;
      device_bytes_ += bytes;
    }
    starved_ = starved_ || (throttle_.limits() && !queue_.empty());
    lock.unlock();
    for (ReadOp& op : over) op.done(cancelled_status(), {});
  }

  void finish(std::unique_ptr<Flying> f) {
    int result = f->result;
    throttle_.pass(f->op.bytes);
    if (result < 0) {
      f->op.done(error(Code::kIo, "cannot read {}: error {}", f->op.file->path(), -result), {});
    } else {
      size_t n = static_cast<size_t>(result);
      std::span<uint8_t> all(f->at, static_cast<size_t>(f->op.bytes));
      if (n > 0 && n < all.size() && n % kPage == 0) {
        // A read may end early for no reason of the file's.
        Result<size_t> rest = read_at(*f->op.file, all.subspan(n), f->op.offset + result);
        if (rest.ok()) n += *rest;
      }
      f->op.done({}, all.first(n));
    }
    bool wanted = false;
    {
      std::lock_guard lock(mutex_);
      if (f->own.bytes == 0) region_.give(f->at, f->op.bytes);
      --in_flight_;
      wanted = starved_;
    }
    if (wanted) wake();
  }

  // A helper: what was read is checked and put where it belongs.
  void help(size_t number) {
    std::unique_lock lock(mutex_);
    for (;;) {
      ended_changed_[number].wait(lock, [&] { return stop_helpers_ || ended_.size() > number * kBacklog; });
      if (ended_.empty()) return;
      std::unique_ptr<Flying> f = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      finish(std::move(f));
      lock.lock();
    }
  }

  // Takes what the ring has to say.
  void reap() {
    io_uring_cqe* cqe = nullptr;
    size_t waiting = 0;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      std::unique_ptr<Flying> f(static_cast<Flying*>(io_uring_cqe_get_data(cqe)));
      if (f == nullptr) {
        arm_wake();
      } else {
        f->result = cqe->res;
        std::lock_guard lock(mutex_);
        device_bytes_ -= f->op.bytes;
        ended_.push_back(std::move(f));
        --in_device_;
        waiting = ended_.size();
      }
      io_uring_cqe_seen(&ring_, cqe);
    }
    for (size_t i = 0; i < kHelpers; ++i) {
      if (waiting > i * kBacklog) ended_changed_[i].notify_one();
    }
  }

  void run() {
    arm_wake();
    for (;;) {
      fill();
      if (io_uring_submit_and_wait(&ring_, 1) < 0) continue;
      reap();
      std::lock_guard lock(mutex_);
      if (stop_ && in_device_ == 0) return;
    }
  }

  const int depth_;
  Region region_;
  Throttle throttle_;
  int wake_fd_ = -1;
  uint64_t wake_value_ = 0;
  io_uring ring_{};
  bool ring_open_ = false, registered_ = false;
  mutable std::mutex mutex_;
  std::deque<ReadOp> queue_;
  int in_flight_ = 0, in_device_ = 0;  // not handed out yet; of these, not read yet
  int64_t device_bytes_ = 0;           // of the latter
  bool starved_ = false;               // a read waits for what a helper gives back
  std::deque<std::unique_ptr<Flying>> ended_;
  std::condition_variable ended_changed_[kHelpers];
  bool stop_ = false, stop_helpers_ = false;
  std::thread thread_;
  std::vector<std::thread> helpers_;
};

}  // namespace

std::unique_ptr<Reader> Reader::make(const ReaderOptions& options) {
  if (options.uring) {
    if (auto ring = UringReader::make(options)) return ring;
  }
  return std::make_unique<ThreadReader>(options);
}

}  // namespace deepinfer::store
