// Threads begin together and are timed together: each runs its part again and again until the time is over,
// and what all of them did counts.
#include "apps/bench_limits.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <thread>

#include "host/clock.h"
#include "host/limits.h"
#include "kernels/limits.h"

namespace deepinfer {

nlohmann::ordered_json to_json(const std::vector<BenchLine>& lines) {
  auto out = nlohmann::ordered_json::array();
  for (const BenchLine& l : lines) {
    nlohmann::ordered_json j{{"op", l.op},           {"format", l.format},     {"rows", l.rows},
                             {"threads", l.threads}, {"achieved", l.achieved}, {"unit", l.unit},
                             {"limit", l.limit},     {"share", l.share}};
    if (!l.note.empty()) j["note"] = l.note;
    out.push_back(std::move(j));
  }
  return out;
}

std::string to_table(const std::vector<BenchLine>& lines) {
  std::string s = fmt::format("{:<22}{:<10}{:>6}{:>9}{:>12} {:<8}{:>12}{:>8}  {}\n", "op", "format", "rows",
                              "threads", "achieved", "unit", "limit", "share", "note");
  for (const BenchLine& l : lines)
    s += fmt::format("{:<22}{:<10}{:>6}{:>9}{:>12.1f} {:<8}{:>12.1f}{:>7.0f}%  {}\n", l.op, l.format, l.rows,
                     l.threads, l.achieved, l.unit, l.limit, 100 * l.share, l.note);
  return s;
}

double limit_of(const std::vector<BenchLine>& lines, const std::string& op, const std::string& format,
                int threads) {
  for (const BenchLine& l : lines) {
    if (l.op == op && l.format == format && l.threads == threads) return l.achieved;
  }
  return 0;
}

void UnmapBench::operator()(uint8_t* p) const {
  munmap(p, bytes);
}

BenchBuffer bench_buffer(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return BenchBuffer(nullptr, UnmapBench{bytes});
  madvise(p, bytes, MADV_HUGEPAGE);
  return BenchBuffer(static_cast<uint8_t*>(p), UnmapBench{bytes});
}

namespace {

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // where it is refused the thread floats
}

// Units of work per second of `threads` pinned threads: `work(thread)` does one piece and returns its units.
// The median of five windows. `prepare(thread)` runs first, on the thread itself.
double rate(const Topology& topology, int threads, double seconds, const std::function<void(int)>& prepare,
            const std::function<double(int)>& work) {
  constexpr int kWindows = 5;
  std::vector<double> done(static_cast<size_t>(threads)), rates;
  std::atomic<bool> stop{false};
  std::barrier gate(threads + 1);
  std::vector<std::thread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      if (static_cast<size_t>(t) < topology.cpu_order.size()) pin(topology.cpu_order[static_cast<size_t>(t)]);
      prepare(t);
      work(t);  // not counted
      for (int w = 0; w < kWindows; ++w) {
        gate.arrive_and_wait();
        double units = 0;
        while (!stop.load(std::memory_order_relaxed)) units += work(t);
        done[static_cast<size_t>(t)] = units;
        gate.arrive_and_wait();
        gate.arrive_and_wait();
      }
    });
  }
  for (int w = 0; w < kWindows; ++w) {
    stop = false;
    gate.arrive_and_wait();
    int64_t begin = now_ns(), end = begin + static_cast<int64_t>(seconds * 1e9 / kWindows);
    std::this_thread::sleep_for(std::chrono::nanoseconds(end - begin));
    stop = true;
    gate.arrive_and_wait();
    double units = 0;
    for (double d : done) units += d;
    rates.push_back(units * 1e9 / static_cast<double>(now_ns() - begin));
    gate.arrive_and_wait();
  }
  for (std::thread& t : team) t.join();
  std::sort(rates.begin(), rates.end());
  return rates[kWindows / 2];
}

volatile uint64_t sink;

double arithmetic(const Topology& topology, const PeakLoop& loop, int threads, double seconds) {
  constexpr int64_t kIterations = 20000;
  return rate(
      topology, threads, seconds, [](int) {},
      [&](int) {
        sink = static_cast<uint64_t>(loop.run(kIterations));
        return loop.operations * static_cast<double>(kIterations);
      });
}

// Each thread reads its own part, piece by piece; the pages were first touched by the thread.
double reading(const Topology& topology, int threads, size_t bytes_each, double seconds) {
  std::vector<BenchBuffer> parts;
  for (int t = 0; t < threads; ++t) {
    parts.push_back(bench_buffer(bytes_each));
    if (parts.back() == nullptr) return 0;
  }
  const size_t piece = std::min<size_t>(bytes_each, size_t{2} << 20);
  std::vector<size_t> at(static_cast<size_t>(threads), 0);
  return rate(
      topology, threads, seconds,
      [&](int t) {
        uint8_t* p = parts[static_cast<size_t>(t)].get();
        for (size_t i = 0; i < bytes_each; i += 4096) p[i] = static_cast<uint8_t>(i >> 12);
      },
      [&](int t) {
        size_t& a = at[static_cast<size_t>(t)];
        sink = read_bytes(parts[static_cast<size_t>(t)].get() + a, piece);
        a = a + 2 * piece > bytes_each ? 0 : a + piece;
        return static_cast<double>(piece);
      });
}

std::vector<int> thread_counts(int most) {
  std::vector<int> out;
  for (int n = 1; n < most; n *= 2) out.push_back(n);
  out.push_back(most);
  return out;
}

// The CPUs of one node come first, the others are left out: its memory is touched by its own threads.
double node_reading(const Topology& topology, const NumaNode& node, size_t first_cpu, size_t bytes,
                    double seconds) {
  Topology part = topology;
  part.cpu_order.clear();
  for (size_t i = 0; i < static_cast<size_t>(node.cores) && first_cpu + i < topology.cpu_order.size(); ++i)
    part.cpu_order.push_back(topology.cpu_order[first_cpu + i]);
  if (part.cpu_order.empty()) return 0;
  int threads = static_cast<int>(part.cpu_order.size());
  return reading(part, threads, bytes / static_cast<size_t>(threads) / 4096 * 4096, seconds);
}

}  // namespace

std::vector<BenchLine> measure_limits(const Topology& topology, const LimitOptions& o) {
  std::vector<BenchLine> out;
  int most = o.threads > 0 ? o.threads : std::max<int>(1, static_cast<int>(topology.cpu_order.size()));
  auto add = [&](const char* op, const std::string& format, int threads, double achieved, const char* unit,
                 std::string note) {
    out.push_back({op, format, 0, threads, achieved, unit, achieved, 1, std::move(note)});
  };
  for (const PeakLoop& loop : peak_loops()) {
    for (int n : thread_counts(most))
      add("multiply_add", loop.op, n, arithmetic(topology, loop, n, o.seconds) / 1e9, "Gop/s",
          loop.instruction);
  }
  const int64_t free = usable_memory_bytes(read_memory_info(), read_cgroup_limits());
  int64_t bytes =
      o.buffer_bytes > 0 ? o.buffer_bytes : std::max<int64_t>(int64_t{512} << 20, 4 * topology.l3_bytes);
  bytes = std::min(bytes, free / 4) / (int64_t{4} << 20) * (int64_t{4} << 20);
  bytes = std::max<int64_t>(bytes, int64_t{4} << 20);
  for (int n : thread_counts(most)) {
    double each = reading(topology, n, static_cast<size_t>(bytes / n / 4096 * 4096), o.seconds);
    add("read", "memory", n, each / 1e9, "GB/s", fmt::format("{} MiB", bytes >> 20));
  }
  if (topology.l3_bytes > 0) {
    // A quarter of the shared cache: others use it too.
    auto each = static_cast<size_t>(topology.l3_bytes / 4 / most / 4096 * 4096);
    add("read", "l3", most, reading(topology, most, each, o.seconds) / 1e9, "GB/s",
        fmt::format("{} KiB each", each >> 10));
  }
  if (topology.l2_bytes > 0) {
    auto each = static_cast<size_t>(topology.l2_bytes / 2 / 4096 * 4096);
    add("read", "l2", most, reading(topology, most, each, o.seconds) / 1e9, "GB/s",
        fmt::format("{} KiB each", each >> 10));
  }
  size_t first = 0;
  if (topology.nodes.size() > 1) {
    for (const NumaNode& node : topology.nodes) {
      add("read", fmt::format("node{}", node.os_index), node.cores,
          node_reading(topology, node, first, static_cast<size_t>(bytes), o.seconds) / 1e9, "GB/s",
          "its own memory");
      first += static_cast<size_t>(node.cores);
    }
  }
  return out;
}

}  // namespace deepinfer
