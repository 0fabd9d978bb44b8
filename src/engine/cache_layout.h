// Where each cached quantity lies: record formats and byte offsets inside a block, ring geometry, tail size.
// Decided once per model and numeric mode; the same words serve the block pool, the rings and the forward
// pass. No memory of its own. Source: model specification 3.7, 8.3, 8.4.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "model/config.h"

namespace deepinfer {

// One kind of record: how it is coded and how many bytes its two parts take.
struct RecordLayout {
  RecordFormat format = RecordFormat::kRaw;
  int64_t values = 0;
  int64_t code_bytes = 0, scale_bytes = 0;
};

struct CacheLayout {
  // One kv source inside a block: four arrays of `entries` records' parts, at byte offsets from the block's
  // start.
  struct Source {
    int layer = 0;
    int ratio = 1;
    int64_t entries = 0;  // block_tokens / ratio
    int64_t main_codes = 0, main_scales = 0, index_codes = 0, index_scales = 0;
  };
  RecordLayout main, index, window;
  int block_tokens = 0;  // the config's sliding_window
  int64_t block_bytes = 0;
  std::vector<Source> sources;  // in kv_source_layer_ids order
  int ring_slots = 0;
  int64_t tail_row_bytes = 0;  // one (a, g) row of a compressor with ratio > 1
};

// Where a block may be cut so that what its first sources have lies before: at the last source's end that
// leaves at least `least_bytes` on either side, so that the rest is needed late. Zeros: nowhere,
// or least_bytes is 0.
struct BlockSplit {
  int64_t bytes = 0;
  int sources = 0;
};
BlockSplit split_block(const CacheLayout& layout, int64_t least_bytes);

// A = float: the released record formats. A = double: raw values, or the released formats if `quantised`.
template <typename A>
CacheLayout make_cache_layout(const ModelConfig& config, bool quantised);

}  // namespace deepinfer
