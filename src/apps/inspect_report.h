// What `deepinfer inspect` says about a configuration and a verified directory: facts in, JSON and text out.
// Pure; files are read by cmd_inspect.cc. Source: model specification 1.6, 8.4, 9.4.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace deepinfer {

// The outcome of --check.
struct CheckOutcome {
  int64_t problem_count = 0;
  std::vector<std::string> problems;  // the first ones
  double seconds = 0;
};

struct InspectFacts {
  ModelConfig config;
  int64_t ram_bytes = 0;  // of the memory plan; 0: no limit
  int sequences = 1;
  int64_t context_tokens = 0;
  std::optional<CheckOutcome> check;
};

// Stable keys: name, config, layers[] (layer, half, ratio, role, kv_source, index_source, ...),
// tensors.total.{count,bytes}, tensors.by_class.NAME.{count,bytes}, tensors.by_dtype.TAG, kv_bytes_per_token,
// memory, check.{ok,problem_count,problems}.
nlohmann::ordered_json inspect_json(const InspectFacts& facts);
std::string inspect_text(const InspectFacts& facts);

}  // namespace deepinfer
