// The bytes on disk: records of the segment files and entries of the manifests. A record is a header of 128
// bytes, the payload, and zeros up to a whole page; it names itself (key, sizes, checksums) and its place
// (generation, segment, page), so that stale bytes in a reused place are never taken for it. A manifest entry
// is 96 bytes and makes a record visible, or hides it again. Everything is little endian and is read as
// untrusted. Knows no files. Source: serving specification 7.2, 7.6, 7.8; docs/store.md has the tables.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "policy/ids.h"

namespace deepinfer::store {

using Key = policy::BlockKey;
using policy::raw;

inline constexpr int64_t kPage = 4096;  // unit of places and of direct input and output
inline constexpr int64_t kRecordHeaderBytes = 128;
inline constexpr int64_t kManifestEntryBytes = 96;
inline constexpr int64_t kMaxPayloadBytes = int64_t{64} << 20;
inline constexpr uint16_t kFormatVersion = 1;  // of manifest entries, and of records that are read whole
inline constexpr uint16_t kSplitVersion = 2;   // of records whose beginning can be read and checked alone

// Block KV and window snapshots are separate objects: the same key, other promises.
enum class Kind : uint8_t { kBlock = 1, kWindow = 2 };
inline bool known_kind(uint8_t k) {
  return k == 1 || k == 2;
}

// A part of an object that was coded over several directories; k == 0: the whole object.
struct ShardTag {
  uint8_t k = 0, m = 0, index = 0;
  uint32_t object_bytes = 0;  // of the whole object
  uint32_t object_crc = 0;
  bool operator==(const ShardTag&) const = default;
};

struct RecordHeader {
  Kind kind = Kind::kBlock;
  Key key, parent;     // parent: of the block before; all zero at a prefix's beginning
  uint32_t depth = 0;  // of the block in its prefix, from 0
  uint64_t generation = 0;
  uint32_t segment = 0, page = 0;
  uint32_t payload_bytes = 0, payload_crc = 0;
  uint32_t created_s = 0, ttl_s = 0;
  ShardTag shard;
  // The first `split` bytes of the payload have a checksum of their own; that of the whole, continued from
  // it, checks the rest. 0: they have not. A shard has none.
  uint32_t split = 0, first_crc = 0;
  bool operator==(const RecordHeader&) const = default;
};

// Bytes of the whole record in the file: a multiple of kPage.
inline int64_t record_bytes(int64_t payload_bytes) {
  return (kRecordHeaderBytes + payload_bytes + kPage - 1) / kPage * kPage;
}

// Pages of a record, from its beginning, that hold bytes [from, to) of its payload and, with the first of
// them, its header.
struct PageRange {
  int64_t begin = 0, end = 0;
};
inline PageRange pages_of(int64_t from, int64_t to) {
  return {from == 0 ? 0 : (kRecordHeaderBytes + from) / kPage * kPage, record_bytes(to)};
}

uint32_t crc32c(std::span<const uint8_t> bytes, uint32_t seed = 0);
// The same, and copies them: memory is read once. `to` has the same size.
uint32_t copy_crc32c(std::span<const uint8_t> bytes, std::span<uint8_t> to, uint32_t seed = 0);

void encode(const RecordHeader& header, std::span<uint8_t> out);  // the first 128 bytes of `out`
// kInvalidData when these are not the beginning of a record of this format. Does not look at the payload.
Result<RecordHeader> decode_record_header(std::span<const uint8_t> bytes);
// The checksums a header needs, of its payload: payload_crc and, where it is split, first_crc.
void set_checksums(RecordHeader* header, std::span<const uint8_t> payload);
// The header of a record of which at least the beginning was read; kInvalidData unless it says what is
// expected: kind, key, generation, segment and page.
Result<RecordHeader> check_header(std::span<const uint8_t> bytes, const RecordHeader& expected);
// Copies the payload of a whole record that was read to its place; kInvalidData unless header and payload
// check, the header says what is expected, and the payload has the place's size. What is there then is
// undefined.
Status copy_record(std::span<const uint8_t> bytes, const RecordHeader& expected, std::span<uint8_t> to);
// The payload of a whole record that was read; kInvalidData unless header and payload check and the header
// says what is expected: kind, key, generation, segment and page.
Result<std::span<const uint8_t>> check_record(std::span<const uint8_t> bytes, const RecordHeader& expected);

enum class EntryType : uint8_t {
  kCommit = 1,  // the record is there and may be read
  kErase = 2,   // it is not any more, whoever wrote it (target generation)
  kTouch = 3,   // it was used: its life is longer
};
struct ManifestEntry {
  EntryType type = EntryType::kCommit;
  Kind kind = Kind::kBlock;
  bool shard = false;
  uint64_t sequence = 0;  // of the entry in its manifest, from 0
  Key key;
  uint32_t segment = 0, page = 0, payload_bytes = 0, payload_crc = 0;
  uint32_t depth = 0, used_s = 0, expires_s = 0;
  uint64_t target = 0;      // generation of the record; kCommit: the writer's own
  uint32_t generation = 0;  // of the manifest, its low half
  bool operator==(const ManifestEntry&) const = default;
};
void encode(const ManifestEntry& entry, std::span<uint8_t> out);  // the first 96 bytes of `out`
Result<ManifestEntry> decode_manifest_entry(std::span<const uint8_t> bytes);

}  // namespace deepinfer::store
