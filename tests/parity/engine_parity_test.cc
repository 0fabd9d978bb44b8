// A row's bits depend on its own sequence only: the same logits and the same caches for every chunking, every
// batch, every number of threads, with and without drafts, in both numeric modes.
#include "engine_fixture.h"

namespace deepinfer::parity {
namespace {

const std::string kConfig = PARITY_CONFIG;

template <typename A>
struct Outcome {
  std::vector<A> logits;  // every decoder row
  uint64_t state = 0;
};

template <typename A>
Outcome<A> prefill(Bench<A>* b, const std::vector<int32_t>& tokens, int64_t chunk, int64_t keep) {
  auto s = b->start(tokens, keep);
  Outcome<A> out;
  int64_t n = static_cast<int64_t>(tokens.size());
  for (int64_t at = 0; at < n; at += chunk) {
    auto r = b->model.run({{s.get(), at, std::min(n, at + chunk), 0}});
    out.logits.insert(out.logits.end(), r.logits.begin(), r.logits.end());
  }
  out.state = b->state_digest(*s);
  return out;
}

template <typename A>
void expect_same(const Outcome<A>& want, const Outcome<A>& got, const std::string& what) {
  ASSERT_EQ(want.logits.size(), got.logits.size()) << what;
  EXPECT_EQ(std::memcmp(want.logits.data(), got.logits.data(), want.logits.size() * sizeof(A)), 0)
      << what << ": logits differ";
  EXPECT_EQ(want.state, got.state) << what << ": caches differ";
}

template <typename A>
class EngineParity : public testing::Test {};
using Modes = testing::Types<float, double>;
TYPED_TEST_SUITE(EngineParity, Modes);

TYPED_TEST(EngineParity, Chunks) {
  Bench<TypeParam> b(kConfig);
  int n = prompt_length(kConfig);
  auto tokens = prompt(n, b.w.config.vocab_size);
  // Exact mode keeps every row; bounded replay keeps the tail, and its cut must not meet a chunk's edge by
  // luck.
  auto check = [&](int64_t keep, const std::vector<int64_t>& chunks) {
    auto whole = prefill(&b, tokens, n, keep);
    for (TypeParam v : whole.logits) ASSERT_TRUE(std::isfinite(v));
    for (int64_t chunk : chunks) {
      expect_same(whole, prefill(&b, tokens, chunk, keep),
                  "chunk " + std::to_string(chunk) + " keep " + std::to_string(keep));
    }
  };
  check(-1, {1, 2, 3, 31, 127, 128, 129});
  check(ring_slots(b.w.config), {3, 129});
}

// The prompt is long enough to mean something: selections and pool leave entries out, YaRN's original length
// is exceeded.
TYPED_TEST(EngineParity, PromptExercisesSelection) {
  Bench<TypeParam> b(kConfig);
  const ModelConfig& c = b.w.config;
  int n = prompt_length(kConfig);
  auto s = b.start(prompt(n, c.vocab_size), -1);
  ForwardTrace<TypeParam> trace;
  b.model.run({{s.get(), 0, n, -1}}, &trace);
  for (const LayerRole& r : layer_map(c)) {
    if (r.ratio == 0) continue;
    size_t visible = static_cast<size_t>(n / r.ratio);
    EXPECT_LT(trace.layers[static_cast<size_t>(r.layer)].selection.back().size(), visible);
    if (r.candidate_source) {
      EXPECT_LT(trace.layers[static_cast<size_t>(r.layer)].pool.back().size(), visible);
    }
  }
  EXPECT_GT(n, c.rope_scaling.original_max_position_embeddings);
}

TYPED_TEST(EngineParity, Threads) {
  int n = std::min(prompt_length(kConfig), 200);
  std::unique_ptr<Outcome<TypeParam>> one;
  for (int threads : {1, 2, 3, 5}) {
    Bench<TypeParam> b(kConfig, threads);
    auto got = prefill(&b, prompt(n, b.w.config.vocab_size), 64, -1);
    if (one == nullptr) one = std::make_unique<Outcome<TypeParam>>(got);
    expect_same(*one, got, std::to_string(threads) + " threads");
  }
}

// Sixteen sequences of different lengths and states advance together in shuffled order and uneven steps; each
// ends as if alone.
TYPED_TEST(EngineParity, Batch) {
  Bench<TypeParam> b(kConfig);
  const int count = 16;
  int longest = std::min(prompt_length(kConfig), 160);
  std::vector<Outcome<TypeParam>> alone, together(count);
  std::vector<std::vector<int32_t>> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(prompt(longest - 9 * i, b.w.config.vocab_size, i));
    alone.push_back(prefill(&b, tokens.back(), 1 << 20, i % 2 == 0 ? -1 : ring_slots(b.w.config)));
  }
  std::vector<std::unique_ptr<SequenceState>> states;
  for (int i = 0; i < count; ++i)
    states.push_back(b.start(tokens[static_cast<size_t>(i)], i % 2 == 0 ? -1 : ring_slots(b.w.config)));
  uint64_t random = 12345;
  while (true) {
    std::vector<RowSpan> spans;
    std::vector<int> who;
    for (int k = 0; k < count; ++k) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      int i = static_cast<int>((static_cast<uint64_t>(k) * 7 + (random >> 60)) % count);
      if (std::find(who.begin(), who.end(), i) != who.end()) continue;
      SequenceState* s = states[static_cast<size_t>(i)].get();
      int64_t n = static_cast<int64_t>(s->tokens.size()),
              step = 1 + static_cast<int64_t>((random >> 33) % 23);
      if (s->length >= n) continue;
      spans.push_back({s, s->length, std::min(n, s->length + step), 0});
      who.push_back(i);
    }
    if (spans.empty()) {
      bool all = true;
      for (const auto& s : states) all = all && s->length == static_cast<int64_t>(s->tokens.size());
      if (all) break;
      continue;
    }
    auto r = b.model.run(spans);
    for (size_t k = 0; k < r.rows.size(); ++k) {
      auto& out = together[static_cast<size_t>(who[static_cast<size_t>(r.rows[k].span)])].logits;
      out.insert(out.end(), r.row(k), r.row(k) + r.vocab);
    }
  }
  for (int i = 0; i < count; ++i) {
    together[static_cast<size_t>(i)].state = b.state_digest(*states[static_cast<size_t>(i)]);
    expect_same(alone[static_cast<size_t>(i)], together[static_cast<size_t>(i)],
                "sequence " + std::to_string(i));
  }
}

// Records of the draft stages are made when they are needed: after every step, after many, or after going
// back, the drafts are the same.
TYPED_TEST(EngineParity, DraftRingsMadeLate) {
  Bench<TypeParam> b(kConfig);
  int n = std::min(prompt_length(kConfig), 150), first = n / 2;
  DraftPick<TypeParam> pick = [](const TypeParam* logits, int64_t vocab, int64_t) {
    return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  };
  auto often = b.start(prompt(n, b.w.config.vocab_size, 0), -1),
       late = b.start(prompt(n, b.w.config.vocab_size, 0), -1);
  b.model.run({{often.get(), 0, first, -1}});
  b.model.run({{late.get(), 0, first, -1}});
  for (int p = first; p < n; ++p) {
    b.model.draft(often.get(), 1, pick);
    b.model.run({{often.get(), p, p + 1, -1}});
    b.model.run({{late.get(), p, p + 1, -1}});
  }
  for (int back : {0, 2, 1}) {
    often->truncate(n - back);
    late->truncate(n - back);
    auto x = b.model.draft(often.get(), 1, pick), y = b.model.draft(late.get(), 1, pick);
    EXPECT_EQ(x.tokens, y.tokens) << back;
    EXPECT_EQ(x.logits, y.logits) << back;
    EXPECT_EQ(x.confidence_logits, y.confidence_logits) << back;
  }
}

// A draft pass for many sequences gives each what it gets alone: tokens, logits and confidences.
TYPED_TEST(EngineParity, DraftsInABatch) {
  Bench<TypeParam> b(kConfig);
  const int count = 9;
  int longest = std::min(prompt_length(kConfig), 160);
  DraftPick<TypeParam> pick = [](const TypeParam* logits, int64_t vocab, int64_t) {
    return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  };
  std::vector<std::unique_ptr<SequenceState>> states;
  std::vector<DraftSpan<TypeParam>> spans;
  std::vector<DraftResult<TypeParam>> alone;
  for (int i = 0; i < count; ++i) {
    int n = i == 0 ? 1 : longest - 17 * i;  // the first has hardly a window
    states.push_back(b.start(prompt(n, b.w.config.vocab_size, i), i % 2 == 0 ? -1 : ring_slots(b.w.config)));
    b.model.run({{states.back().get(), 0, n, -1}});
    spans.push_back({states.back().get(), (i * 37 + 5) % b.w.config.vocab_size, &pick});
    alone.push_back(b.model.draft(spans.back().sequence, spans.back().next, pick));
  }
  std::reverse(spans.begin(), spans.end());
  std::reverse(alone.begin(), alone.end());
  auto together = b.model.draft(spans, true);
  ASSERT_EQ(together.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
    EXPECT_EQ(together[i].logits, alone[i].logits) << i;
    EXPECT_EQ(together[i].confidence_logits, alone[i].confidence_logits) << i;
    EXPECT_EQ(alone[i].tokens.size(), static_cast<size_t>(b.w.config.dspark_block_size));
  }
  EXPECT_TRUE(b.model.draft(std::vector<DraftSpan<TypeParam>>{}).empty());
}

template <typename A>
std::vector<int32_t> produce(Bench<A>* b, const std::vector<int32_t>& tokens, GenerateOptions o) {
  std::vector<int32_t> out;
  auto stats = generate<A>(
      &b->model, &b->blocks, tokens, o,
      [&](int32_t id) {
        out.push_back(id);
        return true;
      },
      [] { return int64_t{0}; });
  EXPECT_TRUE(stats.ok()) << stats.status().to_string();
  EXPECT_EQ(b->blocks.in_use(), 0);
  return out;
}

TYPED_TEST(EngineParity, DraftsNeverChangeTheAnswer) {
  Bench<TypeParam> b(kConfig);
  auto tokens = prompt(std::min(prompt_length(kConfig), 150), b.w.config.vocab_size);
  for (double temperature : {0.0, 0.8}) {
    GenerateOptions o;
    o.max_tokens = 24;
    o.sampling.temperature = temperature;
    o.sampling.seed = 7;
    o.speculate = false;
    auto plain = produce(&b, tokens, o);
    ASSERT_EQ(plain.size(), 24u);
    o.speculate = true;
    for (int drafts : {1, 3, 5}) {
      o.drafts = drafts;
      o.chunk = 37;
      EXPECT_EQ(plain, produce(&b, tokens, o)) << "drafts " << drafts << " temperature " << temperature;
    }
  }
}

// Random weights rarely guess right, so acceptance is forced: every pattern of right and wrong drafts leaves
// the same tokens and the same caches as decoding one by one.
TYPED_TEST(EngineParity, ForcedAcceptancePatterns) {
  Bench<TypeParam> b(kConfig);
  const ModelConfig& c = b.w.config;
  int n = std::min(prompt_length(kConfig), 150) | 1;  // odd: an open group
  auto tokens = prompt(n, c.vocab_size);
  auto greedy = [&](const TypeParam* row) { return static_cast<int32_t>(argmax(row, c.vocab_size)); };

  auto plain = b.start(tokens, ring_slots(c));
  auto first = b.model.run({{plain.get(), 0, n, n - 1}});
  std::vector<int32_t> truth = {greedy(first.row(0))};
  std::vector<std::vector<TypeParam>> truth_rows;
  std::vector<uint64_t> digests;
  for (int i = 0; i < 12; ++i) {
    plain->tokens.push_back(truth.back());
    ASSERT_TRUE(plain->reserve(n + i + 1).ok());
    auto r = b.model.run({{plain.get(), n + i, n + i + 1, n + i}});
    truth_rows.emplace_back(r.row(0), r.row(0) + c.vocab_size);
    truth.push_back(greedy(r.row(0)));
    digests.push_back(b.state_digest(*plain));
  }
  // Prefill once, then every pattern on the same sequence, going back in between.
  auto s = b.start(tokens, ring_slots(c));
  b.model.run({{s.get(), 0, n, n - 1}});
  for (int depth = 1; depth <= 5; ++depth) {
    for (int pattern = 0; pattern < (1 << depth); ++pattern) {
      s->truncate(n);
      s->tokens.push_back(truth[0]);
      int good = 0;
      while (good < depth && (pattern >> good & 1) != 0) ++good;
      for (int k = 0; k < depth; ++k) {
        int32_t right = truth[static_cast<size_t>(k) + 1];
        s->tokens.push_back((pattern >> k & 1) != 0 ? right : (right + 1) % (c.vocab_size - 6));
      }
      ASSERT_TRUE(s->reserve(n + 1 + depth).ok());
      auto r = b.model.run({{s.get(), n, n + 1 + depth, n}});
      for (int k = 0; k <= good; ++k) {
        ASSERT_EQ(std::memcmp(r.row(static_cast<size_t>(k)), truth_rows[static_cast<size_t>(k)].data(),
                              static_cast<size_t>(c.vocab_size) * sizeof(TypeParam)),
                  0)
            << "depth " << depth << " pattern " << pattern << " row " << k;
      }
      s->truncate(n + 1 + good);
      ASSERT_EQ(b.state_digest(*s), digests[static_cast<size_t>(good)])
          << "depth " << depth << " pattern " << pattern;
    }
  }
}

}  // namespace
}  // namespace deepinfer::parity
