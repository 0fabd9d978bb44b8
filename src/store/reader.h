// Reads of records or their parts, many at a time: io_uring with direct input into registered memory where
// the kernel allows it, threads with plain reads where not. What is done with the bytes happens on other
// threads than asking for the next ones: a device that is as quick as a checksum would wait for it. Checks
// nothing and knows no format. Memory is bounded: reads that find no buffer wait. Source: issue "persistent
// KV store"; docs/store.md has the measured share of the disk. Threads: submit() from any; `done` comes on
// the reader's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "store/disk.h"

namespace deepinfer::store {

struct ReadOp {
  std::shared_ptr<const File> file;
  int64_t offset = 0, bytes = 0;  // multiples of a page
  // Not begun when its rank is not below the limit by then; null: there is none.
  std::shared_ptr<const std::atomic<size_t>> limit;
  size_t rank = 0;
  // The bytes are the callee's until it returns. Fewer than asked for: the file ends there.
  std::function<void(Status, std::span<const uint8_t>)> done;
};

struct ReaderOptions {
  int64_t memory_bytes = int64_t{16} << 20;
  int depth = 64;
  bool uring = true;              // false: threads, also where io_uring would work
  int64_t limit_bytes_per_s = 0;  // 0: as fast as it goes
};

class Reader {
 public:
  static std::unique_ptr<Reader> make(const ReaderOptions& options);
  virtual ~Reader() = default;  // what was not begun ends with kCancelled
  virtual void submit(std::vector<ReadOp> ops) = 0;
  virtual bool uses_uring() const = 0;
  virtual int64_t queued() const = 0;
};

}  // namespace deepinfer::store
