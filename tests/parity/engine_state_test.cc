// The state between forward passes: going back, encoder replay, image rows, bounded replay, block accounting,
// bad requests.
#include "checkpoint/resident.h"
#include "engine_fixture.h"

namespace deepinfer::parity {
namespace {

// After a verification step a sequence may go back by all drafts and x_0 and run its last kept row again; the
// ring of window + drafts + 1 slots is just large enough for that.
TEST(EngineState, GoesBackByAWholeVerification) {
  for (const char* name : {"t0", "t1"}) {
    Bench<float> b(name);
    const ModelConfig& c = b.w.config;
    int n = 120, extra = c.dspark_block_size + 1;
    auto tokens = prompt(n + extra, c.vocab_size);
    auto s = b.start(tokens, -1);
    b.model.run({{s.get(), 0, n, -1}});
    auto before = b.state_digest(*s);
    b.model.run({{s.get(), n, n + extra, -1}});
    EXPECT_EQ(s->lowest_truncation(), n);
    s->truncate(n);
    EXPECT_EQ(b.state_digest(*s), before);
    auto again = b.model.run({{s.get(), n - 1, n, n - 1}});  // rows n-1 .. need the window from n - W on
    Bench<float> fresh(name);
    auto f = fresh.start(prompt(n, c.vocab_size), -1);
    auto whole = fresh.model.run({{f.get(), 0, n, n - 1}});
    EXPECT_EQ(std::memcmp(again.row(0), whole.row(0), static_cast<size_t>(c.vocab_size) * sizeof(float)), 0);
    EXPECT_DEATH(s->truncate(n - 1 - extra), "rings only allow");
  }
}

// Threads in groups, weights copied group by group: the same bits.
TEST(EngineState, MemoryNodesGiveTheSameBits) {
  namespace fs = std::filesystem;
  fs::path dir = fs::temp_directory_path() / ("deepinfer-nodes-" + std::to_string(getpid()));
  ASSERT_TRUE(synthesise(builtin_config("t1").value(), dir.string(), {}).ok());
  const auto run = [&](ThreadPool* pool, bool copied) {
    ModelWeights w = load_checkpoint(dir.string()).value();
    EXPECT_TRUE(!copied || make_resident(&w, pool).ok());
    Forward<float> model(&w, pool, {});
    BlockPool blocks(model.layout().block_bytes, 64);
    SequenceState s(w.config, model.layout(), &blocks);
    s.tokens = prompt(96, w.config.vocab_size);
    EXPECT_TRUE(s.reserve(96).ok());
    std::vector<float> logits = model.run({{&s, 0, 64, 0}}).logits;
    for (int64_t p = 64; p < 96; p += 4) {
      auto step = model.run({{&s, p, p + 4, p}}).logits;
      logits.insert(logits.end(), step.begin(), step.end());
    }
    return logits;
  };
  ThreadPool one(1);
  const std::vector<float> want = run(&one, false);
  for (const auto& [threads, groups] : {std::pair{2, 2}, {3, 2}, {5, 3}, {1, 1}}) {
    auto pool = ThreadPool::with_groups(threads, groups);
    for (const bool copied : {false, true})
      EXPECT_EQ(run(pool.get(), copied), want) << threads << " threads, " << groups << " groups, " << copied;
  }
  fs::remove_all(dir);
}

// Experts that do not fit the memory they are given are forgotten and read again: the same bits, and the
// counters say what happened.
TEST(EngineState, ExpertsUnderABoundGiveTheSameBits) {
  namespace fs = std::filesystem;
  fs::path dir = fs::temp_directory_path() / ("deepinfer-bound-" + std::to_string(getpid()));
  ModelConfig config = builtin_config("t1").value();
  ASSERT_TRUE(synthesise(config, dir.string(), {}).ok());
  ThreadPool pool(2);
  auto run = [&](int64_t bytes, ExpertUse* use) {
    ModelWeights w = load_checkpoint(dir.string(), {.expert_memory_bytes = bytes}).value();
    Forward<float> model(&w, &pool, {});
    BlockPool blocks(model.layout().block_bytes, 64);
    SequenceState s(w.config, model.layout(), &blocks);
    s.tokens = prompt(96, w.config.vocab_size);
    EXPECT_TRUE(s.reserve(96).ok());
    std::vector<float> logits = model.run({{&s, 0, 64, 0}}).logits;
    for (int64_t p = 64; p < 96; ++p) {
      auto step = model.run({{&s, p, p + 1, p}}).logits;
      logits.insert(logits.end(), step.begin(), step.end());
    }
    *use = model.expert_use();
    return logits;
  };
  ExpertUse all, some, most;
  const std::vector<float> want = run(0, &all);
  EXPECT_EQ(all.uses, 0) << "without a bound nothing is counted";
  EXPECT_EQ(run(int64_t{1} << 40, &most), want);
  EXPECT_EQ(most.evictions, 0);
  EXPECT_EQ(most.misses, most.resident);
  // A quarter of what the run touches.
  EXPECT_EQ(run(most.resident * most.expert_bytes / 4, &some), want);
  EXPECT_EQ(some.uses, most.uses);
  EXPECT_EQ(some.capacity, most.resident / 4);
  EXPECT_GT(some.evictions, 0);
  EXPECT_GT(some.misses, most.misses);
  EXPECT_LT(some.misses, some.uses) << "some are found again";
  EXPECT_LE(some.resident, some.capacity);
  fs::remove_all(dir);
}

TEST(EngineState, RingRemembersWhoseSlotItIs) {
  RecordRing ring(4, 8, 1);
  uint8_t codes[8] = {1}, scale = 2;
  for (int64_t p = 0; p < 6; ++p) ring.put(p, codes, &scale);
  EXPECT_TRUE(ring.holds(2));
  EXPECT_FALSE(ring.holds(1));
  EXPECT_DEATH(ring.codes(1), "gone from the ring");
}

// Bounded replay that covers the whole prompt is exact, bit for bit.
TEST(EngineState, ReplayLongerThanThePromptIsExact) {
  Bench<float> b("t1");
  auto tokens = prompt(100, b.w.config.vocab_size);
  auto exact = b.start(tokens, -1), bounded = b.start(tokens, 100);
  auto x = b.model.run({{exact.get(), 0, 100, 0}}), y = b.model.run({{bounded.get(), 0, 100, 0}});
  EXPECT_EQ(x.logits, y.logits);
  auto shorter = b.start(tokens, 40);
  auto z = b.model.run({{shorter.get(), 0, 100, 0}});
  ASSERT_EQ(z.rows.size(), 40u);
  EXPECT_NE(std::memcmp(z.row(39), x.row(99), sizeof(float) * static_cast<size_t>(x.vocab)), 0)
      << "40 replayed rows must be an approximation here";
}

// Encoder replay after a hit without a window (model specification 10.1): cached entries below the hit are
// read, never rewritten, and the window floor is the segment start.
TEST(EngineState, EncoderReplayReadsAndDoesNotRewrite) {
  Bench<float> b("t1");
  const ModelConfig& c = b.w.config;
  const CacheLayout& lay = b.model.layout();
  int W = c.sliding_window, h = 4 * W, n = h + 70;
  auto tokens = prompt(n, c.vocab_size);
  auto cold = b.start(tokens, ring_slots(c));
  auto want = b.model.run({{cold.get(), 0, n, n - 1}});

  auto hit = std::make_unique<SequenceState>(c, lay, &b.blocks);
  hit->tokens = tokens;
  for (int i = 0; i < h / lay.block_tokens; ++i) {
    b.blocks.retain(cold->blocks[static_cast<size_t>(i)]);
    hit->blocks.push_back(cold->blocks[static_cast<size_t>(i)]);
  }
  std::vector<std::vector<uint8_t>> shared;
  for (BlockId id : hit->blocks) shared.emplace_back(b.blocks.data(id), b.blocks.data(id) + lay.block_bytes);
  hit->length = h - W;
  hit->encoder_floor = h - W;
  hit->publish_from = h;
  hit->decoder_floor = n - ring_slots(c);
  ASSERT_TRUE(hit->reserve(n).ok());
  auto got = b.model.run({{hit.get(), h - W, n, n - 1}});
  for (size_t i = 0; i < shared.size(); ++i)
    EXPECT_EQ(std::memcmp(b.blocks.data(hit->blocks[i]), shared[i].data(), shared[i].size()), 0);
  double close = 0, norm = 0;
  for (int64_t i = 0; i < want.vocab; ++i) {
    close += std::pow(want.row(0)[i] - got.row(0)[i], 2);
    norm += std::pow(want.row(0)[i], 2);
  }
  EXPECT_GT(close, 0) << "replay approximates the window, so the bits must differ on this model";
  EXPECT_LT(std::sqrt(close / norm), 1.0);
  // The same replay in chunks gives the same bits.
  auto again = std::make_unique<SequenceState>(c, lay, &b.blocks);
  again->tokens = tokens;
  for (int i = 0; i < h / lay.block_tokens; ++i) {
    b.blocks.retain(cold->blocks[static_cast<size_t>(i)]);
    again->blocks.push_back(cold->blocks[static_cast<size_t>(i)]);
  }
  again->length = again->encoder_floor = h - W;
  again->publish_from = h;
  again->decoder_floor = n - ring_slots(c);
  ASSERT_TRUE(again->reserve(n).ok());
  std::vector<float> last;
  for (int64_t at = h - W; at < n; at += 13) {
    auto r = b.model.run({{again.get(), at, std::min<int64_t>(n, at + 13), n - 1}});
    if (!r.rows.empty()) last.assign(r.row(0), r.row(0) + r.vocab);
  }
  EXPECT_EQ(std::memcmp(last.data(), got.row(0), last.size() * sizeof(float)), 0);
}

// Image rows: the given rows replace the embedding, the router uses bias_vl, Engram leaves the streams alone.
TEST(EngineState, ImageRows) {
  ModelWeights w = load_synthetic("t1");
  const ModelConfig& c = w.config;
  for (BlockWeights& l : w.layers) {
    l.gate_bias_vl.f32.assign(static_cast<size_t>(c.n_routed_experts), 0.0f);
    for (int e = 0; e < c.num_experts_per_tok; ++e) l.gate_bias_vl.f32[static_cast<size_t>(2 * e)] = 1000.0f;
  }
  ThreadPool pool(2);
  Forward<float> model(&w, &pool, {});
  BlockPool blocks(model.layout().block_bytes, 100);
  SequenceState s(c, model.layout(), &blocks);
  s.tokens = prompt(60, c.vocab_size);
  std::vector<float> rows;
  for (int i = 0; i < 10 * c.hidden_size; ++i)
    rows.push_back(round_bf16(static_cast<float>(synthetic_uniform(99, static_cast<uint64_t>(i)))));
  s.images.push_back({20, 10, rows});
  ASSERT_TRUE(s.reserve(60).ok());
  ForwardTrace<float> trace;
  model.run({{&s, 0, 60, -1}}, &trace);
  std::vector<int32_t> forced;
  for (int e = 0; e < c.num_experts_per_tok; ++e) forced.push_back(2 * e);
  for (const auto& l : trace.layers) {
    for (int t = 0; t < 60; ++t) {
      if (t >= 20 && t < 30) {
        EXPECT_EQ(l.route[static_cast<size_t>(t)], forced);
      }
    }
  }
  int differ = 0;
  for (int t = 0; t < 60; ++t) differ += trace.layers[0].route[static_cast<size_t>(t)] != forced;
  EXPECT_GT(differ, 40) << "text rows must use gate.bias";
  const auto& gates = trace.layers[1].engram_gates;
  for (int t = 0; t < 60; ++t) {
    for (int i = 0; i < c.hc_mult; ++i) {
      float g = gates[static_cast<size_t>(t * c.hc_mult + i)];
      bool image = t >= 20 && t < 30;
      EXPECT_EQ(g > 0.0f, !image);
      EXPECT_TRUE(g > 0.0f || g == 0.0f);
    }
  }
}

// A replay shorter than the window: the decoder's and the drafts' windows end at the first replayed row,
// below which their rings hold nothing. Reading there would end the program.
TEST(EngineState, ReplayShorterThanTheWindow) {
  Bench<float> b("t1");
  for (int64_t keep : {1, 3}) {
    GenerateOptions o;
    o.max_tokens = 12;
    o.keep = keep;
    std::vector<int32_t> produced[2];
    for (bool speculate : {false, true}) {
      o.speculate = speculate;
      auto stats = generate<float>(
          &b.model, &b.blocks, prompt(100, b.w.config.vocab_size), o,
          [&](int32_t id) {
            produced[speculate].push_back(id);
            return true;
          },
          [] { return int64_t{0}; });
      ASSERT_TRUE(stats.ok()) << stats.status().to_string();
    }
    EXPECT_EQ(produced[0].size(), 12u);
    EXPECT_EQ(produced[0], produced[1]) << "keep " << keep;
  }
}

TEST(EngineState, BlocksComeBack) {
  Bench<float> b("t0");
  {
    auto s = b.start(prompt(100, 256), -1);
    EXPECT_EQ(b.blocks.in_use(), 7);  // ceil(100 / 16)
    b.model.run({{s.get(), 0, 100, -1}});
    s->truncate(95);
    EXPECT_EQ(b.blocks.in_use(), 6);
  }
  EXPECT_EQ(b.blocks.in_use(), 0);
  BlockPool small(64, 2);
  SequenceState s(b.w.config, b.model.layout(), &small);
  Status st = s.reserve(16 * 3);
  EXPECT_EQ(st.code(), Code::kResourceExhausted);
  EXPECT_EQ(small.in_use(), 0);
  EXPECT_TRUE(s.reserve(16 * 2).ok());
}

TEST(EngineState, BadRequestsAreErrors) {
  Bench<float> b("t0");
  auto run = [&](std::vector<int32_t> tokens, GenerateOptions o) {
    return generate<float>(
               &b.model, &b.blocks, tokens, o, [](int32_t) { return true; }, [] { return int64_t{0}; })
        .status();
  };
  GenerateOptions o;
  o.max_tokens = 4;
  EXPECT_EQ(run({}, o).code(), Code::kInvalidArgument);
  EXPECT_EQ(run({256}, o).code(), Code::kInvalidArgument);
  EXPECT_EQ(run({-1}, o).code(), Code::kInvalidArgument);
  EXPECT_TRUE(run({1, 2, 3}, o).ok());
  GenerateOptions bad = o;
  bad.max_tokens = 0;
  EXPECT_EQ(run({1}, bad).code(), Code::kInvalidArgument);
  bad = o;
  bad.max_tokens = b.w.config.max_position_embeddings;
  EXPECT_EQ(run({1}, bad).code(), Code::kInvalidArgument);
  bad = o;
  bad.sampling.top_p = 0;
  EXPECT_EQ(run({1}, bad).code(), Code::kInvalidArgument);
  bad = o;
  bad.sampling.temperature = std::nan("");
  EXPECT_EQ(run({1}, bad).code(), Code::kInvalidArgument);
  BlockPool tiny(b.model.layout().block_bytes, 1);
  EXPECT_EQ(generate<float>(
                &b.model, &tiny, prompt(40, 256), o, [](int32_t) { return true; }, [] { return int64_t{0}; })
                .status()
                .code(),
            Code::kResourceExhausted);
}

TEST(EngineState, StopsWhenAsked) {
  Bench<float> b("t0");
  GenerateOptions o;
  o.max_tokens = 50;
  std::vector<int32_t> all;
  auto full = generate<float>(
      &b.model, &b.blocks, prompt(20, 256), o,
      [&](int32_t id) {
        all.push_back(id);
        return true;
      },
      [] { return int64_t{0}; });
  ASSERT_EQ(all.size(), 50u);
  EXPECT_EQ(full->finish, GenerateStats::Finish::kLength);
  int seen = 0;
  auto cut = generate<float>(
      &b.model, &b.blocks, prompt(20, 256), o, [&](int32_t) { return ++seen < 3; },
      [] { return int64_t{0}; });
  EXPECT_EQ(cut->finish, GenerateStats::Finish::kCancelled);
  EXPECT_EQ(seen, 3);
  o.stop_ids = {all[4]};
  std::vector<int32_t> stopped;
  auto s = generate<float>(
      &b.model, &b.blocks, prompt(20, 256), o,
      [&](int32_t id) {
        stopped.push_back(id);
        return true;
      },
      [] { return int64_t{0}; });
  EXPECT_EQ(s->finish, GenerateStats::Finish::kStop);
  size_t first = static_cast<size_t>(std::find(all.begin(), all.end(), all[4]) - all.begin());
  EXPECT_EQ(stopped, std::vector<int32_t>(all.begin(), all.begin() + static_cast<int64_t>(first)));
  std::atomic<bool> flag{true};
  auto none = generate<float>(
      &b.model, &b.blocks, prompt(20, 256), o, [&](int32_t) { return true; }, [] { return int64_t{0}; },
      &flag);
  EXPECT_EQ(none->finish, GenerateStats::Finish::kCancelled);
  EXPECT_EQ(none->generated_tokens, 0);
}

}  // namespace
}  // namespace deepinfer::parity
