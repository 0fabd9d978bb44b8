// Judges what the runner produced.
#include "apps/eval_measures.h"

#include <algorithm>
#include <cmath>

#include "apps/chat_prompt.h"

namespace deepinfer {
namespace {

// Contexts grow by four from a few hundred tokens to the longest of the real model.
constexpr int64_t kFirstBucket = 256;

bool answer_is_right(const EvalItem& item, const std::vector<int32_t>& produced, int32_t eos,
                     const Tokenizer& tokenizer) {
  if (!item.by_text) return produced == item.expect;
  std::vector<int32_t> ids = produced;
  if (!ids.empty() && ids.back() == eos) ids.pop_back();
  const std::string text = tokenizer.decode(ids);
  if (item.contains.empty()) return text == item.expect_text;
  return std::all_of(item.contains.begin(), item.contains.end(),
                     [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

}  // namespace

double TextResult::Bucket::perplexity() const {
  return n > 0 ? std::exp(sum / static_cast<double>(n)) : 0.0;
}

Result<SkillResult> run_suite(EvalRunner* runner, const EvalSuite& suite, int64_t keep, size_t max_failures,
                              DraftTally* tally) {
  std::vector<DecodeRequest> requests;
  // No longer than the expected answer: one that goes on is wrong already.
  for (const EvalItem& item : suite.items)
    requests.push_back({item.prompt, static_cast<int64_t>(item.expect.size()), {}});
  DecodeOptions options;
  options.stop_ids = {runner->config().eos_token_id};
  options.keep = keep;
  options.speculate = tally != nullptr;
  DI_ASSIGN(const auto answers, runner->decode(requests, options, tally));
  SkillResult result;
  result.name = suite.name;
  for (size_t i = 0; i < answers.size(); ++i) {
    const EvalItem& item = suite.items[i];
    ++result.n;
    if (answers[i] == item.expect) {
      ++result.right;
    } else if (result.failures.size() < max_failures) {
      result.failures.push_back({static_cast<int64_t>(i), item.expect, answers[i]});
    }
  }
  return result;
}

Result<TextResult> run_text(EvalRunner* runner, const EvalText& text, int64_t max_tokens, int64_t draft_every,
                            DraftTally* tally) {
  const int64_t context = runner->config().max_position_embeddings;
  const int64_t longest = max_tokens > 0 ? std::min(max_tokens, context) : context;
  std::vector<ScoreRequest> requests;
  for (const auto& document : text.documents) {
    const auto n = std::min<int64_t>(longest, static_cast<int64_t>(document.size()));
    if (n >= 2) requests.push_back({{document.begin(), document.begin() + n}, 1, 0});
  }
  DI_ASSIGN(const auto scored, runner->score(requests, draft_every, tally));
  TextResult result;
  result.name = text.name;
  result.all.end = longest;
  for (int64_t begin = 0; begin < longest; begin = begin == 0 ? kFirstBucket : 4 * begin) {
    result.buckets.push_back({begin, begin == 0 ? kFirstBucket : 4 * begin, 0, 0});
  }
  for (const Scored& s : scored) {
    for (size_t i = 0; i < s.log_probability.size(); ++i) {
      const auto context_tokens = static_cast<int64_t>(i) + 1;
      const auto in = [&](const TextResult::Bucket& b) { return context_tokens < b.end; };
      auto& bucket = *std::find_if(result.buckets.begin(), result.buckets.end(), in);
      for (auto* b : {&bucket, &result.all}) {
        ++b->n;
        b->sum -= s.log_probability[i];
      }
    }
  }
  std::erase_if(result.buckets, [](const TextResult::Bucket& b) { return b.n == 0; });
  return result;
}

double UserResult::pass_at(int64_t k) const {
  double sum = 0;
  for (int64_t c : right) sum += deepinfer::pass_at(samples, c, k);
  return right.empty() ? 0.0 : sum / static_cast<double>(right.size());
}

Result<UserResult> run_user_suite(EvalRunner* runner, const Tokenizer& tokenizer, const EvalSuite& suite,
                                  const UserOptions& o) {
  const ModelConfig& c = runner->config();
  std::vector<DecodeRequest> requests;
  for (const EvalItem& item : suite.items) {
    for (int64_t s = 0; s < o.samples; ++s) {
      requests.push_back({item.prompt, item.max_tokens, o.sampling});
      requests.back().sampling.seed = static_cast<uint64_t>(s);
    }
  }
  DecodeOptions options;
  options.stop_ids = {c.eos_token_id};
  options.banned_ids = input_only_ids(tokenizer, c);
  options.keep = o.keep;
  DI_ASSIGN(const auto answers, runner->decode(requests, options, nullptr));
  UserResult result;
  result.name = suite.name;
  result.samples = o.samples;
  result.right.assign(suite.items.size(), 0);
  for (size_t i = 0; i < answers.size(); ++i) {
    const size_t at = i / static_cast<size_t>(o.samples);
    if (answer_is_right(suite.items[at], answers[i], c.eos_token_id, tokenizer)) {
      ++result.right[at];
    } else if (result.failures.size() < o.max_failures) {
      result.failures.push_back({static_cast<int64_t>(at), suite.items[at].expect, answers[i]});
    }
  }
  return result;
}

}  // namespace deepinfer
