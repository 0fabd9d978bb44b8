// Every .scn file of this folder is one test; and the reader's own errors carry their line.
// Run with --fill FILE.scn it prints the file with what really happened under every plan, for writing new
// scenarios.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "scenario.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::vector<std::string> files() {
  std::vector<std::string> out;
  for (const fs::directory_entry& e : fs::directory_iterator(DEEPINFER_SOURCE_DIR "/tests/scenarios")) {
    if (e.path().extension() == ".scn") out.push_back(e.path().stem().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Scenario : public ::testing::TestWithParam<std::string> {};

TEST_P(Scenario, Holds) {
  std::string name = "tests/scenarios/" + GetParam() + ".scn";
  ScenarioOutcome o = run_scenario(name, read(fs::path(DEEPINFER_SOURCE_DIR) / name));
  for (const std::string& p : o.problems) ADD_FAILURE() << p;
}

INSTANTIATE_TEST_SUITE_P(Files, Scenario, ::testing::ValuesIn(files()),
                         [](const ::testing::TestParamInfo<std::string>& file) { return file.param; });

TEST(ScenarioReader, ErrorsCarryTheirLine) {
  struct Case {
    const char* text;
    const char* problem;
  };
  for (const Case& c :
       {Case{"config pool=8\nconfig colour=3\n", "x:2: unknown setting 'colour'"},
        Case{"\n\nfrobnicate A\n", "x:3: unknown command 'frobnicate'"},
        Case{"  run A 0+1 decode\n", "x:1: an indented line must follow a plan"},
        Case{"arrive A prompt=ten\n", "x:1: 'ten' is not a number"},
        Case{"arrive A text=a\n", "x:1: 'a' is not name:tokens"},
        Case{"arrive A prompt=10\nplan\n  run A 0+11 prefill\n", "x:2: the plan differs; it is"},
        Case{"expect free=1\n", "x:1: free is 10000, not 1"}, Case{"finish\n", "x:1: no step is in flight"},
        Case{"at 0\nconfig pool=3\n", "x:2: the configuration comes before everything else"},
        Case{"config keep=134\nrefused keep\n", "x:2: the configuration is accepted"}}) {
    ScenarioOutcome o = run_scenario("x", c.text);
    ASSERT_FALSE(o.problems.empty()) << c.text;
    EXPECT_THAT(o.problems[0], HasSubstr(c.problem));
  }
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--fill") {
    deepinfer::ScenarioOutcome o = deepinfer::run_scenario(argv[2], deepinfer::read(argv[2]), true);
    std::cout << o.filled;
    for (const std::string& p : o.problems) std::cerr << p << "\n";
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
