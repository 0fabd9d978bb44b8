// Two implementations written apart from the same specification: the PyTorch reference (tools/reference)
// exports its activations layer by layer on a random checkpoint in the released formats; the engine loads
// that very checkpoint and must agree. Needs a Python with PyTorch (DEEPINFER_TORCH_PYTHON, the trainer's
// environment, or the system's); skipped with a message where there is none.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "engine/forward.h"
#include "host/files.h"
#include "kernels/ref_mode.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

std::string torch_python() {
  std::vector<std::string> candidates;
  if (const char* env = std::getenv("DEEPINFER_TORCH_PYTHON")) candidates.push_back(env);
  candidates.push_back(std::string(DEEPINFER_SOURCE_DIR) + "/build/venv-train/bin/python");
  candidates.push_back("/usr/bin/python3");
  for (const std::string& p : candidates) {
    if (std::system(("'" + p + "' -c 'import torch' >/dev/null 2>&1").c_str()) == 0) return p;
  }
  return {};
}

// Named F32/I32/I64/U8 tensors of a small safetensors file, as doubles.
class Tensors {
 public:
  explicit Tensors(const std::string& path) : bytes_(read_file(path, int64_t{1} << 31).value()) {
    auto header =
        parse_safetensors_header({reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size()}, path)
            .value();
    for (const auto& t : header.tensors) entries_[t.name] = t;
    offset_ = header.data_offset;
  }
  bool has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<int64_t> shape(const std::string& name) const { return entries_.at(name).shape; }
  std::vector<double> get(const std::string& name) const {
    const TensorEntry& t = entries_.at(name);
    const char* p = bytes_.data() + offset_ + t.begin;
    size_t size = static_cast<size_t>(dtype_tag_bits(t.dtype)) / 8, n = (t.end - t.begin) / size;
    std::vector<double> out(n);
    for (size_t i = 0; i < n; ++i) {
      if (t.dtype == "F32")
        out[i] = read<float>(p, i);
      else if (t.dtype == "I32")
        out[i] = read<int32_t>(p, i);
      else if (t.dtype == "I64")
        out[i] = static_cast<double>(read<int64_t>(p, i));
      else if (t.dtype == "U8" || t.dtype == "BOOL")
        out[i] = read<uint8_t>(p, i);
      else
        ADD_FAILURE() << name << " has type " << t.dtype;
    }
    return out;
  }

 private:
  template <typename T>
  static T read(const char* p, size_t i) {
    T v;
    std::memcpy(&v, p + i * sizeof(T), sizeof(T));
    return v;
  }
  std::string bytes_;
  std::map<std::string, TensorEntry> entries_;
  uint64_t offset_ = 0;
};

template <typename A>
double relative_error(const std::vector<double>& want, const std::vector<A>& got, size_t n) {
  double d = 0, s = 0;
  for (size_t i = 0; i < n; ++i) {
    d += (want[i] - static_cast<double>(got[i])) * (want[i] - static_cast<double>(got[i]));
    s += want[i] * want[i];
  }
  return std::sqrt(d / s);
}

// Rows of a [T, E] mask as ascending index lists.
std::vector<std::vector<int32_t>> rows_of(const Tensors& t, const std::string& name) {
  auto v = t.get(name);
  auto s = t.shape(name);
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(s[0]));
  for (int64_t r = 0; r < s[0]; ++r) {
    for (int64_t c = 0; c < s[1]; ++c) {
      if (v[static_cast<size_t>(r * s[1] + c)] != 0)
        out[static_cast<size_t>(r)].push_back(static_cast<int32_t>(c));
    }
  }
  return out;
}

template <typename A>
struct EngineRun {
  EngineRun(const ModelWeights& w, const std::vector<int32_t>& tokens, int64_t keep,
            const Kernels<A>* kernels = nullptr)
      : pool(2),
        model(&w, &pool, {true, kernels}),
        blocks(model.layout().block_bytes, 1000),
        state(w.config, model.layout(), &blocks) {
    state.tokens = tokens;
    int64_t n = static_cast<int64_t>(tokens.size());
    state.decoder_floor = keep > 0 ? n - keep : 0;
    EXPECT_TRUE(state.reserve(n).ok());
    result = model.run({{&state, 0, n, 0}}, &trace);
  }
  ThreadPool pool;
  Forward<A> model;
  BlockPool blocks;
  SequenceState state;
  ForwardTrace<A> trace;
  ForwardResult<A> result;
};

class ReferenceActivations : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    python_ = torch_python();
    if (python_.empty())
      GTEST_SKIP() << "no Python with PyTorch (apt-get install python3-torch, or set DEEPINFER_TORCH_PYTHON)";
    dir_ = (fs::temp_directory_path() /
            ("deepinfer-activations-" + std::string(GetParam()) + "-" + std::to_string(getpid())))
               .string();
  }
  void TearDown() override {
    if (!dir_.empty()) fs::remove_all(dir_);
  }
  void export_with(const std::string& more) {
    std::string cmd = "env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE '" + python_ + "' '" +
                      DEEPINFER_SOURCE_DIR + "/tools/reference/export_activations.py' " + GetParam() + " '" +
                      dir_ + "' --length " + length() + " " + more + " >/dev/null";
    ASSERT_EQ(std::system(cmd.c_str()), 0) << cmd;
  }
  // Past the window, so that selection and pool both leave entries out; the readable reference is slow.
  static std::string length() { return std::string(GetParam()) == "t2" ? "140" : "70"; }
  std::string python_, dir_;
};

TEST_P(ReferenceActivations, LayerByLayer) {
  export_with("");
  if (HasFatalFailure()) return;
  Tensors ref(dir_ + "/activations.safetensors");
  ModelWeights w = load_checkpoint(dir_).value();
  std::vector<int32_t> tokens;
  for (double t : ref.get("tokens")) tokens.push_back(static_cast<int32_t>(t));
  EngineRun<double> exact(w, tokens, 0);
  EngineRun<float> native(w, tokens, 0);
  EngineRun<double> rounded(w, tokens, 0, &ref_mode_kernels());
  auto roles = layer_map(w.config);
  // Stored as fp32, so exact agreement is to fp32. Native mode's error grows with depth as flipped codes,
  // selections and routes add up; its bound in every layer is what the format's own rounding points do there
  // (model specification 8.5).
  for (size_t l = 0; l < roles.size(); ++l) {
    std::string p = "layers." + std::to_string(l) + ".";
    auto streams = ref.get(p + "streams");
    const auto& e = exact.trace.layers[l];
    ASSERT_EQ(streams.size(), e.streams.size());
    EXPECT_LT(relative_error(streams, e.streams, streams.size()), 1e-6) << p;
    EXPECT_LT(relative_error(ref.get(p + "pre"), e.pre, e.pre.size()), 1e-6) << p;
    if (ref.has(p + "selection")) {
      EXPECT_EQ(rows_of(ref, p + "selection"), e.selection) << p;
    }
    if (ref.has(p + "pool")) {
      EXPECT_EQ(rows_of(ref, p + "pool"), e.pool) << p;
    }
    auto route = ref.get(p + "route");
    size_t k = static_cast<size_t>(w.config.num_experts_per_tok);
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<int32_t> ids(route.begin() + static_cast<int64_t>(t * k),
                               route.begin() + static_cast<int64_t>((t + 1) * k));
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(ids, e.route[t]) << p << " row " << t;
    }
    double native_error = relative_error(streams, native.trace.layers[l].streams, streams.size());
    double rounding_error = relative_error(streams, rounded.trace.layers[l].streams, streams.size());
    std::printf("%s layer %zu: streams differ by %.4f in native mode, by %.4f from rounding points\n",
                GetParam(), l, native_error, rounding_error);
    EXPECT_LE(native_error, rounding_error) << p;
    EXPECT_GT(native_error, 0);
  }
  EXPECT_LT(relative_error(ref.get("logits"), exact.result.logits, exact.result.logits.size()), 1e-6);
  auto draft = exact.model.draft(
      &exact.state, static_cast<int32_t>(argmax(exact.result.row(tokens.size() - 1), w.config.vocab_size)),
      [](const double* z, int64_t v, int64_t) { return static_cast<int32_t>(argmax(z, v)); });
  std::vector<int32_t> drafts;
  for (double d : ref.get("draft.tokens")) drafts.push_back(static_cast<int32_t>(d));
  EXPECT_EQ(draft.tokens, drafts);
  EXPECT_LT(relative_error(ref.get("draft.confidence"), draft.confidence_logits, drafts.size()), 1e-5);
  EXPECT_LT(relative_error(ref.get("draft.logits"), draft.logits, draft.logits.size()), 1e-6);
}

TEST_P(ReferenceActivations, BoundedPrefill) {
  if (std::string(GetParam()) == "t2")
    return;  // the mask is the same code for every configuration, and the readable reference takes minutes
  const int keep = 34;
  export_with("--keep " + std::to_string(keep));
  if (HasFatalFailure()) return;
  Tensors ref(dir_ + "/activations.safetensors");
  ModelWeights w = load_checkpoint(dir_).value();
  std::vector<int32_t> tokens;
  for (double t : ref.get("tokens")) tokens.push_back(static_cast<int32_t>(t));
  EngineRun<double> exact(w, tokens, keep);
  auto logits = ref.get("logits");
  ASSERT_EQ(exact.result.rows.size(), static_cast<size_t>(keep));
  // The reference may keep fewer rows of logits than the engine; compare the last ones.
  size_t rows = logits.size() / static_cast<size_t>(w.config.vocab_size);
  std::vector<double> tail(exact.result.logits.end() - static_cast<int64_t>(logits.size()),
                           exact.result.logits.end());
  EXPECT_GE(rows, 1u);
  EXPECT_LT(relative_error(logits, tail, logits.size()), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Family, ReferenceActivations, testing::Values("t0", "t1", "t2"));

}  // namespace
}  // namespace deepinfer
