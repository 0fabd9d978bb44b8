// `deepinfer eval`: how good a model is and what its approximations cost, measured through the engine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>

#include "apps/command.h"
#include "apps/eval_report.h"
#include "apps/model_source.h"
#include "host/clock.h"
#include "host/stop_flag.h"
#include "model/sizes.h"

namespace deepinfer {
namespace {

struct Options {
  std::string model, suites_dir, user_file, compare;
  std::vector<std::string> suites;
  bool quick = false, exact = false, json = false, quiet = false;
  int threads = 0;
  int64_t keep = 0, items = 0, failures = 0, max_tokens = 512;
  UserOptions user;
};

// Positions between two draft passes over a text whose continuation is known.
constexpr int64_t kDraftEvery = 32;
// A quick run reads this many tokens of each text.
constexpr int64_t kQuickTextTokens = 1536;
constexpr const char* kHitWays = "cold,hit,hit-replayed,preempted";
constexpr int64_t kQuickShort = 50, kQuickNeedles = 8;

bool is_needle(const std::string& name) {
  return name.starts_with("needle_");
}

// Suites that ask whether the candidate pool loses distant evidence: thousands of tokens an item, so they run
// when asked for and in that comparison.
bool is_far(const std::string& name) {
  return name == "distant_evidence" || name == "rare_reference" || name == "multi_step_tool";
}

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer eval: {}\n", s.to_string());
  if (s.code() == Code::kCancelled) return 130;
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

// One evaluation: what was asked for, the loaded model, and the report being filled.
class Evaluation {
 public:
  Evaluation(const Options& o, LoadedModel* model)
      : o_(o),
        m_(*model),
        pool_(o.threads > 0 ? o.threads : ThreadPool::usable_cpus()),
        runner_(m_.weights.get(), &pool_, [this] { return stop_.stop_requested(); }) {
    report_.model = m_.dir;
    report_.notice = m_.notice;
    report_.quick = o.quick;
    keep_ = o.exact ? -1 : o.keep;
    report_.keep = keep_ == 0 ? ring_slots(runner_.config()) : keep_;
  }

  Status run() {
    const int64_t start = now_ns();
    DI_TRY(!o_.user_file.empty() ? run_user() : !o_.compare.empty() ? run_compare() : run_all());
    report_.seconds = static_cast<double>(now_ns() - start) / 1e9;
    return {};
  }

  void print() const {
    if (o_.json) {
      fmt::print("{}\n",
                 eval_json(report_).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
      return;
    }
    fmt::print(
        "{}", eval_text(report_, [&](const std::vector<int32_t>& ids) { return m_.tokenizer->decode(ids); }));
  }

 private:
  void progress(const std::string& what) const {
    if (!o_.quiet) fmt::print(stderr, "[eval] {}\n", what);
  }
  int64_t item_limit(const std::string& name) const {
    if (o_.items > 0) return o_.items;
    return !o_.quick ? 0 : is_needle(name) || is_far(name) ? kQuickNeedles : kQuickShort;
  }
  Result<SuiteIndex> index() const {
    namespace fs = std::filesystem;
    const std::string dir = o_.suites_dir.empty() ? (fs::path(m_.dir) / "suites").string() : o_.suites_dir;
    return read_suite_index(dir, runner_.config().vocab_size);
  }

  Status run_all() {
    DI_ASSIGN(const SuiteIndex suites, index());
    std::vector<std::string> names = o_.suites;
    if (names.empty())
      std::remove_copy_if(suites.suites.begin(), suites.suites.end(), std::back_inserter(names), is_far);
    if (names.empty()) return error(Code::kInvalidData, "{}/index.json lists no suites", suites.dir);
    report_.skill_drafts.emplace();
    for (const std::string& name : names) {
      DI_ASSIGN(const EvalSuite suite, read_suite(suites, name, runner_.config(), item_limit(name)));
      const int64_t start = now_ns();
      DI_ASSIGN(SkillResult r,
                run_suite(&runner_, suite, keep_, static_cast<size_t>(o_.failures), &*report_.skill_drafts));
      progress(fmt::format("{}: {} of {} right, {:.1f} s", name, r.right, r.n,
                           static_cast<double>(now_ns() - start) / 1e9));
      report_.skills.push_back(std::move(r));
    }
    if (o_.suites.empty()) {
      for (const std::string& name : suites.texts) DI_TRY(run_one_text(suites, name));
    }
    // A model without draft stages has nothing to say about drafts.
    if (runner_.config().num_nextn_predict_layers == 0) report_.skill_drafts.reset();
    return {};
  }

  Status run_one_text(const SuiteIndex& suites, const std::string& name) {
    DI_ASSIGN(const EvalText text, read_text(suites, name, runner_.config()));
    const bool drafts = name == "prose" && runner_.config().num_nextn_predict_layers > 0;
    if (drafts) report_.prose_drafts.emplace();
    const int64_t start = now_ns();
    DI_ASSIGN(TextResult r, run_text(&runner_, text, o_.quick ? kQuickTextTokens : 0, kDraftEvery,
                                     drafts ? &*report_.prose_drafts : nullptr));
    progress(fmt::format("{}: {} tokens, perplexity {:.3f}, {:.1f} s", name, r.all.n, r.all.perplexity(),
                         static_cast<double>(now_ns() - start) / 1e9));
    report_.texts.push_back(std::move(r));
    return {};
  }

  Status run_user() {
    DI_ASSIGN(const EvalSuite suite,
              read_user_suite(o_.user_file, *m_.tokenizer, runner_.config(), o_.max_tokens));
    UserOptions user = o_.user;
    user.keep = keep_;
    user.max_failures = static_cast<size_t>(o_.failures);
    if (user.samples > 1 && user.sampling.temperature == 0.0) {
      return error(Code::kInvalidArgument,
                   "--pass-at {} at temperature 0 would draw the same answer every time; give --temperature",
                   user.samples);
    }
    DI_ASSIGN(UserResult r, run_user_suite(&runner_, *m_.tokenizer, suite, user));
    report_.user.push_back(std::move(r));
    return {};
  }

  Result<std::vector<EvalText>> compared_texts(const SuiteIndex& suites) {
    if (suites.texts.empty())
      return error(Code::kInvalidData, "{}/index.json lists no texts to compare on", suites.dir);
    std::vector<EvalText> texts;
    for (const std::string& name : suites.texts) {
      DI_ASSIGN(EvalText text, read_text(suites, name, runner_.config()));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  Status run_compare() {
    DI_ASSIGN(const SuiteIndex suites, index());
    DI_ASSIGN(const std::vector<EvalText> texts, compared_texts(suites));
    // Short prompts are many, because they are cheap; the longest still leave room for the scored tokens.
    const int64_t longest = std::min<int64_t>(16384, runner_.config().max_position_embeddings - 64);
    std::vector<PromptPlan> plans = {{256, 64, 48}, {1024, 64, 24}, {4096, 64, 12}, {longest, 64, 4}};
    if (o_.quick) plans = {{256, 64, 8}, {1024, 64, 4}, {4096, 64, 2}};
    progress(fmt::format("comparing {} on {} texts", o_.compare, texts.size()));
    if (o_.compare == "exact,replay") {
      if (o_.exact) return error(Code::kInvalidArgument, "--exact leaves no replay to compare");
      DI_ASSIGN(report_.replay, compare_replay(&runner_, texts, keep_, plans));
      return {};
    }
    if (o_.compare == kHitWays) {
      if (o_.exact)
        return error(Code::kInvalidArgument, "--exact does not apply: the engine serves with replay");
      // Long enough for a hit of two blocks and answers that outgrow a pool.
      plans = {{512, 300, o_.quick ? 3 : 16}, {1024, 300, o_.quick ? 2 : 12}, {4096, 300, o_.quick ? 1 : 4}};
      DI_ASSIGN(report_.hits, compare_hits(*m_.weights, &pool_, texts, keep_, plans,
                                           [this] { return stop_.stop_requested(); }));
      return {};
    }
    return run_compare_pool(suites, texts, plans);
  }

  Status run_compare_pool(const SuiteIndex& suites, const std::vector<EvalText>& texts,
                          std::vector<PromptPlan> plans) {
    if (runner_.config().candidate_source_layer_id < 0)
      return error(Code::kUnsupported, "this model has no candidate pool");
    // Prompts that the pool holds whole would only dilute the result.
    const int64_t pool =
        int64_t{runner_.config().candidate_topk_blocks} * runner_.config().candidate_block_size;
    std::erase_if(plans, [pool](const PromptPlan& p) { return p.length + p.scored <= pool; });
    std::vector<EvalSuite> evidence;
    for (const std::string& name : suites.suites) {
      const bool asked = std::find(o_.suites.begin(), o_.suites.end(), name) != o_.suites.end();
      const bool by_default = is_needle(name) || is_far(name);
      if (o_.suites.empty() ? !by_default : !asked) continue;
      DI_ASSIGN(EvalSuite suite, read_suite(suites, name, runner_.config(), item_limit(name)));
      evidence.push_back(std::move(suite));
    }
    // The same checkpoint once more, with the pool switched off.
    DI_ASSIGN(ModelWeights weights, load_checkpoint(m_.dir));
    weights.config.candidate_source_layer_id = -1;
    EvalRunner without(&weights, &pool_, [this] { return stop_.stop_requested(); });
    DI_ASSIGN(report_.pool, compare_pool(&runner_, &without, texts, evidence, keep_, plans));
    return {};
  }

  const Options& o_;
  LoadedModel& m_;
  StopFlag stop_;
  ThreadPool pool_;
  EvalRunner runner_;
  int64_t keep_ = 0;
  EvalReport report_;
};

int run_eval(const Options& o) {
  auto model = load_model(o.model);
  if (!model.ok()) return fail(model.status());
  if (!model->notice.empty()) fmt::print(stderr, "{}\n", model->notice);
  Evaluation evaluation(o, &*model);
  const Status s = evaluation.run();
  if (!s.ok()) return fail(s);
  evaluation.print();
  return 0;
}

}  // namespace

void add_eval(Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = program.app->add_subcommand(
      "eval", "Score a model: skills, perplexity, drafts, and what replay and the pool cost");
  cmd->add_option("--model", o->model,
                  "Checkpoint directory in the released format (default: the small model)");
  cmd->add_option("--suites", o->suites_dir,
                  "Folder of the suites (default: suites/ in the checkpoint directory)");
  cmd->add_option("--suite", o->suites, "Only these suites, and no texts; may be repeated");
  cmd->add_flag("--quick", o->quick,
                "50 short items per skill, 8 needles per distance, the beginning of each text");
  cmd->add_option("--items", o->items, "At most this many items per suite")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  auto* compare = cmd->add_option("--compare", o->compare,
                                  "Compare ways on the same texts: exact,replay or pool,nopool or "
                                  "cold,hit,hit-replayed,preempted")
                      ->check(CLI::IsMember({"exact,replay", "pool,nopool", kHitWays}));
  auto* file =
      cmd->add_option("--user", o->user_file, "Your own items, a JSON object per line (docs/evaluation.md)")
          ->excludes(compare);
  cmd->add_option("--pass-at", o->user.samples, "Samples per item of --user, with seeds 0, 1, ..")
      ->check(CLI::Range(int64_t{1}, int64_t{10000}))
      ->needs(file);
  cmd->add_option("--temperature", o->user.sampling.temperature, "Sampling of --user; 0 = greedy (default)")
      ->needs(file);
  cmd->add_option("--top-p", o->user.sampling.top_p, "Nucleus size in (0, 1] of --user")->needs(file);
  cmd->add_option("--max-tokens", o->max_tokens,
                  "Longest answer of --user items that name none (default 512)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->needs(file);
  cmd->add_option("--failures", o->failures, "Show this many wrong answers per suite")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  auto* exact =
      cmd->add_flag("--exact", o->exact, "Exact decoder state after prefill instead of bounded replay");
  cmd->add_option("--keep", o->keep,
                  "Decoder rows replayed at the end of prefill (default window + drafts + 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->excludes(exact);
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs); never changes a score")
      ->check(CLI::Range(1, 4096));
  cmd->add_flag("--json", o->json, "Print one JSON object");
  cmd->add_flag("--quiet", o->quiet, "No progress");
  cmd->callback([&program, o] { program.run = [o] { return run_eval(*o); }; });
}

}  // namespace deepinfer
