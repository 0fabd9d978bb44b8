// Numbers of model specification 12.3, 12.7, 12.9 and appendix A.
#include "model/engram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<int64_t> rows_of(const EngramHash& hash, size_t layer, std::vector<int32_t> history) {
  std::vector<int64_t> out(hash.layers[layer].primes.size());
  hash.rows(layer, history, out.data());
  return out;
}

TEST(EngramGolden, ReleasedPrimesAndTableRows) {
  EngramHash hash = make_engram_hash(builtin_config("v41-flash").value());
  ASSERT_EQ(hash.layers.size(), 2u);
  EXPECT_THAT(hash.layers[0].primes,
              ElementsAre(16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
                          16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
                          16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463));
  EXPECT_THAT(hash.layers[1].primes,
              ElementsAre(16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
                          16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
                          16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889));
  EXPECT_EQ(hash.layers[0].rows, 384006168);
  EXPECT_EQ(hash.layers[1].rows, 384016682);
  EXPECT_EQ(hash.layers[0].layer, 1);
  EXPECT_EQ(hash.layers[1].layer, 14);
  EXPECT_EQ(hash.layers[0].offsets[0], 0u);
  EXPECT_EQ(hash.layers[0].offsets[2], 16000057u + 16000079u);
}

TEST(EngramGolden, ReleasedMultipliers) {
  EngramHash hash = make_engram_hash(builtin_config("v41-flash").value());
  EXPECT_THAT(hash.layers[0].multipliers,
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(hash.layers[1].multipliers,
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(EngramGolden, ReleasedHashIds) {
  EngramHash hash = make_engram_hash(builtin_config("v41-flash").value());
  EXPECT_THAT(
      rows_of(hash, 0, {5, 2, 2, 2}),
      ElementsAre(5412672, 18319159, 35492627, 60880252, 74962984, 95657733, 98005115, 127351390, 143494632,
                  151789366, 171410756, 185435171, 207165545, 218031260, 226330336, 247008214, 256353435,
                  276423911, 295874085, 305599364, 322749888, 348475788, 367405771, 372009279));
  // The first id of each n-gram size and the last id of all.
  struct Row {
    size_t layer;
    std::vector<int32_t> y;
    int64_t first2, first3, first4, last;
  };
  for (const Row& r : {Row{1, {5, 2, 2, 2}, 6939818, 131576092, 268363546, 382274687},
                       Row{0, {1234, 77, 5, 2}, 12489304, 136844373, 266260800, 368176695},
                       Row{1, {99091, 50000, 3, 1234}, 1112188, 139716938, 258878220, 374271837}}) {
    std::vector<int64_t> ids = rows_of(hash, r.layer, r.y);
    EXPECT_EQ(ids[0], r.first2);
    EXPECT_EQ(ids[8], r.first3);
    EXPECT_EQ(ids[16], r.first4);
    EXPECT_EQ(ids[23], r.last);
  }
}

TEST(EngramGolden, ReleasedMixedValues) {
  // R_1, R_2, R_3 themselves, through their remainders: two primes of one n-gram size fix a value below their
  // product, and the third of the list is then a check of the value in the specification.
  EngramHash hash = make_engram_hash(builtin_config("v41-flash").value());
  struct Row {
    size_t layer;
    std::vector<int32_t> y;
    std::vector<uint64_t> mixed;
  };
  for (const Row& r : {Row{0, {5, 2, 2, 2}, {374616683979835, 305523448446673, 443421843151743}},
                       Row{1, {5, 2, 2, 2}, {402705404236567, 376569701166677, 492806226282747}},
                       Row{0, {1234, 77, 5, 2}, {94196843091547287, 94017044732065758, 94156214454784624}},
                       Row{1,
                           {99091, 50000, 3, 1234},
                           {9124574549710330743u, 9124667139468468372u, 9208559973648783818u}}}) {
    std::vector<int64_t> ids = rows_of(hash, r.layer, r.y);
    const EngramLayerHash& layer = hash.layers[r.layer];
    for (size_t column = 0; column < 24; ++column) {
      EXPECT_EQ(static_cast<uint64_t>(ids[column]),
                r.mixed[column / 8] % layer.primes[column] + layer.offsets[column]);
    }
  }
}

TEST(EngramGolden, AppendixASeedWordsAndDraws) {
  EXPECT_THAT(numpy_seed_words(10007), ElementsAre(2329349383u, 2010327604u, 3091877797u, 2571032073u,
                                                   3362360905u, 3589894878u, 3169929438u, 2105142190u));
  EXPECT_THAT(numpy_raw_draws(10007, 4), ElementsAre(0xd2c3f84026661e33u, 0x0d4fb6969eb57435u,
                                                     0x62e6e1c58c3bd72bu, 0xcb7dd1a94ca96343u));
}

TEST(EngramGolden, TinyPrimesAndMultipliers) {
  EngramHash hash = make_engram_hash(builtin_config("t0").value());
  EXPECT_THAT(hash.layers[0].primes, ElementsAre(61, 67, 71, 73, 79, 83));
  EXPECT_THAT(hash.layers[1].primes, ElementsAre(89, 97, 101, 103, 107, 109));
  EXPECT_THAT(hash.layers[0].multipliers,
              ElementsAre(37968138307073165, 2397965009193117, 17816579247344819, 36657766217135125));
  EXPECT_THAT(hash.layers[1].multipliers,
              ElementsAre(13638515553146799, 40458887662254587, 5389579788155801, 34829323781950471));
  EXPECT_THAT(engram_table_rows(builtin_config("t0").value()), ElementsAre(434, 606));
  EXPECT_THAT(engram_table_rows(builtin_config("t1").value()), ElementsAre(3376, 4284));
  EXPECT_THAT(engram_table_rows(builtin_config("t2").value()), ElementsAre(25874, 30058));
}

// Ids of the T0 prompt tok_t = (7 + 37 t + t^2) mod 250 at one position of one layer, with a set of dead
// positions.
std::vector<int64_t> t0_ids(size_t layer, int64_t position, const std::set<int64_t>& dead = {}) {
  ModelConfig c = builtin_config("t0").value();
  EngramHash hash = make_engram_hash(c);
  std::vector<int32_t> map = tiny_token_map(c.vocab_size, c.engram_compressed_vocab_size);
  std::vector<int32_t> history(static_cast<size_t>(c.engram_max_ngram_size));
  engram_history(
      position, c.engram_max_ngram_size, map, c.engram_pad_token_id,
      [](int64_t t) { return (7 + 37 * t + t * t) % 250; }, [&](int64_t t) { return dead.count(t) > 0; },
      history.data());
  return rows_of(hash, layer, history);
}

TEST(EngramGolden, TinyHashIds) {
  EXPECT_THAT(t0_ids(0, 39), ElementsAre(27, 90, 190, 235, 331, 405));
  EXPECT_THAT(t0_ids(1, 39), ElementsAre(72, 149, 194, 364, 479, 560));
  EXPECT_THAT(t0_ids(0, 0), ElementsAre(10, 67, 193, 230, 272, 391));
  EXPECT_THAT(t0_ids(0, 1), ElementsAre(54, 93, 181, 199, 320, 421));
}

TEST(EngramGolden, TinyHashIdsAfterADeadPosition) {
  EXPECT_THAT(t0_ids(0, 6, {5}), ElementsAre(3, 126, 141, 231, 313, 414));
  EXPECT_THAT(t0_ids(0, 7, {5}), ElementsAre(9, 86, 149, 222, 315, 383));
  EXPECT_THAT(t0_ids(0, 8, {5}), ElementsAre(44, 114, 162, 230, 345, 422));
  EXPECT_THAT(t0_ids(0, 8), ElementsAre(44, 114, 162, 230, 324, 357));
  EXPECT_EQ(t0_ids(0, 9, {5}), t0_ids(0, 9));
}

TEST(Engram, BoundedDrawsStayInRangeAndContinueTheGenerator) {
  // The high half of draw * bound, as no draw of this seed is rejected.
  const uint64_t bound = 46539438283891;
  std::vector<uint64_t> raw = numpy_raw_draws(10007, 4), got = numpy_integers(10007, bound, 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LT(got[i], bound);
    EXPECT_NEAR(static_cast<double>(got[i]),
                static_cast<double>(raw[i]) * 0x1p-64 * static_cast<double>(bound), 1.0);
  }
}

// Draws of numpy.random.default_rng(seed).integers(0, 2^62 + 2^61 + 1, size=6, dtype=int64): this bound
// rejects a quarter of all draws, so the redraw path is taken; the last seed has two 32-bit words.
TEST(EngramGolden, RejectedDrawsAreDrawnAgain) {
  const uint64_t bound = (uint64_t{1} << 62) + (uint64_t{1} << 61) + 1;
  EXPECT_THAT(numpy_integers(7, bound, 6),
              ElementsAre(4324116035284630516, 6206502512207226872, 5365828278596935045, 1557877273993399992,
                          6042831315724521140, 5680871422486561427));
  EXPECT_THAT(numpy_integers(10007, bound, 6),
              ElementsAre(5695220746060974931, 359694751378967443, 2672486887101722800, 5498664932570268985,
                          2969574950551918125, 5232310298547777687));
  EXPECT_THAT(numpy_integers((uint64_t{1} << 40) + 5, bound, 6),
              ElementsAre(2577364664081086760, 2905085600584604100, 6820104093853975478, 2498576885208516941,
                          347383189814802790, 1217594570061929025));
}

TEST(Engram, PrimesAgreeWithTrialDivision) {
  ModelConfig c = builtin_config("t0").value();
  c.engram_vocab_size = 2;
  c.engram_n_heads = 64;  // 384 primes from 2 on
  uint64_t n = 1;
  for (const EngramLayerHash& layer : make_engram_hash(c).layers) {
    for (uint64_t p : layer.primes) {
      auto divides = [](uint64_t m) {
        for (uint64_t d = 2; d * d <= m; ++d) {
          if (m % d == 0) return true;
        }
        return m < 2;
      };
      do ++n;
      while (divides(n));
      ASSERT_EQ(p, n);
    }
  }
}

TEST(Engram, PrimeWalkIsBoundedAtTheLargestStart) {
  ModelConfig c = builtin_config("t0").value();
  c.engram_vocab_size = int64_t{1} << 32;
  std::vector<uint64_t> primes = make_engram_hash(c).layers[0].primes;
  EXPECT_EQ(primes.front(), 4294967311u);  // the smallest prime above 2^32
}

TEST(Engram, TinyTokenMap) {
  std::vector<int32_t> map = tiny_token_map(256, 200);
  ASSERT_EQ(map.size(), 256u);
  EXPECT_THAT((std::vector<int32_t>{map[0], map[3], map[4], map[199], map[200], map[255]}),
              ElementsAre(0, 3, 4, 199, 4, 59));
  EXPECT_EQ(std::set<int32_t>(map.begin(), map.end()).size(), 200u);
}

TEST(Engram, NoLayersNoHash) {
  ModelConfig c = builtin_config("t0").value();
  c.engram_layer_ids.clear();
  EXPECT_TRUE(make_engram_hash(c).layers.empty());
  EXPECT_TRUE(engram_table_rows(c).empty());
}

}  // namespace
}  // namespace deepinfer
