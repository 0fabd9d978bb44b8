// All weights of a model as views, whatever they came from: a mapped checkpoint in the released formats, or
// the exact synthetic values of the golden runs. Knows names and formats, no arithmetic. Source: model
// specification 9 and 12.7.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/matrix_view.h"

namespace deepinfer {

// One mHC site (attention or FFN): fn [24, hc*H] fp32, base [24], scale [3].
struct HcSite {
  MatrixView fn;
  SmallTensor base, scale;
};

struct ExpertWeights {
  MatrixView w1, w3, w2;  // gate, up [I, H]; down [H, I]
};

struct CompressorWeights {
  MatrixView wkv, wgate;  // [D, H]; wgate empty at ratio 1
  SmallTensor norm;       // [D]
  MatrixView wk;          // indexer.wk [ID, D]
  SmallTensor k_norm;     // [ID]
};

struct IndexerWeights {
  MatrixView wq_b;          // [IH*ID, q_lora]
  MatrixView weights_proj;  // [IH, H]
};

struct EngramWeights {
  MatrixView table;                // [rows, engram_head_dim], mapped, gathered by row
  MatrixView wkv;                  // [(hc+1)*H, lookup width]
  SmallTensor q_weight, k_weight;  // [hc*H]
};

// A backbone layer or a draft stage.
struct BlockWeights {
  SmallTensor attn_norm, ffn_norm;  // [H]
  HcSite hc_attn, hc_ffn;
  MatrixView wq_a, wq_b, wkv, wo_a, wo_b;
  SmallTensor q_norm, kv_norm, attn_sink;
  MatrixView gate;  // [E, H] bf16
  SmallTensor gate_bias, gate_bias_vl;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  std::unique_ptr<CompressorWeights> compressor;  // kv sources
  std::unique_ptr<IndexerWeights> indexer;        // index sources
  std::unique_ptr<EngramWeights> engram;          // Engram layers
};

struct DraftWeights {
  MatrixView main_proj;  // [H, taps*H]
  SmallTensor main_norm, norm;
  MatrixView markov_embed, markov_head;  // [V, rank]
  MatrixView confidence;                 // [1, H+rank]
};

struct ModelWeights {
  ModelConfig config;
  MatrixView embed, head;  // [V, H]
  SmallTensor norm;
  MatrixView image_start, image_end, image_newline;  // [1, H]
  std::vector<BlockWeights> layers;                  // num_hidden_layers
  std::vector<BlockWeights> mtp;                     // num_nextn_predict_layers
  DraftWeights draft;
  std::vector<int32_t> token_map;  // compressed id per token id, for Engram
  // File mappings that views point into: their pages can be forgotten and come back from the file. Other
  // memory cannot.
  std::vector<std::span<const uint8_t>> mapped;
  bool is_mapped(const uint8_t* data, size_t bytes) const {
    return std::any_of(mapped.begin(), mapped.end(), [&](std::span<const uint8_t> m) {
      return data >= m.data() && data + bytes <= m.data() + m.size();
    });
  }
  int64_t expert_memory_bytes = 0;  // of routed experts that may be resident at a time; 0: all
  // Keeps mappings and buffers alive; views point into it.
  std::shared_ptr<const void> storage;
};

// The weights of model specification 12.7 without any quantisation, as F64 matrices (golden runs, math mode).
// Tiny configurations only: kUnsupported above 2e9 elements. Token map: the tiny rule.
Result<ModelWeights> exact_synthetic_weights(const ModelConfig& config);

struct LoadOptions {
  bool check_values =
      false;  // scan every scale and norm for NaN (inspect --check); otherwise only small tensors are scanned
  int64_t expert_memory_bytes = 0;  // to ModelWeights
};

// Opens a checkpoint directory in the released format: config.json, model.safetensors.index.json (or one
// model.safetensors), engram_token_map.i32 (or, for configurations that follow the tiny rule, none). Every
// tensor of the table must be there with its type and shape and nothing else; the error lists what differs
// (first 20). Files are mapped, never copied whole.
Result<ModelWeights> load_checkpoint(const std::string& dir, const LoadOptions& options = {});

}  // namespace deepinfer
