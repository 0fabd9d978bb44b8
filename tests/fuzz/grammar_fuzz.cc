// Structured output from hostile bytes: the first byte chooses the kind of source (schema, schema in any
// order, regular expression, GBNF, Lark, tools) and what a request says about tools, the rest up to a zero
// byte is the source, what follows chooses tokens. A source is compiled within small limits or refused; a
// matcher over it must agree with itself: what the mask allows is accepted and nothing else, and rolling back
// restores the mask.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "grammar/compile.h"

using namespace deepinfer;

namespace {

std::shared_ptr<const grammar::Vocabulary> vocabulary() {
  static const std::shared_ptr<const grammar::Vocabulary> v = [] {
    grammar::VocabularySpec spec;
    for (int b = 0; b < 256; ++b) spec.bytes.push_back(std::string(1, static_cast<char>(b)));
    spec.bytes.insert(spec.bytes.end(), {"<stop>", "<dsml>", "\",", "\":", "{\"", "ab", "abc", "\"}", "12",
                                         "é", "\xE6\xBC", "  ", "[[", "]]", "</", "a\"", "0."});
    spec.stop = {256};
    spec.control = {257};
    return *grammar::Vocabulary::create(std::move(spec));
  }();
  return v;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  std::string all(reinterpret_cast<const char*>(data + 1), size - 1);
  size_t zero = all.find('\0');
  std::string choices = zero == std::string::npos ? std::string() : all.substr(zero + 1);
  using Kind = grammar::GrammarSource::Kind;
  static constexpr Kind kinds[] = {Kind::kJsonSchema, Kind::kJsonSchema, Kind::kRegex,
                                   Kind::kGbnf,       Kind::kLark,       Kind::kTools};
  grammar::GrammarSource source;
  source.kind = kinds[data[0] % 6];
  source.text = all.substr(0, zero);
  source.schema.any_order = data[0] % 6 == 1;
  source.schema.max_space = 2;
  if (source.kind == Kind::kTools) {
    const int how = data[0] / 6;
    source.tools = {{"t", source.text, (how & 1) == 0, (how & 1) != 0}, {"u", "", false}};
    source.tool_options.dsml_token = 257;
    source.tool_options.required = (how & 2) == 0;
    source.tool_options.opener_in_prompt = (how & 4) == 0;
    source.tool_options.parallel = (how & 8) == 0;
    source.tool_options.v4 = (how & 16) != 0;
    if ((how & 32) != 0) source.tool_options.answer_schema = source.text;
    source.text.clear();
  }
  grammar::CompileLimits limits;
  limits.states = 5'000;
  limits.branches = 500;
  limits.memory_bytes = 16 << 20;
  limits.time_ms = 1'000;
  auto g = grammar::compile(source, vocabulary(), limits);
  if (!g.ok()) return 0;
  grammar::Matcher m(*g);
  std::vector<uint32_t> mask(vocabulary()->mask_words()), again(mask.size());
  size_t steps = std::min<size_t>(choices.size(), 24);
  for (size_t i = 0; i < steps; ++i) {
    if (!m.fill_mask(mask)) break;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary()->size(); ++id) {
      bool bit = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      bool taken = m.accept(id);
      if (bit != taken) std::abort();
      if (taken) m.rollback(1);
      if (bit) allowed.push_back(id);
    }
    m.fill_mask(again);
    if (again != mask) std::abort();
    if (!m.accept(allowed[static_cast<uint8_t>(choices[i]) % allowed.size()])) std::abort();
  }
  return 0;
}
