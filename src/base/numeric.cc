// Tables and rounding of the small floating-point formats.
#include "base/numeric.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deepinfer {
namespace {

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> t{};
  for (int c = 0; c < 256; ++c) {
    int exponent = (c >> 3) & 15, mantissa = c & 7;
    float v;
    if ((c & 0x7f) == 0x7f) {
      v = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      v = std::ldexp(static_cast<float>(mantissa), -9);
    } else {
      v = std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    }
    t[static_cast<size_t>(c)] = (c & 0x80) ? -v : v;
  }
  return t;
}

float block_amax(const float* x, size_t n) {
  float m = 0.0f;
  for (size_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

void pack_e2m1(const float* x, size_t n, float scale, uint8_t* packed) {
  for (size_t i = 0; i < n; i += 2) {
    uint8_t lo = f32_to_e2m1(x[i] / scale), hi = f32_to_e2m1(x[i + 1] / scale);
    packed[i / 2] = static_cast<uint8_t>(lo | (hi << 4));
  }
}

}  // namespace

const std::array<float, 256> kE4m3 = make_e4m3_table();

uint8_t f32_to_e4m3(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  const float a = std::min(std::fabs(f), 448.0f);
  // Below 2^-6 the grid is 2^-9: adding 2^14 leaves those steps, rounded to even, in the low bits. Eight
  // steps are the first normal code.
  if (a < 0.015625f) return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(a + 16384.0f) & 15u));
  const uint32_t u = std::bit_cast<uint32_t>(a);
  const uint32_t rounded = (u + 0x7ffffu + ((u >> 20) & 1u)) >> 20;  // exponent and three mantissa bits
  return static_cast<uint8_t>(sign | (rounded - (120u << 3)));
}

uint8_t f32_to_e2m1(float f) {
  uint8_t sign = std::signbit(f) ? 8 : 0;
  float a = std::fabs(f);
  uint8_t code;
  if (a <= 0.25f)
    code = 0;
  else if (a < 0.75f)
    code = 1;
  else if (a <= 1.25f)
    code = 2;
  else if (a < 1.75f)
    code = 3;
  else if (a <= 2.5f)
    code = 4;
  else if (a < 3.5f)
    code = 5;
  else if (a <= 5.0f)
    code = 6;
  else
    code = 7;
  return sign | code;
}

void quant_fp8_32(std::span<const float, 32> x, uint8_t* codes32, uint8_t* scale) {
  float amax = std::max(block_amax(x.data(), 32), 1e-4f);
  int k = ceil_log2(amax * (1.0f / 448.0f));
  float s = std::ldexp(1.0f, k);
  *scale = static_cast<uint8_t>(k + 127);
  for (size_t i = 0; i < 32; ++i) codes32[i] = f32_to_e4m3(std::clamp(x[i] / s, -448.0f, 448.0f));
}

void quant_fp4_32(std::span<const float, 32> x, uint8_t* packed16, uint8_t* scale) {
  // The floor keeps the scale a normal number, so that it has an E8M0 code (byte 1 for an all-zero block).
  float amax = std::max(block_amax(x.data(), 32), std::ldexp(6.0f, -126));
  int k = ceil_log2(amax * (1.0f / 6.0f));
  *scale = static_cast<uint8_t>(k + 127);
  pack_e2m1(x.data(), 32, std::ldexp(1.0f, k), packed16);
}

void quant_fp4_16(std::span<const float, 16> x, uint8_t* packed8, uint8_t* scale) {
  float amax = std::max(block_amax(x.data(), 16), std::ldexp(6.0f, -9));
  *scale = f32_to_e4m3(amax / 6.0f);
  pack_e2m1(x.data(), 16, e4m3_to_f32(*scale), packed8);
}

void dequant_fp8_32(const uint8_t* codes32, uint8_t scale, float* out32) {
  float s = e8m0_to_f32(scale);
  for (size_t i = 0; i < 32; ++i) out32[i] = e4m3_to_f32(codes32[i]) * s;
}

void dequant_fp4_32(const uint8_t* packed16, uint8_t scale, float* out32) {
  float s = e8m0_to_f32(scale);
  for (size_t i = 0; i < 16; ++i) {
    out32[2 * i] = kE2m1[packed16[i] & 15] * s;
    out32[2 * i + 1] = kE2m1[packed16[i] >> 4] * s;
  }
}

void dequant_fp4_16(const uint8_t* packed8, uint8_t scale, float* out16) {
  float s = e4m3_to_f32(scale);
  for (size_t i = 0; i < 8; ++i) {
    out16[2 * i] = kE2m1[packed8[i] & 15] * s;
    out16[2 * i + 1] = kE2m1[packed8[i] >> 4] * s;
  }
}

}  // namespace deepinfer
