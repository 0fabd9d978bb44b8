// Choosing the front end, and hashing sources.
#include "grammar/compile.h"

#include "grammar/ebnf.h"
#include "grammar/regex.h"

namespace deepinfer::grammar {

Digest identity(const GrammarSource& source) {
  Sha256 h;
  auto number = [&h](int64_t v) { h.update(&v, sizeof v); };
  auto text = [&](const std::string& s) {
    number(static_cast<int64_t>(s.size()));
    h.update(s);
  };
  auto schema = [&](const SchemaOptions& o) {
    number(o.any_order ? 1 : 0);
    number(o.max_space);
    number(o.best_effort ? 1 : 0);
  };
  number(static_cast<int64_t>(source.kind));
  text(source.text);
  schema(source.schema);
  number(static_cast<int64_t>(source.choices.size()));
  for (const std::string& c : source.choices) text(c);
  number(static_cast<int64_t>(source.tools.size()));
  for (const ToolSpec& t : source.tools) {
    text(t.name);
    text(t.parameters);
    number((t.strict ? 1 : 0) + (t.best_effort ? 2 : 0));
  }
  const ToolsOptions& o = source.tool_options;
  number(o.dsml_token);
  text(o.answer_schema);
  number((o.required ? 1 : 0) + (o.opener_in_prompt ? 2 : 0) + (o.parallel ? 4 : 0) + (o.v4 ? 8 : 0));
  schema(o.schema);
  return h.finish();
}

Result<Grammar> front_end(const GrammarSource& source, Budget* budget, std::vector<std::string>* left_out) {
  if (static_cast<int64_t>(source.text.size()) > budget->limits().source_bytes)
    return error(Code::kResourceExhausted, "the text is longer than {} bytes", budget->limits().source_bytes);
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema:
    case GrammarSource::Kind::kJsonObject: {
      std::string text =
          source.kind == GrammarSource::Kind::kJsonObject ? R"({"type":"object"})" : source.text;
      DI_ASSIGN(JsonValue document, parse_json_value(text, budget->limits().json_depth));
      return schema_grammar(document, source.schema, budget, left_out);
    }
    case GrammarSource::Kind::kRegex: {
      if (!valid_utf8(source.text))
        return Status(Code::kInvalidArgument, "regular expression: not valid UTF-8");
      DI_ASSIGN(ExprPtr e, parse_regex(source.text, {}, budget));
      Grammar g;
      g.root = g.add("root", e);
      return g;
    }
    case GrammarSource::Kind::kChoice: {
      int64_t bytes = 0;
      std::vector<ExprPtr> ways;
      for (const std::string& c : source.choices) {
        bytes += static_cast<int64_t>(c.size());
        if (bytes > budget->limits().source_bytes)
          return error(Code::kResourceExhausted, "the choices are longer than {} bytes",
                       budget->limits().source_bytes);
        if (!valid_utf8(c)) return Status(Code::kInvalidArgument, "choice: not valid UTF-8");
        ways.push_back(make_bytes(c));
      }
      Grammar g;
      g.root = g.add("root", make_alt(std::move(ways)));
      return g;
    }
    case GrammarSource::Kind::kGbnf:
      return parse_gbnf(source.text, budget);
    case GrammarSource::Kind::kLark:
      return parse_lark(source.text, budget);
    case GrammarSource::Kind::kTools:
      return tools_grammar(source.tools, source.tool_options, budget);
  }
  return Status(Code::kInvalidArgument, "unknown kind of grammar");
}

Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSource& source,
                                                       std::shared_ptr<const Vocabulary> vocabulary,
                                                       const CompileLimits& limits,
                                                       const std::atomic<bool>* cancelled,
                                                       std::vector<std::string>* left_out) {
  Budget budget(limits, cancelled);
  DI_ASSIGN(Grammar g, front_end(source, &budget, left_out));
  return CompiledGrammar::create(g, std::move(vocabulary), &budget);
}

}  // namespace deepinfer::grammar
