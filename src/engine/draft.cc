// DSpark: keeps the backbone's features, makes window records of the draft stages from them when a draft pass
// will read those, and runs one draft block. As long as nobody drafts, the stages cost a copy per row.
// Source: model specification 6.
#include <cmath>
#include <cstring>

#include "engine/forward_impl.h"

namespace deepinfer {

// Features of the rows just run; only the last ring's worth of a span can be read later.
template <typename A>
void Forward<A>::Impl::keep_features(const RowSet& rows) {
  if (c.num_nextn_predict_layers == 0) return;
  int64_t width = c.hidden_size * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  for (const SpanRows& s : rows.spans) {
    if (s.begin == s.end) continue;
    SequenceState& sequence = *s.sequence;
    if (sequence.draft_input.slots() == 0)
      sequence.draft_input = RecordRing(layout.ring_slots, width * static_cast<int64_t>(sizeof(A)), 0);
    sequence.draft_fed = std::min(sequence.draft_fed, s.begin);
    for (int64_t p = std::max(s.begin, s.end - layout.ring_slots); p < s.end; ++p) {
      const A* from = main_features.data() + (s.row0 + p - s.begin) * width;
      sequence.draft_input.put(p, reinterpret_cast<const uint8_t*>(from), nullptr);
    }
  }
}

template <typename A>
int64_t Forward<A>::Impl::draft_window_begin(const SequenceState& s) const {
  return std::max({int64_t{0}, s.decoder_floor, s.length - c.sliding_window});
}

// Window records of the draft stages for all positions that were processed since the last draft pass and that
// this one will read. A record does not depend on when it is made, nor with which others.
template <typename A>
void Forward<A>::Impl::feed_draft(const std::vector<DraftSpan<A>>& spans) {
  int64_t H = c.hidden_size, D = c.head_dim, pairs = c.rotary_pairs();
  int64_t width = H * static_cast<int64_t>(c.dspark_target_layer_ids.size());
  std::vector<std::pair<SequenceState*, int64_t>> take;  // and the position
  for (const DraftSpan<A>& s : spans) {
    SequenceState* sequence = s.sequence;
    for (int64_t p =
             std::max({sequence->decoder_floor, sequence->draft_fed, sequence->length - layout.ring_slots});
         p < sequence->length; ++p) {
      // Below the window of now there may be no features any more; only a sequence that went back reads
      // there.
      if (sequence->draft_input.holds(p)) take.emplace_back(sequence, p);
    }
    sequence->draft_fed = sequence->length;
  }
  int64_t n = static_cast<int64_t>(take.size());
  if (n == 0) return;
  grow(&main_features, n * width);
  for_rows(n, [&](int64_t i, int) {
    auto [s, p] = take[static_cast<size_t>(i)];
    std::memcpy(main_features.data() + i * width, s->draft_input.codes(p),
                static_cast<size_t>(width) * sizeof(A));
  });
  grow(&u, n * H);
  LinearPhase<A> phase(k, pool, &work, &forms);
  phase.add(w.draft.main_proj, main_features.data(), width, n, u.data(), H, Out::kRounded);
  phase.run();
  for_rows(n, [&](int64_t i, int) {
    k.rms_norm(u.data() + i * H, w.draft.main_norm.template data<A>(), H, c.rms_norm_eps, u.data() + i * H);
  });
  std::vector<A> cos(static_cast<size_t>(n * pairs)), sin(static_cast<size_t>(n * pairs));
  for (int64_t i = 0; i < n; ++i) {
    rotary_row(take[static_cast<size_t>(i)].second, main_freq, cos.data() + i * pairs,
               sin.data() + i * pairs);
  }
  grow(&kv, n * D);
  for (size_t stage = 0; stage < w.mtp.size(); ++stage) {
    phase.add(w.mtp[stage].wkv, u.data(), H, n, kv.data(), D, Out::kRounded);
    phase.run();
    encode_latents(w.mtp[stage], n, cos, sin);
    for (int64_t i = 0; i < n; ++i) {
      auto [s, p] = take[static_cast<size_t>(i)];
      s->draft[stage].put(p, latent_codes.data() + i * layout.window.code_bytes,
                          latent_scales.data() + i * layout.window.scale_bytes);
    }
  }
}

// Every block row attends the ring up to the last real position and all rows of its own block: bidirectional
// inside the block, one key set per sequence. Rows [i * n, i * n + n) belong to spans[i].
template <typename A>
void Forward<A>::Impl::draft_attention(const BlockWeights& b, size_t stage,
                                       const std::vector<DraftSpan<A>>& spans, const std::vector<A>& cos,
                                       const std::vector<A>& sin) {
  int64_t D = c.head_dim, heads = c.num_attention_heads, n = c.dspark_block_size;
  int64_t rows = n * static_cast<int64_t>(spans.size()), most = c.sliding_window + n;
  project_queries(b, rows, cos, sin, false);
  std::vector<A> gathered(static_cast<size_t>(most * D * static_cast<int64_t>(spans.size())));
  std::vector<int64_t> first, count;
  for (const DraftSpan<A>& s : spans) {
    first.push_back(draft_window_begin(*s.sequence));
    count.push_back(s.sequence->length - first.back() + n);
  }
  for_rows(most * static_cast<int64_t>(spans.size()), [&](int64_t i, int) {
    auto span = static_cast<size_t>(i / most);
    if (i % most >= count[span]) return;
    int64_t at = first[span] + i % most, r = at - spans[span].sequence->length;
    bool block = r >= 0;
    if (block) r += static_cast<int64_t>(span) * n;
    const RecordRing& ring = spans[span].sequence->draft[stage];
    k.decode_record(layout.window.format,
                    block ? latent_codes.data() + r * layout.window.code_bytes : ring.codes(at),
                    block ? latent_scales.data() + r * layout.window.scale_bytes : ring.scales(at), D,
                    gathered.data() + i * D);
  });
  grow(&o, rows * heads * D);
  int64_t pairs = c.rotary_pairs();
  for_rows(rows, [&](int64_t t, int wk) {
    auto span = static_cast<size_t>(t / n);
    attend_heads(b, t, cos.data() + t * pairs, sin.data() + t * pairs,
                 {gathered.data() + static_cast<int64_t>(span) * most * D, false}, count[span], 0, heads,
                 worker_scratch(wk, heads * count[span]));
  });
  lap(StepPart::kAttend);
  output_projection(b, rows);
}

// Embeds the blocks: the token just decided, then noise tokens.
template <typename A>
void Forward<A>::Impl::embed_drafts(const std::vector<DraftSpan<A>>& spans, std::vector<A>* cos,
                                    std::vector<A>* sin) {
  int64_t n = c.dspark_block_size, H = c.hidden_size, m = c.hc_mult, pairs = c.rotary_pairs();
  int64_t rows = n * static_cast<int64_t>(spans.size());
  grow(&X, rows * m * H);
  grow(&pre, rows * m);
  cos->resize(static_cast<size_t>(rows * pairs));
  sin->resize(static_cast<size_t>(rows * pairs));
  for_rows(rows, [&](int64_t t, int) {
    const DraftSpan<A>& s = spans[static_cast<size_t>(t / n)];
    A* x = X.data() + t * m * H;
    k.decode_row(w.embed, t % n == 0 ? s.next : c.dspark_noise_token_id, x);
    for (int64_t i = 1; i < m; ++i) std::copy(x, x + H, x + i * H);
    for (int64_t i = 0; i < m; ++i) pre[static_cast<size_t>(t * m + i)] = i == 0 ? A(1) : A(0);
    rotary_row(s.sequence->length + t % n, main_freq, cos->data() + t * pairs, sin->data() + t * pairs);
  });
}

template <typename A>
std::vector<DraftResult<A>> Forward<A>::Impl::draft(const std::vector<DraftSpan<A>>& spans,
                                                    bool with_logits) {
  int64_t n = c.dspark_block_size, H = c.hidden_size, m = c.hc_mult, V = c.vocab_size,
          rank = c.dspark_markov_rank;
  auto R = static_cast<int64_t>(spans.size());
  int64_t rows = n * R;
  std::vector<DraftResult<A>> out(spans.size());
  if (R == 0) return out;
  for (const DraftSpan<A>& s : spans) {
    DI_CHECK(!w.mtp.empty() && s.sequence != nullptr && s.sequence->length > 0 && s.next >= 0 && s.next < V,
             "draft pass without draft stages, without a processed token, or for a bad id");
  }
  std::vector<A> cos, sin;
  pending = false;
  begin_profile();
  int64_t begun = lap_from;
  feed_draft(spans);
  lap(StepPart::kDraftFeed);
  embed_drafts(spans, &cos, &sin);
  lap(StepPart::kDraft);
  for (size_t stage = 0; stage < w.mtp.size(); ++stage) {
    const BlockWeights& b = w.mtp[stage];
    block(
        b, rows, [&] { draft_attention(b, stage, spans, cos, sin); },
        [&] { moe(b, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok, nullptr, rows, nullptr); });
  }
  settle(rows);
  // [rows, H + rank]: the collapsed stream and the Markov embedding of the token before, for the confidence
  // head.
  std::vector<A> h(static_cast<size_t>(rows * (H + rank))), normed(static_cast<size_t>(rows * H));
  for_rows(rows, [&](int64_t t, int) {
    A* row = h.data() + t * (H + rank);
    k.hc_collapse(X.data() + t * m * H, pre.data() + t * m, c.hc_mult, H, row);
    k.rms_norm(row, w.draft.norm.template data<A>(), H, c.rms_norm_eps, normed.data() + t * H);
  });
  std::vector<A> confidence(static_cast<size_t>(R));
  grow(&draft_logits, rows * V);
  grow(&markov, R * V);
  LinearPhase<A> phase(k, pool, &work, &forms);
  phase.add(w.head, normed.data(), H, rows, draft_logits.data(), V, Out::kFull);
  phase.run();
  std::vector<int32_t> at(spans.size());
  for (int64_t t = 0; t < n; ++t) {
    for (size_t i = 0; i < spans.size(); ++i) {
      at[i] = static_cast<int32_t>(static_cast<int64_t>(i) * n + t);
      k.decode_row(w.draft.markov_embed, t == 0 ? spans[i].next : out[i].tokens.back(),
                   h.data() + at[i] * (H + rank) + H);
    }
    phase.add(w.draft.markov_head, h.data() + H, H + rank, at.data(), R, 0, V, markov.data(), V, Out::kFull);
    phase.add(w.draft.confidence, h.data(), H + rank, at.data(), R, 0, 1, confidence.data(), 1, Out::kFull);
    phase.run();
    for (size_t i = 0; i < spans.size(); ++i) {
      A* row = draft_logits.data() + at[i] * V;
      k.add(markov.data() + static_cast<int64_t>(i) * V, V, row);
      out[i].confidence_logits.push_back(confidence[i]);
      out[i].tokens.push_back((*spans[i].pick)(row, V, spans[i].sequence->length + 1 + t));
    }
  }
  for (int64_t i = 0; with_logits && i < R; ++i) {
    auto begin = draft_logits.begin() + i * n * V;
    out[static_cast<size_t>(i)].logits.assign(begin, begin + n * V);
  }
  lap(StepPart::kDraft);
  if (profile != nullptr) profile->total_ns += now_ns() - begun;
  return out;
}

#define DI_INSTANTIATE(A)                                       \
  template void Forward<A>::Impl::keep_features(const RowSet&); \
  template std::vector<DraftResult<A>> Forward<A>::Impl::draft(const std::vector<DraftSpan<A>>&, bool);
DI_INSTANTIATE(float)
DI_INSTANTIATE(double)
#undef DI_INSTANTIATE

}  // namespace deepinfer
