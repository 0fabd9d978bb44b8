// The tensor table of a checkpoint as one declarative description: names, types, shapes and classes for any
// configuration. Loader, inspector, synthesiser and planner all read this and nothing else. No I/O.
// Source: model specification 9.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace deepinfer {

enum class DType { kBF16, kF32, kF8E4M3, kF8E8M0, kI8 };
const char* dtype_tag(DType t);  // the safetensors tag: "BF16", "F32", "F8_E4M3", "F8_E8M0", "I8"
int64_t dtype_bytes(DType t);

// How the synthesiser fills a tensor and how a reader treats it (model specification 12.7).
enum class Role {
  kProjection,   // [o, i] matrix: u * sqrt(3/i)
  kNormWeight,   // 1 + 0.25 u
  kHcScale,      // 1 + 0.25 u
  kEmbedding,    // u
  kHcBase,       // 0.5 u
  kGateBias,     // 0.1 u
  kSink,         // u
  kEngramTable,  // u * sqrt(3)
  kBias,         // vision biases: 0.1 u
  kScale,        // the E8M0 sibling of a quantised weight
};

// Accounting classes of model specification 9.4.
enum class TensorClass { kBackbone, kRoutedExpert, kEngramTable, kDraftExpert, kDraft, kVision };
const char* tensor_class_name(TensorClass c);

struct TensorSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  Role role;
  TensorClass cls;
  int layer = -1;  // backbone layer; draft stages are num_hidden_layers + i; -1 for globals
  int64_t elements() const;
  int64_t bytes() const;
};

// Calls `visit` for every tensor of the configuration in file order (globals, vision, layers, draft, Engram
// tables); a quantised weight is followed by its scale. Streaming: nothing of size O(tensors) is kept.
void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit);
std::vector<TensorSpec> tensor_table(const ModelConfig& config);

struct TensorTotals {
  int64_t count = 0, bytes = 0;
  int64_t class_count[6] = {}, class_bytes[6] = {};
  int64_t dtype_bytes_[5] = {};
};
TensorTotals tensor_totals(const ModelConfig& config);

}  // namespace deepinfer
