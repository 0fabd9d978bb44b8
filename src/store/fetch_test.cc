// Fetches that want the first layers of every block before the rest of any: order, checks, what is said when,
// and what is left when a piece is damaged, missing or given up.
#include <algorithm>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "store/disk.h"
#include "store/generation.h"
#include "store/test_support.h"

namespace deepinfer::store {
namespace {

constexpr int64_t kBytes = 20000, kSplit = 9000;

std::unique_ptr<DirectoryStore> open_or_die(const DirectoryOptions& o) {
  Result<std::unique_ptr<DirectoryStore>> s = DirectoryStore::open(o);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(s).value() : nullptr;
}

// Blocks of a chain that are split at `split` (0: not), and a window at the end.
void put_split(KvStore* s, uint64_t chain, size_t blocks, int64_t split) {
  for (size_t i = 0; i < blocks; ++i) {
    ObjectMeta m = test_meta(chain, i, kBytes);
    m.split = split;
    ASSERT_TRUE(put_one(s, m, test_payload(m.key, m.kind, kBytes)).ok());
  }
  ObjectMeta w = test_meta(chain, blocks - 1, 30000, Kind::kWindow);
  w.split = split;
  ASSERT_TRUE(put_one(s, w, test_payload(w.key, w.kind, 30000)).ok());
}

struct Fetched {
  FetchOutcome out;
  int firsts = 0;
  bool beginnings = false;  // when `first` was called, they were right
  std::vector<std::vector<uint8_t>> blocks;
  std::vector<uint8_t> window;
};

Fetched fetch(KvStore* s, uint64_t chain, size_t blocks, int64_t split = kSplit) {
  Fetched r;
  r.blocks.assign(blocks, std::vector<uint8_t>(kBytes, 0xEE));
  r.window.resize(30000);
  Match m = s->match(test_chain(chain, blocks));
  std::promise<FetchOutcome> end;
  Fetch f;
  f.lease = m.lease;
  f.split = split;
  for (size_t i = 0; i < blocks; ++i) f.parts.push_back({Kind::kBlock, test_key(chain, i), r.blocks[i]});
  f.parts.push_back({Kind::kWindow, test_key(chain, blocks - 1), r.window});
  f.first = [&](int64_t ns) {
    ++r.firsts;
    r.beginnings = ns > 0;
    for (size_t i = 0; i < blocks; ++i) {
      std::vector<uint8_t> want = test_payload(test_key(chain, i), Kind::kBlock, kBytes);
      r.beginnings = r.beginnings && std::equal(want.begin(), want.begin() + split, r.blocks[i].begin());
    }
    r.beginnings =
        r.beginnings && r.window == test_payload(test_key(chain, blocks - 1), Kind::kWindow, 30000);
  };
  f.done = [&](const FetchOutcome& o) { end.set_value(o); };
  s->fetch(std::move(f));
  r.out = end.get_future().get();
  s->release(m.lease);
  for (size_t i = 0; i < std::min(blocks, r.out.whole); ++i)
    EXPECT_EQ(r.blocks[i], test_payload(test_key(chain, i), Kind::kBlock, kBytes));
  return r;
}

// Flips a byte of the payload of block i.
void damage(DirectoryStore* s, const std::string& path, uint64_t chain, size_t i, int64_t at) {
  for (const ListedObject& x : s->list(SIZE_MAX)) {
    if (x.entry.key != test_key(chain, i) || x.entry.kind != Kind::kBlock) continue;
    std::fstream f(path + "/" + generation_name(x.generation) + "/" + segment_name(x.entry.segment),
                   std::ios::in | std::ios::out | std::ios::binary);
    int64_t where = int64_t{x.entry.page} * kPage + kRecordHeaderBytes + at;
    f.seekg(where);
    char c = static_cast<char>(f.get() ^ 0x10);
    f.seekp(where);
    f.put(c);
    return;
  }
  FAIL() << "the block is not there";
}

class SplitFetch : public ::testing::TestWithParam<bool> {
 protected:
  DirectoryOptions options() {
    DirectoryOptions o = test_options(d.path());
    o.uring = GetParam();
    return o;
  }
  TestDirectory d;
};

TEST_P(SplitFetch, TheFirstLayersComeFirst) {
  auto s = open_or_die(options());
  put_split(s.get(), 1, 40, kSplit);
  for (int turn = 0; turn < 5; ++turn) {
    Fetched r = fetch(s.get(), 1, 40);
    EXPECT_EQ(r.out.whole, 41u) << r.out.why.to_string();
    EXPECT_EQ(r.firsts, 1);
    EXPECT_TRUE(r.beginnings);
    EXPECT_EQ(r.out.bytes, 40 * kBytes + 30000);
  }
  Counters c = s->counters();
  EXPECT_EQ(c.split_fetches, 5);
  EXPECT_EQ(fetch(s.get(), 1, 40, 0).out.whole, 41u);
  EXPECT_EQ(s->counters().split_fetches, 5);
  EXPECT_LE(c.first_layers_ns, c.split_fetch_ns);
  EXPECT_EQ(s->gauges().leases, 0);
  // Whole reads of the same records, and the scrub's, know nothing of parts.
  EXPECT_EQ(read_chain(s.get(), 1, 40, kBytes), 40u);
}

// Records of the format before, and such as were split elsewhere: found whole or not at all.
TEST_P(SplitFetch, RecordsThatAreNotSplitThere) {
  auto s = open_or_die(options());
  put_split(s.get(), 1, 10, 0);
  put_split(s.get(), 2, 10, 5000);
  for (uint64_t chain : {1, 2}) {
    for (int turn = 0; turn < 5; ++turn) {
      Fetched r = fetch(s.get(), chain, 10);
      EXPECT_EQ(r.out.whole, 11u) << r.out.why.to_string();
      EXPECT_TRUE(r.firsts == 1 && r.beginnings);
    }
    damage(s.get(), d.path(), chain, 6, 17000);
    Fetched r = fetch(s.get(), chain, 10);
    EXPECT_EQ(r.out.whole, 6u);
    EXPECT_EQ(r.firsts, 0);
  }
  EXPECT_EQ(s->counters().integrity_failures, 2);
  // Nothing to split: as if it had not been asked for.
  put_split(s.get(), 3, 3, kBytes);
  EXPECT_EQ(fetch(s.get(), 3, 3, kBytes).out.whole, 4u);
}

TEST_P(SplitFetch, DamageEndsThePrefix) {
  auto s = open_or_die(options());
  put_split(s.get(), 1, 20, kSplit);
  put_split(s.get(), 2, 20, kSplit);
  damage(s.get(), d.path(), 1, 12, kBytes - 1);  // in the rest
  Fetched r = fetch(s.get(), 1, 20);
  EXPECT_EQ(r.out.whole, 12u);  // both pieces of those before it were read all the same
  EXPECT_EQ(r.out.why.code(), Code::kInvalidData);
  EXPECT_FALSE(s->contains(Kind::kBlock, test_key(1, 12)));
  damage(s.get(), d.path(), 2, 12, 0);  // in the beginning
  r = fetch(s.get(), 2, 20);
  EXPECT_EQ(r.out.whole, 12u);
  EXPECT_EQ(r.firsts, 0);
  EXPECT_EQ(s->counters().integrity_failures, 2);
  // Reads that were joined to one: only what is damaged is lost.
  put_split(s.get(), 3, 60, 0);
  damage(s.get(), d.path(), 3, 33, 700);
  r = fetch(s.get(), 3, 60, 0);
  EXPECT_EQ(r.out.whole, 33u);
  EXPECT_EQ(s->counters().integrity_failures, 3);
  EXPECT_TRUE(s->contains(Kind::kBlock, test_key(3, 34)));
  // A block that is not there: what is before it comes, and nothing is said before.
  r = fetch(s.get(), 2, 20);
  EXPECT_EQ(r.out.whole, 12u);
  EXPECT_EQ(r.firsts, 0);
  EXPECT_EQ(s->gauges().leases, 0);
}

// Given up between the two: `done` comes before cancel() returns, nothing is written afterwards.
TEST_P(SplitFetch, GivenUpAfterTheFirstLayers) {
  DirectoryOptions o = options();
  {
    auto s = open_or_die(o);
    put_split(s.get(), 1, 30, kSplit);
  }
  o.limit_bytes_per_s = 5'000'000;
  auto s = open_or_die(o);
  std::vector<std::vector<uint8_t>> to(30, std::vector<uint8_t>(kBytes, 0xEE));
  std::promise<void> first;
  FetchOutcome out;
  int done = 0;
  Fetch f;
  f.split = kSplit;
  for (size_t i = 0; i < to.size(); ++i) f.parts.push_back({Kind::kBlock, test_key(1, i), to[i]});
  f.first = [&](int64_t) { first.set_value(); };
  f.done = [&](const FetchOutcome& x) {
    out = x;
    ++done;
  };
  FetchId id = s->fetch(std::move(f));
  first.get_future().get();
  s->cancel(id);
  ASSERT_EQ(done, 1);
  EXPECT_LT(out.whole, 30u);
  EXPECT_EQ(out.why.code(), Code::kCancelled);
  std::vector<std::vector<uint8_t>> then = to;
  // The reads under way end; they write nothing any more.
  while (s->reads_waiting() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(to, then);
  for (size_t i = 0; i < to.size(); ++i) {
    std::vector<uint8_t> want = test_payload(test_key(1, i), Kind::kBlock, kBytes);
    EXPECT_TRUE(std::equal(want.begin(), want.begin() + kSplit, to[i].begin()));
  }
}

// A device that cannot read one place, or not so often, and what was asked of it.
struct Fault {
  int64_t at = -1;    // in the file
  int failures = 0;   // of reads that cover it, from now on
  size_t longer = 0;  // reads of more than one record; the same, of those that failed
  size_t longer_failed = 0;
  std::vector<int64_t> alone;  // where the others began
  std::mutex mutex;
};
class FaultyReader final : public Reader {
 public:
  FaultyReader(std::unique_ptr<Reader> under, Fault* fault) : fault_(fault), under_(std::move(under)) {}
  void submit(std::vector<ReadOp> ops) override {
    for (ReadOp& op : ops) {
      std::lock_guard lock(fault_->mutex);
      bool longer = op.bytes > record_bytes(kBytes);
      fault_->longer += longer ? 1 : 0;
      if (!longer) fault_->alone.push_back(op.offset);
      bool covers = op.offset <= fault_->at && fault_->at < op.offset + op.bytes;
      if (!covers || fault_->failures == 0) continue;
      --fault_->failures;
      fault_->longer_failed += longer ? 1 : 0;
      op.done = [done = std::move(op.done)](Status s, std::span<const uint8_t>) {
        done(s.code() == Code::kCancelled ? s : error(Code::kIo, "a bad place"), {});
      };
    }
    under_->submit(std::move(ops));
  }
  bool uses_uring() const override { return under_->uses_uring(); }
  int64_t queued() const override { return under_->queued(); }

 private:
  Fault* fault_;
  std::unique_ptr<Reader> under_;
};

class JoinedReads : public SplitFetch {
 protected:
  static constexpr size_t kBlocks = 60;
  void SetUp() override {
    DirectoryOptions o = options();
    o.segment_bytes = 4 << 20;      // all in one
    o.read_memory_bytes = 4 << 20;  // several of them in a read
    o.reader = [this](const ReaderOptions& r) {
      return std::make_unique<FaultyReader>(Reader::make(r), &fault);
    };
    s = open_or_die(o);
    ASSERT_TRUE(put_chain(s.get(), 1, 0, kBlocks, kBytes).ok());
    to.assign(kBlocks, std::vector<uint8_t>(kBytes, 0xEE));
  }
  FetchOutcome read(size_t from) {
    {
      std::lock_guard lock(fault.mutex);
      fault.longer = fault.longer_failed = 0;
      fault.alone.clear();
    }
    std::promise<FetchOutcome> end;
    Fetch f;
    for (size_t i = from; i < kBlocks; ++i) f.parts.push_back({Kind::kBlock, test_key(1, i), to[i]});
    f.done = [&](const FetchOutcome& o) { end.set_value(o); };
    s->fetch(std::move(f));
    FetchOutcome out = end.get_future().get();
    for (size_t i = from; i < from + out.whole; ++i)
      EXPECT_EQ(to[i], test_payload(test_key(1, i), Kind::kBlock, kBytes));
    return out;
  }
  Fault fault;
  std::unique_ptr<DirectoryStore> s;
  std::vector<std::vector<uint8_t>> to;
};

TEST_P(JoinedReads, AreAskedAgainOneByOne) {
  EXPECT_EQ(read(0).whole, kBlocks);
  size_t joined = fault.longer;
  EXPECT_GE(joined, 8u);
  EXPECT_LT(joined, kBlocks / 2);
  EXPECT_TRUE(fault.alone.empty());
  // It fails once: everything comes, what lay in the read that failed is asked for alone.
  fault.at = 33 * record_bytes(kBytes) + 5000;
  fault.failures = 1;
  FetchOutcome out = read(0);
  EXPECT_EQ(out.whole, kBlocks) << out.why.to_string();
  EXPECT_EQ(fault.longer, joined);
  EXPECT_EQ(fault.longer_failed, 1u);
  size_t again = fault.alone.size();
  EXPECT_GE(again, 2u);
  EXPECT_EQ(again, (kBlocks + joined - 1) / joined);
  EXPECT_EQ(s->counters().integrity_failures, 0);
}

TEST_P(JoinedReads, ABadPlaceCostsWhatLiesThere) {
  fault.at = 33 * record_bytes(kBytes) + 5000;
  fault.failures = 1 << 20;
  FetchOutcome out = read(0);
  EXPECT_EQ(out.whole, 33u);  // also what was to be read along with it, before it
  EXPECT_EQ(out.why.code(), Code::kIo);
  EXPECT_EQ(fault.longer_failed, 1u);
  EXPECT_EQ(std::count(fault.alone.begin(), fault.alone.end(), 33 * record_bytes(kBytes)), 1);
  // Nobody is sent there again; what lies beside it is as good as before.
  EXPECT_FALSE(s->contains(Kind::kBlock, test_key(1, 33)));
  EXPECT_TRUE(s->contains(Kind::kBlock, test_key(1, 32)) && s->contains(Kind::kBlock, test_key(1, 34)));
  EXPECT_EQ(read(34).whole, kBlocks - 34);
  EXPECT_EQ(s->gauges().leases, 0);
  EXPECT_EQ(s->reads_waiting(), 0);
}

INSTANTIATE_TEST_SUITE_P(Readers, JoinedReads, ::testing::Bool(),
                         [](const auto& x) { return x.param ? "Uring" : "Threads"; });
INSTANTIATE_TEST_SUITE_P(Readers, SplitFetch, ::testing::Bool(),
                         [](const auto& x) { return x.param ? "Uring" : "Threads"; });

// A store of the format before is read as it is, and is of this format when it has been written to.
TEST(StoreFormat, TheOneBefore) {
  TestDirectory d;
  std::string marker = d.path() + "/deepinfer-store";
  auto say = [&](const char* text) { std::ofstream(marker, std::ios::trunc) << text; };
  auto said = [&] {
    std::ifstream in(marker);
    std::string line;
    std::getline(in, line);
    return line;
  };
  {
    auto s = open_or_die(test_options(d.path()));
    put_split(s.get(), 1, 3, 0);
  }
  say("deepinfer store, format 1\n");
  DirectoryOptions o = test_options(d.path());
  o.writable = false;
  EXPECT_EQ(read_chain(open_or_die(o).get(), 1, 3, kBytes), 3u);
  EXPECT_EQ(said(), "deepinfer store, format 1");
  auto s = open_or_die(test_options(d.path()));
  EXPECT_EQ(said(), "deepinfer store, format 2");
  EXPECT_EQ(read_chain(s.get(), 1, 3, kBytes), 3u);
  s.reset();
  say("deepinfer store, format 3\n");
  Result<std::unique_ptr<DirectoryStore>> refused = DirectoryStore::open(test_options(d.path()));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidData);
}

}  // namespace
}  // namespace deepinfer::store
