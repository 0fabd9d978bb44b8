// `deepinfer bench load`: how long a checkpoint takes to be ready, against plain reading of as many bytes of
// the same files into fresh memory by the same threads, in turn.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "apps/bench_limits.h"
#include "apps/command.h"
#include "apps/load_report.h"
#include "apps/model_source.h"
#include "checkpoint/resident.h"
#include "host/clock.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadBytes = int64_t{4} << 20;  // of one read, as the copy's pieces

struct Options {
  std::string model;
  int threads = 0, rounds = 5;
  bool cold = false, json = false;
};

struct Round {
  double open_s = 0, copy_gb_s = 0, read_gb_s = 0;
};

class File {
 public:
  explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat s{};
    if (fd_ >= 0 && ::fstat(fd_, &s) == 0) size_ = s.st_size;
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  int64_t size() const { return size_; }
  // Gives the page cache's share of it back: the next read comes from the disk.
  void forget() const { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  int fd_;
  int64_t size_ = 0;
};

Result<std::vector<std::unique_ptr<File>>> open_files(const std::string& dir) {
  std::vector<std::string> paths;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(dir, ec)) {
    if (e.path().extension() == ".safetensors") paths.push_back(e.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::unique_ptr<File>> files;
  for (const std::string& path : paths) {
    files.push_back(std::make_unique<File>(path));
    if (files.back()->fd() < 0) return error(Code::kIo, "cannot read {}: {}", path, std::strerror(errno));
  }
  return files;
}

// Gigabytes per second of reading the first `bytes` of the files into fresh memory: what any loader must do.
Result<double> read_rate(const std::vector<std::unique_ptr<File>>& files, int64_t bytes, ThreadPool* pool) {
  struct Part {
    int fd;
    int64_t at, bytes, to;
  };
  std::vector<Part> parts;
  int64_t all = 0;
  for (const auto& f : files) {
    for (int64_t at = 0; at < f->size() && all < bytes; at += kReadBytes) {
      const int64_t n = std::min({kReadBytes, f->size() - at, bytes - all});
      parts.push_back({f->fd(), at, n, all});
      all += n;
    }
  }
  std::atomic<int64_t> done{0};
  const int64_t begin = now_ns();
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(all), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return error(Code::kResourceExhausted, "no {} MB for reading", all >> 20);
  ::madvise(memory, static_cast<size_t>(all), MADV_HUGEPAGE);
  pool->run(static_cast<int64_t>(parts.size()), [&](int64_t i, int) {
    const Part& p = parts[static_cast<size_t>(i)];
    int64_t n = 0;
    while (n < p.bytes) {
      const ssize_t got =
          ::pread(p.fd, static_cast<uint8_t*>(memory) + p.to + n, static_cast<size_t>(p.bytes - n), p.at + n);
      if (got <= 0) break;
      n += got;
    }
    done += n;
  });
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  ::munmap(memory, static_cast<size_t>(all));
  if (done == 0) return error(Code::kIo, "the files of the checkpoint cannot be read");
  return static_cast<double>(done) / seconds / 1e9;
}

Result<Round> run_round(const Options& o, const std::string& dir,
                        const std::vector<std::unique_ptr<File>>& files, bool read_first) {
  Round r;
  std::unique_ptr<ThreadPool> pool = make_pool(o.threads);
  const auto forget = [&] {
    if (!o.cold) return;
    for (const auto& f : files) f->forget();
  };
  int64_t bytes = 0;
  const auto copy = [&]() -> Status {
    forget();
    const int64_t begin = now_ns();
    DI_ASSIGN(ModelWeights weights, load_checkpoint(dir));
    r.open_s = static_cast<double>(now_ns() - begin) / 1e9;
    bytes = resident_bytes(weights);
    DI_ASSIGN(const ResidentReport done, make_resident(&weights, pool.get()));
    r.copy_gb_s = static_cast<double>(done.bytes) / static_cast<double>(done.ns);
    return {};
  };
  const auto read = [&]() -> Status {
    forget();
    DI_ASSIGN(r.read_gb_s, read_rate(files, bytes, pool.get()));
    return {};
  };
  if (read_first) {
    DI_ASSIGN(const ModelWeights weights, load_checkpoint(dir));
    bytes = resident_bytes(weights);
    DI_TRY(read());
    DI_TRY(copy());
  } else {
    DI_TRY(copy());
    DI_TRY(read());
  }
  return r;
}

int run(const Options& o) {
  const auto fail = [](const Status& s) {
    fmt::print(stderr, "deepinfer bench load: {}\n", s.to_string());
    return s.code() == Code::kInvalidArgument || s.code() == Code::kNotFound ? 2 : 1;
  };
  auto model = load_model(o.model);
  if (!model.ok()) return fail(model.status());
  const std::string dir = model->dir;
  model->weights.reset();
  auto files = open_files(dir);
  if (!files.ok()) return fail(files.status());
  std::vector<double> open_s, copy, read;
  for (int i = 0; i < o.rounds; ++i) {
    auto r = run_round(o, dir, *files, i % 2 == 1);
    if (!r.ok()) return fail(r.status());
    open_s.push_back(r->open_s);
    copy.push_back(r->copy_gb_s);
    read.push_back(r->read_gb_s);
  }
  const int threads = make_pool(o.threads)->threads();
  const char* from = o.cold ? "disk" : "page cache";
  std::vector<BenchLine> lines;
  lines.push_back({"load_map", "files", 0, threads, quantiles(open_s).p50 * 1e3, "ms", 0, 0,
                   "opened, checked and mapped"});
  lines.push_back({"load_copy", "weights", 0, threads, quantiles(copy).p50, "GB/s", quantiles(read).p50,
                   quantiles(copy).p50 / quantiles(read).p50,
                   fmt::format("against plain reads from the {}", from)});
  if (o.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"results", to_json(lines)}}.dump());
  else
    fmt::print("{}", to_table(lines));
  return 0;
}

}  // namespace

void add_bench_load(CLI::App* bench, Program& program) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      bench->add_subcommand("load", "Time until a checkpoint is ready, mapped and copied into memory");
  cmd->add_option("--model", o->model, "Checkpoint directory (default: the small model)");
  cmd->add_option("--threads", o->threads, "Threads (default: all usable CPUs)")->check(CLI::Range(1, 4096));
  cmd->add_option("--rounds", o->rounds, "Rounds; medians count")->check(CLI::Range(1, 1000));
  cmd->add_flag("--cold", o->cold, "From the disk: the files' pages are forgotten before every part");
  cmd->add_flag("--json", o->json, "One JSON object with results[]");
  cmd->callback([&program, o] { program.run = [o] { return run(*o); }; });
}

}  // namespace deepinfer
