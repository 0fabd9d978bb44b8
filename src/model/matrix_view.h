// A weight matrix as it lies in memory: format, shape, pointers. The word that loader, kernels and engine
// share; owns nothing.
// Source: model specification 8.1.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

enum class WeightFormat {
  kF64,  // exact synthetic weights of the golden runs
  kF32,
  kBF16,
  kFp8Tile32,  // E4M3 codes [rows, cols], E8M0 scales [ceil(rows/32), ceil(cols/32)]
  kFp8Row32,   // E4M3 codes [rows, cols], E8M0 scales [rows, cols/32] (Engram tables)
  kMxfp4,      // packed E2M1 [rows, cols/2], low nibble = even column, E8M0 scales [rows, cols/32]
};

// [rows, cols] = [out, in]; y = x W^T.
struct MatrixView {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  const uint8_t* scales = nullptr;
  // VENDOR: the reference quantises the input of every FP8 and FP4 product except wo_a's (model
  // specification 3.6, 8.5). Only the simulation of its rounding points looks at this.
  bool plain_input = false;
  bool empty() const { return data == nullptr; }
};

// Bytes of `rows` rows, from the first: of the codes, and of the scales (rows of whole tiles) where the
// format has them.
inline int64_t code_bytes(const MatrixView& m, int64_t rows) {
  switch (m.format) {
    case WeightFormat::kF64:
      return rows * m.cols * 8;
    case WeightFormat::kF32:
      return rows * m.cols * 4;
    case WeightFormat::kBF16:
      return rows * m.cols * 2;
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp8Row32:
      return rows * m.cols;
    case WeightFormat::kMxfp4:
      return rows * m.cols / 2;
  }
  return 0;
}
inline int64_t scale_bytes(const MatrixView& m, int64_t rows) {
  switch (m.format) {
    case WeightFormat::kFp8Tile32:
      return (rows + 31) / 32 * ((m.cols + 31) / 32);
    case WeightFormat::kFp8Row32:
    case WeightFormat::kMxfp4:
      return rows * (m.cols / 32);
    default:
      return 0;
  }
}
inline int64_t matrix_bytes(const MatrixView& m, int64_t rows) {
  return code_bytes(m, rows) + scale_bytes(m, rows);
}

// A small tensor (norm weight, bias, sink, scale) in both precisions: f64 for math mode, f32 for native mode.
struct SmallTensor {
  std::vector<float> f32;
  std::vector<double> f64;
  bool empty() const { return f64.empty(); }
  template <typename A>
  const A* data() const {
    if constexpr (sizeof(A) == 8)
      return f64.data();
    else
      return f32.data();
  }
};

}  // namespace deepinfer
