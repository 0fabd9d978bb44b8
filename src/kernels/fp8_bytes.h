// The values of 8-bit floating point codes as bf16, in the form that byte permutes look up. Private to the
// kernels. Source: model specification 8.1.
#pragma once

#include <cstdint>

namespace deepinfer::bf16 {

// E4M3 magnitudes as bf16, times 1 and times 2, bytes apart: the low and the high bytes of 128 codes each.
struct Fp8Bytes {
  alignas(64) uint8_t low[2][128], high[2][128];
};
constexpr Fp8Bytes make_fp8_bytes() {
  Fp8Bytes t{};
  for (int twice = 0; twice < 2; ++twice) {
    for (int c = 0; c < 128; ++c) {
      int exponent = c >> 3, mantissa = c & 7, bits = 0;
      if (c == 127) {
        bits = 0x7fc0;
      } else if (c > 0) {
        if (exponent == 0) {
          exponent = 1;
          while (mantissa < 8) mantissa *= 2, --exponent;
          mantissa -= 8;
        }
        bits = (exponent + 120 + twice) << 7 | mantissa << 4;
      }
      t.low[twice][c] = static_cast<uint8_t>(bits & 255);
      t.high[twice][c] = static_cast<uint8_t>(bits >> 8);
    }
  }
  return t;
}
inline constexpr Fp8Bytes kFp8Bytes = make_fp8_bytes();

}  // namespace deepinfer::bf16
