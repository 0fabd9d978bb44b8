// Structured output for the server (apps/serve_constraints.h).
#include "apps/serve_constraints.h"

#include <algorithm>
#include <optional>

#include "apps/grammar_bench.h"

namespace deepinfer {

namespace {

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const grammar::CompiledGrammar> grammar,
                    const grammar::MatcherOptions& options)
      : grammar_(std::move(grammar)), options_(options) {}

  // A prototype has no matcher of its own, so that any number of threads may clone it at once.
  std::unique_ptr<TokenConstraint> clone() const override {
    auto copy = std::make_unique<GrammarConstraint>(grammar_, options_);
    if (matcher_) copy->matcher_.emplace(matcher_->clone());
    return copy;
  }
  bool mask(std::span<uint32_t> bits) override {
    // Nothing allowed is a mask too: the engine ends the choice with an error.
    if (!matcher().fill_mask(bits)) std::fill(bits.begin(), bits.end(), 0u);
    return true;
  }
  bool accept(int32_t id) override { return matcher().accept(id); }
  void rollback(int n) override { matcher().rollback(n); }
  std::vector<int32_t> forced(int most) override {
    std::vector<int32_t> out;
    if (most > 0 && !matcher().in_reasoning()) matcher().forced_tokens(static_cast<size_t>(most), &out);
    if (out.size() > static_cast<size_t>(std::max(most, 0))) out.resize(static_cast<size_t>(most));
    return out;
  }
  bool terminated() const override { return matcher_ && matcher_->terminated(); }

 private:
  grammar::Matcher& matcher() {
    if (!matcher_) matcher_.emplace(grammar_, options_);
    return *matcher_;
  }
  std::shared_ptr<const grammar::CompiledGrammar> grammar_;
  grammar::MatcherOptions options_;
  std::optional<grammar::Matcher> matcher_;
};

std::string dump(const Json& value) {
  std::string out;
  append_json(value, JsonStyle::kCompact, &out);
  return out;
}

// GBNF writes rules with "::=", Lark with ":".
bool is_gbnf(const std::string& text) {
  return text.find("::=") != text.npos;
}

Result<std::vector<grammar::ToolSpec>> tool_specs(const Json& tools) {
  std::vector<grammar::ToolSpec> out;
  for (const Json& t : tools) {
    grammar::ToolSpec s;
    s.name = t.value("name", std::string());
    if (t.contains("parameters") && !t["parameters"].is_null()) s.parameters = dump(t["parameters"]);
    s.strict = t.value("strict", false);
    out.push_back(std::move(s));
  }
  if (out.empty()) return error(Code::kInvalidArgument, "no tools to call");
  return out;
}

}  // namespace

std::unique_ptr<TokenConstraint> make_constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar,
                                                 const grammar::MatcherOptions& options) {
  return std::make_unique<GrammarConstraint>(std::move(grammar), options);
}

Result<grammar::GrammarSource> grammar_source(const ConstraintSpec& spec, const ConstraintOptions& options) {
  using From = ConstraintSpec::Kind;
  using Kind = grammar::GrammarSource::Kind;
  grammar::GrammarSource s;
  auto text = [&](Kind kind) -> Status {
    if (!spec.value.is_string()) return error(Code::kInvalidArgument, "must be a string");
    s.kind = kind;
    s.text = spec.value.get<std::string>();
    return {};
  };
  switch (spec.kind) {
    case From::kJsonObject:
      s.kind = Kind::kJsonObject;
      break;
    case From::kJsonSchema:
      // Some clients send the schema as text.
      s.kind = Kind::kJsonSchema;
      s.text = spec.value.is_string() ? spec.value.get<std::string>() : dump(spec.value);
      break;
    case From::kRegex:
      DI_TRY(text(Kind::kRegex));
      break;
    case From::kGrammar:
      DI_TRY(text(Kind::kGbnf));
      if (!is_gbnf(s.text)) s.kind = Kind::kLark;
      break;
    case From::kChoice:
      if (!spec.value.is_array() || spec.value.empty())
        return error(Code::kInvalidArgument, "must be a list of texts that is not empty");
      s.kind = Kind::kChoice;
      for (const Json& c : spec.value) {
        if (!c.is_string()) return error(Code::kInvalidArgument, "must be a list of texts");
        s.choices.push_back(c.get<std::string>());
      }
      break;
    case From::kStructuralTag:
      return error(Code::kUnsupported,
                   "structural tags are not available; use a grammar, or strict tools for calls");
    case From::kTools: {
      if (options.dsml_id < 0)
        return error(Code::kUnsupported, "this vocabulary has no token for tool calls");
      s.kind = Kind::kTools;
      DI_ASSIGN(s.tools, tool_specs(spec.value.value("tools", Json::array())));
      s.tool_options.dsml_token = options.dsml_id;
      s.tool_options.required = spec.value.value("required", false);
      s.tool_options.opener_in_prompt = spec.value.value("opener_in_prompt", false);
      s.tool_options.parallel = spec.value.value("parallel", true);
      break;
    }
  }
  return s;
}

Result<std::shared_ptr<GrammarFactory>> GrammarFactory::create(const Tokenizer& tokenizer,
                                                               const ConstraintOptions& options) {
  std::shared_ptr<GrammarFactory> f(new GrammarFactory());
  f->options_ = options;
  DI_ASSIGN(f->vocabulary_, grammar_vocabulary(tokenizer, options.vocab_size));
  f->service_ = std::make_unique<grammar::CompileService>(f->vocabulary_, options.service);
  return f;
}

Result<std::shared_ptr<const TokenConstraint>> GrammarFactory::make(const ConstraintSpec& spec) {
  DI_ASSIGN(grammar::GrammarSource source, grammar_source(spec, options_));
  auto compiled = service_->compile_now(source);
  if (!compiled.ok()) return compiled.status();
  grammar::MatcherOptions m;
  if (spec.after_thinking) m.reasoning_end = options_.think_close_id;
  return std::shared_ptr<const TokenConstraint>(make_constraint(*compiled, m));
}

}  // namespace deepinfer
