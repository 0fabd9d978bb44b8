// Counts of positive numbers in buckets 1/64 of an octave wide: percentiles within 1.1 %, sums of histograms
// are exact, and nothing depends on the order of arrival. Threads: one owner.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace deepinfer::sim {

class Histogram {
 public:
  static constexpr int kParts = 64, kOctaves = 50;
  void add(int64_t value) {
    ++counts_[index(value)];
    ++count_;
    sum_ += static_cast<double>(value);
    if (value > most_) most_ = value;
  }
  void merge(const Histogram& o) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += o.counts_[i];
    count_ += o.count_;
    sum_ += o.sum_;
    if (o.most_ > most_) most_ = o.most_;
  }
  // What a checkpoint keeps: (bucket, count) of the buckets that are not empty, and the exact sums.
  std::vector<std::pair<int64_t, int64_t>> buckets() const {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] != 0) out.emplace_back(static_cast<int64_t>(i), counts_[i]);
    }
    return out;
  }
  double sum() const { return sum_; }
  // False if a bucket or a count is none; the histogram is then unusable.
  bool restore(const std::vector<std::pair<int64_t, int64_t>>& buckets, double sum, int64_t most) {
    *this = Histogram();
    for (const auto& [i, n] : buckets) {
      if (i < 0 || i >= static_cast<int64_t>(kSize) || n < 0 || n > (int64_t{1} << 50)) return false;
      counts_[static_cast<size_t>(i)] += n;
      count_ += n;
    }
    sum_ = sum;
    most_ = most;
    return true;
  }
  int64_t count() const { return count_; }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  int64_t most() const { return most_; }
  // The middle of the bucket in which the q-th of the values lies, 0 <= q <= 1; 0 without values.
  double quantile(double q) const {
    if (count_ == 0) return 0;
    int64_t rank = static_cast<int64_t>(q * static_cast<double>(count_ - 1)), seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen > rank) return middle(i);
    }
    return static_cast<double>(most_);
  }

 private:
  static size_t index(int64_t value) {
    uint64_t v = value < 1 ? 1 : static_cast<uint64_t>(value);
    if (v < kParts) return static_cast<size_t>(v);
    const int octave = 63 - std::countl_zero(v);  // >= 6
    const size_t part = static_cast<size_t>((v >> (octave - 6)) & (kParts - 1));
    const size_t i = static_cast<size_t>(octave - 5) * kParts + part;
    return i < kSize ? i : kSize - 1;
  }
  static double middle(size_t i) {
    if (i < kParts) return static_cast<double>(i);
    const int octave = static_cast<int>(i / kParts) + 5;
    const double width = static_cast<double>(uint64_t{1} << (octave - 6));
    return (static_cast<double>(kParts + i % kParts) + 0.5) * width;
  }
  static constexpr size_t kSize = static_cast<size_t>(kParts) * kOctaves;
  std::array<int64_t, kSize> counts_{};
  int64_t count_ = 0, most_ = 0;
  double sum_ = 0;
};

}  // namespace deepinfer::sim
