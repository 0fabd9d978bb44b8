// The embedded database of the server: responses that later requests continue from (bounded), and the usage
// ledger. Writes are queued and committed by a thread of their own; what is queued is already visible to
// readers of the same process. Source: issue "the server" 2, 7. Errors: kIo, kInvalidData (not a database of
// ours), kNotFound. Threads: any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct StoredResponse {
  std::string tenant, id;
  int64_t created = 0;  // seconds
  std::string object;   // the response as it was answered, JSON
  std::string items;    // input and output items so far, a JSON array
};

// One generation request. `id` is unique: a row replaces the one of the same id while that says
// kUsageRunning (or kUsageCrashed, set for what a process left behind); a row of a request that ended never
// changes. So each request counts once, however often and by whomever it is written.
inline constexpr const char* kUsageRunning = "running";
inline constexpr const char* kUsageCrashed = "crashed";
struct UsageRow {
  std::string id, tenant, key_id, endpoint, model, reason;
  int64_t time_ns = 0;  // since 1970
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0;
};

struct UsageTotal {
  std::string tenant, key_id;
  int64_t requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0;
};

struct DatabaseOptions {
  std::string path;  // empty: in memory, gone with the process
  int64_t most_responses = 10'000;
  int64_t most_response_bytes = 256 << 20;
  int64_t most_queued = 100'000;  // rows not yet written; beyond, new ones are dropped
  bool recover = false;           // this process serves: requests another one left running have crashed
};

class Database {
 public:
  static Result<std::unique_ptr<Database>> open(DatabaseOptions options);
  virtual ~Database() = default;  // writes what is queued

  virtual void put(StoredResponse response) = 0;
  virtual Result<StoredResponse> get(const std::string& tenant, const std::string& id) = 0;
  // kNotFound if there is none.
  virtual Status erase(const std::string& tenant, const std::string& id) = 0;

  virtual void record(UsageRow row) = 0;
  // Rows outlive the process: there is a point in writing what still runs.
  virtual bool durable() const = 0;
  // Sums by tenant and key; `since_ns`, `tenant` empty or 0: everything.
  virtual Result<std::vector<UsageTotal>> totals(int64_t since_ns, const std::string& tenant) = 0;
  // Everything queued so far is in the file, or could not be written.
  virtual void flush() = 0;
  // The last write that failed (disk full, say); ok once one succeeds again. Rows of a failed batch are kept
  // and tried again.
  virtual Status health() const = 0;
  virtual int64_t dropped() const = 0;  // rows lost because too many waited
};

}  // namespace deepinfer
