// Cuts, memory and threads never change ids.
#include "text/prompt_encoder.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "text/test_vocabulary.h"

namespace deepinfer {
namespace {

Span text(std::string s) {
  return {Span::Kind::kText, Span::Origin::kClient, 0, std::move(s), 0};
}
Span control(int32_t id) {
  return {Span::Kind::kControl, Span::Origin::kTemplate, id, "", 0};
}
Tokenizer sample() {
  return testing::test_tokenizer(
      {{"a", "b"}, {"\n", "\n"}, {" ", " "}, {"1", "2"}, {"12", "3"}, {".", "\n"}});
}

std::string random_text(std::mt19937& rng, size_t n) {
  static const std::vector<std::string> pool = {"ab", "\n", "\r\n",   " ", ".",      "12",
                                                "中", "\t", "\u0301", "é", "\u3000", "\x01"};
  std::string s;
  while (s.size() < n) s += pool[rng() % pool.size()];
  return s;
}

TEST(PromptEncoder, CutsNeverChangeIds) {
  Tokenizer t = sample();
  std::mt19937 rng(4);
  for (int round = 0; round < 300; ++round) {
    std::string s = random_text(rng, 200);
    std::vector<int32_t> joined;
    std::string whole;
    for (std::string_view part : cut_for_encoding(s, rng() % 20)) {
      whole += part;
      t.encode_append(part, &joined);
    }
    ASSERT_EQ(whole, s);
    ASSERT_EQ(joined, t.encode(s)) << s;
  }
}

TEST(PromptEncoder, EqualsTheDefinitionColdWarmAndParallel) {
  Tokenizer t = sample();
  PromptEncoder cached(t, 5000), without(t, 0);
  auto threads = [](size_t n, const std::function<void(size_t)>& task) {
    std::vector<std::thread> all;
    for (size_t i = 0; i < n; ++i) all.emplace_back([&, i] { task(i); });
    for (std::thread& one : all) one.join();
  };
  std::mt19937 rng(5);
  std::vector<Span> spans;
  for (int turn = 0; turn < 30; ++turn) {
    spans.push_back(control(128803));
    spans.push_back(text(random_text(rng, 1 + rng() % 400)));
    spans.push_back(text(random_text(rng, rng() % 40)));
    if (turn == 20) spans.push_back(text(random_text(rng, 60000)));
    std::vector<int32_t> expected = encode_spans(t, spans);
    ASSERT_EQ(cached.encode(spans), expected);
    ASSERT_EQ(cached.encode(spans, threads), expected);
    ASSERT_EQ(without.encode(spans, threads), expected);
  }
}

}  // namespace
}  // namespace deepinfer
