// From mapped files to weights: views for matrices, converted copies for small tensors.
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/numeric.h"
#include "checkpoint/bind.h"
#include "checkpoint/check.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/synth_values.h"
#include "checkpoint/weights.h"

namespace deepinfer {
namespace {

// What ModelWeights keeps alive: the mappings, and aligned copies of matrices that lie askew in their file.
struct Storage {
  std::unique_ptr<CheckpointFiles> files;
  std::vector<std::unique_ptr<uint8_t[]>> copies;
};

class FileSource : public WeightSource {
 public:
  FileSource(Storage* storage, ProblemList* problems) : storage_(storage), problems_(problems) {}

  MatrixView matrix(const std::string& name) override {
    const TensorBytes& t = find(name);
    MatrixView m;
    m.rows = logical_rows(t.spec);
    m.cols = logical_columns(t.spec);
    m.data = aligned(t);
    switch (t.spec.dtype) {
      case DType::kBF16:
        m.format = WeightFormat::kBF16;
        break;
      case DType::kF32:
        m.format = WeightFormat::kF32;
        break;
      case DType::kF8E4M3:
        m.format = t.spec.role == Role::kEngramTable ? WeightFormat::kFp8Row32 : WeightFormat::kFp8Tile32;
        break;
      case DType::kI8:
        m.format = WeightFormat::kMxfp4;
        break;
      case DType::kF8E8M0:
        DI_CHECK(false, name + " is a scale, not a matrix");
        break;
    }
    if (t.spec.dtype == DType::kF8E4M3 || t.spec.dtype == DType::kI8) {
      constexpr std::string_view kWeight = ".weight";
      m.scales = find(name.substr(0, name.size() - kWeight.size()) + ".scale").data;
    }
    // Engram rows are gathered one by one: reading ahead would only evict useful pages. Everything else is
    // walked from end to end.
    advise(t, t.spec.role == Role::kEngramTable ? MapAdvice::kRandom : MapAdvice::kHuge);
    return m;
  }

  SmallTensor small(const std::string& name) override {
    const TensorBytes& t = find(name);
    SmallTensor out;
    const auto n = static_cast<size_t>(t.spec.elements());
    out.f32.resize(n);
    for (size_t i = 0; i < n; ++i) {
      if (t.spec.dtype == DType::kBF16) {
        uint16_t b;
        std::memcpy(&b, t.data + 2 * i, 2);
        out.f32[i] = bf16_to_f32(b);
      } else {
        DI_CHECK(t.spec.dtype == DType::kF32, name + " is not a small tensor");
        std::memcpy(&out.f32[i], t.data + 4 * i, 4);
      }
      if (!std::isfinite(out.f32[i])) {
        problems_->add(fmt::format("tensor {} in {}: element {} is {}", name,
                                   storage_->files->shards[t.shard].name, i, out.f32[i]));
        break;
      }
    }
    out.f64.assign(out.f32.begin(), out.f32.end());
    return out;
  }

 private:
  const TensorBytes& find(const std::string& name) const {
    const auto at = storage_->files->tensors.find(name);
    DI_CHECK(at != storage_->files->tensors.end(),
             "the comparison with the table let pass that there is no " + name);
    return at->second;
  }
  // Kernels read whole elements. Well-formed writers align data; a file whose header has an odd length is
  // legal all the same, so its matrices are copied once.
  const uint8_t* aligned(const TensorBytes& t) {
    const auto size = static_cast<uintptr_t>(dtype_bytes(t.spec.dtype));
    if (reinterpret_cast<uintptr_t>(t.data) % size == 0) return t.data;
    storage_->copies.push_back(std::make_unique_for_overwrite<uint8_t[]>(t.bytes));
    std::memcpy(storage_->copies.back().get(), t.data, t.bytes);
    return storage_->copies.back().get();
  }
  void advise(const TensorBytes& t, MapAdvice advice) const {
    const MappedFile& file = storage_->files->shards[t.shard].file;
    file.advise(advice, static_cast<size_t>(t.data - file.data()), t.bytes);
  }

  Storage* storage_;
  ProblemList* problems_;
};

}  // namespace

Result<ModelWeights> load_checkpoint(const std::string& dir, const LoadOptions& options) {
  ProblemList problems;
  auto storage = std::make_shared<Storage>();
  DI_ASSIGN(storage->files, open_checkpoint_files(dir, options.check_values, &problems));
  DI_TRY(problems.to_status(dir));
  if (options.check_values) {
    check_values(*storage->files, &problems);
    DI_TRY(problems.to_status(dir));
  }
  FileSource source(storage.get(), &problems);
  ModelWeights weights = bind_weights(storage->files->config, source);
  DI_TRY(problems.to_status(dir));
  weights.token_map = storage->files->token_map;
  for (const auto& shard : storage->files->shards) weights.mapped.push_back(shard.file.bytes());
  weights.expert_memory_bytes = options.expert_memory_bytes;
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace deepinfer
