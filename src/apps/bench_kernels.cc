// Every op is a list of pieces that the thread pool hands out, as the engine does it; the preparation of x is
// part of the time. One matrix of a set is used per repetition, the next one the next time.
#include "apps/bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/numeric.h"
#include "engine/row_cuts.h"
#include "host/clock.h"
#include "host/thread_pool.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

uint64_t next_random(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

int64_t data_bytes(WeightFormat f, int64_t rows, int64_t cols) {
  const int64_t bits = f == WeightFormat::kF32     ? 32
                       : f == WeightFormat::kBF16  ? 16
                       : f == WeightFormat::kMxfp4 ? 4
                                                   : 8;
  return rows * cols * bits / 8;
}
int64_t scale_bytes(WeightFormat f, int64_t rows, int64_t cols) {
  return f == WeightFormat::kMxfp4       ? rows * cols / 32
         : f == WeightFormat::kFp8Tile32 ? rows / 32 * cols / 32
                                         : 0;
}
const char* format_word(WeightFormat f) {
  return f == WeightFormat::kF32     ? "fp32"
         : f == WeightFormat::kBF16  ? "bf16"
         : f == WeightFormat::kMxfp4 ? "mxfp4"
                                     : "fp8";
}

// `count` matrices of one shape in fresh memory, filled by the threads that will read it.
struct Matrices {
  BenchBuffer memory;
  std::vector<MatrixView> views;
  double bytes = 0;  // of one
};

// A CPU per worker where there are enough.
ThreadPool pinned_pool(int threads) {
  const ThreadPlan plan = plan_threads(read_topology(), threads);
  if (plan.cpu.empty()) return ThreadPool(threads);
  return ThreadPool(plan, ThreadPool::Bind::kCpu);
}

class Bench {
 public:
  Bench(const Topology& topology, const KernelBenchOptions& o)
      : o_(o),
        pool_(pinned_pool(o.threads > 0 ? o.threads : ThreadPool::usable_cpus())),
        k_(kernels<float>()),
        limits_(measure_limits(topology,
                               {.seconds = o.limit_seconds, .threads = pool_.threads(), .buffer_bytes = 0})),
        cache_(o.cache_bytes > 0 ? o.cache_bytes : std::max<int64_t>(topology.l3_bytes, int64_t{8} << 20)),
        lines_(limits_) {}

  Status run();
  std::vector<BenchLine> take() { return std::move(lines_); }

 private:
  bool wanted(const std::string& op) const { return op.find(o_.only) != std::string::npos; }
  Result<Matrices> make(WeightFormat f, int64_t rows, int64_t cols, int64_t least);
  std::vector<float> activations(int64_t n) const;
  double median_seconds(const std::function<void(int64_t)>& f) const;
  void add(const std::string& op, const char* format, const char* peak, int64_t rows, double bytes,
           double operations, double seconds);
  Status dense(const char* op, WeightFormat f, int64_t rows, int64_t cols,
               const std::vector<int64_t>& row_counts);
  Status experts(const char* op, int64_t rows, int64_t cols);
  Status index_scan();

  const KernelBenchOptions& o_;
  ThreadPool pool_;
  const Kernels<float>& k_;
  std::vector<BenchLine> limits_;
  int64_t cache_;
  std::vector<BenchLine> lines_;
};

Result<Matrices> Bench::make(WeightFormat f, int64_t rows, int64_t cols, int64_t least) {
  const int64_t data = data_bytes(f, rows, cols), scales = (scale_bytes(f, rows, cols) + 63) / 64 * 64;
  const int64_t count = std::max(least, 3 * cache_ / (data + scales) + 1);
  Matrices m;
  m.memory = bench_buffer(static_cast<size_t>(count * (data + scales)));
  if (m.memory == nullptr)
    return error(Code::kResourceExhausted, "no memory for {} MiB of weights", count * data >> 20);
  for (int64_t i = 0; i < count; ++i) {
    uint8_t* at = m.memory.get() + i * (data + scales);
    m.views.push_back({f, rows, cols, at, at + data});
  }
  m.bytes = static_cast<double>(data + scale_bytes(f, rows, cols));
  constexpr int64_t kPart = 1 << 18;
  const int64_t parts = (data + kPart - 1) / kPart;
  pool_.run(count * parts, [&](int64_t i, int) {
    uint8_t* at = m.memory.get() + i / parts * (data + scales);
    const int64_t begin = i % parts * kPart, end = std::min(data, begin + kPart);
    uint64_t state = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 1;
    for (int64_t b = begin; b < end; b += 8) {
      uint64_t v = next_random(&state);
      // Numbers near 2^-7 in wide formats; in E4M3 no code is NaN.
      if (f == WeightFormat::kF32) v = (v & 0x807fffff807fffffu) | 0x3c0000003c000000u;
      if (f == WeightFormat::kBF16) v = (v & 0x807f807f807f807fu) | 0x3c003c003c003c00u;
      if (f == WeightFormat::kFp8Tile32) v &= 0xbfbfbfbfbfbfbfbfu;
      std::memcpy(at + b, &v, static_cast<size_t>(std::min<int64_t>(8, end - b)));
    }
    if (i % parts == 0) std::memset(at + data, 120, static_cast<size_t>(scales));
  });
  return m;
}

std::vector<float> Bench::activations(int64_t n) const {
  std::vector<float> v(static_cast<size_t>(n));
  uint64_t state = 7;
  for (float& x : v)
    x = round_bf16(static_cast<float>(static_cast<int64_t>(next_random(&state) >> 40) - (1 << 23)) *
                   0x1p-22f);
  return v;
}

double Bench::median_seconds(const std::function<void(int64_t)>& f) const {
  std::vector<double> runs;
  double total = 0;
  f(0);
  for (int64_t i = 1; runs.size() < 5 || total < o_.seconds; ++i) {
    const int64_t begin = now_ns();
    f(i);
    runs.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
    total += runs.back();
  }
  std::nth_element(runs.begin(), runs.begin() + static_cast<int64_t>(runs.size() / 2), runs.end());
  return runs[runs.size() / 2];
}

void Bench::add(const std::string& op, const char* format, const char* peak, int64_t rows, double bytes,
                double operations, double seconds) {
  const double bandwidth = limit_of(limits_, "read", "memory", pool_.threads()) * 1e9;
  double rate = limit_of(limits_, "multiply_add", peak, pool_.threads()) * 1e9;
  if (rate == 0) rate = limit_of(limits_, "multiply_add", "fp32", pool_.threads()) * 1e9;
  BenchLine l{op, format, rows, pool_.threads(), 0, "", 0, 0, ""};
  const bool reads = bytes / bandwidth > operations / rate;
  l.achieved = (reads ? bytes : operations) / seconds * 1e-9;
  l.unit = reads ? "GB/s" : "Gop/s";
  l.limit = (reads ? bandwidth : rate) * 1e-9;
  l.share = l.achieved / l.limit;
  l.note = reads ? fmt::format("{:.0f} Gop/s", operations / seconds * 1e-9) : fmt::format("of {}", peak);
  lines_.push_back(std::move(l));
}

// One row range of one product.
struct Piece {
  const MatrixView* w;
  const int32_t* rows;
  int64_t T, row0, row1;
  float* y;
};

// Pieces as the engine cuts them, the rows of all products of a list.
void cut(const std::vector<Piece>& products, int threads, std::vector<Piece>* out) {
  RowCuts cuts{0, threads, int64_t{1} << 18, 4096};
  const auto cost = [](const Piece& p) { return p.w->cols * p.T; };
  for (const Piece& p : products) cuts.left += p.w->rows * cost(p);
  for (Piece p : products) {
    for (int64_t r = 0; r < p.w->rows; r = p.row1) {
      p.row0 = r;
      p.row1 = r + cuts.next(p.w->rows - r, cost(p), p.w->format == WeightFormat::kF32 ? 4 : 32);
      out->push_back(p);
    }
  }
}

Status Bench::dense(const char* op, WeightFormat f, int64_t rows, int64_t cols,
                    const std::vector<int64_t>& row_counts) {
  if (!wanted(op)) return Status();
  auto m = make(f, rows, cols, 1);
  if (!m.ok()) return m.status();
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  const std::vector<float> x = activations(most * cols);
  std::vector<float> y(static_cast<size_t>(most * rows));
  const int64_t stride = k_.prepared_bytes(f, cols);
  BenchBuffer prepared = bench_buffer(static_cast<size_t>(std::max<int64_t>(64, most * stride)));
  const bool bf16 = std::strcmp(k_.name, "AVX3_ZEN4") == 0;
  const char* peak = f == WeightFormat::kF32     ? "fp32"
                     : f == WeightFormat::kMxfp4 ? "int8"
                     : bf16                      ? "bf16"
                                                 : "fp32";
  for (int64_t T : row_counts) {
    std::vector<std::vector<Piece>> pieces(m->views.size());
    for (size_t i = 0; i < m->views.size(); ++i)
      cut({{&m->views[i], nullptr, T, 0, 0, y.data()}}, pool_.threads(), &pieces[i]);
    const auto prepare = [&](int64_t t, int) {
      k_.prepare(f, cols, x.data() + t * cols, 0, cols, prepared.get() + t * stride);
    };
    const double s = median_seconds([&](int64_t i) {
      if (stride > 0) pool_.run(T, prepare);
      const auto& list = pieces[static_cast<size_t>(i) % pieces.size()];
      pool_.run(static_cast<int64_t>(list.size()), [&](int64_t j, int) {
        const Piece& p = list[static_cast<size_t>(j)];
        if (stride > 0)
          k_.linear_prepared(*p.w, prepared.get(), stride, nullptr, T, p.row0, p.row1, p.y, rows,
                             Out::kRounded);
        else
          k_.linear(*p.w, x.data(), cols, nullptr, T, p.row0, p.row1, p.y, rows, Out::kRounded);
      });
    });
    add(op, format_word(f), peak, T, m->bytes, 2.0 * static_cast<double>(T * rows * cols), s);
  }
  return Status();
}

// 48 experts, six of them per token, evenly: at few tokens the next call takes the next experts.
Status Bench::experts(const char* op, int64_t rows, int64_t cols) {
  if (!wanted(op)) return Status();
  constexpr int64_t kExperts = 48, kTop = 6;
  auto m = make(WeightFormat::kMxfp4, rows, cols, kExperts);
  if (!m.ok()) return m.status();
  const int64_t most = o_.small ? 64 : 512;
  const std::vector<float> x = activations(most * cols);
  std::vector<float> y(static_cast<size_t>(most * kTop * rows));
  const int64_t stride = k_.prepared_bytes(WeightFormat::kMxfp4, cols);
  BenchBuffer prepared = bench_buffer(static_cast<size_t>(most * std::max<int64_t>(stride, 64)));
  for (int64_t T : {int64_t{1}, int64_t{64}, most}) {
    std::vector<std::vector<int32_t>> rows_of(kExperts);
    for (int64_t s = 0; s < T * kTop; ++s)
      rows_of[static_cast<size_t>(s % kExperts)].push_back(static_cast<int32_t>(s / kTop));
    const int64_t rounds = T == 1 ? kExperts / kTop : 1;
    std::vector<std::vector<Piece>> pieces(static_cast<size_t>(rounds));
    for (int64_t r = 0; r < rounds; ++r) {
      int64_t at = 0;
      std::vector<Piece> products;
      for (int64_t e = 0; e < std::min(kExperts, T * kTop); ++e) {
        const auto& take = rows_of[static_cast<size_t>(e)];
        products.push_back({&m->views[static_cast<size_t>(r * kTop + e)], take.data(),
                            static_cast<int64_t>(take.size()), 0, 0, y.data() + at * rows});
        at += static_cast<int64_t>(take.size());
      }
      cut(products, pool_.threads(), &pieces[static_cast<size_t>(r)]);
    }
    const double s = median_seconds([&](int64_t i) {
      if (stride > 0)
        pool_.run(T, [&](int64_t t, int) {
          k_.prepare(WeightFormat::kMxfp4, cols, x.data() + t * cols, 0, cols, prepared.get() + t * stride);
        });
      const auto& list = pieces[static_cast<size_t>(i % rounds)];
      pool_.run(static_cast<int64_t>(list.size()), [&](int64_t j, int) {
        const Piece& p = list[static_cast<size_t>(j)];
        if (stride > 0)
          k_.linear_prepared(*p.w, prepared.get(), stride, p.rows, p.T, p.row0, p.row1, p.y, rows,
                             Out::kRounded);
        else
          k_.linear(*p.w, x.data(), cols, p.rows, p.T, p.row0, p.row1, p.y, rows, Out::kRounded);
      });
    });
    const int64_t touched = std::min(kExperts, T * kTop);
    add(op, "mxfp4", "int8", T, m->bytes * static_cast<double>(touched),
        2.0 * static_cast<double>(T * kTop * rows * cols), s);
  }
  return Status();
}

Status Bench::index_scan() {
  constexpr int kHeads = 32, kDim = 128;
  if (!wanted("index_scan")) return Status();
  const int64_t keys = o_.small ? 8192 : int64_t{1} << 19, piece = 4096;
  BenchBuffer memory = bench_buffer(static_cast<size_t>(keys * 68));
  if (memory == nullptr) return error(Code::kResourceExhausted, "no memory for the index keys");
  uint8_t *codes = memory.get(), *scales = codes + keys * 64;
  uint64_t state = 3;
  for (int64_t i = 0; i < keys * 64; ++i) codes[i] = static_cast<uint8_t>(next_random(&state) >> 32);
  std::memset(scales, 120, static_cast<size_t>(keys * 4));
  std::vector<float> q(kHeads * kDim), w = activations(kHeads), scores(static_cast<size_t>(keys));
  for (float& v : q) v = kE2m1[next_random(&state) >> 60];
  std::vector<uint8_t> prepared(static_cast<size_t>(
      std::max<int64_t>(1, k_.index_prepared_bytes(RecordFormat::kFp4_32, kHeads, kDim))));
  const bool ready = prepared.size() > 1 && k_.prepare_index(q.data(), kHeads, kDim, prepared.data());
  const double s = median_seconds([&](int64_t) {
    pool_.run(keys / piece, [&](int64_t i, int) {
      const int64_t j = i * piece;
      if (ready)
        k_.index_scores_prepared(prepared.data(), w.data(), kHeads, kDim, codes + j * 64, 64, scales + j * 4,
                                 4, piece, scores.data() + j);
      else
        k_.index_scores(q.data(), w.data(), kHeads, kDim, RecordFormat::kFp4_32, codes + j * 64, 64,
                        scales + j * 4, 4, piece, scores.data() + j);
    });
  });
  add("index_scan", "fp4", "int8", 1, 68.0 * static_cast<double>(keys),
      2.0 * kHeads * kDim * static_cast<double>(keys), s);
  return Status();
}

Status Bench::run() {
  const bool toy_shapes = o_.small;
  const int64_t hidden = toy_shapes ? 256 : 5120, inner = toy_shapes ? 128 : 2304,
                rank = toy_shapes ? 96 : 1280, wide = toy_shapes ? 512 : 32768,
                head = toy_shapes ? 256 : o_.head_rows;
  const std::vector<int64_t> few = {1, 2, 4, 8, 16, 48, 512}, toy = {1, 5};
  const auto& counts = o_.small ? toy : few;
  for (const auto& [op, f, rows, cols] : {std::tuple{"expert_gate_up", WeightFormat::kMxfp4, inner, hidden},
                                          {"expert_down", WeightFormat::kMxfp4, hidden, inner},
                                          {"dense_q_a", WeightFormat::kFp8Tile32, rank, hidden},
                                          {"dense_q_b", WeightFormat::kFp8Tile32, wide, rank},
                                          {"dense_bf16", WeightFormat::kBF16, rank, hidden},
                                          {"head", WeightFormat::kF32, head, hidden}}) {
    const auto s =
        dense(op, f, rows, cols, f == WeightFormat::kF32 ? std::vector<int64_t>{1, 4, 16} : counts);
    if (!s.ok()) return s;
  }
  auto s = experts("grouped_gate_up", inner, hidden);
  if (s.ok()) s = experts("grouped_down", hidden, inner);
  if (s.ok()) s = index_scan();
  return s;
}

}  // namespace

Result<std::vector<BenchLine>> measure_kernels(const Topology& topology, const KernelBenchOptions& options) {
  Bench bench(topology, options);
  const Status s = bench.run();
  if (!s.ok()) return s;
  return bench.take();
}

}  // namespace deepinfer
