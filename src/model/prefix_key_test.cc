// Golden vectors of the key chain (serving specification 7.2) and what must and must not change a key.
#include "model/prefix_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace deepinfer {
namespace {

PrefixIdentity identity() {
  return {"public", "w0", "t0", "l0", "p0", "m0", ""};
}

std::vector<int32_t> iota(int first, int n) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  std::iota(t.begin(), t.end(), first);
  return t;
}

TEST(PrefixKey, GoldenVectors) {
  Digest root = prefix_root(identity());
  EXPECT_EQ(to_hex(root), "7ab263e12c29959b6a7297684b3944ae75b9f05bca5fe05749eb0a22ae40bd8e");
  auto chain = prefix_chain(root, iota(0, 300), 128);
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(to_hex(chain[0]), "a4758983f033e798602e80cdf70a2ba20297fed2b565452a2e0ba5f07adf3a2c");
  EXPECT_EQ(to_hex(chain[1]), "8f450edda94ab30c5f05f2399c50a283b25057138f490d32c41b23bbdf1a51e3");
  PrefixItem item{sha256("image-1"), 10, 64};
  EXPECT_EQ(to_hex(prefix_block(root, iota(0, 128), {{item}})),
            "5764bbd17e4b12f38105524a37f642cbaaad20ed074d47fab67625000c691f1f");
  item.offset = 11;
  EXPECT_EQ(to_hex(prefix_block(root, iota(0, 128), {{item}})).substr(0, 32),
            "b9278f3b93922f6e4683be788794cf69");
  PrefixIdentity other = identity();
  other.name_space = "tenant-a";
  EXPECT_EQ(to_hex(prefix_root(other)).substr(0, 32), "fa8f760d62f932ecb745f291c11e0028");
  other = identity();
  other.salt = "s";
  EXPECT_EQ(to_hex(prefix_root(other)).substr(0, 32), "ac23ce367c751d8b86ea38a7a2694bfe");
}

TEST(PrefixKey, EveryFieldIsBound) {
  Digest root = prefix_root(identity());
  std::string PrefixIdentity::* fields[] = {&PrefixIdentity::name_space, &PrefixIdentity::weights,
                                            &PrefixIdentity::tokenizer,  &PrefixIdentity::layout,
                                            &PrefixIdentity::precision,  &PrefixIdentity::attention_mode,
                                            &PrefixIdentity::salt};
  for (auto f : fields) {
    PrefixIdentity id = identity();
    id.*f += "x";
    EXPECT_NE(prefix_root(id), root);
  }
  // A byte that moves from one field to the next is another identity.
  PrefixIdentity a = identity(), b = identity();
  a.weights = "w0t";
  a.tokenizer = "0";
  b.weights = "w0";
  b.tokenizer = "t0";
  EXPECT_NE(prefix_root(a), prefix_root(b));
}

TEST(PrefixKey, ChainBindsTheWholePrefix) {
  Digest root = prefix_root(identity());
  auto t = iota(0, 256);
  auto x = prefix_chain(root, t, 128);
  t[3] = 99999;
  auto y = prefix_chain(root, t, 128);
  EXPECT_NE(x[0], y[0]);
  EXPECT_NE(x[1], y[1]);
  t = iota(0, 256);
  t[200] = 5;
  auto z = prefix_chain(root, t, 128);
  EXPECT_EQ(x[0], z[0]);
  EXPECT_NE(x[1], z[1]);
}

}  // namespace
}  // namespace deepinfer
