// The index against a map: random insertions, drops and leases; matches stop where they must; bytes per
// object.
#include "store/index.h"

#include <map>
#include <random>

#include "store/test_support.h"

namespace deepinfer::store {
namespace {

IndexEntry entry(const Key& key, Kind kind, uint32_t page) {
  IndexEntry e;
  e.key = key;
  e.kind = kind;
  e.page = page;
  e.expires_s = 100;
  return e;
}

TEST(StoreIndex, AgreesWithAMap) {
  Index index;
  std::map<std::pair<Key, Kind>, EntryId> model;
  std::mt19937_64 random(7);
  for (int step = 0; step < 200000; ++step) {
    Key key = test_key(random() % 40, random() % 100);
    Kind kind = random() % 4 == 0 ? Kind::kWindow : Kind::kBlock;
    auto it = model.find({key, kind});
    ASSERT_EQ(index.find(key, kind), it == model.end() ? kNoEntry : it->second);
    if (random() % 2 == 0) {
      EntryId id = index.insert(entry(key, kind, static_cast<uint32_t>(step)));
      ASSERT_EQ(id == kNoEntry, it != model.end());
      if (id != kNoEntry) model[{key, kind}] = id;
    } else if (it != model.end()) {
      // Sometimes somebody reads it meanwhile: the entry must outlive the drop.
      bool leased = random() % 3 == 0;
      if (leased) index.lease(it->second);
      index.drop(it->second, leased ? policy::ObjectEvent::kInvalidate : policy::ObjectEvent::kEvict);
      ASSERT_EQ(index.find(key, kind), kNoEntry);
      if (leased) {
        ASSERT_EQ(index.at(it->second).key, key);
        index.release(it->second);
      }
      model.erase(it);
    }
    ASSERT_EQ(index.objects(), static_cast<int64_t>(model.size()));
  }
  for (auto& [name, id] : model) {
    if (name.second != Kind::kBlock) continue;
    ASSERT_EQ(index.at(id).window != 0, model.contains({name.first, Kind::kWindow}));
  }
}

TEST(StoreIndex, MatchesStopAtHolesAndExpiredBlocks) {
  Index index;
  std::vector<Key> chain = test_chain(1, 100);
  for (size_t i = 0; i < 100; ++i) {
    IndexEntry e = entry(chain[i], Kind::kBlock, 1);
    e.expires_s = i < 60 ? 100 : 50;
    index.insert(e);
  }
  std::vector<EntryId> out(100);
  EXPECT_EQ(index.match(chain, 10, out.data()), 100u);
  EXPECT_EQ(index.match(chain, 50, out.data()), 60u);
  EXPECT_EQ(index.match(chain, 100, out.data()), 0u);
  index.drop(index.find(chain[41], Kind::kBlock), policy::ObjectEvent::kEvict);
  EXPECT_EQ(index.match(chain, 10, out.data()), 41u);
  EXPECT_EQ(index.match(std::span(chain).subspan(42), 10, out.data()), 58u);
}

TEST(StoreIndex, BytesPerObject) {
  Index index;
  for (uint64_t n = 1; n <= 300000; ++n) {
    index.insert(entry(test_key(n, 0), Kind::kBlock, 1));
    if (n % 1000 != 0) continue;
    // What index.h states; with a million objects less than 90 bytes for each.
    ASSERT_LE(index.memory_bytes(), static_cast<int64_t>(86 * n) + (int64_t{2} << 20)) << n;
  }
}

}  // namespace
}  // namespace deepinfer::store
