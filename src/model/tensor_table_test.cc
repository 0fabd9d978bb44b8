// The released table to the last byte (model specification 9.4 and 12.1), and its shape for small
// configurations.
#include "model/tensor_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace deepinfer {
namespace {

ModelConfig builtin(const char* name) {
  return builtin_config(name).value();
}

int64_t count_of(const TensorTotals& t, TensorClass c) {
  return t.class_count[static_cast<size_t>(c)];
}
int64_t bytes_of(const TensorTotals& t, TensorClass c) {
  return t.class_bytes[static_cast<size_t>(c)];
}
int64_t bytes_of(const TensorTotals& t, DType d) {
  return t.dtype_bytes_[static_cast<size_t>(d)];
}

TEST(TensorTableGolden, ReleasedTotals) {
  const TensorTotals t = tensor_totals(builtin("v41-flash"));
  EXPECT_EQ(t.count, 96085);
  EXPECT_EQ(t.bytes, 510286023000);
}

TEST(TensorTableGolden, ReleasedClasses) {
  const TensorTotals t = tensor_totals(builtin("v41-flash"));
  EXPECT_EQ(count_of(t, TensorClass::kRoutedExpert), 92160);
  EXPECT_EQ(bytes_of(t, TensorClass::kRoutedExpert), 288777830400);
  EXPECT_EQ(count_of(t, TensorClass::kEngramTable), 4);
  EXPECT_EQ(bytes_of(t, TensorClass::kEngramTable), 202758032400);
  EXPECT_EQ(count_of(t, TensorClass::kDraftExpert), 2304);
  EXPECT_EQ(bytes_of(t, TensorClass::kDraftExpert), 7219445760);
  EXPECT_EQ(count_of(t, TensorClass::kDraft), 97);
  EXPECT_EQ(bytes_of(t, TensorClass::kDraft), 713428872);
  EXPECT_EQ(count_of(t, TensorClass::kVision), 266);
  EXPECT_EQ(bytes_of(t, TensorClass::kVision), 970536960);
  // What the published table leaves as the rest.
  EXPECT_EQ(count_of(t, TensorClass::kBackbone), 96085 - 92160 - 4 - 2304 - 97 - 266);
  EXPECT_EQ(bytes_of(t, TensorClass::kBackbone),
            510286023000 - 288777830400 - 202758032400 - 7219445760 - 713428872 - 970536960);
}

TEST(TensorTableGolden, ReleasedTypes) {
  const TensorTotals t = tensor_totals(builtin("v41-flash"));
  EXPECT_EQ(bytes_of(t, DType::kI8), 278585671680);
  EXPECT_EQ(bytes_of(t, DType::kF8E4M3), 204015223296);
  EXPECT_EQ(bytes_of(t, DType::kF8E8M0), 23563015184);
  EXPECT_EQ(bytes_of(t, DType::kBF16), 3952883712);
  EXPECT_EQ(bytes_of(t, DType::kF32), 169229128);
}

TEST(TensorTableGolden, ReleasedLayerZeroAndPairs) {
  int64_t tensors = 0, bytes = 0;
  std::map<DType, int> quantised;
  int engram_pairs = 0;
  for_each_tensor(builtin("v41-flash"), [&](const TensorSpec& t) {
    if (t.layer == 0) {
      ++tensors;
      bytes += t.bytes();
    }
    if (t.role == Role::kEngramTable)
      ++engram_pairs;
    else if (t.dtype == DType::kI8 || t.dtype == DType::kF8E4M3)
      ++quantised[t.dtype];
  });
  EXPECT_EQ(tensors, 2334);
  EXPECT_EQ(bytes, 7389500888);
  EXPECT_EQ(quantised[DType::kI8], 47232);
  EXPECT_EQ(quantised[DType::kF8E4M3], 355);
  EXPECT_EQ(engram_pairs, 2);
}

// One line per shape rule of the tables 9.1 to 9.3, as printed there.
TEST(TensorTableGolden, ReleasedShapes) {
  std::map<std::string, TensorSpec> table;
  for_each_tensor(builtin("v41-flash"), [&](const TensorSpec& t) {
    if (t.name.find("experts.1") == std::string::npos) table.emplace(t.name, t);
  });
  struct Want {
    const char* name;
    DType dtype;
    std::vector<int64_t> shape;
  };
  const Want wants[] = {
      {"embed.weight", DType::kBF16, {129280, 5120}},
      {"image_start", DType::kBF16, {5120}},
      {"vision.patch_embed.proj.weight", DType::kBF16, {1024, 588}},
      {"vision.blocks.31.attn.wqkv.weight", DType::kBF16, {3072, 1024}},
      {"vision.blocks.0.mlp.w1.weight", DType::kBF16, {5632, 1024}},
      {"vision.blocks.0.mlp.w2.weight", DType::kBF16, {1024, 2816}},
      {"aligner.w1.weight", DType::kBF16, {5120, 9216}},
      {"aligner.w2.bias", DType::kBF16, {5120}},
      {"layers.0.hc_attn_fn", DType::kF32, {24, 20480}},
      {"layers.39.hc_ffn_scale", DType::kF32, {3}},
      {"layers.0.attn.wq_a.scale", DType::kF8E8M0, {40, 160}},
      {"layers.0.attn.wq_b.weight", DType::kF8E4M3, {32768, 1280}},
      {"layers.0.attn.wo_a.weight", DType::kF8E4M3, {8192, 4096}},
      {"layers.0.attn.wo_a.scale", DType::kF8E8M0, {256, 128}},
      {"layers.0.attn.attn_sink", DType::kF32, {64}},
      {"layers.0.ffn.gate.bias_vl", DType::kF32, {384}},
      {"layers.0.ffn.experts.0.w1.weight", DType::kI8, {2304, 2560}},
      {"layers.0.ffn.experts.0.w2.weight", DType::kI8, {5120, 1152}},
      {"layers.0.ffn.experts.0.w2.scale", DType::kF8E8M0, {5120, 72}},
      {"layers.0.ffn.shared_experts.w2.scale", DType::kF8E8M0, {160, 72}},
      {"layers.2.attn.compressor.wgate.weight", DType::kBF16, {512, 5120}},
      {"layers.20.attn.compressor.wkv.weight", DType::kBF16, {512, 5120}},
      {"layers.20.attn.indexer.k_norm.weight", DType::kBF16, {128}},
      {"layers.36.attn.indexer.wq_b.weight", DType::kF8E4M3, {4096, 1280}},
      {"layers.36.attn.indexer.weights_proj.weight", DType::kBF16, {32, 5120}},
      {"layers.14.engram.embed.weight", DType::kF8E4M3, {384016682, 256}},
      {"layers.1.engram.embed.scale", DType::kF8E8M0, {384006168, 8}},
      {"layers.1.engram.wkv.scale", DType::kF8E8M0, {800, 192}},
      {"layers.1.engram.q_weight", DType::kBF16, {4, 5120}},
      {"mtp.0.main_proj.weight", DType::kF8E4M3, {5120, 15360}},
      {"mtp.0.main_proj.scale", DType::kF8E8M0, {160, 480}},
      {"mtp.0.main_norm.weight", DType::kBF16, {5120}},
      {"mtp.1.ffn.gate.weight", DType::kBF16, {128, 5120}},
      {"mtp.2.norm.weight", DType::kBF16, {5120}},
      {"mtp.2.markov_head.embed.weight", DType::kBF16, {129280, 256}},
      {"mtp.2.confidence_head.proj.weight", DType::kBF16, {1, 5376}},
  };
  for (const Want& w : wants) {
    const auto at = table.find(w.name);
    ASSERT_NE(at, table.end()) << w.name;
    EXPECT_EQ(at->second.dtype, w.dtype) << w.name;
    EXPECT_EQ(at->second.shape, w.shape) << w.name;
  }
  for (const char* name :
       {"layers.20.attn.compressor.wgate.weight", "layers.24.attn.indexer.wk.weight", "mtp.1.norm.weight",
        "mtp.1.main_proj.weight", "layers.3.attn.indexer.wq_b.weight", "layers.0.engram.wkv.weight"}) {
    EXPECT_FALSE(table.contains(name)) << name;
  }
}

class TinyTable : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyTable, HasUniqueNamesAndAScaleAfterEveryQuantisedWeight) {
  const std::vector<TensorSpec> table = tensor_table(builtin(GetParam()));
  std::set<std::string> names;
  for (size_t i = 0; i < table.size(); ++i) {
    const TensorSpec& t = table[i];
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_NE(t.cls, TensorClass::kVision) << t.name;
    EXPECT_GT(t.elements(), 0) << t.name;
    if (t.dtype != DType::kI8 && t.dtype != DType::kF8E4M3) continue;
    ASSERT_LT(i + 1, table.size());
    EXPECT_EQ(table[i + 1].name, t.name.substr(0, t.name.size() - 6) + "scale");
    EXPECT_EQ(table[i + 1].role, Role::kScale);
    EXPECT_EQ(table[i + 1].layer, t.layer);
    EXPECT_EQ(table[i + 1].cls, t.cls);
  }
}

TEST_P(TinyTable, TotalsAreTheSumOfTheTable) {
  const ModelConfig config = builtin(GetParam());
  const TensorTotals totals = tensor_totals(config);
  int64_t count = 0, bytes = 0;
  for (const TensorSpec& t : tensor_table(config)) {
    ++count;
    bytes += t.bytes();
  }
  EXPECT_EQ(totals.count, count);
  EXPECT_EQ(totals.bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyTable, ::testing::Values("t0", "t1", "t2"));

TEST(TensorTable, AModelWithoutDraftOrEngramHasNoTensorsOfThem) {
  ModelConfig c = builtin("t0");
  c.num_nextn_predict_layers = 0;
  c.compress_ratios.resize(8);
  c.engram_layer_ids.clear();
  c.engram_num_embeddings.clear();
  ASSERT_TRUE(validate(c).ok()) << validate(c).to_string();
  for_each_tensor(c, [](const TensorSpec& t) {
    EXPECT_EQ(t.name.find("mtp."), std::string::npos) << t.name;
    EXPECT_EQ(t.name.find("engram"), std::string::npos) << t.name;
  });
}

}  // namespace
}  // namespace deepinfer
