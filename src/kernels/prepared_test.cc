// Rows prepared once, the bf16 products and the index scan on prepared queries: the same bits as the plain
// entries, a row alone against many, and what bf16 cannot hold.
#include <gtest/gtest.h>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

struct Prepared {
  std::vector<uint8_t> bytes;
  int64_t stride = 0;
};
Prepared prepare(const Kernels<float>& k, WeightFormat f, const float* x, int64_t ldx, int64_t T,
                 int64_t cols) {
  Prepared p;
  p.stride = k.prepared_bytes(f, cols);
  p.bytes.assign(static_cast<size_t>(T * p.stride), 0xee);
  // In ranges, last first: parts of a row come from different threads in any order.
  for (int64_t t = 0; t < T && p.stride > 0; ++t)
    for (int64_t c = (cols - 1) / 96 * 96; c >= 0; c -= 96)
      EXPECT_TRUE(k.prepare(f, cols, x + t * ldx + c, c, std::min<int64_t>(96, cols - c),
                            p.bytes.data() + t * p.stride));
  return p;
}

TEST(Prepared, GivesTheBitsOfLinear) {
  Random random(101);
  for (WeightFormat f : kFormats) {
    for (int64_t cols : {32, 96, 256, 544, 2304, 5120}) {
      constexpr int64_t kRows = 50;
      Matrix m(f, kRows, cols, random);
      const auto x = random.activations(37 * cols);
      std::vector<int32_t> take;
      for (int i = 0; i < 37; ++i) take.push_back(static_cast<int32_t>(random.below(37)));
      at_every_level([&](const Kernels<float>& k, const std::string& level) {
        const Prepared p = prepare(k, f, x.data(), cols, 37, cols);
        EXPECT_EQ(p.stride > 0, f == WeightFormat::kMxfp4 || multiplies_bf16(level, f, cols));
        EXPECT_EQ(p.stride % 64, 0);
        if (p.stride == 0) return;
        for (int64_t T : {1, 2, 3, 4, 5, 6, 7, 11, 13, 37}) {
          for (auto [row0, row1] : {std::pair<int64_t, int64_t>{0, kRows}, {7, 45}, {33, 34}}) {
            for (Out out : {Out::kFull, Out::kRounded}) {
              std::vector<float> want(static_cast<size_t>(T * kRows), -7.0f), got = want;
              k.linear(m.view, x.data(), cols, take.data(), T, row0, row1, want.data(), kRows, out);
              k.linear_prepared(m.view, p.bytes.data(), p.stride, take.data(), T, row0, row1, got.data(),
                                kRows, out);
              ASSERT_EQ(first_difference(got.data(), want.data(), T * kRows), -1)
                  << format_name(f) << " cols " << cols << " T " << T << " rows " << row0 << ".." << row1;
            }
          }
        }
      });
    }
  }
}

// The house's rule at the sizes that matter: one row of a decode step and the same row among 512.
TEST(Prepared, OneRowAgainst512) {
  Random random(102);
  for (WeightFormat f : {WeightFormat::kBF16, WeightFormat::kFp8Tile32, WeightFormat::kMxfp4}) {
    constexpr int64_t kRows = 96, kCols = 1312, kT = 512;
    Matrix m(f, kRows, kCols, random);
    const auto x = random.activations(kT * kCols);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      const auto many = [&] {
        std::vector<float> y(kT * kRows);
        k.linear(m.view, x.data(), kCols, nullptr, kT, 0, kRows, y.data(), kRows, Out::kFull);
        return y;
      }();
      for (int64_t t = 0; t < kT; ++t) {
        std::vector<float> y(kRows);
        k.linear(m.view, x.data() + t * kCols, kCols, nullptr, 1, 0, kRows, y.data(), kRows, Out::kFull);
        ASSERT_EQ(first_difference(y.data(), &many[static_cast<size_t>(t * kRows)], kRows), -1)
            << format_name(f) << " row " << t;
      }
    });
  }
}

// The order that kernels/bf16.h states, in scalars.
float bf16_by_definition(const float* w, const float* x, int64_t cols) {
  float total = 0;
  for (int64_t c0 = 0; c0 < cols; c0 += 256) {
    float sum[2] = {0, 0};
    for (int64_t c = c0; c < std::min(cols, c0 + 256); c += 4)
      for (int i = 0; i < 2; ++i) {
        sum[i] = sum[i] + w[c + 2 + i] * x[c + 2 + i];
        sum[i] = sum[i] + w[c + i] * x[c + i];
      }
    total = total + (sum[0] + sum[1]);
  }
  return total;
}

TEST(Bf16Products, MeetTheDefinitionBitForBit) {
  Random random(109);
  for (WeightFormat f : {WeightFormat::kBF16, WeightFormat::kFp8Tile32, WeightFormat::kFp8Row32}) {
    for (int64_t cols : {32, 224, 256, 288, 1280, 5120}) {
      for (int64_t rows : {1, 17, 70}) {
        constexpr int64_t kT = 14;
        Matrix m(f, rows, cols, random);
        const auto x = random.activations(kT * cols);
        at_every_level([&](const Kernels<float>& k, const std::string& level) {
          if (!multiplies_bf16(level, f, cols)) return;
          for (int64_t T : {1, 2, 3, 4, 5, 9, 14}) {
            std::vector<float> y(static_cast<size_t>(T * rows)), row(static_cast<size_t>(cols));
            k.linear(m.view, x.data(), cols, nullptr, T, 0, rows, y.data(), rows, Out::kFull);
            for (int64_t o = 0; o < rows; ++o) {
              reference_kernels<float>().decode_row(m.view, o, row.data());
              for (int64_t t = 0; t < T; ++t)
                ASSERT_EQ(bits_of(y[static_cast<size_t>(t * rows + o)]),
                          bits_of(bf16_by_definition(row.data(), x.data() + t * cols, cols)))
                    << format_name(f) << " cols " << cols << " row " << o << " of x " << t;
            }
          }
        });
      }
    }
  }
}

// What kernels/bf16.h says of the error, at the widths of the model and against exact sums.
TEST(Bf16Products, ErrorIsWithinWhatIsStated) {
  Random random(103);
  for (WeightFormat f : {WeightFormat::kBF16, WeightFormat::kFp8Tile32}) {
    for (int64_t cols : {32, 256, 1280, 5120}) {
      constexpr int64_t kRows = 32, kT = 6;
      Matrix m(f, kRows, cols, random);
      const auto x = random.activations(kT * cols);
      at_every_level([&](const Kernels<float>& k, const std::string& level) {
        if (!multiplies_bf16(level, f, cols)) return;
        std::vector<float> y(kT * kRows);
        k.linear(m.view, x.data(), cols, nullptr, kT, 0, kRows, y.data(), kRows, Out::kFull);
        double worst = 0;
        for (int64_t o = 0; o < kRows; ++o) {
          std::vector<double> row(static_cast<size_t>(cols));
          reference_kernels<double>().decode_row(m.view, o, row.data());
          for (int64_t t = 0; t < kT; ++t) {
            double exact = 0, magnitude = 0;
            for (int64_t i = 0; i < cols; ++i) {
              const double p = row[static_cast<size_t>(i)] * x[static_cast<size_t>(t * cols + i)];
              exact += p;
              magnitude += std::fabs(p);
            }
            const double error = std::fabs(y[static_cast<size_t>(t * kRows + o)] - exact);
            worst = std::max(worst, error / magnitude);
            ASSERT_LE(error, (130 + static_cast<double>(cols) / 256) * 0x1p-24 * magnitude);
          }
        }
        EXPECT_LT(worst, 4e-6) << format_name(f) << " cols " << cols;  // as measured, not as bounded
      });
    }
  }
}

// A tile whose scale leaves the bf16 range takes the fp32 products, its neighbours do not notice, and nothing
// depends on the batch.
TEST(Bf16Products, ScalesBeyondBf16AreExactToo) {
  Random random(104);
  constexpr int64_t kRows = 128, kCols = 96, kT = 9;
  for (WeightFormat f : {WeightFormat::kFp8Tile32, WeightFormat::kFp8Row32}) {
    Matrix m(f, kRows, kCols, random), wild(f, kRows, kCols, random);
    for (uint8_t& c : *m.data) c &= 0xbf;  // below 2: fp32 holds them under a scale of 2^123
    std::copy(m.data->begin(), m.data->end(), wild.data->begin());
    std::copy(m.scales->begin(), m.scales->end(), wild.scales->begin());
    const bool tile = f == WeightFormat::kFp8Tile32;
    const int64_t at[] = {tile ? 1 * 3 + 2 : 40 * 3 + 2, tile ? 3 * 3 : 97 * 3};
    const uint8_t values[] = {1, 250};
    for (int i = 0; i < 2; ++i) (*wild.scales)[at[i]] = values[i];
    const auto x = random.activations(kT * kCols, 1e-3);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      std::vector<float> tame(kT * kRows), y(kT * kRows), plain(kT * kRows), alone(kRows);
      k.linear(m.view, x.data(), kCols, nullptr, kT, 0, kRows, tame.data(), kRows, Out::kFull);
      k.linear(wild.view, x.data(), kCols, nullptr, kT, 0, kRows, y.data(), kRows, Out::kFull);
      reference_kernels<float>().linear(wild.view, x.data(), kCols, nullptr, kT, 0, kRows, plain.data(),
                                        kRows, Out::kFull);
      for (int64_t t = 0; t < kT; ++t) {
        k.linear(wild.view, x.data() + t * kCols, kCols, nullptr, 1, 0, kRows, alone.data(), kRows,
                 Out::kFull);
        ASSERT_EQ(first_difference(alone.data(), &y[static_cast<size_t>(t * kRows)], kRows), -1) << t;
        for (int64_t o = 0; o < kRows; ++o) {
          const size_t i = static_cast<size_t>(t * kRows + o);
          const bool changed = tile ? o / 32 == 1 || o / 32 == 3 : o == 40 || o == 97;
          if (!changed) {
            ASSERT_EQ(bits_of(y[i]), bits_of(tame[i])) << t << " " << o;
          }
          ASSERT_NEAR(y[i], plain[i], 1e-4 * std::fabs(plain[i]) + 1e-3 * std::fabs(tame[i]) + 1e-30)
              << t << " " << o;
        }
      }
    });
  }
}

// Rows of x that are no bf16 values keep fp32 products, bit for bit those of the level below, in a batch and
// alone.
TEST(Bf16Products, OtherValuesOfXKeepFp32) {
  Random random(105);
  const auto levels = instruction_levels();
  if (levels.size() < 2 || levels[0] != "AVX3_ZEN4") GTEST_SKIP() << "no bf16 products on this CPU";
  constexpr int64_t kRows = 40, kCols = 160, kT = 8;
  for (WeightFormat f : {WeightFormat::kBF16, WeightFormat::kFp8Tile32}) {
    Matrix m(f, kRows, kCols, random);
    auto x = random.activations(kT * kCols);
    for (int64_t t : {2, 5}) x[static_cast<size_t>(t * kCols + 77)] = 0.3f;
    std::vector<float> below(kT * kRows), y(kT * kRows), alone(kRows);
    ASSERT_TRUE(set_instruction_level(levels[1]));
    kernels<float>().linear(m.view, x.data(), kCols, nullptr, kT, 0, kRows, below.data(), kRows, Out::kFull);
    ASSERT_TRUE(set_instruction_level(levels[0]));
    std::vector<uint8_t> row(static_cast<size_t>(kernels<float>().prepared_bytes(f, kCols)));
    for (int64_t t = 0; t < kT; ++t)
      EXPECT_EQ(kernels<float>().prepare(f, kCols, x.data() + t * kCols, 0, kCols, row.data()),
                t != 2 && t != 5);
    kernels<float>().linear(m.view, x.data(), kCols, nullptr, kT, 0, kRows, y.data(), kRows, Out::kFull);
    for (int64_t t = 0; t < kT; ++t) {
      const size_t at = static_cast<size_t>(t * kRows);
      kernels<float>().linear(m.view, x.data() + t * kCols, kCols, nullptr, 1, 0, kRows, alone.data(), kRows,
                              Out::kFull);
      ASSERT_EQ(first_difference(alone.data(), &y[at], kRows), -1) << t;
      const bool same = first_difference(&below[at], &y[at], kRows) == -1;
      EXPECT_EQ(same, t == 2 || t == 5) << t;
    }
  }
}

// Subnormal numbers count as zero, on either side, and special values go through.
TEST(Bf16Products, SubnormalsCountAsZeroAndSpecialValuesPass) {
  Random random(106);
  constexpr int64_t kRows = 16, kCols = 64;
  Matrix m(WeightFormat::kBF16, kRows, kCols, random);
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(kCols, 0.0f);
  x[5] = 0x1p-130f;
  at_every_level([&](const Kernels<float>& k, const std::string& level) {
    if (!multiplies_bf16(level, m.view.format, kCols)) return;
    std::vector<float> y(kRows);
    k.linear(m.view, x.data(), kCols, nullptr, 1, 0, kRows, y.data(), kRows, Out::kFull);
    for (float v : y) EXPECT_EQ(v, 0.0f);
    auto loud = x;
    loud[9] = inf;
    for (int64_t T : {1, 5}) {
      std::vector<float> many, out(static_cast<size_t>(T * kRows));
      for (int64_t t = 0; t < T; ++t) many.insert(many.end(), loud.begin(), loud.end());
      k.linear(m.view, many.data(), kCols, nullptr, T, 0, kRows, out.data(), kRows, Out::kFull);
      for (float v : out) EXPECT_TRUE(std::isinf(v));
    }
  });
  // A NaN code of FP8 is a NaN and stays with its row.
  Matrix fp8(WeightFormat::kFp8Tile32, kRows, kCols, random);
  (*fp8.data)[3 * kCols + 40] = 0x7f;
  (*fp8.data)[7 * kCols + 2] = 0xff;
  const auto some = random.activations(6 * kCols);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    for (int64_t T : {1, 6}) {
      std::vector<float> out(static_cast<size_t>(T * kRows));
      k.linear(fp8.view, some.data(), kCols, nullptr, T, 0, kRows, out.data(), kRows, Out::kFull);
      for (int64_t t = 0; t < T; ++t)
        for (int64_t o = 0; o < kRows; ++o)
          ASSERT_EQ(std::isnan(out[static_cast<size_t>(t * kRows + o)]), o == 3 || o == 7) << o;
    }
  });
}

// Every FP8 code under every scale that bf16 holds, one at a time against the decoder.
TEST(Bf16Products, EveryCodeUnderEveryScale) {
  Random random(107);
  constexpr int64_t kCols = 32;
  Matrix m(WeightFormat::kFp8Tile32, 256, kCols, random);
  for (uint8_t& c : *m.data) c = 0;
  for (int64_t o = 0; o < 256; ++o) (*m.data)[o * kCols + o % 32] = static_cast<uint8_t>(o);
  at_every_level([&](const Kernels<float>& k, const std::string& level) {
    if (!multiplies_bf16(level, m.view.format, kCols)) return;
    for (int s = 0; s < 256; ++s) {
      for (uint8_t& b : *m.scales) b = static_cast<uint8_t>(s);
      const std::vector<float> ones(kCols, 1.0f);
      std::vector<float> y(256), row(kCols);
      k.linear(m.view, ones.data(), kCols, nullptr, 1, 0, 256, y.data(), 256, Out::kFull);
      for (int64_t o = 0; o < 256; ++o) {
        reference_kernels<float>().decode_row(m.view, o, row.data());
        const float want = row[static_cast<size_t>(o % 32)];
        const float got = y[static_cast<size_t>(o)];
        if (s == 255) {
          ASSERT_TRUE(std::isnan(got)) << o;
        } else {
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << "code " << o << " scale " << s;
        }
      }
    }
  });
}

// Queries made ready once give the scores of index_scores(), whatever the piece of keys; queries off the grid
// are refused.
TEST(PreparedIndex, GivesTheBitsOfIndexScores) {
  Random random(108);
  for (auto [heads, dim] : {std::pair<int, int>{32, 128}, {5, 64}, {3, 32}, {64, 512}}) {
    const int64_t n = 75, code = dim / 2, scale = dim / 32;
    std::vector<float> q(static_cast<size_t>(heads * dim)), w = random.activations(heads);
    for (float& v : q) v = kE2m1[static_cast<size_t>(random.below(16))] * 0.25f;
    std::vector<uint8_t> codes(static_cast<size_t>(n * code)), scales(static_cast<size_t>(n * scale));
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random.below(256));
    for (uint8_t& s : scales)
      s = static_cast<uint8_t>(random.below(20) ? 115 + random.below(20) : random.below(255));
    at_every_level([&](const Kernels<float>& k, const std::string& level) {
      const int64_t bytes = k.index_prepared_bytes(RecordFormat::kFp4_32, heads, dim);
      EXPECT_EQ(bytes > 0, level.rfind("AVX3", 0) == 0);
      EXPECT_EQ(k.index_prepared_bytes(RecordFormat::kFp8_32, heads, dim), 0);
      if (bytes == 0) return;
      Guarded<uint8_t> ready(bytes);
      ASSERT_TRUE(k.prepare_index(q.data(), heads, dim, ready.data()));
      std::vector<float> want(static_cast<size_t>(n)), got(static_cast<size_t>(n));
      k.index_scores(q.data(), w.data(), heads, dim, RecordFormat::kFp4_32, codes.data(), code, scales.data(),
                     scale, n, want.data());
      for (int64_t step : {75, 32, 16, 7, 1}) {
        for (int64_t j = 0; j < n; j += step)
          k.index_scores_prepared(ready.data(), w.data(), heads, dim, codes.data() + j * code, code,
                                  scales.data() + j * scale, scale, std::min(step, n - j), got.data() + j);
        ASSERT_EQ(first_difference(got.data(), want.data(), n), -1)
            << heads << " " << dim << " step " << step;
      }
      auto off = q;
      off[static_cast<size_t>(dim / 2)] = 0.3f;
      EXPECT_FALSE(k.prepare_index(off.data(), heads, dim, ready.data()));
    });
  }
}

TEST(NumericProfile, NamesLevelAndVersion) {
  std::vector<std::string> seen;
  at_every_level([&](const Kernels<float>&, const std::string& level) {
    EXPECT_EQ(numeric_profile(), level + " kernels " + std::to_string(kKernelVersion));
    EXPECT_EQ(std::count(seen.begin(), seen.end(), numeric_profile()), 0);
    seen.push_back(numeric_profile());
  });
}

}  // namespace
}  // namespace deepinfer
