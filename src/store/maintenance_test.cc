// Verification finds what is damaged, scrub erases it, repair writes manifests anew, and prefixes travel from
// one store to another.
#include "store/maintenance.h"

#include <fstream>

#include "store/test_support.h"

namespace deepinfer::store {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kBytes = 6000;

std::unique_ptr<DirectoryStore> open_or_die(DirectoryOptions o) {
  Result<std::unique_ptr<DirectoryStore>> s = DirectoryStore::open(o);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return std::move(s).value();
}

void spoil(const fs::path& file, int64_t at) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(at);
  f.put('\x6b');
}

TEST(Maintenance, VerifyScrubRepair) {
  TestDirectory d;
  {
    ASSERT_TRUE(put_chain(open_or_die(test_options(d.path())).get(), 1, 0, 10, kBytes).ok());
  }
  std::string generation = d.path() + "/g-0000000000000001";
  auto verify = [&](bool scrub) {
    DirectoryOptions o = test_options(d.path());
    o.writable = scrub;
    auto s = open_or_die(o);
    VerifyReport r = verify_objects(s.get(), 0);
    s->flush();
    EXPECT_TRUE(verify_manifests(d.path(), &r).ok());
    return r;
  };
  VerifyReport r = verify(false);
  EXPECT_TRUE(r.sound());
  EXPECT_EQ(r.objects, 10);
  EXPECT_EQ(r.bytes, 10 * kBytes);
  spoil(generation + "/00000001.seg", 7 * record_bytes(kBytes) + 500);
  r = verify(false);
  EXPECT_FALSE(r.sound());
  EXPECT_EQ(r.damaged_objects, 1);
  ASSERT_EQ(r.first.size(), 1u);
  EXPECT_NE(r.first[0].find("checksum"), std::string::npos);
  EXPECT_EQ(verify(true).damaged_objects, 1);  // erased
  r = verify(false);
  EXPECT_TRUE(r.sound());
  EXPECT_EQ(r.objects, 9);
  // A damaged entry: the object is found in its segment, verification still says what is wrong, repair mends
  // it.
  spoil(generation + "/manifest", 4 * kManifestEntryBytes + 30);
  r = verify(false);
  EXPECT_EQ(r.damaged_entries, 1);
  EXPECT_FALSE(r.sound());
  Result<RepairReport> fixed = repair_manifests(d.path());
  ASSERT_TRUE(fixed.ok()) << fixed.status().to_string();
  EXPECT_EQ(fixed->rewritten, 1);
  r = verify(false);
  EXPECT_TRUE(r.sound());
  EXPECT_EQ(read_chain(open_or_die(test_options(d.path())).get(), 1, 20, kBytes), 7u);
  // A living owner's files are left alone.
  auto living = open_or_die(test_options(d.path()));
  ASSERT_TRUE(put_chain(living.get(), 2, 0, 3, kBytes).ok());
  Result<std::vector<GenerationInfo>> all = list_generations(d.path());
  ASSERT_TRUE(all.ok());
  for (const GenerationInfo& g : *all) {
    if (g.alive) spoil(d.path() + "/" + fmt::format("g-{:016x}", g.generation) + "/manifest", 30);
  }
  fixed = repair_manifests(d.path());
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(fixed->busy, 1);
}

TEST(Maintenance, ExportAndImport) {
  TestDirectory a, b;
  auto from = open_or_die(test_options(a.path()));
  for (uint64_t c : {1, 2, 3}) ASSERT_TRUE(put_chain(from.get(), c, 0, 7, kBytes).ok());
  ObjectMeta w = test_meta(2, 4, 9000, Kind::kWindow);
  ASSERT_TRUE(put_one(from.get(), w, test_payload(w.key, w.kind, 9000)).ok());
  std::string file = a.path() + "_export";
  Result<CarryReport> out = export_objects(from.get(), file);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->objects, 22);
  EXPECT_FALSE(export_objects(from.get(), file).ok());  // never over a file that is there
  auto to = open_or_die(test_options(b.path()));
  Result<CarryReport> in = import_objects(to.get(), file, to->now_s());
  ASSERT_TRUE(in.ok()) << in.status().to_string();
  EXPECT_EQ(in->objects, 22);
  for (uint64_t c : {1, 2, 3}) EXPECT_EQ(read_chain(to.get(), c, 9, kBytes), 7u);
  EXPECT_EQ(to->match(test_chain(2, 7)).windows, std::vector<int64_t>{5});
  // Lives go on, they do not begin anew; and what would be over is not taken.
  EXPECT_EQ(import_objects(to.get(), file, UINT32_MAX)->refused, 22);
  spoil(file, 8 + kRecordHeaderBytes + 100);
  TestDirectory c;
  auto third = open_or_die(test_options(c.path()));
  EXPECT_EQ(import_objects(third.get(), file, third->now_s())->damaged, 1);
  spoil(file, 2);
  EXPECT_EQ(import_objects(third.get(), file, 0).status().code(), Code::kInvalidData);
  fs::remove(file);
}

TEST(Maintenance, BenchMeasuresSomething) {
  TestDirectory d;
  BenchOptions o;
  o.objects = 20;
  o.rounds = 1;
  o.pairs = 2;
  o.index_objects = 4096;
  o.matches = 100;
  Result<BenchReport> r = bench_store(d.path(), o);
  if (!r.ok() && r.status().code() == Code::kUnsupported) GTEST_SKIP() << r.status().message();
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_GT(r->read_share_of_raw, 0);
  EXPECT_GT(r->read_share_of_kept, 0);
  EXPECT_GT(r->restore_whole_ms, 0);
  EXPECT_LE(r->restore_first_ms, r->restore_split_ms);
  EXPECT_GT(r->put_mb_s, 0);
  EXPECT_GT(r->match_p99_us, 0);
  EXPECT_TRUE(fs::is_empty(d.path()));
}

}  // namespace
}  // namespace deepinfer::store
