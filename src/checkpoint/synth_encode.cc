// Encoders. The loops have no branches and work on 32 values at a time, so that compilers make vector code of
// them; all of it is inlined into one entry per instruction set. The arithmetic is the same everywhere (no
// fused operations, no reordered sums), and so are the bytes. A test holds them against the definitions in
// base/numeric.h.
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

// E4M3 of |y| <= 448 (or the next float: a quotient amax / 448 may be rounded down to the scale), ties to
// even.
[[gnu::always_inline]] inline uint8_t e4m3_code(float y) {
  const uint32_t u = std::bit_cast<uint32_t>(y), magnitude = u & 0x7fffffffu;
  // Below 2^-6 the grid is 2^-9 wide: adding 2^14, whose own grid is that wide, rounds to it.
  const uint32_t small =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0f) - std::bit_cast<uint32_t>(16384.0f);
  // Above, keep three mantissa bits and move the exponent's bias from 127 to 7.
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  return static_cast<uint8_t>((u >> 24 & 0x80u) | (magnitude < 0x3c800000u ? small : normal));
}

// E2M1 of |y| <= 6, ties to the even code: each boundary passed adds one.
[[gnu::always_inline]] inline uint8_t e2m1_code(float y) {
  const uint32_t u = std::bit_cast<uint32_t>(y);
  const auto a =
      static_cast<int32_t>(u & 0x7fffffffu);  // the bits of positive floats are ordered as the floats are
  constexpr auto bits = [](float f) { return std::bit_cast<int32_t>(f); };
  const int code = (a > bits(0.25f)) + (a >= bits(0.75f)) + (a > bits(1.25f)) + (a >= bits(1.75f)) +
                   (a > bits(2.5f)) + (a >= bits(3.5f)) + (a > bits(5.0f));
  return static_cast<uint8_t>((u >> 28 & 8u) | static_cast<uint32_t>(code));
}

// The stream's u_i as whole numbers of 2^-23 (synthetic_uniform of base/numeric.h, whose result is exactly
// that).
[[gnu::always_inline]] inline void draw(uint64_t hash, int64_t first, int64_t n, int32_t* out) {
  const uint64_t start = hash + (static_cast<uint64_t>(first) + 1) * 0x9E3779B97F4A7C15ull;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = start + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    out[i] = static_cast<int32_t>((z ^ (z >> 31)) >> 40) - (1 << 23);
  }
}

// Scaling by 2^-23 before or after the product gives the same double, so these are the values of
// SyntheticStream.
[[gnu::always_inline]] inline float value_of(double step, int32_t u) {
  return static_cast<float>(step * u);
}

[[gnu::always_inline]] inline int32_t amax_of(const int32_t* u, int64_t n) {
  int32_t m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, u[i] < 0 ? -u[i] : u[i]);
  return m;
}

[[gnu::always_inline]] inline void encode_plain(const SyntheticStream& stream, DType dtype, int64_t first,
                                                int64_t n, uint8_t* out) {
  int32_t u[kTile];
  float v[kTile];
  const double step = stream.factor * 0x1p-23;
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t part = std::min(kTile, n - i);
    draw(stream.hash, first + i, part, u);
    for (int64_t k = 0; k < part; ++k) v[k] = static_cast<float>(stream.offset + step * u[k]);
    if (dtype == DType::kF32) {
      std::memcpy(out + 4 * i, v, static_cast<size_t>(part) * 4);
    } else {
      uint16_t b[kTile];
      for (int64_t k = 0; k < part; ++k) b[k] = f32_to_bf16(v[k]);
      std::memcpy(out + 2 * i, b, static_cast<size_t>(part) * 2);
    }
  }
}

// Dense FP8: one scale per 32 x 32 tile, cut at the right and lower edge.
[[gnu::always_inline]] inline void encode_tiles(const SyntheticStream& stream, int64_t cols, int64_t row0,
                                                int64_t row1, uint8_t* weight, uint8_t* scale) {
  int32_t tile[kTile * kTile];
  const double step = stream.factor * 0x1p-23;
  for (int64_t r = row0; r < row1; r += kTile) {
    const int64_t height = std::min(kTile, row1 - r);
    for (int64_t c = 0; c < cols; c += kTile) {
      const int64_t width = std::min(kTile, cols - c);
      for (int64_t y = 0; y < height; ++y) draw(stream.hash, (r + y) * cols + c, width, tile + y * width);
      const int k = weight_scale_exponent(value_of(step, amax_of(tile, height * width)), 448.0f);
      *scale++ = static_cast<uint8_t>(k + 127);
      const float inverse = std::bit_cast<float>(static_cast<uint32_t>(127 - k) << 23);  // 2^-k
      for (int64_t y = 0; y < height; ++y) {
        uint8_t* to = weight + (r - row0 + y) * cols + c;
        for (int64_t x = 0; x < width; ++x) {
          to[x] = e4m3_code(value_of(step, tile[y * width + x]) * inverse);
        }
      }
    }
  }
}

// Engram rows: one scale per 32 columns of a row. MXFP4: the same with E2M1, two columns per byte, even
// column in the low nibble.
template <bool fp4>
[[gnu::always_inline]] inline void encode_row_blocks(const SyntheticStream& stream, int64_t cols,
                                                     int64_t row0, int64_t row1, uint8_t* weight,
                                                     uint8_t* scale) {
  constexpr float kLargest = fp4 ? 6.0f : 448.0f;
  int32_t u[kTile];
  uint8_t codes[kTile];
  const double step = stream.factor * 0x1p-23;
  for (int64_t i = row0 * cols; i < row1 * cols; i += kTile) {
    draw(stream.hash, i, kTile, u);
    const int k = weight_scale_exponent(value_of(step, amax_of(u, kTile)), kLargest);
    *scale++ = static_cast<uint8_t>(k + 127);
    const float inverse = std::bit_cast<float>(static_cast<uint32_t>(127 - k) << 23);  // 2^-k
    for (int64_t x = 0; x < kTile; ++x) {
      const float y = value_of(step, u[x]) * inverse;
      codes[x] = fp4 ? e2m1_code(y) : e4m3_code(y);
    }
    if constexpr (fp4) {
      for (int64_t x = 0; x < kTile / 2; ++x)
        weight[x] = static_cast<uint8_t>(codes[2 * x] | codes[2 * x + 1] << 4);
      weight += kTile / 2;
    } else {
      std::memcpy(weight, codes, kTile);
      weight += kTile;
    }
  }
}

[[gnu::always_inline]] inline void encode_any(const TensorSpec& spec, const SyntheticStream& stream,
                                              int64_t row0, int64_t row1, uint8_t* weight, uint8_t* scale) {
  const int64_t cols = logical_columns(spec);
  switch (spec.dtype) {
    case DType::kBF16:
      encode_plain(stream, DType::kBF16, row0 * cols, (row1 - row0) * cols, weight);
      break;
    case DType::kF32:
      encode_plain(stream, DType::kF32, row0 * cols, (row1 - row0) * cols, weight);
      break;
    case DType::kF8E4M3:
      if (spec.role == Role::kEngramTable) {
        encode_row_blocks<false>(stream, cols, row0, row1, weight, scale);
      } else {
        encode_tiles(stream, cols, row0, row1, weight, scale);
      }
      break;
    case DType::kI8:
      encode_row_blocks<true>(stream, cols, row0, row1, weight, scale);
      break;
    case DType::kF8E8M0:
      DI_CHECK(false, "scales are written with their weights");
      break;
  }
}

void encode_baseline(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1,
                     uint8_t* weight, uint8_t* scale) {
  encode_any(spec, stream, row0, row1, weight, scale);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void encode_avx2(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0,
                                         int64_t row1, uint8_t* weight, uint8_t* scale) {
  encode_any(spec, stream, row0, row1, weight, scale);
}

// AVX512DQ multiplies 64-bit integers, which is most of the work.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void encode_avx512(
    const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1, uint8_t* weight,
    uint8_t* scale) {
  encode_any(spec, stream, row0, row1, weight, scale);
}
#endif

}  // namespace

int weight_scale_exponent(float amax, float largest) {
  if (amax == 0.0f) return largest == 6.0f ? -126 : -22;
  const float quotient =
      std::max(amax / largest, 0x1p-126f);  // below: a scale byte of 0, which kernels need not handle
  return ceil_log2(quotient);
}

std::vector<EncodeLevel> encode_levels() {
  std::vector<EncodeLevel> levels = {{"baseline", encode_baseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) levels.push_back({"avx2", encode_avx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    levels.push_back({"avx512", encode_avx512});
  }
#endif
  return levels;
}

void encode_rows(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1,
                 uint8_t* weight, uint8_t* scale) {
  static const auto best = encode_levels().back().encode;  // a fact of the machine, found once
  DI_DCHECK(row0 % kTile == 0, "bands start at a tile");
  best(spec, stream, row0, row1, weight, scale);
}

}  // namespace deepinfer
