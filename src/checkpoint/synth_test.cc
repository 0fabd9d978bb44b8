// The synthesiser's files: bytes that depend on nothing but configuration and seed, shards, the output
// directory, the tokenizer.
#include "checkpoint/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include <nlohmann/json.hpp>

#include "checkpoint/digest.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/test_directory.h"
#include "checkpoint/weights.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

ModelConfig t0() {
  return builtin_config("t0").value();
}

SynthOptions with_threads(int threads, uint64_t seed = 0) {
  SynthOptions o;
  o.threads = threads;
  o.seed = seed;
  return o;
}

TEST(SynthFiles, ThreadsNeverChangeTheBytes) {
  TempDir dir;
  ASSERT_TRUE(synthesise(t0(), dir / "one", with_threads(1)).ok());
  ASSERT_TRUE(synthesise(t0(), dir / "five", with_threads(5)).ok());
  ASSERT_TRUE(synthesise(t0(), dir / "seed", with_threads(2, 9)).ok());
  std::set<std::string> names;
  for (const auto& e : fs::directory_iterator(dir / "one")) names.insert(e.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "engram_token_map.i32", "generation_config.json",
                                          "model.safetensors", "tokenizer.json"}));
  for (const std::string& name : names) {
    EXPECT_EQ(read_bytes(dir / ("one/" + name)), read_bytes(dir / ("five/" + name))) << name;
  }
  EXPECT_NE(read_bytes(dir / "one/model.safetensors"), read_bytes(dir / "seed/model.safetensors"));
  EXPECT_EQ(read_bytes(dir / "one/config.json"), read_bytes(dir / "seed/config.json"));
}

TEST(SynthFiles, ShardsHoldTheSameTensors) {
  TempDir dir;
  SynthOptions small;
  small.shard_bytes = 100'000;  // below one layer: shards split inside layers too
  SynthReport report;
  ASSERT_TRUE(synthesise(t0(), dir / "shards", small, &report).ok());
  const std::string one = make_checkpoint(dir, "t0");
  std::map<std::string, std::string> expected;
  for (const LooseTensor& t : take_apart(one + "/model.safetensors")) expected[t.entry.name] = t.data;
  const std::string text = read_bytes(dir / "shards/model.safetensors.index.json");
  const auto index = parse_shard_index(as_bytes(text), "index");
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ(index->total_size, static_cast<uint64_t>(report.payload_bytes));
  EXPECT_EQ(static_cast<int64_t>(index->weight_map.size()), report.tensors);
  EXPECT_EQ(static_cast<int64_t>(index->files.size()), report.files);
  EXPECT_GT(report.files, 13);
  for (const std::string& file : index->files) {
    const LooseTensors tensors = take_apart(dir / ("shards/" + file));
    size_t bytes = 0;
    for (const LooseTensor& t : tensors) {
      EXPECT_EQ(index->weight_map.at(t.entry.name), file);
      EXPECT_EQ(t.data, expected.at(t.entry.name)) << t.entry.name;
      expected.erase(t.entry.name);
      bytes += t.data.size();
    }
    EXPECT_TRUE(bytes <= 100'000 || tensors.size() <= 2) << file << " " << bytes;
  }
  EXPECT_TRUE(expected.empty());
  EXPECT_TRUE(load_checkpoint(dir / "shards", {true}).ok());
}

TEST(SynthFiles, EveryElementIsAligned) {
  TempDir dir;
  const std::string bytes = read_bytes(make_checkpoint(dir, "t1") + "/model.safetensors");
  const auto header = parse_safetensors_header(as_bytes(bytes), "f");
  ASSERT_TRUE(header.ok());
  for (const TensorEntry& e : header->tensors) {
    const auto size = static_cast<uint64_t>(dtype_tag_bits(e.dtype)) / 8;
    EXPECT_EQ((header->data_offset + e.begin) % size, 0u) << e.name;
  }
}

TEST(SynthFiles, ModelsWithVisionAndOddShapes) {
  ModelConfig c = t0();
  c.vision.num_hidden_layers = 1;
  c.vision.hidden_size = 32;
  c.vision.num_attention_heads = 2;
  c.vision.intermediate_size = 48;
  c.q_lora_rank = 96;
  c.o_lora_rank = 48;
  c.moe_intermediate_size = 160;
  c.index_n_heads = 3;
  ASSERT_TRUE(validate(c).ok()) << validate(c).to_string();
  TempDir dir;
  ASSERT_TRUE(synthesise(c, dir / "v", {}).ok());
  const auto r = load_checkpoint(dir / "v", {true});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->image_start.rows, 1);
  EXPECT_EQ(r->image_start.cols, 128);
  EXPECT_EQ(r->layers[0].wq_a.rows, 96);
}

TEST(SynthFiles, ProgressReachesTheEndAndStopLeavesNothing) {
  TempDir dir;
  SynthOptions o;
  int64_t last = -1, total = 0;
  o.progress = [&](int64_t done, int64_t all) {
    EXPECT_GE(done, last);
    last = done, total = all;
  };
  ASSERT_TRUE(synthesise(t0(), dir / "a", o).ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, tensor_totals(t0()).bytes);
  std::atomic<int> asked{0};
  SynthOptions stopped;
  stopped.stop = [&] { return ++asked > 20; };
  const Status s = synthesise(t0(), dir / "b", stopped);
  EXPECT_EQ(s.code(), Code::kCancelled);
  EXPECT_FALSE(fs::exists(dir / "b"));
  EXPECT_FALSE(fs::exists(dir / "b.partial"));
}

TEST(OutputDirectory, NeverReplacesWhatIsNoCheckpoint) {
  TempDir dir;
  SynthOptions force;
  force.force = true;
  // Full directory, no --force.
  const std::string c = make_checkpoint(dir, "t0");
  const std::string before = read_bytes(c + "/model.safetensors");
  Status s = synthesise(t0(), c, {});
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_THAT(s.message(), HasSubstr("--force"));
  EXPECT_EQ(read_bytes(c + "/model.safetensors"), before);
  // With --force it is exchanged.
  SynthOptions other = force;
  other.seed = 3;
  ASSERT_TRUE(synthesise(t0(), c, other).ok());
  EXPECT_NE(read_bytes(c + "/model.safetensors"), before);
  EXPECT_FALSE(fs::exists(c + ".partial"));
  // A foreign file protects the directory.
  write_bytes(c + "/thesis.txt", "years of work");
  s = synthesise(t0(), c, force);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_THAT(s.message(), HasSubstr("thesis.txt"));
  EXPECT_EQ(read_bytes(c + "/thesis.txt"), "years of work");
  // A file in the way, the root, and an empty directory, which is fine.
  write_bytes(dir / "file", "x");
  EXPECT_EQ(synthesise(t0(), dir / "file", force).code(), Code::kInvalidArgument);
  EXPECT_EQ(synthesise(t0(), "/", force).code(), Code::kInvalidArgument);
  fs::create_directory(dir / "empty");
  EXPECT_TRUE(synthesise(t0(), dir / "empty/", {}).ok());
  EXPECT_TRUE(load_checkpoint(dir / "empty").ok());
}

TEST(OutputDirectory, CleansUpAfterAnInterruptedRunButNothingElse) {
  TempDir dir;
  fs::create_directory(dir / "m.partial");
  write_bytes(dir / "m.partial/model.safetensors", "half");
  EXPECT_TRUE(synthesise(t0(), dir / "m", {}).ok());
  EXPECT_FALSE(fs::exists(dir / "m.partial"));
  fs::create_directory(dir / "n.partial");
  write_bytes(dir / "n.partial/notes", "mine");
  const Status s = synthesise(t0(), dir / "n", {});
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(read_bytes(dir / "n.partial/notes"), "mine");
}

TEST(OutputDirectory, LooksAtTheDiskFirst) {
  TempDir dir;
  const auto r = OutputDirectory::create(dir / "x", false, int64_t{1} << 60);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kResourceExhausted);
  EXPECT_FALSE(fs::exists(dir / "x.partial"));
}

TEST(OutputDirectory, KnowsItsFiles) {
  for (const char* yes :
       {"config.json", "model.safetensors", "model-00001-of-00048.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(is_checkpoint_file(yes)) << yes;
  }
  for (const char* no : {"", "model", "model-0001-of-00048.safetensors", "model-0000x-of-00048.safetensors",
                         "README.md", ".git"}) {
    EXPECT_FALSE(is_checkpoint_file(no)) << no;
  }
}

TEST(Digest, IsTheSumOfItsPiecesAndSeesEveryChange) {
  std::string data(1003, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i);
  const auto* p = reinterpret_cast<const uint8_t*>(data.data());
  const uint64_t whole = piece_digest(p, data.size(), 0);
  EXPECT_EQ(whole,
            piece_digest(p + 512, 491, 512) + piece_digest(p, 256, 0) + piece_digest(p + 256, 256, 256));
  for (size_t i = 0; i < data.size(); ++i) {
    std::string other = data;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_NE(piece_digest(as_bytes(other).data(), other.size(), 0), whole);
  }
  std::string swapped = data.substr(8, 8) + data.substr(0, 8) + data.substr(16);
  EXPECT_NE(piece_digest(as_bytes(swapped).data(), swapped.size(), 0), whole);
  EXPECT_NE(piece_digest(p, 0, 0), piece_digest(reinterpret_cast<const uint8_t*>("\0\0\0\0\0\0\0\0"), 8, 0));
}

using json = nlohmann::json;

json tokenizer_of(int vocab_size, int image_id) {
  ModelConfig c = t0();
  c.vocab_size = vocab_size;
  c.image_token_id = image_id;
  return json::parse(synthetic_tokenizer_json(c));
}

// Every id of the vocabulary once, from the model's vocabulary or the added tokens.
std::map<int, std::string> ids_of(const json& tokenizer) {
  std::map<int, std::string> ids;
  for (const auto& [text, id] : tokenizer["model"]["vocab"].items())
    EXPECT_TRUE(ids.emplace(id, text).second) << id;
  for (const json& t : tokenizer["added_tokens"]) {
    const int id = t["id"];
    const auto [at, fresh] = ids.emplace(id, t["content"]);
    if (!fresh) {
      EXPECT_EQ(at->second, t["content"]) << id;
    }
  }
  return ids;
}

TEST(SynthTokenizer, HasEveryIdOnce) {
  for (int vocab : {3, 50, 97, 256, 259, 260, 264, 512, 1024, 4096, 129280}) {
    const std::map<int, std::string> ids = ids_of(tokenizer_of(vocab, vocab - 3));
    EXPECT_EQ(static_cast<int>(ids.size()), vocab);
    EXPECT_EQ(ids.begin()->first, 0);
    EXPECT_EQ(ids.rbegin()->first, vocab - 1);
    std::set<std::string> texts;
    for (const auto& [id, text] : ids) EXPECT_TRUE(texts.insert(text).second) << text;
  }
}

TEST(SynthTokenizer, BytesHaveTheFamilysIds) {
  const json t = tokenizer_of(512, 501);
  const json& vocab = t["model"]["vocab"];
  EXPECT_EQ(vocab["!"], 3);
  EXPECT_EQ(vocab["A"], 35);
  EXPECT_EQ(vocab["a"], 67);
  EXPECT_EQ(vocab["~"], 96);
  EXPECT_EQ(vocab["Ġ"], 223);       // space
  EXPECT_EQ(vocab["Ċ"], 201);       // LF
  EXPECT_EQ(vocab["\u0109"], 200);  // TAB
  EXPECT_EQ(vocab["\u0121"], 224);  // 0x7F
  EXPECT_EQ(vocab["\u00a1"], 97);
  EXPECT_EQ(vocab["\u00ae"], 109);
  EXPECT_EQ(vocab["\u0143"], 258);  // 0xAD
  std::map<int, std::string> ids = ids_of(t);
  EXPECT_EQ(ids[0], "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(ids[259], "<｜User｜>");
  EXPECT_EQ(ids[260], "<｜Assistant｜>");
  EXPECT_EQ(ids[501], "<｜image｜>");
  EXPECT_EQ(ids[511], "<｜place▁holder▁no▁511｜>");
}

TEST(SynthTokenizer, TheReleasedVocabularyHasTheReleasedControlIds) {
  std::map<int, std::string> ids = ids_of(tokenizer_of(129280, 129264));
  EXPECT_EQ(ids[128799], "<｜System｜>");
  EXPECT_EQ(ids[128803], "<｜User｜>");
  EXPECT_EQ(ids[128804], "<｜Assistant｜>");
  EXPECT_EQ(ids[128821], "<think>");
  EXPECT_EQ(ids[128822], "</think>");
  EXPECT_EQ(ids[128825], "｜DSML｜");
  EXPECT_EQ(ids[129264], "<｜image｜>");
}

TEST(SynthTokenizer, SmallVocabulariesDropTheLeastUsefulBytes) {
  // 256 ids: all of ASCII and all but the last three bytes of the family's order, ids unchanged.
  const json t = tokenizer_of(256, 252)["model"]["vocab"];
  EXPECT_EQ(t["a"], 67);
  EXPECT_EQ(t["Ġ"], 223);
  EXPECT_EQ(t.size(), 256u);
  for (const char* dropped : {"\u0141", "\u0142", "\u0143"}) EXPECT_FALSE(t.contains(dropped)) << dropped;
  // 101 ids: visible ASCII, then space, LF, TAB, CR.
  const json small = tokenizer_of(101, -1)["model"]["vocab"];
  EXPECT_TRUE(small.contains("~"));
  EXPECT_TRUE(small.contains("Ġ"));
  EXPECT_TRUE(small.contains("č"));
  EXPECT_FALSE(small.contains("\u00a1"));
}

}  // namespace
}  // namespace deepinfer
