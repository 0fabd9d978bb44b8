// Structured output for the server (apps/serve_constraints.h).
#include "apps/serve_constraints.h"

#include <algorithm>
#include <future>
#include <mutex>
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

Result<std::vector<grammar::ToolSpec>> tool_specs(const Json& tools, bool required) {
  std::vector<grammar::ToolSpec> out;
  for (const Json& t : tools) {
    grammar::ToolSpec s;
    s.name = t.value("name", std::string());
    if (t.contains("parameters") && !t["parameters"].is_null()) s.parameters = dump(t["parameters"]);
    s.strict = t.value("strict", false);
    s.best_effort = required && !s.strict;
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
      s.tool_options.dsml_token = options.dsml_id;
      s.tool_options.required = spec.value.value("required", false);
      DI_ASSIGN(s.tools, tool_specs(spec.value.value("tools", Json::array()), s.tool_options.required));
      s.tool_options.v4 = spec.value.value("v4", false);
      if (auto answer = spec.value.find("answer"); answer != spec.value.end())
        s.tool_options.answer_schema = answer->is_string() ? answer->get<std::string>() : dump(*answer);
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

namespace {

// One request's interest: at most two compiles, one after the other.
struct Pending {
  std::mutex mutex;
  grammar::CompileService::Ticket tickets[2];

  void keep(int stage, grammar::CompileService::Ticket ticket) {
    std::lock_guard lock(mutex);
    tickets[stage] = std::move(ticket);
  }
  // The first compile, if it is telling its end just now, is waited for: it may have begun the second.
  void withdraw() {
    for (int stage : {0, 1}) {
      grammar::CompileService::Ticket ticket;
      std::lock_guard lock(mutex);
      std::swap(ticket, tickets[stage]);
    }
  }
};

bool wrong(const Status& s) {
  return s.code() == Code::kInvalidArgument || s.code() == Code::kUnsupported;
}

}  // namespace

std::shared_ptr<void> GrammarFactory::request(const ConstraintSpec& spec, const std::string& tenant,
                                              std::function<void(Made)> done) {
  Result<grammar::GrammarSource> source = grammar_source(spec, options_);
  if (!source.ok()) {
    done(source.status());
    return nullptr;
  }
  grammar::MatcherOptions m;
  if (spec.after_thinking) m.reasoning_end = options_.think_close_id;
  auto tell = [done = std::move(done), m](const grammar::CompileService::Compiled& c) {
    if (!c.ok()) return done(c.status());
    done(std::shared_ptr<const TokenConstraint>(make_constraint(*c, m)));
  };
  auto pending = std::make_shared<Pending>();
  const bool hints = std::any_of(source->tools.begin(), source->tools.end(),
                                 [](const grammar::ToolSpec& t) { return t.best_effort; });
  auto first = [this, tell, pending, hints, tenant,
                source = *source](const grammar::CompileService::Compiled& c) mutable {
    if (c.ok() || !hints || !wrong(c.status())) return tell(c);
    // A schema that is only a hint must not cost the call: its arguments are free then. What is wrong with a
    // strict one shows again.
    ++relaxed_;
    for (grammar::ToolSpec& t : source.tools) t.best_effort = false;
    pending->keep(1, service_->request(source, tell, tenant));
  };
  pending->keep(0, service_->request(*source, std::move(first), tenant));
  // What the service holds keeps `pending` alive; the caller's end is this one.
  return std::shared_ptr<void>(pending.get(), [pending](void*) { pending->withdraw(); });
}

GrammarFactory::Made GrammarFactory::make(const ConstraintSpec& spec) {
  std::promise<Made> promise;
  auto ticket = request(spec, {}, [&](Made made) { promise.set_value(std::move(made)); });
  return promise.get_future().get();
}

}  // namespace deepinfer
