// Words of the public header, and what is checked about a request before anything is queued.
#include "engine/engine.h"

#include <algorithm>

#include "engine/request_check.h"

namespace deepinfer {

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kDeadline:
      return "deadline";
    case Finish::kRefused:
      return "refused";
    case Finish::kError:
      return "error";
  }
  return "?";
}

uint64_t choice_seed(uint64_t seed, int choice) {
  if (choice == 0) return seed;
  uint64_t z = seed + static_cast<uint64_t>(choice) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

namespace {

Status check_ids(const char* name, const std::vector<int32_t>& ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      return error(Code::kInvalidArgument, "{}: id {} is outside the vocabulary of {} ids", name, ids[i],
                   vocab);
    if (i > 0 && ids[i - 1] >= ids[i])
      return error(Code::kInvalidArgument, "{}: ids must ascend, {} follows {}", name, ids[i], ids[i - 1]);
  }
  return {};
}

Status check_images(const EngineRequest& r, const ModelConfig& c) {
  if (r.image_digests.size() != r.images.size())
    return error(Code::kInvalidArgument, "image_digests has {} entries for {} images", r.image_digests.size(),
                 r.images.size());
  int64_t at = 0, n = static_cast<int64_t>(r.prompt.size());
  for (size_t i = 0; i < r.images.size(); ++i) {
    const ImageSpan& s = r.images[i];
    if (s.begin < at || s.count < 1 || s.begin > n || s.count > n - s.begin)
      return error(Code::kInvalidArgument,
                   "images[{}]: positions {} and {} more do not lie in order inside the prompt of {} tokens",
                   i, s.begin, s.count, n);
    if (static_cast<int64_t>(s.rows.size()) != s.count * c.hidden_size)
      return error(Code::kInvalidArgument, "images[{}]: {} values for {} rows of {}", i, s.rows.size(),
                   s.count, c.hidden_size);
    if (r.image_digests[i].empty())
      return error(Code::kInvalidArgument, "images[{}]: the digest is empty", i);
    at = s.begin + s.count;
  }
  return {};
}

Status check_numbers(const EngineRequest& r, const RequestLimits& limits) {
  if (r.max_tokens < 1)
    return error(Code::kInvalidArgument, "max_tokens must be at least 1, not {}", r.max_tokens);
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens)
    return error(Code::kInvalidArgument, "min_tokens must be in [0, max_tokens = {}], not {}", r.max_tokens,
                 r.min_tokens);
  if (r.choices < 1 || r.choices > limits.choices)
    return error(Code::kInvalidArgument, "choices must be in [1, {}], not {}", limits.choices, r.choices);
  if (r.top_logprobs < -1 || r.top_logprobs > limits.top_logprobs)
    return error(Code::kInvalidArgument, "top_logprobs must be in [-1, {}], not {}", limits.top_logprobs,
                 r.top_logprobs);
  if (!(r.tenant_weight > 0 && r.tenant_weight <= 1e9))
    return error(Code::kInvalidArgument, "tenant_weight must be above 0, not {}", r.tenant_weight);
  if (r.deadline_ns < 0)
    return error(Code::kInvalidArgument, "deadline_ns must not be negative: {}", r.deadline_ns);
  return {};
}

}  // namespace

Status check_request(const EngineRequest& r, const ModelConfig& c, const RequestLimits& limits) {
  if (r.prompt.empty()) return error(Code::kInvalidArgument, "the prompt has no tokens; give at least one");
  for (int32_t id : r.prompt) {
    if (id < 0 || id >= c.vocab_size)
      return error(Code::kInvalidArgument, "prompt: id {} is outside the vocabulary of {} ids", id,
                   c.vocab_size);
  }
  DI_TRY(check_images(r, c));
  DI_TRY(validate(r.sampling));
  for (auto [id, bias] : r.sampling.logit_bias) {
    if (id < 0 || id >= c.vocab_size)
      return error(Code::kInvalidArgument, "logit_bias: id {} is outside the vocabulary of {} ids", id,
                   c.vocab_size);
  }
  DI_TRY(check_numbers(r, limits));
  DI_TRY(check_ids("stop_ids", r.stop_ids, c.vocab_size));
  DI_TRY(check_ids("banned_ids", r.banned_ids, c.vocab_size));
  if (static_cast<int64_t>(r.banned_ids.size()) >= c.vocab_size)
    return error(Code::kInvalidArgument, "banned_ids leaves no id of the vocabulary");
  int64_t n = static_cast<int64_t>(r.prompt.size());
  if (n >= limits.context || r.max_tokens > limits.context - n) {
    return error(
        Code::kInvalidArgument,
        "the prompt of {} tokens and max_tokens {} do not fit the context of {} together; shorten one", n,
        r.max_tokens, limits.context);
  }
  return {};
}

}  // namespace deepinfer
