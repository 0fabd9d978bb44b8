// The library's tables and matrix inversion; parts that are there are copied, not decoded.
#include "store/erasure.h"

#include <isa-l.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace deepinfer::store {

Result<Erasure> Erasure::make(int k, int m) {
  if (k < 1 || m < 0 || k + m > 255)
    return error(Code::kInvalidConfig, "a code of {} + {} parts is not possible: 1 to 255 parts together", k,
                 m);
  Erasure e;
  e.k_ = k;
  e.m_ = m;
  e.matrix_.resize(static_cast<size_t>((k + m) * k));
  gf_gen_cauchy1_matrix(e.matrix_.data(), k + m, k);
  return e;
}

int64_t Erasure::part_bytes(int64_t object_bytes) const {
  int64_t each = (object_bytes + k_ - 1) / k_;
  return std::max<int64_t>(64, (each + 63) / 64 * 64);
}

std::vector<std::vector<uint8_t>> Erasure::split(std::span<const uint8_t> object) const {
  size_t bytes = static_cast<size_t>(part_bytes(static_cast<int64_t>(object.size())));
  std::vector<std::vector<uint8_t>> parts(static_cast<size_t>(k_ + m_), std::vector<uint8_t>(bytes));
  std::vector<uint8_t*> at;
  for (size_t i = 0; i < parts.size(); ++i) {
    at.push_back(parts[i].data());
    size_t from = i * bytes;
    if (i < static_cast<size_t>(k_) && from < object.size())
      std::memcpy(parts[i].data(), object.data() + from, std::min(bytes, object.size() - from));
  }
  if (m_ == 0) return parts;
  std::vector<uint8_t> tables(static_cast<size_t>(32 * k_ * m_));
  ec_init_tables(k_, m_, const_cast<uint8_t*>(matrix_.data()) + k_ * k_, tables.data());
  ec_encode_data(static_cast<int>(bytes), k_, m_, tables.data(), at.data(), at.data() + k_);
  return parts;
}

std::vector<uint8_t> Erasure::rebuild(const std::vector<int>& indices,
                                      const std::vector<const uint8_t*>& parts, int64_t bytes,
                                      int want) const {
  DI_CHECK(static_cast<int>(indices.size()) == k_ && parts.size() == indices.size(), "k parts give one");
  size_t n = static_cast<size_t>(k_);
  std::vector<uint8_t> rows(n * n), inverse(n * n), row(n);
  for (size_t r = 0; r < n; ++r) std::memcpy(&rows[r * n], &matrix_[static_cast<size_t>(indices[r]) * n], n);
  int bad = gf_invert_matrix(rows.data(), inverse.data(), k_);
  DI_CHECK(bad == 0, "any k rows of a Cauchy matrix can be inverted");
  // Row `want` of the code, in terms of the parts that are there.
  for (size_t c = 0; c < n; ++c) {
    uint8_t sum = 0;
    for (size_t j = 0; j < n; ++j)
      sum =
          static_cast<uint8_t>(sum ^ gf_mul(matrix_[static_cast<size_t>(want) * n + j], inverse[j * n + c]));
    row[c] = sum;
  }
  std::vector<uint8_t> tables(static_cast<size_t>(32 * k_)), out(static_cast<size_t>(bytes));
  ec_init_tables(k_, 1, row.data(), tables.data());
  uint8_t* to = out.data();
  auto** from = const_cast<uint8_t**>(parts.data());
  ec_encode_data(static_cast<int>(bytes), k_, 1, tables.data(), from, &to);
  return out;
}

void Erasure::join(const std::vector<int>& indices, const std::vector<const uint8_t*>& parts, int64_t bytes,
                   std::span<uint8_t> object) const {
  for (int want = 0; want < k_; ++want) {
    size_t from = static_cast<size_t>(want) * static_cast<size_t>(bytes);
    if (from >= object.size()) break;
    size_t n = std::min(static_cast<size_t>(bytes), object.size() - from);
    auto it = std::find(indices.begin(), indices.end(), want);
    if (it != indices.end()) {
      std::memcpy(object.data() + from, parts[static_cast<size_t>(it - indices.begin())], n);
    } else {
      std::vector<uint8_t> part = rebuild(indices, parts, bytes, want);
      std::memcpy(object.data() + from, part.data(), n);
    }
  }
}

}  // namespace deepinfer::store
