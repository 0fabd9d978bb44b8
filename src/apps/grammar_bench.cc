// Vocabularies and timings for `deepinfer grammar`.
#include "apps/grammar_bench.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <random>
#include <set>

#include "grammar/json_value.h"

namespace deepinfer {
namespace {

double cpu_us() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

std::string summary(std::vector<double> v) {
  if (v.empty()) return "null";
  std::sort(v.begin(), v.end());
  auto at = [&](double q) {
    return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
  };
  double sum = 0;
  for (double x : v) sum += x;
  return fmt::format(R"({{"count":{},"mean":{:.3f},"median":{:.3f},"p90":{:.3f},"p99":{:.3f},"max":{:.3f}}})",
                     v.size(), sum / static_cast<double>(v.size()), at(0.5), at(0.9), at(0.99), v.back());
}

class Words {
 public:
  explicit Words(int32_t size) : size_(static_cast<size_t>(size)), rng_(20260101) {}

  std::vector<std::string> make() {
    for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
    add("<stop>");
    for (int n = 0; n < 1000; ++n) {
      add(std::to_string(n));
      if (n < 100) add(fmt::format("{:02}", n));
      add(fmt::format("{:03}", n));
    }
    std::string run;
    for (int n = 1; n < 80; ++n)
      run += ' ', add(run), add("\n" + run), add(run + "\n"), add(std::string(static_cast<size_t>(n), '\n'));
    static const char* const punctuation[] = {"\"",   "\",", "\":", "\": ", "\":\"", "\",\"", "{\"",  "\"}",
                                              "\"]",  "[\"", "},",  "}]",   "},{",   "[{",    "{}",   "[]",
                                              "\\\"", "\\n", "\\u", "//",   "://",   ".\"",   ",\"",  ")\"",
                                              "!\"",  "?\"", "'\"", "\"\n", "\",\n", "},\n",  "];",   "();",
                                              "->",   "==",  "</",  "/>",   "\">",   "=\"",   "\"\"", "\\\\"};
    for (const char* p : punctuation) {
      add(p);
      add(std::string(" ") + p);
      add(std::string(p) + "\n");
    }
    while (out_.size() < size_) word();
    return out_;
  }

 private:
  void add(const std::string& s) {
    if (out_.size() < size_ && seen_.insert(s).second) out_.push_back(s);
  }
  void word() {
    static const char* const syllables[] = {
        "an",  "er",  "in",   "th",   "re",  "on", "st", "al", "le", "ed", "or", "ti", "es",  "ing",
        "con", "pro", "ment", "tion", "a",   "e",  "o",  "s",  "t",  "x",  "q",  "ab", "com", "ex",
        "un",  "ly",  "ic",   "ous",  "ble", "de", "ma", "na", "ka", "ri", "to", "vi"};
    std::string w;
    switch (rng_() % 10) {
      case 0:  // CJK
        for (uint64_t n = 1 + rng_() % 3; n > 0; --n)
          grammar::append_utf8(0x4E00 + static_cast<uint32_t>(rng_() % 0x5000), &w);
        break;
      case 1:  // other scripts, sometimes cut inside a character
        for (uint64_t n = 1 + rng_() % 4; n > 0; --n)
          grammar::append_utf8(0x400 + static_cast<uint32_t>(rng_() % 0x500), &w);
        if (rng_() % 8 == 0) w.pop_back();
        break;
      default:
        for (uint64_t n = 1 + rng_() % 4; n > 0; --n) w += syllables[rng_() % std::size(syllables)];
        if (rng_() % 4 == 0) w[0] = static_cast<char>(w[0] - 32);
        if (rng_() % 20 == 0) w = "_" + w;
        if (rng_() % 40 == 0) w += "\"";
        if (rng_() % 60 == 0) w += "(";
        if (rng_() % 2 == 0) w = " " + w;
    }
    add(w);
  }
  size_t size_;
  std::mt19937_64 rng_;
  std::vector<std::string> out_;
  std::set<std::string> seen_;
};

struct Times {
  std::vector<double> compile, cold, cold_free, warm;
  int schemas = 0, refused = 0, instances = 0;
};

Status measure(const GrammarBench& bench, const grammar::JsonValue& line, Times* times) {
  const grammar::JsonValue *schema = line.find("schema"), *valid = line.find("valid");
  if (schema == nullptr || valid == nullptr)
    return Status(Code::kInvalidArgument, "a line needs schema and valid");
  grammar::GrammarSource source;
  source.text = schema->text;
  const grammar::JsonValue* order = line.find("any_order");
  source.schema.any_order = order != nullptr && order->boolean;
  std::vector<uint32_t> mask(bench.vocabulary->mask_words());
  ++times->schemas;
  bool first = true;
  for (const grammar::JsonValue& text : valid->items) {
    // Compiled anew for every instance: nothing is remembered from the one before.
    double t0 = cpu_us();
    auto compiled = grammar::compile(source, bench.vocabulary);
    double t1 = cpu_us();
    if (!compiled.ok()) {
      ++times->refused;
      return {};
    }
    if (first) times->compile.push_back((t1 - t0) * 1e-3);
    first = false;
    std::vector<int32_t> tokens = bench.encode(text.text);
    ++times->instances;
    for (bool warm : {false, true}) {
      grammar::Matcher m(*compiled);
      for (size_t i = 0; i <= tokens.size(); ++i) {
        double a = cpu_us();
        m.fill_mask(mask);
        double b = cpu_us();
        (warm ? times->warm : times->cold).push_back(b - a);
        if (!warm) {
          int64_t set = 0;
          for (uint32_t w : mask) set += std::popcount(w);
          if (set * 2 > bench.vocabulary->size()) times->cold_free.push_back(b - a);
        }
        if (i < tokens.size() && !m.accept(tokens[i]))
          return error(Code::kInvalidData, "instance {} of schema {}: token {} '{}' is not allowed",
                       text.text, schema->text, i, bench.vocabulary->bytes(tokens[i]));
      }
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const grammar::Vocabulary>> grammar_vocabulary(const Tokenizer& tokenizer,
                                                                      int64_t least_size) {
  grammar::VocabularySpec spec;
  auto size = static_cast<int32_t>(std::max<int64_t>(least_size, tokenizer.vocab_size()));
  for (int32_t id = 0; id < size; ++id) spec.bytes.emplace_back(tokenizer.token_bytes(id));
  for (const AddedToken& t : tokenizer.added_tokens()) spec.control.push_back(t.id);
  int32_t end = tokenizer.added_token_id("<｜end▁of▁sentence｜>");
  if (end < 0) return Status(Code::kInvalidData, "the tokenizer has no end-of-sentence token");
  spec.stop.push_back(end);
  return grammar::Vocabulary::create(std::move(spec));
}

std::shared_ptr<const grammar::Vocabulary> made_up_vocabulary(int32_t size) {
  grammar::VocabularySpec spec;
  spec.bytes = Words(size).make();
  spec.stop = {256};
  auto v = grammar::Vocabulary::create(std::move(spec));
  DI_CHECK(v.ok(), "the made-up vocabulary");
  return *v;
}

std::vector<int32_t> greedy_tokens(const grammar::Vocabulary& vocabulary, std::string_view text) {
  const grammar::TokenTrie& trie = vocabulary.trie();
  std::vector<int32_t> out;
  for (size_t i = 0; i < text.size();) {
    int32_t best = -1;
    size_t best_end = i;
    uint32_t node = 0;
    for (size_t j = i; j < text.size(); ++j) {
      uint32_t child = 0;
      auto b = static_cast<uint8_t>(text[j]);
      if (node == 0) {
        child = trie.root_child[b];
      } else {
        for (uint32_t c = node + 1; c < trie.end[node]; c = trie.end[c])
          child = trie.byte[c] == b ? c : child;
      }
      if (child == 0) break;
      node = child;
      if (trie.token_at[node] < trie.token_at[node + 1])
        best = trie.tokens[trie.token_at[node]], best_end = j + 1;
    }
    if (best < 0) break;
    out.push_back(best);
    i = best_end;
  }
  return out;
}

Result<std::string> run_grammar_bench(const GrammarBench& bench, const std::string& suite_text,
                                      const std::string& name) {
  Times times;
  size_t number = 0;
  for (size_t at = 0; at < suite_text.size();) {
    size_t end = std::min(suite_text.find('\n', at), suite_text.size());
    std::string_view line(suite_text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    DI_ASSIGN(grammar::JsonValue value, grammar::parse_json_value(line, 128));
    for (int r = 0; r < bench.repeat; ++r) {
      Status s = measure(bench, value, &times);
      if (!s.ok()) return s.with_context(fmt::format("{}, line {}", name, number));
    }
  }
  if (times.cold.empty()) return error(Code::kInvalidData, "{} has no schemas with valid instances", name);
  std::string samples;
  if (bench.every_sample)
    samples = fmt::format(R"(,"mask_us_all":[{:.3f}],"compile_ms_all":[{:.4f}])", fmt::join(times.cold, ","),
                          fmt::join(times.compile, ","));
  return fmt::format(
      R"({{"suite":"{}","vocabulary":{},"clock":"processor time of one thread","schemas":{},"refused":{},"instances":{},"mask_us":{},"mask_us_free_string":{},"mask_us_warm":{},"compile_ms":{}{}}})",
      name, bench.vocabulary->size(), times.schemas, times.refused, times.instances, summary(times.cold),
      summary(times.cold_free), summary(times.warm), summary(times.compile), samples);
}

}  // namespace deepinfer
