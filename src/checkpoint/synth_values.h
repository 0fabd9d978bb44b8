// The values of synthetic weights as a stream of numbers per tensor. Source: model specification 12.7.
// Threads: plain data.
#pragma once

#include <cstdint>

#include "base/numeric.h"
#include "model/tensor_table.h"

namespace deepinfer {

// Element i (row-major) of a tensor is offset + factor * u_i, with u_i in [-1, 1) from the tensor's own
// stream.
struct SyntheticStream {
  uint64_t hash = 0;
  double offset = 0.0, factor = 1.0;
  double value(int64_t i) const {
    return offset + factor * synthetic_uniform(hash, static_cast<uint64_t>(i));
  }
};

// Elements of a row as numbers, not as stored bytes: an I8 tensor packs two columns in a byte. Tensors of
// rank 1 are one row.
int64_t logical_rows(const TensorSpec& spec);
int64_t logical_columns(const TensorSpec& spec);

// REQUIRES a role with values of its own (not kScale). Seed 0 is the specification's stream; any other seed
// gives an independent one.
SyntheticStream synthetic_stream(const TensorSpec& spec, uint64_t seed);

}  // namespace deepinfer
