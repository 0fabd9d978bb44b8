// The skeleton of the forward pass: embedding, layers, the narrowing from encoder rows to decoder rows, head.
#include "engine/forward.h"

#include <atomic>
#include <cmath>
#include <functional>

#include "engine/forward_impl.h"
#include "engine/row_cuts.h"
#include "host/row_share.h"

namespace deepinfer {

template <typename A>
void LinearPhase<A>::add(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T,
                         int64_t row0, int64_t row1, A* y, int64_t ldy, Out out) {
  if (T == 0 || row1 <= row0) return;
  work_->bytes += matrix_bytes(w, row1 - row0);
  work_->macs += (row1 - row0) * std::max<int64_t>(1, w.cols * T);
  products_.push_back({&w, x, ldx, rows, T, row0, row1, y, ldy, out, input_of(w, x, ldx, rows, T)});
}

// Pieces of at least 256 K multiply-adds, which hide the hand-out; those of a memory node's rows together.
template <typename A>
void LinearPhase<A>::cut() {
  const int nodes = pool_->groups();
  ends_.clear();
  for (int node = 0; node < nodes; ++node) {
    const auto share = [&](const Product& p) {
      const RowShare s = row_share(p.w->rows, node, nodes);
      return RowShare{std::max(p.row0, s.begin), std::min(p.row1, s.end)};
    };
    RowCuts cuts{0, pool_->group_threads(node), int64_t{1} << 18, 4096};
    for (const Product& p : products_) {
      const RowShare s = share(p);
      cuts.left += std::max<int64_t>(0, s.end - s.begin) * p.cost();
    }
    for (const Product& p : products_) {
      const bool plain = p.w->format == WeightFormat::kF32 || p.w->format == WeightFormat::kF64;
      const RowShare s = share(p);
      for (int64_t r = s.begin; r < s.end; r = pieces_.back().row1)
        pieces_.push_back({&p, r, r + cuts.next(s.end - r, p.cost(), plain ? 4 : 32)});
    }
    ends_.push_back(static_cast<int64_t>(pieces_.size()));
  }
}

template <typename A>
int LinearPhase<A>::input_of(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T) {
  if (k_.prepared_bytes(w.format, w.cols) == 0) return -1;
  WeightFormat form = form_of(w.format);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Input& in = inputs_[i];
    if (in.x == x && in.ldx == ldx && in.rows == rows && in.T == T && in.cols == w.cols && in.form == form)
      return static_cast<int>(i);
  }
  inputs_.push_back({x, ldx, rows, T, w.cols, form, true});
  return static_cast<int>(inputs_.size()) - 1;
}

template <typename A>
void LinearPhase<A>::fill_forms() {
  if (forms_->size() < inputs_.size()) forms_->resize(inputs_.size());
  int64_t total = 0;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    (*forms_)[i].start(k_, inputs_[i].form, inputs_[i].cols, inputs_[i].T);
    total += inputs_[i].T;
  }
  auto fill = [&](int64_t row, int) {
    size_t i = 0;
    for (; row >= inputs_[i].T; ++i) row -= inputs_[i].T;
    Input& in = inputs_[i];
    const A* x = in.x + (in.rows != nullptr ? int64_t{in.rows[row]} : row) * in.ldx;
    if (!(*forms_)[i].put(row, x, 0, in.cols)) std::atomic_ref<bool>(in.exact).store(false);
  };
  if (total < 4 * pool_->threads()) {
    for (int64_t row = 0; row < total; ++row) fill(row, 0);
  } else {
    ++work_->jobs;
    pool_->run(total, std::cref(fill));
  }
}

template <typename A>
void LinearPhase<A>::run() {
  fill_forms();
  cut();
  if (pieces_.size() > 1) ++work_->jobs;
  pool_->run_grouped(ends_, [&](int64_t i, int) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    const Product& p = *piece.product;
    if (p.input >= 0 && inputs_[static_cast<size_t>(p.input)].exact)
      return (*forms_)[static_cast<size_t>(p.input)].product(*p.w, 0, nullptr, p.T, piece.row0, piece.row1,
                                                             p.y, p.ldy, p.out);
    k_.linear(*p.w, p.x, p.ldx, p.rows, p.T, piece.row0, piece.row1, p.y, p.ldy, p.out);
  });
  products_.clear();
  pieces_.clear();
  inputs_.clear();
}

template <typename A>
Forward<A>::Impl::Impl(const ModelWeights* weights, ThreadPool* p, const ForwardOptions<A>& options)
    : w(*weights),
      c(weights->config),
      pool(p),
      k(options.kernels != nullptr ? *options.kernels : kernels<A>()),
      layout(make_cache_layout<A>(weights->config, options.quantise_caches)),
      roles(layer_map(weights->config)),
      hash(make_engram_hash(weights->config)),
      hc{c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps},
      residency(*weights),
      routing(options.routing) {
  for (double f : main_rope_frequencies(c)) main_freq.push_back(static_cast<A>(f));
  for (double f : compress_rope_frequencies(c)) compress_freq.push_back(static_cast<A>(f));
  worker.resize(static_cast<size_t>(pool->threads()));
  worker_int.resize(static_cast<size_t>(pool->threads()));
}

namespace {

RowSet make_rows(const std::vector<RowSpan>& spans) {
  RowSet rows;
  for (const RowSpan& s : spans) {
    DI_CHECK(s.sequence != nullptr && s.begin >= 0 && s.begin <= s.end && s.begin <= s.sequence->length &&
                 s.end <= static_cast<int64_t>(s.sequence->tokens.size()),
             fmt::format("row span [{}, {}) of a sequence of length {} with {} tokens", s.begin, s.end,
                         s.sequence == nullptr ? -1 : s.sequence->length,
                         s.sequence == nullptr ? 0 : s.sequence->tokens.size()));
    rows.spans.push_back({s.sequence, s.begin, s.end, rows.size(), &s.captures, s.gate});
    for (const SnapshotCapture& x : s.captures) {
      DI_CHECK(x.into != nullptr && x.boundary > s.begin && x.boundary <= s.end, "snapshot outside its span");
      x.into->boundary = x.boundary;
    }
    for (int64_t p = s.begin; p < s.end; ++p) {
      rows.position.push_back(p);
      rows.span_of.push_back(static_cast<int32_t>(rows.spans.size() - 1));
    }
  }
  return rows;
}

}  // namespace

template <typename A>
void Forward<A>::Impl::embed(const RowSet& rows) {
  int64_t T = rows.size(), H = c.hidden_size;
  grow(&X, T * c.hc_mult * H);
  grow(&pre, T * c.hc_mult);
  for_rows(T, [&](int64_t t, int) {
    const SpanRows& s = rows.spans[static_cast<size_t>(rows.span_of[static_cast<size_t>(t)])];
    int64_t p = rows.position[static_cast<size_t>(t)];
    A* x = X.data() + t * c.hc_mult * H;
    if (const ImageSpan* image = s.sequence->image_at(p)) {
      const float* row = image->rows.data() + (p - image->begin) * H;
      std::copy(row, row + H, x);
      k.round(x, H, x);
    } else {
      k.decode_row(w.embed, s.sequence->tokens[static_cast<size_t>(p)], x);
    }
    for (int i = 1; i < c.hc_mult; ++i) std::copy(x, x + H, x + i * H);
    A* pr = pre.data() + t * c.hc_mult;
    std::fill(pr, pr + c.hc_mult, A(0));
    pr[0] = A(1);
  });
}

template <typename A>
void Forward<A>::Impl::rotary_tables(const RowSet& rows) {
  int64_t T = rows.size(), n = c.rotary_pairs();
  for (auto* v : {&cos_main, &sin_main, &cos_comp, &sin_comp}) grow(v, T * n);
  for_rows(T, [&](int64_t t, int) {
    int64_t p = rows.position[static_cast<size_t>(t)];
    rotary_row(p, main_freq, cos_main.data() + t * n, sin_main.data() + t * n);
    rotary_row(p, compress_freq, cos_comp.data() + t * n, sin_comp.data() + t * n);
  });
}

template <typename A>
void Forward<A>::Impl::expand_row(int64_t t) {
  int64_t H = c.hidden_size, m = c.hc_mult;
  k.hc_expand(y.data() + t * H, post.data() + t * m, comb.data() + t * m * m, c.hc_mult, H,
              X.data() + t * m * H);
}

template <typename A>
void Forward<A>::Impl::settle(int64_t T) {
  if (!pending) return;
  pending = false;
  for_rows(T, [&](int64_t t, int) { expand_row(t); });
  lap(StepPart::kStreams);
}

template <typename A>
void Forward<A>::Impl::site_row(const HcSite& h, const SmallTensor& norm, const A* c_pre, A* pre_out,
                                int64_t t) {
  int64_t n = c.hc_mix_width(), width = c.hc_input_width(), m = c.hc_mult, H = c.hidden_size;
  const A* x = X.data() + t * width;
  A mean = k.sum_squares(x, width) / static_cast<A>(width);
  k.hc_coefficients(mix.data() + t * n, mean, h.base.template data<A>(), h.scale.template data<A>(), hc,
                    pre_out + t * m, post.data() + t * m, comb.data() + t * m * m);
  A* out = u.data() + t * H;
  k.hc_collapse(x, c_pre + t * m, c.hc_mult, H, out);
  k.rms_norm(out, norm.template data<A>(), H, c.rms_norm_eps, out);
}

// Many rows: every thread takes a few rows through all of it while their streams are in its cache. Few rows:
// the mixing product is spread over the threads by its outputs.
template <typename A>
void Forward<A>::Impl::site(const HcSite& h, const SmallTensor& norm, const A* c_pre, A* pre_out, int64_t T) {
  int64_t n = c.hc_mix_width(), width = c.hc_input_width(), threads = pool->threads();
  grow(&mix, T * n);
  if (T < 2 * threads) {
    settle(T);
    LinearPhase<A> phase(k, pool, &work, &forms);
    phase.add(h.fn, X.data(), width, T, mix.data(), n, Out::kFull);
    phase.run();
    for_rows(T, [&](int64_t t, int) { site_row(h, norm, c_pre, pre_out, t); });
    return;
  }
  int64_t tile = std::clamp<int64_t>(T / (2 * threads), 1, 16), tiles = (T + tile - 1) / tile;
  work.bytes += matrix_bytes(h.fn, h.fn.rows);
  work.macs += T * n * width;
  for_rows(tiles, [&](int64_t i, int) {
    int64_t t0 = i * tile, t1 = std::min(T, t0 + tile);
    if (pending)
      for (int64_t t = t0; t < t1; ++t) expand_row(t);
    k.linear(h.fn, X.data() + t0 * width, width, nullptr, t1 - t0, 0, h.fn.rows, mix.data() + t0 * n, n,
             Out::kFull);
    for (int64_t t = t0; t < t1; ++t) site_row(h, norm, c_pre, pre_out, t);
  });
  pending = false;
}

// Single-pass schedule: the `pre` a site computes is used by the NEXT site (model specification 2.4).
template <typename A>
void Forward<A>::Impl::block(const BlockWeights& b, int64_t T, const std::function<void()>& attend,
                             const std::function<void()>& ffn) {
  int64_t H = c.hidden_size, m = c.hc_mult;
  grow(&pre_attn, T * m);
  grow(&post, T * m);
  grow(&comb, T * m * m);
  grow(&u, T * H);
  grow(&y, T * H);
  site(b.hc_attn, b.attn_norm, pre.data(), pre_attn.data(), T);
  lap(StepPart::kStreams);
  attend();
  pending = true;
  site(b.hc_ffn, b.ffn_norm, pre_attn.data(), pre.data(), T);
  lap(StepPart::kStreams);
  int64_t touched = touched_experts;
  ffn();
  pending = true;
  const ExpertWeights& e = b.shared;
  int64_t expert_bytes =
      matrix_bytes(e.w1, e.w1.rows) + matrix_bytes(e.w2, e.w2.rows) + matrix_bytes(e.w3, e.w3.rows);
  work.bytes += expert_bytes;
  if (touched_experts > touched) {
    const ExpertWeights& r = b.experts.front();
    work.bytes +=
        (touched_experts - touched) *
        (matrix_bytes(r.w1, r.w1.rows) + matrix_bytes(r.w2, r.w2.rows) + matrix_bytes(r.w3, r.w3.rows));
  }
  lap(StepPart::kExperts);
}

template <typename A>
void Forward<A>::Impl::layer(int l, const RowSet& rows, ForwardTrace<A>* trace) {
  const BlockWeights& b = w.layers[static_cast<size_t>(l)];
  const LayerRole& role = roles[static_cast<size_t>(l)];
  int64_t T = rows.size(), H = c.hidden_size, m = c.hc_mult;
  if (role.engram >= 0) {
    settle(T);
    engram(l, rows, trace);
    lap(StepPart::kEngram);
  }
  if (role.tap >= 0) {
    settle(T);
    int64_t taps = static_cast<int64_t>(c.dspark_target_layer_ids.size());
    grow(&main_features, T * taps * H);
    for_rows(T, [&](int64_t t, int) {
      k.hc_mean(X.data() + t * m * H, c.hc_mult, H, main_features.data() + (t * taps + role.tap) * H);
    });
  }
  auto* routes = trace == nullptr ? nullptr : &trace->layers[static_cast<size_t>(l)].route;
  block(
      b, T, [&] { attention(l, rows, trace); },
      [&] {
        moe(b, c.n_routed_experts, c.num_experts_per_tok, &rows, T, routes);
        work.macs += T * (c.num_experts_per_tok + 1) * 3 * H * c.moe_intermediate_size;
      });
  if (trace != nullptr) {
    settle(T);
    auto& tl = trace->layers[static_cast<size_t>(l)];
    tl.streams.assign(X.begin(), X.begin() + T * m * H);
    tl.pre.assign(pre.begin(), pre.begin() + T * m);
  }
}

// Moves streams and `pre` of the rows at or above their sequence's decoder floor to the front; `kept` gets
// their old row numbers.
template <typename A>
RowSet Forward<A>::Impl::compact_to_decoder(const RowSet& rows, std::vector<int64_t>* kept) {
  RowSet out;
  int64_t width = c.hc_input_width(), m = c.hc_mult;
  for (const SpanRows& s : rows.spans) {
    int64_t begin = std::clamp(s.sequence->decoder_floor, s.begin, s.end);
    out.spans.push_back({s.sequence, begin, s.end, out.size(), nullptr, s.gate});
    for (int64_t p = begin; p < s.end; ++p) {
      int64_t from = s.row0 + (p - s.begin), to = out.size();
      kept->push_back(from);
      if (from != to) {
        std::copy_n(X.begin() + from * width, width, X.begin() + to * width);
        std::copy_n(pre.begin() + from * m, m, pre.begin() + to * m);
      }
      out.position.push_back(p);
      out.span_of.push_back(static_cast<int32_t>(out.spans.size() - 1));
    }
  }
  return out;
}

template <typename A>
ForwardResult<A> Forward<A>::Impl::run(const std::vector<RowSpan>& spans, ForwardTrace<A>* trace) {
  ForwardResult<A> result;
  result.vocab = c.vocab_size;
  RowSet rows = make_rows(spans);
  touched_experts = 0;
  pending = false;
  begin_profile();
  int64_t begun = lap_from;
  if (trace != nullptr) trace->layers.assign(static_cast<size_t>(c.num_hidden_layers), {});
  int half = c.first_decoder_layer();
  if (rows.size() > 0) {
    embed(rows);
    rotary_tables(rows);
    lap(StepPart::kEmbed);
    for (int l = 0; l < half; ++l) layer(l, rows, trace);
    settle(rows.size());
    publish_only(half, rows);
    lap(StepPart::kPublish);
    std::vector<int64_t> kept;
    RowSet dec = compact_to_decoder(rows, &kept);
    lap(StepPart::kNarrow);
    if (dec.size() > 0) {
      if (dec.size() != rows.size()) rotary_tables(dec);
      for (int l = half; l < c.num_hidden_layers; ++l) layer(l, dec, trace);
      settle(dec.size());
      keep_features(dec);
      lap(StepPart::kDraftFeed);
      for (size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].logits_from < 0) continue;
        for (int64_t p = std::max(spans[i].logits_from, dec.spans[i].begin); p < spans[i].end; ++p) {
          result.rows.push_back({static_cast<int>(i), p});
        }
      }
      int64_t n = static_cast<int64_t>(result.rows.size()), H = c.hidden_size;
      std::vector<A> h(static_cast<size_t>(n * H));
      for_rows(n, [&](int64_t i, int) {
        const auto& r = result.rows[static_cast<size_t>(i)];
        const SpanRows& s = dec.spans[static_cast<size_t>(r.span)];
        int64_t t = s.row0 + (r.position - s.begin);
        A* out = h.data() + i * H;
        k.hc_collapse(X.data() + t * c.hc_mult * H, pre.data() + t * c.hc_mult, c.hc_mult, H, out);
        k.rms_norm(out, w.norm.template data<A>(), H, c.rms_norm_eps, out);
      });
      result.logits.resize(static_cast<size_t>(n * result.vocab));
      LinearPhase<A> phase(k, pool, &work, &forms);
      phase.add(w.head, h.data(), H, n, result.logits.data(), result.vocab, Out::kFull);
      phase.run();
      lap(StepPart::kHead);
    }
  }
  if (profile != nullptr) {
    profile->total_ns += now_ns() - begun;
    ++profile->calls;
  }
  result.experts = touched_experts;
  for (const RowSpan& s : spans) {
    s.sequence->length = s.end;
    note_written(*s.sequence, s.end);
  }
  return result;
}

template <typename A>
Forward<A>::Forward(const ModelWeights* weights, ThreadPool* pool, const ForwardOptions<A>& options)
    : impl_(std::make_unique<Impl>(weights, pool, options)) {}
template <typename A>
Forward<A>::~Forward() = default;
template <typename A>
const ModelConfig& Forward<A>::config() const {
  return impl_->c;
}
template <typename A>
const CacheLayout& Forward<A>::layout() const {
  return impl_->layout;
}
template <typename A>
ForwardResult<A> Forward<A>::run(const std::vector<RowSpan>& spans, ForwardTrace<A>* trace) {
  return impl_->run(spans, trace);
}
template <typename A>
DraftResult<A> Forward<A>::draft(SequenceState* sequence, int32_t next, const DraftPick<A>& pick) {
  return std::move(impl_->draft({{sequence, next, &pick}}, true).front());
}
template <typename A>
std::vector<DraftResult<A>> Forward<A>::draft(const std::vector<DraftSpan<A>>& spans, bool with_logits) {
  return impl_->draft(spans, with_logits);
}
template <typename A>
void Forward<A>::set_profile(StepProfile* profile) {
  impl_->profile = profile;
}
template <typename A>
ExpertUse Forward<A>::expert_use() const {
  const policy::ExpertCache& c = impl_->residency.state();
  return {c.uses, c.misses, c.evictions, c.resident, c.capacity, impl_->residency.expert_bytes()};
}

template <typename A>
bool Forward<A>::valid_token(int32_t id) const {
  return id >= 0 && id < impl_->c.vocab_size;
}

template class LinearPhase<float>;
template class LinearPhase<double>;
template struct Forward<float>::Impl;
template struct Forward<double>::Impl;
template class Forward<float>;
template class Forward<double>;

}  // namespace deepinfer
