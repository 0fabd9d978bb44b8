// The loop: prefill, then (draft, verify, accept) until something ends it.
#include "engine/generator.h"

#include <algorithm>

#include "model/sizes.h"

namespace deepinfer {
namespace {

template <typename A>
class Run {
 public:
  Run(Forward<A>* model, BlockPool* blocks, const GenerateOptions& options,
      const std::function<bool(int32_t)>& on_token, const std::atomic<bool>* stop)
      : model_(model),
        o_(options),
        on_token_(on_token),
        stop_(stop),
        state_(model->config(), model->layout(), blocks) {}

  Status prefill(const std::vector<int32_t>& prompt) {
    int64_t n = static_cast<int64_t>(prompt.size());
    int64_t keep = o_.keep == 0 ? ring_slots(model_->config()) : o_.keep;
    state_.tokens = prompt;
    state_.decoder_floor = keep < 0 ? 0 : std::max<int64_t>(0, n - keep);
    DI_TRY(state_.reserve(n));
    for (int64_t at = 0; at < n && !stopped();) {
      int64_t end = std::min(n, at + std::max<int64_t>(1, o_.chunk));
      auto r = model_->run({{&state_, at, end, end == n ? n - 1 : -1}});
      if (end == n) next_ = pick(r.row(0), n);
      at = end;
    }
    return {};
  }

  Status decode(GenerateStats* stats) {
    int drafts = o_.speculate ? model_->config().dspark_block_size : 0;
    if (model_->config().num_nextn_predict_layers == 0) drafts = 0;
    if (o_.drafts >= 0) drafts = std::min(drafts, o_.drafts);
    if (stopped()) {
      stats->finish = GenerateStats::Finish::kCancelled;
      return {};
    }
    if (emit(next_, stats)) return {};
    while (true) {
      if (stopped()) {
        stats->finish = GenerateStats::Finish::kCancelled;
        return {};
      }
      int64_t p = state_.length;  // position of next_, whose row is still to run
      // No more drafts than tokens that may still be produced: the last allowed token needs no successor.
      int m = static_cast<int>(std::min<int64_t>(drafts, o_.max_tokens - stats->generated_tokens - 1));
      std::vector<int32_t> guess;
      if (m > 0) {
        guess =
            model_
                ->draft(&state_, next_,
                        [&](const A* logits, int64_t, int64_t position) { return pick(logits, position); })
                .tokens;
        guess.resize(static_cast<size_t>(m));
      }
      state_.tokens.push_back(next_);
      state_.tokens.insert(state_.tokens.end(), guess.begin(), guess.end());
      DI_TRY(state_.reserve(p + 1 + m));
      auto r = model_->run({{&state_, p, p + 1 + m, p}});
      ++stats->steps;
      stats->drafted += m;
      int kept = 0;
      bool done = false;
      for (int i = 0; i <= m && !done; ++i) {
        next_ = pick(r.row(static_cast<size_t>(i)), p + 1 + i);
        bool matches = i < m && guess[static_cast<size_t>(i)] == next_;
        done = emit(next_, stats);
        if (!matches) break;
        ++kept;
      }
      stats->accepted += kept;
      if (done) return {};
      state_.truncate(p + 1 + kept);
    }
  }

 private:
  bool stopped() const { return stop_ != nullptr && stop_->load(std::memory_order_relaxed); }
  int32_t pick(const A* logits, int64_t position) const {
    return sample(logits, model_->config().vocab_size, position, o_.sampling, o_.banned_ids);
  }

  // Hands a token out; true when generation is over.
  bool emit(int32_t token, GenerateStats* stats) {
    if (std::binary_search(o_.stop_ids.begin(), o_.stop_ids.end(), token)) {
      stats->finish = GenerateStats::Finish::kStop;
      return true;
    }
    ++stats->generated_tokens;
    if (!on_token_(token)) {
      stats->finish = GenerateStats::Finish::kCancelled;
      return true;
    }
    if (stats->generated_tokens >= o_.max_tokens) {
      stats->finish = GenerateStats::Finish::kLength;
      return true;
    }
    return false;
  }

  Forward<A>* model_;
  const GenerateOptions& o_;
  const std::function<bool(int32_t)>& on_token_;
  const std::atomic<bool>* stop_;
  SequenceState state_;
  int32_t next_ = 0;
};

}  // namespace

template <typename A>
Result<GenerateStats> generate(Forward<A>* model, BlockPool* blocks, const std::vector<int32_t>& prompt,
                               const GenerateOptions& options, const std::function<bool(int32_t)>& on_token,
                               const std::function<int64_t()>& now_ns, const std::atomic<bool>* stop) {
  const ModelConfig& c = model->config();
  if (prompt.empty()) return error(Code::kInvalidArgument, "the prompt has no tokens; give at least one");
  for (int32_t id : prompt) {
    if (!model->valid_token(id))
      return error(Code::kInvalidArgument, "token id {} is outside the vocabulary of {} ids", id,
                   c.vocab_size);
  }
  DI_TRY(validate(options.sampling));
  if (options.max_tokens < 1)
    return error(Code::kInvalidArgument, "max_tokens must be at least 1, not {}", options.max_tokens);
  int64_t n = static_cast<int64_t>(prompt.size());
  if (n + options.max_tokens > c.max_position_embeddings) {
    return error(
        Code::kInvalidArgument,
        "prompt of {} tokens plus max_tokens {} exceeds the model's context of {}; shorten one of them", n,
        options.max_tokens, c.max_position_embeddings);
  }
  GenerateStats stats;
  stats.prompt_tokens = n;
  Run<A> run(model, blocks, options, on_token, stop);
  int64_t t0 = now_ns();
  DI_TRY(run.prefill(prompt));
  int64_t t1 = now_ns();
  stats.prefill_ns = t1 - t0;
  DI_TRY(run.decode(&stats));
  stats.decode_ns = now_ns() - t1;
  return stats;
}

template Result<GenerateStats> generate<float>(Forward<float>*, BlockPool*, const std::vector<int32_t>&,
                                               const GenerateOptions&, const std::function<bool(int32_t)>&,
                                               const std::function<int64_t()>&, const std::atomic<bool>*);
template Result<GenerateStats> generate<double>(Forward<double>*, BlockPool*, const std::vector<int32_t>&,
                                                const GenerateOptions&, const std::function<bool(int32_t)>&,
                                                const std::function<int64_t()>&, const std::atomic<bool>*);

}  // namespace deepinfer
