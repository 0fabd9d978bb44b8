// The store against the disk it stands on: the same bytes of the same files, read through the store and read
// raw, in turn; and matches in an index of a million blocks. Reports what it measures and asserts nothing.
#include <fcntl.h>
#include <liburing.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <random>

#include "base/check.h"
#include "host/clock.h"
#include "store/disk.h"
#include "store/generation.h"
#include "store/maintenance.h"

namespace deepinfer::store {
namespace {

Key bench_key(uint64_t chain, uint64_t i) {
  Key k;
  for (uint64_t w = 0; w < 4; ++w) {
    uint64_t x = (chain << 20) + i * 4 + w + 0x5151;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    k.words[w] = x ^ (x >> 31);
  }
  return k;
}

double mb_s(int64_t bytes, int64_t ns) {
  return static_cast<double>(bytes) / 1e6 / (static_cast<double>(ns) / 1e9);
}

struct Place {
  std::string file;
  int64_t offset = 0, bytes = 0;
};

// Direct reads at a queue depth, nothing done with the bytes. Megabytes per second of the records. Into few
// buffers, used again at once, or, with `kept`, one after the other into memory that others are read into
// much later: what nobody looks at is overwritten in some cache, what is kept is not.
Result<double> read_raw(const std::vector<Place>& places, int depth, Buffer* kept = nullptr) {
  std::vector<File> files;
  std::map<std::string, size_t> number;
  for (const Place& p : places) {
    if (number.contains(p.file)) continue;
    DI_ASSIGN(File f, open_file(p.file, OpenMode::kReadDirect));
    number[p.file] = files.size();
    files.push_back(std::move(f));
  }
  io_uring ring;
  if (io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) != 0)
    return error(Code::kUnsupported, "io_uring is not allowed here");
  int64_t most = 0, total = 0;
  for (const Place& p : places) most = std::max(most, p.bytes);
  // In huge pages, as the store's own: in small ones the same device is half as quick.
  Buffer own;
  if (kept == nullptr) own = make_buffer(std::max<int64_t>(int64_t{16} << 20, most * depth));
  const Buffer& memory = kept != nullptr ? *kept : own;
  const auto slots = static_cast<size_t>(memory.bytes / most);
  DI_CHECK(slots >= static_cast<size_t>(depth), "a place for every read of the bench");
  iovec all{memory.data.get(), static_cast<size_t>(memory.bytes)};
  bool fixed = io_uring_register_buffers(&ring, &all, 1) == 0;
  std::vector<size_t> idle;
  for (size_t i = 0; i < static_cast<size_t>(depth); ++i) idle.push_back(i);
  int64_t begun = now_ns();
  size_t next = 0, done = 0;
  bool failed = false;
  while (done < places.size() && !failed) {
    while (next < places.size() && !idle.empty()) {
      size_t slot = idle.back();
      idle.pop_back();
      const size_t place = kept != nullptr ? next % slots : slot;
      const Place& p = places[next++];
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      uint8_t* to = memory.data.get() + static_cast<int64_t>(place) * most;
      int fd = files[number[p.file]].fd();
      if (fixed) {
        io_uring_prep_read_fixed(sqe, fd, to, static_cast<unsigned>(p.bytes), static_cast<uint64_t>(p.offset),
                                 0);
      } else {
        io_uring_prep_read(sqe, fd, to, static_cast<unsigned>(p.bytes), static_cast<uint64_t>(p.offset));
      }
      sqe->user_data = slot;
      total += p.bytes;
    }
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      failed = failed || cqe->res <= 0;
      idle.push_back(static_cast<size_t>(cqe->user_data));
      io_uring_cqe_seen(&ring, cqe);
      ++done;
    }
  }
  int64_t ns = now_ns() - begun;
  io_uring_queue_exit(&ring);
  if (failed) return error(Code::kIo, "a raw read failed");
  return mb_s(total, ns);
}

double median(std::vector<double> v, double at = 0.5) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(at * static_cast<double>(v.size())))];
}

// Fetches of the written objects into memory that is there before and lies in huge pages, one block after
// the other, as the server's block memory does.
class StoreReads {
 public:
  StoreReads(DirectoryStore* store, const std::vector<Key>* keys, int64_t payload)
      : store_(store), keys_(keys), payload_(payload), stride_((payload + 63) / 64 * 64) {
    size_t most = std::max(2 * kAtOnce, std::min(kRestore, keys->size()));
    memory_ = make_buffer(static_cast<int64_t>(most) * record_bytes(payload_));
  }
  // All of them, two fetches of many under way at any time, as restores of two requests are: the raw read's
  // queue never runs dry either. Megabytes per second.
  double all() {
    std::future<FetchOutcome> ends[2];
    int64_t begun = now_ns(), bytes = 0;
    auto wait = [&](std::future<FetchOutcome>* end) {
      if (end->valid()) bytes += static_cast<int64_t>(end->get().whole) * record_bytes(payload_);
    };
    size_t turn = 0;
    for (size_t from = 0; from < keys_->size(); from += kAtOnce, turn ^= 1) {
      wait(&ends[turn]);
      ends[turn] = begin(from, std::min(kAtOnce, keys_->size() - from), turn * kAtOnce, 0);
    }
    for (auto& end : ends) wait(&end);
    return mb_s(bytes, now_ns() - begun);
  }
  // One fetch, of as many blocks as a prompt of 131,072 tokens has: milliseconds until the first `split`
  // bytes of every one were there (split > 0), and all.
  Buffer* memory() { return &memory_; }
  struct Restore {
    double first_ms = 0, all_ms = 0;
  };
  Restore one(int64_t split) {
    first_ns_ = 0;
    FetchOutcome out = begin(0, std::min(kRestore, keys_->size()), 0, split).get();
    return {static_cast<double>(first_ns_) / 1e6, static_cast<double>(out.ns) / 1e6};
  }

 private:
  static constexpr size_t kAtOnce = 128, kRestore = 1024;
  std::future<FetchOutcome> begin(size_t from, size_t count, size_t slot, int64_t split) {
    auto end = std::make_shared<std::promise<FetchOutcome>>();
    Fetch f;
    f.split = split;
    for (size_t i = 0; i < count; ++i) {
      auto at = static_cast<size_t>(static_cast<int64_t>(slot + i) * stride_);
      std::span<uint8_t> to = memory_.span().subspan(at, static_cast<size_t>(payload_));
      f.parts.push_back({Kind::kBlock, (*keys_)[from + i], to});
    }
    f.first = [this](int64_t ns) { first_ns_ = ns; };
    f.done = [end](const FetchOutcome& o) { end->set_value(o); };
    store_->fetch(std::move(f));
    return end->get_future();
  }

  DirectoryStore* store_;
  const std::vector<Key>* keys_;
  int64_t payload_, stride_, first_ns_ = 0;
  Buffer memory_;
};

// Which depth is the raw read's best, and then that read and the store's in turn: shares are of neighbours,
// so that a disk whose speed wanders does so for both. And one restore, in one part and in two.
Status compare_reads(const std::vector<Place>& places, StoreReads* reads, const BenchOptions& o,
                     BenchReport* r) {
  std::map<int, std::vector<double>> raw;
  for (int round = 0; round < o.rounds; ++round) {
    for (int depth : {1, 2, 4, 8, 16, 32, 64}) {
      DI_ASSIGN(double v, read_raw(places, depth));
      raw[depth].push_back(v);
    }
  }
  for (auto& [depth, v] : raw) {
    double m = median(v);
    r->raw_by_depth.push_back({depth, m});
    if (m > r->raw_mb_s) r->raw_mb_s = m, r->raw_depth = depth;
  }
  std::vector<double> through, best, share, kept_share, whole, first, split;
  DI_ASSIGN(double before, read_raw(places, r->raw_depth));
  for (int i = 0; i < o.pairs; ++i) {
    double store = reads->all();
    DI_ASSIGN(double after, read_raw(places, r->raw_depth));
    through.push_back(store);
    best.push_back(after);
    share.push_back(store / ((before + after) / 2));
    DI_ASSIGN(double kept, read_raw(places, r->raw_depth, reads->memory()));
    kept_share.push_back(store / kept);
    before = after;
    for (bool two : {i % 2 == 0, i % 2 != 0}) {
      StoreReads::Restore x = reads->one(two ? o.split_bytes : 0);
      (two ? split : whole).push_back(x.all_ms);
      if (two) first.push_back(x.first_ms);
    }
  }
  r->raw_mb_s = median(best);
  r->read_mb_s = median(through);
  r->read_share_of_raw = median(share);
  r->read_share_of_kept = median(kept_share);
  r->read_share_low = median(share, 0.25);
  r->read_share_high = median(share, 0.75);
  r->restore_whole_ms = median(whole);
  r->restore_first_ms = median(first);
  r->restore_split_ms = median(split);
  return {};
}

// The bytes every reader reads, written through the store.
Result<std::vector<Key>> write_objects(DirectoryStore* s, const BenchOptions& o) {
  std::vector<uint8_t> payload(static_cast<size_t>(o.payload_bytes));
  std::vector<Key> keys;
  for (int64_t i = 0; i < o.objects; ++i) {
    for (size_t b = 0; b < payload.size(); b += 64)
      payload[b] = static_cast<uint8_t>(static_cast<size_t>(i) + b);
    ObjectMeta m;
    m.key = bench_key(static_cast<uint64_t>(i) / 64, static_cast<uint64_t>(i) % 64);
    m.first = true;
    m.payload_bytes = o.payload_bytes;
    m.split = o.split_bytes;
    for (;;) {
      Result<Ticket> t = s->begin({m});
      if (t.ok()) {
        s->write(*t, 0, payload);
        s->commit(*t, nullptr);
        break;
      }
      if (t.status().code() != Code::kResourceExhausted) return t.status();
      s->flush();
    }
    keys.push_back(m.key);
  }
  s->flush();
  return keys;
}

Status bench_reads(const std::string& dir, const BenchOptions& o, BenchReport* r) {
  DirectoryOptions d;
  d.path = dir;
  if (o.read_depth > 0) d.read_depth = o.read_depth;
  DI_ASSIGN(std::unique_ptr<DirectoryStore> s, DirectoryStore::open(d));
  int64_t begun = now_ns();
  DI_ASSIGN(std::vector<Key> keys, write_objects(s.get(), o));
  r->put_mb_s = mb_s(o.objects * record_bytes(o.payload_bytes), now_ns() - begun);
  std::map<Key, Place> place;
  for (const ListedObject& x : s->list(SIZE_MAX)) {
    place[x.entry.key] = {dir + "/" + generation_name(x.generation) + "/" + segment_name(x.entry.segment),
                          int64_t{x.entry.page} * kPage, record_bytes(x.entry.payload_bytes)};
  }
  std::vector<Place> places;
  for (const Key& k : keys) places.push_back(place[k]);
  StoreReads reads(s.get(), &keys, o.payload_bytes);
  DI_TRY(compare_reads(places, &reads, o, r));
  r->uring = s->gauges().uring;
  r->direct = s->gauges().direct;
  return {};
}

// Writes a manifest piece by piece.
class ManifestOut {
 public:
  explicit ManifestOut(File file) : file_(std::move(file)) {}
  Status add(ManifestEntry e) {
    e.sequence = sequence_++;
    e.target = e.generation = 1;
    bytes_.resize(bytes_.size() + static_cast<size_t>(kManifestEntryBytes));
    encode(e, std::span(bytes_).last(static_cast<size_t>(kManifestEntryBytes)));
    return bytes_.size() < (size_t{16} << 20) ? Status() : flush();
  }
  Status flush() {
    DI_TRY(write_at(file_, bytes_, at_));
    at_ += static_cast<int64_t>(bytes_.size());
    bytes_.clear();
    return {};
  }

 private:
  File file_;
  std::vector<uint8_t> bytes_;
  int64_t at_ = 0;
  uint64_t sequence_ = 0;
};

// A manifest of a million live objects, in an order that has nothing to do with the prefixes: what a match
// costs at its worst. No payload is needed for that. `churn`: entries per live object; beyond the first these
// are touches of it, and others that were written and erased, half and half.
Status write_manifest(const std::string& path, const BenchOptions& o, int64_t chains) {
  DI_ASSIGN(File f, open_file(path, OpenMode::kCreate));
  ManifestOut out(std::move(f));
  std::vector<uint32_t> order(static_cast<size_t>(chains * o.chain));
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 random(1);
  std::shuffle(order.begin(), order.end(), random);
  uint64_t dead = uint64_t{1} << 40;
  uint32_t page = 0;
  for (uint32_t n : order) {
    ManifestEntry e;
    e.key = bench_key(n / static_cast<uint64_t>(o.chain), n % static_cast<uint64_t>(o.chain));
    e.segment = 1;
    e.page = page++;
    e.payload_bytes = 1000;
    e.depth = static_cast<uint32_t>(n % static_cast<uint64_t>(o.chain));
    e.expires_s = UINT32_MAX;
    DI_TRY(out.add(e));
    ManifestEntry other = e;
    for (int64_t more = 1; more < o.churn; ++more) {
      if (more % 2 == 0) {
        e.type = EntryType::kTouch;
        DI_TRY(out.add(e));
        continue;
      }
      // Every second of these ends the one before.
      bool erase = more % 4 == 3;
      if (!erase) other.key = bench_key(++dead, 0), other.page = page++;
      other.type = erase ? EntryType::kErase : EntryType::kCommit;
      DI_TRY(out.add(other));
    }
    if (o.churn % 4 == 2 || o.churn % 4 == 3) {
      other.type = EntryType::kErase;
      DI_TRY(out.add(other));
    }
  }
  return out.flush();
}

Status bench_index(const std::string& dir, const BenchOptions& o, BenchReport* r) {
  DI_TRY(check_store_directory(dir, true));
  std::string where = dir + "/" + generation_name(1);
  DI_TRY(make_directory(where, true));
  int64_t chains = o.index_objects / o.chain;
  DI_TRY(write_manifest(where + "/manifest", o, chains));
  std::mt19937_64 random(2);
  DirectoryOptions d;
  d.path = dir;
  d.writable = false;
  int64_t begun = now_ns();
  DI_ASSIGN(std::unique_ptr<DirectoryStore> s, DirectoryStore::open(d));
  r->rebuild_s = static_cast<double>(now_ns() - begun) / 1e9;
  Gauges g = s->gauges();
  r->index_bytes_per_block = static_cast<double>(g.index_bytes) / static_cast<double>(g.objects);
  std::vector<double> us;
  std::vector<Key> chain(static_cast<size_t>(o.chain));
  for (int64_t i = 0; i < o.matches; ++i) {
    uint64_t c = random() % static_cast<uint64_t>(chains);
    for (size_t k = 0; k < chain.size(); ++k) chain[k] = bench_key(c, k);
    int64_t t = now_ns();
    Match m = s->match(chain);
    us.push_back(static_cast<double>(now_ns() - t) / 1e3);
    s->release(m.lease);
    if (m.blocks != o.chain) return error(Code::kInvalidData, "a match found {} blocks", m.blocks);
  }
  std::sort(us.begin(), us.end());
  r->match_p50_us = us[us.size() / 2];
  r->match_p99_us = us[us.size() * 99 / 100];
  return {};
}

}  // namespace

Result<BenchReport> bench_store(const std::string& path, const BenchOptions& o) {
  if (o.objects < 1 || o.rounds < 1 || o.pairs < 1 || o.churn < 1 || o.chain < 1 ||
      o.index_objects < o.chain || o.matches < 100)
    return error(Code::kInvalidArgument, "the bench needs objects, rounds and at least 100 matches");
  std::string dir = fmt::format("{}/store-bench-{}", path, now_ns());
  std::error_code ec;
  std::filesystem::create_directories(dir, ec);
  if (ec) return error(Code::kIo, "cannot make {}: {}", dir, ec.message());
  BenchReport r;
  Status s = bench_reads(dir + "/data", o, &r);
  if (s.ok()) s = bench_index(dir + "/index", o, &r);
  std::filesystem::remove_all(dir, ec);
  DI_TRY(s);
  return r;
}

}  // namespace deepinfer::store
