// config.json to ModelConfig and back: the nested form (text_config, vision_config, quantization_config) and
// the flat form of the reference, through the field list of config_fields.h. Rules between fields are
// config_validate.cc's. Source: model specification 1.1 to 1.4.
#include <cmath>
#include <limits>
#include <type_traits>

#include "model/config.h"
#include "model/config_fields.h"
#include "model/config_json.h"

namespace deepinfer {
namespace {

using config_fields::Need;
using nlohmann::json;

constexpr int64_t kReleasedContext = 1048576;
constexpr size_t kMaxListLength = 4096;

// Looks fields up in one object (with `fallback` behind it) and keeps the first error. After an error it
// reads nothing.
class FieldReader {
 public:
  // `prefix` is put before names in messages ("text_config."). REQUIRES both objects to outlive the reader.
  FieldReader(const json& object, std::string prefix, const json* fallback = nullptr)
      : object_(object), prefix_(std::move(prefix)), fallback_(fallback) {}

  const Status& status() const { return status_; }

  template <typename Int>
  void integer(const char* name, const char* flat, Int& value, Need need, int64_t min, int64_t max) {
    const json* found = find(name, flat, need);
    if (found != nullptr) read_integer(*found, shown_name_, value, min, max);
  }
  void real(const char* name, const char* flat, double& value, double min, double max) {
    const json* found = find(name, flat, Need::kOptional);
    if (found == nullptr) return;
    if (!found->is_number()) return wrong_type(shown_name_, "a number", *found);
    double d = found->get<double>();
    if (!std::isfinite(d) || d < min || d > max) {
      status_ =
          error(Code::kInvalidConfig, "{} is {}; it must be between {} and {}", shown_name_, d, min, max);
      return;
    }
    value = d;
  }
  template <typename Int>
  void list(const char* name, const char* flat, std::vector<Int>& values, Need need, int64_t min,
            int64_t max) {
    const json* found = find(name, flat, need);
    if (found == nullptr) return;
    if (!found->is_array()) return wrong_type(shown_name_, "a list of integers", *found);
    if (found->size() > kMaxListLength) {
      status_ = error(Code::kInvalidConfig, "{} has {} entries; it may have at most {}", shown_name_,
                      found->size(), kMaxListLength);
      return;
    }
    values.assign(found->size(), 0);
    const std::string name_of_list = shown_name_;
    for (size_t i = 0; i < values.size() && status_.ok(); ++i) {
      read_integer((*found)[i], fmt::format("{}[{}]", name_of_list, i), values[i], min, max);
    }
  }
  void flag(const char* name, const char* flat, bool& value) {
    const json* found = find(name, flat, Need::kOptional);
    if (found == nullptr) return;
    if (!found->is_boolean()) return wrong_type(shown_name_, "true or false", *found);
    value = found->get<bool>();
  }
  void text(const char* name, const char* flat, std::string& value) {
    const json* found = find(name, flat, Need::kOptional);
    if (found == nullptr) return;
    if (!found->is_string()) return wrong_type(shown_name_, "a string", *found);
    value = found->get<std::string>();
  }
  void scoring(const char* name, const char* flat, ScoringFunc& value) {
    std::string word;
    text(name, flat, word);
    if (!has(name, flat)) return;
    if (word == "sqrtsoftplus")
      value = ScoringFunc::kSqrtSoftplus;
    else if (word == "softmax")
      value = ScoringFunc::kSoftmax;
    else if (word == "sigmoid")
      value = ScoringFunc::kSigmoid;
    else {
      status_ = error(Code::kInvalidConfig, "{} is {}; it must be sqrtsoftplus, softmax or sigmoid",
                      shown_name_, describe_json(json(word)));
    }
  }
  // Refuses a field that says the model is of another architecture. Absent is fine: the value is the only one
  // we know.
  void fixed(const char* name, const json& only) {
    const json* found = find(name, nullptr, Need::kOptional);
    if (found == nullptr || *found == only) return;
    status_ = error(Code::kInvalidConfig, "{} is {}; this architecture has only {}", shown_name_,
                    describe_json(*found), only.dump());
  }
  // An object of its own; nullptr if absent or null.
  const json* object(const char* name) {
    const json* found = find(name, nullptr, Need::kOptional);
    if (found == nullptr) return nullptr;
    if (found->is_object()) return found;
    wrong_type(shown_name_, "an object", *found);
    return nullptr;
  }
  bool has(const char* name, const char* flat) const {
    return status_.ok() && (lookup(name) != nullptr || lookup(flat) != nullptr);
  }
  void require(const char* name, const char* flat) { (void)find(name, flat, Need::kRequired); }

 private:
  // null means absent, as configuration writers use it.
  const json* lookup(const char* name) const {
    if (name == nullptr) return nullptr;
    for (const json* place : {&object_, fallback_}) {
      if (place == nullptr) continue;
      auto it = place->find(name);
      if (it != place->end() && !it->is_null()) return &*it;
    }
    return nullptr;
  }
  const json* find(const char* name, const char* flat, Need need) {
    if (!status_.ok()) return nullptr;
    const json* a = lookup(name);
    const json* b = lookup(flat);
    shown_name_ = prefix_ + (a == nullptr && b != nullptr ? flat : name);
    if (a != nullptr && b != nullptr && *a != *b) {
      status_ = error(Code::kInvalidConfig, "{} is {} but its other name {} is {}; give one of them",
                      shown_name_, describe_json(*a), flat, describe_json(*b));
      return nullptr;
    }
    if (a == nullptr && b == nullptr && need == Need::kRequired) {
      status_ = error(Code::kInvalidConfig, "{} is missing{}; it has no default", shown_name_,
                      flat == nullptr ? std::string() : fmt::format(" (flat name {})", flat));
    }
    return a != nullptr ? a : b;
  }
  void wrong_type(const std::string& name, const char* wanted, const json& found) {
    status_ = error(Code::kInvalidConfig, "{} must be {}, found {}", name, wanted, describe_json(found));
  }
  template <typename Int>
  void read_integer(const json& found, const std::string& name, Int& value, int64_t min, int64_t max) {
    if (!found.is_number_integer()) return wrong_type(name, "an integer", found);
    bool beyond = found.is_number_unsigned() &&
                  found.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    int64_t n = beyond ? std::numeric_limits<int64_t>::max() : found.get<int64_t>();
    if (beyond || n < min || n > max) {
      status_ = error(Code::kInvalidConfig, "{} is {}; it must be between {} and {}", name,
                      beyond ? fmt::format("{}", found.get<uint64_t>()) : fmt::format("{}", n), min, max);
      return;
    }
    value = static_cast<Int>(n);
  }

  const json& object_;
  std::string prefix_;
  const json* fallback_;
  Status status_;
  std::string shown_name_;  // of the field looked up last
};

// rope_scaling as an object, or its numbers in the flat form. Without an original length there is no YaRN,
// and then the other numbers mean nothing and keep their defaults.
Status read_rope_scaling(FieldReader& text, const json& source, const std::string& prefix, RopeScaling& out) {
  const json* nested = text.object("rope_scaling");
  DI_TRY(text.status());
  std::string kind = "yarn";
  RopeScaling scaling;
  if (nested != nullptr) {
    FieldReader reader(*nested, prefix + "rope_scaling.");
    reader.text("rope_type", "type", kind);
    DI_TRY(reader.status());
    if (kind == "default") return {};
    reader.require("factor", nullptr);
    config_fields::visit_yarn(scaling, reader);
    DI_TRY(reader.status());
  } else {
    if (!text.has("original_max_position_embeddings", "original_seq_len")) return {};
    FieldReader reader(source, prefix);
    config_fields::visit_yarn(scaling, reader);
    DI_TRY(reader.status());
    if (scaling.original_max_position_embeddings > 0) reader.require("factor", "rope_factor");
    DI_TRY(reader.status());
  }
  if (kind != "yarn") {
    return error(Code::kInvalidConfig, "{}rope_scaling.rope_type is {}; it must be yarn or default", prefix,
                 describe_json(json(kind)));
  }
  if (scaling.original_max_position_embeddings > 0) out = scaling;
  return {};
}

// The formats of the weights. Without a quantization_config the flat names dtype and expert_dtype say it.
Status read_formats(FieldReader& root, bool flat, ModelConfig& c) {
  const json* quant = root.object("quantization_config");
  DI_TRY(root.status());
  if (quant == nullptr) {
    // The flat dtype is fp8 or bf16; "bfloat16" is the nested spelling of the compute type and says nothing
    // about weights.
    std::string dtype = c.dense_dtype;
    if (flat) root.text("dtype", nullptr, dtype);
    if (dtype != "bfloat16") c.dense_dtype = dtype;
    root.text("expert_dtype", nullptr, c.expert_dtype);
    return root.status();
  }
  FieldReader reader(*quant, "quantization_config.");
  reader.text("quant_method", nullptr, c.dense_dtype);
  reader.text("expert_dtype", nullptr, c.expert_dtype);
  reader.fixed("weight_block_size", json::array({32, 32}));
  reader.fixed("scale_fmt", "ue8m0");
  return reader.status();
}

Status read_vision(FieldReader& root, VisionConfig& out) {
  const json* object = root.object("vision_config");
  DI_TRY(root.status());
  if (object == nullptr) return {};
  FieldReader reader(*object, "vision_config.");
  VisionConfig vision;
  config_fields::visit_vision_layers(vision, reader);
  DI_TRY(reader.status());
  if (vision.num_hidden_layers == 0) return {};
  config_fields::visit_vision(vision, reader);
  DI_TRY(reader.status());
  out = vision;
  return {};
}

Status read_text(FieldReader& text, ModelConfig& c) {
  text.fixed("num_key_value_heads", 1);
  text.fixed("attention_bias", false);
  text.fixed("hidden_act", "silu");
  text.fixed("topk_method", "noaux_tc");
  text.fixed("tie_word_embeddings", false);
  config_fields::visit_backbone(c, text);
  if (c.candidate_source_layer_id < 0)
    c.candidate_source_layer_id = -1;
  else
    config_fields::visit_candidates(c, text);
  if (!c.engram_layer_ids.empty()) config_fields::visit_engram(c, text);
  if (c.num_nextn_predict_layers > 0) config_fields::visit_draft(c, text);
  return text.status();
}

Result<ModelConfig> read_config(const json& root, const std::string& where) {
  ModelConfig c;
  c.name = where;
  FieldReader root_fields(root, "");
  const json* nested = root_fields.object("text_config");
  // A flat file may be the text part of a nested one, with that part's own type.
  bool text_part = nested == nullptr && root.value("model_type", json()) == json("deepseek_v41_text");
  if (!text_part) root_fields.fixed("model_type", "deepseek_v41");
  DI_TRY(root_fields.status());
  const json& text = nested != nullptr ? *nested : root;
  const std::string prefix = nested != nullptr ? "text_config." : "";
  FieldReader text_fields(text, prefix);
  DI_TRY(read_text(text_fields, c));
  DI_TRY(read_rope_scaling(text_fields, text, prefix, c.rope_scaling));
  if (c.rope_scaling.original_max_position_embeddings > 0) {
    double reach =
        c.rope_scaling.factor * static_cast<double>(c.rope_scaling.original_max_position_embeddings);
    c.max_position_embeddings = reach < 0x1p31 ? static_cast<int64_t>(reach) : int64_t{1} << 31;
  } else {
    c.max_position_embeddings = kReleasedContext;
  }
  config_fields::visit_positions(c, text_fields);
  DI_TRY(text_fields.status());
  FieldReader token_fields(root, "", &text);
  config_fields::visit_tokens(c, token_fields);
  DI_TRY(token_fields.status());
  DI_TRY(read_formats(root_fields, nested == nullptr, c));
  DI_TRY(read_vision(root_fields, c.vision));
  return c;
}

// Writes every visited field under its nested name.
struct FieldWriter {
  nlohmann::ordered_json& out;
  template <typename Int>
  void integer(const char* name, const char*, const Int& value, Need, int64_t, int64_t) {
    out[name] = value;
  }
  void real(const char* name, const char*, const double& value, double, double) { out[name] = value; }
  template <typename Int>
  void list(const char* name, const char*, const std::vector<Int>& values, Need, int64_t, int64_t) {
    out[name] = values;
  }
  void flag(const char* name, const char*, const bool& value) { out[name] = value; }
  void scoring(const char* name, const char*, const ScoringFunc& value) {
    out[name] = value == ScoringFunc::kSqrtSoftplus ? "sqrtsoftplus"
                : value == ScoringFunc::kSoftmax    ? "softmax"
                                                    : "sigmoid";
  }
};

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, const std::string& where) {
  Result<json> document = parse_config_json(text);
  if (!document.ok()) return document.status().with_context(where);
  Result<ModelConfig> config = read_config(document.value(), where);
  if (!config.ok()) return config.status().with_context(where);
  Status valid = validate(config.value());
  if (!valid.ok()) return valid.with_context(where);
  return config;
}

std::string config_to_json(const ModelConfig& c) {
  nlohmann::ordered_json root;
  root["architectures"] = {"DeepseekV41ForCausalLM"};
  root["model_type"] = "deepseek_v41";
  root["dtype"] = "bfloat16";
  FieldWriter root_writer{root};
  config_fields::visit_tokens(c, root_writer);
  root["quantization_config"] = {{"quant_method", c.dense_dtype},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {32, 32}},
                                 {"scale_fmt", "ue8m0"},
                                 {"expert_dtype", c.expert_dtype}};
  nlohmann::ordered_json text;
  text["model_type"] = "deepseek_v41_text";
  text["num_key_value_heads"] = 1;
  text["attention_bias"] = false;
  text["hidden_act"] = "silu";
  text["topk_method"] = "noaux_tc";
  text["tie_word_embeddings"] = false;
  FieldWriter writer{text};
  config_fields::visit_backbone(c, writer);
  if (c.candidate_source_layer_id >= 0) config_fields::visit_candidates(c, writer);
  if (!c.engram_layer_ids.empty()) config_fields::visit_engram(c, writer);
  if (c.num_nextn_predict_layers > 0) config_fields::visit_draft(c, writer);
  config_fields::visit_positions(c, writer);
  if (c.rope_scaling.original_max_position_embeddings > 0) {
    nlohmann::ordered_json scaling;
    scaling["rope_type"] = "yarn";
    FieldWriter scaling_writer{scaling};
    config_fields::visit_yarn(c.rope_scaling, scaling_writer);
    text["rope_scaling"] = std::move(scaling);
  }
  root["text_config"] = std::move(text);
  if (c.vision.num_hidden_layers > 0) {
    nlohmann::ordered_json vision;
    vision["model_type"] = "deepseek_v41_vision";
    FieldWriter vision_writer{vision};
    config_fields::visit_vision_layers(c.vision, vision_writer);
    config_fields::visit_vision(c.vision, vision_writer);
    if (c.vision.max_wh_ratio == 0.0) vision["max_wh_ratio"] = nullptr;
    root["vision_config"] = std::move(vision);
  }
  return root.dump(2) + "\n";
}

}  // namespace deepinfer
