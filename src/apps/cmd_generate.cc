// `deepinfer generate`: text in, text out, one sequence. The smallest way to use a model.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/chat_prompt.h"
#include "apps/command.h"
#include "apps/model_source.h"
#include "engine/generator.h"
#include "host/clock.h"
#include "host/files.h"
#include "host/stop_flag.h"
#include "host/thread_pool.h"
#include "kernels/kernels.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

constexpr int64_t kPromptLimitBytes = int64_t{64} << 20;

struct Options {
  std::string model, prompt, prompt_file;
  ChatPromptOptions chat;
  bool no_speculate = false, exact = false, json = false, quiet = false;
  int threads = 0;
  WeightsPlace place = WeightsPlace::kAuto;
  int64_t keep = 0, expert_memory_mib = 0;
  GenerateOptions generate;
};

int fail(const Status& s) {
  fmt::print(stderr, "deepinfer generate: {}\n", s.to_string());
  return s.code() == Code::kInvalidArgument ? 2 : 1;
}

Result<std::string> read_prompt(const Options& o) {
  if (!o.prompt.empty()) return o.prompt;
  if (!o.prompt_file.empty() && o.prompt_file != "-") return read_file(o.prompt_file, kPromptLimitBytes);
  if (o.prompt_file.empty() && isatty(STDIN_FILENO) != 0) {
    return error(Code::kInvalidArgument,
                 "no prompt: give --prompt TEXT, --prompt-file FILE, or text on standard input");
  }
  return read_descriptor(STDIN_FILENO, "standard input", kPromptLimitBytes);
}

double per_second(int64_t n, int64_t ns) {
  return ns > 0 ? static_cast<double>(n) * 1e9 / static_cast<double>(ns) : 0.0;
}

const char* finish_name(GenerateStats::Finish f) {
  switch (f) {
    case GenerateStats::Finish::kStop:
      return "stop";
    case GenerateStats::Finish::kLength:
      return "length";
    case GenerateStats::Finish::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

double hit_rate(const ExpertUse& e) {
  return 1.0 - static_cast<double>(e.misses) / static_cast<double>(e.uses);
}

void report(const Options& o, const GenerateStats& s, const std::vector<int32_t>& ids,
            const std::string& text, const LoadedModel& m, const ExpertUse& experts) {
  double prefill = per_second(s.prompt_tokens, s.prefill_ns),
         decode = per_second(s.generated_tokens, s.decode_ns);
  if (o.json) {
    nlohmann::ordered_json j;
    j["model"] = m.dir;
    j["text"] = text;
    j["token_ids"] = ids;
    j["finish_reason"] = finish_name(s.finish);
    j["usage"] = {{"prompt_tokens", s.prompt_tokens},
                  {"completion_tokens", s.generated_tokens},
                  {"total_tokens", s.prompt_tokens + s.generated_tokens}};
    j["timing"] = {{"prefill_ms", static_cast<double>(s.prefill_ns) / 1e6},
                   {"decode_ms", static_cast<double>(s.decode_ns) / 1e6},
                   {"prefill_tokens_per_s", prefill},
                   {"decode_tokens_per_s", decode},
                   {"steps", s.steps},
                   {"drafted", s.drafted},
                   {"accepted", s.accepted}};
    if (experts.uses > 0)
      j["experts"] = {{"uses", experts.uses},
                      {"misses", experts.misses},
                      {"evictions", experts.evictions},
                      {"hit_rate", hit_rate(experts)}};
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  fmt::print("\n");
  std::fflush(stdout);
  if (o.quiet) return;
  fmt::print(stderr,
             "[{} prompt + {} generated tokens, {}; prefill {:.0f} tok/s, decode {:.0f} tok/s; {} steps, "
             "drafts {}/{} accepted]\n",
             s.prompt_tokens, s.generated_tokens, finish_name(s.finish), prefill, decode, s.steps, s.accepted,
             s.drafted);
  if (experts.uses > 0)
    fmt::print(stderr, "[experts: {} of {} uses found in memory ({:.1f} %), {} of {} resident]\n",
               experts.uses - experts.misses, experts.uses, 100 * hit_rate(experts), experts.resident,
               experts.capacity);
}

int run_generate(Options o) {
  auto text = read_prompt(o);
  if (!text.ok()) return fail(text.status());
  auto loaded = load_model(o.model, {.expert_memory_bytes = o.expert_memory_mib << 20});
  if (!loaded.ok()) return fail(loaded.status());
  LoadedModel& m = *loaded;
  if (!m.notice.empty()) fmt::print(stderr, "{}\n", m.notice);
  const ModelConfig& c = m.weights->config;
  std::vector<int32_t> prompt = chat_prompt(*m.tokenizer, c, o.chat, *text);

  o.generate.speculate = !o.no_speculate;
  o.generate.keep = o.exact ? -1 : o.keep;
  o.generate.stop_ids = {c.eos_token_id};
  o.generate.banned_ids = input_only_ids(*m.tokenizer, c);
  int64_t room = c.max_position_embeddings - static_cast<int64_t>(prompt.size());
  if (o.generate.max_tokens < 0) o.generate.max_tokens = std::max<int64_t>(1, std::min<int64_t>(256, room));

  std::unique_ptr<ThreadPool> pool = make_pool(o.threads);
  auto placed = place_weights(o.place, m.weights.get(), pool.get());
  if (!placed.ok()) return fail(placed.status());
  if (!placed->empty() && !o.quiet) fmt::print(stderr, "{}\n", *placed);
  Forward<float> model(m.weights.get(), pool.get(), {});
  int64_t block = model.layout().block_tokens;
  BlockPool blocks(model.layout().block_bytes,
                   (static_cast<int64_t>(prompt.size()) + o.generate.max_tokens + block) / block + 1);

  StopFlag stop;
  std::string produced;
  std::vector<int32_t> ids;
  Utf8Assembler assembler;
  auto stats = generate<float>(
      &model, &blocks, prompt, o.generate,
      [&](int32_t id) {
        ids.push_back(id);
        std::string piece = assembler.push(m.tokenizer->token_bytes(id));
        produced += piece;
        if (!o.json && !piece.empty()) {
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        }
        return !stop.stop_requested();
      },
      now_ns);
  if (!stats.ok()) return fail(stats.status());
  std::string rest = assembler.flush();
  produced += rest;
  if (!o.json) std::fwrite(rest.data(), 1, rest.size(), stdout);
  if (stop.stop_requested()) stats->finish = GenerateStats::Finish::kCancelled;
  report(o, *stats, ids, produced, m, model.expert_use());
  return stop.stop_requested() ? 130 : 0;
}

}  // namespace

void add_generate(Program& program) {
  auto o = std::make_shared<Options>();
  o->generate.max_tokens = -1;
  CLI::App* cmd = program.app->add_subcommand("generate", "Print the model's continuation of a prompt");
  cmd->add_option("--model", o->model,
                  "Checkpoint directory in the released format (default: the small model)");
  cmd->add_option("--prompt", o->prompt, "The user's text");
  cmd->add_option("--prompt-file", o->prompt_file, "Read the text from a file, - for standard input");
  cmd->add_option("--system", o->chat.system, "System text");
  cmd->add_flag("--raw", o->chat.raw, "No chat template: continue the bare text");
  cmd->add_flag("--thinking", o->chat.thinking, "Let the model reason first");
  cmd->add_option("--max-tokens", o->generate.max_tokens, "Stop after this many tokens (default 256)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  cmd->add_option("--temperature", o->generate.sampling.temperature, "0 = greedy (default)");
  cmd->add_option("--top-p", o->generate.sampling.top_p, "Nucleus size in (0, 1]");
  cmd->add_option("--top-k", o->generate.sampling.top_k, "Keep the k most likely tokens, 0 = all");
  cmd->add_option("--min-p", o->generate.sampling.min_p,
                  "Keep tokens with this share of the best one's probability");
  cmd->add_option("--seed", o->generate.sampling.seed,
                  "Seed of the draws; the same seed gives the same text");
  cmd->add_flag("--no-speculate", o->no_speculate, "Do not draft; the text is the same");
  cmd->add_option("--drafts", o->generate.drafts, "Drafts verified per step (default: the model's block)")
      ->check(CLI::Range(0, 64));
  cmd->add_flag("--exact", o->exact, "Exact decoder state after prefill instead of bounded replay");
  cmd->add_option("--keep", o->keep,
                  "Decoder rows replayed at the end of prefill (default window + drafts + 1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  cmd->add_option("--chunk", o->generate.chunk, "Prefill rows per call; never changes the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs); never changes the text")
      ->check(CLI::Range(1, 4096));
  add_expert_memory(cmd, &o->expert_memory_mib);
  add_weights_place(cmd, &o->place);
  cmd->add_flag("--json", o->json, "Print one JSON object with text, token_ids, usage and timing");
  cmd->add_flag("--quiet", o->quiet, "No line of statistics");
  cmd->callback([&program, o] { program.run = [o] { return run_generate(*o); }; });
}

}  // namespace deepinfer
