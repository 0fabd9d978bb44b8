// Cache records at every instruction level: bytes equal to the scalar quantisers of base/numeric.h for random
// and awkward values, and to the worked vectors of model specification 12.4.
#include <gtest/gtest.h>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

const RecordFormat kQuantised[] = {RecordFormat::kFp8_32, RecordFormat::kFp4_32, RecordFormat::kFp4_16};

std::string hex(const Guarded<uint8_t>& b) {
  std::string s;
  for (int64_t i = 0; i < b.size(); ++i) {
    s += "0123456789abcdef"[b[i] >> 4];
    s += "0123456789abcdef"[b[i] & 15];
  }
  return s;
}

struct Record {
  Guarded<uint8_t> codes, scales;
  Record(RecordFormat f, int64_t n, int64_t shift = 0)
      : codes(record_code_bytes<float>(f, n), shift), scales(record_scale_bytes(f, n), shift) {}
};

void expect_same_bytes(RecordFormat f, const std::vector<float>& x, const std::string& what) {
  const int64_t n = static_cast<int64_t>(x.size());
  Record want(f, n);
  reference_kernels<float>().encode_record(f, x.data(), n, want.codes.data(), want.scales.data());
  std::vector<float> values(x.size());
  reference_kernels<float>().decode_record(f, want.codes.data(), want.scales.data(), n, values.data());
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    Record got(f, n);
    Guarded<float> in(x), out(n);
    k.encode_record(f, in.data(), n, got.codes.data(), got.scales.data());
    ASSERT_EQ(hex(got.codes), hex(want.codes)) << what;
    ASSERT_EQ(hex(got.scales), hex(want.scales)) << what;
    k.decode_record(f, got.codes.data(), got.scales.data(), n, out.data());
    const int64_t at = first_difference(out.data(), values.data(), n);
    ASSERT_EQ(at, -1) << what << " " << out[std::max<int64_t>(at, 0)];
  });
}

TEST(Records, Sizes) {
  EXPECT_EQ(record_code_bytes<float>(RecordFormat::kFp4_16, 512), 256);
  EXPECT_EQ(record_scale_bytes(RecordFormat::kFp4_16, 512), 32);
  EXPECT_EQ(record_code_bytes<float>(RecordFormat::kFp4_32, 128), 64);
  EXPECT_EQ(record_scale_bytes(RecordFormat::kFp4_32, 128), 4);
  EXPECT_EQ(record_code_bytes<float>(RecordFormat::kFp8_32, 512), 512);
  EXPECT_EQ(record_scale_bytes(RecordFormat::kFp8_32, 512), 16);
  EXPECT_EQ(record_code_bytes<float>(RecordFormat::kRaw, 512), 2048);
  EXPECT_EQ(record_code_bytes<double>(RecordFormat::kRaw, 512), 4096);
  EXPECT_EQ(record_scale_bytes(RecordFormat::kRaw, 512), 0);
}

TEST(Records, WorkedVectors) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>((i - 15.5) * 0.37);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    Record fp8(RecordFormat::kFp8_32, 32), fp4(RecordFormat::kFp4_32, 32), half(RecordFormat::kFp4_16, 32);
    k.encode_record(RecordFormat::kFp8_32, x.data(), 32, fp8.codes.data(), fp8.scales.data());
    EXPECT_EQ(hex(fp8.codes), "fbfbfaf9f9f8f6f5f3f2f0edeae7e1d45461676a6d70727375767879797a7b7b");
    EXPECT_EQ(hex(fp8.scales), "79");
    k.encode_record(RecordFormat::kFp4_32, x.data(), 32, fp4.codes.data(), fp4.scales.data());
    EXPECT_EQ(hex(fp4.codes), "ffeeeedecdbcab891032435465666677");
    EXPECT_EQ(hex(fp4.scales), "7f");
    k.encode_record(RecordFormat::kFp4_16, x.data(), 32, half.codes.data(), half.scales.data());
    EXPECT_EQ(hex(half.codes), "ffefeededdccab891032445565667677");
    EXPECT_EQ(hex(half.scales), "3737");
    const std::vector<float> zero(32, 0.0f);
    k.encode_record(RecordFormat::kFp8_32, zero.data(), 32, fp8.codes.data(), fp8.scales.data());
    EXPECT_EQ(fp8.scales[0], 105);
    k.encode_record(RecordFormat::kFp4_32, zero.data(), 32, fp4.codes.data(), fp4.scales.data());
    EXPECT_EQ(fp4.scales[0], 1);
    k.encode_record(RecordFormat::kFp4_16, zero.data(), 32, half.codes.data(), half.scales.data());
    EXPECT_EQ(hex(half.scales), "0101");
    for (auto* r : {&fp8, &fp4, &half})
      for (int64_t i = 0; i < r->codes.size(); ++i) EXPECT_EQ(r->codes[i], 0);
  });
}

TEST(Records, RandomValues) {
  Random random(31);
  for (RecordFormat f : kQuantised)
    for (int64_t n : {32, 64, 128, 512})
      for (double scale : {1e-30, 1e-6, 0.01, 1.0, 50.0, 1e6, 1e30}) {
        expect_same_bytes(f, random.activations(n, scale), "bf16 values");
        expect_same_bytes(f, random.floats(n, scale), "fp32 values");
      }
}

// Every boundary between neighbouring codes, itself and its neighbours on both sides, for several block
// maxima.
TEST(Records, TiesAndTheirNeighbours) {
  std::vector<float> points;
  for (int c = 0; c < 127; ++c)
    points.push_back(
        (e4m3_to_f32(static_cast<uint8_t>(c)) + e4m3_to_f32(static_cast<uint8_t>(std::min(c + 1, 126)))) / 2);
  for (int c = 0; c < 7; ++c)
    points.push_back((kE2m1[static_cast<size_t>(c)] + kE2m1[static_cast<size_t>(c + 1)]) / 2);
  std::vector<float> all;
  for (float p : points)
    for (float q : {p, std::nextafterf(p, 0.0f), std::nextafterf(p, 1e9f)}) {
      all.push_back(q);
      all.push_back(-q);
    }
  for (RecordFormat f : kQuantised)
    for (float top : {6.0f, 448.0f, 5.9f, 440.0f, 0.75f, 3.0f})
      for (float factor : {1.0f, 0.9375f, 0x1p-20f, 0x1p-100f, 0x1p90f}) {
        std::vector<float> x;
        for (size_t i = 0; i < all.size(); ++i) {
          if (x.size() % 16 == 0) x.push_back(top * factor);  // fixes the scale of the block
          if (std::fabs(all[i]) <= top) x.push_back(all[i] * factor);
        }
        x.resize((x.size() + 31) / 32 * 32, -0.0f);
        expect_same_bytes(f, x, "top " + std::to_string(top) + " factor " + std::to_string(factor));
      }
}

TEST(Records, AwkwardValues) {
  const float max = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> blocks = {
      {0.0f, -0.0f},    {tiny, -tiny}, {max, -max}, {max, tiny}, {1e-38f, -3e-39f}, {448.0f, 464.0f},
      {1e-4f, 0.9e-4f}, {inf, 1.0f},   {-inf, inf}, {nan, 1.0f}, {nan, inf},        {nan, nan}};
  Random random(32);
  for (RecordFormat f : kQuantised)
    for (const auto& b : blocks)
      for (int64_t spread : {1, 7, 31}) {
        std::vector<float> x = random.activations(96);
        for (size_t i = 0; i < b.size(); ++i)
          x[static_cast<size_t>(32 + (static_cast<int64_t>(i) * spread) % 32)] = b[i];
        expect_same_bytes(f, x, "block with " + std::to_string(b[0]));
        expect_same_bytes(f, std::vector<float>(64, b[0]), "block of " + std::to_string(b[0]));
      }
}

TEST(Records, AlignmentDoesNotShowAndRawIsACopy) {
  Random random(33);
  const auto x = random.activations(96);
  for (RecordFormat f :
       {RecordFormat::kRaw, RecordFormat::kFp8_32, RecordFormat::kFp4_32, RecordFormat::kFp4_16}) {
    Record want(f, 96);
    reference_kernels<float>().encode_record(f, x.data(), 96, want.codes.data(), want.scales.data());
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      for (int64_t shift = 0; shift < 33; ++shift) {
        Guarded<float> in(x, shift), out(96, 2 * shift);
        Record r(f, 96, shift);
        k.encode_record(f, in.data(), 96, r.codes.data(), r.scales.data());
        ASSERT_EQ(hex(r.codes), hex(want.codes)) << shift;
        k.decode_record(f, r.codes.data(), r.scales.data(), 96, out.data());
        std::vector<float> values(96);
        reference_kernels<float>().decode_record(f, want.codes.data(), want.scales.data(), 96, values.data());
        ASSERT_EQ(first_difference(out.data(), values.data(), 96), -1);
        if (f == RecordFormat::kRaw) {
          ASSERT_EQ(first_difference(out.data(), x.data(), 96), -1);
        }
      }
    });
  }
}

// Every code under every scale byte decodes to the scalar value, bits included.
TEST(Records, EveryCodeUnderEveryScale) {
  for (RecordFormat f : kQuantised) {
    Guarded<uint8_t> codes(256), scales(32);
    for (int64_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
    const int64_t n = f == RecordFormat::kFp8_32 ? 256 : 512;
    std::vector<float> want(static_cast<size_t>(n)), got(want);
    for (int s = 0; s < 256; ++s) {
      for (uint8_t& v : scales) v = static_cast<uint8_t>(s);
      reference_kernels<float>().decode_record(f, codes.data(), scales.data(), n, want.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        k.decode_record(f, codes.data(), scales.data(), n, got.data());
        ASSERT_EQ(first_difference(got.data(), want.data(), n), -1) << "scale " << s;
      });
    }
  }
}

// What the caches hold is the grid itself: encoding a decoded record changes no value.
TEST(Records, DecodedRecordsAreFixedPoints) {
  Random random(34);
  for (RecordFormat f : {RecordFormat::kFp8_32, RecordFormat::kFp4_32}) {
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      Record r(f, 512);
      std::vector<float> once(512), twice(512);
      const auto x = random.activations(512);
      k.encode_record(f, x.data(), 512, r.codes.data(), r.scales.data());
      k.decode_record(f, r.codes.data(), r.scales.data(), 512, once.data());
      k.encode_record(f, once.data(), 512, r.codes.data(), r.scales.data());
      k.decode_record(f, r.codes.data(), r.scales.data(), 512, twice.data());
      for (size_t i = 0; i < 512; ++i) ASSERT_EQ(once[i], twice[i]);
      for (float v : once) ASSERT_TRUE(is_bf16(v));
    });
  }
}

}  // namespace
}  // namespace deepinfer
