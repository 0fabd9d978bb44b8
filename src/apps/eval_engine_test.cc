// The evaluation through the engine, on a synthetic checkpoint: scores that can be known beforehand, numbers
// worked out again straight from logits, and comparisons that must be exactly nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>

#include "apps/chat_prompt.h"
#include "apps/eval_compare.h"
#include "apps/eval_hits.h"
#include "apps/eval_measures.h"
#include "apps/eval_report.h"
#include "checkpoint/test_directory.h"
#include "engine/generator.h"
#include "model/sizes.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

ModelWeights synthetic(const std::string& name, bool pool = true) {
  const TempDir dir;
  const ModelConfig config = builtin_config(name).value();
  const Status s = synthesise(config, dir / "model", {});
  DI_CHECK(s.ok(), s.to_string());
  ModelWeights w = load_checkpoint(dir / "model").value();  // the mappings outlive the files
  if (!pool) w.config.candidate_source_layer_id = -1;
  return w;
}

const ModelWeights& t0() {
  static const ModelWeights w = synthetic("t0");
  return w;
}

ThreadPool& threads() {
  static ThreadPool pool(2);
  return pool;
}

std::vector<int32_t> tokens(int n, int variant) {
  std::vector<int32_t> t = {0};
  for (int i = 1; i < n; ++i) t.push_back((7 + 37 * i + i * i + 11 * variant) % 250);
  return t;
}

// The continuation as `generate` makes it, without its stop token.
std::vector<int32_t> generated(const ModelWeights& w, const std::vector<int32_t>& prompt,
                               const GenerateOptions& o) {
  Forward<float> model(&w, &threads(), {});
  BlockPool blocks(model.layout().block_bytes, 10000);
  std::vector<int32_t> out;
  const auto r = generate<float>(
      &model, &blocks, prompt, o,
      [&](int32_t id) {
        out.push_back(id);
        return true;
      },
      [] { return int64_t{0}; });
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return out;
}

std::vector<int32_t> greedy(const std::vector<int32_t>& prompt, int64_t n) {
  GenerateOptions o;
  o.max_tokens = n;
  o.speculate = false;
  return generated(t0(), prompt, o);
}

// Rows of logits of one text, run alone in one call.
std::vector<std::vector<float>> logits_of(const std::vector<int32_t>& text, int64_t floor) {
  Forward<float> model(&t0(), &threads(), {});
  BlockPool blocks(model.layout().block_bytes, 10000);
  SequenceState s(t0().config, model.layout(), &blocks);
  s.tokens = text;
  s.decoder_floor = floor;
  EXPECT_TRUE(s.reserve(static_cast<int64_t>(text.size())).ok());
  const auto r = model.run({{&s, 0, static_cast<int64_t>(text.size()), 0}});
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < r.rows.size(); ++i) rows.emplace_back(r.row(i), r.row(i) + r.vocab);
  return rows;
}

double log_probability(const std::vector<float>& logits, int32_t token) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  return static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(sum);
}

TEST(EvalRunner, ManyAtOnceDecodeAsOneByOne) {
  EvalRunner runner(&t0(), &threads());
  std::vector<DecodeRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back({tokens(5 + 7 * (i % 11), i), 3 + i % 9, {}});
  DecodeOptions o;
  DraftTally tally;
  const auto plain = runner.decode(requests, o, nullptr).value();
  o.speculate = true;
  const auto drafted = runner.decode(requests, o, &tally).value();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(plain[i], greedy(requests[i].prompt, requests[i].max_tokens)) << i;
    EXPECT_EQ(drafted[i], plain[i]) << i;
  }
  EXPECT_GT(tally.steps, 0);
}

TEST(EvalRunner, StopTokenEndsAnAnswerAndIsPartOfIt) {
  EvalRunner runner(&t0(), &threads());
  const auto prompt = tokens(20, 3);
  const auto free = greedy(prompt, 8);
  DecodeOptions o;
  o.stop_ids = {free[3]};
  const auto first = static_cast<int64_t>(std::find(free.begin(), free.end(), free[3]) - free.begin());
  const auto cut = runner.decode({{prompt, 8, {}}}, o, nullptr).value();
  EXPECT_EQ(cut[0], std::vector<int32_t>(free.begin(), free.begin() + first + 1));
}

TEST(EvalRunner, BadRequestsAreErrors) {
  EvalRunner runner(&t0(), &threads());
  EXPECT_EQ(runner.decode({{{}, 1, {}}}, {}, nullptr).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(runner.decode({{{256}, 1, {}}}, {}, nullptr).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(runner.decode({{{0}, int64_t{1} << 40, {}}}, {}, nullptr).status().code(),
            Code::kInvalidArgument);
  EvalRunner stopping(&t0(), &threads(), [] { return true; });
  EXPECT_EQ(stopping.decode({{{0}, 1, {}}}, {}, nullptr).status().code(), Code::kCancelled);
}

TEST(EvalMeasures, OwnAnswersScoreOneAlteredOnesZero) {
  EvalRunner runner(&t0(), &threads());
  EvalSuite right{"right", {}}, half{"half", {}}, wrong{"wrong", {}};
  for (int i = 0; i < 6; ++i) {
    EvalItem item;
    // An answer that happens to hold the end token ends there; this is about whole ones.
    const int32_t end = t0().config.eos_token_id;
    for (int variant = i; item.prompt.empty() || std::ranges::count(item.expect, end) > 0; variant += 6) {
      item.prompt = tokens(10 + 30 * i, variant);
      item.expect = greedy(item.prompt, 5);
    }
    right.items.push_back(item);
    if (i % 2 == 0) half.items.push_back(item);
    item.expect[static_cast<size_t>(i % 5)] ^= 1;
    wrong.items.push_back(item);
    if (i % 2 == 1) half.items.push_back(item);
  }
  EXPECT_EQ(run_suite(&runner, right, 0, 0, nullptr)->score(), 1.0);
  EXPECT_EQ(run_suite(&runner, half, 0, 0, nullptr)->score(), 0.5);
  const SkillResult zero = run_suite(&runner, wrong, 0, 2, nullptr).value();
  EXPECT_EQ(zero.score(), 0.0);
  EXPECT_EQ(zero.n, 6);
  ASSERT_EQ(zero.failures.size(), 2u);
  EXPECT_EQ(zero.failures[1].item, 1);
  EXPECT_EQ(zero.failures[1].produced, right.items[1].expect);
}

TEST(EvalMeasures, PerplexityIsTheOneOfTheLogits) {
  EvalRunner runner(&t0(), &threads());
  EvalText text{"prose", {tokens(300, 1), tokens(40, 2), tokens(90, 3)}};
  const TextResult r = run_text(&runner, text, 0, 0, nullptr).value();
  double sum = 0, early = 0;
  int64_t n = 0, n_early = 0;
  for (const auto& document : text.documents) {
    const auto rows = logits_of(document, 0);
    for (size_t p = 1; p < document.size(); ++p) {
      const double nll = -log_probability(rows[p - 1], document[p]);
      sum += nll;
      ++n;
      if (p < 256) early += nll, ++n_early;
    }
  }
  EXPECT_EQ(r.all.n, n);
  // The sums are the same numbers in another order.
  EXPECT_NEAR(r.all.perplexity(), std::exp(sum / static_cast<double>(n)), 1e-9 * r.all.perplexity());
  ASSERT_EQ(r.buckets.size(), 2u);
  EXPECT_EQ(r.buckets[0].n, n_early);
  EXPECT_NEAR(r.buckets[0].perplexity(), std::exp(early / static_cast<double>(n_early)),
              1e-9 * r.all.perplexity());
  EXPECT_EQ(r.buckets[1].begin, 256);
  EXPECT_EQ(run_text(&runner, text, 50, 0, nullptr)->all.n, 49 + 39 + 49);
}

TEST(EvalRunner, ScoresBoundedReplayAsTheEngineDoes) {
  EvalRunner runner(&t0(), &threads());
  const auto text = tokens(150, 4);
  const auto scored = runner.score({{text, 120, 100}, {tokens(60, 1), 1, 0}}).value();
  const auto rows = logits_of(text, 100);  // rows 100 .. 149
  ASSERT_EQ(scored[0].log_probability.size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    const auto& logits = rows[19 + i];
    EXPECT_NEAR(scored[0].log_probability[i], log_probability(logits, text[120 + i]), 1e-9);
    EXPECT_EQ(scored[0].top[i], std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

// A text made of the model's own drafts has all of them accepted; changing the third leaves two.
TEST(EvalRunner, DraftsAgainstTheTrueContinuation) {
  EvalRunner runner(&t0(), &threads());
  const ModelConfig& c = t0().config;
  Forward<float> model(&t0(), &threads(), {});
  BlockPool blocks(model.layout().block_bytes, 10000);
  SequenceState s(c, model.layout(), &blocks);
  auto text = tokens(33, 5);
  s.tokens = text;
  ASSERT_TRUE(s.reserve(33).ok());
  model.run({{&s, 0, 32, -1}});
  const auto d = model.draft(&s, text[32], [](const float* logits, int64_t vocab, int64_t) {
    return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  });
  text.insert(text.end(), d.tokens.begin(), d.tokens.end());
  DraftTally all;
  ASSERT_TRUE(runner.score({{text, 1, 0}}, 32, &all).ok());
  EXPECT_EQ(all.steps, 1);
  EXPECT_EQ(all.accepted, c.dspark_block_size);
  double survival = 1;
  for (int k = 0; k < c.dspark_block_size; ++k) {
    survival /= 1 + std::exp(-static_cast<double>(d.confidence_logits[static_cast<size_t>(k)]));
    EXPECT_NEAR(all.positions[static_cast<size_t>(k)].predicted, survival, 1e-12);
  }
  text[33 + 2] ^= 1;
  DraftTally two;
  ASSERT_TRUE(runner.score({{text, 1, 0}}, 32, &two).ok());
  EXPECT_EQ(two.accepted, 2);
}

// The tally of a decode against the same steps taken one at a time on fresh sequences.
TEST(EvalRunner, DraftsWhileDecoding) {
  EvalRunner runner(&t0(), &threads());
  const ModelConfig& c = t0().config;
  const auto prompt = tokens(70, 6);
  DecodeOptions o;
  o.speculate = true;
  o.keep = -1;
  DraftTally tally;
  const auto answer = runner.decode({{prompt, 12, {}}}, o, &tally).value()[0];
  ASSERT_EQ(answer.size(), 12u);
  Forward<float> model(&t0(), &threads(), {});
  BlockPool blocks(model.layout().block_bytes, 10000);
  DraftTally expected;
  for (int64_t known = 1; known < 12;) {
    SequenceState s(c, model.layout(), &blocks);
    s.tokens = prompt;
    s.tokens.insert(s.tokens.end(), answer.begin(), answer.begin() + known - 1);
    const auto n = static_cast<int64_t>(s.tokens.size());
    ASSERT_TRUE(s.reserve(n).ok());
    model.run({{&s, 0, n, -1}});
    const auto d = model.draft(
        &s, answer[static_cast<size_t>(known - 1)],
        [](const float* logits, int64_t vocab, int64_t p) { return sample(logits, vocab, p, {}); });
    std::vector<double> confidence;
    for (float x : d.confidence_logits) confidence.push_back(1 / (1 + std::exp(-static_cast<double>(x))));
    const int64_t observed = std::min<int64_t>(c.dspark_block_size, 12 - known);
    int64_t matched = 0;
    while (matched < observed &&
           d.tokens[static_cast<size_t>(matched)] == answer[static_cast<size_t>(known + matched)])
      ++matched;
    expected.add(confidence, observed, matched);
    known += matched + 1;
  }
  EXPECT_EQ(tally.steps, expected.steps);
  EXPECT_EQ(tally.accepted, expected.accepted);
  for (size_t k = 0; k < expected.positions.size(); ++k) {
    EXPECT_EQ(tally.positions[k].observed, expected.positions[k].observed);
    EXPECT_DOUBLE_EQ(tally.positions[k].predicted, expected.positions[k].predicted);
  }
}

TEST(EvalMeasures, UserItemsByTextAndSeed) {
  const ModelWeights w = synthetic("t1");  // its vocabulary has all bytes
  EvalRunner runner(&w, &threads());
  const ModelConfig& c = w.config;
  const Tokenizer tokenizer = Tokenizer::from_json(synthetic_tokenizer_json(c), "synthetic").value();
  UserOptions o;
  o.samples = 6;
  o.sampling.temperature = 0.5;
  std::vector<std::string> texts;
  std::vector<int32_t> prompt = tokens(25, 7);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    GenerateOptions g;
    g.max_tokens = 2;
    g.sampling = o.sampling;
    g.sampling.seed = seed;
    g.stop_ids = {c.eos_token_id};
    g.banned_ids = input_only_ids(tokenizer, c);
    texts.push_back(tokenizer.decode(generated(w, prompt, g)));
  }
  EvalItem exact, part;
  exact.prompt = part.prompt = prompt;
  exact.by_text = part.by_text = true;
  exact.max_tokens = part.max_tokens = 2;
  exact.expect_text = texts[4];
  part.contains = {texts[4].substr(0, 1)};
  const auto equal = std::count(texts.begin(), texts.end(), texts[4]);
  const auto holding = std::count_if(texts.begin(), texts.end(), [&](const std::string& t) {
    return t.find(texts[4][0]) != std::string::npos;
  });
  const UserResult r = run_user_suite(&runner, tokenizer, {"mine", {exact, part}}, o).value();
  EXPECT_EQ(r.right[0], equal);
  EXPECT_EQ(r.right[1], holding);
  EXPECT_LT(equal, 6);  // else the seeds would not be seen to matter
  EXPECT_DOUBLE_EQ(r.pass_at(1), static_cast<double>(equal + holding) / 12);
  EXPECT_EQ(r.pass_at(6), 1.0);
}

TEST(EvalCompare, PromptsAreCutWithBosAndJoined) {
  const EvalText text{"prose", {{0, 1, 2, 3}, {0, 4, 5, 6, 7}}};
  const auto prompts = cut_prompts(text, {3, 1, 9}, 0);
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0], (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(prompts[1], (std::vector<int32_t>{0, 4, 5, 6}));
  EXPECT_EQ(cut_prompts(text, {5, 1, 9}, 0)[0], (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(cut_prompts(text, {3, 1, 1}, 0).size(), 1u);
  EXPECT_TRUE(cut_prompts(text, {8, 1, 9}, 0).empty());
}

TEST(EvalCompare, DifferencesByHand) {
  const double base = std::log(0.5);
  DifferenceTally t;
  // Probabilities 0.5 -> 0.44 (moves 12 %), 0.5 -> 0.46 (8 %), 0.5 -> 0.56 (12 %), 0.5 -> 0.5.
  t.add({{std::log(0.44), std::log(0.46), std::log(0.56), base}, {1, 2, 9, 4}},
        {{base, base, base, base}, {1, 2, 3, 4}});
  const Difference d = t.result();
  EXPECT_NEAR(d.perplexity_ratio.mean, std::pow(0.5 * 0.5 * 0.5 / (0.44 * 0.46 * 0.56), 0.25), 1e-12);
  EXPECT_EQ(d.top_token_change_rate.mean, 0.25);
  EXPECT_EQ(d.moved_share.mean, 0.5);
  EXPECT_EQ(d.positions, 4);
}

TEST(EvalCompare, ReplayCostsAndItsControlIsExactlyNothing) {
  EvalRunner runner(&t0(), &threads());
  const std::vector<EvalText> texts = {{"prose", {tokens(700, 1)}}, {"code", {tokens(700, 2)}}};
  const int64_t control_keep = exact_rebuild_tokens_tight(t0().config);
  ASSERT_LT(control_keep, 150);  // the control's decoder does leave rows out
  const std::vector<PromptPlan> plans = {{20, 8, 3}, {150, 16, 3}};
  const ReplayComparison r = compare_replay(&runner, texts, 0, plans).value();
  EXPECT_EQ(r.control_keep, control_keep);
  for (const Interval& i : {r.control.perplexity_ratio}) {
    EXPECT_EQ(i.mean, 1.0);
    EXPECT_EQ(i.low, 1.0);
    EXPECT_EQ(i.high, 1.0);
  }
  EXPECT_EQ(r.control.top_token_change_rate.mean, 0.0);
  EXPECT_EQ(r.control.moved_share.mean, 0.0);
  EXPECT_EQ(r.control.positions, 6 * 8 + 6 * 16);
  ASSERT_EQ(r.lengths.size(), 2u);
  // A prompt no longer than the replay is exact; a longer one is not.
  ASSERT_GE(ring_slots(t0().config), 20);
  EXPECT_EQ(r.lengths[0].difference.perplexity_ratio.mean, 1.0);
  EXPECT_NE(r.lengths[1].difference.perplexity_ratio.mean, 1.0);
  EXPECT_GT(r.lengths[1].difference.moved_share.mean, 0.0);
  EXPECT_LE(r.all.perplexity_ratio.low, r.all.perplexity_ratio.mean);
  EXPECT_GE(r.all.perplexity_ratio.high, r.all.perplexity_ratio.mean);
}

TEST(EvalCompare, PoolMattersOnlyBeyondItsSize) {
  const ModelWeights no_pool = synthetic("t0", false);
  EvalRunner with(&t0(), &threads()), without(&no_pool, &threads());
  const int64_t entries = int64_t{t0().config.candidate_topk_blocks} * t0().config.candidate_block_size;
  ASSERT_LT(entries, 150);
  const std::vector<EvalText> texts = {{"prose", {tokens(700, 1)}}};
  EvalSuite suite{"needle", {}};
  for (int i = 0; i < 3; ++i) {
    EvalItem item;
    item.prompt = tokens(150, i);
    item.expect = greedy(item.prompt, 3);
    suite.items.push_back(item);
  }
  const PoolComparison r =
      compare_pool(&with, &without, texts, {suite}, 0, {{entries - 4, 4, 3}, {150, 16, 3}}).value();
  EXPECT_EQ(r.pool_entries, entries);
  EXPECT_EQ(r.lengths[0].difference.perplexity_ratio.mean, 1.0);
  EXPECT_NE(r.lengths[1].difference.perplexity_ratio.mean, 1.0);
  ASSERT_EQ(r.suites.size(), 1u);
  EXPECT_EQ(r.suites[0].pool, 3);  // its own answers
  EXPECT_EQ(r.suites[0].n, 3);
}

TEST(EvalReport, JsonHasThePromisedKeys) {
  EvalReport r;
  r.model = "somewhere";
  r.skills = {{"arithmetic", 4, 3, {}}};
  r.skill_drafts.emplace().add({0.9, 0.8}, 2, 1);
  r.prose_drafts.emplace().add({0.9, 0.8}, 2, 2);
  TextResult text;
  text.name = "prose";
  text.all = {0, 512, 2, 2 * std::log(3.0)};
  text.buckets = {{0, 256, 2, 2 * std::log(3.0)}};
  r.texts = {text};
  const auto j = eval_json(r);
  EXPECT_EQ(j["skills"]["arithmetic"]["score"], 0.75);
  EXPECT_EQ(j["skills"]["arithmetic"]["n"], 4);
  EXPECT_NEAR(j["skills"]["arithmetic"]["lower_95"].get<double>(), wilson_lower(3, 4), 1e-15);
  EXPECT_EQ(j["drafts"]["mean_accepted_skills"], 1.0);
  EXPECT_EQ(j["drafts"]["mean_accepted_prose"], 2.0);
  EXPECT_NEAR(j["calibration_error"].get<double>(), (0.1 + 0.8) / 2, 1e-12);
  EXPECT_NEAR(j["perplexity"]["prose"].get<double>(), 3.0, 1e-12);
  EXPECT_NEAR(j["perplexity"]["by_context"]["prose"]["0-256"]["perplexity"].get<double>(), 3.0, 1e-12);
  EXPECT_FALSE(j.contains("compare"));
  EXPECT_THAT(eval_text(r, [](const auto&) { return std::string(); }), HasSubstr("arithmetic"));

  ReplayComparison c;
  c.all.perplexity_ratio = {1.01, 1.0, 1.02};
  c.all.top_token_change_rate = {0.25, 0.2, 0.3};
  c.control.perplexity_ratio = {1, 1, 1};
  r.replay = c;
  const auto k = eval_json(r)["compare"];
  EXPECT_EQ(k["perplexity_ratio"], 1.01);
  EXPECT_EQ(k["perplexity_ratio_low"], 1.0);
  EXPECT_EQ(k["perplexity_ratio_high"], 1.02);
  EXPECT_EQ(k["top_token_change_rate"], 0.25);
  EXPECT_EQ(k["control"]["perplexity_ratio"], 1.0);
  EXPECT_EQ(k["control"]["top_token_change_rate"], 0.0);
}

// The serving engine's ways: a stored window and a preemption change nothing, exactly; a replay is an
// approximation and is told apart. Each way must really have happened.
TEST(EvalCompare, HitsThroughTheServingEngine) {
  EvalText text{"text", {tokens(700, 1), tokens(700, 2)}};
  const auto r = compare_hits(t0(), &threads(), {text}, 0, {{70, 60, 5}, {150, 60, 3}}, {});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_EQ(r->ways.size(), 3u);
  for (const HitComparison::Way& w : r->ways) {
    EXPECT_EQ(w.prompts, 8);
    EXPECT_EQ(w.all.positions, 8 * 60);
    if (w.name == "hit-replayed") continue;
    EXPECT_EQ(w.all.perplexity_ratio.mean, 1) << w.name;
    EXPECT_EQ(w.all.top_token_change_rate.mean, 0) << w.name;
    EXPECT_EQ(w.all.moved_share.mean, 0) << w.name;
    EXPECT_EQ(w.replayed, 0) << w.name;
  }
  EXPECT_GT(r->ways[0].cached_tokens, 0);
  EXPECT_EQ(r->ways[1].replayed, 8);
  EXPECT_NE(r->ways[1].all.perplexity_ratio.mean, 1);
  EXPECT_GT(r->ways[2].preemptions, 0);
  EvalReport report;
  report.hits = *r;
  const auto j = eval_json(report)["compare"];
  EXPECT_EQ(j["ways"], "cold,hit,hit-replayed,preempted");
  EXPECT_EQ(j["hit"]["perplexity_ratio"], 1.0);
  EXPECT_EQ(j["perplexity_ratio"], j["hit-replayed"]["perplexity_ratio"]);
}

}  // namespace
}  // namespace deepinfer
