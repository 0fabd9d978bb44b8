// Systematic Reed-Solomon over GF(2^8) of equal parts: k of data, m of parity, any k of them give the data
// back. Cauchy matrix, so that every choice of k rows can be inverted. Source: serving specification 7.6.
// Threads: an object is immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace deepinfer::store {

class Erasure {
 public:
  // 1 <= k, 0 <= m, k + m <= 255.
  static Result<Erasure> make(int k, int m);
  int k() const { return k_; }
  int m() const { return m_; }
  // Bytes of one part of an object: a multiple of 64.
  int64_t part_bytes(int64_t object_bytes) const;
  // All k + m parts of an object.
  std::vector<std::vector<uint8_t>> split(std::span<const uint8_t> object) const;
  // Part `want` from any k parts; indices ascending, one per part. REQUIRES k parts of one size.
  std::vector<uint8_t> rebuild(const std::vector<int>& indices, const std::vector<const uint8_t*>& parts,
                               int64_t bytes, int want) const;
  // The object from any k parts, into `object`.
  void join(const std::vector<int>& indices, const std::vector<const uint8_t*>& parts, int64_t bytes,
            std::span<uint8_t> object) const;

 private:
  int k_ = 0, m_ = 0;
  std::vector<uint8_t> matrix_;  // [k + m, k]
};

}  // namespace deepinfer::store
