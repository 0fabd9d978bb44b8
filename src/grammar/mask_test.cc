// Masks against the slow reference: for random grammars and vocabularies every bit of every mask on random
// walks, the end of text, rollback, clones and forced tokens.
#include <gtest/gtest.h>

#include <random>

#include "grammar/common_rules.h"
#include "grammar/compile.h"
#include "grammar/ebnf.h"
#include "grammar/item_sets.h"
#include "grammar/test_reference.h"

namespace deepinfer::grammar {
namespace {

using Rng = std::mt19937_64;

int pick(Rng& rng, int n) {
  return static_cast<int>(rng() % static_cast<uint64_t>(n));
}

const char* const kPieces[] = {"a", "b",  "c",  "ab", "\"", "\\", "0", "1",
                               "é", "\n", "漢", " ",  "<",  "😀", "zz"};

std::shared_ptr<const Vocabulary> vocabulary(Rng& rng, int extra) {
  VocabularySpec spec;
  for (int b = 0; b < 256; ++b) spec.bytes.push_back(std::string(1, static_cast<char>(b)));
  spec.bytes.insert(spec.bytes.end(), {"<stop>", "<c1>", "<c2>", "", "a"});  // an empty one, and a duplicate
  spec.stop = {256};
  spec.control = {257, 258};
  for (int i = 0; i < extra; ++i) {
    std::string s;
    for (int n = 1 + pick(rng, 5); n > 0; --n) s += kPieces[pick(rng, std::size(kPieces))];
    // Tokens need not end between characters.
    if (pick(rng, 4) == 0 && s.size() > 1) s.pop_back();
    if (pick(rng, 6) == 0 && s.size() > 1) s = s.substr(1);
    if (!s.empty()) spec.bytes.push_back(s);
  }
  auto v = Vocabulary::create(std::move(spec));
  EXPECT_TRUE(v.ok());
  return *v;
}

class Maker {
 public:
  explicit Maker(Rng& rng) : rng_(rng) {}
  Grammar grammar() {
    Grammar g;
    g.inline_regular = pick(rng_, 2) == 0;
    int n = 1 + pick(rng_, 5);
    for (int i = 0; i < n; ++i) g.add("r" + std::to_string(i));
    for (int i = 0; i < n; ++i) {
      Rule& r = g.rules[static_cast<size_t>(i)];
      int kind = pick(rng_, 6);
      if (kind == 0) {
        r.kind = Rule::Kind::kCounted;
        r.body = pick(rng_, 3) == 0 ? free_json_char() : klass();
        r.min = static_cast<uint32_t>(pick(rng_, 4));
        r.max = pick(rng_, 3) == 0 ? kUnbounded : r.min + static_cast<uint32_t>(1 + pick(rng_, 4));
      } else if (kind == 1 && i + 1 < n) {
        r.kind = Rule::Kind::kLoop;
        r.loop.min = static_cast<uint32_t>(pick(rng_, 3));
        r.loop.max = pick(rng_, 2) == 0 ? kUnbounded : r.loop.min + 1 + static_cast<uint32_t>(pick(rng_, 3));
        for (int p = 1 + pick(rng_, 3); p > 0; --p) {
          // An element may not be empty: a terminal in a rule of its own.
          RuleId element = g.add("e", make_seq({terminal(), expr(i, n, 1)}));
          g.rules[static_cast<size_t>(i)].loop.positions.push_back({{element, false}});
          if (pick(rng_, 2) == 0) {
            RuleId other = g.add("o", make_seq({terminal(), expr(i, n, 1)}));
            g.rules[static_cast<size_t>(i)].loop.positions.back().push_back({other, false});
          }
        }
      } else {
        g.rules[static_cast<size_t>(i)].body = expr(i, n, 3);
      }
    }
    return g;
  }

 private:
  ExprPtr klass() {
    static const std::pair<uint32_t, uint32_t> sets[] = {{'a', 'c'}, {0, 0x10FFFF},    {0x80, 0x7FF},
                                                         {'0', '1'}, {0x4E00, 0x9FFF}, {'a', 0x20000}};
    auto [lo, hi] = sets[pick(rng_, 6)];
    return make_class(CharSet::of(lo, hi), pick(rng_, 2) == 0 ? Spelling::kJson : Spelling::kRaw);
  }
  ExprPtr terminal() {
    switch (pick(rng_, 5)) {
      case 0:
        return klass();
      case 1:
        return make_token(257 + pick(rng_, 2));
      case 2:
        return make_bytes("\"");
      default:
        return make_bytes(kPieces[pick(rng_, std::size(kPieces))]);
    }
  }
  // Rules call later rules anywhere, and earlier ones only behind a terminal and beside a way out: no left
  // recursion, no dead ends.
  ExprPtr expr(int rule, int rules, int depth) {
    if (depth == 0) return terminal();
    switch (pick(rng_, 7)) {
      case 0:
        return make_seq({expr(rule, rules, depth - 1), expr(rule, rules, depth - 1)});
      case 1:
        return make_alt({expr(rule, rules, depth - 1), expr(rule, rules, depth - 1)});
      case 2: {
        auto min = static_cast<uint32_t>(pick(rng_, 3));
        uint32_t max = pick(rng_, 2) == 0 ? kUnbounded : min + static_cast<uint32_t>(pick(rng_, 12));
        return make_repeat(expr(rule, rules, depth - 1), min, max);
      }
      case 3:
        if (rule + 1 < rules) return make_rule(static_cast<RuleId>(rule + 1 + pick(rng_, rules - rule - 1)));
        return terminal();
      case 4:
        return make_alt(
            {terminal(),
             make_seq({terminal(), make_rule(static_cast<RuleId>(pick(rng_, rule + 1))), terminal()})});
      case 5:
        return make_empty();
      default:
        return terminal();
    }
  }
  Rng& rng_;
};

std::vector<bool> bits(const std::vector<uint32_t>& mask, int32_t n) {
  std::vector<bool> out;
  for (int32_t i = 0; i < n; ++i) out.push_back((mask[static_cast<size_t>(i) / 32] >> (i % 32) & 1) != 0);
  return out;
}

std::vector<bool> expected(const Reference& at, const Vocabulary& v) {
  std::vector<bool> out;
  for (int32_t id = 0; id < v.size(); ++id) {
    Reference r = at;
    if (v.is_stop(id)) {
      out.push_back(r.accepting());
    } else if (v.is_text(id)) {
      out.push_back(r.step(v.bytes(id)));
    } else {
      out.push_back(v.bytes(id).empty() ? false : r.step_token(id));
    }
  }
  return out;
}

TEST(MaskTest, EveryBitEqualsTheReferenceOnRandomGrammars) {
  Rng rng(20261129);
  int compared = 0, walks = 0, empty = 0;
  for (int round = 0; round < 250; ++round) {
    Grammar g = Maker(rng).grammar();
    auto v = vocabulary(rng, 20 + pick(rng, 250));
    Budget budget{CompileLimits{}};
    auto compiled = CompiledGrammar::create(g, v, &budget);
    if (!compiled.ok()) {
      // The only grammars that may be refused here call themselves through things that may be empty.
      ASSERT_NE(compiled.status().message().find("left recursion"), std::string::npos)
          << compiled.status().to_string() << to_text(g);
      ++empty;
      continue;
    }
    Matcher m(*compiled);
    Reference r(g);
    std::vector<uint32_t> mask(v->mask_words());
    for (int step = 0; step < 12; ++step) {
      if (r.readings() > 3000) break;
      m.fill_mask(mask);
      std::vector<bool> have = bits(mask, v->size()), want = expected(r, *v);
      ASSERT_EQ(m.can_stop(), r.accepting()) << to_text(g);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < v->size(); ++id) {
        auto i = static_cast<size_t>(id);
        ASSERT_EQ(have[i], want[i]) << "round " << round << " step " << step << " token " << id << " '"
                                    << v->bytes(id) << "'\n"
                                    << to_text(g);
        if (have[i] && !v->is_stop(id)) allowed.push_back(id);
        ++compared;
      }
      if (allowed.empty()) break;
      // Longer tokens more often: they cross more.
      int32_t token = allowed[static_cast<size_t>(pick(rng, static_cast<int>(allowed.size())))];
      for (int again = 0; again < 2; ++again) {
        int32_t other = allowed[static_cast<size_t>(pick(rng, static_cast<int>(allowed.size())))];
        if (v->bytes(other).size() > v->bytes(token).size()) token = other;
      }
      ASSERT_TRUE(m.accept(token));
      ASSERT_TRUE(v->is_text(token) ? r.step(v->bytes(token)) : r.step_token(token));
      ++walks;
    }
  }
  EXPECT_GT(compared, 250'000);
  EXPECT_GT(walks, 1000);
  EXPECT_LT(empty, 40);
}

std::shared_ptr<const CompiledGrammar> compiled_gbnf(const std::string& text,
                                                     std::shared_ptr<const Vocabulary> v) {
  GrammarSource source;
  source.kind = GrammarSource::Kind::kGbnf;
  source.text = text;
  auto c = compile(source, std::move(v));
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return *c;
}

TEST(MaskTest, DirectLeftRecursionMeansTheSameAsRightRecursion) {
  Rng rng(7);
  auto v = vocabulary(rng, 200);
  auto left = compiled_gbnf("root ::= root \"a\" | root \"b\" \"c\" | \"0\" | \"é\"", v);
  auto right = compiled_gbnf("root ::= (\"0\" | \"é\") t\nt ::= \"a\" t | \"bc\" t | \"\"", v);
  std::vector<uint32_t> a(v->mask_words()), b(v->mask_words());
  for (int walk = 0; walk < 50; ++walk) {
    Matcher x(left), y(right);
    for (int step = 0; step < 10; ++step) {
      x.fill_mask(a);
      y.fill_mask(b);
      ASSERT_EQ(a, b);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < v->size(); ++id) {
        if (v->is_text(id) && (a[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      int32_t t = allowed[static_cast<size_t>(pick(rng, static_cast<int>(allowed.size())))];
      ASSERT_TRUE(x.accept(t));
      ASSERT_TRUE(y.accept(t));
    }
  }
}

TEST(MaskTest, AmbiguousGrammarsStayPolynomial) {
  Rng rng(7);
  auto v = vocabulary(rng, 50);
  auto g = compiled_gbnf("root ::= s\ns ::= \"a\" | \"a\" s | \"a\" s s | \"a\" s s s", v);
  Matcher m(g);
  std::vector<uint32_t> mask(v->mask_words());
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(m.fill_mask(mask));
    ASSERT_TRUE(m.accept('a'));
  }
  EXPECT_TRUE(m.can_stop());
}

TEST(MatcherTest, RollbackRestoresEveryMask) {
  Rng rng(99);
  for (int round = 0; round < 60; ++round) {
    auto v = vocabulary(rng, 200);
    Budget budget{CompileLimits{}};
    auto c = CompiledGrammar::create(Maker(rng).grammar(), v, &budget);
    if (!c.ok()) continue;
    Matcher m(*c);
    std::vector<std::vector<uint32_t>> masks;
    std::vector<uint32_t> mask(v->mask_words());
    auto random_token = [&]() {
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < v->size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      return allowed.empty() ? -1 : allowed[static_cast<size_t>(pick(rng, static_cast<int>(allowed.size())))];
    };
    for (int step = 0; step < 30; ++step) {
      m.fill_mask(mask);
      masks.push_back(mask);
      int32_t t = random_token();
      if (t < 0 || !m.accept(t)) break;
      int back = pick(rng, static_cast<int>(masks.size()) + 1);
      if (pick(rng, 3) != 0) continue;
      m.rollback(back);
      masks.resize(masks.size() - static_cast<size_t>(back));
      if (back == 0) continue;
      // The state is the one before those tokens: its mask is the one that was seen there.
      Matcher copy = m.clone();
      std::vector<uint32_t> again(v->mask_words());
      copy.fill_mask(again);
      m.fill_mask(mask);
      ASSERT_EQ(again, mask);
    }
    // All the way back, comparing every mask on the way.
    while (!masks.empty()) {
      if (m.accepted() == static_cast<int64_t>(masks.size())) m.rollback(1);
      m.fill_mask(mask);
      ASSERT_EQ(mask, masks.back());
      masks.pop_back();
    }
  }
}

TEST(MatcherTest, StopTokensEndAndCanBeTakenBack) {
  Rng rng(1);
  auto v = vocabulary(rng, 30);
  Matcher m(compiled_gbnf("root ::= \"ab\"", v));
  std::vector<uint32_t> mask(v->mask_words());
  EXPECT_FALSE(m.accept(256));
  ASSERT_TRUE(m.accept('a'));
  EXPECT_FALSE(m.accept('c'));
  ASSERT_TRUE(m.accept('b'));
  EXPECT_TRUE(m.can_stop());
  m.fill_mask(mask);
  for (int32_t id = 0; id < v->size(); ++id)
    EXPECT_EQ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0, id == 256);
  ASSERT_TRUE(m.accept(256));
  EXPECT_TRUE(m.terminated());
  EXPECT_FALSE(m.fill_mask(mask));
  EXPECT_FALSE(m.accept('a'));
  m.rollback(2);
  EXPECT_FALSE(m.terminated());
  EXPECT_TRUE(m.accept('b'));
}

TEST(MatcherTest, ReasoningComesFirstAndIsFreeText) {
  Rng rng(1);
  auto v = vocabulary(rng, 30);
  MatcherOptions options;
  options.reasoning_end = 257;
  Matcher m(compiled_gbnf("root ::= \"a\"+", v), options);
  std::vector<uint32_t> mask(v->mask_words());
  ASSERT_TRUE(m.in_reasoning());
  ASSERT_TRUE(m.fill_mask(mask));
  for (int32_t id = 0; id < v->size(); ++id)
    EXPECT_EQ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0, v->is_text(id) || id == 257) << id;
  EXPECT_TRUE(m.accept('z'));
  EXPECT_FALSE(m.accept(256));  // no end inside reasoning
  EXPECT_FALSE(m.accept(258));
  EXPECT_TRUE(m.accept(257));
  EXPECT_FALSE(m.in_reasoning());
  EXPECT_FALSE(m.accept('z'));
  EXPECT_TRUE(m.accept('a'));
  EXPECT_FALSE(m.accept(257));
  // A rejected draft may lie on the other side of the end of reasoning.
  m.rollback(2);
  EXPECT_TRUE(m.in_reasoning());
  EXPECT_TRUE(m.accept('z'));
}

TEST(MatcherTest, ForcedTokensAreAllowedAndSpellForcedBytes) {
  Rng rng(5);
  auto v = vocabulary(rng, 100);
  Matcher m(compiled_gbnf("root ::= \"ab\" \"abab\" [0-1] \"zz\"", v));
  EXPECT_EQ(m.forced_bytes(100), "ababab");
  std::vector<int32_t> forced;
  m.forced_tokens(32, &forced);
  std::string text;
  for (int32_t t : forced) text += v->bytes(t);
  EXPECT_TRUE(std::string("ababab").starts_with(text)) << text;
  EXPECT_GE(text.size(), 4u);
  EXPECT_EQ(m.accepted(), 0);
  for (int32_t t : forced) ASSERT_TRUE(m.accept(t));
}

TEST(ItemSetsTest, CompactingChangesNothing) {
  Rng rng(3);
  auto v = vocabulary(rng, 200);
  auto g =
      compiled_gbnf("root ::= v\nv ::= \"[\" (v (\",\" v)*)? \"]\" | [a-c]+ | \"\\\"\" [^\"]* \"\\\"\"", v);
  MatcherOptions tight;
  tight.machine_bytes = 1;  // tidy after every token
  Matcher a(g), b(g, tight);
  std::vector<uint32_t> x(v->mask_words()), y(v->mask_words());
  for (int step = 0; step < 400; ++step) {
    a.fill_mask(x);
    b.fill_mask(y);
    ASSERT_EQ(x, y) << step;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < v->size(); ++id) {
      if (v->is_text(id) && (x[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    int32_t t = allowed[static_cast<size_t>(pick(rng, static_cast<int>(allowed.size())))];
    if (pick(rng, 3) == 0 && (x['[' / 32] >> ('[' % 32) & 1) != 0) t = '[';
    ASSERT_TRUE(a.accept(t));
    ASSERT_TRUE(b.accept(t));
    if (step % 7 == 6) a.rollback(3), b.rollback(3);
  }
}

}  // namespace
}  // namespace deepinfer::grammar
