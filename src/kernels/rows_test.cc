// The operations on one row at every instruction level: the worked numbers of model specification 12.5, the
// scalar definition within the error of fp32, [r] results on the bf16 grid, and bits that do not move with
// alignment or neighbours.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/testing.h"

namespace deepinfer {
namespace {

using namespace testing_kernels;

const int64_t kLengths[] = {1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 100, 128, 513, 5120};

// A result and its definition: equal up to `ulps` steps of bf16 at its own size, plus an absolute part for
// cancelled sums.
void expect_bf16_near(const float* got, const float* want, int64_t n, double absolute,
                      const std::string& what, double steps = 1.01) {
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_TRUE(is_bf16(got[i])) << what << " " << i << ": " << got[i];
    ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * steps * 0x1p-7 + absolute) << what << " " << i;
  }
}

// How often two roundings of nearly the same number may fall on different sides: rarely, or the arithmetic
// differs.
int64_t count_unequal(const float* a, const float* b, int64_t n) {
  int64_t c = 0;
  for (int64_t i = 0; i < n; ++i) c += bits_of(a[i]) != bits_of(b[i]);
  return c;
}

// Runs `op` on inputs at 17 alignments and demands one answer per kind of level; returns nothing, asserts.
void expect_alignment_free(
    int64_t n, const std::function<std::vector<float>(const Kernels<float>&, int64_t shift)>& op) {
  std::vector<float> first[2];
  at_every_level([&](const Kernels<float>& k, const std::string& level) {
    for (int64_t shift = 0; shift < 17; ++shift) {
      const auto y = op(k, shift);
      auto& want = first[fuses(level)];
      if (want.empty()) want = y;
      ASSERT_EQ(first_difference(y.data(), want.data(), static_cast<int64_t>(want.size())), -1)
          << "n " << n << " shift " << shift;
    }
  });
}

TEST(Rows, RmsNorm) {
  Random random(11);
  for (int64_t n : kLengths) {
    const auto x = random.activations(n, 3.0), w = random.activations(n);
    Guarded<float> want(n);
    reference_kernels<float>().rms_norm(x.data(), w.data(), n, 1e-20, want.data());
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      Guarded<float> gx(x), gw(w), y(n);
      k.rms_norm(gx.data(), gw.data(), n, 1e-20, y.data());
      expect_bf16_near(y.data(), want.data(), n, 0, "rms_norm");
      EXPECT_LE(count_unequal(y.data(), want.data(), n), n / 500 + 1);
      k.rms_norm(gx.data(), gw.data(), n, 1e-20, gx.data());  // in place
      EXPECT_EQ(first_difference(gx.data(), y.data(), n), -1);
    });
    expect_alignment_free(n, [&](const Kernels<float>& k, int64_t shift) {
      Guarded<float> gx(x, shift), gw(w, 16 - shift), y(n, 2 * shift);
      k.rms_norm(gx.data(), gw.data(), n, 1e-20, y.data());
      return y.vector();
    });
  }
}

TEST(Rows, RmsNormOfNothingIsNothing) {
  std::vector<float> x(100, 0.0f), w(100, 3.0f), y(100, 1.0f);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    k.rms_norm(x.data(), w.data(), 100, 1e-20, y.data());
    for (float v : y) EXPECT_EQ(v, 0.0f);
  });
}

TEST(Rows, SumSquares) {
  Random random(12);
  for (int64_t n : kLengths) {
    const auto x = random.floats(n);
    const double want = reference_kernels<float>().sum_squares(x.data(), n);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      Guarded<float> g(x);
      EXPECT_NEAR(k.sum_squares(g.data(), n), want, want * (static_cast<double>(n) / 32 + 8) * 0x1p-24);
    });
    expect_alignment_free(n, [&](const Kernels<float>& k, int64_t shift) {
      Guarded<float> g(x, shift);
      return std::vector<float>{k.sum_squares(g.data(), n)};
    });
  }
}

TEST(Rows, Streams) {
  Random random(13);
  for (int hc : {1, 2, 4, 5}) {
    for (int64_t H : {1, 16, 33, 64, 129, 512}) {
      const auto X = random.activations(hc * H), c = random.floats(hc), post = random.floats(hc),
                 comb = random.floats(hc * hc), y = random.activations(H);
      std::vector<float> u(static_cast<size_t>(H)), m(u), e(X);
      const auto& ref = reference_kernels<float>();
      ref.hc_collapse(X.data(), c.data(), hc, H, u.data());
      ref.hc_mean(X.data(), hc, H, m.data());
      ref.hc_expand(y.data(), post.data(), comb.data(), hc, H, e.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        Guarded<float> gX(X), gy(y), out(H);
        k.hc_collapse(gX.data(), c.data(), hc, H, out.data());
        expect_bf16_near(out.data(), u.data(), H, 1e-5, "collapse");
        k.hc_mean(gX.data(), hc, H, out.data());
        expect_bf16_near(out.data(), m.data(), H, 1e-5, "mean");
        k.hc_expand(gy.data(), post.data(), comb.data(), hc, H, gX.data());
        expect_bf16_near(gX.data(), e.data(), hc * H, 1e-5, "expand");
        EXPECT_LE(count_unequal(gX.data(), e.data(), hc * H), hc * H / 100 + 1);
      });
      expect_alignment_free(H, [&](const Kernels<float>& k, int64_t shift) {
        Guarded<float> gX(X, shift), gy(y, shift / 2), out(H, 3 * shift);
        k.hc_collapse(gX.data(), c.data(), hc, H, out.data());
        auto all = out.vector();
        k.hc_mean(gX.data(), hc, H, out.data());
        all.insert(all.end(), out.begin(), out.end());
        k.hc_expand(gy.data(), post.data(), comb.data(), hc, H, gX.data());
        all.insert(all.end(), gX.begin(), gX.end());
        return all;
      });
    }
  }
}

// A one-hot `c` copies a stream; identity coefficients leave the streams alone. Exact, so exact equality.
TEST(Rows, StreamIdentities) {
  Random random(14);
  const int64_t H = 97;
  const auto X = random.activations(4 * H), zero = std::vector<float>(static_cast<size_t>(H), 0.0f);
  const float c[4] = {0, 0, 1, 0}, post[4] = {0, 0, 0, 0},
              eye[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    std::vector<float> u(static_cast<size_t>(H)), Y = X;
    k.hc_collapse(X.data(), c, 4, H, u.data());
    EXPECT_EQ(first_difference(u.data(), X.data() + 2 * H, H), -1);
    k.hc_expand(zero.data(), post, eye, 4, H, Y.data());
    for (size_t i = 0; i < Y.size(); ++i) ASSERT_EQ(Y[i], X[i]);
  });
}

TEST(Rows, Rope) {
  Random random(15);
  for (int pairs : {1, 7, 16, 17, 32, 40}) {
    const auto x = random.activations(2 * pairs);
    std::vector<float> cos, sin;
    for (int i = 0; i < pairs; ++i) {
      const double angle = 100 * random.uniform();
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    for (bool inverse : {false, true}) {
      auto want = x;
      reference_kernels<float>().rope(want.data(), cos.data(), sin.data(), pairs, inverse);
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        Guarded<float> y(x), gc(cos), gs(sin);
        k.rope(y.data(), gc.data(), gs.data(), pairs, inverse);
        expect_bf16_near(y.data(), want.data(), 2 * pairs, 1e-6, "rope");
        k.rope(y.data(), gc.data(), gs.data(), pairs, !inverse);
        for (int i = 0; i < 2 * pairs; ++i)
          ASSERT_NEAR(y[i], x[static_cast<size_t>(i)], 0.03) << "rotation and back";
      });
      expect_alignment_free(pairs, [&](const Kernels<float>& k, int64_t shift) {
        Guarded<float> y(x, shift), gc(cos, shift + 1), gs(sin, 2 * shift);
        k.rope(y.data(), gc.data(), gs.data(), pairs, inverse);
        return y.vector();
      });
    }
  }
}

TEST(Rows, RopeTurnsAdjacentPairs) {
  const double cos[1] = {0.6}, sin[1] = {0.8};
  double x[2] = {2, 5};
  kernels<double>().rope(x, cos, sin, 1, false);
  EXPECT_DOUBLE_EQ(x[0], 2 * 0.6 - 5 * 0.8);
  EXPECT_DOUBLE_EQ(x[1], 2 * 0.8 + 5 * 0.6);
  kernels<double>().rope(x, cos, sin, 1, true);
  EXPECT_NEAR(x[0], 2, 1e-15);
  EXPECT_NEAR(x[1], 5, 1e-15);
}

TEST(Rows, Swiglu) {
  Random random(16);
  for (int64_t n : kLengths) {
    auto g = random.activations(n, 8.0), u = random.activations(n, 8.0);
    g[0] = -200.0f;
    u[0] = 50.0f;
    for (double limit : {10.0, 0.0}) {
      std::vector<float> want(static_cast<size_t>(n));
      reference_kernels<float>().swiglu(g.data(), u.data(), n, 0.37, limit, want.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        Guarded<float> gg(g), gu(u), a(n);
        k.swiglu(gg.data(), gu.data(), n, 0.37, limit, a.data());
        expect_bf16_near(a.data(), want.data(), n, 1e-30, "swiglu");
        EXPECT_LE(count_unequal(a.data(), want.data(), n), n / 200 + 1);
      });
      expect_alignment_free(n, [&](const Kernels<float>& k, int64_t shift) {
        Guarded<float> gg(g, shift), gu(u, 5 * shift), a(n, 16 - shift);
        k.swiglu(gg.data(), gu.data(), n, 0.37, limit, a.data());
        return a.vector();
      });
    }
  }
}

TEST(Rows, SwigluClampsTheGateAboveAndTheOtherOnBothSides) {
  const double g[4] = {20, -20, 1, 1}, u[4] = {1, 1, 20, -20};
  double a[4];
  kernels<double>().swiglu(g, u, 4, 1.0, 10.0, a);
  EXPECT_DOUBLE_EQ(a[0], 10 / (1 + std::exp(-10.0)));
  EXPECT_DOUBLE_EQ(a[1], -20 / (1 + std::exp(20.0)));
  EXPECT_DOUBLE_EQ(a[2], 10 / (1 + std::exp(-1.0)));
  EXPECT_DOUBLE_EQ(a[3], -10 / (1 + std::exp(-1.0)));
}

// The engine cuts long rows into pieces for its threads: where it cuts must not show.
TEST(Rows, PiecesOfARowGiveTheSameBits) {
  Random random(21);
  const int64_t n = 700;
  const auto g = random.activations(n, 4.0), u = random.activations(n, 4.0), x = random.floats(n),
             a1 = random.floats(n);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    std::vector<float> swiglu(n), rounded(n), sums(u), pooled(n);
    const float *a[2] = {x.data(), a1.data()}, *gates[2] = {g.data(), u.data()};
    k.swiglu(g.data(), u.data(), n, 0.3, 10.0, swiglu.data());
    k.round(x.data(), n, rounded.data());
    k.add(x.data(), n, sums.data());
    k.compress_pool(a, gates, 2, n, pooled.data());
    for (int trial = 0; trial < 50; ++trial) {
      const int64_t i = random.below(n), m = 1 + random.below(n - i);
      std::vector<float> piece(static_cast<size_t>(m));
      k.swiglu(g.data() + i, u.data() + i, m, 0.3, 10.0, piece.data());
      ASSERT_EQ(first_difference(piece.data(), swiglu.data() + i, m), -1);
      k.round(x.data() + i, m, piece.data());
      ASSERT_EQ(first_difference(piece.data(), rounded.data() + i, m), -1);
      std::copy_n(u.begin() + i, m, piece.begin());
      k.add(x.data() + i, m, piece.data());
      ASSERT_EQ(first_difference(piece.data(), sums.data() + i, m), -1);
      const float *pa[2] = {a[0] + i, a[1] + i}, *pg[2] = {gates[0] + i, gates[1] + i};
      k.compress_pool(pa, pg, 2, m, piece.data());
      ASSERT_EQ(first_difference(piece.data(), pooled.data() + i, m), -1);
    }
  });
}

// Rounding and adding are exact operations: equality with the scalar words for every kind of number.
TEST(Rows, RoundAndAdd) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      if (high % 7 == 0 || (high & 0x7f) >= 0x7d) x.push_back(std::bit_cast<float>((high << 16) | low));
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    k.round(x.data(), n, y.data());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(bits_of(y[i]) == bits_of(round_bf16(x[i])) || (std::isnan(y[i]) && std::isnan(x[i])))
          << std::hex << bits_of(x[i]);
    for (int64_t m : kLengths) {
      Guarded<float> a(std::vector<float>(x.begin(), x.begin() + m)),
          b(std::vector<float>(static_cast<size_t>(m), 1.5f));
      k.add(a.data(), m, b.data());
      for (int64_t i = 0; i < m; ++i) ASSERT_EQ(bits_of(b[i]), bits_of(1.5f + a[i]));
      k.round(a.data(), m, a.data());
      for (int64_t i = 0; i < m; ++i)
        ASSERT_EQ(bits_of(a[i]), bits_of(round_bf16(x[static_cast<size_t>(i)])));
    }
  });
}

TEST(Rows, SinkhornNumbers) {
  // mix holds the logits, mean_square 1: nothing is scaled. Model specification 12.5.
  double mix[24] = {}, base[24] = {}, scale[3] = {1, 1, 1}, pre[4], post[4], comb[16];
  for (int j = 0; j < 4; ++j)
    for (int k = 0; k < 4; ++k) mix[8 + 4 * j + k] = 0.5 * ((j * k) % 5) - 0.25 * (j == k);
  HcParams p;
  p.rms_eps = 0;
  const double want[16] = {0.3922547, 0.2373173, 0.1963191, 0.174108,  0.2373171, 0.1435786,
                           0.2514445, 0.3676588, 0.1963191, 0.2514445, 0.440347,  0.1118885,
                           0.1741082, 0.3676586, 0.1118885, 0.3463437};
  kernels<double>().hc_coefficients(mix, 1.0, base, scale, p, pre, post, comb);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(comb[i], want[i], 1e-7) << i;
  for (int j = 0; j < 4; ++j)
    EXPECT_NEAR(comb[4 * j] + comb[4 * j + 1] + comb[4 * j + 2] + comb[4 * j + 3], 0.999999, 1e-6);
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(pre[i], 0.5 + 1e-6, 1e-12);
    EXPECT_NEAR(post[i], 1.0, 1e-12);
  }
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    float fm[24], fb[24] = {}, fs[3] = {1, 1, 1}, fpre[4], fpost[4], fcomb[16];
    std::copy(mix, mix + 24, fm);
    k.hc_coefficients(fm, 1.0f, fb, fs, p, fpre, fpost, fcomb);
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(fcomb[i], want[i], 2e-7) << i;
  });
}

// The first column division is iteration one; every later one divides rows, then columns. At twenty
// iterations one more or less no longer shows, so this counts at one and two.
TEST(Rows, SinkhornCountsItsIterations) {
  double mix[8] = {}, base[8] = {}, scale[3] = {1, 1, 1}, pre[2], post[2], comb[4];
  mix[5] = 1.0;  // logits {{0, 1}, {0, 0}}
  HcParams p;
  p.hc = 2;
  p.rms_eps = 0;
  p.hc_eps = 0;
  const double e = std::exp(1.0), a = 1 / (1 + e), b = e / (1 + e),
               c = 0.5;  // rows after the softmax: {a, b}, {c, c}
  const double once[4] = {a / (a + c), b / (b + c), c / (a + c), c / (b + c)};
  const double row0 = once[0] + once[1], row1 = once[2] + once[3];
  const double r[4] = {once[0] / row0, once[1] / row0, once[2] / row1, once[3] / row1};
  const double twice[4] = {r[0] / (r[0] + r[2]), r[1] / (r[1] + r[3]), r[2] / (r[0] + r[2]),
                           r[3] / (r[1] + r[3])};
  for (int iterations : {1, 2}) {
    p.sinkhorn_iters = iterations;
    kernels<double>().hc_coefficients(mix, 1.0, base, scale, p, pre, post, comb);
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(comb[i], (iterations == 1 ? once : twice)[i], 1e-12) << iterations << " " << i;
  }
}

TEST(Rows, HcCoefficientsUseEveryInput) {
  Random random(17);
  const auto fm = random.floats(24), fb = random.floats(24), fs = random.floats(3);
  const std::vector<double> m(fm.begin(), fm.end()), b(fb.begin(), fb.end()), s(fs.begin(), fs.end());
  double pre[4], post[4], comb[16];
  kernels<double>().hc_coefficients(m.data(), 4.0, b.data(), s.data(), HcParams{}, pre, post, comb);
  auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(pre[i], sigmoid(m[i] / 2 * s[0] + b[i]) + 1e-6, 1e-12);
    EXPECT_NEAR(post[i], 2 * sigmoid(m[4 + i] / 2 * s[1] + b[4 + i]), 1e-12);
  }
  // Doubly stochastic, and the ratio of the odds of a 2x2 minor survives every row and column scaling (up to
  // the epsilon).
  auto A = [&](size_t j, size_t k) { return m[8 + 4 * j + k] / 2 * s[2] + b[8 + 4 * j + k]; };
  const double odds = std::exp(A(0, 1) + A(2, 3) - A(0, 3) - A(2, 1));
  EXPECT_NEAR(comb[1] * comb[2 * 4 + 3] / (comb[3] * comb[2 * 4 + 1]), odds, 1e-3 * odds);
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    float fpre[4], fpost[4], fcomb[16];
    k.hc_coefficients(fm.data(), 4.0f, fb.data(), fs.data(), HcParams{}, fpre, fpost, fcomb);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(fpre[i], pre[i], 1e-6);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(fpost[i], post[i], 1e-6);
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(fcomb[i], comb[i], 1e-6);
  });
}

// key = X with mean square 1 and weights of constant size w give dot = w^2 H^0.5: any gate of the list can be
// asked for.
TEST(Rows, EngramGateNumbers) {
  const double dots[4] = {0.0, -0.25, 1.0, -4.0}, want[4] = {0.50025, 0.37754067, 0.73105858, 0.11920292};
  const int64_t H = 64;
  for (int c = 0; c < 4; ++c) {
    std::vector<double> X(H, 1.0), key(H, 1.0), val(H, 2.0), qw(H, dots[c] / 8.0), kw(H, 1.0);
    const double gate =
        kernels<double>().engram_stream(key.data(), val.data(), qw.data(), kw.data(), H, 1e-20, X.data());
    EXPECT_NEAR(gate, want[c], 1e-8 + (c == 0 ? 1e-6 : 0)) << dots[c];
    EXPECT_NEAR(X[5], 1.0 + 2.0 * gate, 1e-12);
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      std::vector<float> fX(H, 1.0f), fkey(H, 1.0f), fval(H, 2.0f), fqw(H, static_cast<float>(dots[c] / 8.0)),
          fkw(H, 1.0f);
      EXPECT_NEAR(k.engram_stream(fkey.data(), fval.data(), fqw.data(), fkw.data(), H, 1e-20, fX.data()),
                  gate, 1e-6);
      EXPECT_EQ(fX[5], round_bf16(static_cast<float>(1.0 + 2.0 * gate)));
    });
  }
}

TEST(Rows, EngramStream) {
  Random random(18);
  for (int64_t H : {1, 17, 64, 130, 512}) {
    const auto X = random.activations(H), key = random.activations(H), val = random.activations(H),
               qw = random.floats(H), kw = random.floats(H);
    auto want = X;
    const float gate = reference_kernels<float>().engram_stream(key.data(), val.data(), qw.data(), kw.data(),
                                                                H, 1e-20, want.data());
    at_every_level([&](const Kernels<float>& k, const std::string&) {
      Guarded<float> gX(X), gk(key), gv(val), gq(qw), gw(kw);
      EXPECT_NEAR(k.engram_stream(gk.data(), gv.data(), gq.data(), gw.data(), H, 1e-20, gX.data()), gate,
                  2e-5);
      expect_bf16_near(gX.data(), want.data(), H, 1e-4, "engram");
    });
    expect_alignment_free(H, [&](const Kernels<float>& k, int64_t shift) {
      Guarded<float> gX(X, shift), gk(key, shift + 3), gv(val, 2 * shift), gq(qw, 16 - shift), gw(kw);
      const float g = k.engram_stream(gk.data(), gv.data(), gq.data(), gw.data(), H, 1e-20, gX.data());
      auto all = gX.vector();
      all.push_back(g);
      return all;
    });
  }
}

TEST(Rows, CompressPool) {
  Random random(19);
  for (int r : {1, 2, 3, 8}) {
    for (int64_t n : {1, 16, 19, 64, 512}) {
      std::vector<std::vector<float>> a, g;
      std::vector<const float*> pa, pg;
      for (int t = 0; t < r; ++t) {
        a.push_back(random.floats(n));
        g.push_back(random.floats(n, 4.0));
      }
      std::vector<std::unique_ptr<Guarded<float>>> keep;
      for (int t = 0; t < r; ++t) {
        keep.push_back(std::make_unique<Guarded<float>>(a[static_cast<size_t>(t)]));
        pa.push_back(keep.back()->data());
        keep.push_back(std::make_unique<Guarded<float>>(g[static_cast<size_t>(t)]));
        pg.push_back(keep.back()->data());
      }
      std::vector<float> want(static_cast<size_t>(n));
      reference_kernels<float>().compress_pool(pa.data(), pg.data(), r, n, want.data());
      std::vector<float> first[2];
      at_every_level([&](const Kernels<float>& k, const std::string& level) {
        Guarded<float> out(n);
        k.compress_pool(pa.data(), pg.data(), r, n, out.data());
        expect_bf16_near(out.data(), want.data(), n, 1e-6, "compress_pool");
        if (r == 1) {
          EXPECT_EQ(first_difference(out.data(), want.data(), n), -1) << "one row is its own mean";
        }
        auto& f = first[fuses(level)];
        if (f.empty()) f = out.vector();
        EXPECT_EQ(first_difference(out.data(), f.data(), n), -1);
      });
    }
  }
}

// Channels choose separately: where g of row 1 is far larger, its a wins.
TEST(Rows, CompressPoolSoftmaxIsPerChannel) {
  const double a0[2] = {1, 2}, a1[2] = {10, 20}, g0[2] = {100, 0}, g1[2] = {0, 0};
  const double *a[2] = {a0, a1}, *g[2] = {g0, g1};
  double out[2];
  kernels<double>().compress_pool(a, g, 2, 2, out);
  EXPECT_NEAR(out[0], 1, 1e-12);
  EXPECT_NEAR(out[1], 11, 1e-12);
}

TEST(Rows, Softmax) {
  Random random(20);
  for (int64_t n : kLengths) {
    const auto x = random.floats(n, 5.0);
    for (double inv : {1.0, 0.5, 7.0}) {
      std::vector<float> want(static_cast<size_t>(n));
      const float sum = reference_kernels<float>().softmax(x.data(), n, inv, want.data());
      at_every_level([&](const Kernels<float>& k, const std::string&) {
        Guarded<float> gx(x), p(n);
        EXPECT_NEAR(k.softmax(gx.data(), n, inv, p.data()), sum, sum * 1e-5);
        float top = 0;
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(p[i], want[static_cast<size_t>(i)], want[static_cast<size_t>(i)] * 2e-5 + 1e-37) << i;
        for (float v : p) top = std::max(top, v);
        EXPECT_EQ(top, 1.0f);
      });
      expect_alignment_free(n, [&](const Kernels<float>& k, int64_t shift) {
        Guarded<float> gx(x, shift), p(n, 16 - shift);
        const float s = k.softmax(gx.data(), n, inv, p.data());
        auto all = p.vector();
        all.push_back(s);
        return all;
      });
    }
  }
}

TEST(Rows, SoftmaxOfMaskedScores) {
  const float inf = std::numeric_limits<float>::infinity();
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    std::vector<float> x(70, -inf), p(70, 9.0f);
    EXPECT_EQ(k.softmax(x.data(), 70, 1.0, p.data()), 0.0f);
    for (float v : p) EXPECT_EQ(v, 0.0f);
    x[3] = 2.0f;
    x[69] = 2.0f;
    EXPECT_EQ(k.softmax(x.data(), 70, 3.0, p.data()), 2.0f);
    for (size_t i = 0; i < 70; ++i) EXPECT_EQ(p[i], i == 3 || i == 69 ? 1.0f : 0.0f);
  });
}

// The exponential through softmax of pairs {0, -t}: the whole range, to 2 ulp, and gone below the smallest
// subnormal.
TEST(Rows, ExponentialIsAccurateOverItsRange) {
  at_every_level([&](const Kernels<float>& k, const std::string&) {
    std::vector<float> x{0.0f}, p;
    for (double t = 0; t < 110; t += 0.00917) x.push_back(static_cast<float>(-t));
    p.resize(x.size());
    k.softmax(x.data(), static_cast<int64_t>(x.size()), 1.0, p.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      ASSERT_NEAR(p[i], want, want * 0x1p-22 + 0x1p-149) << x[i];
      if (x[i] < -104.5f) {
        ASSERT_EQ(p[i], 0.0f);
      }
    }
  });
}

}  // namespace
}  // namespace deepinfer
