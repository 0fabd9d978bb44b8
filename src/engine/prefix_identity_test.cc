// Keys of a request's blocks: the vectors of serving specification 7.2 through the engine's own functions,
// images bound where they overlap, and no key shared across tenants, salts, weights, tokenizers, layouts or
// profiles.
#include "engine/prefix_identity.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace deepinfer {
namespace {

std::string hex(const policy::BlockKey& key) {
  return to_hex({reinterpret_cast<const uint8_t*>(key.words.data()), 32});
}

EngineRequest counting(int n) {
  EngineRequest r;
  for (int i = 0; i < n; ++i) r.prompt.push_back(i);
  r.cache_scope = "public";
  return r;
}

PrefixIdentity vector_identity() {
  return {"", "w0", "t0", "l0", "p0", "m0", ""};
}

TEST(PrefixIdentity, GoldenKeysOfRequests) {
  PromptKeys k = prompt_keys(vector_identity(), counting(300), 128);
  ASSERT_EQ(k.keys.size(), 2u);
  EXPECT_EQ(hex(k.keys[0]), "a4758983f033e798602e80cdf70a2ba20297fed2b565452a2e0ba5f07adf3a2c");
  EXPECT_EQ(hex(k.keys[1]), "8f450edda94ab30c5f05f2399c50a283b25057138f490d32c41b23bbdf1a51e3");
  EXPECT_EQ(to_block_key(k.last), k.keys[1]);
  EngineRequest image = counting(128);
  image.images.push_back({10, 64, {}});
  image.image_digests = {"image-1"};
  k = prompt_keys(vector_identity(), image, 128);
  EXPECT_EQ(hex(k.keys[0]), "5764bbd17e4b12f38105524a37f642cbaaad20ed074d47fab67625000c691f1f");
  image.images[0].begin = 11;
  k = prompt_keys(vector_identity(), image, 128);
  EXPECT_EQ(hex(k.keys[0]).substr(0, 32), "b9278f3b93922f6e4683be788794cf69");
}

// Equal placeholders of different images never share a block, wherever the image lies; blocks before it do.
TEST(PrefixIdentity, ImagesAreBoundWhereTheyOverlap) {
  auto keys = [](int64_t begin, int64_t count, const char* digest) {
    EngineRequest r = counting(640);
    r.images.push_back({begin, count, {}});
    r.image_digests = {digest};
    return prompt_keys(vector_identity(), r, 128).keys;
  };
  std::vector<policy::BlockKey> plain = prompt_keys(vector_identity(), counting(640), 128).keys;
  std::vector<policy::BlockKey> a = keys(200, 150, "a"), b = keys(200, 150, "b"), late = keys(201, 150, "a");
  EXPECT_EQ(a[0], plain[0]);
  EXPECT_EQ(a[0], b[0]);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_NE(a[i], plain[i]) << i;
    EXPECT_NE(a[i], b[i]) << i;
    EXPECT_NE(a[i], late[i]) << i;
  }
}

TEST(PrefixIdentity, NothingIsSharedAcrossAnyField) {
  std::set<std::string> seen;
  auto add = [&](PrefixIdentity id, const std::string& scope) {
    EngineRequest r = counting(128);
    r.cache_scope = scope;
    EXPECT_TRUE(seen.insert(hex(prompt_keys(id, r, 128).keys[0])).second);
  };
  add(vector_identity(), "public");
  add(vector_identity(), "tenant-a");
  add(vector_identity(), "tenant-a\nsalt");
  for (std::string PrefixIdentity::* field :
       {&PrefixIdentity::weights, &PrefixIdentity::tokenizer, &PrefixIdentity::layout,
        &PrefixIdentity::precision, &PrefixIdentity::attention_mode, &PrefixIdentity::salt}) {
    PrefixIdentity id = vector_identity();
    id.*field += "x";
    add(id, "public");
  }
  EXPECT_EQ(seen.size(), 9u);
}

}  // namespace
}  // namespace deepinfer
