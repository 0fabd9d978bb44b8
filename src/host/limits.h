// What the operating system lets this process use: CPUs (affinity mask, cgroup quota), memory (machine,
// cgroup, resource limits), huge pages, and which CPU it is. Reads /proc and /sys only; knows nothing of what
// the program does with the answer. Every function reads its files anew and may be called from any thread. A
// file that is missing or unreadable means "no such limit", never an error: containers hide parts of /proc
// and /sys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

// Where /proc and /sys are; tests point them at a made-up machine.
struct SystemRoots {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string prefix;  // put before the mount points that mountinfo names
};

struct CgroupLimits {
  int version = 0;                 // 2, 1, or 0: not in a cgroup that can be read
  double cpu_quota = 0;            // CPUs' worth of time per period, the smallest on the path; 0: none
  int64_t memory_limit_bytes = 0;  // the smallest on the path; 0: none
  int64_t memory_used_bytes = 0;   // of the group with that limit; 0: unknown
};
CgroupLimits read_cgroup_limits(const SystemRoots& roots = {});

// CPUs in the affinity mask of the calling thread, ascending; never empty.
std::vector<int> allowed_cpus();
int allowed_cpu_count();

// CPUs worth starting threads for: the mask, cut to the quota rounded up; at least 1. quota <= 0: none.
int usable_cpu_count(int allowed, double quota);

struct MemoryInfo {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;   // the kernel's estimate, without swapping
  int64_t huge_page_bytes = 0;   // size of one reserved huge page
  int64_t huge_pages_total = 0;  // reserved (hugetlbfs), not transparent ones
  int64_t huge_pages_free = 0;
  std::string transparent_huge_pages;  // "always", "madvise", "never", or "" when the kernel has none
  int64_t locked_limit_bytes = -1;     // RLIMIT_MEMLOCK; -1: unlimited
  int64_t open_files_limit = -1;       // RLIMIT_NOFILE; -1: unlimited
};
MemoryInfo read_memory_info(const SystemRoots& roots = {});

// Memory this process can still take: the smaller of what the machine has available and what its cgroup
// leaves.
int64_t usable_memory_bytes(const MemoryInfo& memory, const CgroupLimits& cgroup);

struct CpuInfo {
  std::string model;               // "" when /proc/cpuinfo names none
  std::vector<std::string> flags;  // as the kernel spells them, in its order
  bool has(const std::string& flag) const;
};
CpuInfo read_cpu_info(const SystemRoots& roots = {});

}  // namespace deepinfer
