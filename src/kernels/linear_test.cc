// linear() and decode_row() at every instruction level: against the scalar definition, and bit for bit
// against themselves under every change that must not matter (rows of the batch, row ranges, alignment,
// format of the same weights).
#include <gtest/gtest.h>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

struct Shape {
  int64_t rows, cols, T;
};

// Tails of every kind: columns, blocks of four rows, bands of x, panels of 1,024 columns.
const Shape kShapes[] = {{1, 32, 1},    {3, 64, 2},    {4, 96, 3},    {5, 128, 4},  {9, 40, 5},
                         {33, 77, 6},   {7, 1, 7},     {8, 17, 1},    {70, 256, 8}, {4, 1024, 9},
                         {6, 1056, 17}, {5, 2304, 67}, {2, 5120, 30}, {3, 3100, 3}, {66, 33, 131}};

std::vector<float> run(const Kernels<float>& k, const MatrixView& w, const float* x, int64_t ldx, int64_t T,
                       Out out = Out::kFull) {
  std::vector<float> y(static_cast<size_t>(T * w.rows), -7.0f);
  k.linear(w, x, ldx, nullptr, T, 0, w.rows, y.data(), w.rows, out);
  return y;
}

// The integer arithmetic of MXFP4 in scalars (mxfp4-inl.h), the definition every level has to meet bit for
// bit.
float mxfp4_by_definition(const MatrixView& w, int64_t o, const float* x) {
  float y = 0.0f;
  const int64_t blocks = w.cols / 32;
  const uint8_t* codes = static_cast<const uint8_t*>(w.data) + o * blocks * 16;
  for (int64_t b = 0; b < blocks; ++b) {
    float amax = 0.0f;
    bool finite = true;
    for (int i = 0; i < 32; ++i) {
      amax = std::max(amax, std::fabs(x[b * 32 + i]));
      finite = finite && std::isfinite(x[b * 32 + i]);
    }
    const int k = amax == 0.0f ? -125 : std::max(std::ilogb(amax) - 6, -125);
    int isum = 0;
    for (int i = 0; i < 32; ++i) {
      const uint8_t code = (i & 1) ? codes[b * 16 + i / 2] >> 4 : codes[b * 16 + i / 2] & 15;
      const int q = std::clamp(
          static_cast<int>(std::nearbyint(std::ldexp(static_cast<double>(x[b * 32 + i]), -k))), -127, 127);
      isum += finite ? q * static_cast<int>(2 * kE2m1[code]) : 0;
    }
    const float scale = finite ? std::ldexp(1.0f, k - 1) : std::numeric_limits<float>::quiet_NaN();
    y += static_cast<float>(isum) * scale * e8m0_to_f32(w.scales[o * blocks + b]);
  }
  return y;
}

// Sum over |w x| of one output, for the error bound.
double magnitude(const MatrixView& w, int64_t o, const float* x) {
  std::vector<double> row(static_cast<size_t>(w.cols));
  reference_kernels<double>().decode_row(w, o, row.data());
  double s = 0;
  for (int64_t i = 0; i < w.cols; ++i) s += std::fabs(row[static_cast<size_t>(i)] * x[i]);
  return s;
}

// What rounding x to integers can cost at most: one step (half a step but for the clamp at 127) per value of
// a block.
double mxfp4_rounding(const MatrixView& w, int64_t o, const float* x) {
  std::vector<double> row(static_cast<size_t>(w.cols));
  reference_kernels<double>().decode_row(w, o, row.data());
  double s = 0;
  for (int64_t b = 0; b < w.cols; b += 32) {
    double amax = 0, weights = 0;
    for (int64_t i = b; i < b + 32; ++i) {
      amax = std::max(amax, std::fabs(static_cast<double>(x[i])));
      weights += std::fabs(row[static_cast<size_t>(i)]);
    }
    s += amax / 64 * weights;
  }
  return s;
}

TEST(Linear, EqualsTheReferenceForEveryFormatAndShape) {
  Random random(1);
  for (WeightFormat f : kFormats) {
    for (const Shape& s : kShapes) {
      if (whole_blocks(f) && s.cols % 32 != 0) continue;
      SCOPED_TRACE(std::string(format_name(f)) + " rows " + std::to_string(s.rows) + " cols " +
                   std::to_string(s.cols) + " T " + std::to_string(s.T));
      Matrix m(f, s.rows, s.cols, random);
      Guarded<float> x(random.activations(s.T * s.cols));
      const auto want = run(reference_kernels<float>(), m.view, x.data(), s.cols, s.T);
      at_every_level([&](const Kernels<float>& k, const std::string& level) {
        const auto got = run(k, m.view, x.data(), s.cols, s.T),
                   rounded = run(k, m.view, x.data(), s.cols, s.T, Out::kRounded);
        for (int64_t t = 0; t < s.T; ++t)
          for (int64_t o = 0; o < s.rows; ++o) {
            const size_t i = static_cast<size_t>(t * s.rows + o);
            // A lane takes cols / 16 steps of at most two roundings, the tree four, a weight of F64 one more.
            double roundings = static_cast<double>(s.cols) / 8 + 8;
            if (multiplies_bf16(level, f, s.cols)) roundings = 130 + static_cast<double>(s.cols) / 256;
            double bound = roundings * 0x1p-24 * magnitude(m.view, o, x.data() + t * s.cols);
            if (f == WeightFormat::kMxfp4) bound += mxfp4_rounding(m.view, o, x.data() + t * s.cols);
            ASSERT_NEAR(got[i], want[i], bound) << t << " " << o;
            ASSERT_EQ(rounded[i], round_bf16(got[i])) << t << " " << o;
          }
      });
    }
  }
}

TEST(Linear, LevelsThatFuseAgreeBitForBitAndSoDoTheOthers) {
  Random random(2);
  for (WeightFormat f : kFormats) {
    Matrix m(f, 37, 2304, random);
    Guarded<float> x(random.activations(19 * 2304));
    std::vector<float> first[3];
    at_every_level([&](const Kernels<float>& k, const std::string& level) {
      const auto y = run(k, m.view, x.data(), 2304, 19);
      auto& want = first[multiplies_bf16(level, f, 2304) ? 2 : fuses(level)];
      if (want.empty()) want = y;
      EXPECT_EQ(first_difference(y.data(), want.data(), 19 * 37), -1) << format_name(f);
    });
  }
}

TEST(Linear, ARowDoesNotKnowTheBatch) {
  Random random(3);
  for (WeightFormat f : kFormats) {
    for (int64_t cols : {64, 1088, 4096, 40, 1030}) {
      if (whole_blocks(f) && cols % 32 != 0) continue;
      constexpr int64_t kRows = 13, kT = 150;
      Matrix m(f, kRows, cols, random);
      Guarded<float> x(random.activations(kT * cols));
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        SCOPED_TRACE(std::string(format_name(f)) + " cols " + std::to_string(cols));
        std::vector<float> alone(static_cast<size_t>(kT * kRows));
        for (int64_t t = 0; t < kT; ++t)
          k.linear(m.view, x.data() + t * cols, cols, nullptr, 1, 0, kRows, alone.data() + t * kRows, kRows,
                   Out::kFull);
        for (int64_t T : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 64, 65, 150}) {
          const auto y = run(k, m.view, x.data(), cols, T);
          ASSERT_EQ(first_difference(y.data(), alone.data(), T * kRows), -1) << "T " << T;
        }
        // Gathered in another order, some rows twice.
        std::vector<int32_t> rows;
        for (int i = 0; i < 77; ++i) rows.push_back(static_cast<int32_t>(random.below(kT)));
        std::vector<float> y(rows.size() * kRows);
        k.linear(m.view, x.data(), cols, rows.data(), 77, 0, kRows, y.data(), kRows, Out::kFull);
        for (size_t i = 0; i < rows.size(); ++i)
          ASSERT_EQ(first_difference(&y[i * kRows], &alone[static_cast<size_t>(rows[i]) * kRows], kRows), -1)
              << i;
      });
    }
  }
}

// One row full of NaN and infinities between others: they stay what they are alone.
TEST(Linear, ASpoiltRowSpoilsNoOther) {
  Random random(9);
  for (WeightFormat f : kFormats) {
    constexpr int64_t kRows = 21, kCols = 96, kT = 11;
    Matrix m(f, kRows, kCols, random);
    auto v = random.activations(kT * kCols);
    for (int64_t i = 0; i < kCols; ++i) {
      v[static_cast<size_t>(4 * kCols + i)] =
          i % 3 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    }
    Guarded<float> x(v);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      for (int64_t T : {5, 6, 11}) {
        const auto y = run(k, m.view, x.data(), kCols, T);
        for (int64_t t = 0; t < T; ++t) {
          if (t == 4) continue;
          std::vector<float> alone(kRows);
          k.linear(m.view, x.data() + t * kCols, kCols, nullptr, 1, 0, kRows, alone.data(), kRows,
                   Out::kFull);
          ASSERT_EQ(first_difference(&y[static_cast<size_t>(t * kRows)], alone.data(), kRows), -1)
              << format_name(f) << " row " << t;
        }
        for (int64_t o = 0; o < kRows; ++o) ASSERT_TRUE(std::isnan(y[static_cast<size_t>(4 * kRows + o)]));
      }
    });
  }
}

// Nothing to do is nothing done.
TEST(Linear, NoRowsOnEitherSide) {
  Random random(10);
  for (WeightFormat f : kFormats) {
    Matrix m(f, 8, 64, random);
    const auto x = random.activations(64);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      std::vector<float> y(8, -7.0f);
      k.linear(m.view, x.data(), 64, nullptr, 0, 0, 8, y.data(), 8, Out::kFull);
      k.linear(m.view, x.data(), 64, nullptr, 1, 5, 5, y.data(), 8, Out::kFull);
      for (float v : y) ASSERT_EQ(v, -7.0f);
    });
  }
}

TEST(Linear, AnyRowRangeGivesTheSameBitsAndWritesNothingElse) {
  Random random(4);
  for (WeightFormat f : kFormats) {
    constexpr int64_t kRows = 71, kCols = 96, kLd = kRows + 5;
    Matrix m(f, kRows, kCols, random);
    for (int64_t T : {1, 3, 4, 11}) {
      Guarded<float> x(random.activations(T * kCols));
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        SCOPED_TRACE(std::string(format_name(f)) + " T " + std::to_string(T));
        const auto whole = run(k, m.view, x.data(), kCols, T);
        for (int trial = 0; trial < 60; ++trial) {
          const int64_t a = random.below(kRows + 1), b = random.below(kRows + 1);
          const int64_t row0 = std::min(a, b), row1 = std::max(a, b);
          std::vector<float> y(static_cast<size_t>(T * kLd), -7.0f);
          k.linear(m.view, x.data(), kCols, nullptr, T, row0, row1, y.data(), kLd, Out::kFull);
          for (int64_t t = 0; t < T; ++t)
            for (int64_t o = 0; o < kLd; ++o) {
              const float want = o >= row0 && o < row1 ? whole[static_cast<size_t>(t * kRows + o)] : -7.0f;
              ASSERT_EQ(bits_of(y[static_cast<size_t>(t * kLd + o)]), bits_of(want))
                  << row0 << ".." << row1 << " at " << t << " " << o;
            }
        }
      });
    }
  }
}

TEST(Linear, AlignmentAndStrideDoNotShow) {
  for (WeightFormat f : kFormats) {
    constexpr int64_t kRows = 6, kCols = 160;
    for (int64_t T : {1, 4, 9}) {
      std::vector<std::vector<float>> first(3);
      for (int64_t shift = 0; shift < 17; ++shift) {
        Random random(5);  // the same numbers at every alignment
        Matrix m(f, kRows, kCols, random, shift);
        const int64_t ldx = kCols + shift;
        const auto v = random.activations(T * kCols);
        Guarded<float> x((T - 1) * ldx + kCols, shift);
        for (int64_t t = 0; t < T; ++t) std::copy_n(v.begin() + t * kCols, kCols, x.data() + t * ldx);
        at_every_level([&](const Kernels<float>& k, const std::string& level) {
          const auto y = run(k, m.view, x.data(), ldx, T);
          auto& want = first[multiplies_bf16(level, f, kCols) ? 2 : fuses(level)];
          if (want.empty()) want = y;
          ASSERT_EQ(first_difference(y.data(), want.data(), T * kRows), -1)
              << format_name(f) << " shift " << shift;
        });
      }
    }
  }
}

// The format is storage only: the same numbers in fp32 give the same bits, in bf16 where the level multiplies
// bf16. This also holds the fast decoders to every code.
TEST(Linear, TheFormatOfTheWeightsDoesNotShow) {
  Random random(6);
  for (WeightFormat f : kFormats) {
    if (f == WeightFormat::kF32 || f == WeightFormat::kMxfp4)
      continue;  // MXFP4 has its own arithmetic, below
    for (int64_t cols : {256, 1120, 50}) {
      if (whole_blocks(f) && cols % 32 != 0) continue;
      Matrix m(f, 40, cols, random), plain(WeightFormat::kF32, 40, cols, random),
          half(WeightFormat::kBF16, 40, cols, random);
      for (int64_t o = 0; o < 40; ++o) {
        std::vector<float> row(static_cast<size_t>(cols));
        reference_kernels<float>().decode_row(m.view, o, row.data());
        for (int64_t i = 0; i < cols; ++i) {
          plain.put(o * cols + i, row[static_cast<size_t>(i)]);
          half.put(o * cols + i, f32_to_bf16(row[static_cast<size_t>(i)]));
        }
      }
      for (int64_t T : {1, 2, 7}) {
        Guarded<float> x(random.activations(T * cols));
        at_every_level([&](const Kernels<float>& k, const std::string& level) {
          const auto& same = multiplies_bf16(level, f, cols) ? half : plain;
          const auto a = run(k, m.view, x.data(), cols, T), b = run(k, same.view, x.data(), cols, T);
          ASSERT_EQ(first_difference(a.data(), b.data(), T * 40), -1)
              << format_name(f) << " cols " << cols << " T " << T;
        });
      }
    }
  }
}

TEST(LinearMxfp4, EveryLevelMeetsTheDefinitionBitForBit) {
  Random random(61);
  for (int64_t cols : {32, 64, 96, 480, 512, 544, 1056, 2304, 5120, 8192, 8224, 8256, 16416}) {
    for (int64_t rows : {1, 15, 16, 17, 40}) {
      if (cols > 1056 && rows > 17) continue;
      Matrix m(WeightFormat::kMxfp4, rows, cols, random);
      for (int64_t T : {1, 2, 3, 7, 8, 9, 15, 16, 70}) {
        if (cols > 1056 && T > 9) continue;
        Guarded<float> x(random.activations(T * cols, random.uniform() * 10));
        std::vector<float> want(static_cast<size_t>(T * rows));
        for (int64_t t = 0; t < T; ++t)
          for (int64_t o = 0; o < rows; ++o)
            want[static_cast<size_t>(t * rows + o)] = mxfp4_by_definition(m.view, o, x.data() + t * cols);
        at_every_level([&](const Kernels<float>& k, const std::string&) {
          const auto y = run(k, m.view, x.data(), cols, T);
          ASSERT_EQ(first_difference(y.data(), want.data(), T * rows), -1)
              << "cols " << cols << " rows " << rows << " T " << T;
        });
      }
    }
  }
}

// Codes, scales and activations at the ends of their ranges: zero blocks, subnormals, a clamp at 127, NaN and
// infinity, all scale bytes.
TEST(LinearMxfp4, AwkwardNumbers) {
  Random random(62);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t cols = 256 * 32, rows = 18;
  Matrix m(WeightFormat::kMxfp4, rows, cols, random);
  for (int64_t i = 0; i < m.scales->size(); ++i)
    (*m.scales)[i] = static_cast<uint8_t>(random.below(40) ? 100 + random.below(40) : random.below(255));
  std::vector<std::vector<float>> inputs;
  inputs.push_back(std::vector<float>(static_cast<size_t>(cols), 0.0f));
  inputs.push_back(random.activations(cols));
  for (float v : {1e-45f, 1e-38f, 1e-30f, 127.6f, -127.9f, 255.0f, -0.0f}) {
    auto x = random.activations(cols);
    for (int64_t i = 0; i < cols; i += 1 + random.below(60)) x[static_cast<size_t>(i)] = v;
    inputs.push_back(x);
  }
  for (float v : {inf, -inf, nan}) {
    auto x = random.activations(cols);
    x[777] = v;
    inputs.push_back(x);
  }
  for (const auto& x : inputs) {
    std::vector<float> want;
    for (int64_t o = 0; o < rows; ++o) want.push_back(mxfp4_by_definition(m.view, o, x.data()));
    for (int64_t T : {1, 2, 5}) {
      std::vector<float> many;
      for (int64_t t = 0; t < T; ++t) many.insert(many.end(), x.begin(), x.end());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        const auto y = run(k, m.view, many.data(), cols, T);
        for (int64_t t = 0; t < T; ++t)
          ASSERT_EQ(first_difference(y.data() + t * rows, want.data(), rows), -1)
              << "row " << t << " of " << T;
      });
    }
  }
  // A scale byte of 255 is NaN and stays with its row.
  (*m.scales)[5 * 256 + 9] = 255;
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    const auto y = run(k, m.view, inputs[1].data(), cols, 1);
    for (int64_t o = 0; o < rows; ++o) ASSERT_EQ(std::isnan(y[static_cast<size_t>(o)]), o == 5) << o;
  });
}

// The error of the integers against exact products, beside that of the E4M3 rounding the reference
// implementation applies here.
TEST(LinearMxfp4, IsCloserToTheExactProductThanE4m3Activations) {
  Random random(63);
  const int64_t cols = 2304, rows = 64, T = 16;
  Matrix m(WeightFormat::kMxfp4, rows, cols, random);
  const auto x = random.activations(T * cols);
  auto e4m3 = x;
  std::vector<uint8_t> codes(static_cast<size_t>(cols)), scales(static_cast<size_t>(cols / 32));
  for (int64_t t = 0; t < T; ++t) {
    reference_kernels<float>().encode_record(RecordFormat::kFp8_32, &x[static_cast<size_t>(t * cols)], cols,
                                             codes.data(), scales.data());
    reference_kernels<float>().decode_record(RecordFormat::kFp8_32, codes.data(), scales.data(), cols,
                                             &e4m3[static_cast<size_t>(t * cols)]);
  }
  const auto exact = run(reference_kernels<float>(), m.view, x.data(), cols, T),
             coarse = run(reference_kernels<float>(), m.view, e4m3.data(), cols, T);
  auto error = [&](const std::vector<float>& y) {
    double s = 0, n = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      s += (static_cast<double>(y[i]) - exact[i]) * (static_cast<double>(y[i]) - exact[i]);
      n += static_cast<double>(exact[i]) * exact[i];
    }
    return std::sqrt(s / n);
  };
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    const double ours = error(run(k, m.view, x.data(), cols, T));
    EXPECT_LT(ours, 0.01);
    EXPECT_LT(ours, 0.5 * error(coarse));
  });
}

// Every code under every scale, the ends of the range and NaN included.
TEST(DecodeRow, EveryCodeUnderEveryScale) {
  for (WeightFormat f : {WeightFormat::kFp8Tile32, WeightFormat::kFp8Row32, WeightFormat::kMxfp4}) {
    Random random(7);
    Matrix m(f, 256, 256, random);
    for (int64_t i = 0; i < m.data->size(); ++i) (*m.data)[i] = static_cast<uint8_t>(i);
    // Row r uses scale r, or tile row r / 32 scale 32 tile + column block: all 256 bytes occur.
    for (int64_t i = 0; i < m.scales->size(); ++i)
      (*m.scales)[i] = static_cast<uint8_t>(f == WeightFormat::kFp8Tile32 ? i * 4 + 3 : i / 8);
    std::vector<float> want(256);
    Guarded<float> got(256);
    for (int64_t row = 0; row < 256; ++row) {
      reference_kernels<float>().decode_row(m.view, row, want.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        k.decode_row(m.view, row, got.data());
        const int64_t at = first_difference(got.data(), want.data(), 256);
        ASSERT_EQ(at, -1) << format_name(f) << " row " << row << " got " << got[std::max<int64_t>(at, 0)];
      });
    }
  }
}

TEST(DecodeRow, EveryBf16AndOddLengths) {
  Random random(8);
  Matrix m(WeightFormat::kBF16, 256, 256, random);
  for (int64_t i = 0; i < 65536; ++i) m.put(i, static_cast<uint16_t>(i));
  Guarded<float> got(256);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    for (int64_t row = 0; row < 256; ++row) {
      k.decode_row(m.view, row, got.data());
      for (int64_t i = 0; i < 256; ++i) {
        const float want = bf16_to_f32(static_cast<uint16_t>(row * 256 + i));
        ASSERT_TRUE(bits_of(got[i]) == bits_of(want) || (std::isnan(got[i]) && std::isnan(want)))
            << row << " " << i;
      }
    }
    for (int64_t cols : {1, 31, 33, 65}) {
      Matrix odd(WeightFormat::kFp8Tile32, 3, cols, random);
      Guarded<float> a(cols);
      std::vector<float> b(static_cast<size_t>(cols));
      k.decode_row(odd.view, 2, a.data());
      reference_kernels<float>().decode_row(odd.view, 2, b.data());
      ASSERT_EQ(first_difference(a.data(), b.data(), cols), -1) << cols;
    }
  });
}

// Bytes of the released checkpoint (model specification 12.4).
TEST(DecodeRow, ReleasedBytes) {
  std::vector<uint8_t> fp8(32, 0), fp4(16, 0);
  const uint8_t head8[] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5},
                head4[] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  std::copy(std::begin(head8), std::end(head8), fp8.begin());
  std::copy(std::begin(head4), std::end(head4), fp4.begin());
  const uint8_t s8 = 0x73, s4 = 0x78;
  const float want8[] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                         0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
  const float want4[] = {0,           -0.0078125f, 0,           -0.0078125f, -0.015625f, -0.03125f,
                         -0.0078125f, 0.015625f,   -0.0234375f, -0.0078125f, -0.046875f, -0.0078125f,
                         0.0078125f,  0.015625f,   -0.0078125f, -0.0078125f};
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    float out[32];
    k.decode_row({WeightFormat::kFp8Tile32, 1, 32, fp8.data(), &s8}, 0, out);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(out[i], want8[i]) << i;
    k.decode_row({WeightFormat::kMxfp4, 1, 32, fp4.data(), &s4}, 0, out);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i], want4[i]) << i;
  });
}

TEST(InstructionLevels, AreListedBestFirstAndRestrictable) {
  const auto levels = instruction_levels();
  ASSERT_FALSE(levels.empty());
  EXPECT_EQ(instruction_level(), levels.front());
  for (const std::string& level : levels) {
    ASSERT_TRUE(set_instruction_level(level));
    EXPECT_EQ(instruction_level(), level);
    EXPECT_EQ(kernels<float>().name, level);
    EXPECT_EQ(instruction_levels(), levels) << "a restriction must not hide what the machine has";
  }
  EXPECT_FALSE(set_instruction_level("AVX9"));
  EXPECT_FALSE(set_instruction_level(""));
  EXPECT_EQ(instruction_level(), levels.back());  // a refused name changes nothing
  ASSERT_TRUE(set_instruction_level(levels.front()));
  EXPECT_STREQ(kernels<double>().name, "reference");
}

}  // namespace
}  // namespace deepinfer
