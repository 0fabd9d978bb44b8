// deepinfer grammar: compile a JSON schema, regular expression, EBNF or tool list; print its rules, test
// texts, sample from its masks, measure. Exit codes: 0 accepted or done, 1 the text is not accepted (or bad
// input), 2 the grammar is unsupported, over a limit, or wrong; the place is on standard error.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <random>

#include "apps/command.h"
#include "apps/edge_source.h"
#include "apps/grammar_bench.h"
#include "text/json.h"

namespace deepinfer {
namespace {

struct GrammarArgs {
  std::string schema, regex, gbnf, lark, tools, tokenizer, suite;
  std::string accept, accept_file;
  bool json_object = false, print = false, bench = false, json = false, any_order = false,
       best_effort = false, have_accept = false, samples_out = false;
  uint32_t max_space = 32;
  int64_t time_ms = 5000;
  int samples = 0, sample_tokens = 400, repeat = 1;
  uint64_t seed = 1;
};

int fail(const Status& s, int code) {
  std::fprintf(stderr, "deepinfer grammar: %s\n", s.to_string().c_str());
  return code;
}

Result<grammar::GrammarSource> source_of(const GrammarArgs& args) {
  grammar::GrammarSource s;
  s.schema.any_order = args.any_order;
  s.schema.max_space = args.max_space;
  s.schema.best_effort = args.best_effort;
  using Kind = grammar::GrammarSource::Kind;
  if (args.json_object) {
    s.kind = Kind::kJsonObject;
    return s;
  }
  if (!args.regex.empty()) {
    s.kind = Kind::kRegex;
    s.text = args.regex;
    return s;
  }
  const std::string& file = !args.schema.empty() ? args.schema
                            : !args.gbnf.empty() ? args.gbnf
                            : !args.lark.empty() ? args.lark
                                                 : args.tools;
  if (file.empty())
    return Status(Code::kInvalidArgument,
                  "give one of --schema, --json-object, --regex, --gbnf, --lark, --tools");
  s.kind = !args.schema.empty() ? Kind::kJsonSchema
           : !args.gbnf.empty() ? Kind::kGbnf
           : !args.lark.empty() ? Kind::kLark
                                : Kind::kTools;
  DI_ASSIGN(s.text, read_all(file));
  return s;
}

// [{"name": ..., "parameters": {...}, "strict": true}, ...], bare or as the protocols wrap them.
Status read_tools(const GrammarArgs& args, int32_t dsml, grammar::GrammarSource* s) {
  DI_ASSIGN(Json list, parse_json(s->text));
  s->text.clear();
  if (!list.is_array()) return Status(Code::kInvalidArgument, "--tools needs an array of tools");
  for (const Json& item : list) {
    const Json& f = item.contains("function") ? item["function"] : item;
    if (!f.is_object() || !f.contains("name") || !f["name"].is_string())
      return Status(Code::kInvalidArgument, "a tool needs a name");
    grammar::ToolSpec t;
    t.name = f["name"].get<std::string>();
    if (f.contains("parameters")) t.parameters = f["parameters"].dump();
    t.strict = !f.contains("strict") || f["strict"] != Json(false);
    s->tools.push_back(std::move(t));
  }
  s->tool_options.dsml_token = dsml;
  s->tool_options.schema = s->schema;
  (void)args;
  return {};
}

// Bytes one by one, and control tokens where their spelling stands, as a reader of the command line expects.
bool accepts(const grammar::Vocabulary& v, const Tokenizer& tokenizer, grammar::Matcher* m,
             const std::string& text) {
  (void)v;
  for (int32_t id : tokenizer.encode_with_added_tokens(text)) {
    if (!m->accept(id)) return false;
  }
  return m->can_stop();
}

void print_samples(const GrammarArgs& args, const std::shared_ptr<const grammar::CompiledGrammar>& compiled) {
  std::mt19937_64 rng(args.seed);
  const grammar::Vocabulary& v = compiled->vocabulary();
  std::vector<uint32_t> mask(v.mask_words());
  for (int i = 0; i < args.samples; ++i) {
    grammar::Matcher m(compiled);
    std::string text;
    for (int n = 0; n < args.sample_tokens && m.fill_mask(mask); ++n) {
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < v.size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      int32_t t = m.can_stop() && rng() % 3 == 0 ? v.stop_tokens()[0] : allowed[rng() % allowed.size()];
      m.accept(t);
      if (m.terminated()) break;
      text += v.bytes(t);
    }
    std::printf("%s%s\n", text.c_str(), m.terminated() ? "" : "  (cut)");
  }
}

// The suite that comes with the sources, found from the program upwards.
std::string find_suite() {
  std::string dir = "/proc/self/exe";
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return {};
  dir.assign(path, static_cast<size_t>(n));
  for (size_t slash = dir.rfind('/'); slash != std::string::npos && slash > 0; slash = dir.rfind('/')) {
    dir.resize(slash);
    std::string file = dir + "/tests/grammar/conformance.jsonl";
    if (std::FILE* f = std::fopen(file.c_str(), "rb"); f != nullptr) {
      std::fclose(f);
      return file;
    }
  }
  return {};
}

int run_bench(const GrammarArgs& args) {
  GrammarBench bench;
  bench.repeat = args.repeat;
  bench.every_sample = args.samples_out;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!args.tokenizer.empty()) {
    Result<Tokenizer> t = find_tokenizer(args.tokenizer);
    if (!t.ok()) return fail(t.status(), 1);
    tokenizer = std::make_unique<Tokenizer>(std::move(*t));
    Result<std::shared_ptr<const grammar::Vocabulary>> v = grammar_vocabulary(*tokenizer);
    if (!v.ok()) return fail(v.status(), 1);
    bench.vocabulary = *v;
    bench.encode = [&](std::string_view text) { return tokenizer->encode(text); };
  } else {
    bench.vocabulary = made_up_vocabulary(129'280);
    bench.encode = [&](std::string_view text) { return greedy_tokens(*bench.vocabulary, text); };
  }
  std::string suite = args.suite.empty() ? find_suite() : args.suite;
  if (suite.empty())
    return fail(Status(Code::kNotFound, "no suite beside the program; give one with --suite"), 1);
  Result<std::string> text = read_all(suite);
  if (!text.ok()) return fail(text.status(), 1);
  Result<std::string> report = run_grammar_bench(bench, *text, suite.substr(suite.rfind('/') + 1));
  if (!report.ok()) return fail(report.status(), 1);
  std::printf("%s\n", report->c_str());
  return 0;
}

int run_grammar(const GrammarArgs& args) {
  if (args.bench) return run_bench(args);
  Result<grammar::GrammarSource> source = source_of(args);
  if (!source.ok()) return fail(source.status(), 2);
  Result<Tokenizer> tokenizer = find_tokenizer(args.tokenizer);
  if (!tokenizer.ok()) return fail(tokenizer.status(), 1);
  Result<std::shared_ptr<const grammar::Vocabulary>> v = grammar_vocabulary(*tokenizer);
  if (!v.ok()) return fail(v.status(), 1);
  if (source->kind == grammar::GrammarSource::Kind::kTools) {
    Status s = read_tools(args, tokenizer->added_token_id("｜DSML｜"), &*source);
    if (s.ok() && source->tool_options.dsml_token < 0)
      s = Status(Code::kInvalidData, "the tokenizer has no ｜DSML｜ token");
    if (!s.ok()) return fail(s, 2);
  }
  grammar::CompileLimits limits;
  limits.time_ms = args.time_ms;
  if (args.print) {
    grammar::Budget budget(limits);
    Result<grammar::Grammar> g = grammar::front_end(*source, &budget);
    if (!g.ok()) return fail(g.status(), 2);
    std::fputs(to_text(*g).c_str(), stdout);
  }
  std::vector<std::string> left_out;
  auto compiled = grammar::compile(*source, *v, limits, nullptr, &left_out);
  if (!compiled.ok()) return fail(compiled.status(), 2);
  for (const std::string& p : left_out) std::fprintf(stderr, "deepinfer grammar: left out: %s\n", p.c_str());
  if (args.samples > 0) print_samples(args, *compiled);
  if (!args.have_accept && args.accept_file.empty()) {
    if (!args.print && args.samples == 0)
      std::printf("%zu states, %zu rules, %zu bytes\n", (*compiled)->automaton().states.size(),
                  (*compiled)->automaton().rules.size(), (*compiled)->memory_bytes());
    return 0;
  }
  std::string text = args.accept;
  if (!args.accept_file.empty()) {
    Result<std::string> file = read_all(args.accept_file);
    if (!file.ok()) return fail(file.status(), 1);
    text = *file;
  }
  grammar::Matcher m(*compiled);
  bool ok = accepts(**v, *tokenizer, &m, text);
  std::printf("%s\n", ok ? "accepted" : "not accepted");
  return ok ? 0 : 1;
}

}  // namespace

void add_grammar(Program& program) {
  auto args = std::make_shared<GrammarArgs>();
  CLI::App* cmd =
      program.app->add_subcommand("grammar", "check a schema or grammar, test texts, sample, measure masks");
  auto* kinds = cmd->add_option_group("source");
  kinds->add_option("--schema", args->schema, "file with a JSON schema (- for standard input)");
  kinds->add_flag("--json-object", args->json_object, "any JSON object");
  kinds->add_option("--regex", args->regex, "regular expression of the whole text");
  kinds->add_option("--gbnf", args->gbnf, "file with a GBNF-like grammar, start rule root");
  kinds->add_option("--lark", args->lark, "file with a Lark-like grammar, start rule start");
  kinds->add_option("--tools", args->tools,
                    "file with an array of tools; the text is a call block behind its opener");
  kinds->require_option(0, 1);
  auto* accept = cmd->add_option("--accept", args->accept, "exit 0 if this text is accepted, 1 if not");
  cmd->add_option("--accept-file", args->accept_file, "the same for a file's text")->excludes(accept);
  cmd->add_flag("--print", args->print, "print the rules");
  cmd->add_option("--samples", args->samples, "random walks through the masks to print");
  cmd->add_option("--sample-tokens", args->sample_tokens, "longest sample");
  cmd->add_option("--seed", args->seed, "of the samples");
  cmd->add_flag("--any-order", args->any_order, "members of objects in any order");
  cmd->add_option("--max-space", args->max_space, "white space allowed in one place, in characters");
  cmd->add_flag("--best-effort", args->best_effort, "leave out unsupported keywords and say so");
  cmd->add_option("--time-ms", args->time_ms, "limit of the compile");
  cmd->add_flag("--bench", args->bench, "mask and compile times over a suite of schemas");
  cmd->add_option("--suite", args->suite, "suite of --bench (default: the one in the sources)");
  cmd->add_option("--repeat", args->repeat, "times --bench goes through the suite");
  cmd->add_flag("--samples-out", args->samples_out, "the report of --bench lists every time");
  cmd->add_flag("--json", args->json, "the report of --bench is JSON (always)");
  cmd->add_option("--tokenizer,--model", args->tokenizer,
                  "tokenizer.json or a folder with one (default: the shipped small model; --bench: a made-up "
                  "vocabulary of 129,280)");
  cmd->callback([&program, args, accept] {
    args->have_accept = accept->count() > 0;
    program.run = [args] { return run_grammar(*args); };
  });
}

}  // namespace deepinfer
