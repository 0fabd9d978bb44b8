// The compressor of a kv source: groups of rows become main-KV entries and index keys; an open group waits in
// the tail. Source: model specification 3.3.
#include <cmath>

#include "engine/forward_impl.h"

namespace deepinfer {

// latent (normed, not rotated) -> index key record and main record of `entry`. scratch: D + index_head_dim +
// 2*pairs values.
template <typename A>
void Forward<A>::Impl::store_entry(int l, SequenceState* s, int64_t entry, const A* latent, A* scratch) {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const CompressorWeights& cw = *w.layers[static_cast<size_t>(l)].compressor;
  const CacheLayout::Source& src = layout.sources[static_cast<size_t>(role.kv_slot)];
  int64_t D = c.head_dim, ID = c.index_head_dim, pairs = c.rotary_pairs();
  A* main = scratch;
  A* key = scratch + D;
  A* cos = key + ID;
  A* sin = cos + pairs;
  rotary_row(entry * role.ratio, compress_freq, cos, sin);
  k.linear(cw.wk, latent, D, nullptr, 1, 0, ID, key, ID, Out::kRounded);
  k.rms_norm(key, cw.k_norm.template data<A>(), ID, c.rms_norm_eps, key);
  k.rope(key + ID - 2 * pairs, cos, sin, static_cast<int>(pairs), false);
  std::copy(latent, latent + D, main);
  k.rope(main + D - 2 * pairs, cos, sin, static_cast<int>(pairs), false);
  uint8_t* block = s->block_data(entry / src.entries);
  int64_t e = entry % src.entries;
  k.encode_record(layout.index.format, key, ID, block + src.index_codes + e * layout.index.code_bytes,
                  block + src.index_scales + e * layout.index.scale_bytes);
  k.encode_record(layout.main.format, main, D, block + src.main_codes + e * layout.main.code_bytes,
                  block + src.main_scales + e * layout.main.scale_bytes);
}

template <typename A>
void Forward<A>::Impl::publish(int l, const RowSet& rows) {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const CompressorWeights& cw = *w.layers[static_cast<size_t>(l)].compressor;
  int64_t D = c.head_dim, r = role.ratio, pairs = c.rotary_pairs();
  int64_t scratch_size = 2 * D + c.index_head_dim + 2 * pairs;
  for_rows(rows.size(), [&](int64_t t, int wk) {
    const SpanRows& s = rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])];
    int64_t p = rows.position[static_cast<size_t>(t)];
    if ((p + 1) % r != 0 || p < s.sequence->publish_from) return;
    A* latent = worker_scratch(wk, scratch_size);
    const A* a = comp_a.data() + t * D;
    if (r > 1) {
      std::vector<const A*> as(static_cast<size_t>(r)), gs(static_cast<size_t>(r));
      for (int64_t i = 0; i < r; ++i) {
        int64_t at = p - r + 1 + i;
        bool here = at >= s.begin;
        int64_t row = s.row0 + (at - s.begin);
        const A* tail = here ? nullptr
                             : reinterpret_cast<const A*>(
                                   s.sequence->tails[static_cast<size_t>(role.kv_slot)].codes(at / r));
        as[static_cast<size_t>(i)] = here ? comp_a.data() + row * D : tail;
        gs[static_cast<size_t>(i)] = here ? comp_g.data() + row * D : tail + D;
      }
      k.compress_pool(as.data(), gs.data(), static_cast<int>(r), D, latent);
      a = latent;
    }
    k.rms_norm(a, cw.norm.template data<A>(), D, c.rms_norm_eps, latent);
    store_entry(l, s.sequence, p / r, latent, latent + D);
  });
  if (r == 1) return;
  // First rows of groups: the last few of each span may be an open group now or after a rollback.
  std::vector<A> pair(static_cast<size_t>(2 * D));
  for (const SpanRows& s : rows.spans) {
    RecordRing& tail = s.sequence->tails[static_cast<size_t>(role.kv_slot)];
    for (int64_t p = std::max(s.begin, s.end - tail.slots() * r); p < s.end; ++p) {
      if (p % r != 0) continue;
      int64_t t = s.row0 + (p - s.begin);
      std::copy_n(comp_a.begin() + t * D, D, pair.begin());
      std::copy_n(comp_g.begin() + t * D, D, pair.begin() + D);
      tail.put(p / r, reinterpret_cast<const uint8_t*>(pair.data()), nullptr);
    }
  }
}

template <typename A>
void Forward<A>::Impl::publish_only(int l, const RowSet& rows) {
  const BlockWeights& b = w.layers[static_cast<size_t>(l)];
  int64_t H = c.hidden_size, D = c.head_dim, m = c.hc_mult;
  std::vector<int32_t> take;
  for (int64_t t = 0; t < rows.size(); ++t) {
    const SequenceState& s = *rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])].sequence;
    int64_t p = rows.position[static_cast<size_t>(t)];
    if (p < s.decoder_floor && p >= s.publish_from) take.push_back(static_cast<int32_t>(t));
  }
  if (take.empty()) return;
  grow(&u, rows.size() * H);
  grow(&comp_a, rows.size() * D);
  for_rows(static_cast<int64_t>(take.size()), [&](int64_t i, int) {
    int64_t t = take[static_cast<size_t>(i)];
    A* out = u.data() + t * H;
    k.hc_collapse(X.data() + t * m * H, pre.data() + t * m, c.hc_mult, H, out);
    k.rms_norm(out, b.attn_norm.template data<A>(), H, c.rms_norm_eps, out);
  });
  LinearPhase<A> phase(k, pool, &work, &forms);
  int64_t n = static_cast<int64_t>(take.size());
  phase.add(b.compressor->wkv, u.data(), H, take.data(), n, 0, D, comp_a.data(), D, Out::kRounded);
  phase.run();
  for_rows(n, [&](int64_t i, int wk) {
    int64_t t = take[static_cast<size_t>(i)];
    A* latent = worker_scratch(wk, 2 * D + c.index_head_dim + 2 * c.rotary_pairs());
    k.rms_norm(comp_a.data() + i * D, b.compressor->norm.template data<A>(), D, c.rms_norm_eps, latent);
    const SpanRows& s = rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])];
    store_entry(l, s.sequence, rows.position[static_cast<size_t>(t)], latent, latent + D);
  });
}

#define DI_INSTANTIATE(A)                                      \
  template void Forward<A>::Impl::publish(int, const RowSet&); \
  template void Forward<A>::Impl::publish_only(int, const RowSet&);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
