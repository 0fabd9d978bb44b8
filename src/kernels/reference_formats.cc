// Reading weights and cache records: the scalar definition. Source: model specification 8.1 to 8.3.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/reference.h"

namespace deepinfer {

template <typename A>
int64_t record_code_bytes(RecordFormat format, int64_t n) {
  switch (format) {
    case RecordFormat::kRaw:
      return n * static_cast<int64_t>(sizeof(A));
    case RecordFormat::kFp8_32:
      return n;
    case RecordFormat::kFp4_32:
    case RecordFormat::kFp4_16:
      return n / 2;
  }
  return 0;
}
template int64_t record_code_bytes<float>(RecordFormat, int64_t);
template int64_t record_code_bytes<double>(RecordFormat, int64_t);

int64_t record_scale_bytes(RecordFormat format, int64_t n) {
  switch (format) {
    case RecordFormat::kRaw:
      return 0;
    case RecordFormat::kFp8_32:
    case RecordFormat::kFp4_32:
      return n / 32;
    case RecordFormat::kFp4_16:
      return n / 16;
  }
  return 0;
}

namespace reference {
namespace {

template <typename S, typename T>
void convert(const void* data, int64_t first, int64_t n, T* out) {
  const S* s = static_cast<const S*>(data) + first;
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(s[i]);
}

}  // namespace

template <typename T>
void decode_columns(const MatrixView& m, int64_t row, int64_t col, int64_t n, T* out) {
  const int64_t first = row * m.cols + col;
  const int64_t blocks = (m.cols + 31) / 32;  // scales per row, or per row of tiles
  const uint8_t* bytes = static_cast<const uint8_t*>(m.data);
  switch (m.format) {
    case WeightFormat::kF64:
      return convert<double>(m.data, first, n, out);
    case WeightFormat::kF32:
      return convert<float>(m.data, first, n, out);
    case WeightFormat::kBF16: {
      const uint16_t* s = static_cast<const uint16_t*>(m.data) + first;
      for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(s[i]);
      return;
    }
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp8Row32: {
      const int64_t scale_row = m.format == WeightFormat::kFp8Tile32 ? row / 32 : row;
      const uint8_t* s = m.scales + scale_row * blocks + col / 32;
      for (int64_t b = 0; b < n; b += 32) {
        const float scale = e8m0_to_f32(s[b / 32]);
        for (int64_t i = b; i < std::min(n, b + 32); ++i) out[i] = e4m3_to_f32(bytes[first + i]) * scale;
      }
      return;
    }
    case WeightFormat::kMxfp4: {
      const uint8_t* s = m.scales + row * blocks + col / 32;
      for (int64_t b = 0; b < n; b += 32) {
        const float scale = e8m0_to_f32(s[b / 32]);
        for (int64_t i = b; i < std::min(n, b + 32); ++i) {
          const uint8_t pair = bytes[(first + i) / 2];
          out[i] = kE2m1[(i & 1) ? pair >> 4 : pair & 15] * scale;
        }
      }
      return;
    }
  }
}
template void decode_columns<float>(const MatrixView&, int64_t, int64_t, int64_t, float*);
template void decode_columns<double>(const MatrixView&, int64_t, int64_t, int64_t, double*);

template <typename A>
void decode_values(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t first, int64_t n,
                   A* out) {
  if (format == RecordFormat::kRaw) {
    std::memcpy(out, codes + first * static_cast<int64_t>(sizeof(A)), static_cast<size_t>(n) * sizeof(A));
    return;
  }
  for (int64_t b = first / 32; b < (first + n) / 32; ++b, out += 32) {
    float v[32];
    switch (format) {
      case RecordFormat::kFp8_32:
        dequant_fp8_32(codes + b * 32, scales[b], v);
        break;
      case RecordFormat::kFp4_32:
        dequant_fp4_32(codes + b * 16, scales[b], v);
        break;
      case RecordFormat::kFp4_16:
        dequant_fp4_16(codes + b * 16, scales[2 * b], v);
        dequant_fp4_16(codes + b * 16 + 8, scales[2 * b + 1], v + 16);
        break;
      case RecordFormat::kRaw:
        break;
    }
    for (int i = 0; i < 32; ++i) out[i] = v[i];
  }
}
template void decode_values<float>(RecordFormat, const uint8_t*, const uint8_t*, int64_t, int64_t, float*);
template void decode_values<double>(RecordFormat, const uint8_t*, const uint8_t*, int64_t, int64_t, double*);

}  // namespace reference
}  // namespace deepinfer
