// Encoders against the definitions in base/numeric.h, for every instruction set; the scale rule; the values
// of model specification 12.7.
#include "checkpoint/synth_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/weights.h"

namespace deepinfer {
namespace {

TEST(SynthGolden, StreamOfTheSpecification) {
  TensorSpec embed{"embed.weight", DType::kBF16, {256, 128}, Role::kEmbedding, TensorClass::kBackbone};
  const SyntheticStream s = synthetic_stream(embed, 0);
  EXPECT_EQ(s.hash, 0x9ac37bcac2dc8a00ull);
  EXPECT_NEAR(s.value(0), 0.0350399, 5e-8);
  EXPECT_NEAR(s.value(1), 0.8896987, 5e-8);
  EXPECT_NEAR(s.value(2), 0.6592633, 5e-8);
}

TEST(SynthGolden, ExactWeightsOfT0) {
  const auto w = exact_synthetic_weights(builtin_config("t0").value());
  ASSERT_TRUE(w.ok()) << w.status().to_string();
  const MatrixView& m = w->layers[0].wq_a;
  EXPECT_EQ(m.format, WeightFormat::kF64);
  EXPECT_EQ(m.rows, 64);
  EXPECT_EQ(m.cols, 128);
  const double* v = static_cast<const double*>(m.data);
  EXPECT_NEAR(v[0], 0.0875569, 5e-8);
  EXPECT_NEAR(v[1], 0.0442201, 5e-8);
  EXPECT_NEAR(v[2], -0.0568434, 5e-8);
  // Roles: a norm is 1 + u/4, a bias u/10, a sink u, an Engram row u sqrt(3).
  EXPECT_DOUBLE_EQ(w->norm.f64[5], 1 + 0.25 * synthetic_uniform(fnv1a64("norm.weight", 11), 5));
  EXPECT_DOUBLE_EQ(w->layers[1].gate_bias.f64[2],
                   0.1 * synthetic_uniform(fnv1a64("layers.1.ffn.gate.bias", 22), 2));
  EXPECT_DOUBLE_EQ(w->layers[1].attn_sink.f64[3],
                   synthetic_uniform(fnv1a64("layers.1.attn.attn_sink", 23), 3));
  EXPECT_DOUBLE_EQ(static_cast<const double*>(w->layers[1].engram->table.data)[40],
                   std::sqrt(3.0) * synthetic_uniform(fnv1a64("layers.1.engram.embed.weight", 28), 40));
  EXPECT_EQ(w->layers[1].engram->table.rows, 434);
  EXPECT_EQ(w->layers[3].engram->table.rows, 606);
  EXPECT_EQ(w->token_map[201], 4 + (201 - 4) % 196);
}

TEST(Synth, ExactWeightsRefuseLargeModels) {
  EXPECT_EQ(exact_synthetic_weights(builtin_config("v41-flash").value()).status().code(), Code::kUnsupported);
}

TEST(Synth, ASeedGivesAnotherStreamNotAShiftedOne) {
  TensorSpec t{"x", DType::kF32, {1, 4096}, Role::kEmbedding, TensorClass::kBackbone};
  const SyntheticStream a = synthetic_stream(t, 0), b = synthetic_stream(t, 1), c = synthetic_stream(t, 2);
  int equal = 0;
  for (int64_t shift = -8; shift <= 8; ++shift) {
    for (int64_t i = 8; i < 1000; ++i)
      equal += (a.value(i) == b.value(i + shift)) + (b.value(i) == c.value(i + shift));
  }
  EXPECT_LT(equal, 3);  // 33,728 comparisons of 24-bit numbers
}

TEST(Synth, ScaleIsTheSmallestPowerOfTwoThatHoldsTheBlock) {
  EXPECT_EQ(weight_scale_exponent(448.0f, 448.0f), 0);
  EXPECT_EQ(weight_scale_exponent(std::nextafter(448.0f, 500.0f), 448.0f), 1);
  EXPECT_EQ(weight_scale_exponent(std::nextafter(6.0f, 7.0f), 6.0f), 1);
  EXPECT_EQ(weight_scale_exponent(224.0f, 448.0f), -1);
  EXPECT_EQ(weight_scale_exponent(6.0f, 6.0f), 0);
  EXPECT_EQ(weight_scale_exponent(6.01f, 6.0f), 1);
  EXPECT_EQ(weight_scale_exponent(0.75f, 6.0f), -3);
  EXPECT_EQ(weight_scale_exponent(0.0f, 448.0f), -22);
  EXPECT_EQ(weight_scale_exponent(0.0f, 6.0f), -126);
  EXPECT_EQ(weight_scale_exponent(1e-40f, 6.0f), -126);
}

struct Encoded {
  std::vector<uint8_t> weight, scale;
  bool operator==(const Encoded&) const = default;
};

// The definition: values one by one, blocks one by one.
Encoded define(const TensorSpec& spec, const SyntheticStream& stream, int64_t row0, int64_t row1) {
  Encoded e;
  const int64_t rows = logical_rows(spec), cols = logical_columns(spec);
  const auto value = [&](int64_t r, int64_t c) { return static_cast<float>(stream.value(r * cols + c)); };
  if (spec.dtype == DType::kBF16 || spec.dtype == DType::kF32) {
    for (int64_t r = row0; r < row1; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float f = value(r, c);
        const uint16_t b = f32_to_bf16(f);
        const auto* p = spec.dtype == DType::kF32 ? reinterpret_cast<const uint8_t*>(&f)
                                                  : reinterpret_cast<const uint8_t*>(&b);
        e.weight.insert(e.weight.end(), p, p + dtype_bytes(spec.dtype));
      }
    }
    return e;
  }
  const bool fp4 = spec.dtype == DType::kI8, tiles = !fp4 && spec.role != Role::kEngramTable;
  const int64_t height = tiles ? 32 : 1, scale_cols = (cols + 31) / 32;
  const auto scale_of = [&](int64_t r, int64_t c) {
    float amax = 0;
    const int64_t top = r / height * height, left = c / 32 * 32;
    for (int64_t y = top; y < std::min(rows, top + height); ++y) {
      for (int64_t x = left; x < std::min(cols, left + 32); ++x)
        amax = std::max(amax, std::fabs(value(y, x)));
    }
    return ceil_log2(amax / (fp4 ? 6.0f : 448.0f));
  };
  for (int64_t r = row0; r < row1; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float y = std::ldexp(value(r, c), -scale_of(r, c));
      if (!fp4)
        e.weight.push_back(f32_to_e4m3(y));
      else if (c % 2 == 0)
        e.weight.push_back(f32_to_e2m1(y));
      else
        e.weight.back() = static_cast<uint8_t>(e.weight.back() | f32_to_e2m1(y) << 4);
    }
    if (r % height == 0) {
      for (int64_t c = 0; c < scale_cols; ++c)
        e.scale.push_back(static_cast<uint8_t>(scale_of(r, 32 * c) + 127));
    }
  }
  return e;
}

TEST(Synth, EveryInstructionSetGivesTheDefinedBytes) {
  const TensorSpec specs[] = {
      {"layers.0.hc_attn_fn", DType::kF32, {24, 512}, Role::kProjection, TensorClass::kBackbone},
      {"layers.0.hc_attn_scale", DType::kF32, {3}, Role::kHcScale, TensorClass::kBackbone},
      {"embed.weight", DType::kBF16, {64, 100}, Role::kEmbedding, TensorClass::kBackbone},
      {"norm.weight", DType::kBF16, {1280}, Role::kNormWeight, TensorClass::kBackbone},
      {"layers.0.attn.wq_a.weight", DType::kF8E4M3, {64, 128}, Role::kProjection, TensorClass::kBackbone},
      {"cut.weight", DType::kF8E4M3, {33, 70}, Role::kProjection, TensorClass::kBackbone},
      {"layers.0.ffn.experts.0.w1.weight",
       DType::kI8,
       {96, 64},
       Role::kProjection,
       TensorClass::kRoutedExpert},
      {"layers.1.engram.embed.weight",
       DType::kF8E4M3,
       {100, 64},
       Role::kEngramTable,
       TensorClass::kEngramTable},
  };
  for (const TensorSpec& spec : specs) {
    for (uint64_t seed : {uint64_t{0}, uint64_t{77}}) {
      const SyntheticStream stream = synthetic_stream(spec, seed);
      const int64_t rows = logical_rows(spec), row0 = rows > 32 ? 32 : 0;
      const Encoded want = define(spec, stream, row0, rows);
      for (const EncodeLevel& level : encode_levels()) {
        Encoded got{std::vector<uint8_t>(want.weight.size(), 0xee),
                    std::vector<uint8_t>(want.scale.size(), 0xee)};
        level.encode(spec, stream, row0, rows, got.weight.data(), got.scale.data());
        EXPECT_EQ(got, want) << spec.name << " " << level.name << " seed " << seed;
      }
    }
  }
}

// Many magnitudes, so that blocks lie at every distance from their scale's power of two.
TEST(Synth, RoundsAsDefinedAcrossAllMagnitudes) {
  for (const auto dtype : {DType::kI8, DType::kF8E4M3}) {
    TensorSpec spec{
        "t", dtype, {32, dtype == DType::kI8 ? 512 : 1024}, Role::kEngramTable, TensorClass::kEngramTable};
    SyntheticStream stream = synthetic_stream(spec, 5);
    for (double factor : {1e-30, 3e-5, 0.0123, 0.7501, 1.0, 447.9, 448.0, 6.0, 5.99, 1e20}) {
      stream.factor = factor;
      const Encoded want = define(spec, stream, 0, 32);
      Encoded got{std::vector<uint8_t>(want.weight.size()), std::vector<uint8_t>(want.scale.size())};
      encode_rows(spec, stream, 0, 32, got.weight.data(), got.scale.data());
      EXPECT_EQ(got, want) << dtype_tag(dtype) << " factor " << factor;
    }
  }
}

}  // namespace
}  // namespace deepinfer
