// Members of request bodies that the vendor's protocols do not have but clients of other servers send:
// sampling limits, stop ids, cache salt, priorities, structured output. Source: peers' interfaces; issue "the
// server". Errors: kInvalidArgument or kUnsupported naming the member. Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "edge/request.h"
#include "edge/serve/generation.h"

namespace deepinfer {

struct Extras {
  int top_k = 0;
  double min_p = 0, repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false, prompt_logprobs = false, use_cache = true;
  std::optional<int> priority;
  std::string cache_salt;
  std::optional<int64_t> timeout_ms;
  std::optional<int64_t> max_completion_tokens;  // what newer clients send for max_tokens
  std::optional<ConstraintSpec> constraint;
};
Result<Extras> read_extras(const Json& body, int64_t vocab_size);

}  // namespace deepinfer
