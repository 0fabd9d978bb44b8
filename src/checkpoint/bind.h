// Puts named tensors into their places in ModelWeights, the same way for a mapped checkpoint and for exact
// synthetic weights. The names are those of the tensor table; a source that has every tensor of the table can
// serve every call made here. Source: model specification 9. Threads: one at a time.
#pragma once

#include <string>

#include "checkpoint/weights.h"
#include "model/config.h"
#include "model/matrix_view.h"

namespace deepinfer {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // A matrix by its table name ("layers.0.attn.wq_a.weight", "layers.0.hc_attn_fn"). A vector becomes one
  // row.
  virtual MatrixView matrix(const std::string& name) = 0;
  virtual SmallTensor small(const std::string& name) = 0;
};

// Everything but token_map and storage. REQUIRES a validated configuration and a complete source.
ModelWeights bind_weights(const ModelConfig& config, WeightSource& source);

}  // namespace deepinfer
