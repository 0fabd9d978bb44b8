// Loading: the round trip from synth, and every way in which a directory can be wrong gives one message that
// names what differs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/check.h"
#include "checkpoint/resident.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/test_directory.h"
#include "checkpoint/token_map.h"
#include "checkpoint/weights.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

// Decoded element of a stored matrix.
double decode(const MatrixView& m, int64_t r, int64_t c) {
  const auto* bytes = static_cast<const uint8_t*>(m.data);
  const int64_t i = r * m.cols + c, blocks = (m.cols + 31) / 32;
  switch (m.format) {
    case WeightFormat::kF64:
      return static_cast<const double*>(m.data)[i];
    case WeightFormat::kF32:
      return static_cast<const float*>(m.data)[i];
    case WeightFormat::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(m.data)[i]);
    case WeightFormat::kFp8Tile32:
      return e4m3_to_f32(bytes[i]) * e8m0_to_f32(m.scales[r / 32 * blocks + c / 32]);
    case WeightFormat::kFp8Row32:
      return e4m3_to_f32(bytes[i]) * e8m0_to_f32(m.scales[r * blocks + c / 32]);
    case WeightFormat::kMxfp4:
      return kE2m1[bytes[i / 2] >> (i % 2 * 4) & 15] * e8m0_to_f32(m.scales[r * blocks + c / 32]);
  }
  return NAN;
}

// Half a step of the format around the exact value, given the block's scale (plus the rounding to fp32 that
// comes first).
double tolerance(const MatrixView& m, int64_t r, int64_t c, double exact) {
  const int64_t blocks = (m.cols + 31) / 32;
  const double a = std::fabs(exact), fp32 = a * 0x1p-24;
  switch (m.format) {
    case WeightFormat::kF64:
      return 0;
    case WeightFormat::kF32:
      return fp32;
    case WeightFormat::kBF16:
      return a * 0x1p-8 + fp32;
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp8Row32: {
      const int64_t row = m.format == WeightFormat::kFp8Tile32 ? r / 32 : r;
      const double scale = e8m0_to_f32(m.scales[row * blocks + c / 32]);
      return std::max(a * 0x1p-4, scale * 0x1p-10) + fp32;
    }
    case WeightFormat::kMxfp4: {
      const double scale = e8m0_to_f32(m.scales[r * blocks + c / 32]);
      return scale * (a <= 2 * scale ? 0.25 : a <= 4 * scale ? 0.5 : 1.0) + fp32;
    }
  }
  return 0;
}

int64_t compare(const MatrixView& got, const MatrixView& want, const std::string& name) {
  EXPECT_EQ(got.rows, want.rows) << name;
  EXPECT_EQ(got.cols, want.cols) << name;
  EXPECT_EQ(want.format, WeightFormat::kF64) << name;
  const int64_t step = got.rows * got.cols > 200000 ? 7 : 1;  // every seventh element of the large ones
  for (int64_t i = 0; i < got.rows * got.cols; i += step) {
    const int64_t r = i / got.cols, c = i % got.cols;
    const double exact = decode(want, r, c), stored = decode(got, r, c);
    if (!(std::fabs(stored - exact) <= tolerance(got, r, c, exact))) {
      ADD_FAILURE() << name << "[" << r << "][" << c << "]: stored " << stored << ", exact " << exact;
      return 1;
    }
  }
  return 0;
}

void compare(const SmallTensor& got, const SmallTensor& want, double relative, const std::string& name) {
  ASSERT_EQ(got.f64.size(), want.f64.size()) << name;
  ASSERT_EQ(got.f32.size(), want.f32.size()) << name;
  for (size_t i = 0; i < got.f64.size(); ++i) {
    EXPECT_EQ(got.f64[i], static_cast<double>(got.f32[i])) << name;
    EXPECT_LE(std::fabs(got.f64[i] - want.f64[i]), std::fabs(want.f64[i]) * relative)
        << name << "[" << i << "]";
  }
}

constexpr double kBf16 = 0x1p-8 + 0x1p-24, kFp32 = 0x1p-24;

void compare_experts(const ExpertWeights& a, const ExpertWeights& b, WeightFormat format,
                     const std::string& name) {
  EXPECT_EQ(a.w1.format, format) << name;
  EXPECT_EQ(a.w2.format, format) << name;
  EXPECT_EQ(a.w3.format, format) << name;
  compare(a.w1, b.w1, name + "w1");
  compare(a.w2, b.w2, name + "w2");
  compare(a.w3, b.w3, name + "w3");
}

void compare_blocks(const BlockWeights& a, const BlockWeights& b, const std::string& p) {
  compare(a.attn_norm, b.attn_norm, kBf16, p + "attn_norm");
  compare(a.ffn_norm, b.ffn_norm, kBf16, p + "ffn_norm");
  compare(a.hc_attn.fn, b.hc_attn.fn, p + "hc_attn_fn");
  compare(a.hc_ffn.base, b.hc_ffn.base, kFp32, p + "hc_ffn_base");
  compare(a.hc_ffn.scale, b.hc_ffn.scale, kFp32, p + "hc_ffn_scale");
  compare(a.wq_a, b.wq_a, p + "wq_a");
  compare(a.wq_b, b.wq_b, p + "wq_b");
  compare(a.wkv, b.wkv, p + "wkv");
  compare(a.wo_a, b.wo_a, p + "wo_a");
  compare(a.wo_b, b.wo_b, p + "wo_b");
  compare(a.q_norm, b.q_norm, kBf16, p + "q_norm");
  compare(a.kv_norm, b.kv_norm, kBf16, p + "kv_norm");
  compare(a.attn_sink, b.attn_sink, kFp32, p + "attn_sink");
  compare(a.gate, b.gate, p + "gate");
  compare(a.gate_bias, b.gate_bias, kFp32, p + "gate.bias");
  compare(a.gate_bias_vl, b.gate_bias_vl, kFp32, p + "gate.bias_vl");
  ASSERT_EQ(a.experts.size(), b.experts.size()) << p;
  for (size_t e = 0; e < a.experts.size(); ++e) {
    compare_experts(a.experts[e], b.experts[e], WeightFormat::kMxfp4,
                    p + "experts." + std::to_string(e) + ".");
  }
  compare_experts(a.shared, b.shared, WeightFormat::kFp8Tile32, p + "shared.");
  ASSERT_EQ(a.compressor != nullptr, b.compressor != nullptr) << p;
  ASSERT_EQ(a.indexer != nullptr, b.indexer != nullptr) << p;
  ASSERT_EQ(a.engram != nullptr, b.engram != nullptr) << p;
  if (a.compressor) {
    compare(a.compressor->wkv, b.compressor->wkv, p + "compressor.wkv");
    ASSERT_EQ(a.compressor->wgate.empty(), b.compressor->wgate.empty()) << p;
    if (!a.compressor->wgate.empty())
      compare(a.compressor->wgate, b.compressor->wgate, p + "compressor.wgate");
    compare(a.compressor->norm, b.compressor->norm, kBf16, p + "compressor.norm");
    compare(a.compressor->wk, b.compressor->wk, p + "indexer.wk");
    compare(a.compressor->k_norm, b.compressor->k_norm, kBf16, p + "indexer.k_norm");
  }
  if (a.indexer) {
    compare(a.indexer->wq_b, b.indexer->wq_b, p + "indexer.wq_b");
    compare(a.indexer->weights_proj, b.indexer->weights_proj, p + "indexer.weights_proj");
  }
  if (a.engram) {
    EXPECT_EQ(a.engram->table.format, WeightFormat::kFp8Row32);
    compare(a.engram->table, b.engram->table, p + "engram.embed");
    compare(a.engram->wkv, b.engram->wkv, p + "engram.wkv");
    compare(a.engram->q_weight, b.engram->q_weight, kBf16, p + "engram.q_weight");
    compare(a.engram->k_weight, b.engram->k_weight, kBf16, p + "engram.k_weight");
  }
}

class RoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, StoredWeightsAreTheExactOnesWithinHalfAStep) {
  TempDir dir;
  const auto got = load_checkpoint(make_checkpoint(dir, GetParam()), {.check_values = true});
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  ModelConfig config = builtin_config(GetParam()).value();
  const auto want = exact_synthetic_weights(config);
  ASSERT_TRUE(want.ok());
  config.name = got->config.name;
  EXPECT_EQ(got->config, config);
  EXPECT_EQ(got->token_map, want->token_map);
  compare(got->embed, want->embed, "embed");
  compare(got->head, want->head, "head");
  compare(got->norm, want->norm, kBf16, "norm");
  EXPECT_TRUE(got->image_start.empty());
  ASSERT_EQ(got->layers.size(), want->layers.size());
  ASSERT_EQ(got->mtp.size(), want->mtp.size());
  for (size_t l = 0; l < got->layers.size(); ++l) {
    compare_blocks(got->layers[l], want->layers[l], "layers." + std::to_string(l) + ".");
  }
  for (size_t i = 0; i < got->mtp.size(); ++i)
    compare_blocks(got->mtp[i], want->mtp[i], "mtp." + std::to_string(i) + ".");
  compare(got->draft.main_proj, want->draft.main_proj, "main_proj");
  compare(got->draft.main_norm, want->draft.main_norm, kBf16, "main_norm");
  compare(got->draft.norm, want->draft.norm, kBf16, "mtp norm");
  compare(got->draft.markov_embed, want->draft.markov_embed, "markov_embed");
  compare(got->draft.markov_head, want->draft.markov_head, "markov_head");
  compare(got->draft.confidence, want->draft.confidence, "confidence");
}

// Copied into memory, on any number of memory nodes: the same matrices, and none of them in the mapping.
TEST_P(RoundTrip, CopiedWeightsAreTheSame) {
  TempDir dir;
  const std::string path = make_checkpoint(dir, GetParam());
  const auto mapped = load_checkpoint(path);
  ASSERT_TRUE(mapped.ok());
  for (int nodes : {1, 2, 3}) {
    auto copied = load_checkpoint(path);
    ASSERT_TRUE(copied.ok());
    auto pool = ThreadPool::with_groups(3, nodes);
    const auto report = make_resident(&*copied, pool.get());
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_EQ(report->bytes, resident_bytes(*mapped));
    int matrices = 0;
    const auto same = [&](const MatrixView& a, const MatrixView& b) {
      if (a.empty()) return;
      ++matrices;
      EXPECT_NE(a.data, b.data);
      EXPECT_EQ(a.rows, b.rows);
      int64_t differ = 0;
      for (int64_t r = 0; r < a.rows; ++r)
        for (int64_t col = 0; col < a.cols; ++col) differ += decode(a, r, col) != decode(b, r, col);
      EXPECT_EQ(differ, 0) << "matrix " << matrices;
    };
    for (const bool draft : {false, true}) {
      const auto& from = draft ? mapped->mtp : mapped->layers;
      const auto& to = draft ? copied->mtp : copied->layers;
      for (size_t l = 0; l < from.size(); ++l) {
        const BlockWeights &a = from[l], &b = to[l];
        same(a.hc_attn.fn, b.hc_attn.fn), same(a.hc_ffn.fn, b.hc_ffn.fn), same(a.wq_a, b.wq_a),
            same(a.wq_b, b.wq_b), same(a.wkv, b.wkv), same(a.wo_a, b.wo_a), same(a.wo_b, b.wo_b),
            same(a.gate, b.gate), same(a.shared.w1, b.shared.w1), same(a.shared.w2, b.shared.w2),
            same(a.shared.w3, b.shared.w3);
        for (size_t e = 0; e < a.experts.size(); ++e)
          same(a.experts[e].w1, b.experts[e].w1), same(a.experts[e].w2, b.experts[e].w2),
              same(a.experts[e].w3, b.experts[e].w3);
        if (a.compressor)
          same(a.compressor->wkv, b.compressor->wkv), same(a.compressor->wgate, b.compressor->wgate),
              same(a.compressor->wk, b.compressor->wk);
        if (a.indexer)
          same(a.indexer->wq_b, b.indexer->wq_b), same(a.indexer->weights_proj, b.indexer->weights_proj);
        if (a.engram) same(a.engram->wkv, b.engram->wkv);
      }
    }
    same(mapped->draft.main_proj, copied->draft.main_proj);
    same(mapped->draft.markov_head, copied->draft.markov_head);
    same(mapped->draft.confidence, copied->draft.confidence);
    same(mapped->head, copied->head);
    EXPECT_GT(matrices, 20);
    // Tables stay where they were.
    const auto* embed = static_cast<const uint8_t*>(copied->embed.data);
    bool inside = false;
    for (auto m : copied->mapped) inside = inside || (embed >= m.data() && embed < m.data() + m.size());
    EXPECT_TRUE(inside);
  }
  auto bounded = load_checkpoint(path, {.expert_memory_bytes = 1 << 20});
  ASSERT_TRUE(bounded.ok());
  ThreadPool one(1);
  EXPECT_EQ(make_resident(&*bounded, &one).status().code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Tiny, RoundTrip, ::testing::Values("t0", "t1", "t2"));

// Tests that break a copy of one t0 checkpoint.
class BrokenCheckpoint : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new TempDir;
    good_ = make_checkpoint(*shared_, "t0");
    SynthOptions sharded;
    sharded.shard_bytes = 400'000;
    std::filesystem::create_directory(*shared_ / "s");
    good_sharded_ = *shared_ / "s/t0";
    ASSERT_TRUE(synthesise(builtin_config("t0").value(), good_sharded_, sharded).ok());
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  std::string copy() { return copy_directory(good_, dir_ / "c"); }
  std::string copy_sharded() { return copy_directory(good_sharded_, dir_ / "c"); }

  // The message of the failure to load.
  static std::string load_error(const std::string& dir, Code code = Code::kInvalidData,
                                bool check_values = false) {
    const auto r = load_checkpoint(dir, {check_values});
    EXPECT_FALSE(r.ok());
    if (r.ok()) return {};
    EXPECT_EQ(r.status().code(), code) << r.status().to_string();
    return r.status().message();
  }

  static TempDir* shared_;
  static std::string good_, good_sharded_;
  TempDir dir_;
};
TempDir* BrokenCheckpoint::shared_ = nullptr;
std::string BrokenCheckpoint::good_, BrokenCheckpoint::good_sharded_;

TEST_F(BrokenCheckpoint, TheCopiesThemselvesLoad) {
  EXPECT_TRUE(load_checkpoint(copy(), {true}).ok());
  const auto sharded = load_checkpoint(copy_sharded(), {true});
  ASSERT_TRUE(sharded.ok()) << sharded.status().to_string();
}

TEST_F(BrokenCheckpoint, DirectoryWithoutItsFiles) {
  EXPECT_THAT(load_error(dir_ / "nothing", Code::kNotFound), HasSubstr("config.json: no such file"));
  std::string c = copy();
  std::filesystem::remove(c + "/model.safetensors");
  EXPECT_THAT(load_error(c, Code::kNotFound),
              HasSubstr("has neither model.safetensors.index.json nor model.safetensors"));
  c = copy();
  write_bytes(c + "/config.json", "{\"vocab_size\": 1");
  EXPECT_THAT(load_error(c), HasSubstr("config.json"));
  c = copy();
  write_bytes(c + "/config.json", "{}");
  load_error(c, Code::kInvalidConfig);
  c = copy();
  std::filesystem::remove(c + "/model.safetensors");
  std::filesystem::create_directory(c + "/model.safetensors");
  EXPECT_THAT(load_error(c), HasSubstr("not a regular file"));
}

TEST_F(BrokenCheckpoint, MissingTensor) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* t) {
    std::erase_if(*t, [](auto& x) { return x.entry.name == "layers.2.attn.compressor.wkv.weight"; });
  });
  EXPECT_EQ(load_error(c), c + ": missing tensor layers.2.attn.compressor.wkv.weight (BF16 [64, 128])");
}

TEST_F(BrokenCheckpoint, ManyMissingTensorsAreListedAndCounted) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* t) {
    std::erase_if(*t, [](auto& x) { return x.entry.name.starts_with("layers.5."); });
  });
  const std::string message = load_error(c);
  EXPECT_THAT(message, HasSubstr(": 78 problems:"));
  EXPECT_THAT(message, HasSubstr("missing tensor layers.5.hc_attn_fn (F32 [24, 512])"));
  EXPECT_THAT(message, HasSubstr("and 58 more"));
}

TEST_F(BrokenCheckpoint, UnexpectedTensor) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* t) { t->push_back({{"layers.9.attn_norm.weight", "BF16", {2}}, "abcd"}); });
  EXPECT_EQ(load_error(c),
            c + ": unexpected tensor layers.9.attn_norm.weight in model.safetensors (BF16 [2])");
}

TEST_F(BrokenCheckpoint, WrongShapeAndWrongType) {
  std::string c = copy();
  edit_model(c, [](LooseTensors* t) {
    std::swap(find_tensor(t, "embed.weight").entry.shape[0], find_tensor(t, "embed.weight").entry.shape[1]);
  });
  EXPECT_EQ(load_error(c), c + ": tensor embed.weight in model.safetensors is BF16 [128, 256], the "
                               "configuration needs BF16 [256, 128]");
  c = copy();
  edit_model(c, [](LooseTensors* t) { find_tensor(t, "layers.0.attn.wkv.weight").entry.dtype = "F8_E5M2"; });
  EXPECT_THAT(load_error(c), HasSubstr("layers.0.attn.wkv.weight in model.safetensors is F8_E5M2 [64, 128], "
                                       "the configuration needs F8_E4M3"));
}

TEST_F(BrokenCheckpoint, TheWrongConfigurationForTheWeights) {
  const std::string c = copy();
  TempDir other;
  std::filesystem::copy_file(make_checkpoint(other, "t1") + "/config.json", c + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const std::string message = load_error(c);
  EXPECT_THAT(message, HasSubstr("tensor embed.weight in model.safetensors is BF16 [256, 128], the "
                                 "configuration needs BF16 [512, 256]"));
  EXPECT_LT(std::count(message.begin(), message.end(), '\n'), 25);
}

TEST_F(BrokenCheckpoint, SizeThatDiffersFromTheShape) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* t) { find_tensor(t, "norm.weight").data.resize(250); });
  EXPECT_EQ(load_error(c),
            c + ": model.safetensors: tensor norm.weight has 250 bytes, but BF16 [128] needs 256");
}

TEST_F(BrokenCheckpoint, TruncatedFile) {
  const std::string c = copy();
  const std::string file = c + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const std::string message = load_error(c);
  EXPECT_THAT(
      message,
      HasSubstr("model.safetensors: truncated: tensor layers.3.engram.embed.scale ends at data byte"));
  for (uintmax_t size : {0u, 7u, 8u, 100u, 100000u, 2000000u}) {
    std::filesystem::resize_file(file, size);
    EXPECT_THAT(load_error(c), HasSubstr("model.safetensors: ")) << size;
  }
}

TEST_F(BrokenCheckpoint, OverlapHoleAndTrailingBytes) {
  std::string c = copy();
  // Two tensors of one size at one place: shapes, types and sizes are right, only the offsets are not.
  std::string bytes = read_bytes(c + "/model.safetensors");
  auto header = parse_safetensors_header(as_bytes(bytes), "f");
  ASSERT_TRUE(header.ok());
  const auto offsets = [&](const std::string& name) {
    for (const TensorEntry& e : header->tensors) {
      if (e.name == name) return "[" + std::to_string(e.begin) + "," + std::to_string(e.end) + "]";
    }
    return std::string();
  };
  const std::string first = offsets("layers.0.attn_norm.weight"),
                    second = offsets("layers.1.attn_norm.weight");
  const size_t at = bytes.find(second);
  ASSERT_NE(at, std::string::npos);
  std::string replacement = first;
  bytes.replace(at, second.size(), replacement + std::string(second.size() - first.size(), ' '));
  write_bytes(c + "/model.safetensors", bytes);
  const std::string message = load_error(c);
  EXPECT_THAT(message, HasSubstr("overlaps"));
  EXPECT_THAT(message, HasSubstr("hole of 256 bytes"));
  c = copy();
  write_bytes(c + "/model.safetensors", read_bytes(c + "/model.safetensors") + "x");
  EXPECT_EQ(load_error(c), c + ": model.safetensors: 1 bytes after the last tensor belong to none");
}

TEST_F(BrokenCheckpoint, NumbersThatAreNone) {
  // Small tensors are looked at by every load.
  std::string c = copy();
  edit_model(c, [](LooseTensors* t) {
    const uint16_t nan = 0x7fc1;
    std::memcpy(find_tensor(t, "layers.3.ffn_norm.weight").data.data() + 2 * 7, &nan, 2);
  });
  EXPECT_EQ(load_error(c), c + ": tensor layers.3.ffn_norm.weight in model.safetensors: element 7 is nan");
  // The others by --check.
  struct {
    const char* tensor;
    size_t byte;
    const char* bytes;
    size_t count;
    const char* message;
  } table[] = {
      {"layers.2.attn.wq_b.scale", 5, "\xff", 1, "element 5 is F8_E8M0 0xff"},
      {"layers.2.attn.wq_b.weight", 9, "\x7f", 1, "element 9 is F8_E4M3 0x7f"},
      {"layers.2.attn.wq_b.weight", 4200, "\xff", 1, "element 4200 is F8_E4M3 0xff"},
      {"layers.1.engram.embed.scale", 400, "\xff", 1, "element 400 is F8_E8M0 0xff"},
      {"layers.0.ffn.experts.3.w2.scale", 100, "\xff", 1, "element 100 is F8_E8M0 0xff"},
      {"head.weight", 2 * 300, "\x80\x7f", 2, "element 300 is BF16 0x7f80"},
      {"layers.7.hc_ffn_fn", 4 * 11, "\x00\x00\x80\xff", 4, "element 11 is F32 0xff800000"},
  };
  for (const auto& t : table) {
    c = copy();
    edit_model(c, [&](LooseTensors* all) {
      std::memcpy(find_tensor(all, t.tensor).data.data() + t.byte, t.bytes, t.count);
    });
    EXPECT_TRUE(load_checkpoint(c).ok()) << t.tensor;
    const std::string message = load_error(c, Code::kInvalidData, true);
    EXPECT_THAT(message,
                HasSubstr(std::string("tensor ") + t.tensor + " in model.safetensors: " + t.message));
  }
}

TEST_F(BrokenCheckpoint, CheckFindsEveryFlippedByte) {
  const std::string c = copy(), file = c + "/model.safetensors";
  const std::string good = read_bytes(file);
  const auto header = parse_safetensors_header(as_bytes(good), "f");
  ASSERT_TRUE(header.ok());
  // Half of them all over the file, half in the header.
  for (size_t i = 0; i < 240; ++i) {
    const size_t at = (i % 2 == 0 ? good.size() - 1 : header->data_offset - 1) * i / 239;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << i % 8));
    write_bytes(file, bad);
    const auto r = load_checkpoint(c, {.check_values = true});
    ASSERT_FALSE(r.ok()) << "byte " << at << " of " << good.size();
    EXPECT_THAT(r.status().message(), ::testing::AnyOf(HasSubstr("tensor"), HasSubstr("model.safetensors"),
                                                       HasSubstr("its bytes differ")))
        << "byte " << at;
    if (at < header->data_offset) continue;
    for (const TensorEntry& e : header->tensors) {
      const uint64_t begin = header->data_offset + e.begin, end = header->data_offset + e.end;
      if (at >= begin && at < end) {
        EXPECT_THAT(r.status().message(), HasSubstr(e.name));
      }
    }
  }
  for (const char* name :
       {"config.json", "engram_token_map.i32", "tokenizer.json", "generation_config.json"}) {
    const std::string d = copy();
    std::string bytes = read_bytes(d + "/" + name);
    bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
    write_bytes(d + "/" + name, bytes);
    ProblemList problems;
    const Status opened = check_checkpoint(d, &problems);
    EXPECT_TRUE(!opened.ok() || !problems.empty()) << name;
  }
}

TEST_F(BrokenCheckpoint, Aliases) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* all) {
    for (LooseTensor& t : *all) {
      std::string& n = t.entry.name;
      const auto replace = [&](const std::string& from, const std::string& to) {
        if (const size_t at = n.find(from); at != std::string::npos) n.replace(at, from.size(), to);
      };
      replace(".attn.", ".self_attn.");
      replace(".ffn.", ".mlp.");
      if (n.ends_with(".scale")) replace(".scale", ".weight_scale_inv");
      if (n.ends_with("gate.bias")) replace("gate.bias", "gate.e_score_correction_bias");
      n = "model." + n;
    }
  });
  const auto r = load_checkpoint(c, {true});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  const auto original = load_checkpoint(good_);
  ASSERT_TRUE(original.ok());
  EXPECT_EQ(std::memcmp(r->layers[3].experts[2].w2.scales, original->layers[3].experts[2].w2.scales, 128 * 2),
            0);
  EXPECT_EQ(r->layers[3].gate_bias.f32, original->layers[3].gate_bias.f32);
}

TEST_F(BrokenCheckpoint, ATensorUnderTwoSpellings) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors* all) {
    LooseTensor twice = find_tensor(all, "layers.0.attn.q_norm.weight");
    twice.entry.name = "model.layers.0.self_attn.q_norm.weight";
    all->push_back(twice);
  });
  EXPECT_THAT(
      load_error(c),
      HasSubstr(
          "tensor model.layers.0.self_attn.q_norm.weight of model.safetensors is also in model.safetensors"));
}

TEST_F(BrokenCheckpoint, DataAtOddOffsetsIsCopied) {
  const std::string c = copy();
  edit_model(c, [](LooseTensors*) {}, 1);
  const auto r = load_checkpoint(c, {true});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  const auto original = load_checkpoint(good_);
  ASSERT_TRUE(original.ok());
  for (const auto& [a, b] : {std::pair{r->head, original->head},
                             std::pair{r->layers[0].hc_attn.fn, original->layers[0].hc_attn.fn}}) {
    const int64_t bytes = a.rows * a.cols * (a.format == WeightFormat::kF32 ? 4 : 2);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 4, 0u);
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(bytes)), 0);
  }
  EXPECT_EQ(r->norm.f32, original->norm.f32);
}

TEST_F(BrokenCheckpoint, Shards) {
  const std::string index_name = "/model.safetensors.index.json", norm = "layers.0.attn_norm.weight";
  const std::string text = read_bytes(good_sharded_ + index_name);
  const ShardIndex index = parse_shard_index(as_bytes(text), "index").value();
  ASSERT_GT(index.files.size(), 5u);
  const std::string third = index.files[2], of_norm = index.weight_map.at(norm);
  const std::string other = of_norm == third ? index.files[3] : third;
  const auto with_index = [&](const ShardIndex& changed) {
    const std::string c = copy_sharded();
    write_bytes(c + index_name, make_shard_index(changed));
    return c;
  };
  // A file that is named and absent: one line for the file, not one for each of its tensors.
  std::string c = copy_sharded();
  std::filesystem::remove(c + "/" + third);
  EXPECT_EQ(load_error(c), c + ": " + c + "/" + third + ": no such file");
  // A file with a broken header.
  c = copy_sharded();
  write_bytes(c + "/" + third, "short");
  EXPECT_THAT(load_error(c), HasSubstr(c + ": " + third + ": 5 bytes are too few"));
  // A name that leads out of the directory.
  ShardIndex changed = index;
  changed.weight_map[norm] = "../../model.safetensors";
  EXPECT_THAT(load_error(with_index(changed)), HasSubstr("a path, not a plain file name"));
  // A tensor in another file than the index says.
  changed = index;
  changed.weight_map[norm] = other;
  EXPECT_THAT(load_error(with_index(changed)),
              HasSubstr("says " + norm + " is in " + other + ", which does not have it"));
  // A tensor no line mentions.
  changed = index;
  changed.weight_map.erase(norm);
  EXPECT_THAT(load_error(with_index(changed)), HasSubstr("does not mention " + norm + " of " + of_norm));
  // A wrong total: loading does not care, --check does.
  changed = index;
  changed.total_size = 3528081;
  EXPECT_TRUE(load_checkpoint(with_index(changed)).ok());
  EXPECT_THAT(load_error(with_index(changed), Code::kInvalidData, true),
              HasSubstr("total_size is 3528081, the files hold 3528080"));
}

TEST_F(BrokenCheckpoint, TokenMap) {
  const auto with_map = [&](const std::function<void(std::string*)>& edit) {
    const std::string c = copy();
    std::string bytes = read_bytes(c + "/engram_token_map.i32");
    edit(&bytes);
    write_bytes(c + "/engram_token_map.i32", bytes);
    return c;
  };
  EXPECT_THAT(load_error(with_map([](std::string* b) { b->pop_back(); })),
              HasSubstr("has 1023 bytes, 256 tokens need 1024"));
  EXPECT_THAT(load_error(with_map([](std::string* b) { (*b)[4 * 100] = '\xc8'; })),
              HasSubstr("token 100 has compressed id 200, outside [0, 200)"));
  EXPECT_THAT(load_error(with_map([](std::string* b) { (*b)[4 * 100 + 3] = '\x80'; })),
              HasSubstr("token 100 has compressed id -2147483548, outside"));
  EXPECT_THAT(load_error(with_map([](std::string* b) { (*b)[4 * 2] = '\x05'; })),
              HasSubstr("token 2 has compressed id 5, should be 2"));
  EXPECT_THAT(load_error(with_map([](std::string* b) { (*b)[4 * 100] = '\x05'; })),
              HasSubstr("1 of the 200 compressed ids belong to no token"));
  // Without the file the tiny configurations use the tiny rule; a real vocabulary must have it.
  const std::string c = copy();
  std::filesystem::remove(c + "/engram_token_map.i32");
  const auto r = load_checkpoint(c);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->token_map[255], 4 + 251 % 196);
  ModelConfig real = builtin_config("v41-flash").value();
  ProblemList problems;
  ASSERT_TRUE(read_token_map(c, real, &problems).ok());
  EXPECT_THAT(problems.to_status("x").message(),
              HasSubstr("the Engram layers need the compressed id of each of the 129280 tokens"));
}

// Damage without a plan: no crash, no hang, a message of bounded length; what loads all the same can be read
// to the end.
TEST_F(BrokenCheckpoint, RandomDamageNeverCrashes) {
  const std::string c = copy(), file = c + "/model.safetensors";
  const std::string good = read_bytes(file);
  uint64_t state = 1;
  const auto random = [&](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>(state >> 33) % n;
  };
  int loaded = 0, refused = 0;
  double sum = 0;
  for (int round = 0; round < 150; ++round) {
    std::string bad = good.substr(0, round % 3 == 0 ? random(good.size()) : good.size());
    const size_t range =
        round % 2 == 0 ? std::min<size_t>(bad.size(), 100000) : bad.size();  // often in the header
    for (int k = 0; k < 4 && range > 0; ++k) bad[random(range)] = static_cast<char>(random(256));
    write_bytes(file, bad);
    const auto r = load_checkpoint(c);
    if (!r.ok()) {
      ++refused;
      EXPECT_LT(r.status().message().size(), 20000u);
      continue;
    }
    ++loaded;
    for (int64_t i = 0; i < r->embed.rows; ++i) sum += decode(r->embed, i, r->embed.cols - 1);
    for (const BlockWeights& b : r->layers) {
      sum += decode(b.wo_b, b.wo_b.rows - 1, b.wo_b.cols - 1) + decode(b.experts[7].w2, 0, 0);
      if (b.engram) sum += decode(b.engram->table, b.engram->table.rows - 1, b.engram->table.cols - 1);
    }
  }
  // Both kinds of outcome were exercised.
  EXPECT_GT(loaded, 5) << sum;
  EXPECT_GT(refused, 50) << sum;
}

}  // namespace
}  // namespace deepinfer
