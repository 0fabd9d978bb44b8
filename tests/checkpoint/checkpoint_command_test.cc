// `deepinfer synth` and `deepinfer inspect` as a person runs them: exit codes, JSON, and messages that name
// what is damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "checkpoint/test_directory.h"

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;  // both streams
};

Outcome run(const std::string& arguments, bool errors_too = true) {
  const std::string command =
      std::string(DEEPINFER_PROGRAM) + " " + arguments + (errors_too ? " 2>&1" : " 2>/dev/null");
  Outcome out;
  FILE* pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  char buffer[4096];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.output.append(buffer, n);
  const int status = ::pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

TEST(CheckpointCommands, InspectPrintsTheReleasedNumbers) {
  const Outcome o = run("inspect v41-flash --json", false);
  ASSERT_EQ(o.code, 0);
  const auto j = nlohmann::json::parse(o.output);
  EXPECT_EQ(j["tensors"]["total"]["count"], 96085);
  EXPECT_EQ(j["tensors"]["total"]["bytes"], 510286023000);
  EXPECT_EQ(j["kv_bytes_per_token"], 890);
}

TEST(CheckpointCommands, SynthThenCheckThenDamage) {
  TempDir dir;
  const std::string c = dir / "c", model = c + "/model.safetensors";
  Outcome o = run("synth --config t0 --out " + c);
  ASSERT_EQ(o.code, 0) << o.output;
  EXPECT_THAT(o.output, HasSubstr("826 tensors, 3528080 bytes in 1 file"));
  o = run("inspect " + c + " --check --json", false);
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(nlohmann::json::parse(o.output)["check"]["ok"], true);

  const std::string good = read_bytes(model);
  std::string bad = good;
  bad[good.size() - 5] = static_cast<char>(bad[good.size() - 5] ^ 4);
  write_bytes(model, bad);
  o = run("inspect " + c + " --check");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.output,
              HasSubstr("tensor layers.3.engram.embed.scale in model.safetensors: its bytes differ"));
  o = run("inspect " + c + " --check --json", false);
  EXPECT_EQ(o.code, 1);
  const auto check = nlohmann::json::parse(o.output)["check"];
  EXPECT_EQ(check["ok"], false);
  EXPECT_EQ(check["problem_count"], 1);
  EXPECT_EQ(check["problems"].size(), 1u);

  write_bytes(model, good.substr(0, good.size() - 1));
  o = run("inspect " + c + " --check");
  EXPECT_EQ(o.code, 1);
  EXPECT_THAT(o.output, HasSubstr("model.safetensors: truncated: tensor layers.3.engram.embed.scale"));

  o = run("synth --config t0 --out " + c);
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.output, HasSubstr("--force"));
  EXPECT_EQ(run("synth --config t0 --seed 5 --quiet --force --out " + c).code, 0);
  EXPECT_EQ(run("inspect --check " + c).code, 0);
}

TEST(CheckpointCommands, WrongCommandLinesExitWithTwoAndBadDataWithOne) {
  TempDir dir;
  EXPECT_EQ(run("inspect").code, 2);
  EXPECT_EQ(run("inspect t0 --check").code, 2);
  EXPECT_EQ(run("inspect t0 --layers 7").code, 2);
  EXPECT_EQ(run("synth --config t0").code, 2);
  EXPECT_EQ(run("synth --config v41-flash --layers 9 --out " + (dir / "x")).code, 2);
  EXPECT_EQ(run("inspect no-such-model").code, 1);
  write_bytes(dir / "config.json", "{");
  EXPECT_EQ(run("inspect " + dir.path()).code, 1);
  EXPECT_EQ(run("inspect " + (dir / "config.json")).code, 1);
}

}  // namespace
}  // namespace deepinfer
