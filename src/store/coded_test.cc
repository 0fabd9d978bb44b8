// The code and the store over several directories: every loss the code bears gives the same bytes, more is
// reported, damage is passed over, slow and dead places do not stop a read, repair makes it whole again.
// Serving specification 7.6, T-KV-2, T-KV-6.
#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "store/coded_store.h"
#include "store/test_support.h"

namespace deepinfer::store {
namespace {

namespace fs = std::filesystem;

std::vector<uint8_t> noise(size_t n, uint64_t seed) {
  return test_payload(test_key(seed, n), Kind::kBlock, n);
}

TEST(Erasure, EveryLossOfTwoOfTwelve) {
  Result<Erasure> code = Erasure::make(10, 2);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(code->part_bytes(113'920), 11'392);  // the released block: exactly a tenth
  for (size_t bytes : {1u, 63u, 640u, 641u, 113'920u}) {
    std::vector<uint8_t> object = noise(bytes, 3);
    std::vector<std::vector<uint8_t>> parts = code->split(object);
    int64_t each = code->part_bytes(static_cast<int64_t>(bytes));
    int losses = 0;
    for (int a = 0; a < 12; ++a) {
      for (int b = a + 1; b < 12; ++b, ++losses) {
        std::vector<int> indices;
        std::vector<const uint8_t*> at;
        for (int i = 0; i < 12; ++i) {
          if (i == a || i == b) continue;
          indices.push_back(i);
          at.push_back(parts[static_cast<size_t>(i)].data());
        }
        std::vector<uint8_t> back(bytes);
        code->join(indices, at, each, back);
        ASSERT_EQ(back, object) << a << " " << b;
        ASSERT_EQ(code->rebuild(indices, at, each, a), parts[static_cast<size_t>(a)]);
        ASSERT_EQ(code->rebuild(indices, at, each, b), parts[static_cast<size_t>(b)]);
      }
    }
    EXPECT_EQ(losses, 66);
  }
  EXPECT_FALSE(Erasure::make(0, 2).ok());
  EXPECT_FALSE(Erasure::make(200, 56).ok());
}

TEST(Erasure, OtherCodes) {
  std::mt19937_64 random(4);
  for (auto [k, m] : {std::pair{1, 1}, {1, 3}, {4, 2}, {6, 3}, {20, 4}}) {
    Result<Erasure> code = Erasure::make(k, m);
    ASSERT_TRUE(code.ok());
    std::vector<uint8_t> object = noise(10'000, static_cast<uint64_t>(k));
    auto parts = code->split(object);
    for (int round = 0; round < 50; ++round) {
      std::vector<int> indices(static_cast<size_t>(k + m));
      for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(i);
      std::shuffle(indices.begin(), indices.end(), random);
      indices.resize(static_cast<size_t>(k));
      std::sort(indices.begin(), indices.end());
      std::vector<const uint8_t*> at;
      for (int i : indices) at.push_back(parts[static_cast<size_t>(i)].data());
      std::vector<uint8_t> back(object.size());
      code->join(indices, at, code->part_bytes(10'000), back);
      ASSERT_EQ(back, object);
    }
  }
}

constexpr int64_t kBytes = 12'345;

struct Dirs {
  explicit Dirs(int n = 12) {
    for (int i = 0; i < n; ++i) paths.push_back(root.path() + "/d" + std::to_string(100 + i));
  }
  CodedOptions options(int k = 10, int m = 2) const {
    CodedOptions o;
    o.paths = paths;
    o.k = k;
    o.m = m;
    o.each = test_options("");
    o.each.wall_s = [] { return int64_t{1'000'000}; };
    o.each.uring = false;  // twelve rings in one test process are a burden
    return o;
  }
  std::unique_ptr<CodedStore> open(int k = 10, int m = 2) const {
    auto s = CodedStore::open(options(k, m));
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(s).value() : nullptr;
  }
  TestDirectory root;
  std::vector<std::string> paths;
};

TEST(CodedStore, AnyTwoDirectoriesLost) {
  Dirs d;
  {
    ASSERT_TRUE(put_chain(d.open().get(), 1, 0, 12, kBytes).ok());
  }
  std::mt19937_64 random(6);
  for (int round = 0; round < 6; ++round) {
    size_t a = random() % 12, b = (a + 1 + random() % 11) % 12;
    fs::remove_all(d.paths[a]);
    fs::remove_all(d.paths[b]);
    auto s = d.open();  // both are made anew, empty
    EXPECT_EQ(read_chain(s.get(), 1, 20, kBytes), 12u) << a << " " << b;
    std::vector<StoredName> names = s->recent(Kind::kBlock, kBytes, 5);
    ASSERT_EQ(names.size(), 5u);
    for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i].key, test_key(1, i));
    // Written on, in the degraded state too.
    CodedRepair r = s->repair();
    EXPECT_EQ(r.objects, 12);
    EXPECT_EQ(r.lost, 0);
    EXPECT_EQ(r.failed, 0);
    EXPECT_EQ(r.repaired_parts, 24);
    EXPECT_EQ(s->repair().whole, 12);
    EXPECT_GT(s->counters().degraded_reads + s->counters().hedged_reads, 0);
  }
  for (size_t i : {0u, 4u, 8u}) fs::remove_all(d.paths[i]);
  auto s = d.open();
  EXPECT_EQ(read_chain(s.get(), 1, 20, kBytes), 0u);  // three: absent, not wrong
  EXPECT_EQ(s->repair().lost, 12);
}

// Under load: directories go while readers and a writer are at work; nothing acknowledged is lost, repair
// ends.
TEST(CodedStore, TwoDirectoriesDeletedUnderLoad) {
  Dirs d;
  auto s = d.open();
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 30, kBytes).ok());
  std::atomic<bool> stop{false};
  std::atomic<int64_t> reads{0};
  std::thread reader([&] {
    while (!stop) {
      EXPECT_EQ(read_chain(s.get(), 1, 30, kBytes), 30u);
      ++reads;
    }
  });
  for (size_t i : {3u, 9u}) {
    fs::remove_all(d.paths[i]);
    s->keep_house();
    int64_t before = reads;
    while (reads < before + 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  reader.join();
  s.reset();
  auto again = d.open();
  CodedRepair r = again->repair();
  EXPECT_EQ(r.lost, 0);
  EXPECT_EQ(r.failed, 0);
  EXPECT_EQ(r.objects, 30);
  EXPECT_EQ(again->repair().whole, 30);
  EXPECT_EQ(read_chain(again.get(), 1, 30, kBytes), 30u);
}

TEST(CodedStore, DamagedPartsArePassedOver) {
  Dirs d(6);
  {
    ASSERT_TRUE(put_chain(d.open().get(), 1, 0, 8, kBytes).ok());
  }
  // Two of the parts of every object lie in each of the six; one directory's bytes go bad.
  for (const auto& e : fs::recursive_directory_iterator(d.paths[2])) {
    if (e.path().extension() != ".seg") continue;
    std::fstream f(e.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t at = 300; at < static_cast<int64_t>(e.file_size()); at += kPage) {
      f.seekp(at);
      f.put('\x77');
    }
  }
  auto s = d.open();
  EXPECT_EQ(read_chain(s.get(), 1, 20, kBytes), 8u);
  // Those that were met are gone; the rest is found by repair's own reads. In the end all is whole.
  for (int round = 0; round < 3; ++round) s->repair();
  EXPECT_EQ(read_chain(s.get(), 1, 20, kBytes), 8u);
}

TEST(CodedStore, FiveDirectoriesAreTooFewForTenAndTwo) {
  Dirs d(5);
  EXPECT_EQ(CodedStore::open(d.options()).status().code(), Code::kInvalidConfig);
  auto s = d.open(3, 2);
  ASSERT_TRUE(put_chain(s.get(), 1, 0, 4, kBytes).ok());
  EXPECT_EQ(read_chain(s.get(), 1, 4, kBytes), 4u);
  ObjectMeta orphan = test_meta(7, 3, kBytes);
  EXPECT_EQ(put_one(s.get(), orphan, test_payload(orphan.key, orphan.kind, kBytes)).code(), Code::kNotFound);
  ObjectMeta w = test_meta(1, 2, 70'000, Kind::kWindow);
  ASSERT_TRUE(put_one(s.get(), w, test_payload(w.key, w.kind, 70'000)).ok());
  Match m = s->match(test_chain(1, 9));
  EXPECT_EQ(m.blocks, 4);
  EXPECT_EQ(m.windows, std::vector<int64_t>{3});
  auto got = get_one(s.get(), Kind::kWindow, w.key, 70'000);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, test_payload(w.key, w.kind, 70'000));
}

TEST(CodedStore, DownDirectoriesUpToTheCode) {
  Dirs d(12);
  {
    ASSERT_TRUE(put_chain(d.open().get(), 1, 0, 5, kBytes).ok());
  }
  for (size_t i : {1u, 7u}) {
    fs::remove_all(d.paths[i]);
    std::ofstream(d.paths[i]) << "a file where a directory was";
  }
  auto s = d.open();
  EXPECT_EQ(s->places_up(), 10);
  EXPECT_EQ(read_chain(s.get(), 1, 9, kBytes), 5u);
  // Two of twelve down: a write would have ten parts, one less than it needs; it is refused, nothing is seen.
  ObjectMeta m = test_meta(1, 5, kBytes);
  EXPECT_FALSE(put_one(s.get(), m, test_payload(m.key, m.kind, kBytes)).ok());
  EXPECT_FALSE(s->contains(Kind::kBlock, m.key));
  s.reset();
  fs::remove_all(d.paths[4]);
  std::ofstream(d.paths[4]) << "and another";
  EXPECT_EQ(CodedStore::open(d.options()).status().code(), Code::kUnavailable);
}

// One place answers very late: the others are enough, and a read does not wait for it.
TEST(CodedStore, SlowPlaceIsHedged) {
  Dirs d(6);
  CodedOptions o = d.options(4, 2);
  {
    ASSERT_TRUE(put_chain(CodedStore::open(o)->get(), 1, 0, 6, 40'000).ok());
  }
  o.each.limit_bytes_per_s = 2'000'000;  // a part takes 6 ms, on every place
  o.hedge_ns = 1'000'000;
  auto s = CodedStore::open(o);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(read_chain(s->get(), 1, 9, 40'000), 6u);
  EXPECT_GT((*s)->counters().hedged_reads, 0);
}

TEST(CodedStore, CancelledFetchLeavesItsMemoryAlone) {
  Dirs d(6);
  CodedOptions o = d.options(4, 2);
  {
    ASSERT_TRUE(put_chain(CodedStore::open(o)->get(), 1, 0, 10, kBytes).ok());
  }
  o.each.limit_bytes_per_s = 100'000;
  auto s = CodedStore::open(o);
  ASSERT_TRUE(s.ok());
  std::vector<std::vector<uint8_t>> to(10, std::vector<uint8_t>(kBytes));
  std::atomic<int> calls{0};
  Fetch f;
  for (size_t i = 0; i < 10; ++i) f.parts.push_back({Kind::kBlock, test_key(1, i), to[i]});
  f.done = [&](const FetchOutcome&) { ++calls; };
  FetchId id = (*s)->fetch(std::move(f));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  (*s)->cancel(id);
  EXPECT_EQ(calls, 1);
  auto copy = to;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(copy, to);
}

}  // namespace
}  // namespace deepinfer::store
