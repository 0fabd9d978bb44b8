// The exact synthetic weights: every value of model specification 12.7 as a double, computed by a few
// threads.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "checkpoint/bind.h"
#include "checkpoint/synth_values.h"
#include "checkpoint/weights.h"
#include "host/thread_pool.h"
#include "model/engram.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxElements = 2'000'000'000;  // 16 GB of doubles

using Blocks = std::vector<std::unique_ptr<double[]>>;

// Hands out memory while binding and remembers what to fill; fill() computes it all at the end.
class ExactSource : public WeightSource {
 public:
  explicit ExactSource(const ModelConfig& config) {
    for_each_tensor(config, [&](const TensorSpec& t) {
      if (t.role != Role::kScale) specs_.emplace(t.name, t);
    });
  }

  MatrixView matrix(const std::string& name) override {
    const TensorSpec& spec = find(name);
    MatrixView m;
    m.format = WeightFormat::kF64;
    m.rows = logical_rows(spec);
    m.cols = logical_columns(spec);
    blocks_->push_back(std::make_unique_for_overwrite<double[]>(static_cast<size_t>(m.rows * m.cols)));
    m.data = blocks_->back().get();
    const SyntheticStream stream = synthetic_stream(spec, 0);
    constexpr int64_t kJob = 1 << 18;  // large enough that handing it out costs nothing
    for (int64_t i = 0; i < m.rows * m.cols; i += kJob) {
      jobs_.push_back({stream, blocks_->back().get(), i, std::min(i + kJob, m.rows * m.cols)});
    }
    return m;
  }

  SmallTensor small(const std::string& name) override {
    const TensorSpec& spec = find(name);
    const SyntheticStream stream = synthetic_stream(spec, 0);
    SmallTensor t;
    for (int64_t i = 0; i < spec.elements(); ++i) {
      t.f64.push_back(stream.value(i));
      t.f32.push_back(static_cast<float>(t.f64.back()));
    }
    return t;
  }

  void fill() {
    ThreadPool pool(ThreadPool::usable_cpus());
    pool.run(static_cast<int64_t>(jobs_.size()), [&](int64_t j, int) {
      const Job& job = jobs_[static_cast<size_t>(j)];
      for (int64_t i = job.begin; i < job.end; ++i) job.to[i] = job.stream.value(i);
    });
  }
  std::shared_ptr<const void> storage() const { return blocks_; }

 private:
  struct Job {
    SyntheticStream stream;
    double* to;
    int64_t begin, end;
  };
  const TensorSpec& find(const std::string& name) const {
    const auto at = specs_.find(name);
    DI_CHECK(at != specs_.end(), "the table has no tensor " + name);
    return at->second;
  }
  std::unordered_map<std::string, TensorSpec> specs_;
  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  std::vector<Job> jobs_;
};

}  // namespace

Result<ModelWeights> exact_synthetic_weights(const ModelConfig& config) {
  int64_t elements = 0;
  for_each_tensor(config, [&](const TensorSpec& t) {
    if (t.role != Role::kScale) elements += logical_rows(t) * logical_columns(t);
  });
  if (elements > kMaxElements) {
    return error(
        Code::kUnsupported,
        "configuration {} has {} weights; exact synthetic weights are for tiny configurations, up to {}",
        config.name, elements, kMaxElements);
  }
  ExactSource source(config);
  ModelWeights weights = bind_weights(config, source);
  source.fill();
  weights.storage = source.storage();
  if (!config.engram_layer_ids.empty()) {
    weights.token_map = tiny_token_map(config.vocab_size, config.engram_compressed_vocab_size);
  }
  return weights;
}

}  // namespace deepinfer
