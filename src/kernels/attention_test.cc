// attend() and index_scores() at every instruction level, against the scalar definition and against
// themselves under changes that must not matter: which heads or keys are asked for together, where the data
// lies.
#include <gtest/gtest.h>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

struct AttendShape {
  int64_t n, D;
  int heads;
};
const AttendShape kAttendShapes[] = {{1, 64, 1},   {2, 16, 3},    {5, 40, 4},    {16, 33, 2}, {31, 128, 5},
                                     {65, 512, 8}, {133, 64, 66}, {640, 512, 9}, {100, 7, 1}};

TEST(Attend, EqualsTheReference) {
  Random random(41);
  for (const auto& s : kAttendShapes) {
    SCOPED_TRACE("n " + std::to_string(s.n) + " D " + std::to_string(s.D) + " heads " +
                 std::to_string(s.heads));
    Guarded<float> q(random.activations(s.heads * s.D)), rows(random.activations(s.n * s.D)),
        sink(random.floats(s.heads)), scratch(s.heads * s.n), out(s.heads * s.D);
    const double scale = 1.0 / std::sqrt(static_cast<double>(s.D));
    std::vector<float> want(static_cast<size_t>(s.heads * s.D));
    reference_kernels<float>().attend(q.data(), rows.data(), s.n, s.D, s.heads, scale, sink.data(),
                                      scratch.data(), want.data());
    float largest = 0;
    for (int64_t i = 0; i < rows.size(); ++i) largest = std::max(largest, std::fabs(rows[i]));
    at_every_level([&](const Kernels<float>& k, const std::string& level) {
      k.attend(q.data(), rows.data(), s.n, s.D, s.heads, scale, sink.data(), scratch.data(), out.data());
      // Probabilities rounded to bf16 are off by 2^-9 each, so their mean of the rows is by no more than
      // that.
      const double rounding = attends_bf16(level, s.D) ? 0x1p-9 * largest : 0;
      for (int64_t i = 0; i < out.size(); ++i) {
        ASSERT_TRUE(is_bf16(out[i]));
        ASSERT_NEAR(out[i], want[static_cast<size_t>(i)],
                    std::fabs(want[static_cast<size_t>(i)]) * 0x1.02p-7 + 2e-6 + rounding)
            << i;
      }
    });
  }
}

// Records decoded to the form of the level: attend()'s bits, for few heads and many, odd counts, records that
// lie apart; and whatever a form cannot hold is refused.
TEST(Attend, GatheredRecordsGiveTheSameBits) {
  Random random(43);
  for (const RecordFormat format : {RecordFormat::kFp4_16, RecordFormat::kFp8_32}) {
    for (const auto& s : {AttendShape{1, 128, 4}, {33, 128, 4}, {77, 64, 3}, {128, 96, 1}, {45, 512, 66}}) {
      SCOPED_TRACE("n " + std::to_string(s.n) + " heads " + std::to_string(s.heads));
      const int64_t code = record_code_bytes<float>(format, s.D), scale = record_scale_bytes(format, s.D);
      const auto values = random.activations(s.n * s.D), vq = random.activations(s.heads * s.D),
                 sink = random.floats(s.heads);
      std::vector<uint8_t> codes(static_cast<size_t>(s.n * code)), scales(static_cast<size_t>(s.n * scale));
      kernels<float>().encode_record(format, values.data(), s.n * s.D, codes.data(), scales.data());
      at_every_level([&](const Kernels<float>& k, const std::string& level) {
        const int64_t bytes = k.gathered_bytes(format, s.D);
        ASSERT_EQ(bytes > 0, attends_bf16(level, s.D));
        if (bytes == 0) return;
        std::vector<float> rows(static_cast<size_t>(s.n * s.D)), z(static_cast<size_t>(s.heads * s.n)),
            want(static_cast<size_t>(s.heads * s.D)), got(want.size());
        k.decode_record(format, codes.data(), scales.data(), s.n * s.D, rows.data());
        k.attend(vq.data(), rows.data(), s.n, s.D, s.heads, 0.1, sink.data(), z.data(), want.data());
        Guarded<uint8_t> gathered(s.n * bytes);
        for (int64_t i = 0; i < s.n; i += 5) {
          const int64_t m = std::min<int64_t>(5, s.n - i);
          ASSERT_TRUE(k.gather_records(format, codes.data() + i * code, scales.data() + i * scale, m * s.D,
                                       gathered.data() + i * bytes));
        }
        ASSERT_TRUE(k.attend_gathered(vq.data(), gathered.data(), s.n, s.D, s.heads, 0.1, sink.data(),
                                      z.data(), got.data()));
        ASSERT_EQ(first_difference(want.data(), got.data(), s.heads * s.D), -1);
        auto odd = vq;
        odd.back() = 1.0f + 0x1p-20f;
        ASSERT_FALSE(k.attend_gathered(odd.data(), gathered.data(), s.n, s.D, s.heads, 0.1, sink.data(),
                                       z.data(), got.data()));
        if (format == RecordFormat::kFp8_32) {
          // A power of two whose smallest values would be subnormal, and a code that is no number.
          auto low = scales;
          low.back() = 9;
          ASSERT_FALSE(k.gather_records(format, codes.data(), low.data(), s.n * s.D, gathered.data()));
          auto bad = codes;
          bad.back() = 0xff;
          ASSERT_FALSE(k.gather_records(format, bad.data(), scales.data(), s.n * s.D, gathered.data()));
        }
      });
    }
  }
}

// Every code with every scale decodes to what decode_record makes of it.
TEST(Attend, GatheredValuesAreTheDecodedOnes) {
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    if (k.gathered_bytes(RecordFormat::kFp4_16, 32) == 0) return;
    for (const RecordFormat format : {RecordFormat::kFp4_16, RecordFormat::kFp8_32}) {
      for (int s = 0; s < 256; ++s) {
        uint8_t codes[256], scales[16];
        for (int i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
        std::fill(scales, scales + 16, static_cast<uint8_t>(s));
        float want[256];
        uint16_t got[256];
        k.decode_record(format, codes, scales, 256, want);
        if (!k.gather_records(format, codes, scales, 256, reinterpret_cast<uint8_t*>(got))) continue;
        for (int i = 0; i < 256; ++i) {
          if (std::isnan(want[i]))
            ASSERT_TRUE(std::isnan(bf16_to_f32(got[i])));
          else
            ASSERT_EQ(bf16_to_f32(got[i]), want[i]) << "scale " << s << " value " << i;
        }
      }
      // The FP8 codes above hold two NaNs, which are refused; without them the usual scales must pass.
      uint8_t codes[32] = {}, scales[1];
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(i * 8 + i % 7);
      for (int s = 10; s <= 134; ++s) {
        if (format != RecordFormat::kFp8_32) break;
        scales[0] = static_cast<uint8_t>(s);
        float want[32];
        uint16_t got[32];
        k.decode_record(format, codes, scales, 32, want);
        ASSERT_TRUE(k.gather_records(format, codes, scales, 32, reinterpret_cast<uint8_t*>(got)));
        for (int i = 0; i < 32; ++i) ASSERT_EQ(bf16_to_f32(got[i]), want[i]) << s << ' ' << i;
      }
    }
  });
}

void heads_apart(int64_t D) {
  Random random(42);
  const int64_t n = 77;
  const int heads = 70;
  const auto vq = random.activations(heads * D), vr = random.activations(n * D), vs = random.floats(heads);
  std::vector<float> first[3];
  at_every_level([&](const Kernels<float>& k, const std::string& level) {
    std::vector<float> scratch(static_cast<size_t>(heads * n)), whole(static_cast<size_t>(heads * D)),
        part(whole.size());
    k.attend(vq.data(), vr.data(), n, D, heads, 0.1, vs.data(), scratch.data(), whole.data());
    auto& f = first[attends_bf16(level, D) ? 2 : fuses(level)];
    if (f.empty()) f = whole;
    ASSERT_EQ(first_difference(whole.data(), f.data(), heads * D), -1);
    for (int trial = 0; trial < 40; ++trial) {
      const int h0 = static_cast<int>(random.below(heads)),
                nh = 1 + static_cast<int>(random.below(heads - h0));
      const int64_t shift = random.below(17);
      Guarded<float> q(std::vector<float>(vq.begin() + h0 * D, vq.begin() + (h0 + nh) * D), shift),
          rows(vr, 16 - shift), sink(std::vector<float>(vs.begin() + h0, vs.begin() + h0 + nh));
      Guarded<float> z(nh * n, shift), out(nh * D, 2 * shift);
      k.attend(q.data(), rows.data(), n, D, nh, 0.1, sink.data(), z.data(), out.data());
      ASSERT_EQ(first_difference(out.data(), whole.data() + h0 * D, nh * D), -1)
          << "heads " << h0 << " + " << nh;
    }
  });
}

TEST(Attend, AHeadDoesNotKnowTheOthers) {
  for (int64_t D : {80, 96, 512}) {
    SCOPED_TRACE(D);
    heads_apart(D);
  }
}

// A query that is not bf16 takes the fp32 products, alone; so do all heads when a row is not.
TEST(Attend, OtherValuesThanBf16) {
  Random random(44);
  const int64_t n = 40, D = 64;
  const int heads = 9;
  auto vq = random.activations(heads * D), vr = random.activations(n * D);
  std::vector<float> sink = random.floats(heads), z(static_cast<size_t>(heads * n)),
                     plain(static_cast<size_t>(heads * D)), out(plain.size()), before(plain.size());
  auto run = [&](const Kernels<float>& k, std::vector<float>* o) {
    k.attend(vq.data(), vr.data(), n, D, heads, 0.125, sink.data(), z.data(), o->data());
  };
  at_every_level([&](const Kernels<float>& k, const std::string&) { run(k, &before); });
  ASSERT_TRUE(set_instruction_level(instruction_levels().front()));
  const Kernels<float> best = kernels<float>();
  run(best, &before);
  vq[4 * D + 7] = 0.123456f;
  run(best, &out);
  for (int h = 0; h < heads; ++h) {
    if (h == 4) continue;
    EXPECT_EQ(first_difference(out.data() + h * D, before.data() + h * D, D), -1) << h;
  }
  reference_kernels<float>().attend(vq.data(), vr.data(), n, D, heads, 0.125, sink.data(), z.data(),
                                    plain.data());
  for (int64_t i = 4 * D; i < 5 * D; ++i)
    ASSERT_NEAR(out[static_cast<size_t>(i)], plain[static_cast<size_t>(i)],
                std::fabs(plain[static_cast<size_t>(i)]) * 0x1.02p-7 + 2e-6);
  vr[3 * D + 1] = 0.7654321f;
  run(best, &out);
  reference_kernels<float>().attend(vq.data(), vr.data(), n, D, heads, 0.125, sink.data(), z.data(),
                                    plain.data());
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(out[i], plain[i], std::fabs(plain[i]) * 0x1.02p-7 + 2e-6);
}

TEST(Attend, SinkTakesItsShareAndAddsNoValue) {
  // One row, logit 0, sink ln 3: the row keeps a quarter.
  const float q[4] = {0, 0, 0, 0}, row[4] = {4, -8, 16, 0}, sink[1] = {std::log(3.0f)};
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    float scratch[1], out[4];
    k.attend(q, row, 1, 4, 1, 0.5, sink, scratch, out);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], -2.0f);
    EXPECT_EQ(out[2], 4.0f);
    EXPECT_EQ(out[3], 0.0f);
  });
  const double dq[1] = {2}, drow[2] = {1, 3}, dsink[1] = {-1};
  double scratch[2], out[1];
  kernels<double>().attend(dq, drow, 2, 1, 1, 0.5, dsink, scratch, out);
  EXPECT_NEAR(out[0],
              (std::exp(1.0) * 1 + std::exp(3.0) * 3) / (std::exp(1.0) + std::exp(3.0) + std::exp(-1.0)),
              1e-12);
}

TEST(Attend, LargeLogitsDoNotOverflow) {
  Random random(43);
  const auto q = random.activations(2 * 64, 300.0), rows = random.activations(50 * 64, 300.0);
  const float sink[2] = {-1e4f, 80.0f};
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    std::vector<float> z(100), out(128);
    k.attend(q.data(), rows.data(), 50, 64, 2, 1.0, sink, z.data(), out.data());
    for (float v : out) ASSERT_TRUE(std::isfinite(v));
  });
}

// ---- index scores

struct Keys {
  Guarded<uint8_t> codes, scales;
  int64_t code_stride, scale_stride;
  Keys(RecordFormat f, int64_t n, int64_t dim, Random& random, int64_t pad = 0, double size = 1.0)
      : codes(n * (record_code_bytes<float>(f, dim) + pad)),
        scales(n * (record_scale_bytes(f, dim) + pad)),
        code_stride(record_code_bytes<float>(f, dim) + pad),
        scale_stride(record_scale_bytes(f, dim) + pad) {
    for (int64_t j = 0; j < n; ++j) {
      const auto x = random.activations(dim, size);
      reference_kernels<float>().encode_record(f, x.data(), dim, codes.data() + j * code_stride,
                                               scales.data() + j * scale_stride);
    }
  }
};

std::vector<float> on_fp4_grid(Random& random, int64_t n, double size = 1.0) {
  auto x = random.activations(n, size);
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  reference_kernels<float>().encode_record(RecordFormat::kFp4_32, x.data(), n, codes.data(), scales.data());
  reference_kernels<float>().decode_record(RecordFormat::kFp4_32, codes.data(), scales.data(), n, x.data());
  return x;
}

TEST(IndexScores, Fp4ScoresAreExactUpToTheStatedOrder) {
  Random random(44);
  for (int dim : {32, 64, 128}) {
    for (int heads : {1, 3, 8, 32}) {
      for (int64_t n : {1, 15, 16, 17, 100}) {
        for (double size : {1.0, 1e-12, 1e12}) {
          Guarded<float> q(on_fp4_grid(random, int64_t{heads} * dim, size)), w(random.floats(heads));
          Keys keys(RecordFormat::kFp4_32, n, dim, random);
          Guarded<float> want(n), got(n);
          reference_kernels<float>().index_scores(q.data(), w.data(), heads, dim, RecordFormat::kFp4_32,
                                                  keys.codes.data(), keys.code_stride, keys.scales.data(),
                                                  keys.scale_stride, n, want.data());
          at_every_level([&](const Kernels<float>& k, const std::string& level) {
            k.index_scores(q.data(), w.data(), heads, dim, RecordFormat::kFp4_32, keys.codes.data(),
                           keys.code_stride, keys.scales.data(), keys.scale_stride, n, got.data());
            if (fuses(level)) {
              ASSERT_EQ(first_difference(got.data(), want.data(), n), -1) << dim << " " << heads << " " << n;
            } else {
              double bound = 0;
              for (float v : w) bound += std::fabs(v) * dim * 36 * size * 32;
              for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(got[j], want[j], bound * 0x1p-22);
            }
          });
        }
      }
    }
  }
}

// Queries that are not on the FP4 grid, alone or beside others that are: the stated order still holds, to
// fp32 rounding.
TEST(IndexScores, QueriesOffTheGrid) {
  Random random(47);
  const int heads = 6, dim = 64;
  const int64_t n = 21;
  for (int off = 0; off < 3; ++off) {
    auto v = on_fp4_grid(random, int64_t{heads} * dim);
    if (off == 1) v[3 * dim + 40] = 0.123456f;
    if (off == 2) v = random.floats(int64_t{heads} * dim);
    Guarded<float> q(v), w(random.floats(heads)), want(n), got(n);
    Keys keys(RecordFormat::kFp4_32, n, dim, random);
    reference_kernels<float>().index_scores(q.data(), w.data(), heads, dim, RecordFormat::kFp4_32,
                                            keys.codes.data(), keys.code_stride, keys.scales.data(),
                                            keys.scale_stride, n, want.data());
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      k.index_scores(q.data(), w.data(), heads, dim, RecordFormat::kFp4_32, keys.codes.data(),
                     keys.code_stride, keys.scales.data(), keys.scale_stride, n, got.data());
      for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(got[j], want[j], 2e-4) << off << " " << j;
    });
  }
}

// More heads than one pass holds, and a key whose scale byte is NaN spoils its own score only.
TEST(IndexScores, ManyHeadsAndASpoiltKey) {
  Random random(48);
  const int heads = 70, dim = 32;
  const int64_t n = 40;
  Guarded<float> q(on_fp4_grid(random, int64_t{heads} * dim)), w(random.floats(heads)), want(n), got(n);
  Keys keys(RecordFormat::kFp4_32, n, dim, random);
  for (int h : {heads, 9}) {
    keys.scales[17] = 255;
    reference_kernels<float>().index_scores(q.data(), w.data(), h, dim, RecordFormat::kFp4_32,
                                            keys.codes.data(), keys.code_stride, keys.scales.data(),
                                            keys.scale_stride, n, want.data());
    at_every_level([&](const Kernels<float>& k, const std::string& level) {
      k.index_scores(q.data(), w.data(), h, dim, RecordFormat::kFp4_32, keys.codes.data(), keys.code_stride,
                     keys.scales.data(), keys.scale_stride, n, got.data());
      for (int64_t j = 0; j < n; ++j) {
        if (j == 17) continue;  // NaN through a maximum is left open; selection ignores it either way
        ASSERT_TRUE(std::isfinite(got[j]));
        if (fuses(level)) {
          ASSERT_EQ(bits_of(got[j]), bits_of(want[j])) << h << " " << j;
        }
      }
    });
  }
}

TEST(IndexScores, OtherFormatsAndOddDims) {
  Random random(45);
  for (RecordFormat f : {RecordFormat::kRaw, RecordFormat::kFp8_32, RecordFormat::kFp4_16}) {
    for (int dim : {32, 64, 20}) {
      if (dim == 20 && f != RecordFormat::kRaw) continue;
      const int heads = 5;
      const int64_t n = 37;
      Guarded<float> q(random.activations(int64_t{heads} * dim)), w(random.floats(heads)), want(n), got(n);
      Keys keys(f, n, dim, random);
      reference_kernels<float>().index_scores(q.data(), w.data(), heads, dim, f, keys.codes.data(),
                                              keys.code_stride, keys.scales.data(), keys.scale_stride, n,
                                              want.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        k.index_scores(q.data(), w.data(), heads, dim, f, keys.codes.data(), keys.code_stride,
                       keys.scales.data(), keys.scale_stride, n, got.data());
        for (int64_t j = 0; j < n; ++j) ASSERT_NEAR(got[j], want[j], 2e-4) << j;
      });
    }
  }
}

TEST(IndexScores, AKeyDoesNotKnowTheOthers) {
  Random random(46);
  for (RecordFormat f : {RecordFormat::kFp4_32, RecordFormat::kFp8_32, RecordFormat::kRaw}) {
    const int heads = 32, dim = 128;
    const int64_t n = 83;
    Guarded<float> q(on_fp4_grid(random, int64_t{heads} * dim)), w(random.floats(heads));
    Keys keys(f, n, dim, random, 3 * 4);
    std::vector<float> first[2];
    at_every_level([&](const Kernels<float>& k, const std::string& level) {
      std::vector<float> whole(static_cast<size_t>(n));
      k.index_scores(q.data(), w.data(), heads, dim, f, keys.codes.data(), keys.code_stride,
                     keys.scales.data(), keys.scale_stride, n, whole.data());
      auto& want = first[fuses(level)];
      if (want.empty()) want = whole;
      ASSERT_EQ(first_difference(whole.data(), want.data(), n), -1);
      for (int trial = 0; trial < 60; ++trial) {
        const int64_t j0 = random.below(n), nj = 1 + random.below(n - j0);
        Guarded<float> part(nj, random.below(5));
        k.index_scores(q.data(), w.data(), heads, dim, f, keys.codes.data() + j0 * keys.code_stride,
                       keys.code_stride, keys.scales.data() + j0 * keys.scale_stride, keys.scale_stride, nj,
                       part.data());
        ASSERT_EQ(first_difference(part.data(), whole.data() + j0, nj), -1) << j0 << " + " << nj;
      }
    });
  }
}

// ReLU per head before the weight: a head whose dot product is negative counts nothing, a negative weight
// subtracts.
TEST(IndexScores, ReluThenWeight) {
  std::vector<float> key(32, 0.0f);
  key[0] = 1.0f;
  uint8_t codes[16], scales[1];
  kernels<float>().encode_record(RecordFormat::kFp4_32, key.data(), 32, codes, scales);
  std::vector<float> q(96, 0.0f);
  q[0] = 2.0f;
  q[32] = -3.0f;
  q[64] = 4.0f;
  const float w[3] = {1.0f, 100.0f, -0.25f};
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    float score = 9;
    k.index_scores(q.data(), w, 3, 32, RecordFormat::kFp4_32, codes, 16, scales, 1, 1, &score);
    EXPECT_EQ(score, 2.0f - 1.0f);
  });
}

}  // namespace
}  // namespace deepinfer
