// Limits read from made-up machines: cgroup v2 and v1, nested groups, containers, missing and damaged files;
// and the arithmetic that turns them into threads and bytes.
#include "host/limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace deepinfer {
namespace {

class Machine : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    root_ = std::filesystem::temp_directory_path() / ("di_limits_" + std::to_string(::getpid()) + "_" + name);
    std::filesystem::create_directories(root_);
    roots_ = {root_ / "proc", root_ / "sys", root_};
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::path p = root_ / path;
    std::filesystem::create_directories(p.parent_path());
    std::ofstream(p) << text;
  }
  void v2(const std::string& group, const std::string& mount_root = "/") {
    put("proc/self/cgroup", "0::" + group + "\n");
    put("proc/self/mountinfo", "22 1 0:5 / /proc rw - proc proc rw\n31 24 0:27 " + mount_root +
                                   " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  std::filesystem::path root_;
  SystemRoots roots_;
};

TEST_F(Machine, Version2TakesTheSmallestLimitOnThePath) {
  v2("/a/b");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/b/memory.max", "8589934592\n");
  put("sys/fs/cgroup/a/b/memory.current", "1000\n");
  put("sys/fs/cgroup/a/memory.high", "4294967296\n");
  put("sys/fs/cgroup/a/memory.current", "2000\n");
  CgroupLimits l = read_cgroup_limits(roots_);
  EXPECT_EQ(l.version, 2);
  EXPECT_DOUBLE_EQ(l.cpu_quota, 1.5);
  EXPECT_EQ(l.memory_limit_bytes, 4294967296);
  EXPECT_EQ(l.memory_used_bytes, 2000);
}

TEST_F(Machine, Version2WithoutLimits) {
  v2("/");
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  CgroupLimits l = read_cgroup_limits(roots_);
  EXPECT_EQ(l.version, 2);
  EXPECT_EQ(l.cpu_quota, 0);
  EXPECT_EQ(l.memory_limit_bytes, 0);
}

TEST_F(Machine, ContainerSeesTheHostsPathButOnlyItsOwnMount) {
  v2("/docker/1234", "/docker/1234");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(read_cgroup_limits(roots_).cpu_quota, 0.5);
  // Without the mount's root the folder does not exist; the mount point's own limit still counts.
  v2("/docker/1234");
  EXPECT_DOUBLE_EQ(read_cgroup_limits(roots_).cpu_quota, 0.5);
}

TEST_F(Machine, Version1) {
  put("proc/self/cgroup", "4:memory:/pod/x\n3:cpu,cpuacct:/pod\n0::/ignored\n");
  put("proc/self/mountinfo",
      "30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "250000\n");
  put("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/pod/x/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1073741824\n");
  put("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "73741824\n");
  CgroupLimits l = read_cgroup_limits(roots_);
  EXPECT_EQ(l.version, 1);
  EXPECT_DOUBLE_EQ(l.cpu_quota, 2.5);
  EXPECT_EQ(l.memory_limit_bytes, 1073741824);
  EXPECT_EQ(l.memory_used_bytes, 73741824);
}

TEST_F(Machine, MissingOrDamagedFilesMeanNoLimit) {
  CgroupLimits none = read_cgroup_limits(roots_);
  EXPECT_EQ(none.version, 0);
  EXPECT_EQ(none.cpu_quota, 0);
  v2("/a");
  put("proc/self/cgroup", "garbage\n::\n:\n0::/a\n");
  put("sys/fs/cgroup/a/cpu.max", "\n");
  put("sys/fs/cgroup/cpu.max", "100000 0\n");
  put("sys/fs/cgroup/a/memory.max", "-5\n");
  put("sys/fs/cgroup/memory.max", "99999999999999999999999999\n");
  CgroupLimits l = read_cgroup_limits(roots_);
  EXPECT_EQ(l.cpu_quota, 0);
  EXPECT_EQ(l.memory_limit_bytes, 0);
}

TEST_F(Machine, MemoryAndCpu) {
  put("proc/meminfo",
      "MemTotal:       1000 kB\nMemAvailable:    600 kB\nHugePages_Total:       4\nHugePages_Free:        3\n"
      "Hugepagesize:       2048 kB\nOdd line\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  put("proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Made Up 1\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: "
      "fpu\n");
  MemoryInfo m = read_memory_info(roots_);
  EXPECT_EQ(m.total_bytes, 1000 * 1024);
  EXPECT_EQ(m.available_bytes, 600 * 1024);
  EXPECT_EQ(m.huge_page_bytes, 2048 * 1024);
  EXPECT_EQ(m.huge_pages_total, 4);
  EXPECT_EQ(m.huge_pages_free, 3);
  EXPECT_EQ(m.transparent_huge_pages, "madvise");
  CpuInfo c = read_cpu_info(roots_);
  EXPECT_EQ(c.model, "Made Up 1");
  EXPECT_TRUE(c.has("avx512f"));
  EXPECT_FALSE(c.has("avx"));
}

TEST(Limits, UsableCpus) {
  EXPECT_EQ(usable_cpu_count(8, 0), 8);
  EXPECT_EQ(usable_cpu_count(8, 1.5), 2);
  EXPECT_EQ(usable_cpu_count(8, 0.1), 1);
  EXPECT_EQ(usable_cpu_count(2, 64), 2);
  EXPECT_EQ(usable_cpu_count(2, 1e300), 2);
  EXPECT_EQ(usable_cpu_count(0, 0), 1);
}

TEST(Limits, UsableMemory) {
  MemoryInfo m;
  m.available_bytes = 100;
  EXPECT_EQ(usable_memory_bytes(m, {}), 100);
  EXPECT_EQ(usable_memory_bytes(m, {2, 0, 80, 30}), 50);
  EXPECT_EQ(usable_memory_bytes(m, {2, 0, 80, 90}), 0);
  EXPECT_EQ(usable_memory_bytes(m, {2, 0, 800, 90}), 100);
}

TEST(Limits, ThisMachine) {
  EXPECT_GE(allowed_cpu_count(), 1);
  MemoryInfo m = read_memory_info();
  EXPECT_GT(m.total_bytes, 0);
  EXPECT_LE(m.available_bytes, m.total_bytes);
}

}  // namespace
}  // namespace deepinfer
