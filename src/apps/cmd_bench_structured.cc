// `deepinfer bench structured`: what matching a schema costs from end to end. The same prompts are answered
// by schema and freely, as many tokens each, in turns on one engine; and what the grammar itself takes is
// timed inside. Source: issue "structured output"; serving specification 12.3.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <type_traits>

#include "apps/chat_prompt.h"
#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/serve_constraints.h"
#include "engine/serving_engine.h"
#include "host/clock.h"
#include "host/thread_pool.h"
#include "text/json.h"
#include "text/render.h"

namespace deepinfer {
namespace {

struct Options {
  std::string model;
  int64_t requests = 12, rounds = 11, concurrency = 8, threads = 0;
  bool speculate = false, json = false;
};

const char* const kSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string","minLength":8,"maxLength":24},"age":{"type":
    "integer","minimum":0,"maximum":120},"email":{"type":"string","maxLength":24},"city":{"type":"string",
    "maxLength":16}},"required":["name","age","email","city"],"additionalProperties":false})",
    R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"label":{"enum":["red",
    "green","blue"]},"score":{"type":"number","minimum":0,"maximum":1}},"required":["id","label","score"],
    "additionalProperties":false},"minItems":2,"maxItems":4})",
    R"({"type":"object","properties":{"date":{"type":"string","format":"date"},"lines":{"type":"array","items":
    {"type":"string","maxLength":20},"minItems":1,"maxItems":4},"total":{"type":["number","null"]}},"required":
    ["date","lines","total"],"additionalProperties":false})",
};

// Passes everything on and adds up the time. One thread computes a step, so plain sums would do; several
// engines may not share it.
class Timed : public TokenConstraint {
 public:
  Timed(std::unique_ptr<TokenConstraint> inner, std::atomic<int64_t>* ns)
      : inner_(std::move(inner)), ns_(ns) {}
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<Timed>(inner_->clone(), ns_);
  }
  bool mask(std::span<uint32_t> bits) override {
    return timed([&] { return inner_->mask(bits); });
  }
  bool accept(int32_t id) override {
    return timed([&] { return inner_->accept(id); });
  }
  void rollback(int n) override {
    timed([&] { return inner_->rollback(n), 0; });
  }
  std::vector<int32_t> forced(int most) override {
    return timed([&] { return inner_->forced(most); });
  }
  bool terminated() const override { return inner_->terminated(); }

 private:
  template <typename F>
  std::invoke_result_t<F> timed(F f) {
    const int64_t begin = now_ns();
    auto out = f();
    *ns_ += now_ns() - begin;
    return out;
  }
  std::unique_ptr<TokenConstraint> inner_;
  std::atomic<int64_t>* ns_;
};

class Bench {
 public:
  explicit Bench(const Options& o) : o_(o) {}

  Status open() {
    DI_ASSIGN(model_, load_model(o_.model));
    const Tokenizer& t = *model_.tokenizer;
    DI_ASSIGN(control_, ControlTokens::from_tokenizer(t));
    ConstraintOptions c;
    c.vocab_size = model_.weights->config.vocab_size;
    c.think_close_id = control_.think_close;
    c.dsml_id = control_.dsml;
    DI_ASSIGN(grammars_, GrammarFactory::create(t, c));
    for (const char* schema : kSchemas) {
      DI_ASSIGN(Json value, parse_json(schema));
      DI_ASSIGN(std::shared_ptr<const TokenConstraint> made,
                grammars_->make({ConstraintSpec::Kind::kJsonSchema, std::move(value), "schema", false}));
      constraints_.push_back(std::make_shared<Timed>(made->clone(), &grammar_ns_));
    }
    pool_ = make_pool(o_.threads);
    EngineConfig e;
    e.pool_bytes = int64_t{256} << 20;
    e.max_running = o_.concurrency;
    if (!o_.speculate) e.drafts = 0;
    DI_ASSIGN(engine_, make_engine(model_.weights.get(), pool_.get(), e, now_ns));
    banned_ = input_only_ids(t, model_.weights->config);
    for (int64_t i = 0; i < o_.requests; ++i) {
      prompts_.push_back(chat_prompt(
          t, model_.weights->config, {"Extract the data as json.", false, false},
          fmt::format("Record {}: Ada Lovelace, 36, London, paid {} on 3 May.", i, (i * 37) % 101)));
    }
    return {};
  }

  // All requests once; nanoseconds from the first to the last.
  Result<int64_t> pass(bool by_schema) {
    std::map<uint64_t, size_t> live;
    const int64_t begin = now_ns();
    for (size_t i = 0; i < prompts_.size(); ++i) {
      EngineRequest r;
      r.prompt = prompts_[i];
      r.sampling.seed = 100 + i;
      r.banned_ids = banned_;
      r.speculate = o_.speculate;
      r.max_tokens = 400;
      if (by_schema) {
        r.constraint = constraints_[i % constraints_.size()];
        r.stop_ids = {control_.eos};
      } else {
        r.max_tokens = tokens_[i];
        r.banned_ids.push_back(control_.eos);
        std::sort(r.banned_ids.begin(), r.banned_ids.end());
      }
      DI_ASSIGN(RequestId id, engine_->submit(std::move(r)));
      live[static_cast<uint64_t>(id)] = i;
    }
    tokens_.resize(prompts_.size());
    while (!live.empty()) {
      for (const EngineEvent& e : engine_->poll(1'000'000'000)) {
        auto it = live.find(static_cast<uint64_t>(e.request));
        if (it == live.end() || e.kind != EngineEvent::Kind::kFinished) continue;
        if (!e.status.ok()) return e.status;
        if (by_schema) {
          tokens_[it->second] = e.usage.output_tokens;
          whole_ += e.finish == Finish::kStop ? 1 : 0;
        }
        live.erase(it);
      }
    }
    return now_ns() - begin;
  }

  Result<Json> run() {
    // Both kinds once, unmeasured: prompts are in the cache then, masks of the grammars' first places are
    // computed, and it is known how many tokens each answer has.
    for (bool by_schema : {true, false}) {
      if (auto t = pass(by_schema); !t.ok()) return t.status();
    }
    const int64_t whole = whole_;
    int64_t tokens = 0;
    for (int64_t n : tokens_) tokens += n;
    std::vector<double> ratios, shares, by_schema_s, free_s;
    for (int64_t round = 0; round < o_.rounds; ++round) {
      int64_t ns[2] = {0, 0};
      for (int half = 0; half < 2; ++half) {
        const bool by_schema = (half + round) % 2 == 0;
        grammar_ns_ = 0;
        DI_ASSIGN(ns[by_schema], pass(by_schema));
        if (by_schema) shares.push_back(static_cast<double>(grammar_ns_) / static_cast<double>(ns[1]));
      }
      by_schema_s.push_back(static_cast<double>(ns[1]) / 1e9);
      free_s.push_back(static_cast<double>(ns[0]) / 1e9);
      ratios.push_back(static_cast<double>(ns[1]) / static_cast<double>(ns[0]));
    }
    auto median = [](std::vector<double> v) {
      std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
      return v[v.size() / 2];
    };
    auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    return Json{
        {"requests", o_.requests},
        {"concurrency", o_.concurrency},
        {"speculate", o_.speculate},
        {"threads", pool_->threads()},
        {"rounds", o_.rounds},
        {"tokens_per_pass", tokens},
        {"answers_whole", whole},
        {"by_schema_s", median(by_schema_s)},
        {"free_s", median(free_s)},
        {"slowdown", {{"median", median(ratios) - 1}, {"least", *least - 1}, {"most", *most - 1}}},
        {"grammar_share", median(shares)},
        {"grammar_us_per_token", median(shares) * median(by_schema_s) * 1e6 / static_cast<double>(tokens)}};
  }

 private:
  Options o_;
  LoadedModel model_;
  ControlTokens control_;
  std::shared_ptr<GrammarFactory> grammars_;
  std::atomic<int64_t> grammar_ns_{0};
  std::vector<std::shared_ptr<const TokenConstraint>> constraints_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> banned_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<int64_t> tokens_;  // of each answer by schema
  int64_t whole_ = 0;
};

int run(const Options& o) {
  Bench bench(o);
  Status opened = bench.open();
  Result<Json> report = opened.ok() ? bench.run() : Result<Json>(opened);
  if (!report.ok()) {
    fmt::print(stderr, "deepinfer bench structured: {}\n", report.status().to_string());
    return 1;
  }
  const Json& r = *report;
  if (o.json) {
    fmt::print("{}\n", r.dump());
    return 0;
  }
  auto percent = [](const Json& v) { return 100 * v.get<double>(); };
  fmt::print("{} answers of {} tokens in all, {} at a time, {} threads, {} rounds in turns{}\n",
             r["requests"].get<int64_t>(), r["tokens_per_pass"].get<int64_t>(),
             r["concurrency"].get<int64_t>(), r["threads"].get<int>(), r["rounds"].get<int64_t>(),
             o.speculate ? ", with drafts" : "");
  fmt::print("by schema {:.3f} s, free {:.3f} s: slowdown {:.2f} % in the median ({:.2f} to {:.2f})\n",
             r["by_schema_s"].get<double>(), r["free_s"].get<double>(), percent(r["slowdown"]["median"]),
             percent(r["slowdown"]["least"]), percent(r["slowdown"]["most"]));
  fmt::print("in the grammar: {:.2f} % of the time, {:.1f} us a token\n", percent(r["grammar_share"]),
             r["grammar_us_per_token"].get<double>());
  return 0;
}

}  // namespace

void add_bench_structured(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = bench_command(program)->add_subcommand(
      "structured", "What answers by schema cost against free ones of the same length");
  cmd->add_option("--model", o->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--requests", o->requests, "Answers of one pass")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}));
  cmd->add_option("--rounds", o->rounds, "Passes of each kind, in turns")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  cmd->add_option("--concurrency", o->concurrency, "Answers at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  cmd->add_flag("--speculate", o->speculate, "With drafts: forced tokens are drafts too then");
  cmd->add_flag("--json", o->json, "The report as one JSON object");
  cmd->callback([&program, o] { program.run = [o] { return run(*o); }; });
}

}  // namespace deepinfer
