// `deepinfer grammar` as a person runs it: exit codes, the pointer on standard error, the report of --bench.
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "text/json.h"

namespace deepinfer {
namespace {

struct Outcome {
  int code = -1;
  std::string output;  // both streams
};

Outcome run(const std::string& arguments) {
  std::string line = std::string(DEEPINFER_PROGRAM) + " grammar " + arguments + " 2>&1";
  // The tokenizer of the shipped model, wherever the program was built; --bench makes its own vocabulary.
  if (arguments.find("--bench") == std::string::npos)
    line = "DEEPINFER_MODEL=" DEEPINFER_SOURCE_DIR "/models/deepinfer-tiny " + line;
  std::FILE* pipe = popen(line.c_str(), "r");
  Outcome r;
  std::array<char, 4096> buffer{};
  for (size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    r.output.append(buffer.data(), n);
  int status = pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}

class GrammarCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("deepinfer-grammar-" + std::to_string(getpid()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
    return (dir_ / name).string();
  }
  std::filesystem::path dir_;
};

TEST_F(GrammarCommandTest, AcceptsRefusesAndNamesTheKeyword) {
  std::string schema =
      file("s.json", R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  EXPECT_EQ(run("--schema " + schema + R"( --accept '{"a": 12}')").code, 0);
  EXPECT_EQ(run("--schema " + schema + R"( --accept '{"a": "x"}')").code, 1);
  EXPECT_EQ(run("--schema " + schema + R"( --accept '{"a": 12')").code, 1);
  Outcome unsupported =
      run("--schema " + file("u.json", R"({"properties":{"l":{"type":"array","uniqueItems":true}}})") +
          " --accept '{}'");
  EXPECT_EQ(unsupported.code, 2);
  EXPECT_NE(unsupported.output.find("#/properties/l/uniqueItems"), std::string::npos) << unsupported.output;
  Outcome limit = run("--time-ms 200 --schema " +
                      file("l.json", R"({"type":"string","pattern":"^(a|b)*a(a|b){22}$","maxLength":900})") +
                      " --accept x");
  EXPECT_EQ(limit.code, 2) << limit.output;
  EXPECT_EQ(run("--schema /nowhere.json --accept x").code, 2);
  EXPECT_EQ(run("--accept x").code, 2);
}

TEST_F(GrammarCommandTest, OtherSources) {
  EXPECT_EQ(run("--regex '[a-c]+' --accept abc").code, 0);
  EXPECT_EQ(run("--regex '[a-c]+' --accept abd").code, 1);
  EXPECT_EQ(run("--json-object --accept '{\"x\": [1]}'").code, 0);
  EXPECT_EQ(run("--gbnf " + file("g.gbnf", "root ::= \"x\" | \"(\" root \")\"\n") + " --accept '((x))'").code,
            0);
  EXPECT_EQ(run("--lark " + file("g.lark", "start: \"x\" | \"(\" start \")\"\n") + " --accept '((x)'").code,
            1);
  std::string tools = file(
      "t.json",
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}}}])");
  std::string call =
      "'<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"q\" string=\"true\">x</｜DSML｜ "
      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'";
  EXPECT_EQ(run("--tools " + tools + " --accept " + call).code, 0);
  EXPECT_EQ(run("--tools " + tools + " --accept '</｜DSML｜ calls>'").code, 1);
  Outcome printed = run("--regex 'ab|c' --print");
  EXPECT_EQ(printed.code, 0);
  EXPECT_NE(printed.output.find("root"), std::string::npos);
}

TEST_F(GrammarCommandTest, BenchReportsTheContract) {
  std::string suite =
      file("suite.jsonl",
           "{\"schema\":\"{\\\"type\\\":\\\"array\\\"}\",\"valid\":[\"[1, \\\"x\\\"]\"],\"invalid\":[]}\n");
  Outcome r = run("--bench --json --suite " + suite);
  ASSERT_EQ(r.code, 0) << r.output;
  Result<Json> report = parse_json(r.output);
  ASSERT_TRUE(report.ok()) << r.output;
  EXPECT_EQ((*report)["vocabulary"], 129280);
  for (const char* kind : {"mask_us", "compile_ms"}) {
    EXPECT_GT((*report)[kind]["median"].get<double>(), 0.0);
    EXPECT_GE((*report)[kind]["p99"].get<double>(), (*report)[kind]["median"].get<double>());
  }
}

}  // namespace
}  // namespace deepinfer
