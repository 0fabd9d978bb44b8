// Four runs of the same prompts through two engines: one with room for everything, one with far too little.
#include "apps/eval_hits.h"

#include <algorithm>
#include <map>

#include "engine/serving_engine.h"
#include "host/clock.h"
#include "model/sizes.h"

namespace deepinfer {
namespace {

// Leaves no choice: the true continuation. What the model thought of it is in the log-probabilities.
class TrueTokens : public TokenConstraint {
 public:
  explicit TrueTokens(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<TrueTokens>(*this); }
  bool mask(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0);
    if (at_ < ids_.size()) bits[static_cast<size_t>(ids_[at_]) / 32] |= 1u << (ids_[at_] % 32);
    return true;
  }
  bool accept(int32_t id) override {
    if (at_ >= ids_.size() || id != ids_[at_]) return false;
    ++at_;
    return true;
  }
  void rollback(int n) override { at_ -= static_cast<size_t>(n); }
  std::vector<int32_t> forced(int) override { return {}; }  // every row is scored by itself
  bool terminated() const override { return false; }

 private:
  std::vector<int32_t> ids_;
  size_t at_ = 0;
};

struct WayRun {
  std::vector<Scored> scored;
  HitComparison::Way figures;
};

// Runs all prompts at once and waits for them.
Result<WayRun> run_way(ServingEngine* engine, const std::vector<std::vector<int32_t>>& prompts,
                       int64_t boundary, bool use_cache, const std::function<bool()>& stop) {
  WayRun out;
  std::map<RequestId, size_t> index;
  for (const auto& tokens : prompts) {
    EngineRequest r;
    r.prompt.assign(tokens.begin(), tokens.begin() + boundary);
    r.constraint =
        std::make_shared<TrueTokens>(std::vector<int32_t>(tokens.begin() + boundary, tokens.end()));
    r.max_tokens = static_cast<int64_t>(tokens.size()) - boundary;
    r.top_logprobs = 1;
    r.speculate = false;
    r.use_cache = use_cache;
    DI_ASSIGN(const RequestId id, engine->submit(std::move(r)));
    index.emplace(id, index.size());
  }
  out.scored.resize(prompts.size());
  for (size_t ended = 0; ended < prompts.size();) {
    if (stop && stop()) return Status(Code::kCancelled, "stopped");
    for (const EngineEvent& e : engine->poll(100'000'000)) {
      Scored& s = out.scored[index.at(e.request)];
      for (const TokenEvent& t : e.tokens) {
        s.log_probability.push_back(t.logprob);
        s.top.push_back(t.top.front().first);
      }
      if (e.kind != EngineEvent::Kind::kFinished) continue;
      ++ended;
      if (e.finish != Finish::kLength)
        return e.status.ok() ? Status(Code::kCancelled, name(e.finish)) : e.status;
      ++out.figures.prompts;
      out.figures.prompt_tokens += e.usage.prompt_tokens;
      out.figures.cached_tokens += e.usage.cached_tokens;
      out.figures.replayed += e.usage.replayed_window ? 1 : 0;
      out.figures.preemptions += e.usage.preemptions;
    }
  }
  return out;
}

void lose_windows(ServingEngine* engine) {
  engine->inspect([](const policy::SchedulerState& s) {
    policy::SnapshotsLost lost;
    for (size_t i = 0; i < s.cache.snapshots.size(); ++i) {
      if (s.cache.snapshots[i].place == policy::SnapshotPlace::kReady)
        lost.snapshots.push_back(policy::SnapshotId(static_cast<int32_t>(i)));
    }
    return std::vector<policy::Event>{lost};
  });
}

EngineConfig engine_config(int64_t blocks, int64_t windows, int64_t keep) {
  EngineConfig c;
  c.pool_blocks = blocks;
  c.snapshot_slots = windows;
  c.keep_tokens = keep;
  c.drafts = 0;
  c.calibrate_ns = 200'000'000;
  c.weights_digest = "the model compared";  // one process, one checkpoint
  return c;
}

}  // namespace

Result<HitComparison> compare_hits(const ModelWeights& weights, ThreadPool* pool,
                                   const std::vector<EvalText>& texts, int64_t keep,
                                   const std::vector<PromptPlan>& plans, const std::function<bool()>& stop) {
  const ModelConfig& c = weights.config;
  Forward<float> model(&weights, pool, {});
  HitComparison out;
  out.keep = keep == 0 ? ring_slots(c) : keep;
  out.ways.resize(3);
  const char* names[] = {"hit", "hit-replayed", "preempted"};
  std::vector<DifferenceTally> tallies(3);
  for (size_t w = 0; w < 3; ++w) out.ways[w].name = names[w];
  for (const PromptPlan& plan : plans) {
    if (plan.length + plan.scored > c.max_position_embeddings) continue;
    std::vector<std::vector<int32_t>> prompts;
    for (const EvalText& text : texts) {
      for (auto& p : cut_prompts(text, plan, c.bos_token_id)) prompts.push_back(std::move(p));
    }
    if (prompts.empty()) continue;
    const int64_t n = static_cast<int64_t>(prompts.size());
    const int64_t each = (plan.length + plan.scored) / c.sliding_window + 1;
    DI_ASSIGN(auto roomy,
              make_serving_engine(&model, weights, pool, engine_config(3 * n * each, 8 * n + 16, out.keep),
                                  [] { return now_ns(); }));
    DI_ASSIGN(const WayRun cold, run_way(roomy.get(), prompts, plan.length, false, stop));
    DI_TRY(run_way(roomy.get(), prompts, plan.length, true, stop).status());  // fills the cache
    std::vector<WayRun> runs(3);
    DI_ASSIGN(runs[0], run_way(roomy.get(), prompts, plan.length, true, stop));
    lose_windows(roomy.get());
    DI_ASSIGN(runs[1], run_way(roomy.get(), prompts, plan.length, true, stop));
    roomy.reset();
    // Two prompts fit with the block that stays free, one prompt and one answer do not: the senior takes the
    // junior's blocks.
    const int64_t tight = 2 * (plan.length / c.sliding_window + 1) + 1;
    DI_ASSIGN(auto small, make_serving_engine(&model, weights, pool, engine_config(tight, 8, out.keep),
                                              [] { return now_ns(); }));
    DI_ASSIGN(runs[2], run_way(small.get(), prompts, plan.length, false, stop));
    for (size_t w = 0; w < 3; ++w) {
      DifferenceTally tally;
      for (size_t i = 0; i < prompts.size(); ++i) tally.add(runs[w].scored[i], cold.scored[i]);
      HitComparison::Way& way = out.ways[w];
      way.lengths.push_back({plan.length, tally.result()});
      tallies[w].add(tally);
      way.prompts += runs[w].figures.prompts;
      way.prompt_tokens += runs[w].figures.prompt_tokens;
      way.cached_tokens += runs[w].figures.cached_tokens;
      way.replayed += runs[w].figures.replayed;
      way.preemptions += runs[w].figures.preemptions;
    }
  }
  if (out.ways[0].lengths.empty())
    return error(Code::kInvalidData, "the texts are too short to compare anything");
  for (size_t w = 0; w < 3; ++w) out.ways[w].all = tallies[w].result();
  return out;
}

}  // namespace deepinfer
