// Numbers of model specification 12.2.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer {
namespace {

void expect_close(double got, double want) {
  EXPECT_NEAR(got, want, 5e-9 * want);
}  // nine digits are printed

TEST(RopeGolden, MainTable) {
  std::vector<double> f = main_rope_frequencies(builtin_config("v41-flash").value());
  ASSERT_EQ(f.size(), 32u);
  expect_close(f[0], 1.0);
  expect_close(f[1], 0.749894209);
  expect_close(f[8], 0.1);
  expect_close(f[16], 0.01);
  expect_close(f[31], 1.33352143e-4);
}

TEST(RopeGolden, CompressTable) {
  std::vector<double> f = compress_rope_frequencies(builtin_config("v41-flash").value());
  const std::vector<double> want = {1,
                                    0.687656022,
                                    0.472870805,
                                    0.325172456,
                                    0.223606798,
                                    0.153764561,
                                    0.105737126,
                                    0.0727107717,
                                    0.05,
                                    0.0343828011,
                                    0.0236435402,
                                    0.0162586228,
                                    0.0111803399,
                                    7.68822805e-3,
                                    5.28685632e-3,
                                    3.63553858e-3,
                                    2.265625e-3,
                                    1.39680129e-3,
                                    8.49689727e-4,
                                    5.08081963e-4,
                                    2.96977778e-4,
                                    1.68179989e-4,
                                    9.0867843e-5,
                                    4.54442323e-5,
                                    1.953125e-5,
                                    5.37231267e-6,
                                    3.69430316e-6,
                                    2.54040981e-6,
                                    1.74692811e-6,
                                    1.20128563e-6,
                                    8.260713e-7,
                                    5.68052904e-7};
  ASSERT_EQ(f.size(), want.size());
  for (size_t i = 0; i < f.size(); ++i) expect_close(f[i], want[i]);
}

TEST(RopeGolden, AnglesAtPosition1000) {
  std::vector<double> f = compress_rope_frequencies(builtin_config("v41-flash").value());
  struct Row {
    size_t pair;
    double cos, sin;
  };
  for (const Row& r :
       {Row{0, 0.56237908, 0.82687954}, Row{16, -0.64025384, 0.76816341}, Row{20, 0.95622525, 0.29263162}}) {
    EXPECT_NEAR(std::cos(1000 * f[r.pair]), r.cos, 1e-8);
    EXPECT_NEAR(std::sin(1000 * f[r.pair]), r.sin, 1e-8);
  }
}

TEST(RopeGolden, TinyCompressTable) {
  std::vector<double> f = compress_rope_frequencies(builtin_config("t0").value());
  const std::vector<double> want = {1,         0.118791111,   3.125e-3,  6.98771243e-4,
                                    1.5625e-4, 3.49385621e-5, 7.8125e-6, 1.74692811e-6};
  ASSERT_EQ(f.size(), want.size());
  for (size_t i = 0; i < f.size(); ++i) expect_close(f[i], want[i]);
}

TEST(Rope, WithoutYarnTheTableIsPlain) {
  ModelConfig c = builtin_config("t0").value();
  c.rope_scaling = RopeScaling{};
  std::vector<double> f = compress_rope_frequencies(c);
  for (size_t i = 0; i < f.size(); ++i)
    expect_close(f[i], std::pow(160000.0, -2.0 * static_cast<double>(i) / 16));
}

// Both ends of the ramp on one pair: a step, and no division by zero.
TEST(Rope, DegenerateRampIsAStep) {
  ModelConfig c = builtin_config("v41-flash").value();
  c.rope_scaling.original_max_position_embeddings = 1;
  std::vector<double> plain = compress_rope_frequencies(c);
  for (double f : plain) EXPECT_TRUE(std::isfinite(f) && f > 0);
  expect_close(plain[31], std::pow(160000.0, -62.0 / 64) / 16);
}

}  // namespace
}  // namespace deepinfer
