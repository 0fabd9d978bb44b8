// Speed of the kernels, one thread: GB/s of weight bytes read and GFLOP/s per operation and format, medians
// of repeated runs, beside plain limits measured in the same run. Not a test. Usage: kernels_bench [level]
// [name part]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "kernels/kernels.h"

namespace deepinfer {
namespace {

std::string filter;

// Processor time of this thread: other work on the machine then costs cache and bandwidth only.
double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median_seconds(const std::function<void()>& f) {
  f();
  std::vector<double> runs;
  double total = 0;
  while (runs.size() < 5 || (total < 0.25 && runs.size() < 2000)) {
    const double t0 = now();
    f();
    runs.push_back(now() - t0);
    total += runs.back();
  }
  std::nth_element(runs.begin(), runs.begin() + static_cast<long>(runs.size() / 2), runs.end());
  return runs[runs.size() / 2];
}

void report(const std::string& name, double bytes, double flops, const std::function<void()>& f) {
  if (name.find(filter) == std::string::npos) return;
  const double s = median_seconds(f);
  std::printf("%-44s %10.1f us %8.2f GB/s %8.2f GFLOP/s\n", name.c_str(), s * 1e6, bytes / s * 1e-9,
              flops / s * 1e-9);
  std::fflush(stdout);
}

std::vector<float> activations(int64_t n, const char* seed) {
  std::vector<float> v(static_cast<size_t>(n));
  const uint64_t h = fnv1a64(seed, std::strlen(seed));
  for (int64_t i = 0; i < n; ++i)
    v[static_cast<size_t>(i)] =
        round_bf16(static_cast<float>(synthetic_uniform(h, static_cast<uint64_t>(i))));
  return v;
}

struct Weights {
  std::vector<uint8_t> data, scales;
  MatrixView view;
  double bytes = 0;
};

Weights weights(WeightFormat f, int64_t rows, int64_t cols) {
  const int64_t bits = f == WeightFormat::kF32     ? 32
                       : f == WeightFormat::kBF16  ? 16
                       : f == WeightFormat::kMxfp4 ? 4
                                                   : 8;
  Weights w;
  w.data.resize(static_cast<size_t>(rows * cols * bits / 8));
  // Numbers of a natural spread: subnormal codes are as rare as in real weights.
  const uint64_t h = fnv1a64("weights", 7);
  const auto value = [h](int64_t i) {
    const uint64_t u = 3 * static_cast<uint64_t>(i);
    return static_cast<float>(synthetic_uniform(h, u) + synthetic_uniform(h, u + 1) +
                              synthetic_uniform(h, u + 2));
  };
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float v = value(i % 1000003);
    const size_t at = static_cast<size_t>(i);
    if (f == WeightFormat::kF32) std::memcpy(&w.data[at * 4], &v, 4);
    const uint16_t half = f32_to_bf16(v);
    if (f == WeightFormat::kBF16) std::memcpy(&w.data[at * 2], &half, 2);
    if (bits == 8) w.data[at] = f32_to_e4m3(v * 140.0f);
    if (bits == 4)
      w.data[at / 2] = static_cast<uint8_t>(w.data[at / 2] | (f32_to_e2m1(v * 2.0f) << (at % 2 * 4)));
  }
  const int64_t scale_rows = f == WeightFormat::kFp8Tile32 ? (rows + 31) / 32 : rows;
  if (bits <= 8) w.scales.assign(static_cast<size_t>(scale_rows * (cols / 32)), 120);
  w.view = {f, rows, cols, w.data.data(), w.scales.data()};
  w.bytes = static_cast<double>(w.data.size() + w.scales.size());
  return w;
}

void limits() {
  static volatile uint64_t sink;
  std::vector<uint64_t> big(256 << 17);  // 256 MiB
  for (size_t i = 0; i < big.size(); ++i) big[i] = i;
  report("limit: read 256 MiB", static_cast<double>(big.size() * 8), 0, [&] {
    uint64_t s[8] = {};
    for (size_t i = 0; i < big.size(); i += 8)
      for (size_t k = 0; k < 8; ++k) s[k] += big[i + k];
    for (uint64_t v : s) sink = sink + v;
  });
}

void linear(const Kernels<float>& k) {
  struct Case {
    const char* name;
    WeightFormat format;
    int64_t rows, cols;
  };
  // More bytes than the caches hold, at the widths of the released model.
  const Case cases[] = {{"F32 head", WeightFormat::kF32, 6000, 5120},
                        {"BF16 head", WeightFormat::kBF16, 12000, 5120},
                        {"FP8 tile q_b", WeightFormat::kFp8Tile32, 32768, 1280},
                        {"FP8 tile wkv", WeightFormat::kFp8Tile32, 12800, 5120},
                        {"MXFP4 expert up", WeightFormat::kMxfp4, 2304 * 12, 5120},
                        {"MXFP4 expert down", WeightFormat::kMxfp4, 5120 * 12, 2304}};
  for (const Case& c : cases) {
    const Weights w = weights(c.format, c.rows, c.cols);
    for (int64_t T : {1, 2, 4, 8, 16, 64, 512}) {
      const int64_t rows = T <= 4 ? c.rows : std::min<int64_t>(c.rows, 2304);
      const auto x = activations(T * c.cols, "x");
      std::vector<float> y(static_cast<size_t>(T * rows));
      report(std::string("linear ") + c.name + " T=" + std::to_string(T),
             w.bytes * static_cast<double>(rows) / static_cast<double>(c.rows),
             2.0 * static_cast<double>(T * rows * c.cols),
             [&] { k.linear(w.view, x.data(), c.cols, nullptr, T, 0, rows, y.data(), rows, Out::kRounded); });
    }
  }
}

void rows(const Kernels<float>& k) {
  const int64_t H = 5120;
  auto X = activations(4 * H, "X");
  const auto w = activations(4 * H, "w"), v = activations(H, "v");
  std::vector<float> y(static_cast<size_t>(4 * H));
  const float c[4] = {0.5f, 0.2f, 0.2f, 0.1f}, zero[4] = {};
  const float eye[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const double row = static_cast<double>(H) * 4;
  report("rms_norm 5120", 3 * row, 0, [&] { k.rms_norm(X.data(), w.data(), H, 1e-20, y.data()); });
  report("sum_squares 20480", 4 * row, 8.0 * H, [&] { y[0] = k.sum_squares(X.data(), 4 * H); });
  report("hc_collapse 4x5120", 5 * row, 8.0 * H, [&] { k.hc_collapse(X.data(), c, 4, H, y.data()); });
  report("hc_expand 4x5120", 9 * row, 40.0 * H, [&] { k.hc_expand(v.data(), zero, eye, 4, H, X.data()); });
  float mix[24] = {0.1f, 0.7f}, pre[4], post[4], comb[16];
  report("hc_coefficients", 0, 0, [&] { k.hc_coefficients(mix, 1.0f, mix, c, HcParams{}, pre, post, comb); });
  report("swiglu 2304", 3 * 2304.0 * 4, 0, [&] { k.swiglu(X.data(), w.data(), 2304, 0.3, 10.0, y.data()); });
  report("engram_stream 5120", 7 * row, 0,
         [&] { k.engram_stream(v.data(), v.data(), w.data(), w.data(), H, 1e-20, X.data()); });
  std::vector<uint8_t> codes(512), scales(32);
  report("encode fp8_32 512", 2048, 0,
         [&] { k.encode_record(RecordFormat::kFp8_32, X.data(), 512, codes.data(), scales.data()); });
  report("encode fp4_16 512", 2048, 0,
         [&] { k.encode_record(RecordFormat::kFp4_16, X.data(), 512, codes.data(), scales.data()); });
  report("decode fp4_16 512", 2048, 0,
         [&] { k.decode_record(RecordFormat::kFp4_16, codes.data(), scales.data(), 512, y.data()); });
  const auto logits = activations(129280, "logits");
  std::vector<float> p(logits.size());
  report("softmax 129280", 2.0 * 4 * 129280, 0,
         [&] { p[0] = k.softmax(logits.data(), 129280, 1.0, p.data()); });
  report("argmax 129280", 4.0 * 129280, 0, [&] { p[0] = static_cast<float>(argmax(logits.data(), 129280)); });
}

void attention(const Kernels<float>& k) {
  const int64_t D = 512, n = 640, heads = 64;
  const auto q = activations(heads * D, "q"), kv = activations(n * D, "kv"),
             sink = activations(heads, "sink");
  std::vector<float> z(static_cast<size_t>(heads * n)), out(static_cast<size_t>(heads * D));
  report("attend 64 heads x 640 rows", 4.0 * static_cast<double>(n * D),
         4.0 * static_cast<double>(heads * n * D), [&] {
           k.attend(q.data(), kv.data(), n, D, static_cast<int>(heads), 0.04, sink.data(), z.data(),
                    out.data());
         });
  const int64_t keys = 8192;
  std::vector<uint8_t> codes(static_cast<size_t>(keys * 64)), scales(static_cast<size_t>(keys * 4), 127);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  std::vector<float> iq(32 * 128), w = activations(32, "w"), scores(static_cast<size_t>(keys));
  for (size_t i = 0; i < iq.size(); ++i) iq[i] = kE2m1[i * 7 % 16];
  report("index_scores 8192 keys", 68.0 * static_cast<double>(keys), 2.0 * 4096 * static_cast<double>(keys),
         [&] {
           k.index_scores(iq.data(), w.data(), 32, 128, RecordFormat::kFp4_32, codes.data(), 64,
                          scales.data(), 4, keys, scores.data());
         });
  const auto s = activations(1 << 20, "scores");
  std::vector<int32_t> scratch(s.size()), ids(512);
  report("select_topk 512 of 1048576", 4.0 * static_cast<double>(s.size()), 0,
         [&] { select_topk(s.data(), static_cast<int64_t>(s.size()), 512, scratch.data(), ids.data()); });
  std::vector<uint8_t> allowed(s.size());
  report("candidate_pool of 1048576", 4.0 * static_cast<double>(s.size()), 0, [&] {
    candidate_pool(s.data(), static_cast<int64_t>(s.size()), 2048, 8, scratch.data(), allowed.data());
  });
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  using namespace deepinfer;
  if (argc > 1 && std::string(argv[1]) != "best" && !set_instruction_level(argv[1])) {
    std::fprintf(stderr, "unknown instruction level %s; this machine has:", argv[1]);
    for (const std::string& l : instruction_levels()) std::fprintf(stderr, " %s", l.c_str());
    std::fprintf(stderr, "\n");
    return 1;
  }
  if (argc > 2) filter = argv[2];
  const Kernels<float>& k = kernels<float>();
  std::printf("level %s, one thread\n", k.name);
  limits();
  linear(k);
  rows(k);
  attention(k);
  return 0;
}
