// Internals of the forward pass shared by its parts (attention, MoE, Engram, draft). Private to the engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "engine/expert_residency.h"
#include "engine/forward.h"
#include "engine/moe_scratch.h"
#include "engine/prepared_rows.h"
#include "engine/step_profile.h"
#include "host/clock.h"
#include "model/rope.h"

namespace deepinfer {

// A row set: which sequence and position each row of the activation matrix is. Decoder layers work on a
// subset of the batch.
struct SpanRows {
  SequenceState* sequence = nullptr;
  int64_t begin = 0, end = 0;  // positions
  int64_t row0 = 0;            // first row of the span in the set
  const std::vector<SnapshotCapture>* captures = nullptr;
  LoadGate* gate = nullptr;
};
struct RowSet {
  std::vector<SpanRows> spans;
  std::vector<int64_t> position;  // [T]
  std::vector<int32_t> span_of;   // [T]
  int64_t size() const { return static_cast<int64_t>(position.size()); }
};

// Matrix products of one phase, cut into pieces of output rows and run by all threads behind one barrier. The
// cut never changes a bit: an output element is one dot product. Inputs that the kernels read in another form
// are put into it once, however many products and pieces read them: by the calling thread for few rows, by
// all threads behind one more barrier for many.
template <typename A>
class LinearPhase {
 public:
  // `forms` keeps the memory of the inputs' forms between phases.
  LinearPhase(const Kernels<A>& k, ThreadPool* pool, StepWork* work, std::vector<PreparedRows<A>>* forms)
      : k_(k), pool_(pool), work_(work), forms_(forms) {}
  // y[t*ldy + o] = W[o] . x[row(t)*ldx ..] for o in [row0, row1).
  void add(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
           int64_t row1, A* y, int64_t ldy, Out out);
  void add(const MatrixView& w, const A* x, int64_t ldx, int64_t T, A* y, int64_t ldy, Out out) {
    add(w, x, ldx, nullptr, T, 0, w.rows, y, ldy, out);
  }
  void run();

 private:
  struct Product {
    const MatrixView* w;
    const A* x;
    int64_t ldx;
    const int32_t* rows;
    int64_t T, row0, row1;
    A* y;
    int64_t ldy;
    Out out;
    int input;                                                          // of inputs_; -1: x is read as it is
    int64_t cost() const { return std::max<int64_t>(1, w->cols * T); }  // of a row, in multiply-adds
  };
  struct Piece {
    const Product* product;
    int64_t row0, row1;
  };
  struct Input {
    const A* x;
    int64_t ldx;
    const int32_t* rows;
    int64_t T, cols;
    WeightFormat form;
    bool exact;  // the form gives the bits of x itself
  };
  int input_of(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T);
  void fill_forms();
  void cut();

  const Kernels<A>& k_;
  ThreadPool* pool_;
  StepWork* work_;
  std::vector<PreparedRows<A>>* forms_;
  std::vector<Product> products_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> ends_;  // of the pieces of every memory node
  std::vector<Input> inputs_;
};

template <typename A>
struct Forward<A>::Impl {
  Impl(const ModelWeights* weights, ThreadPool* p, const ForwardOptions<A>& options);

  const ModelWeights& w;
  const ModelConfig& c;
  ThreadPool* pool;
  const Kernels<A>& k;
  CacheLayout layout;
  std::vector<LayerRole> roles;
  EngramHash hash;
  std::vector<A> main_freq, compress_freq;  // [pairs]
  HcParams hc;

  // ---- scratch, grown on demand and kept; contents never survive a layer unless said so
  std::vector<A> X, pre, pre_attn, post, comb, mix, u, y;  // streams [T, hc*H] and sites
  std::vector<A> qr, q, kv, o, oa;                         // attention
  std::vector<A> cos_main, sin_main, cos_comp, sin_comp;   // [T, pairs]
  std::vector<uint8_t> latent_codes, latent_scales;        // [T] window records of this call
  std::vector<A> comp_a, comp_g, iq, iw;                   // compressor rows, index queries and head weights
  std::vector<A> gathered_rows;                            // decoded records of few query rows
  std::vector<int32_t> selection, selection_count;  // [T, topk], [T]; survive until the next index source
  std::vector<std::vector<int32_t>> pool_blocks;    // [T] kept candidate blocks, ascending; empty: all
  std::vector<uint8_t> index_queries, index_ready;  // [T] prepared index queries, whether there are any
  MoeScratch<A> moe_scratch;
  std::vector<PreparedRows<A>> forms;     // of a phase's inputs
  std::vector<A> engram_rows, engram_kv;  // [T, lookup width], [T, (hc+1)*H]
  std::vector<A> main_features;           // [rows of the decoder set, or of a feed, taps*H]
  std::vector<A> draft_logits, markov;    // [draft rows, vocab], [drafting, vocab]
  ExpertResidency residency;
  Routing routing;
  uint64_t routing_calls = 0;          // of moe(), where routing is made up
  int64_t touched_experts = 0;         // distinct per layer, since the call began
  std::vector<std::vector<A>> worker;  // per-thread scratch
  std::vector<std::vector<int32_t>> worker_int;

  // ---- profile: what was done since the last lap, and since when
  StepProfile* profile = nullptr;
  StepWork work;
  int64_t lap_from = 0;
  // Books the time and the work since the last lap on a part.
  void lap(StepPart part) {
    if (profile == nullptr) return;
    int64_t now = now_ns();
    StepProfile::Line& line = (*profile)[part];
    line.ns += now - lap_from;
    line.work.bytes += work.bytes;
    line.work.macs += work.macs;
    line.work.jobs += work.jobs;
    work = {};
    lap_from = now;
  }
  void begin_profile() {
    work = {};
    if (profile != nullptr) lap_from = now_ns();
  }

  void for_rows(int64_t n, const std::function<void(int64_t, int)>& f) {
    if (n > 1) ++work.jobs;
    pool->run(n, f);
  }
  // The same for pieces that lie together by memory node (ThreadPool::run_grouped).
  void for_pieces(const std::vector<int64_t>& ends, const std::function<void(int64_t, int)>& f) {
    if (ends.back() > 1) ++work.jobs;
    pool->run_grouped(ends, f);
  }
  A* worker_scratch(int worker_id, int64_t n) {
    auto& v = worker[static_cast<size_t>(worker_id)];
    if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
    return v.data();
  }
  int32_t* worker_ints(int worker_id, int64_t n) {
    auto& v = worker_int[static_cast<size_t>(worker_id)];
    if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
    return v.data();
  }

  ForwardResult<A> run(const std::vector<RowSpan>& spans, ForwardTrace<A>* trace);
  void embed(const RowSet& rows);
  void rotary_tables(const RowSet& rows);
  RowSet compact_to_decoder(const RowSet& rows, std::vector<int64_t>* kept);
  void layer(int l, const RowSet& rows, ForwardTrace<A>* trace);
  // One block on the rows: attention site and FFN site; `attend` writes y from u.
  void block(const BlockWeights& b, int64_t T, const std::function<void()>& attend,
             const std::function<void()>& ffn);
  // What precedes a block on its rows: the streams take in the block before (where one is pending), the
  // mixing product and its coefficients (`pre_out`, post, comb), and u, collapsed with `c_pre` and normed.
  void site(const HcSite& h, const SmallTensor& norm, const A* c_pre, A* pre_out, int64_t T);
  void site_row(const HcSite& h, const SmallTensor& norm, const A* c_pre, A* pre_out, int64_t t);
  void expand_row(int64_t t);
  // The streams take in the last block's output now: something other than a site reads them next.
  void settle(int64_t T);
  bool pending = false;  // y, post and comb of the last block wait for the next site

  // attention.cc
  void attention(int l, const RowSet& rows, ForwardTrace<A>* trace);
  void await_source(int source, const RowSet& rows);
  // u -> qr, q (rotated), window records; with it the compressor's and the indexer's products, which read the
  // same input.
  void project_queries(const BlockWeights& b, int64_t T, const std::vector<A>& cos, const std::vector<A>& sin,
                       bool publishes);
  void encode_latents(const BlockWeights& b, int64_t T, const std::vector<A>& cos, const std::vector<A>& sin);
  void grow_latents(int64_t T);
  void encode_latent(const BlockWeights& b, int64_t t, const std::vector<A>& cos, const std::vector<A>& sin);
  // Decoded records of one query row: in the form the kernels multiply (kernels.h, gather_records), or as
  // values. Either way the memory has room for values.
  struct Gathered {
    A* values;
    bool form;
  };
  bool gathers_form() const {
    return k.gathered_bytes(layout.window.format, c.head_dim) > 0 &&
           k.gathered_bytes(layout.main.format, c.head_dim) > 0;
  }
  // n records that lie one after the other to records [i, i + n) of `out`; false where its form cannot hold
  // one.
  bool decode(const RecordLayout& r, const uint8_t* codes, const uint8_t* scales, int64_t i, int64_t n,
              const Gathered& out) const;
  // One query row, heads [h0, h1), against n gathered records: q is rotated, the softmax runs, o is rotated
  // back.
  void attend_heads(const BlockWeights& b, int64_t t, const A* cos, const A* sin, const Gathered& gathered,
                    int64_t n, int64_t h0, int64_t h1, A* scratch);
  // Records that row t attends: window ascending, then selected entries ascending.
  int64_t attended(int l, const RowSet& rows, int64_t t, int64_t* window) const;
  // Decodes records [i0, i1) of what row t attends to `out`; false where the form cannot hold one.
  bool gather(int l, const RowSet& rows, int64_t t, int64_t window, int64_t i0, int64_t i1,
              const Gathered& out) const;
  void attend_rows(int l, const RowSet& rows, const std::vector<A>& cos, const std::vector<A>& sin);
  void output_projection(const BlockWeights& b, int64_t T);
  void store_rings(int l, const RowSet& rows);
  void capture_windows(int l, const SpanRows& span);
  // compressor.cc
  // Main entries and index keys of the rows' complete groups, from comp_a / comp_g; keeps open groups in the
  // tails.
  void publish(int l, const RowSet& rows);
  // The first decoder layer's share for rows that run no decoder layer: only its compressor.
  void publish_only(int l, const RowSet& rows);
  void store_entry(int l, SequenceState* s, int64_t entry, const A* latent, A* scratch);
  // indexer.cc
  void index_select(int l, const RowSet& rows);
  std::vector<std::vector<int32_t>> pool_entries(const RowSet& rows) const;

  // moe.cc
  void moe(const BlockWeights& b, int experts, int top_k, const RowSet* rows, int64_t T,
           std::vector<std::vector<int32_t>>* route_trace);
  void group_by_expert(const BlockWeights& b, int experts, int64_t K, int64_t T);
  void expert_up(const typename MoeScratch<A>::Piece& p, int64_t pairs, int worker_id);
  void experts_down(int64_t begin, int64_t end, int64_t K, int64_t T, int worker_id);
  // engram.cc
  void engram(int l, const RowSet& rows, ForwardTrace<A>* trace);
  // draft.cc
  void keep_features(const RowSet& rows);
  int64_t draft_window_begin(const SequenceState& s) const;
  void feed_draft(const std::vector<DraftSpan<A>>& spans);
  void draft_attention(const BlockWeights& b, size_t stage, const std::vector<DraftSpan<A>>& spans,
                       const std::vector<A>& cos, const std::vector<A>& sin);
  void embed_drafts(const std::vector<DraftSpan<A>>& spans, std::vector<A>* cos, std::vector<A>* sin);
  std::vector<DraftResult<A>> draft(const std::vector<DraftSpan<A>>& spans, bool with_logits);
};

template <typename V>
void grow(std::vector<V>* v, int64_t n) {
  if (static_cast<int64_t>(v->size()) < n) v->resize(static_cast<size_t>(n));
}

// Fills cos/sin [pairs] for a position: the angle is the product in the activation's precision (fp32 in
// native mode, as the reference builds its table), the functions are evaluated in double and rounded once.
template <typename A>
void rotary_row(int64_t position, const std::vector<A>& freq, A* cos, A* sin) {
  for (size_t i = 0; i < freq.size(); ++i) {
    double angle = static_cast<double>(static_cast<A>(position) * freq[i]);
    cos[i] = static_cast<A>(std::cos(angle));
    sin[i] = static_cast<A>(std::sin(angle));
  }
}

}  // namespace deepinfer
