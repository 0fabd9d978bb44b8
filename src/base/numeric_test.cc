// The number formats against bytes of the released checkpoint and the worked vectors of model
// specification 12.4.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

std::string hex(const std::vector<uint8_t>& b) {
  std::string s;
  for (uint8_t v : b) {
    const char* d = "0123456789abcdef";
    s += d[v >> 4];
    s += d[v & 15];
  }
  return s;
}

std::vector<float> ramp() {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>((i - 15.5) * 0.37);
  return x;
}

TEST(Numeric, ReleasedFp8Bytes) {
  const uint8_t bytes[8] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  const float want[8] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                         0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(e4m3_to_f32(bytes[i]) * e8m0_to_f32(0x73), want[i]);
}

TEST(Numeric, ReleasedFp4BytesLowNibbleFirst) {
  const uint8_t bytes[16] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  const float want[16] = {0,           -0.0078125f, 0,           -0.0078125f, -0.015625f, -0.03125f,
                          -0.0078125f, 0.015625f,   -0.0234375f, -0.0078125f, -0.046875f, -0.0078125f,
                          0.0078125f,  0.015625f,   -0.0078125f, -0.0078125f};
  float out[32];
  dequant_fp4_32(bytes, 0x78, out);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i], want[i]) << i;
}

TEST(Numeric, QuantiserVectors) {
  auto x = ramp();
  std::vector<uint8_t> c8(32), c4(16), c16(8);
  uint8_t s = 0;
  quant_fp8_32(std::span<const float, 32>(x), c8.data(), &s);
  EXPECT_EQ(s, 0x79);
  EXPECT_EQ(hex(c8), "fbfbfaf9f9f8f6f5f3f2f0edeae7e1d45461676a6d70727375767879797a7b7b");
  quant_fp4_32(std::span<const float, 32>(x), c4.data(), &s);
  EXPECT_EQ(s, 0x7f);
  EXPECT_EQ(hex(c4), "ffeeeedecdbcab891032435465666677");
  quant_fp4_16(std::span<const float, 16>(x.data(), 16), c16.data(), &s);
  EXPECT_EQ(s, 0x37);
  EXPECT_EQ(hex(c16), "ffefeededdccab89");
  quant_fp4_16(std::span<const float, 16>(x.data() + 16, 16), c16.data(), &s);
  EXPECT_EQ(s, 0x37);
  EXPECT_EQ(hex(c16), "1032445565667677");
}

TEST(Numeric, ZeroBlocks) {
  std::vector<float> z(32, 0.0f);
  std::vector<uint8_t> c(32, 0xff);
  uint8_t s = 0;
  quant_fp8_32(std::span<const float, 32>(z), c.data(), &s);
  EXPECT_EQ(s, 105);
  for (uint8_t v : c) EXPECT_EQ(v, 0);
  quant_fp4_32(std::span<const float, 32>(z), c.data(), &s);
  EXPECT_EQ(s, 1);
  EXPECT_EQ(c[15], 0);
  quant_fp4_16(std::span<const float, 16>(z.data(), 16), c.data(), &s);
  EXPECT_EQ(s, 1);
  EXPECT_EQ(c[0], 0);
}

TEST(Numeric, E4m3Rounding) {
  EXPECT_EQ(f32_to_e4m3(464.0f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(std::ldexp(1.0f, -10)), 0x00);
  EXPECT_EQ(f32_to_e4m3(1.0625f), 0x38);
  EXPECT_EQ(f32_to_e4m3(1.1875f), 0x3a);
  for (int c = 0; c < 256; ++c) {
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(e4m3_to_f32(static_cast<uint8_t>(c))));
      continue;
    }
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<uint8_t>(c))), c);
  }
}

TEST(Numeric, E8m0IsAPowerOfTwo) {
  for (int b = 0; b < 255; ++b) EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(b)), std::ldexp(1.0f, b - 127));
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

// Every value between two neighbouring codes goes to the nearer one, a tie to the even code.
TEST(Numeric, E4m3NearestEven) {
  for (int c = 0; c < 0x7e; ++c) {
    float a = e4m3_to_f32(static_cast<uint8_t>(c)), b = e4m3_to_f32(static_cast<uint8_t>(c + 1)),
          m = (a + b) / 2;
    EXPECT_EQ(f32_to_e4m3(m), (c & 1) ? c + 1 : c);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(m, 0.0f)), c);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(m, 1000.0f)), c + 1);
    EXPECT_EQ(f32_to_e4m3(-std::nextafter(m, 1000.0f)), (c + 1) | 0x80);
  }
}

TEST(Numeric, E2m1NearestEven) {
  for (int c = 0; c < 7; ++c) {
    float m = (kE2m1[static_cast<size_t>(c)] + kE2m1[static_cast<size_t>(c + 1)]) / 2;
    EXPECT_EQ(f32_to_e2m1(m), (c & 1) ? c + 1 : c);
    EXPECT_EQ(f32_to_e2m1(std::nextafter(m, 0.0f)), c);
    EXPECT_EQ(f32_to_e2m1(std::nextafter(m, 10.0f)), c + 1);
  }
  EXPECT_EQ(f32_to_e2m1(100.0f), 7);
  EXPECT_EQ(f32_to_e2m1(-100.0f), 15);
}

TEST(Numeric, Bf16) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even stays
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, odd goes up
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
  EXPECT_TRUE(std::isinf(bf16_to_f32(f32_to_bf16(3.4e38f))));
}

TEST(Numeric, SyntheticStream) {
  uint64_t h = fnv1a64("embed.weight", 12);
  EXPECT_EQ(h, 0x9ac37bcac2dc8a00ull);
  EXPECT_NEAR(synthetic_uniform(h, 0), 0.0350399, 5e-8);
  EXPECT_NEAR(synthetic_uniform(h, 1), 0.8896987, 5e-8);
  EXPECT_NEAR(synthetic_uniform(h, 2), 0.6592633, 5e-8);
  const std::string wq = "layers.0.attn.wq_a.weight";
  uint64_t q = fnv1a64(wq.data(), wq.size());
  double k = std::sqrt(3.0 / 128.0);
  EXPECT_NEAR(synthetic_uniform(q, 0) * k, 0.0875569, 5e-8);
  EXPECT_NEAR(synthetic_uniform(q, 1) * k, 0.0442201, 5e-8);
  EXPECT_NEAR(synthetic_uniform(q, 2) * k, -0.0568434, 5e-8);
}

}  // namespace
}  // namespace deepinfer
