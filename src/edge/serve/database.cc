// Database over SQLite (edge/serve/database.h), the only file that sees it.
#include "edge/serve/database.h"

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace deepinfer {
namespace {

constexpr auto kBatchDelay = std::chrono::milliseconds(50);
constexpr auto kRetryDelay = std::chrono::seconds(1);

// One prepared statement, reset after use.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { sqlite3_prepare_v2(db, sql, -1, &s_, nullptr); }
  ~Statement() { sqlite3_finalize(s_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  Statement& bind(const std::string& v) {
    sqlite3_bind_text(s_, ++at_, v.data(), static_cast<int>(v.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(int64_t v) {
    sqlite3_bind_int64(s_, ++at_, v);
    return *this;
  }
  int step() { return s_ == nullptr ? SQLITE_ERROR : sqlite3_step(s_); }
  std::string text(int column) {
    const auto* p = sqlite3_column_text(s_, column);
    return p == nullptr ? std::string()
                        : std::string(reinterpret_cast<const char*>(p),
                                      static_cast<size_t>(sqlite3_column_bytes(s_, column)));
  }
  int64_t number(int column) { return sqlite3_column_int64(s_, column); }

 private:
  sqlite3_stmt* s_ = nullptr;
  int at_ = 0;
};

class SqliteDatabase : public Database {
 public:
  ~SqliteDatabase() override {
    {
      std::lock_guard lock(queue_mutex_);
      stop_ = true;
    }
    queued_.notify_all();
    if (thread_.joinable()) thread_.join();
    sqlite3_close(db_);
  }

  Status open(DatabaseOptions o) {
    o_ = std::move(o);
    const std::string path = o_.path.empty() ? ":memory:" : o_.path;
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK)
      return error(Code::kIo, "{}: {}", path, sqlite3_errmsg(db_));
    sqlite3_busy_timeout(db_, 5000);
    const char* setup =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        "CREATE TABLE IF NOT EXISTS responses(tenant TEXT, id TEXT, created INTEGER, object TEXT, items "
        "TEXT, bytes "
        "INTEGER, PRIMARY KEY(tenant, id));"
        "CREATE INDEX IF NOT EXISTS responses_by_age ON responses(created);"
        "CREATE TABLE IF NOT EXISTS usage(id TEXT PRIMARY KEY, time_ns INTEGER, tenant TEXT, key_id TEXT, "
        "endpoint TEXT, "
        "model TEXT, reason TEXT, prompt INTEGER, cached INTEGER, output INTEGER, reasoning INTEGER);";
    char* message = nullptr;
    int rc = sqlite3_exec(db_, setup, nullptr, nullptr, &message);
    std::string why = message == nullptr ? "" : message;
    sqlite3_free(message);
    if (rc != SQLITE_OK)
      return error(rc == SQLITE_NOTADB || rc == SQLITE_CORRUPT ? Code::kInvalidData : Code::kIo, "{}: {}",
                   path, why);
    if (o_.recover) {
      Statement s(db_, "UPDATE usage SET reason=? WHERE reason=?");
      s.bind(std::string(kUsageCrashed)).bind(std::string(kUsageRunning));
      if (s.step() != SQLITE_DONE) return error(Code::kIo, "{}: {}", path, sqlite3_errmsg(db_));
    }
    thread_ = std::thread([this] { loop(); });
    return {};
  }

  void put(StoredResponse r) override {
    std::lock_guard lock(queue_mutex_);
    if (full()) return;
    auto row = std::make_shared<StoredResponse>(std::move(r));
    pending_[{row->tenant, row->id}] = row;
    queue_.push_back({row, {}, {}});
    queued_.notify_one();
  }

  Result<StoredResponse> get(const std::string& tenant, const std::string& id) override {
    {
      std::lock_guard lock(queue_mutex_);
      auto it = pending_.find({tenant, id});
      if (it != pending_.end() && it->second == nullptr) return missing(id);
      if (it != pending_.end()) return *it->second;
    }
    std::lock_guard lock(db_mutex_);
    Statement s(db_, "SELECT created, object, items FROM responses WHERE tenant=? AND id=?");
    s.bind(tenant).bind(id);
    if (s.step() != SQLITE_ROW) return missing(id);
    return StoredResponse{tenant, id, s.number(0), s.text(1), s.text(2)};
  }

  Status erase(const std::string& tenant, const std::string& id) override {
    auto there = get(tenant, id);
    if (!there.ok()) return there.status();
    std::lock_guard lock(queue_mutex_);
    if (full()) return error(Code::kUnavailable, "the database cannot be written now: {}", health_.message());
    pending_[{tenant, id}] = nullptr;
    queue_.push_back({nullptr, {}, std::pair{tenant, id}});
    queued_.notify_one();
    return {};
  }

  void record(UsageRow row) override {
    std::lock_guard lock(queue_mutex_);
    if (full()) return;
    queue_.push_back({nullptr, std::move(row), {}});
    queued_.notify_one();
  }
  bool durable() const override { return !o_.path.empty(); }

  Result<std::vector<UsageTotal>> totals(int64_t since_ns, const std::string& tenant) override {
    flush();
    std::lock_guard lock(db_mutex_);
    Statement s(
        db_,
        "SELECT tenant, key_id, count(*), sum(prompt), sum(cached), sum(output), sum(reasoning) FROM usage "
        "WHERE time_ns>=? AND (?='' OR tenant=?) GROUP BY tenant, key_id ORDER BY tenant, key_id");
    s.bind(since_ns).bind(tenant).bind(tenant);
    std::vector<UsageTotal> all;
    int rc;
    while ((rc = s.step()) == SQLITE_ROW) {
      all.push_back({s.text(0), s.text(1), s.number(2), s.number(3), s.number(4), s.number(5), s.number(6)});
    }
    if (rc != SQLITE_DONE) return error(Code::kIo, "{}: {}", o_.path, sqlite3_errmsg(db_));
    return all;
  }

  void flush() override {
    std::unique_lock lock(queue_mutex_);
    const uint64_t rounds = rounds_;
    hurry_ = true;
    queued_.notify_one();
    // Until the queue is empty and nothing is being written, or a round failed.
    written_.wait(lock,
                  [&] { return (queue_.empty() && !writing_) || (rounds_ > rounds + 1 && !health_.ok()); });
    hurry_ = false;
  }

  Status health() const override {
    std::lock_guard lock(queue_mutex_);
    return health_;
  }
  int64_t dropped() const override {
    std::lock_guard lock(queue_mutex_);
    return dropped_;
  }

 private:
  struct Job {
    std::shared_ptr<StoredResponse> response;
    std::optional<UsageRow> usage;
    std::optional<std::pair<std::string, std::string>> erased;
  };

  static Status missing(const std::string& id) {
    return error(Code::kNotFound, "Response with id '{}' not found.", id);
  }

  // Nobody waits for a disk that cannot be written: what does not fit is dropped and counted.
  bool full() {
    if (static_cast<int64_t>(queue_.size()) < o_.most_queued) return false;
    ++dropped_;
    return true;
  }

  void loop() {
    std::unique_lock lock(queue_mutex_);
    while (true) {
      queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      // Rows of the next moment share one commit.
      if (!stop_ && !hurry_) queued_.wait_for(lock, kBatchDelay, [&] { return stop_ || hurry_; });
      std::deque<Job> batch;
      batch.swap(queue_);
      writing_ = true;
      lock.unlock();
      Status s = write(batch);
      lock.lock();
      writing_ = false;
      health_ = s;
      ++rounds_;
      if (s.ok()) {
        forget_pending(batch);
      } else if (!stop_) {
        queue_.insert(queue_.begin(), std::make_move_iterator(batch.begin()),
                      std::make_move_iterator(batch.end()));
      }
      written_.notify_all();
      if (!s.ok() && !stop_) queued_.wait_for(lock, kRetryDelay, [&] { return stop_; });
    }
  }

  // What is in the file now need not be remembered, unless a later job replaced it.
  void forget_pending(const std::deque<Job>& batch) {
    for (const Job& job : batch) {
      if (job.usage) continue;
      auto key = job.erased ? *job.erased : std::pair{job.response->tenant, job.response->id};
      auto it = pending_.find(key);
      if (it != pending_.end() && it->second == job.response) pending_.erase(it);
    }
  }

  Status write(const std::deque<Job>& batch) {
    std::lock_guard lock(db_mutex_);
    auto run = [&](const char* sql) {
      return sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK;
    };
    auto failed = [&] {
      Status s = error(Code::kIo, "{}: {}", o_.path, sqlite3_errmsg(db_));
      run("ROLLBACK");
      return s;
    };
    if (!run("BEGIN IMMEDIATE")) return failed();
    bool stored = false;
    for (const Job& job : batch) {
      if (!write(job)) return failed();
      stored = stored || job.response;
    }
    if (stored && !trim()) return failed();
    if (!run("COMMIT")) return failed();
    return {};
  }

  bool write(const Job& job) {
    if (job.response) {
      const StoredResponse& r = *job.response;
      Statement s(db_, "INSERT OR REPLACE INTO responses VALUES(?,?,?,?,?,?)");
      s.bind(r.tenant).bind(r.id).bind(r.created).bind(r.object).bind(r.items);
      s.bind(static_cast<int64_t>(r.object.size() + r.items.size()));
      return s.step() == SQLITE_DONE;
    }
    if (job.erased) {
      Statement s(db_, "DELETE FROM responses WHERE tenant=? AND id=?");
      s.bind(job.erased->first).bind(job.erased->second);
      return s.step() == SQLITE_DONE;
    }
    const UsageRow& u = *job.usage;
    // Rows arrive in the order they were made, so a later running row knows more than an earlier one.
    Statement s(db_,
                "INSERT INTO usage VALUES(?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
                "time_ns=excluded.time_ns, reason=excluded.reason, prompt=excluded.prompt, "
                "cached=excluded.cached, output=excluded.output, reasoning=excluded.reasoning "
                "WHERE usage.reason IN ('running','crashed')");
    s.bind(u.id).bind(u.time_ns).bind(u.tenant).bind(u.key_id).bind(u.endpoint).bind(u.model).bind(u.reason);
    s.bind(u.prompt_tokens).bind(u.cached_tokens).bind(u.output_tokens).bind(u.reasoning_tokens);
    return s.step() == SQLITE_DONE;
  }

  // The oldest responses go first, a tenth at a time.
  bool trim() {
    for (int round = 0; round < 64; ++round) {
      Statement s(db_, "SELECT count(*), coalesce(sum(bytes), 0) FROM responses");
      if (s.step() != SQLITE_ROW) return false;
      const int64_t rows = s.number(0);
      if (rows == 0 || (rows <= o_.most_responses && s.number(1) <= o_.most_response_bytes)) return true;
      Statement d(db_,
                  "DELETE FROM responses WHERE rowid IN (SELECT rowid FROM responses ORDER BY created, rowid "
                  "LIMIT ?)");
      d.bind(std::max<int64_t>(rows > o_.most_responses ? rows - o_.most_responses : rows / 10, 1));
      if (d.step() != SQLITE_DONE) return false;
    }
    return true;
  }

  DatabaseOptions o_;
  sqlite3* db_ = nullptr;
  std::mutex db_mutex_;
  mutable std::mutex queue_mutex_;
  std::condition_variable queued_, written_;
  std::deque<Job> queue_;
  // Not yet in the file; null: erased.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<StoredResponse>> pending_;
  Status health_;
  uint64_t rounds_ = 0;
  int64_t dropped_ = 0;
  bool stop_ = false, writing_ = false, hurry_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Database>> Database::open(DatabaseOptions options) {
  auto db = std::make_unique<SqliteDatabase>();
  if (Status s = db->open(std::move(options)); !s.ok()) return s;
  return std::unique_ptr<Database>(std::move(db));
}

}  // namespace deepinfer
