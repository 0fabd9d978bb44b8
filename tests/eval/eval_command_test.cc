// `deepinfer eval` as a person runs it: exit codes, the JSON that other programs read, and messages that name
// the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "checkpoint/test_directory.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;
};

Outcome run(const std::string& arguments, const char* streams) {
  const std::string command = std::string(DEEPINFER_PROGRAM) + " " + arguments + " " + streams;
  Outcome out;
  FILE* pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  char buffer[4096];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.output.append(buffer, n);
  const int status = ::pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

json run_json(const std::string& arguments) {
  const Outcome o = run(arguments + " --json", "2>/dev/null");
  EXPECT_EQ(o.code, 0) << o.output;
  return json::parse(o.output, nullptr, false);
}

std::string expect_failure(const std::string& arguments, int code) {
  const Outcome o = run(arguments, "2>&1");
  EXPECT_EQ(o.code, code) << o.output;
  return o.output;
}

// A synthetic model with suites made from its own greedy answers.
class EvalCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = dir_ / "model";
    const Status s = synthesise(builtin_config("t1").value(), model_, {});
    ASSERT_TRUE(s.ok()) << s.to_string();
    suites_ = dir_ / "suites";
    std::filesystem::create_directory(suites_);
    json prose = {{"tokens", {0}}};
    for (int i = 1; i < 400; ++i) prose["tokens"].push_back((7 + 37 * i + i * i) % 500);
    write("prose.jsonl", prose.dump() + "\n");
    write("index.json", R"({"suites": {"echo": {}, "needle_1k": {}}, "texts": {"prose": {}}})");
    write("hay.json", "[70, 71, 72]");
    // Which answer the model gives is not known beforehand: ask for it with an expectation that cannot be
    // right.
    write("echo.jsonl", R"({"prompt": [0, 80, 81], "expect": [0, 0, 0]})");
    write("needle_1k.jsonl", R"({"prompt": [0, [0, 3], 80], "expect": [0, 0]})");
    const json first = run_json(base() + " --failures 1");
    for (const char* name : {"echo", "needle_1k"}) {
      EXPECT_EQ(first["skills"][name]["score"], 0.0);
      answers_[name] = first["skills"][name]["failures"][0]["produced"];
    }
  }
  void write(const std::string& name, const std::string& bytes) const {
    write_bytes(suites_ + "/" + name, bytes);
  }
  std::string base() const { return "eval --model " + model_ + " --suites " + suites_; }

  TempDir dir_;
  std::string model_, suites_;
  std::map<std::string, json> answers_;
};

TEST_F(EvalCommand, ScoresAndJsonKeys) {
  json right = {{"prompt", {0, 80, 81}}, {"expect", answers_["echo"]}};
  write("echo.jsonl", right.dump() + "\n" + R"({"prompt": [0, 80, 81], "expect": [0, 0, 0]})" + "\n");
  const json j = run_json(base() + " --quick --threads 2");
  EXPECT_EQ(j["skills"]["echo"]["score"], 0.5);
  EXPECT_EQ(j["skills"]["needle_1k"]["score"], 0.0);
  EXPECT_TRUE(j["drafts"]["mean_accepted_skills"].is_number());
  EXPECT_TRUE(j["drafts"]["mean_accepted_prose"].is_number());
  EXPECT_TRUE(j["calibration_error"].is_number());
  EXPECT_GT(j["perplexity"]["prose"].get<double>(), 1.0);
  EXPECT_EQ(j["quick"], true);

  const json same = run_json(base() + " --quick --threads 1");
  for (const char* key : {"skills", "drafts", "perplexity", "calibration_error"})
    EXPECT_EQ(j[key], same[key]) << key;
  EXPECT_EQ(run_json(base() + " --items 1 --suite echo")["skills"]["echo"]["score"], 1.0);
}

TEST_F(EvalCommand, Comparisons) {
  const json replay = run_json(base() + " --quick --compare exact,replay")["compare"];
  EXPECT_EQ(replay["control"]["perplexity_ratio"], 1.0);
  EXPECT_EQ(replay["control"]["top_token_change_rate"], 0.0);
  EXPECT_NE(replay["perplexity_ratio"], 1.0);
  EXPECT_LE(replay["perplexity_ratio_low"], replay["perplexity_ratio"]);
  EXPECT_GE(replay["perplexity_ratio_high"], replay["perplexity_ratio"]);
  const json pool = run_json(base() + " --quick --compare pool,nopool")["compare"];
  EXPECT_NE(pool["perplexity_ratio"], 1.0);
  EXPECT_EQ(pool["suites"]["needle_1k"]["n"], 1);
  EXPECT_FALSE(pool["suites"].contains("echo"));
}

TEST_F(EvalCommand, UserItems) {
  const std::string file = dir_ / "mine.jsonl";
  const json right = {{"prompt", {0, 80, 81}}, {"expect", answers_["echo"]}};
  write_bytes(file, right.dump() + "\n" +
                        R"({"prompt": "hello", "contains": "no such answer", "max_tokens": 3})" + "\n");
  json j = run_json("eval --model " + model_ + " --user " + file)["user"]["mine"];
  EXPECT_EQ(j["n"], 2);
  EXPECT_EQ(j["right_per_item"], json::parse("[1, 0]"));
  EXPECT_EQ(j["pass_at_1"], 0.5);
  j = run_json("eval --model " + model_ + " --user " + file + " --pass-at 4 --temperature 1")["user"]["mine"];
  EXPECT_EQ(j["samples"], 4);
  EXPECT_LE(j["pass_at_1"], j["pass_at_k"]);
}

TEST_F(EvalCommand, Mistakes) {
  EXPECT_THAT(expect_failure("eval --model " + model_, 1), HasSubstr("model/suites/index.json"));
  EXPECT_THAT(expect_failure(base() + " --suite other", 1), HasSubstr("no suite \"other\""));
  write("echo.jsonl", "{\"prompt\": [0], \"expect\": [1]}\n{\"prompt\": 7}\n");
  EXPECT_THAT(expect_failure(base(), 1), HasSubstr("echo.jsonl:2: "));
  EXPECT_THAT(expect_failure(base() + " --compare foo,bar", 2), HasSubstr("foo"));
  EXPECT_THAT(expect_failure("eval --pass-at 3", 2), HasSubstr("--user"));
  const std::string file = dir_ / "mine.jsonl";
  write_bytes(file, R"({"prompt": "a", "expect": "b"})");
  EXPECT_THAT(expect_failure("eval --model " + model_ + " --user " + file + " --pass-at 3", 2),
              HasSubstr("--temperature"));
}

}  // namespace
}  // namespace deepinfer
