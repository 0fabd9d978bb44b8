// Wording and keys of the inspector.
#include "apps/inspect_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "model/layer_map.h"
#include "model/sizes.h"
#include "model/tensor_table.h"

namespace deepinfer {
namespace {

using json = nlohmann::ordered_json;

constexpr std::array<TensorClass, 6> kClasses = {TensorClass::kBackbone,    TensorClass::kRoutedExpert,
                                                 TensorClass::kEngramTable, TensorClass::kDraft,
                                                 TensorClass::kDraftExpert, TensorClass::kVision};
constexpr std::array<DType, 5> kTypes = {DType::kI8, DType::kF8E4M3, DType::kF8E8M0, DType::kBF16,
                                         DType::kF32};

// A layer number, or null for "none".
json layer_or_null(int layer) {
  return layer < 0 ? json(nullptr) : json(layer);
}

json layers_json(const ModelConfig& config) {
  json list = json::array();
  for (const LayerRole& r : layer_map(config)) {
    list.push_back({{"layer", r.layer},
                    {"half", r.decoder ? "decoder" : "encoder"},
                    {"ratio", r.ratio},
                    {"role", r.role_name()},
                    {"kv_source", layer_or_null(r.kv_source)},
                    {"index_source", layer_or_null(r.index_source)},
                    {"candidate_source", r.candidate_source},
                    {"uses_pool", r.uses_pool},
                    {"engram_table", layer_or_null(r.engram)},
                    {"tap", layer_or_null(r.tap)}});
  }
  return list;
}

json tensors_json(const TensorTotals& totals) {
  json j;
  j["total"] = {{"count", totals.count}, {"bytes", totals.bytes}};
  for (TensorClass c : kClasses) {
    const auto i = static_cast<size_t>(c);
    j["by_class"][tensor_class_name(c)] = {{"count", totals.class_count[i]},
                                           {"bytes", totals.class_bytes[i]}};
  }
  for (DType d : kTypes) j["by_dtype"][dtype_tag(d)] = totals.dtype_bytes_[static_cast<size_t>(d)];
  return j;
}

json memory_json(const InspectFacts& f) {
  const MemoryPlan plan = plan_memory(f.config, f.ram_bytes, f.sequences, f.context_tokens);
  json j;
  j["sequences"] = f.sequences;
  j["context_tokens"] = std::min(f.context_tokens, f.config.max_position_embeddings);
  j["resident_bytes"] = plan.resident_bytes;
  j["mapped_bytes"] = plan.mapped_bytes;
  j["max_context_tokens"] = plan.max_context_tokens;
  if (f.ram_bytes > 0) {
    j["ram_bytes"] = f.ram_bytes;
    j["fits"] = plan.fits;
  }
  j["lines"] = json::array();
  for (const MemoryLine& line : plan.lines) {
    j["lines"].push_back(
        {{"name", line.name}, {"bytes", line.bytes}, {"mapped", line.mapped}, {"note", line.note}});
  }
  return j;
}

std::string separated(int64_t n) {
  std::string s = std::to_string(n);
  for (auto i = static_cast<int64_t>(s.size()) - 3; i > 0; i -= 3) s.insert(static_cast<size_t>(i), ",");
  return s;
}

std::string config_text(const ModelConfig& c) {
  std::string s = fmt::format("model {}\n", c.name);
  s += fmt::format("  vocabulary {}, hidden {} x {} streams, {} layers + {} draft stages\n", c.vocab_size,
                   c.hidden_size, c.hc_mult, c.num_hidden_layers, c.num_nextn_predict_layers);
  s += fmt::format(
      "  attention: {} heads of {} ({} rotary), query rank {}, output {} groups of rank {}, window {}\n",
      c.num_attention_heads, c.head_dim, c.qk_rope_head_dim, c.q_lora_rank, c.o_groups, c.o_lora_rank,
      c.sliding_window);
  s += fmt::format("  indexer: {} heads of {}, top {}", c.index_n_heads, c.index_head_dim, c.index_topk);
  if (c.candidate_source_layer_id >= 0) {
    s += fmt::format(", pool of {} blocks of {}", c.candidate_topk_blocks, c.candidate_block_size);
  }
  s += fmt::format("\n  experts: {} routed, {} per token, {} shared, width {}\n", c.n_routed_experts,
                   c.num_experts_per_tok, c.n_shared_experts, c.moe_intermediate_size);
  if (!c.engram_layer_ids.empty()) {
    s += fmt::format("  engram: layers {}, up to {}-grams, {} heads of {}, tables of {} rows\n",
                     fmt::join(c.engram_layer_ids, ", "), c.engram_max_ngram_size, c.engram_n_heads,
                     c.engram_head_dim, fmt::join(c.engram_num_embeddings, " and "));
  }
  if (c.num_nextn_predict_layers > 0) {
    s += fmt::format("  drafts: {} per pass, taps {}, {} experts, {} per token\n", c.dspark_block_size,
                     fmt::join(c.dspark_target_layer_ids, ", "), c.dspark_n_routed_experts,
                     c.dspark_num_experts_per_tok);
  }
  if (c.vision.num_hidden_layers > 0) {
    s += fmt::format("  vision: {} layers of {}\n", c.vision.num_hidden_layers, c.vision.hidden_size);
  }
  s += fmt::format("  positions {}\n", separated(c.max_position_embeddings));
  return s;
}

// One line of the layer map without its layer numbers; neighbours with the same line are printed as a range.
std::string role_line(const LayerRole& r) {
  const auto source = [](int layer, bool own) {
    return layer < 0 ? std::string("-") : own ? "own" : std::to_string(layer);
  };
  std::string notes;
  if (r.candidate_source) notes += " publishes the pool";
  if (r.uses_pool) notes += " uses the pool";
  if (r.engram >= 0) notes += fmt::format(" engram table {}", r.engram);
  if (r.tap >= 0) notes += " tap";
  return fmt::format("{:<8} {:>5}  {:<8} {:>6} {:>10} {}", r.decoder ? "decoder" : "encoder", r.ratio,
                     r.role_name(), source(r.kv_source, r.owns_kv), source(r.index_source, r.owns_index),
                     notes);
}

std::string layers_text(const ModelConfig& config) {
  std::string s = fmt::format("layers    {:<8} {:>5}  {:<8} {:>6} {:>10}\n", "half", "ratio", "role", "kv of",
                              "index of");
  const std::vector<LayerRole> map = layer_map(config);
  for (size_t i = 0; i < map.size();) {
    size_t end = i + 1;
    while (end < map.size() && role_line(map[end]) == role_line(map[i])) ++end;
    const std::string range =
        end == i + 1 ? std::to_string(map[i].layer) : fmt::format("{}-{}", map[i].layer, map[end - 1].layer);
    std::string line = fmt::format("{:<9} {}", range, role_line(map[i]));
    line.erase(line.find_last_not_of(' ') + 1);
    s += line + "\n";
    i = end;
  }
  return s;
}

std::string tensors_text(const TensorTotals& totals) {
  std::string s = fmt::format("{:<16} {:>9} {:>19}\n", "tensors", "count", "bytes");
  for (TensorClass c : kClasses) {
    const auto i = static_cast<size_t>(c);
    if (totals.class_count[i] == 0) continue;
    s += fmt::format("{:<16} {:>9} {:>19}\n", tensor_class_name(c), separated(totals.class_count[i]),
                     separated(totals.class_bytes[i]));
  }
  return s + fmt::format("{:<16} {:>9} {:>19}\n", "total", separated(totals.count), separated(totals.bytes));
}

std::string check_text(const CheckOutcome& check) {
  if (check.problem_count == 0)
    return fmt::format("check: every tensor and value is right ({:.1f} s)\n", check.seconds);
  std::string s = fmt::format("check: {} problems\n", check.problem_count);
  for (const std::string& p : check.problems) s += "  " + p + "\n";
  const int64_t rest = check.problem_count - static_cast<int64_t>(check.problems.size());
  if (rest > 0) s += fmt::format("  and {} more\n", rest);
  return s;
}

}  // namespace

json inspect_json(const InspectFacts& f) {
  json j;
  j["name"] = f.config.name;
  j["config"] = json::parse(config_to_json(f.config));
  j["layers"] = layers_json(f.config);
  j["tensors"] = tensors_json(tensor_totals(f.config));
  j["kv_bytes_per_token"] = kv_bytes_per_token(f.config);
  j["memory"] = memory_json(f);
  if (f.check) {
    j["check"] = {{"ok", f.check->problem_count == 0},
                  {"problem_count", f.check->problem_count},
                  {"problems", f.check->problems},
                  {"seconds", f.check->seconds}};
  }
  return j;
}

std::string inspect_text(const InspectFacts& f) {
  std::string s = config_text(f.config) + "\n" + layers_text(f.config) + "\n" +
                  tensors_text(tensor_totals(f.config)) + "\n";
  s += fmt::format("KV cache: {} bytes per token\n\nmemory plan\n", separated(kv_bytes_per_token(f.config)));
  s += plan_memory(f.config, f.ram_bytes, f.sequences, f.context_tokens).to_text();
  if (f.check) s += "\n" + check_text(*f.check);
  return s;
}

}  // namespace deepinfer
