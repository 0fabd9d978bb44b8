// Reads what generations say: the manifest of each from where it was left, and, where a manifest is damaged
// or gone, the records of the segments themselves. One writer appends, any number follow; a torn end is
// waited for, a damaged entry with whole ones behind it is counted and skipped. Source: docs/store.md.
// Threads: one at a time.
#pragma once

#include <functional>
#include <string>

#include "store/disk.h"
#include "store/record.h"

namespace deepinfer::store {

struct FollowState {
  int64_t at = 0;        // bytes of the manifest that were read
  int64_t damaged = 0;   // entries that were skipped
  int64_t tail = 0;      // bytes at the end that are no whole sound entry (yet)
  bool missing = false;  // the manifest could not be opened
};
// Calls `entry` for every new one, in order. Errors of the file system only.
Status follow_manifest(const std::string& generation_path, FollowState* state,
                       const std::function<void(const ManifestEntry&)>& entry);

struct ScanCounts {
  int64_t records = 0, damaged = 0, bytes = 0;
};
// Every whole record of one segment, found by its header, page by page where there is none. With `payloads`
// the payload is read and checked too, and a damaged one is not given out.
Result<ScanCounts> scan_segment(
    const std::string& path, uint64_t generation, uint32_t segment, bool payloads,
    const std::function<void(const RecordHeader&, std::span<const uint8_t>)>& record);

}  // namespace deepinfer::store
