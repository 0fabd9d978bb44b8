// Batches decoding and teacher-forced scoring.
#include "apps/eval_runner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "model/sizes.h"

namespace deepinfer {
namespace {

constexpr size_t kSequences = 32;      // decoded together
constexpr int64_t kTokens = 1 << 17;   // of all sequences in flight, unless a single one needs more
constexpr int64_t kPrefillRows = 512;  // per call
constexpr int64_t kScoreRows = 256;    // per call; each may get a row of logits

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

std::vector<double> confidences(const DraftResult<float>& d) {
  std::vector<double> c;
  for (float x : d.confidence_logits) c.push_back(sigmoid(static_cast<double>(x)));
  return c;
}

}  // namespace

// One sequence being decoded.
struct EvalRunner::Active {
  // What a step drafted, judged when the whole answer is known.
  struct Step {
    std::vector<double> confidence;
    int64_t at = 0, matched = 0;  // answer tokens known before it
  };
  size_t request = 0;
  std::unique_ptr<SequenceState> state;
  int32_t next = 0;  // decided, its row not yet run
  std::vector<int32_t> out;
  std::vector<Step> steps;
  bool done = false;

  void emit(int32_t token, const DecodeRequest& r, const DecodeOptions& o) {
    out.push_back(token);
    done = std::binary_search(o.stop_ids.begin(), o.stop_ids.end(), token) ||
           static_cast<int64_t>(out.size()) >= r.max_tokens;
  }
  void tell(DraftTally* tally) const {
    for (const Step& s : steps) {
      const int64_t left = static_cast<int64_t>(out.size()) - s.at;
      const int64_t observed = std::min<int64_t>(static_cast<int64_t>(s.confidence.size()), left);
      tally->add(s.confidence, observed, std::min(s.matched, observed));
    }
  }
};

// One text being scored.
struct EvalRunner::Scoring {
  size_t request = 0;
  std::unique_ptr<SequenceState> state;
  int64_t rows = 0;  // to run in all
};

EvalRunner::EvalRunner(const ModelWeights* weights, ThreadPool* pool, std::function<bool()> stop)
    : pool_(pool),
      model_(weights, pool, {}),
      blocks_(model_.layout().block_bytes,
              (kTokens + weights->config.max_position_embeddings) / model_.layout().block_tokens +
                  4 * static_cast<int64_t>(kSequences)),
      stop_(std::move(stop)) {}

Status EvalRunner::check(const std::vector<int32_t>& tokens, int64_t total) const {
  if (tokens.empty()) return error(Code::kInvalidArgument, "a prompt has no tokens");
  for (int32_t id : tokens) {
    if (!model_.valid_token(id)) {
      return error(Code::kInvalidArgument, "token id {} is outside the vocabulary of {} ids", id,
                   config().vocab_size);
    }
  }
  if (total > config().max_position_embeddings) {
    return error(Code::kInvalidArgument, "{} tokens exceed the model's context of {}", total,
                 config().max_position_embeddings);
  }
  return {};
}

Status EvalRunner::admit(const DecodeRequest& r, const DecodeOptions& o, size_t index,
                         std::vector<Active>* active) {
  const int64_t n = static_cast<int64_t>(r.prompt.size());
  DI_TRY(check(r.prompt, n + r.max_tokens));
  DI_TRY(validate(r.sampling));
  Active a;
  a.request = index;
  a.state = std::make_unique<SequenceState>(config(), model_.layout(), &blocks_);
  a.state->tokens = r.prompt;
  const int64_t keep = o.keep == 0 ? ring_slots(config()) : o.keep;
  a.state->decoder_floor = keep < 0 ? 0 : std::max<int64_t>(0, n - keep);
  DI_TRY(a.state->reserve(n));
  active->push_back(std::move(a));
  return {};
}

Status EvalRunner::prefill(std::vector<Active>* active, size_t first,
                           const std::vector<DecodeRequest>& requests, const DecodeOptions& o) {
  while (true) {
    if (stopped()) return error(Code::kCancelled, "stopped");
    std::vector<RowSpan> spans;
    std::vector<Active*> who;
    int64_t room = kPrefillRows;
    for (size_t i = first; i < active->size() && room > 0; ++i) {
      Active& a = (*active)[i];
      const int64_t n = static_cast<int64_t>(requests[a.request].prompt.size()), begin = a.state->length;
      if (begin >= n) continue;
      const int64_t end = std::min(n, begin + room);
      spans.push_back({a.state.get(), begin, end, end == n ? n - 1 : -1});
      who.push_back(&a);
      room -= end - begin;
    }
    if (spans.empty()) return {};
    const auto result = model_.run(spans);
    for (size_t i = 0; i < result.rows.size(); ++i) {
      Active& a = *who[static_cast<size_t>(result.rows[i].span)];
      const DecodeRequest& r = requests[a.request];
      a.next = sample(result.row(i), result.vocab, a.state->length, r.sampling, o.banned_ids);
      a.emit(a.next, r, o);
    }
  }
}

Status EvalRunner::step(std::vector<Active>* active, const std::vector<DecodeRequest>& requests,
                        const DecodeOptions& o) {
  if (stopped()) return error(Code::kCancelled, "stopped");
  std::vector<RowSpan> spans;
  std::vector<Active*> who;
  std::vector<std::vector<int32_t>> guesses;
  for (Active& a : *active) {
    if (a.done) continue;
    SequenceState& s = *a.state;
    const DecodeRequest& r = requests[a.request];
    const int64_t p = s.length, room = config().max_position_embeddings - p - 1;
    std::vector<int32_t> guess;
    if (o.speculate && room > 0) {
      DraftResult<float> d =
          model_.draft(&s, a.next, [&](const float* logits, int64_t vocab, int64_t position) {
            return sample(logits, vocab, position, r.sampling, o.banned_ids);
          });
      guess = std::move(d.tokens);
      guess.resize(std::min(guess.size(), static_cast<size_t>(room)));
      std::vector<double> c = confidences(d);
      c.resize(guess.size());
      a.steps.push_back({std::move(c), static_cast<int64_t>(a.out.size()), 0});
    }
    s.tokens.push_back(a.next);
    s.tokens.insert(s.tokens.end(), guess.begin(), guess.end());
    const int64_t end = static_cast<int64_t>(s.tokens.size());
    DI_TRY(s.reserve(end));
    spans.push_back({&s, p, end, p});
    who.push_back(&a);
    guesses.push_back(std::move(guess));
  }
  const auto result = model_.run(spans);
  size_t row = 0;
  for (size_t i = 0; i < who.size(); ++i) {
    Active& a = *who[i];
    const std::vector<int32_t>& guess = guesses[i];
    int64_t kept = 0;
    for (size_t k = 0; k <= guess.size() && !a.done; ++k) {
      a.next = sample(result.row(row + k), result.vocab, spans[i].begin + 1 + static_cast<int64_t>(k),
                      requests[a.request].sampling, o.banned_ids);
      a.emit(a.next, requests[a.request], o);
      if (k == guess.size() || guess[k] != a.next) break;
      ++kept;
    }
    if (!guess.empty()) a.steps.back().matched = kept;
    if (!a.done) a.state->truncate(spans[i].begin + 1 + kept);
    row += guess.size() + 1;
  }
  return {};
}

Result<std::vector<std::vector<int32_t>>> EvalRunner::decode(const std::vector<DecodeRequest>& requests,
                                                             const DecodeOptions& options,
                                                             DraftTally* tally) {
  DecodeOptions o = options;
  o.speculate = o.speculate && config().num_nextn_predict_layers > 0;
  std::vector<std::vector<int32_t>> out(requests.size());
  std::vector<Active> active;
  int64_t tokens = 0;
  auto size_of = [&](size_t i) {
    return static_cast<int64_t>(requests[i].prompt.size()) + requests[i].max_tokens +
           config().dspark_block_size;
  };
  for (size_t next = 0; next < requests.size() || !active.empty();) {
    // New ones come in batches, so that their prompts share calls.
    if (active.size() <= kSequences / 2) {
      const size_t first = active.size();
      while (next < requests.size() && active.size() < kSequences &&
             (active.empty() || tokens + size_of(next) <= kTokens)) {
        tokens += size_of(next);
        DI_TRY(admit(requests[next], o, next, &active));
        ++next;
      }
      DI_TRY(prefill(&active, first, requests, o));
    }
    if (std::any_of(active.begin(), active.end(), [](const Active& a) { return !a.done; })) {
      DI_TRY(step(&active, requests, o));
    }
    for (Active& a : active) {
      if (!a.done) continue;
      if (tally != nullptr) a.tell(tally);
      tokens -= size_of(a.request);
      out[a.request] = std::move(a.out);
    }
    std::erase_if(active, [](const Active& a) { return a.done; });
  }
  return out;
}

Status EvalRunner::score_call(std::vector<Scoring>* active, const std::vector<ScoreRequest>& requests,
                              int64_t chunk, std::vector<Scored>* out) {
  if (stopped()) return error(Code::kCancelled, "stopped");
  std::vector<RowSpan> spans;
  std::vector<size_t> who;
  for (Scoring& s : *active) {
    const int64_t begin = s.state->length, end = std::min(s.rows, (begin / chunk + 1) * chunk);
    spans.push_back({s.state.get(), begin, end, std::max(begin, requests[s.request].from - 1)});
    who.push_back(s.request);
  }
  const auto result = model_.run(spans);
  for (const auto& row : result.rows) {
    Scored& scored = (*out)[who[static_cast<size_t>(row.span)]];
    scored.log_probability.push_back(0);
    scored.top.push_back(0);
  }
  pool_->run(static_cast<int64_t>(result.rows.size()), [&](int64_t i, int) {
    const auto& row = result.rows[static_cast<size_t>(i)];
    const size_t request = who[static_cast<size_t>(row.span)];
    const float* logits = result.row(static_cast<size_t>(i));
    const float* best = std::max_element(logits, logits + result.vocab);
    double sum = 0;
    for (int64_t v = 0; v < result.vocab; ++v)
      sum += std::exp(static_cast<double>(logits[v]) - static_cast<double>(*best));
    const int32_t truth = requests[request].tokens[static_cast<size_t>(row.position + 1)];
    const auto at = static_cast<size_t>(row.position + 1 - requests[request].from);
    (*out)[request].log_probability[at] =
        static_cast<double>(logits[truth]) - static_cast<double>(*best) - std::log(sum);
    (*out)[request].top[at] = static_cast<int32_t>(best - logits);
  });
  return {};
}

void EvalRunner::draft_true(const Scoring& s, const ScoreRequest& request, DraftTally* tally) {
  const int64_t next = s.state->length, block = config().dspark_block_size;
  if (next + block >= static_cast<int64_t>(request.tokens.size())) return;
  const auto true_token = [&](int64_t position) { return request.tokens[static_cast<size_t>(position)]; };
  const DraftResult<float> d =
      model_.draft(s.state.get(), true_token(next), [](const float* logits, int64_t vocab, int64_t) {
        return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
      });
  int64_t matched = 0;
  while (matched < block && d.tokens[static_cast<size_t>(matched)] == true_token(next + 1 + matched))
    ++matched;
  tally->add(confidences(d), block, matched);
}

Result<std::vector<Scored>> EvalRunner::score(const std::vector<ScoreRequest>& requests, int64_t draft_every,
                                              DraftTally* tally) {
  const bool drafts = draft_every > 0 && tally != nullptr && config().num_nextn_predict_layers > 0;
  const int64_t chunk = drafts ? std::min(draft_every, kScoreRows) : std::min<int64_t>(64, kScoreRows);
  DI_CHECK(!drafts || draft_every % chunk == 0,
           "draft_every is a multiple of the rows per call, or below them");
  const size_t together = static_cast<size_t>(std::max<int64_t>(1, kScoreRows / chunk));
  // Longest first, so that the last calls are still full.
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].tokens.size() > requests[b].tokens.size(); });
  std::vector<Scored> out(requests.size());
  std::vector<Scoring> active;
  int64_t tokens = 0;
  for (size_t next = 0; next < order.size() || !active.empty();) {
    while (next < order.size() && active.size() < together) {
      const ScoreRequest& r = requests[order[next]];
      const int64_t n = static_cast<int64_t>(r.tokens.size());
      DI_TRY(check(r.tokens, n));
      DI_CHECK(r.from >= 1 && r.from < n && r.decoder_floor < r.from, "scored range of a text");
      if (!active.empty() && tokens + n > kTokens) break;
      Scoring s{order[next], std::make_unique<SequenceState>(config(), model_.layout(), &blocks_), n - 1};
      s.state->tokens = r.tokens;
      s.state->decoder_floor = r.decoder_floor;
      DI_TRY(s.state->reserve(n));
      tokens += n;
      active.push_back(std::move(s));
      ++next;
    }
    DI_TRY(score_call(&active, requests, chunk, &out));
    for (const Scoring& s : active) {
      const ScoreRequest& r = requests[s.request];
      if (drafts && s.state->length % draft_every == 0) draft_true(s, r, tally);
      if (s.state->length == s.rows) tokens -= static_cast<int64_t>(r.tokens.size());
    }
    std::erase_if(active, [](const Scoring& s) { return s.state->length == s.rows; });
  }
  return out;
}

}  // namespace deepinfer
