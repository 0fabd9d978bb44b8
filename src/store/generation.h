// A generation: the directory of one incarnation of one process, which alone writes there. Its segments hold
// records, its manifest makes them visible, its heartbeat shows that it lives. Nobody ever continues a file
// of an earlier incarnation, so a torn end is never written over; who comes after a dead owner claims its
// directory with a file that can be made once. Source: docs/store.md. Threads: one at a time, but for static
// functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/disk.h"
#include "store/record.h"

namespace deepinfer::store {

// Names inside a store's directory.
std::string generation_name(uint64_t generation);                // "g-0000000000000001"
std::optional<uint64_t> generation_of(const std::string& name);  // nullopt: another file
std::string segment_name(uint32_t segment);                      // "00000001.seg"
std::optional<uint32_t> segment_of(const std::string& name);
// The marker that says this directory is a store, and of which format; made when it is missing.
Status check_store_directory(const std::string& path, bool create);

struct Heartbeat {
  uint64_t beat = 0;
  int64_t store_time_s = 0;
};
Result<Heartbeat> read_heartbeat(const std::string& generation_path);

// Who looks after a directory whose owner is gone: the last of its claims. 0: nobody yet.
struct Claim {
  uint32_t number = 0;
  uint64_t by = 0;  // generation
};
Claim last_claim(const std::string& generation_path);
// False when somebody else was quicker.
bool make_claim(const std::string& generation_path, uint32_t number, uint64_t by);

struct NewRecord {
  RecordHeader header;  // place and checksum are set here
  Buffer record;        // payload at kRecordHeaderBytes
  uint32_t expires_s = 0;
};

struct WriterOptions {
  int64_t segment_bytes = int64_t{1} << 30;
  bool sync = false;  // flushed to the device before a record is visible: survives a power cut
  bool direct = true;
  int64_t limit_bytes_per_s = 0;
};

class GenerationWriter {
 public:
  // Makes the next generation's directory and takes its lock.
  static Result<std::unique_ptr<GenerationWriter>> create(const std::string& store_path,
                                                          const WriterOptions& options);
  uint64_t generation() const { return generation_; }
  const std::string& path() const { return path_; }
  int64_t manifest_bytes() const { return manifest_at_; }

  // Writes the records and then their commit entries; on return they are visible to everybody. On an error
  // none of the records is: kResourceExhausted when there is no room, kUnavailable when somebody else has
  // claimed this directory (a new generation is to be made).
  Status append(std::span<NewRecord> records);
  // Erasures and touches.
  Status note(std::vector<ManifestEntry> entries);
  Status beat(int64_t store_time_s);

 private:
  GenerationWriter() = default;
  Status place(std::span<NewRecord> records);
  Status write_segment(std::span<NewRecord> records);

  std::string path_;
  uint64_t generation_ = 0;
  WriterOptions options_;
  File manifest_, alive_, segment_;
  int64_t manifest_at_ = 0;
  uint64_t sequence_ = 0, beat_ = 0;
  uint32_t segment_number_ = 0;
  int64_t segment_at_ = 0;
  int64_t throttle_free_ns_ = 0;
};

}  // namespace deepinfer::store
