// Encoders. The rounding of single values is written without branches, so that compilers make vector code of
// the inner loops; a test holds every result against the definitions in base/numeric.h.
#include "checkpoint/synth_encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/numeric.h"

namespace deepinfer {
namespace {

constexpr int64_t kTile = 32;

// E4M3 of |y| <= 448, ties to even.
inline uint8_t e4m3_code(float y) {
  const uint32_t u = std::bit_cast<uint32_t>(y), magnitude = u & 0x7fffffffu;
  // Below 2^-6 the grid is 2^-9 wide: adding 2^14, whose own grid is that wide, rounds to it.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0f) - std::bit_cast<uint32_t>(16384.0f);
  // Above, keep three mantissa bits and move the exponent's bias from 127 to 7.
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  return static_cast<uint8_t>((u >> 24 & 0x80u) | (magnitude < 0x3c800000u ? small : normal));
}

// E2M1 of |y| <= 6, ties to the even code: each boundary passed adds one.
inline uint8_t e2m1_code(float y) {
  const float a = std::fabs(y);
  const int code =
      (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>((std::bit_cast<uint32_t>(y) >> 28 & 8u) | static_cast<uint32_t>(code));
}

void fill_values(const SyntheticStream& stream, int64_t first, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(stream.value(first + i));
}

float amax_of(const float* x, int64_t n) {
  float m = 0.0f;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

float power_of_two(int k) {
  return std::ldexp(1.0f, k);
}

void encode_plain(const SyntheticStream& stream, DType dtype, int64_t first, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(stream.value(first + i));
    if (dtype == DType::kBF16) {
      const uint16_t b = f32_to_bf16(v);
      std::memcpy(out + 2 * i, &b, 2);
    } else {
      std::memcpy(out + 4 * i, &v, 4);
    }
  }
}

// Dense FP8: one scale per 32 x 32 tile, cut at the right and lower edge.
void encode_tiles(const SyntheticStream& stream, int64_t cols, int64_t row0, int64_t row1, uint8_t* weight,
                  uint8_t* scale) {
  float tile[kTile * kTile];
  for (int64_t r = row0; r < row1; r += kTile) {
    const int64_t height = std::min(kTile, row1 - r);
    for (int64_t c = 0; c < cols; c += kTile) {
      const int64_t width = std::min(kTile, cols - c);
      for (int64_t y = 0; y < height; ++y) fill_values(stream, (r + y) * cols + c, width, tile + y * width);
      const int k = weight_scale_exponent(amax_of(tile, height * width), 448.0f);
      *scale++ = static_cast<uint8_t>(k + 127);
      const float inverse = power_of_two(-k);
      for (int64_t y = 0; y < height; ++y) {
        uint8_t* to = weight + (r - row0 + y) * cols + c;
        for (int64_t x = 0; x < width; ++x)
          to[x] = e4m3_code(std::clamp(tile[y * width + x] * inverse, -448.0f, 448.0f));
      }
    }
  }
}

// Engram rows: one scale per 32 columns of a row. MXFP4: the same with E2M1, two columns per byte, even
// column in the low nibble.
void encode_row_blocks(const SyntheticStream& stream, bool fp4, int64_t cols, int64_t row0, int64_t row1,
                       uint8_t* weight, uint8_t* scale) {
  float block[kTile];
  uint8_t codes[kTile];
  const float largest = fp4 ? 6.0f : 448.0f;
  for (int64_t i = row0 * cols; i < row1 * cols; i += kTile) {
    fill_values(stream, i, kTile, block);
    const int k = weight_scale_exponent(amax_of(block, kTile), largest);
    *scale++ = static_cast<uint8_t>(k + 127);
    const float inverse = power_of_two(-k);
    for (int64_t x = 0; x < kTile; ++x) {
      const float y = std::clamp(block[x] * inverse, -largest, largest);
      codes[x] = fp4 ? e2m1_code(y) : e4m3_code(y);
    }
    if (fp4) {
      for (int64_t x = 0; x < kTile; x += 2) *weight++ = static_cast<uint8_t>(codes[x] | codes[x + 1] << 4);
    } else {
      std::memcpy(weight, codes, kTile);
      weight += kTile;
    }
  }
}

}  // namespace

int weight_scale_exponent(float amax, float largest) {
  if (amax == 0.0f) return largest == 6.0f ? -126 : -22;
  const float quotient =
      std::max(amax / largest, 0x1p-126f);  // below: a scale byte of 0, which kernels need not handle
  return ceil_log2(quotient);
}

void encode_rows(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1,
                 uint8_t* weight, uint8_t* scale) {
  const int64_t cols = logical_columns(spec);
  DI_DCHECK(row0 % kTile == 0, "bands start at a tile");
  switch (spec.dtype) {
    case DType::kBF16:
    case DType::kF32:
      encode_plain(stream, spec.dtype, row0 * cols, (row1 - row0) * cols, weight);
      break;
    case DType::kF8E4M3:
      if (spec.role == Role::kEngramTable) {
        encode_row_blocks(stream, false, cols, row0, row1, weight, scale);
      } else {
        encode_tiles(stream, cols, row0, row1, weight, scale);
      }
      break;
    case DType::kI8:
      encode_row_blocks(stream, true, cols, row0, row1, weight, scale);
      break;
    case DType::kF8E8M0:
      DI_CHECK(false, "scales are written with their weights");
      break;
  }
}

}  // namespace deepinfer
