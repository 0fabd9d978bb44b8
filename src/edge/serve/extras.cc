// Reads edge/serve/extras.h.
#include "edge/serve/extras.h"

#include <algorithm>

#include "edge/fields.h"

namespace deepinfer {
namespace {

class Reader {
 public:
  Reader(const Json& body, int64_t vocab_size) : body_(body), f_(body, ""), vocab_(vocab_size) {}

  Result<Extras> run() {
    DI_TRY(numbers());
    DI_TRY(ids());
    DI_TRY(bias());
    if (std::optional<std::string> salt = f_.text("cache_salt")) out_.cache_salt = *salt;
    if (out_.cache_salt.size() > 512) return refuse("cache_salt must be at most 512 bytes");
    out_.ignore_eos = f_.flag("ignore_eos").value_or(false);
    out_.use_cache = f_.flag("use_prefix_cache").value_or(true);
    if (const Json* v = f_.any("prompt_logprobs")) {
      // A number in one server's interface (how many alternatives), a flag in another's.
      if (!v->is_boolean() && !v->is_number_integer())
        return bad_body("prompt_logprobs", "expected a boolean");
      out_.prompt_logprobs = v->is_boolean() ? v->get<bool>() : v->get<int64_t>() >= 0;
    }
    if (const Json* v = f_.any("priority")) {
      if (!v->is_number_integer() || v->get<int64_t>() < -1000 || v->get<int64_t>() > 1000)
        return bad_body("priority", "expected an integer in [-1000, 1000]");
      out_.priority = static_cast<int>(v->get<int64_t>());
    }
    out_.timeout_ms = f_.count("timeout_ms");
    out_.max_completion_tokens = f_.count("max_completion_tokens");
    DI_TRY(f_.status());
    DI_TRY(structured());
    return std::move(out_);
  }

 private:
  Status numbers() {
    std::optional<int64_t> top_k;
    // -1 means "all" to some clients.
    if (const Json* v = f_.any("top_k"); v != nullptr && !(v->is_number_integer() && v->get<int64_t>() == -1))
      top_k = f_.count("top_k");
    std::optional<double> min_p = f_.number("min_p"), repetition = f_.number("repetition_penalty"),
                          frequency = f_.number("frequency_penalty"),
                          presence = f_.number("presence_penalty");
    std::optional<int64_t> min_tokens = f_.count("min_tokens");
    DI_TRY(f_.status());
    out_.top_k = static_cast<int>(std::min<int64_t>(top_k.value_or(0), INT32_MAX));
    if (min_p && !(*min_p >= 0 && *min_p < 1)) return refuse("min_p must be in [0, 1)");
    if (repetition && !(*repetition > 0 && *repetition <= 10))
      return refuse("repetition_penalty must be in (0, 10]");
    for (auto [name, v] :
         {std::pair{"frequency_penalty", frequency}, std::pair{"presence_penalty", presence}}) {
      if (v && !(*v >= -2 && *v <= 2)) return refuse("{} must be in [-2, 2]", name);
    }
    out_.min_p = min_p.value_or(0);
    out_.repetition_penalty = repetition.value_or(1);
    out_.frequency_penalty = frequency.value_or(0);
    out_.presence_penalty = presence.value_or(0);
    out_.min_tokens = min_tokens.value_or(0);
    return {};
  }

  Status ids() {
    const Json* list = f_.array("stop_token_ids");
    DI_TRY(f_.status());
    if (list == nullptr) return {};
    if (list->size() > 64) return refuse("stop_token_ids: at most 64");
    for (const Json& v : *list) {
      if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= vocab_)
        return bad_body("stop_token_ids", "expected ids in [0, " + std::to_string(vocab_) + ")");
      out_.stop_token_ids.push_back(static_cast<int32_t>(v.get<int64_t>()));
    }
    return {};
  }

  Status bias() {
    const Json* map = f_.object("logit_bias");
    DI_TRY(f_.status());
    if (map == nullptr) return {};
    if (map->size() > 1024) return refuse("logit_bias: at most 1024 ids");
    for (auto it = map->begin(); it != map->end(); ++it) {
      char* end = nullptr;
      long long id = std::strtoll(it.key().c_str(), &end, 10);
      if (it.key().empty() || *end != '\0' || id < 0 || id >= vocab_ || !it->is_number())
        return bad_body("logit_bias", "expected token ids and numbers");
      double v = it->get<double>();
      if (!(v >= -100 && v <= 100)) return refuse("logit_bias values must be in [-100, 100]");
      out_.logit_bias.emplace_back(static_cast<int32_t>(id), v);
    }
    std::sort(out_.logit_bias.begin(), out_.logit_bias.end());
    for (size_t i = 1; i < out_.logit_bias.size(); ++i) {
      if (out_.logit_bias[i].first == out_.logit_bias[i - 1].first)
        return bad_body("logit_bias", "an id appears twice");
    }
    return {};
  }

  void constrain(ConstraintSpec::Kind kind, const Json& value, std::string field) {
    ++constraints_;
    out_.constraint = ConstraintSpec{kind, value, std::move(field), false};
  }

  Status structured() {
    using K = ConstraintSpec::Kind;
    const std::pair<const char*, K> members[] = {
        {"json", K::kJsonSchema}, {"json_object", K::kJsonObject}, {"regex", K::kRegex},
        {"grammar", K::kGrammar}, {"choice", K::kChoice},          {"structural_tag", K::kStructuralTag}};
    for (auto [name, kind] : members) {
      std::string guided = std::string("guided_") + name;
      if (const Json* v = f_.any(guided.c_str())) constrain(kind, *v, guided);
    }
    const Json* outputs = f_.object("structured_outputs");
    DI_TRY(f_.status());
    if (outputs != nullptr) {
      Fields g(*outputs, "structured_outputs");
      for (auto [name, kind] : members) {
        const Json* v = g.any(name);
        if (v == nullptr || (kind == K::kJsonObject && *v == false)) continue;
        constrain(kind, *v, std::string("structured_outputs.") + name);
      }
    }
    if (constraints_ > 1) return refuse("only one kind of structured output per request");
    return {};
  }

  const Json& body_;
  Fields f_;
  int64_t vocab_;
  Extras out_;
  int constraints_ = 0;
};

}  // namespace

Result<Extras> read_extras(const Json& body, int64_t vocab_size) {
  if (!body.is_object()) return bad_body("", "expected an object");
  return Reader(body, vocab_size).run();
}

}  // namespace deepinfer
