// Rows of activations in the form the kernels read for a weight format (kernels.h: prepare), or the values
// themselves where there is no such form. Made once, read by every product that takes the same input. Private
// to the engine. Threads: put() and product() may run on several threads at once; put() on different rows or
// ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kernels/kernels.h"

namespace deepinfer {

// Formats that read the same form of x.
inline WeightFormat form_of(WeightFormat f) {
  return f == WeightFormat::kFp8Tile32 || f == WeightFormat::kFp8Row32 ? WeightFormat::kBF16 : f;
}

template <typename A>
class PreparedRows {
 public:
  // Room for `rows` rows of `cols` values; what was there before is lost. Grows only.
  void start(const Kernels<A>& k, WeightFormat format, int64_t cols, int64_t rows) {
    k_ = &k;
    form_ = form_of(format);
    cols_ = cols;
    stride_ = k.prepared_bytes(form_, cols);
    plain_ = stride_ == 0;
    if (plain_) stride_ = cols * static_cast<int64_t>(sizeof(A));
    if (static_cast<int64_t>(data_.size()) < rows * stride_)
      data_.resize(static_cast<size_t>(rows * stride_));
  }
  // Columns [col, col + n) of a row; multiples of 32 unless that is the whole row. False where product()
  // would not give the bits of Kernels::linear on x (never for an activation rounded to bf16).
  bool put(int64_t row, const A* x, int64_t col, int64_t n) {
    uint8_t* to = data_.data() + row * stride_;
    if (!plain_) return k_->prepare(form_, cols_, x, col, n, to);
    std::copy(x, x + n, reinterpret_cast<A*>(to) + col);
    return true;
  }
  // Kernels::linear on the rows from `first` on.
  void product(const MatrixView& w, int64_t first, const int32_t* rows, int64_t T, int64_t row0, int64_t row1,
               A* y, int64_t ldy, Out out) const {
    DI_CHECK(form_of(w.format) == form_ && w.cols == cols_, "rows prepared for another matrix");
    const uint8_t* x = data_.data() + first * stride_;
    if (plain_)
      k_->linear(w, reinterpret_cast<const A*>(x), cols_, rows, T, row0, row1, y, ldy, out);
    else
      k_->linear_prepared(w, x, stride_, rows, T, row0, row1, y, ldy, out);
  }

 private:
  const Kernels<A>* k_ = nullptr;
  WeightFormat form_ = WeightFormat::kF32;
  int64_t cols_ = 0, stride_ = 0;
  bool plain_ = true;
  std::vector<uint8_t> data_;
};

}  // namespace deepinfer
