// What a person does to a store: check every object, scrub, repair manifests, carry prefixes from one store
// to another. Source: docs/store.md. Errors: of the directory; damage is counted, not an error. Threads: one
// at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "store/directory_store.h"

namespace deepinfer::store {

struct VerifyReport {
  int64_t objects = 0, bytes = 0;
  int64_t damaged_objects = 0;     // their checksum, key or place is wrong, or their file is gone
  int64_t damaged_entries = 0;     // of manifests
  int64_t torn_bytes = 0;          // behind the last whole entry of manifests nobody writes; harmless
  std::vector<std::string> first;  // the first few, for a person
  bool sound() const { return damaged_objects == 0 && damaged_entries == 0; }
};
// Reads every object through the store. With a writable store the damaged ones are erased (scrub).
// Pause: nanoseconds of rest after every megabyte, so that a scrub does not take the disk from the service.
VerifyReport verify_objects(DirectoryStore* store, int64_t pause_ns);
// The manifests' side: damage and torn ends, from the files.
Status verify_manifests(const std::string& path, VerifyReport* report);

struct RepairReport {
  int64_t generations = 0, rewritten = 0, recovered_objects = 0, busy = 0;
};
// Writes anew the manifests that are damaged or gone, of generations whose owner is dead, from their
// segments.
Result<RepairReport> repair_manifests(const std::string& path);

struct CarryReport {
  int64_t objects = 0, bytes = 0, refused = 0, damaged = 0;
};
// All objects, the beginnings of prefixes first, to one file; and from such a file into a store. Damaged ones
// are left out and counted.
Result<CarryReport> export_objects(DirectoryStore* store, const std::string& file);
Result<CarryReport> import_objects(KvStore* store, const std::string& file, uint32_t now_s);

// kNotFound, kIo, kInvalidData: why it cannot be imported.
Status check_export_file(const std::string& file);

struct GenerationInfo {
  uint64_t generation = 0;
  bool alive = false;
  uint64_t claimed_by = 0;
  int64_t manifest_bytes = 0, segments = 0, segment_bytes = 0;
};
Result<std::vector<GenerationInfo>> list_generations(const std::string& path);

struct BenchOptions {
  int64_t payload_bytes = 113'920;
  int64_t objects = 4000;
  int rounds = 3, read_depth = 0;  // of the raw reads at every depth; 0: the store's own
  int pairs = 15;                  // reads through the store, each between two raw ones
  int64_t split_bytes = 68'352;    // of every object, what a restore in two parts asks for first
  int64_t index_objects = 1'000'000;
  int64_t chain = 1024, matches = 2000;
  int64_t churn = 1;  // entries of the manifest per live object of the index
};
struct BenchReport {
  double put_mb_s = 0, read_mb_s = 0, raw_mb_s = 0, read_share_of_raw = 0;
  double read_share_low = 0, read_share_high = 0;  // quartiles over the pairs
  double read_share_of_kept = 0;                   // of a raw read whose every record has a place of its own
  // One fetch of up to 1,024 objects: in one part, and in two, until the first of each were there and all.
  double restore_whole_ms = 0, restore_first_ms = 0, restore_split_ms = 0;
  int raw_depth = 0;  // at which the raw read was quickest
  std::vector<std::pair<int, double>> raw_by_depth;
  double match_p50_us = 0, match_p99_us = 0, index_bytes_per_block = 0, rebuild_s = 0;
  bool uring = false, direct = false;
};
// Makes and removes its own folder inside `path`, which need not be a store.
Result<BenchReport> bench_store(const std::string& path, const BenchOptions& options);

}  // namespace deepinfer::store
