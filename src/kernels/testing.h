// Shared by the tests of this room: arrays that end at an unreadable page, random inputs, random matrices of
// every format, and the walk over the instruction levels of this machine. Not part of the library.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "kernels/kernels.h"

namespace deepinfer::testing_kernels {

// n values followed directly by a page that may not be touched: reading or writing one element too many ends
// the test program. `shift` leaves that many elements between the data and the page, to move the start to
// another alignment.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t n, int64_t shift = 0) : n_(n) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = static_cast<size_t>(n + shift) * sizeof(T);
    size_ = (bytes + page - 1) / page * page + page;
    base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) std::abort();
    char* end = static_cast<char*>(base_) + size_ - page;
    if (mprotect(end, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(end - bytes);
  }
  explicit Guarded(const std::vector<T>& v, int64_t shift = 0)
      : Guarded(static_cast<int64_t>(v.size()), shift) {
    std::copy(v.begin(), v.end(), data_);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, size_); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return n_; }
  T* begin() { return data_; }
  T* end() { return data_ + n_; }
  std::vector<T> vector() const { return std::vector<T>(data_, data_ + n_); }

 private:
  int64_t n_;
  size_t size_ = 0;
  void* base_ = nullptr;
  T* data_ = nullptr;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double normal() { return normal_(engine_); }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  // Activations as the engine holds them: bf16 values in fp32.
  std::vector<float> activations(int64_t n, double scale = 1.0) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = round_bf16(static_cast<float>(scale * normal()));
    return v;
  }
  std::vector<float> floats(int64_t n, double scale = 1.0) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = static_cast<float>(scale * normal());
    return v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_{0.0, 1.0};
};

inline constexpr WeightFormat kFormats[] = {WeightFormat::kF64,      WeightFormat::kF32,
                                            WeightFormat::kBF16,     WeightFormat::kFp8Tile32,
                                            WeightFormat::kFp8Row32, WeightFormat::kMxfp4};
inline const char* format_name(WeightFormat f) {
  constexpr const char* kNames[] = {"F64", "F32", "BF16", "FP8 tile", "FP8 row", "MXFP4"};
  return kNames[static_cast<int>(f)];
}
// Formats with scales per 32 columns of a row hold whole blocks only.
inline bool whole_blocks(WeightFormat f) {
  return f == WeightFormat::kFp8Row32 || f == WeightFormat::kMxfp4;
}

// A matrix that owns its bytes. Codes are uniform over all finite codes; scales around 2^-7.
struct Matrix {
  std::unique_ptr<Guarded<uint8_t>> data, scales;
  MatrixView view;

  Matrix(WeightFormat f, int64_t rows, int64_t cols, Random& random, int64_t shift = 0) {
    const int64_t bits = f == WeightFormat::kF64     ? 64
                         : f == WeightFormat::kF32   ? 32
                         : f == WeightFormat::kBF16  ? 16
                         : f == WeightFormat::kMxfp4 ? 4
                                                     : 8;
    const int64_t unit = std::max<int64_t>(1, bits / 8);
    data = std::make_unique<Guarded<uint8_t>>(rows * cols * bits / 8, shift * unit);
    const int64_t blocks = (cols + 31) / 32;
    const int64_t scale_rows = f == WeightFormat::kFp8Tile32 ? (rows + 31) / 32 : whole_blocks(f) ? rows : 0;
    scales = std::make_unique<Guarded<uint8_t>>(scale_rows * blocks, shift);
    for (uint8_t& s : *scales) s = static_cast<uint8_t>(116 + random.below(8));
    for (int64_t i = 0; i < rows * cols; ++i) {
      const double v = random.normal() * 0.1;
      if (f == WeightFormat::kF64) put(i, v);
      if (f == WeightFormat::kF32) put(i, static_cast<float>(v));
      if (f == WeightFormat::kBF16) put(i, f32_to_bf16(static_cast<float>(v)));
    }
    if (bits <= 8) {
      for (uint8_t& c : *data) c = static_cast<uint8_t>(random.below(256));
      if (bits == 8)
        for (uint8_t& c : *data) c = (c & 0x7f) == 0x7f ? uint8_t{0x00} : c;
    }
    view = MatrixView{f, rows, cols, data->data(), scale_rows ? scales->data() : nullptr};
  }
  template <typename T>
  void put(int64_t i, T v) {
    std::memcpy(data->data() + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
};

inline uint32_t bits_of(float f) {
  return std::bit_cast<uint32_t>(f);
}

// Index of the first element whose bits differ, or -1. NaNs are equal to each other.
inline int64_t first_difference(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (bits_of(a[i]) != bits_of(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) return i;
  return -1;
}

inline bool is_bf16(float f) {
  return std::isnan(f) || (bits_of(f) & 0xffffu) == 0;
}

// Runs a test body at every instruction level of this machine and leaves the best one chosen.
template <typename F>
void at_every_level(F body) {
  for (const std::string& level : instruction_levels()) {
    ASSERT_TRUE(set_instruction_level(level));
    SCOPED_TRACE(level);
    body(kernels<float>(), level);
  }
  ASSERT_TRUE(set_instruction_level(instruction_levels().front()));
}

// Whether a level runs products of these weights on its bf16 instruction, for bf16 values of x.
inline bool multiplies_bf16(const std::string& level, WeightFormat f, int64_t cols) {
  return level == "AVX3_ZEN4" && cols % 32 == 0 &&
         (f == WeightFormat::kBF16 || f == WeightFormat::kFp8Tile32 || f == WeightFormat::kFp8Row32);
}

// Whether a level runs attention of this width on its bf16 instruction, for bf16 queries and rows.
inline bool attends_bf16(const std::string& level, int64_t D) {
  return level == "AVX3_ZEN4" && D % 32 == 0;
}

// Levels that fuse a multiply with an add share one arithmetic, those that cannot share another.
inline bool fuses(const std::string& level) {
  return level.rfind("AVX", 0) == 0;
}

}  // namespace deepinfer::testing_kernels
