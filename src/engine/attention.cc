// CSA2 attention of a layer: queries and latents, the one softmax over window and selected entries, the
// grouped output projection. Source: model specification 3.1, 3.5, 3.6.
#include <atomic>
#include <cmath>

#include "engine/forward_impl.h"
#include "engine/load_gate.h"

namespace deepinfer {

template <typename A>
void Forward<A>::Impl::project_queries(const BlockWeights& b, int64_t T, const std::vector<A>& cos,
                                       const std::vector<A>& sin, bool publishes) {
  int64_t H = c.hidden_size, R = c.q_lora_rank, D = c.head_dim, width = int64_t{c.num_attention_heads} * D;
  grow(&qr, T * R);
  grow(&kv, T * D);
  grow(&q, T * width);
  grow_latents(T);
  LinearPhase<A> phase(k, pool, &work, &forms);
  phase.add(b.wq_a, u.data(), H, T, qr.data(), R, Out::kRounded);
  phase.add(b.wkv, u.data(), H, T, kv.data(), D, Out::kRounded);
  if (publishes) {
    bool gated = !b.compressor->wgate.empty();
    grow(&comp_a, T * D);
    phase.add(b.compressor->wkv, u.data(), H, T, comp_a.data(), D, gated ? Out::kFull : Out::kRounded);
    if (gated) {
      grow(&comp_g, T * D);
      phase.add(b.compressor->wgate, u.data(), H, T, comp_g.data(), D, Out::kFull);
    }
  }
  if (b.indexer != nullptr) {
    grow(&iw, T * c.index_n_heads);
    phase.add(b.indexer->weights_proj, u.data(), H, T, iw.data(), c.index_n_heads, Out::kRounded);
  }
  phase.run();
  for_rows(T, [&](int64_t t, int) {
    k.rms_norm(qr.data() + t * R, b.q_norm.template data<A>(), R, c.rms_norm_eps, qr.data() + t * R);
    encode_latent(b, t, cos, sin);
  });
  phase.add(b.wq_b, qr.data(), R, T, q.data(), width, Out::kRounded);
  if (b.indexer != nullptr) {
    int64_t iwidth = int64_t{c.index_n_heads} * c.index_head_dim;
    grow(&iq, T * iwidth);
    phase.add(b.indexer->wq_b, qr.data(), R, T, iq.data(), iwidth, Out::kRounded);
  }
  phase.run();
  lap(StepPart::kQueries);
}

// kv -> norm -> rotate -> record of one row.
template <typename A>
void Forward<A>::Impl::encode_latent(const BlockWeights& b, int64_t t, const std::vector<A>& cos,
                                     const std::vector<A>& sin) {
  int64_t D = c.head_dim, pairs = c.rotary_pairs();
  A* row = kv.data() + t * D;
  k.rms_norm(row, b.kv_norm.template data<A>(), D, c.rms_norm_eps, row);
  k.rope(row + D - 2 * pairs, cos.data() + t * pairs, sin.data() + t * pairs, static_cast<int>(pairs), false);
  k.encode_record(layout.window.format, row, D, latent_codes.data() + t * layout.window.code_bytes,
                  latent_scales.data() + t * layout.window.scale_bytes);
}

template <typename A>
void Forward<A>::Impl::encode_latents(const BlockWeights& b, int64_t T, const std::vector<A>& cos,
                                      const std::vector<A>& sin) {
  grow_latents(T);
  for_rows(T, [&](int64_t t, int) { encode_latent(b, t, cos, sin); });
}

template <typename A>
void Forward<A>::Impl::grow_latents(int64_t T) {
  grow(&latent_codes, T * layout.window.code_bytes);
  grow(&latent_scales, std::max<int64_t>(1, T * layout.window.scale_bytes));
}

template <typename A>
int64_t Forward<A>::Impl::attended(int l, const RowSet& rows, int64_t t, int64_t* window) const {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const SpanRows& s = rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])];
  int64_t p = rows.position[static_cast<size_t>(t)];
  int64_t from = std::max({s.sequence->window_floor(role.decoder, p), p - c.sliding_window + 1, int64_t{0}});
  *window = p - from + 1;
  return *window + (role.ratio > 0 ? selection_count[static_cast<size_t>(t)] : 0);
}

template <typename A>
bool Forward<A>::Impl::decode(const RecordLayout& r, const uint8_t* codes, const uint8_t* scales, int64_t i,
                              int64_t n, const Gathered& out) const {
  int64_t D = c.head_dim;
  if (out.form)
    return k.gather_records(r.format, codes, scales, n * D,
                            reinterpret_cast<uint8_t*>(out.values) + i * k.gathered_bytes(r.format, D));
  k.decode_record(r.format, codes, scales, n * D, out.values + i * D);
  return true;
}

// Records that lie one after the other are decoded in one go.
template <typename A>
bool Forward<A>::Impl::gather(int l, const RowSet& rows, int64_t t, int64_t window, int64_t i0, int64_t i1,
                              const Gathered& out) const {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const SpanRows& s = rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])];
  int64_t first = rows.position[static_cast<size_t>(t)] - window + 1;
  const RecordRing& ring = s.sequence->window[static_cast<size_t>(l)];
  for (int64_t i = i0, n = 0, end = std::min(i1, window); i < end; i += n) {
    int64_t at = first + i;
    const uint8_t *codes, *scales;
    if (at >= s.begin) {
      int64_t r = s.row0 + (at - s.begin);
      codes = latent_codes.data() + r * layout.window.code_bytes;
      scales = latent_scales.data() + r * layout.window.scale_bytes;
      n = end - i;
    } else {
      n = ring.run(at, std::min(end - i, s.begin - at), &codes, &scales);
    }
    if (!decode(layout.window, codes, scales, i, n, out)) return false;
  }
  if (role.ratio == 0) return true;
  const CacheLayout::Source& src = layout.sources[static_cast<size_t>(role.kv_slot)];
  const int32_t* sel = selection.data() + t * c.index_topk - window;
  auto entries = static_cast<int32_t>(src.entries);
  for (int64_t i = std::max(i0, window), n = 0; i < i1; i += n) {
    int32_t j = sel[i], b = j / entries, e = j % entries;
    int64_t most = std::min<int64_t>(i1 - i, entries - e);
    for (n = 1; n < most && sel[i + n] == j + n;) ++n;
    const uint8_t* block = s.sequence->block_data(b);
    if (!decode(layout.main, block + src.main_codes + e * layout.main.code_bytes,
                block + src.main_scales + e * layout.main.scale_bytes, i, n, out))
      return false;
  }
  return true;
}

template <typename A>
void Forward<A>::Impl::attend_heads(const BlockWeights& b, int64_t t, const A* cos, const A* sin,
                                    const Gathered& gathered, int64_t n, int64_t h0, int64_t h1, A* scratch) {
  int64_t D = c.head_dim, heads = c.num_attention_heads, at = D - 2 * c.rotary_pairs();
  int pairs = static_cast<int>(c.rotary_pairs()), count = static_cast<int>(h1 - h0);
  A* query = q.data() + t * heads * D;
  A* out = o.data() + t * heads * D + h0 * D;
  const A* sink = b.attn_sink.template data<A>() + h0;
  double scale = 1.0 / std::sqrt(static_cast<double>(D));
  for (int64_t h = h0; h < h1; ++h) k.rope(query + h * D + at, cos, sin, pairs, false);
  if (!gathered.form) {
    k.attend(query + h0 * D, gathered.values, n, D, count, scale, sink, scratch, out);
  } else {
    bool done = k.attend_gathered(query + h0 * D, reinterpret_cast<const uint8_t*>(gathered.values), n, D,
                                  count, scale, sink, scratch, out);
    // Rotated queries are [r].
    DI_CHECK(done, "a query that is no bf16 value");
  }
  for (int64_t h = h0; h < h1; ++h) k.rope(out + (h - h0) * D + at, cos, sin, pairs, true);
}

// Many rows: each thread gathers and attends whole rows. Fewer rows than threads: the gather is spread by
// records, the softmax by heads. A row with a record that the kernels' form cannot hold takes values.
template <typename A>
void Forward<A>::Impl::attend_rows(int l, const RowSet& rows, const std::vector<A>& cos,
                                   const std::vector<A>& sin) {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const BlockWeights& b = w.layers[static_cast<size_t>(l)];
  int64_t T = rows.size(), D = c.head_dim, heads = c.num_attention_heads, pairs = c.rotary_pairs();
  int64_t max_rows = c.sliding_window + (role.ratio > 0 ? c.index_topk : 0);
  bool form = gathers_form();
  grow(&o, T * heads * D);
  if (profile != nullptr) {
    for (int64_t t = 0; t < T; ++t) {
      int64_t window, n = attended(l, rows, t, &window);
      work.bytes += window * (layout.window.code_bytes + layout.window.scale_bytes) +
                    (n - window) * (layout.main.code_bytes + layout.main.scale_bytes);
      work.macs += 2 * n * heads * D;
    }
  }
  if (T >= pool->threads()) {
    for_rows(T, [&](int64_t t, int wk) {
      A* scratch = worker_scratch(wk, max_rows * D + heads * max_rows);
      int64_t window, n = attended(l, rows, t, &window);
      Gathered g{scratch, form};
      if (!gather(l, rows, t, window, 0, n, g)) {
        g.form = false;
        gather(l, rows, t, window, 0, n, g);
      }
      attend_heads(b, t, cos.data() + t * pairs, sin.data() + t * pairs, g, n, 0, heads,
                   scratch + max_rows * D);
    });
    return;
  }
  grow(&gathered_rows, T * max_rows * D);
  std::vector<Gathered> gathered;
  for (int64_t t = 0; t < T; ++t) gathered.push_back({gathered_rows.data() + t * max_rows * D, form});
  std::vector<uint8_t> refused(static_cast<size_t>(T), 0);
  constexpr int64_t kRecords = 64;  // of one hand-out
  int64_t parts = (max_rows + kRecords - 1) / kRecords;
  for_rows(T * parts, [&](int64_t i, int) {
    int64_t t = i / parts, window, n = attended(l, rows, t, &window), from = i % parts * kRecords;
    auto at = static_cast<size_t>(t);
    if (from < n && !gather(l, rows, t, window, from, std::min(n, from + kRecords), gathered[at]))
      std::atomic_ref<uint8_t>(refused[at]).store(1);
  });
  for (int64_t t = 0; t < T; ++t) {
    auto at = static_cast<size_t>(t);
    if (refused[at] == 0) continue;
    gathered[at].form = false;
    int64_t window, n = attended(l, rows, t, &window);
    gather(l, rows, t, window, 0, n, gathered[at]);
  }
  int64_t groups = std::min<int64_t>(heads, pool->threads());
  for_rows(T * groups, [&](int64_t i, int wk) {
    int64_t t = i / groups, g = i % groups, window, n = attended(l, rows, t, &window);
    attend_heads(b, t, cos.data() + t * pairs, sin.data() + t * pairs, gathered[static_cast<size_t>(t)], n,
                 heads * g / groups, heads * (g + 1) / groups, worker_scratch(wk, heads * max_rows));
  });
}

template <typename A>
void Forward<A>::Impl::output_projection(const BlockWeights& b, int64_t T) {
  int64_t D = c.head_dim, heads = c.num_attention_heads, in = c.wo_a_in(), R = c.o_lora_rank;
  int64_t mid = int64_t{c.o_groups} * R;
  grow(&oa, T * mid);
  LinearPhase<A> phase(k, pool, &work, &forms);
  MatrixView wo_a = b.wo_a;
  wo_a.plain_input = true;
  for (int64_t g = 0; g < c.o_groups; ++g) {
    phase.add(wo_a, o.data() + g * in, heads * D, nullptr, T, g * R, (g + 1) * R, oa.data(), mid,
              Out::kRounded);
  }
  phase.run();
  phase.add(b.wo_b, oa.data(), mid, T, y.data(), c.hidden_size, Out::kRounded);
  phase.run();
  lap(StepPart::kOutput);
}

// Copies the window before each boundary of the span: records of this call where they are its own, the rest
// from the ring, which this call has not touched yet.
template <typename A>
void Forward<A>::Impl::capture_windows(int l, const SpanRows& s) {
  const RecordRing& ring = s.sequence->window[static_cast<size_t>(l)];
  for (const SnapshotCapture& x : *s.captures) {
    RecordRing& out = x.into->rings[static_cast<size_t>(l)];
    out.clear();
    for (int64_t p = std::max<int64_t>(0, x.boundary - ring.slots()); p < x.boundary; ++p) {
      int64_t r = s.row0 + (p - s.begin);
      if (p >= s.begin) {
        out.put(p, latent_codes.data() + r * layout.window.code_bytes,
                latent_scales.data() + r * layout.window.scale_bytes);
      } else if (ring.holds(p)) {
        out.copy(ring, p);
      }
    }
  }
}

// Rows of this call become the window of later calls; only the last `slots` positions of a span can ever be
// read again.
template <typename A>
void Forward<A>::Impl::store_rings(int l, const RowSet& rows) {
  for (const SpanRows& s : rows.spans) {
    RecordRing& ring = s.sequence->window[static_cast<size_t>(l)];
    if (s.captures != nullptr) capture_windows(l, s);
    for (int64_t p = std::max(s.begin, s.end - ring.slots()); p < s.end; ++p) {
      int64_t r = s.row0 + (p - s.begin);
      ring.put(p, latent_codes.data() + r * layout.window.code_bytes,
               latent_scales.data() + r * layout.window.scale_bytes);
    }
  }
}

// Rows whose blocks are still being loaded wait for what this source has in them.
template <typename A>
void Forward<A>::Impl::await_source(int source, const RowSet& rows) {
  for (const SpanRows& s : rows.spans) {
    if (s.gate != nullptr && s.begin < s.end) s.gate->need(source);
  }
}

template <typename A>
void Forward<A>::Impl::attention(int l, const RowSet& rows, ForwardTrace<A>* trace) {
  const LayerRole& role = roles[static_cast<size_t>(l)];
  const BlockWeights& b = w.layers[static_cast<size_t>(l)];
  int64_t T = rows.size();
  const auto& cos = role.ratio > 0 ? cos_comp : cos_main;
  const auto& sin = role.ratio > 0 ? sin_comp : sin_main;
  project_queries(b, T, cos, sin, role.owns_kv);
  if (role.owns_kv) {
    await_source(role.kv_slot, rows);
    publish(l, rows);
    lap(StepPart::kPublish);
  }
  if (role.owns_index) {
    index_select(l, rows);
    lap(StepPart::kIndex);
  }
  if (role.ratio > 0 && trace != nullptr) {
    auto& tl = trace->layers[static_cast<size_t>(l)];
    for (int64_t t = 0; t < T; ++t) {
      const int32_t* sel = selection.data() + t * c.index_topk;
      tl.selection.emplace_back(sel, sel + selection_count[static_cast<size_t>(t)]);
    }
    if (role.candidate_source) tl.pool = pool_entries(rows);
  }
  attend_rows(l, rows, cos, sin);
  lap(StepPart::kAttend);
  output_projection(b, T);
  store_rings(l, rows);
}

#define DI_INSTANTIATE(A)                                                                              \
  template void Forward<A>::Impl::project_queries(const BlockWeights&, int64_t, const std::vector<A>&, \
                                                  const std::vector<A>&, bool);                        \
  template void Forward<A>::Impl::encode_latents(const BlockWeights&, int64_t, const std::vector<A>&,  \
                                                 const std::vector<A>&);                               \
  template void Forward<A>::Impl::attend_heads(const BlockWeights&, int64_t, const A*, const A*,       \
                                               const Gathered&, int64_t, int64_t, int64_t, A*);        \
  template void Forward<A>::Impl::output_projection(const BlockWeights&, int64_t);                     \
  template void Forward<A>::Impl::attention(int, const RowSet&, ForwardTrace<A>*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
