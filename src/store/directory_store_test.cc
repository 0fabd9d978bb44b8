// The store on one directory: what was acknowledged comes back after a restart, what is damaged, expired,
// evicted or of a dead owner is absent, leases protect, memory is bounded, prefixes have no holes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <future>
#include <random>

#include "store/disk.h"
#include "store/follower.h"
#include "store/generation.h"
#include "store/test_support.h"

namespace deepinfer::store {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kBytes = 5000;

std::unique_ptr<DirectoryStore> open_or_die(const DirectoryOptions& o) {
  Result<std::unique_ptr<DirectoryStore>> s = DirectoryStore::open(o);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(s).value() : nullptr;
}

std::vector<fs::path> files_of(const std::string& path, const std::string& end) {
  std::vector<fs::path> out;
  for (const auto& e : fs::recursive_directory_iterator(path)) {
    std::string n = e.path().filename().string();
    if (n.size() >= end.size() && n.compare(n.size() - end.size(), end.size(), end) == 0)
      out.push_back(e.path());
  }
  return out;
}

void flip(const fs::path& file, int64_t at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  char c = 0;
  f.get(c);
  f.seekp(at);
  f.put(static_cast<char>(c ^ 0x20));
}

TEST(DirectoryStore, ComesBackAfterRestart) {
  TestDirectory d;
  {
    auto s = open_or_die(test_options(d.path()));
    ASSERT_TRUE(s->self_check().ok());
    ASSERT_TRUE(put_chain(s.get(), 1, 0, 20, kBytes).ok());
    ObjectMeta w = test_meta(1, 9, 9000, Kind::kWindow);
    ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 9000)).ok());
    EXPECT_EQ(read_chain(s.get(), 1, 30, kBytes), 20u);
    EXPECT_EQ(s->gauges().objects, 21);
  }
  auto s = open_or_die(test_options(d.path()));
  EXPECT_EQ(read_chain(s.get(), 1, 30, kBytes), 20u);
  Match m = s->match(test_chain(1, 30));
  EXPECT_EQ(m.windows, std::vector<int64_t>{10});
  EXPECT_EQ(m.bytes, 20 * kBytes);
  s->release(m.lease);
  auto got = get_one(s.get(), Kind::kWindow, test_key(1, 9), 9000);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, test_payload(test_key(1, 9), Kind::kWindow, 9000));
  // A block in the middle asked for alone is no prefix.
  std::vector<Key> holed = {test_key(1, 1), test_key(2, 0)};
  EXPECT_EQ(s->match(holed).blocks, 1);
  EXPECT_EQ(s->match(test_chain(2, 3)).blocks, 0);
  EXPECT_EQ(s->gauges().leases, 1);
}

TEST(DirectoryStore, ManySegmentsWithoutUring) {
  TestDirectory d;
  DirectoryOptions o = test_options(d.path());
  o.segment_bytes = 65536;
  o.uring = false;
  {
    auto s = open_or_die(o);
    ASSERT_TRUE(put_chain(s.get(), 1, 0, 100, kBytes).ok());
    EXPECT_FALSE(s->gauges().uring);
  }
  EXPECT_GE(files_of(d.path(), ".seg").size(), 12u);
  auto s = open_or_die(o);
  EXPECT_EQ(read_chain(s.get(), 1, 100, kBytes), 100u);
}

TEST(DirectoryStore, NoHoleAndNoDuplicate) {
  TestDirectory d;
  auto s = open_or_die(test_options(d.path()));
  ObjectMeta orphan = test_meta(1, 5, kBytes);
  EXPECT_EQ(put_one(s.get(), orphan, test_payload(orphan.key, orphan.kind, kBytes)).code(), Code::kNotFound);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 1, kBytes).ok());
  // The same key again: nothing is written, both writers succeed.
  int64_t held = s->gauges().held_bytes;
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 1, kBytes).ok());
  EXPECT_EQ(s->gauges().held_bytes, held);
  // Two tickets at once for the same key: the second has nothing to write.
  ObjectMeta m = test_meta(1, 1, kBytes);
  Result<Ticket> a = s->begin({m}), b = s->begin({m});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(a->wanted[0]);
  EXPECT_FALSE(b->wanted[0]);
  s->write(*a, 0, test_payload(m.key, m.kind, kBytes));
  EXPECT_FALSE(s->contains(m.kind, m.key));  // written is not committed
  s->abort(*b);
  s->abort(*a);
  EXPECT_FALSE(s->contains(m.kind, m.key));
  EXPECT_EQ(s->gauges().write_memory, 0);
  std::promise<Status> done;
  s->commit(*a, [&](Status x, size_t) { done.set_value(x); });  // after its abort: nothing
  EXPECT_FALSE(done.get_future().get().ok());
  s->flush();
  EXPECT_FALSE(s->contains(m.kind, m.key));
  ASSERT_TRUE(put_chain(s.get(), 1, 1, 3, kBytes).ok());
  EXPECT_EQ(read_chain(s.get(), 1, 9, kBytes), 3u);
}

TEST(DirectoryStore, WriteMemoryIsBounded) {
  TestDirectory d;
  DirectoryOptions o = test_options(d.path());
  o.write_memory_bytes = 3 * record_bytes(kBytes);
  auto s = open_or_die(o);
  std::vector<ObjectMeta> four, three;
  for (uint64_t i = 0; i < 4; ++i) four.push_back(test_meta(1, i, kBytes));
  three.assign(four.begin(), four.begin() + 3);
  EXPECT_EQ(s->begin(four).status().code(), Code::kResourceExhausted);
  Result<Ticket> t = s->begin(three);
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(s->begin({test_meta(2, 0, kBytes)}).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(s->counters().refused_memory, 2);
  s->abort(*t);
  EXPECT_TRUE(put_chain(s.get(), 1, 0, 4, kBytes).ok());
  EXPECT_EQ(s->gauges().write_memory, 0);
}

// Any single byte of a segment: the object is whole or absent, and what comes before it is served.
TEST(DirectoryStore, FlippedBytesAreFound) {
  TestDirectory d;
  {
    auto s = open_or_die(test_options(d.path()));
    ASSERT_TRUE(put_chain(s.get(), 1, 0, 6, kBytes).ok());
  }
  fs::path segment = files_of(d.path(), ".seg").at(0);
  std::mt19937_64 random(5);
  int64_t size = static_cast<int64_t>(fs::file_size(segment));
  for (int round = 0; round < 40; ++round) {
    int64_t at = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    int64_t in_record = at % record_bytes(kBytes);
    size_t record = static_cast<size_t>(at / record_bytes(kBytes));
    // Bytes 14 to 15 and the padding are nobody's; the header is covered, they are too, the padding is not.
    bool covered = in_record < kRecordHeaderBytes + kBytes;
    flip(segment, at);
    DirectoryOptions o = test_options(d.path());
    o.writable = false;
    auto s = open_or_die(o);
    EXPECT_EQ(read_chain(s.get(), 1, 6, kBytes), covered ? record : 6u) << at;
    if (covered) {
      EXPECT_EQ(s->counters().integrity_failures, 1);
      EXPECT_EQ(s->match(test_chain(1, 6)).blocks,
                static_cast<int64_t>(record));  // nobody is sent there again
    }
    flip(segment, at);
  }
}

// A manifest cut or flipped anywhere: what its whole entries and the segments say is there, nothing else.
TEST(DirectoryStore, TornAndDamagedManifests) {
  TestDirectory d;
  {
    auto s = open_or_die(test_options(d.path()));
    ASSERT_TRUE(put_chain(s.get(), 1, 0, 10, kBytes).ok());
  }
  fs::path manifest = files_of(d.path(), "manifest").at(0);
  fs::path saved = d.path() + "/../" + fs::path(d.path()).filename().string() + "_saved";
  fs::copy_file(manifest, saved, fs::copy_options::overwrite_existing);
  DirectoryOptions o = test_options(d.path());
  o.writable = false;
  for (int64_t cut = 0; cut <= 10 * kManifestEntryBytes; cut += 37) {
    fs::copy_file(saved, manifest, fs::copy_options::overwrite_existing);
    fs::resize_file(manifest, static_cast<uintmax_t>(cut));
    auto s = open_or_die(o);
    EXPECT_EQ(read_chain(s.get(), 1, 10, kBytes), static_cast<size_t>(cut / kManifestEntryBytes)) << cut;
  }
  // A flipped entry in the middle is recovered from the segment itself.
  for (int64_t at : {3 * kManifestEntryBytes + 20, int64_t{0}, 8 * kManifestEntryBytes + 95}) {
    fs::copy_file(saved, manifest, fs::copy_options::overwrite_existing);
    flip(manifest, at);
    auto s = open_or_die(o);
    EXPECT_EQ(read_chain(s.get(), 1, 10, kBytes), 10u) << at;
    EXPECT_EQ(s->counters().recovered_objects, 1);
  }
  fs::remove(manifest);
  {
    auto s = open_or_die(o);
    EXPECT_EQ(read_chain(s.get(), 1, 10, kBytes), 10u);
    EXPECT_EQ(s->counters().recovered_objects, 10);
  }
  fs::remove(saved);
}

// What a lease holds is never evicted; its end lets it go. Eviction takes tails before heads.
TEST(DirectoryStore, EvictsByUseTailFirstAndNeverUnderALease) {
  TestDirectory d;
  int64_t wall = 1'000'000;
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall; };
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 10, kBytes).ok());
  wall += 100;
  s->keep_house();
  ASSERT_TRUE(put_chain(s.get(), 2, 0, 10, kBytes).ok());
  Match held = s->match(test_chain(1, 4));
  int64_t one = record_bytes(kBytes);
  EXPECT_EQ(s->shrink(15 * one), 5);
  // Chain 1 is older: it lost its tail, not its head.
  EXPECT_EQ(read_chain(s.get(), 1, 10, kBytes), 5u);
  EXPECT_EQ(read_chain(s.get(), 2, 10, kBytes), 10u);
  s->shrink(0);
  EXPECT_EQ(s->gauges().objects, 4);
  EXPECT_EQ(read_chain(s.get(), 1, 10, kBytes), 4u);
  s->release(held.lease);
  s->shrink(0);
  EXPECT_EQ(s->gauges().objects, 0);
  EXPECT_EQ(s->gauges().held_bytes, 0);
}

TEST(DirectoryStore, QuotaHoldsAndSpaceComesBack) {
  TestDirectory d;
  DirectoryOptions o = test_options(d.path());
  o.retention.quota_bytes = 40 * record_bytes(kBytes);
  o.segment_bytes = 10 * record_bytes(kBytes);
  int64_t wall = 1'000'000;
  o.wall_s = [&] { return wall; };
  auto s = open_or_die(o);
  for (uint64_t c = 0; c < 20; ++c) {
    wall += 10;
    s->keep_house();
    ASSERT_TRUE(put_chain(s.get(), c, 0, 10, kBytes).ok());
    s->keep_house();
    EXPECT_LE(s->gauges().own_bytes, o.retention.quota_bytes);
  }
  s->flush();
  s->keep_house();
  int64_t disk = 0;
  for (const fs::path& p : files_of(d.path(), ".seg")) {
    struct stat st;
    ASSERT_EQ(::stat(p.c_str(), &st), 0);
    disk += st.st_blocks * 512;
  }
  EXPECT_LE(disk, o.retention.quota_bytes + 2 * record_bytes(kBytes));
  EXPECT_EQ(read_chain(s.get(), 19, 10, kBytes), 10u);
}

TEST(DirectoryStore, ClockJumpsLoseNothing) {
  TestDirectory d;
  int64_t wall = 1'000'000'000, mono = 0;
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall; };
  o.monotonic = [&] { return mono; };
  {
    auto s = open_or_die(o);
    ASSERT_TRUE(put_chain(s.get(), 1, 0, 5, kBytes).ok());
    wall += 400LL * 86400;  // with no time passing
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 1, 5, kBytes), 5u);
    ASSERT_TRUE(put_chain(s.get(), 2, 0, 5, kBytes).ok());
    wall -= 900LL * 86400;
    s->keep_house();
    EXPECT_EQ(read_chain(s.get(), 1, 5, kBytes), 5u);
    EXPECT_EQ(s->counters().clock_jumps, 2);
    ASSERT_TRUE(put_chain(s.get(), 3, 0, 5, kBytes).ok());
  }
  wall = 1'000'000'100;
  auto s = open_or_die(o);
  for (uint64_t c : {1, 2, 3}) EXPECT_EQ(read_chain(s.get(), c, 5, kBytes), 5u);
}

// A read that comes back after its lease is thrown away.
TEST(DirectoryStore, SlowReaderPastItsLease) {
  TestDirectory d;
  std::atomic<int64_t> mono{0};
  DirectoryOptions o = test_options(d.path());
  o.monotonic = [&] { return mono.load(); };
  o.limit_bytes_per_s = 100'000;  // a record takes 80 ms
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 1, kBytes).ok());
  std::vector<uint8_t> to(kBytes);
  std::promise<FetchOutcome> done;
  Fetch f;
  f.parts.push_back({Kind::kBlock, test_key(1, 0), to});
  f.done = [&](const FetchOutcome& out) { done.set_value(out); };
  s->fetch(std::move(f));
  mono += 2 * policy::kReadLeaseNs;
  FetchOutcome out = done.get_future().get();
  EXPECT_EQ(out.whole, 0u);
  EXPECT_EQ(out.why.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(s->counters().lease_expiries, 1);
}

TEST(DirectoryStore, CancelledFetchWritesNothingMore) {
  TestDirectory d;
  DirectoryOptions o = test_options(d.path());
  o.limit_bytes_per_s = 200'000;
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 20, kBytes).ok());
  std::vector<std::vector<uint8_t>> to(20, std::vector<uint8_t>(kBytes));
  std::atomic<int> calls{0};
  size_t whole = 99;
  Fetch f;
  for (size_t i = 0; i < 20; ++i) f.parts.push_back({Kind::kBlock, test_key(1, i), to[i]});
  f.done = [&](const FetchOutcome& out) {
    ++calls;
    whole = out.whole;
  };
  FetchId id = s->fetch(std::move(f));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  s->cancel(id);
  EXPECT_EQ(calls, 1);
  ASSERT_LT(whole, 20u);
  auto copy = to;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(to, copy);
  for (size_t i = 0; i < whole; ++i) EXPECT_EQ(to[i], test_payload(test_key(1, i), Kind::kBlock, kBytes));
  s->cancel(id);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(s->gauges().leases, 0);
}

TEST(DirectoryStore, EvictedBetweenMatchAndFetch) {
  TestDirectory d;
  auto s = open_or_die(test_options(d.path()));
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 5, kBytes).ok());
  Match m = s->match(test_chain(1, 5));
  s->invalidate(Kind::kBlock, test_key(1, 3), "test");
  s->flush();
  std::vector<std::vector<uint8_t>> to(5, std::vector<uint8_t>(kBytes));
  std::promise<FetchOutcome> done;
  Fetch f;
  f.lease = m.lease;
  for (size_t i = 0; i < 5; ++i) f.parts.push_back({Kind::kBlock, test_key(1, i), to[i]});
  f.done = [&](const FetchOutcome& out) { done.set_value(out); };
  s->fetch(std::move(f));
  EXPECT_EQ(done.get_future().get().whole, 3u);
  s->release(m.lease);
}

// Two stores on one directory are two processes as far as the files are concerned.
TEST(DirectoryStore, TwoShareBothWays) {
  TestDirectory d;
  auto a = open_or_die(test_options(d.path())), b = open_or_die(test_options(d.path()));
  ASSERT_TRUE(put_chain(a.get(), 1, 0, 5, kBytes).ok());
  ASSERT_TRUE(put_chain(b.get(), 2, 0, 5, kBytes).ok());
  a->keep_house();
  b->keep_house();
  EXPECT_EQ(read_chain(a.get(), 2, 5, kBytes), 5u);
  EXPECT_EQ(read_chain(b.get(), 1, 5, kBytes), 5u);
  // Each goes on where the other stopped.
  ASSERT_TRUE(put_chain(b.get(), 1, 5, 9, kBytes).ok());
  a->keep_house();
  EXPECT_EQ(read_chain(a.get(), 1, 9, kBytes), 9u);
  // What its owner evicts, the other forgets.
  a->shrink(0);
  b->keep_house();
  EXPECT_EQ(read_chain(b.get(), 1, 9, kBytes), 0u);
  EXPECT_EQ(b->gauges().objects, 5 + 4);
}

// The owner is gone: somebody looks after its objects, and they count in that one's quota.
TEST(DirectoryStore, DeadOwnersAreTakenOver) {
  TestDirectory d;
  int64_t mono = 0;
  DirectoryOptions o = test_options(d.path());
  o.monotonic = [&] { return mono; };
  {
    ASSERT_TRUE(put_chain(open_or_die(o).get(), 1, 0, 5, kBytes).ok());
  }
  auto a = open_or_die(o), b = open_or_die(o);
  auto pass = [&](int64_t ns) {
    mono += ns;
    a->keep_house();
    b->keep_house();
  };
  pass(1);
  EXPECT_EQ(a->gauges().own_bytes, 0);
  pass(policy::kOwnerSilentNs);
  EXPECT_EQ(a->gauges().own_bytes, 5 * record_bytes(kBytes));
  EXPECT_EQ(b->gauges().own_bytes, 0);  // one of them only
  // Neither of the living is taken for dead, however long.
  for (int i = 0; i < 10; ++i) pass(policy::kOwnerSilentNs);
  EXPECT_EQ(a->counters().adopted_generations + b->counters().adopted_generations, 1);
  a->shrink(0);
  a->keep_house();
  b->keep_house();
  EXPECT_EQ(b->gauges().objects, 0);
  EXPECT_FALSE(exists(d.path() + "/" + generation_name(1)));
  // The one that took over dies too.
  ASSERT_TRUE(put_chain(a.get(), 3, 0, 5, kBytes).ok());
  a.reset();
  mono += 1;
  b->keep_house();
  mono += policy::kOwnerSilentNs;
  b->keep_house();
  EXPECT_EQ(b->gauges().own_bytes, 5 * record_bytes(kBytes));
  EXPECT_EQ(read_chain(b.get(), 3, 5, kBytes), 5u);
}

// What one process evicted of a dead one's stays evicted, also when that process is gone and a third one
// tidies up: its erasures are kept as long as the records are.
TEST(DirectoryStore, ErasuresOutliveTheirWriter) {
  TestDirectory d;
  int64_t mono = 1;
  DirectoryOptions o = test_options(d.path());
  o.monotonic = [&] { return mono; };
  auto take_over = [&] {
    auto s = open_or_die(o);
    s->keep_house();
    mono += policy::kOwnerSilentNs;
    s->keep_house();
    return s;
  };
  {
    ASSERT_TRUE(put_chain(open_or_die(o).get(), 1, 0, 8, kBytes).ok());
  }
  {
    auto s = take_over();
    EXPECT_EQ(s->shrink(4 * record_bytes(kBytes)), 4);
  }
  // Two more come, take over and go; each has nothing of its own.
  for (int i = 0; i < 2; ++i) {
    auto s = take_over();
    EXPECT_EQ(s->gauges().objects, 4);
    EXPECT_EQ(read_chain(s.get(), 1, 8, kBytes), 4u);
    EXPECT_EQ(s->counters().integrity_failures, 0);
  }
  o.writable = false;
  auto s = open_or_die(o);
  EXPECT_EQ(s->gauges().objects, 4);
  s.reset();
  o.writable = true;
  // With the last of the dead one's objects its directory goes, and then who spoke of it may go too.
  take_over()->shrink(0);
  take_over()->keep_house();
  EXPECT_FALSE(exists(d.path() + "/" + generation_name(1)));
  EXPECT_FALSE(exists(d.path() + "/" + generation_name(2)));
}

TEST(DirectoryStore, RecentNamesBeginningsFirst) {
  TestDirectory d;
  int64_t wall = 1'000'000;
  DirectoryOptions o = test_options(d.path());
  o.wall_s = [&] { return wall; };
  o.monotonic = [&] { return wall * 1'000'000'000; };
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 4, kBytes).ok());
  wall += 10;
  s->keep_house();
  ASSERT_TRUE(put_chain(s.get(), 2, 0, 3, kBytes).ok());
  ASSERT_TRUE(put_chain(s.get(), 3, 0, 1, kBytes + 1).ok());  // of another size: another model's
  auto names = [&](size_t most) {
    std::vector<Key> keys;
    for (const StoredName& n : s->recent(Kind::kBlock, kBytes, most)) keys.push_back(n.key);
    return keys;
  };
  EXPECT_EQ(names(5), (std::vector<Key>{test_key(2, 0), test_key(2, 1), test_key(2, 2), test_key(1, 0),
                                        test_key(1, 1)}));
  wall += 10;
  s->keep_house();
  s->release(s->match(test_chain(1, 2)).lease);  // used again, as far as that
  EXPECT_EQ(names(3), (std::vector<Key>{test_key(1, 0), test_key(1, 1), test_key(2, 0)}));
  EXPECT_TRUE(s->recent(Kind::kWindow, kBytes, 9).empty());
  wall += 8 * 86400;
  s->keep_house();
  EXPECT_TRUE(names(9).empty());
}

// Somebody took a living process for dead: it notices before it acknowledges anything, and goes on elsewhere.
TEST(DirectoryStore, FencedWriterMakesANewGeneration) {
  TestDirectory d;
  auto s = open_or_die(test_options(d.path()));
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 3, kBytes).ok());
  ASSERT_TRUE(make_claim(d.path() + "/" + generation_name(1), 1, 77));
  EXPECT_FALSE(make_claim(d.path() + "/" + generation_name(1), 1, 78));
  ASSERT_TRUE(put_chain(s.get(), 1, 3, 6, kBytes).ok());
  EXPECT_EQ(s->counters().fenced, 1);
  EXPECT_TRUE(exists(d.path() + "/" + generation_name(2)));
  EXPECT_EQ(read_chain(s.get(), 1, 6, kBytes), 6u);
  s.reset();
  EXPECT_EQ(read_chain(open_or_die(test_options(d.path())).get(), 1, 6, kBytes), 6u);
}

TEST(DirectoryStore, LongManifestEndsTheGeneration) {
  TestDirectory d;
  DirectoryOptions o = test_options(d.path());
  o.manifest_bytes = 5 * kManifestEntryBytes;
  auto s = open_or_die(o);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 30, kBytes).ok());
  EXPECT_GE(s->gauges().generations, 5);
  EXPECT_EQ(s->gauges().own_bytes, 30 * record_bytes(kBytes));
  EXPECT_EQ(read_chain(s.get(), 1, 30, kBytes), 30u);
}

TEST(DirectoryStore, VanishedDirectory) {
  TestDirectory d;
  auto s = open_or_die(test_options(d.path()));
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 3, kBytes).ok());
  fs::remove_all(d.path());
  EXPECT_FALSE(put_chain(s.get(), 1, 3, 4, kBytes).ok());
  s->keep_house();
  EXPECT_EQ(s->begin({test_meta(9, 0, 10)}).status().code(), Code::kUnavailable);
  EXPECT_FALSE(s->gauges().writable);
  EXPECT_FALSE(s->gauges().trouble.empty());
  EXPECT_LE(read_chain(s.get(), 1, 3, kBytes), 3u);  // right or absent
  EXPECT_FALSE(exists(d.path()));                    // never made again behind the operator's back
}

TEST(DirectoryStore, FullDisk) {
  TestDirectory d;
  if (::mount("di_store_test", d.path().c_str(), "tmpfs", 0, "size=2m") != 0)
    GTEST_SKIP() << "no small file system can be mounted here";
  {
    DirectoryOptions o = test_options(d.path());
    o.segment_bytes = 256 << 10;
    int64_t mono = 0;
    o.monotonic = [&] { return mono; };
    auto s = open_or_die(o);
    size_t acknowledged = 0;
    while (acknowledged < 1000 && put_chain(s.get(), 1, acknowledged, acknowledged + 1, kBytes).ok())
      ++acknowledged;
    ASSERT_GT(acknowledged, 100u);
    ASSERT_LT(acknowledged, 300u);
    // Nothing acknowledged is lost, and the service answers.
    EXPECT_EQ(read_chain(s.get(), 1, 1000, kBytes), acknowledged);
    EXPECT_EQ(s->begin({test_meta(2, 0, kBytes)}).status().code(), Code::kUnavailable);
    // Room is made, and writing goes on after a while.
    s->keep_house();
    s->keep_house();
    mono += 60'000'000'000;
    EXPECT_TRUE(put_chain(s.get(), 2, 0, 3, kBytes).ok()) << s->gauges().trouble;
    EXPECT_EQ(read_chain(s.get(), 2, 3, kBytes), 3u);
    EXPECT_TRUE(s->gauges().writable);
  }
  {
    DirectoryOptions o = test_options(d.path());
    o.writable = false;
    auto s = open_or_die(o);
    EXPECT_EQ(read_chain(s.get(), 2, 3, kBytes), 3u);
  }
  ::umount(d.path().c_str());
}

TEST(DirectoryStore, StrangersAreNotTouched) {
  TestDirectory d;
  std::ofstream(d.path() + "/letter.txt") << "mine";
  EXPECT_EQ(DirectoryStore::open(test_options(d.path())).status().code(), Code::kInvalidArgument);
  TestDirectory e;
  DirectoryOptions o = test_options(e.path());
  o.writable = false;
  EXPECT_EQ(DirectoryStore::open(o).status().code(), Code::kNotFound);
  std::ofstream(e.path() + "/deepinfer-store") << "deepinfer store, format 3\n";
  EXPECT_EQ(DirectoryStore::open(test_options(e.path())).status().code(), Code::kInvalidData);
}

}  // namespace
}  // namespace deepinfer::store
