// Suite folders and user files: what is read, and that every broken line is an error that says where it is.
#include "apps/eval_suites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/chat_prompt.h"
#include "checkpoint/test_directory.h"

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Folder {
  Folder() {
    config = builtin_config("t0").value();
    config.max_position_embeddings = 64;
    put("index.json", R"({"suites": {"copy": {"items": 2}, "far": {}}, "texts": {"prose": {}}})");
    put("hay.json", "[10, 11, 12, 13, 14]");
    put("copy.jsonl",
        "{\"prompt\": [0, 5], \"expect\": [5, 1]}\n\n{\"prompt\": [0, 6], \"expect\": [6, 1]}\n");
    put("far.jsonl", "{\"prompt\": [0, [1, 3], 9, [4, 1]], \"expect\": [7, 1]}\n");
    put("prose.jsonl", "{\"tokens\": [0, 3, 4, 5]}\n");
  }
  void put(const std::string& name, const std::string& bytes) const { write_bytes(dir / name, bytes); }
  Result<SuiteIndex> index() const { return read_suite_index(dir.path(), config.vocab_size); }
  // The error of reading suite `far` with this line after a good one.
  std::string far_error(const std::string& line) const {
    put("far.jsonl", "{\"prompt\": [0], \"expect\": [1]}\n" + line + "\n");
    auto suite = read_suite(index().value(), "far", config, 0);
    return suite.ok() ? "no error" : suite.status().to_string();
  }
  TempDir dir;
  ModelConfig config;
};

TEST(EvalSuites, ReadsItemsTextsAndSlices) {
  const Folder f;
  const SuiteIndex index = f.index().value();
  EXPECT_THAT(index.suites, ElementsAre("copy", "far"));
  EXPECT_THAT(index.texts, ElementsAre("prose"));
  const EvalSuite copy = read_suite(index, "copy", f.config, 0).value();
  ASSERT_EQ(copy.items.size(), 2u);
  EXPECT_THAT(copy.items[1].prompt, ElementsAre(0, 6));
  EXPECT_THAT(copy.items[1].expect, ElementsAre(6, 1));
  EXPECT_EQ(read_suite(index, "copy", f.config, 1)->items.size(), 1u);
  const EvalSuite far = read_suite(index, "far", f.config, 0).value();
  EXPECT_THAT(far.items[0].prompt, ElementsAre(0, 11, 12, 13, 9, 14));
  EXPECT_THAT(read_text(index, "prose", f.config)->documents[0], ElementsAre(0, 3, 4, 5));
}

TEST(EvalSuites, MissingFilesAreNamed) {
  const Folder f;
  EXPECT_THAT(read_suite_index(f.dir / "nowhere", 256).status().to_string(), HasSubstr("nowhere/index.json"));
  const SuiteIndex index = f.index().value();
  EXPECT_THAT(read_suite(index, "other", f.config, 0).status().to_string(),
              HasSubstr("no suite \"other\"; it has copy, far"));
  std::filesystem::remove(f.dir / "copy.jsonl");
  const Status gone = read_suite(index, "copy", f.config, 0).status();
  EXPECT_EQ(gone.code(), Code::kNotFound);
  EXPECT_THAT(gone.to_string(), HasSubstr("copy.jsonl"));
}

TEST(EvalSuites, BrokenLinesNameFileAndLine) {
  const Folder f;
  for (const char* line : {"{", "[1]", "{\"prompt\": [0]}", "{\"prompt\": [], \"expect\": [1]}",
                           "{\"prompt\": [0.5], \"expect\": [1]}", "{\"prompt\": [\"a\"], \"expect\": [1]}",
                           "{\"prompt\": [[0]], \"expect\": [1]}", "{\"prompt\": [[-1, 2]], \"expect\": [1]}",
                           "{\"prompt\": [0], \"expect\": [[0, 1]]}"}) {
    EXPECT_THAT(f.far_error(line), HasSubstr("far.jsonl:2: ")) << line;
  }
  EXPECT_THAT(f.far_error("{\"prompt\": [256], \"expect\": [1]}"), HasSubstr("token id 256"));
  EXPECT_THAT(f.far_error("{\"prompt\": [18446744073709551615], \"expect\": [1]}"), HasSubstr("vocabulary"));
  EXPECT_THAT(f.far_error("{\"prompt\": [-1], \"expect\": [1]}"), HasSubstr("vocabulary"));
  EXPECT_THAT(f.far_error("{\"prompt\": [[3, 3]], \"expect\": [1]}"), HasSubstr("beyond the 5 ids"));
  EXPECT_THAT(f.far_error("{\"prompt\": [[1, 18446744073709551615]], \"expect\": [1]}"),
              HasSubstr("beyond the 5 ids"));
  std::string slices = "[0, 5]";
  for (int i = 0; i < 12; ++i) slices += ", [0, 5]";
  EXPECT_THAT(f.far_error("{\"prompt\": [" + slices + "], \"expect\": [1]}"), HasSubstr("context of 64"));
}

TEST(EvalSuites, BrokenIndexIsAnError) {
  const Folder f;
  for (const char* text :
       {"", "[]", "{\"suites\": []}", "{\"suites\": {\"../x\": {}}}", "{\"suites\": {\"\": {}}}"}) {
    f.put("index.json", text);
    const auto index = f.index();
    ASSERT_FALSE(index.ok()) << text;
    EXPECT_THAT(index.status().to_string(), HasSubstr("index.json")) << text;
  }
  f.put("index.json", "{}");
  f.put("hay.json", "{}");
  EXPECT_THAT(f.index().status().to_string(), HasSubstr("hay.json"));
}

TEST(EvalSuites, UserItems) {
  const TempDir dir;
  // Large enough for the turn markers.
  const ModelConfig c = builtin_config("t1").value();
  const Tokenizer t = Tokenizer::from_json(synthetic_tokenizer_json(c), "synthetic").value();
  const std::string path = dir / "mine.jsonl";
  write_bytes(path, R"({"prompt": "hello", "system": "be brief", "thinking": true, "expect": "world"}
{"prompt": [0, 70], "contains": ["a", "b"], "max_tokens": 7}
{"prompt": "x", "expect": [5, 6, 1]}
)");
  const EvalSuite s = read_user_suite(path, t, c, 99).value();
  EXPECT_EQ(s.name, "mine");
  ASSERT_EQ(s.items.size(), 3u);
  ChatPromptOptions chat;
  chat.system = "be brief";
  chat.thinking = true;
  EXPECT_EQ(s.items[0].prompt, chat_prompt(t, c, chat, "hello"));
  EXPECT_NE(s.items[0].prompt, chat_prompt(t, c, {}, "hello"));
  EXPECT_EQ(s.items[0].expect_text, "world");
  EXPECT_EQ(s.items[0].max_tokens, 99);
  EXPECT_THAT(s.items[1].prompt, ElementsAre(0, 70));
  EXPECT_THAT(s.items[1].contains, ElementsAre("a", "b"));
  EXPECT_EQ(s.items[1].max_tokens, 7);
  EXPECT_THAT(s.items[2].expect, ElementsAre(5, 6, 1));
  EXPECT_EQ(s.items[2].max_tokens, 3);

  for (const char* line :
       {R"({"expect": "a"})", R"({"prompt": 1, "expect": "a"})", R"({"prompt": "a"})",
        R"({"prompt": "a", "expect": "b", "contains": "c"})", R"({"prompt": "a", "expect": 3})",
        R"({"prompt": "a", "contains": []})", R"({"prompt": "a", "contains": [1]})",
        R"({"prompt": "a", "expect": "b", "max_tokens": 0})",
        R"({"prompt": "a", "expect": "b", "system": 1})",
        R"({"prompt": "a", "expect": "b", "thinking": "yes"})", R"({"prompt": [99999], "expect": "b"})"}) {
    write_bytes(path, std::string("\n") + line);
    const auto broken = read_user_suite(path, t, c, 99);
    ASSERT_FALSE(broken.ok()) << line;
    EXPECT_THAT(broken.status().to_string(), HasSubstr("mine.jsonl:2: ")) << line;
  }
  write_bytes(path, "\n");
  EXPECT_THAT(read_user_suite(path, t, c, 99).status().to_string(), HasSubstr("no items"));
}

}  // namespace
}  // namespace deepinfer
