// Factors by role, and how a seed enters the stream.
#include "checkpoint/synth_values.h"

#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

// A bijection of 64 bits with 0 -> 0. The seed is mixed before it meets the name's hash: adding a bare seed
// would only shift the stream, because element i adds multiples of a constant itself.
uint64_t mix_seed(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9ull;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

int64_t logical_rows(const TensorSpec& spec) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < spec.shape.size(); ++i) rows *= spec.shape[i];
  return rows;
}

int64_t logical_columns(const TensorSpec& spec) {
  return spec.shape.back() * (spec.dtype == DType::kI8 ? 2 : 1);
}

SyntheticStream synthetic_stream(const TensorSpec& spec, uint64_t seed) {
  SyntheticStream s;
  s.hash = fnv1a64(spec.name.data(), spec.name.size()) ^ mix_seed(seed);
  switch (spec.role) {
    case Role::kProjection:
      s.factor = std::sqrt(3.0 / static_cast<double>(logical_columns(spec)));
      break;
    case Role::kNormWeight:
    case Role::kHcScale:
      s.offset = 1.0;
      s.factor = 0.25;
      break;
    case Role::kEmbedding:
    case Role::kSink:
      s.factor = 1.0;
      break;
    case Role::kHcBase:
      s.factor = 0.5;
      break;
    case Role::kGateBias:
    case Role::kBias:
      s.factor = 0.1;
      break;
    case Role::kEngramTable:
      s.factor = std::sqrt(3.0);
      break;
    case Role::kScale:
      DI_CHECK(false, "scales follow from their weights");
      break;
  }
  return s;
}

}  // namespace deepinfer
