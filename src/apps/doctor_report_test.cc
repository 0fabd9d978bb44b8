// The doctor on made-up machines: a good one gives no warning; each slow choice gives exactly its own; JSON
// keys stay.
#include "apps/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace deepinfer {
namespace {

using ::testing::HasSubstr;

DoctorFacts good_machine() {
  DoctorFacts f;
  f.build = "release";
  f.cpu = {"Made Up 1", {"sse2", "avx2", "avx512f", "avx512_bf16"}};
  f.instruction_levels = {"AVX3_ZEN4", "AVX3", "AVX2"};
  f.instruction_level = "AVX3_ZEN4";
  f.numeric_profile = "AVX3_ZEN4 kernels 2";
  f.native_kernels = {{"linear", "AVX3_ZEN4"}, {"attend", "AVX3_ZEN4"}};
  f.math_kernels = "reference";
  f.topology.packages = 1;
  f.topology.cores = 4;
  f.topology.cpus = 8;
  f.topology.nodes = {{0, 4, 8, int64_t{16} << 30}};
  f.allowed_cpus = 8;
  f.threads = 8;
  f.cgroup.version = 2;
  f.memory.total_bytes = int64_t{16} << 30;
  f.memory.available_bytes = int64_t{12} << 30;
  f.memory.transparent_huge_pages = "madvise";
  return f;
}

TEST(Doctor, GoodMachineHasNoWarning) {
  EXPECT_TRUE(doctor_warnings(good_machine()).empty());
  EXPECT_THAT(doctor_text(good_machine()), HasSubstr("nothing slow was chosen"));
}

TEST(Doctor, EachSlowChoiceHasItsWarning) {
  struct Case {
    const char* text;
    std::function<void(DoctorFacts&)> make_slow;
  };
  const Case cases[] = {
      {"debug build", [](DoctorFacts& f) { f.build = "debug"; }},
      {"level AVX2 is in use although this CPU has AVX3_ZEN4",
       [](DoctorFacts& f) { f.instruction_level = "AVX2"; }},
      {"scalar code: attend", [](DoctorFacts& f) { f.native_kernels[1].instructions = "scalar"; }},
      {"AVX2 only", [](DoctorFacts& f) { f.cpu.flags = {"sse2", "avx2"}; }},
      {"no AVX2", [](DoctorFacts& f) { f.cpu.flags = {"sse2"}; }},
      {"quota of 1.50 is below the 8 CPUs",
       [](DoctorFacts& f) {
         f.cgroup.cpu_quota = 1.5;
         f.threads = 2;
       }},
      {"allows 2 of the machine's 8 CPUs", [](DoctorFacts& f) { f.allowed_cpus = 2; }},
      {"2 NUMA nodes", [](DoctorFacts& f) { f.topology.nodes.push_back({1, 4, 8, 0}); }},
      {"huge pages are off", [](DoctorFacts& f) { f.memory.transparent_huge_pages = "never"; }},
      {"no transparent huge pages", [](DoctorFacts& f) { f.memory.transparent_huge_pages = ""; }},
      {"limits memory to 4.0 GiB of the machine's 16.0 GiB",
       [](DoctorFacts& f) { f.cgroup.memory_limit_bytes = int64_t{4} << 30; }},
  };
  for (const Case& c : cases) {
    DoctorFacts f = good_machine();
    c.make_slow(f);
    std::vector<std::string> w = doctor_warnings(f);
    ASSERT_EQ(w.size(), 1u) << c.text;
    EXPECT_THAT(w[0], HasSubstr(c.text));
    EXPECT_THAT(doctor_text(f), HasSubstr("WARNING"));
    EXPECT_EQ(doctor_json(f)["warnings"][0], w[0]);
  }
}

TEST(Doctor, QuotaAboveTheMaskIsNoWarning) {
  DoctorFacts f = good_machine();
  f.cgroup.cpu_quota = 8;
  EXPECT_TRUE(doctor_warnings(f).empty());
}

TEST(Doctor, JsonKeysAreStable) {
  nlohmann::ordered_json j = doctor_json(good_machine());
  EXPECT_EQ(j["cpu"]["instruction_level"], "AVX3_ZEN4");
  EXPECT_EQ(j["cpu"]["numeric_profile"], "AVX3_ZEN4 kernels 2");
  EXPECT_EQ(j["kernels"]["native"]["linear"], "AVX3_ZEN4");
  EXPECT_EQ(j["kernels"]["math"], "reference");
  EXPECT_EQ(j["threads"]["used"], 8);
  EXPECT_TRUE(j["threads"]["cpu_quota"].is_null());
  EXPECT_EQ(j["numa_nodes"][0]["cores"], 4);
  EXPECT_TRUE(j["memory"]["cgroup_limit_bytes"].is_null());
  EXPECT_EQ(j["memory"]["usable_bytes"], int64_t{12} << 30);
  EXPECT_EQ(j["memory"]["transparent_huge_pages"], "madvise");
}

}  // namespace
}  // namespace deepinfer
