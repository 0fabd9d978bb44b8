// DSpark: feeds the draft rings from the backbone's features and runs one draft block.
// Source: model specification 6.
#include <cmath>

#include "engine/forward_impl.h"

namespace deepinfer {

// Window latents of the draft stages for the rows just run; only the last ring's worth of a span can be read
// later.
template <typename A>
void Forward<A>::Impl::feed_draft(const RowSet& rows) {
  if (c.num_nextn_predict_layers == 0) return;
  int64_t H = c.hidden_size, D = c.head_dim, pairs = c.rotary_pairs();
  int64_t width = H * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  std::vector<int32_t> take;
  for (const SpanRows& s : rows.spans) {
    for (int64_t p = std::max(s.begin, s.end - layout.ring_slots); p < s.end; ++p)
      take.push_back(static_cast<int32_t>(s.row0 + p - s.begin));
  }
  int64_t n = static_cast<int64_t>(take.size());
  if (n == 0) return;
  grow(&u, n * H);
  LinearPhase<A> phase(k, pool);
  phase.add(w.draft.main_proj, main_features.data(), width, take.data(), n, 0, H, u.data(), H, Out::kRounded);
  phase.run();
  for_rows(n, [&](int64_t i, int) {
    k.rms_norm(u.data() + i * H, w.draft.main_norm.template data<A>(), H, c.rms_norm_eps, u.data() + i * H);
  });
  std::vector<A> cos(static_cast<size_t>(n * pairs)), sin(static_cast<size_t>(n * pairs));
  for (int64_t i = 0; i < n; ++i) {
    rotary_row(rows.position[static_cast<size_t>(take[static_cast<size_t>(i)])], main_freq,
               cos.data() + i * pairs, sin.data() + i * pairs);
  }
  grow(&kv, n * D);
  for (size_t stage = 0; stage < w.mtp.size(); ++stage) {
    phase.add(w.mtp[stage].wkv, u.data(), H, n, kv.data(), D, Out::kRounded);
    phase.run();
    encode_latents(w.mtp[stage], n, cos, sin);
    for (int64_t i = 0; i < n; ++i) {
      int64_t t = take[static_cast<size_t>(i)];
      rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])].sequence->draft[stage].put(
          rows.position[static_cast<size_t>(t)], latent_codes.data() + i * layout.window.code_bytes,
          latent_scales.data() + i * layout.window.scale_bytes);
    }
  }
}

// Every block row attends the ring up to the last real position and all block rows: bidirectional inside the
// block, one key set.
template <typename A>
void Forward<A>::Impl::draft_attention(const BlockWeights& b, const RecordRing& ring, int64_t p,
                                       int64_t floor, int64_t n, const std::vector<A>& cos,
                                       const std::vector<A>& sin) {
  int64_t D = c.head_dim, heads = c.num_attention_heads;
  project_queries(b, n, cos, sin, false);
  int64_t first = std::max({int64_t{0}, floor, p - c.sliding_window + 1});
  int64_t count = (p + 1 - first) + n;
  std::vector<A> gathered(static_cast<size_t>(count * D));
  for_rows(count, [&](int64_t i, int) {
    int64_t at = first + i, r = at - (p + 1);
    bool block = r >= 0;
    k.decode_record(layout.window.format,
                    block ? latent_codes.data() + r * layout.window.code_bytes : ring.codes(at),
                    block ? latent_scales.data() + r * layout.window.scale_bytes : ring.scales(at), D,
                    gathered.data() + i * D);
  });
  grow(&o, n * heads * D);
  double scale = 1.0 / std::sqrt(static_cast<double>(D));
  for_rows(n, [&](int64_t t, int wk) {
    k.attend(q.data() + t * heads * D, gathered.data(), count, D, static_cast<int>(heads), scale,
             b.attn_sink.template data<A>(), worker_scratch(wk, heads * count), o.data() + t * heads * D);
  });
  output_projection(b, n, cos, sin);
}

template <typename A>
DraftResult<A> Forward<A>::Impl::draft(const SequenceState& s, int32_t next, const DraftPick<A>& pick) {
  DraftResult<A> out;
  int64_t n = c.dspark_block_size, H = c.hidden_size, m = c.hc_mult, V = c.vocab_size,
          rank = c.dspark_markov_rank, pairs = c.rotary_pairs();
  int64_t p = s.length - 1;
  DI_CHECK(!w.mtp.empty() && p >= 0 && next >= 0 && next < V,
           "draft pass without draft stages, without a processed token, or for a bad id");
  grow(&X, n * m * H);
  grow(&pre, n * m);
  std::vector<A> cos(static_cast<size_t>(n * pairs)), sin(static_cast<size_t>(n * pairs));
  for (int64_t t = 0; t < n; ++t) {
    A* x = X.data() + t * m * H;
    k.decode_row(w.embed, t == 0 ? next : c.dspark_noise_token_id, x);
    for (int64_t i = 1; i < m; ++i) std::copy(x, x + H, x + i * H);
    for (int64_t i = 0; i < m; ++i) pre[static_cast<size_t>(t * m + i)] = i == 0 ? A(1) : A(0);
    rotary_row(p + 1 + t, main_freq, cos.data() + t * pairs, sin.data() + t * pairs);
  }
  for (size_t stage = 0; stage < w.mtp.size(); ++stage) {
    const BlockWeights& b = w.mtp[stage];
    block(
        b, n, [&] { draft_attention(b, s.draft[stage], p, s.decoder_floor, n, cos, sin); },
        [&] { moe(b, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok, nullptr, n, nullptr); });
  }
  std::vector<A> h(static_cast<size_t>(n * (H + rank))), normed(static_cast<size_t>(n * H));
  for_rows(n, [&](int64_t t, int) {
    A* row = h.data() + t * (H + rank);
    k.hc_collapse(X.data() + t * m * H, pre.data() + t * m, c.hc_mult, H, row);
    k.rms_norm(row, w.draft.norm.template data<A>(), H, c.rms_norm_eps, normed.data() + t * H);
  });
  out.logits.resize(static_cast<size_t>(n * V));
  LinearPhase<A> phase(k, pool);
  phase.add(w.head, normed.data(), H, n, out.logits.data(), V, Out::kFull);
  phase.run();
  std::vector<A> markov(static_cast<size_t>(V));
  int32_t previous = next;
  for (int64_t t = 0; t < n; ++t) {
    A* row = h.data() + t * (H + rank);
    k.decode_row(w.draft.markov_embed, previous, row + H);
    phase.add(w.draft.markov_head, row + H, rank, 1, markov.data(), V, Out::kFull);
    phase.run();
    k.add(markov.data(), V, out.logits.data() + t * V);
    A confidence;
    k.linear(w.draft.confidence, row, H + rank, nullptr, 1, 0, 1, &confidence, 1, Out::kFull);
    out.confidence_logits.push_back(confidence);
    previous = pick(out.logits.data() + t * V, V, p + 2 + t);
    out.tokens.push_back(previous);
  }
  return out;
}

#define DI_INSTANTIATE(A)                                    \
  template void Forward<A>::Impl::feed_draft(const RowSet&); \
  template DraftResult<A> Forward<A>::Impl::draft(const SequenceState&, int32_t, const DraftPick<A>&);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
