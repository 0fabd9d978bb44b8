// Offsets of the four arrays of every kv source inside a block.
#include "engine/cache_layout.h"

#include "model/sizes.h"

namespace deepinfer {
namespace {

template <typename A>
RecordLayout record(RecordFormat format, int64_t values) {
  return {format, values, record_code_bytes<A>(format, values), record_scale_bytes(format, values)};
}

int64_t align64(int64_t n) {
  return (n + 63) / 64 * 64;
}

}  // namespace

template <typename A>
CacheLayout make_cache_layout(const ModelConfig& c, bool quantised) {
  DI_CHECK(quantised || sizeof(A) == 8, "native mode always stores the released record formats");
  CacheLayout l;
  l.main = record<A>(quantised ? RecordFormat::kFp4_16 : RecordFormat::kRaw, c.head_dim);
  l.index = record<A>(quantised ? RecordFormat::kFp4_32 : RecordFormat::kRaw, c.index_head_dim);
  l.window = record<A>(quantised ? RecordFormat::kFp8_32 : RecordFormat::kRaw, c.head_dim);
  l.block_tokens = c.sliding_window;
  l.ring_slots = ring_slots(c);
  l.tail_row_bytes = 2 * int64_t{c.head_dim} * static_cast<int64_t>(sizeof(A));
  int64_t at = 0;
  for (int layer : c.kv_source_layer_ids) {
    CacheLayout::Source s;
    s.layer = layer;
    s.ratio = c.ratio(layer);
    s.entries = l.block_tokens / s.ratio;
    auto place = [&](int64_t bytes) {
      int64_t here = at;
      at += align64(bytes * s.entries);
      return here;
    };
    s.main_codes = place(l.main.code_bytes);
    s.main_scales = place(l.main.scale_bytes);
    s.index_codes = place(l.index.code_bytes);
    s.index_scales = place(l.index.scale_bytes);
    l.sources.push_back(s);
  }
  l.block_bytes = at;
  return l;
}

BlockSplit split_block(const CacheLayout& l, int64_t least_bytes) {
  if (least_bytes <= 0) return {};
  for (size_t i = l.sources.size(); i-- > 1;) {
    int64_t at = l.sources[i].main_codes;
    if (at >= least_bytes && l.block_bytes - at >= least_bytes) return {at, static_cast<int>(i)};
  }
  return {};
}

template CacheLayout make_cache_layout<float>(const ModelConfig&, bool);
template CacheLayout make_cache_layout<double>(const ModelConfig&, bool);

}  // namespace deepinfer
