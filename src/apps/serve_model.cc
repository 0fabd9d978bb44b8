// Loads a model and starts its engine (apps/serve_engine.h).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/model_source.h"
#include "apps/serve_constraints.h"
#include "apps/serve_engine.h"
#include "apps/store_prefix.h"
#include "base/sha256.h"
#include "engine/serving_engine.h"
#include "host/clock.h"
#include "host/files.h"
#include "host/limits.h"
#include "host/thread_pool.h"
#include "text/render.h"

namespace deepinfer {
namespace {

constexpr int64_t kBlockTokens = 128;
const char* const kSyntheticText =
    "This answer comes from the synthetic engine. It repeats one text at a steady rate, so that clients, "
    "networks and dashboards can be tried without a model. ";

// What the engine stands on, destroyed in this order after it.
struct Owned {
  LoadedModel model;
  std::unique_ptr<ThreadPool> pool;
  OpenedStore store;
};

// Binds stored prefixes to the vocabulary they were written with; the encoding of conversations is this
// program's own and has a version.
Result<std::string> tokenizer_digest(const std::string& dir) {
  constexpr const char* kEncoding = "conversation encoding 1";
  DI_ASSIGN(std::string text, read_file(dir + "/tokenizer.json", int64_t{256} << 20));
  return to_hex(sha256(text)) + " " + kEncoding;
}

StoreOptions store_options(const ServeConfig& c) {
  StoreOptions s;
  s.paths = c.store;
  s.k = static_cast<int>(c.store_data_parts);
  s.m = static_cast<int>(c.store_parity_parts);
  s.each.limit_bytes_per_s = c.store_limit_mb_s * 1'000'000;
  policy::RetentionRules& r = s.each.retention;
  r.quota_bytes = c.store_bytes / static_cast<int64_t>(c.store.size());
  r.chat_ttl_s = c.store_chat_ttl_s;
  r.agent_ttl_s = c.store_agent_ttl_s;
  r.window_chat_ttl_s = c.store_window_chat_ttl_s;
  r.window_agent_ttl_s = c.store_window_agent_ttl_s;
  r.longest_ttl_s = std::max({r.longest_ttl_s, c.store_chat_ttl_s, c.store_agent_ttl_s,
                              c.store_window_chat_ttl_s, c.store_window_agent_ttl_s});
  return s;
}

policy::SpeculationConfig speculation_of(const ServeConfig& c, int drafts) {
  policy::SpeculationConfig s;
  s.mode = c.speculation == "lane"    ? policy::SpeculationMode::kLane
           : c.speculation == "fixed" ? policy::SpeculationMode::kFixed
                                      : policy::SpeculationMode::kDynamic;
  s.fixed = static_cast<int>(std::min<int64_t>(c.fixed_drafts, drafts));
  s.lane = {c.lane_row_share, c.lane_dead_below};
  return s;
}

// A quarter of the memory that is free: weights are mapped files, and others live here too.
int64_t default_pool_bytes() {
  const int64_t free = usable_memory_bytes(read_memory_info(), read_cgroup_limits());
  return std::clamp<int64_t>(free / 4, int64_t{128} << 20, int64_t{64} << 30);
}

}  // namespace

Result<ServedModel> open_engine(const ServeConfig& c,
                                const std::function<void(const std::string&)>& progress) {
  ServedModel out;
  const int64_t begin = now_ns();
  auto owned = std::make_shared<Owned>();
  DI_ASSIGN(owned->model, load_model(c.model, {.expert_memory_bytes = c.expert_memory_bytes}));
  out.notice = owned->model.notice;
  out.name = std::filesystem::path(owned->model.dir).lexically_normal().filename().string();
  if (out.name.empty()) out.name = std::filesystem::path(owned->model.dir).parent_path().filename().string();
  out.tokenizer = std::make_shared<Tokenizer>(*owned->model.tokenizer);
  out.vocab_size = owned->model.weights->config.vocab_size;
  if (c.engine == "synthetic") {
    out.engine = open_synthetic(*out.tokenizer, kSyntheticText, c.synthetic_tokens_per_s);
    out.vocab_size = out.tokenizer->vocab_size();
    return out;
  }
  DI_ASSIGN(const ControlTokens control, ControlTokens::from_tokenizer(*out.tokenizer));
  ConstraintOptions constraints;
  constraints.vocab_size = out.vocab_size;
  constraints.think_close_id = control.think_close;
  constraints.dsml_id = control.dsml;
  DI_ASSIGN(out.grammars, GrammarFactory::create(*out.tokenizer, constraints));
  progress(fmt::format("{}: {} loaded in {:.1f} s", out.name, owned->model.dir,
                       static_cast<double>(now_ns() - begin) / 1e9));
  owned->pool = make_pool(c.threads);
  DI_ASSIGN(const std::string placed,
            place_weights(weights_place(c.weights), owned->model.weights.get(), owned->pool.get()));
  if (!placed.empty()) progress(placed);
  EngineConfig e;
  if (c.kv_tokens > 0) {
    e.pool_blocks = std::max<int64_t>(1, (c.kv_tokens + kBlockTokens - 1) / kBlockTokens);
  } else {
    e.pool_bytes = default_pool_bytes();
  }
  e.max_running = c.max_running;
  e.max_waiting = std::max<int64_t>(4096, c.max_queued_requests * c.max_choices);
  e.context_tokens = c.context_tokens;
  e.exact_hits = c.exact_hits;
  e.interactive_budget_ns = static_cast<int64_t>(c.interactive_step_ms * 1e6);
  e.batch_budget_ns = static_cast<int64_t>(c.batch_step_ms * 1e6);
  if (!c.speculate) e.drafts = 0;
  e.speculation = speculation_of(c, owned->model.weights->config.drafts());
  if (c.step_tokens > 0) e.chunk_max_tokens = c.step_tokens;
  if (!c.store.empty()) {
    DI_ASSIGN(owned->store, open_prefix_store(store_options(c)));
    e.store = owned->store.prefix.get();
    e.store_late = c.store_write == "back";
    // Reads of less than 40 KiB are slow everywhere.
    e.store_split_bytes = c.store_layers ? 40'960 : 0;
    e.store_warm_ns = c.store_warm_ms * 1'000'000;
    DI_ASSIGN(e.tokenizer_digest, tokenizer_digest(owned->model.dir));
    progress(owned->store.notice);
  }
  DI_ASSIGN(out.engine,
            make_engine(owned->model.weights.get(), owned->pool.get(), e, [] { return now_ns(); }));
  const EngineStats s = out.engine->stats();
  if (s.store_warm_blocks > 0)
    progress(fmt::format("{} blocks and {} windows brought in from the store", s.store_warm_blocks,
                         s.store_warm_windows));
  progress(fmt::format("engine ready after {:.1f} s: {} threads, context {} tokens, cache for {} tokens",
                       static_cast<double>(now_ns() - begin) / 1e9, owned->pool->threads(),
                       out.engine->context_tokens(), s.blocks_total * kBlockTokens));
  out.owner = std::move(owned);
  return out;
}

}  // namespace deepinfer
