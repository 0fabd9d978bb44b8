// The forward pass in math mode against the golden runs of model specification 12.7 to 12.9: every layer's
// output, selections, candidate pool, routes, Engram ids and gates, cache contents, logits, drafts,
// confidences, bounded prefill and verification. The values were confirmed with the vendor's own reference
// code; they are printed with six or seven digits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "golden_values.h"

namespace deepinfer {
namespace {

std::vector<int32_t> prompt(int n) {
  std::vector<int32_t> t;
  for (int i = 0; i < n; ++i) t.push_back((7 + 37 * i + i * i) % 250);
  return t;
}

const ModelWeights& weights(const std::string& name) {
  static std::map<std::string, std::unique_ptr<ModelWeights>> cache;
  auto& w = cache[name];
  if (w == nullptr)
    w = std::make_unique<ModelWeights>(exact_synthetic_weights(builtin_config(name).value()).value());
  return *w;
}

// 1e-4 relative, as the specification asks, with the printed digits as the floor.
void expect_near(const std::vector<double>& want, const double* got, const std::string& what,
                 double floor = 2e-6) {
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], std::max(floor, 1e-5 * std::fabs(want[i]))) << what << " [" << i << "]";
}

std::vector<int> top_ids(const double* z, int64_t n, size_t count) {
  std::vector<int> o(static_cast<size_t>(n));
  std::iota(o.begin(), o.end(), 0);
  std::stable_sort(o.begin(), o.end(), [&](int a, int b) { return z[a] > z[b]; });
  o.resize(count);
  return o;
}

double l2(const double* x, int64_t n) {
  double s = 0;
  for (int64_t i = 0; i < n; ++i) s += x[i] * x[i];
  return std::sqrt(s);
}

struct Fixture {
  Fixture(const std::string& name, bool quantised, int threads = 2)
      : w(weights(name)),
        pool(threads),
        model(&w, &pool, {quantised, nullptr}),
        blocks(model.layout().block_bytes, 4096),
        state(w.config, model.layout(), &blocks) {}
  ForwardResult<double> prefill(int n, int keep, ForwardTrace<double>* trace = nullptr,
                                int64_t logits_from = 0) {
    state.tokens = prompt(n);
    state.decoder_floor = keep > 0 ? std::max(0, n - keep) : 0;
    EXPECT_TRUE(state.reserve(n).ok());
    return model.run({{&state, 0, n, logits_from}}, trace);
  }
  DraftResult<double> draft(int32_t next) {
    return model.draft(
        &state, next, [](const double* z, int64_t v, int64_t) { return static_cast<int32_t>(argmax(z, v)); });
  }
  ForwardResult<double> verify(int32_t next, const std::vector<int32_t>& drafts) {
    int64_t p = state.length;
    state.tokens.push_back(next);
    state.tokens.insert(state.tokens.end(), drafts.begin(), drafts.end());
    EXPECT_TRUE(state.reserve(p + 6).ok());
    return model.run({{&state, p, p + 6, p}});
  }
  const ModelWeights& w;
  ThreadPool pool;
  Forward<double> model;
  BlockPool blocks;
  SequenceState state;
};

std::vector<int> ints(const std::vector<int32_t>& v) {
  return {v.begin(), v.end()};
}

void check_t0(const golden::T0Run& g) {
  Fixture f("t0", g.quantised);
  ForwardTrace<double> trace;
  auto r = f.prefill(40, 0, &trace);
  const int H = 128, hc = 4, T = 40;
  ASSERT_EQ(r.rows.size(), 40u);
  for (int l = 0; l < 8; ++l) {
    const auto& tl = trace.layers[static_cast<size_t>(l)];
    const auto& line = g.layers[static_cast<size_t>(l)];
    std::string where = "layer " + std::to_string(l);
    const double* last = tl.streams.data() + (T - 1) * hc * H;
    for (int s = 0; s < hc; ++s)
      EXPECT_NEAR(l2(last + s * H, H), line.norms[static_cast<size_t>(s)], 2e-6 * 35) << where;
    expect_near(line.x, last, where + " X");
    expect_near(line.pre, tl.pre.data() + (T - 1) * hc, where + " pre");
    double sum = 0;
    for (double v : tl.streams) sum += std::fabs(v);
    EXPECT_NEAR(sum, line.abs_sum, 1e-4 * 2) << where;
    EXPECT_EQ(ints(tl.route.back()), g.routes[static_cast<size_t>(l)]) << where;
  }
  EXPECT_EQ(ints(trace.layers[2].selection.back()), g.sel2);
  EXPECT_EQ(ints(trace.layers[3].selection.back()), g.sel2) << "layer 3 reuses layer 2's selection";
  EXPECT_EQ(ints(trace.layers[4].selection.back()), g.sel4);
  EXPECT_EQ(ints(trace.layers[4].pool.back()), g.pool);
  EXPECT_EQ(ints(trace.layers[6].selection.back()), g.sel6);
  EXPECT_EQ(trace.layers[1].engram_rows[39], (std::vector<int64_t>{27, 90, 190, 235, 331, 405}));
  EXPECT_EQ(trace.layers[3].engram_rows[39], (std::vector<int64_t>{72, 149, 194, 364, 479, 560}));
  EXPECT_EQ(trace.layers[1].engram_rows[0], (std::vector<int64_t>{10, 67, 193, 230, 272, 391}));
  EXPECT_EQ(trace.layers[1].engram_rows[1], (std::vector<int64_t>{54, 93, 181, 199, 320, 421}));
  expect_near(g.gates1, trace.layers[1].engram_gates.data() + 39 * hc, "gates of layer 1");
  expect_near(g.gates3, trace.layers[3].engram_gates.data() + 39 * hc, "gates of layer 3");
  const double* z = r.row(39);
  expect_near(g.logits, z, "logits");
  EXPECT_EQ(top_ids(z, 256, 5), g.top);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(z[g.top[i]], g.top_values[i], 2e-6);
  EXPECT_NEAR(l2(z, 256), g.l2, 2e-5);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(argmax(r.row(i), 256), g.argmax_rows[i]) << "row " << i;

  auto d = f.draft(g.next);
  EXPECT_EQ(ints(d.tokens), g.drafts);
  expect_near(g.confidence, d.confidence_logits.data(), "confidence");
  for (size_t i = 0; i < 5; ++i) {
    const double* row = d.logits.data() + i * 256;
    EXPECT_NEAR(*std::max_element(row, row + 256), g.draft_maxima[i], 2e-6);
  }
  auto v = f.verify(g.next, d.tokens);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(argmax(v.row(i), 256), g.verify_argmax[i]);
  expect_near(g.verify_logits, v.row(0), "verify row 0");
}

TEST(GoldenT0, Math) {
  check_t0(golden::kMath);
}
TEST(GoldenT0, Quantised) {
  check_t0(golden::kQuant);
}

TEST(GoldenT0, BoundedPrefill) {
  for (const auto* g : {&golden::kMath, &golden::kQuant}) {
    for (const auto& b : g->bounded) {
      Fixture f("t0", g->quantised);
      auto r = f.prefill(40, b.keep);
      ASSERT_EQ(static_cast<int>(r.rows.size()), b.keep);
      const double* z = r.row(r.rows.size() - 1);
      expect_near(b.logits, z, "logits");
      EXPECT_EQ(top_ids(z, 256, 3), b.top);
      for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(z[b.top[i]], b.top_values[i], 2e-6);
      auto d = f.draft(g->next);
      EXPECT_EQ(ints(d.tokens), b.drafts);
      expect_near(b.confidence, d.confidence_logits.data(), "confidence");
      auto v = f.verify(g->next, d.tokens);
      expect_near(b.verify, v.row(0), "verify row 0");
    }
  }
}

// Values of single cache entries, read back from blocks and rings.
TEST(GoldenT0, CacheSamples) {
  for (bool quantised : {false, true}) {
    Fixture f("t0", quantised);
    f.prefill(40, 0);
    f.draft(0);  // makes the records of the draft rings
    const CacheLayout& lay = f.model.layout();
    const auto& k = kernels<double>();
    auto entry = [&](int slot, int64_t j, bool key) {
      const auto& s = lay.sources[static_cast<size_t>(slot)];
      const RecordLayout& rec = key ? lay.index : lay.main;
      const uint8_t* b = f.state.block_data(j / s.entries);
      std::vector<double> out(static_cast<size_t>(rec.values));
      k.decode_record(rec.format, b + (key ? s.index_codes : s.main_codes) + j % s.entries * rec.code_bytes,
                      b + (key ? s.index_scales : s.main_scales) + j % s.entries * rec.scale_bytes,
                      rec.values, out.data());
      return out;
    };
    auto ring = [&](const RecordRing& r, int64_t p) {
      std::vector<double> out(64);
      k.decode_record(lay.window.format, r.codes(p), r.scales(p), 64, out.data());
      return out;
    };
    auto m20 = entry(0, 0, false), m219 = entry(0, 19, false), m439 = entry(1, 39, false),
         k219 = entry(0, 19, true);
    auto w0 = ring(f.state.window[0], 39);
    if (!quantised) {
      expect_near({-1.222069, -0.036867, -1.651217}, m20.data(), "main[2][0]");
      expect_near({-1.052978, 0.627202, -2.016411, -0.017057}, m219.data() + 60, "main[2][19]");
      expect_near({0.778143, -0.840068, -0.01185, 0.431205}, m439.data() + 60, "main[4][39]");
      expect_near({0.417473, 1.571288, -0.083148}, k219.data(), "key 2/19");
      expect_near({-0.364442, -0.706314}, w0.data(), "window 0");
      expect_near({-0.02932, -1.625862}, w0.data() + 62, "window 0");
    } else {
      auto k439 = entry(1, 39, true), w5 = ring(f.state.window[5], 39), d0 = ring(f.state.draft[0], 39);
      expect_near({-1.125, 0, -1.6875}, m20.data(), "main[2][0]");
      expect_near({-1.375, 0.6875, -2.0625, -0.171875}, m219.data() + 60, "main[2][19]");
      expect_near({0.28125, -0.84375, -0.140625, 0.28125}, m439.data() + 60, "main[4][39]");
      expect_near({-0.5, 1, -0.5}, k219.data(), "key 2/19");
      expect_near({-0.5, -1.5, 0.25}, k439.data() + 29, "key 4/39");
      expect_near({-0.375, -0.6875}, w0.data(), "window 0");
      expect_near({-0.029296875, -1.625}, w0.data() + 62, "window 0");
      expect_near({1.75, -0.04296875}, w5.data(), "window 5");
      expect_near({-0.5625, -0.6875}, w5.data() + 62, "window 5");
      expect_near({-0.9375, -0.4375}, d0.data(), "draft ring 0");
      expect_near({-1.5, 1.75}, d0.data() + 62, "draft ring 0");
    }
  }
}

// A dead position (image span) blocks the n-grams behind it: ids of layer 1 with position 5 dead.
TEST(GoldenT0, DeadPosition) {
  Fixture f("t0", false);
  f.state.tokens = prompt(10);
  f.state.images.push_back({5, 1, std::vector<float>(128, 0.25f)});
  ASSERT_TRUE(f.state.reserve(10).ok());
  ForwardTrace<double> trace;
  f.model.run({{&f.state, 0, 10, -1}}, &trace);
  const auto rows = trace.layers[1].engram_rows;
  EXPECT_EQ(rows[6], (std::vector<int64_t>{3, 126, 141, 231, 313, 414}));
  EXPECT_EQ(rows[7], (std::vector<int64_t>{9, 86, 149, 222, 315, 383}));
  EXPECT_EQ(rows[8], (std::vector<int64_t>{44, 114, 162, 230, 345, 422}));
  Fixture live("t0", false);
  trace = {};
  live.prefill(10, 0, &trace);
  EXPECT_EQ(trace.layers[1].engram_rows[8], (std::vector<int64_t>{44, 114, 162, 230, 324, 357}));
  EXPECT_EQ(trace.layers[1].engram_rows[9], rows[9]);
  for (double g :
       std::vector<double>(trace.layers[1].engram_gates.begin(), trace.layers[1].engram_gates.begin() + 4))
    EXPECT_GT(g, 0);
}

void check_larger(const std::string& config) {
  for (const auto& g : golden::kLarger) {
    if (g.config != config) continue;
    SCOPED_TRACE(std::string(g.config) + (g.quantised ? " quantised" : " math"));
    Fixture f(g.config, g.quantised);
    auto r = f.prefill(g.prompt, 0, nullptr, g.prompt - 1);
    const double* z = r.row(0);
    expect_near(g.logits, z, "logits");
    EXPECT_EQ(top_ids(z, r.vocab, 3), g.top);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(z[g.top[i]], g.top_values[i], 2e-6);
    EXPECT_NEAR(l2(z, r.vocab), g.l2, 2e-5);
    auto d = f.draft(g.next);
    EXPECT_EQ(ints(d.tokens), g.drafts);
    expect_near(g.confidence, d.confidence_logits.data(), "confidence");
    auto v = f.verify(g.next, d.tokens);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(argmax(v.row(i), r.vocab), g.verify_argmax[i]);
    expect_near(g.verify_logits, v.row(0), "verify row 0");
  }
}

TEST(GoldenLarger, T1) {
  check_larger("t1");
}
TEST(GoldenLarger, T2) {
  check_larger("t2");
}

}  // namespace
}  // namespace deepinfer
