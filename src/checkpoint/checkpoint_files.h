// The files of a checkpoint directory, mapped and held against the tensor table: which bytes are which
// tensor. Finds everything that differs; gives no weights yet. Source: model specification 9. Threads:
// immutable once opened.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/problems.h"
#include "checkpoint/safetensors.h"
#include "host/mapped_file.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace deepinfer {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kTokenMapFile = "engram_token_map.i32";
inline constexpr const char* kTokenizerFile = "tokenizer.json";
inline constexpr const char* kGenerationConfigFile = "generation_config.json";

// One safetensors file. `header` is empty when the file could not be read (then a problem says why).
struct ShardFile {
  std::string name;
  MappedFile file;
  SafetensorsHeader header;
  bool readable = false;
};

// A tensor of the table and where its bytes lie.
struct TensorBytes {
  TensorSpec spec;
  size_t shard = 0;
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};

struct CheckpointFiles {
  std::string dir;
  ModelConfig config;
  std::vector<ShardFile> shards;
  std::unordered_map<std::string, TensorBytes> tensors;  // by the table's name
  std::vector<int32_t> token_map;                        // empty without Engram layers
};

// The configuration of a directory. Errors: kNotFound without config.json, kIo, those of parse_config.
Result<ModelConfig> read_checkpoint_config(const std::string& dir);

// Opens the directory and compares. Differences go to `problems`; `tensors` then holds those that are right.
// Errors: those of read_checkpoint_config; kNotFound without weights; kInvalidData if the index cannot be
// read. `totals`: also hold the index's total_size against the files (a wrong one does no harm to loading).
Result<std::unique_ptr<CheckpointFiles>> open_checkpoint_files(const std::string& dir, bool totals,
                                                               ProblemList* problems);

}  // namespace deepinfer
