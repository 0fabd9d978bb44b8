// Limits of the process as /proc and /sys tell them. See limits.h.
//
// Cgroup paths: /proc/self/cgroup names the group, /proc/self/mountinfo where its hierarchy is mounted and
// which part of it. A limit anywhere between the group and the root of the mount holds, so the smallest on
// the path counts. Formats: the kernel's "Control Group v2" and "CFS Bandwidth Control" documents.
#include "host/limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

namespace deepinfer {
namespace {

// v1 reports "no limit" as the largest page-aligned number; anything this large is no limit.
constexpr int64_t kNoLimitBytes = int64_t{1} << 60;

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!in || !std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<int64_t> parse_int(const std::string& text) {
  int64_t v = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc() || end == text.data()) return std::nullopt;
  return v;
}

std::optional<int64_t> read_int(const std::string& path) {
  auto line = read_line(path);
  return line ? parse_int(*line) : std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

struct Mount {
  std::string root, point;
};

// The mount of cgroup2, or of the v1 hierarchy that has `controller`.
std::optional<Mount> find_mount(const SystemRoots& roots, const std::string& controller) {
  std::ifstream in(roots.proc + "/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> f = split(line, ' ');
    auto dash = std::find(f.begin(), f.end(), "-");
    if (f.size() < 6 || f.end() - dash < 4) continue;
    bool v2 = dash[1] == "cgroup2" && controller.empty();
    bool v1 = dash[1] == "cgroup" && !controller.empty() && contains(split(dash[3], ','), controller);
    if (v2 || v1) return Mount{f[3], roots.prefix + f[4]};
  }
  return std::nullopt;
}

// The path of this process's group: controller "" for v2.
std::optional<std::string> own_group(const SystemRoots& roots, const std::string& controller) {
  std::ifstream in(roots.proc + "/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    size_t a = line.find(':');
    size_t b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    std::string controllers = line.substr(a + 1, b - a - 1);
    bool match = controller.empty() ? line.compare(0, a, "0") == 0 && controllers.empty()
                                    : contains(split(controllers, ','), controller);
    if (match) return line.substr(b + 1);
  }
  return std::nullopt;
}

// Folders from the group up to the mount point, both included. A group outside the mounted part (a container
// that sees the host's path) leaves only the mount point.
std::vector<std::string> group_folders(const Mount& mount, std::string group) {
  if (mount.root != "/" && group.compare(0, mount.root.size(), mount.root) == 0)
    group.erase(0, mount.root.size());
  std::vector<std::string> folders;
  while (group.size() > 1) {
    folders.push_back(mount.point + group);
    group.erase(group.find_last_of('/'));
  }
  folders.push_back(mount.point);
  return folders;
}

std::vector<std::string> folders_of(const SystemRoots& roots, const std::string& controller) {
  auto mount = find_mount(roots, controller);
  auto group = own_group(roots, controller);
  if (!mount || !group) return {};
  return group_folders(*mount, *group);
}

void take_quota(double quota, CgroupLimits* out) {
  if (quota > 0 && (out->cpu_quota == 0 || quota < out->cpu_quota)) out->cpu_quota = quota;
}

void take_memory(std::optional<int64_t> limit, const std::string& used_path, CgroupLimits* out) {
  if (!limit || *limit <= 0 || *limit >= kNoLimitBytes) return;
  if (out->memory_limit_bytes != 0 && *limit >= out->memory_limit_bytes) return;
  out->memory_limit_bytes = *limit;
  out->memory_used_bytes = std::max<int64_t>(0, read_int(used_path).value_or(0));
}

void read_v2(const std::vector<std::string>& folders, CgroupLimits* out) {
  for (const std::string& folder : folders) {
    if (auto line = read_line(folder + "/cpu.max")) {  // "max 100000" or "150000 100000"
      std::vector<std::string> f = split(*line, ' ');
      auto quota = f.empty() ? std::nullopt : parse_int(f[0]);
      auto period = f.size() < 2 ? std::optional<int64_t>(100000) : parse_int(f[1]);
      if (quota && period && *period > 0)
        take_quota(static_cast<double>(*quota) / static_cast<double>(*period), out);
    }
    // memory.high throttles before memory.max kills; both are limits for planning.
    take_memory(read_int(folder + "/memory.max"), folder + "/memory.current", out);
    take_memory(read_int(folder + "/memory.high"), folder + "/memory.current", out);
  }
}

void read_v1(const SystemRoots& roots, CgroupLimits* out) {
  for (const std::string& folder : folders_of(roots, "cpu")) {
    auto quota = read_int(folder + "/cpu.cfs_quota_us");
    auto period = read_int(folder + "/cpu.cfs_period_us");
    if (quota && period && *period > 0)
      take_quota(static_cast<double>(*quota) / static_cast<double>(*period), out);
  }
  for (const std::string& folder : folders_of(roots, "memory")) {
    take_memory(read_int(folder + "/memory.limit_in_bytes"), folder + "/memory.usage_in_bytes", out);
  }
}

int64_t limit_or_unlimited(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

// "always [madvise] never" -> "madvise"
std::string bracketed(const std::string& line) {
  size_t a = line.find('[');
  size_t b = line.find(']');
  return a == std::string::npos || b == std::string::npos || b < a ? "" : line.substr(a + 1, b - a - 1);
}

}  // namespace

CgroupLimits read_cgroup_limits(const SystemRoots& roots) {
  CgroupLimits out;
  // A hybrid machine mounts both; there the v1 hierarchies hold the controllers.
  bool v1 = find_mount(roots, "cpu").has_value() || find_mount(roots, "memory").has_value();
  if (v1) {
    out.version = 1;
    read_v1(roots, &out);
    return out;
  }
  std::vector<std::string> folders = folders_of(roots, "");
  if (!folders.empty()) out.version = 2;
  read_v2(folders, &out);
  return out;
}

std::vector<int> allowed_cpus() {
  // The mask of a large machine does not fit a cpu_set_t; grow until the kernel accepts the size.
  for (size_t cpus = CPU_SETSIZE; cpus <= (size_t{1} << 20); cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    size_t bytes = CPU_ALLOC_SIZE(cpus);
    CPU_ZERO_S(bytes, set);
    std::vector<int> list;
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (size_t c = 0; c < cpus; ++c) {
        if (CPU_ISSET_S(c, bytes, set)) list.push_back(static_cast<int>(c));
      }
    }
    CPU_FREE(set);
    if (!list.empty()) return list;
  }
  return {0};
}

int allowed_cpu_count() {
  return static_cast<int>(allowed_cpus().size());
}

int usable_cpu_count(int allowed, double quota) {
  int usable = std::max(1, allowed);
  // Compare before converting: a quota from a file may exceed every int.
  if (quota > 0 && std::ceil(quota) < usable) usable = std::max(1, static_cast<int>(std::ceil(quota)));
  return usable;
}

MemoryInfo read_memory_info(const SystemRoots& roots) {
  MemoryInfo out;
  std::ifstream in(roots.proc + "/meminfo");
  for (std::string line; std::getline(in, line);) {
    size_t colon = line.find(':');
    size_t digit = line.find_first_of("0123456789", colon);
    if (colon == std::string::npos || digit == std::string::npos) continue;
    std::string key = line.substr(0, colon);
    int64_t value = parse_int(line.substr(digit)).value_or(0);
    if (key == "MemTotal") out.total_bytes = value * 1024;
    if (key == "MemAvailable") out.available_bytes = value * 1024;
    if (key == "Hugepagesize") out.huge_page_bytes = value * 1024;
    if (key == "HugePages_Total") out.huge_pages_total = value;
    if (key == "HugePages_Free") out.huge_pages_free = value;
  }
  if (auto line = read_line(roots.sys + "/kernel/mm/transparent_hugepage/enabled")) {
    out.transparent_huge_pages = bracketed(*line);
  }
  out.locked_limit_bytes = limit_or_unlimited(RLIMIT_MEMLOCK);
  out.open_files_limit = limit_or_unlimited(RLIMIT_NOFILE);
  return out;
}

int64_t usable_memory_bytes(const MemoryInfo& memory, const CgroupLimits& cgroup) {
  if (cgroup.memory_limit_bytes == 0) return memory.available_bytes;
  int64_t left = std::max<int64_t>(0, cgroup.memory_limit_bytes - cgroup.memory_used_bytes);
  return std::min(memory.available_bytes, left);
}

bool CpuInfo::has(const std::string& flag) const {
  return contains(flags, flag);
}

CpuInfo read_cpu_info(const SystemRoots& roots) {
  CpuInfo out;
  std::ifstream in(roots.proc + "/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    size_t colon = line.find(':');
    if (line.empty() && !out.flags.empty()) break;  // the first CPU's block is enough
    if (colon == std::string::npos) continue;
    std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (key == "model name" && out.model.empty()) out.model = value;
    if ((key == "flags" || key == "Features") && out.flags.empty()) out.flags = split(value, ' ');
  }
  return out;
}

}  // namespace deepinfer
