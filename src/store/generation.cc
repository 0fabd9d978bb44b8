// Directories that are made once, and files that are only appended to.
#include "store/generation.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "host/clock.h"
#include "host/files.h"

namespace deepinfer::store {
namespace {

constexpr const char* kMarker = "deepinfer-store";
// Format 1 has no split records; it is read, and becomes 2 when it is written to.
constexpr const char* kMarkerText = "deepinfer store, format 2\n";
constexpr const char* kOldMarkerText = "deepinfer store, format 1\n";

template <typename T>
std::optional<T> hex_between(const std::string& name, const char* before, const char* after, size_t digits) {
  size_t b = std::strlen(before), a = std::strlen(after);
  if (name.size() != b + digits + a || name.compare(0, b, before) != 0 ||
      name.compare(b + digits, a, after) != 0)
    return std::nullopt;
  T value = 0;
  const char *from = name.data() + b, *to = from + digits;
  auto [end, e] = std::from_chars(from, to, value, 16);
  if (e != std::errc() || end != to) return std::nullopt;
  return value;
}

}  // namespace

std::string generation_name(uint64_t generation) {
  return fmt::format("g-{:016x}", generation);
}
std::optional<uint64_t> generation_of(const std::string& name) {
  return hex_between<uint64_t>(name, "g-", "", 16);
}
std::string segment_name(uint32_t segment) {
  return fmt::format("{:08x}.seg", segment);
}
std::optional<uint32_t> segment_of(const std::string& name) {
  return hex_between<uint32_t>(name, "", ".seg", 8);
}

Status check_store_directory(const std::string& path, bool create) {
  std::string marker = path + "/" + kMarker;
  Result<std::string> text = read_file(marker, 4096);
  if (text.ok() && *text == kMarkerText) return {};
  if (text.ok() && *text == kOldMarkerText)
    return create ? write_file_atomically(marker, kMarkerText) : Status();
  if (text.ok()) {
    std::string first = text->substr(0, std::min<size_t>(text->find_first_of("\r\n"), 60));
    return error(Code::kInvalidData,
                 "{} is a store of another format: it says \"{}\", this program reads \"{}\"", path, first,
                 std::string_view(kMarkerText, std::strlen(kMarkerText) - 1));
  }
  if (exists(path) && !names_in(path).ok()) return names_in(path).status();
  if (text.status().code() != Code::kNotFound) return text.status();
  if (!create) return error(Code::kNotFound, "{} is no store: it has no file {}", path, kMarker);
  DI_TRY(make_directory(path, false));
  DI_ASSIGN(std::vector<std::string> names, names_in(path));
  // Temporary files of another process that makes the marker now are no strangers.
  auto stranger = [](const std::string& n) { return n.rfind(kMarker, 0) != 0 && n != "lost+found"; };
  if (!exists(marker) && std::any_of(names.begin(), names.end(), stranger))
    return error(Code::kInvalidArgument, "{} is neither empty nor a store: it holds {}", path,
                 *std::find_if(names.begin(), names.end(), stranger));
  return write_file_atomically(marker, kMarkerText);
}

Result<Heartbeat> read_heartbeat(const std::string& generation_path) {
  DI_ASSIGN(File f, open_file(generation_path + "/alive", OpenMode::kRead));
  uint8_t bytes[16] = {};
  DI_TRY(read_at(f, bytes, 0).status());
  Heartbeat h;
  std::memcpy(&h.beat, bytes, 8);
  std::memcpy(&h.store_time_s, bytes + 8, 8);
  return h;
}

Claim last_claim(const std::string& generation_path) {
  Claim last;
  Result<std::vector<std::string>> names = names_in(generation_path);
  if (!names.ok()) return last;
  for (const std::string& n : *names) {
    // "claim-NNNNNNNN-GGGGGGGGGGGGGGGG"
    if (n.size() != 31) continue;
    std::optional<uint32_t> number = hex_between<uint32_t>(n.substr(0, 14), "claim-", "", 8);
    std::optional<uint64_t> by = hex_between<uint64_t>(n.substr(14), "-", "", 16);
    if (number.has_value() && by.has_value() && *number > last.number) last = {*number, *by};
  }
  return last;
}

bool make_claim(const std::string& generation_path, uint32_t number, uint64_t by) {
  // The number is what may be taken once; the name that says whose it is comes after it.
  std::string lock = fmt::format("{}/claim-{:08x}", generation_path, number);
  Result<File> f = open_file(lock, OpenMode::kCreate);
  if (!f.ok()) return false;
  return open_file(fmt::format("{}-{:016x}", lock, by), OpenMode::kCreate).ok();
}

Result<std::unique_ptr<GenerationWriter>> GenerationWriter::create(const std::string& store_path,
                                                                   const WriterOptions& options) {
  std::unique_ptr<GenerationWriter> w(new GenerationWriter);
  w->options_ = options;
  for (int attempt = 0; attempt < 100; ++attempt) {
    DI_ASSIGN(std::vector<std::string> names, names_in(store_path));
    uint64_t last = 0;
    for (const std::string& n : names) last = std::max(last, generation_of(n).value_or(0));
    w->generation_ = last + 1;
    w->path_ = store_path + "/" + generation_name(w->generation_);
    Status made = make_directory(w->path_, true);
    if (!made.ok() && !exists(w->path_)) return made;
    if (!made.ok()) continue;  // another process was quicker
    DI_ASSIGN(w->alive_, open_file(w->path_ + "/alive", OpenMode::kCreate));
    if (!try_lock(w->alive_))
      return error(Code::kUnavailable, "{} is locked by somebody else", w->alive_.path());
    DI_ASSIGN(w->manifest_, open_file(w->path_ + "/manifest", OpenMode::kCreate));
    return w;
  }
  return error(Code::kUnavailable, "no generation could be made in {}: others are always quicker",
               store_path);
}

Status GenerationWriter::place(std::span<NewRecord> records) {
  int64_t total = 0;
  for (const NewRecord& r : records) total += r.record.bytes;
  bool fits = segment_.is_open() && segment_at_ + total <= options_.segment_bytes;
  if (!fits) {
    ++segment_number_;
    segment_at_ = 0;
    OpenMode mode = options_.direct ? OpenMode::kCreateDirect : OpenMode::kCreate;
    Result<File> f = open_file(path_ + "/" + segment_name(segment_number_), mode);
    if (!f.ok()) return f.status();
    segment_ = std::move(f).value();
  }
  int64_t at = segment_at_;
  for (NewRecord& r : records) {
    RecordHeader& h = r.header;
    h.generation = generation_;
    h.segment = segment_number_;
    h.page = static_cast<uint32_t>(at / kPage);
    set_checksums(&h, r.record.span().subspan(kRecordHeaderBytes, h.payload_bytes));
    encode(h, r.record.span());
    at += r.record.bytes;
  }
  return {};
}

Status GenerationWriter::write_segment(std::span<NewRecord> records) {
  std::vector<iovec> parts;
  int64_t total = 0;
  for (const NewRecord& r : records) {
    parts.push_back({r.record.data.get(), static_cast<size_t>(r.record.bytes)});
    total += r.record.bytes;
  }
  if (options_.limit_bytes_per_s > 0) {
    double ns = 1e9 * static_cast<double>(total) / static_cast<double>(options_.limit_bytes_per_s);
    throttle_free_ns_ = std::max(throttle_free_ns_, now_ns()) + static_cast<int64_t>(ns);
    std::this_thread::sleep_for(std::chrono::nanoseconds(throttle_free_ns_ - now_ns()));
  }
  Status written = write_at(segment_, std::move(parts), segment_at_);
  if (written.ok() && options_.sync) written = sync_data(segment_);
  // What is there of it is nobody's: the next append lies over it, or the space goes back now.
  if (!written.ok() && ::ftruncate(segment_.fd(), segment_at_) != 0) segment_ = File();
  if (written.ok()) segment_at_ += total;
  return written;
}

Status GenerationWriter::append(std::span<NewRecord> records) {
  if (records.empty()) return {};
  DI_TRY(place(records));
  DI_TRY(write_segment(records));
  std::vector<ManifestEntry> entries;
  for (const NewRecord& r : records) {
    const RecordHeader& h = r.header;
    ManifestEntry e;
    e.type = EntryType::kCommit;
    e.kind = h.kind;
    e.shard = h.shard.k != 0;
    e.key = h.key;
    e.segment = h.segment;
    e.page = h.page;
    e.payload_bytes = h.payload_bytes;
    e.payload_crc = h.payload_crc;
    e.depth = h.depth;
    e.used_s = h.created_s;
    e.expires_s = r.expires_s;
    e.target = generation_;
    entries.push_back(e);
  }
  return note(std::move(entries));
}

Status GenerationWriter::note(std::vector<ManifestEntry> entries) {
  if (entries.empty()) return {};
  // The lowest possible claim is number 1: whoever made it has taken this directory over.
  if (exists(path_ + "/claim-00000001"))
    return error(Code::kUnavailable, "generation {} was taken over by another process", generation_);
  // Whoever removed the directory has not closed our descriptors: what is written now would be nowhere.
  if (!exists(manifest_.path())) return error(Code::kNotFound, "{} has vanished", manifest_.path());
  std::vector<uint8_t> bytes(entries.size() * static_cast<size_t>(kManifestEntryBytes));
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].generation = static_cast<uint32_t>(generation_);
    entries[i].sequence = sequence_ + i;
    encode(entries[i], std::span(bytes).subspan(i * static_cast<size_t>(kManifestEntryBytes)));
  }
  Status written = write_at(manifest_, bytes, manifest_at_);
  if (written.ok() && options_.sync) written = sync_data(manifest_);
  if (!written.ok()) {
    // Entries that got through would make records visible that were reported as failed; that is allowed (they
    // are whole), but the next entries must not follow a torn one.
    if (::ftruncate(manifest_.fd(), manifest_at_) != 0)
      return written.with_context("and cannot take it back");
    return written;
  }
  manifest_at_ += static_cast<int64_t>(bytes.size());
  sequence_ += entries.size();
  return {};
}

Status GenerationWriter::beat(int64_t store_time_s) {
  ++beat_;
  uint8_t bytes[16];
  std::memcpy(bytes, &beat_, 8);
  std::memcpy(bytes + 8, &store_time_s, 8);
  return write_at(alive_, std::span<const uint8_t>(bytes), 0);
}

}  // namespace deepinfer::store
