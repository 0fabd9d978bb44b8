// Verification through the store's own reads; files of records for carrying.
#include "store/maintenance.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "store/disk.h"
#include "store/follower.h"
#include "store/generation.h"

namespace deepinfer::store {
namespace {

constexpr char kExportMagic[9] = "DIVEXP01";

// Reads a run of objects at once; the ones that fail are reported by index.
std::vector<Status> read_all(KvStore* store, std::span<const ListedObject> objects,
                             std::vector<std::vector<uint8_t>>* payloads) {
  std::vector<Status> out(objects.size());
  payloads->assign(objects.size(), {});
  std::vector<std::promise<FetchOutcome>> ends(objects.size());
  for (size_t i = 0; i < objects.size(); ++i) {
    const IndexEntry& e = objects[i].entry;
    (*payloads)[i].resize(e.payload_bytes);
    Fetch f;
    f.parts.push_back({e.kind, e.key, (*payloads)[i]});
    f.done = [&end = ends[i]](const FetchOutcome& o) { end.set_value(o); };
    store->fetch(std::move(f));
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    FetchOutcome o = ends[i].get_future().get();
    if (o.whole != 1) out[i] = o.why;
  }
  return out;
}

// Runs of about a megabyte.
template <typename Visit>
void in_runs(const std::vector<ListedObject>& all, Visit visit) {
  for (size_t from = 0; from < all.size();) {
    size_t to = from;
    for (int64_t bytes = 0; to < all.size() && bytes < (1 << 20); ++to) bytes += all[to].entry.payload_bytes;
    visit(std::span(all).subspan(from, to - from));
    from = to;
  }
}

std::string named(const ListedObject& o) {
  return fmt::format("{} {:016x}.. at page {} of segment {} of generation {}",
                     o.entry.kind == Kind::kBlock ? "block" : "window", o.entry.key.words[0], o.entry.page,
                     o.entry.segment, o.generation);
}

}  // namespace

VerifyReport verify_objects(DirectoryStore* store, int64_t pause_ns) {
  VerifyReport r;
  in_runs(store->list(SIZE_MAX), [&](std::span<const ListedObject> run) {
    std::vector<std::vector<uint8_t>> payloads;
    std::vector<Status> read = read_all(store, run, &payloads);
    for (size_t i = 0; i < run.size(); ++i) {
      ++r.objects;
      r.bytes += run[i].entry.payload_bytes;
      // Evicted or expired since it was listed: not there is not damaged.
      if (read[i].ok() ||
          (read[i].code() == Code::kNotFound && !store->contains(run[i].entry.kind, run[i].entry.key) &&
           read[i].message().find("(any more)") != std::string::npos))
        continue;
      ++r.damaged_objects;
      if (r.first.size() < 10) r.first.push_back(named(run[i]) + ": " + read[i].message());
    }
    if (pause_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
  });
  return r;
}

Status verify_manifests(const std::string& path, VerifyReport* r) {
  DI_ASSIGN(std::vector<GenerationInfo> all, list_generations(path));
  for (const GenerationInfo& g : all) {
    FollowState state;
    std::string where = path + "/" + generation_name(g.generation);
    DI_TRY(follow_manifest(where, &state, [](const ManifestEntry&) {}));
    r->damaged_entries += state.damaged;
    if (!g.alive) r->torn_bytes += state.tail;
    if (state.missing && g.segments > 0) ++r->damaged_entries;
    bool bad = state.damaged > 0 || (state.missing && g.segments > 0);
    if (bad && r->first.size() < 10)
      r->first.push_back(fmt::format("the manifest of generation {} has {} damaged entries{}", g.generation,
                                     state.damaged, state.missing ? " and is gone" : ""));
  }
  return {};
}

Result<std::vector<GenerationInfo>> list_generations(const std::string& path) {
  DI_TRY(check_store_directory(path, false));
  DI_ASSIGN(std::vector<std::string> names, names_in(path));
  std::vector<GenerationInfo> out;
  for (const std::string& n : names) {
    std::optional<uint64_t> id = generation_of(n);
    if (!id.has_value()) continue;
    GenerationInfo g;
    g.generation = *id;
    std::string where = path + "/" + n;
    Result<File> alive = open_file(where + "/alive", OpenMode::kWrite);
    g.alive = alive.ok() && !try_lock(*alive);
    g.claimed_by = last_claim(where).by;
    Result<std::vector<std::string>> files = names_in(where);
    if (!files.ok()) continue;  // removed meanwhile
    for (const std::string& f : *files) {
      struct stat s;
      if (::stat((where + "/" + f).c_str(), &s) != 0) continue;
      if (f == "manifest") g.manifest_bytes = s.st_size;
      if (!segment_of(f).has_value()) continue;
      ++g.segments;
      g.segment_bytes += s.st_blocks * 512;
    }
    out.push_back(g);
  }
  return out;
}

Result<RepairReport> repair_manifests(const std::string& path) {
  RepairReport r;
  DirectoryOptions o;
  o.path = path;
  o.writable = false;
  DI_ASSIGN(std::unique_ptr<DirectoryStore> store, DirectoryStore::open(o));
  std::map<uint64_t, std::vector<ListedObject>> objects;
  for (const ListedObject& x : store->list(SIZE_MAX)) objects[x.generation].push_back(x);
  DI_ASSIGN(std::vector<GenerationInfo> all, list_generations(path));
  for (const GenerationInfo& g : all) {
    ++r.generations;
    std::string where = path + "/" + generation_name(g.generation);
    FollowState state;
    std::vector<ManifestEntry> kept;  // what it says of other generations' objects
    DI_TRY(follow_manifest(where, &state, [&](const ManifestEntry& e) {
      if (e.type != EntryType::kCommit && e.target != g.generation) kept.push_back(e);
    }));
    if (state.damaged == 0 && state.tail == 0 && !(state.missing && g.segments > 0)) continue;
    Result<File> alive = open_file(where + "/alive", OpenMode::kWrite);
    if (g.alive || (alive.ok() && !try_lock(*alive))) {
      ++r.busy;
      continue;
    }
    for (const ListedObject& x : objects[g.generation]) {
      ManifestEntry e;
      e.kind = x.entry.kind;
      e.key = x.entry.key;
      e.segment = x.entry.segment;
      e.page = x.entry.page;
      e.payload_bytes = x.entry.payload_bytes;
      e.depth = x.entry.depth;
      e.used_s = x.entry.used_s;
      e.expires_s = x.entry.expires_s;
      e.target = g.generation;
      e.generation = static_cast<uint32_t>(g.generation);
      kept.push_back(e);
    }
    std::vector<uint8_t> bytes(kept.size() * static_cast<size_t>(kManifestEntryBytes));
    for (size_t i = 0; i < kept.size(); ++i) {
      kept[i].sequence = i;
      encode(kept[i], std::span(bytes).subspan(i * static_cast<size_t>(kManifestEntryBytes)));
    }
    std::string fresh = where + "/manifest.new";
    remove_quietly(fresh);
    DI_ASSIGN(File f, open_file(fresh, OpenMode::kCreate));
    DI_TRY(write_at(f, bytes, 0));
    DI_TRY(sync_data(f));
    if (std::rename(fresh.c_str(), (where + "/manifest").c_str()) != 0)
      return error(Code::kIo, "cannot rename {}", fresh);
    ++r.rewritten;
  }
  r.recovered_objects = store->counters().recovered_objects;
  return r;
}

Result<CarryReport> export_objects(DirectoryStore* store, const std::string& file) {
  CarryReport r;
  std::vector<ListedObject> all = store->list(SIZE_MAX);
  // A window follows its block, a block the one before it.
  std::stable_sort(all.begin(), all.end(), [](const ListedObject& a, const ListedObject& b) {
    return std::pair(a.entry.depth, a.entry.kind) < std::pair(b.entry.depth, b.entry.kind);
  });
  DI_ASSIGN(File out, open_file(file, OpenMode::kCreate));
  int64_t at = 8;
  DI_TRY(write_at(out, std::span(reinterpret_cast<const uint8_t*>(kExportMagic), 8), 0));
  Status failed;
  uint32_t now = store->now_s();
  in_runs(all, [&](std::span<const ListedObject> run) {
    if (!failed.ok()) return;
    std::vector<std::vector<uint8_t>> payloads;
    std::vector<Status> read = read_all(store, run, &payloads);
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < run.size(); ++i) {
      if (!read[i].ok()) {
        ++r.damaged;
        continue;
      }
      const IndexEntry& e = run[i].entry;
      RecordHeader h;
      h.kind = e.kind;
      h.key = e.key;
      h.depth = e.depth;
      h.payload_bytes = e.payload_bytes;
      h.payload_crc = crc32c(payloads[i]);
      h.created_s = now;
      h.ttl_s = e.expires_s > now ? e.expires_s - now : 0;
      size_t begin = bytes.size();
      bytes.resize(begin + static_cast<size_t>(kRecordHeaderBytes));
      encode(h, std::span(bytes).subspan(begin));
      bytes.insert(bytes.end(), payloads[i].begin(), payloads[i].end());
      ++r.objects;
      r.bytes += e.payload_bytes;
    }
    failed = write_at(out, bytes, at);
    at += static_cast<int64_t>(bytes.size());
  });
  DI_TRY(failed);
  DI_TRY(sync_data(out));
  return r;
}

Status check_export_file(const std::string& file) {
  DI_ASSIGN(File in, open_file(file, OpenMode::kRead));
  uint8_t magic[8] = {};
  DI_TRY(read_at(in, magic, 0).status());
  if (std::memcmp(magic, kExportMagic, 8) != 0)
    return error(Code::kInvalidData, "{} is no file of `deepinfer store export`", file);
  return {};
}

Result<CarryReport> import_objects(KvStore* store, const std::string& file, uint32_t now_s) {
  CarryReport r;
  DI_TRY(check_export_file(file));
  DI_ASSIGN(File in, open_file(file, OpenMode::kRead));
  std::vector<uint8_t> head(static_cast<size_t>(kRecordHeaderBytes)), payload;
  for (int64_t at = 8;;) {
    DI_ASSIGN(size_t got, read_at(in, head, at));
    if (got == 0) break;
    Result<RecordHeader> h = decode_record_header(std::span(head).first(got));
    if (!h.ok()) return h.status().with_context(fmt::format("{} at byte {}", file, at));
    payload.resize(h->payload_bytes);
    DI_ASSIGN(size_t n, read_at(in, payload, at + kRecordHeaderBytes));
    at += kRecordHeaderBytes + h->payload_bytes;
    if (n != payload.size() || crc32c(payload) != h->payload_crc) {
      ++r.damaged;
      continue;
    }
    int64_t left = int64_t{h->created_s} + h->ttl_s - now_s;
    if (left <= 0) {
      ++r.refused;
      continue;
    }
    // The file does not say which block came before; its order does: what is here was whole there. A prefix
    // whose beginning was damaged is then longer than it can be used, which only costs its space.
    ObjectMeta m;
    m.kind = h->kind;
    m.key = h->key;
    m.first = h->kind == Kind::kBlock;
    m.parent = h->key;
    m.depth = h->depth;
    m.payload_bytes = h->payload_bytes;
    m.ttl.block_s = left;
    Status put = put_one(store, m, payload);
    ++(put.ok() ? r.objects : r.refused);
    r.bytes += put.ok() ? h->payload_bytes : 0;
  }
  return r;
}

}  // namespace deepinfer::store
