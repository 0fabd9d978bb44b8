// From the words of a request to masks over the shipped vocabulary.
#include "apps/serve_constraints.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/render.h"

namespace deepinfer {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer t =
      *Tokenizer::from_file(DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny/tokenizer.json");
  return t;
}

ConstraintOptions options() {
  ControlTokens c = *ControlTokens::from_tokenizer(tokenizer());
  ConstraintOptions o;
  o.vocab_size = tokenizer().vocab_size() + 40;  // ids beyond the tokenizer
  o.think_close_id = c.think_close;
  o.dsml_id = c.dsml;
  return o;
}

int32_t end_id() {
  return ControlTokens::from_tokenizer(tokenizer())->eos;
}

Json json(const char* text) {
  Result<Json> j = parse_json(text);
  EXPECT_TRUE(j.ok()) << text;
  return *j;
}

bool allowed(TokenConstraint* c, int32_t id) {
  std::vector<uint32_t> bits(static_cast<size_t>((options().vocab_size + 31) / 32));
  EXPECT_TRUE(c->mask(bits));
  return (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

// Whether the ids of the text are all allowed in their turn, and the end after them.
bool takes(const TokenConstraint& prototype, const std::string& text) {
  auto c = prototype.clone();
  for (int32_t id : tokenizer().encode(text)) {
    if (!allowed(c.get(), id)) {
      EXPECT_FALSE(c->accept(id));
      return false;
    }
    EXPECT_TRUE(c->accept(id));
  }
  return allowed(c.get(), end_id());
}

class ServeConstraints : public testing::Test {
 protected:
  std::shared_ptr<GrammarFactory> factory = *GrammarFactory::create(tokenizer(), options());
  std::shared_ptr<const TokenConstraint> make(ConstraintSpec spec) {
    auto c = factory->make(spec);
    EXPECT_TRUE(c.ok()) << c.status().to_string();
    return c.ok() ? *c : nullptr;
  }
};

TEST_F(ServeConstraints, EveryKindBecomesAMask) {
  using K = ConstraintSpec::Kind;
  auto schema =
      make({K::kJsonSchema,
            json("{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],"
                 "\"additionalProperties\":false}"),
            "response_format", false});
  EXPECT_TRUE(takes(*schema, "{\"n\": 12}"));
  EXPECT_FALSE(takes(*schema, "{\"n\": \"x\"}"));
  EXPECT_FALSE(takes(*schema, "{\"n\": 12"));
  auto object = make({K::kJsonObject, {}, "response_format", false});
  EXPECT_TRUE(takes(*object, "{\"a\": [1, true]}"));
  EXPECT_FALSE(takes(*object, "[1]"));
  auto regex = make({K::kRegex, Json("[ab]+c"), "guided_regex", false});
  EXPECT_TRUE(takes(*regex, "abac"));
  EXPECT_FALSE(takes(*regex, "abd"));
  auto choice = make({K::kChoice, json("[\"yes\", \"no way\"]"), "guided_choice", false});
  EXPECT_TRUE(takes(*choice, "no way"));
  EXPECT_FALSE(takes(*choice, "no"));
  auto gbnf = make({K::kGrammar, Json("root ::= \"x\" [0-9]+"), "guided_grammar", false});
  EXPECT_TRUE(takes(*gbnf, "x42"));
  auto lark = make({K::kGrammar, Json("start: \"x\" /[0-9]+/"), "guided_grammar", false});
  EXPECT_TRUE(takes(*lark, "x42"));
  EXPECT_FALSE(takes(*lark, "y"));
}

TEST_F(ServeConstraints, BeginsAfterReasoning) {
  ConstraintSpec spec{ConstraintSpec::Kind::kChoice, json("[\"yes\"]"), "x", true};
  auto c = make(spec)->clone();
  for (int32_t id : tokenizer().encode("Let me think: no?")) ASSERT_TRUE(c->accept(id));
  EXPECT_FALSE(allowed(c.get(), end_id()));
  ASSERT_TRUE(c->accept(options().think_close_id));
  EXPECT_FALSE(allowed(c.get(), tokenizer().encode("no")[0]));
  std::vector<int32_t> forced = c->forced(8);
  ASSERT_FALSE(forced.empty());
  for (int32_t id : forced) EXPECT_TRUE(c->accept(id));
  c->rollback(static_cast<int>(forced.size()));
  EXPECT_EQ(c->forced(8), forced);
  EXPECT_LE(c->forced(1).size(), 1u);
}

TEST_F(ServeConstraints, ControlTokensAndUnknownIdsNever) {
  auto c = make({ConstraintSpec::Kind::kRegex, Json("[\\s\\S]*"), "x", false})->clone();
  for (const AddedToken& t : tokenizer().added_tokens())
    EXPECT_EQ(allowed(c.get(), t.id), t.id == end_id()) << t.text;
  for (int64_t id = tokenizer().vocab_size(); id < options().vocab_size; ++id)
    EXPECT_FALSE(allowed(c.get(), static_cast<int32_t>(id)));
}

TEST_F(ServeConstraints, ToolCallsWithTheirArguments) {
  ConstraintSpec spec{ConstraintSpec::Kind::kTools,
                      json("{\"tools\":[{\"name\":\"get\",\"strict\":true,\"parameters\":{\"type\":"
                           "\"object\",\"properties\":{\"city\":"
                           "{\"type\":\"string\"}},\"required\":[\"city\"],\"additionalProperties\":false}}],"
                           "\"required\":true,"
                           "\"opener_in_prompt\":false}"),
                      "tools", false};
  auto c = make(spec)->clone();
  EXPECT_FALSE(allowed(c.get(), end_id()));
}

TEST_F(ServeConstraints, WrongSourcesAreErrors) {
  using K = ConstraintSpec::Kind;
  auto code = [&](ConstraintSpec s) { return factory->make(s).status().code(); };
  EXPECT_EQ(code({K::kRegex, Json(5), "x", false}), Code::kInvalidArgument);
  EXPECT_EQ(code({K::kRegex, Json("(a"), "x", false}), Code::kInvalidArgument);
  EXPECT_EQ(code({K::kChoice, Json::array(), "x", false}), Code::kInvalidArgument);
  EXPECT_EQ(code({K::kStructuralTag, Json::object(), "x", false}), Code::kUnsupported);
  EXPECT_EQ(code({K::kTools, json("{\"tools\":[]}"), "x", false}), Code::kInvalidArgument);
  auto keyword = factory->make({K::kJsonSchema,
                                json("{\"properties\":{\"a\":{\"type\":\"array\",\"contains\":{\"type\":"
                                     "\"integer\"},\"maxContains\":2}}}"),
                                "x", false});
  ASSERT_FALSE(keyword.ok());
  EXPECT_NE(keyword.status().message().find("/properties/a"), std::string::npos)
      << keyword.status().message();
}

TEST_F(ServeConstraints, EqualGrammarsAreCompiledOnceAndClonedFromManyThreads) {
  ConstraintSpec spec{ConstraintSpec::Kind::kJsonObject, {}, "x", false};
  auto prototype = make(spec);
  make(spec);
  EXPECT_EQ(factory->counters().compiled, 1u);
  std::vector<std::thread> team;
  for (int i = 0; i < 4; ++i) {
    team.emplace_back([&] {
      for (int k = 0; k < 20; ++k) EXPECT_TRUE(takes(*prototype, "{\"a\": 1}"));
    });
  }
  for (std::thread& t : team) t.join();
}

}  // namespace
}  // namespace deepinfer
