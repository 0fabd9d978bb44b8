// What verification rows and draft passes take on this machine, before the first request: made-up sequences,
// sizes ascending, until the time is used up. The policy corrects the curves by what real steps take.
#include <algorithm>
#include <memory>

#include "engine/serving_engine.h"

namespace deepinfer {
namespace {

constexpr int kRounds = 3;              // of each size; the median counts
constexpr int64_t kMostSequences = 64;  // made up at once

// Sequences that decode after a prompt: every block of their tables is block 0, nothing is published.
class MadeUp {
 public:
  MadeUp(Forward<float>* model, BlockArena* arena, int64_t count, int64_t most_rows) : model_(model) {
    int64_t context = model->layout().block_tokens;
    for (int64_t i = 0; i < count; ++i) {
      auto s = std::make_unique<SequenceState>(model->config(), model->layout(), arena);
      for (int64_t p = 0; p < context + most_rows; ++p)
        s->tokens.push_back(static_cast<int32_t>((p * 7919 + i * 104729 + 13) % model->config().vocab_size));
      s->blocks.assign(static_cast<size_t>((context + most_rows) / model->layout().block_tokens + 1), 0);
      s->encoder_floor = s->decoder_floor = context;
      s->publish_from = context + most_rows;
      s->start_at(context);
      sequences_.push_back(std::move(s));
    }
  }

  // `rows` rows, as evenly over the sequences as they go; the distinct experts they touched.
  int64_t run(int64_t rows) {
    auto n = std::min<int64_t>(rows, static_cast<int64_t>(sequences_.size()));
    std::vector<RowSpan> spans;
    for (int64_t i = 0; i < n; ++i) {
      SequenceState* s = sequences_[static_cast<size_t>(i)].get();
      int64_t begin = s->encoder_floor, count = rows / n + (i < rows % n ? 1 : 0);
      spans.push_back({s, begin, begin + count, begin});
    }
    return model_->run(spans).experts;
  }

  // A draft pass of the first `count` sequences, each after one row.
  void draft(int64_t count) {
    DraftPick<float> pick = [](const float* logits, int64_t vocab, int64_t) {
      return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
    };
    std::vector<DraftSpan<float>> spans;
    for (int64_t i = 0; i < count; ++i) {
      SequenceState* s = sequences_[static_cast<size_t>(i)].get();
      s->draft_fed = std::min(s->draft_fed, s->length - 1);  // as if one row had been run since the last pass
      spans.push_back({s, 1, &pick});
    }
    model_->draft(spans);
  }

 private:
  Forward<float>* model_;
  std::vector<std::unique_ptr<SequenceState>> sequences_;
};

// Sizes with at most half again as much from one to the next.
std::vector<int64_t> sizes(int64_t most) {
  std::vector<int64_t> out;
  for (int64_t n : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512})
    if (n <= most) out.push_back(n);
  return out;
}

template <typename F>
policy::CurvePoint timed(int64_t n, const EngineClock& clock, const F& run) {
  std::vector<double> ns;
  int64_t experts = run(n);  // first use of buffers and weights
  for (int i = 0; i < kRounds; ++i) {
    int64_t t = clock();
    experts = run(n);
    ns.push_back(static_cast<double>(std::max<int64_t>(1, clock() - t)));
  }
  std::sort(ns.begin(), ns.end());
  return {n, ns[kRounds / 2], static_cast<double>(experts)};
}

}  // namespace

policy::CurvesMeasured measure_curves(Forward<float>* model, BlockArena* arena, int64_t budget_ns,
                                      int64_t most_rows, int64_t most_requests, const EngineClock& clock) {
  policy::CurvesMeasured out;
  if (budget_ns <= 0 || model->config().drafts() == 0) return out;
  most_requests = std::clamp<int64_t>(most_requests, 1, kMostSequences);
  most_rows = std::min(most_rows, most_requests * (1 + model->config().drafts()));
  MadeUp made(model, arena, most_requests, 1 + model->config().drafts());
  int64_t begin = clock();
  std::vector<policy::CurvePoint> verify, draft;
  // Two thirds of the time for rows: they decide more.
  for (int64_t n : sizes(most_rows)) {
    if (!verify.empty() &&
        clock() - begin + static_cast<int64_t>(verify.back().ns) * 2 * (kRounds + 1) > budget_ns * 2 / 3)
      break;
    verify.push_back(timed(n, clock, [&](int64_t rows) { return made.run(rows); }));
  }
  made.run(most_requests);
  for (int64_t n : sizes(most_requests)) {
    if (!draft.empty() &&
        clock() - begin + static_cast<int64_t>(draft.back().ns) * 2 * (kRounds + 1) > budget_ns)
      break;
    draft.push_back(timed(n, clock, [&](int64_t count) {
      made.draft(count);
      return int64_t{0};
    }));
  }
  out.verify = *policy::make_curve(std::move(verify), 0);
  out.draft = *policy::make_curve(std::move(draft), 0);
  return out;
}

}  // namespace deepinfer
