// Runs both ways and pairs their positions.
#include "apps/eval_compare.h"

#include <algorithm>
#include <cmath>

#include "model/sizes.h"

namespace deepinfer {
namespace {

constexpr double kMoved = 0.1;

Interval exponential(const Interval& i) {
  return {std::exp(i.mean), std::exp(i.low), std::exp(i.high)};
}

// All prompts of a plan, each text cut by itself.
std::vector<std::vector<int32_t>> prompts_of(const std::vector<EvalText>& texts, const PromptPlan& plan,
                                             int32_t bos) {
  std::vector<std::vector<int32_t>> out;
  for (const EvalText& text : texts) {
    for (auto& prompt : cut_prompts(text, plan, bos)) out.push_back(std::move(prompt));
  }
  return out;
}

Result<std::vector<Scored>> score_after(EvalRunner* runner, const std::vector<std::vector<int32_t>>& prompts,
                                        int64_t boundary, int64_t keep) {
  std::vector<ScoreRequest> requests;
  for (const auto& tokens : prompts)
    requests.push_back({tokens, boundary, keep < 0 ? 0 : std::max<int64_t>(0, boundary - keep)});
  return runner->score(requests);
}

DifferenceTally pair_up(const std::vector<Scored>& way, const std::vector<Scored>& base) {
  DifferenceTally tally;
  for (size_t i = 0; i < way.size(); ++i) tally.add(way[i], base[i]);
  return tally;
}

Result<std::vector<std::vector<int32_t>>> answers_to(EvalRunner* runner, const EvalSuite& suite,
                                                     int64_t keep) {
  std::vector<DecodeRequest> requests;
  for (const EvalItem& item : suite.items)
    requests.push_back({item.prompt, static_cast<int64_t>(item.expect.size()), {}});
  DecodeOptions options;
  options.stop_ids = {runner->config().eos_token_id};
  options.keep = keep;
  return runner->decode(requests, options, nullptr);
}

}  // namespace

void DifferenceTally::add(const Scored& way, const Scored& base) {
  DI_CHECK(way.top.size() == base.top.size(), "both ways score the same positions");
  Cluster delta, changed, moved;
  for (size_t i = 0; i < way.top.size(); ++i) {
    const double log_ratio = way.log_probability[i] - base.log_probability[i];
    delta.sum -= log_ratio;
    changed.sum += way.top[i] != base.top[i] ? 1 : 0;
    moved.sum += std::abs(std::expm1(log_ratio)) > kMoved ? 1 : 0;
  }
  delta.n = changed.n = moved.n = static_cast<int64_t>(way.top.size());
  delta_.push_back(delta);
  changed_.push_back(changed);
  moved_.push_back(moved);
}

void DifferenceTally::add(const DifferenceTally& o) {
  delta_.insert(delta_.end(), o.delta_.begin(), o.delta_.end());
  changed_.insert(changed_.end(), o.changed_.begin(), o.changed_.end());
  moved_.insert(moved_.end(), o.moved_.begin(), o.moved_.end());
}

Difference DifferenceTally::result() const {
  Difference d;
  d.documents = static_cast<int64_t>(delta_.size());
  for (const Cluster& c : delta_) d.positions += c.n;
  d.perplexity_ratio = exponential(clustered_mean(delta_));
  d.top_token_change_rate = clustered_mean(changed_);
  d.moved_share = clustered_mean(moved_);
  return d;
}

std::vector<std::vector<int32_t>> cut_prompts(const EvalText& text, const PromptPlan& plan, int32_t bos) {
  std::vector<int32_t> stream;
  for (const auto& document : text.documents) {
    const bool has_bos = document.front() == bos;
    stream.insert(stream.end(), document.begin() + (has_bos ? 1 : 0), document.end());
  }
  std::vector<std::vector<int32_t>> out;
  const int64_t body = plan.length + plan.scored - 1, size = static_cast<int64_t>(stream.size());
  for (int64_t at = 0; at + body <= size && static_cast<int64_t>(out.size()) < plan.most; at += body) {
    std::vector<int32_t> prompt = {bos};
    prompt.insert(prompt.end(), stream.begin() + at, stream.begin() + at + body);
    out.push_back(std::move(prompt));
  }
  return out;
}

Result<ReplayComparison> compare_replay(EvalRunner* runner, const std::vector<EvalText>& texts, int64_t keep,
                                        const std::vector<PromptPlan>& plans) {
  const ModelConfig& c = runner->config();
  ReplayComparison out;
  out.keep = keep == 0 ? ring_slots(c) : keep;
  // A window's worth of rows whose own windows, layer by layer, are whole: nothing the scored rows read is
  // cut.
  out.control_keep = exact_rebuild_tokens_tight(c);
  DifferenceTally all, control;
  for (const PromptPlan& plan : plans) {
    if (plan.length + plan.scored > c.max_position_embeddings) continue;
    const auto prompts = prompts_of(texts, plan, c.bos_token_id);
    if (prompts.empty()) continue;
    DI_ASSIGN(const auto exact, score_after(runner, prompts, plan.length, -1));
    DI_ASSIGN(const auto replay, score_after(runner, prompts, plan.length, out.keep));
    DI_ASSIGN(const auto no_op, score_after(runner, prompts, plan.length, out.control_keep));
    const DifferenceTally tally = pair_up(replay, exact);
    out.lengths.push_back({plan.length, tally.result()});
    all.add(tally);
    control.add(pair_up(no_op, exact));
  }
  if (out.lengths.empty()) return error(Code::kInvalidData, "the texts are too short to compare anything");
  out.all = all.result();
  out.control = control.result();
  return out;
}

Result<PoolComparison> compare_pool(EvalRunner* with, EvalRunner* without, const std::vector<EvalText>& texts,
                                    const std::vector<EvalSuite>& suites, int64_t keep,
                                    const std::vector<PromptPlan>& plans) {
  const ModelConfig& c = with->config();
  PoolComparison out;
  out.pool_entries = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  DifferenceTally all;
  for (const PromptPlan& plan : plans) {
    if (plan.length + plan.scored > c.max_position_embeddings) continue;
    const auto prompts = prompts_of(texts, plan, c.bos_token_id);
    if (prompts.empty()) continue;
    DI_ASSIGN(const auto pool, score_after(with, prompts, plan.length, -1));
    DI_ASSIGN(const auto no_pool, score_after(without, prompts, plan.length, -1));
    const DifferenceTally tally = pair_up(pool, no_pool);
    out.lengths.push_back({plan.length, tally.result()});
    all.add(tally);
  }
  if (out.lengths.empty()) return error(Code::kInvalidData, "the texts are too short to compare anything");
  out.all = all.result();
  for (const EvalSuite& suite : suites) {
    DI_ASSIGN(const auto pool, answers_to(with, suite, keep));
    DI_ASSIGN(const auto no_pool, answers_to(without, suite, keep));
    PoolComparison::Suite s{suite.name, static_cast<int64_t>(suite.items.size())};
    for (size_t i = 0; i < pool.size(); ++i) {
      s.pool += pool[i] == suite.items[i].expect ? 1 : 0;
      s.no_pool += no_pool[i] == suite.items[i].expect ? 1 : 0;
      s.differ += pool[i] != no_pool[i] ? 1 : 0;
    }
    out.suites.push_back(std::move(s));
  }
  return out;
}

}  // namespace deepinfer
