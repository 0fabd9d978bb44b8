// Large buffered reads of manifests; header hops through segments.
#include "store/follower.h"

#include <algorithm>

namespace deepinfer::store {

Status follow_manifest(const std::string& generation_path, FollowState* s,
                       const std::function<void(const ManifestEntry&)>& entry) {
  Result<File> f = open_file(generation_path + "/manifest", OpenMode::kRead);
  s->missing = !f.ok();
  if (!f.ok()) return f.status().code() == Code::kNotFound ? Status() : f.status();
  DI_ASSIGN(int64_t size, size_of(*f));
  s->tail = size - s->at;
  constexpr int64_t kPiece = kManifestEntryBytes * 16384;
  std::vector<uint8_t> bytes;
  while (s->at + kManifestEntryBytes <= size) {
    int64_t n = std::min(kPiece, (size - s->at) / kManifestEntryBytes * kManifestEntryBytes);
    bytes.resize(static_cast<size_t>(n));
    DI_ASSIGN(size_t got, read_at(*f, bytes, s->at));
    got = got / static_cast<size_t>(kManifestEntryBytes) * static_cast<size_t>(kManifestEntryBytes);
    if (got == 0) return {};
    // Whole entries end where the last sound one does, at the end of what is there now: behind it the writer
    // may be in the middle of something.
    size_t end = got;
    if (s->at + static_cast<int64_t>(got) + kManifestEntryBytes > size) {
      while (end > 0 &&
             !decode_manifest_entry(std::span(bytes).subspan(end - static_cast<size_t>(kManifestEntryBytes)))
                  .ok())
        end -= static_cast<size_t>(kManifestEntryBytes);
      if (end == 0) return {};
    }
    for (size_t i = 0; i < end; i += static_cast<size_t>(kManifestEntryBytes)) {
      Result<ManifestEntry> e = decode_manifest_entry(std::span(bytes).subspan(i));
      if (e.ok()) {
        entry(*e);
      } else {
        ++s->damaged;
      }
    }
    s->at += static_cast<int64_t>(end);
    s->tail = size - s->at;
    if (end < got) return {};
  }
  return {};
}

Result<ScanCounts> scan_segment(
    const std::string& path, uint64_t generation, uint32_t segment, bool payloads,
    const std::function<void(const RecordHeader&, std::span<const uint8_t>)>& record) {
  DI_ASSIGN(File f, open_file(path, OpenMode::kRead));
  DI_ASSIGN(int64_t size, size_of(f));
  ScanCounts counts;
  std::vector<uint8_t> head(static_cast<size_t>(kRecordHeaderBytes));
  Buffer whole;
  for (int64_t at = 0; at + kRecordHeaderBytes <= size;) {
    int64_t data = next_data(f, at, size);
    if (data > at) {
      at = data / kPage * kPage;
      if (at + kRecordHeaderBytes > size) break;
    }
    DI_ASSIGN(size_t got, read_at(f, head, at));
    Result<RecordHeader> h = got == head.size() ? decode_record_header(head)
                                                : Result<RecordHeader>(error(Code::kInvalidData, "short"));
    bool here = h.ok() && h->generation == generation && h->segment == segment &&
                int64_t{h->page} * kPage == at && at + kRecordHeaderBytes + h->payload_bytes <= size;
    if (!here) {
      at += kPage;
      continue;
    }
    int64_t bytes = record_bytes(h->payload_bytes);
    std::span<const uint8_t> payload;
    if (payloads) {
      if (whole.bytes < bytes) whole = make_buffer(bytes);
      DI_ASSIGN(size_t n, read_at(f, whole.span().first(static_cast<size_t>(bytes)), at));
      Result<std::span<const uint8_t>> checked = check_record(whole.span().first(n), *h);
      if (!checked.ok()) {
        ++counts.damaged;
        at += kPage;  // another record may begin inside what this one says it covers
        continue;
      }
      payload = *checked;
    }
    ++counts.records;
    counts.bytes += bytes;
    record(*h, payload);
    at += bytes;
  }
  return counts;
}

}  // namespace deepinfer::store
