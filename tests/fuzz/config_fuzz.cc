// Fuzzes the configuration reader: any bytes as a config.json, and a good one with numbers put into its
// fields. What is accepted must write and read back equal, and every pure function of a configuration must
// cope with it.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/engram.h"
#include "model/images.h"
#include "model/layer_map.h"
#include "model/rope.h"
#include "model/sizes.h"

namespace {

using namespace deepinfer;

void use(const ModelConfig& c) {
  Result<ModelConfig> back = parse_config(config_to_json(c), c.name);
  DI_CHECK(back.ok(), "a written configuration does not parse: " + back.status().to_string());
  DI_CHECK(*back == c, "a written configuration reads back differently");
  for (const LayerRole& role : layer_map(c)) {
    DI_CHECK((role.ratio == 0) == (role.kv_source < 0), "source without a ratio");
  }
  for (double f : main_rope_frequencies(c)) DI_CHECK(std::isfinite(f), "main frequency");
  for (double f : compress_rope_frequencies(c)) DI_CHECK(std::isfinite(f), "compress frequency");
  EngramHash hash = make_engram_hash(c);
  for (size_t i = 0; i < hash.layers.size(); ++i) {
    std::vector<int32_t> history(static_cast<size_t>(hash.max_ngram), c.engram_compressed_vocab_size - 1);
    std::vector<int64_t> ids(hash.layers[i].primes.size());
    hash.rows(i, history, ids.data());
    for (int64_t id : ids) DI_CHECK(id >= 0 && id < c.engram_num_embeddings[i], "row outside the table");
  }
  for (int64_t side : {1, 333, 100000}) {
    DI_CHECK(plan_image(side, 500, c.vision).span_tokens <= c.vision.max_image_tokens,
             "span above the limit");
  }
  DI_CHECK(kv_bytes_per_token(c) > 0 && snapshot_bytes(c) > 0, "sizes are positive");
  // The tensor table of a model with a million tensors takes too long here.
  if (c.num_hidden_layers * c.n_routed_experts <= 4096 && c.dspark_n_routed_experts <= 64) {
    DI_CHECK(plan_memory(c, int64_t{1} << 40, 3, 1 << 20).resident_bytes > 0, "the plan overflows");
  }
  if (c.num_hidden_layers > 8) (void)slice_config(c, 8, 0, 61);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    // Nine bytes each: which field of text_config, and the number or list length it gets.
    static const std::string good = config_to_json(builtin_config("t0").value());
    nlohmann::json j = nlohmann::json::parse(good);
    nlohmann::json& fields = j["text_config"];
    for (size_t at = 0; at + 9 <= text.size(); at += 9) {
      auto field = fields.begin();
      std::advance(field, static_cast<uint8_t>(text[at]) % fields.size());
      int64_t value = 0;
      std::memcpy(&value, text.data() + at + 1, sizeof value);
      if (field->is_array()) {
        std::vector<int64_t> list(static_cast<size_t>(value) % 64, (value >> 8) % 64);
        for (size_t i = 0; i < list.size(); ++i) list[i] += static_cast<int64_t>(i) * ((value >> 16) % 4);
        *field = list;
      } else if (field->is_number_float()) {
        *field = static_cast<double>(value) / 65536.0;
      } else {
        *field = value;
      }
    }
    text = j.dump();
  }
  Result<ModelConfig> config = parse_config(text, "fuzz");
  if (config.ok())
    use(*config);
  else
    DI_CHECK(config.status().message().size() < 1000, "a message repeats its input");
  return 0;
}
