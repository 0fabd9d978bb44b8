// Hostile store files: any bytes as a segment, as a manifest, as an exported file and as the small files of a
// generation. What is found must hold its own invariants, lie inside the file, and never be found twice.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "store/disk.h"
#include "store/follower.h"
#include "store/generation.h"
#include "store/maintenance.h"
#include "store/record.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::store;

// A folder of this process, gone when it ends.
struct Folder {
  std::string path = std::filesystem::temp_directory_path().string() + "/di_store_fuzz_XXXXXX";
  Folder() { DI_CHECK(::mkdtemp(path.data()) != nullptr, "no folder for the fuzzer"); }
  ~Folder() { std::filesystem::remove_all(path); }
};

const std::string& folder() {
  static const Folder f;
  return f.path;
}

void write_file(const std::string& name, std::span<const uint8_t> bytes) {
  std::string path = folder() + "/" + name;
  remove_quietly(path);
  Result<File> f = open_file(path, OpenMode::kCreate);
  DI_CHECK(f.ok() && write_at(*f, bytes, 0).ok(), "the fuzzer cannot write");
}

void read_segment(std::span<const uint8_t> bytes) {
  write_file("00000001.seg", bytes);
  for (bool payloads : {false, true}) {
    std::set<int64_t> pages;
    int64_t end = 0;
    Result<ScanCounts> r = scan_segment(
        folder() + "/00000001.seg", 1, 1, payloads,
        [&](const RecordHeader& h, std::span<const uint8_t> payload) {
          int64_t at = int64_t{h.page} * kPage;
          DI_CHECK(pages.insert(at).second && at >= end, "records do not overlap");
          end = at + record_bytes(h.payload_bytes);
          DI_CHECK(at + kRecordHeaderBytes + h.payload_bytes <= static_cast<int64_t>(bytes.size()),
                   "a record is inside its file");
          DI_CHECK(!payloads || (payload.size() == h.payload_bytes && crc32c(payload) == h.payload_crc),
                   "a payload that is given out was checked");
        });
    DI_CHECK(r.ok() && r->records == static_cast<int64_t>(pages.size()), "a scan ends and counts");
  }
}

void read_manifest(std::span<const uint8_t> bytes) {
  write_file("manifest", bytes);
  FollowState state;
  int64_t entries = 0;
  Status s = follow_manifest(folder(), &state, [&](const ManifestEntry& e) {
    ++entries;
    uint8_t again[kManifestEntryBytes];
    encode(e, again);
    Result<ManifestEntry> back = decode_manifest_entry(again);
    DI_CHECK(back.ok() && *back == e, "an entry that was read can be written");
  });
  DI_CHECK(s.ok() && state.at <= static_cast<int64_t>(bytes.size()) &&
               (entries + state.damaged) * kManifestEntryBytes == state.at,
           "every entry that was passed is sound or counted");
}

// A store that keeps nothing and checks what it is given.
class Sink final : public KvStore {
 public:
  int64_t objects = 0, bytes = 0;
  Match match(std::span<const Key>) override { return {}; }
  bool contains(Kind, const Key&) override { return false; }
  bool renew(LeaseId) override { return false; }
  void release(LeaseId) override {}
  FetchId fetch(Fetch) override { return {}; }
  void cancel(FetchId) override {}
  Result<Ticket> begin(std::vector<ObjectMeta> o) override {
    DI_CHECK(o.size() == 1 && known_kind(static_cast<uint8_t>(o[0].kind)) && o[0].ttl.block_s > 0,
             "an object that is carried is one of a life");
    wanted_ = o[0].payload_bytes;
    return Ticket{TicketId(1), {true}};
  }
  void write(const Ticket&, size_t, std::span<const uint8_t> payload) override {
    DI_CHECK(static_cast<int64_t>(payload.size()) == wanted_, "a payload is as long as its header says");
    ++objects;
    bytes += wanted_;
  }
  void commit(const Ticket&, std::function<void(Status, size_t)> done) override { done({}, 1); }
  void abort(const Ticket&) override {}
  void touch(std::span<const Key>, bool, const policy::TtlWish&) override {}
  void invalidate(Kind, const Key&, const std::string&) override {}
  std::vector<StoredName> recent(Kind, int64_t, size_t) override { return {}; }
  void flush() override {}
  Counters counters() const override { return {}; }
  Gauges gauges() const override { return {}; }

 private:
  int64_t wanted_ = 0;
};

// The bytes behind the magic number of an exported file.
void read_export(std::span<const uint8_t> bytes) {
  std::vector<uint8_t> file = {'D', 'I', 'V', 'E', 'X', 'P', '0', '1'};
  file.insert(file.end(), bytes.begin(), bytes.end());
  write_file("carried", file);
  Sink sink;
  Result<CarryReport> r = import_objects(&sink, folder() + "/carried", 1000);
  if (!r.ok()) return;
  DI_CHECK(r->objects == sink.objects && r->bytes == sink.bytes, "what was carried was counted");
  DI_CHECK(r->bytes <= static_cast<int64_t>(bytes.size()), "nothing comes from nowhere");
}

void read_small_files(std::span<const uint8_t> bytes) {
  write_file("alive", bytes);
  write_file("deepinfer-store", bytes);
  (void)read_heartbeat(folder());
  (void)check_store_directory(folder(), false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> bytes(data, size);
  read_segment(bytes);
  read_manifest(bytes);
  read_export(bytes);
  read_small_files(bytes);
  // With checksums that fit, so that mutations get past them.
  if (size < static_cast<size_t>(kRecordHeaderBytes)) return 0;
  std::vector<uint8_t> fixed(data, data + size);
  uint32_t crc = crc32c(std::span(fixed).first(124));
  for (size_t i = 0; i < 4; ++i) fixed[124 + i] = static_cast<uint8_t>(crc >> (8 * i));
  read_segment(fixed);
  read_export(fixed);
  for (size_t at = 0; at + static_cast<size_t>(kManifestEntryBytes) <= size; at += kManifestEntryBytes) {
    crc = crc32c(std::span(fixed).subspan(at, 92));
    for (size_t i = 0; i < 4; ++i) fixed[at + 92 + i] = static_cast<uint8_t>(crc >> (8 * i));
  }
  read_manifest(fixed);
  return 0;
}
