// Engram: looks up the n-gram rows of every position and adds the gated value to the streams, before a
// layer's attention site. Source: model specification 5.
#include "engine/forward_impl.h"

namespace deepinfer {

template <typename A>
void Forward<A>::Impl::engram(int l, const RowSet& rows, ForwardTrace<A>* trace) {
  const EngramWeights& e = *w.layers[static_cast<size_t>(l)].engram;
  size_t index = static_cast<size_t>(roles[static_cast<size_t>(l)].engram);
  int64_t T = rows.size(), H = c.hidden_size, m = c.hc_mult, columns = c.engram_columns(),
          width = c.engram_lookup_width();
  std::vector<int64_t> ids(static_cast<size_t>(T * columns));
  grow(&engram_rows, T * width);
  grow(&engram_kv, T * c.engram_wkv_out());
  for_rows(T, [&](int64_t t, int) {
    const SequenceState& s = *rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])].sequence;
    std::vector<int32_t> history(static_cast<size_t>(c.engram_max_ngram_size));
    engram_history(
        rows.position[static_cast<size_t>(t)], c.engram_max_ngram_size, w.token_map, c.engram_pad_token_id,
        [&](int64_t p) { return s.tokens[static_cast<size_t>(p)]; }, [&](int64_t p) { return s.in_image(p); },
        history.data());
    hash.rows(index, history, ids.data() + t * columns);
    for (int64_t i = 0; i < columns; ++i) {
      k.decode_row(e.table, ids[static_cast<size_t>(t * columns + i)],
                   engram_rows.data() + t * width + i * c.engram_head_dim);
    }
  });
  LinearPhase<A> phase(k, pool, &work, &forms);
  phase.add(e.wkv, engram_rows.data(), width, T, engram_kv.data(), c.engram_wkv_out(), Out::kRounded);
  phase.run();
  std::vector<A> gates(static_cast<size_t>(T * m), A(0));
  for_rows(T, [&](int64_t t, int) {
    const SequenceState& s = *rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])].sequence;
    if (s.in_image(rows.position[static_cast<size_t>(t)])) return;  // gate 0: the streams pass unchanged
    const A* row = engram_kv.data() + t * c.engram_wkv_out();
    for (int64_t i = 0; i < m; ++i) {
      gates[static_cast<size_t>(t * m + i)] = k.engram_stream(
          row + i * H, row + m * H, e.q_weight.template data<A>() + i * H,
          e.k_weight.template data<A>() + i * H, H, c.rms_norm_eps, X.data() + (t * m + i) * H);
    }
  });
  if (trace != nullptr) {
    auto& tl = trace->layers[static_cast<size_t>(l)];
    for (int64_t t = 0; t < T; ++t)
      tl.engram_rows.emplace_back(ids.begin() + t * columns, ids.begin() + (t + 1) * columns);
    tl.engram_gates = gates;
  }
}

template void Forward<float>::Impl::engram(int, const RowSet&, ForwardTrace<float>*);
template void Forward<double>::Impl::engram(int, const RowSet&, ForwardTrace<double>*);

}  // namespace deepinfer
