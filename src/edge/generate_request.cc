// Bodies and answers of edge/generate_request.h.
#include "edge/generate_request.h"

#include <utility>

#include "edge/fields.h"
#include "edge/writer_parts.h"

namespace deepinfer {
namespace {

constexpr int64_t kDefaultTokens = 128;  // what its clients expect of a request without a limit

// A schema comes as text there.
Status copy_schema(const Json& sampling, Json* out) {
  const auto it = sampling.find("json_schema");
  if (it == sampling.end() || it->is_null()) return {};
  if (!it->is_string()) {
    (*out)["guided_json"] = *it;
    return {};
  }
  DI_ASSIGN((*out)["guided_json"], parse_json(it->get<std::string>()));
  return {};
}

Status copy_sampling(const Json& sampling, Json* out) {
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"max_new_tokens", "max_tokens"},
      {"min_new_tokens", "min_tokens"},
      {"sampling_seed", "seed"},
      {"regex", "guided_regex"},
      {"ebnf", "guided_grammar"},
      {"temperature", "temperature"},
      {"top_p", "top_p"},
      {"top_k", "top_k"},
      {"min_p", "min_p"},
      {"frequency_penalty", "frequency_penalty"},
      {"presence_penalty", "presence_penalty"},
      {"repetition_penalty", "repetition_penalty"},
      {"logit_bias", "logit_bias"},
      {"stop", "stop"},
      {"stop_token_ids", "stop_token_ids"},
      {"ignore_eos", "ignore_eos"},
      {"n", "n"}};
  for (const auto& [theirs, ours] : kNames) {
    const auto it = sampling.find(theirs);
    if (it != sampling.end() && !it->is_null()) (*out)[ours] = *it;
  }
  return copy_schema(sampling, out);
}

class GenerateWriter : public ResponseWriter {
 public:
  explicit GenerateWriter(ResponseInfo info) : info_(std::move(info)) {}

  void write(const OutputChunk& c, std::vector<Event>* out) override {
    using K = OutputChunk::Kind;
    if (done_) return;
    if (c.kind == K::kStart) {
      usage_ = c.usage;
    } else if (c.kind == K::kText) {
      text_ += c.text;
      usage_.completion_tokens = c.usage.completion_tokens;
      out->push_back({"", object(nullptr)});
    } else if (c.kind == K::kFinish) {
      usage_ = c.usage;
      reason_ = {{"type", c.reason == FinishReason::kLength ? "length" : "stop"}};
      if (c.reason == FinishReason::kLength) {
        reason_["length"] = usage_.completion_tokens;
      } else {
        reason_["matched"] = c.stop_string ? Json(*c.stop_string) : Json();
      }
      out->push_back({"", object(reason_)});
      out->push_back({"", "[DONE]"});
      done_ = true;
    }
  }

  std::string final_object() const override { return object(reason_); }

 private:
  std::string object(const Json& reason) const {
    return compact_json({{"text", text_},
                         {"meta_info",
                          {{"id", info_.id},
                           {"finish_reason", reason},
                           {"prompt_tokens", usage_.prompt_tokens},
                           {"completion_tokens", usage_.completion_tokens},
                           {"cached_tokens", usage_.cache_hit_tokens}}}});
  }

  ResponseInfo info_;
  std::string text_;
  Usage usage_;
  Json reason_;
  bool done_ = false;
};

}  // namespace

Result<Json> completion_of_generate(const Json& body, const std::string& model) {
  if (!body.is_object()) return bad_body("", "expected an object");
  Fields f(body, "");
  const Json* sampling = f.object("sampling_params");
  const bool logprobs = f.flag("return_logprob").value_or(false);
  const bool stream = f.flag("stream").value_or(false);
  DI_TRY(f.status());
  if (logprobs)
    return refuse("return_logprob is not supported on /generate; /v1/chat/completions has logprobs");
  const Json *text = f.any("text"), *ids = f.any("input_ids");
  if ((text != nullptr) == (ids != nullptr))
    return refuse("give the prompt either as \"text\" or as \"input_ids\"");
  if (text != nullptr && !text->is_string())
    return bad_body("text", "expected a string: one prompt a request");
  if (ids != nullptr && !ids->is_array()) return bad_body("input_ids", "expected an array of ids");
  Json out = {{"model", model},
              {"prompt", text != nullptr ? *text : *ids},
              {"stream", stream},
              {"max_tokens", kDefaultTokens}};
  if (sampling != nullptr) DI_TRY(copy_sampling(*sampling, &out));
  if (out.contains("n") && out["n"] != 1) return refuse("sampling_params.n must be 1 on /generate");
  return out;
}

std::unique_ptr<ResponseWriter> make_generate_writer(ResponseInfo info) {
  return std::make_unique<GenerateWriter>(std::move(info));
}

}  // namespace deepinfer
