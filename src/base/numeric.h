// Scalar codecs of the number formats of the checkpoint and of the caches: bf16, E4M3, E8M0, E2M1, and the
// three block quantisers. These are the definitions; kernels have vector versions that a test holds against
// them. Source: model specification 8.1 and 8.2; OCP microscaling formats. All conversions round to nearest,
// ties to even. Threads: pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace deepinfer {

inline float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(uint32_t{b} << 16);
}

// NaN stays NaN (quiet); overflow past the largest bf16 becomes infinity, as IEEE rounding does.
inline uint16_t f32_to_bf16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  u += 0x7fffu + ((u >> 16) & 1u);
  return static_cast<uint16_t>(u >> 16);
}

inline float round_bf16(float f) {
  return bf16_to_f32(f32_to_bf16(f));
}

// E4M3 in the "fn" variant: bias 7, largest 448 (0x7e), NaN 0x7f and 0xff, no infinities, smallest subnormal
// 2^-9.
extern const std::array<float, 256> kE4m3;
inline float e4m3_to_f32(uint8_t code) {
  return kE4m3[code];
}
// REQUIRES a finite value; values beyond +-448 saturate (callers clamp first, so this is only a guard).
uint8_t f32_to_e4m3(float f);

// E8M0: byte b is 2^(b-127); 255 is NaN.
inline float e8m0_to_f32(uint8_t code) {
  // 2^-127 is the one subnormal of the scale; its bit pattern has the top fraction bit set.
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(uint32_t{code} << 23);
}

// E2M1 magnitudes by the low three bits; bit 3 is the sign.
inline constexpr std::array<float, 16> kE2m1 = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                                -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
// Ties go to the even code: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4. |f| > 6
// saturates.
uint8_t f32_to_e2m1(float f);

// Smallest power of two >= v as an exponent k (scale = 2^k), from the bits of v. REQUIRES v > 0 and normal.
inline int ceil_log2(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  return static_cast<int>((u >> 23) & 0xffu) - 127 + ((u & 0x7fffffu) != 0 ? 1 : 0);
}

// Block quantisers along the last dimension. `x` is one block; codes and scale are written; all finite input
// is legal. fp8_32: 32 values -> 32 E4M3 codes, one E8M0 scale.  fp4_32: 32 values -> 16 packed bytes (even
// index in the low nibble), one E8M0 scale.  fp4_16: 16 values -> 8 packed bytes, one E4M3 scale.
void quant_fp8_32(std::span<const float, 32> x, uint8_t* codes32, uint8_t* scale);
void quant_fp4_32(std::span<const float, 32> x, uint8_t* packed16, uint8_t* scale);
void quant_fp4_16(std::span<const float, 16> x, uint8_t* packed8, uint8_t* scale);
void dequant_fp8_32(const uint8_t* codes32, uint8_t scale, float* out32);
void dequant_fp4_32(const uint8_t* packed16, uint8_t scale, float* out32);
void dequant_fp4_16(const uint8_t* packed8, uint8_t scale, float* out16);

// FNV-1a, 64 bit: the seed of synthetic tensors (model specification 12.7).
inline uint64_t fnv1a64(const char* data, size_t n) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < n; ++i) h = (h ^ static_cast<uint8_t>(data[i])) * 0x100000001b3ull;
  return h;
}

// Element i of the synthetic stream with seed h: uniform in [-1, 1) on a grid of 2^-23 (model
// specification 12.7).
inline double synthetic_uniform(uint64_t h, uint64_t i) {
  uint64_t z = h + (i + 1) * 0x9E3779B97F4A7C15ull;
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ull;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBull;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) / 16777216.0 * 2.0 - 1.0;
}

}  // namespace deepinfer
