// One step: settle what changed hands, guess, run the rows, decide what they mean.
#include "engine/step_runner.h"

#include <algorithm>

#include "engine/prefix_identity.h"
#include "engine/sequence_record.h"

namespace deepinfer {

StepRunner::StepRunner(Forward<float>* model, ThreadPool* pool, BlockArena* arena,
                       const StepRunnerOptions& options)
    : model_(model),
      pool_(pool),
      arena_(arena),
      options_(options),
      vocab_(model->config().vocab_size),
      block_tokens_(model->layout().block_tokens),
      speculation_(*policy::make_speculation(options.speculation)),
      snapshots_(static_cast<size_t>(options.snapshot_slots)) {
  policy::apply(&speculation_, options.curves);
}

StepRunner::~StepRunner() = default;

void StepRunner::span(const char* name, int64_t step, int64_t begin_ns, int64_t end_ns) {
  if (options_.trace != nullptr) options_.trace->span(name, TraceTrack::kExecutor, step, begin_ns, end_ns);
}

// Its caches go; what it said stays.
void StepRunner::suspend(Sequence* s) {
  if (s->state == nullptr) return;
  s->tokens = std::move(s->state->tokens);
  spare_.push_back(std::move(s->state));
  s->entered = false;
  s->gate = nullptr;
  if (s->produced == 0) s->prompt_logprobs.clear();  // its rows run again
}

void StepRunner::settle(const StepOrder& order) {
  for (const WindowOrder& w : order.windows)
    snapshots_[static_cast<size_t>(raw(w.slot))] = std::move(*w.window);
  for (policy::SeqId id : order.forget) {
    auto it = sequences_.find(raw(id));
    if (it == sequences_.end()) continue;  // it never got as far as this thread
    suspend(it->second.get());
    sequences_.erase(it);
    policy::apply(&speculation_, policy::SequenceGone{id});
  }
  for (policy::SeqId id : order.suspend) suspend(sequences_.at(raw(id)).get());
  for (const AdmitOrder& a : order.admit) {
    if (a.fresh != nullptr) {
      bool fresh = sequences_.emplace(raw(a.seq), std::make_unique<Sequence>(a.fresh)).second;
      DI_CHECK(fresh, "a sequence is admitted for the first time twice");
    }
    Sequence* s = sequences_.at(raw(a.seq)).get();
    DI_CHECK(s->state == nullptr, "a sequence is admitted while it runs");
    if (spare_.empty()) {
      s->state = std::make_unique<SequenceState>(model_->config(), model_->layout(), arena_);
    } else {
      s->state = std::move(spare_.back());
      spare_.pop_back();
      s->state->reset();
    }
    s->state->tokens = std::move(s->tokens);
    s->tokens.clear();
    s->state->images = s->request().images;
    s->window_from = a.fresh == nullptr ? policy::StateOrigin::kResumed
                     : a.blocks.empty() ? policy::StateOrigin::kCold
                                        : policy::StateOrigin::kHit;
    for (policy::BlockId id : a.blocks) s->state->blocks.push_back(raw(id));
    s->gate = a.gate;
  }
}

// The step's blocks and floors; before the first rows also the window they continue from.
void StepRunner::enter(Sequence* s, const StepOrder& order, const policy::RowRun& run) {
  SequenceState& state = *s->state;
  for (int32_t i = 0; i < run.block_count; ++i) {
    BlockId id = raw(order.new_blocks[static_cast<size_t>(run.first_block + i)]);
    state.blocks.push_back(id);
    if (options_.poison_blocks) arena_->poison(id);
  }
  state.encoder_floor = run.encoder_floor;
  state.decoder_floor = run.decoder_floor;
  state.publish_from = run.publish_from;
  if (s->entered) return;
  s->entered = true;
  if (run.restore != policy::kNoSnapshot) {
    int64_t t = options_.now_ns();
    state.restore(snapshots_[static_cast<size_t>(raw(run.restore))]);
    span("restore", raw(order.step), t, options_.now_ns());
  } else {
    state.encoder_floor = std::max(run.encoder_floor, run.begin);
    DI_CHECK(state.encoder_floor == run.encoder_floor, "rows begin in the middle without a window");
    state.start_at(run.begin);
  }
}

// Asks the forward pass for a copy of the window where the rows pass the boundary.
void StepRunner::capture(const policy::RowRun& run, int64_t begin, int64_t end, RowSpan* rows) {
  auto add = [&](policy::SnapshotId id, int64_t boundary) {
    if (id == policy::kNoSnapshot || boundary <= begin || boundary > end) return;
    WindowSnapshot& slot = snapshots_[static_cast<size_t>(raw(id))];
    if (slot.rings.empty()) slot = make_window_snapshot(model_->config(), model_->layout());
    rows->captures.push_back({boundary, &slot});
  };
  add(run.snapshot, run.snapshot_boundary);
  add(run.cap_snapshot, run.cap_boundary);
}

// False: the choice is over, its rows are not run.
bool StepRunner::prepare(const StepOrder& order, const policy::RowRun& run, Work* work, StepOutcome* out) {
  work->run = &run;
  work->outcome->result.seq = run.seq;
  auto it = sequences_.find(raw(run.seq));
  DI_CHECK(it != sequences_.end(), "rows of a sequence that was never admitted");
  Sequence* s = it->second.get();
  s->over = s->over || s->origin->cancelled->load(std::memory_order_relaxed);
  if (s->over) {
    work->outcome->dropped = true;
    work->outcome->result.finished = true;
    out->dropped_rows += run.rows;
    out->irregular = true;
    return false;
  }
  if (!run.loading) s->gate = nullptr;
  DI_CHECK(!run.loading || s->gate != nullptr, "rows of a load without its gate");
  if (run.loading && s->gate->lost()) {
    lose(s, work->outcome, out);
    return false;
  }
  work->s = s;
  enter(s, order, run);
  if (run.prefill) {
    prepare_prefill(run, work, out);
  } else {
    prepare_decode(work);
  }
  return true;
}

// Its load ended short: as if it had not run. It comes back with what did arrive.
void StepRunner::lose(Sequence* s, RunOutcome* outcome, StepOutcome* out) {
  outcome->result.lost = true;
  out->irregular = true;
  suspend(s);
}

// After the rows: which of them waited for a load that did not come.
void StepRunner::settle_loads(std::vector<Work>* works, StepOutcome* out) {
  for (Work& work : *works) {
    std::shared_ptr<LoadGate> gate = work.s->gate;
    if (gate == nullptr) continue;
    bool whole = gate->whole();
    out->load_wait_ns += gate->waited_ns();
    // Time of waiting is none of the rows'.
    out->irregular = out->irregular || gate->waited_ns() > 0;
    if (whole) {
      work.s->gate = nullptr;
    } else {
      lose(work.s, work.outcome, out);
    }
  }
}

void StepRunner::prepare_prefill(const policy::RowRun& run, Work* work, StepOutcome* out) {
  Sequence* s = work->s;
  int64_t begin = run.begin, end = run.begin + run.rows;
  DI_CHECK(
      s->state->length == begin && (run.yields == (end == static_cast<int64_t>(s->state->tokens.size()))),
      fmt::format("prefill of [{}, {}) at {} of {}", begin, end, s->state->length, s->state->tokens.size()));
  out->prefill_rows += run.rows;
  int64_t logits_from = run.yields ? end - 1 : -1;
  if (s->scores_prompt()) {
    // Every row has logits: pieces of bounded size, the last of them together with the other sequences.
    int64_t piece = std::max<int64_t>(1, kScoreBytes / (vocab_ * static_cast<int64_t>(sizeof(float))));
    for (; end - begin > piece; begin += piece) {
      RowSpan rows{s->state.get(), begin, begin + piece, begin};
      capture(run, begin, begin + piece, &rows);
      score_prompt(s, model_->run({rows}), 0, piece);
      out->irregular = true;
    }
    logits_from = begin;
  }
  work->rows = {s->state.get(), begin, end, logits_from};
  work->rows.gate = s->gate.get();
  capture(run, begin, end, &work->rows);
}

void StepRunner::prepare_decode(Work* work) {
  Sequence* s = work->s;
  const policy::RowRun& run = *work->run;
  int64_t begin = s->state->length;
  DI_CHECK(begin >= run.begin && begin <= run.begin_max &&
               static_cast<int64_t>(s->state->tokens.size()) == begin + 1,
           fmt::format("decode planned at {} to {}, sequence at {} of {}", run.begin, run.begin_max, begin,
                       s->state->tokens.size()));
  // The last allowed token needs no successor.
  work->most_drafts = std::min<int64_t>(run.drafts, s->request().max_tokens - s->produced - 1);
  if (!s->request().speculate) work->most_drafts = 0;
}

StepOutcome StepRunner::execute(const StepOrder& order) {
  StepOutcome out;
  out.step = order.step;
  settle(order);
  if (raw(order.step) == 0) return out;
  out.begin_ns = options_.now_ns();
  out.runs.resize(order.runs.size());
  std::vector<Work> works;
  works.reserve(order.runs.size());
  for (size_t i = 0; i < order.runs.size(); ++i) {
    Work work;
    work.outcome = &out.runs[i];
    if (prepare(order, order.runs[i], &work, &out)) works.push_back(std::move(work));
  }
  guess(&works, &out);
  std::vector<RowSpan> spans;
  for (Work& work : works) {
    if (!work.run->prefill) place_decode(&work, &out);
    out.decoder_rows += policy::decoder_rows(work.rows.begin, work.rows.end, work.run->decoder_floor);
    spans.push_back(work.rows);
  }
  int64_t t0 = options_.now_ns();
  ForwardResult<float> logits = model_->run(spans);
  settle_loads(&works, &out);
  int64_t t1 = options_.now_ns();
  for (size_t i = logits.rows.size(); i-- > 0;) {
    Work& work = works[static_cast<size_t>(logits.rows[i].span)];
    work.first_row = i;
    ++work.row_count;
  }
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool_->threads()));
  pool_->run(static_cast<int64_t>(works.size()), [&](int64_t i, int worker) {
    if (!works[static_cast<size_t>(i)].outcome->result.lost)
      conclude(logits, &works[static_cast<size_t>(i)], &scratch[static_cast<size_t>(worker)]);
  });
  out.end_ns = options_.now_ns();
  out.forward_ns = t1 - t0;
  out.sample_ns = out.end_ns - t1;
  judge(works, logits.experts, &out);
  span("forward", raw(order.step), t0, t1);
  span("sample", raw(order.step), t1, out.end_ns);
  span("step", raw(order.step), out.begin_ns, out.end_ns);
  return out;
}

}  // namespace deepinfer
