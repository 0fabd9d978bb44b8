// model.safetensors.index.json: which file of a checkpoint holds which tensor. Untrusted input: file names
// must be plain names inside the directory. Knows no tensors by heart. Source: model specification 9.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // tensor name -> file name
  std::vector<std::string> files;                 // each file once, sorted
  std::optional<uint64_t> total_size;             // payload bytes, if stated
};

// Longer texts are refused: the released index with 96,085 tensors has about 9 MB.
inline constexpr uint64_t kMaxShardIndexBytes = 256'000'000;

// Errors: kInvalidData with `where`: not such a JSON object, no weight_map, a tensor or member twice, a file
// name that is not a plain name (a path, "..", a control character, another ending than .safetensors).
Result<ShardIndex> parse_shard_index(std::span<const uint8_t> text, const std::string& where);
std::string make_shard_index(const ShardIndex& index);

}  // namespace deepinfer
