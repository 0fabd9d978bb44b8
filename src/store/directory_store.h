// A store in a directory of a local or shared file system. The truth is the segment files; the index in
// memory is rebuilt from the manifests at start (and from the segments where a manifest is damaged), and
// follows what other processes write. One thread writes, one reads (io_uring), one keeps house: heartbeat,
// other processes' news, retention, space. No lock is held over input or output, and no file is written by
// two processes. Source: serving specification 7; docs/store.md. Threads: as KvStore.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "policy/store_retention.h"
#include "store/index.h"
#include "store/kv_store.h"
#include "store/reader.h"

namespace deepinfer::store {

struct DirectoryOptions {
  std::string path;
  policy::RetentionRules retention;
  int64_t segment_bytes = int64_t{1} << 30;
  int64_t write_memory_bytes = int64_t{64} << 20;
  int64_t read_memory_bytes = int64_t{16} << 20;
  int64_t manifest_bytes = int64_t{256} << 20;  // a longer one ends the generation
  int read_depth = 16;   // of every directory; more only lengthens the queue (docs/store.md)
  bool create = true;    // the directory may be empty or missing
  bool writable = true;  // false: no generation of its own; reads and lists
  bool sync = false;     // acknowledged also against a power cut, not only against a crash of the process
  bool direct = true, uring = true;
  int64_t limit_bytes_per_s = 0;  // of reads and of writes; 0: as fast as it goes
  int64_t refresh_ns = 100'000'000;
  int64_t heartbeat_ns = 2'000'000'000;
  int64_t silent_ns = policy::kOwnerSilentNs;
  int64_t lease_ns = policy::kReadLeaseNs;
  int64_t grace_ns = 20'000'000'000;   // from an erasure to the reuse of its space
  std::function<int64_t()> wall_s;     // seconds since 1970; null: the system's
  std::function<int64_t()> monotonic;  // nanoseconds; null: the system's
  std::function<std::unique_ptr<Reader>(const ReaderOptions&)> reader;  // null: Reader::make
};

struct ListedObject {
  IndexEntry entry;
  uint64_t generation = 0;
};

class DirectoryStore : public KvStore {
 public:
  // kNotFound, kInvalidData, kInvalidConfig, kIo: why it cannot be used. Reads every manifest before it
  // returns: 96 bytes per object.
  static Result<std::unique_ptr<DirectoryStore>> open(const DirectoryOptions& options);

  // Writes and reads one block, then erases it.
  virtual Status self_check() = 0;
  // What the house-keeping thread does by and by, now: others' news, claims, retention, space.
  virtual void keep_house() = 0;
  virtual std::vector<ListedObject> list(size_t most) = 0;
  // Evicts the least recently used until at most so many bytes are held; returns how many objects went.
  virtual int64_t shrink(int64_t bytes) = 0;
  virtual uint32_t now_s() const = 0;
  // Payload bytes of an object that is there; -1: it is not.
  virtual int64_t payload_of(Kind kind, const Key& key) const = 0;
  virtual int64_t reads_waiting() const = 0;
};

}  // namespace deepinfer::store
